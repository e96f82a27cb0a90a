"""Pooled quantities agree with R, and with closed forms; see `golden/analyses`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from pyro_mgp.analysis.pooling import pool
from pyro_mgp.analysis.quantities import (
    PooledQuantities,
    Quantity,
    area_under_curve,
    correlation,
    mean,
    proportion,
    quantile,
    r_squared,
    standardised_difference,
    survival,
)
from pyro_mgp.results.imputations import Imputations

FOLDER = Path(__file__).parents[1] / "golden" / "analyses"
GOLDEN = pd.read_csv(FOLDER / "pooled.csv", skipinitialspace=True).set_index("analysis")
LONG = pd.read_csv(FOLDER / "tables.csv").astype({"k": "category"})
TABLES = [table.drop(columns="imp") for _, table in LONG.groupby("imp")]
B = [table[table["k"] == "b"] for table in TABLES]


@pytest.mark.parametrize(
    ("name", "quantity", "tables"),
    [
        ("correlation", correlation("x", "y"), TABLES),
        ("auc", area_under_curve("x", "yes"), TABLES),
        ("auc", area_under_curve(lambda table: 2 * table["x"] + 1, "yes"), TABLES),
        ("survival", survival("time", "event", [0.3, 1.0]), B),
    ],
)
def test_quantities_agree_with_r(name: str, quantity: Quantity, tables: list[pd.DataFrame]) -> None:
    found, expected = PooledQuantities.of(quantity, tables), GOLDEN.loc[[name]]
    assert found.table.index.tolist() == expected["term"].tolist()
    for column in ("estimate", "se", "df"):
        np.testing.assert_allclose(found.pooled.table[column], expected[column], rtol=1e-6)


def test_intervals_are_those_of_the_transformed_quantity() -> None:
    found = PooledQuantities.of(survival("time", "event", 0.3), B)
    row, on_scale = found.table.iloc[0], found.pooled.table.iloc[0]
    assert 0 < row["low"] < row["estimate"] < row["high"] < 1
    # log(-log S) decreases.
    assert row["low"] == pytest.approx(np.exp(-np.exp(on_scale["high"])))
    assert "Pooled over 5 imputations, 95% intervals" in repr(found)


def test_intervals_of_small_r_squared_hold_the_estimate() -> None:
    g = np.random.default_rng(0)
    found = PooledQuantities.of(r_squared("noise ~ x"), [t.assign(noise=g.normal(size=160)) for t in TABLES])
    row = found.table.iloc[0]
    assert row["low"] == 0 and row["low"] <= row["estimate"] <= row["high"]


def test_r_squared_agrees_with_mice() -> None:
    found = PooledQuantities.of(r_squared("y ~ x + k"), TABLES).table
    np.testing.assert_allclose(found["estimate"], GOLDEN.loc[["r_squared"], "estimate"], rtol=1e-6)


def test_means_and_quantiles_are_pooled_as_they_are() -> None:
    found = PooledQuantities.of(mean("y"), TABLES)
    fits = [([table["y"].mean()], [table["y"].sem() ** 2]) for table in TABLES]
    expected = pool(fits, df_complete=159).table.iloc[0]
    np.testing.assert_allclose(
        found.table.loc["mean of y", ["low", "high", "df"]].astype(float),
        expected[["low", "high", "df"]].astype(float),
    )
    found = PooledQuantities.of(quantile("y", [0.25, 0.5]), TABLES)
    assert found.table["estimate"].iloc[1] == pytest.approx(np.mean([t["y"].median() for t in TABLES]))
    # The standard error of a normal median is √(π/2) times that of the mean.
    normal = pd.DataFrame({"x": stats.norm.ppf((np.arange(2000) + 0.5) / 2000)})
    assert quantile("x", 0.5)(normal).variances[0] == pytest.approx(np.pi / 2 / 2000, rel=0.05)


def test_shares_are_pooled_on_the_logit_scale() -> None:
    found = PooledQuantities.of(proportion("k", "b"), TABLES)
    shares = np.array([(table["k"] == "b").mean() for table in TABLES])
    logits = [([np.log(p / (1 - p))], [1 / (160 * p * (1 - p))]) for p in shares]
    expected = pool(logits).table.iloc[0]
    row = found.table.loc["k = b"]
    for name in ("estimate", "low", "high"):
        assert row[name] == pytest.approx(1 / (1 + np.exp(-expected[name])))


def test_standardised_differences_have_their_sampling_variance() -> None:
    g = np.random.default_rng(0)
    quantity = standardised_difference("x", "arm")
    arm, drawn = np.repeat(["A", "B"], 40), []
    for _ in range(2000):
        x = g.normal(size=80) + 0.8 * (arm == "B")
        drawn.append(quantity(pd.DataFrame({"arm": arm, "x": x})))
    values = np.array([each.values.iloc[0] for each in drawn])
    assert values.mean() == pytest.approx(0.8, abs=0.03)
    assert values.var() == pytest.approx(np.mean([each.variances[0] for each in drawn]), rel=0.1)


def test_standardised_differences_have_the_order_of_categories() -> None:
    table = pd.DataFrame({"x": [1.0, 2.0, 4.0, 6.0], "arm": ["A", "A", "B", "B"]})
    reverse = table.astype({"arm": pd.CategoricalDtype(["C", "B", "A"])})
    quantity = standardised_difference("x", "arm")
    assert quantity(table).values.index.tolist() == ["x: B - A"]
    assert quantity(reverse).values.tolist() == [-value for value in quantity(table).values]


def test_imputations_estimate_by_one_line() -> None:
    frame = TABLES[0].assign(y=TABLES[0]["y"].where(np.arange(160) > 5))
    draws = Imputations(frame, {"y": np.array([table["y"].iloc[:6] for table in TABLES])}, m=5)
    found = draws.estimate(lambda table: mean("y")(table[table["k"] == "a"]), level=0.9)
    assert found.level == 0.9 and found.m == 5


@pytest.mark.parametrize(
    ("quantity", "message"),
    [
        (proportion("k", "d"), "0% of the rows have level 'd'"),
        (standardised_difference("x", "k"), "3 values: expected two groups"),
        (survival("time", "event", 1e-9), "expected times after the first event"),
        (survival("time", "event", 1e9), "is not known: the last time is"),
        (survival("time", "level", 1.0), "expected true and false, or 1 and 0"),
        (area_under_curve("x", "none"), "0 rows have it"),
        (proportion("hole", 1), "column 'hole' has 160 missing cells"),
        (r_squared("y ~ 0 + x"), "R² needs an intercept"),
        (mean("q"), "there is no column 'q'; the table has"),
        (mean("k"), "column 'k': expected numbers, got category"),
        (area_under_curve("x", "y"), r"expected true and false, or 1 and 0, got \[.*and 150 more\]"),
    ],
)
def test_what_cannot_be_estimated_is_an_error(quantity: Quantity, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PooledQuantities.of(quantity, [table.assign(none=0, hole=np.nan) for table in TABLES])


def test_a_quantity_is_a_function() -> None:
    with pytest.raises(TypeError, match=r"such as quantities.mean\('income'\), got 'mean'"):
        PooledQuantities.of("mean", TABLES)  # type: ignore[arg-type]


@pytest.mark.parametrize("q", [0, 1, [0.5, 95]])
def test_quantiles_lie_strictly_between_zero_and_one(q: object) -> None:
    with pytest.raises(ValueError, match="q must lie between 0 and 1, got"):
        quantile("x", q)  # type: ignore[arg-type]
