"""`pyro-mgp report OUT`: write an HTML page about imputations and their calibration."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

from pyro_mgp.cli.messages import PROGRAM, listed, one_line_warnings, say
from pyro_mgp.cli.work import FORMAT_VERSION, IMPUTER, PAGE
from pyro_mgp.imputer import MGPImputer
from pyro_mgp.results.imputations import Imputations
from pyro_mgp.storage.header import HEADER, read_header


def run(args: argparse.Namespace) -> None:
    """Run `pyro-mgp report`: write an HTML page on imputations."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("the report's pictures need matplotlib: pip install 'pyro_mgp[plots]'")
    from pyro_mgp.report import report

    out = Path(args.out)
    path = out / PAGE if args.page is None else Path(args.page)
    if not (out / HEADER).is_file():
        raise ValueError(f"{args.out!r} was not written by `{PROGRAM} impute`: it holds no {HEADER}")
    run = read_header(out, "impute", FORMAT_VERSION)["run"]
    if args.share is not None and args.share > 50:
        raise ValueError(f"--share must be at most 50 per cent, got {args.share}")
    draws, imputer = Imputations.load(out / "draws"), MGPImputer.load(out / IMPUTER)
    imputer.progress = not args.quiet
    with one_line_warnings():
        report.write_report(
            draws,
            path,
            imputer=imputer,
            calibration=not args.no_calibration,
            folds=args.folds,
            share=None if args.share is None else args.share / 100,
            name=run["table"],
            settings={"Columns left out": listed(run["dropped"])} if run["dropped"] else {},
            random_state=args.seed or 0,
            overwrite=args.overwrite,
            progress=not args.quiet,
        )
    if not args.quiet:
        say(f"written     {path}")
