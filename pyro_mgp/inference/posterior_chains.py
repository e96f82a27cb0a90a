"""Chains of Gibbs sampling at draws of hyperparameters, which differ from chain to chain."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyro_mgp.inference.gibbs_chains import Drawn, GibbsChains
from pyro_mgp.inference.mixing import Record
from pyro_mgp.model.conditional import Conditional, PathwiseConditional


@dataclass(frozen=True)
class PosteriorChains:
    """Chains of Gibbs sampling, one for each of K draws of hyperparameters; see `GibbsChains`.

    Number j of a draw or an iteration is number j // K of chain j % K.
    """

    chains: Sequence[GibbsChains]
    """Chains of a joint density, each by itself."""
    continues: bool = True
    """Whether chains go on from draw to draw."""

    @property
    def record(self) -> Record:
        """The record of all chains."""
        return functools.reduce(Record.beside, [chains.record for chains in self.chains])

    @property
    def n_recorded(self) -> tuple[int, int, int]:
        """Number of chains in the record, their iterations after burn-in, and draws of each."""
        return len(self.chains), *self.chains[0].n_recorded[1:]

    def draws(self, imputations: Sequence[int]) -> Drawn:
        """Return what was drawn for imputations."""
        return self._collected(imputations, GibbsChains.draws)

    def iterations(self, paths: Sequence[int]) -> Drawn:
        """Return functions for averages, without cells."""
        return self._collected(paths, GibbsChains.iterations)

    def conditionals(self, numbers: Sequence[int], drawn: Drawn) -> list[Conditional]:
        """Return the conditionals of the links at what was drawn for some numbers."""
        own = [self._of(number).conditionals([number], drawn[[path]]) for path, number in enumerate(numbers)]
        return [PathwiseConditional(of_link) for of_link in zip(*own, strict=True)]

    def _of(self, number: int) -> GibbsChains:
        return self.chains[number % len(self.chains)]

    def _collected(
        self, numbers: Sequence[int], collect: Callable[[GibbsChains, Sequence[int]], Drawn]
    ) -> Drawn:
        # All chains make equally many draws, so that they can be compared.
        last = max(numbers) // len(self.chains)
        for chains in self.chains:
            collect(chains, [last])
        return Drawn.cat([collect(self._of(number), [number // len(self.chains)]) for number in numbers])
