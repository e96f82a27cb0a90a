"""Checkpoints: the state of long computations in files, to resume after a crash with the same result.

A file holds arrays, and everything else as JSON, with the identity of the computation: table, settings,
versions of packages. A checkpoint of another computation is refused: its result would differ.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pyro_mgp._support.messages import Hinted
from pyro_mgp._support.processes import current
from pyro_mgp._support.signals import Interruption
from pyro_mgp.storage import untrusted
from pyro_mgp.storage.atomic import atomic_file, remove
from pyro_mgp.storage.header import our_version, write_arrays

_FORMAT = "pyro_mgp.checkpoint 2"
# Largest share of the time that writing checkpoints may take.
_MOST_SHARE = 0.02

Identity = Mapping[str, str | int | float | bool | None]
"""Identity of a computation: fingerprints of tables, settings and versions, by name."""


@dataclass(frozen=True)
class State:
    """State of a computation that a checkpoint holds: arrays, and other values that JSON can hold."""

    arrays: dict[str, NDArray[Any]]
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Head:
    """JSON part of a checkpoint file."""

    format: str
    identity: dict[str, Any]
    fields: dict[str, Any]


class Checkpoint:
    """File or folder that holds the state of a long computation, written at intervals.

    Args:
        path: A file, if every state replaces the one before; or a folder, if states are added.
        every: Least number of seconds between writes. Writing also takes at most 2 % of the time.
        interruption: Source of requests to stop; on a request the state is written before the stop.
    """

    def __init__(
        self, path: str | os.PathLike[str], every: float = 10.0, interruption: Interruption | None = None
    ) -> None:
        self.path = Path(path)
        self.every = every
        self.interruption = interruption or Interruption()
        self._last = time.monotonic()
        self._cost = 0.0

    @property
    def due(self) -> bool:
        """True if a write is due: a signal has come, or the last write was long enough ago."""
        wait = max(self.every, self._cost / _MOST_SHARE)
        return self.interruption.asked is not None or time.monotonic() - self._last >= wait

    @contextmanager
    def working(self) -> Iterator[None]:
        """Hold back signals that stop the process, until `Interruption.give_way` or the block ends."""
        self._last = time.monotonic()
        with self.interruption.held_back():
            yield

    def keep(
        self, state: Callable[[], State], identity: Identity, name: str = "", *, now: bool = False
    ) -> bool:
        """Write the state if a write is due, or in any case if `now`; return True if it was written.

        The file in a folder is given by its name. Raises an OSError if the state cannot be written.
        """
        due = now or self.due
        if due:
            started = time.monotonic()
            write(self.path / name, state(), identity)
            self._last = time.monotonic()
            self._cost = self._last - started
        return due

    @classmethod
    def at(
        cls, place: Checkpoint | str | os.PathLike[str] | None, *, is_folder: bool = False
    ) -> Checkpoint | None:
        """Return the checkpoint at a path; a checkpoint or None is returned unchanged.

        A path that holds anything but checkpoints is a ValueError, since it is removed at the end.
        """
        if place is None or isinstance(place, Checkpoint):
            return place
        _check_own(Path(place), is_folder)
        return cls(place)

    def discard(self) -> None:
        """Remove the file or folder after the computation has finished."""
        remove(self.path)

    def load(self, identity: Identity, name: str = "") -> State | None:
        """Return the saved state, or None if there is none; raises the errors of `read`."""
        path = self.path / name
        return read(path, identity) if path.exists() else None


def write(path: Path, state: State, identity: Identity) -> None:
    """Write the state of a computation into a file; after an OSError an older file is unchanged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"format": _FORMAT, "identity": dict(identity), "fields": state.fields})
    with atomic_file(path) as partial:
        write_arrays(partial, state.arrays, {"pyro_mgp": text})


def read(path: Path, identity: Identity) -> State:
    """Read a checkpoint file; raise a ValueError if it is damaged or belongs to another computation."""
    where = repr(str(path))
    try:
        untrusted.array_shapes(path)
        with safe_open(path, "numpy") as file:
            text = (file.metadata() or {})["pyro_mgp"]
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no dict)
        head = untrusted.build(_Head, untrusted.parse_json(text.encode()), "its text")
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise damaged(path) from error
    if head.format != _FORMAT:
        raise ValueError(f"{where} is of format {head.format!r}, expected {_FORMAT!r}: remove it")
    check_same(where, head.identity, identity)
    return State(arrays, head.fields)


def damaged(path: Path) -> ValueError:
    """Return the error for a damaged checkpoint file."""
    message, advice = f"{str(path)!r} is no checkpoint, or is damaged: ", "remove it to start over"
    return ValueError(Hinted(message, f"choose another path, or {advice}", shell=advice))


def _check_own(path: Path, is_folder: bool) -> None:
    """Raise a ValueError if a path exists and holds files of others."""
    if not path.exists():
        return
    if path.is_dir() != is_folder:
        raise damaged(path)
    for file in sorted(path.iterdir()) if is_folder else [path]:
        unfinished = file.name.startswith(".") and file.suffix == ".partial"
        if not unfinished and not _is_checkpoint(file):
            raise damaged(file)


def _is_checkpoint(path: Path) -> bool:
    """Return whether a file is a checkpoint of this package, of any version."""
    try:
        untrusted.array_shapes(path)
        with safe_open(path, "numpy") as file:
            return "pyro_mgp.checkpoint" in (file.metadata() or {}).get("pyro_mgp", "")
    except (SafetensorError, OSError, ValueError):
        return False


def check_same(where: str, kept: Identity, identity: Identity) -> None:
    """Raise a ValueError that names the differences if a checkpoint belongs to another computation."""
    differs = [name for name in {**kept, **identity} if kept.get(name) != identity.get(name)]
    if differs:
        listed = "; ".join(_difference(name, kept.get(name), identity.get(name)) for name in differs)
        message = f"{where} belongs to another computation ({listed}): "
        advice = "resume it with the same table, settings and versions, "
        python = "choose another path, or remove it to start over"
        raise ValueError(Hinted(message + advice, python, shell="or start over without --resume"))


def _difference(name: str, there: object, here: object) -> str:
    """Describe an entry that differs between two computations, without printing fingerprints."""
    fingerprints = all(isinstance(value, str) and value.startswith("#") for value in (there, here))
    return f"another {name}" if fingerprints else f"{name} is {there!r} there and {here!r} here"


def fingerprint(tensors: Iterable[tuple[str, Tensor | NDArray[Any]]]) -> str:
    """Return a hash of named tensors, which does not depend on their devices."""
    digest = hashlib.blake2b(digest_size=16)
    for name, values in tensors:
        array = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values, order="C")
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return f"#{digest.hexdigest()}"


def versions() -> dict[str, str]:
    """Return the versions of this package, torch and NumPy."""
    return {"pyro_mgp": our_version(), "torch": torch.__version__, "numpy": np.__version__}


CheckpointLike = Checkpoint | str | os.PathLike[str] | None
"""Where a call keeps its progress: a path, or a `Checkpoint`, whose files stay at the end."""


def discard_own(kept: Checkpoint | None, given: CheckpointLike) -> None:
    """Remove a checkpoint that a finished call made from a path, but not one that the user made."""
    if kept is not None and kept is not given and current().is_first:
        kept.discard()
