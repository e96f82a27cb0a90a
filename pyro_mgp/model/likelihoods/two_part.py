"""Two-part model of a variable of which many values equal a bound (Olsen and Schafer, JASA 96:730-745, 2001).

    P(x = bound) = π,      p(x | x ≠ bound) = density of amounts

The first link gives π, by probit regression, and the second one the amounts; it learns from rows with an
amount only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TwoPart:
    """Indicator of a bound, and amount, of one variable, from its two links.

    Where the indicator is on, the amount is 0, in standardised units.
    """

    links: tuple[int, ...]
    """Numbers of the links of the indicator and of the amount."""
    columns: tuple[int, ...]
    """Their encoded columns."""
    off: Tensor
    on: Tensor
    """Standardised values of the indicator, `[]`."""
    bound: float
    """The bound, in the units that the inverse transform of amounts gives, standardised ones without it."""
    reach: float = 0.0
    """Distance from the bound, in these units, within which a mean is nearer to it than to an amount."""

    def written(self, drawn: Sequence[Tensor]) -> dict[int, Tensor]:
        """Return the cells of the variable by column, given draws from its two links, `[..., k]`."""
        indicator, amount = torch.broadcast_tensors(*drawn)
        return {self.columns[0]: indicator, self.columns[1]: amount.where(indicator < 0, 0.0)}

    def candidates(self, log_off: Tensor, log_on: Tensor, amounts: Tensor) -> tuple[Tensor, Tensor]:
        """Return candidates of cells and the logarithms of their weights.

        They are `[S, k, 1 + K, 2]` and `[S, k, 1 + K]`: the bound, and K amounts `[S, k, K]` drawn from their
        density. The log probabilities of either are `[S, k]`.
        """
        weights = log_off - math.log(amounts.shape[-1])
        log_weights = torch.cat([log_on[..., None], weights[..., None].expand_as(amounts)], dim=-1)
        at_bound = torch.stack([self.on, torch.zeros_like(self.on)]).expand(*amounts.shape[:2], 1, 2)
        others = torch.stack([self.off.expand_as(amounts), amounts], dim=-1)
        return torch.cat([at_bound, others], dim=2), log_weights

    def numbers(self, indicator: Tensor, amount: Tensor) -> Tensor:
        """Return the numbers for which indicators and amounts `[...]` stand, amounts in units of `bound`."""
        return amount.where(indicator < 0, self.bound)

    def is_bound(self, mean: Tensor) -> Tensor:
        """Return Bool `[k]`, the mean numbers that are nearer to the bound than to an amount."""
        return (mean - self.bound).abs() <= self.reach + 1e-9
