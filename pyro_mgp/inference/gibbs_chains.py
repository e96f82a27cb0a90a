"""Chains of Gibbs sampling of functions, noise variances and missing cells, from which imputations come.

An iteration visits link after link: it draws the link's function and noise variance given the completed table
(see `data_augmentation`), then the missing cells of its column. A joint density draws all functions first.

Links that see all other columns are the conditionals of no joint density, and chains that go on through them
converge to no distribution: their error grows. Each of their draws is therefore made by a few iterations from
the initial fill, as in chained equations (van Buuren 2018, section 4.5), of which the last one draws
functions given the completed table. Those before draw from q(u), which is flatter and takes cells away from
the initial fill sooner.

Where local GPs and discrete supports correct such links, a Gaussian process with one noise variance is not
the right model, and imputations vary too little, because the corrections are estimated and kept. Each draw
then weighs the rows by a Bayesian bootstrap, w ~ Exp(1), which makes a bagged posterior (Huggins and Miller,
2019, arXiv:1912.07104), conservative where the model is right after all. On six public tables with 30 %
missing, mean z² of completed-data correlations fell from 1.66 to 1.41, and the CRPS stayed as it was.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from pyro_mgp.inference.chain_state import Drawn, LinkDraw, State, Stream
from pyro_mgp.inference.data_augmentation import Augmentation, Regression, draw_noise
from pyro_mgp.inference.grouped_rows import EffectsPosterior
from pyro_mgp.inference.link_with_effects import LinkWithEffects
from pyro_mgp.inference.mixing import Record
from pyro_mgp.inference.random_effects import Grouping
from pyro_mgp.inference.slice_sampling import N_NUMBERS
from pyro_mgp.inference.time_process import TimeProcess
from pyro_mgp.model.chain import Noise, by_column
from pyro_mgp.model.conditional import Conditional, Moments, PathwiseConditional
from pyro_mgp.model.kernels import trend_of
from pyro_mgp.model.likelihoods import Ordinal
from pyro_mgp.model.link import Link
from pyro_mgp.model.local_parameters import local_parameters
from pyro_mgp.model.sequential_chain import SequentialChain

# Possible numbers of chains, and the rows that they sweep together if possible, without and with local GPs.
# Without, twenty imputations, the usual number, are one draw of all chains or several: none is left over.
# With local GPs, of which chains share what takes most of their time, numbers are multiples of four, because
# imputations alternate between four metrics (`Neighbours`). Sixteen chains would draw twice, as twelve do.
_NUMBERS, _ROWS_AT_ONCE = (20, 10, 5, 4), 10_000
_NUMBERS_WITH_LOCAL_GPS, _ROWS_WITH_LOCAL_GPS = (20, 12, 8, 4), 200_000
# Entries of all chains' precision matrices of a function.
_ENTRIES_AT_ONCE = 2_000_000
# Iterations of a joint density until the first draw, in multiples of those between draws, in the search for a
# plan and for imputations. From the order alone summaries of `mixed_2000` and `eleven_2000` are 1.1 posterior
# standard deviations from their expectations, and .4 after ten iterations; the error of eight chains is .35.
# Interactions are .02 smaller if imputations start after ten iterations instead of fifteen, however long the
# search is; with five in the search a heavy-tailed column of little noise gets a wrong plan
# (`benchmarks/speed`).
_BURN_IN_OF_SEARCH, _BURN_IN = 2, 3
# Gibbs steps for function and noise in the one iteration in which other chains learn: with one step, too many
# noises stay near the estimates from which they start.
_TURNS = 3
# Standard deviations of coefficients, relative to the trained ones, from which chains start where few of many
# matter.
_SPARSE_START = 0.1
Fresh = Callable[..., Tensor]
"""Standard normal numbers of a stream, `[S, n]`: `fresh(n, *stream)`."""


def burn_in(n_sweeps: int) -> int:
    """Return the number of sweeps to discard as burn-in, which still depend on the initial fill."""
    return n_sweeps // 3


class _Schedule(NamedTuple):
    """Numbers of the iterations up to a draw; those of burn-in of a joint density are negative."""

    sweeps: range
    """All of them."""
    learning: range
    """Those that draw functions and noises given the completed table."""
    recorded: range
    """Those whose cells show how chains mix."""
    counted: range
    """Those whose functions serve for averages."""


class GibbsChains:
    """Chains of Gibbs sampling of functions, noise variances and missing cells, which make draws on demand.

    A draw takes `n_sweeps` iterations, numbered like other sweeps. Chains of a joint density go on from draw
    to draw, after a burn-in before the first; other chains begin anew, see the module.

    Args:
        augmentation: Distributions of the functions. A search for a plan has a shorter burn-in.
        initial_fill: Function that returns the filled training table for the k-th start, `[S, N, D]`.
        fresh: Standard normal numbers of functions and variances.
        sweep_noise: Standard normal numbers of a sweep, by the numbers of draw and sweep.
        holes: Rows of each link's missing cells.
        predictive: Predictive distribution of a link's missing cells, given the numbers of the draw and
            of the link, and its conditional at drawn functions.
        check: Function that raises an error if completed tables `[S, N, D]` have diverged.
        bagged: Whether the posteriors of functions and noises are bagged, in chains that begin anew.
        keeps_conditionals: Whether the predictive distributions of all links fit into memory together.
    """

    def __init__(
        self,
        augmentation: Augmentation,
        initial_fill: Callable[[int], Tensor],
        fresh: Fresh,
        sweep_noise: Callable[[int, int], Noise],
        holes: Sequence[Tensor],
        predictive: Callable[[int, int, Conditional], Conditional] = lambda _, __, conditional: conditional,
        check: Callable[[Tensor], None] = lambda _: None,
        *,
        bagged: bool = False,
        keeps_conditionals: bool = True,
    ) -> None:
        self.augmentation, self.chain, self.observed = augmentation, augmentation.chain, augmentation.observed
        self.limits, self.holes, self.check = augmentation.limits, holes, check
        self.predictive, self.bagged = predictive, bagged
        self.initial_fill, self.fresh, self.sweep_noise = initial_fill, fresh, sweep_noise
        # Functions of sparse terms start far from where they end.
        is_short = augmentation.searching and not any(map(_is_sparse, self.chain.links))
        self.burn_in = _BURN_IN_OF_SEARCH if is_short else _BURN_IN
        self.keeps_conditionals, self.lock = keeps_conditionals, Lock()
        self.kept, self.passed = list[Drawn](), list[Drawn]()
        """Draws, and functions without cells of all iterations after burn-in that learnt them."""
        self.continues = isinstance(self.chain, SequentialChain)
        """Whether chains go on from draw to draw."""
        self.groupings = Grouping.of(self.chain)
        """Random effects, for each column of groups."""
        self.process = TimeProcess.of(self.chain, augmentation.table)
        """Process over time within subjects; None without one."""
        given = augmentation, self.groupings, self.process
        self.with_effects = [LinkWithEffects.of(i, *given) for i in range(len(self.chain.links))]
        """Links with random effects; None for others."""
        self.state = self._start()
        self.n_chains = len(self.state.filled)
        cells = enumerate(self.chain.holes(augmentation.table, self.observed))
        self.record = Record({i: (rows, self.chain.links[i].column) for i, rows in cells if len(rows)})

    @property
    def n_recorded(self) -> tuple[int, int, int]:
        """Number of chains in the record, their iterations after burn-in, and draws of each."""
        runs = 1 if self.continues else max(len(self.kept), 1)
        return self.n_chains * runs, len(self.record.trace), len(self.kept) // runs

    def _start(self) -> State:
        """Return the state in which chains begin before the next draw, with functions from q(u)."""
        chain, filled = self.chain, self.initial_fill(len(self.kept))
        functions = chain.functions(lambda link, n: self.fresh(n, Stream.FUNCTION, link, len(self.kept)))
        links = [
            self._start_of(i, function, link.likelihood.noise.expand(len(filled), 1))
            for i, (function, link) in enumerate(zip(functions, chain.links, strict=True))
        ]
        weights = None
        if self.bagged:
            weights = -torch.special.log_ndtr(self.fresh(filled.shape[1], Stream.WEIGHT, len(self.kept)))
        effects = [grouping.start(len(filled)) for grouping in self.groupings]
        process = None if self.process is None else self.process.start(len(filled))
        return State(links, [None] * len(links), by_column(filled), weights, effects, process)

    def _start_of(self, number: int, function: Tensor, noise: Tensor) -> LinkDraw:
        """Return a link's state before the first draw, given a function from q(u) and the trained noise.

        With nearly as many terms as rows, functions that interpolate are a mode that chains do not leave:
        they start from one that hardly explains the column.
        """
        scales, prior = torch.ones_like(function), self.augmentation.scales[number]
        if prior is not None and _is_sparse(self.chain.links[number]):
            scales[:, prior.products] = _SPARSE_START
            noise = torch.ones_like(noise)
        return LinkDraw(function, noise, scales)

    def draws(self, numbers: Sequence[int], *, of_iterations: bool = False) -> Drawn:
        """Return what was drawn for imputations; number j is draw j // S of chain j % S.

        With `of_iterations`, number j is iteration j // S of chain j % S, and functions come without cells,
        for averages: consecutive iterations are dependent, but more of them make an average more precise.
        """
        with self.lock:
            while len(self.passed if of_iterations else self.kept) * self.n_chains <= max(numbers):
                self._draw()
            return Drawn.cat(self.passed if of_iterations else self.kept)[list(numbers)]

    def conditionals(self, numbers: Sequence[int], drawn: Drawn) -> list[Conditional]:
        """Return the conditionals of the links at what was drawn for some numbers."""
        return [self._conditional(i, drawn) for i in range(len(drawn.links))]

    def _conditional(self, i: int, drawn: Drawn | State) -> Conditional:
        """Return the conditional of a link at what was drawn."""
        conditional, link = self.augmentation.conditional(i, *drawn.links[i]), self.with_effects[i]
        return conditional if link is None else link.with_offsets(conditional, drawn)

    def _draw(self) -> None:
        """Run the chains up to their next draw; an error or an interruption leaves them as they were."""
        state, record, schedule = self.state, self.record, self._schedule()
        if not (self.continues and self.kept):
            state, record = self._start(), Record(self.record.places)
        passed, known = list[Drawn](), list[Conditional]()
        if self.keeps_conditionals and not self.continues and self.chain.n_sweeps > 1:
            known = [self._predictive(state, i) for i in range(len(self.holes))]
        for sweep in schedule.sweeps:
            is_learning = sweep in schedule.learning
            before, state = self._iterate(state, sweep, is_learning, [] if is_learning else known)
            if sweep in schedule.recorded:
                record = record.with_iteration(state.filled)
            if sweep in schedule.counted:
                none = before.new_zeros(self.n_chains, 0)
                passed.append(Drawn(state.links, none, none, [*state.effects], state.process))
        self._check_draw(state)
        missing = ~self.observed
        drawn = replace(passed[-1], cells=before[:, missing], redrawn=state.filled[:, missing])
        self.state, self.kept, self.passed = state, [*self.kept, drawn], [*self.passed, *passed]
        self.record = record if self.continues or not self.record.trace else self.record.beside(record)

    def _schedule(self) -> _Schedule:
        """Return the iterations up to the next draw."""
        n, last = self.chain.n_sweeps, range(self.chain.n_sweeps - 1, self.chain.n_sweeps)
        if not self.continues:
            return _Schedule(range(n), last, range(burn_in(n), n), last)
        if self.kept:
            return _Schedule(range(n), range(n), range(n), range(n))
        first = (1 - self.burn_in) * n
        # Cells of the first iteration are drawn by functions from q(u).
        return _Schedule(range(first, n), range(first + 1, n), range(n), range(n))

    def _check_draw(self, state: State) -> None:
        """Raise a FloatingPointError if cells or functions have diverged, which a GPU says once per draw."""
        self.check(state.filled)
        # Cells of a column of levels are finite even if the function is not.
        is_finite = torch.stack([own.function.isfinite().all() for own in state.links]).tolist()
        if not all(is_finite):
            name = self.chain.names[is_finite.index(False)]
            raise FloatingPointError(
                f"column {name!r}: the function drawn given the completed table is not finite, its precision "
                "has no Cholesky factor. Leave out columns that nearly repeat others, or take fewer n_sweeps"
            )

    @torch.no_grad()
    def _iterate(
        self, state: State, sweep: int, learns: bool, known: Sequence[Conditional]
    ) -> tuple[Tensor, State]:
        """Draw the functions, if it `learns`, and the missing cells of all links.

        Predictive distributions at the functions of the state may be `known`. Returns the completed tables
        `[S, N, D]` before the cells were drawn, and the state afterwards.
        """
        chain = self.chain
        noise, visited = self.sweep_noise(len(self.kept), sweep), list[Moments]()
        new = state.copy()
        try:
            with local_parameters():
                # All links of a joint density learn from the same table.
                conditionals = self._all_learnt(new, sweep, learns) if self.continues else []
                before = new.filled.clone()
                for i, holes in enumerate(self.holes):
                    if not self.continues:
                        conditionals.append(known[i] if known else self._learnt(new, i, sweep, learns))
                    chain.visit(conditionals, new.filled, self.observed, noise, visited, holes, self.limits)
        except RuntimeError:
            self.check(new.filled)  # functions learnt from diverged cells have no finite precision
            raise
        if not new.filled.is_cuda:  # the host would wait for a GPU
            self.check(new.filled)
        return before, new

    def _all_learnt(self, state: State, sweep: int, learns: bool) -> list[Conditional]:
        """Return the predictive distributions of a joint density's links; see `_learnt`."""
        conditionals = [self._learnt(state, i, sweep, learns) for i in range(len(self.holes))]
        for k, grouping in enumerate(self.groupings if learns else ()):
            normal = self.fresh(grouping.n_numbers, Stream.COVARIANCE_OF_EFFECTS, len(self.kept), sweep, k)
            state.effects[k] = grouping.draw_precision(state.effects[k], normal)
        if learns and self.process is not None and state.process is not None:
            normal = self.fresh(self.process.n_numbers, Stream.COVARIANCE_OF_PROCESS, len(self.kept), sweep)
            state.process = self.process.draw_covariance(state.process, normal)
        return conditionals

    def _learnt(self, state: State, i: int, sweep: int, learns: bool) -> Conditional:
        """Return the predictive distribution of a link's cells, whose function is drawn if it `learns`."""
        if learns:
            given = self.augmentation.regression(i, state.filled, state.links[i].scales, state.weights)
            for turn in range(1 if self.continues else _TURNS):
                stream, link = (len(self.kept), sweep, i, turn), self.with_effects[i]
                if link is None:
                    self._learn_from(given, state, i, stream)
                else:
                    link.learn(given, state, functools.partial(self._fresh, stream))
        return self._predictive(state, i)

    def _learn_from(self, given: Regression, state: State, i: int, stream: tuple[int, ...]) -> None:
        """Draw the function, then noise variance and scales, of a link, given its rows, in place."""
        augmentation, (function, noise, scales) = self.augmentation, state.links[i]
        link, prior, last = self.chain.links[i], augmentation.scales[i], state.posteriors[i]
        fresh = functools.partial(self._fresh, stream, Stream.LATENT)
        given = augmentation.with_latents(i, given, function, fresh)
        assert not isinstance(last, EffectsPosterior)
        posterior = augmentation.posterior(i, given, noise, last, scales)
        if prior is not None:
            scales, posterior = prior.rescale(scales, posterior, self.fresh(5, Stream.RESCALING, *stream))
        function = posterior.draw(self.fresh(function.shape[1], Stream.FUNCTION, *stream))
        if link.is_gaussian:
            noise = draw_noise(given, function, noise, self.fresh(N_NUMBERS, Stream.VARIANCE, *stream))
        elif not isinstance(link.likelihood, Ordinal):
            state.posteriors[i] = posterior
        if prior is not None:
            scales = prior.draw(function, scales, functools.partial(self._fresh, stream, Stream.SCALE))
        state.links[i] = LinkDraw(function, noise, scales)

    def _fresh(self, stream: tuple[int, ...], kind: Stream, n: int) -> Tensor:
        return self.fresh(n, kind, *stream)

    def _predictive(self, state: State, i: int) -> Conditional:
        """Return the predictive distribution of a link's cells."""
        return self.predictive(len(self.kept), i, self._conditional(i, state))


@dataclass(frozen=True)
class PosteriorChains:
    """Chains of Gibbs sampling, one for each of K draws of hyperparameters; see `GibbsChains`.

    Number j of a draw or an iteration is number j // K of chain j % K.
    """

    chains: Sequence[GibbsChains]  # chains of a joint density, each by itself
    continues: ClassVar[bool] = True  # whether chains go on from draw to draw
    groupings: ClassVar[list[Grouping]] = []
    """Random effects, of which there are none with drawn lengthscales."""
    process: ClassVar[TimeProcess | None] = None
    """Process over time, of which there is none either."""

    @property
    def record(self) -> Record:
        """The record of all chains."""
        return functools.reduce(Record.beside, [chains.record for chains in self.chains])

    @property
    def n_recorded(self) -> tuple[int, int, int]:
        """Number of chains in the record, their iterations after burn-in, and draws of each."""
        return len(self.chains), *self.chains[0].n_recorded[1:]

    def draws(self, numbers: Sequence[int], *, of_iterations: bool = False) -> Drawn:
        """Return what was drawn for imputations, or in iterations; see `GibbsChains`."""
        # All chains make equally many draws, so that they can be compared.
        k = len(self.chains)
        for chains in self.chains:
            chains.draws([max(numbers) // k], of_iterations=of_iterations)
        each = [self.chains[j % k].draws([j // k], of_iterations=of_iterations) for j in numbers]
        return Drawn.cat(each)

    def conditionals(self, numbers: Sequence[int], drawn: Drawn) -> list[Conditional]:
        """Return the conditionals of the links at what was drawn for some numbers."""
        k = len(self.chains)
        own = [self.chains[j % k].conditionals([j], drawn[[path]]) for path, j in enumerate(numbers)]
        return [PathwiseConditional.of(of_link) for of_link in zip(*own, strict=True)]


def _is_sparse(link: Link) -> bool:
    """Return whether few of many linear terms of a link are expected to matter."""
    trend, _ = trend_of(link.kernel)
    return trend is not None and len(trend.sparse_deviations) > 0


def n_chains(n_rows: int, *, local_gps: bool = False, n_values: int = 0) -> int:
    """Return the number of chains: more for small tables, whose chains move slowly, and with local GPs.

    There are fewer if functions have many values.
    """
    at_once = _ROWS_WITH_LOCAL_GPS if local_gps else _ROWS_AT_ONCE
    most = min(at_once // max(n_rows, 1), _ENTRIES_AT_ONCE // max(n_values, 1) ** 2)
    numbers = _NUMBERS_WITH_LOCAL_GPS if local_gps else _NUMBERS
    return next((n for n in numbers if n <= most), numbers[-1])
