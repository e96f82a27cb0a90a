"""How well chains of Gibbs sampling mix: R-hat and effective sample sizes of what they pass through.

R-hat compares the variance between chains with that within them, of ranks in halves of chains (Vehtari et
al., Bayesian Analysis 16:667-718, 2021). If the values of a chain are correlated over τ iterations, the mean
of h of them has τ / h of their variance, and for c half chains of h iterations

    R-hat² ≈ 1 + (τ / h) F,      F ~ F(c - 1, c (h - 1)),

so that short chains have a large R-hat, however well they mix. Imputations need draws that depend neither on
the start of a chain nor on each other: τ must not exceed the iterations between draws. `largest_rhat` is what
R-hat reaches by chance if it does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from pyro.ops.stats import gelman_rubin
from scipy.stats import f, rankdata
from torch import Tensor

# Fewest iterations of a chain that is split in halves.
_FEWEST_ITERATIONS = 4
# R-hat that is never too large, and the probability that any R-hat exceeds the largest one by chance.
_NEGLIGIBLE, _BY_CHANCE = 1.05, 0.01
_ZERO = torch.zeros(())


@dataclass(frozen=True)
class Record:
    """Missing cells of the links in S chains after burn-in: their moments, and a trace of each column."""

    places: Mapping[int, tuple[Tensor, int]]
    """Rows of the missing cells, and their column, by the number of the link."""
    trace: tuple[Tensor, ...] = ()
    """Mean and standard deviation of each link's missing cells in each iteration, `[S, 2, links]`."""
    mean: Tensor = _ZERO
    """Mean of each cell over the iterations, link after link, `[S, cells]`."""
    squares: Tensor = _ZERO
    """Sum of squared deviations from it, `[S, cells]`."""

    def with_iteration(self, filled: Tensor) -> Self:
        """Return the record with the completed tables of a further iteration, `[S, N, D]`."""
        of_links = [filled[:, rows, column] for rows, column in self.places.values()]
        if not of_links:
            return self
        moments = [torch.stack([own.mean(1), own.std(1, correction=0)], 1) for own in of_links]
        trace, cells = (*self.trace, torch.stack(moments, -1)), torch.cat(of_links, 1).float()
        # Welford, Technometrics 4:419-420, 1962
        step = cells - self.mean
        mean = self.mean + step / len(trace)
        return replace(self, trace=trace, mean=mean, squares=self.squares + step * (cells - mean))

    def beside(self, other: Record) -> Self:
        """Return the record of these chains and of others with as many iterations."""
        trace = tuple(torch.cat(pair) for pair in zip(self.trace, other.trace, strict=True))
        mean, squares = torch.cat([self.mean, other.mean]), torch.cat([self.squares, other.squares])
        return replace(self, trace=trace, mean=mean, squares=squares)

    def traces(self) -> Tensor:
        """Return mean and standard deviation of each link's missing cells, `[S, iterations, 2, links]`."""
        return torch.stack(self.trace, 1)

    def rhat_of_cells(self) -> list[Tensor]:
        """Return R-hat of each link's missing cells, neither split nor ranked; NaN for constant ones."""
        n = len(self.trace)
        rhat = ((n - 1) / n + (n - 1) * self.mean.var(0) / self.squares.mean(0)).sqrt()
        return list(rhat.split([len(rows) for rows, _ in self.places.values()]))


def split_rhat(traces: Tensor) -> Tensor:
    """Return R-hat of traces `[chains, iterations, ...]`; NaN if constant, or of less than four iterations.

    It is the larger one of the ranked values and their ranked distances from the median, as in ArviZ.
    """
    if traces.shape[1] < _FEWEST_ITERATIONS:
        return torch.full_like(traces[0, 0], math.nan)
    halves = _halves(traces)
    median = torch.as_tensor(np.median(halves.numpy(), axis=(0, 1)))
    bulk, folded = (gelman_rubin(_ranked(each)) for each in (halves, (halves - median).abs()))
    return torch.maximum(bulk, folded.nan_to_num(0.0))


def bulk_ess(traces: Tensor) -> Tensor:
    """Return the effective sample size of traces `[chains, iterations, ...]`, NaN as in `split_rhat`.

    Autocorrelations are summed in pairs as far as these are positive and fall (Geyer, Statistical Science
    7:473-483, 1992).
    """
    if traces.shape[1] < _FEWEST_ITERATIONS:
        return torch.full_like(traces[0, 0], math.nan)
    scores = _ranked(_halves(traces))
    n_chains, n = scores.shape[:2]
    mean = scores.mean(1, keepdim=True)
    spectrum = torch.fft.rfft(scores - mean, 2 * n, dim=1).abs().square().mean(0)
    covariance = torch.fft.irfft(spectrum, 2 * n, dim=0)[:n] / n
    within, total = covariance[0] * n / (n - 1), covariance[0] + mean[:, 0].var(0)
    correlation = 1 - (within - covariance) / total
    correlation[0] = correlation[0] / correlation[0]  # one, or NaN
    pairs = correlation[: n // 2 * 2].unflatten(0, (-1, 2)).sum(1)
    tau = 2 * pairs.cummin(0).values.clamp(min=0).sum(0) - 1
    return n_chains * n / tau.clamp(min=1 / math.log10(n_chains * n))


def largest_rhat(n_chains: int, n_iterations: int, n_draws: int, n_compared: int = 1) -> float:
    """Return the largest R-hat that chains whose draws are independent reach by chance.

    Each chain has `n_iterations` and has made `n_draws`. The largest of `n_compared` R-hats is judged.
    """
    if n_iterations < _FEWEST_ITERATIONS:
        return math.inf
    n_halves, within = 2 * n_chains, n_iterations // 2 - 1
    by_chance = f.isf(_BY_CHANCE / (2 * n_compared), n_halves - 1, n_halves * within)  # of bulk and folded
    return max(_NEGLIGIBLE, math.sqrt(1 + 2 * by_chance / n_draws))


def _halves(traces: Tensor) -> Tensor:
    """Split chains in halves, `[2 · chains, iterations // 2, ...]`; an odd one in the middle is left out."""
    half = traces.shape[1] // 2
    return torch.cat([traces[:, :half], traces[:, -half:]]).cpu()


def _ranked(traces: Tensor) -> Tensor:
    """Replace values by normal scores of their ranks among all chains."""
    values = traces.flatten(0, 1)
    ranks = torch.as_tensor(rankdata(values.numpy(), axis=0))
    return torch.special.ndtri((ranks - 0.375) / (len(values) + 0.25)).view(traces.shape)
