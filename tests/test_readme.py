"""The README's Python runs as it stands, from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_the_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 4
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    assert not names["draws"][0].isna().any().any()
    assert (tmp_path / "penguins-imputer" / "header.json").exists()


def test_modules_named_in_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    layout = text[text.index("## Layout") :]
    named = set(re.findall(r"`([a-z_]+)`", layout))
    modules = {path.stem for path in (ROOT / "pyro_mgp").glob("[!_]*.py")}
    assert modules == named
