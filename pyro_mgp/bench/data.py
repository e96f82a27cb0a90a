"""The public tables of the paper's experiments, from a folder."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd

DATA_DIR = "PYRO_MGP_DATA"
"""Environment variable that names the folder."""

# Rows of the larger tables in quick runs, as in the published protocol of this package's benchmarks.
_QUICK_ROWS = 10_000


def folder(given: str | None = None) -> Path | None:
    """The folder with the tables: the one given, or the environment's; None if neither is."""
    name = given or os.environ.get(DATA_DIR)
    return None if name is None else Path(name)


def parkinson(path: Path) -> pd.DataFrame:
    """`parkinson.csv`: 1,040 rows and 24 columns."""
    return _without_constants(pd.read_csv(path / "parkinson.csv"))


def protein(path: Path) -> pd.DataFrame:
    """`protein.csv.gz`: 10,000 of its 45,730 rows, 10 columns."""
    table = pd.read_csv(path / "protein.csv.gz", header=None)
    table.columns = [f"c{d}" for d in range(table.shape[1])]
    rows = np.random.default_rng(123).permutation(len(table))[:_QUICK_ROWS]
    return _without_constants(table.iloc[rows].reset_index(drop=True))


def _without_constants(table: pd.DataFrame) -> pd.DataFrame:
    return table.loc[:, table.nunique() > 1]
