"""Compare imputations of numbers, booleans and categories with those of other methods.

Cells of every column of a complete table are held out and imputed by several methods. Each column is scored:
RMSE and CRPS of numbers, accuracy and log score of booleans and categories.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from tqdm import tqdm

from benchmarks import command
from benchmarks.mixed import comparison
from benchmarks.mixed.comparison import METHODS
from benchmarks.runs import provenance
from pyro_mgp.results import files


def main(argv: Sequence[str] | None = None) -> int:
    """Hold out, impute and score cells of a table, and print mean scores; return the exit status."""
    parser = command.new_parser("mixed", __doc__)
    option, positive = parser.add_argument, command.at_least(1)
    option("table", metavar="TABLE", help="CSV or Parquet file; rows with missing cells are left out")
    option(
        "--rate",
        metavar="PERCENT",
        type=positive,
        default=20,
        help="share of cells to hold out (default: 20)",
    )
    option("--splits", metavar="N", type=positive, default=10, help="number of random holdouts (default: 10)")
    option("--methods", nargs="+", choices=METHODS, default=list(METHODS), help="use some methods only")
    command.add_out(parser, "every score")
    return command.execute(parser, argv, _run)


def _run(args: argparse.Namespace) -> None:
    table = files.read_table(Path(args.table)).frame.dropna().reset_index(drop=True)
    runs = comparison.run(table, args.methods, range(args.splits), args.rate / 100)
    n_rows = args.splits * len(args.methods) * len(table.columns)
    scores = pd.DataFrame(tqdm(runs, total=n_rows, unit="column", disable=None, leave=False))
    if args.out is not None:
        scores.to_csv(args.out, index=False, float_format="%.4f")
        provenance.add(Path(args.out), args.methods)
    means = scores.groupby(["column", "method"], sort=False).mean(numeric_only=True)
    command.say(means.drop(columns=["split", "cells"]).round(4).to_string(na_rep=""))


if __name__ == "__main__":
    sys.exit(main())
