"""Measure the time and memory of twenty imputations, as tables get more rows or columns.

Each run has a process of its own with one thread. One line per run is added to the CSV file as soon as it is
done; started again, the command continues where it stopped. A method is not run on tables larger than one for
which the time limit was too short; with a longer limit, `--retry-failed` repeats such runs.
`python -m benchmarks.coverage` measures whether pooled intervals are valid.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from benchmarks import command
from benchmarks.coverage import r_mice
from benchmarks.coverage.methods import METHODS
from benchmarks.runs.process import Row
from benchmarks.runs.queue import add_options, do_all
from benchmarks.runs.results import Results
from benchmarks.validity.results import KEY, LAYOUT, MIXED, NUMBERS, Run
from benchmarks.validity.run import in_own_process

SIZES = (
    *((MIXED, n_rows, 7) for n_rows in (1_000, 10_000, 100_000)),
    *((NUMBERS, n_rows, 10) for n_rows in (1_000, 10_000, 100_000, 1_000_000)),
    *((NUMBERS, 1_000, n_columns) for n_columns in (50, 100, 500)),
)
"""Kinds, rows and columns of the tables."""

COMPARED = ("mgp", "miceforest", "mice_cart", "mice_pmm", "mice_rf")
"""Methods that run by default."""


def plan(methods: Sequence[str], most_rows: int) -> list[Run]:
    """Return all runs, small tables first.

    Args:
        methods: Keys of `METHODS`.
        most_rows: Most rows of a table.

    Raises:
        ValueError: If there is no such method.
    """
    for unknown in set(methods) - set(METHODS):
        raise ValueError(f"there is no method {unknown!r}: choose from {list(METHODS)}")
    sizes = sorted((size for size in SIZES if size[1] <= most_rows), key=lambda size: size[1] * size[2])
    return [Run(*size, method) for size in sizes for method in methods]


def unless_late(run: Run, late: list[Run], limit: int) -> Row:
    """Do a run, unless a smaller table took its method too long; add it to the `late` ones if it does."""
    smaller = [
        each
        for each in late
        if (each.kind, each.method) == (run.kind, run.method)
        and each.n_rows <= run.n_rows
        and each.n_columns <= run.n_columns
    ]
    if smaller:
        return {"error": f"not run: {smaller[0]} took more than {limit} s", "limit": limit}
    row = in_own_process(run, limit)
    if str(row.get("error", "")).startswith("TimeoutError"):
        late.append(run)
    return row


def late_in(out: Path) -> list[Run]:
    """Return the runs in a file of results, created if there is none, that were not done in time.

    Raises:
        ValueError: If the file holds other results.
    """
    Results(out, LAYOUT)  # refuses other files, and completes one that was cut off
    # Not by `LAYOUT.read`, which refuses a file without runs: that of a command killed during the first.
    table = pd.read_csv(out, dtype={"error": str})
    late = table[table["error"].fillna("").str.startswith("TimeoutError")]
    return [Run(*row) for row in late[list(KEY)].to_numpy().tolist()]


def main(argv: Sequence[str] | None = None) -> int:
    """Do the runs that the results file lacks; return the exit status."""
    parser = command.new_parser("validity", __doc__)
    names = " ".join(COMPARED)
    parser.add_argument(
        "--methods",
        metavar="NAME",
        nargs="+",
        default=COMPARED,
        help=f"{', '.join(METHODS)} (default: {names})",
    )
    for name, what, default in (
        ("most-rows", "most rows of a table", 10**6),
        ("limit", "seconds of a run", 600),
    ):
        parser.add_argument(
            f"--{name}",
            metavar="N",
            type=command.at_least(1),
            default=default,
            help=f"{what} (default: {default})",
        )
    add_options(parser)

    def run(given: argparse.Namespace) -> None:
        if given.jobs > 1:
            raise ValueError("runs are timed, one after the other: leave out --jobs")
        runs = plan(given.methods, given.most_rows)
        late = [] if given.retry_failed else late_in(Path(given.out))
        if any(each.method.startswith("mice_") for each in runs):
            r_mice.check()
        do_all(given, runs, LAYOUT, lambda each: unless_late(each, late, given.limit))

    return command.execute(parser, argv, run)


if __name__ == "__main__":
    sys.exit(main())
