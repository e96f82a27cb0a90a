"""Imputation by chained gradient-boosted trees with predictive mean matching (miceforest)."""

from __future__ import annotations

from typing import Any
from unittest import mock

import miceforest as mf
import pandas as pd
from miceforest import imputation_kernel
from miceforest.imputed_data import ImputedData

from benchmarks.paper.imputed import Imputed
from benchmarks.paper.profiles import Budget

_ROUNDS = 5


def miceforest(train: pd.DataFrame, test: pd.DataFrame, seed: int, budget: Budget) -> Imputed:
    """Impute with miceforest and its default settings, five rounds per completed table."""
    # miceforest requires row labels 0, 1, 2, ...
    rows, new_rows = train.reset_index(drop=True), test.reset_index(drop=True)
    n_tables = budget.miceforest_datasets
    kernel = mf.ImputationKernel(rows, num_datasets=n_tables, random_state=seed)
    kernel.mice(_ROUNDS, num_threads=budget.threads)
    if test is train:
        return Imputed.from_tables([kernel.complete_data(k) for k in range(n_tables)], rows)
    with mock.patch.object(imputation_kernel, "ImputedData", _Counting):
        imputed = kernel.impute_new_data(new_rows, random_state=seed)
    return Imputed.from_tables([imputed.complete_data(k) for k in range(n_tables)], new_rows)


class _Counting(ImputedData):
    """New rows with a counter of the rounds.

    Version 6.0.5 does not count the rounds of new rows. Each round then starts from the random initial fill,
    which is returned as the result: the RMSE on Parkinson with 10 % missing cells is 1.05, instead of 0.36
    after the last round.
    """

    def __setitem__(self, at: tuple[str, int, int], values: Any) -> None:
        super().__setitem__(at, values)
        variable, iteration, dataset = at
        self.iteration_tab[variable, dataset] = iteration
