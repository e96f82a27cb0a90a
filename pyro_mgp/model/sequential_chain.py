"""A chain that is a joint density: each link sees complete columns and earlier links only.

    p(x) = Π_d p(x_d | complete columns, x_<d)
    p(x_d missing | rest) ∝ p(x_d | x_<d) · Π_e>d p(x_e | x_<e)

A link that predicts its column from all others has to learn the inverse of what others do with it. Where that
is curved (y = x₁x₂ + noise, x₁ missing), the inverse has several branches and a spread of its own
at every place, which a Gaussian process with one noise does not have; analyses of such imputations are
biased. Here the inverse is never learnt. A missing cell is drawn from its own link and weighed by the later
links, where they know something: by elliptical slice sampling (Murray, Adams and MacKay, AISTATS 2010), which
needs no tuning and leaves exactly this density as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from pyro_mgp._support.tiles import filled_up
from pyro_mgp.model.chain import Chain, Noise
from pyro_mgp.model.conditional import ByPath, Conditional, Moments, Shifted
from pyro_mgp.model.link import Link

# Moves of a cell per sweep, and angles tried per move before it stays.
_MOVES, _ANGLES = 1, 10
# Noise besides the draw's own: an ellipse and a threshold, and an angle at a time.
_NUMBERS_PER_MOVE = 2 + _ANGLES


class SequentialChain(Chain):
    """A `Chain` whose links see earlier links only, and hear what later ones know.

    Every link's observations have to be Gaussian. Takes the arguments of `Chain`.

    Raises:
        ValueError: If a link sees the column of a later one, or its observations are not Gaussian.
    """

    def __init__(self, links: Sequence[Link], names: Sequence[str], n_rows: int, **switches: Any) -> None:
        super().__init__(links, names, n_rows, **switches)
        columns, inputs = [link.column for link in links], [link.inputs.tolist() for link in links]
        # Numbers of the links that see the column of each link.
        self.followers = [[i for i, seen in enumerate(inputs) if column in seen] for column in columns]
        for i, (link, name) in enumerate(zip(links, names, strict=True)):
            if set(columns[i:]) & set(inputs[i]):
                raise ValueError(f"link {name!r} sees the column of a later link, or its own")
            if not link.is_gaussian:
                raise ValueError(f"link {name!r}: observations in a sequential chain have to be Gaussian")

    def learns_from(self, number: int, values: Tensor, observed: Tensor) -> Tensor:
        """Bool `[n]`, the rows from which a link learns: of an observed cell, or heard of by later ones.

        A missing cell of which no later one is known would only repeat what the link said itself.
        """
        return self.heard(observed)[number]

    def heard(self, observed: Tensor) -> list[Tensor]:
        """For each link Bool `[n]`: the rows whose cell is observed, or heard of by later links."""
        known = [observed[:, link.column] for link in self.links]
        for i in reversed(range(len(known))):
            for later in self.followers[i]:
                known[i] = known[i] | known[later]
        return known

    def weigh(
        self,
        conditionals: Sequence[Conditional],
        moments: Moments,
        drawn: Tensor,
        seen: Tensor,
        observed: Tensor,
        noise: Noise,
        rows: Tensor,
        number: int,
    ) -> Tensor:
        """See `Chain`."""
        column = self.links[number].column
        heard_of = self.heard(observed)
        hearing = {e: heard_of[e][rows] for e in self.followers[number]}
        weighed = torch.zeros_like(rows, dtype=torch.bool)
        for heard in hearing.values():
            weighed |= heard
        weighed = filled_up((weighed & ~observed[rows, column]).nonzero()[:, 0], len(drawn))
        if len(weighed) == 0:
            return drawn
        # A shift is of draws, whatever others know.
        own = conditionals[number]
        shift = own.shift if isinstance(own, Shifted) else 0.0
        mean, variance = moments.mean[:, weighed] - shift, moments.variance[:, weighed]
        later = _Later(
            [_unshifted(conditionals[e]) for e in hearing],
            [heard[weighed] for heard in hearing.values()],
            [self.links[e].column for e in hearing],
            seen[:, weighed],
            column,
        )

        def fresh(k: int) -> Tensor:
            return noise(number + len(self.links) * (k + 1), rows[weighed])

        with torch.no_grad():
            slices = _Slices(mean, (variance + own.noise).sqrt(), later)
            for move in range(_MOVES):
                slices.move([fresh(move * _NUMBERS_PER_MOVE + k) for k in range(_NUMBERS_PER_MOVE)])
            drawn = drawn.clone()
            drawn[:, weighed] = slices.values + shift
        return drawn


@dataclass(frozen=True)
class _Later:
    """What later links know of k cells of a column."""

    conditionals: Sequence[ByPath]
    """Those that see the column."""
    hearing: Sequence[Tensor]
    """Bool `[k]` per link, whether it knows its own cell."""
    columns: Sequence[int]
    """Its own column."""
    table: Tensor
    """The rows of the cells, `[S, k, D]`."""
    column: int
    """The column in question."""

    def log_likelihood(self, paths: Tensor, cells: Tensor, values: Tensor) -> Tensor:
        """Of values `[j]` of some of the cells, each on some path."""
        rows = self.table[paths, cells]
        rows[:, self.column] = values
        total = torch.zeros_like(values)
        for conditional, hearing, column in zip(self.conditionals, self.hearing, self.columns, strict=True):
            here = filled_up(hearing[cells].nonzero()[:, 0])
            at = conditional.moments_on(paths[here], rows[here])
            noise = conditional.noise if conditional.noise.dim() == 0 else conditional.noise[paths[here], 0]
            spread = at.variance + noise
            off = (rows[here, column] - at.mean).square() / spread
            total[here] = total[here] - 0.5 * (off + spread.log())
        return total


class _Slices:
    """Cells `[S, k]` that move by elliptical slices.

    Args:
        mean: Means of their prior.
        scale: Its standard deviations.
        later: Their likelihood.
    """

    def __init__(self, mean: Tensor, scale: Tensor, later: _Later) -> None:
        self.mean, self.scale, self.later = mean, scale, later
        self.values = later.table[..., later.column].clone()
        self.paths, self.cells = torch.ones_like(mean).nonzero().unbind(1)
        self.level = later.log_likelihood(self.paths, self.cells, self.values.flatten())

    def move(self, numbers: Sequence[Tensor]) -> None:
        """Move all cells once.

        Args:
            numbers: Standard normal numbers `[S, k]`: of the ellipse, of the threshold, and one per angle.
        """
        mean = self.mean.flatten()
        current = self.values.flatten() - mean
        other = (self.scale * numbers[0]).flatten()
        threshold = self.level + torch.special.log_ndtr(numbers[1]).flatten()
        turns = [torch.special.ndtr(number).flatten() for number in numbers[2:]]
        high = 2 * math.pi * turns[0]
        low, angle = high - 2 * math.pi, high.clone()
        moved, waiting = self.values.flatten(), torch.arange(len(mean), device=mean.device)
        for k in range(len(turns)):
            if k:
                angle[waiting] = low[waiting] + (high - low)[waiting] * turns[k][waiting]
            at = angle[waiting]
            proposal = mean[waiting] + current[waiting] * at.cos() + other[waiting] * at.sin()
            level = self.later.log_likelihood(self.paths[waiting], self.cells[waiting], proposal)
            taken = level > threshold[waiting]
            moved[waiting[taken]], self.level[waiting[taken]] = proposal[taken], level[taken]
            left = filled_up((~taken).nonzero()[:, 0])
            waiting, at = waiting[left], at[left]
            if len(waiting) == 0:
                break
            low[waiting] = torch.where(at < 0, at, low[waiting])
            high[waiting] = torch.where(at < 0, high[waiting], at)
        self.values = moved.view_as(self.values)


def _unshifted(conditional: Conditional) -> ByPath:
    return cast(ByPath, conditional.conditional if isinstance(conditional, Shifted) else conditional)
