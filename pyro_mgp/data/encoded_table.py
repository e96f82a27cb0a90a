"""The table as tensors: values, which of them are observed, and a key per row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class EncodedTable:
    """Rows of a table as standardised numbers, with which of them are observed and a key per row."""

    values: Tensor
    """Standardised values `[n, D]`; anything finite in missing cells."""
    observed: Tensor
    """Bool `[n, D]`."""
    keys: Tensor
    """int64 `[n]`, see `row_keys.row_keys`."""

    def __getitem__(self, index: slice | Tensor) -> EncodedTable:
        return EncodedTable(self.values[index], self.observed[index], self.keys[index])

    def __len__(self) -> int:
        return len(self.keys)

    def to(self, device: torch.device) -> EncodedTable:
        """The rows on a device."""
        return EncodedTable(self.values.to(device), self.observed.to(device), self.keys.to(device))
