"""Covariance functions: a fast Matérn 3/2 kernel, the default kernels of a chain, and kernels by name."""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyro.contrib.gp.kernels as kernels
import torch
from pyro.contrib.gp.kernels import Kernel
from torch import Tensor

from pyro_mgp.model.local_parameters import local_parameters

NEAREST = 1e-30
"""Squared distance used for zero, which has no reciprocal square root."""
# Standard deviations from the mean beyond which inputs enter products as if they were this far away.
_FARTHEST = 8.0
# Variance of the part of a kernel that is to have none, in standardised units.
_NEGLIGIBLE = 1e-16
INTERCEPT, EFFECTS = 4.0, 0.25
"""Variances of the intercept of a `Trend` and of its random effects, in standardised units."""

KernelFactory = Callable[[int], Kernel]
"""Function `input_dim -> Kernel`, called once per link."""


class Matern32(kernels.Matern32):
    """Matérn 3/2 kernel of `pyro.contrib.gp`, with a gradient in closed form, in one pass over the matrix."""

    def forward(self, X: Tensor, Z: Tensor | None = None, diag: bool = False) -> Tensor:
        """Return the covariance matrix of `X` `[n, P]` and `Z` `[M, P]`, or the variances `[n]` if `diag`."""
        if diag:
            return self._diag(X)
        scale = math.sqrt(3) / self.lengthscale
        left = self._slice_input(X) * scale
        right = left if Z is None else self._slice_input(Z) * scale
        squared = squared_distances(left.square().sum(1, keepdim=True), left, right)
        return matern32_of_square(squared, self.variance.log())

    def _slice_input(self, X: Tensor) -> Tensor:
        # A list of numbers as index would be copied to a GPU, for which the host waits.
        if X.dim() == 2 and self.active_dims == list(range(X.shape[1])):
            return X
        return super()._slice_input(X)


def squared_distances(norm: Tensor, Z: Tensor, X: Tensor) -> Tensor:
    """Return squared distances `[M, n]` of points `[n, P]` to points Z `[M, P]` with norms `[M, 1]`."""
    return torch.addmm(norm, Z, X.T, alpha=-2).add_(X.square().sum(1))


class _Matern32OfSquare(torch.autograd.Function):
    """Function s (1 + r) exp(-r) of r² and log s; its derivative with respect to r² has no pole at 0."""

    @staticmethod
    def forward(context: Any, squared: Tensor, log_amplitude: Tensor) -> Tensor:
        distance, decay = _distance_and_decay(squared, log_amplitude)
        context.save_for_backward(distance, decay)
        context.shape = log_amplitude.shape
        return torch.addcmul(decay, distance, decay)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        distance, decay = context.saved_tensors
        scaled = gradient * decay
        of_log_amplitude = torch.addcmul(scaled, scaled, distance).sum_to_size(context.shape)
        return scaled.mul_(-0.5), of_log_amplitude


def matern32_of_square(squared: Tensor, log_amplitude: Tensor) -> Tensor:
    """Return the Matérn 3/2 kernel at squared distances r² in units of lengthscale²/3, any shape.

    Negative rounding errors of r² count as 0; the logarithm of the kernel's variance is broadcast.
    """
    if torch.is_grad_enabled():
        return _Matern32OfSquare.apply(squared, log_amplitude)
    distance, decay = _distance_and_decay(squared, log_amplitude)
    return torch.addcmul(decay, distance, decay, out=distance)


def _distance_and_decay(squared: Tensor, log_amplitude: Tensor) -> tuple[Tensor, Tensor]:
    """Return r and s exp(-r), by the reciprocal root and the power of two: both take half the time."""
    distance = squared.clamp(min=NEAREST)
    distance.mul_(distance.rsqrt())
    return distance, torch.sub(log_amplitude / math.log(2), distance, alpha=1 / math.log(2)).exp2_()


def matern32(input_dim: int) -> Kernel:
    """Return the paper's kernel: Matérn 3/2 with one lengthscale per input (ARD)."""
    return Matern32(input_dim, lengthscale=torch.full((input_dim,), float(input_dim) ** 0.5))


def linear_matern32(input_dim: int) -> Kernel:
    """Return the default kernel: a linear trend with an intercept, plus an ARD Matérn 3/2 kernel."""
    # Smooth and mostly linear: from unit variances and lengthscales of √P most columns get there after some
    # forty steps.
    trend = kernels.Polynomial(
        input_dim, variance=torch.tensor(0.4 / max(input_dim, 1)), bias=torch.tensor(0.5), degree=1
    )
    lengthscale = torch.full((input_dim,), 4.0 * float(input_dim) ** 0.5)
    return kernels.Sum(trend, Matern32(input_dim, torch.tensor(0.3), lengthscale))


def small_linear_matern32(input_dim: int) -> Kernel:
    """Return `linear_matern32` with a large, fixed variance of the trend: estimates shrink slopes."""
    kernel = linear_matern32(input_dim)
    with local_parameters():
        kernel.kern0.variance = torch.tensor(2.0 / max(input_dim, 1))
        kernel.kern0.variance_unconstrained.requires_grad_(False)
    return kernel


@dataclass(frozen=True)
class RandomEffects:
    """Intercepts and slopes of J groups, whose numbers 0 to J - 1 a standardised input holds.

    Rows with any other number belong to no group.
    """

    place: int
    """Position of that input; in a `LinkSpec`, its encoded column."""
    n_groups: int
    mean: float
    scale: float
    """A group's number is this mean, plus this scale times the input."""
    slopes: tuple[int, ...] = ()
    """Positions of the inputs that have a slope in each group; in a `LinkSpec`, their encoded columns."""
    time: int | None = None
    """Encoded column with the times of a process within groups, which is no part of a kernel; None without
    one. See `inference.time_process`."""
    n_in_kernel: int | None = None
    """Number of groups whose effects are features of a kernel; None for all."""

    @property
    def in_kernel(self) -> tuple[int, ...]:
        """Numbers of the groups whose effects are features of a kernel, ascending: a random part."""
        return _some(self.n_groups, self.n_groups if self.n_in_kernel is None else self.n_in_kernel)

    def are_in_kernel(self, column: Tensor) -> Tensor:
        """Return the rows of these and of unknown groups, Bool `[n]`, given the input with numbers."""
        numbers = self.numbers(column)
        own = torch.tensor(self.in_kernel, dtype=torch.long, device=column.device)
        return torch.isin(numbers, own) | (numbers >= self.n_groups)

    def numbers(self, column: Tensor) -> Tensor:
        """Return the number of the group of each row, given the input that holds it, `[n]`."""
        return (column * self.scale + self.mean).round().long()

    def members(self, column: Tensor) -> Tensor:
        """Return the rows of each group in the kernel, Bool `[J, n]`, given the input with numbers, `[n]`."""
        own = torch.tensor(self.in_kernel, dtype=torch.long, device=column.device)
        return self.numbers(column) == own[:, None]


@functools.lru_cache(maxsize=16)
def _some(n: int, k: int) -> tuple[int, ...]:
    """Return k of n numbers, ascending: neighbours in an order of labels may have something in common."""
    return tuple(np.sort(np.random.default_rng(0).permutation(n)[:k]).tolist())


class Trend(Kernel):
    """Kernel of an intercept, linear terms and products of inputs, with independent normal coefficients.

    It may have random effects of groups. A link keeps the coefficients exactly, besides the inducing values
    of the rest of its kernel.

    Args:
        input_dim: Number P of inputs, of which the last are the numbers of groups.
        linear: Variance of the coefficients of linear terms.
        quadratic: Variance of the coefficients of squares and products.
        products: Pairs of inputs whose products are features; None for all pairs and squares.
        n_features: Number of features, at least as many as there are; the others are zero.
        effects: Random effects of groups, in the order of their inputs.
        sparse: Inputs of which few are expected to matter; see `model.priors`.
    """

    places: Tensor
    """Inputs whose products are features, `[2, Q]`."""
    linear_deviations: Tensor
    product_deviations: Tensor
    """Standard deviations of the coefficients of linear terms that are not sparse, and of products, `[Q]`."""
    sparse_deviations: Tensor
    """Standard deviations of the coefficients of linear terms in inputs of which few matter."""
    of_linear: Tensor
    """Position of each linear term among these deviations, those of sparse ones last, `[P]`."""
    effect_deviations: Tensor
    """Standard deviations of random effects, for each intercept and slope of each of the `effects`, `[E]`."""
    effect_of: Tensor
    """Number of the intercept or slope of each of their coefficients."""
    log_shared: Tensor
    """Log of the scale that products share, in prior standard deviations, a scalar; see `model.priors`."""

    def __init__(
        self,
        input_dim: int,
        linear: float,
        quadratic: float,
        products: Sequence[tuple[int, int]] | None = None,
        n_features: int = 0,
        effects: Sequence[RandomEffects] = (),
        *,
        sparse: Sequence[int] = (),
    ) -> None:
        super().__init__(input_dim)
        self.effects, self.n_linear = tuple(effects), input_dim - len(effects)
        if [each.place for each in effects] != list(range(self.n_linear, input_dim)):
            raise ValueError(f"expected the numbers of groups in the last of {input_dim} inputs: {effects}")
        if products is None:
            products = list(itertools.combinations_with_replacement(range(self.n_linear), 2))
        self.register_buffer("places", torch.tensor(products, dtype=torch.long).view(-1, 2).T, False)
        self.sizes = [len(each.in_kernel) for each in effects for _ in range(1 + len(each.slopes))]
        """Numbers of groups in the kernel, for each intercept and slope of each of the `effects`."""
        dense = [p for p in range(self.n_linear) if p not in sparse]
        parts = (
            ("linear", len(dense), linear),
            ("sparse", len(sparse), linear),
            ("product", len(products), quadratic),
            ("effect", len(self.sizes), EFFECTS),
        )
        for name, n, variance in parts:
            deviations = torch.full((n,), variance**0.5, dtype=torch.float64)
            self.register_buffer(f"{name}_deviations", deviations, False)
        self.register_buffer("log_shared", torch.zeros((), dtype=torch.float64), False)
        numbers = torch.arange(len(self.sizes)).repeat_interleave(torch.tensor(self.sizes, dtype=torch.long))
        self.register_buffer("effect_of", numbers, False)
        self.register_buffer("of_linear", torch.tensor([*dense, *sparse], dtype=torch.long).argsort(), False)
        self.n_others = 1 + self.n_linear + len(products)
        """Number of features that are no random effects, which come first."""
        self.n_features = max(n_features, self.n_others + sum(self.sizes))
        """Number F of features."""

    def without_effects(self, n_features: int) -> Trend:
        """Return a trend with the same features but those of random effects, and as many zeros as needed."""
        trend = copy.copy(self)
        trend._buffers = self._buffers | {"effect_of": self.effect_of[:0]}
        trend.effects = tuple(replace(each, n_in_kernel=0) for each in self.effects)
        trend.sizes, trend.n_features = [0] * len(self.sizes), n_features
        return trend

    @property
    def spread(self) -> Tensor:
        """Standard deviations of the coefficients of all features, `[F]`."""
        of_effects = self.effect_deviations[self.effect_of]
        of_linear = torch.cat([self.linear_deviations, self.sparse_deviations])[self.of_linear]
        deviations = torch.cat([of_linear, self.product_deviations, of_effects])
        known = torch.nn.functional.pad(deviations, (1, 0), value=INTERCEPT**0.5)
        return torch.nn.functional.pad(known, (0, self.n_features - len(known)))

    @property
    def groups(self) -> Tensor:
        """Group of each feature's coefficient, `[F]`.

        It is 0 for intercept and padding, 1 for linear terms, 2 for products and sparse linear terms, and 4
        and more for each intercept and slope of the `effects`.
        """
        n_products = self.places.shape[1]
        n_dense = len(self.linear_deviations)
        numbers = [0, *(1 if place < n_dense else 2 for place in self.of_linear.tolist())]
        numbers += [2] * n_products + [4 + k for k in self.effect_of.tolist()]
        return torch.tensor(numbers + [0] * (self.n_features - len(numbers)))

    def features(self, X: Tensor) -> Tensor:
        """Return the features of rows `[n, P]`, times the standard deviations of coefficients, `[n, F]`."""
        columns = X.T.contiguous()
        found = X.new_zeros(self.n_features, len(X))
        found[0] = 1.0
        found[1 : 1 + self.n_linear] = columns[: self.n_linear]
        end = 1 + self.n_linear + self.places.shape[1]
        for effect in self.effects:
            members = effect.members(columns[effect.place])
            for values in (members, *(members * columns[slope] for slope in effect.slopes)):
                found[end : end + len(members)] = values
                end += len(members)
        # Beyond all but the most extreme values products grow no longer: their squares would.
        columns = columns.clamp(-_FARTHEST, _FARTHEST)
        first, second = (columns.index_select(0, each) for each in self.places)
        found[1 + self.n_linear :][: len(first)] = first * second
        return found.mul_(self.spread.to(X)[:, None]).T

    def factors(self, own: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the factors by which features are multiplied if inputs `own` have values instead of ones.

        Which factor each feature has, of zeros and ones `[F, G]`, and the factors, `[2, G]`, each the product
        of two of the `powers` of these inputs.
        """
        linear = {p: 1 + k for k, p in enumerate(own)}
        clamped = {p: 1 + len(own) + k for k, p in enumerate(own)}
        pairs = [(0, 0), *((0, linear.get(p, 0)) for p in range(self.n_linear))]
        products = ((clamped.get(i, 0), clamped.get(k, 0)) for i, k in self.places.T.tolist())
        pairs += [(min(pair), max(pair)) for pair in products]
        for effect in self.effects:
            of_slopes = [(0, linear.get(slope, 0)) for slope in effect.slopes]
            pairs += [pair for pair in ((0, 0), *of_slopes) for _ in effect.in_kernel]
        pairs += [(0, 0)] * (self.n_features - len(pairs))
        factors = list(dict.fromkeys(pairs))
        has_factor = torch.tensor([[pair == factor for factor in factors] for pair in pairs])
        return has_factor.to(self.linear_deviations), torch.tensor(factors, device=self.places.device).T

    @staticmethod
    def powers(values: Tensor) -> Tensor:
        """Return one, values `[k, C]` of inputs, and what they count as in products, `[k, 1 + 2C]`."""
        clamped = values.clamp(-_FARTHEST, _FARTHEST)
        return torch.cat([torch.ones_like(values[:, :1]), values, clamped], dim=1)

    def forward(self, X: Tensor, Z: Tensor | None = None, diag: bool = False) -> Tensor:
        """Return the covariance matrix of `X` `[n, P]` and `Z` `[M, P]`, or the variances `[n]` if `diag`."""
        features = self.features(X)
        if diag:
            return features.square().sum(1)
        return features @ (features if Z is None else self.features(Z)).T


def linear_quadratic_matern32(
    input_dim: int,
    products: Sequence[tuple[int, int]] | None = None,
    n_features: int = 0,
    effects: Sequence[RandomEffects] = (),
    *,
    curved: Sequence[int] | None = None,
) -> Kernel:
    """Return the default kernel of sequential chains: a quadratic `Trend` plus an ARD Matérn 3/2 kernel.

    A product of two columns extrapolates, where a Matérn kernel returns to zero. The variances of the trend
    are fixed in training, since estimated ones shrink its coefficients by several per cent; their posterior
    is drawn with that of the coefficients (`inference.data_augmentation`). The Matérn kernel is one of the
    `curved` inputs, by default of all but the numbers of groups; linear terms of other inputs are sparse.
    """
    smooth = list(range(input_dim - len(effects)) if curved is None else curved)
    sparse = [p for p in range(input_dim - len(effects)) if p not in smooth]
    n_inputs = max(len(smooth), 1)
    variances = 2.0 / n_inputs, 1.0 / n_inputs
    trend = Trend(input_dim, *variances, products, n_features, effects, sparse=sparse)
    lengthscale = torch.full((len(smooth),), 4.0 * float(n_inputs) ** 0.5)
    return kernels.Sum(trend, Matern32(len(smooth), torch.tensor(0.3), lengthscale, smooth))


def linear(
    input_dim: int,
    products: Sequence[tuple[int, int]] | None = None,
    n_features: int = 0,
    effects: Sequence[RandomEffects] = (),
    *,
    curved: Sequence[int] | None = None,
) -> Kernel:
    """Return a kernel of linear functions: chains of them are multivariate normal, given complete columns.

    Its arguments are those of `linear_quadratic_matern32`, of which it is the part without products, and with
    a variance of the Matérn kernel that is fixed at a negligible value.
    """
    kernel = linear_quadratic_matern32(input_dim, (), n_features, effects, curved=curved)
    with local_parameters():
        kernel.kern1.variance = torch.tensor(_NEGLIGIBLE)
        kernel.kern1.variance_unconstrained.requires_grad_(False)
    return kernel


def trend_of(kernel: Kernel) -> tuple[Trend | None, Kernel]:
    """Return the trend of a kernel (None without one) and its rest."""
    if type(kernel) is kernels.Sum and isinstance(kernel.kern0, Trend):
        return kernel.kern0, kernel.kern1
    return None, kernel


def lengthscales(kernel: Kernel, n_inputs: int) -> Tensor:
    """Return one lengthscale per input, `[P]`, from the first part of a kernel that has one, else 1."""
    scales, found = torch.ones(n_inputs, dtype=torch.float32), torch.zeros(n_inputs, dtype=torch.bool)
    for part in kernel.modules():
        own = getattr(part, "lengthscale", None)
        if isinstance(own, Tensor):
            here = torch.tensor(part.active_dims, dtype=torch.long)
            scales[here] = torch.where(found[here], scales[here], own.detach().float().cpu())
            found[here] = True
    return scales


KERNELS: dict[str, KernelFactory] = {
    "linear": linear,
    "linear+matern32": linear_matern32,
    "linear+quadratic+matern32": linear_quadratic_matern32,
    "matern32": matern32,
}
"""Kernel factories by name."""

WITH_TREND = (linear, linear_quadratic_matern32)
"""Kernel factories of sequential chains, with products, features and random effects as arguments."""


def resolve_kernel(kernel: str | KernelFactory) -> KernelFactory:
    """Return the kernel factory of a name, or the factory itself; an unknown name is a ValueError."""
    if callable(kernel):
        return kernel
    if kernel not in KERNELS:
        raise ValueError(
            f"kernel must be 'auto', one of {sorted(KERNELS)} or a function "
            f"input_dim -> pyro.contrib.gp kernel, got {kernel!r}"
        )
    return KERNELS[kernel]
