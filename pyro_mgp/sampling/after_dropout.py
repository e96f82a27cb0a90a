"""Draws of visits after dropout, for subjects who are taken to have other means than under MAR.

A row is a subject, and a column a visit, which its link predicts from the arm, the baseline and the earlier
visits. With drawn functions, the means of the visits in an arm, μ, are those of this recursion, and the cells
of a subject deviate from them. A strategy gives the means m that a subject is taken to have (Carpenter, Roger
and Kenward, J. Biopharm. Stat. 23:1352-1371, 2013); μ are those of the subject's own arm, ρ those of the
reference arm, and t is the last visit before dropout:

               until dropout    after it
    MAR        μ                μ
    J2R        μ                ρ
    CR         ρ                ρ
    CIR        μ                ρ + μₜ - ρₜ
    LMCF       μ                μₜ

A cell after dropout keeps the residual e of its draw under MAR. With the function f of its link, evaluated in
the reference arm (LMCF: the own arm), whose means are a,

    y = m + f(a + deviations of the earlier cells from their m) - a + e.

If f is linear, this is the conditional normal distribution of these authors: a subject has the means m and
the covariance of the visits that all arms share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pyro_mgp.model.conditional import Conditional, write

Strategy = Literal["MAR", "J2R", "CR", "CIR", "LMCF"]
"""Missing at random, jump to reference, copy reference, copy increments in reference, last mean carried
forward."""


@dataclass(frozen=True)
class Subjects:
    """Who of n subjects dropped out, after which visit, and the strategy for each."""

    after: Tensor
    """Whether each of K visits is after dropout, Bool `[n, K]`."""
    follow: dict[Strategy, Tensor]
    """Subjects who follow each strategy but MAR, Bool `[n]`."""

    @property
    def last(self) -> Tensor:
        """Position of the last visit before dropout, `[n]`; -1 without one."""
        return self.after.shape[1] - self.after.sum(1) - 1

    def choose(self, default: Tensor, others: dict[Strategy, Tensor]) -> Tensor:
        """Return means `[S, n, K]`: those of each subject's strategy if given, else the default."""
        for strategy, means in others.items():
            default = means.where(self.follow[strategy][:, None], default)
        return default


def after_last_observed(observed: Tensor) -> Tensor:
    """Return the visits after the last observed one of each subject, Bool `[n, K]`."""
    return observed.int().flip(1).cummax(1).values.flip(1) == 0


@dataclass(frozen=True)
class Visits:
    """Columns of K visits, in the order of time, with drawn functions that predict them."""

    columns: Sequence[int]
    """Encoded columns of the visits."""
    conditionals: Sequence[Conditional]
    """Conditional of each visit's link, with S drawn functions."""
    arm: Sequence[int]
    """Encoded columns of the arm."""
    reference: Tensor
    """Standardised values of these in the reference arm, `[width]`."""

    def redrawn(self, filled: Tensor, subjects: Subjects) -> Tensor:
        """Return rows `[S, n, D]`, filled under MAR, with the visits after dropout under the strategies."""
        in_reference, redrawn = filled.clone(), filled.clone()
        write(in_reference, self.arm, self.reference.expand(*filled.shape[:2], -1))
        own, reference = self._means(filled), self._means(in_reference)
        means = self._strategies(own, reference, subjects)
        is_own = subjects.follow["LMCF"]
        base, table = own.where(is_own[:, None], reference), filled.where(is_own[:, None], in_reference)
        moved = torch.stack(list(subjects.follow.values())).any(0)
        for k, (column, conditional) in enumerate(zip(self.columns, self.conditionals, strict=True)):
            earlier = self.columns[:k]
            write(table, earlier, (base + redrawn[..., self.columns] - means)[..., :k])
            residual = filled[..., column] - conditional.mean(filled)
            drawn = means[..., k] + conditional.mean(table) - base[..., k] + residual
            redrawn[..., column] = drawn.where(subjects.after[:, k] & moved, filled[..., column])
        return redrawn

    def _means(self, rows: Tensor) -> Tensor:
        """Return the means `[S, n, K]` of the visits, given the other columns of rows `[S, n, D]`."""
        rows, means = rows.clone(), []
        for column, conditional in zip(self.columns, self.conditionals, strict=True):
            means.append(conditional.mean(rows))
            rows[..., column] = means[-1]
        return torch.stack(means, dim=-1)

    @staticmethod
    def _strategies(own: Tensor, reference: Tensor, subjects: Subjects) -> Tensor:
        """Return the means `[S, n, K]` that each subject is taken to have, before and after dropout."""
        before = subjects.choose(own, {"CR": reference})
        last = subjects.last.clamp(min=0)[:, None].expand(*own.shape[:2], 1)
        started = (subjects.last >= 0)[:, None]
        carried = own.gather(2, last)
        increments = reference + (carried - reference.gather(2, last)).where(started, 0.0)
        after: dict[Strategy, Tensor] = {"J2R": reference, "CR": reference, "CIR": increments}
        after["LMCF"] = carried.expand_as(own)
        return subjects.choose(own, after).where(subjects.after, before)
