"""The results of many runs in one tidy CSV, that a run killed at any moment leaves good.

Each run is appended as one whole line and forced to disk. A line that was torn, recognised by its missing
end, is dropped when the file is opened again, and its run is done again.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import pandas as pd

from benchmarks.paper.data import DATASETS
from benchmarks.paper.methods.registry import SYSTEMS
from benchmarks.paper.scores import Scores


@dataclass(frozen=True, order=True)
class Run:
    """One system on one split of one table at one rate."""

    profile: str
    """Key of `PROFILES`."""
    dataset: str
    """Key of `DATASETS`."""
    rate: int
    """Per cent of the cells that are missing."""
    split: int
    """Number of the split, and seed of the system."""
    method: str
    """Key of `SYSTEMS`."""

    def __str__(self) -> str:
        return f"{self.method} on {self.dataset}, {self.rate} %, split {self.split}"


KEY = tuple(field.name for field in fields(Run))
"""Columns that name a run."""

MEASURED = ("seconds", "peak_gigabytes", "gpu_gigabytes")
"""Columns that differ from one time to the next."""

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
"""All columns; an empty cell is a score that the system does not have, `error` is why a run failed."""

Row = Mapping[str, object]


class Results:
    """The file.

    Args:
        path: Where it is, or shall be.

    Raises:
        ValueError: If there is a file that was not written by this class.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mend()

    def done(self, count_failed: bool = True) -> set[Run]:
        """The runs that need not be done again.

        Args:
            count_failed: Whether those that failed are among them.
        """
        return {_run_of(row) for row in self._rows() if count_failed or not row["error"]}

    def append(self, run: Run, row: Row) -> None:
        """Write the results of a run, so that they outlast whatever comes next.

        Args:
            run: The run.
            row: The other columns; those left out stay empty.
        """
        text = _line([_text({**vars(run), **row}.get(name)) for name in COLUMNS])
        with self.path.open("a", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def sort(self, keep_failed: bool = True) -> None:
        """Bring the rows into their order, whatever order they were written in, whole or not at all.

        Args:
            keep_failed: Whether runs that failed stay, or are forgotten to be tried again.
        """
        rows = {_run_of(row): row for row in self._rows() if keep_failed or not row["error"]}
        self._write(rows[run] for run in sorted(rows, key=_position))

    def _rows(self) -> list[dict[str, str]]:
        with self.path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def _write(self, rows: Iterable[Mapping[str, str]]) -> None:
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with beside.open("w", encoding="utf-8", newline="") as file:
            file.write(_line(COLUMNS))
            file.writelines(_line([row[name] for name in COLUMNS]) for row in rows)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)

    def _mend(self) -> None:
        """Make the file if there is none, and drop a torn last line."""
        text = self.path.read_text("utf-8") if self.path.exists() else ""
        whole, _, torn = text.rpartition("\n")
        if not whole:
            if torn and not _line(COLUMNS).startswith(torn):
                raise ValueError(
                    f"{str(self.path)!r} was not written by benchmarks.paper.tables: choose another file"
                )
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._write([])
            return
        if whole.partition("\n")[0] + "\n" != _line(COLUMNS):
            raise ValueError(
                f"{str(self.path)!r} was not written by this version of benchmarks.paper.tables: choose "
                "another file"
            )
        if torn:
            with self.path.open("r+b") as file:
                file.truncate(len(f"{whole}\n".encode()))


def read(path: str | os.PathLike[str]) -> pd.DataFrame:
    """The results as a table, `error` empty where a run succeeded.

    Raises:
        OSError: If there is no such file.
        ValueError: If it holds other columns, or no run.
    """
    table = pd.read_csv(path, dtype={"error": str, "method": str, "dataset": str, "version": str})
    if tuple(table.columns) != COLUMNS or table.empty:
        raise ValueError(f"{str(path)!r} holds no results of benchmarks.paper.tables")
    return table.assign(error=table["error"].fillna(""))


def _run_of(row: Mapping[str, str]) -> Run:
    return Run(row["profile"], row["dataset"], int(row["rate"]), int(row["split"]), row["method"])


def _position(run: Run) -> tuple[str, int, int, int, int]:
    places = list(DATASETS).index(run.dataset), list(SYSTEMS).index(run.method)
    return run.profile, places[0], run.rate, run.split, places[1]


def _text(value: object) -> str:
    """A cell: nothing for what is not known, one line for a text, every digit of a number."""
    if value is None or value != value:  # NaN alone differs from itself
        return ""
    return " ".join(str(value).split())


def _line(cells: Sequence[str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(cells)
    return buffer.getvalue()
