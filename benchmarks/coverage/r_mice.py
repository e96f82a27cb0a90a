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
options <- list(data = table, m = m, defaultMethod = methods, seed = as.integer(given[4]), print = FALSE)
if (given[5] == "collinear") {
  options$remove.collinear <- FALSE
  # Trees need no independent inputs; without any input they fail.
  if (given[3] %in% c("cart", "rf")) options$eps <- 0
}
imputed <- do.call(mice, options)
completed <- complete(imputed, "long")
write.csv(completed, file.path(given[1], "completed.csv"), row.names = FALSE)
"""


def check(package: str = "mice", source: str = "Debian: r-cran-mice") -> None:
    """Check that R and a package of it are installed.

    Args:
        package: Name of the package.
        source: Where it is found.

    Raises:
        ValueError: If they are not; the message says what to install.
    """
    if shutil.which("Rscript") is None or run_r("-e", f"library({package})").returncode:
        raise ValueError(f"imputation by {package} needs R and its package {package} ({source})")


def method(name: str, collinear: bool = False) -> Callable[[pd.DataFrame, int, int], list[pd.DataFrame]]:
    """Return an imputation function that uses a univariate method of mice, with its default of five rounds.

    Args:
        name: One of `METHODS`.
        collinear: Whether to impute columns that nearly are linear combinations of others. By default mice
            removes them from the models, and leaves their cells missing.

    Returns:
        Function of `(table with missing cells, m, seed)` that returns m completed tables.
    """

    def impute(frame: pd.DataFrame, m: int, seed: int) -> list[pd.DataFrame]:
        return run_script(_SCRIPT, frame, m, name, str(seed + 1), "collinear" if collinear else "")

    return impute


def run_script(script: str, frame: pd.DataFrame, m: int, *arguments: str) -> list[pd.DataFrame]:
    """Return the m completed tables that an R script writes.

    Args:
        script: R code that reads `table.csv` in the folder of its first argument, and writes
            `completed.csv` there, in which a column `.imp` numbers the imputations from 1.
        frame: Table with missing cells.
        m: Number of imputations, the script's second argument.
        arguments: Its other arguments.

    Raises:
        RuntimeError: If the script fails; the message is that of R.
    """
    with tempfile.TemporaryDirectory() as folder:
        frame.to_csv(Path(folder) / "table.csv", index=False, na_rep="NA")
        done = run_r("-e", script, folder, str(m), *arguments)
        if done.returncode:
            raise RuntimeError(f"R failed: {done.stderr.strip()}")
        rows = pd.read_csv(Path(folder) / "completed.csv")
    return [restore(rows.loc[rows[".imp"] == j + 1], frame) for j in range(m)]


def restore(rows: pd.DataFrame, frame: pd.DataFrame) -> pd.DataFrame:
    """Return rows read from CSV with the columns, dtypes and index of a table."""
    restored = rows[list(frame.columns)].set_axis(frame.index)
    return restored.astype(frame.dtypes.to_dict())


def run_r(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run R with some arguments, and capture what it prints."""
    return subprocess.run(["Rscript", *arguments], capture_output=True, text=True, check=False)
