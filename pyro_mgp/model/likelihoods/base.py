"""Base classes of observation models, and quadrature under normal distributions.

A link gives the Gaussian marginal q(f) = N(f; mean, variance) of its latent function at each row. The
evidence bound needs the expected log density E_q[log p(x | f)]; `pyro.contrib.gp.likelihoods` scores
log E_q[p(x | f)] instead, which is larger and is not the paper's objective.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from pyro_mgp._support.keyed_noise import further_uniforms
from pyro_mgp.model.local_parameters import LocalModule

MIN_NOISE = 1e-5
"""Smallest noise variance, in standardised units: keeps a column that others determine exactly well posed."""

LEAST_VARIANCE = 1e-12
"""Added to variances: keeps the square root of a vanishing one differentiable."""
# Gauss-Hermite nodes for means under N(0, 1), and their weights.
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(24)
# Half of the binary digits of a uniform number, as a factor.
_HALF_OF_DIGITS = 2.0**26
# Quasi-random points, and as many mirror images.
_LATTICE = 128
# Range of uniform numbers whose quantiles are finite.
_INSIDE = (1e-9, 1 - 1e-9)
# Standard deviations beyond which the mass of a normal distribution underflows.
_FARTHEST = 37.0

Quantity = Callable[[Tensor], Tensor]
"""A function of an observation, applied entry by entry."""


def mean_under_normal(of: Quantity, mean: Tensor, variance: Tensor) -> Tensor:
    """Return the expectation of a function under N(mean, variance), `[...]`, by Gauss-Hermite quadrature."""
    places, log_weights = nodes_under_normal(mean, variance)
    return of(places) @ log_weights.exp()


def nodes_under_normal(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Return quadrature nodes under N(mean, variance), `[..., nodes]`, and their log weights, `[nodes]`."""
    nodes, log_weights = _quadrature(mean.dtype, mean.device)
    spread = (variance + LEAST_VARIANCE).sqrt()
    return mean[..., None] + spread[..., None] * nodes, log_weights


@functools.cache
def _quadrature(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the nodes of a standard normal distribution and their log weights, copied to a device once."""
    with torch.inference_mode(mode=False):  # tensors of inference mode could not serve in training later
        nodes, log_weights = (
            torch.tensor(numbers, dtype=dtype, device=device)
            for numbers in (_NODES, np.log(_WEIGHTS / _WEIGHTS.sum()))
        )
    return nodes, log_weights


def draw_truncated(mean: Tensor, variance: Tensor, low: Tensor, high: Tensor, uniform: Tensor) -> Tensor:
    """Draw from N(mean, variance) truncated to the interval (low, high), by inversion at uniform numbers."""
    spread = variance.sqrt()
    left, right = (low - mean) / spread, (high - mean) / spread
    # By symmetry, intervals in the upper tail are computed in the lower tail, where masses are small.
    mirrored = left > 0
    left, right = torch.where(mirrored, -right, left), torch.where(mirrored, -left, right)
    left, right = left.clamp(-_FARTHEST, _FARTHEST), right.clamp(-_FARTHEST, _FARTHEST)
    # Φ by erfc: in the lower tail `torch.special.ndtr` is zero.
    below, above = (0.5 * torch.special.erfc(-end / math.sqrt(2)) for end in (left, right))
    share = torch.where(mirrored, 1 - uniform, uniform)
    drawn = torch.special.ndtri(below + share * (above - below)).clamp(left, right)
    return (mean + torch.where(mirrored, -drawn, drawn) * spread).clamp(low, high)


@runtime_checkable
class Observation(Protocol):
    """Distribution of observations given a latent function f ~ N(mean, variance), of shape `[...]`."""

    def draw(self, mean: Tensor, variance: Tensor, uniform: Tensor) -> Tensor:
        """Draw observations by means of uniform numbers."""

    def expectation(self, mean: Tensor, variance: Tensor, of: Quantity | None = None) -> Tensor:
        """Return the expectation of the observations, or of a function of them."""

    def log_prob(self, value: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Return the log density of observations, with the latent function integrated out."""


class LocalObservation(ABC):
    """Observation model that depends on the values of nearby cells."""

    @abstractmethod
    def given(self, counts: Tensor | None, levels: Tensor | None) -> Observation:
        """Return the model at cells, given counts of values among neighbours and `levels`, `[S, n, J]`.

        `levels` are log probabilities of the values under the sparse GP; None for numbers.
        """


class Likelihood(Protocol):
    """Observation model of one column: a module whose parameters are trained with the link's.

    Where values are not the latent function plus Gaussian noise, it is an `Observation` as well.
    """

    @property
    def noise(self) -> Tensor:
        """Variance of the Gaussian noise, a scalar; one for likelihoods other than Gaussian."""

    def __call__(self, mean: Tensor, variance: Tensor) -> Scored:
        """Return the distribution of observations, given the moments of the latent function."""

    def distribution(self, function: Tensor) -> TorchDistribution:
        """Return the distribution of observations given values `[..., n]` of the latent function."""

    def to(self, like: Tensor) -> Self:
        """Move the module to the dtype and device of a tensor, and return it."""


class Scored(TorchDistribution):
    r"""Base class of distributions of an observation, given q(f) = N(mean, variance).

    They are scored, not sampled: `Likelihood`s draw. They make them without a check of the arguments, for
    which the host would wait for a GPU: training undoes steps whose bound is not finite. The expected log
    density is by quadrature, unless a subclass knows a closed form.

    .. math:: \log p = E_{f \sim N(\mu, \sigma^2)} \log p(x \mid f)

    Args:
        mean: Mean of q(f), any batch shape.
        variance: Variance of q(f), same shape.
        parameters: The attributes that a subclass annotates, in order.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "f_mean": constraints.real,
        "f_variance": constraints.nonnegative,
    }
    support = constraints.real

    def __init__(
        self, mean: Tensor, variance: Tensor, *parameters: Any, validate_args: bool | None = None
    ) -> None:
        self.f_mean, self.f_variance = torch.broadcast_tensors(mean, variance)
        self.__dict__.update(zip(type(self).__annotations__, parameters, strict=True))
        super().__init__(self.f_mean.shape, validate_args=validate_args)

    def expand(self, batch_shape: torch.Size, _instance: Any = None) -> Self:
        """Return the distribution with a larger batch shape; its parameters stay as they are."""
        new = self._get_checked_instance(type(self), _instance)
        new.__dict__.update(vars(self))
        new.f_mean, new.f_variance = self.f_mean.expand(batch_shape), self.f_variance.expand(batch_shape)
        new._batch_shape = torch.Size(batch_shape)
        return new

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the expected log density of `value` under q(f), of batch shape."""
        return mean_under_normal(self._given(value), self.f_mean, self.f_variance)

    def predictive_log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of `value`, with the latent function integrated out, of batch shape."""
        functions, log_weights = nodes_under_normal(self.f_mean, self.f_variance)
        return (self._given(value)(functions) + log_weights).logsumexp(-1)

    def _given(self, value: Tensor) -> Quantity:
        """Return the log density of values `[...]` as a function of f, `[..., nodes]`."""
        raise NotImplementedError


class ExpectedOf(Scored):
    """Any distribution of an observation, given a Gaussian latent function."""

    given: Callable[[Tensor], TorchDistribution]
    """Distribution of an observation given f, any shape."""

    def _given(self, value: Tensor) -> Quantity:
        return lambda f: self.given(f).log_prob(value[..., None].expand_as(f))


class Drawn(LocalModule):
    """Base class of likelihoods that draw the latent function first, and then the observation given it.

    One uniform number gives both: its first and its last 26 binary digits are two uniform numbers, and
    further ones are hashed from the former. A likelihood of one's own is a subclass with its parameters, a
    `noise` of one, and `distribution`; if that distribution has no quantile function `icdf`, `observe` as
    well. See docs/pyro.md.
    """

    n_uniform: ClassVar[int] = 1
    """How many uniform numbers an observation takes, given the latent function."""

    def distribution(self, function: Tensor) -> TorchDistribution:
        """Return the distribution of observations given values `[..., n]` of the latent function."""
        raise NotImplementedError

    def forward(self, mean: Tensor, variance: Tensor) -> Scored:
        """Return the distribution of observations, given the moments of the latent function."""
        return ExpectedOf(mean, variance, self.distribution, validate_args=False)

    def observe(self, function: Tensor, *uniform: Tensor) -> Tensor:
        """Draw observations given the latent function `[...]` and `n_uniform` uniform numbers.

        The latter have the shape of the function, or one that broadcasts to it.
        """
        return self.distribution(function).icdf(*uniform)

    def draw(self, mean: Tensor, variance: Tensor, uniform: Tensor) -> Tensor:
        """Draw observations by means of uniform numbers."""
        first = (uniform * _HALF_OF_DIGITS).floor()
        second = uniform * _HALF_OF_DIGITS - first
        first = (first + 0.5) / _HALF_OF_DIGITS
        further = further_uniforms(first, self.n_uniform - 1).unbind(-1)
        return self._draw(mean, variance, first, second, *further)

    def expectation(self, mean: Tensor, variance: Tensor, of: Quantity | None = None) -> Tensor:
        """Return the expectation of the observations, or of a function of them, by a lattice rule."""
        points = _lattice(self.n_uniform + 1, mean)
        values = self._draw(mean[..., None], variance[..., None], *points)
        return (values if of is None else of(values)).mean(-1)

    def log_prob(self, value: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Return the log density of observations, with the latent function integrated out."""
        return self(mean, variance).predictive_log_prob(value)

    def _draw(self, mean: Tensor, variance: Tensor, first: Tensor, *others: Tensor) -> Tensor:
        function = mean + variance.sqrt() * torch.special.ndtri(first)
        return self.observe(function, *(uniform.clamp(*_INSIDE) for uniform in others))


def _lattice(n_dimensions: int, like: Tensor) -> Tensor:
    """Return quasi-random points and their mirror images, `[dimensions, points]`, of the dtype of `like`.

    The first coordinate of the point i is (i + 1/2) / n, the others are fractional parts of i / φ^j + 1/2,
    where φ solves x^d = x + 1 in d dimensions: the golden ratio in two.
    """
    ratio = 2.0
    for _ in range(64):  # each step takes the error down by a factor of three or more
        ratio = (1 + ratio) ** (1 / n_dimensions)
    place = torch.arange(_LATTICE, dtype=like.dtype, device=like.device)
    first = (place + 0.5) / _LATTICE
    others = [(place * ratio**-power + 0.5) % 1 for power in range(1, n_dimensions)]
    points = torch.stack([first, *others])
    return torch.cat([points, 1 - points], dim=1)


class _Discrete(constraints.Constraint):
    """Constraint of discrete values that are not whole numbers; any number passes."""

    is_discrete = True

    def check(self, value: Tensor) -> Tensor:
        return value == value


class Recoded(TorchDistribution):
    """Distribution of cells `encode(k)`, where k = `decode(cell)` follows a discrete distribution `base`.

    Example:
        >>> import pyro.distributions as dist
        >>> coin = Recoded(dist.Bernoulli(torch.tensor(0.25)), lambda k: 2 * k - 1, lambda z: (z + 1) / 2)
        >>> coin.log_prob(torch.tensor([-1.0, 1.0])).exp()
        tensor([0.7500, 0.2500])
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    support = _Discrete()

    def __init__(
        self, base: Any, encode: Callable[[Tensor], Tensor], decode: Callable[[Tensor], Tensor]
    ) -> None:
        self.base, self.encode, self.decode = base, encode, decode
        super().__init__(base.batch_shape, validate_args=False)

    def expand(self, batch_shape: torch.Size, _instance: Any = None) -> Self:
        """Return the distribution with a larger batch shape."""
        new = type(self)(self.base.expand(batch_shape), self.encode, self.decode)
        new.has_rsample = self.has_rsample
        return new

    @torch.no_grad()
    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw cells, `[*sample_shape, *batch_shape]`."""
        return self.encode(self.base.sample(torch.Size(sample_shape)))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draw cells, through which no gradient passes; Pyro calls this after `has_rsample_(True)`."""
        return self.sample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log probability of cells, of batch shape."""
        return self.base.log_prob(self.decode(value))
