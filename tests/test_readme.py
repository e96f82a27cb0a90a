"""The Python of README and documentation runs as written, and every link and module in it exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = [page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "notebooks"]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
# `tests/docs/test_how_to.py` runs these.
ELSEWHERE = {ROOT / "docs" / "coming-from.md", *(ROOT / "docs" / "how-to").glob("*.md")}
RUN = [page for page in PAGES if page not in ELSEWHERE and "```python" in page.read_text("utf-8")]


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", RUN, ids=named)
@pytest.mark.slow
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
        exec(block, names)
    if page.stem == "README":
        assert not names["draws"][0].isna().any().any()  # type: ignore[index]
        assert (tmp_path / "penguins-imputer" / "header.json").exists()
    if page.stem == "pyro":
        for losses in (names["losses"], names["laplace_losses"]):
            assert sum(losses[-3:]) < sum(losses[:3])  # type: ignore[index]
    assert names


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


def test_packages_of_the_architecture_page_are_those_that_exist() -> None:
    table = (ROOT / "docs" / "architecture.md").read_text("utf-8").split("| package |")[1]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    folder = ROOT / "pyro_mgp"
    found = {p.stem for p in folder.iterdir() if (p / "__init__.py").exists() or p.suffix == ".py"}
    assert listed == found - {"__init__", "__main__"}


def test_modules_named_in_the_documentation_exist() -> None:
    packages = r"(?:model|inference|sampling|data|results|analysis|evaluation|_support)"
    for page in PAGES:
        for name in re.findall(rf"`({packages}(?:\.[a-z_]+)+)`", page.read_text("utf-8")):
            module, _, attribute = f"pyro_mgp.{name}".rpartition(".")
            try:
                importlib.import_module(f"pyro_mgp.{name}")
            except ModuleNotFoundError:
                assert hasattr(importlib.import_module(module), attribute), f"{page.name}: {name}"
