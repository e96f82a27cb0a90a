"""Comparison on mixed columns: scores as computed by hand, and methods that impute every held-out cell."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from benchmarks.mixed import comparison
from benchmarks.mixed.comparison import Prediction


def table(n: int = 60) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    x = generator.normal(size=n)
    return pd.DataFrame(
        {
            "x": x,
            "year": generator.integers(2007, 2010, n),
            "sort": np.where(x > 0.4, "b", np.where(x < -0.4, "a", "c")),
            "yes": x + generator.normal(size=n) > 0,
        }
    )


@pytest.mark.parametrize("method", ["mgp", "one_hot", "random_forests", "miceforest"])
@pytest.mark.slow
def test_methods_impute_every_held_out_cell(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "_DRAWS", 3)
    monkeypatch.setattr(comparison, "_TREES", 5)
    monkeypatch.setattr(comparison, "_ROUNDS", 2)
    rows = pd.DataFrame(comparison.run(table(), [method], [0]))
    assert rows["column"].tolist() == ["x", "year", "sort", "yes"]
    numbers = rows["column"].isin(["x", "year"])
    assert rows.loc[numbers, ["rmse", "crps"]].notna().all(axis=None)
    assert rows.loc[~numbers, "accuracy"].between(0, 1).all()
    assert (rows.loc[~numbers, "log_score"] > 0).all()
    held_out = np.random.default_rng(0).random((60, 4)) < 0.2
    assert rows["cells"].tolist() == held_out.sum(0).tolist()


def test_scores_are_as_computed_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    full = pd.DataFrame({"x": [1.0, 2.0, 4.0, 5.0], "sort": ["a", "b", "a", "b"]})
    held_out = np.random.default_rng(3).random((4, 2)) < 0.5
    n_x, n_sort = held_out.sum(0)

    def draws(frame: pd.DataFrame, seed: int) -> dict[str, Prediction]:
        return {
            "x": Prediction(np.stack([full["x"][held_out[:, 0]] + shift for shift in (-1.0, 3.0)]), None),
            "sort": Prediction(np.array([["a"] * n_sort, ["a"] * n_sort, ["b"] * n_sort]), None),
        }

    monkeypatch.setitem(comparison.METHODS, "mgp", draws)
    x, sort = comparison.run(full, ["mgp"], [3], 0.5)
    unit = full["x"].std()
    assert x["rmse"] == pytest.approx(1.0 / unit)
    assert x["crps"] == pytest.approx((2 - 4 / 2) / unit)
    is_a = (full["sort"][held_out[:, 1]] == "a").mean()
    assert sort["accuracy"] == is_a
    expected = -(is_a * np.log(2.5 / 4) + (1 - is_a) * np.log(1.5 / 4))
    assert sort["log_score"] == pytest.approx(expected)
    assert (x["cells"], sort["cells"]) == (n_x, n_sort)


def test_incomplete_tables_and_unknown_methods_are_refused() -> None:
    with pytest.raises(ValueError, match="expected a complete table"):
        next(comparison.run(table().mask(table() == 2008), ["mgp"], [0]))
    with pytest.raises(ValueError, match="got 'guess'"):
        next(comparison.run(table(), ["guess"], [0]))
