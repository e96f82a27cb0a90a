"""Scores against definitions, and on draws whose calibration is known."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from benchmarks.paper.imputed import GaussianMixture, Imputed, imputed_by_mixtures
from benchmarks.paper.protocol import rmse
from benchmarks.paper.scores import score, unit
from pyro_mgp.analysis.scores import (
    central_interval,
    counts_of,
    fair_brier,
    fair_crps,
    log_density,
    pit,
    rank_of_level,
    smallest_set,
)


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


def test_scores_of_a_few_draws_are_those_by_hand() -> None:
    half = np.array([0.5])
    assert fair_crps(np.array([[0.0], [2.0]]), np.array([1.0])).tolist() == [0.0]
    assert pit(np.array([[1.0], [2.0], [2.0]]), np.array([2.0]), half).tolist() == [0.625]
    assert fair_brier(np.array([[4, 0], [2, 2]]), np.array([0, 0])).tolist() == pytest.approx([0, 1 / 3])
    assert rank_of_level(np.array([[6, 3]]), np.array([1]), half).tolist() == [0.8]
    assert smallest_set(np.array([[5, 1, 4]]), 0.8).tolist() == [[True, False, True]]


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


@pytest.mark.parametrize("m", [1, 4, 100])
def test_pit_of_exchangeable_truth_is_uniform_whatever_m_and_ties(m: int) -> None:
    generator = np.random.default_rng(0)
    cells = generator.poisson(0.8, size=(m + 1, 5_000)).astype(np.float64)
    places = pit(cells[1:], cells[0], generator.random(5_000))
    assert stats.kstest(places, "uniform").pvalue > 0.01


@pytest.mark.parametrize("m", [1, 4, 100])
def test_rank_of_an_exchangeable_level_is_uniform_whatever_m(m: int) -> None:
    generator = np.random.default_rng(1)
    cells = generator.choice(4, p=[0.6, 0.2, 0.15, 0.05], size=(m + 1, 5_000))
    counts = counts_of(cells[1:], np.arange(4))
    ranks = rank_of_level(counts, cells[0], generator.random(5_000))
    assert stats.kstest(ranks, "uniform").pvalue > 0.01


def test_certain_draws_of_the_wrong_level_need_large_sets() -> None:
    counts = np.array([[100, 0], [0, 100]])
    assert rank_of_level(counts, np.array([1, 1]), np.array([0.5, 0.5])).tolist() == pytest.approx(
        [100.5 / 101, 0.5]
    )


def test_smallest_sets_hold_their_share_and_no_smaller_one_does() -> None:
    counts = np.random.default_rng(0).multinomial(20, [0.5, 0.3, 0.15, 0.05], size=50)
    for level in (0.5, 0.8, 0.95, 1.0):
        inside = smallest_set(counts, level)
        shares = np.where(inside, counts, 0).sum(1) / 20
        assert (shares >= level - 1e-9).all()
        least = np.where(inside, counts, 21).min(1) / 20
        assert (shares - least < level - 1e-9).all()


def test_fair_brier_is_twice_the_fair_crps_of_an_indicator() -> None:
    draws = np.random.default_rng(0).random((7, 6)) < 0.4
    truth = np.array([True, False] * 3)
    counts = counts_of(draws, np.array([False, True]))
    crps = fair_crps(draws.astype(np.float64), truth.astype(np.float64))
    np.testing.assert_allclose(fair_brier(counts, truth.astype(np.intp)), 2 * crps)


def test_fair_brier_does_not_depend_on_the_number_of_draws() -> None:
    """For a level of probability p it is (1 - p)² + Σ of the others' squares."""
    generator = np.random.default_rng(0)
    chances = np.array([0.5, 0.3, 0.2])
    for m in (2, 50):
        counts = generator.multinomial(m, chances, size=40_000)
        score_of_first = fair_brier(counts, np.zeros(40_000, np.intp)).mean()
        assert score_of_first == pytest.approx(0.25 + 0.09 + 0.04, abs=0.01)


def test_log_density_is_near_that_of_the_draws_and_bounded_far_from_them() -> None:
    generator = np.random.default_rng(0)
    truth = generator.normal(size=4_000)
    score_of_truth = log_density(generator.normal(size=(200, 4_000)), truth, 0.0, 2.0, 1e-9)
    # Per standard deviation of the column, which is 2.
    exact = stats.norm.logpdf(truth).mean() + np.log(2.0)
    assert exact - 0.08 < score_of_truth.mean() < exact + 0.02
    alone = log_density(np.zeros((99, 1)), np.array([4.0]), 0.0, 2.0, 1e-9)
    assert alone[0] == pytest.approx(stats.norm.logpdf(4.0, 0, 2) + np.log(2.0) - np.log(100))
