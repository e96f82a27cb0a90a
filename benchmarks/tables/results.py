"""Results of the benchmark: identity of a run, and columns of the CSV file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from benchmarks.paper import data
from benchmarks.runs.results import Layout
from benchmarks.tables.methods.registry import METHODS
from benchmarks.tables.patterns import PATTERNS
from benchmarks.tables.scores import Scores

DATASETS = data.SUITE | data.DATASETS
"""Public tables by name: the suite, and those of the paper."""


@dataclass(frozen=True, order=True)
class Run:
    """Identity of a run: one method on one table with one draw of a pattern of missing cells."""

    rows: int
    """Maximum number of rows, a fixed random subset; 0 for all."""
    dataset: str
    """Key of `DATASETS`."""
    pattern: str
    """Key of `PATTERNS`."""
    seed: int
    """Seed of the missing cells and of the method."""
    method: str
    """Key of `METHODS`."""

    def __str__(self) -> str:
        return f"{self.method} on {self.dataset}, {self.pattern}, seed {self.seed}"


KEY = tuple(field.name for field in fields(Run))
"""Columns that identify a run."""

MEASURED = ("seconds", "peak_gigabytes")
"""Columns with measurements, which vary when a run is repeated."""

COLUMNS = (
    *KEY,
    "n_rows",
    "n_columns",
    "n_missing",
    *(field.name for field in fields(Scores)),
    "draws",
    *MEASURED,
    "version",
    "error",
)
"""All columns; an empty cell is a score that the method does not have, `error` is the reason of a failure."""


def _run_of(row: Mapping[str, str]) -> Run:
    return Run(int(row["rows"]), row["dataset"], row["pattern"], int(row["seed"]), row["method"])


def _position(run: Run) -> tuple[int, ...]:
    dataset, pattern = list(DATASETS).index(run.dataset), list(PATTERNS).index(run.pattern)
    return run.rows, dataset, pattern, run.seed, list(METHODS).index(run.method)


LAYOUT = Layout("benchmarks.tables", COLUMNS, _run_of, _position)
"""Columns of the file, sorted by number of rows, table, pattern, seed and method."""
