"""Imputation by R's package mice, which has to be installed (Debian: r-cran-mice)."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd

METHODS = ("norm", "pmm", "cart", "rf")
"""Univariate imputation methods of mice that are compared.

Trees serve columns of all kinds. With the others, factors have mice's own defaults, logistic models.
"""

_SCRIPT = """
suppressPackageStartupMessages(library(mice))
given <- commandArgs(trailingOnly = TRUE)
table <- read.csv(file.path(given[1], "table.csv"), stringsAsFactors = TRUE)
logical <- vapply(table, is.logical, TRUE)
table[logical] <- lapply(table[logical], factor)
m <- as.integer(given[2])
categories <- if (given[3] %in% c("cart", "rf")) rep(given[3], 3) else c("logreg", "polyreg", "polr")
methods <- c(given[3], categories)
imputed <- mice(table, m = m, defaultMethod = methods, seed = as.integer(given[4]), print = FALSE)
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
        return [restore(rows.loc[rows[".imp"] == j + 1], frame) for j in range(m)]

    return impute


def restore(rows: pd.DataFrame, frame: pd.DataFrame) -> pd.DataFrame:
    """Return rows read from CSV with the columns, dtypes and index of a table."""
    restored = rows[list(frame.columns)].set_axis(frame.index)
    return restored.astype(frame.dtypes.to_dict())


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["Rscript", *arguments], capture_output=True, text=True, check=False)
