"""Measure imputation methods on 21 public tables with five patterns of missing cells.

Each run has a process of its own. One line per run is added to the CSV file as soon as it is done; started
again, the command continues where it stopped. `python -m benchmarks.tables.report` makes tables and figures
of the file.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Sequence

from benchmarks import command
from benchmarks.paper import data
from benchmarks.runs.queue import add_options, do_all
from benchmarks.tables.cell import in_own_process
from benchmarks.tables.methods.registry import METHODS
from benchmarks.tables.methods.rivals import PYTHON
from benchmarks.tables.patterns import PATTERNS
from benchmarks.tables.results import DATASETS, LAYOUT, Run

PROFILES = {"quick": 3000, "all": 0}
"""Maximum number of rows by name of the profile; 0 for all."""

SEEDS = (0, 1, 2)
"""Seeds of the missing cells."""

DEFAULT_METHODS = tuple(name for name, method in METHODS.items() if method.check is None)
"""Methods that need nothing but Python packages of this environment."""


def plan(
    rows: int,
    datasets: Sequence[str] = tuple(DATASETS),
    patterns: Sequence[str] = tuple(PATTERNS),
    seeds: Sequence[int] = SEEDS,
    methods: Sequence[str] = DEFAULT_METHODS,
) -> list[Run]:
    """Return all runs in the order in which they are done: the first seed of everything before the second.

    Args:
        rows: Maximum number of rows; 0 for all.
        datasets: Keys of `DATASETS`.
        patterns: Keys of `PATTERNS`.
        seeds: Seeds of the missing cells and of the methods.
        methods: Keys of `METHODS`.

    Raises:
        ValueError: If a name is invalid; the message lists the valid ones.
    """
    for what, names, valid in (
        ("table", datasets, DATASETS), ("pattern", patterns, PATTERNS), ("method", methods, METHODS),
    ):  # fmt: skip
        for unknown in set(names) - set(valid):
            raise ValueError(f"there is no {what} {unknown!r}: choose from {list(valid)}")
    runs = itertools.product(seeds, methods, datasets, patterns)
    return [Run(rows, dataset, pattern, seed, method) for seed, method, dataset, pattern in runs]


def main(argv: Sequence[str] | None = None) -> int:
    """Do the runs that the results file lacks; return the exit status."""
    parser = command.new_parser("tables", __doc__)
    option, at_least = parser.add_argument, command.at_least
    for name, what, default in (
        ("tables", DATASETS, tuple(DATASETS)),
        ("patterns", PATTERNS, tuple(PATTERNS)),
        ("methods", METHODS, DEFAULT_METHODS),
    ):
        shown = "all" if len(default) == len(what) else " ".join(default)
        option(
            f"--{name}", metavar="NAME", nargs="+", default=default,
            help=f"{', '.join(what)} (default: {shown})",
        )  # fmt: skip
    option(
        "--seeds", metavar="NUMBER", type=at_least(0), nargs="+", default=SEEDS,
        help=f"seeds of the missing cells and of the methods (default: {' '.join(map(str, SEEDS))})",
    )  # fmt: skip
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--profile", choices=tuple(PROFILES), default="quick",
        help="quick: at most 3,000 rows per table, a fixed random subset; all: all rows (default: quick)",
    )  # fmt: skip
    size.add_argument("--rows", metavar="N", type=at_least(1), help="at most N rows per table")
    option(
        "--rivals-python", metavar="PATH",
        help="Python with the packages of benchmarks/tables/rivals.txt, for hyperimpute and gcimpute "
        f"(default: ${PYTHON})",
    )  # fmt: skip
    add_options(parser)
    return command.execute(parser, argv, _run)


def _run(args: argparse.Namespace) -> None:
    if args.rivals_python is not None:
        os.environ[PYTHON] = args.rivals_python  # runs inherit it
    rows = args.rows or PROFILES[args.profile]
    runs = plan(rows, args.tables, args.patterns, args.seeds, args.methods)

    def prepare(remaining: Sequence[Run]) -> None:
        for method in dict.fromkeys(each.method for each in remaining):
            if check := METHODS[method].check:
                check()
        data.fetch_all((each.dataset for each in remaining), args.data_dir)

    do_all(args, runs, LAYOUT, lambda each: in_own_process(each, args.data_dir), prepare)


if __name__ == "__main__":
    sys.exit(main())
