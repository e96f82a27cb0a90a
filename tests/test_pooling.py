"""Rubin's rules against the figures of R's mice, and at their limits."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy import stats

from pyro_mgp import Imputations, pool
from pyro_mgp.pooling import pool_estimates

GOLDEN = json.loads((Path(__file__).parent / "golden" / "pooling.json").read_text())
SAME_NAME = {"se": "std_error", "low": "ci_low", "high": "ci_high", "p": "p_value"}


def fits(Q: Any, U: Any, **more: Any) -> list[SimpleNamespace]:
    return [SimpleNamespace(params=np.array(q), bse=np.sqrt(u), **more) for q, u in zip(Q, U, strict=True)]


@pytest.mark.parametrize("name", ["estimate", "se", "df", "riv", "lambda", "fmi", "p", "low", "high"])
def test_a_regression_pools_as_in_mice(name: str) -> None:
    table = pool_estimates(GOLDEN["Q"], GOLDEN["U"], GOLDEN["terms"], df_complete=GOLDEN["dfcom"]).table
    expected = GOLDEN["pooled"][SAME_NAME.get(name, name)]
    np.testing.assert_allclose(table[name], expected, rtol=1e-6)
    assert table.index.tolist() == GOLDEN["terms"]


def test_a_single_estimate_pools_as_in_mice() -> None:
    scalar = GOLDEN["scalar"]
    row = pool_estimates(scalar["Q"], scalar["U"], df_complete=scalar["n"] - scalar["k"]).table.iloc[0]
    found = [row["estimate"], row["se"] ** 2, row["df"], row["riv"], row["fmi"]]
    np.testing.assert_allclose(found, [scalar[k] for k in ("qbar", "t", "df", "r", "fmi")], rtol=1e-6)


def test_without_missing_information_it_is_the_analysis_of_one_table() -> None:
    row = pool_estimates([1.5] * 4, [0.25] * 4, df_complete=12).table.iloc[0]
    assert row[["estimate", "se", "riv", "lambda"]].tolist() == [1.5, 0.5, 0.0, 0.0]
    assert row["df"] == pytest.approx(12 * 13 / 15)
    assert row["high"] - 1.5 == pytest.approx(0.5 * stats.t.ppf(0.975, 12 * 13 / 15))
    unlimited = pool_estimates([1.5] * 4, [0.25] * 4).table.iloc[0]
    assert unlimited["df"] == np.inf
    assert unlimited["high"] - 1.5 == pytest.approx(0.5 * stats.norm.ppf(0.975))


def test_results_of_statsmodels_bring_names_and_degrees_of_freedom() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=40)
    tables = [pd.DataFrame({"x": x, "y": x + generator.normal(size=40)}) for _ in range(3)]
    results = [sm.OLS(t["y"], sm.add_constant(t[["x"]])).fit() for t in tables]
    pooled = pool(results, level=0.9)
    assert pooled.table.index.tolist() == ["const", "x"]
    by_hand = pool_estimates(
        [r.params for r in results], [r.bse**2 for r in results], ["const", "x"], level=0.9, df_complete=38
    )
    pd.testing.assert_frame_equal(pooled.table, by_hand.table)
    assert "Pooled over 3 imputations, 90% intervals" in repr(pooled)


def test_imputations_pool_an_analysis_of_each_of_their_tables() -> None:
    frame = pd.DataFrame({"y": [1.0, 2.0, np.nan, 4.0], "x": [1.0, 2.0, 3.0, 5.0]})
    draws = Imputations(frame, {"y": [[2.5], [3.5], [3.0]]}, m=3)

    def regression(table: pd.DataFrame) -> Any:
        return sm.OLS(table["y"], sm.add_constant(table[["x"]])).fit()

    expected = pool([regression(table) for table in draws], level=0.5).table
    pd.testing.assert_frame_equal(draws.pool(regression, level=0.5).table, expected)
    assert (draws.pool(regression, df_complete=1).table["df"] < expected["df"]).all()


@pytest.mark.parametrize(
    ("Q", "U", "sentence"),
    [
        ([[1.0]], [[1.0]], "at least two imputations"),
        ([[1.0], [2.0]], [[1.0, 1.0], [1.0, 1.0]], r"of one shape, got \(2, 1\) and \(2, 2\)"),
        ([[1.0], [2.0]], [[1.0], [0.0]], "positive variances"),
    ],
)
def test_what_cannot_be_pooled_is_an_error(Q: Any, U: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        pool_estimates(Q, U)


def test_fits_of_different_things_are_an_error() -> None:
    one, other = pd.Series([1.0], index=["a"]), pd.Series([1.0], index=["b"])
    with pytest.raises(ValueError, match=r"different things: \['a'\] and \['b'\]"):
        pool([SimpleNamespace(params=params, bse=[1.0]) for params in (one, other)])
    with pytest.raises(ValueError, match="level must lie between 0 and 1, got 95"):
        pool(fits([[1.0], [2.0]], [[1.0], [1.0]]), level=95)
