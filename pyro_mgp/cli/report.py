"""`pyro-mgp report OUT`: read, hide and impute again, write a page, tell."""

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
        help="one HTML page about what `impute` wrote: holes, draws, and whether they may be trusted",
        usage="pyro-mgp report OUT [-o PAGE] [--folds K | --share PERCENT | --no-calibration] [options]",
        description="Write one HTML page, which needs nothing but itself, about imputations: what was "
        "imputed, where cells are missing, observed beside imputed values, which column informs which, how "
        "it was made, and whether the draws are calibrated: observed cells are hidden, imputed without them, "
        "and compared. That fits the imputer again, five times unless told otherwise (once for more than "
        "5,000 rows). The page shows values of cells: keep it as safe as the table.",
    )
    page.set_defaults(run=run)
    option = page.add_argument
    option("out", metavar="OUT", help="folder that `pyro-mgp impute` wrote")
    option("-o", "--page", metavar="PAGE", help=f"file to write (default: {PAGE} in OUT)")
    how = page.add_mutually_exclusive_group()
    how.add_argument(
        "--folds", metavar="K", type=at_least(2), help="hide every observed cell once, in K parts: K fits"
    )
    how.add_argument(
        "--share", metavar="PERCENT", type=at_least(1), help="hide that share of the observed cells: one fit"
    )
    how.add_argument("--no-calibration", action="store_true", help="hide nothing: the page is there at once")
    option("--seed", type=at_least(0), default=0, help="of what is hidden (default: 0)")
    option("--overwrite", action="store_true", help="replace PAGE if this command wrote it")
    option("--quiet", action="store_true", help="no progress bars and no summary; errors only")


def run(args: argparse.Namespace) -> None:
    """`pyro-mgp report`: read, hide and impute again, write, tell."""
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
