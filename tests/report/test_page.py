"""The page: text from tables is escaped, images are inside, and files are written atomically."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import UndefinedError
from matplotlib.figure import Figure

from pyro_mgp import Imputations, MGPImputer
from pyro_mgp.report.report import check_replaceable, image, render, write_report


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


DRAWS = Imputations(pd.DataFrame({"x": [1.0, None]}), {"x": [[2.0]]}, m=1)
IMAGE = {"source": "data:image/png;base64,", "width": 4.0, "height": 3.0}


def page(name: str = "t", column: str = "x", rows: Sequence[Sequence[str]] = ()) -> str:
    """A page on two cells of a table, with one picture and one table."""
    shown = {"image": IMAGE, "name": column, "observed": "1", "imputed": "2", "n": 1}
    return render(
        {
            "name": name,
            "settings": {},
            "draws": DRAWS,
            "imputer": SimpleNamespace(seed_=0, order_=[], sequential_=False),
            "holes": np.array([[False], [True]]),
            "calibration": None,
            "verdict": {"headline": "Not judged", "reason": "nobody looked", "look": ""},
            "caveat": "A caveat.",
            "trust": None,
            "columns": rows,
            "missing_cells": {},
            "values": {"columns": [shown], "n_more": 0},
            "cells": None,
            "relevance": None,
            "explained": None,
            "training": None,
            "mixing": None,
            "warnings": {"table": [], "slow": [], "sparse": [], "miscalibrated": [], "not_judged": []},
            "made": {"changed": "", "chosen": []},
        }
    )


def read(text: str) -> Reader:
    return Reader(text.removeprefix("<!DOCTYPE html>\n"))


@settings(max_examples=30, deadline=None)
@given(st.text(), st.text())
def test_texts_and_attributes_are_escaped(text: str, value: str) -> None:
    plain, value = (each.replace("\r", "").replace("\0", "") for each in (text, value))
    found, benign = read(page(plain, value)), read(page())
    assert f"\n{plain}: multiple imputation\n" in found.text
    assert found.text.count(f"{plain}: multiple imputation") >= 2
    (picture,) = [attributes for name, attributes in found.found if name == "img"]
    assert picture["alt"] == f"Distribution of {value}. Observed: 1. Imputed, 1 cells: 2."
    assert [(name, set(attributes)) for name, attributes in found.found] == [
        (name, set(attributes)) for name, attributes in benign.found
    ]


def test_tables_have_headings_and_a_box_of_their_own() -> None:
    found = read(page(rows=[["<x>", "What & why", "1"], ["y", "", "2"]]))
    assert "".join(found.text.split()).count("<x>What&why1y2") == 1
    scopes = [attributes.get("scope") for name, attributes in found.found if name == "th"]
    assert scopes == ["col"] * 6 + ["row"] * 2 + ["col"] * 3  # the last table is that of settings
    box, _ = [attributes for _, attributes in found.found if attributes.get("role") == "region"]
    assert (box["class"], box["tabindex"]) == ("scroll", "0")
    assert (box["aria-label"] or "").startswith("Mean ± sd")
    cells = [attributes["class"] for name, attributes in found.found if name == "td"]
    assert cells == ["text", "figure"] * 2


@pytest.mark.parametrize(("points", "kind"), [(3, "svg+xml"), (20_000, "png")])
def test_images_are_lines_or_points_whichever_is_smaller(points: int, kind: str) -> None:
    figure = Figure(figsize=(4, 3))
    figure.subplots().plot(range(points), [(7 * i) % 11 for i in range(points)], ",")
    shown = image(figure)
    assert image(figure) == shown
    assert shown["source"].startswith(f"data:image/{kind};base64,")
    assert (shown["width"], shown["height"]) == (4.0, 3.0)


def test_a_page_is_self_contained() -> None:
    whole = page("a < b")
    found = read(whole)
    assert whole.startswith('<!DOCTYPE html>\n<html lang="en">')
    names = [name for name, _ in found.found]
    assert names[:2] == ["html", "head"]
    assert "script" not in names and "link" not in names
    assert "default-src 'none'" in (dict(found.found[5][1]).get("content") or "")
    (picture,) = [attributes for name, attributes in found.found if name == "img"]
    assert (picture["width"], picture["height"], picture["style"]) == ("384", "288", "min-width:228px")


def test_an_absent_variable_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="'holes' is undefined"):
        render({"name": "t"})


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, frame = tmp_path / "deep" / "page.html", pd.DataFrame({"x": [1.0, 2.0], "y": [3.0, None]})
    draws, imputer = Imputations(frame, {"y": [[2.0]]}, m=1), MGPImputer(random_state=0).fit(frame.fillna(5))
    check_replaceable(target, overwrite=False)
    write_report(draws, target, imputer, None, name="one")
    with pytest.raises(ValueError, match="exists already"):
        check_replaceable(target, overwrite=False)

    def fail(*_: object) -> None:
        raise OSError("no room")

    with monkeypatch.context() as broken:
        broken.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="no room"):
            write_report(draws, target, imputer, None, name="two")
    assert "<title>one: multiple imputation</title>" in target.read_text("utf-8")
    assert [each.name for each in target.parent.iterdir()] == ["page.html"]
    check_replaceable(target, overwrite=True)
    write_report(draws, target, imputer, None, name="two")
    assert "<title>two: multiple imputation</title>" in target.read_text("utf-8")


def test_files_of_other_programs_are_not_replaced(tmp_path: Path) -> None:
    other = tmp_path / "mine.html"
    other.write_text("<p>my own")
    with pytest.raises(ValueError, match="was not written by pyro_mgp"):
        check_replaceable(other, overwrite=True)
    assert other.read_text() == "<p>my own"
    with pytest.raises(ValueError, match="is a folder"):
        check_replaceable(tmp_path, overwrite=True)
