"""Contaminated normal distribution: draws, densities and masses agree with SciPy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from pyro_mgp._support.keyed_noise import KeyedNoise
from pyro_mgp.model.conditional import Moments
from pyro_mgp.model.likelihoods import Contaminated

MEAN, SPREAD = 0.3, 0.7
BOUNDS = [(-math.inf, math.inf), (-1.0, 1.5), (0.0, math.inf)]


def components(low: float, high: float) -> list[tuple[float, stats.rv_continuous]]:
    """Weights and SciPy's truncated normal distributions, whose standard deviations are one and four."""
    return [
        (weight, stats.truncnorm((low - MEAN) / scale, (high - MEAN) / scale, loc=MEAN, scale=scale))
        for weight, scale in ((0.9, SPREAD), (0.1, 4 * SPREAD))
    ]


def given(like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full_like(like, MEAN), torch.full_like(like, SPREAD**2)


def uniform(n: int) -> torch.Tensor:
    return KeyedNoise(0, torch.arange(n), [0]).uniform(0)[0]


@pytest.mark.parametrize(("low", "high"), BOUNDS)
def test_draws_have_the_distribution(low: float, high: float) -> None:
    numbers = uniform(50_000)
    drawn = Contaminated(low, high).draw(*given(numbers), numbers).numpy()

    def below(x: np.ndarray) -> np.ndarray:
        return np.sum([weight * own.cdf(x) for weight, own in components(low, high)], axis=0)

    assert stats.kstest(drawn, below).pvalue > 0.01
    assert stats.kstest(drawn, components(low, high)[0][1].cdf).pvalue < 0.02


@pytest.mark.parametrize(("low", "high"), BOUNDS)
def test_log_densities_and_masses(low: float, high: float) -> None:
    at = torch.linspace(max(low, -9.0) + 0.01, min(high, 9.0) - 0.01, 50).double()
    parts, model = components(low, high), Contaminated(low, high)
    density = np.log(np.sum([weight * own.pdf(at) for weight, own in parts], axis=0))
    np.testing.assert_allclose(model.log_prob(at, *given(at)), density, rtol=1e-9)
    ends = torch.cat([torch.tensor([-math.inf]).double(), at])
    mass = np.log(np.sum([w * (own.cdf(ends[1:]) - own.cdf(ends[:-1])) for w, own in parts], axis=0))
    np.testing.assert_allclose(model.log_mass(ends[:-1], ends[1:], *given(at)), mass, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(("low", "high"), BOUNDS)
def test_expectations(low: float, high: float) -> None:
    at = torch.zeros(1).double()
    for of, own in ((None, lambda x: x), (torch.cos, np.cos)):
        expected = sum(weight * part.expect(own) for weight, part in components(low, high))
        found = float(Contaminated(low, high).expectation(*given(at), of))
        assert found == pytest.approx(expected, abs=0.02)


def test_the_mixture_with_several_means() -> None:
    mean, variance = torch.randn(3, 4).double(), torch.rand(3, 4).double() + 0.1
    found = Contaminated().mixture(mean, variance)
    low = found.quantile(0.05)
    densities = Contaminated().log_mass(torch.full_like(mean, -math.inf), low.expand_as(mean), mean, variance)
    torch.testing.assert_close(densities.exp().mean(0), torch.full((4,), 0.05).double(), rtol=1e-6, atol=0)
    expected = (2.5 * variance).mean(0) + mean.var(0, correction=0)
    torch.testing.assert_close(found.standard_deviation().square(), expected)


def test_the_last_digits_of_uniform_numbers_do_not_choose() -> None:
    numbers, model = uniform(5_000), Contaminated()
    inside = (numbers * 2.0**26) % 1
    kept = numbers[(inside > 1e-6) & (inside < 1 - 1e-6)]
    assert torch.equal(model.factors(kept), model.factors(kept * (1 + 1e-15)))


def test_what_observations_share_is_not_scaled() -> None:
    shared, own = torch.randn(2, 40_000).double(), torch.full((2, 40_000), 0.5).double()
    mean, factors = torch.zeros_like(own), torch.full_like(own, 4.0)
    scaled = Moments(mean, own + 1.0, shared, own).scaled(factors)
    assert torch.equal(scaled.shared, shared) and (scaled.variance == 3.0).all()
    deviation = scaled.standard(scaled.variance, torch.randn(2, 40_000).double())
    assert float(deviation.var()) == pytest.approx(1.0, abs=0.03)
