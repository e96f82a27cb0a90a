"""Random effects of groups that were not in the table of the fit.

All rows of such a group that are imputed together have the same effects in an imputation. Before each sweep
the K effects of a group in all links are drawn given the cells of these rows: with the residuals r of cells
that have Gaussian noise, of variance s², or of latent variables of ordered values (s² = 1), in rows with
design z, intercepts and slopes,

    u | r ~ N(P⁻¹ Σ z r / s², P⁻¹),   P = Ω + Σ z zᵀ / s²

where Ω is the precision of their prior. Cells of other kinds tell nothing of them, nor do missing cells of
which no later column tells. The numbers of these groups are hashes of their labels, by which draws are keyed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyro_mgp._support.keyed_noise import KeyedNoise
from pyro_mgp.inference.random_effects import EffectsDraw, Grouping, added
from pyro_mgp.model.conditional import Conditional, Moments
from pyro_mgp.model.likelihoods import Ordinal
from pyro_mgp.model.likelihoods.levels import none_is_on
from pyro_mgp.model.link import Link
from pyro_mgp.model.offsets import WithOffsets, offsets_of


@dataclass(frozen=True)
class NewEffects:
    """Effects of new groups in one link."""

    grouping: Grouping
    """Effects of a column of groups in all links."""
    own: Sequence[int]
    """Positions of the link's effects among those of a group."""
    factors: Tensor
    """Cholesky factors of the precisions of a group's effects, `[S, K, K]`."""
    seed: int
    """Seed of the keyed noise from which effects are made."""
    stream: Sequence[int]
    """Stream of that noise, one for each column of groups."""
    imputations: Sequence[int]
    """Numbers of the imputations of the S paths."""
    drawn: tuple[Tensor, Tensor] | None = None
    """Numbers of groups, ascending `[G]`, and their effects given cells, `[S, G, K]`; None for the prior."""

    def at(self, table: Tensor, columns: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return what new groups add at rows `[S, n, D]`; see `Offset`."""
        offset, slopes = torch.zeros_like(table[..., 0]), table.new_zeros(*table.shape[:2], len(columns))
        rows, drawn = self.effects_at(table)
        offset[:, rows], slopes[:, rows] = added(self.grouping, self.own, drawn.mT, table[:, rows], columns)
        return offset, slopes

    def effects_at(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of new groups in a table `[S, n, D]`, and the link's effects there.

        The shapes are `[k]` and `[S, k, E]`.
        """
        numbers = self.grouping.numbers(table[0])
        rows = (numbers >= self.grouping.effects.n_groups).nonzero()[:, 0]
        if not len(rows):
            return rows, table.new_zeros(len(table), 0, len(self.own))
        groups, group_of = torch.unique(numbers[rows], return_inverse=True)
        if self.drawn is None:
            factors = self.factors[:, None].expand(-1, len(groups), -1, -1)
            drawn = self.draw(groups, 0, torch.zeros_like(factors[..., 0]), factors)
        else:
            known, drawn = self.drawn
            drawn = drawn[:, torch.searchsorted(known, groups)]
        return rows, drawn[:, group_of][..., list(self.own)]

    def draw(self, groups: Tensor, sweep: int, mean: Tensor, factors: Tensor) -> Tensor:
        """Draw the effects of groups `[G]`, `[S, G, K]`.

        Takes their means and the Cholesky factors of their precisions, `[S, G, K]` and `[S, G, K, K]`.
        """
        noise, n_effects = KeyedNoise(self.seed, groups, self.imputations), len(self.grouping.links)
        normal = torch.stack([noise.normal(*self.stream, sweep, k) for k in range(n_effects)], dim=-1)
        step = torch.linalg.solve_triangular(factors.mT, normal[..., None], upper=True)[..., 0]
        return mean + step


def with_new_groups(
    conditionals: Sequence[Conditional],
    groupings: Sequence[Grouping],
    effects: Sequence[EffectsDraw],
    seed: int,
    stream: int,
    imputations: Sequence[int],
) -> list[Conditional]:
    """Return the conditionals of links with the effects of new groups, given those of known ones."""
    found = list(conditionals)
    for number, (grouping, known) in enumerate(zip(groupings, effects, strict=True)):
        factors = torch.linalg.cholesky(known.precision)
        for i in dict.fromkeys(grouping.links):
            new = NewEffects(grouping, grouping.of_link(i), factors, seed, (stream, number), imputations)
            found[i] = WithOffsets.of(found[i], new)
    return found


@dataclass(frozen=True)
class CellsOfGroups:
    """Completed rows that tell of the effects of their groups, and of the process over time."""

    links: Sequence[Link]
    table: Tensor
    """The rows, `[S, n, D]`."""
    told: Sequence[Tensor]
    """Bool `[n]`, the rows in which a link's cell is informative, each of equal rows once."""
    normal: Callable[[int, int], Tensor]
    """Standard normal numbers for the latent variables of a link, `[S, n]`, by its number and that of what is
    drawn given these: the column of groups, or -1 for the process over time."""


def given_cells(conditionals: Sequence[Conditional], cells: CellsOfGroups, sweep: int) -> list[Conditional]:
    """Return the conditionals of links with effects of new groups drawn given cells, before a sweep."""
    found = list(conditionals)
    every = [each for own in found for each in offsets_of(own, NewEffects)]
    for column in dict.fromkeys(each.grouping.column for each in every):
        # One conditional of each link, as it is after the effects of other columns of groups were drawn.
        here = {
            i: (own, each)
            for i, own in enumerate(found)
            for each in offsets_of(own, NewEffects)
            if each.grouping.column == column
        }
        drawn = _drawn(here, cells, sweep)
        for i, (own, effects) in here.items():
            assert isinstance(own, WithOffsets)
            changed = [replace(effects, drawn=drawn) if each is effects else each for each in own.offsets]
            found[i] = replace(own, offsets=changed)
    return found


def _drawn(
    having: Mapping[int, tuple[Conditional, NewEffects]], cells: CellsOfGroups, sweep: int
) -> tuple[Tensor, Tensor] | None:
    """Draw the effects of new groups in the links that have them; None without a new group."""
    _, first = next(iter(having.values()))
    rows, _ = first.effects_at(cells.table)
    if not len(rows):
        return None
    table = cells.table[:, rows]
    groups, group_of = torch.unique(first.grouping.numbers(table[0]), return_inverse=True)
    precision = (first.factors @ first.factors.mT)[:, None].repeat(1, len(groups), 1, 1)
    shift = torch.zeros_like(precision[..., 0])
    for i, (conditional, own) in having.items():
        link, at = cells.links[i], conditional.moments(table)
        found = regressed(link, conditional, at, table, cells.normal(i, first.grouping.column)[:, rows])
        if found is None:
            continue
        values, variance = found
        design, (_, current) = own.grouping.design(own.own, table).mT, own.effects_at(table)
        places = torch.tensor(own.own, device=table.device)
        residual = values - at.mean + (design * current).sum(-1)
        told = cells.told[i][rows] & none_is_on(table, link.unless)
        weighted = design * (told / variance)[..., None]
        squares, products = weighted[..., :, None] * design[..., None, :], weighted * residual[..., None]
        square = precision.new_zeros(*precision.shape[:2], *squares.shape[2:]).index_add(1, group_of, squares)
        precision[:, :, places[:, None], places] += square
        shift[..., places] += shift.new_zeros(*shift.shape[:2], len(places)).index_add(1, group_of, products)
    factors = torch.linalg.cholesky(precision)
    mean = torch.cholesky_solve(shift[..., None], factors)[..., 0]
    return groups, first.draw(groups, 1 + sweep, mean, factors)


def regressed(
    link: Link, conditional: Conditional, at: Moments, table: Tensor, normal: Tensor
) -> tuple[Tensor, Tensor] | None:
    """Return what is the function plus normal noise, and its variance, `[S, n]`; None for other kinds."""
    values = table[..., link.column]
    if isinstance(link.likelihood, Ordinal):
        latent = link.likelihood.draw_latent(values, at.mean, at.variance, torch.special.ndtr(normal))
        return latent, 1 + at.variance.expand_as(latent)
    if not link.is_gaussian:
        return None
    return values, (at.variance + conditional.noise).expand_as(values)
