"""The benchmark of time for valid imputations: its tables, time limits, order of runs and picture."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from benchmarks.coverage.methods import METHODS
from benchmarks.validity import __main__ as command
from benchmarks.validity import plot, run
from benchmarks.validity.results import COLUMNS, LAYOUT, MIXED, NUMBERS, Run


def test_tables_have_the_sizes_of_their_runs() -> None:
    few, many = run.table(Run(NUMBERS, 50, 10, "mgp")), run.table(Run(NUMBERS, 50, 100, "mgp"))
    assert few.shape == (50, 10) and few.isna().any().all()
    assert many.shape == (50, 100)
    assert many.isna().any().tolist() == [True] * 30 + [False] * 70
    mixed = run.table(Run(MIXED, 60, 7, "mgp"))
    assert mixed.shape == (60, 7) and mixed.isna().any().sum() == 5


def test_a_run_has_time_and_memory_or_the_reason_of_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def impute(frame: pd.DataFrame, m: int, seed: int) -> list[pd.DataFrame]:
        time.sleep(0.05 if len(frame) < 300 else 5)
        return [frame.fillna(0.0)] * m

    monkeypatch.setitem(METHODS, "mgp", impute)
    row = run.perform({"run": vars(Run(NUMBERS, 200, 3, "mgp")), "limit": 2})
    assert row.keys() == {"seconds", "gigabytes"}
    assert 0.05 <= row["seconds"] < 2
    row = run.perform({"run": vars(Run(NUMBERS, 400, 3, "mgp")), "limit": 1})
    assert row == {"error": "TimeoutError: not done after 1 s"}


def test_small_tables_come_first_and_larger_ones_than_a_late_one_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = command.plan(["mgp", "mice_pmm"], 10_000)
    cells = [each.n_rows * each.n_columns for each in runs]
    assert cells == sorted(cells) and max(each.n_rows for each in runs) == 10_000
    with pytest.raises(ValueError, match="there is no method 'none'"):
        command.plan(["none"], 10_000)

    def timed_out(each: Run, limit: int) -> dict[str, Any]:
        return {"error": "TimeoutError: not done"} if each.method == "mgp" else {"seconds": 1.0}

    monkeypatch.setattr(command, "in_own_process", timed_out)
    late = list[Run]()
    rows = {each: command.unless_late(each, late, 9) for each in runs}
    assert all(row == {"seconds": 1.0} for each, row in rows.items() if each.method == "mice_pmm")
    assert {each for each in rows if each in late} == {
        Run(MIXED, 1000, 7, "mgp"),
        Run(NUMBERS, 1000, 10, "mgp"),
    }
    assert "mgp on 1,000 rows of 10 columns" in rows[Run(NUMBERS, 1000, 50, "mgp")]["error"]


def test_a_file_of_results_tells_which_runs_were_late(tmp_path: Path) -> None:
    out = tmp_path / "results.csv"
    assert command.late_in(out) == []
    assert command.late_in(out) == []  # with a header now, as if killed in its first run
    (tmp_path / "other.csv").write_text("a,b\n1,2\n", "utf-8")
    with pytest.raises(ValueError, match=r"other\.csv"):
        command.late_in(tmp_path / "other.csv")
    rows = [
        (NUMBERS, 1000, 10, "mgp", 20, 2.0, 0.1, 9, "1.0", ""),
        (NUMBERS, 10_000, 10, "mgp", 20, None, None, 9, "1.0", "TimeoutError: not done after 9 s"),
    ]
    pd.DataFrame(rows, columns=list(COLUMNS)).to_csv(out, index=False)
    assert command.late_in(out) == [Run(NUMBERS, 10_000, 10, "mgp")]
    assert command.main(["-o", str(out), "--jobs", "2"]) == 2


def test_late_runs_are_repeated_with_a_longer_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def do(each: Run, limit: int) -> dict[str, Any]:
        return {"seconds": 1.0} if limit > 9 else {"error": "TimeoutError: not done"}

    monkeypatch.setattr(command, "in_own_process", do)
    given = ["-o", str(tmp_path / "results.csv"), "--methods", "mgp", "--most-rows", "1000"]
    command.main([*given, "--limit", "9"])
    assert "0 runs in" in capsys.readouterr().out
    command.main([*given, "--limit", "90", "--retry-failed"])
    assert "5 runs in" in capsys.readouterr().out


def test_the_picture_has_a_line_per_method(tmp_path: Path) -> None:
    rows = [
        (kind, n, d, method, 20, n * d / 1e4, 0.1, 600, "1.0", "")
        for kind, sizes in (
            (NUMBERS, [(1000, 10), (10_000, 10), (1000, 50)]),
            (MIXED, [(1000, 7), (10_000, 7)]),
        )
        for n, d in sizes
        for method in ("mgp", "mice_pmm")
    ]
    out, picture = tmp_path / "results.csv", tmp_path / "time.png"
    pd.DataFrame(rows, columns=list(COLUMNS)).to_csv(out, index=False)
    words = plot.draw(LAYOUT.read(out), picture)
    assert "mgp 10 s at 10,000" in words
    assert picture.stat().st_size > 10_000
