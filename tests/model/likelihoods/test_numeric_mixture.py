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


def test_moments_of_a_mixture_are_those_of_its_draws() -> None:
    mixture = GaussianMixture(torch.tensor([[0.0], [4.0]]), torch.tensor([[1.0], [3.0]]))
    assert float(mixture.expectation()) == 2.0
    assert float(mixture.standard_deviation()) == pytest.approx((2 + 4) ** 0.5)
