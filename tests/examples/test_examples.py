"""Every example runs at a small size; an example that is not listed here fails."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

FOLDER = Path(__file__).parents[2] / "examples"
# Arguments, and a part of the output.
EXAMPLES = {
    "arviz_checks.py": (["--quick", "-o", "checks"], "body_mass_g"),
    "calibration.py": (["--quick"], "category: calibration error"),
    "impute_with_ray.py": (["--quick"], "the same as pandas draws: True"),
    "impute_with_spark.py": (["--quick"], "the same as pandas draws: True"),
    "joint_posterior.py": (["--quick"], "joint posterior"),
    "mix_posteriors.py": (["--quick"], "within each table"),
    "parkinson.py": (["table.csv", "--rates", "0.2", "--splits", "0"], "0.2  mean"),
}
# Modules and programs that some examples need.
NEEDED = {"impute_with_ray.py": ["ray"], "impute_with_spark.py": ["pyspark", "java"]}
# Warnings of other packages, and those about small numbers of draws.
IGNORED = [
    "ignore::FutureWarning:arviz",
    "ignore:Passing a dict or None as alias_mapping",
    "ignore::RuntimeWarning:arviz_stats.base.diagnostics",  # of the few draws of --quick
    "ignore:R-hat of",
    "ignore:the mixture of",
]


@pytest.fixture
def table(tmp_path: Path) -> None:
    """Write a complete table of numbers in place of the Parkinson table."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(60, 1)) + 0.5 * generator.normal(size=(60, 3))
    pd.DataFrame(x, columns=["a", "b", "c"]).to_csv(tmp_path / "table.csv", index=False)


def test_every_example_is_listed() -> None:
    assert sorted(path.name for path in FOLDER.rglob("*.py")) == sorted(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.slow
def test_an_example_runs(name: str, tmp_path: Path, table: None, warning_options: list[str]) -> None:
    for each in NEEDED.get(name, []):
        if importlib.util.find_spec(each) is None and shutil.which(each) is None:
            pytest.skip(f"{name} needs {each}, which is not installed here")
    arguments, output = EXAMPLES[name]
    # Ray and Spark emit warnings of their own.
    options = ["-W", "default"] if name in NEEDED else warning_options
    ignored = [part for each in IGNORED for part in ("-W", each)]
    done = subprocess.run(
        [sys.executable, *options, *ignored, str(FOLDER / name), *arguments],
        cwd=tmp_path,
        env=os.environ | {"MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert output in done.stdout
    if name == "calibration.py":
        designs = dict(line.split(": calibration error 0.") for line in done.stdout.splitlines())
        assert list(designs) == ["binary", "count", "ordinal", "category"]
        assert ["coverage" in text for text in designs.values()] == [True, True, False, False]
    if name == "arviz_checks.py":
        plots = ["forest.png", "loo_pit.png", "pit.png", "ppc.png"]
        assert sorted(path.name for path in (tmp_path / "checks").iterdir()) == plots
