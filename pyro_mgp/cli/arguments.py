"""What commands have in common in what they take, and what it means."""

from __future__ import annotations

import argparse
import hashlib
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyro_mgp.cli.messages import PROGRAM, say

if TYPE_CHECKING:
    import pandas as pd

    from pyro_mgp.data.column_spec import Label
    from pyro_mgp.imputer import MGPImputer
    from pyro_mgp.results.files import Source

# ------------------------------------------------------------------------------------------------- options


def add_table(command: Any, kinds: str) -> None:
    """The table, what it may be, and how it is read."""
    option = command.add_argument
    option("table", metavar="TABLE", help=kinds)
    option(
        "--drop", metavar="COLUMN", nargs="+", action="extend", default=[],
        help="columns to leave out of the model, such as identifiers; they pass through as they are",
    )  # fmt: skip
    option(
        "--missing", metavar="TEXT", nargs="+", action="extend",
        help="what marks a missing cell in a CSV besides an empty one, in upper or lower case "
        "(default: NA N/A #N/A <NA> NaN NULL)",
    )  # fmt: skip


def add_run(command: Any) -> None:
    """How the command runs, and goes on when it was interrupted."""
    option = command.add_argument
    option("--overwrite", action="store_true", help="replace OUT if an earlier run of this command wrote it")
    option(
        "--resume", action="store_true",
        help="go on from where the same command was killed or interrupted, to the same result as without "
        "the break",
    )  # fmt: skip
    option(
        "--checkpoint-every", metavar="SECONDS", type=_seconds, default=10.0,
        help="how often to keep what is done for --resume; seldomer where it would take more than 2%% of "
        "the time (default: 10)",
    )  # fmt: skip
    option("--quiet", action="store_true", help="no progress bars and no summary; warnings and errors only")


def add_model(command: Any) -> None:
    """What is fitted."""
    option = command.add_argument_group("model").add_argument
    option(
        "--steps", metavar="STEPS", type=at_least(1),
        help="most training steps (default: 15 where nearby rows correct what is learnt, 20 elsewhere)",
    )  # fmt: skip
    option(
        "--columns", choices=("incomplete", "all"),
        help="columns to learn to predict: those with missing cells here, or all of them, so that the saved "
        "imputer can fill new rows with holes elsewhere (default: incomplete)",
    )  # fmt: skip
    option(
        "--paper", action="store_true",
        help="the method exactly as in the paper (arXiv:2204.04648); slower, 10000 steps by default",
    )  # fmt: skip


def add_device(command: Any) -> None:
    """Where to compute."""
    command.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto",
        help="where to compute; auto takes a CUDA GPU if there is one (default: auto)",
    )  # fmt: skip


def at_least(least: int) -> Callable[[str], int]:
    """A type of argument: an integer from `least` up to what fits 63 bits."""

    def integer(text: str) -> int:
        if not re.fullmatch(r"[+-]?\d{1,19}", text) or not least <= int(text) < 2**63:
            raise argparse.ArgumentTypeError(f"expected an integer of at least {least}, got {text!r}")
        return int(text)

    return integer


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number of seconds from 0, got {text!r}")
    return number


# ------------------------------------------------------------------------------------------- what they mean


@dataclass(frozen=True)
class Given:
    """The table of a command."""

    source: Source
    """As it came."""
    passed: list[Label]
    """Columns that pass through."""

    @property
    def modelled(self) -> pd.DataFrame:
        """The columns of the model."""
        return self.source.frame.drop(columns=self.passed)


def read(args: argparse.Namespace) -> Given:
    """Read the table, and say what a newcomer may not have meant.

    Raises:
        ValueError, OSError: If the table cannot be read, or a column to drop is not there.
    """
    from pyro_mgp.results import files

    source = files.read_table(Path(args.table), args.missing or files.MISSING)
    given = Given(source, labels_of(source.frame.columns, args.drop))
    from pyro_mgp._support.processes import current  # imports torch: errors come without

    for note in _notes(given.modelled) if current().is_first else ():
        say(f"{PROGRAM}: note: {note}", sys.stderr)
    return given


def labels_of(columns: pd.Index[Any], names: Sequence[str]) -> list[Label]:
    """The labels that columns named on the command line have in the table.

    Raises:
        ValueError: If there is no such column.
    """
    labels: dict[str, Label] = {str(label): label for label in columns}
    for name in names:
        if name not in labels:
            some = ", ".join(list(labels)[:10]) + (", ..." if len(labels) > 10 else "")
            raise ValueError(f"--drop: there is no column {name!r}; the table has {some}")
    return [labels[name] for name in dict.fromkeys(names)]


def _notes(frame: pd.DataFrame) -> Iterator[str]:
    from pyro_mgp.results import files

    counter = files.row_counter(frame)
    if counter is not None:
        yield (
            f"column {counter!r} counts the rows; if it means nothing else, leave it out of the model with "
            f"--drop {counter}"
        )
    for label, cell in files.read_as_text(frame):
        yield (
            f"column {label!r} is read as text because of cells such as {cell!r}; if that marks a missing "
            f"cell, pass --missing '{cell}', or leave the column out with --drop {label}"
        )


def imputer_of(args: argparse.Namespace) -> MGPImputer:
    """The imputer that the options ask for, to be fitted.

    Raises:
        ValueError: If there is no such device.
    """
    from pyro_mgp.imputer import MGPImputer

    check_device(args)
    settings: dict[str, Any] = {
        "columns": args.columns or "incomplete",
        "device": args.device,
        "random_state": args.seed or 0,
        "progress": not args.quiet,
    }
    if args.steps is not None:
        settings["max_steps"] = args.steps
    return (MGPImputer.paper if args.paper else MGPImputer)(**settings)


def check_device(args: argparse.Namespace) -> None:
    """See whether the device is there.

    Raises:
        ValueError: If it is not.
    """
    import torch

    if args.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: PyTorch finds no CUDA GPU here; use --device cpu or auto")


def identity(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """What a run is about: its table, the options of these names, and the versions of what computes."""
    from pyro_mgp.storage import checkpoint

    options = {name: getattr(args, name) for name in ("drop", "missing", "seed", "device", *names)}
    shown = {f"--{name}": " ".join(x) if isinstance(x, list) else x for name, x in options.items()}
    return {"table": fingerprint(Path(args.table)), **shown, **checkpoint.versions()}


def fingerprint(path: Path) -> str:
    """A name for the content of a file, or of the files in a folder, that no other has.

    Raises:
        OSError: If it cannot be read.
    """
    if path.is_dir():
        files = [part for part in path.rglob("*") if part.is_file()]
        hidden = (".", "_")  # as readers of Parquet leave them out
        parts = sorted(
            part for part in files if not any(n.startswith(hidden) for n in part.relative_to(path).parts)
        )
        contents = "\n".join(f"{part.relative_to(path)} {fingerprint(part)}" for part in parts)
        return f"#{hashlib.sha256(contents.encode()).hexdigest()}"
    with path.open("rb") as file:
        return f"#{hashlib.file_digest(file, 'sha256').hexdigest()}"
