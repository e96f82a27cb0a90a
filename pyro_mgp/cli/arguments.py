"""Options shared by commands, and functions that interpret them."""

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


def add_table(command: Any, kinds: str) -> None:
    """Add the table argument, and options on how to read it, to a command."""
    option = command.add_argument
    option("table", metavar="TABLE", help=kinds)
    option(
        "--drop", metavar="COLUMN", nargs="+", action="extend", default=[],
        help="columns to leave out of the model, such as identifiers; they pass through as they are",
    )  # fmt: skip
    option(
        "--missing", metavar="TEXT", nargs="+", action="extend",
        help="text that marks a missing cell in a CSV besides an empty one, in any case "
        "(default: NA N/A #N/A <NA> NaN NULL)",
    )  # fmt: skip


def add_run(command: Any) -> None:
    """Add the options --overwrite, --resume, --checkpoint-every and --quiet."""
    option = command.add_argument
    option("--overwrite", action="store_true", help="replace OUT if an earlier run of this command wrote it")
    option(
        "--resume", action="store_true",
        help="continue the same command after it was killed or interrupted, with the same result as "
        "without the interruption",
    )  # fmt: skip
    option(
        "--checkpoint-every", metavar="SECONDS", type=_seconds, default=10.0,
        help="interval of checkpoints for --resume; longer where writing would take more than 2%% of the "
        "time (default: 10)",
    )  # fmt: skip
    option("--quiet", action="store_true", help="no progress bars and no summary; warnings and errors only")


def add_model(command: Any) -> None:
    """Add the options on the model."""
    option = command.add_argument_group("model").add_argument
    option(
        "--steps", metavar="STEPS", type=at_least(1),
        help="most training steps (default: 15 where a local GP of nearby rows is added, 20 elsewhere)",
    )  # fmt: skip
    option(
        "--columns", choices=("incomplete", "all"),
        help="columns to learn to predict: those with missing cells in this table, or all; then the saved "
        "imputer can impute any column of new rows (default: incomplete)",
    )  # fmt: skip
    option(
        "--paper", action="store_true",
        help="the method exactly as in the paper (arXiv:2204.04648); slower, 10000 steps by default",
    )  # fmt: skip


def add_device(command: Any) -> None:
    """Add the option --device."""
    command.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto",
        help="where to compute; auto takes a CUDA GPU if there is one (default: auto)",
    )  # fmt: skip


def at_least(least: int) -> Callable[[str], int]:
    """Return an argument type: an integer of at least `least` that fits 63 bits."""

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


@dataclass(frozen=True)
class Given:
    """Table of a command, and which of its columns pass through."""

    source: Source
    """The table as it was read."""
    passed: list[Label]
    """Columns that are left out of the model and pass through."""

    @property
    def modelled(self) -> pd.DataFrame:
        """Table of the columns that the model includes."""
        return self.source.frame.drop(columns=self.passed)


def read(args: argparse.Namespace) -> Given:
    """Read the table, and print notes on columns that are likely to be misread.

    Raises:
        ValueError, OSError: If the table cannot be read, or has no column that --drop names.
    """
    from pyro_mgp.results import files

    source = files.read_table(Path(args.table), args.missing or files.MISSING)
    given = Given(source, labels_of(source.frame.columns, args.drop))
    from pyro_mgp._support.processes import current  # imports torch, which takes long

    for note in _notes(given.modelled) if current().is_first else ():
        say(f"{PROGRAM}: note: {note}", sys.stderr)
    return given


def labels_of(columns: pd.Index[Any], names: Sequence[str]) -> list[Label]:
    """Return the labels of the columns that are named on the command line.

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
    """Return an unfitted imputer with the settings of the options.

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
    """Check that the device is available.

    Raises:
        ValueError: If it is not.
    """
    import torch

    if args.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: PyTorch finds no CUDA GPU here; use --device cpu or auto")


def identity(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return the identity of a run: its table, the options of these names, and versions of packages."""
    from pyro_mgp.storage import checkpoint

    options = {name: getattr(args, name) for name in ("drop", "missing", "seed", "device", *names)}
    shown = {f"--{name}": " ".join(x) if isinstance(x, list) else x for name, x in options.items()}
    return {"table": fingerprint(Path(args.table)), **shown, **checkpoint.versions()}


def fingerprint(path: Path) -> str:
    """Return a hash of the contents of a file, or of the files in a folder.

    Raises:
        OSError: If a file cannot be read.
    """
    if path.is_dir():
        files = [part for part in path.rglob("*") if part.is_file()]
        ignored = (".", "_")  # as by readers of Parquet
        parts = sorted(
            part for part in files if not any(n.startswith(ignored) for n in part.relative_to(path).parts)
        )
        contents = "\n".join(f"{part.relative_to(path)} {fingerprint(part)}" for part in parts)
        return f"#{hashlib.sha256(contents.encode()).hexdigest()}"
    with path.open("rb") as file:
        return f"#{hashlib.file_digest(file, 'sha256').hexdigest()}"
