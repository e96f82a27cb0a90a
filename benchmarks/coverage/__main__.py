"""Count how often pooled 95 % intervals cover the true parameter.

Tables with missing cells are drawn from designs with known parameters, imputed by several methods, and
analysed by a pooled regression. The command adds to FILE and continues where FILE stops.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from tqdm import tqdm

from benchmarks import command
from benchmarks.coverage import simulation
from benchmarks.coverage.designs import DESIGNS
from benchmarks.coverage.methods import METHODS


def main(argv: Sequence[str] | None = None) -> int:
    """Run the repetitions that FILE lacks, and print a summary; return the exit status."""
    parser = command.new_parser("coverage", __doc__)
    option = parser.add_argument
    option("-o", "--out", metavar="FILE", required=True, help="CSV file of all repetitions, added to")
    option(
        "--designs", nargs="+", metavar="DESIGN", default=list(DESIGNS),
        help=f"{', '.join(DESIGNS)} (default: all)",
    )  # fmt: skip
    option(
        "--methods", nargs="+", metavar="METHOD", default=["mgp"],
        help=f"{', '.join(METHODS)} (those named mice_... need R's mice; default: mgp)",
    )  # fmt: skip
    option(
        "--repetitions", metavar="N", type=command.at_least(1), default=100,
        help="tables per design (default: 100)",
    )  # fmt: skip
    option("--picture", metavar="PNG", help="also plot the summary of FILE")
    return command.execute(parser, argv, _run)


def _run(args: argparse.Namespace) -> None:
    out = Path(args.out)
    done = pd.read_csv(out) if out.exists() else None
    tasks = simulation.tasks(args.designs, args.methods, args.repetitions, done)
    for row in tqdm(simulation.run(tasks), total=len(tasks), unit="table", disable=None, leave=False):
        pd.DataFrame([row]).to_csv(out, mode="a", header=not out.exists(), index=False)
    summary = simulation.summary(pd.read_csv(out))
    command.say(summary.round(3).to_string(index=False))
    if args.picture:
        from benchmarks.coverage import plot  # needs matplotlib

        command.say(plot.draw(summary, Path(args.picture)))


if __name__ == "__main__":
    sys.exit(main())
