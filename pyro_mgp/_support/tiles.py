"""Index padding that makes the numbers of a row independent of the rows computed with it.

Matrix products, sums and elementwise functions process entries in blocks as wide as the processor's
registers, and the rest at the end in another way, whose last digits can differ. Index lists of rows and
cells are therefore padded to whole blocks by repeating their last entry. Rows of an odd number of doubles
are padded to an even number, because alignment to 16 bytes changes the order of sums, too.

On CPUs of one kind with the same number of threads, draws are then equal to the last bit whatever the batch;
on GPUs they are equal up to rounding. Rounding the draws does not suffice: a value next to a rounding
boundary can still flip.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

TILE = 96
"""Entries in a block: a multiple of 32 (four registers of 8 doubles, which torch sums together) and of 24
and 12 (columns that MKL multiplies at a time on some processors)."""


def filled_up(index: Tensor, n_paths: int = 1) -> Tensor:
    """Pad an index `[n]` to whole tiles by repeating its last entry; an empty one stays empty.

    With several paths, the entries of all paths together fill whole tiles.
    """
    lacking = -len(index) % (TILE // math.gcd(TILE, n_paths))
    return torch.cat([index, index[-1:].expand(lacking)]) if lacking else index


def whole_tiles(n: int) -> int:
    """Return the largest multiple of a tile that is at most n, but at least one tile."""
    return max(TILE, n // TILE * TILE)


def whole_registers(n: int) -> int:
    """Return the largest multiple of 8, the doubles of a register, that is at most n."""
    return n // 8 * 8


def mean_over_paths(values: Tensor) -> Tensor:
    """Return the mean `[n]` of values `[S, n]` over paths, with rounding independent of n."""
    return pad(values, (0, -values.shape[1] % TILE)).mean(0)[: values.shape[1]]


def evened(values: Tensor) -> Tensor:
    """Pad values `[..., n]` with a zero if n is odd."""
    return pad(values, (0, 1)) if values.shape[-1] % 2 else values
