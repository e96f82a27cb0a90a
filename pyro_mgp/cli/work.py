"""The work folder (a dot folder) in which a command prepares its output.

`OUT` appears when it is complete. Until then its parts lie in `.OUT.partial` beside it: `run.json` identifies
the run, each other file or folder appears when it is complete, and a lock shows whether the run is still
alive. With --resume, a command continues from the parts in this folder.
"""

from __future__ import annotations

import errno
import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from pyro_mgp.cli.messages import PROGRAM, say
from pyro_mgp.cli.output import RUN

TRAINING = "training"
DRAWING = "drawing"
LOCK = "lock"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def is_done(out: Path, identity: Mapping[str, Any]) -> bool:
    """Return True if a run of this identity has written `out`."""
    try:
        done: bool = json.loads((out / RUN).read_text("utf-8")) == identity
    except (OSError, ValueError):
        return False
    return done


def dot_folder(out: Path) -> Path:
    """Return the work folder of `out`."""
    return out.absolute().with_name(f".{out.name}.partial")


@contextmanager
def work_folder(out: Path, identity: Mapping[str, Any], *, resume: bool) -> Iterator[Path]:
    """Yield the work folder, which stays if the block fails with parts that --resume can continue from.

    Args:
        out: The output folder.
        identity: Identity of the run: its options, and fingerprints of its input.
        resume: Whether to continue from an earlier run, or to start afresh.

    Raises:
        ValueError: If another process uses the folder, or the earlier run had another identity.
        OSError: If the folder cannot be written; notes say how much was written and how much is free.
    """
    folder = dot_folder(out)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as lock:
        _claim(lock, out)
        _prepare(folder, identity, resume=resume)
        try:
            yield folder
        except (ValueError, TypeError, FloatingPointError):
            # The same input would fail again.
            shutil.rmtree(folder, ignore_errors=True)
            raise
        except BaseException as error:
            _explain(error, folder, out)
            _leave(folder)
            raise
    shutil.rmtree(folder, ignore_errors=True)


def _claim(lock: IO[str], out: Path) -> None:
    """Lock the work folder until this process ends."""
    try:
        import fcntl
    except ImportError:  # Windows: without a lock
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ValueError(f"another run is writing {str(out)!r}: wait for it, or choose another -o") from error


def _prepare(folder: Path, identity: Mapping[str, Any], *, resume: bool) -> None:
    """Remove parts that the run cannot continue from, and write its identity."""
    from pyro_mgp.storage import checkpoint
    from pyro_mgp.storage.atomic import atomic_file

    where = repr(str(folder))
    for part in folder.glob(".*.partial"):  # a file that was being written
        _remove(part)
    if resume and (folder / RUN).exists():
        checkpoint.check_same(where, json.loads((folder / RUN).read_text("utf-8")), identity)
        if _resumable(folder):
            say(f"{PROGRAM}: note: resuming the earlier run in {where}", sys.stderr)
    else:
        if not resume and _resumable(folder):
            note = f"replacing the unfinished run in {where}; --resume would have continued it"
            say(f"{PROGRAM}: note: {note}", sys.stderr)
        for part in folder.iterdir():
            if part.name != LOCK:
                _remove(part)
        with atomic_file(folder / RUN) as partial:
            partial.write_text(json.dumps(identity, indent=1) + "\n", "utf-8")


def _resumable(folder: Path) -> bool:
    return any(part.name not in (RUN, LOCK) for part in folder.iterdir())


def _leave(folder: Path) -> None:
    """Remove incomplete files, and the folder if --resume could not continue from it."""
    for part in folder.glob(".*.partial"):
        _remove(part)
    if not _resumable(folder):
        shutil.rmtree(folder)


def _explain(error: BaseException, folder: Path, out: Path) -> None:
    """Add notes to an error: free space after a full disk, and whether --resume can continue."""
    if isinstance(error, OSError) and str(folder) in str(error.filename or folder):
        error.filename = str(out)  # users do not know the work folder
        if error.errno in _FULL:
            written = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            free = shutil.disk_usage(folder).free
            error.add_note(f"{written / 1e6:.1f} MB were written, {free / 1e6:.1f} MB of the disk are free")
    if any(not part.name.startswith(".") and part.name not in (RUN, LOCK) for part in folder.iterdir()):
        error.add_note("finished work is kept: the same command with --resume continues from it")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def publish(part: Path, out: Path, *, overwrite: bool) -> None:
    """Move the work folder, or a part of it, to `out`."""
    from pyro_mgp.storage.atomic import move_into_place

    (part / LOCK).unlink(missing_ok=True)
    move_into_place(part, out.resolve(), overwrite=overwrite)
