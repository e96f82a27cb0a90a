"""What long work has reached, kept in files, so that it goes on after a crash as if nothing had happened.

A file holds arrays and, as JSON, everything else; it is written beside and renamed, so whoever looks finds a
whole one. It also says which work it belongs to: another table, other settings, another version of a package
that computes would lead elsewhere, so they are refused rather than mixed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
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
from pyro_mgp._support.signals import Interruption
from pyro_mgp.storage import untrusted
from pyro_mgp.storage.arrays import write_arrays
from pyro_mgp.storage.atomic import atomic_file
from pyro_mgp.storage.header import our_version

_FORMAT = "pyro_mgp.checkpoint 2"
# Keeping work may take this share of the time of the work.
_MOST_SHARE = 0.02

Identity = Mapping[str, str | int | float | bool | None]
"""What work is about, by name: fingerprints of tables, settings, versions."""


@dataclass(frozen=True)
class State:
    """What is kept."""

    arrays: dict[str, NDArray[Any]]
    """By name."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Anything else, as JSON knows it."""


@dataclass(frozen=True)
class _Head:
    """What a file says besides its arrays."""

    format: str
    identity: dict[str, Any]
    fields: dict[str, Any]


class Checkpoint:
    """Where work is kept, and how often.

    Args:
        path: A file, of work that is replaced by what follows; or a folder, of work that is added to.
        every: Least seconds between two writes. They also stay below 2 % of the time.
        interruption: Who may ask the work to stop; it is kept then, before it stops.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     checkpoint = Checkpoint(f"{folder}/counting", every=0)
        ...     kept = checkpoint.offer(lambda: State({"seen": np.arange(3)}, {"n": 3}), {"task": "count"})
        ...     checkpoint.load({"task": "count"}).fields
        {'n': 3}
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
        """Whether to keep what there is."""
        wait = max(self.every, self._cost / _MOST_SHARE)
        return self.interruption.asked is not None or time.monotonic() - self._last >= wait

    @contextmanager
    def working(self) -> Iterator[None]:
        """A block of work in which signals wait for the next `offer`."""
        self._last = time.monotonic()
        with self.interruption.held_back():
            yield

    def offer(self, state: Callable[[], State], identity: Identity, name: str | None = None) -> bool:
        """Keep the state if it is time to; then stop, if somebody asked for that.

        Args:
            state: Gives what to keep.
            identity: What the work is about.
            name: Of the file, if `path` is a folder.

        Returns:
            Whether it was kept.

        Raises:
            OSError: If it cannot be written.
            Stopped: If a signal came.
        """
        kept = self.keep(state, identity, name)
        self.interruption.give_way()
        return kept

    def keep(
        self, state: Callable[[], State], identity: Identity, name: str | None = None, *, now: bool = False
    ) -> bool:
        """Keep the state if it is time to, or in any case `now`; takes the arguments of `offer`."""
        due = now or self.due
        if due:
            started = time.monotonic()
            write(self.path if name is None else self.path / name, state(), identity)
            self._last = time.monotonic()
            self._cost = self._last - started
        return due

    @classmethod
    def at(cls, place: Checkpoint | str | os.PathLike[str] | None) -> Checkpoint | None:
        """A checkpoint as users give it: a path, one of their own, or None."""
        return place if place is None or isinstance(place, Checkpoint) else cls(place)

    def discard(self) -> None:
        """Remove what was kept: the work is done."""
        if self.path.is_dir():
            shutil.rmtree(self.path)
        else:
            self.path.unlink(missing_ok=True)

    def load(self, identity: Identity, name: str | None = None) -> State | None:
        """What was kept, or None; see `read`."""
        path = self.path if name is None else self.path / name
        return read(path, identity) if path.exists() else None


def write(path: Path, state: State, identity: Identity) -> None:
    """Write a state into a file, whole or not at all.

    Raises:
        OSError: If it cannot be written; an older file is as it was then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"format": _FORMAT, "identity": dict(identity), "fields": state.fields})
    with atomic_file(path) as partial:
        write_arrays(partial, state.arrays, {"pyro_mgp": text})


def read(path: Path, identity: Identity) -> State:
    """Read what `write` wrote.

    Raises:
        ValueError: If it is damaged or belongs to other work; the sentence says how that differs.
    """
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
    """The error that says so of a file."""
    return ValueError(f"{str(path)!r} is no checkpoint, or is damaged: remove it to start over")


def check_same(where: str, kept: Identity, identity: Identity) -> None:
    """See that kept work is the work that is to go on.

    Raises:
        ValueError: If it is not; the sentence says how it differs.
    """
    differs = [name for name in {**kept, **identity} if kept.get(name) != identity.get(name)]
    if differs:
        listed = "; ".join(_difference(name, kept.get(name), identity.get(name)) for name in differs)
        raise ValueError(
            Hinted(
                f"{where} keeps other work than this ({listed}): go on with the same table, "
                "settings and versions, ",
                "choose another path, or remove it to start over",
                shell="or start over without --resume",
            )
        )


def _difference(name: str, there: object, here: object) -> str:
    """How work differs; nobody wants to read fingerprints."""
    fingerprints = all(isinstance(value, str) and value.startswith("#") for value in (there, here))
    return f"another {name}" if fingerprints else f"{name} is {there!r} there and {here!r} here"


def fingerprint(tensors: Iterable[tuple[str, Tensor | NDArray[Any]]]) -> str:
    """A name for these tensors that no others have, whatever device they are on.

    Example:
        >>> fingerprint([("x", torch.zeros(2))]) == fingerprint([("x", torch.zeros(2))])
        True
        >>> fingerprint([("x", torch.zeros(2))]) == fingerprint([("x", torch.ones(2))])
        False
    """
    digest = hashlib.blake2b(digest_size=16)
    for name, values in tensors:
        array = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values, order="C")
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return f"#{digest.hexdigest()}"


def versions() -> dict[str, str]:
    """Versions of what computes."""
    return {"pyro_mgp": our_version(), "torch": torch.__version__, "numpy": np.__version__}
