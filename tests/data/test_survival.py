"""Survival outcomes enter a model as the Nelson-Aalen cumulative hazard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pyro_mgp import ColumnSpec, MGPImputer
from pyro_mgp.data.survival import Survival


def outcome(n: int = 60, seed: int = 0) -> pd.DataFrame:
    """Return a covariate with missing cells, and a censored time that depends on it."""
    g = np.random.default_rng(seed)
    x, z = g.normal(size=(2, n))
    died, left = g.exponential(np.exp(-x)), g.exponential(1.5, n)
    frame = pd.DataFrame({"x": x, "z": x + z, "time": np.minimum(died, left), "event": died < left})
    frame.loc[::4, "x"] = np.nan
    return frame


def small(**settings: Any) -> MGPImputer:
    return MGPImputer(random_state=0, max_steps=5, progress=False, **settings)


def test_the_estimate_is_the_sum_of_events_over_rows_at_risk() -> None:
    frame = outcome(40).round({"time": 1})
    hazard = Survival("time", "event").learn(frame).cumulative_hazard(frame)
    for t, found in zip(frame["time"], hazard, strict=True):
        steps = [s for s in frame["time"].unique() if s <= t]
        at = [(frame["event"] & (frame["time"] == s)).sum() / (frame["time"] >= s).sum() for s in steps]
        assert found == pytest.approx(sum(at))


def test_many_steps_are_thinned() -> None:
    frame = outcome(5000)
    learnt = Survival("time", "event").learn(frame)
    assert len(learnt.times) <= 1000
    order = np.argsort(frame["time"])
    exact = np.empty(5000)
    exact[order] = np.cumsum(frame["event"].to_numpy()[order] / np.arange(5000, 0, -1))
    assert np.abs(learnt.cumulative_hazard(frame) - exact)[frame["time"] < 2].max() < 0.02


def test_new_times_have_the_hazard_of_the_fit() -> None:
    learnt = Survival("time", "event").learn(pd.DataFrame({"time": [1.0, 2.0], "event": [1, 1]}))
    new = pd.DataFrame({"time": [0.5, 1.0, 1.5, 9.0], "event": 0})
    assert learnt.cumulative_hazard(new).tolist() == [0, 0.5, 0.5, 1.5]


def test_durations_are_times() -> None:
    frame = outcome(30)
    as_durations = frame.assign(time=pd.to_timedelta(frame["time"], unit="D"))
    one, other = (Survival("time", "event").learn(each) for each in (frame, as_durations))
    np.testing.assert_allclose(one.hazards, other.hazards)


def test_imputations_are_those_of_a_table_with_the_hazard() -> None:
    frame = outcome()
    hazard = Survival("time", "event").learn(frame).cumulative_hazard(frame)
    ours = small(survival=("time", "event")).fit(frame).impute(m=3)
    theirs = small().fit(frame.assign(time=hazard)).impute(m=3)
    for one, other in zip(ours, theirs, strict=True):
        pd.testing.assert_series_equal(one["x"], other["x"])
        pd.testing.assert_series_equal(one["time"], frame["time"])


@pytest.mark.parametrize("columns", ["incomplete", "all"])
def test_saved_imputers_know_the_hazard(columns: str, tmp_path: Path) -> None:
    frame, new = outcome(), outcome(20, seed=1)
    imputer = small(survival=("time", "event"), columns=columns).fit(frame)
    imputer.save(tmp_path / "imputer")
    data = imputer.impute(m=2).to_arviz()
    assert "time" not in {*data.observed_data, *data.in_sample_predictive}  # hazards have another name
    loaded = MGPImputer.load(tmp_path / "imputer")
    assert loaded.survival == ("time", "event")
    pd.testing.assert_frame_equal(loaded.impute(new, m=1)[0], imputer.impute(new, m=1)[0], rtol=1e-6)


def test_derived_columns_see_the_time() -> None:
    frame = outcome().assign(rate=lambda f: f["x"] / f["time"])
    specs = {"rate": ColumnSpec(derived="x / time")}
    draws = small(survival=("time", "event"), specs=specs).fit(frame).impute(m=2)
    np.testing.assert_allclose(draws[0]["rate"], draws[0]["x"] / frame["time"])


@pytest.mark.parametrize(
    ("changes", "error", "sentence"),
    [
        ({"time": [1.0, np.nan, 2.0]}, ValueError, r"'time': row 1 .*is missing, expected a survival time"),
        ({"event": [True, None, False]}, ValueError, r"'event': row 1 .*is missing, expected whether"),
        (
            {"time": [1.0, 2.0, -1.0]},
            ValueError,
            r"'time': row 2 .*holds -1.0, expected a time of at least 0",
        ),
        ({"event": [0, 2, 1]}, ValueError, r"'event': row 1 .*holds 2, expected 0 or 1"),
        ({"event": [0, 0, 0]}, ValueError, "expected at least one event"),
        ({"event": ["yes", "no", "no"]}, TypeError, "expected booleans, or 0 and 1"),
        ({"time": ["a", "b", "c"]}, TypeError, "expected numbers or durations"),
    ],
)
def test_outcomes_that_are_none_are_refused(changes: Any, error: type[Exception], sentence: str) -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0, 3.0], "time": [1.0, 2.0, 3.0], "event": [True, False, True]})
    with pytest.raises(error, match=sentence):
        small(survival=("time", "event")).fit(frame.assign(**changes))


@pytest.mark.parametrize(
    ("survival", "error", "sentence"),
    [
        (("time", "nope"), ValueError, "survival names column 'nope', but the table has"),
        (("time", "time"), ValueError, "survival names 'time' twice"),
        ("time", TypeError, r"\(time, event\), got 'time'"),
    ],
)
def test_columns_of_outcomes_must_be_in_the_table(survival: Any, error: Any, sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        small(survival=survival).fit(outcome())
