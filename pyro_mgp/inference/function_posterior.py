"""Normal distribution of a link's whitened inducing values, given the completed table, and of their scales.

The standard deviations of the coefficients of a `Trend`, and of the rest of a kernel, are drawn as well,

    value ~ N(0, σ²),   σ · (trained standard deviation) ~ half-Cauchy(τ · scale of the value's group)

where log τ ~ N(0, ω²) for products, else τ = 1. The priors are those of `model.priors`, by which slopes of
Gaussian links have fixed ones; for random effects see `random_effects`. All inducing values of the rest of
the kernel share one scale, as products share τ. Given the values both scales are almost determined, and a
Gibbs step would hardly move them: Metropolis steps draw the scale of the rest, and τ together with all σ of
products, with the function integrated out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from pyro_mgp.inference.slice_sampling import N_NUMBERS, slice_step
from pyro_mgp.model.kernels import trend_of
from pyro_mgp.model.link import Link
from pyro_mgp.model.local_parameters import local_parameters
from pyro_mgp.model.priors import EFFECT, PRODUCTS, REST, drawn_groups, group_scales, shared_spread

# Range of the logarithms of standard deviations.
_LOG_RANGE = (-8.0, 5.0)
# Standard deviation of a proposal for the logarithm of a scale: some two of its posterior's, with which
# Metropolis steps in one dimension move fastest (Gelman, Roberts and Gilks, Bayesian Statistics 5, 1996).
_STEP = 2.5
# Number of values of log τ, and the largest of them.
_GRID, _LARGEST_LOG = 161, 8.0


@dataclass(frozen=True)
class FunctionPosterior:
    """Normal distribution of a link's whitened inducing values v in S chains."""

    gram: Tensor  # precisions that the rows add to the prior's, `[S, M, M]`
    shift: Tensor  # precisions A times means, `[S, M]`
    mean: Tensor  # means, `[S, M]`
    factor: Tensor  # Cholesky factors of A, the sum of both precisions, `[S, M, M]`
    evidence: Tensor  # log density of the rows with v integrated out, up to a constant, `[S]`

    @classmethod
    def natural(cls, prior: Tensor, gram: Tensor, shift: Tensor) -> FunctionPosterior:
        """Return the distribution with a prior of variances `[S, M]`, what rows add to it, and a shift."""
        precision = gram + torch.diag_embed(prior.reciprocal())
        # A check would make the host wait for a GPU: there a diverged chain has NaN.
        factor, info = torch.linalg.cholesky_ex(precision, check_errors=not precision.is_cuda)
        factor.masked_fill_((info > 0)[..., None, None], torch.nan)
        mean = torch.cholesky_solve(shift[..., None], factor)[..., 0]
        log_size = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1) + 0.5 * prior.log().sum(-1)
        return cls(gram, shift, mean, factor, 0.5 * (shift * mean).sum(-1) - log_size)

    def where(self, taken: Tensor, other: FunctionPosterior) -> FunctionPosterior:
        """Return this distribution in chains with True in Bool `[S]`, and another one in the others."""
        mean = torch.where(taken[:, None], self.mean, other.mean)
        factor = torch.where(taken[:, None, None], self.factor, other.factor)
        evidence = torch.where(taken, self.evidence, other.evidence)
        return FunctionPosterior(self.gram, self.shift, mean, factor, evidence)

    def draw(self, eps: Tensor) -> Tensor:
        """Draw v `[S, M]`, given standard normal numbers `[S, M]`."""
        return self.mean + torch.linalg.solve_triangular(self.factor.mT, eps[..., None], upper=True)[..., 0]

    def moments(self, basis: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of functions with basis `[S, M, n]`, `[S, n]` each."""
        whitened = torch.linalg.solve_triangular(self.factor, basis, upper=False)
        return times(self.mean, basis), whitened.square().sum(-2)


def times(vector: Tensor, matrix: Tensor) -> Tensor:
    """Multiply vectors `[..., M]` by matrices `[..., M, n]`."""
    return (vector[..., None, :] @ matrix)[..., 0, :]


@dataclass(frozen=True)
class CoefficientScales:
    """Prior of the standard deviations of a link's values, relative to the trained ones."""

    coefficients: Tensor
    """Numbers of the coefficients whose standard deviations are drawn, `[C]`; see `model.priors`."""
    products: Tensor
    """Bool `[M]`, the coefficients of products and of sparse linear terms."""
    shared: Tensor
    """Numbers of these coefficients, which share τ, `[P]`."""
    rest: Tensor
    """Bool `[M]`, the inducing values of the rest of the kernel, which come last."""
    wide: Tensor
    """Scale of each value's half-Cauchy prior where τ is one, `[M]`."""
    spread: float
    """Prior standard deviation ω of log τ; 0 if there are no products."""

    @classmethod
    def of(cls, link: Link, *, searching: bool = False) -> Self | None:
        """Return the prior of a link's values; None if its kernel has no trend, and nothing is drawn.

        For `searching` see `model.priors.shared_spread`.
        """
        trend, rest = trend_of(link.kernel)
        if trend is None:
            return None
        groups = torch.nn.functional.pad(trend.groups, (0, link.n_inducing), value=REST).to(link.Xu.device)
        with local_parameters():
            amplitude = rest(link.Xu[:1], diag=True).sqrt().expand(link.n_inducing)
        typical = torch.cat([trend.spread.to(link.Xu), amplitude])
        coefficients = torch.isin(groups, groups.new_tensor([*drawn_groups(link).values()])) & (typical > 0)
        wide = group_scales(link)[groups.clamp(max=EFFECT)] / typical
        products = (groups == PRODUCTS) & (typical > 0)
        own, shared = (each.nonzero()[:, 0] for each in (coefficients, products))
        return cls(own, products, shared, groups == REST, wide, shared_spread(trend, searching=searching))

    def draw(self, values: Tensor, scales: Tensor, fresh: Callable[[int], Tensor]) -> Tensor:
        """Return the standard deviations `[S, M]` with those of coefficients drawn anew, by slice sampling.

        Takes values and the last standard deviations, `[S, M]` each, and a function that returns standard
        normal numbers `[S, n]`.
        """
        scales, own = scales.clone(), self.coefficients
        n_chains, n_own = len(values), len(own)
        if n_own:
            numbers = fresh(1 + n_own * N_NUMBERS)
            normal = numbers[:, 1:].reshape(n_chains * n_own, N_NUMBERS)
            wide = self.wide[own].expand(n_chains, -1)
            if self.spread:
                shared = self._draw_shared(scales, numbers[:, :1])
                wide = torch.where(self.products[own], wide * shared, wide)
            wide = wide.flatten()
            squares = values[:, own].flatten().square()

            def log_density(log_scale: Tensor) -> Tensor:
                variance = (2 * log_scale).exp()
                prior = log_scale - (variance / wide**2).log1p()
                return prior - log_scale - 0.5 * squares / variance

            drawn = slice_step(log_density, scales[:, own].flatten().log(), normal)
            scales[:, own] = drawn.clamp(*_LOG_RANGE).exp().view(n_chains, n_own)
        return scales

    def rescale(
        self, scales: Tensor, posterior: FunctionPosterior, normal: Tensor
    ) -> tuple[Tensor, FunctionPosterior]:
        """Draw the scales of products and of inducing values by Metropolis steps; see the module.

        Takes all standard deviations `[S, M]`, the distribution of the function with them, and normal numbers
        `[S, 5]`; returns both after the steps.
        """
        if self.spread:
            given = self.products, self._draw_shared(scales, normal[:, :1]), self._log_prior_of_shared
            step = _STEP * min(1.0, self.spread) * normal[:, 1:2]
            scales, posterior = self._step(scales, posterior, *given, step, normal[:, 2])

        def log_prior(scale: Tensor) -> Tensor:
            return scale.log() - (scale / self.wide[-1]).square().log1p()

        # Variances that inducing values do not determine stay those at the last scale: exact ones would need
        # another Gram matrix. With it pooled estimates of six designs (60 to 400 rows, 19 or 20 tables) had
        # the same means up to .007 of slopes from 0 to 1, and intervals of the same width up to 4 %. With few
        # inducing values for curved functions (3 for 40 rows) scales are .3 off on the log scale.
        step = _STEP * normal[:, 3:4]
        return self._step(scales, posterior, self.rest, scales[:, -1:], log_prior, step, normal[:, 4])

    def _step(
        self,
        scales: Tensor,
        posterior: FunctionPosterior,
        which: Tensor,
        current: Tensor,
        log_prior: Callable[[Tensor], Tensor],
        step: Tensor,
        normal: Tensor,
    ) -> tuple[Tensor, FunctionPosterior]:
        """Multiply some standard deviations, Bool `[M]`, by the factor of a move of a scale `[S, 1]`.

        Takes the log density of the logarithm of that scale, the step of the logarithm `[S, 1]`, and normal
        numbers `[S]`.
        """
        moved = (current.log() + step).clamp(*_LOG_RANGE).exp()
        proposal = torch.where(which, scales * (moved / current), scales)
        other = FunctionPosterior.natural(proposal.square(), posterior.gram, posterior.shift)
        ratio = (log_prior(moved) - log_prior(current))[:, 0]
        taken = other.evidence - posterior.evidence + ratio > torch.special.log_ndtr(normal)
        return torch.where(taken[:, None], proposal, scales), other.where(taken, posterior)

    def _draw_shared(self, scales: Tensor, normal: Tensor) -> Tensor:
        """Draw τ `[S, 1]` given the standard deviations of products, by inversion on a grid of log τ."""
        ratios = (scales / self.wide)[:, self.shared].square()[..., None]
        # Products move the mean of log τ by at most one each, times its prior variance.
        most = min(_LARGEST_LOG, 6 * self.spread + len(self.coefficients) * self.spread**2)
        grid = torch.linspace(-most, most, _GRID, dtype=scales.dtype, device=scales.device)
        squared = (2 * grid).exp()
        each = -grid - (ratios / squared).log1p()
        below = (self._log_prior_of_shared(grid.exp()) + each.sum(1)).softmax(-1).cumsum(-1)
        place = torch.searchsorted(below, torch.special.ndtr(normal)).clamp(max=_GRID - 1)
        return grid[place].exp()

    def _log_prior_of_shared(self, scale: Tensor) -> Tensor:
        """Return the log density of log τ up to a constant."""
        return -0.5 * (scale.log() / self.spread).square()
