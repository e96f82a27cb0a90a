"""The mixture of Gaussians: quantiles and moments against its distribution function and its definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm

from pyro_mgp.model.likelihoods.numeric import GaussianMixture


def test_quantiles_of_a_mixture_invert_its_distribution_function() -> None:
    mean, variance = torch.randn(5, 8).double(), torch.rand(5, 8).double() + 0.1
    mixture = GaussianMixture(mean, variance)
    for level in (0.025, 0.5, 0.9):
        found = mixture.quantile(level).numpy()
        reached = norm.cdf(found, mean.numpy(), variance.sqrt().numpy()).mean(0)
        np.testing.assert_allclose(reached, level, atol=1e-9)


@pytest.mark.parametrize("unit", [1e-4, 1e4])
def test_quantiles_of_a_mixture_have_its_unit(unit: float) -> None:
    mean, variance = torch.randn(5, 8).double(), torch.rand(5, 8).double() + 0.1
    mixture, scaled = GaussianMixture(mean, variance), GaussianMixture(unit * mean, unit**2 * variance)
    for level in (0.1, 0.9):
        torch.testing.assert_close(scaled.quantile(level) / unit, mixture.quantile(level))


def test_moments_of_a_mixture_are_those_of_its_draws() -> None:
    mixture = GaussianMixture(torch.tensor([[0.0], [4.0]]), torch.tensor([[1.0], [3.0]]))
    assert float(mixture.expectation()) == 2.0
    assert float(mixture.standard_deviation()) == pytest.approx((2 + 4) ** 0.5)


def test_cells_of_a_mixture_do_not_see_each_other() -> None:
    mean, variance = torch.randn(5, 3).double(), torch.rand(5, 3).double() + 0.1
    mean[:, 1] += 1e14
    mean[:, 2] -= 1e14
    together, alone = GaussianMixture(mean, variance), GaussianMixture(mean[:, :1], variance[:, :1])
    for found in (GaussianMixture.expectation, GaussianMixture.standard_deviation):
        torch.testing.assert_close(found(together)[:1], found(alone))
    torch.testing.assert_close(together.quantile(0.3)[:1], alone.quantile(0.3), rtol=1e-9, atol=1e-9)
