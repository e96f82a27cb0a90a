"""Elliptical slice sampling leaves the posterior invariant."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_mgp.model.elliptical_slice import N_ANGLES, elliptical_slice


def test_states_with_a_normal_likelihood_get_their_posterior() -> None:
    """N(0, 1) times N(1; x, 1) is N(1/2, 1/2)."""
    chance = torch.Generator().manual_seed(0)
    x, data = torch.zeros(4000, 1), torch.ones(4000)

    def log_likelihood(x: Tensor, states: Tensor) -> Tensor:
        return -0.5 * (data[states] - x[:, 0]) ** 2

    for _ in range(10):
        numbers = torch.rand(4000, 1 + N_ANGLES, generator=chance)
        direction = torch.randn(4000, 1, generator=chance)
        found = log_likelihood(x, torch.arange(4000))
        x, last = elliptical_slice(x, direction, log_likelihood, found, numbers)
        torch.testing.assert_close(last, log_likelihood(x, torch.arange(4000)))
    assert abs(x.mean() - 0.5) < 0.05
    assert abs(x.var() - 0.5) < 0.05
