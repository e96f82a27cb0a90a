"""Folders and files that are written whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyro_mgp._support.messages import Hinted
from pyro_mgp.storage.header import HEADER


@contextmanager
def atomic_folder(path: str | os.PathLike[str], *, overwrite: bool = False) -> Iterator[Path]:
    """Yield an empty folder to write into, which becomes `path` when the block ends without an error.

    The folder lies beside `path` until then: a failure leaves nothing behind and an old `path` untouched.
    With `overwrite` it replaces an empty folder, or one with a `header.json` that this package wrote. Raises
    a ValueError if `path` exists and may not be replaced.
    """
    target = Path(path).resolve()
    check_replaceable(target, overwrite)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.partial")
    partial.mkdir()
    try:
        yield partial
        move_into_place(partial, target, overwrite=overwrite)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def move_into_place(partial: Path, target: Path, *, overwrite: bool = False) -> None:
    """Rename a finished folder to its final path, which lies beside it; see `atomic_folder`.

    All files are flushed to the disk first: after a power failure, `target` is the old or the new folder.
    """
    check_replaceable(target, overwrite)
    for path in [*partial.rglob("*"), partial]:
        _flush(path)
    old = partial.with_suffix(".old")
    replaces = target.exists()
    if replaces:
        target.rename(old)
    try:
        partial.rename(target)
    except OSError:
        if replaces:
            old.rename(target)
        raise
    if replaces:
        shutil.rmtree(old)
    _flush(target.parent)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a path to write a file to, which becomes `path` when the block ends without an error."""
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        yield partial
        _flush(partial)
        partial.replace(path)
        _flush(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that it holds."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    if path.is_dir() and os.name == "nt":  # Windows cannot open folders
        return
    number = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _is_ours(folder: Path) -> bool:
    """Return True if a path is an empty folder, or one that this package wrote according to its header."""
    try:
        if not any(folder.iterdir()):
            return True
        return str(json.loads((folder / HEADER).read_text("utf-8"))["format"]).startswith("pyro_mgp.")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def check_replaceable(target: Path, overwrite: bool, is_ours: Callable[[Path], bool] = _is_ours) -> None:
    """Raise a ValueError if a path exists, unless it is to be overwritten and `is_ours` accepts it."""
    if not target.exists():
        return
    if not overwrite:
        message = f"{str(target)!r} exists already: choose another path, or pass "
        raise ValueError(Hinted(message, "overwrite=True", shell="--overwrite"))
    if not is_ours(target):
        refused = f"{str(target)!r} was not written by pyro_mgp, so it is not overwritten"
        raise ValueError(f"{refused}: choose another path, or remove it yourself")
