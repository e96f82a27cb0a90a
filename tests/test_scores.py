"""Scores against definitions, and on draws whose calibration is known."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from pyro_mgp.bench.imputed import GaussianMixture, Imputed, imputed_by_mixtures
from pyro_mgp.bench.protocol import rmse
from pyro_mgp.bench.scores import score, unit
from pyro_mgp.scores import central_interval, fair_crps


@pytest.fixture
def tables() -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    generator = np.random.default_rng(0)
    truth = pd.DataFrame(generator.normal(size=(40, 2)) * [1.0, 10.0], columns=["a", "b"])
    holes = generator.random(truth.shape) < 0.4
    return truth.mask(holes[::-1]), truth.mask(holes), truth


def test_rmse_is_that_of_the_protocol_and_pooled_by_the_papers_formula(
    tables: tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame],
) -> None:
    train, test, truth = tables
    completed = test.fillna(train.mean())
    scores = score(Imputed.from_table(completed, test), train, test, truth)
    assert scores.rmse == pytest.approx(rmse(completed, truth, test, train))
    squares = [
        np.mean((completed[c] - truth[c])[test[c].isna()] ** 2) / unit(train)[c] ** 2 for c in ("a", "b")
    ]
    assert scores.rmse_pooled == pytest.approx(math.sqrt(np.mean(squares)))
    assert math.isnan(scores.crps)
    assert math.isnan(scores.nlpd)
    assert math.isnan(scores.coverage_95)


def test_fair_crps_is_the_definition_over_all_pairs() -> None:
    draws = np.random.default_rng(0).normal(size=(7, 5))
    truth = np.linspace(-2, 2, 5)
    pairs = np.abs(draws[:, None] - draws[None]).sum((0, 1)) / (2 * 7 * 6)
    np.testing.assert_allclose(fair_crps(draws, truth), np.abs(draws - truth).mean(0) - pairs)


def test_fair_crps_does_not_depend_on_the_number_of_draws() -> None:
    """The closed form for a standard normal forecast of 0 is (√2 - 1)/√π."""
    generator = np.random.default_rng(0)
    for m in (2, 5, 50):
        crps = fair_crps(generator.normal(size=(m, 40_000)), np.zeros(40_000)).mean()
        assert crps == pytest.approx((math.sqrt(2) - 1) / math.sqrt(math.pi), abs=0.01)


@pytest.mark.parametrize("m", [20, 100])
def test_intervals_of_calibrated_draws_hold_what_they_say(m: int) -> None:
    generator = np.random.default_rng(0)
    bounds = central_interval(generator.normal(size=(m, 20_000)), 0.9)
    assert bounds is not None
    new = generator.normal(size=20_000)
    assert np.mean((bounds[0] <= new) & (new <= bounds[1])) == pytest.approx(0.9, abs=0.008)


def test_too_few_draws_have_no_wide_interval() -> None:
    draws = np.random.default_rng(0).normal(size=(10, 3))
    assert central_interval(draws, 0.9) is None
    assert central_interval(draws, 0.8) is not None


def test_scores_do_not_depend_on_the_columns_units(
    tables: tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame],
) -> None:
    def scores_in(factor: float) -> list[float]:
        train, test, truth = (table * factor for table in tables)
        cells = {c: test[c].isna().sum() for c in test}
        mixtures = {
            c: GaussianMixture(np.zeros((3, n)), np.full((3, n), (2 * factor) ** 2)) for c, n in cells.items()
        }
        imputed = imputed_by_mixtures(mixtures, 100, np.random.default_rng(0))
        return list(vars(score(imputed, train, test, truth)).values())

    assert not np.isnan(scores_in(1.0)).any()
    np.testing.assert_allclose(scores_in(1.0), scores_in(1000.0))


def test_the_density_of_a_mixture_is_the_mean_of_its_components() -> None:
    mean, sd = np.array([[0.0], [3.0]]), np.array([[1.0], [0.5]])
    mixture = GaussianMixture(mean, sd**2)
    expected = np.log(stats.norm(mean, sd).pdf([[2.0], [2.0]]).mean(0))
    np.testing.assert_allclose(mixture.log_density(np.array([2.0])), expected)
    draws = mixture.draw(20_000, np.random.default_rng(0))
    assert draws.mean() == pytest.approx(1.5, abs=0.03)
    assert draws.var() == pytest.approx((1 + 0.25) / 2 + 1.5**2, abs=0.06)


def test_cells_that_are_not_there_or_not_finite_are_refused(
    tables: tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame],
) -> None:
    train, test, truth = tables
    holes = int(test["a"].isna().sum())
    with pytest.raises(ValueError, match=f"expected {holes} imputed cells in column 'a'"):
        score(Imputed({}), train, test, truth)
    with pytest.raises(ValueError, match="column 'a' are not finite"):
        score(Imputed.from_table(test, test), train, test, truth)
