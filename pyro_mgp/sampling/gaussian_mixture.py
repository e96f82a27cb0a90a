"""Predictive distributions of cells as mixtures over paths and sweeps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class GaussianMixture:
    """Predictive distribution of n cells as an equally weighted mixture of K Gaussians."""

    mean: Tensor
    """Means of the components, `[K, n]`."""
    variance: Tensor
    """Variances of the components, `[K, n]`."""

    def expectation(self) -> Tensor:
        """Return the mean of each cell, `[n]`."""
        return self.mean.mean(0)

    def standard_deviation(self) -> Tensor:
        """Return the standard deviation of each cell, `[n]`."""
        return (self.variance.mean(0) + self.mean.var(0, correction=0)).sqrt()

    def quantile(self, level: float) -> Tensor:
        """Return the quantile of each cell `[n]`, by bisection to about 1e-9 of its range."""
        scale = self.variance.sqrt()
        low = (self.mean - 10 * scale).amin(0)
        high = (self.mean + 10 * scale).amax(0)
        for _ in range(60):
            middle = (low + high) / 2
            below = torch.special.ndtr((middle - self.mean) / scale).mean(0) < level
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return (low + high) / 2
