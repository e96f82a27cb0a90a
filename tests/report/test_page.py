"""Pages: whatever users wrote stays text, and a page is written whole or not at all."""

from __future__ import annotations

import os
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from pyro_mgp.report.page import Html, described, listed, page, picture, table, tag, together, write


class Reader(HTMLParser):
    """Text and elements of a piece of HTML; an element that is not closed, or closed twice, is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} has an attribute twice"
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br", "hr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@given(st.text(), st.text())
def test_texts_and_attributes_come_back_as_they_were(text: str, value: str) -> None:
    plain = text.replace("\r", "").replace("\0", "")
    read = Reader(tag("p", plain, title=value.replace("\r", "").replace("\0", "")))
    assert read.text == plain
    assert read.found == [("p", {"title": value.replace("\r", "").replace("\0", "")})]


def test_elements_are_put_together() -> None:
    inner = tag("em", "<b>")
    assert inner == "<em>&lt;b&gt;</em>"
    assert tag("p", "a", None, inner, class_="x", aria_label=None) == f'<p class="x">a{inner}</p>'
    assert tag("img", alt='"') == '<img alt="&quot;">'
    assert together(["<", None, Html("<br>")]) == "&lt;<br>"
    assert listed(["<"]) == "<ul><li>&lt;</li></ul>"
    assert described([("a", "b")]) == "<dl><div><dt>a</dt><dd>b</dd></div></dl>"


def test_tables_have_headings_and_a_box_of_their_own() -> None:
    read = Reader(table("What & why", ["name", "n"], [["<x>", "1"], ["y", "2"]]))
    assert read.text == "What & whynamen<x>1y2"
    assert [(name, a.get("scope")) for name, a in read.found if name == "th"] == [
        ("th", "col"),
        ("th", "col"),
        ("th", "row"),
        ("th", "row"),
    ]
    assert read.found[0] == (
        "div",
        {"class": "scroll", "role": "region", "aria-label": "What & why", "tabindex": "0"},
    )


@pytest.mark.parametrize(("points", "kind"), [(3, "svg+xml"), (20_000, "png")])
def test_pictures_are_lines_or_points_whichever_is_smaller(points: int, kind: str) -> None:
    figure = Figure(figsize=(4, 3))
    figure.subplots().plot(range(points), [(7 * i) % 11 for i in range(points)], ",")
    shown = picture(figure, 'A "line"', "Look & see")
    assert picture(figure, 'A "line"', "Look & see") == shown
    ((_, image),) = [each for each in Reader(shown).found if each[0] == "img"]
    assert image["alt"] == 'A "line"'
    assert image["src"] is not None
    assert image["src"].startswith(f"data:image/{kind};base64,")
    assert (image["width"], image["height"]) == ("384", "288")


def test_a_page_stands_alone() -> None:
    whole = page("a < b", "1.0", tag("h1", "a < b"))
    read = Reader(whole)
    assert whole.startswith('<!DOCTYPE html>\n<html lang="en">')
    names = [name for name, _ in read.found]
    assert names[:2] == ["html", "head"]
    assert "script" not in names and "link" not in names
    assert "default-src 'none'" in (dict(read.found[5][1]).get("content") or "")


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "deep" / "page.html"
    assert write(target, page("one", "1")) == target
    with pytest.raises(ValueError, match="exists already"):
        write(target, page("two", "1"))

    def fail(*_: object) -> None:
        raise OSError("no room")

    with monkeypatch.context() as broken:
        broken.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="no room"):
            write(target, page("two", "1"), overwrite=True)
    assert "<title>one</title>" in target.read_text("utf-8")
    assert [each.name for each in target.parent.iterdir()] == ["page.html"]
    write(target, page("two", "1"), overwrite=True)
    assert "<title>two</title>" in target.read_text("utf-8")


def test_what_others_wrote_is_not_replaced(tmp_path: Path) -> None:
    other = tmp_path / "mine.html"
    other.write_text("<p>my own")
    with pytest.raises(ValueError, match="was not written by pyro_mgp"):
        write(other, page("x", "1"), overwrite=True)
    assert other.read_text() == "<p>my own"
    with pytest.raises(ValueError, match="is a folder"):
        write(tmp_path, page("x", "1"), overwrite=True)
