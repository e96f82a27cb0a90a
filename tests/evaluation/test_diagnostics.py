"""Calibration of imputers that are calibrated by construction, on tables of every kind, for any imputer."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, SimpleImputer
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

from pyro_mgp import ColumnSpec, MGPImputer
from pyro_mgp.evaluation.adapters import draw
from pyro_mgp.evaluation.calibration import CAVEAT, Calibration, Verdict, holm
from pyro_mgp.evaluation.diagnostics import calibrate, compare

Function = Callable[[pd.DataFrame, int, int], list[pd.DataFrame]]


def small(**changes: Any) -> MGPImputer:
    quick = {"inputs": "others", "max_steps": 2, "n_sweeps": 1, "n_neighbors": 0}
    return MGPImputer(**{**quick, "progress": False, "random_state": 0, **changes})


def line(n: int = 400, seed: int = 0) -> pd.DataFrame:
    """Return x, y = x + a standard normal error, and z of three levels whose probabilities depend on x."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    frame = pd.DataFrame({"x": x, "y": x + rng.normal(size=n)})
    frame["z"] = np.where(rng.random(n) < chance_of_a(x), "a", rng.choice(["b", "c"], n))
    return frame


def chance_of_a(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return 1 / (1 + np.exp(-5 * x))


def oracle(scale: float = 1.0, shift: float = 0.0, sure: float = 1.0) -> Function:
    """Return an imputer with the true distribution of `line`, except for scale, shift and sharpness."""

    def draws(frame: pd.DataFrame, m: int, seed: int) -> list[pd.DataFrame]:
        rng, tables = np.random.default_rng(seed), []
        for _ in range(m):
            table = frame.copy()
            table["y"] = table["y"].fillna(table["x"] + shift + scale * rng.normal(size=len(table)))
            is_a = rng.random(len(frame)) < chance_of_a(sure * frame["x"].to_numpy())
            level = np.where(is_a, "a", rng.choice(["b", "c"], len(frame)))
            table["z"] = table["z"].where(table["z"].notna(), level)
            tables.append(table)
        return tables

    return draws


def of(imputer: Any, frame: pd.DataFrame | None = None, **asked: Any) -> Calibration:
    return calibrate(
        imputer, line() if frame is None else frame, **{"columns": ["y", "z"], "folds": 4, **asked}
    )


# ------------------------------------------------------------------------------ calibrated by construction


def test_draws_from_the_truth_are_well_calibrated() -> None:
    result = of(oracle(), line(1_000))
    assert result.table["verdict"].tolist() == ["well calibrated"] * 2
    assert result.verdict is Verdict.WELL
    for level in (50, 80, 90, 95):
        low, high = result.overall[f"low_{level}"], result.overall[f"high_{level}"]
        assert low < level / 100 < high
    y, z = result.table.to_dict("records")
    assert y["rmse"] == pytest.approx(1, abs=0.1)
    assert y["crps"] == pytest.approx(1 / np.sqrt(np.pi), abs=0.03)  # of a normal forecast of its own draw
    assert y["width_90"] == pytest.approx(2 * 1.645, rel=0.05)
    assert y["bias"] == pytest.approx(0, abs=0.1)
    # Entropy of a standard normal, in standard deviations of y, and what kernels cost.
    assert y["log_score"] == pytest.approx(-1.419 + np.log(y["rmse"] / y["rmse_sd"]), abs=0.06)
    x = line(1_000)["x"].to_numpy()
    expected = np.maximum(chance_of_a(x), (1 - chance_of_a(x)) / 2).mean()
    assert z["accuracy"] == pytest.approx(expected, abs=0.04)


@pytest.mark.parametrize(
    ("changes", "verdicts"),
    [
        ({"scale": 0.6}, [Verdict.NARROW, Verdict.WELL]),
        ({"scale": 1.6}, [Verdict.WIDE, Verdict.WELL]),
        ({"shift": 0.5}, [Verdict.OFF, Verdict.WELL]),
        ({"sure": 3.0}, [Verdict.WELL, Verdict.NARROW]),
        ({"sure": 0.2}, [Verdict.WELL, Verdict.WIDE]),
    ],
)
def test_miscalibrated_draws_get_their_verdict(changes: dict[str, float], verdicts: list[Verdict]) -> None:
    result = of(oracle(**changes))
    assert result.table["verdict"].tolist() == verdicts
    wrong = 0 if verdicts[0] is not Verdict.WELL else 1
    assert result.worst == "yz"[wrong]
    assert f"Worst column '{'yz'[wrong]}': {verdicts[wrong]}" in result.words
    assert result.words.endswith(CAVEAT)
    assert result.overall["why"] == result.why
    assert result.miscalibrated["column"].tolist() == [
        label for label, verdict in zip("yz", verdicts, strict=True) if verdict is not Verdict.WELL
    ]


def test_a_shift_shows_in_bias_and_pit() -> None:
    y = of(oracle(shift=-0.5)).table.iloc[0]
    assert y["bias"] == pytest.approx(-0.5, abs=0.15)
    assert y["pit_mean"] > 0.6
    assert "the truth is larger than" in y["why"]


def test_few_cells_are_too_few_to_tell() -> None:
    result = of(oracle(), line(60), folds=None, share=0.2)
    assert result.verdict is Verdict.FEW
    assert "folds=5" in result.words


def test_equal_draws_do_not_make_intervals_look_too_wide() -> None:
    """Closed intervals of a coin have too much coverage; randomised ones have the nominal one."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"n": rng.integers(0, 2, 600), "x": rng.normal(size=600)})

    def coin(holed: pd.DataFrame, m: int, seed: int) -> list[pd.DataFrame]:
        flips = np.random.default_rng(seed)
        return [holed.assign(n=holed["n"].fillna(pd.Series(flips.integers(0, 2, 600)))) for _ in range(m)]

    n = calibrate(coin, frame, columns=["n"], folds=3).table.iloc[0]
    assert n["closed_80"] == 1.0
    assert n["coverage_80"] == pytest.approx(0.8, abs=0.05)
    assert n["verdict"] == "well calibrated"


def test_false_alarms_are_controlled_over_columns_and_levels() -> None:
    rng, alarms = np.random.default_rng(0), 0
    for _ in range(60):
        pit = rng.random(6 * 120)
        cells = pd.DataFrame({"pit": pit, "needed": np.abs(2 * pit - 1), "kind": "number"})
        cells = cells.assign(column=np.repeat(list("abcdef"), 120), truth=0.0, point=0.0, brier=np.nan)
        cells = cells.assign(error=0.0, scale=1.0, crps=0.0)
        cells = cells.assign(log_score=0.0, position=np.tile(np.arange(120), 6))
        for level in (50, 80, 90, 95):
            cells = cells.assign(**{f"closed_{level}": 1.0, f"width_{level}": 1.0})
        result = Calibration(cells, pd.DataFrame(columns=["column"]), (0.5, 0.8, 0.9, 0.95), 100, "")
        alarms += bool(set(result.table["verdict"]) - {Verdict.WELL})
    assert alarms <= 7  # of 60 with probability 0.05 each, 8 or more come in 1 of 100 runs


def test_errors_are_clustered_by_rows() -> None:
    """Duplicated columns do not reduce standard errors."""
    frame = line()
    twice = frame.assign(twin=frame["y"])

    def same(holed: pd.DataFrame, m: int, seed: int) -> list[pd.DataFrame]:
        return [table.assign(twin=table["y"]) for table in oracle()(holed, m, seed)]

    one = of(oracle(), columns=["y"]).overall
    cells = of(same, twice, columns=["y"]).cells
    doubled = Calibration(
        pd.concat([cells, cells.assign(column="twin")], ignore_index=True),
        pd.DataFrame(columns=["column", "cells", "why"]),
        (0.5, 0.8, 0.9, 0.95),
        100,
        "",
    )
    assert doubled.overall["se_80"] == pytest.approx(one["se_80"], rel=1e-9)
    assert doubled.effective_cells == pytest.approx(len(cells), rel=0.1)


def test_intervals_and_adjusted_p_values_are_those_of_statsmodels() -> None:
    for n in (20, 100):
        table = of(oracle(), line(n)).table
        for level in (50, 80, 90, 95):
            held = table[f"coverage_{level}"] * table["cells"]
            low, high = proportion_confint(held, table["cells"], method="wilson")
            np.testing.assert_allclose(table[[f"low_{level}", f"high_{level}"]], np.transpose([low, high]))
    p = np.random.default_rng(0).random(20) ** 3
    np.testing.assert_allclose(holm(p), multipletests(p, method="holm")[1])


# ---------------------------------------------------------------------------------------------- real imputers


def every_kind(n: int = 80) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    x = rng.normal(size=n)
    frame = pd.DataFrame(
        {
            "x": x,
            3: rng.poisson(np.exp(x / 2) * 3),
            "whole": rng.integers(-50, 50, n),
            "yes": x + rng.normal(size=n) > 0,
            "maybe": pd.Series(np.where(x > 0, True, False), dtype=object).to_numpy(),
            "sort": pd.Categorical(np.where(x > 0.5, "hi", "lo"), categories=["lo", "hi", "never"]),
            "grade": pd.Categorical(np.digitize(x, [-1, 1]), ordered=True),
            "day": pd.Timestamp("2024-01-01", tz="Europe/Berlin")
            + pd.to_timedelta(rng.integers(0, 99, n), "D"),
            "long": pd.to_timedelta(np.exp(x), unit="h"),
            "text": rng.choice(["<b>", "c"], n),
        },
        index=pd.date_range("2020-01-01", periods=n),
    )
    frame["maybe"] = frame["maybe"].mask(rng.random(n) < 0.1, np.nan)
    frame.loc[frame.index[::9], ["x", "sort", "day"]] = None
    return frame


def test_columns_of_every_kind_are_judged() -> None:
    frame = every_kind()
    before = frame.copy()
    result = calibrate(small(), frame, columns=list(frame.columns), share=0.2, m=40)
    pd.testing.assert_frame_equal(frame, before)
    table = result.table.set_index("column")
    assert table.index.tolist() == frame.columns.tolist()
    assert table["kind"].map({"number": 0, "level": 1}).tolist() == [0, 0, 0, 1, 1, 1, 1, 0, 0, 1]
    numbers = table["kind"] == "number"
    figures = ["rmse", "bias", "crps", "rmse_sd", "crps_sd", "pit_mean"]
    assert table.loc[numbers, figures].notna().all(axis=None)
    assert table.loc[~numbers, ["accuracy", "brier"]].notna().all(axis=None)
    assert table["log_score"].notna().all()
    assert table.loc["day", "width_80"] > 86_400  # in seconds
    where = result.cells["position"].to_numpy(int)
    assert (result.cells["row"] == frame.index[where]).all()
    for _, cell in result.cells.iterrows():
        assert cell["truth"] == frame[cell["column"]].iloc[cell["position"]]


def test_incomplete_columns_are_judged_by_default() -> None:
    assert calibrate(small(), every_kind(), m=5).table["column"].tolist() == ["x", "maybe", "sort", "day"]


def test_the_same_seed_gives_the_same_figures_and_the_imputer_stays() -> None:
    frame = line(80).mask(np.random.default_rng(1).random((80, 3)) < 0.1)
    imputer = small().fit(frame)
    chain, draws = imputer.chain_, imputer.impute(m=2)
    first, again, other = (calibrate(imputer, frame, m=5, random_state=seed) for seed in (0, 0, 1))
    pd.testing.assert_frame_equal(first.cells, again.cells)
    assert not first.cells.equals(other.cells)
    assert imputer.chain_ is chain
    assert imputer.impute(m=2) == draws


@pytest.mark.slow
def test_folds_in_processes_give_the_figures_of_one_process() -> None:
    frame = line(80).mask(np.random.default_rng(1).random((80, 3)) < 0.1)
    alone, together = (calibrate(small(), frame, folds=3, m=5, n_jobs=n_jobs) for n_jobs in (None, 2))
    pd.testing.assert_frame_equal(alone.cells, together.cells)
    with pytest.raises(ValueError, match="the imputer leaves cells missing"):
        calibrate(lambda frame, m, seed: [frame] * m, frame, folds=2, m=2, n_jobs=2)


def test_without_refit_the_fitted_imputer_conditions_on_the_rest() -> None:
    frame = line(200)
    frame.loc[::9, "y"] = np.nan
    imputer = small(max_steps=10).fit(frame)
    result = calibrate(imputer, frame, m=10, refit=False)
    assert "that was fitted with them" in result.how
    cells = result.cells[[each == "y" for each in result.cells["column"]]]
    holed = frame.copy()
    for label, position in zip(result.cells["column"], result.cells["position"], strict=True):
        holed.iloc[position, holed.columns.get_loc(label)] = None
    values = imputer.impute(holed, m=10).values["y"]
    at = np.searchsorted(np.flatnonzero(holed["y"].isna()), cells["position"])
    np.testing.assert_allclose(cells["point"].to_numpy(float), values[:, at].mean(0))
    with pytest.raises(ValueError, match="refit=False needs an imputer with impute"):
        calibrate(SimpleImputer(), frame[["x", "y"]], refit=False)


def test_a_chain_is_calibrated_on_linear_gaussian_data() -> None:
    frame = line(300)[["x", "y"]]
    frame.loc[::7, "y"] = np.nan
    result = calibrate(MGPImputer(max_steps=20, progress=False), frame, folds=3)
    assert result.verdict is Verdict.WELL
    assert result.overall["coverage_90"] == pytest.approx(0.9, abs=0.05)


def test_imputers_are_compared_on_the_same_cells() -> None:
    frame = line(120)[["x", "y"]].mask(np.random.default_rng(1).random((120, 2)) < 0.1)
    drawing = IterativeImputer(sample_posterior=True, max_iter=3)
    imputers = {"chain": small(max_steps=10), "regression": drawing, "mean": SimpleImputer()}
    both = compare(imputers, frame, share=0.4, m=40)
    assert both["imputer"].tolist() == ["chain", "regression", "mean"] * 3
    assert both["column"].tolist() == ["x"] * 3 + ["y"] * 3 + [None] * 3
    assert both.groupby("imputer")["cells"].apply(list).map(tuple).nunique() == 1
    mean = both[both["imputer"] == "mean"].set_index("column")
    assert (mean["verdict"] == "too narrow").all()
    assert (mean["coverage_95"] < 0.1).all()
    # One draw again and again: the score is the absolute error.
    alone = calibrate(SimpleImputer(), frame, share=0.4, m=40)
    np.testing.assert_allclose(alone.cells["crps"], alone.cells["error"].abs())
    regression = both[both["imputer"] == "regression"]["coverage_90"]
    assert regression.between(0.75, 1.0).all()
    pd.testing.assert_frame_equal(both, compare(imputers, frame, share=0.4, m=40))


def test_transformers_see_numbers_only() -> None:
    frame = every_kind()
    both = compare({"chain": small(), "mean": SimpleImputer()}, frame, m=3)
    filled = {name: set(part["column"]) - {None} for name, part in both.groupby("imputer")}
    assert filled == {"chain": {"x", "maybe", "sort", "day"}, "mean": {"x"}}


class Twin:
    """Imputer with only fit and impute."""

    def fit(self, frame: pd.DataFrame) -> Twin:
        self.frame = frame
        return self

    def impute(self, m: int) -> list[pd.DataFrame]:
        return oracle()(self.frame, m, 0)


def test_objects_with_fit_and_impute_are_imputers() -> None:
    twin = Twin()
    assert of(twin).verdict is Verdict.WELL
    assert not hasattr(twin, "frame")


class Wide(BaseEstimator):
    def fit_transform(self, X: Any) -> Any:
        return X.to_numpy()[:, :1]


@pytest.mark.parametrize(
    ("imputer", "error", "message"),
    [
        (3, TypeError, "expected an imputer with fit and impute"),
        (lambda frame, m, seed: [frame] * m, ValueError, "column 'y': the imputer leaves cells missing"),
        (
            lambda frame, m, seed: [frame.fillna(0)],
            ValueError,
            r"expected 5 completed tables of 50 rows, got 1",
        ),
        (lambda frame, m, seed: [frame.head(2)] * m, ValueError, r"5 of \[2\] rows"),
        (
            lambda frame, m, seed: [frame[["x"]]] * m,
            ValueError,
            "the imputer completes none of",
        ),
        (Wide(), ValueError, r"turns a table of \(50, 2\) cells into \(50, 1\)"),
    ],
)
def test_invalid_imputers_are_refused(imputer: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        calibrate(imputer, line(50)[["x", "y"]], columns=["y"], m=5)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"m": 1}, "m must be at least 2"),
        ({"levels": []}, "levels must"),
        ({"levels": 0.95}, r"levels must be numbers between 0 and 1, such as \[0.5, 0.95\], got 0.95"),
        ({"levels": [1.0]}, r"got \[1.0\]"),
    ],
)
def test_invalid_settings_are_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        calibrate(small(), line(50), **asked)


def test_compare_needs_an_imputer() -> None:
    with pytest.raises(ValueError, match="at least one imputer"):
        compare({}, line(50))
    with pytest.raises(TypeError, match=r"expected imputers by name, such as .*, got MGPImputer"):
        compare(small(), line(50))  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------ specs


def test_cells_that_follow_from_others_are_not_held_out() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(5, 1, size=(90, 3)), columns=["a", "b", "c"])
    frame["total"] = frame["a"] + frame["b"]
    frame.loc[:29, ["a", "total"]] = np.nan
    imputer = small(specs={"total": ColumnSpec(derived="a + b")})
    result = calibrate(imputer, frame, m=5, columns=["a", "b", "c", "total"], share=0.5)
    assert "'a' follows from other cells" in result.words
    held_out = result.cells.groupby("column")["position"].apply(set)
    assert set(held_out.index) == {"a", "b", "c"}
    assert {each for each in held_out["a"] if each >= 30} == {each for each in held_out["b"] if each >= 30}


def test_standard_errors_are_part_of_the_predictive_distribution() -> None:
    """The chain draws the truth; a held-out cell is the truth plus an error of known size."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=400)
    frame = pd.DataFrame({"x": x, "y": x + rng.normal(size=400), "se": 1.0})
    imputer = MGPImputer(
        specs={"y": ColumnSpec(standard_error="se")}, max_steps=10, n_neighbors=0, progress=False
    )
    result = calibrate(imputer, frame, columns=["y"], folds=2)
    assert result.overall["coverage_80"] == pytest.approx(0.8, abs=0.06)


def test_warnings_of_the_table_are_not_repeated() -> None:
    frame = line(60).assign(one=1.0)
    frame.loc[::5, ["y", "one"]] = np.nan
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        calibrate(small(n_inducing=100), frame, m=3)
    assert caught == []


def test_draw_returns_draws_of_all_missing_cells() -> None:
    frame = every_kind()
    drawn = draw(small(), frame, 4, 0, levels=["sort", "maybe"])
    assert {label: values.shape for label, values in drawn.items()} == {
        label: (4, int(frame[label].isna().sum())) for label in ["x", "maybe", "sort", "day"]
    }
    assert drawn["sort"].dtype == object
    assert drawn["day"].dtype == np.float64


# ---------------------------------------------------------------------------------------------------- display


def test_repr_is_complete_and_html_is_escaped() -> None:
    frame = line(200).rename(columns={"y": "<script>alert(1)</script>"})

    def renamed(holed: pd.DataFrame, m: int, seed: int) -> list[pd.DataFrame]:
        plain = holed.rename(columns={"<script>alert(1)</script>": "y"})
        return [
            table.rename(columns={"y": "<script>alert(1)</script>"}) for table in oracle()(plain, m, seed)
        ]

    result = calibrate(renamed, frame, columns=["<script>alert(1)</script>", "z"], share=0.3, m=50)
    text = repr(result)
    assert text.startswith(
        "Calibration: 120 held-out cells of 2 columns, 50 draws each; 30 % of the observed cells"
    )
    assert max(map(len, text.splitlines()[:6])) < 125
    for word in ("in 95 %", "verdict", "accuracy", "Overall", CAVEAT):
        assert word in text
    page = result._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_too_few_draws_have_coverage_but_no_closed_interval() -> None:
    table = of(oracle(), m=10).table
    assert table.loc[0, ["closed_95", "width_95"]].isna().all()
    assert table.loc[0, "coverage_95"] == pytest.approx(0.95, abs=0.04)
    assert table.loc[0, ["closed_80", "width_80"]].notna().all()
