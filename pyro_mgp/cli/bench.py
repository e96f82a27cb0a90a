"""`pyro-mgp bench`: measure, show, write."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyro_mgp.cli.arguments import at_least
from pyro_mgp.cli.messages import INTERRUPTED, PROGRAM, count, say

if TYPE_CHECKING:
    from benchmarks.figures import Row

_CHOICES = ("datasets", "rates", "splits", "methods")


def add(commands: Any) -> None:
    """Add the command to the parser."""
    bench = commands.add_parser("bench", help="measure the package on this machine")
    kinds = bench.add_subparsers(title="measurements", metavar="WHAT", required=True)
    _add_speed(kinds)
    _add_partitions(kinds)
    _add_tables(kinds)
    _add_report(kinds)
    _add_mixed(kinds)
    _add_coverage(kinds)
    _add_soak(kinds)
    _add_faults(kinds)
    _add_memory(kinds)


def _kind(
    kinds: Any, name: str, run: Callable[[argparse.Namespace], None], help: str, description: str
) -> Any:
    """Add a measurement to the parser; gives what adds its options."""
    parser = kinds.add_parser(name, help=help, description=description)
    parser.set_defaults(run=run)
    return parser.add_argument


def _add_speed(kinds: Any) -> None:
    option = _kind(
        kinds,
        "speed",
        _speed,
        help="speed against plain code and the hardware",
        description="Measure speed on this machine. The measurements: step (training step and sweep), "
        "latency (one new row), import, sizes (10,000 to 1,000,000 rows: minutes); and, on the public tables "
        "parkinson.csv and protein.csv.gz, training (natural gradients against Adam) and forests (against "
        "chained extra trees).",
    )
    names = ("step", "latency", "import", "sizes", "training", "forests")
    option("--only", nargs="+", choices=names, default=names, help="take some measurements only")
    option("--data-dir", metavar="DIR", help="folder with the public tables (default: $PYRO_MGP_DATA)")
    option("--device", default="cpu", help="torch device for step, latency and sizes (default: cpu)")
    option("-o", "--out", metavar="FILE", help="also write the figures to this CSV file")


def _speed(args: argparse.Namespace) -> None:
    """`pyro-mgp bench speed`: measure, show, write."""
    from benchmarks import speed

    _tell(speed.run(args.only, args.data_dir, args.device), args.out)


def _tell(rows: Iterable[Row], out: str | None) -> None:
    """Show figures as they come, and write them."""
    from benchmarks import speed

    shown = []
    for row in rows:
        say(f"{row.what:<52} {row.measured:8.2f} {row.unit:<6} {row.asked:<17} {row.detail}")
        shown.append(row)
    if out is not None:
        speed.table(shown).to_csv(out, index=False)


def _add_partitions(kinds: Any) -> None:
    option = _kind(
        kinds,
        "partitions",
        _partitions,
        help="rows per second of a table larger than memory, by number of workers",
        description="Write a table in Parquet files, fit an imputer to some of its rows, and impute all of "
        "them by workers of Dask, each allowed so much memory: rows per second, and how more workers "
        "compare with the first number of them.",
    )
    option("--rows", metavar="N", type=at_least(1), default=500_000, help="rows (default: 500000)")
    option("-m", metavar="M", type=at_least(1), default=2, help="completed tables (default: 2)")
    option(
        "--workers", metavar="N", type=at_least(1), nargs="+", default=[1, 2],
        help="numbers of workers to compare (default: 1 2)",
    )  # fmt: skip
    option(
        "--gigabytes", metavar="GB", type=float, default=3.0,
        help="memory that each process may ask for (default: 3)",
    )  # fmt: skip
    option("-o", "--out", metavar="FILE", help="also write the figures to this CSV file")


def _partitions(args: argparse.Namespace) -> None:
    """`pyro-mgp bench partitions`: measure, show, write."""
    from benchmarks import partitions

    _tell(partitions.measure(args.rows, args.m, args.workers, args.gigabytes), args.out)


def _add_tables(kinds: Any) -> None:
    option = _kind(
        kinds,
        "tables",
        _tables,
        help="accuracy on the paper's tables, beside other imputation methods",
        description="Run the paper's experiments: public tables × rates of missing cells × splits × methods, "
        "each run in a process of its own. One line per run is added to the CSV file as soon as it is done; "
        "started again, the command goes on where it stopped. `pyro-mgp bench report` makes tables and "
        "figures of it.",
    )
    option(
        "--profile", choices=("quick", "paper"), default="quick",
        help="quick: at most 10,000 rows per table; paper: all rows and the paper's settings, for a GPU "
        "(default: quick)",
    )  # fmt: skip
    several: dict[str, Any] = {"nargs": "+", "default": argparse.SUPPRESS}
    option(
        "--datasets", metavar="NAME", **several,
        help="protein, keggdirected, keggundirected, parkinson (default: all)",
    )  # fmt: skip
    option(
        "--rates", metavar="PERCENT", type=at_least(1), **several,
        help="per cent of the cells to remove (default: 10 20 30 40)",
    )  # fmt: skip
    option(
        "--splits", metavar="NUMBER", type=at_least(0), **several,
        help="numbers of the random splits into training and test rows (default: 0 1 2 3 4)",
    )  # fmt: skip
    option(
        "--methods", metavar="NAME", **several,
        help="mean, median, knn, mice, svgp, gain, mgp, extra_trees, miceforest, random_forests, dgp, "
        "mgp_paper (default: all)",
    )  # fmt: skip
    option(
        "--data-dir", metavar="DIR",
        help="folder with the public tables (default: $PYRO_MGP_DATA; without either they are fetched)",
    )  # fmt: skip
    option("-o", "--out", metavar="FILE", default="results.csv", help="CSV file (default: results.csv)")
    option("--jobs", metavar="N", type=at_least(1), default=1, help="runs at a time (default: 1)")
    option("--threads", metavar="N", type=at_least(1), default=1, help="threads of each run (default: 1)")
    option("--device", default="cpu", help="torch device of the methods that use one (default: cpu)")
    option("--retry-failed", action="store_true", help="do runs again that failed before")


def _tables(args: argparse.Namespace) -> None:
    """`pyro-mgp bench tables`: run what is not done yet."""
    from benchmarks import tables
    from benchmarks.cell import Place

    chosen = {name: value for name, value in vars(args).items() if name in _CHOICES}
    runs = tables.plan(args.profile, **chosen)
    place = Place(args.data_dir, args.device, args.threads)
    try:
        failed = tables.run(
            runs,
            Path(args.out),
            place,
            jobs=args.jobs,
            retry_failed=args.retry_failed,
            tell=lambda line: say(f"{PROGRAM}: {line}", sys.stderr),
        )
    except KeyboardInterrupt:
        say(f"{PROGRAM}: interrupted; the same command goes on from what {args.out} holds", sys.stderr)
        raise SystemExit(INTERRUPTED) from None
    ended = f"{count(len(runs) - failed, 'run')} in {args.out}"
    say(ended if not failed else f"{ended}, and {failed} that failed: --retry-failed does them again")


def _add_mixed(kinds: Any) -> None:
    option = _kind(
        kinds,
        "mixed",
        _mixed,
        help="numbers, booleans and categories of a table, beside other imputation methods",
        description="Hide cells of every column of a complete table, impute them by several methods, and "
        "score each column: RMSE and CRPS of numbers, accuracy and log score of anything else.",
    )
    option("table", metavar="TABLE", help="CSV or Parquet file; rows with missing cells are left out")
    option("--rate", metavar="PERCENT", type=at_least(1), default=20, help="cells to hide (default: 20)")
    option("--splits", metavar="N", type=at_least(1), default=10, help="how many times (default: 10)")
    names = ("mgp", "one_hot", "random_forests", "miceforest")
    option("--methods", nargs="+", choices=names, default=names, help="some methods only")
    option("-o", "--out", metavar="FILE", help="also write every score to this CSV file")


def _mixed(args: argparse.Namespace) -> None:
    """`pyro-mgp bench mixed`: hide, impute, score, show, write."""
    import pandas as pd
    from tqdm import tqdm

    from benchmarks import mixed
    from pyro_mgp.results import files

    table = files.read_table(Path(args.table)).frame.dropna().reset_index(drop=True)
    runs = mixed.run(table, args.methods, range(args.splits), args.rate / 100)
    n_rows = args.splits * len(args.methods) * len(table.columns)
    scores = pd.DataFrame(tqdm(runs, total=n_rows, unit="column", disable=None, leave=False))
    if args.out is not None:
        scores.to_csv(args.out, index=False, float_format="%.4f")
    means = scores.groupby(["column", "method"], sort=False).mean(numeric_only=True)
    say(means.drop(columns=["split", "cells"]).round(4).to_string(na_rep=""))


def _add_coverage(kinds: Any) -> None:
    option = _kind(
        kinds,
        "coverage",
        _coverage,
        help="pooled intervals against the truth, over many tables drawn from known designs",
        description="Draw tables with holes from designs whose truth is known, impute them by several "
        "methods, pool a regression, and count how often the 95 % interval holds the truth. Goes on where "
        "FILE stops.",
    )
    option("-o", "--out", metavar="FILE", required=True, help="CSV file of all repetitions, added to")
    option("--designs", nargs="+", metavar="DESIGN", help="some designs only (default: all)")
    option(
        "--methods", nargs="+", metavar="METHOD", default=["mgp"],
        help="mgp, mgp_per_cell, complete_cases, iterative, miceforest, mice_norm, mice_pmm, mice_cart, "
        "mice_rf (the last four need R's mice; default: mgp)",
    )  # fmt: skip
    option(
        "--repetitions", metavar="N", type=at_least(1), default=100, help="tables per design (default: 100)"
    )
    option("--picture", metavar="PNG", help="also draw what FILE then says")


def _coverage(args: argparse.Namespace) -> None:
    """`pyro-mgp bench coverage`: draw, impute, pool, count."""
    import pandas as pd
    from tqdm import tqdm

    from benchmarks import coverage

    out = Path(args.out)
    done = pd.read_csv(out) if out.exists() else None
    tasks = coverage.tasks(args.designs or list(coverage.DESIGNS), args.methods, args.repetitions, done)
    for row in tqdm(coverage.run(tasks), total=len(tasks), unit="table", disable=None, leave=False):
        pd.DataFrame([row]).to_csv(out, mode="a", header=not out.exists(), index=False)
    summary = coverage.summary(pd.read_csv(out))
    say(summary.round(3).to_string(index=False))
    if args.picture:
        from benchmarks import coverage_plot

        say(coverage_plot.draw(summary, Path(args.picture)))


def _add_report(kinds: Any) -> None:
    option = _kind(
        kinds,
        "report",
        _report,
        help="tables, ranks and figures from the results of `bench tables`",
        description="From the results of `pyro-mgp bench tables`: report.md with the RMSE beside the "
        "published one, the other scores, average ranks with Friedman's and Nemenyi's tests, and figures.",
    )
    option("results", metavar="RESULTS", help="CSV file that `pyro-mgp bench tables` wrote")
    option("-o", "--out", metavar="DIR", required=True, help="folder to write into")


def _report(args: argparse.Namespace) -> None:
    """`pyro-mgp bench report`: tables and figures."""
    from benchmarks import report

    for path in report.write(args.results, Path(args.out)):
        say(str(path))


def _add_soak(kinds: Any) -> None:
    option = _kind(
        kinds,
        "soak",
        _soak,
        help="many fits and imputations in one process: does memory grow?",
        description="Fit and impute small tables of mixed kinds, one after the other in one process, and say "
        "by how much memory grew after the first 50. Linux only.",
    )
    option("--rounds", metavar="N", type=at_least(61), default=500, help="fits (default: 500)")
    option("-o", "--out", metavar="FILE", help="also write memory and seconds of each round to this CSV file")


def _soak(args: argparse.Namespace) -> None:
    """`pyro-mgp bench soak`: fit again and again, and look at memory."""
    import pandas as pd

    from benchmarks import soak

    figures = pd.DataFrame(soak.soak(args.rounds))
    shown = figures.iloc[soak.SETTLED - 1 :: soak.SETTLED]
    for fits, memory in zip(shown["round"].tolist(), shown["memory_MB"].tolist(), strict=True):
        say(f"after {count(fits, 'fit'):<10} {memory:8.1f} MB")
    say(f"memory grew by {soak.growth(figures):.1%} after the first {soak.SETTLED}")
    if args.out is not None:
        figures.to_csv(args.out, index=False)


def _add_faults(kinds: Any) -> None:
    option = _kind(
        kinds,
        "faults",
        _faults,
        help="fit and impute killed at random moments, and gone on with",
        description="Fit and impute a table without a break; then kill the same commands at random moments, "
        "go on with --resume, and compare all files byte by byte.",
    )
    option("--kills", metavar="N", type=at_least(1), default=30, help="how many (default: 30)")
    option("--rows", metavar="N", type=at_least(50), default=3000, help="of the table (default: 3000)")
    option("--seed", metavar="N", type=at_least(0), default=0, help="of table and moments (default: 0)")


def _faults(args: argparse.Namespace) -> None:
    """`pyro-mgp bench faults`: kill, go on, compare, count."""
    import tempfile

    from benchmarks import faults

    good = 0
    with tempfile.TemporaryDirectory() as folder:
        for k, kill in enumerate(faults.run(Path(folder), args.kills, rows=args.rows, seed=args.seed), 1):
            good += kill.good
            seen = f"seen half-written: {kill.visible}; " if kill.visible else ""
            ended = "the same files" if kill.good else f"status {kill.status}; differ: {kill.different}"
            say(
                f"{k:3} {kill.command:<7} killed after {kill.seconds:5.1f} s, left {kill.left}; {seen}{ended}"
            )
    say(f"{good} of {args.kills} went on to the same files, none of them seen half-written")
    if good < args.kills:
        raise ValueError(f"{args.kills - good} of {args.kills} runs did not go on to the same files")


def _add_memory(kinds: Any) -> None:
    option = _kind(
        kinds,
        "memory",
        _memory,
        help="memory that fits and imputations take, beside what is estimated",
        description="Fit and impute tables of several sizes, each in a process of its own, and set the most "
        "memory that it took beside the estimate by which work that will not fit is refused. Linux only.",
    )
    option("-o", "--out", metavar="FILE", help="also write the figures to this CSV file")


def _memory(args: argparse.Namespace) -> None:
    """`pyro-mgp bench memory`: measure, show, write."""
    from benchmarks import memory

    _tell(memory.measure(), args.out)
