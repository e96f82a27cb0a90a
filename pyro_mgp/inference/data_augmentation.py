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
cells drawn next would change with the function of their own column only, not with those of the columns that
they predict, and variances between imputations would come out a third too small. A sequential chain is a
joint density, whose functions are independent given the completed table: it draws all of them first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_mgp.inference.closed_form_rows import SITE_STEP, site_parameters
from pyro_mgp.inference.coefficient_scales import CoefficientScales
from pyro_mgp.inference.mixing import Record
from pyro_mgp.inference.slice_sampling import N_NUMBERS, slice_step
from pyro_mgp.model.chain import Chain, Noise, by_column
from pyro_mgp.model.cholesky import factorise, invert_by_blocks, naming
from pyro_mgp.model.conditional import (
    Conditional,
    Moments,
    TrendConditional,
    quadratic_conditionals,
)
from pyro_mgp.model.kernel_stack import KernelStack
from pyro_mgp.model.likelihoods import MIN_NOISE, Ordinal
from pyro_mgp.model.linear_matern32_stack import stack_kernels
from pyro_mgp.model.link import observing, refuse_priors
from pyro_mgp.model.local_parameters import local_parameters
from pyro_mgp.model.sequential_chain import SequentialChain

# Fewest and most chains of Gibbs sampling, and the rows that all of them sweep together if possible. Their
# number is a multiple of the fewest: imputations alternate between as many metrics, see `Neighbours`.
_FEWEST_CHAINS, _MOST_CHAINS, _ROWS_AT_ONCE = 4, 20, 10_000
# Iterations until the first draw, in multiples of those between draws.
_BURN_IN = 2
# Entries of the basis of known rows that are kept, all links together: 256 MB.
_KNOWN_ENTRIES = 2**25
# Streams of noise.
_FUNCTION, _VARIANCE, _SCALE, _RESCALING, _LATENT = range(5)

Fresh = Callable[..., Tensor]
"""Standard normal numbers of a stream, `[S, n]`: `fresh(n, *stream)`."""


@dataclass(frozen=True)
class Drawn:
    """Functions and noise variances drawn for S imputations, and the cells from which they were drawn."""

    functions: list[Tensor]
    """Whitened inducing values of each link, `[S, M]`."""
    noises: list[Tensor]
    """Noise variances of each link, `[S, 1]`."""
    scales: list[Tensor]
    """Standard deviations of each link's values, relative to the trained ones, `[S, M]`."""
    cells: Tensor
    """Missing cells of the training table before the last iteration, row by row, `[S, cells]`."""

    @property
    def of_links(self) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Functions, noise variances and scales."""
        return self.functions, self.noises, self.scales

    @classmethod
    def cat(cls, parts: Sequence[Drawn]) -> Drawn:
        """Concatenate the draws of consecutive imputations."""
        functions, noises, scales = (
            [torch.cat(own) for own in zip(*(getattr(part, name) for part in parts), strict=True)]
            for name in ("functions", "noises", "scales")
        )
        return cls(functions, noises, scales, torch.cat([part.cells for part in parts]))

    def __getitem__(self, imputations: Sequence[int]) -> Drawn:
        functions, noises, scales = ([each[imputations] for each in own] for own in self.of_links)
        return Drawn(functions, noises, scales, self.cells[imputations])


@dataclass(frozen=True)
class FunctionPosterior:
    """Normal distribution of a link's whitened inducing values v in S chains."""

    gram: Tensor
    """Precisions that the rows add to the prior's, `[S, M, M]`."""
    shift: Tensor
    """Precisions A times means, `[S, M]`."""
    mean: Tensor
    """Means, `[S, M]`."""
    factor: Tensor
    """Cholesky factors of A, the sum of both precisions, `[S, M, M]`."""

    @classmethod
    def natural(cls, prior: Tensor, gram: Tensor, shift: Tensor) -> FunctionPosterior:
        """Return the distribution with a prior of variances `[S, M]`, what rows add to it, and a shift."""
        factor = torch.linalg.cholesky(gram + torch.diag_embed(prior.reciprocal()))
        return cls(gram, shift, torch.cholesky_solve(shift[..., None], factor)[..., 0], factor)

    def draw(self, eps: Tensor) -> Tensor:
        """Draw v `[S, M]`, given standard normal numbers `[S, M]`."""
        return self.mean + torch.linalg.solve_triangular(self.factor.mT, eps[..., None], upper=True)[..., 0]

    def moments(self, basis: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of functions with basis `[S, M, n]`, `[S, n]` each."""
        whitened = torch.linalg.solve_triangular(self.factor, basis, upper=False)
        return _times(self.mean, basis), whitened.square().sum(-2)


class Rows(NamedTuple):
    """Rows from which a link learns: n known rows, or completed rows of S chains, `[S, ...]`."""

    basis: Tensor
    """Whitened basis Φ, `[M, n]`."""
    rest: Tensor
    """Variances of the function that the inducing values do not determine, `[n]`."""
    targets: Tensor
    """Cells of the link's column, `[n]`."""

    def sums(self, noise: Tensor, counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return ΦWΦᵀ, `[S, M, M]`, and ΦWt, `[S, M]`, with weights W of one over the targets' variances.

        Given the inducing values, a target has the noise's variance `[S, 1]` and that of the rest.
        """
        weights = 1 / (noise + self.rest)
        if counts is not None:
            weights = weights * counts
        basis = self.basis * weights[:, None]
        return basis @ self.basis.mT, _times(self.targets, basis.mT)


class Regression(NamedTuple):
    """Rows from which a link learns."""

    known: Rows
    """Rows whose inputs and target are observed: they are the same in all chains."""
    completed: Rows
    """The other rows, completed in S chains."""
    counts: Tensor | None
    """Bool `[S, n]`, the completed rows without an earlier level of the link's variable; None for all."""

    def sums(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weighted sums of all rows at noise variances `[S, 1]`; see `Rows.sums`."""
        known, completed = self.known.sums(noise), self.completed.sums(noise, self.counts)
        return known[0] + completed[0], known[1] + completed[1]

    def joined(self) -> Rows:
        """Return all rows in S chains, the known ones first."""
        n_chains = len(self.completed.targets)
        pairs = zip(self.known, self.completed, strict=True)
        return Rows(
            *(
                torch.cat([known.expand(n_chains, *other.shape[1:-1], -1), other], -1)
                for known, other in pairs
            )
        )


class Augmentation:
    """Distributions of a chain's functions and noises given completed tables.

    Args:
        chain: The trained chain.
        values: Values of the observed cells of its table, `[N, D]`.
        observed: Bool `[N, D]`, the observed cells.
    """

    def __init__(self, chain: Chain, values: Tensor, observed: Tensor) -> None:
        refuse_priors(chain.links)
        self.chain, self.observed = chain, observed
        with local_parameters():
            self.kernels: KernelStack = stack_kernels(chain.links)
            among = self.kernels.among()
        with naming(chain.names):
            factors = factorise(among, max(link.jitter for link in chain.links))
        self.inverse = invert_by_blocks(factors)
        self.scales = [CoefficientScales.of(link) for link in chain.links]
        zeros, noise = torch.zeros_like(self.inverse[:, :1]), self.inverse.new_ones(len(self.inverse))
        self.undrawn = quadratic_conditionals(self.kernels, self.inverse, zeros, None, noise)
        self.known_rows, self.completed_rows, entries = list[Tensor](), list[Tensor](), 0
        # Levels that are drawn may be learnt from or not; `_counts` decides it for each chain.
        off = values.where(observed, -1.0)
        for i, link in enumerate(chain.links):
            learnt_from = chain.learns_from(i, off, observed)
            known = learnt_from & observed[:, link.column] & observed[:, link.inputs].all(1)
            entries += int(known.sum()) * link.n_values
            known &= entries <= _KNOWN_ENTRIES
            self.known_rows.append(known.nonzero()[:, 0])
            self.completed_rows.append((learnt_from & ~known).nonzero()[:, 0])
        pairs = enumerate(self.known_rows)
        self.known = [Rows(*(each[0] for each in self._rows(i, values[None, rows]))) for i, rows in pairs]

    def conditionals(
        self, functions: Sequence[Tensor], noises: Sequence[Tensor], scales: Sequence[Tensor] | None = None
    ) -> list[Conditional]:
        """Return the conditionals of the links at drawn functions, noise variances and scales."""
        known = [torch.ones_like(function) for function in functions] if scales is None else scales
        each = enumerate(zip(functions, noises, known, strict=True))
        return [self.conditional(i, *of_link) for i, of_link in each]

    def conditional(self, number: int, function: Tensor, noise: Tensor, scales: Tensor) -> Conditional:
        """Return the conditional of a link at functions `[S, M]`, variances `[S, 1]` and scales `[S, M]`."""
        undrawn, own = self.undrawn[number], self.scales[number]
        weights = function @ self.inverse[number] if undrawn.inverse is None else function
        if own is None:
            latent: Conditional = replace(undrawn, weights=weights.to(self.kernels.dtype), noise=noise)
        else:
            inverse = self.inverse[number][own.rest][:, own.rest]
            form = inverse.mT @ inverse
            latent = TrendConditional(self.kernels, number, weights, form, noise, scales[:, -1:])
        return observing([latent], [self.chain.links[number]])[0]

    def n_rows(self, number: int) -> int:
        """Return the number of rows from which a link may learn."""
        return len(self.known_rows[number]) + len(self.completed_rows[number])

    def regression(self, number: int, filled: Tensor, scales: Tensor | None = None) -> Regression:
        """Return the rows of completed tables `[S, N, D]` from which a link learns, at scales `[S, M]`."""
        rows, unless = filled[:, self.completed_rows[number]], self.chain.links[number].unless
        known, completed = self.known[number], self._rows(number, rows)
        if self.scales[number] is not None and scales is not None:
            spread = scales[:, -1:].square()
            known, completed = (each._replace(rest=each.rest * spread) for each in (known, completed))
        counts = (rows[..., unless] < 0).all(-1) if unless else None
        return Regression(known, completed, counts)

    def with_latents(self, number: int, given: Regression, function: Tensor, normal: Tensor) -> Regression:
        """Return rows with latent variables drawn for the values of a link with an `Ordinal` likelihood.

        Given these, which are the function plus noise of variance one, its posterior is Gaussian.

        Args:
            number: Number of the link.
            given: The rows.
            function: The last function drawn, `[S, M]`.
            normal: Standard normal numbers, `[S, n]`.
        """
        likelihood = self.chain.links[number].likelihood
        assert isinstance(likelihood, Ordinal)

        def latents(rows: Rows, normal: Tensor) -> Rows:
            mean = _times(function, rows.basis)
            values, rest = (each.expand_as(mean) for each in (rows.targets, rows.rest))
            return rows._replace(
                targets=likelihood.draw_latent(values, mean, rest, torch.special.ndtr(normal))
            )

        sizes = [len(self.known_rows[number]), len(self.completed_rows[number])]
        known, completed = normal.split(sizes, dim=1)
        return given._replace(
            known=latents(given.known, known), completed=latents(given.completed, completed)
        )

    def _rows(self, number: int, rows: Tensor) -> Rows:
        """Return basis and targets of a link in rows `[S, n, D]`, each `[S, ...]`."""
        targets = rows[..., self.chain.links[number].column]
        features, cross, prior = self.kernels.apart(number, rows.flatten(0, 1))
        n_features = len(features)
        basis = self.inverse[number, n_features:, n_features:] @ cross
        rest = (prior - basis.square().sum(0)).clamp(min=0)
        basis = torch.cat([features, basis]).unflatten(1, targets.shape).movedim(1, 0)
        return Rows(basis, rest.view_as(targets), targets)

    def posterior(
        self,
        number: int,
        given: Regression,
        noise: Tensor,
        last: FunctionPosterior | None,
        scales: Tensor | None = None,
    ) -> FunctionPosterior:
        """Return the distribution of a link's function given rows, noise variances `[S, 1]` and scales.

        Under observations that are not Gaussian it is half a step from the `last` distribution (None for
        the prior) to the variational one: whole steps oscillate if values are linearly separable.
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
        rows = torch.cat([self.known_rows[number], self.completed_rows[number]])
        pull, weights, _ = site_parameters(link, targets, mean, variance + rest, rows)
        if given.counts is not None:
            counts = torch.nn.functional.pad(given.counts, (len(given.known.targets), 0), value=True)
            pull, weights = pull * counts, weights * counts
        gram = (basis * weights[:, None]) @ basis.mT
        return FunctionPosterior.natural(
            prior,
            last.gram.lerp(gram, SITE_STEP),
            last.shift.lerp(_times(pull, basis.mT), SITE_STEP),
        )


def _times(vector: Tensor, matrix: Tensor) -> Tensor:
    """Multiply vectors `[..., M]` by matrices `[..., M, n]`."""
    return (vector[..., None, :] @ matrix)[..., 0, :]


def draw_noise(given: Regression, function: Tensor, noise: Tensor, normal: Tensor) -> Tensor:
    """Draw the noise variances `[S, 1]` of a Gaussian link, whose roots have half-Cauchy priors of scale 1.

    Args:
        given: The rows from which it learns.
        function: Whitened inducing values, `[S, M]`.
        noise: The noise variances drawn last, `[S, 1]`.
        normal: Standard normal numbers, `[S, N_NUMBERS]`.
    """
    parts = given.known, given.completed
    squares = torch.cat([(own.targets - _times(function, own.basis)).square() for own in parts], dim=1)
    rest = torch.cat([own.rest.expand(len(function), -1) for own in parts], dim=1)

    def log_density(log_noise: Tensor) -> Tensor:
        variance = log_noise.exp()[:, None] + rest
        prior = 0.5 * log_noise - log_noise.exp().log1p()
        return prior - 0.5 * (variance.log() + squares / variance).sum(1)

    # Four standard deviations of log s² if the rest is small.
    width = 4 * math.sqrt(2 / max(squares.shape[1], 1))
    drawn = slice_step(log_density, noise[:, 0].log(), normal, min(width, 1.0))
    return drawn.exp().clamp(min=MIN_NOISE)[:, None]


class State(NamedTuple):
    """State of S chains after an iteration."""

    functions: list[Tensor]
    """Whitened inducing values of each link, `[S, M]`."""
    noises: list[Tensor]
    """Noise variances of each link, `[S, 1]`."""
    scales: list[Tensor]
    """Standard deviations of each link's values, relative to the trained ones, `[S, M]`."""
    posteriors: list[FunctionPosterior | None]
    """Distributions of the functions; None before the first iteration."""
    filled: Tensor
    """Completed tables, `[S, N, D]`."""


class GibbsChains:
    """Chains of Gibbs sampling of functions, noise variances and missing cells; they continue on demand.

    There are `n_sweeps` of the chain from draw to draw, and twice as many before the first. They have the
    numbers of other sweeps before a draw, up to `n_sweeps - 1`; those of burn-in begin at `-n_sweeps`.

    Args:
        augmentation: Distributions of the functions.
        filled: Initial fill of the training table in S chains, `[S, N, D]`.
        fresh: Standard normal numbers of functions and variances.
        sweep_noise: Standard normal numbers of a sweep, by the numbers of draw and sweep.
        holes: Rows of each link's missing cells.
        predictive: Predictive distribution of a link's missing cells, given the numbers of the draw and
            of the link, and its conditional at drawn functions; None for the conditional itself.
        check: Function that raises an error if completed tables `[S, N, D]` have diverged.
    """

    def __init__(
        self,
        augmentation: Augmentation,
        filled: Tensor,
        fresh: Fresh,
        sweep_noise: Callable[[int, int], Noise],
        holes: Sequence[Tensor],
        predictive: Callable[[int, int, Conditional], Conditional] = lambda _, __, conditional: conditional,
        check: Callable[[Tensor], None] = lambda _: None,
    ) -> None:
        self.augmentation, self.holes, self.check = augmentation, holes, check
        self.fresh, self.sweep_noise, self.predictive = fresh, sweep_noise, predictive
        self.n_chains, self.kept, self.lock = len(filled), list[Drawn](), Lock()
        self.passed = list[Drawn]()
        """Functions of all iterations after burn-in, without cells."""
        chain = augmentation.chain
        self.first = (1 - _BURN_IN) * chain.n_sweeps
        functions = chain.functions(lambda link, n: fresh(n, _FUNCTION, link))
        noises = [link.likelihood.noise.expand(len(filled), 1) for link in chain.links]
        scales = [torch.ones_like(function) for function in functions]
        self.state = State(functions, noises, scales, [None] * len(functions), by_column(filled))
        cells = enumerate(chain.holes(augmentation.observed))
        self.record = Record({i: (rows, chain.links[i].column) for i, rows in cells if len(rows)})

    def draws(self, imputations: Sequence[int]) -> Drawn:
        """Return what was drawn for imputations; number j is draw j // S of chain j % S."""
        with self.lock:
            while len(self.kept) * self.n_chains <= max(imputations):
                self._draw()
        return Drawn.cat(self.kept)[list(imputations)]

    def iterations(self, paths: Sequence[int]) -> Drawn:
        """Return functions for averages, without cells; number j is iteration j // S of chain j % S.

        Those of consecutive iterations depend on each other, but more of them make an average more precise.
        """
        with self.lock:
            while len(self.passed) * self.n_chains <= max(paths):
                self._draw()
        return Drawn.cat(self.passed)[list(paths)]

    def _draw(self) -> None:
        """Run the chains up to their next draw; an error or an interruption leaves them as they were."""
        n_sweeps, before, state = self.augmentation.chain.n_sweeps, self.state.filled, self.state
        record, passed = self.record, list[Drawn]()
        for sweep in range(0 if self.kept else self.first, n_sweeps):
            before, state = state.filled, self._iterate(state, sweep)
            if sweep >= 0:
                record = record.with_iteration(state.filled)
                functions = state.functions, state.noises, state.scales
                passed.append(Drawn(*functions, before.new_zeros(self.n_chains, 0)))
        drawn = replace(passed[-1], cells=before[:, ~self.augmentation.observed])
        self.state, self.record, self.kept = state, record, [*self.kept, drawn]
        self.passed = [*self.passed, *passed]

    @torch.no_grad()
    def _iterate(self, state: State, sweep: int) -> State:
        """Draw the functions and the missing cells of all links."""
        chain, observed = self.augmentation.chain, self.augmentation.observed
        noise, visited = self.sweep_noise(len(self.kept), sweep), list[Moments]()
        functions, noises, scales, posteriors, filled = state
        new = State([*functions], [*noises], [*scales], [*posteriors], filled.clone())
        links, conditionals = range(len(self.holes)), list[Conditional]()
        try:
            with local_parameters():
                for i in links:
                    # All links of a joint density learn from the same table.
                    learning = [i] if not isinstance(chain, SequentialChain) else links if i == 0 else []
                    conditionals += [self._learn(new, each, sweep) for each in learning]
                    chain.visit(conditionals, new.filled, observed, noise, visited, self.holes[i])
        except RuntimeError:
            self.check(new.filled)  # functions learnt from diverged cells have no finite precision
            raise
        self.check(new.filled)
        return new

    def _learn(self, state: State, i: int, sweep: int) -> Conditional:
        """Draw the function and the noise variance of a link, in place; return the predictive distribution.

        In the first sweep the function is still the one from q(u).
        """
        augmentation, noise, scales = self.augmentation, state.noises[i], state.scales[i]
        if (len(self.kept), sweep) != (0, self.first):
            given = augmentation.regression(i, state.filled, scales)
            stream = len(self.kept), sweep, i
            if isinstance(augmentation.chain.links[i].likelihood, Ordinal):
                normal = self.fresh(augmentation.n_rows(i), _LATENT, *stream)
                given = augmentation.with_latents(i, given, state.functions[i], normal)
            posterior = augmentation.posterior(i, given, noise, state.posteriors[i], scales)
            function = posterior.draw(self.fresh(state.functions[i].shape[1], _FUNCTION, *stream))
            if (prior := augmentation.scales[i]) is not None:
                normal = self.fresh(N_NUMBERS, _RESCALING, *stream)
                function, scales = prior.rescale(function, scales, posterior.gram, posterior.shift, normal)
            state.functions[i] = function
            if augmentation.chain.links[i].is_gaussian:
                normal = self.fresh(N_NUMBERS, _VARIANCE, *stream)
                state.noises[i] = draw_noise(given, function, noise, normal)
            elif not isinstance(augmentation.chain.links[i].likelihood, Ordinal):
                state.posteriors[i] = posterior
            if prior is not None:
                state.scales[i] = prior.draw(
                    function, scales, lambda n, kind: self.fresh(n, _SCALE, kind, *stream)
                )
        drawn = state.functions[i], state.noises[i], state.scales[i]
        return self.predictive(len(self.kept), i, augmentation.conditional(i, *drawn))


def n_chains(n_rows: int) -> int:
    """Return the number of chains for a table: more for small tables, whose chains move slowly."""
    fitting = _ROWS_AT_ONCE // max(n_rows, 1) // _FEWEST_CHAINS * _FEWEST_CHAINS
    return min(max(fitting, _FEWEST_CHAINS), _MOST_CHAINS)
