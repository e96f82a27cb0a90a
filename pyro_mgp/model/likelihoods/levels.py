"""Likelihoods of ordered values, by thresholds on a latent function, and of unordered levels.

Ordered values have a cumulative probit likelihood,

    P(x = aₖ | f) = Φ(tₖ - f) - Φ(tₖ₋₁ - f),   t₀ = -∞ < t₁ < ... < t_K = ∞

A value is the interval into which the function plus noise of variance one falls (McCullagh 1980; Chu and
Ghahramani, JMLR 6:1019-1041, 2005). With two values (booleans) the model is probit regression.

A variable of K unordered levels is K - 1 such booleans, by stick-breaking:

    P(level k) = πₖ · Π_{j<k} (1 - πⱼ),   π_K = 1

Link k gives πₖ, the probability of level k given that the variable has none of the earlier levels, and learns
from the rows of which that is true (Linderman, Johnson and Adams, NIPS 2015). `level_order` chooses the order
of the levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from pyro.nn import PyroParam
from torch import Tensor

from pyro_mgp._support.normal import log_between
from pyro_mgp.model.likelihoods.base import Quantity, Recoded, Scored, draw_truncated
from pyro_mgp.model.local_parameters import LocalModule

# Distance of the outer thresholds from zero: larger than any value of the function.
_FAR = 1e8
# Smallest starting probability of a value.
_LEAST_SHARE = 1e-3


class ExpectedOrdinal(Scored):
    """Distribution of an ordered value, given a Gaussian latent function."""

    values: Tensor
    """Values that a cell can have, ascending, `[K]`."""
    thresholds: Tensor
    """Thresholds of the latent function, `[K - 1]`."""

    def predictive_log_prob(self, value: Tensor) -> Tensor:
        """Return the predictive log probability of `value`, with the latent function integrated out."""
        low, high = self.bounds(value)
        scale = (1 + self.f_variance).sqrt()
        return log_between((low - self.f_mean) / scale, (high - self.f_mean) / scale)

    def _given(self, value: Tensor) -> Quantity:
        low, high = (bound[..., None] for bound in self.bounds(value))
        return lambda f: log_between(low - f, high - f)

    def bounds(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return the thresholds below and above each value; the outer ones are very far away."""
        nearest = nearest_value(self.values, value)
        far = self.thresholds.new_full((1,), _FAR)
        thresholds = torch.cat([-far, self.thresholds, far])
        return thresholds[nearest], thresholds[nearest + 1]


class Ordinal(LocalModule):
    """Likelihood of a column of ordered values, with its thresholds as parameters.

    Takes two or more standardised values, `[K]`, ascending, and their relative frequencies, `[K]`, which give
    the starting thresholds.
    """

    noise: Tensor
    values: Tensor

    def __init__(self, values: Tensor, shares: Tensor) -> None:
        super().__init__()
        self.register_buffer("values", values)
        self.register_buffer("noise", values.new_ones(()))
        shares = shares.clamp(min=_LEAST_SHARE)
        below = (shares / shares.sum()).cumsum(0)[:-1]
        self.thresholds = PyroParam(torch.special.ndtri(below), constraints.ordered_vector)

    def forward(self, mean: Tensor, variance: Tensor) -> ExpectedOrdinal:
        """Return the distribution of observations, given the moments of the latent function."""
        return ExpectedOrdinal(mean, variance, self.values, self.thresholds, validate_args=False)

    def distribution(self, function: Tensor) -> Recoded:
        """Return the distribution of observations given values `[..., n]` of the latent function."""
        far = _FAR * torch.ones_like(self.thresholds[..., :1])
        ends = torch.cat([-far, self.thresholds, far], dim=-1) - function[..., None]
        levels = dist.Categorical(logits=log_between(ends[..., :-1], ends[..., 1:]))
        return Recoded(levels, lambda number: self.values[number], lambda x: nearest_value(self.values, x))

    def draw(self, mean: Tensor, variance: Tensor, uniform: Tensor) -> Tensor:
        """Draw observations by means of uniform numbers."""
        latent = mean + (1 + variance).sqrt() * torch.special.ndtri(uniform)
        return self.values[torch.searchsorted(self.thresholds, latent.contiguous())]

    def draw_latent(self, value: Tensor, mean: Tensor, variance: Tensor, uniform: Tensor) -> Tensor:
        """Draw the function plus noise of variance one that values stand for (Albert and Chib 1993)."""
        low, high = self.forward(mean, variance).bounds(value)
        return draw_truncated(mean, 1 + variance, low, high, uniform)

    def log_prob(self, value: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Return the log probability of observations, with the latent function integrated out."""
        return self.forward(mean, variance).predictive_log_prob(value)

    def log_levels(self, mean: Tensor, variance: Tensor) -> Tensor:
        """Return the log probabilities of all values `[..., K]`, with the latent function integrated out."""
        values = [value.expand_as(mean) for value in self.values]
        return torch.stack([self.log_prob(value, mean, variance) for value in values], dim=-1)

    def expectation(self, mean: Tensor, variance: Tensor, of: Quantity | None = None) -> Tensor:
        """Return the expectation of the observations, or of a function of them."""
        quantities = self.values if of is None else of(self.values)
        reached = torch.special.ndtr((self.thresholds - mean[..., None]) / (1 + variance).sqrt()[..., None])
        return quantities[-1] - reached @ quantities.diff()


@dataclass(frozen=True)
class Category:
    """Stick-breaking probabilities of the levels of one variable, from its K - 1 binary links."""

    links: tuple[int, ...]
    """Numbers of the K - 1 links, in order."""
    columns: tuple[int, ...]
    """The encoded columns of its K indicators, in the order of their links; the last one has none."""
    off: Tensor
    on: Tensor
    """Standardised value of each indicator where it is off, and where it is on, `[K]`."""

    def written(self, drawn: Sequence[Tensor]) -> dict[int, Tensor]:
        """Return the indicators by column, given the cells `[..., k]` of its binary links.

        The level is the first one whose indicator is on, and the last if none is.
        """
        left = torch.ones_like(drawn[0], dtype=torch.bool)
        found = {}
        for k, column in enumerate(self.columns):
            on = drawn[k] > (self.on[k] + self.off[k]) / 2 if k < len(drawn) else left
            found[column] = torch.where(left & on, self.on[k], self.off[k])
            left = left & ~on
        return found

    def draw(self, mean: Tensor, uniform: Tensor) -> Tensor:
        """Draw levels from uniform numbers `[S, n]`, and return their indicators, `[S, n, K]`.

        Their probabilities are given by the means of the linked indicators, `[S, n, K - 1]`.
        """
        level = (1 - self._remaining(mean) <= uniform[..., None]).sum(-1)
        levels = torch.arange(len(self.columns), device=level.device)
        return torch.where(level[..., None] == levels, self.on, self.off)

    def expectation(self, mean: Tensor) -> Tensor:
        """Return the expected indicators of all levels, `[S, n, K]`, given those of the binary links."""
        remaining = self._remaining(mean)
        first = torch.ones_like(remaining[..., :1])
        ends = torch.cat([first, remaining, torch.zeros_like(first)], dim=-1)
        return self.off - (self.on - self.off) * ends.diff()

    def _remaining(self, mean: Tensor) -> Tensor:
        """Return the probability that a level comes after the k-th, for each k < K, `[S, n, K - 1]`."""
        share = (mean - self.off[:-1]) / (self.on - self.off)[:-1]
        return (1 - share).cumprod(-1)


def none_is_on(table: Tensor, indicators: Sequence[int]) -> Tensor:
    """Return Bool `[...]`: the rows of a table `[..., D]` in which all of some indicators are off."""
    # Column by column: a list of numbers as index would be copied to a GPU, for which the host waits.
    off = torch.ones_like(table[..., 0], dtype=torch.bool)
    for column in indicators:  # standardised, an indicator that is off is negative
        off = off & (table[..., column] < 0)
    return off


def nearest_value(values: Tensor, cells: Tensor) -> Tensor:
    """Return the number of the value, out of `[K]` ascending ones, that is nearest to each cell `[...]`."""
    return torch.searchsorted((values[1:] + values[:-1]) / 2, cells.contiguous())
