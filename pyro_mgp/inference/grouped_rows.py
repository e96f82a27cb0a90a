"""Rows from which a link with random effects learns, and what they tell of function and effects.

With the basis Φ `[M, n]` of a function, and the E effects u_g of each of J groups, which are multiplied by
the design Z_g `[E, n_g]` in the rows of the group,

    t = Φᵀ v + Z_gᵀ u_g + errors,   errors ~ N(0, V)

the precision matrix of (v, u_1, .., u_J) has blocks ΦV⁻¹Φᵀ, C_g = Z_g V⁻¹ Φᵀ and D_g = Z_g V⁻¹ Z_gᵀ, and
nothing between the effects of two groups. These are eliminated group by group,

    v ~ precision ΦV⁻¹Φᵀ - Σ_g C_gᵀ D_g⁻¹ C_g,   u_g | v ~ N(D_g⁻¹ (Z_g V⁻¹ t - C_g v), D_g⁻¹)

in time proportional to the number of groups, as in mixed models (Bates et al., J. Stat. Softw. 67(1), 2015,
section 3). With several columns of groups, which may be crossed, those of one are eliminated so, and the
others, whose number should be small, together after these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from pyro_mgp.inference.data_augmentation import Regression
from pyro_mgp.inference.function_posterior import FunctionPosterior, times
from pyro_mgp.inference.random_effects import EffectsDraw, EffectsOffset, Grouping

# Rows of all chains that are summed at a time: several copies of their basis are in memory.
_ROWS_AT_ONCE = 40_000


class Sums(NamedTuple):
    """What rows tell of the M values of a basis, and of E effects of each of J groups."""

    gram: Tensor
    """ΦV⁻¹Φᵀ, `[S, M, M]`."""
    shift: Tensor
    """ΦV⁻¹t, `[S, M]`."""
    cross: Tensor
    """C_g, `[S, J, E, M]`."""
    block: Tensor
    """D_g, `[S, J, E, E]`."""
    of_effects: Tensor
    """Z_g V⁻¹ t, `[S, J, E]`."""

    @classmethod
    def of(cls, pairs: Sequence[tuple[Tensor, Tensor]], rows: GroupedRows) -> Self:
        """Return the sums, given V⁻¹ as products of pairs of the rows of `stacked`, `[S, M + E + 1, n]` each.

        An entry of a product is the sum over rows of one of its first times one of its second factors.
        """
        n_values, n_effects = rows.basis.shape[1], rows.design.shape[1]
        wholes, of_groups = [], []
        for left, right in pairs:
            wholes.append(left[:, :n_values] @ torch.cat([right[:, :n_values], right[:, -1:]], dim=1).mT)
            of_effects = right[:, n_values:-1, None] * left[:, None]
            by_row = of_effects.permute(3, 0, 1, 2).contiguous()
            zeros = by_row.new_zeros(rows.n_groups, *by_row.shape[1:])
            of_groups.append(zeros.index_add_(0, rows.groups, by_row))
        whole = torch.stack(wholes).sum(0)
        of_group = torch.stack(of_groups).sum(0).transpose(0, 1)
        cross, block, shift = of_group.split([n_values, n_effects, 1], dim=3)
        return cls(whole[..., :-1], whole[..., -1], cross, block, shift[..., 0])

    def lerp(self, other: Sums, weight: float) -> Sums:
        """Return the sums at a share of the way to others."""
        return Sums(*(own.lerp(end, weight) for own, end in zip(self, other, strict=True)))


@dataclass(frozen=True)
class GroupedRows:
    """Rows of a link, with the groups whose effects are eliminated."""

    basis: Tensor
    """Whitened basis Φ, and the design of effects of other columns of groups, `[S, M, n]`."""
    design: Tensor
    """Design Z of a group's effects, `[S, E, n]`."""
    groups: Tensor
    """Number of the group of each row, `[n]`."""
    n_groups: int
    targets: Tensor
    """Cells of the link's column, or latent variables, `[S, n]`."""
    rest: Tensor
    """Variances of the function that the inducing values do not determine, `[S, n]`."""
    weights: Tensor
    """Weights of the rows, `[S, n]`."""

    @property
    def stacked(self) -> Tensor:
        """Basis, design and targets, `[S, M + E + 1, n]`."""
        return torch.cat([self.basis, self.design, self.targets[:, None]], dim=1)

    def precisions(self, noise: Tensor) -> Tensor:
        """Return the precisions of independent errors, `[S, n]`, given noise variances `[S, 1]`."""
        return self.weights / (noise + self.rest)

    def sums(self, noise: Tensor) -> Sums:
        """Return what the rows tell if errors are independent with noise variances `[S, 1]`."""
        return self.weighted(self.precisions(noise))

    def weighted(self, precisions: Tensor) -> Sums:
        """Return what the rows tell if errors are independent with precisions `[S, n]`."""
        size = max(_ROWS_AT_ONCE // len(precisions), 1)
        parts = []
        for start in range(0, max(len(self.groups), 1), size):
            rows = self[start : start + size]
            stacked = rows.stacked
            parts.append(Sums.of([(stacked * precisions[:, None, start : start + size], stacked)], rows))
        return Sums(*(torch.stack(part).sum(0) for part in zip(*parts, strict=True)))

    def __getitem__(self, rows: slice) -> GroupedRows:
        targets, rest, weights = (part[:, rows] for part in (self.targets, self.rest, self.weights))
        basis, design = self.basis[..., rows], self.design[..., rows]
        return GroupedRows(basis, design, self.groups[rows], self.n_groups, targets, rest, weights)

    def at(self, places: Tensor, groups: Tensor) -> GroupedRows:
        """Return the rows at other positions `[n]` among V, of these groups `[V]`.

        Where there is no row, weights are zero.
        """

        def moved(part: Tensor) -> Tensor:
            return part.new_zeros(*part.shape[:-1], len(groups)).index_copy(-1, places, part)

        basis, design, targets = moved(self.basis), moved(self.design), moved(self.targets)
        rest, weights = moved(self.rest), moved(self.weights)
        return GroupedRows(basis, design, groups, self.n_groups, targets, rest, weights)

    def left(self, values: Tensor, effects: Tensor) -> Tensor:
        """Return targets minus function and effects, `[S, n]`, given values `[S, M]` and `[S, J, E]`."""
        drawn = effects[:, self.groups].mT
        return self.targets - times(values, self.basis) - (self.design * drawn).sum(1)


@dataclass(frozen=True)
class Eliminated:
    """Effects of groups that were eliminated from a normal distribution; D_g is L Lᵀ."""

    factor: Tensor
    """Cholesky factors L, `[S, J, E, E]`."""
    cross: Tensor
    """L⁻¹ C_g, `[S, J, E, M]`."""
    shift: Tensor
    """L⁻¹ Z_g V⁻¹ t, `[S, J, E]`."""

    @classmethod
    def of(cls, cross: Tensor, block: Tensor, shift: Tensor) -> Self:
        """Return the effects with these parts of a precision matrix and a shift; see `Sums`."""
        factor = torch.linalg.cholesky(block)
        both = torch.cat([cross, shift[..., None]], dim=-1)
        solved = torch.linalg.solve_triangular(factor, both, upper=False)
        return cls(factor, solved[..., :-1], solved[..., -1])

    def from_rest(self, gram: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        """Return precision `[S, M, M]` and shift `[S, M]` of other values less what effects explain."""
        cross, own = self.cross.flatten(1, 2), self.shift.flatten(1)
        return gram - cross.mT @ cross, shift - times(own, cross)

    def draw(self, values: Tensor, normal: Tensor) -> Tensor:
        """Draw the effects `[S, J, E]` given other values `[S, M]`, and as many standard normal numbers."""
        mean = self.shift - (self.cross @ values[:, None, :, None])[..., 0]
        step = (mean + normal.view_as(mean))[..., None]
        return torch.linalg.solve_triangular(self.factor.mT, step, upper=True)[..., 0]

    def moments(self, basis: Tensor, design: Tensor, groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return another basis of the function `[S, M, n]`, and mean and variance `[S, n]` of a variable.

        Function plus effects is the function with that basis plus an independent normal variable.
        """
        factor = self.factor[:, groups]
        own = torch.linalg.solve_triangular(factor, design.mT[..., None], upper=False)[..., 0]
        basis = basis - (self.cross[:, groups] * own[..., None]).sum(2).mT
        return basis, (self.shift[:, groups] * own).sum(2), own.square().sum(2)


@dataclass(frozen=True)
class EffectsGiven:
    """Distribution of a link's effects given its function, and what is left of precision and shift."""

    sums: Sums
    """What the rows tell, without the prior."""
    gram: Tensor
    """Precisions that rows and effects add to the function's prior, `[S, M, M]`."""
    shift: Tensor
    """Precisions times means of the function, `[S, M]`."""
    eliminated: Sequence[Eliminated]
    """Effects of the groups, then of other columns of groups together if there are any."""

    @property
    def n_numbers(self) -> int:
        """Number of standard normal numbers that `draw` takes for a chain."""
        return sum(each.shift[0].numel() for each in self.eliminated)

    def draw(self, function: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
        """Draw the effects given a function `[S, M]`, with numbers `[S, n_numbers]`.

        Returns the function with effects of other columns of groups, and the effects `[S, J, E]`.
        """
        *further, first = reversed(self.eliminated)
        values, used = function, 0
        for each in further:
            n = each.shift[0].numel()
            values = torch.cat([values, each.draw(values, normal[:, used : used + n]).flatten(1)], dim=1)
            used += n
        return values, first.draw(values, normal[:, used:])


@dataclass(frozen=True)
class EffectsPosterior:
    """Joint distribution of a link's function and effects in S chains."""

    function: FunctionPosterior
    effects: EffectsGiven

    def moments(self, rows: GroupedRows) -> tuple[Tensor, Tensor]:
        """Return mean and variance of function plus effects in rows, `[S, n]` each."""
        first, *further = self.effects.eliminated
        basis, mean, variance = first.moments(rows.basis, rows.design, rows.groups)
        for each in further:
            n_values = each.cross.shape[-1]
            one = torch.zeros_like(rows.groups)
            basis, more, own = each.moments(basis[:, :n_values], basis[:, n_values:], one)
            mean, variance = mean + more, variance + own
        of_function, own = self.function.moments(basis)
        return mean + of_function, variance + own


@dataclass(frozen=True)
class EffectsOfLink:
    """Random effects of one link, of one or several columns of groups."""

    number: int
    """Number of the link."""
    groupings: Sequence[Grouping]
    """All columns of groups of the chain."""
    eliminated: int
    """Number of the column of groups whose effects are eliminated group by group."""
    others: Sequence[int]
    """Numbers of the other columns of groups with effects in the link."""

    @classmethod
    def of(cls, number: int, groupings: Sequence[Grouping], first: int | None = None) -> Self | None:
        """Return the effects of a link, None without any.

        Those of the column of groups with number `first` are eliminated group by group, by default of the
        one with the most effects.
        """
        sizes = {k: len(own.of_link(number)) * own.effects.n_groups for k, own in enumerate(groupings)}
        having = [k for k, size in sizes.items() if size]
        if not having:
            return None
        eliminated = first if first in having else max(having, key=sizes.__getitem__)
        return cls(number, groupings, eliminated, [k for k in having if k != eliminated])

    def offsets(self, drawn: Sequence[EffectsDraw]) -> list[EffectsOffset]:
        """Return what known groups add to the function, given their effects."""
        having = [self.eliminated, *self.others]
        return [EffectsOffset(self.groupings[k], self._own(k), drawn[k].values) for k in having]

    def rows(self, given: Regression, table: Tensor) -> GroupedRows:
        """Return the rows of a regression, completed in S chains as in a table `[S, n, D]`."""
        basis, rest, targets = given.joined()
        weights = torch.ones_like(targets) if given.weights is None else given.weights
        own = self.groupings[self.eliminated]
        for k in self.others:
            other = self.groupings[k]
            groups = torch.arange(other.effects.n_groups, device=table.device)
            members = (other.numbers(table[0]) == groups[:, None]).to(table)
            design = other.design(self._own(k), table)
            basis = torch.cat([basis, (design[:, :, None] * members).flatten(1, 2)], dim=1)
        design, groups = own.design(self._own(self.eliminated), table), own.numbers(table[0])
        return GroupedRows(basis, design, groups, own.effects.n_groups, targets, rest, weights)

    def given(self, sums: Sums, drawn: Sequence[EffectsDraw]) -> EffectsGiven:
        """Return the effects given what rows tell, and the effects of other links."""
        precision, shift = self.groupings[self.eliminated].prior_of(
            self._own(self.eliminated), drawn[self.eliminated]
        )
        first = Eliminated.of(sums.cross, sums.block + precision[:, None], sums.of_effects + shift.mT)
        gram, rest = first.from_rest(sums.gram, sums.shift)
        if not self.others:
            return EffectsGiven(sums, gram, rest, [first])
        precisions, shifts = [], []
        for k in self.others:
            own, told = self.groupings[k].prior_of(self._own(k), drawn[k])
            precisions.append(torch.stack([_kron(each, told.shape[2]) for each in own]))
            shifts.append(told.flatten(1))
        of_others = torch.stack([torch.block_diag(*each) for each in zip(*precisions, strict=True)])
        n_values = gram.shape[1] - of_others.shape[1]
        second = Eliminated.of(
            gram[:, None, n_values:, :n_values],
            (gram[:, n_values:, n_values:] + of_others)[:, None],
            (rest[:, n_values:] + torch.cat(shifts, dim=1))[:, None],
        )
        left = second.from_rest(gram[:, :n_values, :n_values], rest[:, :n_values])
        return EffectsGiven(sums, *left, [first, second])

    def written(self, drawn: Sequence[EffectsDraw], values: Tensor, effects: Tensor) -> list[EffectsDraw]:
        """Return the effects with those of this link in place of the last ones; see `EffectsGiven.draw`."""
        found = list(drawn)
        found[self.eliminated] = self._with(drawn, self.eliminated, effects.mT)
        end = values.shape[1]
        for k in reversed(self.others):
            shape = len(self._own(k)), self.groupings[k].effects.n_groups
            start = end - shape[0] * shape[1]
            found[k] = self._with(drawn, k, values[:, start:end].unflatten(1, shape))
            end = start
        return found

    def _own(self, k: int) -> list[int]:
        return self.groupings[k].of_link(self.number)

    def _with(self, drawn: Sequence[EffectsDraw], k: int, own: Tensor) -> EffectsDraw:
        values = drawn[k].values.clone()
        values[:, self._own(k)] = own
        return drawn[k]._replace(values=values)


def _kron(matrix: Tensor, n_groups: int) -> Tensor:
    """Return the Kronecker product of a matrix and the identity matrix of some size."""
    return torch.kron(matrix, torch.eye(n_groups).to(matrix))
