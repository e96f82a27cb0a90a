"""The command line: `pyro-mgp fit`, `pyro-mgp impute`, `pyro-mgp report`.

Each command has a module with its `run`, which is imported when it is called: `--help` appears at once.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from pyro_mgp.cli.arguments import parser
from pyro_mgp.cli.messages import INTERRUPTED, PROGRAM, notes, say, sentence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line with the arguments `argv`; None takes those of the process.

    Returns the exit status: 0, 2 for an error that the user can correct, 130 after Ctrl-C, 143 after SIGTERM.
    After `--help` (0) and invalid arguments (2) it is that of a SystemExit.
    """
    args = parser().parse_args(argv)
    try:
        importlib.import_module(f"pyro_mgp.cli.{args.command}").run(args)
    except KeyboardInterrupt as stop:
        say(f"{PROGRAM}: interrupted, {'; '.join(notes(stop)) or 'nothing was written'}", sys.stderr)
        return getattr(stop, "status", INTERRUPTED)
    except BrokenPipeError:  # the reader of the output, such as `head`, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, TypeError, FloatingPointError, OSError) as error:
        say(f"{PROGRAM}: error: {sentence(error)}", sys.stderr)
        return 2
    return 0
