"""Numbers with Gaussian noise: N(x; f, s²), the likelihood of the paper (Jafrasteh et al. 2023)."""

from __future__ import annotations

import math

import torch
from pyro.nn import PyroParam
from torch import Tensor
from torch.distributions import constraints

from pyro_mgp.model.likelihoods.base import MIN_NOISE, OfFunction
from pyro_mgp.model.local_parameters import LocalModule

# One object for all links: parameters under the same constraint are read together.
_POSITIVE_NOISE = constraints.greater_than(MIN_NOISE)


class ExpectedNormal(OfFunction):
    r"""Gaussian observation of a Gaussian latent function.

    .. math:: \log p = E_{f \sim N(\mu, \sigma^2)} \log N(x; f, s^2)
              = \log N(x; \mu, s^2) - \sigma^2 / (2 s^2)
    """

    noise: Tensor
    """Variance s² of the observation noise, broadcastable."""
    arg_constraints = OfFunction.arg_constraints | {"noise": constraints.positive}

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the expected log density of `value`, batch shape."""
        if self._validate_args:
            self._validate_sample(value)
        squared = (value - self.f_mean).square() + self.f_variance
        return -0.5 * (squared / self.noise + self.noise.log() + math.log(2 * math.pi))

    def predictive_log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of `value` under the predictive N(mean, variance + noise), batch shape."""
        total = self.f_variance + self.noise
        return -0.5 * ((value - self.f_mean).square() / total + total.log() + math.log(2 * math.pi))


class Gaussian(LocalModule):
    """Gaussian likelihood of one column, with its noise variance in standardised units as a parameter."""

    def __init__(self, noise: float, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        start = torch.tensor(max(noise, 2 * MIN_NOISE), dtype=dtype)
        self.noise = PyroParam(start, _POSITIVE_NOISE)

    def forward(self, mean: Tensor, variance: Tensor) -> ExpectedNormal:
        """Return the observation distribution at rows whose latent function has these moments."""
        # Not validated: training undoes steps whose bound is not finite.
        return ExpectedNormal(mean, variance, self.noise, validate_args=False)
