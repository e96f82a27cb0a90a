"""Energy-I-scores against those of R on five tables, and of draws that are known to be right."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.impute import SimpleImputer

from pyro_mgp import ColumnSpec, MGPImputer, calibrate, compare, energy_scores

GOLDEN = Path(__file__).parents[1] / "golden" / "iscores"
SCORES = pd.read_csv(GOLDEN / "scores.csv")


def golden(table, imputer):
    return SCORES[(SCORES["table"] == table) & (SCORES["imputer"] == imputer)].set_index("column")


def assert_equal(found, expected):
    own = found[found["column"].notna()].set_index("column")
    assert sorted(own.index) == sorted(expected.index)
    for name in ("score", "weight", "predictors", "cells"):
        np.testing.assert_allclose(own[name].to_numpy(float), expected.loc[own.index, name], rtol=1e-12)
    whole = found[found["column"].isna()].iloc[0]
    assert whole["score"] == pytest.approx(np.average(expected["score"], weights=expected["weight"]))


@pytest.mark.parametrize("table", SCORES["table"].unique())
def test_scores_of_column_means_equal_those_of_r(table):
    frame = pd.read_csv(GOLDEN / f"{table}.csv")
    found = energy_scores({"mean": SimpleImputer()}, frame, m=2)
    assert_equal(found, golden(table, "mean"))


def test_scores_of_draws_by_mice_equal_those_of_r():
    frame, completed = pd.read_csv(GOLDEN / "airquality.csv"), pd.read_csv(GOLDEN / "pmm_completed.csv")
    draws = pd.read_csv(GOLDEN / "pmm_draws.csv").set_index("row")

    def mice(table, m, seed):
        if m == 1:
            return [completed]
        missing = table["Ozone"].isna().to_numpy()
        assert (np.flatnonzero(missing) == draws.index - 1).all()
        return [
            table.assign(Ozone=table["Ozone"].fillna(draws[f"X{j + 1}"].set_axis(table.index[missing])))
            for j in range(m)
        ]

    assert_equal(energy_scores({"pmm": mice}, frame, m=20), golden("airquality", "pmm"))


def line(n=400):
    g = np.random.default_rng(0)
    frame = pd.DataFrame({"x": g.normal(size=n)})
    frame["y"] = frame["x"] + g.normal(size=n)
    frame["level"] = np.where(g.random(n) < 1 / (1 + np.exp(-3 * frame["x"])), "a", "b")
    lost = g.random((n, 2)) < 1 / (1 + np.exp(-frame[["x"]].to_numpy()))  # at random, given x
    frame.loc[lost[:, 0], "y"], frame.loc[lost[:, 1], "level"] = np.nan, None
    return frame


def truth(spread=1.0, sure=3.0):
    def draws(frame, m, seed):
        g, tables = np.random.default_rng(seed), []
        for _ in range(m):
            table = frame.copy()
            if "y" in table:
                table["y"] = table["y"].fillna(table["x"] + spread * g.normal(size=len(table)))
            if "level" in table:
                drawn = np.where(g.random(len(table)) < 1 / (1 + np.exp(-sure * table["x"])), "a", "b")
                table["level"] = table["level"].where(table["level"].notna(), pd.Series(drawn, table.index))
            tables.append(table)
        return tables

    return draws


def test_the_true_distribution_has_the_lowest_score_in_numbers_and_in_levels():
    imputers = {"true": truth(), "narrow": truth(0.1, 30.0), "wide": truth(3.0, 0.0)}
    found = energy_scores(imputers, line()).pivot(index="imputer", columns="column", values="score")
    for column in ("y", "level"):
        assert found[column].idxmin() == "true"
    assert found.loc["true", "y"] == pytest.approx(1 / np.sqrt(np.pi), rel=0.1)  # of N(μ, 1)


def test_imputers_of_ours_leave_out_the_specs_and_order_of_columns_that_are_left_out():
    frame = line(80)
    specs = {"y": ColumnSpec(lower=-10.0), "level": ColumnSpec(kind="categorical")}
    own = MGPImputer(specs=specs, order=["y", "level"], inputs="earlier", max_steps=2, progress=False)
    found = energy_scores({"own": own, "again": own}, frame, m=5)
    assert found["score"].notna().all() and found["imputer"].tolist() == ["own", "again"] * 3
    assert found["score"].iloc[0] == found["score"].iloc[1]  # of equal seeds


def test_columns_that_an_imputer_does_not_complete_have_no_score():
    found = energy_scores({"mean": SimpleImputer()}, line(), m=2)
    scores = found.set_index("column")["score"]
    assert np.isnan(scores["level"]) and found["score"].iloc[-1] == scores["y"]


def test_means_are_of_the_columns_that_all_imputers_complete():
    found = energy_scores({"mean": SimpleImputer(), "true": truth()}, line(), m=5)
    whole, by_column = found[found["column"].isna()], found[found["column"] == "y"]
    assert whole["score"].tolist() == by_column["score"].tolist()


def test_specs_that_name_columns_that_are_left_out_are_left_out():
    frame = line(120).assign(hole=lambda own: own["x"].where(np.arange(120) % 3 > 0))
    frame["often"] = frame["x"].where(np.arange(120) % 4 > 0).where(frame["hole"] > 0, 0.0)
    specs = {
        "y": ColumnSpec(predictors=["x", "hole"]),
        "often": ColumnSpec(only_if="hole > 0", otherwise=0.0),
        "level": ColumnSpec(only_if="x > -1"),
    }
    frame.loc[frame["x"] <= -1, "level"] = None
    own = MGPImputer(specs=specs, max_steps=2, progress=False, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of cells where columns do not apply
        found = energy_scores({"own": own}, frame, m=3)
    assert found.set_index("column").loc[["y", "hole", "level"], "score"].notna().all()


def test_an_incomplete_constant_has_a_score_of_zero():
    frame = line(60)[["x", "y"]].assign(k=1.0)
    frame.loc[::4, "k"] = np.nan
    found = energy_scores({"mean": SimpleImputer()}, frame, m=2).set_index("column")
    assert found.loc["k", "score_sd"] == 0.0 and found["score_sd"].notna().all()


def test_times_are_scored_in_seconds():
    frame = line(60)
    frame["when"] = pd.Timestamp("2026-01-01") + pd.to_timedelta(frame["y"], unit="D")
    own = MGPImputer(max_steps=2, progress=False, random_state=0)
    found = energy_scores({"own": own}, frame[["x", "when"]], m=5)
    assert 20_000 < found["score"].iloc[0] < 200_000 and 0.2 < found["score_sd"].iloc[0] < 2


def test_calibrate_and_compare_show_energy_scores_on_request():
    frame, imputers = line(), {"true": truth(), "wide": truth(3.0, 0.0)}
    scored = energy_scores(imputers, frame)
    both = compare(imputers, frame, m=5, levels=[0.5], energy=True)
    assert both.loc[both["column"] == "y", "energy_sd"].tolist() == scored["score_sd"].iloc[:2].tolist()
    assert both["energy_sd"].iloc[-2:].tolist() == scored["score_sd"].iloc[-2:].tolist()
    assert "energy_sd" not in compare(imputers, frame, m=5, levels=[0.5])
    calibration = calibrate(truth(), frame, m=5, levels=[0.5], energy=True)
    shown = calibration.shown().set_index("column")["energy/sd"]
    assert (
        shown["y"] == f"{scored['score_sd'].iloc[0]:.3g}"
        and shown["all"] == f"{scored['score_sd'].iloc[-2]:.3g}"
    )
    assert calibrate(truth(), frame, m=5, levels=[0.5]).energy is None


@pytest.mark.parametrize(
    ("imputers", "frame", "m"),
    [({}, line(), 5), ({"true": truth()}, line(), 1), ({"true": truth()}, line(8), 5)],
)
def test_what_cannot_be_scored_is_refused(imputers, frame, m):
    with pytest.raises(ValueError, match=r"expected at least one imputer|no column has 10 missing cells"):
        energy_scores(imputers, frame, m=m)


def test_imputers_have_names():
    with pytest.raises(TypeError, match=r"expected imputers by name, such as .*, got list"):
        energy_scores([truth()], line())
