"""Whole tiles, so that the numbers of a row do not depend on which rows are worked on together.

Matrix products, sums and elementwise functions take entries in blocks as wide as the processor's registers,
and what is left over at the end in another way, whose last digit may differ. Lists of rows and of cells
are therefore filled up to whole blocks by repeating their last entry: it is computed again, and gives the
same again. Likewise, what a row has of its own is made even in number: rows of an odd number of doubles start
at multiples of 16 bytes every other time only, and products of those that do not go another way.

On CPUs of one kind, with the same number of threads, draws are then the same to the last bit in any
company. GPUs choose the order of their sums by the size of a product: there equality is up to rounding.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

TILE = 96
"""Entries in a block: a multiple of 32 (the four widest registers of doubles, which torch sums together) and
of 24 and 12 (the columns that MKL multiplies at a time on AMD's processors)."""


def filled_up(index: Tensor, n_paths: int = 1) -> Tensor:
    """An index `[n]` with its last entry repeated until whole tiles are full; an empty one stays empty.

    Entries that are worked on along several paths at once are filled up as little as all paths together need.

    Example:
        >>> filled_up(torch.arange(3)).tolist() == [0, 1, *[2] * (TILE - 2)]
        True
    """
    lacking = -len(index) % (TILE // math.gcd(TILE, n_paths))
    return torch.cat([index, index[-1:].expand(lacking)]) if lacking else index


def whole_tiles(n: int) -> int:
    """The largest multiple of a tile that is at most n, but one tile at least."""
    return max(TILE, n // TILE * TILE)


def whole_registers(n: int) -> int:
    """The largest multiple of a register's doubles that is at most n."""
    return n // 8 * 8


def mean_over_paths(values: Tensor) -> Tensor:
    """The mean `[n]` of values `[S, n]`, each of which has the same bits however many there are."""
    return pad(values, (0, -values.shape[1] % TILE)).mean(0)[: values.shape[1]]


def evened(values: Tensor) -> Tensor:
    """Values `[..., n]` with a zero behind them if n is odd.

    Example:
        >>> evened(torch.ones(2, 3)).tolist()
        [[1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 0.0]]
    """
    return pad(values, (0, 1)) if values.shape[-1] % 2 else values
