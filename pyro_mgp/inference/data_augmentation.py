"""Data augmentation: functions drawn given completed tables (Tanner and Wong, JASA 82:528-540, 1987).

q(u) is a posterior given one fill of the table, and lacks the uncertainty that the missing cells of inputs
add. Chains of Gibbs sampling therefore repeat, link after link,

    v ~ N(A⁻¹ Φ W t, A⁻¹),  A = I + Φ W Φᵀ            given the completed rows from which the link learns
    s² ~ (Σ noise²) / χ²_n                            given these rows and v
    missing cells of the link's column                given v and s²

Φ is the whitened basis of the rows (see `conditional`). For Gaussian links W = 1 / s², and t are the cells.
Other observations are replaced by Gaussian sites under the last distribution of v, with precisions W and
targets t: that distribution converges to the variational one given the completed table.

A link's function is drawn right before the cells of its own column. If all functions were drawn at once, the
cells drawn next would change with the function of their own column only, and variances between imputations
would come out a third too small. A sequential chain is a joint density, whose functions are independent given
the completed table: it draws all of them first.

Rows may have weights, as if each was that many rows; see `gibbs_chains`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_mgp.inference.closed_form_rows import SITE_STEP, site_parameters
from pyro_mgp.inference.function_posterior import CoefficientScales, FunctionPosterior, times
from pyro_mgp.inference.slice_sampling import slice_step
from pyro_mgp.model.chain import Chain
from pyro_mgp.model.cholesky import factorise, invert_by_blocks, naming
from pyro_mgp.model.conditional import Conditional, TrendConditional, quadratic_conditionals
from pyro_mgp.model.kernel_stack import KernelStack, stack_kernels
from pyro_mgp.model.kernels import Matern32
from pyro_mgp.model.likelihoods import MIN_NOISE, Ordinal
from pyro_mgp.model.likelihoods.levels import none_is_on
from pyro_mgp.model.limited_cells import informative_cells
from pyro_mgp.model.link import observing, refuse_priors
from pyro_mgp.model.local_parameters import local_parameters

# Largest error of |Wk|² in single precision relative to the noise, by a bound: ε|W| k(x, x) (1 + max |z|²),
# machine epsilon ε, scaled inducing inputs z. In 23 links of three tables errors were at most .43 of it,
# even without its last factor, and those of means .05 of its root. Drawn scales may make both ten times as
# large.
_ROUNDING = 5e-3
# Entries of the basis of known rows that are kept, all links together: 256 MB.
_KNOWN_ENTRIES = 2**25


class Rows(NamedTuple):
    """Rows from which a link learns: n known rows, or completed rows of S chains, `[S, ...]`."""

    basis: Tensor  # whitened basis Φ, `[M, n]`
    rest: Tensor  # variances of the function that the inducing values do not determine, `[n]`
    targets: Tensor  # cells of the link's column, `[n]`

    def sums(self, noise: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return ΦWΦᵀ, `[S, M, M]`, and ΦWt, `[S, M]`: W are weights `[S, n]` over the targets' variances.

        These are the noise's, `[S, 1]`, plus that of the rest. None stands for weights of one.
        """
        precision = 1 / (noise + self.rest)
        if weights is not None:
            precision = precision * weights
        basis = self.basis * precision[:, None]
        return basis @ self.basis.mT, times(self.targets, basis.mT)


class Regression(NamedTuple):
    """Rows from which a link learns."""

    known: Rows  # rows whose inputs and target are observed: they are the same in all chains
    completed: Rows  # the other rows, completed in S chains
    weights: Tensor | None  # weights of all rows, the known ones first, `[S, n]`; None for weights of one

    def joined(self) -> Rows:
        """Return all rows in S chains, the known ones first."""
        pairs = zip(self.known, self.completed, strict=True)
        return Rows(*(torch.cat([own.expand(*end.shape[:-1], -1), end], dim=-1) for own, end in pairs))

    def sums(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weighted sums of all rows at noise variances `[S, 1]`; see `Rows.sums`."""
        weights: tuple[Tensor | None, ...] = None, None
        if self.weights is not None:
            weights = self.weights.tensor_split([self.known.targets.shape[-1]], dim=1)
        known, completed = self.known.sums(noise, weights[0]), self.completed.sums(noise, weights[1])
        return known[0] + completed[0], known[1] + completed[1]


class Augmentation:
    """Distributions of a trained chain's functions and noises given completed tables.

    The observed cells `[N, D]` of its table have these values, `[N, D]`, and missing ones these limits,
    `[N, D, 2]`. Draws may be for the search for a plan: `searching`.
    """

    def __init__(
        self,
        chain: Chain,
        values: Tensor,
        observed: Tensor,
        limits: Tensor | None = None,
        *,
        searching: bool = False,
    ) -> None:
        refuse_priors(chain.links)
        self.chain, self.table, self.observed, self.limits = chain, values, observed, limits
        self.searching = searching
        informative = informative_cells(observed, limits)
        with local_parameters():
            self.kernels: KernelStack = stack_kernels(chain.links)
            among = self.kernels.among()
        with naming(chain.names):
            factors = factorise(among, max(link.jitter for link in chain.links))
        self.inverse = invert_by_blocks(factors)
        self.scales = [CoefficientScales.of(link, searching=searching) for link in chain.links]
        # Of the rest of each kernel.
        self.of_rest = [self.inverse[i, n:, n:] for i, n in enumerate(self.kernels.n_features)]
        self.dtypes = self._dtypes()
        zeros, noise = torch.zeros_like(self.inverse[:, :1]), self.inverse.new_ones(len(self.inverse))
        self.undrawn = quadratic_conditionals(self.kernels, self.inverse, zeros, None, noise)
        self.known_rows, self.completed_rows, entries = list[Tensor](), list[Tensor](), 0
        # Levels that are drawn may be learnt from or not; weights of zero decide it for each chain.
        off = values.where(observed, -1.0)
        for i, link in enumerate(chain.links):
            learnt_from = chain.learns_from(i, off, informative)
            known = learnt_from & observed[:, link.column] & observed[:, link.inputs].all(1)
            entries += int(known.sum()) * link.n_values
            known &= entries <= _KNOWN_ENTRIES
            self.known_rows.append(known.nonzero()[:, 0])
            self.completed_rows.append((learnt_from & ~known).nonzero()[:, 0])
        known_rows = [self.rows(i, values[None, here]) for i, here in enumerate(self.known_rows)]
        self.known = [Rows(*(each[0] for each in rows)) for rows in known_rows]

    def conditional(self, number: int, function: Tensor, noise: Tensor, scales: Tensor) -> Conditional:
        """Return the conditional of a link at functions `[S, M]`, variances `[S, 1]` and scales `[S, M]`."""
        own, weights = self.scales[number], function @ self.inverse[number]
        if own is None:
            latent: Conditional = replace(self.undrawn[number], weights=weights, noise=noise)
        else:
            parts = self.of_rest[number], scales[:, -1:], self.dtypes[number]
            latent = TrendConditional(noise, self.kernels, number, weights, *parts)
        return observing([latent], [self.chain.links[number]])[0]

    @torch.no_grad()
    def _dtypes(self) -> list[torch.dtype]:
        """Return the floating-point type in which cells move given each link: single unless rounding matters.

        It depends on the trained parameters only, not on which draws are made together.
        """
        ratios, epsilon = list[Tensor](), torch.finfo(torch.float32).eps
        for i, (inverse, link) in enumerate(zip(self.of_rest, self.chain.links, strict=True)):
            rounding = inverse.new_full((), math.inf)
            if self.scales[i] is not None and type(self.kernels.parts[i][1]) is Matern32:
                _, _, norms, variance = self.kernels.matern32(i)
                rounding = epsilon * inverse.norm() * variance * (1 + norms.max())
            ratios.append((rounding / link.likelihood.noise).squeeze())
        is_single = (torch.stack(ratios) < _ROUNDING).tolist() if ratios else []
        return [torch.float32 if single else self.inverse.dtype for single in is_single]

    def regression(
        self,
        number: int,
        filled: Tensor,
        scales: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Regression:
        """Return the rows of completed tables `[S, N, D]` from which a link learns.

        Standard deviations of the link's values `[S, M]`, and weights of the rows `[S, N]`, are ones by
        default.
        """
        rows, unless = filled[:, self.completed_rows[number]], self.chain.links[number].unless
        known = self.known[number]
        known = known._replace(rest=self._at_scale(number, known.rest, scales))
        completed = self.rows(number, rows, scales)
        if weights is not None:
            weights = weights[:, self.numbers(number)]
        if unless:
            # A link does not learn from completed rows with an earlier level of its variable.
            free = none_is_on(rows, unless)
            free = torch.nn.functional.pad(free, (len(known.targets), 0), value=True).to(filled)
            weights = free if weights is None else weights * free
        return Regression(known, completed, weights)

    def numbers(self, number: int) -> Tensor:
        """Return the numbers of the rows from which a link learns, the known ones first, `[n]`."""
        return torch.cat([self.known_rows[number], self.completed_rows[number]])

    def with_latents(
        self,
        number: int,
        given: Regression,
        function: Tensor,
        fresh: Callable[[int], Tensor],
        offset: Tensor | None = None,
    ) -> Regression:
        """Return rows with latent variables drawn for the values of a link with an `Ordinal` likelihood.

        Given these, which are the last function drawn `[S, M]`, an offset in the rows `[S, n]` (None for
        none), and noise of variance one, its posterior is Gaussian. `fresh(n)` returns standard normal
        numbers `[S, n]`. Rows of other links are left unchanged.
        """
        likelihood = self.chain.links[number].likelihood
        if not isinstance(likelihood, Ordinal):
            return given

        def latents(rows: Rows, normal: Tensor, offset: Tensor) -> Rows:
            mean = times(function, rows.basis) + offset
            values, rest = (each.expand_as(mean) for each in (rows.targets, rows.rest))
            drawn = likelihood.draw_latent(values, mean, rest, torch.special.ndtr(normal))
            return rows._replace(targets=drawn)

        n_known = len(self.known_rows[number])
        normal = fresh(n_known + len(self.completed_rows[number]))
        offset = torch.zeros_like(normal) if offset is None else offset
        known, completed = normal.tensor_split([n_known], dim=1)
        of_known, of_completed = offset.tensor_split([n_known], dim=1)
        return given._replace(
            known=latents(given.known, known, of_known),
            completed=latents(given.completed, completed, of_completed),
        )

    def rows(self, number: int, rows: Tensor, scales: Tensor | None = None) -> Rows:
        """Return basis and targets of a link in completed rows `[S, n, D]` at its scales, `[S, M]`."""
        targets = rows[..., self.chain.links[number].column]
        features, cross, prior = self.kernels.apart(number, rows.flatten(0, 1))
        basis = self.inverse[number, len(features) :, len(features) :] @ cross
        rest = (prior - basis.square().sum(0)).clamp(min=0).view(rows.shape[:2])
        whole = torch.cat([features, basis]).unflatten(1, targets.shape).movedim(1, 0)
        return Rows(whole, self._at_scale(number, rest, scales), targets)

    def _at_scale(self, number: int, rest: Tensor, scales: Tensor | None) -> Tensor:
        """Return variances, at scales `[S, M]`, that the inducing values do not determine."""
        return rest if self.scales[number] is None or scales is None else rest * scales[:, -1:].square()

    def posterior(
        self,
        number: int,
        given: Regression,
        noise: Tensor,
        last: FunctionPosterior | None,
        scales: Tensor | None = None,
    ) -> FunctionPosterior:
        """Return the distribution of a link's function given rows, noise variances `[S, 1]` and scales.

        Under observations that are not Gaussian it is half a step (see `SITE_STEP`) from the `last`
        distribution, None for the prior, to the variational one.
        """
        n_chains, n_values, _ = given.completed.basis.shape
        prior = self.inverse.new_ones(n_chains, n_values) if scales is None else scales.square()
        link = self.chain.links[number]
        if link.is_gaussian or isinstance(link.likelihood, Ordinal):
            return FunctionPosterior.natural(prior, *given.sums(noise))
        if last is None:
            last = FunctionPosterior.natural(prior, torch.diag_embed(0 * prior), 0 * prior)
        basis, rest, targets = given.joined()
        mean, variance = last.moments(basis)
        pull, precision, _ = site_parameters(link, targets, mean, variance + rest, self.numbers(number))
        if given.weights is not None:
            pull, precision = pull * given.weights, precision * given.weights
        gram = last.gram.lerp((basis * precision[:, None]) @ basis.mT, SITE_STEP)
        shift = last.shift.lerp(times(pull, basis.mT), SITE_STEP)
        return FunctionPosterior.natural(prior, gram, shift)


def draw_noise(given: Regression, function: Tensor, noise: Tensor, normal: Tensor) -> Tensor:
    """Draw the noise variances `[S, 1]` of a Gaussian link, whose roots have half-Cauchy priors of scale 1.

    Takes the whitened inducing values `[S, M]`, the last variances, and standard normal numbers
    `[S, N_NUMBERS]`.
    """
    parts = given.known, given.completed
    left = torch.cat([own.targets - times(function, own.basis) for own in parts], dim=1)
    rest = torch.cat([own.rest.expand(len(function), -1) for own in parts], dim=1)
    return noise_given(left, rest, given.weights, noise, normal)


def noise_given(left: Tensor, rest: Tensor, weights: Tensor | None, noise: Tensor, normal: Tensor) -> Tensor:
    """Draw noise variances `[S, 1]` given what functions leave of targets, and `Rows.rest`, `[S, n]` each.

    For other arguments see `draw_noise`.
    """
    squares, weights = left.square(), torch.ones_like(rest) if weights is None else weights

    def log_density(log_noise: Tensor) -> Tensor:
        variance = log_noise.exp()[:, None] + rest
        prior = 0.5 * log_noise - log_noise.exp().log1p()
        return prior - 0.5 * (weights * (variance.log() + squares / variance)).sum(1)

    # Four standard deviations of log s² if the rest is small.
    width = 4 * math.sqrt(2 / max(squares.shape[1], 1))
    drawn = slice_step(log_density, noise[:, 0].log(), normal, min(width, 1.0))
    return drawn.exp().clamp(min=MIN_NOISE)[:, None]
