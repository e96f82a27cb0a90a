"""Held-out cells: enough are kept for a fit, and none follows from others."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pyro_mgp import ColumnSpec
from pyro_mgp.data.rules import Rules
from pyro_mgp.data.table import missing
from pyro_mgp.evaluation.holdout import Mask, choose_holdout, holds_levels
from pyro_mgp.evaluation.missingness import without_cells


def chosen(frame: pd.DataFrame, specs: object = None, **asked: object) -> tuple[list[Mask], pd.DataFrame]:
    settings_ = {"columns": None, "share": 0.2, "n_folds": None} | asked
    rules = Rules.parse(specs, frame.columns.tolist())  # type: ignore[arg-type]
    return choose_holdout(frame, rules=rules, generator=np.random.default_rng(0), **settings_)  # type: ignore[arg-type]


def mixed(n: int, seed: int, holes: float) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "x": rng.normal(size=n),
            7: rng.integers(0, 3, n),
            "yes": rng.random(n) < 0.1,
            "sort": rng.choice(list("abcdefgh"), n, p=[0.65, *[0.05] * 7]),
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 9, n), unit="D"),
            "long": pd.to_timedelta(rng.random(n), unit="h"),
        },
        index=pd.Index([f"r{i}" for i in range(n)]),
    )
    return without_cells(frame, rng.random(frame.shape) < holes)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    n=st.integers(3, 60),
    seed=st.integers(0, 1_000),
    holes=st.sampled_from([0.0, 0.2, 0.6]),
    folds=st.sampled_from([None, 2, 5]),
    share=st.sampled_from([0.05, 0.3, 0.5]),
)
@example(n=10, seed=1, holes=0.2, folds=2, share=0.05)
def test_enough_is_kept_for_a_fit(n: int, seed: int, holes: float, folds: int | None, share: float) -> None:
    frame = mixed(n, seed, holes)
    observed = ~missing(frame)
    try:
        masks, _ = chosen(frame, n_folds=folds, share=share)
    except ValueError as error:
        assert "there is no cell to hold out" in str(error)
        chances = observed.sum(0) * (share if folds is None else 1.0)
        # Of complete columns cells are held_out only if there are no others.
        asked = ~observed.all(0) | observed.all()
        assert not (asked & (observed.sum(0) >= 10) & (chances >= 5) & (frame.nunique() > 1)).any()
        return
    assert (np.sum(masks, axis=0) <= 1).all()
    for held_out in masks:
        assert not (held_out & ~observed).any()
        rest = without_cells(frame, held_out)
        assert (missing(rest) == (~observed | held_out)).all()
        for label in frame.columns[held_out.any(0)]:
            assert rest[label].nunique() >= 2
            assert rest[label].notna().sum() >= frame[label].notna().sum() // 3
            if label in ("yes", "sort"):
                assert set(rest[label].dropna()) == set(frame[label].dropna())
        assert (~missing(rest)).any(1)[observed.any(1)].all()


def test_folds_hold_out_every_cell_once_except_those_a_fit_needs() -> None:
    frame = mixed(60, 0, 0.1)
    frame.iloc[0, 3] = "rare"
    held_out = np.logical_or.reduce(chosen(frame, n_folds=5)[0])
    stays = ~held_out & ~missing(frame)
    assert stays.sum() <= 3
    assert stays[0, 3]
    sizes = [fold.sum() for fold in chosen(frame, n_folds=5)[0]]
    assert max(sizes) - min(sizes) <= 6


def test_the_share_is_met_and_cells_of_complete_columns_stay() -> None:
    frame = mixed(100, 0, 0.0)
    frame.loc["r3":"r22", "x"] = np.nan
    assert chosen(frame, share=0.25)[0][0].sum(0).tolist() == [20, 0, 0, 0, 0, 0]
    assert chosen(frame, columns=["day", 7])[0][0].sum(0).tolist() == [0, 20, 0, 0, 20, 0]
    assert chosen(frame.dropna())[0][0].sum(0).tolist() == [16] * 6


def test_extreme_numbers_may_be_held_out() -> None:
    """Keeping single numbers, as levels are kept, would exclude the tails."""
    frame = pd.DataFrame({"x": [0.0] * 18 + [50.0, -50.0], "y": np.arange(20.0)})
    assert np.logical_or.reduce(chosen(frame, columns=["x"], n_folds=10)[0]).sum() == 20


@pytest.mark.parametrize(
    "dtype", ["int8", "int64", "uint16", "Int32", "bool", "boolean", "float32", "object", "str"]
)
def test_without_cells_keeps_the_kind_of_a_column(dtype: str) -> None:
    column = pd.Series([1, 0, 1, 1]).astype(dtype)
    rest = without_cells(pd.DataFrame({"a": column}), np.array([[True], [False], [False], [True]]))["a"]
    assert rest.isna().tolist() == [True, False, False, True]
    assert rest.dropna().tolist() == column.tolist()[1:3]
    names = {"int8": "Int8", "int64": "Int64", "uint16": "UInt16", "bool": "boolean"}
    assert str(rest.dtype) == names.get(dtype, str(column.dtype))


def test_without_cells_does_not_change_the_table() -> None:
    frame = mixed(20, 0, 0.2)
    before = frame.copy()
    without_cells(frame, ~missing(frame))
    pd.testing.assert_frame_equal(frame, before)


def test_cells_that_follow_from_others_are_not_held_out() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(200, 2)), columns=["a", "b"])
    frame["total"] = frame["a"] + frame["b"]
    frame["beside"] = 1.0 * frame.index
    frame.loc[:99, "total"] = np.nan
    masks, left_out = chosen(
        frame, {"total": ColumnSpec(derived="a + b")}, columns=["a", "b", "total"], share=0.5
    )
    held_out = masks[0]
    assert held_out[:100, 0].sum() > 30  # without a total, nothing gives it away
    both = held_out[100:, :2].sum(1)
    assert set(both.tolist()) == {0, 2}  # with one, two sources have to be held_out
    assert not held_out[:, 2].any()
    why = left_out.set_index(["column", "why"])["cells"]
    assert why["total", "is derived from other columns"] == 100
    assert why["a", "follows from other cells"] + held_out[:, 0].sum() == 100


def test_cells_are_held_out_only_where_their_column_surely_applies() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"sex": rng.choice(["f", "m"], 200), "age": rng.normal(size=200)})
    frame["x"] = np.where(frame["sex"] == "f", rng.normal(size=200), 0.0)
    frame.loc[150:, "sex"] = None
    specs = {"x": ColumnSpec(only_if="sex == 'f'", otherwise=0.0)}
    held_out = chosen(frame, specs, columns=["sex", "x"], share=0.5)[0][0]
    assert not held_out[150:, 2].any()
    assert not held_out[(frame["sex"] == "m").to_numpy(), 2].any()
    assert not held_out[(frame["sex"] == "f").to_numpy(), 0].any()  # their answer tells
    assert held_out[(frame["sex"] == "f").to_numpy(), 2].any()
    assert held_out[(frame["sex"] == "m").to_numpy(), 0].any()


@pytest.mark.parametrize(
    ("specs", "column", "why"),
    [
        ({"x": ColumnSpec(impute=False)}, "x", "impute=False"),
        ({"y": ColumnSpec(standard_error="x")}, "x", "standard errors"),
        (None, "few", "fewer than 10 observed cells"),
        (None, "one", "is constant"),
    ],
)
def test_unsuitable_columns_are_named(specs: object, column: str, why: str) -> None:
    frame = pd.DataFrame({"x": np.arange(30.0), "y": np.arange(30.0) ** 2, "few": [1.0, 2.0, *[np.nan] * 28]})
    frame["one"] = 1.0
    masks, left_out = chosen(frame, specs, columns=[column, "y"])
    assert masks[0].sum(0).tolist() == [0, 6, 0, 0]
    assert left_out["column"].tolist() == [column]
    assert why in left_out["why"].item()
    with pytest.raises(ValueError, match="there is no cell to hold out"):
        chosen(frame, specs, columns=[column])


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"share": 0.0}, "share must be above 0 and at most 0.5, got 0.0"),
        ({"share": 0.6}, "share must be"),
        ({"n_folds": 1}, "folds must be at least 2, got 1"),
        ({"columns": ["nope"]}, "there is no column 'nope' to hold cells out of"),
    ],
)
def test_invalid_settings_are_refused(asked: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        chosen(mixed(20, 0, 0.1), **asked)


def test_levels_are_distinguished_from_numbers() -> None:
    frame = mixed(20, 0, 0.1)
    frame["flag"] = pd.Series([True, False, None, True, False] * 4, dtype=object).to_numpy()
    frame["code"] = 1.0
    rules = Rules.parse({"code": ColumnSpec(kind="categorical")}, frame.columns.tolist())
    found = [label for label in frame.columns if holds_levels(frame[label], label, rules)]
    assert found == ["yes", "sort", "flag", "code"]
