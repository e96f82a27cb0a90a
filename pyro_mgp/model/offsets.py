"""Conditionals with offsets: what groups and subjects add to the function of a link in their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from pyro_mgp.model.conditional import Along, Conditional, Moments

T = TypeVar("T")


class Offset(Protocol):
    """What is added to a link's function."""

    def at(self, table: Tensor, columns: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return what is added at rows `[S, n, D]`: without some columns, and the slopes of these.

        The shapes are `[S, n]` and `[S, n, columns]`.
        """
        ...


@dataclass(frozen=True)
class WithOffsets(Conditional):
    """Conditional of a link whose function has offsets."""

    conditional: Conditional
    """The conditional without them."""
    offsets: Sequence[Offset]

    @classmethod
    def of(cls, conditional: Conditional, offset: Offset) -> WithOffsets:
        """Return a conditional with one more offset, and the same observation model."""
        if isinstance(conditional, WithOffsets):
            return replace(conditional, offsets=[*conditional.offsets, offset])
        observation, noisy = conditional.observation, conditional.noisy
        return cls(conditional.noise, conditional, [offset], observation=observation, noisy=noisy)

    def moments(self, rows: Tensor) -> Moments:
        """Return the moments of the function at rows `[S, n, D]`."""
        at, (offset, _) = self.conditional.moments(rows), self._at(rows, ())
        return replace(at, mean=at.mean + offset)

    def functions(self, rows: Tensor) -> Tensor:
        """Return each drawn function at rows `[n, D]`."""
        found = self.conditional.functions(rows)
        return found + self._at(rows.expand(len(found), *rows.shape), ())[0]

    def along(self, table: Tensor, columns: Sequence[int]) -> Along:
        """Return the moments at rows of a table as a function of the values of some columns."""
        given = self.conditional.along(table, columns)
        offset, slopes = self._at(table, columns)

        def moments(paths: Tensor, numbers: Tensor, values: Tensor) -> Moments:
            at = given(paths, numbers, values)
            added = offset[paths, numbers] + (slopes[paths, numbers] * values).sum(1)
            return replace(at, mean=at.mean + added)

        return moments

    def _at(self, table: Tensor, columns: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the sum of the offsets; see `Offset.at`."""
        offset, slopes = torch.zeros_like(table[..., 0]), table.new_zeros(*table.shape[:2], len(columns))
        for each in self.offsets:
            added, own = each.at(table, columns)
            offset, slopes = offset + added, slopes + own
        return offset, slopes


def offsets_of(conditional: Conditional, kind: type[T]) -> list[T]:
    """Return the offsets of one class that a conditional has."""
    offsets = conditional.offsets if isinstance(conditional, WithOffsets) else ()
    return [each for each in offsets if isinstance(each, kind)]
