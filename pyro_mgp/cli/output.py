"""The folder that `pyro-mgp impute` writes."""

from __future__ import annotations

import os
from pathlib import Path

FORMAT_VERSION = 1
PAGE = "report.html"
"""What `pyro-mgp report` puts into it."""


def check_out(out: Path, overwrite: bool) -> None:
    """Find out before the work whether the folder can be written after it.

    Raises:
        ValueError: If `out` exists and may not be replaced, or cannot be made.
    """
    where = repr(str(out))
    if out.exists() and not overwrite:
        raise ValueError(f"{where} exists already: choose another folder with -o, or pass --overwrite")
    if out.exists():
        strange = _strange(out)
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


def _strange(out: Path) -> str | None:
    """What keeps us from replacing `out`, if anything."""
    from pyro_mgp import _storage

    if not out.is_dir():
        return "is a file"
    found = {entry.name for entry in out.iterdir()}
    if not found:
        return None
    try:
        known = set(_storage.read_header(out, "impute", FORMAT_VERSION)["files"])
    except (ValueError, KeyError, TypeError):
        return "was not written by this program"
    others = sorted(found - known - {PAGE})
    return f"also holds {others[0]!r}" if others else None
