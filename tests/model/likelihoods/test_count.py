"""The negative binomial likelihood agrees with sampling, SciPy and moments of lognormal mixtures."""

from __future__ import annotations

import math

import numpy as np
import pyro
import pytest
import torch
from pyro import poutine
from scipy import stats
from torch import Tensor
from torch.autograd import gradcheck

from pyro_mgp.data.transforms import InverseTransform
from pyro_mgp.model.likelihoods.count import CountScale, ExpectedNegativeBinomial, NegativeBinomial

SCALE = CountScale(mean=1.0, scale=0.7)
OFFSET = 0.4
MEAN = torch.tensor([0.3, -2.0, 1.5]).double()
VARIANCE = torch.tensor([0.5, 1e-9, 0.8]).double()
CONCENTRATIONS = [0.7, 10.0]


def site(concentration: float, mean: Tensor = MEAN, variance: Tensor = VARIANCE) -> ExpectedNegativeBinomial:
    r, offset = (torch.tensor(number).double() for number in (concentration, OFFSET))
    return ExpectedNegativeBinomial(mean, variance, r, offset, SCALE)


def likelihood(concentration: float) -> NegativeBinomial:
    made = NegativeBinomial(SCALE, math.exp(OFFSET))
    made.concentration = torch.tensor(concentration).double()
    return made


def given(concentration: float, f: np.ndarray) -> stats.rv_discrete:
    """Return SciPy's distribution of counts whose latent function is f."""
    return stats.nbinom(concentration, concentration / (concentration + np.exp(f + OFFSET)))


def functions() -> tuple[np.ndarray, np.ndarray]:
    """Return places in each of three normals, `[2001, 3]`, and weights for numerical integration."""
    places = np.linspace(-8, 8, 2001)
    weights = stats.norm.pdf(places)
    return MEAN.numpy() + np.sqrt(VARIANCE.numpy()) * places[:, None], weights / weights.sum()


def cell(count: float) -> Tensor:
    return SCALE.cells(torch.full((3,), float(count)).double())


# ------------------------------------------------------------------------------------------------- densities


@pytest.mark.parametrize("count", [0, 1, 30])
@pytest.mark.parametrize("concentration", CONCENTRATIONS)
def test_expected_log_probability_is_that_of_a_million_draws(concentration: float, count: int) -> None:
    f = MEAN.numpy() + np.sqrt(VARIANCE.numpy()) * np.random.default_rng(0).normal(size=(1_000_000, 3))
    log_p = given(concentration, f).logpmf(count)
    actual = site(concentration).log_prob(cell(count)).numpy()
    assert (np.abs(actual - log_p.mean(0)) < 4 * log_p.std(0) / 1000 + 1e-6).all()


@pytest.mark.parametrize("concentration", CONCENTRATIONS)
def test_predictive_probabilities_are_those_of_the_mixture_and_add_up_to_one(concentration: float) -> None:
    f, weights = functions()
    at = site(concentration)
    for count in (0, 1, 5, 20):
        expected = weights @ given(concentration, f).pmf(count)
        actual = at.predictive_log_prob(cell(count)).exp()
        np.testing.assert_allclose(actual, expected, rtol=5e-3, atol=1e-12)
    counts = torch.arange(20_000.0).double()[:, None].expand(-1, 3)
    total = at.expand(counts.shape).predictive_log_prob(SCALE.cells(counts)).exp().sum(0)
    torch.testing.assert_close(total, torch.ones(3).double(), rtol=0, atol=1e-6)


def test_of_a_large_concentration_it_is_poissons() -> None:
    at = site(1e8, variance=torch.zeros(3).double())
    rate = np.exp(MEAN.numpy() + OFFSET)
    for count in (0, 3, 12):
        expected = stats.poisson.logpmf(count, rate)
        np.testing.assert_allclose(at.log_prob(cell(count)), expected, rtol=1e-5)
        np.testing.assert_allclose(at.predictive_log_prob(cell(count)), expected, rtol=1e-5)


def test_gradients_are_those_of_finite_differences() -> None:
    r, offset = torch.tensor(2.5).double(), torch.tensor(OFFSET).double()
    inputs = [part.clone().requires_grad_() for part in (MEAN, VARIANCE + 0.1, r, offset)]
    for name in ("log_prob", "predictive_log_prob"):
        assert gradcheck(
            lambda *at, name=name: getattr(ExpectedNegativeBinomial(*at, SCALE), name)(cell(4)), inputs
        )


def test_cells_of_counts_come_back() -> None:
    counts = torch.tensor([0.0, 1.0, 2.0, 17.0, 1e6]).double()
    cells = SCALE.cells(counts)
    np.testing.assert_allclose(cells, (np.log1p(counts.numpy()) - 1.0) / 0.7, rtol=1e-14)
    assert torch.equal(SCALE.counts(cells), counts)
    assert SCALE.counts(torch.tensor([-50.0])).tolist() == [0.0]


@pytest.mark.parametrize("concentration", CONCENTRATIONS)
def test_given_the_function_probabilities_are_those_of_scipy(concentration: float) -> None:
    f = np.array([-3.0, 0.0, 2.5])
    made = likelihood(concentration).distribution(torch.as_tensor(f))
    for count in (0, 1, 7):
        np.testing.assert_allclose(made.log_prob(cell(count)).detach(), given(concentration, f).logpmf(count))
    with torch.no_grad():
        drawn = SCALE.counts(made.sample((20_000,)))
    np.testing.assert_allclose((drawn == 0).double().mean(0), given(concentration, f).pmf(0), atol=0.02)


def test_a_function_far_off_has_finite_probabilities_draws_and_means() -> None:
    made, far = likelihood(2.0), torch.full((3,), 1e4).double()
    with torch.no_grad():
        assert made.distribution(far).log_prob(cell(3)).isfinite().all()
        assert made.observe(far, *torch.full((3, 3), 0.5).double()).isfinite().all()
        scale = InverseTransform(SCALE.mean, SCALE.scale, -9.0, 9.0, "log")
        assert made.expectation(far, VARIANCE, scale).isfinite().all()
        # The log of 1 + count, at rates of up to e³⁰, grows with the function until there.
        assert (
            made.observe(far - 1e4 + 25, *torch.full((3, 3), 0.5).double()).max()
            < made.observe(far, *torch.full((3, 3), 0.5).double()).min()
        )


def test_means_of_counts_are_those_of_lognormal_rates() -> None:
    scale = InverseTransform(SCALE.mean, SCALE.scale, -9.0, 9.0, "log")
    with torch.no_grad():
        found = likelihood(2.0).expectation(MEAN, VARIANCE, scale)
        cells = likelihood(0.7).expectation(MEAN, VARIANCE)
    np.testing.assert_allclose(found, 1 + (MEAN + OFFSET + VARIANCE / 2).exp(), rtol=1e-12)
    f, weights = functions()
    counts = np.arange(400)
    probability = np.stack([weights[::20] @ given(0.7, f[::20, j, None]).pmf(counts) for j in range(3)])
    expected = probability @ SCALE.cells(torch.as_tensor(counts)).numpy() / weights[::20].sum()
    np.testing.assert_allclose(cells, expected, atol=0.04)


# ----------------------------------------------------------------------------------------------------- draws


@pytest.mark.parametrize("concentration", CONCENTRATIONS)
def test_draws_by_uniform_numbers_follow_the_mixture(concentration: float) -> None:
    n, top = 100_000, np.arange(60)
    uniform = torch.as_tensor(np.random.default_rng(1).random((n, 3)))
    made = likelihood(concentration)
    with torch.no_grad():
        drawn = made.draw(MEAN.expand(n, 3), VARIANCE.expand(n, 3), uniform)
        again = made.draw(MEAN.expand(9, 3), VARIANCE.expand(9, 3), uniform[:9])
    assert torch.equal(again, drawn[:9])
    f, weights = functions()
    for j, counts in enumerate(SCALE.counts(drawn).numpy().T):
        expected = weights @ given(concentration, f[:, j, None]).cdf(top)
        actual = np.searchsorted(np.sort(counts), top, side="right") / n
        assert np.abs(actual - expected).max() < 1.95 / math.sqrt(n)  # Kolmogorov, one in a thousand


@pytest.mark.parametrize("function", [-40.0, -8.0, 0.0, 3.0, 9.0])
@pytest.mark.parametrize("concentration", [0.05, 3.3, 1e6])
def test_given_the_function_counts_are_negative_binomial(concentration: float, function: float) -> None:
    n = 100_000
    uniform = torch.as_tensor(np.random.default_rng(4).random((3, n)))
    with torch.no_grad():
        at = torch.full((n,), function).double()
        counts = np.sort(SCALE.counts(likelihood(concentration).observe(at, *uniform)).numpy())
    expected = given(concentration, np.full(1, function))
    places = np.unique(np.concatenate([[0.0], counts[:: n // 500]]))
    actual = np.searchsorted(counts, places, side="right") / n
    assert np.abs(actual - expected.cdf(places)).max() < 1.95 / math.sqrt(n)  # Kolmogorov, one in a thousand


@pytest.mark.parametrize("concentration", [0.5, *CONCENTRATIONS])
def test_expectations_are_those_of_the_mixture(concentration: float) -> None:
    f, weights = functions()
    counts = np.arange(5000)
    probability = np.stack([weights @ given(concentration, f[:, j, None]).pmf(counts) for j in range(3)])
    cells = (np.log1p(counts) - SCALE.mean) / SCALE.scale
    with torch.no_grad():
        made = likelihood(concentration)
        mean = made.expectation(MEAN, VARIANCE)
        none = made.expectation(MEAN, VARIANCE, lambda z: (SCALE.counts(z) == 0).double())
        linear = made.expectation(MEAN, VARIANCE, InverseTransform(SCALE.mean, SCALE.scale, -9.0, 9.0, "log"))
    np.testing.assert_allclose(mean, probability @ cells, rtol=0, atol=0.04)
    np.testing.assert_allclose(none, probability[:, 0], rtol=0, atol=0.02)
    np.testing.assert_allclose(linear, 1 + (MEAN + OFFSET + VARIANCE / 2).exp(), rtol=1e-12)
    np.testing.assert_allclose(linear, 1 + probability @ counts, rtol=1e-4)


# -------------------------------------------------------------------------------------------- inside a model


def test_it_expands_as_a_distribution() -> None:
    small, counts = site(2.0), cell(5)
    large = small.expand(torch.Size([4, 3]))
    assert large.batch_shape == (4, 3)
    torch.testing.assert_close(large.log_prob(counts), small.log_prob(counts).expand(4, 3))


def test_masked_cells_do_not_count() -> None:
    observed = torch.tensor([True, False, True])

    def model() -> None:
        with pyro.plate("rows", 3):
            pyro.sample("x", site(2.0).mask(observed), obs=cell(5))

    total = poutine.trace(model).get_trace().log_prob_sum()
    torch.testing.assert_close(total, site(2.0).log_prob(cell(5))[observed].sum())


def test_parameters_start_at_the_average_and_learn() -> None:
    made = NegativeBinomial(SCALE, 6.0)
    assert made.offset.item() == pytest.approx(math.log(6.0))
    assert made.noise == 1 and made.noise.dtype == made.concentration.dtype == torch.float64
    assert made.concentration.item() == pytest.approx(10.0)
    made(MEAN, VARIANCE).log_prob(cell(5)).sum().backward()
    gradients = {name: parameter.grad for name, parameter in made.named_parameters()}
    assert set(gradients) == {"concentration_unconstrained", "offset_unconstrained"}
    assert all(gradient is not None and gradient != 0 for gradient in gradients.values())
