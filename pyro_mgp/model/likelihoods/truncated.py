"""Draws of numbers that have bounds: the normal distribution that a link predicts, cut off at these."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_mgp.model.likelihoods.base import Quantity

# Places in the distribution that stand for all of it.
_QUANTILES = 64
# Standard deviations beyond which a normal distribution has no mass that a float can hold.
_FARTHEST = 37.0


@dataclass(frozen=True)
class Truncated:
    """Values of N(mean, variance) that lie between two bounds.

    Nothing is moved to a bound: what would lie beyond is drawn again from what lies within.

    Example:
        >>> Truncated(0.0, 1.0).draw(torch.zeros(3), torch.ones(3), torch.tensor([0.1, 0.5, 0.9]))
        tensor([0.0857, 0.4418, 0.8677])
    """

    low: float
    """Standardised units; may be infinite."""
    high: float
    """Likewise."""

    def draw(self, mean: Tensor, variance: Tensor, uniform: Tensor) -> Tensor:
        """See `likelihoods.Observation`."""
        spread = variance.sqrt()
        low, high = ((bound - mean) / spread for bound in (self.low, self.high))
        # Right of the middle, both are seen from the other side, where shares are small and not near one.
        turned = low > 0
        left, right = torch.where(turned, -high, low), torch.where(turned, -low, high)
        left, right = left.clamp(-_FARTHEST, _FARTHEST), right.clamp(-_FARTHEST, _FARTHEST)
        below, above = _mass_below(left), _mass_below(right)
        share = torch.where(turned, 1 - uniform, uniform)
        fallen = torch.special.ndtri(below + share * (above - below)).clamp(left, right)
        drawn = mean + torch.where(turned, -fallen, fallen) * spread
        return drawn.clamp(self.low, self.high)

    def expectation(self, mean: Tensor, variance: Tensor, of: Quantity | None = None) -> Tensor:
        """See `likelihoods.Observation`."""
        places = (torch.arange(_QUANTILES, dtype=mean.dtype, device=mean.device) + 0.5) / _QUANTILES
        values = self.draw(mean[..., None], variance[..., None], places.expand(*mean.shape, _QUANTILES))
        return (values if of is None else of(values)).mean(-1)


def _mass_below(x: Tensor) -> Tensor:
    """Φ(x), to the last digit in the lower tail, where `torch.special.ndtr` is zero."""
    return 0.5 * torch.special.erfc(-x / math.sqrt(2))
