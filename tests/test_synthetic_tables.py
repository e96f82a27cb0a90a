"""Synthetic tables from the joint density, and the pooling of their analyses."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest

from pyro_mgp import ColumnSpec, MGPImputer, pool_synthetic


def table(n: int = 300, seed: int = 0) -> pd.DataFrame:
    g = np.random.default_rng(seed)
    x = g.normal(size=n)
    frame = pd.DataFrame({"id": [f"person {i}" for i in range(n)], "x": x})
    frame["count"] = g.poisson(np.exp(0.5 + 0.3 * x))
    frame["flag"] = g.random(n) < 1 / (1 + np.exp(-2 * x))
    frame["level"] = pd.Categorical(np.where(x + g.normal(size=n) > 0, "high", "low"), ["low", "high"])
    frame["y"] = 1 + 0.5 * x + 0.7 * frame["flag"] + g.normal(size=n)
    frame["constant"] = 3.0
    frame.loc[::7, "y"] = np.nan
    return frame


def joint(**changes: object) -> MGPImputer:
    return MGPImputer(
        **{"columns": "all", "inputs": "earlier", "random_state": 0, "progress": False, **changes}
    )


@pytest.fixture(scope="module")
def imputer() -> MGPImputer:
    with pytest.warns(UserWarning):  # of the identifier and the constant
        return joint().fit(table())


def test_tables_have_columns_and_dtypes_of_the_fitted_one_without_identifiers(imputer: MGPImputer) -> None:
    fitted = table().drop(columns="id")
    for drawn in imputer.synthesise(20, m=2):
        assert drawn.shape == (20, 6) and not drawn.isna().any(axis=None)
        pd.testing.assert_series_equal(drawn.dtypes, fitted.dtypes)
        assert drawn.index.equals(pd.RangeIndex(20)) and (drawn["constant"] == 3.0).all()


def test_rows_have_the_joint_distribution_of_the_table(imputer: MGPImputer) -> None:
    (drawn,), frame = imputer.synthesise(3000, m=1), table()
    for label in ("x", "count", "flag", "y"):
        spread = frame[label].std()
        assert drawn[label].mean() == pytest.approx(frame[label].mean(), abs=0.15 * spread)
        assert drawn[label].std() == pytest.approx(spread, rel=0.15)
    assert drawn["y"].corr(drawn["x"]) == pytest.approx(frame["y"].corr(frame["x"]), abs=0.12)
    rates = [each.groupby("flag")["level"].value_counts(normalize=True) for each in (drawn, frame)]
    np.testing.assert_allclose(rates[0].sort_index(), rates[1].sort_index(), atol=0.12)


def test_tables_differ_and_the_same_seed_gives_the_same(imputer: MGPImputer) -> None:
    first, second = imputer.synthesise(10, m=2)
    pd.testing.assert_frame_equal(first, imputer.synthesise(10, m=1)[0])
    assert not first.equals(second)
    assert not first.equals(imputer.synthesise(10, m=1, random_state=1)[0])


def test_tables_are_of_the_kind_that_was_fitted() -> None:
    given = pl.from_pandas(table(60)[["x", "flag", "y"]])
    (drawn,) = joint(max_steps=3).fit(given).synthesise(5, m=1)
    assert isinstance(drawn, pl.DataFrame) and drawn.schema == given.schema


def test_what_has_no_joint_density_of_all_columns_is_refused() -> None:
    frame = table(60)[["x", "flag", "y"]]
    with pytest.raises(ValueError, match=r"\['x', 'flag'\] have no link: fit with columns='all'"):
        joint(columns="incomplete").fit(frame).synthesise(5)
    with pytest.raises(ValueError, match="links see all other columns"):
        joint(inputs="others", max_steps=2).fit(frame).synthesise(5)
    with pytest.raises(ValueError, match="n, the number of rows"):
        joint(max_steps=2).fit(frame).synthesise(0)


def test_what_is_not_imputed_or_not_there_is_refused(tmp_path) -> None:
    frame = table(60)[["x", "flag", "y"]].assign(w=1.0 + np.arange(60))
    unfilled = joint(specs={"y": ColumnSpec(impute=False)}, max_steps=2).fit(frame)
    for fitted in (unfilled, joint(weights="w", max_steps=2).fit(frame)):
        with pytest.raises(
            ValueError, match="cannot have weights, survival times or columns of impute=False"
        ):
            fitted.synthesise(5)
    unfilled.save(tmp_path / "imputer")
    with pytest.raises(ValueError, match="this imputer was loaded or fitted to files"):
        MGPImputer.load(tmp_path / "imputer").synthesise(5)


def test_pooled_variances_are_the_larger_of_both_rules() -> None:
    estimates = np.array([1.0, 2.0, 3.0, 6.0])
    m, b = 4, estimates.var(ddof=1)
    for within in (0.5, 10.0):
        row = pool_synthetic([(each, within) for each in estimates], names=["a"]).table.loc["a"]
        both = (1 + 1 / m) * b - within, within + b / m
        assert row["estimate"] == 3.0 and row["se"] == pytest.approx(max(both) ** 0.5)
        share = m * within / b
        own = [(m - 1) * (1 - share / (m + 1)) ** 2, (m - 1) * (1 + share) ** 2]
        assert row["df"] == pytest.approx(own[int(np.argmax(both))])
    assert "Pooled over 4 imputations" in repr(pool_synthetic([(each, 1.0) for each in estimates]))


def test_intervals_contain_the_truth_as_often_as_they_should() -> None:
    """Of normal estimates, from a fitted table with and without missing cells."""
    g = np.random.default_rng(0)
    for spread in (1.0, 1.5):
        inside = 0
        for _ in range(2000):
            fitted = g.normal(0, spread**0.5)
            drawn = g.normal(fitted, (spread + 1) ** 0.5, 20)
            row = pool_synthetic([(each, 1.0) for each in drawn]).table.iloc[0]
            inside += row["low"] < 0 < row["high"]
        assert 0.94 < inside / 2000 < 0.98
