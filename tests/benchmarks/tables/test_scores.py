"""Scores on tables that are small enough to compute them by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from benchmarks.paper.imputed import Imputed
from benchmarks.tables.scores import energy_distance, score

TRUTH = pd.DataFrame({"a": [0.0, 2.0, 0.0, 2.0], "b": [10.0, 10.0, 30.0, 30.0]})
TABLE = pd.DataFrame({"a": [np.nan, 2.0, 0.0, np.nan], "b": [10.0, np.nan, 30.0, 30.0]})


def test_scores_of_points_are_in_standard_deviations_of_the_complete_columns() -> None:
    scores = score(Imputed({"a": np.array([1.0, 2.0]), "b": np.array([30.0])}), TABLE, TRUTH)
    # The standard deviations are 1 and 10.
    assert scores.rmse == pytest.approx((math.sqrt(1 / 2) + 2) / 2)
    assert scores.rmse_pooled == pytest.approx(math.sqrt((1 / 2 + 4) / 2))
    assert scores.mae == pytest.approx((1 / 2 + 2) / 2)
    assert all(math.isnan(x) for x in (scores.crps, scores.coverage_90, scores.width_95))


def test_the_absolute_error_is_that_of_the_median_of_the_draws() -> None:
    draws = {"a": np.array([[0.0, 2.0], [1.0, 2.0], [8.0, 2.0]]), "b": np.full((3, 1), 10.0)}
    scores = score(Imputed.from_draws(draws), TABLE, TRUTH)
    assert scores.mae == pytest.approx((1 + 0) / 2 / 2)
    assert scores.rmse == pytest.approx(math.sqrt(3**2 / 2) / 2)


def test_bounds_of_intervals_use_the_further_draws() -> None:
    g = np.random.default_rng(0)

    def draw(m: int) -> dict[str, np.ndarray]:
        return {"a": g.normal(size=(m, 2)), "b": g.normal(size=(m, 1))}

    few = score(Imputed.from_draws(draw(20)), TABLE, TRUTH)
    assert math.isnan(few.coverage_95)
    assert not math.isnan(few.coverage_90)
    draws = draw(20)
    point = {column: values.mean(0) for column, values in draws.items()}
    more = score(Imputed(point, draws, further_draws=lambda: draw(380)), TABLE, TRUTH)
    assert more.width_95 == pytest.approx((3.92 + 0.392) / 2, rel=0.1)


def test_exact_draws_cover_more_than_the_level_where_values_are_few() -> None:
    g = np.random.default_rng(0)
    table = pd.DataFrame(np.nan, range(500), ["a"]).assign(b=0.0)
    truth = pd.DataFrame({"a": g.normal(size=500), "b": g.normal(size=500)})

    def expected(draw: Callable[[int], np.ndarray]) -> float:
        draws = {"a": draw(20)}
        imputed = Imputed({"a": draws["a"].mean(0)}, draws, further_draws=lambda: {"a": draw(80)})
        return score(imputed, table, truth).coverage_95_of_draws

    assert expected(lambda m: g.normal(size=(m, 500))) == pytest.approx(0.95, abs=0.01)
    # Both values are within an interval of zeros and ones, but for a few intervals of zeros only.
    assert expected(lambda m: 1.0 * (g.random((m, 500)) < 0.2)) == 1.0
    assert math.isnan(
        score(Imputed.from_draws({"a": g.normal(size=(40, 500))}), table, truth).coverage_95_of_draws
    )


def test_the_energy_distance_is_that_of_scipy_in_one_dimension() -> None:
    g = np.random.default_rng(0)
    x, y = g.normal(size=30), 1 + g.normal(size=40)
    # SciPy has the square root of half of it.
    expected = 2 * stats.energy_distance(x, y) ** 2 / 2
    assert energy_distance(x[:, None], y[:, None]) == pytest.approx(expected)


def test_the_energy_distance_of_a_true_completion_is_zero_and_of_means_is_not() -> None:
    g = np.random.default_rng(0)
    truth = pd.DataFrame(g.normal(size=(300, 2)), columns=["a", "b"])
    table = truth.mask(g.random((300, 2)) < 0.3)
    true = {name: truth.loc[table[name].isna(), name].to_numpy() for name in truth}
    means = {name: np.full(len(cells), table[name].mean()) for name, cells in true.items()}
    noise = {name: g.normal(size=(5, len(cells))) for name, cells in true.items()}
    assert score(Imputed(true), table, truth).energy == pytest.approx(0, abs=1e-12)
    of_means, of_draws = (score(x, table, truth).energy for x in (Imputed(means), Imputed.from_draws(noise)))
    assert of_means > 3 * of_draws > 0


def test_imputations_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="column 'b' are not finite"):
        score(Imputed({"a": np.zeros(2), "b": np.array([np.nan])}), TABLE, TRUTH)
