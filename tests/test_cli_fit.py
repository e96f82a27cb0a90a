"""`pyro-mgp fit`: what `impute --model` needs, and nothing half-written."""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path

import pytest
from test_cli_impute import CSV, stop_with

from pyro_mgp import MGPImputer, cli

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
    default = inspect.signature(MGPImputer).parameters["max_steps"].default
    assert re.search(rf"most training steps \(default: {default}\)", capsys.readouterr().out)


@pytest.mark.parametrize("where", ["imputer.MGPImputer.save", "_storage.become"])
def test_a_run_that_was_interrupted_goes_on(
    table: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    argv = (table, "-o", table.parent / "m", *OPTIONS, "--checkpoint-every", 0)
    with monkeypatch.context() as patch:
        patch.setattr(f"pyro_mgp.{where}", stop_with(KeyboardInterrupt()))
        assert run(*argv) == 130
    assert "what was done is kept" in capsys.readouterr().err
    assert sorted(os.listdir(table.parent)) == [".m.partial", "table.csv"]
    assert run(*argv, "--resume") == 0
    assert run(table, "-o", table.parent / "whole", *OPTIONS) == 0
    assert sorted(os.listdir(table.parent)) == ["m", "table.csv", "whole"]
    one, other = (MGPImputer.load(table.parent / name) for name in ("m", "whole"))
    assert one.history_.loss == other.history_.loss
    name = "arrays.safetensors"
    assert (table.parent / "m" / name).read_bytes() == (table.parent / "whole" / name).read_bytes()


def test_what_may_be_replaced(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = table.parent / "m"
    assert run(table, "-o", out, *OPTIONS) == 0
    assert run(table, "-o", out, *OPTIONS, "--resume") == 0
    assert "is complete: there is nothing to go on with" in capsys.readouterr().out
    assert run(table, "-o", out, *OPTIONS) == 2
    assert "exists already" in capsys.readouterr().err
    assert run(table, "-o", out, *OPTIONS, "--overwrite", "--seed", 1) == 0
    (out / "mine.txt").write_text("")
    assert run(table, "-o", out, *OPTIONS, "--overwrite") == 2
    assert "also holds 'mine.txt'" in capsys.readouterr().err
    assert cli.main(["impute", str(table), "-o", str(out), "--overwrite"]) == 2
    assert "was not written by this command" in capsys.readouterr().err
