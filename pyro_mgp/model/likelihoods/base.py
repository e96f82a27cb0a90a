"""Observation distributions whose log density is the *expected* one, as the evidence bound asks.

A link gives the Gaussian marginal q(f) = N(f; mean, variance) of its latent function at each row. The bound
needs E_q[log p(x | f)]; `pyro.contrib.gp.likelihoods` scores log E_q[p(x | f)] instead, which is larger
and is not the paper's objective.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
import torch
from pyro.distributions import TorchDistribution
from pyro.nn import PyroParam
from torch import Tensor
from torch.distributions import constraints

from pyro_mgp.model.local_parameters import LocalModule

# Smallest noise variance, in standardised units: a column that others determine exactly stays well posed.
MIN_NOISE = 1e-5
# One object for all links: parameters under the same constraint are read together.
_POSITIVE_NOISE = constraints.greater_than(MIN_NOISE)


# Gauss and Hermite's nodes for means under N(0, 1), and their weights.
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(24)
# Half of the binary digits of a uniform number, as a factor.
_HALF_OF_DIGITS = 2.0**26
# Pairs of numbers that stand for all: i/n and fractions of i times the golden ratio, and their mirror images.
_LATTICE, _GOLDEN = 32, 0.5 * (math.sqrt(5) - 1)
# A uniform number that is neither 0 nor 1, for quantiles that are finite.
_INSIDE = (1e-9, 1 - 1e-9)
# Keeps the square root of a vanishing variance differentiable.
_LEAST_VARIANCE = 1e-12

Quantity = Callable[[Tensor], Tensor]
"""Something that depends on an observation, entry by entry."""


def mean_under_normal(of: Quantity, mean: Tensor, variance: Tensor) -> Tensor:
    """The mean of a quantity under N(mean, variance), `[...]`, by quadrature at `[..., nodes]`."""
    places, log_weights = nodes_under_normal(mean, variance)
    return of(places) @ log_weights.exp()


def nodes_under_normal(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Where quadrature looks under N(mean, variance), `[..., nodes]`, and its log weights, `[nodes]`."""
    nodes, log_weights = (mean.new_tensor(numbers) for numbers in (_NODES, np.log(_WEIGHTS / _WEIGHTS.sum())))
    spread = (variance + _LEAST_VARIANCE).sqrt()
    return mean[..., None] + spread[..., None] * nodes, log_weights


@runtime_checkable
class Observation(Protocol):
    """How values come about where a latent function is N(mean, variance), all `[...]`."""

    def draw(self, mean: Tensor, variance: Tensor, uniform: Tensor) -> Tensor:
        """Values by uniform numbers."""

    def expectation(self, mean: Tensor, variance: Tensor, of: Quantity | None = None) -> Tensor:
        """Their mean, or that of something that depends on them."""


class Scored(Protocol):
    """An observation distribution at some rows, of the batch shape `[...]` of its latent moments."""

    def log_prob(self, value: Tensor) -> Tensor:
        """Expected log density of the observations under q(f)."""

    def predictive_log_prob(self, value: Tensor) -> Tensor:
        """Their log density, f integrated out."""

    def mask(self, mask: Tensor) -> Any:
        """The same for some of the rows only."""


@runtime_checkable
class Bounded(Protocol):
    """An observation distribution whose log density is not concave in f."""

    def least_precision(self, value: Tensor) -> Tensor:
        """Curvature, `[...]`, of the parabola that bounds it from below near q(f)."""


class Likelihood(Protocol):
    """Observation model of one column: a module, whose parameters are learnt with the link's.

    It is an `Observation`, too, where values are not the latent function and Gaussian noise.
    """

    @property
    def noise(self) -> Tensor:
        """Variance of Gaussian noise around the latent function, a scalar; one where it is not Gaussian."""

    def __call__(self, mean: Tensor, variance: Tensor) -> Scored:
        """The observation distribution at rows whose latent function has these moments."""

    def to(self, like: Tensor) -> Self:
        """The module, of the dtype and on the device of a tensor."""


class OfFunction(TorchDistribution):
    """Observations of a Gaussian latent function value; subclasses say how they come of it.

    Args:
        mean: Mean of q(f), any batch shape.
        variance: Variance of q(f), same shape.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "f_mean": constraints.real,
        "f_variance": constraints.nonnegative,
    }
    support = constraints.real

    def __init__(self, mean: Tensor, variance: Tensor, validate_args: bool | None = None) -> None:
        self.f_mean, self.f_variance = torch.broadcast_tensors(mean, variance)
        super().__init__(self.f_mean.shape, validate_args=validate_args)


class ExpectedNormal(OfFunction):
    r"""Gaussian observation of a Gaussian latent function value.

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
        """Expected log density of `value`, batch shape."""
        if self._validate_args:
            self._validate_sample(value)
        squared = (value - self.f_mean).square() + self.f_variance
        return -0.5 * (squared / self.noise + self.noise.log() + math.log(2 * math.pi))

    def predictive_log_prob(self, value: Tensor) -> Tensor:
        """Log density of `value` under the predictive N(mean, variance + noise), batch shape."""
        total = self.f_variance + self.noise
        return -0.5 * ((value - self.f_mean).square() / total + total.log() + math.log(2 * math.pi))

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:
        """Draws from the predictive, `sample_shape + batch_shape`."""
        with torch.no_grad():
            shape = self._extended_shape(sample_shape)
            scale = (self.f_variance + self.noise).sqrt()
            return self.f_mean + scale * torch.randn(shape, dtype=scale.dtype, device=scale.device)

    def expand(self, batch_shape: torch.Size, _instance: Any = None) -> ExpectedNormal:
        """The same distribution with a larger batch shape."""
        mean, variance, noise = (p.expand(batch_shape) for p in (self.f_mean, self.f_variance, self.noise))
        new = ExpectedNormal(mean, variance, noise, validate_args=False)
        new._validate_args = self._validate_args
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
        """The observation distribution at rows whose latent function has these moments."""
        return ExpectedNormal(mean, variance, self.noise)


class Drawn(LocalModule):
    """Likelihoods whose values are drawn in two steps: the latent function, then the value given it.

    Each has a uniform number of its own, both made from one: its first and its last 26 binary digits.
    """

    def observe(self, function: Tensor, uniform: Tensor) -> Tensor:
        """Values given the latent function, by uniform numbers, all `[...]`."""
        raise NotImplementedError

    def draw(self, mean: Tensor, variance: Tensor, uniform: Tensor) -> Tensor:
        """See `Observation`."""
        first = (uniform * _HALF_OF_DIGITS).floor()
        second = uniform * _HALF_OF_DIGITS - first
        return self._draw(mean, variance, (first + 0.5) / _HALF_OF_DIGITS, second)

    def expectation(self, mean: Tensor, variance: Tensor, of: Quantity | None = None) -> Tensor:
        """See `Observation`; the average over a lattice of pairs of uniform numbers."""
        place = torch.arange(_LATTICE, dtype=mean.dtype, device=mean.device)
        first, second = (place + 0.5) / _LATTICE, (place * _GOLDEN + 0.5) % 1
        first, second = torch.cat([first, 1 - first]), torch.cat([second, 1 - second])
        shape = (*mean.shape, len(first))
        values = self._draw(mean[..., None], variance[..., None], first.expand(shape), second.expand(shape))
        return (values if of is None else of(values)).mean(-1)

    def _draw(self, mean: Tensor, variance: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return self.observe(mean + variance.sqrt() * torch.special.ndtri(first), second.clamp(*_INSIDE))


@dataclass(frozen=True)
class Category:
    """A variable of K levels, as K - 1 questions: is it the first, and if not, is it the second, ...

    Each question is a link of two values, which learns from the rows that come to it; the answers multiply to
    a probability of every level (a stick that is broken; Linderman, Johnson and Adams, NIPS 2015).
    """

    links: tuple[int, ...]
    """Numbers of the K - 1 links, in the order of the levels."""
    columns: tuple[int, ...]
    """The encoded columns of its K indicators, the last of which has no link."""
    off: Tensor
    """Standardised value of "no" in each, `[K]`."""
    on: Tensor
    """Standardised value of "yes" in each, `[K]`."""

    def draw(self, mean: Tensor, uniform: Tensor) -> Tensor:
        """Indicators of levels drawn with the probabilities that the links' means say, `[S, n, K]`.

        Args:
            mean: Means of the linked indicators, `[S, n, K - 1]`, standardised units.
            uniform: Uniform numbers, `[S, n]`.
        """
        level = (1 - self._left(mean) <= uniform[..., None]).sum(-1)
        chosen = torch.nn.functional.one_hot(level, len(self.columns)).bool()
        return torch.where(chosen, self.on, self.off)

    def expectation(self, mean: Tensor) -> Tensor:
        """The mean of these indicators, `[S, n, K]`."""
        left = self._left(mean)
        ends = torch.cat([torch.ones_like(left[..., :1]), left, torch.zeros_like(left[..., :1])], dim=-1)
        return self.off - (self.on - self.off) * ends.diff()

    def _left(self, mean: Tensor) -> Tensor:
        """The probability of a level after the first, after the second, ..., `[S, n, K - 1]`."""
        share = (mean - self.off[:-1]) / (self.on - self.off)[:-1]
        return (1 - share).cumprod(-1)
