"""Likelihoods of numeric columns: Gaussian, and Student's t for columns with outliers.

The Gaussian likelihood is N(x; f, s²), as in the paper (Jafrasteh et al. 2023). Draws of a bounded column
come from the predictive distribution truncated at its bounds. Student's t likelihood,

    p(x | f) = t_ν((x - f) / s) / s

is not log-concave: the pull of a cell on the function vanishes with its distance from it (Vanhatalo, Jylänki
and Vehtari, NIPS 2009).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from pyro.nn import PyroParam
from torch import Tensor
from torch.distributions import constraints

from pyro_mgp._support.keyed_noise import further_uniforms
from pyro_mgp._support.normal import log_between
from pyro_mgp.model.likelihoods.base import MIN_NOISE, Drawn, Quantity, Scored, draw_truncated
from pyro_mgp.model.likelihoods.variates import gamma_variates
from pyro_mgp.model.limited_cells import log_within
from pyro_mgp.model.local_parameters import LocalModule

# One object for all links: parameters under the same constraint are read together.
_POSITIVE_NOISE = constraints.greater_than(MIN_NOISE)
# Starting degrees of freedom; with two or fewer the variance is infinite.
_FIRST_FREEDOM, _LEAST_FREEDOM = 4.0, 2.0
# Limit beyond which no standardised cell lies.
_FARTHEST = 1e6
# Number of quantiles over which an expectation is averaged.
_QUANTILES = 64
# Factors of the variance in a contaminated normal distribution, and their probabilities.
_FACTORS, _WEIGHTS = (1.0, 16.0), (0.9, 0.1)


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
        return ExpectedNormal(mean, variance, self.noise, validate_args=False)

    def distribution(self, function: Tensor) -> dist.Normal:
        """Return the distribution of observations given values `[..., n]` of the latent function."""
        return dist.Normal(function, self.noise.sqrt())


class ExpectedStudentT(Scored):
    """Student's t distribution of an observation with degrees of freedom ν and scale s, given q(f)."""

    freedom: Tensor
    scale: Tensor

    def _given(self, value: Tensor) -> Quantity:
        # That of `torch.distributions` makes the host wait for a GPU when it is created.
        nu, half = self.freedom, (self.freedom + 1) / 2
        constant = half.lgamma() - (nu / 2).lgamma() - 0.5 * (math.pi * nu).log() - self.scale.log()
        return lambda f: constant - half * (((value[..., None] - f) / self.scale).square() / nu).log1p()

    def least_precision(self, value: Tensor) -> Tensor:
        """Return the curvature `[...]` of a parabola that bounds the log density from below near q(f)."""
        squared = (value - self.f_mean).square() + self.f_variance
        return (self.freedom + 1) / (self.freedom * self.scale.square() + squared)


class HeavyTailed(Drawn):
    """Student's t likelihood of a column with outliers; degrees of freedom and scale are parameters."""

    n_uniform = 2
    noise: Tensor

    def __init__(self, noise: float) -> None:
        super().__init__()
        self.register_buffer("noise", torch.ones((), dtype=torch.float64))
        scale = torch.tensor(max(noise, 2 * MIN_NOISE), dtype=torch.float64).sqrt()
        freedom = torch.tensor(_FIRST_FREEDOM, dtype=torch.float64)
        self.scale = PyroParam(scale, constraints.greater_than(MIN_NOISE**0.5))
        self.freedom = PyroParam(freedom, constraints.greater_than(_LEAST_FREEDOM))

    def forward(self, mean: Tensor, variance: Tensor) -> ExpectedStudentT:
        """Return the distribution of observations, given the moments of the latent function."""
        return ExpectedStudentT(mean, variance, self.freedom, self.scale, validate_args=False)

    def distribution(self, function: Tensor) -> dist.StudentT:
        """Return the distribution of observations given values `[..., n]` of the latent function."""
        return dist.StudentT(self.freedom, function, self.scale)

    def expectation(self, mean: Tensor, variance: Tensor, of: Quantity | None = None) -> Tensor:
        """Return the expectation of the observations, or of a function of them."""
        return mean if of is None else super().expectation(mean, variance, of)

    def observe(self, function: Tensor, *uniform: Tensor) -> Tensor:
        """Draw observations given the latent function and two uniform numbers."""
        # A normal distribution whose precision follows a gamma distribution.
        own, of_gamma = uniform
        half = self.freedom.detach() / 2  # no gradient passes through a gamma variate
        return (
            function + self.scale * torch.special.ndtri(own) * (half / gamma_variates(half, of_gamma)).sqrt()
        )


class WithinLimits(TorchDistribution):
    """Normal distribution of cells within limits of each, `[n, 2]`, infinite for none.

    Without `normalised`, its density is the normal one within the limits, and integrates to the probability
    of the interval: the likelihood of a cell that is known to lie there.

    Example:
        >>> half = WithinLimits(dist.Normal(torch.zeros(1), 1.0), torch.tensor([[0.0, torch.inf]]))
        >>> half.log_prob(torch.tensor([[-1.0], [1.0]])).exp()
        tensor([[0.0000],
                [0.4839]])
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    support = constraints.real
    has_rsample = True

    def __init__(self, normal: dist.Normal, limits: Tensor, *, normalised: bool = True) -> None:
        self.normal, self.limits, self.normalised = normal, limits, normalised
        # Gradients at infinite ends would not be numbers.
        self.ends = limits.clamp(-_FARTHEST, _FARTHEST).unbind(-1)
        super().__init__(normal.batch_shape, validate_args=False)

    def expand(self, batch_shape: torch.Size, _instance: Any = None) -> WithinLimits:
        """Return the distribution with a larger batch shape."""
        return WithinLimits(self.normal.expand(batch_shape), self.limits, normalised=self.normalised)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draw cells, `[*sample_shape, *batch_shape]`."""
        mean = self.normal.mean.expand(torch.Size(sample_shape) + self.batch_shape)
        uniform = torch.rand_like(mean).clamp(min=torch.finfo(mean.dtype).tiny)
        lower, upper = self.ends
        return draw_truncated(mean, self.normal.variance.expand_as(mean), lower, upper, uniform)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of cells, minus infinity beyond their limits."""
        density = self.normal.log_prob(value) + log_within(value, self.limits)
        if not self.normalised:
            return density
        lower, upper = ((end - self.normal.mean) / self.normal.stddev for end in self.ends)
        return density - log_between(lower, upper)


@dataclass(frozen=True)
class Truncated:
    """Normal distribution truncated to an interval with ends in standardised units, which may be infinite."""

    low: float = -math.inf
    high: float = math.inf

    def draw(self, mean: Tensor, variance: Tensor, uniform: Tensor, limits: Tensor | None = None) -> Tensor:
        """Draw observations by means of uniform numbers, within limits of cells, `[n, 2]`, if given."""
        low, high = (mean.new_tensor(bound) for bound in (self.low, self.high))
        if limits is not None:
            low, high = limits[..., 0].clamp(min=low), limits[..., 1].clamp(max=high)
        return draw_truncated(mean, variance, low, high, uniform)

    def log_prob(self, value: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Return the log density of values within the interval, given N(mean, variance) before truncation."""
        spread = variance.sqrt()
        low, high = ((bound - mean) / spread for bound in (self.low, self.high))
        away = (value - mean) / spread
        return -0.5 * (away.square() + (2 * math.pi * variance).log()) - log_between(low, high)

    def log_mass(self, low: Tensor, high: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Return the log probability of observations between two numbers, which may be infinite."""

        def log_mass(low: Tensor | float, high: Tensor | float) -> Tensor:
            spread = variance.sqrt()
            return log_between((low - mean) / spread, (high - mean) / spread)

        ends = self.low, self.high
        return log_mass(low.clamp(*ends), high.clamp(*ends)) - log_mass(*ends)

    def expectation(self, mean: Tensor, variance: Tensor, of: Quantity | None = None) -> Tensor:
        """Return the expectation of the observations, or of a function of them, `[...]`."""
        places = (torch.arange(_QUANTILES, dtype=mean.dtype, device=mean.device) + 0.5) / _QUANTILES
        values = self.draw(mean[..., None], variance[..., None], places.expand(*mean.shape, _QUANTILES))
        return (values if of is None else of(values)).mean(-1)


@dataclass(frozen=True)
class Contaminated(Truncated):
    """Mixture of two truncated normal distributions with the same mean (Tukey 1960).

    A tenth of the observations has four times the standard deviation. Draws do not increase with their
    uniform numbers.
    """

    def mixture(self, mean: Tensor, variance: Tensor) -> GaussianMixture:
        """Return the mixture of normal distributions with K means and variances, `[K, n]`, not truncated."""
        parts = [mean.new_full((len(mean), 1), weight / len(mean)) for weight in _WEIGHTS]
        variances = torch.cat([factor * variance for factor in _FACTORS])
        return GaussianMixture(mean.repeat(len(_FACTORS), 1), variances, torch.cat(parts))

    def factors(self, uniform: Tensor) -> Tensor:
        """Choose factors of the variance by uniform numbers, independently of their size."""
        narrow, wide = _FACTORS
        return torch.where(further_uniforms(uniform, 1)[..., 0] < _WEIGHTS[1], wide, narrow).to(uniform)

    @property
    def component(self) -> Truncated:
        """Distribution of observations with a variance that was chosen."""
        return Truncated(self.low, self.high)

    def draw(self, mean: Tensor, variance: Tensor, uniform: Tensor, limits: Tensor | None = None) -> Tensor:
        """Draw observations by means of uniform numbers, within limits of cells, `[n, 2]`, if given."""
        return super().draw(mean, variance * self.factors(uniform), uniform, limits)

    def log_prob(self, value: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Return the log density of values within the interval, the components mixed."""
        return self._mixed(lambda factor: self.component.log_prob(value, mean, factor * variance))

    def log_mass(self, low: Tensor, high: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Return the log probability of observations between two numbers, which may be infinite."""
        return self._mixed(lambda factor: self.component.log_mass(low, high, mean, factor * variance))

    def expectation(self, mean: Tensor, variance: Tensor, of: Quantity | None = None) -> Tensor:
        """Return the expectation of the observations, or of a function of them, `[...]`."""
        if of is None and math.isinf(self.low) and math.isinf(self.high):
            return mean
        parts = [self.component.expectation(mean, factor * variance, of) for factor in _FACTORS]
        return _WEIGHTS[0] * parts[0] + _WEIGHTS[1] * parts[1]

    @staticmethod
    def _mixed(log_probability: Callable[[float], Tensor]) -> Tensor:
        """Return the log of the weighted sum of probabilities under both factors of the variance."""
        parts = [math.log(w) + log_probability(factor) for w, factor in zip(_WEIGHTS, _FACTORS, strict=True)]
        return torch.logaddexp(*parts)


@dataclass(frozen=True)
class GaussianMixture:
    """Predictive distribution of n cells as a mixture of K Gaussians."""

    mean: Tensor  # means of the components, `[K, n]`
    variance: Tensor  # variances of the components, `[K, n]`
    weights: Tensor | None = None  # their weights, `[K, 1]`, which sum to one; None for equal ones

    def expectation(self) -> Tensor:
        """Return the mean of each cell, `[n]`."""
        return self._average(self.mean)

    def standard_deviation(self) -> Tensor:
        """Return the standard deviation of each cell, `[n]`."""
        return self._average(self.variance + (self.mean - self.expectation()).square()).sqrt()

    def quantile(self, level: float) -> Tensor:
        """Return the quantile of each cell `[n]`, by bisection to about 1e-9 of its range."""
        scale = self.variance.sqrt()
        low = (self.mean - 10 * scale).amin(0)
        high = (self.mean + 10 * scale).amax(0)
        for _ in range(60):
            middle = (low + high) / 2
            below = self._average(torch.special.ndtr((middle - self.mean) / scale)) < level
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return (low + high) / 2

    def _average(self, parts: Tensor) -> Tensor:
        """Return the weighted mean of the components, `[K, n]`."""
        return parts.mean(0) if self.weights is None else (self.weights * parts).sum(0)
