"""Output of the command line: one line per error or warning, and formats of the summary."""

from __future__ import annotations

import sys
import textwrap
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

PROGRAM = "pyro-mgp"

INTERRUPTED = 130
"""Exit status after Ctrl-C, by the convention of shells."""


def say(text: str, stream: Any = None) -> None:
    """Print text, with question marks for characters that the stream cannot encode."""
    stream = stream or sys.stdout
    encoding = stream.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding), file=stream, flush=True)


def sentence(error: BaseException) -> str:
    """Return the message of an error or warning in one line, with advice for users of the command line."""
    if isinstance(error, OSError) and error.strerror:
        where = "" if error.filename is None else f" {str(error.filename)!r}"
        return "; ".join([f"cannot read or write{where}: {error.strerror}", *notes(error)])
    message = error.args[0] if error.args else ""
    return "; ".join([" ".join(getattr(message, "in_shell", str(error)).split()), *notes(error)])


def notes(error: BaseException) -> list[str]:
    """Return the notes that were added to an error."""
    return list(getattr(error, "__notes__", []))


@contextmanager
def one_line_warnings() -> Iterator[None]:
    """Show each of the package's own warnings once, as one line on stderr, and leave others unchanged."""
    from pyro_mgp.data.table import TableWarning
    from pyro_mgp.imputer import FitWarning

    seen: set[str] = set()
    with warnings.catch_warnings():
        for category in (FitWarning, TableWarning):
            warnings.simplefilter("always", category)
        show = warnings.showwarning

        def show_ours(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if not isinstance(message, (FitWarning, TableWarning)):
                show(message, category, *where, **more)
            elif str(message) not in seen:
                seen.add(str(message))
                say(f"{PROGRAM}: warning: {sentence(message)}", sys.stderr)

        warnings.showwarning = show_ours
        yield


def wrapped(title: str, text: str) -> list[str]:
    """Wrap the text of a summary entry beside its title, and return the lines."""
    from pyro_mgp.results.summary import WIDTH

    return textwrap.wrap(
        text, WIDTH, initial_indent=f"{title:<12}", subsequent_indent=" " * 12, break_on_hyphens=False
    )


def listed(labels: Iterable[object], most: int = 12) -> str:
    """Join labels by commas; long labels are shortened, and only the first `most` listed."""
    from pyro_mgp.results.summary import NAME_WIDTH, shortened

    shown = [shortened(str(label), 2 * NAME_WIDTH) for label in labels]
    more = [f"... and {len(shown) - most} more"] if len(shown) > most else []
    return ", ".join(shown[:most] + more)


def count(n: int, noun: str) -> str:
    """Format a number with its noun in singular or plural, such as "1 row" or "2 rows"."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def duration(seconds: float) -> str:
    """Format a duration in seconds as text, such as "7.4 s" or "2 min 5 s"."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
