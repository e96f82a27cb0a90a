"""Imputation by chained random forests with the stopping rule of missForest."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
from sklearn.ensemble import RandomForestRegressor

from benchmarks.paper.imputed import Imputed
from benchmarks.paper.methods.classical import rounds_of_chain

_TREES, _MOST_ROUNDS = 100, 10


def missforest(table: pd.DataFrame, seed: int) -> Imputed:
    """Impute with up to ten rounds of random forests of 100 trees.

    The rounds end, and the table of the last but one is taken, when the imputed cells have changed more than
    in the round before (Stekhoven and Bühlmann, *Bioinformatics* 28:112-118, 2012). The change is the sum of
    squared differences relative to the sum of squares of the new table. As in missForest, splits consider the
    square root of the number of columns, and nodes of up to five rows are not split.
    """
    forest = RandomForestRegressor(
        _TREES, max_features="sqrt", min_samples_split=6, random_state=seed, n_jobs=1
    )
    best, last_change = table.fillna(table.mean()), np.inf
    for (completed,) in itertools.islice(rounds_of_chain(forest, [table]), _MOST_ROUNDS):
        change = _squares(completed - best) / _squares(completed)
        if change >= last_change:
            break
        best, last_change = completed, change
    return Imputed.from_table(best, table)


def _squares(table: pd.DataFrame) -> float:
    return float(np.square(table.to_numpy()).sum())
