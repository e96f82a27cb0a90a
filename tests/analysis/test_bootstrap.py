"""Bootstrap of imputed tables against known standard errors and variance components."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator

from pyro_mgp import Imputations, MGPImputer
from pyro_mgp.analysis.bootstrap import _pooled, bootstrap_then_impute, bootstrapped


class Normal(BaseEstimator):  # type: ignore[misc]
    """Imputer that draws y from a normal distribution with the estimated mean and standard deviation."""

    def __init__(self, random_state: int = 0, progress: bool = False) -> None:
        self.random_state, self.progress = random_state, progress

    def fit(self, frame: pd.DataFrame) -> Normal:
        self.frame_ = frame
        return self

    def impute(self, X: Any = None, m: int = 2) -> Imputations:
        y = self.frame_["y"]
        shape = m, int(y.isna().sum())
        drawn = np.random.default_rng(self.random_state).normal(y.mean(), y.std(), shape)
        return Imputations(self.frame_, {"y": drawn}, m)


def half(n: int = 200, seed: int = 0) -> pd.DataFrame:
    y = np.random.default_rng(seed).normal(size=n)
    return pd.DataFrame({"y": np.where(np.arange(n) % 2, y, np.nan)})


def test_the_standard_error_of_a_mean_is_that_of_the_observed_cells() -> None:
    frame = half()
    pooled = bootstrap_then_impute(Normal(), frame, lambda t: t["y"].mean(), n_samples=600)
    observed = frame["y"].dropna()
    row = pooled.table.iloc[0]
    # Draws of improper imputations average out: the estimate varies as the mean of the observed cells does.
    assert row["se"] == pytest.approx(observed.sem(), rel=0.1)
    assert row["estimate"] == pytest.approx(observed.mean(), abs=0.02)
    assert row["low"] < observed.mean() < row["high"]


def test_variance_components_are_those_of_the_analysis_of_variance() -> None:
    Q = np.array([[[1.0], [3.0]], [[4.0], [8.0]], [[9.0], [5.0]]])
    # Means 2, 6, 7 of three samples, around 5: MSB = 2 (9 + 1 + 4) / 2 = 14, MSW = (2 + 8 + 8) / 3 = 6.
    row = _pooled(Q, pd.Index(["a"]), 0.9).table.loc["a"]
    variance = (1 + 1 / 3) * (14 - 6) / 2 + 6 / 6
    df = variance**2 / (((4 / 6) * 14) ** 2 / 2 + 36 / (3 * 4 * 1))
    assert row["estimate"] == 5.0 and row["se"] == pytest.approx(variance**0.5)
    assert row["df"] == pytest.approx(max(3.0, df))


def test_without_a_component_of_samples_all_estimates_count_as_one_sample() -> None:
    Q = np.array([[[0.0], [2.0]], [[2.0], [0.0]]])
    row = _pooled(Q, pd.Index([0]), 0.95).table.iloc[0]
    assert row["se"] == pytest.approx((4 / 3 / 4) ** 0.5)


def test_an_imputer_of_ours_is_fitted_to_each_sample_and_stays_as_it_is() -> None:
    frame = half(40).assign(x=np.arange(40.0))
    imputer = MGPImputer(inputs="others", max_steps=2, random_state=7)

    def quartiles(table: pd.DataFrame) -> pd.Series[float]:
        return table["y"].quantile([0.25, 0.75])

    first, again = (bootstrap_then_impute(imputer, frame, quartiles, n_samples=4, m=3) for _ in range(2))
    assert first.estimates.shape == (4, 3, 2) and first.table.index.tolist() == [0.25, 0.75]
    pd.testing.assert_frame_equal(first.table, again.table)
    assert imputer.random_state == 7 and not hasattr(imputer, "model_")
    assert np.ptp(first.estimates, axis=(0, 1)).min() > 0


def test_bootstrapped_analyses_have_the_standard_errors_of_means() -> None:
    draws = Normal().fit(half(400)).impute(m=5)
    both = draws.pool(bootstrapped(lambda t: t["y"].agg(["mean", "median"]), n_samples=400))
    known = draws.pool(lambda t: ([t["y"].mean()], [t["y"].var() / len(t)]))
    assert both.table.loc["mean", "se"] == pytest.approx(known.table["se"].iloc[0], rel=0.08)
    assert both.table.loc["mean", "estimate"] == pytest.approx(known.table["estimate"].iloc[0])
    assert both.covariances is not None and both.covariances[0, 0, 1] > 0


def test_estimates_are_matched_by_name() -> None:
    frame = half(100).assign(k=np.where(np.arange(100) < 51, "a", "b"))
    draws = Normal().fit(frame).impute(m=3)
    analyses = [
        bootstrapped(lambda t: t["k"].value_counts(normalize=True)),
        bootstrapped(lambda t: dict(t["k"].value_counts(normalize=True).sort_index())),
    ]
    first, second = (draws.pool(each).table["se"] for each in analyses)
    np.testing.assert_allclose(first[["a", "b"]], second[["a", "b"]])
    assert first["a"] == pytest.approx(0.05, rel=0.15)
    shares = bootstrap_then_impute(
        Normal(), frame, lambda t: t["k"].value_counts(normalize=True), n_samples=50
    )
    assert shares.table["estimate"].sum() == pytest.approx(1.0)
    assert shares.table.loc["a", "estimate"] == pytest.approx(0.51, abs=0.03)


def test_samples_have_a_plain_index_and_constants_no_error() -> None:
    draws = Normal().fit(half(60).set_axis(np.arange(60) // 2)).impute(m=2)
    seen: list[pd.Index[Any]] = []

    def size(table: pd.DataFrame) -> float:
        seen.append(table.index)
        return table["y"].mean()

    draws.pool(bootstrapped(size, n_samples=3))
    assert all(index.equals(pd.RangeIndex(60)) for index in seen)
    row = bootstrap_then_impute(Normal(), half(), len, n_samples=3).table.iloc[0]
    assert (row["se"], row["low"], row["high"]) == (0, 200, 200)


def test_what_a_sample_lacks_is_named() -> None:
    frame = half(30).assign(k=["rare", *["often"] * 29])
    with pytest.raises(ValueError, match=r"from sample \d+: is a level absent"):
        bootstrap_then_impute(Normal(), frame, lambda t: t.groupby("k")["y"].mean(), n_samples=20)
    draws = Normal().fit(frame).impute(m=2)
    with pytest.raises(ValueError, match=r"from sample \d+: is a level absent"):
        draws.pool(bootstrapped(lambda t: t.groupby("k")["y"].mean()))
    with pytest.raises(ValueError, match="expected finite estimates, got nan"):
        bootstrap_then_impute(Normal(), frame, lambda t: np.nan)
    with pytest.raises(TypeError, match="must return a number"):
        bootstrap_then_impute(Normal(), frame, lambda t: np.zeros((2, 2)))


@pytest.mark.parametrize("options", [{"n_samples": 1}, {"m": 1}, {"level": 1.0}])
def test_too_few_samples_or_imputations_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"n_samples|m must|level"):
        bootstrap_then_impute(Normal(), half(), lambda t: 0.0, **options)
