"""`pyro-mgp fit TABLE -o OUT`: fit an imputer to a table and save it."""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from pyro_mgp._support import processes
from pyro_mgp._support.processes import current
from pyro_mgp._support.signals import Interruption, stoppable
from pyro_mgp.cli import messages, work
from pyro_mgp.cli.arguments import MODEL
from pyro_mgp.cli.messages import PROGRAM, count, duration, listed, one_line_warnings, say, wrapped
from pyro_mgp.data.column_spec import Label, Specs
from pyro_mgp.data.limits import split_limits
from pyro_mgp.data.parquet_table import ParquetTable
from pyro_mgp.imputer import MGPImputer
from pyro_mgp.results import files
from pyro_mgp.storage.checkpoint import Checkpoint

_TRAINING = "training"  # checkpoint of a fit in the work folder


def run(args: argparse.Namespace) -> None:
    """Run `pyro-mgp fit`: fit an imputer to a table and save it."""
    together = processes.data_parallel() if args.distributed else contextlib.nullcontext(processes.ALONE)
    with together as workers, stoppable() as interruption:
        args.quiet |= not workers.is_first
        try:
            _run(args, interruption)
        except KeyboardInterrupt as stop:
            if workers.is_first:
                raise
            status = getattr(stop, "status", messages.INTERRUPTED)
            raise SystemExit(status) from stop  # rank 0 prints the message
        except RuntimeError as error:
            if workers.is_alone:
                raise
            lost = OSError(f"another of the {workers.size} processes has ended: {error}")
            for note in messages.notes(error):
                lost.add_note(note)
            raise lost from error


def _run(args: argparse.Namespace, interruption: Interruption) -> None:
    """Fit and save an imputer; of several processes, rank 0 writes and prints."""
    identity = work.identity(args, *MODEL)
    if not work.is_needed(args, identity, "MGPImputer"):
        return
    table, passed = _table(args)
    # Otherwise one process could finish OUT before another has checked that it may be written.
    current().wait()
    if not current().is_first:  # take part in the fit of rank 0, which calls `fitted`
        if not current().broadcast_number(0):
            place = work.dot_folder(Path(args.out)) / _TRAINING
            _fit(table, args, Checkpoint(place, interruption=interruption))
        return
    with work.work_folder(args, identity) as folder, one_line_warnings():
        started = time.perf_counter()
        imputer = fitted(folder, table, args, interruption)
        elapsed = time.perf_counter() - started
        shutil.copy(folder / work.RUN, folder / work.IMPUTER)
        work.publish(folder / work.IMPUTER, args)
    if not args.quiet:
        lines = [
            f"{args.table}: {count(len(table), 'row')}, {count(imputer.n_features_in_, 'column')}",
            *(wrapped("left out", listed(passed)) if passed else []),
            *about(imputer, elapsed),
            f"written     to {args.out}",
            "",
            f"Next: pyro-mgp impute TABLE --model {args.out} -o FILLED",
        ]
        say("\n".join(lines))


def _table(args: argparse.Namespace) -> tuple[pd.DataFrame | ParquetTable, Sequence[Label]]:
    """Return the table to fit, and the columns that --drop names, which only Parquet files still hold."""
    if Path(args.table).is_dir():
        table = ParquetTable(args.table)
        return table, _labels_of(table.columns, args.drop)
    source, passed = read(args)
    return source.frame.drop(columns=passed), passed


def read(args: argparse.Namespace) -> tuple[files.Source, list[Label]]:
    """Return the table and the columns that --drop names; print notes on columns likely to be misread.

    Limits such as "<0.5" have columns of their own.
    """
    source = files.read_table(Path(args.table), args.missing or files.MISSING)
    passed = _labels_of(source.frame.columns, args.drop)
    modelled = source.frame.drop(columns=passed)
    split, specs = split_limits(modelled)
    for note in _notes(split, specs) if current().is_first else ():
        say(f"{PROGRAM}: note: {note}", sys.stderr)
    whole = source.frame.copy()
    whole[split.columns] = split
    return replace(source, frame=whole), passed


def _labels_of(columns: pd.Index[Any], names: Sequence[str]) -> list[Label]:
    """Return the labels of the columns that --drop names."""
    labels: dict[str, Label] = {str(label): label for label in columns}
    for name in names:
        if name not in labels:
            raise ValueError(f"--drop: there is no column {name!r}; the table has {listed(labels)}")
    return [labels[name] for name in dict.fromkeys(names)]


def _notes(frame: pd.DataFrame, specs: Specs) -> Iterator[str]:
    """Yield a note on each column that has limits, and on each that is likely to be misread."""
    for name, spec in specs.items():
        limits = listed(spec.limit_columns)
        yield f"column {name!r} has limits ({limits}): such cells are imputed within their limits"
    if decimal := [label for label in frame.columns if re.fullmatch(r"[+-]?\d*\.\d+", str(label))]:
        advice = "if the first line holds cells, put a line of names above it"
        yield f"a column has the name {decimal[0]!r}; {advice}"
    counter = files.row_counter(frame)
    if counter is not None:
        advice = f"if it means nothing else, leave it out of the model with --drop {counter}"
        yield f"column {counter!r} counts the rows; {advice}"
    for label, cell in files.read_as_text(frame):
        advice = f"pass --missing '{cell}', or leave the column out with --drop {label}"
        cause = f"is read as text because of cells such as {cell!r}"
        yield f"column {label!r} {cause}; if that marks a missing cell, {advice}"


def _check_device(args: argparse.Namespace) -> None:
    """Raise a ValueError if the device of --device is not available."""
    if args.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: PyTorch finds no CUDA GPU here; use --device cpu or auto")


def load(path: str | Path, args: argparse.Namespace) -> MGPImputer:
    """Load a fitted imputer onto the device of --device, with progress bars unless --quiet is given."""
    _check_device(args)
    imputer = MGPImputer.load(path, device=args.device)
    imputer.progress = not args.quiet
    return imputer


def fitted(
    folder: Path, table: pd.DataFrame | ParquetTable, args: argparse.Namespace, interruption: Interruption
) -> MGPImputer:
    """Load the imputer saved in a work folder; if it has none, fit one and save it."""
    saved = folder / work.IMPUTER
    if current().broadcast_number(saved.exists()):
        return load(saved, args)
    checkpoint = Checkpoint(folder / _TRAINING, args.checkpoint_every, interruption)
    imputer = _fit(table, args, checkpoint)
    imputer.save(saved)
    checkpoint.discard()
    return imputer


def _fit(table: pd.DataFrame | ParquetTable, args: argparse.Namespace, checkpoint: Checkpoint) -> MGPImputer:
    """Fit an imputer with the settings of the options."""
    _check_device(args)
    specs = dict(split_limits(table)[1]) if isinstance(table, pd.DataFrame) else {}
    imputer = (MGPImputer.paper if args.paper else MGPImputer)(
        columns=args.columns or "incomplete",
        device=args.device,
        random_state=args.seed or 0,
        progress=not args.quiet,
        specs=specs or None,
        survival=None if args.survival is None else tuple(args.survival),
        weights=args.weights,
        groups=args.groups,
        subject=args.subject,
        time=args.time,
        **({} if args.steps is None else {"max_steps": args.steps}),
    )
    if isinstance(table, pd.DataFrame):
        return imputer.fit(table, checkpoint=checkpoint)
    dropped = _labels_of(table.columns, args.drop)
    return imputer.fit_parquet(args.table, dropped=dropped, scratch=args.scratch, checkpoint=checkpoint)


def about(imputer: MGPImputer, elapsed: float) -> list[str]:
    """Return summary lines on the chain and its training."""
    history = imputer.history_
    if not imputer.order_:
        return []
    limit = "the default" if imputer.max_steps is None else "the most that --steps allows"
    end = "stopped without further improvement" if history.converged else limit
    return [
        *wrapped("chain", listed(imputer.order_)),
        f"fitted      in {duration(elapsed)}, {count(len(history.loss), 'step')}, {end}",
    ]
