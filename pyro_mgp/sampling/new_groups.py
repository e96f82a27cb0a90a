"""Random effects of groups that were not in the table of the fit, drawn from their prior.

Their numbers are hashes of their labels, by which the draws are keyed: all rows of such a group have the same
effects in an imputation, whichever other rows are imputed with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyro_mgp._support.keyed_noise import KeyedNoise
from pyro_mgp.inference.random_effects import Grouping
from pyro_mgp.model.conditional import Along, Conditional, Moments


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

    def at(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of new groups in a table `[S, n, D]`, and the link's effects there.

        The shapes are `[k]` and `[S, k, E]`.
        """
        effects = self.grouping.effects
        numbers = (table[0, :, self.grouping.column] * effects.scale + effects.mean).round().long()
        rows = (numbers >= effects.n_groups).nonzero()[:, 0]
        if not len(rows):
            return rows, table.new_zeros(len(table), 0, len(self.own))
        groups, group_of = torch.unique(numbers[rows], return_inverse=True)
        noise = KeyedNoise(self.seed, groups, self.imputations)
        normal = torch.stack([noise.normal(*self.stream, k) for k in range(len(self.grouping.links))], dim=1)
        drawn = torch.linalg.solve_triangular(self.factors.mT, normal, upper=True).mT * self.grouping.units
        return rows, drawn[:, group_of][..., list(self.own)]


@dataclass(frozen=True)
class WithNewGroups(Conditional):
    """Conditional of a link whose random effects are drawn for new groups."""

    conditional: Conditional
    """The conditional at drawn functions, in which new groups have no effects."""
    effects: Sequence[NewEffects]
    """Effects of new groups, for each column of groups that the link has effects of."""

    @classmethod
    def of(cls, conditional: Conditional, effects: Sequence[NewEffects]) -> WithNewGroups:
        """Return a conditional with the effects of new groups added, and the same observation model."""
        observation, noisy = conditional.observation, conditional.noisy
        return cls(conditional.noise, conditional, effects, observation=observation, noisy=noisy)

    def moments(self, rows: Tensor) -> Moments:
        """Return the moments of the function at rows `[S, n, D]`."""
        at, (offset, _) = self.conditional.moments(rows), self._offsets(rows, ())
        return replace(at, mean=at.mean + offset)

    def functions(self, rows: Tensor) -> Tensor:
        """Return each drawn function at rows `[n, D]`."""
        found = self.conditional.functions(rows)
        return found + self._offsets(rows.expand(len(found), *rows.shape), ())[0]

    def along(self, table: Tensor, columns: Sequence[int]) -> Along:
        """Return the moments at rows of a table as a function of the values of some columns."""
        given = self.conditional.along(table, columns)
        offset, slopes = self._offsets(table, columns)

        def moments(paths: Tensor, numbers: Tensor, values: Tensor) -> Moments:
            at = given(paths, numbers, values)
            added = offset[paths, numbers] + (slopes[paths, numbers] * values).sum(1)
            return replace(at, mean=at.mean + added)

        return moments

    def _offsets(self, table: Tensor, columns: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return what new groups add at rows `[S, n, D]`: without some columns, and the slopes of these.

        The shapes are `[S, n]` and `[S, n, columns]`.
        """
        offset, slopes = torch.zeros_like(table[..., 0]), table.new_zeros(*table.shape[:2], len(columns))
        for each in self.effects:
            rows, drawn = each.at(table)
            for k, effect in zip(each.own, drawn.unbind(2), strict=True):
                column = each.grouping.slopes[k]
                if column is None:
                    offset[:, rows] += effect
                elif column in columns:
                    slopes[:, rows, list(columns).index(column)] += effect
                else:
                    offset[:, rows] += effect * table[:, rows, column]
        return offset, slopes


def with_new_groups(
    conditionals: Sequence[Conditional],
    groupings: Sequence[Grouping],
    precisions: Sequence[Tensor],
    seed: int,
    stream: int,
    imputations: Sequence[int],
) -> list[Conditional]:
    """Return the conditionals of links with the effects of new groups, given the precisions `[S, K, K]`."""
    found = list(conditionals)
    for number, (grouping, precision) in enumerate(zip(groupings, precisions, strict=True)):
        factors = torch.linalg.cholesky(precision)
        for i in dict.fromkeys(grouping.links):
            own = [k for k, link in enumerate(grouping.links) if link == i]
            new = NewEffects(grouping, own, factors, seed, (stream, number), imputations)
            last = found[i]
            if isinstance(last, WithNewGroups):
                found[i] = replace(last, effects=[*last.effects, new])
            else:
                found[i] = WithNewGroups.of(last, [new])
    return found
