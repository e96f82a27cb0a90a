"""CSV file with the results of many runs, which stays valid when the process is killed at any moment.

Each run is appended as one line and flushed to disk. An incomplete last line, which lacks its line break, is
removed when the file is opened again, and its run is repeated.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import pandas as pd

from pyro_mgp.storage.atomic import atomic_file

RunT = TypeVar("RunT")
"""Dataclass that identifies a run; its fields are columns of the file."""

Row = Mapping[str, object]


@dataclass(frozen=True)
class Layout(Generic[RunT]):
    """Columns of a file of results, and the order of its rows."""

    program: str
    """Module that writes the file."""
    columns: tuple[str, ...]
    """All columns, `error` among them: the reason of a failure, empty for a run that succeeded."""
    run_of: Callable[[Mapping[str, str]], RunT]
    """Function that returns the run of a row of texts."""
    position: Callable[[RunT], Any]
    """Function that returns the sort key of a run."""

    def read(self, path: str | os.PathLike[str]) -> pd.DataFrame:
        """Return the results as a table, in which `error` is empty for runs that succeeded.

        Raises:
            OSError: If the file cannot be read.
            ValueError: If it holds other columns, or no run.
        """
        texts = dict.fromkeys({"error", "method", "dataset", "version"} & set(self.columns), str)
        table = pd.read_csv(path, dtype=texts)
        if tuple(table.columns) != self.columns or table.empty:
            raise ValueError(f"{str(path)!r} holds no results of {self.program}")
        return table.assign(error=table["error"].fillna(""))


class Results(Generic[RunT]):
    """Results file, created if it does not exist.

    Args:
        path: Path of the file.
        layout: Its columns.

    Raises:
        ValueError: If the file exists and was not written by this class with this layout.
    """

    def __init__(self, path: Path, layout: Layout[RunT]) -> None:
        self.path, self.layout = path, layout
        self._open()

    def done(self, count_failed: bool = True) -> set[RunT]:
        """Return the runs in the file.

        Args:
            count_failed: Whether to include failed runs.
        """
        return {self.layout.run_of(row) for row in self._rows() if count_failed or not row["error"]}

    def append(self, run: RunT, row: Row) -> None:
        """Append the results of a run and flush them to disk.

        Args:
            run: Run that was done.
            row: Values of the other columns; absent ones stay empty.
        """
        text = _line([_text({**vars(run), **row}.get(name)) for name in self.layout.columns])
        with self.path.open("a", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def sort(self, keep_failed: bool = True) -> None:
        """Sort the rows in the order of the layout, replacing the file atomically.

        Args:
            keep_failed: Whether to keep failed runs; a removed run is repeated.
        """
        rows = {self.layout.run_of(row): row for row in self._rows() if keep_failed or not row["error"]}
        self._write(rows[run] for run in sorted(rows, key=self.layout.position))

    def _rows(self) -> list[dict[str, str]]:
        with self.path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def _write(self, rows: Iterable[Mapping[str, str]]) -> None:
        with atomic_file(self.path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
            file.write(_line(self.layout.columns))
            file.writelines(_line([row[name] for name in self.layout.columns]) for row in rows)

    def _open(self) -> None:
        """Create the file if it does not exist, and remove an incomplete last line."""
        header, program = _line(self.layout.columns), self.layout.program
        text = self.path.read_text("utf-8") if self.path.exists() else ""
        complete, _, incomplete = text.rpartition("\n")
        if not complete:
            if incomplete and not header.startswith(incomplete):
                raise ValueError(f"{str(self.path)!r} was not written by {program}: choose another file")
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._write([])
            return
        if complete.partition("\n")[0] + "\n" != header:
            raise ValueError(
                f"{str(self.path)!r} was not written by this version of {program}: choose another file"
            )
        if incomplete:
            with self.path.open("r+b") as file:
                file.truncate(len(f"{complete}\n".encode()))


def _text(value: object) -> str:
    """Return a cell as text: empty for None and NaN, one line for a text, all digits of a number."""
    if value is None or value != value:  # NaN alone differs from itself
        return ""
    return " ".join(str(value).split())


def _line(cells: Sequence[str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(cells)
    return buffer.getvalue()
