"""Imputation by hyperimpute and gcimpute, which need an environment of their own (`rivals.txt`)."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.paper.imputed import Imputed, cells_of, holes_of
from benchmarks.paper.scores import root_mean_squared_errors, unit
from benchmarks.tables.methods import DRAWS
from benchmarks.tables.patterns import incomplete

PYTHON = "PYRO_MGP_RIVALS"
"""Name of the environment variable for the Python interpreter of the other environment."""

_SCRIPT = Path(__file__).with_name("rival_script.py")
_ADVICE = "install benchmarks/tables/rivals.txt in an environment of its own"


def check(name: str) -> None:
    """Check that a rival imputes a table of five correlated columns better than column means do.

    Raises:
        ValueError: If no interpreter is named, or the rival fails or is no better; the message says what to
            do.
    """
    g = np.random.default_rng(0)
    x, y = g.normal(size=(2, 200))
    columns = np.stack([x, y, x + y, x - y, 2 * x + y], axis=1) + 0.1 * g.normal(size=(200, 5))
    truth = pd.DataFrame(columns, columns=list("abcde"))
    table = incomplete(truth, "mcar10", 0)
    cells, units = cells_of(truth, table), unit(truth)
    try:
        error = root_mean_squared_errors(impute(table, 0, name).point, cells, units)["rmse"]
    except RuntimeError as failure:
        raise ValueError(f"{name} does not work: {failure}; {_ADVICE}") from failure
    means = cells_of(table.fillna(table.mean()), table)
    of_means = root_mean_squared_errors(means, cells, units)["rmse"]
    if error > 0.8 * of_means:
        raise ValueError(
            f"{name} does not work: its RMSE of a correlated table is {error:.2f}, that of column means "
            f"{of_means:.2f}; {_ADVICE}"
        )


def impute(table: pd.DataFrame, seed: int, name: str) -> Imputed:
    """Impute a table by a rival.

    Args:
        table: Incomplete table.
        seed: Random state of the rival.
        name: "hyperimpute" or "gcimpute".

    Raises:
        ValueError: If no interpreter is named.
        RuntimeError: If the rival fails, or imputes nothing but column means.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "table.npz", Path(folder) / "completed.npz"
        np.savez(source, table=table.to_numpy(np.float64))
        command = [_python(name), str(_SCRIPT), name, str(source), str(target), str(DRAWS), str(seed)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError((done.stderr.strip().splitlines() or ["it printed no message"])[-1])
        with np.load(target) as arrays:
            result = dict(arrays)
    holes = holes_of(table)
    places = {column: table.columns.get_loc(column) for column in holes}
    point = {column: result["point"][missing, places[column]] for column, missing in holes.items()}
    if all(np.allclose(cells, table[column].mean()) for column, cells in point.items()):
        raise RuntimeError("it imputed nothing but column means")
    draws = None
    if "draws" in result:
        draws = {column: result["draws"][:, missing, places[column]] for column, missing in holes.items()}
    return Imputed(point, draws, seconds=float(result["seconds"]))


def _python(name: str) -> str:
    if python := os.environ.get(PYTHON):
        return python
    raise ValueError(f"{name} needs another environment: name its Python with --rivals-python or ${PYTHON}")
