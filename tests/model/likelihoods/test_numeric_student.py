"""The Student t likelihood agrees with sampling, SciPy and the Gaussian likelihood."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pyro
import pytest
import torch
from pyro import poutine
from scipy import stats
from torch import Tensor
from torch.autograd import gradcheck

from pyro_mgp import ColumnSpec, MGPImputer
from pyro_mgp.model.likelihoods import MIN_NOISE, ExpectedNormal, ExpectedStudentT, HeavyTailed

WIDTH = 0.8
MEAN = torch.tensor([0.3, -2.0, 4.0]).double()
VARIANCE = torch.tensor([0.5, 1e-9, 1.0]).double()
FREEDOMS = [2.5, 4.0, 30.0]


def site(freedom: float, mean: Tensor = MEAN, variance: Tensor = VARIANCE) -> ExpectedStudentT:
    return ExpectedStudentT(mean, variance, torch.tensor(freedom).double(), torch.tensor(WIDTH).double())


def likelihood(freedom: float) -> HeavyTailed:
    made = HeavyTailed(WIDTH**2)
    made.freedom = torch.tensor(freedom).double()
    return made


def functions() -> tuple[np.ndarray, np.ndarray]:
    """Return places in each of three normals, `[2001, 3]`, and weights for numerical integration."""
    places = np.linspace(-8, 8, 2001)
    weights = stats.norm.pdf(places)
    return MEAN.numpy() + np.sqrt(VARIANCE.numpy()) * places[:, None], weights / weights.sum()


def value(x: float) -> Tensor:
    return torch.full((3,), x).double()


# ------------------------------------------------------------------------------------------------- densities


@pytest.mark.parametrize("x", [-1.0, 0.5, 30.0])
@pytest.mark.parametrize("freedom", FREEDOMS)
def test_expected_log_density_is_that_of_a_million_draws(freedom: float, x: float) -> None:
    f = MEAN.numpy() + np.sqrt(VARIANCE.numpy()) * np.random.default_rng(0).normal(size=(1_000_000, 3))
    log_p = stats.t.logpdf(x, freedom, f, WIDTH)
    actual = site(freedom).log_prob(value(x)).numpy()
    assert (np.abs(actual - log_p.mean(0)) < 4 * log_p.std(0) / 1000 + 1e-6).all()


@pytest.mark.parametrize("freedom", FREEDOMS)
def test_predictive_density_is_that_of_the_mixture(freedom: float) -> None:
    f, weights = functions()
    for x in (-2.0, 0.5, 4.0, 30.0):
        expected = weights @ stats.t.pdf(x, freedom, f, WIDTH)
        actual = site(freedom).predictive_log_prob(value(x)).exp()
        np.testing.assert_allclose(actual, expected, rtol=5e-3)


def test_with_many_degrees_of_freedom_it_is_the_normal() -> None:
    normal = ExpectedNormal(MEAN, VARIANCE, torch.tensor(WIDTH**2).double())
    for x in (-1.0, 0.5, 4.0):
        torch.testing.assert_close(
            site(1e9).log_prob(value(x)), normal.log_prob(value(x)), rtol=1e-6, atol=1e-6
        )


def test_gradients_are_those_of_finite_differences() -> None:
    parts = (MEAN, VARIANCE + 0.1, torch.tensor(3.0).double(), torch.tensor(WIDTH).double(), value(1.0))
    inputs = [part.clone().requires_grad_() for part in parts]
    for name in ("log_prob", "predictive_log_prob"):
        assert gradcheck(
            lambda *at, name=name: getattr(ExpectedStudentT(*at[:4]), name)(at[4]), inputs, atol=1e-4
        )


def test_the_pull_of_a_cell_falls_as_it_goes_far_off() -> None:
    far = torch.tensor([3.0, 10.0, 100.0, 1e4]).double()
    pulls = []
    for noise in (site, lambda _, *at: ExpectedNormal(*at, torch.tensor(WIDTH**2).double())):
        mean = torch.zeros(4).double().requires_grad_()
        noise(4.0, mean, torch.full((4,), 0.1).double()).log_prob(far).sum().backward()
        assert mean.grad is not None
        pulls.append(mean.grad)
    student, normal = pulls
    assert (student > 0).all()
    assert (student.diff() < 0).all()
    assert (normal.diff() > 0).all()
    # d/df log t = (ν + 1)(x - f) / (ν s² + (x - f)²), far off (ν + 1) / x.
    assert student[-1].item() == pytest.approx(5 / 1e4, rel=1e-3)


def test_the_parabola_of_least_precision_touches_the_log_density_from_below() -> None:
    at, x, freedom = site(4.0, VARIANCE.sqrt() * 0, VARIANCE), value(1.3), 4.0
    precision = at.least_precision(x).numpy()
    squared = 1.3**2 + VARIANCE.numpy()
    f = 1.3 + np.linspace(-6, 6, 1001)[:, None]
    top = stats.t.logpdf(np.sqrt(squared), freedom, 0, WIDTH)
    parabola = top - 0.5 * precision * ((1.3 - f) ** 2 - squared)
    above = stats.t.logpdf(1.3, freedom, f, WIDTH) - parabola
    assert (above > -1e-12).all() and (above.min(0) < 1e-3).all()


def test_given_the_function_densities_are_those_of_scipy() -> None:
    with torch.no_grad():
        given = likelihood(2.5).distribution(MEAN)
    np.testing.assert_allclose(given.log_prob(value(1.0)), stats.t.logpdf(1.0, 2.5, MEAN, WIDTH))


# ----------------------------------------------------------------------------------------------------- draws


@pytest.mark.parametrize("freedom", FREEDOMS)
def test_draws_by_uniform_numbers_follow_the_mixture(freedom: float) -> None:
    n = 100_000
    uniform = torch.as_tensor(np.random.default_rng(1).random((n, 3)))
    made = likelihood(freedom)
    with torch.no_grad():
        drawn = made.draw(MEAN.expand(n, 3), VARIANCE.expand(n, 3), uniform)
        again = made.draw(MEAN.expand(9, 3), VARIANCE.expand(9, 3), uniform[:9])
    torch.testing.assert_close(again, drawn[:9], rtol=1e-12, atol=0)
    f, weights = functions()
    for j, values in enumerate(drawn.numpy().T):
        at = np.quantile(values, np.linspace(0.01, 0.99, 50))
        expected = weights @ stats.t.cdf(at, freedom, f[:, j, None], WIDTH)
        actual = np.searchsorted(np.sort(values), at, side="right") / n
        assert np.abs(actual - expected).max() < 1.95 / math.sqrt(n)  # Kolmogorov, one in a thousand


@pytest.mark.parametrize("freedom", FREEDOMS)
def test_given_the_function_values_follow_students_t(freedom: float) -> None:
    n = 100_000
    uniform = torch.as_tensor(np.random.default_rng(4).random((2, n)))
    with torch.no_grad():
        values = likelihood(freedom).observe(torch.full((n,), 1.5).double(), *uniform)
    # Kolmogorov's critical value, one in a thousand.
    assert stats.kstest(values.numpy(), stats.t(freedom, 1.5, WIDTH).cdf).statistic < 1.95 / math.sqrt(n)
    far = np.abs(values.numpy() - 1.5) > stats.t.isf(5e-4, freedom, 0, WIDTH)
    assert abs(far.sum() - 1e-3 * n) < 4 * math.sqrt(1e-3 * n)


def test_values_rise_with_the_first_uniform_number_and_spread_with_the_second() -> None:
    steps, half = torch.linspace(0.01, 0.99, 99).double(), torch.full((99,), 0.5).double()
    with torch.no_grad():
        made = likelihood(4.0)
        rising = made.observe(torch.zeros(99).double(), steps, half)
        # The second number is that of the precision.
        falling = made.observe(torch.zeros(99).double(), half + 0.3, steps)
    assert (rising.diff() > 0).all() and (falling.diff() < 0).all()


def test_draws_depend_continuously_on_uniform_numbers_and_have_no_gradient_by_degrees_of_freedom() -> None:
    uniform, made = torch.as_tensor(np.random.default_rng(5).random((1000, 3))), likelihood(3.0)
    made.freedom = torch.tensor(3.0).double().requires_grad_()
    near = torch.nextafter(uniform, torch.ones_like(uniform))
    given = MEAN.expand(1000, 3), VARIANCE.expand(1000, 3)
    drawn = made.draw(*given, uniform)
    # Rounding of a uniform number must not give another variate.
    torch.testing.assert_close(made.draw(*given, near), drawn, rtol=1e-4, atol=1e-4)
    assert not drawn.detach().equal(made.draw(*given, 1 - uniform).detach())
    gradients = torch.autograd.grad(drawn.square().sum(), made.freedom, allow_unused=True)
    assert gradients == (None,)


def test_expectations_are_those_of_the_mixture() -> None:
    with torch.no_grad():
        made = likelihood(9.0)
        mean = made.expectation(MEAN, VARIANCE)
        square = made.expectation(MEAN, VARIANCE, torch.square)
    np.testing.assert_allclose(mean, MEAN, rtol=0, atol=0.03)
    expected = MEAN**2 + VARIANCE + WIDTH**2 * 9 / 7
    np.testing.assert_allclose(square, expected, rtol=0.1)


# -------------------------------------------------------------------------------------------- inside a model


def test_it_expands_as_a_distribution() -> None:
    small, x = site(4.0), value(1.0)
    large = small.expand(torch.Size([5, 3]))
    assert large.batch_shape == (5, 3)
    torch.testing.assert_close(large.log_prob(x), small.log_prob(x).expand(5, 3))


def test_masked_cells_do_not_count() -> None:
    observed = torch.tensor([True, False, True])

    def model() -> None:
        with pyro.plate("rows", 3):
            pyro.sample("x", site(4.0).mask(observed), obs=value(1.0))

    total = poutine.trace(model).get_trace().log_prob_sum()
    torch.testing.assert_close(total, site(4.0).log_prob(value(1.0))[observed].sum())


@pytest.mark.parametrize("leaf", [-1e4, 0.0, 5.0])
def test_parameters_stay_possible_wherever_an_optimiser_takes_them(leaf: float) -> None:
    made = HeavyTailed(0.25)
    assert made.scale.item() == pytest.approx(0.5) and made.freedom.item() == pytest.approx(4.0)
    assert made.noise == 1 and {each.dtype for each in (made.noise, *made.parameters())} == {torch.float64}
    for parameter in made.parameters():
        parameter.data.fill_(leaf)
    assert made.freedom.item() >= 2
    assert made.scale.item() >= math.sqrt(MIN_NOISE)
    assert made(MEAN, VARIANCE).log_prob(value(1.0)).isfinite().all()


@pytest.mark.parametrize("noise", [1.0, 0.25, 0.05])
def test_a_column_without_outliers_is_learnt_as_well(noise: float) -> None:
    generator = np.random.default_rng(0)
    z = generator.normal(size=300)
    x = 2 * z + noise * generator.normal(size=300)
    held_out = generator.random(300) < 0.3
    frame = pd.DataFrame({"z": z, "x": np.where(held_out, np.nan, x)})
    imputer = MGPImputer(specs={"x": ColumnSpec(kind="heavy-tailed")}, random_state=0, progress=False).fit(
        frame
    )
    draws = imputer.impute(m=50).values["x"]
    assert np.sqrt(np.square(draws.mean(0) - x[held_out]).mean()) < 1.3 * noise
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    assert 0.7 < (high - low).mean() / (3.29 * noise) < 1.3
