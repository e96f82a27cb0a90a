"""Run the paper's experiments: public tables × rates of missing cells × splits × imputation methods.

Each run has a process of its own. One line per run is added to the CSV file as soon as it is done; started
again, the command continues where it stopped. `python -m benchmarks.paper.report` makes tables and figures of
the file.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence

from benchmarks import command
from benchmarks.paper import data
from benchmarks.paper.cell import Place, in_own_process
from benchmarks.paper.methods.registry import METHODS
from benchmarks.paper.profiles import PROFILES
from benchmarks.paper.results import LAYOUT, Run
from benchmarks.runs.queue import add_options, do_all

RATES = (10, 20, 30, 40)
"""Percentages of missing cells, as in the paper."""

SPLITS = (0, 1, 2, 3, 4)
"""Numbers of the random splits into training and test rows."""


def plan(
    profile: str = "quick",
    datasets: Sequence[str] = tuple(data.DATASETS),
    rates: Sequence[int] = RATES,
    splits: Sequence[int] = SPLITS,
    methods: Sequence[str] = tuple(METHODS),
) -> list[Run]:
    """Return all runs in the order in which they are done: the first split of everything before the second.

    Args:
        profile: Key of `PROFILES`.
        datasets: Keys of `DATASETS`.
        rates: Percentages of cells to remove, 1 to 99.
        splits: Numbers of splits.
        methods: Keys of `METHODS`.

    Raises:
        ValueError: If a name or rate is invalid; the message lists the valid ones.
    """
    if profile not in PROFILES:
        raise ValueError(f"there is no profile {profile!r}: choose one of {list(PROFILES)}")
    for dataset in datasets:
        data.check_name(dataset)
    for method in methods:
        if method not in METHODS:
            raise ValueError(f"there is no method {method!r}: choose from {list(METHODS)}")
    for rate in rates:
        if not 0 < rate < 100:
            raise ValueError(f"expected a rate of missing cells in per cent, between 1 and 99; got {rate}")
    runs = itertools.product(splits, methods, datasets, rates)
    return [Run(profile, dataset, rate, split, method) for split, method, dataset, rate in runs]


def main(argv: Sequence[str] | None = None) -> int:
    """Do the runs that the results file lacks; return the exit status."""
    parser = command.new_parser("paper.tables", __doc__)
    option, at_least = parser.add_argument, command.at_least
    option(
        "--profile", choices=tuple(PROFILES), default="quick",
        help="quick: at most 10,000 rows per table; paper: all rows and the paper's settings, for a GPU "
        "(default: quick)",
    )  # fmt: skip
    option(
        "--datasets", metavar="NAME", nargs="+", default=tuple(data.DATASETS),
        help=f"{', '.join(data.DATASETS)} (default: all)",
    )  # fmt: skip
    option(
        "--rates", metavar="PERCENT", type=at_least(1), nargs="+", default=RATES,
        help=f"percentages of cells to remove (default: {' '.join(map(str, RATES))})",
    )  # fmt: skip
    option(
        "--splits", metavar="NUMBER", type=at_least(0), nargs="+", default=SPLITS,
        help="numbers of the random splits into training and test rows "
        f"(default: {' '.join(map(str, SPLITS))})",
    )  # fmt: skip
    option(
        "--methods", metavar="NAME", nargs="+", default=tuple(METHODS),
        help=f"{', '.join(METHODS)} (default: all)",
    )  # fmt: skip
    add_options(parser)
    option("--threads", metavar="N", type=at_least(1), default=1, help="threads of each run (default: 1)")
    option("--device", default="cpu", help="torch device of the methods that use one (default: cpu)")
    return command.execute(parser, argv, _run)


def _run(args: argparse.Namespace) -> None:
    runs = plan(args.profile, args.datasets, args.rates, args.splits, args.methods)
    place = Place(args.data_dir, args.device, args.threads)
    do_all(
        args,
        runs,
        LAYOUT,
        lambda each: in_own_process(each, place),
        lambda remaining: data.fetch_all((each.dataset for each in remaining), args.data_dir),
    )


if __name__ == "__main__":
    sys.exit(main())
