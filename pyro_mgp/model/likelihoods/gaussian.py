"""Gaussian likelihood N(x; f, s²) of numeric columns, as in the paper (Jafrasteh et al. 2023).

Draws of a bounded column come from the predictive distribution truncated at its bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pyro.distributions as dist
import torch
from pyro.nn import PyroParam
from torch import Tensor
from torch.distributions import constraints

from pyro_mgp.model.likelihoods.base import MIN_NOISE, Quantity, Scored, draw_truncated, log_between
from pyro_mgp.model.local_parameters import LocalModule

# One object for all links: parameters under the same constraint are read together.
_POSITIVE_NOISE = constraints.greater_than(MIN_NOISE)
# Number of quantiles over which an expectation is averaged.
_QUANTILES = 64


class ExpectedNormal(Scored):
    r"""Normal distribution of an observation, given a Gaussian latent function.

    .. math:: \log p = E_{f \sim N(\mu, \sigma^2)} \log N(x; f, s^2)
              = \log N(x; \mu, s^2) - \sigma^2 / (2 s^2)
    """

    noise: Tensor
    """Variance s² of the observation noise, broadcastable."""
    arg_constraints = Scored.arg_constraints | {"noise": constraints.positive}

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the expected log density of `value` under q(f), of batch shape."""
        if self._validate_args:
            self._validate_sample(value)
        squared = (value - self.f_mean).square() + self.f_variance
        return -0.5 * (squared / self.noise + self.noise.log() + math.log(2 * math.pi))

    def predictive_log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of `value` under N(mean, variance + noise), of batch shape."""
        total = self.f_variance + self.noise
        return -0.5 * ((value - self.f_mean).square() / total + total.log() + math.log(2 * math.pi))


class Gaussian(LocalModule):
    """Gaussian likelihood of one column, with its noise variance in standardised units as a parameter."""

    def __init__(self, noise: float, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        start = torch.tensor(max(noise, 2 * MIN_NOISE), dtype=dtype)
        self.noise = PyroParam(start, _POSITIVE_NOISE)

    def forward(self, mean: Tensor, variance: Tensor) -> ExpectedNormal:
        """Return the distribution of observations, given the moments of the latent function."""
        # Not validated: training undoes steps whose bound is not finite.
        return ExpectedNormal(mean, variance, self.noise, validate_args=False)

    def distribution(self, function: Tensor) -> dist.Normal:
        """Return the distribution of observations given values `[..., n]` of the latent function."""
        return dist.Normal(function, self.noise.sqrt())


@dataclass(frozen=True)
class Truncated:
    """Normal distribution truncated to an interval with ends in standardised units, which may be infinite.

    Example:
        >>> Truncated(0.0, 1.0).draw(torch.zeros(3), torch.ones(3), torch.tensor([0.1, 0.5, 0.9]))
        tensor([0.0857, 0.4418, 0.8677])
    """

    low: float
    high: float

    def draw(self, mean: Tensor, variance: Tensor, uniform: Tensor) -> Tensor:
        """Draw observations by means of uniform numbers."""
        low, high = (mean.new_tensor(bound) for bound in (self.low, self.high))
        return draw_truncated(mean, variance, low, high, uniform)

    def log_prob(self, value: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Return the log density of values within the interval, given N(mean, variance) before truncation."""
        spread = variance.sqrt()
        low, high = ((bound - mean) / spread for bound in (self.low, self.high))
        away = (value - mean) / spread
        return -0.5 * (away.square() + (2 * math.pi * variance).log()) - log_between(low, high)

    def expectation(self, mean: Tensor, variance: Tensor, of: Quantity | None = None) -> Tensor:
        """Return the expectation of the observations, or of a function of them, `[...]`."""
        places = (torch.arange(_QUANTILES, dtype=mean.dtype, device=mean.device) + 0.5) / _QUANTILES
        values = self.draw(mean[..., None], variance[..., None], places.expand(*mean.shape, _QUANTILES))
        return (values if of is None else of(values)).mean(-1)
