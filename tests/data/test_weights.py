"""Sampling weights: their logarithms are modelled, the weights themselves stay in the completed tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pyro_mgp import ColumnSpec, MGPImputer, calibrate
from pyro_mgp.data.weights import log_weights


def sample(n: int = 60, seed: int = 0) -> pd.DataFrame:
    """Return a sample in which y depends on the weight, given x."""
    g = np.random.default_rng(seed)
    x, weight = g.normal(size=n), np.exp(0.8 * g.normal(size=n))
    y = x + np.log(weight) + 0.3 * g.normal(size=n)
    return pd.DataFrame({"x": x, "y": np.where(g.random(n) < 0.3, np.nan, y), "w": weight})


def small(**settings: Any) -> MGPImputer:
    return MGPImputer(random_state=0, progress=False, max_steps=5, **settings)


def test_imputations_are_those_of_a_table_with_log_weights() -> None:
    frame = sample()
    ours = small(weights="w").fit(frame).impute(m=3)
    theirs = small().fit(frame.assign(w=np.log(frame["w"]))).impute(m=3)
    for one, other in zip(ours, theirs, strict=True):
        pd.testing.assert_series_equal(one["y"], other["y"])
        pd.testing.assert_series_equal(one["w"], frame["w"])


@pytest.mark.parametrize("columns", ["incomplete", "all"])
def test_saved_imputers_and_new_rows_know_weights(columns: str, tmp_path: Path) -> None:
    frame, new = sample(), sample(20, seed=1)
    imputer = small(weights="w", columns=columns).fit(frame)
    imputer.save(tmp_path / "imputer")
    assert "w" not in imputer.impute(m=2).to_arviz().observed_data  # their logarithms have another name
    loaded = MGPImputer.load(tmp_path / "imputer")
    assert loaded.weights == "w"
    pd.testing.assert_frame_equal(loaded.impute(new, m=1)[0], imputer.impute(new, m=1)[0], rtol=1e-6)
    with pytest.raises(ValueError, match=r"'w': row 0 .*holds the weight nan"):
        imputer.impute(new.assign(w=np.nan), m=1)


def test_weights_are_not_held_out() -> None:
    frame = sample(120)
    imputer = small(weights="w").fit(frame)
    table = calibrate(imputer, frame, share=0.2, m=5, progress=False).table
    assert table["column"].tolist() == ["y"]
    with pytest.raises(ValueError, match="holds weights"):
        calibrate(imputer, frame, columns=["w"], share=0.2, m=5, progress=False)


@pytest.mark.parametrize(
    ("cells", "error", "sentence"),
    [
        ([1.0, np.nan, 2.0], ValueError, "row 1 .*holds the weight nan; expected a positive"),
        ([1.0, 2.0, 0.0], ValueError, "row 2 .*holds the weight 0.0"),
        ([np.inf, 2.0, 1.0], ValueError, "row 0 .*holds the weight inf"),
        (["a", "b", "c"], TypeError, "'w' holds weights: expected numbers"),
        ([True, False, True], TypeError, "expected numbers, got dtype bool"),
    ],
)
def test_what_is_no_weight_is_refused(cells: list[Any], error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        log_weights(pd.Series(cells, name="w"))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"weights": "nope"}, "weights names column 'nope', but the table has"),
        ({"weights": "w", "specs": {"w": ColumnSpec(derived="x + y")}}, "weights names 'w'"),
        ({"weights": "w", "specs": {"w": ColumnSpec(lower=0)}}, "'w' holds weights.*leave out its spec"),
        ({"weights": "w", "survival": ("w", "x")}, "cannot hold both"),
    ],
)
def test_the_column_of_weights_must_be_in_the_table(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        small(**settings).fit(sample())


def test_labels_only_name_the_column_of_weights() -> None:
    frame = sample()
    with pytest.raises(TypeError, match="weights must be the label of a column, got ndarray"):
        small(weights=frame["w"].to_numpy()).fit(frame)


def test_columns_with_predictors_are_predicted_from_weights_too() -> None:
    frame = sample(200)
    specs = {"y": ColumnSpec(predictors=["x"])}
    fitted = small(weights="w", specs=specs).fit(frame)
    assert fitted.model_.link_specs[0].inputs == (0, 2)
