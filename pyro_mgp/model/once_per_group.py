"""Columns that are constant within groups: such a column has one cell for each group, in its first row.

Numbers of groups are those of an encoded column of the table. The cell's link learns from that row only, and
what is drawn there is written into all rows of the group.
"""

from __future__ import annotations

import torch
from torch import Tensor


def first_rows(numbers: Tensor, among: Tensor) -> Tensor:
    """Return Bool `[n]`, the first row of each group among some rows, Bool `[n]`, given its numbers `[n]`."""
    rows = among.nonzero()[:, 0]
    groups, group_of = torch.unique(numbers[rows], return_inverse=True)
    first = rows.new_full((len(groups),), len(numbers)).scatter_reduce(0, group_of, rows, "amin")
    return torch.zeros_like(among).index_fill_(0, first, True)


def members(numbers: Tensor, rows: Tensor, among: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows of the groups of `rows` `[k]`, `[R]`, and the position of each group in `rows`, `[R]`.

    They are those among some rows, Bool `[n]`, given the number of each row's group, `[n]`. Of several rows
    of a group the position is that of the first.
    """
    groups, group_of = torch.unique(numbers[rows], return_inverse=True)
    order = torch.arange(len(rows), device=rows.device)
    position = order.new_full((len(groups),), len(rows)).scatter_reduce(0, group_of, order, "amin")
    place = torch.searchsorted(groups, numbers.contiguous()).clamp(max=len(groups) - 1)
    found = (among & (groups[place] == numbers)).nonzero()[:, 0]
    return found, position[place[found]]
