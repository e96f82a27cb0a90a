"""Runs that are killed and resumed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import faults

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="processes are forked"),
    # Forked with threads of earlier tests around, which the children do not need.
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]


@pytest.mark.slow
def test_killed_runs_resume_to_equal_files(tmp_path: Path) -> None:
    kills = list(faults.run(tmp_path, 3, rows=80, steps=12, seed=1))
    assert [kill.command for kill in kills] == ["fit", "impute", "fit"]
    assert [kill for kill in kills if not kill.good] == []


def test_differing_files_and_incomplete_output_are_found(tmp_path: Path) -> None:
    for name, seconds, cell in (("a", 1.0, "1"), ("b", 2.0, "2")):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub" / "header.json").write_text(json.dumps({"history": {"seconds": seconds}}))
        (tmp_path / name / "cells.csv").write_text(cell)
    (tmp_path / "b" / "more").write_text("")
    assert faults.differences(tmp_path / "a", tmp_path / "b") == ["cells.csv", "more"]
    assert faults._unfinished(tmp_path / "a", tmp_path / "b") == {"a"}
    assert faults._unfinished(tmp_path / "none", tmp_path / "b") == set()
