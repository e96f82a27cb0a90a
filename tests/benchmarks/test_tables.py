"""`python -m benchmarks.paper.tables`: every run is done once, also after interruptions and failures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmarks.paper import tables
from benchmarks.paper.cell import Place, in_own_process, perform
from benchmarks.paper.methods.registry import METHODS
from benchmarks.paper.results import LAYOUT, MEASURED, Run, read
from benchmarks.runs.results import Results


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Small tables under the names of two public ones."""
    generator = np.random.default_rng(0)
    table = generator.normal(size=(90, 1)) + 0.5 * generator.normal(size=(90, 3))
    where = tmp_path / "data"
    where.mkdir()
    pd.DataFrame(table, columns=["a", "b", "c"]).to_csv(where / "parkinson.csv", index=False)
    pd.DataFrame(table**2).to_csv(where / "protein.csv.gz", header=False, index=False)
    return where


def _command(folder: Path, out: Path, *more: str) -> list[str]:
    return [
        "--data-dir", str(folder), "-o", str(out), "--datasets", "parkinson",
        "--rates", "20", "30", "--splits", "0", "--methods", "mean", "mice", *more,
    ]  # fmt: skip


def _without_times(path: Path) -> str:
    return read(path).drop(columns=list(MEASURED)).to_json(orient="records")


@pytest.mark.slow
def test_a_killed_command_continues_to_the_same_results(folder: Path, tmp_path: Path) -> None:
    killed, whole = tmp_path / "killed.csv", tmp_path / "whole.csv"
    fast = ("--methods", "mean", "median")
    command = [sys.executable, "-m", "benchmarks.paper.tables", *_command(folder, killed, *fast)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env=os.environ)
    deadline = time.monotonic() + 60
    while not killed.exists() or len(killed.read_text().splitlines()) < 3:
        assert process.poll() is None, process.communicate()[1].decode()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = killed.read_text().splitlines()[1:]
    assert 2 <= len(before) < 4
    # As if it had been killed while it wrote a line.
    with killed.open("a") as file:
        file.write("quick,parkinson,20,0,me")
    assert tables.main(_command(folder, killed, *fast)) == 0
    lines = killed.read_text().splitlines()[1:]
    assert len(lines) == 4
    # Their times are in these lines: they were not run again.
    assert set(before) <= set(lines)
    assert tables.main(_command(folder, whole, *fast, "--jobs", "2")) == 0
    assert _without_times(killed) == _without_times(whole)


def test_a_complete_file_is_left_unchanged(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results.csv"
    results = Results(out, LAYOUT)
    for run in tables.plan("quick", ["parkinson"], [20, 30], [0], ["mean", "mice"]):
        results.append(run, {"rmse": 1.0})
    results.sort()
    before = out.read_text()
    monkeypatch.setattr(tables, "in_own_process", lambda *_: pytest.fail("nothing is left to run"))
    assert tables.main(_command(folder, out)) == 0
    assert out.read_text() == before
    assert "4 runs in" in capsys.readouterr().out


def test_failures_are_reported_and_can_be_repeated(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, calls = tmp_path / "results.csv", list[Run]()

    def fail_on_mice(run: Run, place: Place) -> dict[str, Any]:
        calls.append(run)
        return {"error": "ValueError: no"} if run.method == "mice" and len(calls) <= 4 else {"rmse": 1.0}

    monkeypatch.setattr(tables, "in_own_process", fail_on_mice)
    assert tables.main(_command(folder, out)) == 0
    message = capsys.readouterr()
    assert "2 runs in" in message.out
    assert "2 that failed" in message.out
    assert "mice on parkinson, 20 %, split 0 failed: ValueError: no" in message.err
    assert (read(out)["error"] != "").sum() == 2
    assert tables.main(_command(folder, out)) == 0
    assert len(calls) == 4
    assert tables.main(_command(folder, out, "--retry-failed")) == 0
    assert len(calls) == 6
    assert (read(out)["error"] == "").all()


def test_an_exception_of_a_method_is_the_error_of_its_row(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr("benchmarks.paper.methods.classical.mean", broken)
    row = perform(Run("quick", "protein", 10, 0, "mean"), Place(str(folder)))
    assert row["error"] == "RuntimeError: out of luck"


def test_a_process_that_dies_is_the_error_of_its_row(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    row = in_own_process(Run("quick", "protein", 10, 0, "mean"), Place(str(folder)))
    assert row["error"] == "the process ended with status 1: it printed no message"


def test_a_run_ends_with_its_parent_process(folder: Path, tmp_path: Path) -> None:
    """The standard input of a run is closed when its parent ends."""
    order = '{"run": {}, "place": {}}'
    command = [sys.executable, "-c", _WATCHED, order, str(tmp_path / "out.json")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"watching\n"
    assert process.poll() is None
    process.communicate(timeout=30)
    assert process.returncode == 1


_WATCHED = """
import time
from benchmarks.runs import process
process.end_with_parent()
print("watching", flush=True)
time.sleep(60)
"""


def test_runs_are_planned_split_by_split() -> None:
    runs = tables.plan("paper", ["protein"], [10, 20], [0, 1], ["mean", "mgp"])
    assert [(run.split, run.method, run.rate) for run in runs[:5]] == [
        (0, "mean", 10), (0, "mean", 20), (0, "mgp", 10), (0, "mgp", 20), (1, "mean", 10),
    ]  # fmt: skip
    assert len(tables.plan()) == 5 * 12 * 4 * 4


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--datasets", "total_brain_volume", "not available"),
        ("--datasets", "iris", "no table 'iris'"),
        ("--methods", "magic", "no method 'magic'"),
        ("--rates", "100", "between 1 and 99"),
    ],
)
def test_invalid_options_are_refused_before_the_first_run(
    option: str, value: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tables.main([option, value, "-o", str(tmp_path / "r.csv")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "r.csv").exists()


def test_a_missing_table_is_an_error_before_the_first_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tables.main(["--data-dir", str(tmp_path), "-o", str(tmp_path / "r.csv")]) == 2
    assert "there is no" in capsys.readouterr().err


def test_the_help_names_every_method_and_table(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        tables.main(["--help"])
    message = " ".join(capsys.readouterr().out.split())
    assert all(
        name in message for name in [*METHODS, "protein", "keggdirected", "keggundirected", "parkinson"]
    )
