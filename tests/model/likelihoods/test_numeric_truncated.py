"""Draws between two bounds agree with SciPy's truncated normal."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm, truncnorm

from pyro_mgp.model.likelihoods import Truncated

INF = np.inf
MEAN, SPREAD = 0.3, 1.7
MIDDLE = [(-1.0, 2.0), (-INF, 0.0), (0.0, INF), (-2.0, 30.0), (0.3, 0.4)]
# Standard deviations from the mean: 4.5, 8.1, 11.6, 17.5 and 35.
FAR = [(8.0, 9.0), (14.0, INF), (20.0, INF), (30.0, 30.5), (60.0, INF)]
INTERVALS = MIDDLE + FAR + [(-high, -low) for low, high in FAR]


def uniform(n: int = 5000) -> np.ndarray:
    return np.random.default_rng(0).random(n)


def draw(low: float, high: float, at: np.ndarray, mean: float = MEAN) -> np.ndarray:
    like = torch.as_tensor(at)
    drawn = Truncated(low, high).draw(torch.full_like(like, mean), torch.full_like(like, SPREAD**2), like)
    return np.asarray(drawn.numpy())


@pytest.mark.parametrize(("low", "high"), INTERVALS)
def test_draws_are_quantiles_of_the_truncated_normal(low: float, high: float) -> None:
    ends = (low - MEAN) / SPREAD, (high - MEAN) / SPREAD
    expected = truncnorm.ppf(uniform(), *ends, MEAN, SPREAD)
    np.testing.assert_allclose(draw(low, high, uniform()), expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize(("low", "high"), INTERVALS)
def test_draws_stay_inside_and_do_not_pile_up_at_a_bound(low: float, high: float) -> None:
    drawn = draw(low, high, uniform())
    assert np.isfinite(drawn).all()
    assert ((low <= drawn) & (drawn <= high)).all()
    assert np.mean((drawn - low < 1e-6) | (high - drawn < 1e-6)) < 0.01


@pytest.mark.parametrize(("low", "high"), INTERVALS)
def test_log_densities_are_those_of_the_truncated_normal(low: float, high: float) -> None:
    ends = (low - MEAN) / SPREAD, (high - MEAN) / SPREAD
    places = truncnorm.ppf(np.linspace(0.01, 0.99, 9), *ends, MEAN, SPREAD)
    at = torch.as_tensor(places)
    found = Truncated(low, high).log_prob(at, torch.full_like(at, MEAN), torch.full_like(at, SPREAD**2))
    expected = truncnorm.logpdf(places, *ends, MEAN, SPREAD)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_draws_at_the_ends_of_the_unit_interval_are_within_the_bounds() -> None:
    generator = np.random.default_rng(0)
    mean, variance = torch.as_tensor(generator.normal(size=(2, 1000))).exp()
    for low, high in INTERVALS:
        for end in (0.0, 1.0):
            drawn = Truncated(low, high).draw(mean, variance, torch.full_like(mean, end)).numpy()
            assert np.isfinite(drawn).all() and ((low <= drawn) & (drawn <= high)).all()


def test_without_bounds_draws_are_those_of_the_normal() -> None:
    expected = norm.ppf(uniform(), MEAN, SPREAD)
    np.testing.assert_allclose(draw(-INF, INF, uniform()), expected, rtol=1e-12, atol=1e-12)


def test_draws_rise_with_the_uniform_number_and_with_the_mean() -> None:
    at = np.linspace(0.001, 0.999, 200)
    for low, high in MIDDLE:
        assert (np.diff(draw(low, high, at)) > 0).all()
    medians = [draw(-1.0, 2.0, np.array([0.5]), mean)[0] for mean in np.linspace(-9, 9, 50)]
    assert (np.diff(medians) > 0).all()


@pytest.mark.parametrize("gap", [0.01, 0.1, 1.0])
def test_a_sharp_prediction_just_beyond_a_bound_is_drawn_next_to_it(gap: float) -> None:
    # A column that others determine: three thousandths of noise, and a mean that is off by a little.
    at = torch.as_tensor(uniform(500))
    drawn = Truncated(0.0, INF).draw(torch.full_like(at, -gap), torch.full_like(at, 1e-5), at)
    assert drawn.isfinite().all()
    assert (drawn >= 0).all()
    # Beyond a far bound, a normal tail falls off exponentially, by one unit in variance / gap.
    assert drawn.mean().item() <= 1.1e-5 / gap


@pytest.mark.parametrize(("low", "high"), INTERVALS)
def test_expectation_is_the_mean_of_the_truncated_normal(low: float, high: float) -> None:
    ends = (low - MEAN) / SPREAD, (high - MEAN) / SPREAD
    mean, variance = torch.tensor([MEAN]).double(), torch.tensor([SPREAD**2]).double()
    expected, spread = truncnorm.mean(*ends, MEAN, SPREAD), truncnorm.std(*ends, MEAN, SPREAD)
    within = Truncated(low, high)
    # 64 places leave out a little of each tail.
    assert within.expectation(mean, variance).item() == pytest.approx(expected, abs=0.01 * spread)
    centred = within.expectation(mean, variance, lambda x: (x - expected).square()).item()
    assert centred == pytest.approx(spread**2, rel=0.08)


def test_entries_do_not_see_each_other() -> None:
    mean = torch.linspace(-3, 3, 12).double().reshape(3, 4)
    variance = torch.linspace(0.1, 2, 12).double().reshape(3, 4)
    at = torch.as_tensor(uniform(12)).reshape(3, 4)
    within = Truncated(-1.0, 2.0)
    drawn, expected = within.draw(mean, variance, at), within.expectation(mean, variance)
    assert drawn.shape == expected.shape == (3, 4)
    torch.testing.assert_close(within.draw(mean[1], variance[1], at[1]), drawn[1])
    torch.testing.assert_close(within.expectation(mean[1], variance[1]), expected[1])
