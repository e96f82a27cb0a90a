"""Results of the paper's experiments: identity of a run, and columns of the CSV file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from benchmarks.paper.data import DATASETS
from benchmarks.paper.methods.registry import METHODS
from benchmarks.paper.scores import Scores
from benchmarks.runs.results import Layout


@dataclass(frozen=True, order=True)
class Run:
    """Identity of a run: one method on one split of one table at one rate of missing cells."""

    profile: str
    """Key of `PROFILES`."""
    dataset: str
    """Key of `DATASETS`."""
    rate: int
    """Percentage of missing cells."""
    split: int
    """Number of the split, and seed of the method."""
    method: str
    """Key of `METHODS`."""

    def __str__(self) -> str:
        return f"{self.method} on {self.dataset}, {self.rate} %, split {self.split}"


KEY = tuple(field.name for field in fields(Run))
"""Columns that identify a run."""

MEASURED = ("seconds", "peak_gigabytes", "gpu_gigabytes")
"""Columns with measurements, which vary when a run is repeated."""

COLUMNS = (
    *KEY,
    "n_train",
    "n_test",
    "n_missing",
    *(field.name for field in fields(Scores)),
    "draws",
    *MEASURED,
    "device",
    "threads",
    "version",
    "error",
)
"""All columns; an empty cell is a score that the method does not have, `error` is the reason of a failure."""


def _run_of(row: Mapping[str, str]) -> Run:
    return Run(row["profile"], row["dataset"], int(row["rate"]), int(row["split"]), row["method"])


def _position(run: Run) -> tuple[str, int, int, int, int]:
    places = list(DATASETS).index(run.dataset), list(METHODS).index(run.method)
    return run.profile, places[0], run.rate, run.split, places[1]


LAYOUT = Layout("benchmarks.paper.tables", COLUMNS, _run_of, _position)
"""Columns of the file, sorted by profile, table, rate, split and method."""

read = LAYOUT.read
