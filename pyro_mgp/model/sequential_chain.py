"""Chain in which each column is predicted from complete and earlier columns, a joint density of the columns.

A link that predicts its column from all others must learn the inverse of the relations in which its column
is an input: if y = x₁x₂ + noise, x₁ given y and x₂ has several modes or a spread that depends on x₂, which no
Gaussian process with one noise variance can express. A joint density p(x₁) p(x₂ | x₁) ... has no inverse to
learn. A missing cell is then drawn from its link's density times the likelihood of the later links whose
columns are informative; see `later_links`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyro_mgp._support.devices import rows_if_known
from pyro_mgp._support.tiles import filled_up
from pyro_mgp.model.chain import Chain, Visit
from pyro_mgp.model.conditional import Conditional, Moments, Shifted, write
from pyro_mgp.model.later_links import (
    N_CANDIDATES,
    Candidates,
    Later,
    LaterLinks,
    Numbers,
    resample,
    slice_sample,
)
from pyro_mgp.model.likelihoods import Category, Compound, Ordinal, TwoPart
from pyro_mgp.model.likelihoods.levels import none_is_on
from pyro_mgp.model.link import Link
from pyro_mgp.model.local_parameters import local_method
from pyro_mgp.model.once_per_group import members

# First stream of numbers for the second move of amounts, after those of the first.
_FURTHER = 100


class SequentialChain(Chain):
    """`Chain` whose links condition on complete and earlier columns only; later links weight the draws.

    Takes the arguments of `Chain`.

    Raises:
        ValueError: If a link has its own column, or that of a later one, as input.
    """

    _reach: Tensor
    _always: Tensor
    _columns: Tensor

    def __init__(self, links: Sequence[Link], names: Sequence[str], n_rows: int, **switches: Any) -> None:
        super().__init__(links, names, n_rows, **switches)
        columns, inputs = [link.column for link in links], [link.inputs.tolist() for link in links]
        # Numbers of the links that have the column of each link as input.
        self.followers = [[i for i, seen in enumerate(inputs) if column in seen] for column in columns]
        # Links whose cells tell of that of each link: itself, and later ones, directly or through others.
        reach = torch.eye(len(links), dtype=torch.float64)
        for i in reversed(range(len(links))):
            for later in self.followers[i]:
                reach[i] = torch.maximum(reach[i], reach[later])
        device = links[0].Xu.device if links else None
        always = torch.tensor([link.once_per is not None for link in links], dtype=torch.bool)
        for own, value in (
            ("_reach", reach),
            ("_always", always),
            ("_columns", torch.tensor(columns, dtype=torch.long)),
        ):
            self.register_buffer(own, value.to(device), persistent=False)
        for i, name in enumerate(names):
            if set(columns[i:]) & set(inputs[i]):
                raise ValueError(f"link {name!r} has the column of a later link, or its own, as input")

    def learns_from(self, number: int, values: Tensor, observed: Tensor) -> Tensor:
        """Return Bool `[n]`, the informative rows of a link: other cells of its column are its own draws."""
        link = self.links[number]
        return link.once(values, self.informative(observed)[number]) & none_is_on(values, link.unless)

    def informative(self, observed: Tensor) -> list[Tensor]:
        """Return masks `[n]` of the rows with an observed cell in each link's column or a later link's.

        Cells that have limits count as observed. Later links count if they have the column as input, directly
        or through other links. Of a column that is constant within groups all rows count.
        """
        told = observed[:, self._columns] | self._always
        return list((told.to(self._reach) @ self._reach.T > 0).unbind(1))

    @local_method
    def collapsed_model(self, filled: Tensor, observed: Tensor) -> None:
        """Sample informative missing cells, with functions integrated out; a Pyro model of Gaussian links.

        It takes `filled` and `observed` of `model`, whose density it has with as many inducing values as
        rows. Gradients are cheap in tables of few rows, and cells that no later link reads are left out.
        """
        self._joint_density.collapsed(filled, observed, self.informative(observed))

    def weight_by_later(self, visit: Visit, drawn: Tensor) -> Tensor:
        """Return draws from a link's density times the likelihood of the later links; see `Chain`."""
        number, rows = visit.number, visit.rows
        if (compound := next((each for each in self.compounds if number in each.links), None)) is not None:
            # All columns are drawn together, after the last link; two parts move from where they are.
            two = isinstance(compound, TwoPart)
            return visit.filled[:, visit.rows, self.links[number].column] if two else drawn
        link, moments = self.links[number], visit.visited[number]
        informative = self.informative(visit.informative)
        weighted = self._weighted(number, visit.observed, informative)
        is_weighted = weighted[rows]
        if link.once_per is not None:  # any row of a group may tell of its cell
            groups = visit.filled[0, :, link.once_per]
            is_weighted = torch.isin(groups[rows], groups[weighted])
        cells = rows_if_known(is_weighted)
        if cells is None:
            cells = torch.arange(len(rows), device=rows.device)
        elif len(cells) == 0:
            return drawn
        chosen, cells = cells, filled_up(cells, len(drawn))
        later = self._later_links(number, visit, rows[cells], informative)
        at = moments.select(cells, 1)

        # Besides the draw's own number.
        def numbers(k: int) -> Tensor:
            return visit.noise(number + len(self.links) * k, rows[cells])

        with torch.no_grad():
            limits = None if visit.limits is None else visit.limits[rows[cells], link.column]
            moved = _moved(link, visit.conditionals[number], at, later, numbers, limits)
            # The rows of a group belong to the first of equal cells.
            return drawn.index_copy(1, chosen, moved[:, : len(chosen)]).where(is_weighted, drawn)

    def _weighted(self, number: int, observed: Tensor, informative: Sequence[Tensor]) -> Tensor:
        """Return Bool `[n]`, the rows in which later links tell something of a link's missing cell."""
        told = torch.zeros_like(observed[:, 0])
        for e in self.followers[number]:
            told = told | informative[e]
        return told & ~observed[:, self.links[number].column]

    def _later_links(
        self, number: int, visit: Visit, rows: Tensor, informative: Sequence[Tensor]
    ) -> LaterLinks:
        """Return the likelihood of a link's cells, or those of the compound that it begins, in some rows."""
        filled, own, n_cells = visit.filled, self.links[number], len(rows)
        columns, owners = self.columns_from(number), None
        if own.once_per is not None:
            numbers = filled[0, :, own.once_per]
            rows, owners = members(numbers, rows, torch.ones_like(numbers, dtype=torch.bool))
        links = []
        for e in self.followers[number]:
            link, conditional = self.links[e], _unshifted(visit.conditionals[e])
            # A later column that is constant within the same groups, or larger ones, has one cell for all.
            told = link.once(filled[0], informative[e])[rows]
            links.append(Later(conditional, link.column, link.unless, told))
        return LaterLinks(links, filled[:, rows], columns, owners, n_cells)

    def draw_compound(self, compound: Compound, visit: Visit, eps: Tensor) -> Tensor:
        """Draw the columns of a compound, `[S, k, columns]`, given the later links as well; see `Chain`."""
        first, informative = compound.links[0], self.informative(visit.informative)
        later = self._later_links(first, visit, visit.rows, informative)
        if isinstance(compound, TwoPart):
            return self._draw_two_parts(compound, visit, later, eps)
        levels = _levels(compound, visit)
        return levels.chosen(later.of_candidates(levels), eps)

    def _draw_two_parts(self, compound: TwoPart, visit: Visit, later: LaterLinks, eps: Tensor) -> Tensor:
        """Choose between the bound and amounts, then move the amounts; `[S, k, 2]`."""

        def numbers(k: int) -> Tensor:
            return visit.noise(visit.number + len(self.links) * k, visit.rows)

        parts = _two_parts(compound, visit, numbers)
        chosen = parts.chosen(later.of_candidates(parts), eps)
        table, (_, column) = later.table.clone(), compound.columns
        write(table, compound.columns, chosen if later.owners is None else chosen[:, later.owners])
        number = visit.number  # of the link of the amounts
        link, own, at = self.links[number], visit.conditionals[number], visit.visited[number]
        amounts = replace(later, table=table, columns=[column])
        moved = _moved(link, own, at, amounts, lambda k: numbers(k + _FURTHER), None)
        drawn = compound.written([chosen[..., 0], moved])
        return torch.stack([drawn[d] for d in compound.columns], dim=-1)


def _moved(
    link: Link,
    conditional: Conditional,
    at: Moments,
    later: LaterLinks,
    numbers: Numbers,
    limits: Tensor | None,
) -> Tensor:
    """Return a link's cells `[S, k]` after a move that takes the later links into account.

    The cells may have limits, `[k, 2]`.
    """
    likelihood, own = link.likelihood, _unshifted(conditional)
    if isinstance(likelihood, Ordinal):
        log_prob = likelihood.log_levels(at.mean, at.variance)
        values = Candidates.of_levels(likelihood.values[:, None], log_prob)
        return values.chosen(later.of_candidates(values), numbers(1))[..., 0]
    # A shift is added to the draws after the later links have weighted them.
    shift = conditional.shift if isinstance(conditional, Shifted) else 0.0
    unshifted = Moments(at.mean - shift, at.variance)
    if own.observation is not None or (limits is not None and isinstance(conditional, Shifted)):
        shifted = partial(own.draw, at, limits=limits) if isinstance(conditional, Shifted) else None
        return resample(partial(own.draw, unshifted, limits=limits), later, numbers, shifted)
    return slice_sample(unshifted, own.noise, later, numbers, limits) + shift


def _levels(category: Category, visit: Visit) -> Candidates:
    """Return the levels of a category with their probabilities given the earlier columns."""
    conditionals, visited = visit.conditionals, visit.visited
    on, off = category.on, category.off
    remaining, log_prob = torch.zeros_like(visited[category.links[0]].mean), []
    for i, number in enumerate(category.links):
        taken, left = (
            conditionals[number].log_prob(value.expand_as(remaining), visited[number])
            for value in (on[i], off[i])
        )
        log_prob.append(remaining + taken)
        remaining = remaining + left
    levels = torch.eye(len(on), dtype=torch.bool, device=on.device)
    return Candidates.of_levels(torch.where(levels, on, off), torch.stack([*log_prob, remaining], dim=-1))


def _two_parts(compound: TwoPart, visit: Visit, numbers: Numbers) -> Candidates:
    """Return the bound and some amounts with their probabilities given the earlier columns.

    Of cells that have an amount, it is one of them, which leaves the density of cells invariant: given the
    amounts, the cell is one of these candidates in proportion to their weights.
    """
    conditionals, visited, (first, second) = visit.conditionals, visit.visited, compound.links
    at = visited[first]
    log_off, log_on = (
        conditionals[first].log_prob(each.expand_as(at.mean), at) for each in (compound.off, compound.on)
    )
    fresh = [conditionals[second].draw(visited[second], numbers(1 + i)) for i in range(1 + N_CANDIDATES)]
    indicator, amount = visit.filled[:, visit.rows][..., list(compound.columns)].unbind(-1)
    amounts = torch.stack([amount.where(indicator < 0, fresh[0]), *fresh[1:]], dim=-1)
    return Candidates(*compound.candidates(log_off, log_on, amounts))


def _unshifted(conditional: Conditional) -> Conditional:
    return conditional.conditional if isinstance(conditional, Shifted) else conditional
