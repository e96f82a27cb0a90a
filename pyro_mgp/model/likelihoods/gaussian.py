"""Numbers with Gaussian noise: N(x; f, s²), the likelihood of the paper (Jafrasteh et al. 2023)."""

from __future__ import annotations

import math
from typing import Any, ClassVar

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

    `sample` draws from the predictive N(mean, variance + noise).

    Args:
        mean: Mean of q(f), any batch shape.
        variance: Variance of q(f), same shape.
        noise: Observation noise variance s², broadcastable.

    Example:
        >>> d = ExpectedNormal(torch.zeros(3), torch.ones(3), torch.tensor(0.5))
        >>> d.log_prob(torch.zeros(3)).shape
        torch.Size([3])
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        **OfFunction.arg_constraints,
        "noise": constraints.positive,
    }

    def __init__(
        self, mean: Tensor, variance: Tensor, noise: Tensor, validate_args: bool | None = None
    ) -> None:
        mean, variance, self.noise = torch.broadcast_tensors(mean, variance, noise)
        super().__init__(mean, variance, validate_args)

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

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:
        """Draw from the predictive distribution, `sample_shape + batch_shape`."""
        with torch.no_grad():
            shape = self._extended_shape(sample_shape)
            scale = (self.f_variance + self.noise).sqrt()
            return self.f_mean + scale * torch.randn(shape, dtype=scale.dtype, device=scale.device)

    def expand(self, batch_shape: torch.Size, _instance: Any = None) -> ExpectedNormal:
        """Return the distribution with a larger batch shape."""
        new = super().expand(batch_shape, _instance)
        new.noise = self.noise.expand(batch_shape)
        return new


class Gaussian(LocalModule):
    """Gaussian likelihood of one column, with its noise variance as a parameter.

    Args:
        noise: Starting noise variance, standardised units.
        dtype: Floating type of the parameter.
    """

    def __init__(self, noise: float, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        start = torch.tensor(max(noise, 2 * MIN_NOISE), dtype=dtype)
        self.noise = PyroParam(start, _POSITIVE_NOISE)

    def forward(self, mean: Tensor, variance: Tensor) -> ExpectedNormal:
        """Return the observation distribution at rows whose latent function has these moments."""
        # Not validated: training undoes steps whose bound is not finite.
        return ExpectedNormal(mean, variance, self.noise, validate_args=False)
