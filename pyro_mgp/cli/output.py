"""The folder that a command writes."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path

FORMAT_VERSION = 1
RUN = "run.json"
"""What a command was run with, so that --resume knows it."""
PAGE = "report.html"
"""What `pyro-mgp report` puts into it."""
IMPUTER = "imputer"
"""The fitted imputer in it."""
DRAWS = "draws"
"""All draws in it."""


def check_out(out: Path, overwrite: bool, kind: str, files: Collection[str] | None = None) -> None:
    """Find out before the work whether the folder can be written after it.

    Args:
        out: The folder.
        overwrite: Whether an older one may be replaced.
        kind: What its header must say it is then.
        files: What may be in it; None for what its header lists, and a report.

    Raises:
        ValueError: If `out` exists and may not be replaced, or cannot be made.
    """
    where = repr(str(out))
    if out.exists() and not overwrite:
        raise ValueError(f"{where} exists already: choose another folder with -o, or pass --overwrite")
    if out.exists():
        strange = _strange(out, kind, files)
        if strange is not None:
            raise ValueError(
                f"--overwrite replaces only what an earlier run wrote, but {where} {strange}: choose another "
                "folder with -o, or clear it yourself"
            )
    parent = next(folder for folder in out.absolute().parents if folder.exists())
    if not parent.is_dir():
        raise ValueError(f"{where} cannot be made: {str(parent)!r} is a file, not a folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ValueError(f"{where} cannot be made: no permission to write into {str(parent)!r}")


def _strange(out: Path, kind: str, files: Collection[str] | None) -> str | None:
    """What keeps us from replacing `out`, if anything."""
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
