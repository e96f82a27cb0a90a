"""A key per row that travels with the row, for random draws that depend neither on batches nor on order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pyro_mgp.storage.scratch import pieces

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MISSING = np.int64(-(2**63))


@dataclass(frozen=True)
class Ranks:
    """The ranks of some rows of a table among all rows equal to them, also those of other partitions."""

    positions: NDArray[np.intp]
    """Which rows; the ranks of all others are zero."""
    ranks: NDArray[np.uint64]
    """Their ranks."""

    def spread(self, n_rows: int) -> NDArray[np.uint64]:
        """The ranks of all rows, [N]."""
        whole = np.zeros(n_rows, dtype=np.uint64)
        whole[self.positions] = self.ranks
        return whole


Identity = Ranks | pd.Index
"""What tells equal rows apart besides their labels: ranks that are known already, or an id for each row."""


def row_keys(
    values: NDArray[np.float64], index: pd.Index[Any], identity: Identity | None = None
) -> NDArray[np.uint64]:
    """A key per row that travels with the row, for random draws that must not depend on batches or row order.

    The key is a hash of the row's cells, rounded to 1e-6, mixed with the row's rank among rows equal to it.
    Equal rows are ranked by the hash of their index label, then by position. So permuting a table together
    with its index permutes its keys; only equal rows with equal labels may swap theirs, which nobody can see.
    Keys are the same in every process and on every platform.

    Args:
        values: Standardised cells, float64 [N, D], NaN where missing.
        index: The N row labels.
        identity: Ids, whose hashes are mixed in instead of ranks, or ranks that were found among more rows.

    Returns:
        uint64 [N].

    Raises:
        ValueError: ``values`` and ``index``, or ids, differ in length.

    Example:
        >>> values = np.array([[0.0, 1.0], [0.0, 1.0], [2.0, np.nan]])
        >>> keys = row_keys(values, pd.Index(["a", "b", "c"]))
        >>> bool((row_keys(values[::-1], pd.Index(["c", "b", "a"])) == keys[::-1]).all())
        True
    """
    labels = identity if isinstance(identity, pd.Index) else index
    if len(values) != len(labels):
        raise ValueError(
            f"Expected one index label per row, got {len(values)} rows and {len(labels)} labels."
        )
    content = content_hashes(values)
    if isinstance(identity, Ranks):
        apart = identity.spread(len(values))
    elif identity is None:
        apart, twins = np.zeros_like(content), _twins(content)
        if twins.size:
            apart[twins] = ranks_among_equals(content[twins], label_hashes(index[twins]))
    else:
        apart = label_hashes(identity)
    return _mix(content + apart * _GOLDEN)


def content_hashes(values: NDArray[np.float64]) -> NDArray[np.uint64]:
    """A hash of the cells of each row, uint64 [N]; takes the ``values`` of :func:`row_keys`."""
    content = np.empty(len(values), dtype=np.uint64)
    for rows in pieces(len(values)):
        content[rows] = _content(values[rows])
    return content


def _content(values: NDArray[np.float64]) -> NDArray[np.uint64]:
    """A hash of the cells of each row, [n]."""
    content = np.zeros(len(values), dtype=np.uint64)
    for column in values.T:
        content = _mix(content ^ _rounded(column))
    return content


def _twins(content: NDArray[np.uint64]) -> NDArray[np.intp]:
    """Positions of the rows that are not the only ones of their ``content``, in ascending order."""
    order = np.argsort(content)
    ordered = content[order]
    is_twin = np.zeros(len(content), dtype=np.bool_)
    is_twin[1:] = ordered[1:] == ordered[:-1]
    is_twin[:-1] |= is_twin[1:]
    return np.sort(order[is_twin])


def _rounded(column: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Cells in units of 1e-6 as the bits of an int64, a fixed pattern where missing."""
    # The limit keeps clear of the sentinel; the cast to integers makes -0. and 0. one.
    units = np.clip(np.rint(np.where(np.isnan(column), 0.0, column) * 1e6), -(2.0**62), 2.0**62)
    return np.where(np.isnan(column), _MISSING, units.astype(np.int64)).view(np.uint64)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One step of splitmix64 (Steele, Lea, Flood 2014): neighbouring inputs, unrelated outputs."""
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def ranks_among_equals(content: NDArray[np.uint64], labels: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """0, 1, ... among rows of equal ``content``, by ``labels``, then by position (the sort is stable)."""
    order = np.lexsort((labels, content))
    ordered = content[order]
    positions = np.arange(len(content))
    is_first = np.ones(len(content), dtype=np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    start = np.maximum.accumulate(np.where(is_first, positions, 0))
    ranks = np.empty(len(content), dtype=np.uint64)
    ranks[order] = (positions - start).astype(np.uint64)
    return ranks


def label_hashes(index: pd.Index[Any]) -> NDArray[np.uint64]:
    """A hash of each label, uint64 [N]; equal labels of one dtype have equal ones in every process."""
    try:
        hashes = pd.util.hash_pandas_object(index, index=False)
    except (TypeError, ValueError):  # pandas cannot hash labels of mixed types when some are tuples
        hashes = pd.util.hash_pandas_object(pd.Index([repr(label) for label in index]), index=False)
    return np.asarray(hashes, dtype=np.uint64)
