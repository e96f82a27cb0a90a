"""`pyro-mgp fit TABLE -o OUT`: fit an imputer to a table and save it."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyro_mgp.cli import arguments, output, work
from pyro_mgp.cli.messages import INTERRUPTED, count, duration, listed, notes, one_line_warnings, say, wrapped

if TYPE_CHECKING:
    import pandas as pd

    from pyro_mgp._support.signals import Interruption
    from pyro_mgp.data.column_spec import Label
    from pyro_mgp.imputer import MGPImputer
    from pyro_mgp.storage.checkpoint import Checkpoint

OPTIONS = ("steps", "columns", "paper")
"""Names of the options on the model."""
MODEL_FILES = ("header.json", "arrays.safetensors")
"""Files of a saved imputer."""

Fit = Callable[["MGPImputer", "Checkpoint"], "MGPImputer"]
"""Function that fits an imputer to the table of a command and writes checkpoints."""

_EPILOG = """\
A folder of Parquet files may be larger than memory: one column at a time is read, and the
encoded table lies in temporary files (19 bytes per cell).

examples:
  pyro-mgp fit survey.csv -o model --columns all
  pyro-mgp fit parts/ -o model --drop id --scratch /large/disk
  torchrun --nproc-per-node 2 -m pyro_mgp fit survey.csv -o model --distributed"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    fit = commands.add_parser(
        "fit",
        help="fit an imputer to a table, for use in `impute --model`",
        usage="pyro-mgp fit TABLE -o OUT [--seed SEED] [other options]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Fit an imputer to a table and save it in the folder OUT, whole or not at all.\n"
        "`pyro-mgp impute OTHER --model OUT -o FILLED` imputes other tables with it, as does\n"
        "MGPImputer.load in Python. It may hold rows of the table: keep it as safe as the table.",
        epilog=_EPILOG,
    )
    fit.set_defaults(run=run)
    arguments.add_table(fit, "CSV (.csv, .tsv, .csv.gz) or Parquet (.parquet) file, or folder of the latter")
    option = fit.add_argument
    option("-o", "--out", metavar="OUT", required=True, help="folder to create; must not exist yet")
    option("--seed", type=arguments.at_least(0), help="same seed, same imputer (default: 0)")
    arguments.add_run(fit)
    arguments.add_model(fit)
    arguments.add_device(fit)
    option = fit.add_argument_group("large tables").add_argument
    option(
        "--distributed", action="store_true",
        help="run as one of several processes started by torchrun, which share the rows of each minibatch",
    )  # fmt: skip
    option(
        "--scratch", metavar="FOLDER",
        help="folder of the temporary files of a fit to Parquet files (default: that of the system)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> None:
    """Run `pyro-mgp fit`."""
    from pyro_mgp._support.processes import ALONE, data_parallel
    from pyro_mgp._support.signals import stoppable

    together = data_parallel() if args.distributed else contextlib.nullcontext(ALONE)
    with together as workers, stoppable() as interruption:
        args.quiet |= not workers.is_first
        try:
            _run(args, interruption)
        except KeyboardInterrupt as stop:
            if workers.is_first:
                raise
            raise SystemExit(getattr(stop, "status", INTERRUPTED)) from stop  # rank 0 prints the message
        except RuntimeError as error:
            if workers.is_alone:
                raise
            lost = OSError(f"another of the {workers.size} processes has ended: {error}")
            for note in notes(error):
                lost.add_note(note)
            raise lost from error


def _run(args: argparse.Namespace, interruption: Interruption) -> None:
    """Fit and save an imputer; of several processes, rank 0 writes and prints."""
    from pyro_mgp._support.processes import current

    out, identity = Path(args.out), _identity(args)
    if current().broadcast_integer(args.resume and work.is_done(out, identity)):
        if current().is_first:
            say(f"{args.out} is complete: there is nothing to resume")
        return
    output.check_out(out, args.overwrite, "MGPImputer", MODEL_FILES)
    table = _table(args)
    # Otherwise one process could finish OUT before another has checked that it may be written.
    current().wait()
    if not current().is_first:
        _assist(work.dot_folder(out), table.fit, args, interruption)
        return
    with work.work_folder(out, identity, resume=args.resume) as folder, one_line_warnings():
        started = time.perf_counter()
        imputer = fitted(folder, table.fit, args, interruption)
        elapsed = time.perf_counter() - started
        shutil.copy(folder / output.RUN, folder / output.IMPUTER)
        work.publish(folder / output.IMPUTER, out, overwrite=args.overwrite)
    if not args.quiet:
        lines = [
            f"{args.table}: {count(table.shape[0], 'row')}, {count(table.shape[1], 'column')}",
            *(wrapped("left out", listed(table.passed)) if table.passed else []),
            *about(imputer, elapsed),
            f"written     to {args.out}",
            "",
            f"Next: pyro-mgp impute TABLE --model {args.out} -o FILLED",
        ]
        say("\n".join(lines))


@dataclass(frozen=True)
class _Table:
    """Table of a fit: in memory, or in a folder of Parquet files."""

    fit: Fit
    shape: tuple[int, int]
    """Number of rows, and of columns in the model."""
    passed: Sequence[Label]
    """Columns that are left out of the model."""


def _table(args: argparse.Namespace) -> _Table:
    """Return the table of a command; a folder of Parquet files is read later, column by column.

    Raises:
        ValueError, OSError: If the table cannot be read, or has no column that --drop names.
    """
    from pyro_mgp.data.parquet_table import ParquetTable

    if not Path(args.table).is_dir():
        given = arguments.read(args)
        return _Table(to_frame(given.modelled), given.modelled.shape, given.passed)
    dropped = arguments.labels_of(ParquetTable(args.table).columns, args.drop)
    shape = ParquetTable(args.table, dropped).shape
    return _Table(partial(_fit_to_folder, args=args, dropped=dropped), shape, dropped)


def _fit_to_folder(
    imputer: MGPImputer, checkpoint: Checkpoint, args: argparse.Namespace, dropped: Sequence[Label]
) -> MGPImputer:
    return imputer.fit_parquet(args.table, dropped=dropped, scratch=args.scratch, checkpoint=checkpoint)


def to_frame(frame: pd.DataFrame) -> Fit:
    """Return a function that fits an imputer to a table in memory."""
    return lambda imputer, checkpoint: imputer.fit(frame, checkpoint=checkpoint)


def _identity(args: argparse.Namespace) -> dict[str, Any]:
    return {"command": "fit", **arguments.identity(args, *OPTIONS)}


def fitted(folder: Path, fit: Fit, args: argparse.Namespace, interruption: Interruption) -> MGPImputer:
    """Return the imputer of a work folder; if there is none yet, fit it and save it there."""
    from pyro_mgp._support.processes import current
    from pyro_mgp.imputer import MGPImputer
    from pyro_mgp.storage.checkpoint import Checkpoint

    saved = folder / output.IMPUTER
    if current().broadcast_integer(saved.exists()):
        imputer = MGPImputer.load(saved, device=args.device)
        imputer.progress = not args.quiet
        return imputer
    checkpoint = Checkpoint(folder / work.TRAINING, args.checkpoint_every, interruption)
    imputer = fit(arguments.imputer_of(args), checkpoint)
    imputer.save(saved)
    checkpoint.discard()
    return imputer


def _assist(folder: Path, fit: Fit, args: argparse.Namespace, interruption: Interruption) -> None:
    """Take part in the fit of rank 0, which calls `fitted`."""
    from pyro_mgp._support.processes import current
    from pyro_mgp.storage.checkpoint import Checkpoint

    if not current().broadcast_integer(0):
        fit(arguments.imputer_of(args), Checkpoint(folder / work.TRAINING, interruption=interruption))


def about(imputer: MGPImputer, elapsed: float) -> list[str]:
    """Return lines of the summary on the chain and its training."""
    history = imputer.history_
    if not imputer.order_:
        return []
    end = "stopped without further improvement" if history.converged else "the most that --steps allows"
    return [
        *wrapped("chain", listed(imputer.order_)),
        f"fitted      in {duration(elapsed)}, {count(len(history.loss), 'step')}, {end}",
    ]
