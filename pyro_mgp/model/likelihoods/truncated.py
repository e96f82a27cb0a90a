"""Bounded numbers: the normal distribution that a link predicts, truncated at the bounds.

p(x) ∝ N(x; mean, variance),   low ≤ x ≤ high
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_mgp.model.likelihoods.base import Quantity

# Number of quantiles over which an expectation is averaged.
_QUANTILES = 64
# Standard deviations beyond which the mass of a normal distribution underflows.
_FARTHEST = 37.0


@dataclass(frozen=True)
class Truncated:
    """Normal distribution truncated to the interval between two bounds.

    Draws are not moved to a bound: all of them come from the distribution within the bounds.

    Example:
        >>> Truncated(0.0, 1.0).draw(torch.zeros(3), torch.ones(3), torch.tensor([0.1, 0.5, 0.9]))
        tensor([0.0857, 0.4418, 0.8677])
    """

    low: float
    """Standardised units; may be infinite."""
    high: float
    """Standardised units; may be infinite."""

    def draw(self, mean: Tensor, variance: Tensor, uniform: Tensor) -> Tensor:
        """Draw values whose latent function is N(mean, variance), given uniform numbers."""
        spread = variance.sqrt()
        low, high = ((bound - mean) / spread for bound in (self.low, self.high))
        # By symmetry, intervals in the upper tail are computed in the lower tail, where masses are small.
        mirrored = low > 0
        left, right = torch.where(mirrored, -high, low), torch.where(mirrored, -low, high)
        left, right = left.clamp(-_FARTHEST, _FARTHEST), right.clamp(-_FARTHEST, _FARTHEST)
        below, above = _mass_below(left), _mass_below(right)
        share = torch.where(mirrored, 1 - uniform, uniform)
        drawn = torch.special.ndtri(below + share * (above - below)).clamp(left, right)
        return (mean + torch.where(mirrored, -drawn, drawn) * spread).clamp(self.low, self.high)

    def expectation(self, mean: Tensor, variance: Tensor, of: Quantity | None = None) -> Tensor:
        """Return the mean of the values, or of a function of them, `[...]`."""
        places = (torch.arange(_QUANTILES, dtype=mean.dtype, device=mean.device) + 0.5) / _QUANTILES
        values = self.draw(mean[..., None], variance[..., None], places.expand(*mean.shape, _QUANTILES))
        return (values if of is None else of(values)).mean(-1)


def _mass_below(x: Tensor) -> Tensor:
    """Return Φ(x), accurate in the lower tail, where `torch.special.ndtr` is zero."""
    return 0.5 * torch.special.erfc(-x / math.sqrt(2))
