"""Formulas over columns: values as of numpy, conditions on cells of every kind, and refusal of code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from pyro_mgp.data.formula import Formula

NAN = np.nan


def numbers() -> pd.DataFrame:
    """Return numbers of every dtype, a missing cell in most, and labels that are not identifiers."""
    return pd.DataFrame(
        {
            "a": [1.0, 2.0, NAN, 4.5],
            "b": [2.0, -3.0, 5.0, 0.25],
            "Int64": pd.array([1, None, 3, 4], dtype="Int64"),
            "int": [1, 2, 3, 4],
            "arrow": pd.array([1, 2, None, 4], dtype="int64[pyarrow]"),
            "boolean": pd.array([True, None, False, True], dtype="boolean"),
            "body mass (kg)": [50.0, 60.0, NAN, 80.0],
            7: [10.0, 20.0, 30.0, NAN],
            "log": [5.0, 6.0, 7.0, 8.0],
        }
    )


def labels() -> pd.DataFrame:
    """Return text, categories, booleans and times: one row of each value, and one missing cell."""
    days = pd.to_datetime(["2020-01-01", "2020-06-01", "2021-01-01", None])
    words, truths = ["low", "mid", "high", None], [True, False, True, None]
    return pd.DataFrame(
        {
            "object": pd.Series(words, dtype=object),
            "str": pd.Series(words, dtype="str"),
            "string": pd.array(words, dtype="string"),
            "arrow": pd.Series(words, dtype=pd.ArrowDtype(pa.string())),
            "category": pd.Categorical(words),
            "ordered": pd.Categorical(words, categories=["low", "mid", "high"], ordered=True),
            "flag": pd.Series(truths, dtype=object),
            "boolean": pd.array(truths, dtype="boolean"),
            "arrow_flag": pd.array(truths, dtype="bool[pyarrow]"),
            "day": days,
            "zoned": days.tz_localize("Europe/Berlin"),
            "arrow_day": pd.Series(days).astype("timestamp[us][pyarrow]"),
            "n": pd.array([1, 2, 3, None], dtype="Int64"),
            "x": [0.5, 1.5, 2.5, 3.5],
        }
    )


def values_of(text: str, frame: pd.DataFrame) -> list[float]:
    values = Formula.parse(text, frame.columns.tolist()).value(frame)
    assert (values.shape, values.dtype) == ((len(frame),), np.dtype(np.float64))
    return values.tolist()


def holds_in(text: str, frame: pd.DataFrame) -> list[bool]:
    truths = Formula.parse(text, frame.columns.tolist()).holds(frame)
    assert (truths.shape, truths.dtype) == ((len(frame),), np.dtype(np.bool_))
    return truths.tolist()


@pytest.mark.parametrize(
    ("text", "of_numpy"),
    [
        ("a + b", lambda c: c["a"] + c["b"]),
        ("b / a**2 - 3 * (a - 1.5)", lambda c: c["b"] / c["a"] ** 2 - 3 * (c["a"] - 1.5)),
        ("-b % 2 + b // 2", lambda c: -c["b"] % 2 + c["b"] // 2),
        ("log(a) + exp(b) + sqrt(abs(b))", lambda c: np.log(c["a"]) + np.exp(c["b"]) + np.sqrt(abs(c["b"]))),
        ("arctan2(a, b)", lambda c: np.arctan2(c["a"], c["b"])),
        ("Int64 * 0.5 + arrow + int", lambda c: c["Int64"] * 0.5 + c["arrow"] + c["int"]),
        ("boolean + boolean", lambda c: 2 * c["boolean"]),
        ("a * (b > 0)", lambda c: c["a"] * (c["b"] > 0)),
        ("log(`body mass (kg)`) - `7`", lambda c: np.log(c["body mass (kg)"]) - c[7]),
        ("a * 10**2", lambda c: c["a"] * 100),
        ("(a +\n b)", lambda c: c["a"] + c["b"]),
        ("log(a) + log", lambda c: np.log(c["a"]) + c["log"]),
    ],
)
def test_values_are_those_of_numpy(text: str, of_numpy: Callable[[dict[Any, Any]], Any]) -> None:
    frame = numbers()
    columns = {k: frame[k].to_numpy(dtype=np.float64, na_value=NAN) for k in frame.columns}
    np.testing.assert_allclose(values_of(text, frame), of_numpy(columns), rtol=1e-14)


def test_sources_are_distinct_labels() -> None:
    formula = Formula.parse("`7` + a * `body mass (kg)` - a", numbers().columns.tolist())
    assert set(formula.sources) == {7, "a", "body mass (kg)"}
    assert len(formula.sources) == 3
    assert formula.sources_observed(numbers()).tolist() == [True, True, False, False]


@pytest.mark.parametrize("word", ["object", "str", "string", "arrow", "category", "ordered"])
def test_conditions_on_text(word: str) -> None:
    assert holds_in(f"{word} == 'mid'", labels()) == [False, True, False, False]
    assert holds_in(f"{word} != 'mid'", labels()) == [True, False, True, False]
    assert holds_in(f"{word} in ['low', 'none']", labels()) == [True, False, False, False]
    assert holds_in(f"{word} not in ('low', 'mid') or x == 0.5", labels()) == [True, False, True, False]


def test_ordered_levels_are_compared_in_their_order() -> None:
    assert holds_in("ordered >= 'mid'", labels()) == [False, True, True, False]
    assert holds_in("ordered < 'high' and x > 1", labels()) == [False, True, False, False]


@pytest.mark.parametrize("flag", ["flag", "boolean", "arrow_flag"])
def test_booleans_are_conditions(flag: str) -> None:
    assert holds_in(f"{flag} == True", labels()) == [True, False, True, False]
    assert holds_in(f"{flag}", labels()) == [True, False, True, False]
    assert holds_in(f"not {flag}", labels()) == [False, True, False, False]
    assert holds_in(f"{flag} and x > 1", labels()) == [False, False, True, False]


@pytest.mark.parametrize("day", ["day", "zoned", "arrow_day"])
def test_times_are_compared_with_dates_in_text(day: str) -> None:
    assert holds_in(f"{day} > '2020-06-01'", labels()) == [False, False, True, False]
    assert holds_in(f"'2020-06-01' >= {day}", labels()) == [True, True, False, False]
    assert holds_in(f"{day} == '2020-06-01'", labels()) == [False, True, False, False]
    assert holds_in(f"{day} != '2020-06-01'", labels()) == [True, False, True, False]


def test_comparisons_may_be_chained() -> None:
    assert holds_in("1 < n <= 3", labels()) == [False, True, True, False]
    assert holds_in("not (n > 1 and x < 2)", labels()) == [True, False, True, False]


@pytest.mark.parametrize("text", ["ordered >= 'mid'", "str > 'a'", "day > '2020-06-01'", "n > 1", "boolean"])
def test_a_condition_is_false_where_its_column_is_missing(text: str) -> None:
    assert holds_in(text, labels().iloc[[3]]) == [False]
    assert holds_in(text, labels().iloc[:0]) == []


def test_a_formula_of_no_rows_has_no_values() -> None:
    empty = numbers().iloc[:0]
    assert values_of("a / Int64", empty) == []
    formula = Formula.parse("a + b", ["a", "b"])
    assert formula.solve(empty, "a", np.zeros(0), (0.0, 1.0)).shape == (0,)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "a.b",
            "a.__class__",
            "().__class__",
            "__import__('os')",
            "eval('a')",
            "abs.__call__(a)",
            "max(a, b)",
        ),
        *("a[0]", "(lambda: a)()", "[x for x in a]", "(a := 1)", "@a", "a = 1", "a if b else 1", "f'{a}'"),
        *("{a}", "*a", "a; b", "a +", "", "`a", "missing + 1", "`missing` + 1", "__class__", "1 + 1", "'a'"),
        *(
            "log(a, out=b)",
            "sqrt(a, b)",
            "arctan2(a)",
            "a @ b",
            "a << 1",
            "a, b",
            "[a, b]",
            "a + 1j",
            "quoted_0_ + `a`",
        ),
    ],
)
def test_invalid_formulas_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^the formula "):
        Formula.parse(text, ["a", "b"])


@pytest.mark.parametrize("text", ["n", "n + 1", "x * 2", "str"])
def test_numbers_are_not_conditions(text: str) -> None:
    with pytest.raises(ValueError, match="must be a condition"):
        holds_in(text, labels())


@pytest.mark.parametrize("text", ["str == 'a' & x > 2", "x > 2 & str == 'a'", "str and x > 2", "not str"])
def test_conditions_without_parentheses_and_text_as_conditions_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^the formula .* joined by & or \| in parentheses"):
        holds_in(text, labels())


def test_constants_may_be_conditions() -> None:
    assert holds_in("x > 2 and True", labels()) == holds_in("x > 2", labels())


@pytest.mark.parametrize("text", ["str", "str + 1", "ordered * 2", "day", "day - day", "not x", "x > 'a'"])
def test_text_and_times_are_not_numbers(text: str) -> None:
    with pytest.raises(ValueError, match=r"^the formula "):
        values_of(text, labels())


@pytest.mark.parametrize(
    ("text", "wanted", "expected"),
    [
        ("a + b", [5, 0, -1e6], [3, -3, -1e6 - 4]),
        ("b * a - 1", [5, 2, -1], [3, 1, 0]),
        ("b / a", [4, 1, 8], [0.5, 3, 0.5]),
        ("a / b**2", [1, 2, 3], [4, 18, 48]),
        ("b / a**2", [8, 3, 1], [0.5, 1, 2]),
        ("log(a) + b", [2, 3, 4], [1, 1, 1]),
        ("log10(a)", [-3, 5, 30], [1e-3, 1e5, 1e30]),
        ("a**3", [0, 8, -8], [0, 2, -2]),
        ("a**2", [4, 9, 16], [2, 3, 4]),  # of two solutions, the one near the start of the search
        ("a**2", [4, -9, NAN], [2, NAN, NAN]),
        ("exp(a) * b", [2, -1, 4], [0, NAN, 0]),
        ("a * 0 + b", [1, 2, 3], [NAN, NAN, NAN]),
        ("a + b + 0.1", [0, 0, 0], [-2.1, -3.1, -4.1]),
        ("a + b", [1e-9, 1e-12, 0.1 + 0.2 - 0.3], [1e-9 - 2, 1e-12 - 3, -4]),
    ],
)
def test_a_formula_is_solved_for_a_column(text: str, wanted: list[float], expected: list[float]) -> None:
    frame = pd.DataFrame({"a": [NAN] * 3, "b": [2.0, 3.0, 4.0]})
    solution = Formula.parse(text, ["a", "b"]).solve(frame, "a", np.array(wanted, float), (1.0, 2.0))
    np.testing.assert_allclose(solution, np.array(expected, float), rtol=1e-9, atol=1e-12)
    frame["a"] = solution
    found = ~np.isnan(solution)
    np.testing.assert_allclose(
        np.array(values_of(text, frame))[found], np.array(wanted, float)[found], rtol=1e-9, atol=1e-12
    )
