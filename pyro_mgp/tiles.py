"""Whole tiles, so that the numbers of a row do not depend on which rows are worked on together.

Matrix products, sums and elementwise functions take entries in blocks as wide as the processor's registers,
and what is left over at the end in another way, whose last digit may differ. Lists of rows and of cells
are therefore filled up to whole blocks by repeating their last entry: it is computed again, and gives the
same again.

On CPUs of one kind, with the same number of threads, draws are then the same to the last bit in any
company. GPUs choose the order of their sums by the size of a product: there equality is up to rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

TILE = 32
"""Entries in a block: the four widest registers of doubles, which torch sums together."""


def filled_up(index: Tensor) -> Tensor:
    """An index `[n]` with its last entry repeated until whole tiles are full; an empty one stays empty.

    Example:
        >>> filled_up(torch.arange(3)).tolist() == [0, 1, *[2] * (TILE - 2)]
        True
    """
    lacking = -len(index) % TILE
    return torch.cat([index, index[-1:].expand(lacking)]) if lacking else index


def whole_tiles(n: int) -> int:
    """The largest multiple of a tile that is at most n, but one tile at least."""
    return max(TILE, n // TILE * TILE)
