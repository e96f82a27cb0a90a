"""Imputation by R's package mice, which has to be installed (Debian: r-cran-mice)."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd

METHODS = ("norm", "pmm", "cart", "rf")
"""Univariate imputation methods of mice that are compared."""

_SCRIPT = """
suppressPackageStartupMessages(library(mice))
given <- commandArgs(trailingOnly = TRUE)
table <- read.csv(file.path(given[1], "table.csv"))
m <- as.integer(given[2])
imputed <- mice(table, m = m, method = given[3], seed = as.integer(given[4]), print = FALSE)
completed <- complete(imputed, "long")
write.csv(completed, file.path(given[1], "completed.csv"), row.names = FALSE)
"""


def check() -> None:
    """Check that R and mice are installed.

    Raises:
        ValueError: If they are not; the message says what to install.
    """
    if shutil.which("Rscript") is None or _run("-e", "library(mice)").returncode:
        raise ValueError("the methods mice_... need R and its package mice (Debian: r-cran-mice)")


def method(name: str) -> Callable[[pd.DataFrame, int, int], list[pd.DataFrame]]:
    """Return an imputation function that uses a univariate method of mice, with its default of five rounds.

    Args:
        name: One of `METHODS`.

    Returns:
        Function of `(table with missing cells, m, seed)` that returns m completed tables.
    """

    def impute(frame: pd.DataFrame, m: int, seed: int) -> list[pd.DataFrame]:
        with tempfile.TemporaryDirectory() as folder:
            frame.to_csv(Path(folder) / "table.csv", index=False, na_rep="NA")
            done = _run("-e", _SCRIPT, folder, str(m), name, str(seed + 1))
            if done.returncode:
                raise RuntimeError(f"mice failed: {done.stderr.strip()}")
            rows = pd.read_csv(Path(folder) / "completed.csv")
        return [rows.loc[rows[".imp"] == j + 1, list(frame.columns)].reset_index(drop=True) for j in range(m)]

    return impute


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["Rscript", *arguments], capture_output=True, text=True, check=False)
