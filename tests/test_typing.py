"""The package is typed for its users: mypy knows what calls return, and finds wrong arguments."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pyro_mgp

# The types of pandas and torch are read once, not in every run.
CACHE = Path(__file__).parents[1] / ".mypy_cache" / "user"
PROGRAM = """
import pandas as pd

from pyro_mgp import ColumnSpec, Imputations, MGPImputer, calibrate, pool
from pyro_mgp.plots import plot_cells

frame = pd.DataFrame({"x": [1.0, 2.0, 3.0], "y": [1.0, None, 3.0]})
imputer = MGPImputer(specs={"y": ColumnSpec(lower=0)}, random_state=0).fit(frame)
draws = imputer.impute(m=5)
reveal_type(imputer)
reveal_type(draws)
reveal_type(draws.cells())
reveal_type(draws.pool(lambda table: (table["y"].mean(), table["y"].var())))
reveal_type(draws.fit("y ~ x").marginal_effects())
reveal_type(pool([(1.0, 0.1), (1.2, 0.1)]).recommended_m())
reveal_type(calibrate(imputer, frame).words)
reveal_type(plot_cells(draws, "y"))
again: Imputations = Imputations.load("draws")
MGPImputer(n_inducing="many")
ColumnSpec(lowest=0)
"""


@pytest.mark.slow
def test_mypy_checks_a_program_of_a_user(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, "utf-8")
    order = [
        sys.executable,
        "-m",
        "mypy",
        "--no-error-summary",
        "--config-file=",
        f"--cache-dir={CACHE}",
        program.name,
    ]
    # On this path the package is an installed one, which is typed by its file py.typed.
    environment = os.environ | {"PYTHONPATH": str(Path(pyro_mgp.__file__).parents[1])}
    found = subprocess.run(order, capture_output=True, text=True, cwd=tmp_path, env=environment)
    notes = re.findall(r'note: Revealed type is "(.*)"', found.stdout)
    assert [re.sub(r"builtins\.|\w+\.(?=[\w.]*[A-Z])", "", note) for note in notes] == [
        "MGPImputer",
        "Imputations",
        "DataFrame",
        "Pooled",
        "Pooled",
        "Series[int]",
        "str",
        "Axes",
    ], found.stdout + found.stderr
    errors = re.findall(r"program.py:(\d+): error: .*\[(.*)\]", found.stdout)
    lines = PROGRAM.splitlines()
    assert [(lines[int(line) - 1].split("(")[0], code) for line, code in errors] == [
        ("MGPImputer", "arg-type"),
        ("ColumnSpec", "call-arg"),
    ], found.stdout + found.stderr
