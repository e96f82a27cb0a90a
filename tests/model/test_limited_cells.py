"""Cells within limits have truncated distributions, and contribute the probability of their interval."""

from __future__ import annotations

import math

import pyro.distributions as dist
import pytest
import torch
from known_function import Known
from scipy import stats

from pyro_mgp.model.conditional import Moments
from pyro_mgp.model.likelihoods import Truncated, WithinLimits
from pyro_mgp.model.limited_cells import clamped, informative_cells, log_within

INF = math.inf
ENDS = [(-INF, -0.5), (1.5, INF), (0.2, 0.9), (-INF, INF), (5.0, 5.5)]
LIMITS = torch.tensor(ENDS).double()


def scipy_truncated(mean: float, deviation: float, ends: tuple[float, float]) -> stats.rv_continuous:
    low, high = ((end - mean) / deviation for end in ends)
    return stats.truncnorm(low, high, mean, deviation)


def test_cells_with_a_limit_count_as_observed() -> None:
    observed, limits = torch.tensor([[True, False, False]]), torch.full((1, 3, 2), INF)
    limits[..., 0] = -INF
    limits[0, 1, 1] = 2.0
    assert informative_cells(observed, limits).tolist() == [[True, True, False]]
    assert informative_cells(observed, None) is observed
    values = torch.tensor([[[3.0, 3.0, 3.0]], [[1.0, 1.0, 1.0]]])
    assert clamped(values, observed, limits).tolist() == [[[3.0, 2.0, 3.0]], [[1.0, 1.0, 1.0]]]


def test_draws_within_limits_are_quantiles_of_the_truncated_distribution() -> None:
    link = Known(torch.tensor(0.5).double(), lambda rows: rows[..., 0])
    moments = Moments(torch.full((1, 5), 0.3).double(), torch.full((1, 5), 0.31).double())
    eps = torch.tensor([[0.4, -1.2, 2.0, 0.7, -0.3]]).double()
    drawn = link.draw(moments, eps, LIMITS)[0].tolist()
    for value, e, ends in zip(drawn, eps[0].tolist(), ENDS, strict=True):
        assert value == pytest.approx(scipy_truncated(0.3, 0.9, ends).ppf(stats.norm.cdf(e)), abs=1e-6)


def test_limits_lie_within_the_bounds_of_a_column() -> None:
    link = Known(torch.tensor(0.5).double(), lambda rows: rows[..., 0]).observed_as(Truncated(-1.0, 1.0))
    moments = Moments(torch.zeros(1, 2000).double(), torch.ones(1, 2000).double())
    eps = torch.randn(1, 2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = link.draw(moments, eps, torch.tensor([[-INF, 0.5]]).double().expand(2000, 2))[0]
    assert stats.kstest(drawn.numpy(), scipy_truncated(0.0, 1.5**0.5, (-1.0, 0.5)).cdf).pvalue > 1e-3


@pytest.mark.parametrize("ends", ENDS)
def test_densities_integrate_to_one_or_to_the_probability_of_the_interval(ends: tuple[float, float]) -> None:
    normal, limits = dist.Normal(torch.tensor(0.3).double(), 0.9), torch.tensor(ends).double()
    grid = torch.linspace(-8, 8, 160_001, dtype=torch.float64)
    mass = stats.norm(0.3, 0.9).cdf(ends[1]) - stats.norm(0.3, 0.9).cdf(ends[0])
    for normalised, total in ((True, 1.0), (False, mass)):
        density = WithinLimits(normal, limits, normalised=normalised).log_prob(grid).exp()
        assert float(torch.trapezoid(density, grid)) == pytest.approx(total, rel=2e-3)


@pytest.mark.parametrize("ends", ENDS)
def test_samples_have_the_truncated_distribution(ends: tuple[float, float]) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        cells = WithinLimits(dist.Normal(torch.tensor(0.3).double(), 0.9), torch.tensor(ends).double())
        many = cells.expand(torch.Size([5000]))
        drawn = many.rsample().numpy()
    assert (cells.batch_shape, many.batch_shape) == ((), (5000,))
    assert stats.kstest(drawn, scipy_truncated(0.3, 0.9, ends).cdf).pvalue > 1e-3


@pytest.mark.parametrize("normalised", [True, False])
def test_expanded_cells_have_the_same_density(normalised: bool) -> None:
    normal, values = dist.Normal(torch.tensor(0.3).double(), 0.9), torch.tensor([0.3, 0.8]).double()
    cells = WithinLimits(normal, torch.tensor([0.2, 0.9]).double(), normalised=normalised)
    torch.testing.assert_close(cells.expand(torch.Size([2])).log_prob(values), cells.log_prob(values))


def test_values_beyond_limits_have_no_density() -> None:
    values = torch.tensor([-1.0, 0.0, 0.5, 1.0]).double()
    assert log_within(values, torch.tensor([0.0, 0.5]).double()).tolist() == [-INF, 0.0, 0.0, -INF]
