"""Visits of subjects, with a process over time: from a table to imputations, new visits and files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pyro_mgp import ColumnSpec, MGPImputer, calibrate

RANGE, NOISE = 1.0, 0.4


def covariance(frame: pd.DataFrame) -> np.ndarray:
    """Return that of the process at the visits of a table, `[n, n]`."""
    t, subject = frame["t"].to_numpy(), frame["id"].to_numpy()
    near = np.exp(-np.abs(t[:, None] - t) / RANGE)
    return np.where(subject[:, None] == subject, near, 0.0)


def visits(n: int = 60, size: int = 6, seed: int = 0) -> pd.DataFrame:
    """Return y = .5 x + .3 t + process of variance one + noise, without missing cells."""
    g = np.random.default_rng(seed)
    frame = pd.DataFrame({"id": np.repeat(np.arange(n), size)})
    frame["t"] = np.sort(g.uniform(0, 5, (n, size)), axis=1).ravel()
    frame["x"] = g.normal(size=len(frame))
    root = np.linalg.cholesky(covariance(frame) + 1e-9 * np.eye(len(frame)))
    deviations = root @ g.normal(size=len(frame)) + NOISE * g.normal(size=len(frame))
    frame["y"] = 0.5 * frame["x"] + 0.3 * frame["t"] + deviations
    return frame


def with_holes(frame: pd.DataFrame, columns: dict[str, float], seed: int = 1) -> pd.DataFrame:
    g = np.random.default_rng(seed)
    return frame.assign(**{c: frame[c].mask(g.random(len(frame)) < share) for c, share in columns.items()})


def imputer(**settings: Any) -> MGPImputer:
    given: dict[str, Any] = {"subject": "id", "time": "t", "random_state": 0, "progress": False}
    return MGPImputer(**given | settings)


@pytest.fixture(scope="module")
def fitted() -> MGPImputer:
    return imputer().fit(with_holes(visits(), {"y": 0.3}))


def stacked(draws: Any, column: str) -> np.ndarray:
    return np.array([table[column] for table in draws])


@pytest.mark.slow
def test_imputed_cells_are_those_of_a_gaussian_process() -> None:
    """Means and deviations are close to those at the true parameters, which random intercepts are not."""
    full = visits(120, seed=2)
    frame = with_holes(full, {"y": 0.3})
    holes = frame["y"].isna().to_numpy()
    V = covariance(full) + NOISE**2 * np.eye(len(full))
    gain = np.linalg.solve(V[np.ix_(~holes, ~holes)], V[np.ix_(~holes, holes)]).T
    fixed = (0.5 * full["x"] + 0.3 * full["t"]).to_numpy()
    expected = fixed[holes] + gain @ (full["y"] - fixed)[~holes]
    spread = np.sqrt(np.diag(V[np.ix_(holes, holes)] - gain @ V[np.ix_(~holes, holes)]))
    found = stacked(imputer().fit(frame).impute(m=200), "y")[:, holes]
    apart = found.mean(0) - expected
    assert np.sqrt((apart**2).mean()) < 0.25
    assert (found.std(0) / spread).mean() == pytest.approx(1.0, abs=0.08)
    intercepts = stacked(imputer(time=None).fit(frame).impute(m=50), "y")[:, holes]
    assert np.sqrt(((intercepts.mean(0) - expected) ** 2).mean()) > 0.35


@pytest.mark.slow
def test_the_order_of_columns_does_not_matter() -> None:
    """The processes of two columns are correlated, unlike their noises."""
    full = visits(80, seed=4)
    other = visits(80, seed=4)["y"] + 0.5 * np.random.default_rng(0).normal(size=len(full))
    frame = with_holes(full.assign(x=other), {"x": 0.25, "y": 0.25})
    slopes = []
    for order in (["x", "y"], ["y", "x"]):
        draws = imputer(inputs="earlier", order=order).fit(frame).impute(m=40)
        slopes.append(np.mean([np.polyfit(table["x"], table["y"], 1)[0] for table in draws]))
    expected = np.polyfit(other, full["y"], 1)[0]
    assert slopes[0] == pytest.approx(slopes[1], abs=0.04)
    assert slopes[0] == pytest.approx(expected, abs=0.06)


@pytest.mark.slow
def test_new_visits_are_alike_known_ones_at_close_times(fitted: MGPImputer) -> None:
    known = fitted.model_.own_table().frame
    row = known.dropna().iloc[8]
    # The second is more than a range away from all visits of the subject.
    new = pd.DataFrame({"id": row["id"], "t": [row["t"] + 0.01, 1.3], "x": 0.0, "y": np.nan})
    stranger = pd.DataFrame({"id": [999, 999, 999], "t": [0.2, 0.22, 4.9], "x": 0.0, "y": np.nan})
    both = pd.concat([new, stranger], ignore_index=True).astype({"id": int})
    y = stacked(fitted.impute(both, m=300), "y")
    assert y[:, 0].std() < 0.7 * y[:, 1].std()
    same = 1 / (1 + NOISE**2)
    assert np.corrcoef(y[:, 2], y[:, 3])[0, 1] == pytest.approx(same, abs=0.12)
    assert abs(np.corrcoef(y[:, 2], y[:, 4])[0, 1]) < 0.3
    # What is observed at one visit tells of the other.
    both.loc[2, "y"] = 4.0
    told = stacked(fitted.impute(both, m=300), "y")
    rise = told.mean(0) - y.mean(0)
    assert rise[3] > 2.0 and rise[4] < rise[3] - 1.0
    alone = stacked(fitted.impute(both.iloc[2:], m=20), "y")
    np.testing.assert_allclose(alone, told[:20, 2:], rtol=1e-6)
    backwards = stacked(fitted.impute(both.iloc[::-1], m=20), "y")
    np.testing.assert_allclose(backwards[:, ::-1], told[:20], rtol=1e-6)


def test_point_predictions_files_and_calibration(fitted: MGPImputer, tmp_path: Path) -> None:
    frame = fitted.model_.own_table().frame
    holes, draws = frame["y"].isna(), fitted.impute(m=40)
    mean = stacked(draws, "y").mean(0)[holes]
    np.testing.assert_allclose(fitted.transform(frame)["y"][holes], mean, atol=0.6)
    new = frame.head(12).assign(id=500)
    fitted.save(tmp_path / "saved")
    loaded = MGPImputer.load(tmp_path / "saved")
    for table in (frame, new):
        np.testing.assert_array_equal(loaded.impute(table, m=2)[1]["y"], fitted.impute(table, m=2)[1]["y"])
    paths = fitted.impute_to_parquet(tmp_path / "draws", new, m=2, batch_size=5)
    np.testing.assert_array_equal(pd.read_parquet(paths[1])["y"], fitted.impute(new, m=2)[1]["y"])
    assert draws.to_arviz() is not None
    found = calibrate(imputer(), frame, share=0.15, m=20, random_state=1)
    assert found.overall["high_90"] > 0.85


@pytest.mark.slow
def test_ordered_and_two_part_columns_have_the_process() -> None:
    frame = visits(50, seed=6)
    frame["level"] = pd.cut(frame["y"], [-np.inf, 0, 1.5, np.inf], labels=["low", "middle", "high"])
    frame["ill"] = frame["y"] > 1
    frame = with_holes(frame.drop(columns="y"), {"level": 0.2, "ill": 0.2, "x": 0.1})
    draws = imputer().fit(frame).impute(m=5)
    assert not draws[0].isna().any(axis=None)


@pytest.mark.parametrize("unit", ["int", "datetime", "timedelta"])
def test_times_may_be_integers_or_dates(unit: str) -> None:
    frame = with_holes(visits(30, seed=7), {"y": 0.3})
    frame["t"] = frame.groupby("id").cumcount()
    if unit != "int":
        days = pd.to_timedelta(frame["t"], unit="D")
        frame["t"] = days if unit == "timedelta" else pd.Timestamp("2020-01-01") + days
    assert not imputer().fit(frame).impute(m=2)[0].isna().any(axis=None)


def test_subjects_with_one_visit_have_no_process() -> None:
    frame = with_holes(visits(80, 1, seed=8), {"y": 0.3})
    draws = imputer().fit(frame).impute(m=2)
    assert not draws[0].isna().any(axis=None)


def test_some_subjects_with_one_visit() -> None:
    frame = with_holes(visits(40, 5, seed=9), {"y": 0.3})
    frame = frame[(frame["id"] % 3 > 0) | (frame.groupby("id").cumcount() == 0)]
    assert not imputer().fit(frame).impute(m=2)[0].isna().any(axis=None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"t": 1.0}, "Column 't' holds the times of 'id': row 1 (position 1) repeats time 1.0 of 0"),
        ({"t": np.nan}, "Column 't' holds the times of 'id': row 0 (position 0) is missing; expected a"),
        ({"t": "noon"}, "Column 't' holds the times of 'id': expected numbers or dates"),
    ],
)
def test_times_that_cannot_be_used_are_an_error(change: dict[str, Any], message: str) -> None:
    frame = with_holes(visits(10), {"y": 0.3}).assign(**change)
    with pytest.raises(ValueError, match=re.escape(message)):
        imputer().fit(frame)


def test_new_rows_that_repeat_a_time_are_an_error(fitted: MGPImputer) -> None:
    rows = visits().head(2).assign(t=1.0, y=np.nan)
    with pytest.raises(ValueError, match=r"row 1 \(position 1\) repeats time 1.0 of 0"):
        fitted.impute(rows, m=1)


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        ({"subject": None}, ValueError, "give subject as well"),
        ({"subject": ["id"]}, TypeError, "subject must be the label of a column, got list"),
        (
            {"time": "later"},
            ValueError,
            "time names column 'later', but the table has ",
        ),
        ({"subject": "patient"}, ValueError, "subject names column 'patient', but the table has"),
        ({"groups": ["id", "ward"]}, ValueError, "groups names column 'ward', but the table has"),
        ({"time": "id"}, ValueError, "the spec of column 'id' names 'id'"),
        ({"groups": 1.5, "subject": None, "time": None}, TypeError, "groups must be labels of columns"),
        ({"specs": {"id": ColumnSpec(kind="categorical")}}, ValueError, "whose spec says something else"),
        ({"specs": {"id": ColumnSpec(kind="group", time="x")}}, ValueError, "whose spec says something else"),
        (
            {"specs": {"t": ColumnSpec(kind="categorical")}},
            ValueError,
            "which are numbers or dates: leave out",
        ),
        ({"specs": {"x": ColumnSpec(kind="group", time="y")}}, ValueError, "name times: expected one"),
        ({"weights": "t"}, ValueError, "cannot hold times of 'id' as well as weights"),
    ],
)
def test_what_cannot_be_had_is_an_error(
    settings: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        imputer(**settings).fit(with_holes(visits(10), {"y": 0.3}))


def test_times_that_are_constant_are_an_error() -> None:
    frame = with_holes(visits(40, 1), {"y": 0.3}).assign(t=2.0)
    with pytest.raises(ValueError, match="Column 't' holds the times of 'id', but is constant"):
        imputer().fit(frame)


def test_times_keep_their_scale() -> None:
    """Visits from 0 on are no counts, whose scale would be logarithmic."""
    frame = with_holes(visits(40), {"y": 0.3})
    frame["t"] = frame.groupby("id").cumcount() ** 2
    codec = next(own for own in imputer().fit(frame).codec_.columns if own.name == "t")
    assert codec.kind == "continuous" and codec.warp is None


def test_subject_keeps_what_its_spec_says() -> None:
    frame = with_holes(visits(20), {"y": 0.3})
    given = {"specs": {"id": ColumnSpec(kind="group", slopes=["t"], time="t")}, "time": None}
    own = imputer(**given).rules(frame.columns.tolist()).specs["id"]
    assert own == ColumnSpec(kind="group", slopes=["t"], time="t")
    assert imputer(groups="id", **given | {"subject": None}).rules([*frame.columns]).specs["id"] == own
    named = {"specs": {"id": ColumnSpec(kind="group", slopes=["x"])}}
    assert imputer(**named).rules([*frame.columns, "x"]).specs["id"].slopes == ("x", "t")


@pytest.mark.slow
def test_draws_of_new_subjects_do_not_depend_on_the_order_of_rows() -> None:
    """Cells that a subject's visits have in common are drawn once, whichever comes first."""
    frame = visits(40)
    frame["age"] = np.random.default_rng(0).normal(50, 10, 40)[frame["id"]].round()
    frame["age"] = frame["age"].mask(frame["id"] % 4 == 0)
    fitted = imputer().fit(with_holes(frame, {"y": 0.3}))
    new = frame.head(12).assign(age=np.nan, id=[900] * 6 + [901] * 6)
    shuffled = new.sample(frac=1, random_state=1)
    for one, other in zip(fitted.impute(new, m=3), fitted.impute(shuffled, m=3), strict=True):
        pd.testing.assert_frame_equal(one, other.loc[one.index])
    one, other = (pd.DataFrame(fitted.transform(rows)) for rows in (new, shuffled))
    pd.testing.assert_frame_equal(one, other.loc[one.index])


def test_time_is_an_argument_for_groups() -> None:
    with pytest.raises(ValueError, match="time is an argument for groups: give kind='group'"):
        ColumnSpec(time="t")


def test_parameters_say_the_same_as_specs(fitted: MGPImputer) -> None:
    frame = fitted.model_.own_table().frame
    spec = {"id": ColumnSpec(kind="group", slopes=["t"], time="t")}
    same = imputer(subject=None, time=None, specs=spec).fit(frame)
    np.testing.assert_array_equal(same.impute(m=1)[0]["y"], fitted.impute(m=1)[0]["y"])
    intercepts = imputer(subject=None, time=None, groups="id").fit(frame)
    as_spec = imputer(subject=None, time=None, specs={"id": ColumnSpec(kind="group")}).fit(frame)
    np.testing.assert_array_equal(intercepts.impute(m=1)[0]["y"], as_spec.impute(m=1)[0]["y"])
