"""Imputation of tables in partitions, independent of their number, place and order.

Draws depend only on a row's cells and on its rank among equal rows, and rounding does not depend on the
partition (see `tiles`). Equal rows of different partitions are therefore ranked first, by hashes::

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

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pyro_mgp.data.column_spec import Label
from pyro_mgp.data.row_keys import Ranks, RowIds, ranks_among_equals
from pyro_mgp.imputer import MGPImputer
from pyro_mgp.results.imputations import Imputations

# Pyro's settings belong to the process, so only one of its threads may impute at a time.
_LOCK = threading.Lock()
# The last imputer that this process has loaded, by its digest.
_LOADED: dict[str, MGPImputer] = {}


class FittedState:
    """Picklable fitted imputer: the files of `MGPImputer.save`, without the fitted table.

    Each process loads the imputer once.

    Args:
        imputer: The fitted imputer.

    Raises:
        sklearn.exceptions.NotFittedError: It is not fitted.
    """

    def __init__(self, imputer: MGPImputer) -> None:
        with _LOCK, tempfile.TemporaryDirectory() as folder:
            imputer.save(Path(folder) / "imputer")
            self.files = {path.name: path.read_bytes() for path in (Path(folder) / "imputer").iterdir()}
        self.kernel = None if isinstance(imputer.kernel, str) else imputer.kernel
        self.device = imputer.device
        self.digest = hashlib.sha256(b"".join(self.files[name] for name in sorted(self.files))).hexdigest()

    def imputer(self) -> MGPImputer:
        """Return the imputer as this process has loaded it."""
        with _LOCK:
            if self.digest not in _LOADED:
                _LOADED.clear()
                with tempfile.TemporaryDirectory() as folder:
                    for name, content in self.files.items():
                        (Path(folder) / name).write_bytes(content)
                    imputer = MGPImputer.load(folder, kernel=self.kernel, device=self.device)
                imputer.progress = False
                _LOADED[self.digest] = imputer
            return _LOADED[self.digest]


def impute_partition(
    state: MGPImputer | FittedState,
    frame: pd.DataFrame,
    imputations: int | Sequence[int],
    *,
    row_ids: RowIds = None,
    random_state: int | None = None,
    delta: Mapping[Label, float] | None = None,
) -> Imputations:
    """Impute a partition of a table as within the whole table; a pure function, safe to call from threads.

    Args:
        state: The fitted imputer.
        frame: The partition; may have no rows.
        imputations: Number of imputations, or their indices.
        row_ids: Label of a column of ids that are unique in the whole table, ids, or the `Ranks` that `rank`
            returned. If None, equal rows are distinguished only within the partition, and equal rows of
            different partitions get equal draws.
        random_state: Seed of the draws; None for the imputer's own.
        delta: Shifts of imputed cells, see `MGPImputer.impute`.

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
    with _LOCK:
        return imputer.impute(frame, imputations, row_ids=row_ids, random_state=random_state, delta=delta)


@dataclass(frozen=True)
class Hashes:
    """Hashes of some rows of a partition."""

    positions: NDArray[np.intp]
    """Positions of the rows in the partition."""
    content: NDArray[np.uint64]
    """Hashes of the rows' cells."""
    labels: NDArray[np.uint64]
    """Hashes of the rows' labels in the index."""


def identify(state: MGPImputer | FittedState, frame: pd.DataFrame, n_buckets: int = 1) -> list[Hashes]:
    """Return the hashes of a partition's incomplete rows, by bucket; equal rows are in the same bucket.

    Args:
        state: The fitted imputer.
        frame: The partition; may have no rows.
        n_buckets: Number of buckets.
    """
    positions, content, labels = np.empty(0, np.intp), np.empty(0, np.uint64), np.empty(0, np.uint64)
    if len(frame):
        imputer = _imputer_of(state)
        with _LOCK:
            positions, content, labels = imputer.model_.encoder.identify(frame)
    bucket = content % np.uint64(n_buckets)
    return [
        Hashes(positions[here], content[here], labels[here])
        for here in bucket == np.arange(n_buckets)[:, None]
    ]


def rank(bucket: Sequence[Hashes]) -> list[Ranks]:
    """Return the ranks of the rows of one bucket, for each partition in the table's order.

    Equal rows are ranked by the hashes of their labels, then by their order, as in a table without
    partitions.

    Args:
        bucket: Hashes of the bucket's rows, for each partition.
    """
    content = np.concatenate([part.content for part in bucket])
    labels = np.concatenate([part.labels for part in bucket])
    ranks = ranks_among_equals(content, labels)
    ends = np.cumsum([len(part.content) for part in bucket])[:-1]
    pairs = zip(bucket, np.split(ranks, ends), strict=True)
    return [Ranks(part.positions[own > 0], own[own > 0]) for part, own in pairs]


def merged(ranks: Sequence[Ranks]) -> Ranks:
    """Return the ranks of a partition's rows from those in each bucket."""
    return Ranks(
        np.concatenate([part.positions for part in ranks]), np.concatenate([part.ranks for part in ranks])
    )


def _imputer_of(state: MGPImputer | FittedState) -> MGPImputer:
    return state.imputer() if isinstance(state, FittedState) else state
