"""The twenty how-to answers, and the page for users of other packages, run as written and are linked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "how-to"
ANSWERS = [FOLDER / f"{name}.md" for name in ("tables", "imputing", "analysing", "checking")]
COMING_FROM = ROOT / "docs" / "coming-from.md"


def named(page: Path) -> str:
    return page.stem


def blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def n_lines(block: str) -> int:
    return sum(bool(line.strip()) for line in block.splitlines())


def sections(page: Path) -> dict[str, str]:
    """Return the text under each heading of the second level."""
    _, *parts = re.split(r"^## ", page.read_text("utf-8"), flags=re.MULTILINE)
    return dict(part.split("\n", 1) for part in parts)


def slug(heading: str) -> str:
    """Return the anchor that MyST and GitHub give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_there_are_twenty_questions() -> None:
    questions = [question for page in ANSWERS for question in sections(page)]
    assert len({slug(question) for question in questions}) == len(questions) == 20
    assert all(question.endswith("?") for question in questions)
    assert {page.name for page in FOLDER.glob("*.md")} == {*(page.name for page in ANSWERS), "index.md"}


@pytest.mark.parametrize("page", ANSWERS, ids=named)
def test_each_answer_has_one_short_block(page: Path) -> None:
    for question, answer in sections(page).items():
        own = blocks(answer)
        assert len(own) == 1, question
        assert n_lines(own[0]) <= 10, question
    assert len(blocks(page.read_text("utf-8").split("\n## ")[0])) <= 1


@pytest.mark.parametrize("page", [*ANSWERS, COMING_FROM], ids=named)
@pytest.mark.slow
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks(page.read_text("utf-8")):
        exec(block, names)
    assert names


def test_each_other_package_has_a_table_and_a_short_example() -> None:
    parts = {heading: text for heading, text in sections(COMING_FROM).items() if heading.startswith("From ")}
    assert len(parts) == 3
    for heading, text in parts.items():
        own = blocks(text)
        assert len(own) == 1 and n_lines(own[0]) <= 10, heading
        assert "|---|---|" in text, heading


def test_the_index_links_every_question_once() -> None:
    links = re.findall(r"^- \[(.+)\]\((.+)\)$", (FOLDER / "index.md").read_text("utf-8"), re.MULTILINE)
    expected = [
        (question, f"{page.name}#{slug(question)}") for page in ANSWERS for question in sections(page)
    ]
    assert links == expected


@pytest.mark.parametrize("page", [FOLDER / "index.md", *ANSWERS, COMING_FROM], ids=named)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", page.read_text("utf-8")):
        linked = (page.parent / target).resolve()
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", linked.read_text("utf-8"), re.MULTILINE)
            assert anchor in {slug(heading) for heading in headings}, f"{target}#{anchor}"
