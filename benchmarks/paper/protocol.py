"""The paper's protocol: random splits, missing cells and RMSE."""

from __future__ import annotations

import numpy as np
import pandas as pd


def split(table: pd.DataFrame, rate: float, seed: int) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Split a table 70/30 and remove cells completely at random.

    Args:
        table: A complete numeric table.
        rate: Share of the cells to remove, in training and test rows.
        seed: Number of the split.

    Returns:
        Incomplete training rows, incomplete test rows, and complete test rows.
    """
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(table))
    holes = generator.random(table.shape) < rate
    n_train = int(0.7 * len(table))
    incomplete = table.astype(float).mask(holes)
    return incomplete.iloc[order[:n_train]], incomplete.iloc[order[n_train:]], table.iloc[order[n_train:]]


def rmse(completed: pd.DataFrame, truth: pd.DataFrame, test: pd.DataFrame, train: pd.DataFrame) -> float:
    """Return the mean over columns of the root mean squared error of the missing test cells.

    The unit of a column is the standard deviation of its mean-filled training rows, as in the paper, so that
    mean imputation scores a little above 1.
    """
    unit = train.fillna(train.mean()).std(ddof=0)
    squared = ((completed - truth) / unit).where(test.isna()) ** 2
    return float(np.sqrt(squared.mean()).mean())
