"""Links whose functions are drawn together with random effects, and with a process over time if any.

Function and effects have a joint normal distribution given the rows from which the link learns, with the
process integrated out; see `grouped_rows` and `time_process`. Other observations than Gaussian and ordered
ones are replaced by Gaussian sites, as in `data_augmentation`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from pyro_mgp.inference.chain_state import Drawn, LinkDraw, State, Stream
from pyro_mgp.inference.closed_form_rows import SITE_STEP, site_parameters
from pyro_mgp.inference.data_augmentation import Augmentation, Regression, noise_given
from pyro_mgp.inference.function_posterior import FunctionPosterior
from pyro_mgp.inference.grouped_rows import EffectsOfLink, EffectsPosterior, GroupedRows, Sums
from pyro_mgp.inference.random_effects import Grouping
from pyro_mgp.inference.slice_sampling import N_NUMBERS
from pyro_mgp.inference.time_process import CorrelatedRows, TimeProcess
from pyro_mgp.model.conditional import Conditional
from pyro_mgp.model.likelihoods import Ordinal
from pyro_mgp.model.offsets import WithOffsets


@dataclass(frozen=True)
class LinkWithEffects:
    """Link with random effects of groups."""

    augmentation: Augmentation
    effects: EffectsOfLink
    process: TimeProcess | None
    """Process over time in the link; None without one."""

    @classmethod
    def of(
        cls,
        number: int,
        augmentation: Augmentation,
        groupings: Sequence[Grouping],
        process: TimeProcess | None,
    ) -> Self | None:
        """Return the link with a number, given all effects of a chain; None if it has none."""
        if process is not None and number not in process.links:
            process = None
        subjects = [k for k, own in enumerate(groupings) if process and own.column == process.subject]
        effects = EffectsOfLink.of(number, groupings, *subjects)
        return None if effects is None else cls(augmentation, effects, process)

    @property
    def is_normal(self) -> bool:
        """Whether observations, or their latent variables, are the function plus normal noise."""
        link = self.augmentation.chain.links[self.effects.number]
        return link.is_gaussian or isinstance(link.likelihood, Ordinal)

    def with_offsets(self, conditional: Conditional, drawn: Drawn | State) -> Conditional:
        """Return a conditional with what was drawn of effects and process added to its function."""
        for offset in self.effects.offsets(drawn.effects):
            conditional = WithOffsets.of(conditional, offset)
        if self.process is None or drawn.process is None:
            return conditional
        return WithOffsets.of(conditional, self.process.offset(self.effects.number, drawn.process))

    def learn(self, given: Regression, state: State, fresh: Callable[[Stream, int], Tensor]) -> None:
        """Draw function and random effects, then process, noise and scales, in place.

        Takes the rows from which the link learns, and a function that returns standard normal numbers of a
        stream, `[S, n]`.
        """
        i, effects = self.effects.number, self.effects
        link, prior = self.augmentation.chain.links[i], self.augmentation.scales[i]
        function, noise, scales = state.links[i]
        assert prior is not None  # only trends have random effects
        rows, correlated = self._rows(given, state, functools.partial(fresh, Stream.LATENT))
        if correlated is not None:
            sums = correlated.sums(noise)
        else:
            sums = rows.sums(noise) if self.is_normal else self._sums_of_sites(rows, state)
        told = effects.given(sums, state.effects)
        posterior = FunctionPosterior.natural(scales.square(), told.gram, told.shift)
        scales, posterior = prior.rescale(scales, posterior, fresh(Stream.RESCALING, 5))
        function = posterior.draw(fresh(Stream.FUNCTION, function.shape[1]))
        values, drawn = told.draw(function, fresh(Stream.EFFECTS, told.n_numbers))
        state.effects = effects.written(state.effects, values, drawn)
        if correlated is not None:
            left, of_process = correlated.rows.left(values, drawn), functools.partial(fresh, Stream.PROCESS)
            noise, state.process = correlated.draw(left, noise, of_process, has_noise=link.is_gaussian)
        elif link.is_gaussian:
            left = rows.left(values, drawn)
            noise = noise_given(left, rows.rest, rows.weights, noise, fresh(Stream.VARIANCE, N_NUMBERS))
        elif not self.is_normal:
            state.posteriors[i] = EffectsPosterior(posterior, told)
        scales = prior.draw(function, scales, functools.partial(fresh, Stream.SCALE))
        state.links[i] = LinkDraw(function, noise, scales)

    def _rows(
        self, given: Regression, state: State, fresh: Callable[[int], Tensor]
    ) -> tuple[GroupedRows, CorrelatedRows | None]:
        """Return the rows from which the link learns with latent variables drawn, and those of its process.

        The latter is None without a process over time.
        """
        i, numbers = self.effects.number, self.augmentation.numbers(self.effects.number)
        table, process = state.filled[:, numbers], None if self.process is None else state.process
        offset = torch.zeros_like(table[..., 0])
        for each in self.effects.offsets(state.effects):
            offset += each.at(table, ())[0]
        if self.process is not None and process is not None:
            offset += self.process.in_rows(i, process, numbers)
        given = self.augmentation.with_latents(i, given, state.links[i].function, fresh, offset)
        rows = self.effects.rows(given, table)
        if self.process is None or process is None:
            return rows, None
        return rows, CorrelatedRows.of(self.process, i, process, rows, numbers)

    def _sums_of_sites(self, rows: GroupedRows, state: State) -> Sums:
        """Return what rows tell by Gaussian sites of other observations; see `Augmentation.posterior`."""
        i = self.effects.number
        last = state.posteriors[i]
        if last is None:
            nothing = rows.weighted(torch.zeros_like(rows.rest))
            told, prior = self.effects.given(nothing, state.effects), state.links[i].scales.square()
            last = EffectsPosterior(FunctionPosterior.natural(prior, told.gram, told.shift), told)
        assert isinstance(last, EffectsPosterior)
        mean, variance = last.moments(rows)
        given = rows.targets, mean, variance + rows.rest, self.augmentation.numbers(i)
        pull, precision, _ = site_parameters(self.augmentation.chain.links[i], *given)
        sites = replace(rows, targets=pull / precision)
        return last.effects.sums.lerp(sites.weighted(precision * rows.weights), SITE_STEP)
