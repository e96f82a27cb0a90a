"""Tables that come in partitions: one function imputes each, wherever and in whatever order.

Draws depend on a row's cells, on what tells it apart from equal rows, and on nothing else; so does their
last digit (see `tiles`). What is left to do for a table in partitions is to rank equal rows among all of
them. Nothing but hashes is looked at for that::

    partition ── identify ──▶ hashes of incomplete rows, by bucket ─┐
    partition ── identify ──▶ ...                                  ─┴─ rank ──▶ ranks of each partition's rows
    partition and ranks ── impute_partition ──▶ m completed partitions
"""

from __future__ import annotations

import hashlib
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pyro_mgp.data.column_spec import Label
from pyro_mgp.data.row_ids import RowIds
from pyro_mgp.data.row_keys import Ranks, ranks_among_equals
from pyro_mgp.results.imputations import Imputations

if TYPE_CHECKING:
    from pyro_mgp.imputer import MGPImputer

# Pyro's settings belong to the process: threads of one take turns.
_TURN = threading.Lock()
# The last imputer that this process was sent, by its digest.
_LOADED: dict[str, MGPImputer] = {}


class FittedState:
    """A fitted imputer on its way to other processes: what `MGPImputer.save` writes, as bytes.

    The table it was fitted to is not in it. Each process that is asked for the imputer loads it once.

    Args:
        imputer: The fitted imputer.

    Raises:
        sklearn.exceptions.NotFittedError: If it is not fitted.
    """

    def __init__(self, imputer: MGPImputer) -> None:
        with _TURN, tempfile.TemporaryDirectory() as folder:
            imputer.save(Path(folder) / "imputer")
            self.files = {path.name: path.read_bytes() for path in (Path(folder) / "imputer").iterdir()}
        self.kernel = None if isinstance(imputer.kernel, str) else imputer.kernel
        self.device = imputer.device
        self.digest = hashlib.sha256(b"".join(self.files[name] for name in sorted(self.files))).hexdigest()

    def imputer(self) -> MGPImputer:
        """The imputer, as this process has it."""
        with _TURN:
            if self.digest not in _LOADED:
                _LOADED.clear()
                _LOADED[self.digest] = self._load()
            return _LOADED[self.digest]

    def _load(self) -> MGPImputer:
        from pyro_mgp.imputer import MGPImputer

        with tempfile.TemporaryDirectory() as folder:
            for name, content in self.files.items():
                (Path(folder) / name).write_bytes(content)
            imputer = MGPImputer.load(folder, kernel=self.kernel, device=self.device)
        imputer.progress = False
        return imputer


def impute_partition(
    state: MGPImputer | FittedState,
    frame: pd.DataFrame,
    imputations: int | Sequence[int],
    *,
    row_ids: RowIds = None,
    random_state: int | None = None,
    delta: Mapping[Label, float] | None = None,
) -> Imputations:
    """Impute a part of a table as it is imputed within the whole; a function of its arguments alone.

    It may be called anywhere: in a process of its own, after a failure again, from several threads.

    Args:
        state: The fitted imputer, or what travels of it.
        frame: The partition; may have no rows.
        imputations: Number of imputations, or their numbers.
        row_ids: The label of a column of ids that are unique in the whole table, ids, or the `Ranks` that
            `rank` found. With None equal rows are told apart within the partition only: those of different
            ones get the same draws.
        random_state: Seed of other draws than those of the imputer's own seed.
        delta: See `MGPImputer.impute`.

    Raises:
        ValueError, TypeError: As for `MGPImputer.impute`.

    Example:
        >>> from pyro_mgp import MGPImputer
        >>> frame = pd.DataFrame({"x": np.arange(20.0), "y": np.arange(20.0) ** 2})
        >>> frame.loc[3, "y"] = np.nan
        >>> imputer = MGPImputer(random_state=0, max_steps=2).fit(frame)
        >>> one, two = impute_partition(imputer, frame[:10], 2), impute_partition(imputer, frame[10:], 2)
        >>> pd.concat([one[1], two[1]]).equals(imputer.impute(m=2)[1])
        True
    """
    if len(frame) == 0:
        return Imputations(frame, {}, imputations if isinstance(imputations, int) else len(imputations))
    imputer = _imputer_of(state)
    with _TURN:
        return imputer.impute(frame, imputations, row_ids=row_ids, random_state=random_state, delta=delta)


@dataclass(frozen=True)
class Hashes:
    """What tells some rows of a partition apart."""

    positions: NDArray[np.intp]
    """Where they stand in it."""
    content: NDArray[np.uint64]
    """Of their cells."""
    labels: NDArray[np.uint64]
    """Of their labels in the index."""


def identify(state: MGPImputer | FittedState, frame: pd.DataFrame, n_buckets: int = 1) -> list[Hashes]:
    """The hashes of a partition's incomplete rows, by bucket: equal rows of any partition share one.

    Args:
        state: The fitted imputer, or what travels of it.
        frame: The partition; may have no rows.
        n_buckets: How many.
    """
    if len(frame) == 0:
        return [Hashes(*_nothing()) for _ in range(n_buckets)]
    imputer = _imputer_of(state)
    with _TURN:
        positions, content, labels = imputer.identify(frame)
    bucket = content % np.uint64(n_buckets)
    return [
        Hashes(positions[here], content[here], labels[here])
        for here in bucket == np.arange(n_buckets)[:, None]
    ]


def rank(bucket: Sequence[Hashes]) -> list[Ranks]:
    """The ranks of the rows of one bucket, for each partition in the table's order.

    Equal rows are ranked by the hashes of their labels, then by their order, as in a table that is not
    partitioned.

    Args:
        bucket: Its hashes, of each partition.
    """
    content = np.concatenate([part.content for part in bucket])
    labels = np.concatenate([part.labels for part in bucket])
    ranks = ranks_among_equals(content, labels)
    ends = np.cumsum([len(part.content) for part in bucket])[:-1]
    pairs = zip(bucket, np.split(ranks, ends), strict=True)
    return [Ranks(part.positions[own > 0], own[own > 0]) for part, own in pairs]


def merged(ranks: Sequence[Ranks]) -> Ranks:
    """The ranks of a partition's rows, from those of each bucket."""
    return Ranks(
        np.concatenate([part.positions for part in ranks]), np.concatenate([part.ranks for part in ranks])
    )


def _imputer_of(state: MGPImputer | FittedState) -> MGPImputer:
    return state.imputer() if isinstance(state, FittedState) else state


def _nothing() -> tuple[NDArray[np.intp], NDArray[np.uint64], NDArray[np.uint64]]:
    return np.empty(0, np.intp), np.empty(0, np.uint64), np.empty(0, np.uint64)
