"""Rules of whole tables in every draw: derived columns, skip patterns, predictors and standard errors."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyro_mgp import ColumnSpec, Imputations, MGPImputer
from pyro_mgp.data.column_spec import Specs
from pyro_mgp.data.limits import Limits
from pyro_mgp.data.rules import Rules
from pyro_mgp.data.table import TableWarning, missing

NAN = np.nan
TOTAL = {"total": ColumnSpec(derived="a + b")}


def small(specs: Any, **changes: Any) -> MGPImputer:
    quick = {"max_steps": 3, "n_sweeps": 2, "n_neighbors": 0, "progress": False, "random_state": 0}
    return MGPImputer(specs=specs, **{**quick, **changes})


def sums(n_rows: int = 40) -> pd.DataFrame:
    """Return a + b = total beside c, each missing in some rows, a and b together only where total is, too."""
    rng = np.random.default_rng(0)
    a = rng.normal(10, 2, n_rows).round(3)
    frame = pd.DataFrame({"a": a, "b": a + rng.normal(size=n_rows), "c": rng.normal(size=n_rows)})
    frame["total"] = frame["a"] + frame["b"]
    frame.index = pd.Index([f"row {i}" for i in range(n_rows)])
    for label, start, stop in [("a", 0, 9), ("b", 5, 14), ("total", 3, 9), ("total", 20, 23), ("c", 15, 18)]:
        frame.iloc[start:stop, frame.columns.get_loc(label)] = NAN
    return frame


def asked(answers: list[Any], dtype: Any) -> pd.DataFrame:
    """Return a table whose x applies to women only; sex is missing in some rows, and so are some answers."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"sex": ["f", "m"] * 20, "age": rng.normal(40, 9, 40)})
    x = pd.Series([answers[i % len(answers)] if i % 2 == 0 else None for i in range(40)], dtype=object)
    x[::6] = None
    frame["x"] = x.astype(dtype).mask(x.isna()) if dtype == "str" else x.astype(dtype)  # pandas 2: "None"
    frame.loc[::7, "sex"] = None
    frame.loc[4::9, "age"] = NAN
    return frame


def assert_kept(draws: Imputations, frame: pd.DataFrame) -> None:
    """Assert that every table has the labels, index, dtypes, categories and observed cells of `frame`."""
    for table in draws:
        assert table.index.identical(frame.index)
        assert table.dtypes.tolist() == frame.dtypes.tolist()
        pd.testing.assert_frame_equal(
            table.mask(missing(frame)), frame.mask(missing(frame)), check_exact=True
        )


def assert_sums(draws: Imputations, parts: list[str], total: str = "total") -> None:
    for table in draws:
        cells = table[[*dict.fromkeys(parts), total]].astype(float)
        np.testing.assert_allclose(cells[parts].sum(axis=1), cells[total], rtol=1e-9)


# ----------------------------------------------------------------------------------- parse, check and deduce


@pytest.mark.parametrize(
    ("specs", "error"),
    [
        ({"nope": ColumnSpec()}, ValueError),
        ({"a": {"lower": 0}}, TypeError),
        ({"total": ColumnSpec(derived="a + nope")}, ValueError),
        ({"total": ColumnSpec(derived="a + total")}, ValueError),
        ({"a": ColumnSpec(derived="total - b"), "total": ColumnSpec(derived="a + b")}, ValueError),
        ({"a": ColumnSpec(only_if="nope > 1")}, ValueError),
        ({"a": ColumnSpec(predictors=["nope"])}, ValueError),
        ({"a": ColumnSpec(predictors=["total"]), **TOTAL}, ValueError),
        ({"a": ColumnSpec(predictors=["c"]), "b": ColumnSpec(standard_error="c")}, ValueError),
        ({"a": ColumnSpec(standard_error="a")}, ValueError),
        ({"a": ColumnSpec(standard_error="nope")}, ValueError),
        ({"a": ColumnSpec(lower_limit="a")}, ValueError),
        ({"a": ColumnSpec(upper_limit="nope")}, ValueError),
        ({"a": ColumnSpec(predictors=["c"]), "b": ColumnSpec(upper_limit="c")}, ValueError),
    ],
)
def test_contradictory_specs_are_refused(specs: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"spec|column"):
        Rules.parse(specs, ["a", "b", "c", "total"])


def test_misspelt_columns_are_told_with_those_of_the_table() -> None:
    columns = ["a", "b", "c"]
    known = r"names column 'A', but the table has \['a', 'b', 'c'\]"
    with pytest.raises(ValueError, match=f"the spec of column 'a' {known}"):
        Rules.parse({"a": ColumnSpec(predictors=["A"])}, columns)
    with pytest.raises(ValueError, match=f"weights {known}"):
        Rules.parse({}, columns, weights="A")
    with pytest.raises(ValueError, match=f"survival {known}"):
        Rules.parse({}, columns, survival=("a", "A"))


def test_deduce_follows_chains_of_formulas() -> None:
    specs = {"twice": ColumnSpec(derived="2 * total + c"), **TOTAL}
    nothing = [NAN] * 5
    frame = pd.DataFrame({"a": nothing, "b": nothing, "c": nothing, "total": nothing, "twice": nothing})
    frame[:] = [
        [1.0, 2.0, 0.5, NAN, NAN],
        [NAN, 2.0, 0.5, NAN, 6.5],  # by total
        [1.0, 2.0, NAN, NAN, 6.5],  # by total
        [NAN, NAN, 0.5, NAN, 6.5],  # total only
        [NAN, 2.0, NAN, NAN, 6.5],  # nothing
    ]
    given, known = frame.copy(), [1.0, 2.0, 0.5, 3.0, 6.5]
    expected = pd.DataFrame(
        [known] * 3 + [[NAN, NAN, *known[2:]], frame.loc[4].tolist()], columns=frame.columns
    )
    pd.testing.assert_frame_equal(Rules.parse(specs, frame.columns).deduce(frame), expected, rtol=1e-9)
    pd.testing.assert_frame_equal(frame, given)
    one = Rules.parse(TOTAL, ["a", "b", "total"]).deduce(pd.DataFrame({"a": [NAN], "b": 2.0, "total": 3.0}))
    assert one["a"].tolist() == pytest.approx([1.0])


@pytest.mark.parametrize("dtype", ["Int64", "Int8", "float32", "int64[pyarrow]", "Float64"])
def test_deduced_cells_have_the_dtype_of_their_column(dtype: str) -> None:
    frame = pd.DataFrame({"a": [1, None, 3], "b": [2, 5, 1], "total": [None, 7, 4]}).astype(dtype)
    deduced = Rules.parse(TOTAL, ["a", "b", "total"]).deduce(frame)
    assert deduced.astype(int).to_numpy().tolist() == [[1, 2, 3], [2, 5, 7], [3, 1, 4]]
    assert set(deduced.dtypes.astype(str)) == {dtype}


def test_booleans_are_0_and_1_in_formulas_and_may_be_derived() -> None:
    flag = pd.array([True, None, None], dtype="boolean")
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "flag": flag, "t": [NAN, 2.0, 4.0], "old": flag})
    specs = {"t": ColumnSpec(derived="a + flag"), "old": ColumnSpec(derived="a <= 2")}
    deduced = Rules.parse(specs, ["a", "flag", "t", "old"]).deduce(frame)
    assert (deduced["t"].tolist(), deduced["flag"].tolist()) == ([2.0, 2.0, 4.0], [True, False, True])
    assert deduced["old"].tolist() == [True, True, False]


def test_check_accepts_rounded_cells_and_names_wrong_ones() -> None:
    frame = pd.DataFrame(
        {"h": [1.7, 1.83, 1.62], "w": [65.0, 92.5, 51.0], "bmi": [22.5, 27.6, 19.4]}, list("xyz")
    )
    rules = Rules.parse({"bmi": ColumnSpec(derived="w / h**2")}, frame.columns)
    rules.check(frame)
    with pytest.raises(ValueError, match=r"'bmi'.*row 'y' \(position 1\) holds 31"):
        rules.check(frame.assign(bmi=[22.5, 31.0, 19.4]))
    with pytest.raises(ValueError, match=r"'h' applies only if.*row 'z' \(position 2\) holds 1.62"):
        Rules.parse({"h": ColumnSpec(only_if="w > 60")}, frame.columns).check(frame)


def test_modelled_keeps_variables_where_they_apply_and_fills_deduced_cells() -> None:
    frame = pd.DataFrame(
        {"a": [1.0, 2.0, NAN], "b": [4.0, 0.0, 5.0], "total": [5.0, 2.0, 8.0], "se": [0.1] * 3}
    )
    b = ColumnSpec(only_if="total > 4", otherwise=0, standard_error="se")
    rules = Rules.parse({"b": b, **TOTAL}, frame.columns)
    expected = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [4.0, NAN, 5.0]})
    pd.testing.assert_frame_equal(rules.modelled(frame), expected)


# ---------------------------------------------------------------------------------------------- whole tables


@pytest.mark.filterwarnings("ignore:.*equal the bound")
@pytest.mark.parametrize("dtype", ["float64", "Int64", "int64[pyarrow]"])
def test_sums_hold_unless_several_sources_are_missing(dtype: str) -> None:
    rng = np.random.default_rng(2)
    parts = ["a", "b", "c"]
    frame = pd.DataFrame(rng.integers(0, 11, (40, 3)), columns=parts)
    frame["total"], frame["other"] = frame.sum(axis=1), rng.normal(size=40).round(1)
    frame = frame.astype(dict.fromkeys([*parts, "total"], dtype))
    frame.loc[:7, parts] = frame.loc[5:14, ["b", "total"]] = frame.loc[20:25, ["a", "b"]] = None
    frame.loc[26:28, "c"] = None
    frame.loc[:1, "total"] = [1, 29]
    specs = {"total": ColumnSpec(derived="a + b + c"), **dict.fromkeys(parts, ColumnSpec(lower=0, upper=10))}
    imputer = small(specs).fit(frame)
    with pytest.warns(TableWarning, match=r"'total' is derived as .*In 11 rows .*several of its sources are"):
        draws = imputer.impute(m=5)
    assert_kept(draws, frame)
    several = (frame[parts].isna().sum(axis=1) > 1) & frame["total"].notna()
    for table in draws:
        cells = table[~several].astype(float)
        np.testing.assert_allclose(cells[parts].sum(axis=1), cells["total"], rtol=1e-9)
        assert table[parts].astype(float).stack().between(0, 10).all()


def test_a_formula_without_a_solution_is_warned_of() -> None:
    frame = pd.DataFrame({"n": pd.array([1, 2, 3, 4] * 5, dtype="Int64"), "x": np.arange(20.0) % 7})
    frame["half"] = frame["n"] / 2
    frame.loc[0, ["n", "half"]] = [None, 0.75]
    imputer = small({"half": ColumnSpec(derived="n / 2")}).fit(frame)
    with pytest.warns(TableWarning, match=r"In 1 row .*no solution for the missing one"):
        assert imputer.impute(m=2)[0]["half"].tolist() == frame["half"].tolist()


def test_chains_of_formulas_hold_in_every_draw() -> None:
    frame = sums().assign(twice=lambda f: 2 * f["total"])
    frame.iloc[[2, 5, 9, 30], 4] = NAN
    frame.iloc[[5, 6, 12], 3] = NAN
    frame.iloc[6:8, :2] = NAN
    draws = small({"twice": ColumnSpec(derived="2 * total"), **TOTAL}).fit(frame).impute(m=3)
    assert_sums(draws, ["a", "b"])
    assert_sums(draws, ["total", "total"], "twice")
    assert_kept(draws, frame)


def test_a_formula_without_a_value_leaves_its_cell_missing() -> None:
    frame = sums().assign(n=pd.array([0, 1, 2, None] * 10, dtype="Int64"), ratio=NAN)
    for table in small({"ratio": ColumnSpec(derived="c / n")}).fit(frame).impute(m=2):
        assert (table["ratio"].isna() == (table["n"] == 0)).all()


DAYS = pd.date_range("2020-01-01", periods=5).tolist()
ANSWERS: dict[str, tuple[list[Any], Any, Any]] = {
    "float": ([1.5, 2.5, 3.5, 1.0], "float64", 0),
    "Int64": ([1, 2, 5, 7], "Int64", 0),
    "boolean": ([True, True, False], "boolean", False),
    "object": ([True, True, False], object, False),
    "category": (["u", "v", "w"], pd.CategoricalDtype(["w", "v", "u", "none"]), "none"),
    "string": (["u", "v", "w"], "string", "none"),
    "str": (["u", "v", "w"], "str", "none"),
    "datetime": (DAYS, "datetime64[us]", "1970-01-01"),
}


@pytest.mark.parametrize("kind", ANSWERS)
@pytest.mark.parametrize("given_otherwise", [False, True])
def test_a_column_is_imputed_only_where_it_applies(kind: str, given_otherwise: bool) -> None:
    answers, dtype, otherwise = ANSWERS[kind]
    frame = asked(answers, dtype)
    if given_otherwise:
        frame.loc[1:5:2, "x"] = pd.Series([otherwise] * 3, [1, 3, 5]).astype(frame["x"].dtype)
    spec = ColumnSpec(only_if="sex == 'f'", otherwise=otherwise if given_otherwise else None)
    draws = small({"x": spec}).fit(frame).impute(m=4)
    assert_kept(draws, frame)
    for table in draws:
        came, outside = frame["x"].isna(), table["sex"] == "m"
        assert table["x"][~outside].notna().all()
        assert table["x"][~outside & came].isin(answers).all() or kind in ("float", "Int64", "datetime")
        elsewhere = table["x"][outside & came]
        assert (elsewhere.astype(str) == otherwise).all() if kind == "datetime" and given_otherwise else True
        assert elsewhere.notna().all() if given_otherwise else elsewhere.isna().all()
    assert any((table["sex"] == "m")[frame["sex"].isna()].any() for table in draws)


@pytest.mark.parametrize("otherwise", ["none", True])
def test_otherwise_must_fit_the_dtype_of_its_column(otherwise: Any) -> None:
    for answers, dtype in [([1.5, 2.5, 3.0], "float64"), ([1, 2, 3], "Int64"), (["u", "v", "w"], "category")]:
        with pytest.raises(ValueError, match=r"'x'.*otherwise"):
            small({"x": ColumnSpec(only_if="sex == 'f'", otherwise=otherwise)}).fit(asked(answers, dtype))


@pytest.mark.parametrize("order", [["children", "youngest"], ["youngest", "children"]])
@pytest.mark.parametrize("otherwise", [None, 0])
def test_nested_conditions(order: list[str], otherwise: int | None) -> None:
    frame = asked([0, 1, 2], "Int64").rename(columns={"x": "children"})
    has = frame["children"].fillna(0) > 0
    frame["youngest"] = np.where(has, frame["age"] / 4, NAN)
    asked_if = {
        "children": ColumnSpec(only_if="sex == 'f'", otherwise=otherwise),
        "youngest": ColumnSpec(only_if="children > 0"),
    }
    draws = small({label: asked_if[label] for label in order}).fit(frame).impute(m=3)
    for table in draws:
        assert (table["youngest"].notna() == (table["children"].fillna(0) > 0)).all()


def test_conditions_on_derived_columns_and_sums_of_columns_that_do_not_apply() -> None:
    frame = sums().assign(x=lambda f: np.where(f["total"] > 20, f["c"], NAN))
    draws = small({"x": ColumnSpec(only_if="total > 20"), **TOTAL}).fit(frame).impute(m=3)
    for table in draws:
        assert (table["x"].notna() == (table["total"] > 20)).all()
    frame = asked([3.0, 4.5, 5.0], "float64").rename(columns={"x": "b"}).assign(a=np.arange(40.0))
    frame.loc[(frame.index % 2 == 1) & (frame.index % 5 > 0), "b"] = 0.0
    frame["total"] = frame["a"] + np.where(frame.index % 2, 0.0, frame["b"])
    frame.loc[[1, 2, 11, 12, 15, 22, 33], "a"] = frame.loc[[3, 12, 15, 22], "total"] = frame.loc[
        11:15, "b"
    ] = NAN
    specs = {"b": ColumnSpec(only_if="sex == 'f'", otherwise=0), **TOTAL}
    draws = small(specs).fit(frame).impute(m=5)
    assert_sums(draws, ["a", "b"])
    assert_kept(draws, frame)


def test_columns_with_impute_false_stay_missing_and_change_nothing_else() -> None:
    usual = small(TOTAL).fit(sums()).impute(m=2)
    left = small({"c": ColumnSpec(impute=False), **TOTAL}).fit(sums()).impute(m=2)
    assert "c" not in left.values
    for ours, theirs in zip(left, usual, strict=True):
        pd.testing.assert_frame_equal(ours, theirs.assign(c=sums()["c"]), check_exact=True)


def test_links_have_the_predictors_of_the_specs() -> None:
    frame = asked([1.5, 2.5, 3.0], "float64").assign(code=["u", "v", "w", None] * 10)
    specs = {"x": ColumnSpec(predictors=["code", "age"]), "age": ColumnSpec(predicts=False)}
    imputer = small(specs, inputs="others").fit(frame)
    names = imputer.codec_.names
    seen = {link.name: {names[i] for i in link.inputs} for link in imputer.model_.link_specs}
    codes = {name for name in names if name.startswith("code=")}
    sexes = {name for name in names if name.startswith("sex=")}
    assert seen["x"] == codes
    assert seen["age"] == {"x", *codes, *sexes}
    assert seen[next(name for name in imputer.order_ if name in codes)] == {"x", *sexes}


@pytest.mark.parametrize("wrong", [NAN, -0.1, np.inf])
def test_each_observed_cell_needs_a_standard_error(wrong: float) -> None:
    frame = sums().assign(se=0.1)
    frame.iloc[16, 4] = wrong
    draws = small({"c": ColumnSpec(standard_error="se")}).fit(frame).impute(m=1)
    pd.testing.assert_series_equal(draws[0]["se"], frame["se"])
    frame.iloc[[16, 25], 4] = [0.1, wrong]
    with pytest.raises(ValueError, match=r"'se'.*'c'.*row 'row 25' \(position 25\)"):
        small({"c": ColumnSpec(standard_error="se")}).fit(frame)


def test_standard_errors_are_numbers() -> None:
    with pytest.raises(
        TypeError, match=r"'se' holds the standard errors of 'c': expected numbers, got dtype"
    ):
        small({"c": ColumnSpec(standard_error="se")}).fit(sums().assign(se="small"))


def test_cells_with_huge_errors_are_nearly_ignored() -> None:
    x = np.linspace(-2, 2, 60)
    frame = pd.DataFrame({"x": x, "y": 3 * x, "se": 1e-3})
    frame.loc[::3, ["y", "se"]] = [500.0, 1e6]
    frame.loc[1::3, "y"] = NAN
    draws = small({"y": ColumnSpec(standard_error="se")}, max_steps=20, warp=False).fit(frame).impute(m=20)
    drawn = draws.values["y"].mean(axis=0)
    assert np.abs(drawn - 3 * x[1::3]).mean() < 0.1 * np.abs(500 - 3 * x[1::3]).mean()


# --------------------------------------------------------------------------------- text and identifiers


def with_text(n: int = 60) -> pd.DataFrame:
    g = np.random.default_rng(0)
    frame = pd.DataFrame({"id": [f"p{i}" for i in range(n)], "a": g.normal(size=n)})
    frame["note"] = [f"text {i}" if i % 3 else None for i in range(n)]
    frame["level"] = g.choice(list("xyz"), n)
    return frame.assign(b=np.where(np.arange(n) % 5, frame["a"] + g.normal(size=n), NAN))


def test_text_and_identifiers_are_left_alone_with_a_sentence(tmp_path: Path) -> None:
    frame = with_text()
    with pytest.warns(TableWarning) as caught:
        imputer = small({}).fit(frame)
    assert [str(each.message)[:30] for each in caught] == [
        "Column 'id' holds 60 different", "Column 'note' holds 40 differe"
    ]  # fmt: skip
    draws = imputer.impute(m=2)
    pd.testing.assert_frame_equal(draws[0][["id", "note", "level"]], frame[["id", "note", "level"]])
    assert draws[0]["b"].notna().all()
    without = small({}).fit(frame.drop(columns=["id", "note"])).impute(m=2)
    pd.testing.assert_series_equal(draws[0]["b"], without[0]["b"])
    with pytest.warns(TableWarning, match="'note'"):  # a spec that says that it is of no use spares the other
        told = small({"id": ColumnSpec(predicts=False)}).fit(frame)
    assert_equal(told.impute(m=2), draws)
    imputer.save(tmp_path / "imputer")
    new = frame.head(9).assign(id=np.arange(9))
    assert_equal(MGPImputer.load(tmp_path / "imputer").impute(new, m=2), imputer.impute(new, m=2))


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([f"p{i}" for i in range(101)] * 4, True),
        ([f"p{i}" for i in range(100)] * 4, False),
        ([f"p{i}" for i in range(21)], True),
        ([f"p{i}" for i in range(20)], False),
        ([f"p{i}" for i in range(30)] * 2, False),
        ([*range(300)], False),
        (pd.Categorical([f"p{i}" for i in range(60)]), False),
    ],
)
def test_what_is_taken_for_text(cells: Any, expected: bool) -> None:
    frame = pd.DataFrame({"x": cells})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TableWarning)
        assert Rules.parse({}, ["x"]).learn(frame).texts == ({"x"} if expected else set())


@pytest.mark.parametrize(
    ("cell", "advice"),
    [("p{}", "are levels, group"), ("{}.5", r"are numbers, convert it by pandas.to_numeric\(frame\['id'\]\)"),
     ("<{}.5", r"split them: frame, specs = split_limits\(frame\)")],
)  # fmt: skip
def test_advice_on_text_suits_its_cells(cell: str, advice: str) -> None:
    frame = with_text().assign(id=[cell.format(i) for i in range(60)], note="x")
    with pytest.warns(TableWarning, match=f"'id' holds 60 different.*{advice}"):
        small({}).fit(frame)


def test_text_that_a_spec_names_is_a_category() -> None:
    frame = with_text()
    for specs in ({"id": ColumnSpec(kind="categorical")}, {"b": ColumnSpec(predictors=["id"])}):
        with pytest.warns(TableWarning, match="'note'"):
            assert Rules.parse(specs, frame.columns.tolist()).learn(frame).texts == {"note"}


# ---------------------------------------------------------------------------------------------- limits


def limited(**columns: Any) -> dict[Any, Limits]:
    frame = pd.DataFrame({"x": [1.0, NAN, NAN, 4.0], **columns})
    arguments = {"low": "lower_limit", "high": "upper_limit"}
    spec = ColumnSpec(**{arguments[name]: name for name in columns})  # type: ignore[arg-type]
    return Rules.parse({"x": spec}, frame.columns.tolist()).limits(frame)


def test_limits_are_those_of_missing_cells() -> None:
    found = limited(low=[0.0, 2.0, NAN, NAN], high=[NAN, 5.0, 3.0, 4.0])["x"]
    assert found.lower.tolist() == [-np.inf, 2.0, -np.inf, -np.inf]
    assert found.upper.tolist() == [np.inf, 5.0, 3.0, np.inf]


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"low": [NAN, 3.0, NAN, NAN], "high": [NAN, 2.0, NAN, NAN]}, r"row 1 .*lower limit 3 in 'low'"),
        ({"high": [0.5, 0.5, NAN, NAN]}, r"row 0 .*holds 1, but 'high' says that it is at most 0.5"),
        ({"low": [NAN, NAN, NAN, 5.0]}, r"row 3 .*holds 4, but 'low' says that it is at least 5"),
    ],
)
def test_limits_that_contradict_cells_are_an_error(columns: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"'x': {sentence}"):
        limited(**columns)


def test_limits_must_fit_the_bounds_and_the_deduced_cells_of_a_column() -> None:
    frame = pd.DataFrame({"x": [1.0, NAN, 3.0], "z": [1.0, 2.0, 3.0], "high": [NAN, -1.0, NAN]})
    bounded = {"x": ColumnSpec(upper_limit="high", lower=0)}
    with pytest.raises(ValueError, match=r"row 1 .*limits -inf and -1, but its spec has the bounds lower=0"):
        Rules.parse(bounded, frame.columns.tolist()).limits(frame)
    derived = {"x": ColumnSpec(upper_limit="high"), "sum": ColumnSpec(derived="x + z")}
    frame["sum"] = [2.0, 9.0, 6.0]
    with pytest.raises(ValueError, match=r"row 1 .*holds 7, but 'high' says that it is at most -1"):
        Rules.parse(derived, frame.columns.tolist()).limits(frame)


@pytest.mark.parametrize("wrong", [["a", "b", None], [True, False, None], pd.to_datetime(["2024-01-01"] * 3)])
def test_limits_are_numbers(wrong: Any) -> None:
    frame = pd.DataFrame({"x": [1.0, NAN, 3.0], "high": wrong})
    with pytest.raises(TypeError, match="'high' holds limits of 'x': expected numbers"):
        Rules.parse({"x": ColumnSpec(upper_limit="high")}, ["x", "high"]).limits(frame)


def test_limits_of_detection_given_as_lower_limits_are_warned_of() -> None:
    with pytest.warns(TableWarning, match="name it as upper_limit"):
        limited(low=[NAN, 0.5, 0.5, NAN])
    with pytest.warns(TableWarning, match="name it as lower_limit"):
        limited(high=[NAN, 9.0, 9.0, NAN])


# --------------------------------------------------------------------------- saved, new rows, streamed


def everything() -> tuple[pd.DataFrame, Specs]:
    frame = asked([2, 3, 5], "Int64").join(sums().reset_index(drop=True)).assign(se=0.1)
    frame.loc[1, "age"] = NAN  # row 1: a follows from b and total, and predicts age
    frame["age"] += 5 * frame["a"].fillna(frame["total"] - frame["b"]).fillna(10)
    asked_if = ColumnSpec(only_if="sex == 'f'")
    return frame, {
        "x": asked_if,
        "c": ColumnSpec(impute=False),
        "age": ColumnSpec(standard_error="se"),
        **TOTAL,
    }


def assert_equal(left: Imputations, right: Imputations) -> None:
    for ours, theirs in zip(left, right, strict=True):
        pd.testing.assert_frame_equal(ours, theirs, rtol=1e-6)


def test_saved_imputers_and_draws_are_loaded_equal(tmp_path: Path) -> None:
    frame, specs = everything()
    imputer = small(specs).fit(frame)
    draws = imputer.impute(frame, m=3)
    imputer.save(tmp_path / "imputer")
    draws.save(tmp_path / "draws")
    assert_equal(MGPImputer.load(tmp_path / "imputer").impute(frame, m=3), draws)
    assert_equal(Imputations.load(tmp_path / "draws"), draws)
    paths = imputer.impute_to_parquet(tmp_path / "tables", frame, m=3, batch_size=7)
    for path, table in zip(paths, draws, strict=True):
        pd.testing.assert_frame_equal(pd.read_parquet(path), table, rtol=1e-6)


def test_a_row_is_imputed_alone_as_among_others() -> None:
    frame, specs = everything()
    imputer = small(specs, columns="all").fit(frame)
    together = imputer.impute(frame, m=2)
    assert_kept(together, frame)
    for i in [0, 1, 4, 6, 9, 21]:
        alone = imputer.impute(frame.iloc[[i]], m=2)
        for one, all_rows in zip(alone, together, strict=True):
            pd.testing.assert_frame_equal(one, all_rows.iloc[[i]], rtol=1e-4)
    full = together[0].dropna().iloc[[0]]
    pd.testing.assert_frame_equal(imputer.impute(full, m=1)[0], full)


def test_indicators_are_of_the_columns_of_the_user() -> None:
    frame, specs = everything()
    imputer = small(specs, add_indicator=True)
    completed = imputer.fit_transform(frame)
    incomplete = frame.columns[missing(frame).any(axis=0)].tolist()
    indicators = [f"missingindicator_{label}" for label in incomplete]
    assert completed.columns.tolist() == [*frame.columns, *indicators]
    assert completed.columns.tolist() == imputer.get_feature_names_out().tolist()
    np.testing.assert_array_equal(completed[indicators], frame[incomplete].isna())
    np.testing.assert_allclose(completed["a"] + completed["b"], completed["total"], rtol=1e-9)


@given(data=st.data())
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_sums_hold_for_any_pattern_of_missing_cells(data: st.DataObject) -> None:
    n_rows = data.draw(st.integers(6, 15))
    number = st.integers(-500, 500).map(lambda n: n / 10)
    cells = data.draw(st.lists(st.tuples(number, number, number), min_size=n_rows, max_size=n_rows))
    frame = pd.DataFrame(cells, columns=["a", "b", "c"]).assign(total=lambda f: f["a"] + f["b"])
    frame.loc[:2, ["a", "b", "c"]] = [[1.0, 2.0, 3.0], [2.0, 5.0, 1.0], [4.0, 3.0, -2.0]]
    frame.loc[:2, "total"] = [3.0, 7.0, 7.0]
    holes = data.draw(st.lists(st.tuples(*[st.booleans()] * 4), min_size=n_rows - 3, max_size=n_rows - 3))
    frame = frame.mask(np.vstack([np.zeros((3, 4), bool), np.array(holes)]))
    several = frame[["a", "b"]].isna().all(axis=1) & frame["total"].notna()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # of rows without any cell, of small tables, of several missing sources
        draws = small(TOTAL, max_steps=1).fit(frame).impute(m=2)
    assert_kept(draws, frame)
    for table in draws:
        assert not missing(table).any()
        size = table[["a", "b", "total"]].abs().max(axis=1)
        assert ((table["a"] + table["b"] - table["total"]).abs() <= 1e-9 * size)[~several].all()


def test_check_is_exact_for_sums_of_integers() -> None:
    frame = pd.DataFrame({"a": [1, 2, 10], "b": [2, 2, 10], "s": [4, 4, 20]})
    with pytest.raises(
        ValueError, match=r"'s' is derived as 'a \+ b': row 0 \(position 0\) holds 4; expected 3"
    ):
        Rules.parse({"s": ColumnSpec(derived="a + b")}, list(frame)).check(frame)


def test_an_observed_cell_implies_its_condition() -> None:
    frame = pd.DataFrame(
        {"sex": ["f", None, None, "m"], "age": [30, 40, 50, 60], "births": [1.0, 2.0, None, None]}
    )
    rules = Rules.parse({"births": ColumnSpec(only_if="sex == 'f' and age > 12")}, list(frame))
    assert rules.deduce(frame)["sex"].tolist()[:2] == ["f", "f"]
    assert rules.deduce(frame)["sex"].isna().tolist() == [False, False, True, False]


@pytest.mark.parametrize("dtype", ["boolean", "bool[pyarrow]", "object", "Int64", "float64"])
@pytest.mark.parametrize("condition", ["smokes == 1", "smokes == True"])
def test_an_observed_cell_implies_its_condition_on_booleans_and_flags(dtype: str, condition: str) -> None:
    smokes = pd.Series([True, None, False]).astype(dtype)
    frame = pd.DataFrame({"smokes": smokes, "packs": [2.0, 1.0, None]})
    found = Rules.parse({"packs": ColumnSpec(only_if=condition)}, list(frame)).deduce(frame)["smokes"]
    assert found.dtype == smokes.dtype and found.tolist() == [True, True, False]


def test_a_condition_that_a_column_cannot_meet_names_it() -> None:
    frame = pd.DataFrame({"sex": pd.Categorical(["m", None]), "births": [None, 1.0]})
    rules = Rules.parse({"births": ColumnSpec(only_if="sex == 'f'")}, list(frame))
    with pytest.raises(ValueError, match="Column 'sex': dtype category cannot hold 'f'"):
        rules.deduce(frame)


def test_infinite_derived_cells_are_checked() -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [1.0, 0.0, 0.0], "ratio": [1.0, np.inf, np.inf]})
    rules = Rules.parse({"ratio": ColumnSpec(derived="a / b")}, list(frame))
    rules.check(frame)
    with pytest.raises(ValueError, match=r"row 0.* holds inf; expected 1"):
        rules.check(frame.assign(ratio=np.inf))
