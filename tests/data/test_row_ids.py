"""Ids of rows: sources, checks, and their effect on the draws of equal rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pyro_mgp import MGPImputer
from pyro_mgp.data.encoded_table import without_ids


@pytest.fixture(scope="module")
def imputer() -> MGPImputer:
    x = np.random.default_rng(0).normal(size=60)
    frame = pd.DataFrame({"x": x, "y": x**2}).mask(np.arange(120).reshape(60, 2) % 7 == 0)
    return MGPImputer(max_steps=2, n_inducing=10, random_state=0, progress=False).fit(frame)


@pytest.fixture
def equal() -> pd.DataFrame:
    """Return four rows that differ only in their ids."""
    return pd.DataFrame({"x": 0.5, "y": np.nan, "id": [*"abcd"]})


def test_rows_are_imputed_by_their_cells_and_ids_alone(imputer: MGPImputer, equal: pd.DataFrame) -> None:
    draws = imputer.impute(equal, m=2, row_ids="id")
    assert draws[0]["y"].nunique() == 4
    assert draws[0]["id"].tolist() == [*"abcd"]
    other = equal.set_axis([9, 9, 1, 0]).iloc[[2, 0]]
    assert imputer.impute(other, m=2, row_ids="id")[1]["y"].tolist() == draws[1]["y"].iloc[[2, 0]].tolist()
    own = imputer.impute(equal[["x", "y"]], m=2, row_ids=equal["id"].to_numpy())
    np.testing.assert_array_equal(own.values["y"], draws.values["y"])


def test_rows_of_one_id_are_distinguished_by_their_cells(imputer: MGPImputer) -> None:
    frame = pd.DataFrame({"x": [0.5, 0.6, 0.5], "y": np.nan})
    first, second, again = imputer.impute(frame, m=1, row_ids=[1, 1, 1])[0]["y"]
    assert first != second
    assert first == again


def test_files_equal_tables_with_ids(imputer: MGPImputer, equal: pd.DataFrame, tmp_path) -> None:
    (path,) = imputer.impute_to_parquet(tmp_path / "out", equal, m=1, row_ids="id", batch_size=3)
    pd.testing.assert_frame_equal(pd.read_parquet(path), imputer.impute(equal, m=1, row_ids="id")[0])


@pytest.mark.parametrize(
    ("row_ids", "sentence"),
    [
        ("key", "row_ids names 'key', but the columns are"),
        (
            "x",
            r"which the imputer was fitted to: fit it without the ids, fit\(frame.drop\(columns=\['x'\]\)\)",
        ),
        ([1, 2, 3], "one id per row: expected 4, got 3"),
        (np.zeros((4, 2)), r"one id per row, got an array of shape \(4, 2\)"),
        ([1, 2, None, 4], "row_ids must not be missing: row 2 .* has none"),
    ],
)
def test_invalid_ids_are_refused(
    imputer: MGPImputer, equal: pd.DataFrame, row_ids: object, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        imputer.impute(equal, m=1, row_ids=row_ids)


def test_ids_need_a_table(imputer: MGPImputer) -> None:
    with pytest.raises(ValueError, match=r"impute\(X, row_ids=...\)"):
        imputer.impute(m=1, row_ids=range(60))


def test_a_table_without_ids_is_the_same_object(equal: pd.DataFrame) -> None:
    frame, identity = without_ids(equal, None, ["x", "y", "id"])
    assert frame is equal
    assert identity is None
