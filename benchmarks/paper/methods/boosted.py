"""Chained gradient-boosted trees with predictive mean matching, by miceforest."""

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
    """Completed tables of miceforest with its default settings, five rounds each."""
    # Labels that are not 0, 1, 2, ... are refused.
    rows, new_rows = train.reset_index(drop=True), test.reset_index(drop=True)
    n_tables = budget.miceforest_datasets
    kernel = mf.ImputationKernel(rows, num_datasets=n_tables, random_state=seed)
    kernel.mice(_ROUNDS, num_threads=budget.threads)
    with mock.patch.object(imputation_kernel, "ImputedData", _Counting):
        imputed = kernel.impute_new_data(new_rows, random_state=seed)
    return Imputed.from_tables([imputed.complete_data(k) for k in range(n_tables)], new_rows)


class _Counting(ImputedData):
    """New rows that know how many rounds they have been through.

    Version 6.0.5 does not count these, so that each round would start from the random first fill, and that
    fill would be the result: on Parkinson with 10 % missing an RMSE of 1.05, where the last round has 0.36.
    """

    def __setitem__(self, at: tuple[str, int, int], values: Any) -> None:
        super().__setitem__(at, values)
        variable, iteration, dataset = at
        self.iteration_tab[variable, dataset] = iteration
