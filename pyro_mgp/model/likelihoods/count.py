"""Counts: the negative binomial distribution, with the logarithm of its mean a latent function.

    P(y | f) = Γ(y + r) / (Γ(r) y!) · (r / (r + λ))^r (λ / (r + λ))^y,   λ = exp(f + offset)

Mean λ, variance λ + λ²/r; for large r it is Poisson's (Cameron and Trivedi, *Regression Analysis of Count
Data*, section 3.3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pyro.nn import PyroParam
from scipy import special
from torch import Tensor
from torch.distributions import Normal, constraints

from pyro_mgp.data.transforms import InverseTransform
from pyro_mgp.model.likelihoods.base import Drawn, OfFunction, Quantity, mean_under_normal, nodes_under_normal

# r at the start, and its least value.
_FIRST_CONCENTRATION, _LEAST_CONCENTRATION = 10.0, 1e-2
# Keeps a vanishing variance a divisor.
_LEAST_VARIANCE = 1e-10
# exp of more is more than any count.
_LARGEST_LOG = 30.0


@dataclass(frozen=True)
class CountScale:
    """How counts stand in the table: z = (log(1 + y) - mean) / scale."""

    mean: float
    scale: float

    def counts(self, cells: Tensor) -> Tensor:
        """The counts of standardised cells, any shape."""
        return torch.expm1(cells * self.scale + self.mean).round().clamp(min=0)

    def cells(self, counts: Tensor) -> Tensor:
        """The standardised cells of counts."""
        return (torch.log1p(counts) - self.mean) / self.scale


class ExpectedNegativeBinomial(OfFunction):
    r"""Count of a Gaussian latent function, as a standardised cell.

    .. math:: \log p = E_{f \sim N(\mu, \sigma^2)} \log NB(y; \exp(f + \text{offset}), r)

    by quadrature. `sample` draws from the predictive distribution.

    Args:
        mean: Mean of q(f), any batch shape.
        variance: Variance of q(f), same shape.
        concentration: r, a scalar.
        offset: Logarithm of the mean of counts where f is zero, a scalar.
        scale: How counts stand in the table.

    Example:
        >>> d = ExpectedNegativeBinomial(
        ...     torch.zeros(2), torch.zeros(2), torch.tensor(1.0), torch.tensor(0.0), CountScale(0.0, 1.0)
        ... )
        >>> d.predictive_log_prob(torch.tensor([0.0, math.log(2)])).exp()
        tensor([0.5000, 0.2500])
    """

    def __init__(
        self,
        mean: Tensor,
        variance: Tensor,
        concentration: Tensor,
        offset: Tensor,
        scale: CountScale,
        validate_args: bool | None = None,
    ) -> None:
        self.concentration, self.offset, self.scale = concentration, offset, scale
        super().__init__(mean, variance, validate_args)

    def log_prob(self, value: Tensor) -> Tensor:
        """Expected log probability of the count in a cell, batch shape."""
        counts, r = self.scale.counts(value), self.concentration
        centre = self.f_mean + self.offset - r.log()
        softplus = mean_under_normal(torch.nn.functional.softplus, centre, self.f_variance)
        return _log_ways(counts, r) + counts * centre - (counts + r) * softplus

    def predictive_log_prob(self, value: Tensor) -> Tensor:
        """Its log probability, f integrated out, batch shape."""
        counts, r = self.scale.counts(value)[..., None], self.concentration
        mean, variance = self.f_mean[..., None], self.f_variance[..., None] + _LEAST_VARIANCE
        # The normal distribution near the integrand: nodes stand where the count says the function is.
        precision = 1 / variance + counts * r / (counts + r)
        pull = mean / variance + counts * r / (counts + r) * (counts.clamp(min=0.5).log() - self.offset)
        near = Normal(pull / precision, precision.rsqrt(), validate_args=False)
        places, log_weights = nodes_under_normal(near.loc[..., 0], near.scale[..., 0].square())
        ratio = Normal(mean, variance.sqrt(), validate_args=False).log_prob(places) - near.log_prob(places)
        centre = places + self.offset - r.log()
        given = counts * centre - (counts + r) * torch.nn.functional.softplus(centre)
        return _log_ways(counts[..., 0], r) + (given + ratio + log_weights).logsumexp(-1)

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:
        """Draws from the predictive distribution, `sample_shape + batch_shape`."""
        with torch.no_grad():
            shape = self._extended_shape(sample_shape)
            function = torch.normal(self.f_mean.expand(shape), self.f_variance.sqrt().expand(shape))
            rate = (function + self.offset).clamp(max=_LARGEST_LOG).exp()
            gamma = torch.distributions.Gamma(self.concentration.expand(shape), self.concentration / rate)
            return self.scale.cells(torch.poisson(gamma.sample()))

    def expand(self, batch_shape: torch.Size, _instance: Any = None) -> ExpectedNegativeBinomial:
        """The same distribution with a larger batch shape."""
        new = ExpectedNegativeBinomial(
            self.f_mean.expand(batch_shape),
            self.f_variance.expand(batch_shape),
            self.concentration,
            self.offset,
            self.scale,
            validate_args=False,
        )
        new._validate_args = self._validate_args
        return new


class NegativeBinomial(Drawn):
    """Likelihood of a column of counts, with r and the offset as parameters.

    Args:
        scale: How counts stand in the table.
        average: The mean of the observed counts, positive.
        like: A tensor whose dtype and device the parameters shall have.
    """

    noise: Tensor

    def __init__(self, scale: CountScale, average: float, like: Tensor) -> None:
        super().__init__()
        self.scale = scale
        self.register_buffer("noise", like.new_ones(()))
        self.concentration = PyroParam(
            like.new_tensor(_FIRST_CONCENTRATION), constraints.greater_than(_LEAST_CONCENTRATION)
        )
        self.offset = PyroParam(like.new_tensor(math.log(average)))

    def forward(self, mean: Tensor, variance: Tensor) -> ExpectedNegativeBinomial:
        """The observation distribution at rows whose latent function has these moments."""
        return ExpectedNegativeBinomial(mean, variance, self.concentration, self.offset, self.scale)

    def observe(self, function: Tensor, uniform: Tensor) -> Tensor:
        """See `likelihoods.Drawn`."""
        rate = (function + self.offset).clamp(max=_LARGEST_LOG).exp()
        r = float(self.concentration.detach())
        # SciPy's, on the host: torch has no quantiles of counts.
        share = r / (r + rate.detach().cpu().numpy())
        u = uniform.cpu().numpy()
        # Where zero is almost certain, the quantile function gives up.
        counts = np.where(u <= share**r, 0.0, np.ceil(special.nbdtrik(u, r, share)).clip(min=0))
        return self.scale.cells(torch.as_tensor(counts).to(function))

    def expectation(self, mean: Tensor, variance: Tensor, of: Quantity | None = None) -> Tensor:
        """See `likelihoods.Observation`; in closed form of what is linear in the counts."""
        if isinstance(of, InverseTransform):
            return 1 + (mean + self.offset + variance / 2).clamp(max=_LARGEST_LOG).exp()
        return super().expectation(mean, variance, of)


def _log_ways(counts: Tensor, r: Tensor) -> Tensor:
    """Log Γ(y + r) / (Γ(r) y!)."""
    return torch.lgamma(counts + r) - torch.lgamma(r) - torch.lgamma(counts + 1)
