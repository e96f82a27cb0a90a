"""Tables as tensors: standardised values, a mask of observed cells, and a key per row.

Keys seed random draws that depend neither on batches nor on the order of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from pyro_mgp._support.messages import Hinted, listing, row_name
from pyro_mgp.data.column_spec import Label
from pyro_mgp.storage.scratch import pieces

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MISSING = np.int64(-(2**63))
# Observed cells are the same if they differ by no more than this: keys are hashes of cells rounded to it.
_SAME = 1e-6


@dataclass(frozen=True)
class EncodedTable:
    """Encoded rows of a table: standardised numbers, a mask of observed cells, and a key per row."""

    values: Tensor
    """Standardised values, float64 `[n, D]`; any finite number in missing cells."""
    observed: Tensor
    """Bool `[n, D]`, True where the cell is observed."""
    keys: Tensor
    """int64 `[n]`, one key per row that travels with the row; see `row_keys`."""
    limits: Tensor | None = None
    """Lower and upper limits of missing cells, float64 `[n, D, 2]`, infinite for none; None without any."""

    @classmethod
    def from_numpy(
        cls, values: NDArray[np.float64], keys: NDArray[np.uint64], limits: Tensor | None = None
    ) -> EncodedTable:
        """Build a table from values `[n, D]` that are NaN where missing, and keys `[n]`."""
        observed = ~np.isnan(values)
        filled = torch.as_tensor(np.where(observed, values, 0.0))
        return cls(filled, torch.as_tensor(observed), torch.as_tensor(keys.view(np.int64)), limits)

    def __getitem__(self, index: slice | Tensor) -> EncodedTable:
        return EncodedTable(**{name: tensor[index] for name, tensor in self.tensors().items()})

    def __len__(self) -> int:
        return len(self.keys)

    def to(self, device: torch.device) -> EncodedTable:
        """Return the table on a device."""
        return EncodedTable(**{name: tensor.to(device) for name, tensor in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the table by name."""
        return {name: tensor for name, tensor in vars(self).items() if tensor is not None}

    def sorted_by_key(self) -> tuple[EncodedTable, Tensor]:
        """Return the rows in the order of their unsigned keys, and that order, `[n]`."""
        order = torch.as_tensor(np.argsort(self.keys.numpy().view(np.uint64)))
        return self[order], order

    def random_rows(self, n: int) -> Tensor:
        """Return the numbers of the n rows with the smallest keys, a random part of a table, on the CPU."""
        return self.keys.argsort()[:n].cpu()

    def append_column(self, values: NDArray[np.float64]) -> EncodedTable:
        """Return the table with one more column, `[n]`, NaN where missing; the rows keep their keys."""
        column = EncodedTable.from_numpy(values[:, None], self.keys.numpy().view(np.uint64))
        observed = torch.cat([self.observed, column.observed], dim=1)
        limits = self.limits
        if limits is not None:
            limits = torch.cat([limits, no_limits(self.values[:, :1])], dim=1)
        return EncodedTable(torch.cat([self.values, column.values], dim=1), observed, self.keys, limits)

    def numbers_of(self, rows: EncodedTable) -> Tensor:
        """Return the positions in this table of rows with the same keys and cells, `[n]`; -1 if not in it."""
        order = torch.argsort(self.keys)
        place = order[torch.searchsorted(self.keys[order], rows.keys).clamp(max=len(order) - 1)]
        same = self[place]
        differs = (same.values - rows.values).abs() > _SAME
        found = (same.keys == rows.keys) & (same.observed == rows.observed).all(1)
        found &= ~(differs & rows.observed).any(1)
        if self.limits is not None or rows.limits is not None:
            own, other = (
                no_limits(each.values) if each.limits is None else each.limits for each in (same, rows)
            )
            found &= torch.isclose(own, other, rtol=0, atol=_SAME).all((1, 2))
        return place.where(found, -1)

    def to_numpy(self) -> NDArray[np.float64]:
        """Return the values `[n, D]` with NaN in missing cells."""
        return np.where(self.observed.numpy(), self.values.numpy(), np.nan)


def no_limits(values: Tensor) -> Tensor:
    """Return limits of the cells of a table `[n, D]` that limit none, `[n, D, 2]`."""
    ends = values.new_tensor([-torch.inf, torch.inf])
    return ends.expand(*values.shape, 2)


@dataclass(frozen=True)
class Ranks:
    """Ranks of the rows of one partition, among rows with equal cells in the whole table."""

    positions: NDArray[np.intp]
    """Positions of the rows whose ranks are not zero."""
    ranks: NDArray[np.uint64]
    """Ranks of these rows."""


Identity = Ranks | pd.Index
"""Distinction of equal rows: their ranks among all equal rows, or an id for each row."""
RowIds = Label | ArrayLike | Ranks | None
"""Label of a column of ids, an id for each row `[N]`, or `Ranks`; None for the labels of the index."""


def row_keys(
    values: NDArray[np.float64],
    index: pd.Index[Any],
    identity: Identity | None = None,
    limits: Tensor | None = None,
) -> NDArray[np.uint64]:
    """Compute a random-number key for each row, uint64 `[N]`, from its cells and its index label.

    The key is a hash of the row's standardised cells `[N, D]`, rounded to 1e-6, mixed with the row's rank
    among equal rows, which are ranked by the hashes of their index labels, then by position. Permuting a
    table with its index therefore permutes its keys. Keys are the same in every process and on every
    platform. `identity` holds ids, whose hashes replace the ranks, or ranks in a larger table. Limits of
    missing cells, `[N, D, 2]`, are part of the content of rows that have any.
    """
    content = content_hashes(values, limits)
    apart = np.zeros_like(content)
    if isinstance(identity, Ranks):
        apart[identity.positions] = identity.ranks
    elif identity is not None:
        apart = label_hashes(identity)
    elif (repeated := np.flatnonzero(pd.Series(content).duplicated(keep=False))).size:
        apart[repeated] = ranks_among_equals(content[repeated], label_hashes(index[repeated]))
    return _mix(content + apart * _GOLDEN)


def content_hashes(values: NDArray[np.float64], limits: Tensor | None = None) -> NDArray[np.uint64]:
    """Return a hash of each row's cells, uint64 `[N]`, given `values` and `limits` of `row_keys`."""
    content = np.empty(len(values), dtype=np.uint64)
    for rows in pieces(len(values)):
        hashes = np.zeros(rows.stop - rows.start, dtype=np.uint64)
        for column in values[rows].T:
            hashes = _mix(hashes ^ _rounded(column))
        content[rows] = hashes
    if limits is not None:
        _mix_limits(content, limits.numpy())
    return content


def _mix_limits(content: NDArray[np.uint64], limits: NDArray[np.float64]) -> None:
    """Mix the finite limits `[N, D, 2]` of rows into the hashes of their cells, `[N]`, in place."""
    for place, column in enumerate(limits.reshape(len(limits), -1).T):
        if len(rows := np.flatnonzero(np.isfinite(column))):
            own = _mix(_rounded(column[rows]) + np.uint64(place))
            content[rows] = _mix(content[rows] ^ own)


def _rounded(column: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Return cells in units of 1e-6 as the bits of an int64, a fixed pattern where missing."""
    # The limit excludes the pattern of missing cells; the cast to integers makes -0. and 0. equal.
    units = np.clip(np.rint(np.where(np.isnan(column), 0.0, column) * 1e6), -(2.0**62), 2.0**62)
    return np.where(np.isnan(column), _MISSING, units.astype(np.int64)).view(np.uint64)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply one step of splitmix64 (Steele, Lea, Flood 2014), which makes hashes of similar inputs differ."""
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def ranks_among_equals(content: NDArray[np.uint64], labels: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Rank rows of equal `content` as 0, 1, ..., by `labels`, then by position."""
    order = np.lexsort((labels, content))
    ranks = np.empty(len(content), dtype=np.uint64)
    ranks[order] = pd.Series(order).groupby(content[order]).cumcount()
    return ranks


def label_hashes(index: pd.Index[Any]) -> NDArray[np.uint64]:
    """Return a hash of each label, uint64 `[N]`, the same in every process for equal labels of one dtype."""
    try:
        hashes = pd.util.hash_pandas_object(index, index=False)
    except (TypeError, ValueError):  # pandas cannot hash labels of mixed types when some are tuples
        hashes = pd.util.hash_pandas_object(pd.Index([repr(label) for label in index]), index=False)
    return np.asarray(hashes, dtype=np.uint64)


def without_ids(
    frame: pd.DataFrame, row_ids: RowIds, modelled: Sequence[Label]
) -> tuple[pd.DataFrame, Identity | None]:
    """Return a table without its column of ids, if it has one, and the ids.

    A column that does not exist or is a `modelled` one, or rows without an id, are a ValueError.
    """
    if row_ids is None or isinstance(row_ids, Ranks):
        return frame, row_ids
    if not isinstance(row_ids, (str, int, np.integer)):
        return frame, _checked(row_ids, frame.index)
    if row_ids not in frame.columns:
        raise ValueError(f"row_ids names {row_ids!r}, but the columns are {listing(frame.columns)}")
    if row_ids in modelled:
        raise ValueError(
            Hinted(
                f"row_ids names {row_ids!r}, which the imputer was fitted to: fit it without the ids, ",
                f"fit(frame.drop(columns=[{row_ids!r}])), or give the ids as an array",
                shell=f"`pyro-mgp fit` with --drop {row_ids}, or choose another column",
            )
        )
    return frame.drop(columns=[row_ids]), _checked(frame[row_ids], frame.index)


def _checked(row_ids: Any, rows: pd.Index[Any]) -> pd.Index[Any]:
    """Return the ids of rows as an index, after checking that no row lacks an id."""
    if getattr(row_ids, "ndim", 1) != 1:
        raise ValueError(f"row_ids must hold one id per row, got an array of shape {row_ids.shape}")
    ids = pd.Index(row_ids, tupleize_cols=False)
    if len(ids) != len(rows):
        raise ValueError(f"row_ids must hold one id per row: expected {len(rows)}, got {len(ids)}")
    for row in np.flatnonzero(ids.isna())[:1]:
        raise ValueError(f"row_ids must not be missing: {row_name(rows, row)} has none")
    return ids
