"""Elliptical slice sampling leaves the posterior invariant."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pyro_mgp.model import elliptical_slice as module
from pyro_mgp.model.elliptical_slice import TOGETHER, elliptical_slice


def test_states_with_a_normal_likelihood_get_their_posterior() -> None:
    """N(0, 1) times N(1; x, 1) is N(1/2, 1/2)."""
    chance = torch.Generator().manual_seed(0)
    x, data = torch.zeros(4000), torch.ones(4000)

    def log_likelihood(x: Tensor, states: Tensor) -> Tensor:
        return -0.5 * (data[states] - x) ** 2

    for _ in range(10):
        numbers = torch.rand(4000, 2, generator=chance)
        direction = torch.randn(4000, generator=chance)
        found = log_likelihood(x, torch.arange(4000))
        x = elliptical_slice(x, direction, log_likelihood, found, numbers)
    assert abs(x.mean() - 0.5) < 0.05
    assert abs(x.var() - 0.5) < 0.05


def test_angles_tried_together_are_those_tried_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose likelihoods are evaluated, and how many of one state at once, does not change what is taken."""
    chance = torch.Generator().manual_seed(0)
    start, direction = torch.randn(2, 40, generator=chance)
    shares = torch.rand(40, 2, generator=chance)
    most = []

    def log_likelihood(x: Tensor, states: Tensor) -> Tensor:
        most.append(int(torch.bincount(states).max()))
        return -20.0 * (x - 0.1 * states).square()

    found = log_likelihood(start, torch.arange(40))
    several = elliptical_slice(start, direction, log_likelihood, found, shares)
    assert max(most) >= TOGETHER // 40
    most.clear()
    monkeypatch.setattr(module, "TOGETHER", 1)
    one = elliptical_slice(start, direction, log_likelihood, found, shares)
    assert set(most) == {1} and len(most) > 5
    assert torch.equal(one, several)
    assert not torch.equal(one, start)
