"""`pyro-mgp impute FOLDER --model IMPUTER --engine dask -o OUT`: impute Parquet files part by part."""

from __future__ import annotations

import argparse
import importlib.util
import time
from pathlib import Path
from typing import Any

from pyro_mgp.cli import arguments, output, work
from pyro_mgp.cli.arguments import at_least
from pyro_mgp.cli.messages import count, duration, one_line_warnings, say


def add_options(impute: Any) -> None:
    """Add the options of large tables to the parser of `pyro-mgp impute`."""
    option = impute.add_argument_group("tables larger than memory").add_argument
    option(
        "--engine", choices=("pandas", "dask"), default="pandas",
        help="dask: TABLE and OUT/imputation_01, ... are folders of Parquet files, of which no process holds "
        "a whole one in memory; needs --model (default: pandas)",
    )  # fmt: skip
    option(
        "--scheduler", metavar="ADDRESS",
        help="address of a Dask cluster whose workers can access TABLE and OUT by these paths (default: a "
        "cluster on this machine)",
    )  # fmt: skip
    option(
        "--workers", metavar="N", type=at_least(1),
        help="processes on this machine, of one thread each (default: one per core)",
    )  # fmt: skip
    option(
        "--row-ids", metavar="COLUMN",
        help="column of ids that are unique in the whole table: it passes through, distinguishes equal rows "
        "and saves the first of two passes over the table",
    )  # fmt: skip


def run(args: argparse.Namespace) -> None:
    """Run `pyro-mgp impute --engine dask`."""
    from pyro_mgp.imputer import MGPImputer
    from pyro_mgp.scaling import dask_engine

    out = Path(args.out)
    _check(args)
    if args.resume and work.is_done(out, _identity(args)):
        say(f"{args.out} is complete: there is nothing to resume")
        return
    output.check_out(out, args.overwrite, dask_engine.FORMAT)
    imputer = MGPImputer.load(args.model)
    start = time.perf_counter()
    with work.work_folder(out, _identity(args), resume=args.resume) as folder, one_line_warnings():
        with dask_engine.cluster(args.scheduler, args.workers) as client:
            job = dask_engine.impute_into(
                folder,
                args.table,
                imputer,
                args.m,
                client=client,
                dropped=args.drop,
                row_ids=args.row_ids,
                random_state=args.seed,
                progress=not args.quiet,
            )
        names = [each.name for each in job.folders]
        n_parts = len(list(job.folders[0].iterdir()))
        work.publish(folder, out, overwrite=args.overwrite)
    if not args.quiet:
        say(f"imputed     in {duration(time.perf_counter() - start)}, {count(args.m, 'table')}")
        say(f"written     to {out}: {names[0]}/ ..., {count(n_parts, 'part')} each")


def _check(args: argparse.Namespace) -> None:
    if args.model is None:
        raise ValueError(
            "--engine dask needs --model IMPUTER, a fitted imputer: `pyro-mgp fit FOLDER -o MODEL` fits one, "
            "to all rows or, much faster, to a file with a sample of them"
        )
    if importlib.util.find_spec("distributed") is None:
        raise ValueError("--engine dask needs Dask: pip install 'pyro_mgp[dask]'")


def _identity(args: argparse.Namespace) -> dict[str, Any]:
    model = arguments.fingerprint(Path(args.model) / "header.json")
    return {"command": "impute", "model": model, **arguments.identity(args, "m", "engine", "row_ids")}
