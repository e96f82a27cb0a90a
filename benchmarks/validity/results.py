"""Runs of the benchmark, and the columns of their CSV file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from benchmarks.runs.results import Layout

NUMBERS, MIXED = "numbers", "mixed"
"""Kinds of tables: correlated numbers, and the columns of the coverage design `mixed_2000`."""


@dataclass(frozen=True, order=True)
class Run:
    """Identity of a run: one method on one generated table."""

    kind: str
    """`NUMBERS` or `MIXED`."""
    n_rows: int
    """Number of rows."""
    n_columns: int
    """Number of columns."""
    method: str
    """Key of `benchmarks.coverage.methods.METHODS`."""

    def __str__(self) -> str:
        return f"{self.method} on {self.n_rows:,} rows of {self.n_columns} columns ({self.kind})"


KEY = tuple(field.name for field in fields(Run))
"""Columns that identify a run."""

COLUMNS = (*KEY, "m", "seconds", "gigabytes", "limit", "version", "error")
"""All columns: imputations, their time and memory above the table, the time limit, and why a run failed."""


def _run_of(row: Mapping[str, str]) -> Run:
    return Run(row["kind"], int(row["n_rows"]), int(row["n_columns"]), row["method"])


LAYOUT = Layout("python -m benchmarks.validity", COLUMNS, _run_of, lambda run: run)
"""Columns of the file, and the order of its rows."""
