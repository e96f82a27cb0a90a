"""`pyro-mgp fit TABLE -o OUT`: read, fit, save, tell."""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyro_mgp.cli import arguments, output, work
from pyro_mgp.cli.messages import count, duration, listed, one_line_warnings, say, wrapped

if TYPE_CHECKING:
    import pandas as pd

    from pyro_mgp.imputer import MGPImputer
    from pyro_mgp.interruption import Interruption

OPTIONS = ("steps", "columns", "paper")
"""Names of the options that decide what is fitted."""
MODEL_FILES = ("header.json", "arrays.safetensors")
"""What a saved imputer consists of."""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    fit = commands.add_parser(
        "fit",
        help="learn from a table, to fill others with `impute --model`",
        usage="pyro-mgp fit TABLE -o OUT [--seed SEED] [other options]",
        description="Fit an imputer to a table and save it in the folder OUT, whole or not at all. "
        "`pyro-mgp impute OTHER --model OUT -o FILLED` fills the holes of other tables with it, as does "
        "MGPImputer.load in Python. It may hold rows of the table: keep it as safe as the table.",
    )
    fit.set_defaults(run=run)
    arguments.add_table(fit)
    fit.add_argument("-o", "--out", metavar="OUT", required=True, help="folder to make; must not exist yet")
    fit.add_argument("--seed", type=arguments.at_least(0), help="same seed, same imputer (default: 0)")
    arguments.add_run(fit)
    arguments.add_model(fit)
    arguments.add_device(fit)


def run(args: argparse.Namespace) -> None:
    """`pyro-mgp fit`."""
    from pyro_mgp.interruption import stoppable

    with stoppable() as interruption:
        _run(args, interruption)


def _run(args: argparse.Namespace, interruption: Interruption) -> None:
    out = Path(args.out)
    if args.resume and work.is_done(out, _identity(args)):
        say(f"{args.out} is complete: there is nothing to go on with")
        return
    output.check_out(out, args.overwrite, "MGPImputer", (*MODEL_FILES, work.RUN))
    given = arguments.read(args)
    with work.work_folder(out, _identity(args), resume=args.resume) as folder, one_line_warnings():
        started = time.perf_counter()
        imputer = fitted(folder, given.modelled, args, interruption)
        elapsed = time.perf_counter() - started
        shutil.copy(folder / work.RUN, folder / output.IMPUTER)
        work.publish(folder / output.IMPUTER, out, overwrite=args.overwrite)
    if not args.quiet:
        n_rows, n_columns = given.modelled.shape
        lines = [
            f"{args.table}: {count(n_rows, 'row')}, {count(n_columns, 'column')}",
            *(wrapped("left out", listed(given.passed)) if given.passed else []),
            *about(imputer, elapsed),
            f"written     to {args.out}",
            "",
            f"Next: pyro-mgp impute TABLE --model {args.out} -o FILLED",
        ]
        say("\n".join(lines))


def _identity(args: argparse.Namespace) -> dict[str, Any]:
    return {"command": "fit", **arguments.identity(args, *OPTIONS)}


def fitted(
    folder: Path, frame: pd.DataFrame, args: argparse.Namespace, interruption: Interruption
) -> MGPImputer:
    """The imputer of a work folder: the one that lies there already, or else fitted, and saved there."""
    from pyro_mgp.checkpoint import Checkpoint
    from pyro_mgp.imputer import MGPImputer

    saved = folder / output.IMPUTER
    if saved.exists():
        imputer = MGPImputer.load(saved, device=args.device)
        imputer.progress = not args.quiet
        return imputer
    checkpoint = Checkpoint(folder / work.TRAINING, args.checkpoint_every, interruption)
    imputer = arguments.imputer_of(args).fit(frame, checkpoint=checkpoint)
    imputer.save(saved)
    checkpoint.discard()
    return imputer


def about(imputer: MGPImputer, elapsed: float) -> list[str]:
    """What was fitted, and how long it took."""
    history = imputer.history_
    if not imputer.order_:
        return []
    end = "stopped when nothing improved" if history.converged else "the most that --steps allows"
    return [
        *wrapped("chain", listed(imputer.order_)),
        f"fitted      in {duration(elapsed)}, {count(len(history.loss), 'step')}, {end}",
    ]
