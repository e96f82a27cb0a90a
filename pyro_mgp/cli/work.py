"""The output folder of a command, and the work folder in which it is prepared.

`OUT` appears when it is complete. Until then its parts lie in `.OUT.partial` beside it: `run.json` identifies
the run, each other file or folder appears when it is complete, and a lock shows whether the run is still
alive. With --resume, a command continues from the parts in this folder.
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from pyro_mgp._support.processes import current
from pyro_mgp.cli.messages import PROGRAM, say
from pyro_mgp.storage import atomic, checkpoint
from pyro_mgp.storage.header import HEADER

FORMAT_VERSION = 1
RUN = "run.json"  # options of a run, for --resume
PAGE = "report.html"  # of `pyro-mgp report`
IMPUTER = "imputer"
LOCK = "lock"  # of a running command


def identity(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return what identifies a run: a hash of its table, its options, and versions of packages."""
    options = {name: getattr(args, name) for name in ("drop", "missing", "seed", "device", *names)}
    shown = {f"--{name}": " ".join(x) if isinstance(x, list) else x for name, x in options.items()}
    table = fingerprint(Path(args.table))
    return {"command": args.command, "table": table, **shown, **checkpoint.versions()}


def fingerprint(path: Path) -> str:
    """Return a hash of the contents of a file or of the files in a folder, which must exist."""
    if not path.exists():
        raise ValueError(f"there is no file {str(path)!r}")
    if path.is_dir():
        names = sorted(part.relative_to(path) for part in path.rglob("*") if part.is_file())
        ignored = (".", "_")  # as by readers of Parquet
        seen = [name for name in names if not any(each.startswith(ignored) for each in name.parts)]
        contents = "\n".join(f"{name} {fingerprint(path / name)}" for name in seen)
        return f"#{hashlib.sha256(contents.encode()).hexdigest()}"
    with path.open("rb") as file:
        return f"#{hashlib.file_digest(file, 'sha256').hexdigest()}"


def is_needed(args: argparse.Namespace, identity: Mapping[str, Any], kind: str) -> bool:
    """Return False if --resume finds the output folder complete; else check that it can be written.

    A folder to overwrite must have a header of the given kind, and hold no files other than those that the
    header lists.
    """
    out, done = Path(args.out), False
    with suppress(OSError, ValueError):
        done = args.resume and json.loads((out / RUN).read_text("utf-8")) == identity
    if current().broadcast_number(done):
        if current().is_first:
            say(f"{args.out} is complete: there is nothing to resume")
        return False
    where = repr(str(out))
    if out.exists() and not out.is_dir():
        raise ValueError(f"{where} is a file, expected a folder: choose another one with -o")
    atomic.check_replaceable(out, args.overwrite)
    if out.exists() and (strange := _strange(out, kind)):
        advice = "choose another folder with -o, or empty it yourself"
        raise ValueError(f"--overwrite replaces only an earlier run, but {where} {strange}: {advice}")
    parent = next(folder for folder in out.absolute().parents if folder.exists())
    if not parent.is_dir():
        raise ValueError(f"{where} cannot be created: {str(parent)!r} is a file, not a folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ValueError(f"{where} cannot be created: no permission to write into {str(parent)!r}")
    return True


def _strange(out: Path, kind: str) -> str | None:
    """Return the reason why a folder that this package wrote may not be replaced, or None."""
    found = {entry.name for entry in out.iterdir()}
    if not found:
        return None
    try:
        header = json.loads((out / HEADER).read_text("utf-8"))
        if header["format"] != f"pyro_mgp.{kind}":
            return "was not written by this command"
        written = {*header.get("files", ()), *header.get("checksums", ())}
    except (OSError, ValueError, KeyError, TypeError):
        return f"has a damaged {HEADER}"
    others = sorted(found - written - {PAGE, RUN, HEADER})
    return f"also holds {others[0]!r}" if others else None


def dot_folder(out: Path) -> Path:
    """Return the path of the work folder, `.NAME.partial`, beside the output folder."""
    return out.absolute().with_name(f".{out.name}.partial")


@contextmanager
def work_folder(args: argparse.Namespace, identity: Mapping[str, Any]) -> Iterator[Path]:
    """Yield the work folder of a command; after a failure it is kept if --resume can continue.

    Raises a ValueError if another process uses the folder, or the run to resume had another identity.
    """
    out = Path(args.out)
    folder = dot_folder(out)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as lock:
        _claim(lock, out)
        _prepare(folder, identity, resume=args.resume)
        try:
            yield folder
        except (ValueError, TypeError, FloatingPointError):
            # The same input would fail again.
            shutil.rmtree(folder, ignore_errors=True)
            raise
        except BaseException as error:
            _explain(error, folder, out)
            _remove_unfinished(folder)
            if not _resumable(folder):
                shutil.rmtree(folder)
            raise
    shutil.rmtree(folder, ignore_errors=True)


def _claim(lock: IO[str], out: Path) -> None:
    """Lock the work folder until this process ends."""
    try:
        import fcntl

        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # Windows: without a lock
        return
    except BlockingIOError as error:
        raise ValueError(f"another run is writing {str(out)!r}: wait for it, or choose another -o") from error


def _prepare(folder: Path, identity: Mapping[str, Any], *, resume: bool) -> None:
    """Remove what the run cannot resume from its work folder, and record its identity."""
    where, kept = repr(str(folder)), folder / RUN
    _remove_unfinished(folder)
    if resume and kept.exists():
        checkpoint.check_same(where, json.loads(kept.read_text("utf-8")), identity)
        if _resumable(folder):
            say(f"{PROGRAM}: note: resuming the earlier run in {where}", sys.stderr)
        return
    if not resume and _resumable(folder):
        note = f"replacing the unfinished run in {where}; --resume would have continued it"
        say(f"{PROGRAM}: note: {note}", sys.stderr)
    for part in folder.iterdir():
        if part.name != LOCK:
            atomic.remove(part)
    with atomic.atomic_file(kept) as partial:
        partial.write_text(json.dumps(identity, indent=1) + "\n", "utf-8")


def _resumable(folder: Path) -> bool:
    """Return whether a work folder holds finished parts that --resume can continue from."""
    return any(not part.name.startswith(".") and part.name not in (RUN, LOCK) for part in folder.iterdir())


def _explain(error: BaseException, folder: Path, out: Path) -> None:
    """Add notes to an error: free space after a full disk, and whether --resume can continue."""
    # With a filename, an error without a number would lose its message.
    if (
        isinstance(error, OSError)
        and error.errno is not None
        and str(folder) in str(error.filename or folder)
    ):
        error.filename = str(out)  # users do not know the work folder
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            written = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            free = shutil.disk_usage(folder).free
            error.add_note(f"{written / 1e6:.1f} MB were written, {free / 1e6:.1f} MB of the disk are free")
    if _resumable(folder):
        error.add_note("finished work is kept: the same command with --resume continues from it")


def _remove_unfinished(folder: Path) -> None:
    """Remove files and folders that an earlier run wrote only in part."""
    for part in folder.glob(".*.partial"):
        atomic.remove(part)


def publish(part: Path, args: argparse.Namespace) -> None:
    """Move the work folder, or a part of it, to the output folder."""
    (part / LOCK).unlink(missing_ok=True)
    atomic.move_into_place(part, Path(args.out).resolve(), overwrite=args.overwrite)
