"""Sampler of missing cells from a fitted chain, in batches of rows.

Imputation j draws one function per link, shared by all rows: by data augmentation if the model has its
training rows, else from q(u). Rows of the training table are as the last sweep of their chain of Gibbs
sampling left them, or repeat it with shifts. Every other row starts from its own draw of a joint Gaussian, or
of the sequential fill if there are local GPs, and several sweeps through the chain redraw its missing cells.
All noise is keyed, so that the draws of a row do not depend on the other rows of its batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice, repeat
from typing import TypeVar

import torch
from torch import Tensor

from pyro_mgp._support.devices import in_halves
from pyro_mgp._support.keyed_noise import KeyedNoise
from pyro_mgp._support.tiles import filled_up, mean_over_paths, whole_tiles
from pyro_mgp.data.encoded_table import EncodedTable
from pyro_mgp.data.transforms import InverseTransform
from pyro_mgp.inference.chain_state import Drawn
from pyro_mgp.inference.data_augmentation import Augmentation
from pyro_mgp.inference.gibbs_chains import GibbsChains, PosteriorChains, burn_in
from pyro_mgp.inference.random_effects import with_effects, without_effects
from pyro_mgp.model.chain import Chain, Noise, Precision
from pyro_mgp.model.conditional import Conditional, Moments
from pyro_mgp.model.likelihoods import Observation, TwoPart
from pyro_mgp.model.likelihoods.numeric import Contaminated, GaussianMixture
from pyro_mgp.model.limited_cells import clamped, informative_cells
from pyro_mgp.model.once_per_group import first_rows
from pyro_mgp.model.sequential_chain import SequentialChain
from pyro_mgp.sampling.discrete_support import DiscreteSupport
from pyro_mgp.sampling.initial_fill import InitialFill
from pyro_mgp.sampling.local_gp import LocalLink
from pyro_mgp.sampling.neighbours import Cells, Conditionals, Neighbours, PathPosteriors, add_local_gp
from pyro_mgp.sampling.new_groups import CellsOfGroups, given_cells, with_new_groups
from pyro_mgp.sampling.new_visits import are_new_visits, given_visits
from pyro_mgp.sampling.residual_process import ResidualProcess
from pyro_mgp.sampling.sampler_cache import SamplerCache

T = TypeVar("T")

# Streams of keyed noise; number 0 is that of the initial fill, 8 of the sequential one.
_FUNCTION, _SWEEP, _OBSERVATION, REPLICATE, _AUGMENTATION, _RESIDUAL, _NEW_GROUPS = 1, 2, 3, 4, 5, 7, 9
_LATENT_OF_GROUPS, _NEW_VISITS = 10, 11
# Starts of the paths that are averaged for means, in turn; a multiple of the number of metrics.
_STARTS_OF_MEANS = 20
# Decimals of a draw in standard deviations of its column: below the smallest noise, above rounding errors.
_DECIMALS: dict[Precision, int] = {"double": 5, "mixed": 3}
# Draws beyond this many standard deviations have diverged: even one outlier in 10¹⁰ cells would be closer.
_FARTHEST = 1e5
# Rows times paths per batch: bounds the memory of the [M, rows · paths] matrices to some 10 MB each.
_ROWS_AT_ONCE = 20_000

Predictive = Callable[[int, Conditional, ResidualProcess | None], Conditional]
"""Function that makes the predictive distribution of a link, given its number, sparse GP and process."""


@dataclass(frozen=True)
class Sampler:
    """Sampler of missing cells from a fitted chain."""

    chain: Chain  # the fitted chain
    start: InitialFill  # joint Gaussian, from which sweeps start without local GPs
    joint: bool  # whether an imputation draws functions shared by all rows, or each cell from q(f) alone
    seed: int  # seed of all noise
    neighbours: Neighbours | None  # local GPs of the links, if there are any
    observations: Sequence[Observation | None]  # of each link, None for function plus Gaussian noise
    inverse_transforms: Sequence[InverseTransform | None]  # of each link's column, None for none
    shifts: Mapping[int, float]  # of functions in the last sweep, by column; see `sensitivity.shifts`
    cache: SamplerCache  # cache shared by all samplers of a chain
    training: EncodedTable | None  # rows given which functions are drawn; None to draw them from q(u)
    n_chains: int  # number of chains of Gibbs sampling of the training rows
    searching: bool = False  # draw for the search for a plan; see `Augmentation`. Nothing is bagged then
    posterior: Sequence[Chain] = ()  # with drawn lengthscales, for each chain of Gibbs sampling; or none

    @torch.no_grad()
    def draws(
        self, rows: EncodedTable, imputations: Sequence[int], batch_size: int | None = None
    ) -> Iterator[tuple[slice, Tensor]]:
        """Draw missing cells for S imputations; yield slices of rows and these completed, `[S, n, D]`.

        The draws do not depend on `batch_size`; None chooses it by memory.
        """
        for here, batch, filled in self.swept(rows, imputations, batch_size):
            if self.chain.propagate == "latent":
                filled = self._with_noise(filled, batch, imputations)
            yield here, self.rounded(filled)

    @torch.no_grad()
    def swept(
        self, rows: EncodedTable, imputations: Sequence[int], batch_size: int | None = None
    ) -> Iterator[tuple[slice, EncodedTable, Tensor]]:
        """Yield slices of rows, the rows, and their fill by the sweeps without noise, `[S, n, D]`."""
        if (order := self._order(rows)) is not None:
            back = order.argsort()
            for here, batch, filled in self.swept(rows[order], imputations):
                yield here, batch[back], filled[:, back]
            return

        def sweep(here: slice) -> tuple[EncodedTable, Tensor]:
            batch = self._batch(rows, here)
            return batch, self._filled(batch, imputations)

        for whole in self._slices(rows, len(imputations), batch_size):
            for here, (batch, filled) in in_halves(whole, sweep):
                n_rows = here.stop - here.start
                self._check(filled, batch)
                yield here, batch[:n_rows], filled[:, :n_rows]

    def _filled(self, rows: EncodedTable, imputations: Sequence[int]) -> Tensor:
        """Return rows with their missing cells drawn, `[S, n, D]`."""
        # Rows of the training table are those of their chains; others have sweeps of their own.
        place = self.place(rows)
        filled = rows.values.repeat(len(imputations), 1, 1)
        for kind in (place >= 0, place < 0):
            if kind.any():
                here = filled_up(kind.nonzero()[:, 0])
                filled[:, here] = self._drawn(rows[here], place[here], imputations)
        return filled

    def _drawn(self, rows: EncodedTable, place: Tensor, imputations: Sequence[int]) -> Tensor:
        """Return rows with missing cells drawn, `[S, n, D]`; all or none are in the training table."""
        if place[0] >= 0 and not self.shifts:
            return self._kept(rows, place, imputations, redrawn=True)
        start = self.starts(rows, imputations)
        predictive = self.predictive(rows, imputations, start)
        processes, sparse = self._processes(imputations), self.sparse(imputations)
        if place[0] >= 0:
            last: Conditionals = [*map(predictive, count(), sparse, processes)]
            filled = self._kept(rows, place, imputations)
            sweeps = self._sweeps([last], filled, rows, imputations)
        else:
            of_sweeps = self.of_sweeps(predictive, sparse, imputations, processes)
            sweeps = self._sweeps(of_sweeps, start, rows, imputations)
        *_, (last, filled, _) = sweeps
        return self._revisited(last, filled, rows, imputations) if self.shifts else filled

    def _revisited(
        self, last: Conditionals, filled: Tensor, rows: EncodedTable, imputations: Sequence[int]
    ) -> Tensor:
        """Return rows `[S, n, D]` in which other cells were drawn again after a sweep with shifts.

        With shifts in every sweep, columns that predict each other would shift each other repeatedly: shifts
        are in the last sweep only. Then the links before the shifted ones, or all other links of a sequential
        chain, are visited once more, while the shifted cells are kept.
        """
        chain, n_sweeps, observed = self.chain, self.chain.n_sweeps, rows.observed
        noise, holes = self._sweep_noise(rows, imputations), self._holes(rows, imputations)
        if not isinstance(chain, SequentialChain):
            moved = [i for i, link in enumerate(chain.links) if link.column in self.shifts]
            before = [i < max(moved, default=0) and i not in moved for i in range(len(chain.links))]
            again = [cells if early else cells[:0] for cells, early in zip(holes, before, strict=True)]
            return chain.sweep(last, filled, observed, noise(n_sweeps - 1), again, rows.limits)[0]
        kept = observed.clone()
        kept[:, list(self.shifts)] = True
        here = (kept != observed).any(1)
        again = [filled_up(cells[here[cells]], len(filled)) for cells in chain.holes(rows.values, kept)]
        # Reweighting moves cells instead of redrawing them: it takes several sweeps until they have their
        # conditional distribution, and noise that was used before would move them back.
        for sweep in range(n_sweeps, 2 * n_sweeps):
            filled, _ = chain.sweep(last, filled, kept, noise(sweep), again, rows.limits)
        return filled

    def _check(self, filled: Tensor, rows: EncodedTable) -> None:
        """Raise a FloatingPointError if draws `[S, n, D]` of a column exceed any plausible value."""
        columns = [link.column for link in self.chain.links]
        if filled.numel() == 0 or not columns:
            return
        # Observed outliers may legitimately move draws of other cells far away.
        largest = rows.values.where(rows.observed, 0.0).abs().max().clamp(min=1)
        # Together, so that the host waits for a GPU once.
        *farthest, of_observed = torch.cat([filled.detach().abs().amax((0, 1)), largest[None]]).tolist()
        for name, column in zip(self.chain.names, columns, strict=True):
            if not (far := farthest[column]) <= _FARTHEST * of_observed:
                raise FloatingPointError(
                    f"column {name!r}: draws diverged, to {far:.3g} standard deviations. "
                    "Nearly collinear columns can amplify each other's draws: "
                    "leave one out, give columns bounds (ColumnSpec(lower=..., upper=...)), or fewer n_sweeps"
                )

    @torch.no_grad()
    def means(self, rows: EncodedTable, imputations: Sequence[int]) -> Tensor:
        """Return the rows `[n, D]` with missing cells at their predictive means.

        Conditional means are averaged over paths and over the sweeps after burn-in, in transformed columns in
        the column's own units.
        """
        if (order := self._order(rows)) is not None:
            return self.means(rows[order], imputations)[order.argsort()]
        parts, linked = [self.start.expected(rows[:0])], self.chain.linked_columns
        for here in self._slices(rows, len(imputations)):
            batch = self._batch(rows, here)
            point, holes = self.start.expected(batch), self._holes(batch, imputations)
            total, first = torch.zeros_like(point), burn_in(self.chain.n_sweeps)
            sweeps = self._all_sweeps(batch, imputations)
            for conditionals, filled, visited in islice(sweeps, first, None):
                self._add_means(total, conditionals, filled, visited, holes, batch.limits)
            total /= self.chain.n_sweeps - first
            two_parts = [each for each in self.chain.compounds if isinstance(each, TwoPart)]
            at_bound = [each.is_bound(total[holes[each.links[1]], each.columns[1]]) for each in two_parts]
            for link, cells, inverse in zip(self.chain.links, holes, self.inverse_transforms, strict=True):
                if inverse is not None:
                    total[cells, link.column] = inverse.standardise(total[cells, link.column])
            for compound, is_bound in zip(two_parts, at_bound, strict=True):
                cells, (indicator, amount) = holes[compound.links[0]], compound.columns
                total[cells, indicator] = torch.where(is_bound, compound.on, compound.off)
                total[cells, amount] = total[cells, amount].where(~is_bound, 0.0)
            self._write_in_groups(total, batch, holes)
            total = total.round(decimals=_DECIMALS[self.chain.precision])
            point[:, linked] = point[:, linked].where(batch.observed[:, linked], total[:, linked])
            parts.append(point[: here.stop - here.start])
        return torch.cat(parts)

    def _write_in_groups(self, total: Tensor, rows: EncodedTable, holes: Cells) -> None:
        """Write cells of columns that are constant within groups into all rows of these, in place."""
        for i, (link, cells) in enumerate(zip(self.chain.links, holes, strict=True)):
            if link.once_per is not None and len(cells):
                written, whose = link.written(rows.values, rows.observed, cells)
                for column in self.chain.columns_from(i):
                    total[written, column] = total[cells[whose], column]

    def _add_means(
        self,
        total: Tensor,
        conditionals: Conditionals,
        filled: Tensor,
        visited: list[Moments],
        holes: Cells,
        limits: Tensor | None,
    ) -> None:
        """Add the expectations of missing cells after a sweep, averaged over paths, in place."""
        expected: list[Tensor] = []
        of_compounds = self.chain.links_of_compounds
        for i, (link, cells) in enumerate(zip(self.chain.links, holes, strict=True)):
            inverse = self.inverse_transforms[i]
            # Later links have reweighted the draws, or limits have truncated their distributions.
            if isinstance(self.chain, SequentialChain) or limits is not None:
                drawn = filled[:, cells, link.column]
                expected.append(drawn if inverse is None else inverse(drawn))
            else:
                expected.append(conditionals[i].expectation(visited[i], inverse))
            if i not in of_compounds:
                total[cells, link.column] += mean_over_paths(expected[i])
        for compound in self.chain.compounds:
            cells, answers = holes[compound.links[0]], [expected[i] for i in compound.links]
            if isinstance(compound, TwoPart):
                means = torch.stack([answers[0], compound.numbers(*answers)], dim=-1)
            else:
                means = compound.expectation(torch.stack(answers, dim=-1))
            mean = mean_over_paths(means.flatten(1)).unflatten(0, means.shape[1:])
            total[cells[:, None], list(compound.columns)] += mean

    @torch.no_grad()
    def target(self, rows: EncodedTable, imputations: Sequence[int]) -> GaussianMixture:
        """Return the predictive distribution, with noise, of the target: the column of the last link."""
        parts, errors = [], None
        for here in self._slices(rows, len(imputations)):
            batch = self._batch(rows, here)
            sweeps = islice(self._all_sweeps(batch, imputations), burn_in(self.chain.n_sweeps), None)
            counted = [(visited[-1], conditionals[-1]) for conditionals, _, visited in sweeps]
            n_rows = here.stop - here.start
            variance = torch.cat([at.variance + conditional.noise for at, conditional in counted])
            parts.append((torch.cat([at.mean for at, _ in counted])[:, :n_rows], variance[:, :n_rows]))
            errors = counted[-1][1].observation
        moments = [torch.cat(part, dim=1) for part in zip(*parts, strict=True)]
        return errors.mixture(*moments) if isinstance(errors, Contaminated) else GaussianMixture(*moments)

    def _with_noise(self, filled: Tensor, rows: EncodedTable, imputations: Sequence[int]) -> Tensor:
        """Add observation noise to function values in missing cells, if links propagate functions only."""
        noise, holes = KeyedNoise(self.seed, rows.keys, imputations), self._holes(rows)
        for i, (link, cells) in enumerate(zip(self.chain.links, holes, strict=True)):
            if not isinstance(link.likelihood, Observation):
                eps = noise.normal(_OBSERVATION, i, rows=cells)
                filled[:, cells, link.column] += eps * link.likelihood.noise.sqrt()
        return filled

    def rounded(self, filled: Tensor) -> Tensor:
        """Round draws, except for values of a discrete support: rounding errors depend on the batch."""
        rounded = torch.round(filled, decimals=_DECIMALS[self.chain.precision])
        pairs = zip(self.chain.links, self.observations, strict=True)
        exact = [link.column for link, observation in pairs if isinstance(observation, DiscreteSupport)]
        rounded[..., exact] = filled[..., exact]
        return rounded

    @torch.no_grad()
    def starts(self, rows: EncodedTable, paths: Sequence[int], own: Tensor | None = None) -> Tensor:
        """Return rows with missing cells filled as they are before the first sweep, `[S, n, D]`.

        They are draws from the sequential fill if there are local GPs, else from the joint Gaussian. For
        `own` see `Neighbours`.
        """
        neighbours = self.neighbours
        if neighbours is None:
            return clamped(self.start.draw(rows, self.seed, paths), rows.observed, rows.limits)
        numbers = neighbours.numbers_of_starts(paths)
        distinct = sorted(set(numbers))
        links = self.chain, self.cache.marginals(self.chain), self.observations
        filled = neighbours.fill.starts(*links, rows, self.seed, distinct, own)
        filled = filled[[distinct.index(number) for number in numbers]]
        linked = self.chain.linked_columns
        if without := [d for d in range(filled.shape[-1]) if d not in linked]:
            # Columns without a link keep this fill, which must not be that of another imputation.
            filled[..., without] = self.start.draw(rows, self.seed, paths)[..., without]
        return clamped(filled, rows.observed, rows.limits)

    @torch.no_grad()
    def predictive(
        self,
        rows: EncodedTable,
        paths: Sequence[int],
        start: Tensor,
        cells: Cells | None = None,
        own: Tensor | None = None,
    ) -> Predictive:
        """Return the function that adds local GP and observation model to the sparse GP of a link.

        It gives the predictive distribution of the link at its cells, whose rows default to those of its
        missing cells. Neighbours are selected at the filled rows `start`, `[S, n, D]`. For `own` and
        processes see `Neighbours`.
        """
        neighbours = self.neighbours
        if neighbours is None:
            return lambda i, sparse, _: sparse.observed_as(self.observations[i])
        marginals, numbers = self.cache.marginals(self.chain), neighbours.numbers_of_starts(paths)
        here = self._holes(rows, paths) if cells is None else cells

        def posterior(i: int) -> PathPosteriors | None:
            return neighbours.posterior(i, start, here[i], numbers, own)

        kept = functools.cache(posterior) if neighbours.fits(here, len(set(numbers))) else posterior

        def predictive(i: int, sparse: Conditional, process: ResidualProcess | None) -> Conditional:
            corrected = add_local_gp(sparse, marginals[i], kept(i), process)
            return corrected.observed_as(self.observations[i])

        return predictive

    @torch.no_grad()
    def sparse(self, imputations: Sequence[int]) -> Conditionals:
        """Return the links' sparse GPs at the drawn functions of imputations, or at the means of q(u)."""
        if not self.joint:
            return self.cache.marginals(self.chain)

        def conditionals() -> Conditionals:
            if self.training is None:
                return self.chain.conditionals(self.functions(imputations))
            drawn = self._augmented(self.training, imputations)
            return self._at(self.chains(self.training), drawn, imputations)

        return self._cached("functions", imputations, conditionals)

    def _at(
        self, chains: GibbsChains | PosteriorChains, drawn: Drawn, imputations: Sequence[int]
    ) -> Conditionals:
        """Return the sparse GPs at what chains drew for imputations, with effects of new groups."""
        given = chains.groupings, drawn.effects, self.seed, _NEW_GROUPS, imputations
        return with_new_groups(chains.conditionals(imputations, drawn), *given)

    @torch.no_grad()
    def sparse_of_burn_in(self, imputations: Sequence[int], sparse: Conditionals) -> Conditionals:
        """Return the sparse GPs for all sweeps of new rows but the last one, whose sparse GPs are given.

        In a joint density they are the same. Links that see all other columns have functions from q(u), as in
        their chains; see `gibbs_chains`.
        """
        is_sequential = isinstance(self.chain, SequentialChain)
        if self.training is None or not self.joint or is_sequential or self.chain.n_sweeps == 1:
            return sparse
        functions = replace(self, training=None).functions
        return self._cached("burn-in", imputations, lambda: self.chain.conditionals(functions(imputations)))

    @torch.no_grad()
    def functions(self, imputations: Sequence[int]) -> list[Tensor]:
        """Return one function per link and imputation, as whitened inducing values `[S, M]`."""
        if self.training is not None:
            drawn = self._augmented(self.training, imputations)
            known = self.chains(self.training).groupings, drawn.effects
            return with_effects(self.chain, [link.function for link in drawn.links], *known)
        return self.chain.functions(lambda link, n: self._noise(n, imputations).normal(_FUNCTION, link))

    def _augmented(self, training: EncodedTable, imputations: Sequence[int]) -> Drawn:
        """Return what the chains of the training table drew for imputations."""
        return self._cached("draws", imputations, lambda: self.chains(training).draws(imputations))

    def chains(self, training: EncodedTable) -> GibbsChains | PosteriorChains:
        """Return the chains that draw functions given the completed training table."""

        def chains() -> GibbsChains | PosteriorChains:
            if not self.posterior:
                return self._gibbs_chains(training, self.chain, range(self.n_chains))
            own = enumerate(self.posterior[: self.n_chains])
            return PosteriorChains([self._gibbs_chains(training, chain, [path]) for path, chain in own])

        return self._cached("chains", [self.n_chains], chains)

    def _gibbs_chains(self, training: EncodedTable, chain: Chain, paths: Sequence[int]) -> GibbsChains:
        """Return those of the chains of Gibbs sampling that have the numbers of some paths."""
        # Numbers of paths and rows are copied to a GPU, for which the host waits, once.
        noise_of = functools.cache(lambda n: self._noise(n, paths))

        def fresh(n_numbers: int, *stream: int) -> Tensor:
            return noise_of(n_numbers).normal(_AUGMENTATION, *stream)

        @functools.lru_cache(maxsize=1)
        def sweep_noise(draw: int) -> Callable[[int], Noise]:
            return self._sweep_noise(training, imputations(draw))

        def imputations(draw: int) -> list[int]:
            return [draw * self.n_chains + path for path in paths]

        def completed(draw: int, i: int, sparse: Conditional) -> Conditional:
            if near is None:
                return sparse.observed_as(self.observations[i])
            return predictive(numbers(draw))(i, sparse, self._processes(imputations(draw))[i])

        def numbers(draw: int) -> tuple[int, ...]:
            # Draws of large tables share starts, and neighbours that take long to find.
            return tuple(near.numbers_of_starts(imputations(draw)) if near else imputations(draw))

        # The chains make one draw after the other.
        start = functools.lru_cache(maxsize=1)(functools.partial(self.starts, training))

        @functools.lru_cache(maxsize=1)
        def predictive(paths: tuple[int, ...]) -> Predictive:
            return self.predictive(training, paths, start(paths))

        near, holes = self.neighbours, self._holes(training, paths)
        given = training.values, training.observed, training.limits
        has_support = any(isinstance(each, DiscreteSupport) for each in self.observations)
        is_corrected = self.neighbours is not None or has_support
        return GibbsChains(
            Augmentation(without_effects(chain), *given, searching=self.searching),
            lambda draw: start(numbers(draw)),
            fresh,
            lambda draw, sweep: sweep_noise(draw)(sweep),
            holes,
            completed,
            lambda filled: self._check(filled, training),
            bagged=not self.searching and is_corrected and not isinstance(chain, SequentialChain),
            keeps_conditionals=near is None or near.fits(holes, len(paths)),
        )

    def _cached(self, kind: str, numbers: Sequence[int], make: Callable[[], T]) -> T:
        """Return the result of `make()`, which depends on the chains and some numbers, or the cached one."""
        return self.cache.get(self.chain, kind, (self.seed, self.searching, tuple(numbers)), make)

    def _processes(self, imputations: Sequence[int]) -> list[ResidualProcess | None]:
        """Draw each link's residual process; None without a local GP."""
        if self.neighbours is None or not self.joint:
            return [None] * len(self.chain.links)

        def draw(i: int, metrics: Sequence[LocalLink]) -> ResidualProcess:
            def normal(n: int, kind: int) -> Tensor:
                return self._noise(n, imputations).normal(_RESIDUAL, i, kind)

            return ResidualProcess.of(metrics, imputations, normal)

        links = list(enumerate(self.neighbours.links))
        return self._cached(
            "processes", imputations, lambda: [draw(i, own) if own else None for i, own in links]
        )

    def place(self, rows: EncodedTable) -> Tensor:
        """Return the number of each row in the training table, `[n]`; -1 for rows that are not in it."""
        if self.training is None or not self.joint:
            return torch.full_like(rows.keys, -1)
        return self.training.numbers_of(rows)

    def _kept(
        self, rows: EncodedTable, place: Tensor, imputations: Sequence[int], *, redrawn: bool = False
    ) -> Tensor:
        """Return rows `place` of the training table before or after their last sweep, `[S, n, D]`."""
        training = self.training
        assert training is not None  # rows were found in it
        missing = ~training.observed
        number = missing.flatten().cumsum(0).view_as(missing) - 1
        filled = rows.values.repeat(len(imputations), 1, 1)
        drawn = self._augmented(training, imputations)
        cells = drawn.redrawn if redrawn else drawn.cells
        filled[:, missing[place]] = cells[:, number[place][missing[place]]]
        return filled

    def of_sweeps(
        self,
        predictive: Predictive,
        sparse: Conditionals,
        paths: Sequence[int],
        processes: Iterable[ResidualProcess | None] = repeat(None),
    ) -> Sequence[Conditionals]:
        """Return the conditionals of all sweeps of new rows, given the sparse GPs of the last one."""
        early, last = self.sparse_of_burn_in(paths, sparse), [*map(predictive, count(), sparse, processes)]
        before = last if early is sparse else [*map(predictive, count(), early, processes)]
        return [before] * (self.chain.n_sweeps - 1) + [last]

    def _noise(self, n: int, imputations: Sequence[int]) -> KeyedNoise:
        """Return keyed noise for n quantities that all rows share, such as inducing values."""
        return KeyedNoise(self.seed, torch.arange(n, device=self.start.device), imputations)

    def _all_sweeps(
        self, rows: EncodedTable, paths: Sequence[int]
    ) -> Iterator[tuple[Conditionals, Tensor, list[Moments]]]:
        """Yield conditionals, fill and moments of all sweeps of rows, as if none was in the training table.

        For averages, more functions are better than independent ones: they are those of iterations.
        """
        if self.training is not None and self.joint:
            chains = self.chains(self.training)
            sparse: Conditionals = self._at(chains, chains.draws(paths, of_iterations=True), paths)
        else:
            sparse = self.sparse(paths)
        # Further starts would hardly make averages more precise, but each has neighbours to be kept.
        numbers = [j % _STARTS_OF_MEANS for j in paths]
        start = self.starts(rows, numbers)
        of_sweeps = self.of_sweeps(self.predictive(rows, numbers, start), sparse, paths)
        yield from self._sweeps(of_sweeps, start, rows, paths)

    def _sweeps(
        self, of_sweeps: Sequence[Conditionals], filled: Tensor, rows: EncodedTable, paths: Sequence[int]
    ) -> Iterator[tuple[Conditionals, Tensor, list[Moments]]]:
        """Yield conditionals, fill and moments of the last sweeps of rows from a fill, `[S, n, D]`.

        The very last one is with shifts.
        """
        noise, holes, own = self._sweep_noise(rows, paths), self._holes(rows, paths), list[Conditional]()
        for sweep, conditionals in enumerate(of_sweeps, self.chain.n_sweeps - len(of_sweeps)):
            own = self.given_rows(conditionals, own, filled, rows, paths, sweep)
            used = self._shifted(own) if sweep == self.chain.n_sweeps - 1 else own
            filled, visited = self.chain.sweep(used, filled, rows.observed, noise(sweep), holes, rows.limits)
            yield own, filled, visited

    def _shifted(self, conditionals: Conditionals) -> list[Conditional]:
        """Return conditionals with the shifts of their functions."""
        return [
            own.shifted(self.shifts[link.column]) if link.column in self.shifts else own
            for own, link in zip(conditionals, self.chain.links, strict=True)
        ]

    def given_rows(
        self,
        conditionals: Conditionals,
        before: Conditionals,
        filled: Tensor,
        rows: EncodedTable,
        imputations: Sequence[int],
        sweep: int,
    ) -> list[Conditional]:
        """Return conditionals with what is new in rows `[S, n, D]` drawn given these, before a sweep.

        It is effects of new groups, and the process over time at new visits. Takes the conditionals of the
        sweep before, empty for the first: those of a joint density are the same but for what is new.
        """
        chain = self.chain
        if not isinstance(chain, SequentialChain) or not self.has_new_effects(rows):
            return list(conditionals)
        informative = chain.informative(informative_cells(rows.observed, rows.limits))
        once = first_rows(rows.keys, torch.ones_like(rows.keys, dtype=torch.bool))
        told = [
            link.once(rows.values, own) & once for link, own in zip(chain.links, informative, strict=True)
        ]
        noise = KeyedNoise(self.seed, rows.keys, imputations)

        def normal(i: int, block: int) -> Tensor:
            return noise.normal(_LATENT_OF_GROUPS, sweep, i, 1 + block)

        cells = CellsOfGroups(chain.links, filled, told, normal)
        own = given_cells(before or conditionals, cells, sweep)
        return given_visits(own, cells, lambda i: noise.normal(_NEW_VISITS, sweep, i))

    def has_new_effects(self, rows: EncodedTable) -> bool:
        """Return whether rows belong to groups, or are visits, that were not in the table of the fit."""
        if self.training is None or not self.joint:
            return False
        chains = self.chains(self.training)
        return any(
            bool((grouping.numbers(rows.values) >= grouping.effects.n_groups).any())
            for grouping in chains.groupings
        ) or (chains.process is not None and bool(are_new_visits(chains.process, rows.values).any()))

    def _sweep_noise(self, rows: EncodedTable, imputations: Sequence[int]) -> Callable[[int], Noise]:
        """Return the keyed noise of the sweeps, as a function of their number."""
        noise = KeyedNoise(self.seed, rows.keys, imputations)
        return lambda sweep: lambda link, cells: noise.normal(_SWEEP, sweep, link, rows=cells)

    def _holes(self, rows: EncodedTable, imputations: Sequence[int] = range(1)) -> list[Tensor]:
        """Return the numbers of the rows of each link's missing cells, filled up to whole tiles."""
        # Rounding in local GPs depends on the number of cells, not of cells times paths.
        n_paths = len(imputations) if self.neighbours is None else 1
        return [filled_up(cells, n_paths) for cells in self.chain.holes(rows.values, rows.observed)]

    def _order(self, rows: EncodedTable) -> Tensor | None:
        """Return the order of the keys of rows whose groups have cells in common; None if they are in it.

        The noise of a common cell is that of its group's first row, which must not depend on their order.
        """
        order = rows.keys.argsort(stable=True)
        in_order = bool((order.diff() == 1).all())
        return None if in_order or not self.chain.has_cells_of_groups else order

    def _slices(self, rows: EncodedTable, n_paths: int, batch_size: int | None = None) -> Iterator[slice]:
        """Yield the slices of batches of rows."""
        size = batch_size or whole_tiles(_ROWS_AT_ONCE // n_paths)
        if self.chain.has_cells_of_groups or self.has_new_effects(rows):
            size = len(rows)  # the rows of a group have some cells, or what tells of its effects, in common
        if batch_size is None and self.neighbours is not None:
            size = min(size, whole_tiles(self.neighbours.rows_at_once(n_paths)))
        return (slice(i, min(i + size, len(rows))) for i in range(0, len(rows), size))

    def _batch(self, rows: EncodedTable, here: slice) -> EncodedTable:
        """Return the rows of a slice on the sampler's device, filled up to whole tiles."""
        index = filled_up(torch.arange(here.start, here.stop, device=rows.keys.device))
        return rows[index].to(self.start.device)
