"""Shifted draws for cells missing not at random."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pyro_mgp import ColumnSpec, Imputations, MGPImputer, tipping_point
from pyro_mgp.analysis.sensitivity import shifts


def table(n: int = 120) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    x = generator.normal(size=n)
    y = 10 + 3 * x + generator.normal(size=n)
    frame = pd.DataFrame(
        {
            "x": x,
            "number": y,
            "income": np.exp(0.3 * y),
            "yes": y + generator.normal(size=n) > 10,
            "grade": pd.Categorical(np.digitize(y, [7, 10, 13]), ordered=True),
            "sort": np.where(x + generator.normal(size=n) > 0, "b", "a"),
            "colour": generator.choice(["red", "green", "blue"], n),
            "visits": generator.poisson(np.exp(0.5 + 0.5 * x)),
            "when": pd.Timestamp("2024-01-01") + pd.to_timedelta(y, unit="h"),
        }
    )
    frame["same"] = 1.0
    return frame


def with_missing(*columns: str) -> pd.DataFrame:
    frame = table().astype({"yes": "boolean", "visits": "Int64"})
    for j, column in enumerate(columns):
        frame.loc[frame.index[j::4], column] = None
    return frame


def fitted(*columns: str, **settings: Any) -> MGPImputer:
    """Links that see all other columns, unless the settings say otherwise: no order is searched for."""
    fast: dict[str, Any] = {
        "inputs": "others",
        "max_steps": 5,
        "n_sweeps": 2,
        "random_state": 0,
        "progress": False,
    }
    return MGPImputer(**fast | settings).fit(with_missing(*columns))


ORDER = ["x", "number", "income", "yes", "grade", "sort", "visits", "when"]


@pytest.fixture(scope="module", params=["others", "earlier"])
def of_all_columns(request: pytest.FixtureRequest) -> tuple[MGPImputer, Imputations]:
    """Fitted to a table with missing cells in all columns that can be shifted, and its draws."""
    imputer = fitted(*ORDER, inputs=request.param, order=ORDER, n_neighbors=8)
    assert imputer.sequential_ == (request.param == "earlier")
    return imputer, imputer.impute(m=3)


@pytest.fixture(scope="module")
def of_number() -> MGPImputer:
    """Fitted to a table with missing cells in "number"; no test may change it."""
    return fitted("number", discrete_support=0, warp=False, n_neighbors=8)


@pytest.mark.parametrize("column", ORDER[1:])
def test_no_shift_gives_the_same_draws(of_all_columns: tuple[MGPImputer, Imputations], column: str) -> None:
    imputer, draws = of_all_columns
    assert imputer.impute(m=3, delta={column: 0.0}) == draws


@pytest.mark.parametrize(
    "settings",
    [
        {"n_neighbors": 0},
        {"n_neighbors": 8},
        {"inputs": "earlier", "columns": "all", "order": [*ORDER, "colour"]},
    ],
    ids=["alone", "with neighbours", "earlier"],
)
def test_numbers_are_shifted_in_their_own_units(settings: dict[str, Any]) -> None:
    imputer = fitted("number", discrete_support=0, warp=False, **settings)
    before, after = imputer.impute(m=4), imputer.impute(m=4, delta={"number": -2.5})
    np.testing.assert_allclose(after.values["number"] - before.values["number"], -2.5, atol=1e-4)


def test_a_log_is_shifted_on_its_scale() -> None:
    imputer = fitted("income", specs={"income": ColumnSpec(lower=0)})
    assert imputer.codec_.columns[2].warp.name == "log"
    before, after = imputer.impute(m=4), imputer.impute(m=4, delta={"income": np.log(0.5)})
    # Draws are bounded by the largest cell, which affects only those close to it.
    inside = before.values["income"] < 0.2 * before.frame["income"].max()
    assert inside.mean() > 0.3
    np.testing.assert_allclose((after.values["income"] / before.values["income"])[inside], 0.5, rtol=1e-3)


def test_times_are_shifted_in_seconds() -> None:
    imputer = fitted("when", discrete_support=0)
    before, after = imputer.impute(m=2), imputer.impute(m=2, delta={"when": 7200})
    seconds = (after.values["when"] - before.values["when"]) / np.timedelta64(1, "s")
    np.testing.assert_allclose(seconds, 7200, atol=1)


@pytest.mark.parametrize(("column", "later"), [("yes", True), ("grade", 3), ("sort", "b"), ("visits", None)])
def test_discrete_columns_are_shifted_towards_the_later_values(
    of_all_columns: tuple[MGPImputer, Imputations], column: str, later: Any
) -> None:
    imputer, _ = of_all_columns
    draws = [imputer.impute(m=10, delta={column: delta}).values[column] for delta in (-1.0, 0.0, 1.0)]
    means = [draw.mean() if later is None else (draw == later).mean() for draw in draws]
    assert means[0] < means[1] < means[2]


def test_a_shift_of_a_count_multiplies_its_mean() -> None:
    imputer = fitted("visits", specs={"visits": ColumnSpec(kind="count")})
    before = imputer.impute(m=200).values["visits"]
    after = imputer.impute(m=200, delta={"visits": np.log(3)}).values["visits"]
    assert after.mean() / before.mean() == pytest.approx(3, rel=0.05)


def test_columns_that_predict_each_other_are_shifted_once() -> None:
    frame = table()
    frame["other"] = frame["number"] + 0.3 * np.random.default_rng(1).normal(size=len(frame))
    frame = frame[["x", "number", "other"]]
    frame.loc[::3, ["number", "other"]] = np.nan
    imputer = MGPImputer(max_steps=10, discrete_support=0, warp=False, random_state=0, progress=False).fit(
        frame
    )
    before, after = imputer.impute(m=10), imputer.impute(m=10, delta={"number": 4.0})
    np.testing.assert_allclose(after.values["number"] - before.values["number"], 4.0, atol=1e-3)
    moved = (after.values["other"] - before.values["other"]).mean()
    assert 2.0 < moved < 4.5  # it is nearly the same number


@pytest.mark.parametrize("inputs", ["others", "earlier"])
def test_a_scan_of_two_columns_is_continuous_at_zero(inputs: Any) -> None:
    frame = table()[["x", "number", "income"]]
    frame.loc[::4, ["number", "income"]] = np.nan
    settings: dict[str, Any] = {
        "max_steps": 10,
        "warp": False,
        "discrete_support": 0,
        "random_state": 0,
        "progress": False,
    }
    imputer = MGPImputer(inputs=inputs, order=["income", "number"], **settings).fit(frame)
    at, beside = (
        imputer.impute(m=3, delta={"income": 9.0, "number": d}).values["number"] for d in (0.0, 1e-6)
    )
    np.testing.assert_allclose(at, beside, atol=1e-3)


def test_other_columns_see_the_shifted_draws() -> None:
    imputer = fitted("number", "income", discrete_support=0)
    incomes = [imputer.impute(m=5, delta={"number": d}).values["income"].mean() for d in (0.0, 6.0)]
    frame = imputer.impute(m=1).frame
    both = frame["number"].isna() & frame["income"].isna()
    assert not both.any()  # no imputed income is predicted from a shifted number
    assert incomes[0] == pytest.approx(incomes[1])
    # Without columns that carry the unshifted number.
    together = with_missing("number")[["x", "number", "income", "sort"]]
    together["income"] = together["income"].mask(together["number"].isna())
    imputer = MGPImputer(inputs="others", max_steps=5, random_state=0, progress=False).fit(together)
    low, high = (imputer.impute(m=5, delta={"number": d}).values["income"].mean() for d in (0.0, 6.0))
    assert high > 1.5 * low


@pytest.mark.parametrize(
    ("delta", "sentence"),
    [
        ({"height": 1.0}, "delta names column 'height'"),
        ({"same": 1.0}, "delta names column 'same'"),
        ({"number": np.nan}, "delta of column 'number' must be a finite number, got nan"),
        ({"colour": 1.0}, "a category of 3 levels has no scale to be shifted on"),
    ],
)
def test_invalid_shifts_are_an_error(of_number: MGPImputer, delta: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        shifts(of_number.codec_, delta)


def test_shifts_are_given_by_label(of_number: MGPImputer) -> None:
    with pytest.raises(TypeError, match=r"delta must be shifts by label, such as {'income': -5.0}, got 2"):
        of_number.impute(m=1, delta=2)  # type: ignore[arg-type]


def mean_of_number(frame: pd.DataFrame) -> SimpleNamespace:
    numbers = frame["number"]
    return SimpleNamespace(params=pd.Series({"mean": numbers.mean()}), bse=[numbers.sem()])


def test_a_scan_finds_the_tipping_point(of_number: MGPImputer) -> None:
    null = 9.0
    scan = tipping_point(of_number, mean_of_number, "number", [-12, -6, 6], "mean", m=5, null=null)
    assert scan["delta"].tolist() == [-12, -6, 0, 6]
    share = of_number.impute(m=1).frame["number"].isna().mean()
    np.testing.assert_allclose(scan["imputed_mean"].diff()[1:], 6, atol=1e-3)
    np.testing.assert_allclose(scan["estimate"].diff()[1:], 6 * share, atol=1e-3)
    outside = np.sign(scan["low"] - null) + np.sign(scan["high"] - null)
    assert scan["tipped"].tolist() == (outside != outside[2]).tolist()
    assert scan["tipped"].tolist()[0]
    assert ((scan["p"] < 0.05) == (outside != 0)).all()


def test_columns_without_missing_cells_are_an_error(of_number: MGPImputer) -> None:
    with pytest.raises(ValueError, match="'x' has no missing cells"):
        tipping_point(of_number, mean_of_number, "x", [1], "mean", m=2)


@pytest.mark.parametrize("term", ["median", 5, -2])
def test_terms_are_names_or_positions(of_number: MGPImputer, term: object) -> None:
    with pytest.raises(ValueError, match=rf"term must be one of \['mean'\], or its position, got {term!r}"):
        tipping_point(of_number, mean_of_number, "number", [], term, m=2)
