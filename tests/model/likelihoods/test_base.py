"""The Gaussian likelihood, those of one's own, recoded distributions, and stick-breaking of categories."""

from __future__ import annotations

import math

import numpy as np
import pyro
import pyro.contrib.gp as gp
import pyro.distributions as dist
import pytest
import torch
from numpy.polynomial.hermite import hermgauss
from pyro import poutine
from scipy import stats
from scipy.stats import norm
from torch import Tensor
from torch.autograd import gradcheck

from pyro_mgp.model.likelihoods import (
    MIN_NOISE,
    Category,
    CountScale,
    Drawn,
    ExpectedNormal,
    Gaussian,
    HeavyTailed,
    NegativeBinomial,
    Ordinal,
    Recoded,
)
from pyro_mgp.model.likelihoods.base import _lattice, mean_under_normal
from pyro_mgp.model.likelihoods.levels import none_is_on


def moments(*shape: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return means, variances, noise variances of several orders of magnitude, and values: `[4, *shape]`."""
    mean, value = 3 * torch.randn(2, *shape, dtype=torch.float64, device=device)
    variance, noise = torch.randn(2, *shape, dtype=torch.float64, device=device).exp().square()
    return mean, variance, noise, value


# ------------------------------------------------------------------------------------------------- densities


def test_log_prob_is_the_expected_log_density_by_quadrature(device: torch.device) -> None:
    mean, variance, noise, value = moments(50, device=device)
    # E_q g(f) = π^(-1/2) Σ w g(μ + √2 σ t), exact here: log N is a parabola in f.
    nodes, weights = hermgauss(8)
    m, v, s2, x = (t.cpu().numpy()[:, None] for t in (mean, variance, noise, value))
    densities = norm.logpdf(x, m + np.sqrt(2 * v) * nodes, np.sqrt(s2))
    expected = densities @ weights / math.sqrt(math.pi)
    actual = ExpectedNormal(mean, variance, noise).log_prob(value).cpu().numpy()
    np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-10)


def test_predictive_log_prob_is_the_density_with_both_variances(device: torch.device) -> None:
    mean, variance, noise, value = moments(50, device=device)
    m, v, s2, x = (t.cpu().numpy() for t in (mean, variance, noise, value))
    actual = ExpectedNormal(mean, variance, noise).predictive_log_prob(value).cpu().numpy()
    np.testing.assert_allclose(actual, norm.logpdf(x, m, np.sqrt(v + s2)), rtol=1e-10, atol=1e-10)


def test_contrib_gp_scores_the_larger_predictive_density(device: torch.device) -> None:
    mean, variance, _, value = moments(7, device=device)
    noise = torch.tensor(0.3, device=device).double()
    with pyro.settings.context(module_local_params=True):
        theirs = gp.likelihoods.Gaussian(variance=noise)
        trace = poutine.trace(theirs).get_trace(mean, variance, value)
    score = trace.nodes["y"]["fn"].base_dist.log_prob(value)
    ours = ExpectedNormal(mean, variance, noise)
    torch.testing.assert_close(ours.predictive_log_prob(value), score, rtol=1e-12, atol=1e-12)
    assert (ours.log_prob(value) < score - 1e-3).all()  # Jensen


def test_without_uncertainty_of_the_function_it_is_the_normal(device: torch.device) -> None:
    mean, _, noise, value = moments(20, device=device)
    certain = ExpectedNormal(mean, torch.zeros_like(mean), noise)
    expected = torch.distributions.Normal(mean, noise.sqrt()).log_prob(value)
    torch.testing.assert_close(certain.log_prob(value), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(certain.predictive_log_prob(value), expected, rtol=1e-12, atol=1e-12)


def test_gradients_are_those_of_finite_differences(device: torch.device) -> None:
    inputs = [t.requires_grad_() for t in moments(5, device=device)]
    assert gradcheck(lambda m, v, s2, x: ExpectedNormal(m, v, s2).log_prob(x), inputs)


# ---------------------------------------------------------------------------------------------- inside plates


def test_arguments_broadcast() -> None:
    d = ExpectedNormal(torch.zeros(4, 1), torch.ones(3), torch.tensor(0.5))
    assert (d.batch_shape, d.event_shape) == ((4, 3), ())
    assert d.log_prob(torch.zeros(2, 4, 3)).shape == (2, 4, 3)


def test_expand_repeats_the_distribution(device: torch.device) -> None:
    mean, variance, noise, value = moments(3, device=device)
    small = ExpectedNormal(mean, variance, noise)
    large = small.expand(torch.Size([5, 3]))
    assert isinstance(large, ExpectedNormal)
    assert large.batch_shape == (5, 3)
    assert torch.equal(large.log_prob(value), small.log_prob(value).expand(5, 3))


def test_a_masked_site_in_scaled_plates_scores_the_observed_cells_only(device: torch.device) -> None:
    n_paths, n_rows, batch = 2, 12, torch.tensor([7, 0, 3], device=device)
    mean, variance, noise, _ = moments(n_paths, 3, device=device)
    value = torch.tensor([0.5, -1.0, 1e9], device=device).double()
    observed = torch.tensor([True, True, False], device=device)

    def model() -> None:
        with pyro.plate("paths", n_paths, dim=-2), pyro.plate("rows", n_rows, subsample=batch, dim=-1):
            site = ExpectedNormal(mean, variance, noise).mask(observed)
            pyro.sample("x", site, obs=value.expand(n_paths, 3))

    trace = poutine.trace(model).get_trace()
    squared = (value - mean)[:, :2].square() + variance[:, :2]
    cells = -0.5 * (squared / noise[:, :2] + (2 * math.pi * noise[:, :2]).log())
    torch.testing.assert_close(trace.log_prob_sum(), 12 / 3 * cells.sum(), rtol=1e-12, atol=1e-12)


# ------------------------------------------------------------------------------------------------- validation


def unit(*shape: int) -> ExpectedNormal:
    return ExpectedNormal(torch.zeros(shape), torch.ones(shape), torch.ones(shape))


@pytest.mark.parametrize(
    "site", [unit(2), unit(2).mask(torch.tensor([True, False])), unit(1).expand(torch.Size([2]))]
)
def test_nan_is_refused_as_an_observation_even_where_it_is_masked(site: dist.TorchDistribution) -> None:
    with pytest.raises(ValueError, match="within the support"):
        site.log_prob(torch.tensor([0.0, math.nan]))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("f_mean", (math.nan, 1.0, 1.0)),
        ("f_variance", (0.0, -1e-3, 1.0)),
        ("noise", (0.0, 1.0, 0.0)),
    ],
)
def test_impossible_parameters_are_refused(name: str, arguments: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=f"parameter {name}"):
        ExpectedNormal(*(torch.tensor([a]) for a in arguments))
    ExpectedNormal(*(torch.tensor([a]) for a in arguments), validate_args=False)


# --------------------------------------------------------------------------------------- the noise parameter


@pytest.mark.parametrize("start", [-1.0, 0.0, MIN_NOISE, 0.5, 3.0])
def test_noise_starts_at_the_given_value_if_it_is_large_enough(start: float) -> None:
    likelihood = Gaussian(start)
    assert likelihood.noise.item() == pytest.approx(max(start, 2 * MIN_NOISE), rel=1e-12)
    assert likelihood.noise.dtype == torch.float64
    assert Gaussian(start, torch.float32).noise.dtype == torch.float32


@pytest.mark.parametrize("leaf", [-1e4, -30.0, 0.0, 5.0])
def test_noise_stays_positive_wherever_an_optimiser_takes_it(leaf: float) -> None:
    likelihood = Gaussian(0.5)
    likelihood.noise_unconstrained.data.fill_(leaf)
    noise = likelihood.noise.item()
    assert noise == pytest.approx(MIN_NOISE + math.exp(leaf), rel=1e-9)
    assert likelihood(torch.zeros(2), torch.ones(2)).log_prob(torch.zeros(2)).isfinite().all()


def test_maximising_the_bound_finds_the_mean_squared_residual(device: torch.device) -> None:
    # ∂/∂s² Σ E log N(x; f, s²) = 0 at s² = mean of (x - μ)² + σ².
    mean, variance, _, value = moments(30, device=device)
    likelihood = Gaussian(1.0).to(device)
    ((name, leaf),) = likelihood.named_parameters()
    assert name == "noise_unconstrained"
    optimum = ((value - mean).square() + variance).mean()
    for noise, sign in [(0.5 * optimum, 1), (optimum, 0), (2 * optimum, -1)]:
        likelihood.noise = noise.detach()
        bound = likelihood(mean, variance).log_prob(value).sum()
        (gradient,) = torch.autograd.grad(bound, leaf)
        assert round(gradient.item(), 8) == 0 if sign == 0 else gradient.item() * sign > 1


def test_given_the_function_cells_are_normal() -> None:
    f = torch.tensor([-1.0, 0.5]).double()
    given = Gaussian(0.25).distribution(f)
    np.testing.assert_allclose(given.log_prob(f + 0.3).detach(), norm.logpdf(0.3, 0, 0.5), rtol=1e-12)


def test_the_noise_survives_a_state_dict() -> None:
    saved = Gaussian(0.123).state_dict()
    loaded = Gaussian(1.0)
    loaded.load_state_dict(saved)
    assert loaded.noise.item() == pytest.approx(0.123, rel=1e-12)


# -------------------------------------------------------------------------------------- one of one's own


class Laplace(Drawn):
    """Laplace noise of scale 0.7, by its distribution alone."""

    def distribution(self, function: Tensor) -> dist.TorchDistribution:
        return dist.Laplace(function, torch.tensor(0.7).double(), validate_args=False)


FUNCTIONS = torch.tensor([0.3, -2.0, 4.0]).double(), torch.tensor([0.5, 1e-9, 2.0]).double()


def laplace_mixture() -> tuple[np.ndarray, np.ndarray]:
    """Return values of each of three normal functions, `[4001, 3]`, and weights for integration."""
    places = np.linspace(-8, 8, 4001)
    weights = norm.pdf(places)
    mean, variance = (moment.numpy() for moment in FUNCTIONS)
    return mean + np.sqrt(variance) * places[:, None], weights / weights.sum()


@pytest.mark.parametrize("x", [-3.0, 0.0, 9.0])
def test_a_likelihood_of_ones_own_is_scored_by_quadrature(x: float) -> None:
    f, weights = laplace_mixture()
    log_density, value = stats.laplace.logpdf(x, f, 0.7), torch.full((3,), x).double()
    scored = Laplace()(*FUNCTIONS)
    # The density has a kink, at which quadrature is less accurate.
    np.testing.assert_allclose(scored.log_prob(value), weights @ log_density, atol=0.1)
    expected = np.log(weights @ np.exp(log_density))
    np.testing.assert_allclose(scored.predictive_log_prob(value), expected, atol=0.1)
    assert torch.equal(Laplace().log_prob(value, *FUNCTIONS), scored.predictive_log_prob(value))


def test_a_likelihood_of_ones_own_is_drawn_by_its_quantiles() -> None:
    n = 50_000
    uniform = torch.as_tensor(np.random.default_rng(0).random((n, 3)))
    drawn = Laplace().draw(*(moment.expand(n, 3) for moment in FUNCTIONS), uniform)
    f, weights = laplace_mixture()
    for j, values in enumerate(drawn.numpy().T):
        at = np.quantile(values, np.linspace(0.01, 0.99, 50))
        expected = weights @ stats.laplace.cdf(at, f[:, j, None], 0.7)
        actual = np.searchsorted(np.sort(values), at, side="right") / n
        assert np.abs(actual - expected).max() < 1.95 / math.sqrt(n)  # Kolmogorov, one in a thousand
    steps = torch.linspace(0.01, 0.99, 50).double()
    wide = Laplace().draw(torch.zeros(50).double(), torch.full((50,), 1e8).double(), steps)
    assert (wide.diff() > 0).all()  # beside which the noise vanishes
    ends = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    assert Laplace().draw(torch.zeros(2).double(), torch.ones(2).double(), ends).isfinite().all()


def test_expectations_of_a_likelihood_of_ones_own_are_those_of_the_mixture() -> None:
    mean, variance = FUNCTIONS
    # Mirror images make the mean of a symmetric distribution exact; a square is less so, with 256 points.
    torch.testing.assert_close(Laplace().expectation(mean, variance), mean)
    square = Laplace().expectation(mean, variance, lambda x: (x - mean[:, None]).square())
    np.testing.assert_allclose(square, variance + 2 * 0.7**2, rtol=0.07)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quadrature_is_exact_for_polynomials_and_keeps_the_dtype(dtype: torch.dtype) -> None:
    mean, variance = (moment.to(dtype) for moment in FUNCTIONS)
    square = mean_under_normal(torch.square, mean, variance)
    torch.testing.assert_close(square, mean.square() + variance)
    fourth = mean_under_normal(lambda f: f**4, mean, variance)
    torch.testing.assert_close(fourth, mean**4 + 6 * mean.square() * variance + 3 * variance.square())


@pytest.mark.parametrize("n_dimensions", [2, 3, 4])
def test_points_of_the_lattice_fill_every_pair_of_dimensions(n_dimensions: int) -> None:
    points = _lattice(n_dimensions, torch.zeros(1).double()).numpy()
    assert points.shape == (n_dimensions, 256) and points.min() >= 0 and points.max() <= 1
    np.testing.assert_allclose(points.mean(1), 0.5)  # by the mirror images
    np.testing.assert_allclose(np.sort(points[0])[::2], (np.arange(128) + 0.5) / 128)
    for j in range(n_dimensions):
        for k in range(j):
            counts = np.histogram2d(points[k], points[j], bins=4, range=[[0, 1]] * 2)[0]
            assert counts.min() >= 8 and counts.max() <= 24  # 16 on average


LIKELIHOODS = {
    "Gaussian": Gaussian(0.5),
    "one's own": Laplace(),
    "heavy-tailed": HeavyTailed(0.5),
    "counts": NegativeBinomial(CountScale(1.0, 0.7), 3.0),
    "ordinal": Ordinal(torch.tensor([-1.0, 0.5]).double(), torch.tensor([0.4, 0.6]).double()),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_a_step_that_went_wrong_is_scored_as_nan_not_refused(name: str) -> None:
    nan = torch.tensor([math.nan]).double()
    scored = LIKELIHOODS[name](nan, torch.ones(1).double())
    for log_prob in (scored.log_prob, scored.predictive_log_prob):
        assert log_prob(torch.tensor([0.5]).double()).isnan().all()


def test_a_scored_distribution_takes_all_of_its_parameters() -> None:
    with pytest.raises(ValueError, match="zip"):
        ExpectedNormal(torch.zeros(1), torch.ones(1))


# ---------------------------------------------------------------------------------- recoded distributions


def coins() -> Recoded:
    base = dist.Bernoulli(torch.tensor([0.25, 0.5, 1.0]).double())
    return Recoded(base, lambda k: 2 * k - 1, lambda cell: (cell + 1) / 2)


def test_recoded_cells_are_drawn_and_scored_in_their_own_code() -> None:
    drawn = coins().sample((20_000,))
    assert drawn.shape == (20_000, 3) and drawn.unique().tolist() == [-1.0, 1.0]
    np.testing.assert_allclose((drawn == 1).double().mean(0), [0.25, 0.5, 1.0], atol=0.02)
    np.testing.assert_allclose(coins().log_prob(torch.ones(3)).exp(), [0.25, 0.5, 1.0])
    assert coins().sample().shape == coins().rsample().shape == (3,)
    assert coins().support.is_discrete and coins().support.check(drawn).all()
    assert repr(coins()).startswith("Recoded(")


@pytest.mark.parametrize("has_rsample", [True, False])
def test_recoded_distributions_expand(has_rsample: bool) -> None:
    large = coins().has_rsample_(has_rsample).expand(torch.Size([4, 3]))
    assert large.batch_shape == large.sample().shape == (4, 3) and large.has_rsample is has_rsample
    assert coins().batch_shape == (3,)
    expected = coins().log_prob(torch.ones(3)).expand(4, 3)
    torch.testing.assert_close(large.log_prob(torch.ones(4, 3)), expected)


# ------------------------------------------------------------------------------------------------- categories


def test_rows_without_a_level_are_those_with_all_of_some_indicators_off() -> None:
    table = torch.tensor([[[-1.0, 0.4, -0.5], [-1.0, 0.4, 3.0], [0.4, -0.2, -0.5], [-1.0, -0.2, -0.5]]])
    assert none_is_on(table, [0, 2]).tolist() == [[True, False, False, True]]
    assert none_is_on(table, [1]).tolist() == [[False, False, True, True]]
    assert none_is_on(table, []).all()


def test_the_level_written_is_the_first_one_whose_indicator_is_on() -> None:
    variable = Category((0, 1), (5, 7, 6), torch.tensor([-1.0, -0.5, -2.0]), torch.tensor([1.0, 2.5, 0.5]))
    first, second = torch.tensor([1.0, 1.0, -1.0, -1.0]), torch.tensor([2.5, -0.5, 2.5, -0.5])
    written = variable.written([first, second])
    assert {column: cells.tolist() for column, cells in written.items()} == {
        5: [1.0, 1.0, -1.0, -1.0],
        7: [-0.5, -0.5, 2.5, -0.5],
        6: [-2.0, -2.0, -2.0, 0.5],
    }


SHARES = torch.tensor([0.6, 0.1, 0.3]).double()


def category() -> tuple[Category, torch.Tensor]:
    """Return a category of three levels with these shares, and link means that give the same shares."""
    sd = (SHARES * (1 - SHARES)).sqrt()
    variable = Category((0, 1), (0, 1, 2), -SHARES / sd, (1 - SHARES) / sd)
    # Six in ten are the first level, and one in four of the others the second.
    answers = torch.tensor([0.6, 0.25]).double()
    return variable, variable.off[:2] + (variable.on - variable.off)[:2] * answers


def test_levels_are_drawn_with_the_product_of_the_answers() -> None:
    variable, mean = category()
    uniform = ((torch.arange(10_000) + 0.5) / 10_000).double()[None]
    drawn = variable.draw(mean.expand(1, 10_000, 2), uniform)
    yes = torch.isclose(drawn, variable.on)
    assert (yes | torch.isclose(drawn, variable.off)).all()
    assert (yes.sum(-1) == 1).all()
    torch.testing.assert_close(yes.double().mean((0, 1)), SHARES, atol=1e-3, rtol=0)
    torch.testing.assert_close(variable.expectation(mean.expand(1, 1, 2))[0, 0], torch.zeros(3).double())


def test_answers_that_are_sure_leave_no_other_level() -> None:
    variable, _ = category()
    uniform = torch.tensor([[0.0, 1e-12, 0.5, 1 - 1e-12]], dtype=torch.float64)
    for sure in range(3):
        mean = torch.where(torch.arange(2) == sure, variable.on[:2], variable.off[:2])
        drawn = variable.draw(mean.expand(1, 4, 2), uniform)
        assert (torch.isclose(drawn, variable.on).double().argmax(-1) == sure).all()
        expected = torch.where(torch.arange(3) == sure, variable.on, variable.off)
        torch.testing.assert_close(variable.expectation(mean.expand(1, 1, 2))[0, 0], expected)
