"""The summary of imputations, as a table and as text."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pyro_mgp import Imputations
from pyro_mgp.results import summary


def small() -> Imputations:
    frame = pd.DataFrame(
        {
            "x": [1.0, 3.0, np.nan, np.nan],
            "n": pd.array([100, None, 300, 200], dtype="Int64"),
            "kind": ["b", None, "a", "b"],
            "seen": pd.array([None, True, False, False], dtype="boolean"),
            "full": [1, 2, 3, 4],
        }
    )
    values = {
        "x": [[2.0, 4.0], [6.0, 8.0]],
        "n": [[150], [250]],
        "kind": np.array([["a"], ["b"]], dtype=object),
        "seen": [[True], [True]],
    }
    return Imputations(frame, values, m=2)


def test_summarise_agrees_with_hand_computation() -> None:
    expected = pd.DataFrame(
        {
            "column": ["x", "n", "kind", "kind", "seen", "seen"],
            "level": pd.Series([None, None, "b", "a", False, True], dtype=object),
            "unit": pd.Series([None] * 6, dtype=object),
            "missing": [2, 1, 1, 1, 1, 1],
            "missing_share": [0.5, 0.25, 0.25, 0.25, 0.25, 0.25],
            "observed_mean": [2.0, 200.0, 2 / 3, 1 / 3, 2 / 3, 1 / 3],
            "observed_sd": [2**0.5, 100.0, np.nan, np.nan, np.nan, np.nan],
            "imputed_mean": [5.0, 200.0, 0.5, 0.5, 0.0, 1.0],
            "imputed_sd": [(20 / 3) ** 0.5, 5000**0.5, np.nan, np.nan, np.nan, np.nan],
        }
    )
    pd.testing.assert_frame_equal(summary.summarise(small()), expected)


def test_times_are_summarised_in_seconds_and_shown_as_dates_and_lengths() -> None:
    frame = pd.DataFrame(
        {
            "day": pd.to_datetime(["2024-01-01", None, "2024-01-05"]),
            "stay": pd.to_timedelta([1.0, 3.0, None], unit="h"),
        }
    )
    day = np.array([["2024-01-02"], ["2024-01-04"]], dtype="datetime64[us]")
    stay = np.array([[90], [30]], dtype="timedelta64[m]").astype("timedelta64[us]")
    table = summary.summarise(Imputations(frame, {"day": day, "stay": stay}, m=2))
    assert table["unit"].tolist() == ["s since 1970", "s"]
    assert table["observed_mean"].tolist() == [pd.Timestamp("2024-01-03").timestamp(), 7200]
    assert table["imputed_sd"].tolist() == pytest.approx([2**0.5 * 86_400, 2**0.5 * 1_800])
    _, first, second = summary.format_summary(table)
    assert first.split("   ")[-2:] == ["2024-01-03 ± 2.83 days", "2024-01-03 ± 1.41 days"]
    assert second.split() == ["stay", "1", "33.3%", "2", "h", "±", "1.41", "h", "1", "h", "±", "42.4", "min"]


def test_summarise_of_a_complete_table_has_the_same_columns() -> None:
    nothing = summary.summarise(Imputations(pd.DataFrame({"x": [1.0, 2.0]}), {}, m=2))
    assert len(nothing) == 0
    assert nothing.columns.tolist() == summary.summarise(small()).columns.tolist()


def test_the_summary_as_text() -> None:
    assert summary.format_summary(summary.summarise(small())) == [
        "column    missing   observed              imputed",
        "x        2  50.0%   2.00 ± 1.41           5.00 ± 2.58",
        "n        1  25.0%    200 ± 100             200 ± 71",
        "kind     1  25.0%   b 67%, a 33%          b 50%, a 50%",
        "seen     1  25.0%   False 67%, True 33%   False 0%, True 100%",
    ]


def test_the_summary_stays_narrow_whatever_the_table_holds() -> None:
    n = 40
    long = "a very long name of a column that somebody chose"
    names = [f"level {i} with a long name" for i in range(n)]
    frame = pd.DataFrame({long: [*names, None], "huge": [*range(n), np.nan], "flat": [*range(n), np.nan]})
    frame["huge"] *= 1.2345e90
    frame["flat"] = 1e15 + frame["flat"] * 1e-12
    values = {long: np.array([names[:1]], dtype=object), "huge": [[-1e90]], "flat": [[1e-300]]}
    text = summary.format_summary(summary.summarise(Imputations(frame, values, m=1)))
    assert max(map(len, text)) <= 100
    assert text[1].startswith("a very long name of a col…") and "…" in text[1][30:]


def test_levels_that_do_not_fit_are_left_out_on_both_sides() -> None:
    labels = [f"species{i}" for i in range(6)]
    values = {"s": np.array([[labels[5]]], dtype=object)}
    frame = pd.DataFrame({"s": [*labels, labels[0], None]})
    row = summary.format_summary(summary.summarise(Imputations(frame, values, m=1)))[1]
    assert row == "s        1  12.5%   species0 29%, …   species0 0%, …"
