"""`pyro-mgp report OUT`: write an HTML page about imputations and their calibration."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

from pyro_mgp.cli.arguments import at_least
from pyro_mgp.cli.messages import PROGRAM, listed, one_line_warnings, say
from pyro_mgp.cli.output import FORMAT_VERSION, PAGE


def add(commands: Any) -> None:
    """Add the command to the parser."""
    page = commands.add_parser(
        "report",
        help="write an HTML page on the output of `impute`: missing cells, draws and their calibration",
        usage="pyro-mgp report OUT [-o PAGE] [--folds K | --share PERCENT | --no-calibration] [options]",
        description="Write a self-contained HTML page about imputations: where cells are missing, observed "
        "and imputed values side by side, which columns predict which, the settings, and whether the draws "
        "are calibrated: observed cells are held out, imputed and compared with their values. That fits the "
        "imputer again, five times by default (once for more than 5,000 rows). The page shows values of "
        "cells: keep it as safe as the table.",
    )
    page.set_defaults(run=run)
    option = page.add_argument
    option("out", metavar="OUT", help="folder that `pyro-mgp impute` wrote")
    option("-o", "--page", metavar="PAGE", help=f"file to write (default: {PAGE} in OUT)")
    how = page.add_mutually_exclusive_group()
    how.add_argument(
        "--folds", metavar="K", type=at_least(2), help="hold out every observed cell once, in K folds: K fits"
    )
    how.add_argument(
        "--share", metavar="PERCENT", type=at_least(1), help="hold out that share of observed cells: one fit"
    )
    how.add_argument("--no-calibration", action="store_true", help="hold out nothing: no fit")
    option("--seed", type=at_least(0), default=0, help="seed of the choice of held-out cells (default: 0)")
    option("--overwrite", action="store_true", help="replace PAGE if this command wrote it")
    option("--quiet", action="store_true", help="no progress bars and no summary; errors only")


def run(args: argparse.Namespace) -> None:
    """Run `pyro-mgp report`."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("the report's pictures need matplotlib: pip install 'pyro_mgp[plots]'")
    from pyro_mgp.imputer import MGPImputer
    from pyro_mgp.report import report
    from pyro_mgp.report.page import check_replaceable
    from pyro_mgp.results.imputations import Imputations
    from pyro_mgp.storage.header import HEADER, read_header

    out = Path(args.out)
    path = out / PAGE if args.page is None else Path(args.page)
    if not (out / HEADER).is_file():
        raise ValueError(f"{args.out!r} was not written by `{PROGRAM} impute`: it holds no {HEADER}")
    run = read_header(out, "impute", FORMAT_VERSION)["run"]
    check_replaceable(path, args.overwrite)
    if args.share is not None and args.share > 50:
        raise ValueError(f"--share must be at most 50 per cent, got {args.share}")
    draws, imputer = Imputations.load(out / "draws"), MGPImputer.load(out / "imputer")
    imputer.progress = not args.quiet
    left_out = {"Columns left out": listed(run["dropped"])} if run["dropped"] else {}
    with one_line_warnings():
        report.write_report(
            draws,
            path,
            imputer=imputer,
            calibration=not args.no_calibration,
            folds=args.folds,
            share=None if args.share is None else args.share / 100,
            name=run["table"],
            settings=left_out,
            random_state=args.seed,
            overwrite=args.overwrite,
            progress=not args.quiet,
        )
    if not args.quiet:
        say(f"written     {path}")
