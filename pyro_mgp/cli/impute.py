"""`pyro-mgp impute TABLE -o OUT`: impute the missing cells of a table or of a folder of Parquet files."""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from pyro_mgp._support import memory
from pyro_mgp._support.messages import listing
from pyro_mgp._support.signals import Interruption, stoppable
from pyro_mgp.cli import fit, work
from pyro_mgp.cli.arguments import MODEL
from pyro_mgp.cli.messages import PROGRAM, count, duration, listed, one_line_warnings, say, wrapped
from pyro_mgp.data.column_spec import ColumnSpec, Label
from pyro_mgp.data.limits import split_limits
from pyro_mgp.data.table import missing
from pyro_mgp.imputer import MGPImputer
from pyro_mgp.results import files, summary
from pyro_mgp.results.imputations import Imputations
from pyro_mgp.results.table_files import write_table
from pyro_mgp.scaling import dask_engine
from pyro_mgp.storage.checkpoint import Checkpoint
from pyro_mgp.storage.header import HEADER, write_header


def run(args: argparse.Namespace) -> None:
    """Run `pyro-mgp impute`: write m completed tables."""
    if args.engine == "dask":
        _run_dask(args)
        return
    with stoppable() as interruption:
        _run(args, interruption)


def _run_dask(args: argparse.Namespace) -> None:
    """Impute a folder of Parquet files part by part with Dask (`--engine dask`)."""
    if args.model is None:
        advice = "`pyro-mgp fit FOLDER -o MODEL` fits one; a file with a sample of the rows is much faster"
        raise ValueError(f"--engine dask needs --model IMPUTER, a fitted imputer: {advice}")
    if importlib.util.find_spec("distributed") is None:
        raise ValueError("--engine dask needs Dask: pip install 'pyro_mgp[dask]'")
    model = _fingerprint(args)
    identity = {"model": model, **work.identity(args, "m", "engine", "row_ids")}
    if not work.is_needed(args, identity, dask_engine.FORMAT):
        return
    imputer = MGPImputer.load(args.model)
    start = time.perf_counter()
    options = {"dropped": args.drop, "row_ids": args.row_ids, "random_state": args.seed}
    with work.work_folder(args, identity) as folder, one_line_warnings():
        with dask_engine.cluster(args.scheduler, args.workers) as client:
            job = dask_engine.impute_into(
                folder, args.table, imputer, args.m, client=client, progress=not args.quiet, **options
            )
        n_parts = len(list(job.folders[0].iterdir()))
        work.publish(folder, args)
    if not args.quiet:
        say(f"imputed     in {duration(time.perf_counter() - start)}, {count(args.m, 'table')}")
        say(f"written     to {args.out}: {job.folders[0].name}/ ..., {count(n_parts, 'part')} each")


def _run(args: argparse.Namespace, interruption: Interruption) -> None:
    """Fit or load an imputer, draw imputations and write them."""
    for name in ("scheduler", "workers", "row_ids"):
        if getattr(args, name) is not None:
            option = name.replace("_", "-")
            raise ValueError(
                f"--{option} has no effect without --engine dask: add it, or leave --{option} out"
            )
    identity = work.identity(args, "m", "format", *MODEL)
    if args.model is not None:
        identity["model"] = _fingerprint(args)
    if not work.is_needed(args, identity, "impute"):
        return
    # Outside the work folder: that of a run to resume is kept if the model cannot be read.
    imputer = None if args.model is None else fit.load(args.model, args)
    if Path(args.table).is_dir():
        advice = "one of Parquet files is imputed with --engine dask --model MODEL"
        raise ValueError(f"{args.table!r} is a folder: {advice}")
    source, passed = fit.read(args)
    if imputer is not None:
        source = _for_model(source, imputer)
        known = {*_columns(imputer), *passed}
        passed += [label for label in source.frame.columns if label not in known]
    frame = source.frame.drop(columns=passed)
    advice = "take a smaller -m, or impute_to_parquet in Python, which needs memory for the table only"
    needed = memory.of_impute(int(missing(frame).sum()), args.m)
    memory.check(needed, f"drawing {args.m} tables", advice)
    with work.work_folder(args, identity) as folder, one_line_warnings():
        start = time.perf_counter()
        if imputer is None:
            imputer = fit.fitted(folder, frame, args, interruption)
        elif not (folder / work.IMPUTER).exists():
            imputer.save(folder / work.IMPUTER)
        fitted = time.perf_counter()
        drawing = Checkpoint(folder / "drawing", args.checkpoint_every, interruption)
        draws = _drawn(folder, imputer, frame, args, drawing)
        drawn = time.perf_counter()
        compared = summary.summarise(draws)
        write_table(folder / "summary.csv", compared, "csv")
        names = _write(folder, source, passed, draws, args)
        work.publish(folder, args)
    if not args.quiet:
        lines = _about_the_table(args.table, draws, source.frame[passed]) + _about_the_cells(draws, compared)
        lines.append("")
        if imputer.order_:
            about = fit.about(imputer, fitted - start)
            lines += about if args.model is None else [*about[:-1], f"model       {args.model}"]
            lines.append(f"imputed     in {duration(drawn - fitted)}, {count(draws.m, 'table')}")
        say("\n".join([*lines, *_about_the_files(args.out, names)]))


def _fingerprint(args: argparse.Namespace) -> str:
    """Return a hash of the imputer that --model names, on which options on the model have no effect."""
    if unused := [name for name in MODEL if getattr(args, name)]:
        advice = "leave one of them out"
        raise ValueError(f"--{unused[0]} has no effect on --model, which is fitted: {advice}")
    header = Path(args.model) / HEADER  # which holds checksums
    if not header.is_file():
        expected = f"expected a folder that `{PROGRAM} fit` wrote"
        raise ValueError(f"--model: there is no imputer in {args.model!r}: {expected}")
    return work.fingerprint(header)


def _columns(imputer: MGPImputer) -> list[Label]:
    """Return the columns of the table that an imputer was fitted to."""
    return imputer.model_.encoder.columns


def _for_model(source: files.Source, imputer: MGPImputer) -> files.Source:
    """Return a table with the columns of limits that a fitted imputer expects, empty if it has none."""
    frame, own = source.frame.copy(), split_limits(source.frame)[1]
    for label, spec in own.items():
        known = (imputer.specs or {}).get(label, ColumnSpec()).limit_columns
        if label in _columns(imputer) and (unknown := {*spec.limit_columns} - {*known}):
            raise ValueError(
                f"column {label!r} has limits, {listing(unknown)}, but had none of these when the model was "
                "fitted: fit it to a table with such limits, or replace them by empty cells"
            )
    limits = [name for spec in (imputer.specs or {}).values() for name in spec.limit_columns]
    for name in limits:
        if name not in frame.columns:
            frame[name] = np.nan
    # Those that were added may be in another order than at fit.
    ordered = iter([label for label in _columns(imputer) if label in limits])
    return replace(source, frame=frame[[next(ordered) if x in limits else x for x in frame.columns]])


def _drawn(
    folder: Path, imputer: MGPImputer, frame: pd.DataFrame, args: argparse.Namespace, checkpoint: Checkpoint
) -> Imputations:
    """Load the draws saved in a work folder; if it has none, draw them and save them."""
    saved = folder / "draws"
    if saved.exists():
        return Imputations.load(saved)
    draws = imputer.impute(frame, m=args.m, random_state=args.seed, checkpoint=checkpoint)
    draws.save(saved)
    checkpoint.discard()
    return draws


def _write(
    folder: Path, source: files.Source, passed: Sequence[Label], draws: Imputations, args: argparse.Namespace
) -> list[str]:
    """Write completed tables, cells and header; return the file names of the completed tables."""
    names = files.write_tables(folder, source, draws, args.format or source.format)
    write_table(folder / "cells.csv", draws.cells(), "csv")
    run = {"table": Path(args.table).name, "dropped": [str(label) for label in passed]}
    written = sorted({HEADER, *(entry.name for entry in folder.iterdir())} - {work.LOCK})
    write_header(folder, "impute", work.FORMAT_VERSION, {"run": run, "files": written})
    return names


def _about_the_table(table: str, draws: Imputations, passed: pd.DataFrame) -> list[str]:
    """Return summary lines on the size of the table, its missing cells and the columns left out."""
    n_rows, n_columns = draws.frame.shape
    n_missing = sum(values.shape[1] for values in draws.values.values())
    holes = "no cell is missing"
    if n_missing:
        share = summary.percent(n_missing / (n_rows * n_columns))
        holes = f"{count(n_missing, 'missing cell')} ({share}) in {count(len(draws.values), 'column')}"
    lines = [f"{table}: {count(n_rows, 'row')}, {count(n_columns, 'column')}; {holes}"]
    if passed.shape[1]:
        left = int(missing(passed).sum())
        still = f" ({count(left, 'missing cell')} left missing)" if left else ""
        lines += wrapped("left out", f"{listed(passed.columns)}{still}")
    return lines


def _about_the_cells(draws: Imputations, compared: pd.DataFrame) -> list[str]:
    """Return summary lines that compare observed and imputed values."""
    if not draws.values:
        return ["", "Nothing to impute: the completed tables equal the input table."]
    draws_of = "the draw" if draws.m == 1 else f"all {draws.m} draws"
    shown = summary.format_summary(compared)
    return ["", *shown, f"(mean ± sd, or shares; imputed: over {draws_of} of each cell)"]


def _about_the_files(out: str, names: Sequence[str]) -> list[str]:
    """Return summary lines on the files that were written, and on how to load them."""
    tables = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
    return [
        f"written     to {out}: {tables},",
        "            cells.csv, summary.csv, draws/, imputer/",
        "",
        "Next, in Python:",
        "    from pyro_mgp import Imputations, MGPImputer",
        f"    draws = Imputations.load({str(Path(out) / 'draws')!r})  # draws[0], draws.cells(), ...",
        f"    imputer = MGPImputer.load({str(Path(out) / 'imputer')!r})  # imputer.impute(new_rows)",
    ]
