"""Count how often pooled 95 % intervals cover the truth, and compare their widths with exact ones.

Tables with missing cells are drawn from designs, or from public tables, imputed by several methods, analysed
and pooled. The command adds to FILE and continues where FILE stops.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from tqdm import tqdm

from benchmarks import command
from benchmarks.coverage import simulation, summary
from benchmarks.coverage.designs import DESIGNS, matching
from benchmarks.coverage.methods import EXACT, METHODS
from benchmarks.paper.data import DATA_DIR
from benchmarks.runs import provenance
from pyro_mgp.cli.messages import count

# Designs with more estimands are summarised by kind of estimand only.
_MOST_ESTIMANDS = 40


def main(argv: Sequence[str] | None = None) -> int:
    """Run the repetitions that FILE lacks, and print a summary; return the exit status."""
    parser = command.new_parser("coverage", __doc__)
    option = parser.add_argument
    option("-o", "--out", metavar="FILE", required=True, help="CSV file of all repetitions, added to")
    option(
        "--designs", nargs="+", metavar="DESIGN", required=True,
        help=f"{', '.join(DESIGNS)}; or patterns such as 'g2_*'",
    )  # fmt: skip
    option(
        "--methods", nargs="+", metavar="METHOD", default=["mgp"],
        help=f"{EXACT} (of few, g2, g4, limit and slade), {', '.join(METHODS)} (those named mice_... need "
        """R's mice), or options of the package such as 'mgp:{"inputs": "earlier"}' (default: mgp)""",
    )  # fmt: skip
    option(
        "--repetitions", metavar="N", type=command.at_least(1), default=100,
        help="tables per design (default: 100)",
    )  # fmt: skip
    option("--jobs", metavar="N", type=command.at_least(1), default=1, help="processes (default: 1)")
    command.add_data_dir(parser, "$PYRO_MGP_DATA; without either they are fetched")
    option(
        "--summary",
        metavar="STEM",
        help="also write the summaries to STEM_estimands.csv and STEM_designs.csv",
    )
    option("--picture", metavar="PNG", help="also plot the summary of FILE")
    return command.execute(parser, argv, _run)


def _run(args: argparse.Namespace) -> int:
    out = Path(args.out)
    if args.data_dir is not None:
        os.environ[DATA_DIR] = args.data_dir  # worker processes inherit it
    done = pd.read_csv(out) if out.exists() else None
    designs = matching(args.designs)
    tasks = simulation.tasks(designs, args.methods, args.repetitions, done)
    failed = 0
    results = simulation.record(simulation.run(tasks, args.jobs), str(out))
    for task, error in tqdm(results, total=len(tasks), unit="table", disable=None, leave=False):
        if error is not None:
            failed += 1
            command.say(f"{' '.join(map(str, task))} failed: {error}", sys.stderr)
        else:
            provenance.add(out, [" ".join(task[:2])])
    if out.exists():
        _summarise(pd.read_csv(out), designs, args.summary, args.picture)
    if failed:
        command.say(f"{count(failed, 'table')} failed; the same command tries again", sys.stderr)
    return int(failed > 0)


def _summarise(results: pd.DataFrame, designs: Sequence[str], stem: str | None, picture: str | None) -> None:
    """Print the summaries of some designs, and write and plot those of all results if asked to."""
    estimands, averages = summary.per_estimand(results), summary.per_design(results)
    few = estimands.groupby(["design", "method"])["estimand"].transform("size") <= _MOST_ESTIMANDS
    ours = averages[averages["design"].isin(designs)]
    for table in (estimands[few & estimands["design"].isin(designs)], ours, summary.over_tables(ours)):
        if len(table):
            command.say(table.dropna(axis=1, how="all").round(3).to_string(index=False, na_rep=""))
    if stem is not None:
        for name, table in (("estimands", estimands), ("designs", averages)):
            table.to_csv(f"{stem}_{name}.csv", index=False, float_format="%.6g")
    if picture is not None:
        from benchmarks.coverage import plot  # needs matplotlib

        command.say(plot.draw(averages, Path(picture)))


if __name__ == "__main__":
    sys.exit(main())
