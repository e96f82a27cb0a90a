"""The manners of scikit-learn: its own checks, pipelines, searches, column transformers, containers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from pyro_mgp import ColumnSpec, MGPImputer


def small(**settings: Any) -> MGPImputer:
    return MGPImputer(**{"max_steps": 3, "n_sweeps": 2, "random_state": 0, "progress": False} | settings)


@parametrize_with_checks([small()])
def test_it_keeps_the_contract(estimator: MGPImputer, check: Callable[[MGPImputer], None]) -> None:
    before = estimator.get_params()
    check(estimator)  # raises an AssertionError of its own
    assert estimator.get_params() == before


def numbers(n: int = 90) -> tuple[pd.DataFrame, np.ndarray]:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(n, 4))
    y = X.sum(1)
    X[:, 1] += X[:, 0]
    X[:, :3][generator.random((n, 3)) < 0.2] = np.nan
    return pd.DataFrame(X, columns=list("abcd")), y


@pytest.mark.slow
def test_a_search_over_a_pipeline_finds_its_parameters() -> None:
    X, y = numbers()
    pipeline = make_pipeline(small(inputs="others"), StandardScaler(), Ridge())
    grid = {"mgpimputer__kernel": ["matern32", "linear+matern32"], "mgpimputer__n_neighbors": [0, 4]}
    search = GridSearchCV(pipeline, grid, cv=3, error_score="raise").fit(X, y)
    assert search.best_score_ > 0.5
    assert len(set(search.cv_results_["mean_test_score"])) > 1
    assert search.predict(X.iloc[:5]).shape == (5,)


def test_a_column_transformer_takes_it_for_some_columns() -> None:
    X, _ = numbers()
    X["sex"] = np.where(np.arange(len(X)) % 2, "f", "m")
    parts = [("filled", small(add_indicator=True), ["a", "b", "sex"])]
    transformer = ColumnTransformer(parts, remainder="passthrough").set_output(transform="pandas")
    filled = transformer.fit_transform(X)
    assert filled.columns.tolist() == [
        *(f"filled__{name}" for name in ("a", "b", "sex", "missingindicator_a", "missingindicator_b")),
        "remainder__c",
        "remainder__d",
    ]
    assert filled["filled__missingindicator_a"].tolist() == X["a"].isna().tolist()
    assert not filled[["filled__a", "filled__b"]].isna().any().any()


@pytest.mark.parametrize("add_indicator", [False, True])
def test_names_are_those_of_what_comes_out(add_indicator: bool) -> None:
    X, _ = numbers()
    imputer = small(add_indicator=add_indicator).fit(X)
    indicators = [f"missingindicator_{name}" for name in "abc"] if add_indicator else []
    assert imputer.get_feature_names_out().tolist() == [*"abcd", *indicators]
    assert imputer.transform(X).columns.tolist() == [*"abcd", *indicators]
    assert len(imputer.transform(X.iloc[[3, 3, 5]])) == 3  # rows with one label
    array = small(add_indicator=add_indicator).fit(X.to_numpy())
    assert array.transform(X.to_numpy()).shape == (len(X), 4 + len(indicators))
    assert array.get_feature_names_out()[:2].tolist() == ["x0", "x1"]
    framed = array.set_output(transform="pandas").transform(X.to_numpy())
    assert framed.columns.tolist() == array.get_feature_names_out().tolist()


def test_a_clone_has_all_settings_and_nothing_learnt() -> None:
    X, _ = numbers()
    imputer = small(specs={"a": ColumnSpec(lower=-9)}, order=["c", "b", "a"]).fit(X)
    copy = clone(imputer)
    assert copy.get_params() == imputer.get_params()
    assert not hasattr(copy, "chain_")
    assert copy.fit(X).impute(m=2) == imputer.impute(m=2)
