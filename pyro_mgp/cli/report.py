"""`pyro-mgp report OUT`: write an HTML page about imputations and their calibration."""

from __future__ import annotations

import argparse
import importlib.util
import os
from pathlib import Path
from typing import Any

from sklearn.base import clone

from pyro_mgp.cli.messages import PROGRAM, listed, one_line_warnings, say
from pyro_mgp.cli.work import FORMAT_VERSION, IMPUTER, PAGE
from pyro_mgp.evaluation.calibration import Calibration
from pyro_mgp.evaluation.diagnostics import calibrate
from pyro_mgp.imputer import MGPImputer
from pyro_mgp.results.imputations import Imputations
from pyro_mgp.storage.header import HEADER, read_header

# By default, every observed cell of a table of at most so many rows is held out once, else a share of them.
_MOST_ROWS_FOR_FOLDS, _FOLDS, _SHARE = 5_000, 5, 0.1
# Draws per cell: as many as an interval of 95 % needs, and one more.
_DRAWS = 40


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
    report.check_replaceable(path, args.overwrite)
    draws, imputer = Imputations.load(out / "draws"), MGPImputer.load(out / IMPUTER)
    imputer.progress = not args.quiet
    calibration, settings = None, {"Columns left out": listed(run["dropped"])} if run["dropped"] else {}
    with one_line_warnings():
        if draws.values and not args.no_calibration:
            calibration = _calibrated(draws, imputer, args)
            report.check_replaceable(path, args.overwrite)  # that took minutes
        report.write_report(draws, path, imputer, calibration, name=run["table"], settings=settings)
    if not args.quiet:
        say(f"written     {path}")


def _calibrated(draws: Imputations, imputer: MGPImputer, args: argparse.Namespace) -> Calibration:
    """Hold out cells of the imputed columns as --folds or --share says, and return the calibration."""
    folds, share = args.folds, _SHARE if args.share is None else args.share / 100
    if folds is None and args.share is None and len(draws.frame) <= _MOST_ROWS_FOR_FOLDS:
        folds = _FOLDS
    n_jobs = min(folds or 1, args.jobs or os.cpu_count() or 1)
    how: dict[str, Any] = {"folds": folds, "share": share, "random_state": args.seed or 0, "n_jobs": n_jobs}
    fresh = imputer if args.search else imputer.with_choices()
    if n_jobs > 1:  # the bars of several fits would overwrite each other
        fresh = clone(fresh).set_params(progress=False)
    return calibrate(fresh, draws.frame, columns=list(draws.values), m=_DRAWS, progress=not args.quiet, **how)
