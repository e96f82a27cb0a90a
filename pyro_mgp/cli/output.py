"""Names in the output folder of a command, and checks before it is written."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path

FORMAT_VERSION = 1
RUN = "run.json"
"""File with the options of a run, which --resume compares."""
PAGE = "report.html"
"""Page that `pyro-mgp report` writes."""
IMPUTER = "imputer"
"""Folder of the fitted imputer."""
DRAWS = "draws"
"""Folder of the draws."""


def check_out(out: Path, overwrite: bool, kind: str, files: Collection[str] | None = None) -> None:
    """Check before a computation that its output folder can be written afterwards.

    Args:
        out: The folder.
        overwrite: Whether an existing folder may be replaced.
        kind: Kind that the header of an existing folder must name.
        files: Files that an existing folder may hold; None means those that its header lists.

    Raises:
        ValueError: If `out` exists and may not be replaced, or cannot be created.
    """
    where = repr(str(out))
    if out.exists() and not overwrite:
        raise ValueError(f"{where} exists already: choose another folder with -o, or pass --overwrite")
    if out.exists():
        strange = _strange(out, kind, files)
        if strange is not None:
            raise ValueError(
                f"--overwrite replaces only what an earlier run wrote, but {where} {strange}: choose another "
                "folder with -o, or empty it yourself"
            )
    parent = next(folder for folder in out.absolute().parents if folder.exists())
    if not parent.is_dir():
        raise ValueError(f"{where} cannot be created: {str(parent)!r} is a file, not a folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ValueError(f"{where} cannot be created: no permission to write into {str(parent)!r}")


def _strange(out: Path, kind: str, files: Collection[str] | None) -> str | None:
    """Return the reason why `out` may not be replaced, or None."""
    from pyro_mgp.storage.header import HEADER

    if not out.is_dir():
        return "is a file"
    found = {entry.name for entry in out.iterdir()}
    if not found:
        return None
    try:
        header = json.loads((out / HEADER).read_text("utf-8"))
        if header["format"] != f"pyro_mgp.{kind}":
            return "was not written by this command"
        known = set(header["files"] if files is None else files)
    except (OSError, ValueError, KeyError, TypeError):
        return "was not written by this program"
    others = sorted(found - known - {PAGE, RUN, HEADER})
    return f"also holds {others[0]!r}" if others else None
