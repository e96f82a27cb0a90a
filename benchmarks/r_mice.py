"""R's mice, where `Rscript` and the package are installed (Debian: r-cran-mice)."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd

METHODS = ("norm", "pmm", "cart", "rf")
"""Its univariate methods that are compared."""

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
    """Make sure that it is there.

    Raises:
        ValueError: It is not; the message says what to install.
    """
    if shutil.which("Rscript") is None or _run("-e", "library(mice)").returncode:
        raise ValueError("the methods mice_... need R and its package mice (Debian: r-cran-mice)")


def method(name: str) -> Callable[[pd.DataFrame, int, int], list[pd.DataFrame]]:
    """Imputation by a univariate method, five rounds as is the default there.

    Args:
        name: One of `METHODS`.

    Returns:
        `(table with holes, m, seed)` to m completed tables.
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
