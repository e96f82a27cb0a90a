"""Predictive moments of a link at any rows, from one Cholesky factorisation.

    prior        f ~ GP(0, k),   u = f(Z) = L v,   L Lᵀ = K_ZZ,   v ~ N(0, I)       (whitened)
    posterior    q(v) = N(r, T Tᵀ)
    basis        φ(x) = L⁻¹ k_Z(x)                 so that α(x)ᵀ u = φ(x)ᵀ v
    marginal     μ(x) = φᵀ r,      σ²(x) = k(x, x) - φᵀφ + ‖Tᵀ φ‖²
    one function μ(x) = φᵀ v,      σ²(x) = k(x, x) - φᵀφ                            (v drawn once)

These are the equations of `pyro.contrib.gp.util.conditional`, which factorises K_ZZ at every call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Self

import torch
from torch import Tensor

from pyro_mgp._support.tiles import whole_registers
from pyro_mgp.model.kernel_stack import ColumnTerms, KernelStack
from pyro_mgp.model.kernels import Matern32, Trend, matern32_of_square, squared_distances
from pyro_mgp.model.likelihoods import (
    LEAST_VARIANCE,
    Contaminated,
    LocalObservation,
    Observation,
    Quantity,
    Truncated,
    mean_under_normal,
)


@dataclass(frozen=True)
class Moments:
    """Mean and variance of a latent function at some rows on each path, `[S, n]`, standardised units."""

    mean: Tensor
    variance: Tensor
    shared: Tensor | None = None
    """Deviations from the mean by which cells of a path vary together; None for none."""
    own: Tensor | None = None
    """Variance of a cell's own deviation besides the shared one; None without a shared one."""
    counts: Tensor | None = None
    """Neighbours with each value of a discrete support, weighted by correlation, `[S, n, J]`, or None."""
    levels: Tensor | None = None
    """Log probabilities of the levels under the sparse GP alone, `[S, n, J]`; None for numbers."""

    @classmethod
    def joined(cls, parts: Sequence[Moments], dim: int) -> Moments:
        """Join moments along the paths (0) or the rows (1)."""
        parts = [part for part in parts if part.mean.shape[dim]] or parts[:1]
        names = [each.name for each in fields(cls) if getattr(parts[0], each.name) is not None]
        return cls(**{name: torch.cat([getattr(part, name) for part in parts], dim) for name in names})

    def select(self, which: Tensor, dim: int) -> Moments:
        """Return the moments on some paths (0) or at some rows (1), given a mask or numbers."""
        parts = {each.name: getattr(self, each.name) for each in fields(self)}
        where = (slice(None),) * dim + (which,)
        return Moments(**{name: part[where] for name, part in parts.items() if part is not None})

    def scaled(self, factors: Tensor) -> Moments:
        """Return the moments with variances scaled that observations do not share, `[S, n]`."""
        if self.own is None:
            return replace(self, variance=self.variance * factors)
        own = self.own * factors
        return replace(self, variance=self.variance + own - self.own, own=own)

    def standard(self, variance: Tensor, eps: Tensor) -> Tensor:
        """Return standardised deviations of observations with this variance, from normal numbers."""
        if self.shared is None or self.own is None:
            return eps
        deviation = torch.addcmul(self.shared, eps, (self.own + LEAST_VARIANCE).sqrt())
        return deviation / (variance + LEAST_VARIANCE).sqrt()


Along = Callable[[Tensor, Tensor, Tensor], Moments]
"""Moments `[k]` of a latent function on some paths, at rows by number, given values `[k, C]` of C columns."""


@dataclass(frozen=True)
class Conditional:
    """Predictive distribution of a link at any rows: a latent function, and observations given it.

    Subclasses define `moments` and `functions`.
    """

    noise: Tensor
    """Variance of the Gaussian observation noise: a scalar, or one per path, `[S, 1]`."""
    observation: Observation | None = field(default=None, kw_only=True)
    """Observation model other than Gaussian noise, None for this noise."""
    noisy: bool = field(default=False, kw_only=True)
    """True if the observation model applies to the function plus noise, False to the function alone."""

    def moments(self, rows: Tensor) -> Moments:
        """Return the moments of the latent function at rows `[S, n, D]` of S filled tables."""
        raise NotImplementedError

    def functions(self, rows: Tensor) -> Tensor:
        """Return the function's mean `[1, n]`, or each of S drawn functions `[S, n]`, at rows `[n, D]`."""
        raise NotImplementedError

    def on(self, paths: Tensor) -> Conditional:
        """Return the conditional whose paths are k of these, with repetitions."""
        return self

    def observed_as(self, observation: Observation | None, *, noisy: bool = True) -> Self:
        """Return the conditional with an observation model; None leaves it unchanged."""
        return self if observation is None else replace(self, observation=observation, noisy=noisy)

    def shifted(self, shift: float) -> Conditional:
        """Return the conditional with its latent function shifted by a constant; see `sensitivity`."""
        return Shifted.of(self, shift)

    def observation_at(self, moments: Moments) -> Observation | None:
        """Return the observation model of cells with these moments."""
        if isinstance(self.observation, LocalObservation):
            return self.observation.given(moments.counts, moments.levels)
        return self.observation

    def along(self, table: Tensor, columns: Sequence[int]) -> Along:
        """Return the moments at rows of a table `[S, n, D]` as a function of the values of some columns."""

        def moments(paths: Tensor, numbers: Tensor, values: Tensor) -> Moments:
            rows = table[paths, numbers]
            write(rows, columns, values)
            at = self.on(paths).moments(rows[:, None])
            return Moments(at.mean[:, 0], at.variance[:, 0])

        return moments

    def mean(self, rows: Tensor) -> Tensor:
        """Return the means of the observations, `[S, n]`, at rows `[S, n, D]`."""
        return self.expectation(self.moments(rows))

    def draw(self, moments: Moments, eps: Tensor, limits: Tensor | None = None) -> Tensor:
        """Draw observations of cells with these moments, from standard normal numbers, `[S, n]`.

        Cells may have limits, `[n, 2]`, unless their observation model is neither Gaussian nor truncated.
        """
        if isinstance(self.observation, Contaminated):
            # What cells share is not contaminated.
            scaled = moments.scaled(self.observation.factors(torch.special.ndtr(eps)))
            return replace(self, observation=self.observation.component).draw(scaled, eps, limits)
        variance = self._variance(moments)
        deviation, observation = moments.standard(variance, eps), self.observation_at(moments)
        if observation is None and limits is None:
            return gaussian_draw(moments.mean, variance, deviation)
        uniform, observation = torch.special.ndtr(deviation), observation or Truncated()
        if isinstance(observation, Truncated):
            return observation.draw(moments.mean, variance + LEAST_VARIANCE, uniform, limits)
        return observation.draw(moments.mean, variance, uniform)

    def expectation(self, moments: Moments, of: Quantity | None = None) -> Tensor:
        """Return the mean of the observations, or of a function of them, `[S, n]`."""
        if (observation := self.observation_at(moments)) is not None:
            return observation.expectation(moments.mean, self._variance(moments), of)
        return moments.mean if of is None else mean_under_normal(of, moments.mean, self._variance(moments))

    def log_prob(self, value: Tensor, moments: Moments, paths: Tensor | None = None) -> Tensor:
        """Return the log density of observations `[S, n]` given moments, or of `[k]` on some paths `[k]`."""
        variance = self._variance(moments, paths)
        if (observation := self.observation_at(moments)) is not None:
            return observation.log_prob(value, moments.mean, variance)
        return -0.5 * ((value - moments.mean).square() / variance + (2 * math.pi * variance).log())

    def _variance(self, moments: Moments, paths: Tensor | None = None) -> Tensor:
        """Return the variance to which the observation model applies, `[S, n]`, or `[k]` on some paths."""
        variance = moments.variance
        if self.observation is None or self.noisy:
            one_per_path = paths is not None and self.noise.dim() > 0
            variance = variance + (self.noise[paths, 0] if one_per_path else self.noise)
        return variance.expand_as(moments.mean)


@dataclass(frozen=True)
class Shifted(Conditional):
    """Conditional whose latent function is shifted by a constant; see `sensitivity`."""

    conditional: Conditional
    shift: float
    """Constant added to the function, standardised units or those of the latent function."""

    @classmethod
    def of(cls, conditional: Conditional, shift: float) -> Shifted:
        """Return a conditional with its function shifted, and the same observation model."""
        observation, noisy = conditional.observation, conditional.noisy
        return cls(conditional.noise, conditional, shift, observation=observation, noisy=noisy)

    def moments(self, rows: Tensor) -> Moments:
        """Return the moments of the shifted function at rows `[S, n, D]`."""
        at = self.conditional.moments(rows)
        return replace(at, mean=at.mean + self.shift)

    def functions(self, rows: Tensor) -> Tensor:
        """Return the shifted function's mean, or each drawn function, at rows `[n, D]`."""
        return self.conditional.functions(rows) + self.shift


def gaussian_draw(mean: Tensor, variance: Tensor, eps: Tensor) -> Tensor:
    """Draw from N(mean, variance), given standard normal numbers; all `[S, n]`."""
    return torch.addcmul(mean, eps, (variance + LEAST_VARIANCE).sqrt())


@dataclass(frozen=True)
class _StackConditional(Conditional):
    """Conditional whose mean is linear in a basis `[M, k]` of k rows, from the kernels of all links."""

    kernels: KernelStack
    """Kernels of all links of the chain."""
    number: int
    """Number of the link in the chain."""
    weights: Tensor
    """Weights of the basis in the mean, `[1, M]`, or in each drawn function, `[S, M]`."""

    def on(self, paths: Tensor) -> Self:
        return self if len(self.weights) == 1 else replace(self, weights=self.weights[paths])

    def moments(self, rows: Tensor) -> Moments:
        basis, variance = self._basis(rows.flatten(0, 1))
        return _moments(_per_path(self.weights, basis, len(rows)), variance)

    def mean(self, rows: Tensor) -> Tensor:
        if self.observation is not None:
            return super().mean(rows)
        return _per_path(self.weights, self._basis(rows.flatten(0, 1))[0], len(rows)).to(rows)

    def functions(self, rows: Tensor) -> Tensor:
        return (self.weights @ self._basis(rows)[0]).to(rows)

    def _basis(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the basis of rows `[k, D]`, and their variances `[k]` as `moments` needs them."""
        raise NotImplementedError


@dataclass(frozen=True)
class BasisConditional(_StackConditional):
    """Conditional by the whitened basis φ: differentiable, and accurate for any jitter."""

    factor: Tensor
    """Cholesky factor L of K_ZZ, `[M, M]`."""
    scale_tril: Tensor | None
    """Scale T of q(v), `[M, M]`; None for drawn functions."""

    def _basis(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        cross, variance = self.kernels.at(self.number, rows)
        basis = torch.linalg.solve_triangular(self.factor, cross, upper=False)
        variance = variance - basis.square().sum(0)
        if self.scale_tril is not None:
            variance = variance + (self.scale_tril.T @ basis).square().sum(0)
        return basis, variance


@dataclass(frozen=True)
class QuadraticConditional(_StackConditional):
    """Conditional by a quadratic form, faster and without gradients; K_ZZ must be well conditioned.

    With W = L⁻¹ and q(v) = N(r, S), mean and variance of a row with covariances k to Z are kᵀWᵀr and
    k(x, x) + kᵀAk, A = Wᵀ(S - I)W; of a drawn function v, kᵀWᵀv and A = -WᵀW. Single precision has too few
    digits for A: there the row is whitened first, φ = Wk, and the form is that of φ.
    """

    form: Tensor | None
    """Matrix A, see `one_sided`, `[M, M]`; for marginals, with the weights as last row. Of φ it is S - I, or
    None for -I."""
    inverse: Tensor | None
    """Inverse factor W, `[M, M]`, if rows are whitened."""

    @torch.no_grad()
    def moments(self, rows: Tensor) -> Moments:
        """Return the moments of the latent function at rows `[S, n, D]`."""
        basis, variance = self._basis(rows.flatten(0, 1))
        # This takes the memory of the kernel's second matrix, which is in the processor's cache.
        shape = len(basis if self.form is None else self.form), basis.shape[1]
        product = self.kernels.workspace.take("decay", shape, basis)
        if self.form is None:
            torch.mul(basis, basis, out=product).neg_()
        else:
            half = whole_registers(len(basis) // 2)
            torch.mm(self.form[half:], basis, out=product[half:])
            torch.mm(self.form[:half, :half], basis[:half], out=product[:half])
            product[: len(basis)] *= basis
        if len(product) > len(basis):
            mean = product[-1].view(len(rows), -1).clone()
        else:
            mean = _per_path(self.weights, basis, len(rows))
        variance = variance + product[: len(basis)].sum(0)
        return _moments(mean.to(rows), variance.to(rows))

    @torch.no_grad()
    def _basis(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the covariances to Z, or φ, and the variances k(x, x)."""
        basis, variance = self.kernels.at(self.number, rows)
        return (basis if self.inverse is None else self.inverse @ basis), variance


@dataclass(frozen=True)
class TrendConditional(_StackConditional):
    """Conditional of drawn functions with a `Trend`, whose coefficients leave no variance.

    With coefficients w of the F features ψ(x), drawn values v and the scale ρ of the rest of the kernel, the
    mean of a row is wᵀψ + kᵀWᵀv, and its variance ρ² (k(x, x) - |Wk|²). The weights are (w, Wᵀv).
    """

    inverse: Tensor
    """Inverse factor W of the rest, `[M, M]`."""
    scale: Tensor
    """Scale ρ on each path, `[S, 1]`."""
    dtype: torch.dtype = torch.float64
    """Floating-point type in which `along` computes the moments."""

    def on(self, paths: Tensor) -> Self:
        """Return the conditional whose paths are k of these, with repetitions."""
        return replace(self, weights=self.weights[paths], scale=self.scale[paths])

    @torch.no_grad()
    def moments(self, rows: Tensor) -> Moments:
        """Return the moments of the latent function at rows `[S, n, D]`."""
        at = super().moments(rows)
        return replace(at, variance=at.variance * self.scale.square())

    @torch.no_grad()
    def along(self, table: Tensor, columns: Sequence[int]) -> Along:
        """Return `Conditional.along`, which computes anew only what depends on these columns."""
        trend, rest = self.kernels.parts[self.number]
        if trend is None or type(rest) is not Matern32:
            return super().along(table, columns)
        of_columns = self.kernels.of_columns(self.number, tuple(columns))
        seen, own, inputs = of_columns.seen, of_columns.own, self.kernels.links[self.number][2]
        X = table.flatten(0, 1).index_select(1, inputs).to(self.dtype).index_fill_(1, own, 0.0)
        terms, n_rows = self._terms(trend, X, of_columns), table.shape[1]
        scale, Z, _, variance = self.kernels.matern32(self.number)
        weights, whitening = self.weights[:, trend.n_features :].contiguous(), self.inverse.T.contiguous()
        parts = scale, Z, variance, of_columns.slopes, weights, whitening, self.scale[:, 0].square()
        scale, Z, variance, slopes, weights, whitening, of_rest = (each.to(X) for each in parts)
        apart = squared_distances((X := X * scale).square().sum(1, keepdim=True), X, Z)
        own_scale, log_variance = scale[own], variance.log()

        def moments(paths: Tensor, numbers: Tensor, values: Tensor) -> Moments:
            here, values = paths * n_rows + numbers, values.index_select(1, seen).to(apart)
            scaled = values * own_scale
            place = torch.cat([scaled, scaled.square().sum(1, keepdim=True)], dim=1)
            cross = matern32_of_square(apart.index_select(0, here).addmm_(place, slopes), log_variance)
            left = (variance - (cross @ whitening).square_().sum(1)) * of_rest.index_select(0, paths)
            powers = trend.powers(values)
            first, second = (powers.index_select(1, each) for each in of_columns.factors)
            mean = terms.index_select(0, here).mul_(first).mul_(second).sum(1)
            mean += cross.mul_(weights.index_select(0, paths)).sum(1)
            return _moments(mean.to(table), left.to(table))

        return moments

    def _terms(self, trend: Trend, X: Tensor, columns: ColumnTerms) -> Tensor:
        """Return the trend of all paths' inputs as coefficients `[S · n, G]` of the columns' factors."""
        weights = (self.weights[:, : trend.n_features, None] * columns.has_factor).to(X)
        features = trend.features(X.index_fill(1, columns.own, 1.0)).unflatten(0, (len(weights), -1))
        return (features @ weights).flatten(0, 1)

    @torch.no_grad()
    def _basis(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return features and covariances to Z `[F + M, k]`, and variances without scale."""
        features, cross, variance = self.kernels.apart(self.number, rows)
        return torch.cat([features, cross]), variance - (self.inverse @ cross).square().sum(0)


@dataclass(frozen=True)
class PathwiseConditional(Conditional):
    """Conditional of a Gaussian link whose hyperparameters differ from path to path."""

    parts: Sequence[Conditional]
    """Conditional of each of S paths, with one drawn function."""

    @classmethod
    def of(cls, parts: Sequence[Conditional]) -> PathwiseConditional:
        """Join the conditionals of the paths."""
        return cls(torch.cat([part.noise for part in parts]), parts)

    @torch.no_grad()
    def moments(self, rows: Tensor) -> Moments:
        """Return the moments of the latent function at rows `[S, n, D]`."""
        found = [part.moments(own) for part, own in zip(self.parts, rows.split(1), strict=True)]
        return Moments(torch.cat([at.mean for at in found]), torch.cat([at.variance for at in found]))

    @torch.no_grad()
    def functions(self, rows: Tensor) -> Tensor:
        """Return each drawn function `[S, n]` at rows `[n, D]`."""
        return torch.cat([part.functions(rows) for part in self.parts])

    @torch.no_grad()
    def along(self, table: Tensor, columns: Sequence[int]) -> Along:
        """Return the moments at rows of a table `[S, n, D]` as a function of the values of some columns."""
        own = [part.along(rows, columns) for part, rows in zip(self.parts, table.split(1), strict=True)]

        def moments(paths: Tensor, numbers: Tensor, values: Tensor) -> Moments:
            mean, variance = (values.new_empty(len(paths)) for _ in range(2))
            for path in paths.unique().tolist():
                here = (paths == path).nonzero()[:, 0]
                at = own[path](torch.zeros_like(here), numbers[here], values[here])
                mean[here], variance[here] = at.mean, at.variance
            return Moments(mean, variance)

        return moments


def quadratic_conditionals(
    kernels: KernelStack,
    inverse: Tensor,
    values: Tensor,
    covariance: Tensor | None,
    noise: Sequence[Tensor] | Tensor,
) -> list[QuadraticConditional]:
    """Return a `QuadraticConditional` of each of L links, given the inverse factors W `[L, M, M]`.

    The whitened values are r of q(v), `[L, 1, M]`, with its covariance S, `[L, M, M]`, or drawn functions
    `[L, S, M]`. The noise is a variance of each link, `[L]`, or of each drawn function, `[S, 1]`.
    """
    whitening: Sequence[Tensor | None] = [None] * len(noise)
    forms: Sequence[Tensor | None] = whitening
    whitens = kernels.dtype != inverse.dtype
    if whitens:
        whitening = inverse.to(kernels.dtype).unbind()
    else:
        values = values @ inverse
    if covariance is not None:
        # Made on the device: a copy from the host would make it wait for the device in each step.
        identity = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)
        middle = covariance - identity
        form = one_sided(middle if whitens else inverse.mT @ (middle @ inverse))
        forms = torch.cat([form, values], dim=1).to(kernels.dtype).unbind()
    elif not whitens:
        forms = one_sided(-inverse.mT @ inverse).unbind()
    weights = values.to(kernels.dtype).unbind()
    of_links = enumerate(zip(noise, weights, forms, whitening, strict=True))
    return [QuadraticConditional(own, kernels, i, w, form, W) for i, (own, w, form, W) in of_links]


def one_sided(forms: Tensor) -> Tensor:
    """Return matrices `[..., M, M]` with a block of zeros and the same quadratic forms as symmetric ones.

    That block need not be multiplied, which saves a quarter of the product.
    """
    half = whole_registers(forms.shape[-1] // 2)
    forms = forms.clone()
    forms[..., half:, :half] *= 2
    forms[..., :half, half:] = 0
    return forms


def write(rows: Tensor, columns: Sequence[int], values: Tensor) -> None:
    """Write values `[..., C]` into C columns of rows `[..., D]`, in place."""
    # Column by column: a list of numbers as index would be copied to a GPU, for which the host waits.
    for column, own in zip(columns, values.unbind(-1), strict=True):
        rows[..., column] = own


def _per_path(weights: Tensor, basis: Tensor, n_paths: int) -> Tensor:
    """Apply each path's weights, `[1, M]` or `[S, M]`, to its own columns of `[M, S · n]`: `[S, n]`."""
    if len(weights) == 1:
        return (weights @ basis).view(n_paths, -1)
    # One product per path would do with less than whole tiles.
    product = weights.T.contiguous()[:, :, None] * basis.unflatten(1, (n_paths, -1))
    return product.flatten(1).sum(0).view(n_paths, -1)


def _moments(mean: Tensor, variance: Tensor) -> Moments:
    # k(x, x) - φᵀφ is non-negative up to rounding.
    return Moments(mean, variance.clamp(min=0).view_as(mean))
