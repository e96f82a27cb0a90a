"""CSV file with the results of many runs, which stays valid when the process is killed at any moment.

Each run is appended as one line and flushed to disk. An incomplete last line, which lacks its line break, is
removed when the file is opened again, and its run is repeated.
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
from benchmarks.paper.methods.registry import METHODS
from benchmarks.paper.scores import Scores


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

Row = Mapping[str, object]


class Results:
    """Results file, created if it does not exist.

    Args:
        path: Path of the file.

    Raises:
        ValueError: If the file exists and was not written by this class.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open()

    def done(self, count_failed: bool = True) -> set[Run]:
        """Return the runs in the file.

        Args:
            count_failed: Whether to include failed runs.
        """
        return {_run_of(row) for row in self._rows() if count_failed or not row["error"]}

    def append(self, run: Run, row: Row) -> None:
        """Append the results of a run and flush them to disk.

        Args:
            run: Run that was done.
            row: Values of the other columns; absent ones stay empty.
        """
        text = _line([_text({**vars(run), **row}.get(name)) for name in COLUMNS])
        with self.path.open("a", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def sort(self, keep_failed: bool = True) -> None:
        """Sort the rows by profile, table, rate, split and method, replacing the file atomically.

        Args:
            keep_failed: Whether to keep failed runs; a removed run is repeated.
        """
        rows = {_run_of(row): row for row in self._rows() if keep_failed or not row["error"]}
        self._write(rows[run] for run in sorted(rows, key=_position))

    def _rows(self) -> list[dict[str, str]]:
        with self.path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def _write(self, rows: Iterable[Mapping[str, str]]) -> None:
        partial = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with partial.open("w", encoding="utf-8", newline="") as file:
            file.write(_line(COLUMNS))
            file.writelines(_line([row[name] for name in COLUMNS]) for row in rows)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self.path)

    def _open(self) -> None:
        """Create the file if it does not exist, and remove an incomplete last line."""
        text = self.path.read_text("utf-8") if self.path.exists() else ""
        complete, _, incomplete = text.rpartition("\n")
        if not complete:
            if incomplete and not _line(COLUMNS).startswith(incomplete):
                raise ValueError(
                    f"{str(self.path)!r} was not written by benchmarks.paper.tables: choose another file"
                )
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._write([])
            return
        if complete.partition("\n")[0] + "\n" != _line(COLUMNS):
            raise ValueError(
                f"{str(self.path)!r} was not written by this version of benchmarks.paper.tables: choose "
                "another file"
            )
        if incomplete:
            with self.path.open("r+b") as file:
                file.truncate(len(f"{complete}\n".encode()))


def read(path: str | os.PathLike[str]) -> pd.DataFrame:
    """Return the results as a table, in which `error` is empty for runs that succeeded.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it holds other columns, or no run.
    """
    table = pd.read_csv(path, dtype={"error": str, "method": str, "dataset": str, "version": str})
    if tuple(table.columns) != COLUMNS or table.empty:
        raise ValueError(f"{str(path)!r} holds no results of benchmarks.paper.tables")
    return table.assign(error=table["error"].fillna(""))


def _run_of(row: Mapping[str, str]) -> Run:
    return Run(row["profile"], row["dataset"], int(row["rate"]), int(row["split"]), row["method"])


def _position(run: Run) -> tuple[str, int, int, int, int]:
    places = list(DATASETS).index(run.dataset), list(METHODS).index(run.method)
    return run.profile, places[0], run.rate, run.split, places[1]


def _text(value: object) -> str:
    """Return a cell as text: empty for None and NaN, one line for a text, all digits of a number."""
    if value is None or value != value:  # NaN alone differs from itself
        return ""
    return " ".join(str(value).split())


def _line(cells: Sequence[str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(cells)
    return buffer.getvalue()
