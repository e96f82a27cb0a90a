"""Probabilities of intervals under the standard normal distribution."""

from __future__ import annotations

import torch
from torch import Tensor

# Largest log ratio of two probabilities whose difference is not zero in floating point.
_LARGEST_LOG_RATIO = -1e-15


def log_between(low: Tensor, high: Tensor) -> Tensor:
    """Return log(Φ(high) - Φ(low)), accurate in both tails."""
    # By symmetry, intervals in the upper tail are computed in the lower tail.
    mirrored = low > 0
    low, high = torch.where(mirrored, -high, low), torch.where(mirrored, -low, high)
    above = torch.special.log_ndtr(high)
    ratio = (torch.special.log_ndtr(low) - above).clamp(max=_LARGEST_LOG_RATIO)
    return above + torch.log1p(-ratio.exp())
