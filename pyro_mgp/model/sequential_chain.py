"""A chain that is a joint density: each link is conditioned on complete columns and earlier links only.

    p(x) = Π_d p(x_d | complete columns, x_<d)
    p(x_d missing | rest) ∝ p(x_d | x_<d) · Π_e>d p(x_e | x_<e)

A link that predicts its column from all others has to learn the inverses of the others' relations. If such a
relation is curved (y = x₁x₂ + noise, x₁ missing), its inverse has several branches and a variance that
depends on the inputs, which a Gaussian process with one noise variance cannot represent; analyses of such
imputations are biased. Here no inverse is learnt. A missing cell is drawn from its own link and weighted by
the likelihood of the later links whose columns are informative, by elliptical slice sampling (Murray, Adams
and MacKay, AISTATS 2010), which needs no tuning and leaves the joint density invariant.
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

# Angles tried in the move of a cell, one per sweep, before the cell keeps its value.
_ANGLES = 10


class SequentialChain(Chain):
    """`Chain` whose links condition on complete and earlier columns only; later links weight the draws.

    Every link's observations have to be Gaussian. Takes the arguments of `Chain`.

    Raises:
        ValueError: If a link has the column of a later one as input, or its observations are not Gaussian.
    """

    def __init__(self, links: Sequence[Link], names: Sequence[str], n_rows: int, **switches: Any) -> None:
        super().__init__(links, names, n_rows, **switches)
        columns, inputs = [link.column for link in links], [link.inputs.tolist() for link in links]
        # Numbers of the links that have the column of each link as input.
        self.followers = [[i for i, seen in enumerate(inputs) if column in seen] for column in columns]
        for i, (link, name) in enumerate(zip(links, names, strict=True)):
            if set(columns[i:]) & set(inputs[i]):
                raise ValueError(f"link {name!r} has the column of a later link, or its own, as input")
            if not link.is_gaussian:
                raise ValueError(f"link {name!r}: observations in a sequential chain must be Gaussian")

    def learns_from(self, number: int, values: Tensor, observed: Tensor) -> Tensor:
        """Return Bool `[n]`, the informative rows of a link; see `informative`.

        All other cells of its column are draws from the link itself, and carry no information.
        """
        return self.informative(observed)[number]

    def informative(self, observed: Tensor) -> list[Tensor]:
        """Return masks `[n]` of the rows with an observed cell in each link's column or a later link's.

        Later links count if they have the column as input, directly or through other links.
        """
        rows = [observed[:, link.column] for link in self.links]
        for i in reversed(range(len(rows))):
            for later in self.followers[i]:
                rows[i] = rows[i] | rows[later]
        return rows

    def weight_by_later(
        self,
        conditionals: Sequence[Conditional],
        moments: Moments,
        drawn: Tensor,
        filled: Tensor,
        observed: Tensor,
        noise: Noise,
        rows: Tensor,
        number: int,
    ) -> Tensor:
        """Return draws from a link's density times the likelihood of the later links; see `Chain`."""
        column = self.links[number].column
        informative = self.informative(observed)
        later_rows = {e: informative[e][rows] for e in self.followers[number]}
        cells = torch.zeros_like(rows, dtype=torch.bool)
        for of_link in later_rows.values():
            cells |= of_link
        cells = filled_up((cells & ~observed[rows, column]).nonzero()[:, 0], len(drawn))
        if len(cells) == 0:
            return drawn
        # A shift is added to the draws after the later links have weighted them.
        own = conditionals[number]
        shift = own.shift if isinstance(own, Shifted) else 0.0
        scale = (moments.variance[:, cells] + own.noise).sqrt()
        later = _LaterLinks(
            [_unshifted(conditionals[e]) for e in later_rows],
            [of_link[cells] for of_link in later_rows.values()],
            [self.links[e].column for e in later_rows],
            filled[:, cells],
            column,
        )

        # Besides the draw's own number: of the ellipse, of the threshold, one per angle.
        numbers = [noise(number + len(self.links) * k, rows[cells]) for k in range(1, 3 + _ANGLES)]
        with torch.no_grad():
            drawn = drawn.clone()
            drawn[:, cells] = _slice_sample(moments.mean[:, cells] - shift, scale, later, numbers) + shift
        return drawn


@dataclass(frozen=True)
class _LaterLinks:
    """Likelihood of k cells of a column under the later links that have it as input."""

    conditionals: Sequence[ByPath]
    """Conditionals of these links."""
    informative: Sequence[Tensor]
    """Bool `[k]` per link: the rows whose cell in the link's own column is informative."""
    columns: Sequence[int]
    """Column that each link predicts."""
    table: Tensor
    """Rows of the cells, `[S, k, D]`."""
    column: int
    """Column of the cells."""

    def log_likelihood(self, paths: Tensor, cells: Tensor, values: Tensor) -> Tensor:
        """Return the log likelihood `[j]` of candidate values `[j]` of some cells under the later links."""
        rows = self.table[paths, cells]
        rows[:, self.column] = values
        total = torch.zeros_like(values)
        links = zip(self.conditionals, self.informative, self.columns, strict=True)
        for conditional, informative, column in links:
            here = filled_up(informative[cells].nonzero()[:, 0])
            at = conditional.moments_on(paths[here], rows[here])
            noise = conditional.noise if conditional.noise.dim() == 0 else conditional.noise[paths[here], 0]
            spread = at.variance + noise
            off = (rows[here, column] - at.mean).square() / spread
            total[here] = total[here] - 0.5 * (off + spread.log())
        return total


def _slice_sample(mean: Tensor, scale: Tensor, later: _LaterLinks, numbers: Sequence[Tensor]) -> Tensor:
    """Return cells `[S, k]` after one move of an elliptical slice sampler, given standard normal numbers."""
    values = later.table[..., later.column]
    paths, cells = torch.ones_like(mean).nonzero().unbind(1)
    level = later.log_likelihood(paths, cells, values.flatten())
    mean = mean.flatten()
    current, other = values.flatten() - mean, (scale * numbers[0]).flatten()
    threshold = level + torch.special.log_ndtr(numbers[1]).flatten()
    shares = [torch.special.ndtr(number).flatten() for number in numbers[2:]]
    high = 2 * math.pi * shares[0]
    low, angle = high - 2 * math.pi, high.clone()
    moved, waiting = values.flatten(), torch.arange(len(mean), device=mean.device)
    for k in range(len(shares)):
        if k:
            angle[waiting] = low[waiting] + (high - low)[waiting] * shares[k][waiting]
        at = angle[waiting]
        proposal = mean[waiting] + current[waiting] * at.cos() + other[waiting] * at.sin()
        taken = later.log_likelihood(paths[waiting], cells[waiting], proposal) > threshold[waiting]
        moved[waiting[taken]] = proposal[taken]
        left = filled_up((~taken).nonzero()[:, 0])
        waiting, at = waiting[left], at[left]
        if len(waiting) == 0:
            break
        low[waiting] = torch.where(at < 0, at, low[waiting])
        high[waiting] = torch.where(at < 0, high[waiting], at)
    return moved.view_as(values)


def _unshifted(conditional: Conditional) -> ByPath:
    return cast(ByPath, conditional.conditional if isinstance(conditional, Shifted) else conditional)
