"""Parts that the commands `python -m benchmarks.NAME` share: parser, options, output and exit status."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks.figures import Row, as_table
from benchmarks.runs import provenance
from pyro_mgp.cli.arguments import at_least
from pyro_mgp.cli.messages import INTERRUPTED, notes, say

__all__ = ["add_data_dir", "add_out", "at_least", "execute", "new_parser", "report", "say"]


def new_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """Return the parser of `python -m benchmarks.NAME`.

    Args:
        name: Module or package of the command, below `benchmarks`.
        description: Text for `--help`; line breaks are ignored.
    """
    return argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)


def add_out(parser: argparse.ArgumentParser, what: str = "the figures") -> None:
    """Add the option `-o FILE` for a CSV copy of what the command prints."""
    parser.add_argument("-o", "--out", metavar="FILE", help=f"also write {what} to this CSV file")


def add_data_dir(parser: argparse.ArgumentParser, default: str = "$PYRO_MGP_DATA") -> None:
    """Add the option `--data-dir` for the folder with the public tables."""
    parser.add_argument(
        "--data-dir", metavar="DIR", help=f"folder with the public tables (default: {default})"
    )


def execute(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    run: Callable[[argparse.Namespace], int | None],
) -> int:
    """Parse the arguments and run a command.

    Args:
        parser: Parser of the command.
        argv: Arguments; None takes those of the process.
        run: The command; it may return an exit status.

    Returns:
        Exit status of the command, 0 by default; 2 after an error that the user can correct; 130 after
        Ctrl-C.

    Raises:
        SystemExit: After `--help` (0) or invalid arguments (2).
    """
    args = parser.parse_args(argv)
    try:
        return run(args) or 0
    except KeyboardInterrupt as stop:
        say("; ".join([f"{parser.prog}: interrupted", *notes(stop)]), sys.stderr)
        return INTERRUPTED
    except (ValueError, TypeError, FloatingPointError, OSError) as error:
        say(f"{parser.prog}: error: {error}", sys.stderr)
        return 2


def report(rows: Iterable[Row], out: str | None) -> None:
    """Print each figure as soon as it is measured, and write all of them to the CSV file `out`, if given."""
    shown = []
    for row in rows:
        say(f"{row.what:<52} {row.measured:8.2f} {row.unit:<6} {row.asked:<17} {row.detail}")
        shown.append(row)
    if out is not None:
        as_table(shown).to_csv(out, index=False)
        provenance.add(Path(out), (row.what for row in shown))
