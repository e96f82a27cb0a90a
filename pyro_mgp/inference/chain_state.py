"""State of chains of Gibbs sampling, and what is kept of it for imputations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_mgp.inference.function_posterior import FunctionPosterior
from pyro_mgp.inference.grouped_rows import EffectsPosterior
from pyro_mgp.inference.random_effects import EffectsDraw
from pyro_mgp.inference.time_process import ProcessDraw


class Stream(IntEnum):
    """Streams of the chains' noise."""

    FUNCTION = 0
    VARIANCE = 1
    SCALE = 2
    RESCALING = 3
    LATENT = 4
    WEIGHT = 5
    COVARIANCE_OF_EFFECTS = 6
    PROCESS = 7
    COVARIANCE_OF_PROCESS = 8
    EFFECTS = 9


class LinkDraw(NamedTuple):
    """Function, noise variance and scales of a link, drawn in S chains."""

    function: Tensor  # whitened inducing values, `[S, M]`
    noise: Tensor  # noise variances, `[S, 1]`
    scales: Tensor  # standard deviations of the inducing values, relative to the trained ones, `[S, M]`


@dataclass(frozen=True)
class Drawn:
    """Functions and noise variances drawn for S imputations, and missing cells, row by row, `[S, cells]`."""

    links: list[LinkDraw]  # what was drawn for each link
    cells: Tensor  # missing cells of the training table before the last iteration
    redrawn: Tensor  # missing cells after the last iteration
    effects: Sequence[EffectsDraw] = ()  # random effects, for each column of groups
    process: ProcessDraw | None = None  # process over time; None without one

    @classmethod
    def cat(cls, parts: Sequence[Drawn]) -> Drawn:
        """Concatenate the draws of consecutive imputations."""
        of_links = zip(*(part.links for part in parts), strict=True)
        links = [LinkDraw(*map(torch.cat, zip(*own, strict=True))) for own in of_links]
        cells, redrawn = (torch.cat([getattr(part, name) for part in parts]) for name in ("cells", "redrawn"))
        of_groups = zip(*(part.effects for part in parts), strict=True)
        effects = [EffectsDraw(*map(torch.cat, zip(*own, strict=True))) for own in of_groups]
        of_process = [part.process for part in parts if part.process is not None]
        process = ProcessDraw(*map(torch.cat, zip(*of_process, strict=True))) if of_process else None
        return cls(links, cells, redrawn, effects, process)

    def __getitem__(self, imputations: Sequence[int]) -> Drawn:
        links = [LinkDraw(*(each[imputations] for each in own)) for own in self.links]
        effects = [EffectsDraw(*(each[imputations] for each in own)) for own in self.effects]
        cells, redrawn, process = self.cells[imputations], self.redrawn[imputations], self.process
        if process is not None:
            process = ProcessDraw(*(each[imputations] for each in process))
        return Drawn(links, cells, redrawn, effects, process)


@dataclass
class State:
    """State of S chains after an iteration."""

    links: list[LinkDraw]
    """Last draw of each link."""
    posteriors: list[FunctionPosterior | EffectsPosterior | None]
    """Distributions of functions, with random effects if any; None before the first iteration."""
    filled: Tensor
    """Completed tables, `[S, N, D]`."""
    weights: Tensor | None
    """Weights of the rows, `[S, N]`; None for weights of one."""
    effects: list[EffectsDraw]
    """Random effects of each column of groups."""
    process: ProcessDraw | None
    """Process over time; None without one."""

    def copy(self) -> State:
        """Return a state that can be changed in place without changing this one."""
        lists = [*self.links], [*self.posteriors], self.filled.clone(), self.weights, [*self.effects]
        return State(*lists, self.process)
