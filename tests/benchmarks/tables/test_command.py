"""`python -m benchmarks.tables`: what is run, what a row holds, and what is refused before the first run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmarks.paper.imputed import Imputed, cells_of
from benchmarks.tables import __main__ as tables
from benchmarks.tables.cell import in_own_process, perform
from benchmarks.tables.methods.registry import METHODS, Method
from benchmarks.tables.results import DATASETS, LAYOUT, Run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Small tables under the names of two public ones, one with a column of few different cells."""
    g = np.random.default_rng(0)
    table = pd.DataFrame(g.normal(size=(90, 1)) + 0.5 * g.normal(size=(90, 4)))
    where = tmp_path / "data"
    (where / "suite").mkdir(parents=True)
    table.to_csv(where / "suite" / "servo.csv.gz", header=False, index=False)
    table.assign(rare=np.arange(90) == 7).astype(float).to_csv(
        where / "suite" / "yacht.csv.gz", header=False, index=False
    )
    return where


def _command(folder: Path, out: Path, *more: str) -> list[str]:
    return [
        "--data-dir", str(folder), "-o", str(out), "--tables", "servo", "--patterns", "mcar30", "block30",
        "--seeds", "0", "--methods", "mean", "knn", *more,
    ]  # fmt: skip


@pytest.mark.slow
def test_runs_have_processes_of_their_own_and_are_not_repeated(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results.csv"
    assert tables.main(_command(folder, out)) == 0
    assert "4 runs in" in capsys.readouterr().out
    table = LAYOUT.read(out)
    assert (table["error"] == "").all()
    assert table["method"].tolist() == ["mean", "knn"] * 2
    assert table["pattern"].tolist() == ["mcar30"] * 2 + ["block30"] * 2
    assert (table[["n_rows", "n_columns"]] == [90, 4]).all(axis=None)
    assert table["peak_gigabytes"].between(0.05, 5).all()
    before = out.read_text()
    monkeypatch.setattr(tables, "in_own_process", lambda *_: pytest.fail("nothing is left to run"))
    assert tables.main(_command(folder, out)) == 0
    assert out.read_text() == before


def test_the_number_of_rows_is_part_of_a_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = list[Run]()
    monkeypatch.setattr(tables, "in_own_process", lambda run, _: calls.append(run) or {"rmse": 1.0})
    out = tmp_path / "results.csv"
    for size in ([], ["--rows", "50"], ["--profile", "all"], ["--rows", "3000"]):
        assert tables.main(_command(folder, out, *size)) == 0
    assert [run.rows for run in calls] == [3000] * 4 + [50] * 4 + [0] * 4
    row = perform(Run(50, "servo", "mcar10", 0, "mean"), str(folder))
    assert row["n_rows"] == 50


def test_failed_runs_are_repeated_on_request(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tables, "in_own_process", lambda run, _: {"error": "ValueError: no"})
    out = tmp_path / "results.csv"
    assert tables.main(_command(folder, out)) == 0
    message = capsys.readouterr()
    assert "4 that failed" in message.out
    assert "knn on servo, block30, seed 0 failed: ValueError: no" in message.err
    monkeypatch.setattr(tables, "in_own_process", lambda run, _: {"rmse": 1.0})
    assert tables.main(_command(folder, out, "--retry-failed")) == 0
    assert (LAYOUT.read(out)["error"] == "").all()


def _stub(monkeypatch: pytest.MonkeyPatch, impute: Any) -> None:
    monkeypatch.setitem(METHODS, "mean", Method("Mean", lambda: impute))


def test_a_method_gets_the_incomplete_table_and_may_state_its_own_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = list[pd.DataFrame]()

    def impute(table: pd.DataFrame, seed: int) -> Imputed:
        given.append(table)
        return Imputed(cells_of(table.fillna(float(seed)), table), seconds=12.5)

    _stub(monkeypatch, impute)
    row = perform(Run(0, "servo", "mcar50", 3, "mean"), str(folder))
    assert row["seconds"] == 12.5
    assert row["draws"] is None
    assert row["n_missing"] == given[0].isna().to_numpy().sum()
    assert row["rmse"] > 1


def test_a_column_that_is_constant_where_it_is_observed_is_left_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = set[int]()

    def impute(table: pd.DataFrame, seed: int) -> Imputed:
        assert (table.nunique() > 1).all()
        columns.add(table.shape[1])
        return Imputed(cells_of(table.fillna(0.0), table))

    _stub(monkeypatch, impute)
    for seed in range(20):
        row = perform(Run(0, "yacht", "mcar30", seed, "mean"), str(folder))
        assert "error" not in row
    assert columns == {4, 5}


def test_an_exception_of_a_method_is_the_error_of_its_row(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _stub(monkeypatch, lambda table, seed: 1 / 0)
    row = perform(Run(0, "servo", "mcar10", 0, "mean"), str(folder))
    assert row["error"] == "ZeroDivisionError: division by zero"


def test_a_process_that_dies_is_the_error_of_its_row(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    row = in_own_process(Run(0, "servo", "mcar10", 0, "mean"), str(folder))
    assert row["error"] == "the process ended with status 1: it printed no message"


def test_runs_are_planned_seed_by_seed() -> None:
    runs = tables.plan(1000, ["servo"], ["mcar10", "mar30"], [0, 1], ["mean", "mgp"])
    assert [(run.seed, run.method, run.pattern) for run in runs[:5]] == [
        (0, "mean", "mcar10"), (0, "mean", "mar30"), (0, "mgp", "mcar10"), (0, "mgp", "mar30"),
        (1, "mean", "mcar10"),
    ]  # fmt: skip
    assert len(DATASETS) == 21
    assert len(tables.plan(0, seeds=[0], methods=["mgp"])) == 21 * 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tables", "iris"], "no table 'iris'"),
        (["--patterns", "mnar30"], "no pattern 'mnar30'"),
        (["--methods", "magic"], "no method 'magic'"),
        (["--methods", "hyperimpute"], "name its Python with --rivals-python"),
    ],
)
def test_what_cannot_be_run_is_refused_before_the_first_run(
    options: list[str],
    message: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("PYRO_MGP_RIVALS", raising=False)
    monkeypatch.setattr(tables, "in_own_process", lambda *_: pytest.fail("no run begins"))
    assert tables.main([*_command(folder, tmp_path / "r.csv"), *options]) == 2
    assert message in capsys.readouterr().err


def test_the_help_names_every_method_table_and_pattern(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        tables.main(["--help"])
    message = " ".join(capsys.readouterr().out.split())
    assert all(name in message for name in [*METHODS, *DATASETS, *tables.PATTERNS])
