"""Gamma and Poisson variates agree with SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import special, stats

from pyro_mgp.model.likelihoods.variates import gamma_variates, poisson_quantiles


def tails() -> np.ndarray:
    """Return uniform numbers, two thirds of them in the tails."""
    generator = np.random.default_rng(3)
    tail = 10 ** -generator.uniform(0, 9, size=2000)
    return np.concatenate([generator.random(2000), tail, 1 - tail]).clip(1e-9, 1 - 1e-9)


@pytest.mark.parametrize("shape", [1.0, 1.1, 2.0, 7.0, 300.0, 1e6])
def test_gamma_variates_are_quantiles(shape: float) -> None:
    uniform = torch.as_tensor(tails())
    actual = gamma_variates(torch.tensor(shape).double(), uniform, torch.full_like(uniform, 0.3))
    assert torch.equal(actual, gamma_variates(torch.tensor(shape).double(), uniform))
    np.testing.assert_allclose(actual, special.gammaincinv(shape, tails()), rtol=1e-6)


@pytest.mark.parametrize("shape", [0.02, 0.3, 0.99])
def test_gamma_variates_of_small_shapes_follow_their_distribution(shape: float) -> None:
    uniform = torch.as_tensor(np.random.default_rng(1).random((2, 100_000)))
    drawn = gamma_variates(torch.tensor(shape).double(), *uniform)
    # Kolmogorov's critical value, one in a thousand.
    assert stats.kstest(drawn.numpy(), stats.gamma(shape).cdf).statistic < 1.95 / 100_000**0.5


@pytest.mark.parametrize("mean", [1e-200, 1e-4, 0.3, 1.0, 5.0, 14.3, 321.0, 1e5])
def test_poisson_quantiles_are_those_of_scipy(mean: float) -> None:
    uniform = tails()
    actual = poisson_quantiles(torch.full((6000,), mean).double(), torch.as_tensor(uniform))
    expected = stats.poisson.ppf(uniform, mean)
    # In floating point, quantiles of large means are uncertain by one.
    np.testing.assert_allclose(actual, expected, rtol=0, atol=0 if mean < 1e5 else 1)
    assert (actual.numpy() == expected).mean() > 0.99


def test_where_the_distribution_function_is_the_uniform_number_the_quantile_is_the_count() -> None:
    counts = torch.arange(40.0, dtype=torch.float64)
    for mean in (0.3, 4.0, 17.5):
        rate = torch.full_like(counts, mean)
        reached = torch.special.gammaincc(counts + 1, rate)
        inside = reached < 1 - 1e-9
        assert torch.equal(poisson_quantiles(rate, reached)[inside], counts[inside])
