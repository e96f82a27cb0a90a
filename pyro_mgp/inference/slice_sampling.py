"""Slice sampling of one number per chain (Neal, Annals of Statistics 31:705-767, 2003), on keyed noise."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pyro_mgp._support.devices import is_known_empty

# Times that the interval is extended, on both sides together, and shrunk.
_EXTENSIONS, _SHRINKAGES = 6, 8
N_NUMBERS = 3 + _SHRINKAGES
"""Standard normal numbers that a step takes."""


def slice_step(
    log_density: Callable[[Tensor], Tensor], current: Tensor, normal: Tensor, width: float = 1.0
) -> Tensor:
    """Return numbers `[S]` after one step of slice sampling in each of S chains.

    Takes a function that returns their log densities `[S]` up to a constant, the current numbers, standard
    normal numbers `[S, N_NUMBERS]`, and the width of the first interval.
    """
    uniform = torch.special.ndtr(normal)
    level = log_density(current) + uniform[:, 0].log()
    low = current - width * uniform[:, 1]
    high = low + width
    # The extensions are divided between both sides at random: otherwise an interval could be found from one
    # of its points, but not from another.
    to_left = (uniform[:, 2] * (_EXTENSIONS + 1)).floor()
    left, right = (torch.ones_like(current, dtype=torch.bool) for _ in range(2))
    for k in range(_EXTENSIONS):
        left, right = left & (k < to_left), right & (k < _EXTENSIONS - to_left)
        if not is_known_empty(left):
            left = left & (log_density(low) > level)
            low = torch.where(left, low - width, low)
        if not is_known_empty(right):
            right = right & (log_density(high) > level)
            high = torch.where(right, high + width, high)
    moved, waiting = current, torch.ones_like(current, dtype=torch.bool)
    for share in uniform[:, 3:].unbind(1):
        proposal = low + share * (high - low)
        taken = waiting & (log_density(proposal) > level)
        moved = torch.where(taken, proposal, moved)
        waiting = waiting & ~taken
        low = torch.where(waiting & (proposal < current), proposal, low)
        high = torch.where(waiting & (proposal >= current), proposal, high)
        if is_known_empty(waiting):
            break
    return moved
