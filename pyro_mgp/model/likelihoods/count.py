"""Negative binomial likelihood of counts; the logarithm of its mean is the latent function.

    P(y | f) = Γ(y + r) / (Γ(r) y!) · (r / (r + λ))^r (λ / (r + λ))^y,   λ = exp(f + offset)

The mean is λ and the variance λ + λ²/r; for large r it is the Poisson distribution (Cameron and Trivedi,
*Regression Analysis of Count Data*, section 3.3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pyro.distributions as dist
import torch
from pyro.nn import PyroParam
from torch import Tensor
from torch.distributions import Normal, constraints

from pyro_mgp.data.transforms import InverseTransform
from pyro_mgp.model.likelihoods.base import (
    Drawn,
    Quantity,
    Recoded,
    Scored,
    mean_under_normal,
    nodes_under_normal,
)
from pyro_mgp.model.likelihoods.variates import gamma_variates, poisson_quantiles

# Starting value and smallest value of r.
_FIRST_CONCENTRATION, _LEAST_CONCENTRATION = 10.0, 1e-2
# Keeps the division by a vanishing variance finite.
_LEAST_VARIANCE = 1e-10
# The exponential of this is larger than any count.
_LARGEST_LOG = 30.0


@dataclass(frozen=True)
class CountScale:
    """Standardisation of counts y in the encoded table: z = (log(1 + y) - mean) / scale."""

    mean: float
    scale: float

    def counts(self, cells: Tensor) -> Tensor:
        """Convert standardised cells of any shape to counts."""
        return torch.expm1(cells * self.scale + self.mean).round().clamp(min=0)

    def cells(self, counts: Tensor) -> Tensor:
        """Convert counts of any shape to standardised cells."""
        return (torch.log1p(counts) - self.mean) / self.scale


class ExpectedNegativeBinomial(Scored):
    """Negative binomial distribution of a standardised count, given a Gaussian latent function."""

    concentration: Tensor
    """Concentration r, a scalar: counts with the mean λ have the variance λ + λ²/r."""
    offset: Tensor
    """Logarithm of the mean of counts where f is zero, a scalar."""
    scale: CountScale

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the expected log probability of a standardised count under q(f), of batch shape."""
        counts, r = self.scale.counts(value), self.concentration
        centre = self.f_mean + self.offset - r.log()
        softplus = mean_under_normal(torch.nn.functional.softplus, centre, self.f_variance)
        return _log_coefficient(counts, r) + counts * centre - (counts + r) * softplus

    def predictive_log_prob(self, value: Tensor) -> Tensor:
        """Return the predictive log probability of a standardised count, with f integrated out."""
        counts, r = self.scale.counts(value)[..., None], self.concentration
        mean, variance = self.f_mean[..., None], self.f_variance[..., None] + _LEAST_VARIANCE
        # Quadrature nodes follow a normal approximation of the integrand, centred where the count is likely.
        precision = 1 / variance + counts * r / (counts + r)
        pull = mean / variance + counts * r / (counts + r) * (counts.clamp(min=0.5).log() - self.offset)
        near = Normal(pull / precision, precision.rsqrt(), validate_args=False)
        places, log_weights = nodes_under_normal(near.loc[..., 0], near.scale[..., 0].square())
        ratio = Normal(mean, variance.sqrt(), validate_args=False).log_prob(places) - near.log_prob(places)
        centre = places + self.offset - r.log()
        given = counts * centre - (counts + r) * torch.nn.functional.softplus(centre)
        return _log_coefficient(counts[..., 0], r) + (given + ratio + log_weights).logsumexp(-1)


class NegativeBinomial(Drawn):
    """Likelihood of a column of counts with a positive mean `average`; r and the offset are parameters."""

    n_uniform = 3
    noise: Tensor

    def __init__(self, scale: CountScale, average: float) -> None:
        super().__init__()
        self.scale = scale
        self.register_buffer("noise", torch.ones((), dtype=torch.float64))
        start = torch.tensor(_FIRST_CONCENTRATION, dtype=torch.float64)
        self.concentration = PyroParam(start, constraints.greater_than(_LEAST_CONCENTRATION))
        self.offset = PyroParam(torch.tensor(math.log(average), dtype=torch.float64))

    def forward(self, mean: Tensor, variance: Tensor) -> ExpectedNegativeBinomial:
        """Return the distribution of observations, given the moments of the latent function."""
        given = self.concentration, self.offset, self.scale
        return ExpectedNegativeBinomial(mean, variance, *given, validate_args=False)

    def distribution(self, function: Tensor) -> Recoded:
        """Return the distribution of observations given values `[..., n]` of the latent function."""
        log_rate = (function + self.offset).clamp(max=_LARGEST_LOG)
        counts = dist.NegativeBinomial(self.concentration, logits=log_rate - self.concentration.log())
        return Recoded(counts, self.scale.cells, self.scale.counts)

    def observe(self, function: Tensor, *uniform: Tensor) -> Tensor:
        """Draw standardised counts given the latent function and three uniform numbers."""
        # A Poisson distribution whose mean follows a gamma distribution.
        own, *of_gamma = uniform
        rate = (function + self.offset).clamp(max=_LARGEST_LOG).exp() / self.concentration
        return self.scale.cells(poisson_quantiles(rate * gamma_variates(self.concentration, *of_gamma), own))

    def expectation(self, mean: Tensor, variance: Tensor, of: Quantity | None = None) -> Tensor:
        """Return the expectation of the observations, in closed form for counts, or of a function of them."""
        if isinstance(of, InverseTransform):
            return 1 + (mean + self.offset + variance / 2).clamp(max=_LARGEST_LOG).exp()
        return super().expectation(mean, variance, of)


def _log_coefficient(counts: Tensor, r: Tensor) -> Tensor:
    return torch.lgamma(counts + r) - torch.lgamma(r) - torch.lgamma(counts + 1)
