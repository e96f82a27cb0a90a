"""Contract of all imputation methods, and properties of single ones, on a small correlated table."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.experimental import enable_iterative_imputer  # noqa: F401 (scikit-learn requires this import)
from sklearn.impute import IterativeImputer
from sklearn.tree import DecisionTreeRegressor

from benchmarks.paper.imputed import Imputed
from benchmarks.paper.methods import classical
from benchmarks.paper.methods.registry import METHODS
from benchmarks.paper.profiles import PROFILES, Budget
from benchmarks.paper.protocol import split
from benchmarks.paper.scores import Scores, score

BUDGET = Budget(
    draws=20, gain_iterations=100, svgp_steps=20, dgp_steps=10, dgp_paths=2, mgp_paper_steps=5,
    miceforest_datasets=2,
)  # fmt: skip

Parts = tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]


@pytest.fixture(scope="module")
def parts() -> Parts:
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(2, 240))
    columns = np.stack([x, y, x + y, np.sin(2 * x), (x - y) ** 2], axis=1)
    columns += 0.15 * generator.normal(size=columns.shape)
    units = [1.0, 10.0, 100.0, 1.0, 1.0]
    table = pd.DataFrame(columns * units + [0.0, 5.0, 0.0, 0.0, 1000.0], columns=list("abcde"))
    return split(table, 0.15, 0)


@pytest.fixture(scope="module")
def results(parts: Parts) -> dict[str, Imputed]:
    train, test, _ = parts
    return {name: method.load()(train, test, 0, BUDGET) for name, method in METHODS.items()}


@pytest.fixture(scope="module")
def scores(parts: Parts, results: dict[str, Imputed]) -> dict[str, Scores]:
    return {name: score(imputed, *parts) for name, imputed in results.items()}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.slow
def test_every_missing_test_cell_is_imputed_and_no_other(
    name: str, parts: Parts, results: dict[str, Imputed]
) -> None:
    _, test, _ = parts
    cells = {column: int(test[column].isna().sum()) for column in test if test[column].isna().any()}
    point, draws = results[name].point, results[name].draws
    assert {column: len(values) for column, values in point.items()} == cells
    assert draws is None or {column: values.shape[1] for column, values in draws.items()} == cells


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.slow
def test_the_same_seed_gives_the_same_imputations(
    name: str, parts: Parts, results: dict[str, Imputed]
) -> None:
    train, test, _ = parts
    again = METHODS[name].load()(train, test, 0, BUDGET)
    for column, values in results[name].point.items():
        np.testing.assert_array_equal(again.point[column], values)
    for column, values in (results[name].draws or {}).items():
        assert again.draws is not None
        np.testing.assert_array_equal(again.draws[column], values)


@pytest.mark.parametrize(
    "name", ["knn", "mice", "svgp", "dgp", "extra_trees", "miceforest", "random_forests"]
)
def test_correlated_columns_are_imputed_better_than_by_means(name: str, scores: dict[str, Scores]) -> None:
    assert scores[name].rmse < 0.8 * scores["mean"].rmse


def test_mgp_with_default_settings_is_better_than_chained_regressions(scores: dict[str, Scores]) -> None:
    assert scores["mgp"].rmse < scores["mice"].rmse
    assert scores["mgp"].crps < scores["mice"].crps


@pytest.mark.parametrize("name", ["mice", "svgp", "dgp", "mgp"])
def test_coverage_of_methods_with_draws_is_near_its_level(name: str, scores: dict[str, Scores]) -> None:
    assert 0.75 < scores[name].coverage_90 < 1


@pytest.mark.parametrize("name", ["svgp", "dgp", "mgp", "mgp_paper"])
def test_stated_densities_agree_with_the_draws(name: str, parts: Parts, results: dict[str, Imputed]) -> None:
    """A Gaussian with the moments of the draws has nearly the mean log density that the method states."""
    imputed, (_, test, truth) = results[name], parts
    assert imputed.draws is not None
    assert imputed.log_density is not None
    cells = {c: truth.loc[test[c].isna(), c].to_numpy() for c in imputed.point}
    stated = np.concatenate(list(imputed.log_density(cells).values())).mean()
    by_moments = []
    for column, draws in imputed.draws.items():
        mean, variance = draws.mean(0), draws.var(0, ddof=1)
        squared = (cells[column] - mean) ** 2 / variance
        by_moments.append(-0.5 * (squared + np.log(2 * np.pi * variance)))
    assert stated == pytest.approx(np.concatenate(by_moments).mean(), abs=0.3)


def test_mice_draws_the_requested_number_of_different_values(results: dict[str, Imputed]) -> None:
    draws = results["mice"].draws
    assert draws is not None
    assert draws["a"].shape[0] == BUDGET.draws
    assert len(np.unique(draws["a"][:, 0])) == BUDGET.draws


def test_chained_regressors_are_those_of_iterative_imputer(parts: Parts) -> None:
    train, test, _ = parts
    tree = DecisionTreeRegressor(max_depth=4, random_state=0)
    theirs = IterativeImputer(tree, max_iter=3, tol=0.0, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        theirs.fit(train)
    ours = classical.chained(tree, train, test, 3)
    np.testing.assert_allclose(ours, theirs.transform(test))


def test_nearest_neighbours_do_not_depend_on_the_columns_units(
    parts: Parts, results: dict[str, Imputed]
) -> None:
    train, test, _ = parts
    scaled = classical.nearest_neighbours(train * 1e3, test * 1e3, 0, BUDGET)
    for column, values in results["knn"].point.items():
        np.testing.assert_allclose(scaled.point[column], values * 1e3)


def test_the_paper_profile_has_the_papers_settings() -> None:
    budget = PROFILES["paper"].budget_for("protein")
    assert (budget.gain_iterations, budget.dgp_steps, budget.mgp_paper_steps) == (20_000, 10_000, 10_000)
    assert (budget.dgp_batch_size, budget.dgp_paths) == (100, 20)
    small = PROFILES["paper"].budget_for("parkinson")
    assert small == dataclasses.replace(budget, dgp_steps=2000, mgp_paper_steps=2000)
    assert PROFILES["paper"].rows is None
    assert PROFILES["quick"].rows == 10_000
