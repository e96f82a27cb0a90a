"""Limits of missing cells: normal fits to censored numbers, and columns of text such as "<0.5"."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from pyro_mgp.data.column_spec import ColumnSpec
from pyro_mgp.data.limits import Limits, NormalFit, holds_limits, split_limits
from pyro_mgp.data.table import TableCodec, TableWarning

NONE = np.inf


def censored(g: np.random.Generator, n: int, kind: str) -> tuple[np.ndarray, Limits]:
    """Return sorted observed numbers and the limits of the others, of n from N(3, 2²)."""
    x = 3 + 2 * g.normal(size=n)
    lower, upper = {
        "left": (np.full(n, -NONE), np.full(n, 2.5)),
        "right": (3 + g.normal(size=n), np.full(n, NONE)),
        "interval": (np.floor(x / 2) * 2, np.floor(x / 2) * 2 + 2),
    }[kind]
    unknown = {"left": x < upper, "right": x > lower, "interval": np.arange(n) % 3 > 0}[kind]
    return np.sort(x[~unknown]), Limits(lower, upper).of(unknown).ordered()


@pytest.mark.parametrize("kind", ["left", "right", "interval"])
def test_a_normal_fit_maximises_the_censored_likelihood(kind: str) -> None:
    numbers, limits = censored(np.random.default_rng(0), 300, kind)

    def loss(p: np.ndarray) -> float:
        normal = stats.norm(p[0], np.exp(p[1]))
        mass = normal.cdf(limits.upper) - normal.cdf(limits.lower)
        return -float(normal.logpdf(numbers).sum() + np.log(mass).sum())

    best = optimize.minimize(loss, [3.0, 0.5], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-9})
    fit = NormalFit.of(numbers, limits)
    assert (fit.mean, fit.deviation) == pytest.approx((best.x[0], np.exp(best.x[1])), abs=1e-5)
    assert fit.log_likelihood == pytest.approx(-best.fun, abs=1e-7)


def test_without_limits_a_normal_fit_has_the_moments_of_the_numbers() -> None:
    numbers = np.sort(np.random.default_rng(1).normal(size=50))
    fit = NormalFit.of(numbers, Limits(np.empty(0), np.empty(0)))
    assert (fit.mean, fit.deviation) == pytest.approx((numbers.mean(), numbers.std()))
    assert fit.log_likelihood == pytest.approx(stats.norm(fit.mean, fit.deviation).logpdf(numbers).sum())


def test_limits_of_cells_in_any_order_of_rows_are_the_same() -> None:
    g = np.random.default_rng(2)
    numbers, limits = censored(g, 60, "right")
    shuffled = limits[g.permutation(len(limits.lower))].ordered()
    assert np.array_equal(shuffled.lower, limits.lower)
    assert NormalFit.of(numbers, shuffled) == NormalFit.of(numbers, limits)


def test_intervals_far_from_all_numbers_leave_finite_moments() -> None:
    fit = NormalFit.of(np.array([0.0, 1.0]), Limits(np.array([1e6]), np.array([1e6 + 1e-3])))
    assert np.isfinite([fit.mean, fit.deviation, fit.log_likelihood]).all()


def test_text_is_split_into_numbers_and_limits() -> None:
    frame = pd.DataFrame(
        {
            "a": ["1", " <2.5", None, "≤3e-1", "-4", ">= 7"],
            "b": ["<1", "x", "2", "3", "4", "5"],
            "c": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
            "d": ["1", "2", "3", "4", "5", "6"],
        }
    )
    split, specs = split_limits(frame)
    assert [*split.columns] == ["a", "b", "c", "d", "a at least", "a at most"]
    assert np.array_equal(split["a"], [1, np.nan, np.nan, np.nan, -4, np.nan], equal_nan=True)
    assert np.array_equal(split["a at most"], [np.nan, 2.5, np.nan, 0.3, np.nan, np.nan], equal_nan=True)
    assert np.array_equal(split["a at least"], [np.nan] * 5 + [7], equal_nan=True)
    assert specs == {"a": ColumnSpec(lower_limit="a at least", upper_limit="a at most")}
    pd.testing.assert_frame_equal(split[["b", "c", "d"]], frame[["b", "c", "d"]])
    assert [holds_limits(frame[label]) for label in frame] == [True, False, False, False]


def test_limits_in_text_are_pointed_out() -> None:
    frame = pd.DataFrame({"a": ["<1", "2", "3"], "b": [1.0, 2.0, 4.0]})
    with pytest.warns(TableWarning, match="'a' holds numbers and limits.*split_limits"):
        TableCodec.fit(frame)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TableCodec.fit(frame, specs={"a": ColumnSpec(kind="categorical")})


def test_categories_such_as_below_one_stay_categories() -> None:
    frame = pd.DataFrame({"a": pd.Categorical(["<1", "1", "2"], ordered=True)})
    split, specs = split_limits(frame)
    assert specs == {} and split.equals(frame)


def test_columns_of_limits_that_a_table_has_are_recognised() -> None:
    frame = pd.DataFrame({"a": [1.0, np.nan], "a at least": [np.nan, 2.0], "b": [1.0, 2.0]})
    split, specs = split_limits(frame)
    assert split.equals(frame) and specs == {"a": ColumnSpec(lower_limit="a at least")}


def test_other_columns_that_are_named_like_limits_stay_what_they_are() -> None:
    frame = pd.DataFrame(
        {"score": [1, 2], "score at most": [10, 20], "b": [1.0, np.nan], "b at most": ["x", "y"]}
    )
    split, specs = split_limits(frame)
    assert specs == {} and split.equals(frame)


def test_integers_with_columns_of_limits_become_floats() -> None:
    frame = pd.DataFrame({"a": pd.array([1, None], dtype="Int64"), "a at most": [np.nan, 2.0]})
    split, specs = split_limits(frame)
    assert split["a"].dtype == "Float64" and specs == {"a": ColumnSpec(upper_limit="a at most")}


def test_numbers_and_text_may_be_mixed() -> None:
    split, _ = split_limits(pd.DataFrame({"a": [1.5, "<0.5", 2, None]}))
    assert np.array_equal(split["a"], [1.5, np.nan, 2.0, np.nan], equal_nan=True)


def test_columns_of_one_name_are_an_error() -> None:
    with pytest.raises(ValueError, match="must be unique"):
        split_limits(pd.DataFrame([["<1", "2"], ["3", "4"]], columns=["a", "a"]))


def test_an_array_is_no_frame() -> None:
    with pytest.raises(TypeError, match="expected a DataFrame of pandas, got ndarray: convert it first"):
        split_limits(np.zeros((2, 2)))  # type: ignore[arg-type]


def test_a_column_in_the_way_of_a_column_of_limits_is_an_error() -> None:
    frame = pd.DataFrame({"a": ["1", "<2"], "a at most": [1.0, 2.0]})
    with pytest.raises(ValueError, match="'a at most' would be added"):
        split_limits(frame)


@given(st.lists(st.tuples(st.sampled_from(["", "<", ">"]), st.floats(-1e6, 1e6)), min_size=1, max_size=20))
def test_every_number_is_found_again(cells: list[tuple[str, float]]) -> None:
    frame = pd.DataFrame({"a": [f"{sign}{number!r}" for sign, number in cells]})
    split, specs = split_limits(frame)
    if not any(sign for sign, _ in cells):
        assert specs == {} and split.equals(frame)
        return
    columns = {"": "a", "<": "a at most", ">": "a at least"}
    for row, (sign, number) in enumerate(cells):
        assert {name: split.get(name, pd.Series([np.nan] * 99))[row] for name in columns.values()} == (
            pytest.approx({name: number if columns[sign] == name else np.nan for name in columns.values()},
                          nan_ok=True)
        )  # fmt: skip
