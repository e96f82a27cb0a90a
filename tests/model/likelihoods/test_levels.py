"""The ordinal likelihood agrees with sampling, SciPy and probit regression."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm, truncnorm

from pyro_mgp.model.likelihoods.levels import ExpectedOrdinal, Ordinal

VALUES = torch.tensor([-1.0, 0.0, 2.5]).double()
SHARES = torch.tensor([0.3, 0.5, 0.2]).double()
MEAN = torch.tensor([0.3, -2.0, 4.0]).double()
VARIANCE = torch.tensor([0.5, 1e-9, 2.0]).double()


@pytest.mark.parametrize("value", VALUES.tolist())
def test_expected_log_probability_is_that_of_a_million_draws(value: float) -> None:
    likelihood = Ordinal(VALUES, SHARES)
    at = likelihood(MEAN, VARIANCE).log_prob(torch.full_like(MEAN, value))
    generator = torch.Generator().manual_seed(0)
    f = MEAN + VARIANCE.sqrt() * torch.randn(1_000_000, 3, generator=generator, dtype=torch.float64)
    edges = np.r_[-np.inf, likelihood.thresholds.detach().numpy(), np.inf]
    k = VALUES.tolist().index(value)
    log_p = np.log(norm.cdf(edges[k + 1] - f) - norm.cdf(edges[k] - f))
    error = log_p.std(0) / 1000
    assert (np.abs(at.detach().numpy() - log_p.mean(0)) < 4 * error + 1e-6).all()


def test_predictive_probabilities_are_those_of_an_interval_and_add_up_to_one() -> None:
    likelihood = Ordinal(VALUES, SHARES)
    edges = np.r_[-np.inf, likelihood.thresholds.detach().numpy(), np.inf]
    scale = np.sqrt(1 + VARIANCE.numpy())
    total = torch.zeros(3).double()
    for k, value in enumerate(VALUES):
        p = likelihood(MEAN, VARIANCE).predictive_log_prob(value.expand(3)).exp()
        expected = norm.cdf((edges[k + 1] - MEAN.numpy()) / scale) - norm.cdf(
            (edges[k] - MEAN.numpy()) / scale
        )
        np.testing.assert_allclose(p.detach(), expected, rtol=1e-10)
        total += p.detach()
    torch.testing.assert_close(total, torch.ones(3).double())


def test_given_the_function_probabilities_are_those_of_intervals() -> None:
    likelihood = Ordinal(VALUES, SHARES)
    edges = np.r_[-np.inf, likelihood.thresholds.detach().numpy(), np.inf]
    with torch.no_grad():
        given = likelihood.distribution(MEAN)
        drawn = given.sample((20_000,))
    for k, value in enumerate(VALUES):
        expected = norm.cdf(edges[k + 1] - MEAN.numpy()) - norm.cdf(edges[k] - MEAN.numpy())
        np.testing.assert_allclose(given.log_prob(value.expand(3)).exp(), expected, rtol=1e-9, atol=1e-15)
        np.testing.assert_allclose((drawn == value).double().mean(0), expected, atol=0.02)


def test_log_probabilities_are_those_with_the_function_integrated_out() -> None:
    likelihood = Ordinal(VALUES, SHARES)
    expected = likelihood(MEAN, VARIANCE).predictive_log_prob(VALUES)
    assert torch.equal(likelihood.log_prob(VALUES, MEAN, VARIANCE), expected)


def test_latent_draws_are_quantiles_of_the_normal_within_the_thresholds_of_the_value() -> None:
    likelihood, uniform = Ordinal(VALUES, SHARES), np.array([0.1, 0.5, 0.95])
    edges = np.r_[-np.inf, likelihood.thresholds.detach().numpy(), np.inf]
    scale = np.sqrt(1 + VARIANCE.numpy())
    ends = ((each - MEAN.numpy()) / scale for each in (edges[:-1], edges[1:]))
    with torch.no_grad():
        drawn = likelihood.draw_latent(VALUES, MEAN, VARIANCE, torch.as_tensor(uniform))
    np.testing.assert_allclose(drawn, truncnorm.ppf(uniform, *ends, MEAN, scale), rtol=1e-9)


def test_starting_thresholds_give_the_shares_and_none_is_impossible() -> None:
    start = Ordinal(VALUES, SHARES)
    np.testing.assert_allclose(norm.cdf(start.thresholds.detach()), [0.3, 0.8], rtol=1e-6)
    assert start.noise == 1 and start.noise.dtype == torch.float64
    rare = Ordinal(VALUES, torch.tensor([0.0, 1.0, 0.0]).double())
    np.testing.assert_allclose(norm.cdf(rare.thresholds.detach()), [0.001 / 1.002, 1.001 / 1.002], rtol=1e-9)


def test_draws_have_these_probabilities_and_the_stated_mean() -> None:
    likelihood = Ordinal(VALUES, SHARES)
    at = likelihood(MEAN, VARIANCE)
    p = torch.stack([at.predictive_log_prob(value.expand(3)).exp() for value in VALUES]).detach()
    uniform = (torch.arange(20_000).double() + 0.5)[:, None].expand(-1, 3) / 20_000
    with torch.no_grad():
        drawn = likelihood.draw(MEAN.expand(20_000, 3), (VARIANCE).expand(20_000, 3), uniform)
        mean = likelihood.expectation(MEAN, VARIANCE)
        square = likelihood.expectation(MEAN, VARIANCE, torch.square)
    assert (drawn.diff(dim=0) >= 0).all()
    for k, value in enumerate(VALUES):
        torch.testing.assert_close((drawn == value).double().mean(0), p[k], rtol=0, atol=1e-4)
    torch.testing.assert_close(mean, (p * VALUES[:, None]).sum(0))
    torch.testing.assert_close(square, (p * VALUES[:, None].square()).sum(0))


def test_of_two_values_it_is_probit_regression() -> None:
    likelihood = Ordinal(torch.tensor([-0.5, 2.0]).double(), torch.tensor([0.8, 0.2]).double())
    f = torch.linspace(-9, 9, 7).double()
    sure = torch.zeros_like(f)
    threshold = float(likelihood.thresholds.detach())
    for value, sign in ((-0.5, -1), (2.0, 1)):
        at = likelihood(f, sure).log_prob(torch.full_like(f, value))
        np.testing.assert_allclose(at.detach(), norm.logcdf(sign * (f - threshold)), rtol=1e-4, atol=1e-12)


@pytest.mark.parametrize("mean", [-200.0, -20.0, 20.0, 200.0])
def test_gradients_are_finite_and_point_back_however_far_off(mean: float) -> None:
    at = torch.full((3,), mean).double().requires_grad_()
    variance = torch.full((3,), 1e-12).double().requires_grad_()
    likelihood = Ordinal(VALUES, SHARES)
    score = likelihood(at, variance).log_prob(VALUES)
    score.sum().backward()
    assert all(part.grad.isfinite().all() for part in (at, variance, likelihood.thresholds_unconstrained))
    wrong = 0 if mean > 0 else 2
    assert at.grad[wrong] * mean < -abs(mean)
    assert (variance.grad <= 1e-9).all()


def test_it_expands_as_a_distribution() -> None:
    at = ExpectedOrdinal(MEAN, VARIANCE, VALUES, torch.tensor([0.0, 1.0]).double())
    expanded = at.expand(torch.Size([4, 3])).log_prob(VALUES.expand(4, 3))
    torch.testing.assert_close(expanded, at.log_prob(VALUES).expand(4, 3))
