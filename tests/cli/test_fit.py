"""`pyro-mgp fit`: what `impute --model` needs, and nothing half-written."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pyro_mgp import MGPImputer, cli, settings
from pyro_mgp._support import processes
from pyro_mgp.fitting import table_fit
from tests.cli.test_impute import CSV, stop_with

OPTIONS = ("--steps", "12", "--drop", "name", "note", "--quiet")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "table.csv").write_text(CSV, "utf-8")
    return tmp_path / "table.csv"


def run(*argv: object) -> int:
    return cli.main(["fit", *map(str, argv)])


def test_settings_reach_the_imputer(table: Path) -> None:
    assert run(table, "-o", table.parent / "m", *OPTIONS, "--columns", "all", "--seed", 4) == 0
    imputer = MGPImputer.load(table.parent / "m")
    assert (imputer.max_steps, imputer.columns, imputer.seed_) == (12, "all", 4)


@pytest.mark.parametrize("command", ["fit", "impute"])
def test_the_help_knows_the_default_of_the_constructor(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    near, other, elsewhere = settings.STEPS_WITH_NEIGHBOURS, settings.STEPS_OF_OTHER_KINDS, settings.STEPS
    assert f"most training steps (default: {near} where" in printed
    assert f"is added, {other} in a joint density" in printed and f", {elsewhere} elsewhere)" in printed


@pytest.mark.parametrize("where", ["imputer.MGPImputer.save", "storage.atomic.move_into_place"])
def test_a_run_that_was_interrupted_goes_on(
    table: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    argv = (table, "-o", table.parent / "m", *OPTIONS, "--checkpoint-every", 0)
    with monkeypatch.context() as patch:
        patch.setattr(f"pyro_mgp.{where}", stop_with(KeyboardInterrupt()))
        assert run(*argv) == 130
    assert "finished work is kept" in capsys.readouterr().err
    assert sorted(os.listdir(table.parent)) == [".m.partial", "table.csv"]
    assert run(*argv, "--resume") == 0
    assert run(table, "-o", table.parent / "whole", *OPTIONS) == 0
    assert sorted(os.listdir(table.parent)) == ["m", "table.csv", "whole"]
    one, other = (MGPImputer.load(table.parent / name) for name in ("m", "whole"))
    assert one.history_.loss == other.history_.loss
    name = "arrays.safetensors"
    assert (table.parent / "m" / name).read_bytes() == (table.parent / "whole" / name).read_bytes()


def test_a_folder_is_fitted_file_by_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_fit, "_SMALL_ROWS", 1000)
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(1100, 3)).cumsum(1), columns=list("abc"))
    frame = frame.mask(np.arange(3300).reshape(1100, 3) % 7 == 0).assign(id=range(1100))
    (tmp_path / "in").mkdir()
    frame[:600].to_parquet(tmp_path / "in" / "0.parquet")
    frame[600:].to_parquet(tmp_path / "in" / "1.parquet")
    options = ("--drop", "id", "--steps", 5, "--scratch", tmp_path)
    assert run(tmp_path / "in", "-o", tmp_path / "m", *options) == 0
    assert "1100 rows, 3 columns" in capsys.readouterr().out
    expected = MGPImputer(inputs="others", random_state=0, max_steps=5, progress=False)
    expected.fit(frame.drop(columns="id"))
    assert MGPImputer.load(tmp_path / "m").history_.loss == expected.history_.loss
    assert run(tmp_path / "in", "-o", tmp_path / "m", *options, "--resume") == 0
    assert "is complete" in capsys.readouterr().out
    frame[:600].to_parquet(tmp_path / "in" / "1.parquet")
    assert run(tmp_path / "in", "-o", tmp_path / "m", *options, "--resume") == 2
    assert run(tmp_path / "in", "-o", tmp_path / "n", "--drop", "name") == 2
    assert "there is no column 'name'; the table has a, b, c, id" in capsys.readouterr().err


@pytest.mark.slow
def test_processes_that_torchrun_started_fit_together(table: Path) -> None:
    start = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    command = ("-m", "pyro_mgp", "fit", table, "-o", table.parent / "m", *OPTIONS[:-1], "--distributed")
    done = subprocess.run(list(map(str, (*start, *command))), check=True, capture_output=True, text=True)
    assert done.stdout.count("written") == 1
    assert run(table, "-o", table.parent / "alone", *OPTIONS) == 0
    both, alone = (MGPImputer.load(table.parent / name).history_.loss for name in ("m", "alone"))
    np.testing.assert_allclose(both, alone, rtol=1e-6)
    assert sorted(os.listdir(table.parent)) == ["alone", "m", "table.csv"]


def test_what_was_done_is_kept_when_another_process_ends(
    table: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "data_parallel", lambda: nullcontext(processes.Workers(0, 2)))
    lost = stop_with(RuntimeError("Connection closed by peer"))
    monkeypatch.setattr("pyro_mgp.imputer.MGPImputer.save", lost)
    argv = (table, "-o", table.parent / "m", *OPTIONS, "--checkpoint-every", 0, "--distributed")
    assert run(*argv) == 2
    told = capsys.readouterr().err
    assert "another of the 2 processes has ended: Connection closed by peer" in told
    assert (table.parent / ".m.partial" / "training").exists()


def test_outside_of_torchrun_there_is_nobody_to_fit_with(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(table, "-o", table.parent / "m", "--distributed") == 2
    assert "expected processes that torchrun has started" in capsys.readouterr().err


def test_what_may_be_replaced(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = table.parent / "m"
    assert run(table, "-o", out, *OPTIONS) == 0
    assert run(table, "-o", out, *OPTIONS, "--resume") == 0
    assert "is complete: there is nothing to resume" in capsys.readouterr().out
    assert run(table, "-o", out, *OPTIONS) == 2
    assert "exists already" in capsys.readouterr().err
    assert run(table, "-o", out, *OPTIONS, "--overwrite", "--seed", 1) == 0
    (out / "mine.txt").write_text("")
    assert run(table, "-o", out, *OPTIONS, "--overwrite") == 2
    assert "also holds 'mine.txt'" in capsys.readouterr().err
    assert cli.main(["impute", str(table), "-o", str(out), "--overwrite"]) == 2
    assert "was not written by this command" in capsys.readouterr().err
