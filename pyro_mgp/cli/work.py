"""The hidden folder in which a command puts together what it writes.

`OUT` appears when everything is there. Until then the work lies in `.OUT.partial` beside it: `run.json` says
what it is about, every other name in it appears when that part is done, and a lock tells a run that goes on
from one that died. With --resume, a command takes up what it finds there.
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
    """Whether `out` is what such a run has written."""
    try:
        done: bool = json.loads((out / RUN).read_text("utf-8")) == identity
    except (OSError, ValueError):
        return False
    return done


def hidden(out: Path) -> Path:
    """The folder to work in until `out` is whole."""
    return out.absolute().with_name(f".{out.name}.partial")


@contextmanager
def work_folder(out: Path, identity: Mapping[str, Any], *, resume: bool) -> Iterator[Path]:
    """Give the folder to work in; it stays if the block ends with work that --resume can take up.

    Args:
        out: What will be written.
        identity: What the run is about.
        resume: Whether to take up what an earlier run left, or to start afresh.

    Raises:
        ValueError: If another process works there, or an earlier one with other aims did.
        OSError: If it cannot be written; with a note of how much was and would have been.
    """
    folder = hidden(out)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as lock:
        _claim(lock, out)
        _prepare(folder, identity, resume=resume)
        try:
            yield folder
        except (ValueError, TypeError, FloatingPointError):
            # What cannot be used will not be of use the next time either.
            shutil.rmtree(folder, ignore_errors=True)
            raise
        except BaseException as error:
            _explain(error, folder, out)
            _leave(folder)
            raise
    shutil.rmtree(folder, ignore_errors=True)


def _claim(lock: IO[str], out: Path) -> None:
    """Keep other processes out for as long as this one lives."""
    try:
        import fcntl
    except ImportError:  # not on this system: nobody is kept out
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ValueError(f"another run is writing {str(out)!r}: wait for it, or choose another -o") from error


def _prepare(folder: Path, identity: Mapping[str, Any], *, resume: bool) -> None:
    """Empty the folder of what is not to be taken up, and write down what the run is about."""
    from pyro_mgp.storage import checkpoint
    from pyro_mgp.storage.atomic import atomic_file

    where = repr(str(folder))
    for part in folder.glob(".*.partial"):  # a file that was being written
        _remove(part)
    if resume and (folder / RUN).exists():
        checkpoint.check_same(where, json.loads((folder / RUN).read_text("utf-8")), identity)
        if _resumable(folder):
            say(f"{PROGRAM}: note: going on from what an earlier run left in {where}", sys.stderr)
    else:
        if not resume and _resumable(folder):
            said = "is replaced; --resume would have gone on from it"
            say(f"{PROGRAM}: note: what an earlier run left in {where} {said}", sys.stderr)
        for part in folder.iterdir():
            if part.name != LOCK:
                _remove(part)
        with atomic_file(folder / RUN) as partial:
            partial.write_text(json.dumps(identity, indent=1) + "\n", "utf-8")


def _resumable(folder: Path) -> bool:
    return any(part.name not in (RUN, LOCK) for part in folder.iterdir())


def _leave(folder: Path) -> None:
    """Keep what can be taken up, and nothing else."""
    for part in folder.glob(".*.partial"):
        _remove(part)
    if not _resumable(folder):
        shutil.rmtree(folder)


def _explain(error: BaseException, folder: Path, out: Path) -> None:
    """Say of a failure what is left of the work, and of a full disk how full it is."""
    if isinstance(error, OSError) and str(folder) in str(error.filename or folder):
        error.filename = str(out)  # nobody knows of the hidden folder
        if error.errno in _FULL:
            written = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            free = shutil.disk_usage(folder).free
            error.add_note(f"{written / 1e6:.1f} MB were written, {free / 1e6:.1f} MB of the disk are free")
    if any(not part.name.startswith(".") and part.name not in (RUN, LOCK) for part in folder.iterdir()):
        error.add_note("what was done is kept: the same command with --resume goes on from there")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def publish(part: Path, out: Path, *, overwrite: bool) -> None:
    """Let the work, or a part of it, become `out`."""
    from pyro_mgp.storage.atomic import move_into_place

    (part / LOCK).unlink(missing_ok=True)
    move_into_place(part, out.resolve(), overwrite=overwrite)
