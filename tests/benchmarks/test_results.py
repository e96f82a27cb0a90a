"""Results file: complete lines, no duplicates, and the same content in any order of writing."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.paper.results import COLUMNS, LAYOUT, Run, read
from benchmarks.runs.results import Results


def _run(split: int = 0, method: str = "mean", dataset: str = "protein") -> Run:
    return Run("quick", dataset, 10, split, method)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sub" / "results.csv"


def test_runs_are_read_back_as_they_were_written(path: Path) -> None:
    results = Results(path, LAYOUT)
    results.append(_run(0), {"rmse": 1 / 3, "seconds": 0.5, "crps": float("nan")})
    results.append(_run(1), {"error": "ValueError: two\nlines, and a comma"})
    table = read(path)
    assert table.columns.tolist() == list(COLUMNS)
    assert table["rmse"][0] == 1 / 3
    assert table["crps"].isna().all()
    assert table["error"].tolist() == ["", "ValueError: two lines, and a comma"]
    assert Results(path, LAYOUT).done() == {_run(0), _run(1)}
    assert Results(path, LAYOUT).done(count_failed=False) == {_run(0)}


@pytest.mark.parametrize("torn", [1, 5, 20])
def test_an_incomplete_last_line_is_removed(path: Path, torn: int) -> None:
    results = Results(path, LAYOUT)
    results.append(_run(0), {"rmse": 1.0})
    whole = path.read_text()
    results.append(_run(1), {"rmse": 2.0})
    path.write_text(path.read_text()[:-torn])
    again = Results(path, LAYOUT)
    assert path.read_text() == whole
    assert again.done() == {_run(0)}


def test_an_incomplete_header_is_rewritten(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("profile,data")
    assert Results(path, LAYOUT).done() == set()
    assert path.read_text() == ",".join(COLUMNS) + "\n"


@pytest.mark.parametrize("text", ["something else", "a,b\n1,2\n"])
def test_another_file_is_refused_and_kept(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ValueError, match="was not written by"):
        Results(path, LAYOUT)
    assert path.read_text() == text


def test_sorted_results_do_not_depend_on_the_order_of_writing(tmp_path: Path) -> None:
    runs = [_run(s, m, d) for d in ("protein", "parkinson") for s in (0, 1) for m in ("mean", "knn", "dgp")]
    texts = []
    for name, order in (("a", runs), ("b", runs[::-1])):
        results = Results(tmp_path / name, LAYOUT)
        for run in order:
            results.append(run, {"rmse": run.split})
        results.sort()
        texts.append((tmp_path / name).read_text())
    assert texts[0] == texts[1]
    assert read(tmp_path / "a")["method"].tolist()[:3] == ["mean", "knn", "dgp"]
    assert [file.name for file in sorted(tmp_path.iterdir())] == ["a", "b"]


def test_failed_runs_can_be_removed(path: Path) -> None:
    results = Results(path, LAYOUT)
    results.append(_run(0), {"rmse": 1.0})
    results.append(_run(1), {"error": "MemoryError: "})
    results.sort(keep_failed=False)
    assert results.done() == {_run(0)}


def test_an_empty_file_holds_no_results(path: Path) -> None:
    Results(path, LAYOUT)
    with pytest.raises(ValueError, match="holds no results"):
        read(path)
