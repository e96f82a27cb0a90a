"""Imputation by R's package mixgb: chained XGBoost with subsampling and predictive mean matching."""

from __future__ import annotations

import pandas as pd

from benchmarks.coverage import r_mice

_SCRIPT = """
suppressPackageStartupMessages(library(mixgb))
given <- commandArgs(trailingOnly = TRUE)
table <- read.csv(file.path(given[1], "table.csv"))
table[] <- lapply(table, as.numeric)
set.seed(as.integer(given[3]))
imputed <- mixgb(table, m = as.integer(given[2]))
numbered <- Map(function(rows, j) cbind(as.data.frame(rows), .imp = j), imputed, seq_along(imputed))
write.csv(do.call(rbind, numbered), file.path(given[1], "completed.csv"), row.names = FALSE)
"""


def complete(table: pd.DataFrame, m: int, seed: int) -> list[pd.DataFrame]:
    """Return m completed tables, with the default settings."""
    return r_mice.run_script(_SCRIPT, table, m, str(seed + 1))
