"""Slice sampling leaves one-dimensional densities as they are, in every chain."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from pyro_mgp.inference.slice_sampling import N_NUMBERS, slice_step


def numbers(n: int, seed: int) -> Tensor:
    return torch.as_tensor(np.random.default_rng(seed).normal(size=(n, N_NUMBERS)))


@pytest.mark.parametrize("width", [0.2, 1.0, 20.0])
def test_draws_keep_the_distribution_that_they_start_from(width: float) -> None:
    """Thousands of chains that start from a skewed density with two modes keep it, and move."""
    weights, centres, spreads = (torch.tensor(x).double() for x in ([0.7, 0.3], [0.0, 3.0], [1.0, 0.4]))

    def log_density(x: Tensor) -> Tensor:
        each = -0.5 * ((x[:, None] - centres) / spreads).square() - spreads.log() + weights.log()
        return each.logsumexp(1)

    generator = np.random.default_rng(0)
    mode = generator.random(6000) < 0.7
    start = np.where(mode, generator.normal(size=6000), 3 + 0.4 * generator.normal(size=6000))
    found = torch.as_tensor(start)
    for step in range(3):
        found = slice_step(log_density, found, numbers(6000, step + 1), width)
    assert (found.numpy() != start).mean() > 0.9

    def distribution(x: np.ndarray) -> np.ndarray:
        return 0.7 * stats.norm.cdf(x) + 0.3 * stats.norm.cdf((x - 3) / 0.4)

    assert stats.kstest(found.numpy(), distribution).pvalue > 1e-3


def test_chains_do_not_influence_each_other() -> None:
    def log_density(x: Tensor) -> Tensor:
        return -0.5 * x.square()

    normal = numbers(10, 0)
    together = slice_step(log_density, torch.zeros(10).double(), normal)
    alone = torch.cat([slice_step(log_density, torch.zeros(1).double(), each[None]) for each in normal])
    assert torch.equal(together, alone)
