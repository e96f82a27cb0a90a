"""Chained gradient-boosted trees with predictive mean matching, by miceforest."""

from __future__ import annotations

import miceforest as mf
import pandas as pd

from pyro_mgp.bench.imputed import Imputed
from pyro_mgp.bench.profiles import Budget

_ROUNDS = 5


def miceforest(train: pd.DataFrame, test: pd.DataFrame, seed: int, budget: Budget) -> Imputed:
    """Completed tables of miceforest with its default settings, five rounds each."""
    # Labels that are not 0, 1, 2, ... are refused.
    rows, new_rows = train.reset_index(drop=True), test.reset_index(drop=True)
    n_tables = budget.miceforest_datasets
    kernel = mf.ImputationKernel(rows, num_datasets=n_tables, random_state=seed)
    kernel.mice(_ROUNDS, num_threads=budget.threads)
    imputed = kernel.impute_new_data(new_rows, random_state=seed)
    return Imputed.from_tables([imputed.complete_data(k) for k in range(n_tables)], new_rows)
