"""The table as tensors: standardised values, which of them are observed, and a key per row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class EncodedTable:
    """Rows of a table as standardised numbers, with which of them are observed and a key per row.

    Example:
        >>> table = EncodedTable.from_numpy(np.array([[1.0, np.nan]]), np.array([7], dtype=np.uint64))
        >>> table.observed.tolist(), table.values.tolist()
        ([[True, False]], [[1.0, 0.0]])
    """

    values: Tensor
    """Standardised values, float64 `[n, D]`; any finite number in missing cells."""
    observed: Tensor
    """Bool `[n, D]`, True where the cell is observed."""
    keys: Tensor
    """int64 `[n]`, one key per row that travels with the row; see `row_keys.row_keys`."""

    @classmethod
    def from_numpy(cls, values: NDArray[np.float64], keys: NDArray[np.uint64]) -> EncodedTable:
        """Build a table from values `[n, D]` that are NaN where missing, and keys `[n]`."""
        observed = ~np.isnan(values)
        filled = torch.as_tensor(np.where(observed, values, 0.0))
        return cls(filled, torch.as_tensor(observed), torch.as_tensor(keys.view(np.int64)))

    def __getitem__(self, index: slice | Tensor) -> EncodedTable:
        return EncodedTable(self.values[index], self.observed[index], self.keys[index])

    def __len__(self) -> int:
        return len(self.keys)

    def to(self, device: torch.device) -> EncodedTable:
        """Return the table on a device."""
        return EncodedTable(self.values.to(device), self.observed.to(device), self.keys.to(device))

    def sorted_by_key(self) -> tuple[EncodedTable, Tensor]:
        """Return the rows in the order of their unsigned keys, and that order, `[n]`."""
        order = torch.as_tensor(np.argsort(self.keys.numpy().view(np.uint64)))
        return self[order], order

    def append_column(self, values: NDArray[np.float64]) -> EncodedTable:
        """Return the table with one more column, `[n]`, NaN where missing; the keys stay."""
        column = EncodedTable.from_numpy(values[:, None], self.keys.numpy().view(np.uint64))
        observed = torch.cat([self.observed, column.observed], dim=1)
        return EncodedTable(torch.cat([self.values, column.values], dim=1), observed, self.keys)

    def to_numpy(self) -> NDArray[np.float64]:
        """Return the values `[n, D]` with NaN in missing cells."""
        return np.where(self.observed.numpy(), self.values.numpy(), np.nan)
