"""Notebooks equal their scripts, were executed without warnings, and still run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jupytext
import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
STEMS = [
    "01_first_imputation",
    "02_inside_the_chain",
    "03_analysis_and_pooling",
    "04_diagnostics",
    "05_missing_not_at_random",
    "06_detection_limits",
    "07_visits",
    "08_to_the_paper",
]
OTHERS = {"README.md", "execute.py"}
MOST_BYTES = 1_500_000
# Warnings of other packages.
IGNORED = ["ignore::FutureWarning:arviz", "ignore:Passing a dict or None as alias_mapping"]
# Absolute paths with at least one folder.
PATH = re.compile(r"(?:^|[\s\"'(=:])(?:/|[A-Z]:\\)[\w.-]+[/\\][\w./\\-]+", re.MULTILINE)


def outputs(stem: str) -> list[Any]:
    cells = jupytext.read(FOLDER / f"{stem}.ipynb").cells
    return [output for cell in cells if cell.cell_type == "code" for output in cell.outputs]


def texts(stem: str) -> list[str]:
    """Return the texts of all outputs, without pictures."""
    return [
        text
        for output in outputs(stem)
        for text in [output.get("text", ""), *output.get("data", {}).values()]
        if text != output.get("data", {}).get("image/png")
    ]


def test_every_notebook_has_a_script_and_there_are_no_other_files() -> None:
    files = {path.name for path in FOLDER.iterdir() if path.is_file() and not path.name.startswith(".")}
    assert files == {f"{stem}.{suffix}" for stem in STEMS for suffix in ("ipynb", "py")} | OTHERS


@pytest.mark.parametrize("stem", STEMS)
def test_a_notebook_equals_its_script_cell_by_cell(stem: str) -> None:
    notebook, script = (jupytext.read(FOLDER / f"{stem}.{suffix}") for suffix in ("ipynb", "py"))
    cells = [[(cell.cell_type, cell.source) for cell in each.cells] for each in (notebook, script)]
    assert cells[0] == cells[1], f"run: python notebooks/execute.py {stem}"


@pytest.mark.parametrize("stem", STEMS)
def test_a_notebook_is_shipped_executed_from_top_to_bottom(stem: str) -> None:
    notebook = jupytext.read(FOLDER / f"{stem}.ipynb")
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert any("image/png" in output.get("data", {}) for output in outputs(stem))
    assert (FOLDER / f"{stem}.ipynb").stat().st_size < MOST_BYTES


@pytest.mark.parametrize("stem", STEMS)
def test_outputs_hold_no_errors_warnings_or_paths(stem: str) -> None:
    assert {output.output_type for output in outputs(stem)} <= {"stream", "display_data", "execute_result"}
    assert all(output.get("name") != "stderr" for output in outputs(stem))
    for text in texts(stem):
        assert "Warning" not in text
        assert not PATH.search(text), PATH.search(text)


@pytest.mark.parametrize("stem", STEMS)
def test_metadata_that_differ_between_runs_are_left_out(stem: str) -> None:
    notebook = jupytext.read(FOLDER / f"{stem}.ipynb")
    assert set(notebook.metadata) == {"jupytext", "kernelspec", "language_info"}
    assert notebook.metadata.language_info == {"name": "python"}
    assert [cell.id for cell in notebook.cells] == [f"cell-{i:02d}" for i in range(len(notebook.cells))]
    assert all(not cell.metadata for cell in notebook.cells)


@pytest.mark.parametrize("text", ["read /some/where/x.csv", 'File "/a/b.py"', "C:\\Users\\me"])
def test_paths_of_machines_are_recognised(text: str) -> None:
    assert PATH.search(text)
    assert not PATH.search("m/s, <td>1</td>, 1 / 2, examples/data/penguins.csv, and/or")


@pytest.mark.parametrize("folder", [FOLDER, FOLDER.parent], ids=["beside it", "from the root"])
@pytest.mark.parametrize("stem", STEMS[:1])
def test_the_data_are_found_from_both_folders(stem: str, folder: Path) -> None:
    source = (FOLDER / f"{stem}.py").read_text("utf-8")
    (line,) = re.findall(r"^examples = .*$", source, re.MULTILINE)
    code = f"from pathlib import Path\n{line}\nassert (examples / 'data' / 'penguins.csv').exists()"
    assert subprocess.run([sys.executable, "-c", code], cwd=folder).returncode == 0


@pytest.mark.parametrize("stem", STEMS)
@pytest.mark.slow
def test_a_script_runs(stem: str, warning_options: list[str]) -> None:
    ignored = [part for each in IGNORED for part in ("-W", each)]
    done = subprocess.run(
        [sys.executable, *warning_options, *ignored, str(FOLDER / f"{stem}.py")],
        cwd=FOLDER,
        env=os.environ | {"MPLBACKEND": "agg", "PYRO_MGP_QUICK": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
