"""Stick-breaking likelihood of unordered levels: a variable of K levels as K - 1 binary links.

    P(level k) = πₖ · Π_{j<k} (1 - πⱼ),   π_K = 1

Link k gives πₖ, the probability of level k given that the variable has none of the earlier levels, and learns
from the rows of which that is true (Linderman, Johnson and Adams, NIPS 2015).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Category:
    """Stick-breaking probabilities of the levels of one variable, from its K - 1 binary links."""

    links: tuple[int, ...]
    """Numbers of the K - 1 links, in the order of the levels."""
    columns: tuple[int, ...]
    """The encoded columns of its K indicators, the last of which has no link."""
    off: Tensor
    """Standardised value of each indicator that is off, `[K]`."""
    on: Tensor
    """Standardised value of each indicator that is on, `[K]`."""

    def draw(self, mean: Tensor, uniform: Tensor) -> Tensor:
        """Draw levels from uniform numbers `[S, n]`, and return their indicators, `[S, n, K]`.

        Their probabilities are given by the means of the linked indicators, `[S, n, K - 1]`.
        """
        level = (1 - self._remaining(mean) <= uniform[..., None]).sum(-1)
        chosen = torch.nn.functional.one_hot(level, len(self.columns)).bool()
        return torch.where(chosen, self.on, self.off)

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
