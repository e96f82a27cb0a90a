"""`pyro-mgp impute FOLDER --model IMPUTER --engine dask -o OUT`: Parquet in, Parquet out, part by part."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

from pyro_mgp.cli.arguments import at_least
from pyro_mgp.cli.messages import count, duration, one_line_warnings, say


def add_options(impute: Any) -> None:
    """Add the options of large tables to the parser of `pyro-mgp impute`."""
    option = impute.add_argument_group("tables larger than memory").add_argument
    option(
        "--engine", choices=("pandas", "dask"), default="pandas",
        help="dask: TABLE is a folder of Parquet files, and OUT/imputation_01, ... become folders of such; "
        "needs --model. No process ever holds the whole table (default: pandas)",
    )  # fmt: skip
    option(
        "--scheduler", metavar="ADDRESS",
        help="of a Dask cluster whose workers see TABLE and OUT under these paths (default: one on this "
        "machine)",
    )  # fmt: skip
    option(
        "--workers", metavar="N", type=at_least(1),
        help="processes on this machine, of one thread each (default: one per core)",
    )  # fmt: skip
    option(
        "--row-ids", metavar="COLUMN",
        help="column of ids that are unique in the whole table: it passes through, tells equal rows apart, "
        "and saves the first of two passes over the table",
    )  # fmt: skip


def run(args: argparse.Namespace) -> None:
    """Impute a folder: check, start workers, impute, tell."""
    import time

    from pyro_mgp import dask_engine
    from pyro_mgp.imputer import MGPImputer

    if args.model is None:
        raise ValueError(
            "--engine dask needs --model IMPUTER, a fitted one: fit it to some of the rows first, as "
            "`pyro-mgp impute` does of one file (OUT/imputer), or MGPImputer.fit and save in Python"
        )
    if importlib.util.find_spec("distributed") is None:
        raise ValueError("--engine dask needs Dask: pip install 'pyro_mgp[dask]'")
    imputer = MGPImputer.load(args.model)
    start = time.perf_counter()
    with one_line_warnings(), dask_engine.cluster(args.scheduler, args.workers) as client:
        folders = dask_engine.impute_folder(
            args.table,
            args.out,
            imputer,
            args.m,
            client=client,
            dropped=args.drop,
            row_ids=args.row_ids,
            random_state=args.seed,
            overwrite=args.overwrite,
            progress=not args.quiet,
        )
    if not args.quiet:
        n_parts = len(list(folders[0].iterdir()))
        say(f"imputed     in {duration(time.perf_counter() - start)}, {count(args.m, 'table')}")
        say(f"written     to {Path(args.out)}: {folders[0].name}/ ..., {count(n_parts, 'part')} each")
