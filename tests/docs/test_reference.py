"""Every public name has a place in the reference, and an example that the tests run."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import pyro_mgp
from pyro_mgp import plots
from pyro_mgp.analysis import quantities
from pyro_mgp.analysis.pooled_regression import PooledRegression
from pyro_mgp.analysis.pooling import Pooled
from pyro_mgp.evaluation.calibration import Calibration

ROOT = Path(__file__).parents[2]
REFERENCE = "".join(path.read_text("utf-8") for path in sorted((ROOT / "docs" / "reference").glob("*.rst")))
QUANTITIES = [
    name
    for name, each in vars(quantities).items()
    if inspect.isfunction(each) and each.__module__ == quantities.__name__
]
FUNCTIONS = [*pyro_mgp.__all__, *plots.__all__, *(name for name in QUANTITIES if not name.startswith("_"))]
EXCLUDED = {
    name.strip() for line in re.findall(r":exclude-members: (.*)", REFERENCE) for name in line.split(",")
}
CLASSES = [
    pyro_mgp.MGPImputer,
    pyro_mgp.Imputations,
    pyro_mgp.AfterDropout,
    pyro_mgp.ColumnSpec,
    Pooled,
    PooledRegression,
    Calibration,
]
METHODS = [
    f"{cls.__name__}.{name}"
    for cls in CLASSES
    for name, each in vars(cls).items()
    if not name.startswith("_")
    and name not in EXCLUDED
    and inspect.isfunction(inspect.unwrap(getattr(each, "__func__", each)))
]


def executed() -> str:
    """Return all code in the documentation, the notebooks and docstrings that the tests run."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    blocks = [
        block
        for page in pages
        for block in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    ]
    scripts = [
        *(ROOT / "docs" / "gallery").glob("*.py"),
        *(ROOT / "notebooks").glob("0*.py"),
        *(ROOT / "examples").glob("*.py"),
    ]
    lines = [
        line.strip()[4:]
        for path in sorted((ROOT / "pyro_mgp").rglob("*.py"))
        for line in path.read_text("utf-8").splitlines()
        if line.strip().startswith((">>> ", "... "))
    ]
    return "\n".join([*blocks, *(path.read_text("utf-8") for path in scripts), *lines])


EXECUTED = executed()


@pytest.mark.parametrize("name", pyro_mgp.__all__)
def test_a_public_name_has_a_place_in_the_reference(name: str) -> None:
    assert re.search(rf"^\.\. auto(class|function):: {name}$", REFERENCE, re.MULTILINE)


def test_the_reference_of_plots_and_quantities_lists_all_of_them() -> None:
    assert ".. automodule:: pyro_mgp.plots\n   :imported-members:" in REFERENCE
    listed = set(
        re.findall(
            r"\w+", REFERENCE.split(".. automodule:: pyro_mgp.analysis.quantities")[1].split("\n\n")[0]
        )
    )
    assert {name for name in QUANTITIES if not name.startswith("_")} <= listed


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_name_has_an_example_that_is_run(name: str) -> None:
    assert re.search(rf"\b{name}\b", EXECUTED)


@pytest.mark.parametrize("name", METHODS)
def test_a_public_method_has_an_example_that_is_run(name: str) -> None:
    assert re.search(rf"\.{name.split('.')[1]}\(", EXECUTED)
