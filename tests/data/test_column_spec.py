"""What a user says of a column: what is refused, and what is written down."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest

from pyro_mgp.data.column_spec import ColumnSpec, Kind

SPECS: list[dict[str, Any]] = [
    {},
    {"kind": "count"},
    {"kind": Kind.HEAVY_TAILED, "predicts": False},
    {"lower": 0, "upper": 1.5},
    {"lower": 0.0},
    {"upper": -1},
    {"derived": "weight / height**2"},
    {"only_if": "sex == 'female'"},
    {"only_if": "sex == 'female'", "otherwise": 0},
    {"only_if": "age < 16", "otherwise": "a child"},
    {"only_if": "age < 16", "otherwise": False},
    {"predictors": ["age", 7]},
    {"predictors": [], "impute": False},
    {"standard_error": "weight_se"},
    {"standard_error": 0},
]


@pytest.mark.parametrize("arguments", SPECS)
def test_a_spec_survives_being_written_down(arguments: dict[str, Any]) -> None:
    spec = ColumnSpec(**arguments)
    assert ColumnSpec(**spec.to_dict()) == spec
    assert ColumnSpec(**json.loads(json.dumps(spec.to_dict()))) == spec


@pytest.mark.parametrize("arguments", SPECS)
def test_what_is_written_down_is_what_was_said(arguments: dict[str, Any]) -> None:
    assert ColumnSpec(**arguments).to_dict() == arguments


def test_the_defaults_need_not_be_said() -> None:
    assert ColumnSpec(kind=None, lower=None, predicts=True, impute=True).to_dict() == {}


@pytest.mark.parametrize("number", [np.float64(0.5), np.float32(0.5), np.int64(3)])
def test_numbers_of_numpy_can_be_written_down(number: Any) -> None:
    spec = ColumnSpec(lower=number)
    assert json.loads(json.dumps(spec.to_dict())) == {"lower": number.item()}


@pytest.mark.parametrize("kind", Kind)
def test_a_kind_may_be_text(kind: Kind) -> None:
    spec = ColumnSpec(kind=str(kind))
    assert spec.kind is kind
    assert spec == ColumnSpec(kind=kind)


def test_specs_are_equal_by_what_they_say_and_stay_as_they_are() -> None:
    spec = ColumnSpec(lower=0, predictors=["a", "b"])
    assert spec == ColumnSpec(lower=0.0, predictors=("a", "b"))
    assert hash(spec) == hash(ColumnSpec(lower=0, predictors=("a", "b")))
    assert spec != ColumnSpec(lower=0, predictors=["b", "a"])
    assert spec != ColumnSpec(lower=0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.lower = 1.0  # type: ignore[misc]


def test_predictors_are_those_of_the_moment_they_were_said() -> None:
    labels = ["a", "b"]
    spec = ColumnSpec(predictors=labels)
    labels.append("c")
    assert spec.predictors == ("a", "b")
    assert ColumnSpec(predictors=(label for label in "ab")).predictors == ("a", "b")  # type: ignore[arg-type]


ERRORS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"kind": "poisson"}, ValueError, r"kind must be one of \['continuous', .*'group'\], got 'poisson'"),
    ({"kind": 3}, ValueError, "kind must be one of .*, got 3"),
    ({"lower": "0"}, TypeError, "lower must be a number or None, got '0'"),
    ({"upper": True}, TypeError, "upper must be a number or None, got True"),
    ({"upper": [1]}, TypeError, r"upper must be a number or None, got \[1\]"),
    ({"lower": -math.inf}, ValueError, "lower must be finite, or None for no bound, got -inf"),
    ({"upper": math.nan}, ValueError, "upper must be finite, or None for no bound, got nan"),
    ({"lower": 2, "upper": 1}, ValueError, "lower must be less than upper, got 2.0 and 1.0"),
    ({"lower": 1, "upper": 1}, ValueError, "lower must be less than upper, got 1.0 and 1.0"),
    ({"predictors": "age"}, TypeError, "predictors must be a list of column labels, got the text 'age'"),
    ({"predictors": 3}, TypeError, "predictors must be a list of column labels, got 3"),
    ({"derived": 3}, TypeError, "derived must be the text of a formula, got 3"),
    ({"only_if": True}, TypeError, "only_if must be the text of a formula, got True"),
    ({"lower_limit": ["a"]}, TypeError, r"lower_limit must be the label of a column, got \['a'\]"),
    ({"impute": "no"}, TypeError, "impute must be True or False, got 'no'"),
    ({"otherwise": 0}, ValueError, "otherwise is the value of cells where a column does not apply"),
    ({"derived": "a + b", "lower": 0}, ValueError, r"a derived column .*: leave out \['lower'\]"),
    (
        {"derived": "a + b", "kind": "count", "impute": False},
        ValueError,
        r"leave out \['kind', 'impute'\]",
    ),
]


@pytest.mark.parametrize(("arguments", "error", "match"), ERRORS, ids=[match[:40] for *_, match in ERRORS])
def test_errors_say_what_is_wrong(arguments: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        ColumnSpec(**arguments)


def test_no_kind_is_named_that_cannot_be_asked_for() -> None:
    with pytest.raises(ValueError, match="kind must be one of") as caught:
        ColumnSpec(kind="constants")
    assert "'constant'" not in str(caught.value)
