"""The paper's protocol: splits, holes and scores, so that figures compare."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray


def split(table: pd.DataFrame, rate: float, seed: int) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """A 70/30 split with cells removed completely at random.

    Args:
        table: A complete numeric table.
        rate: Share of the cells to remove, in training and test rows.
        seed: Number of the split.

    Returns:
        Training rows and test rows with holes, and the true test rows.
    """
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(table))
    holes = generator.random(table.shape) < rate
    n_train = int(0.7 * len(table))
    punched = table.astype(float).mask(holes)
    return punched.iloc[order[:n_train]], punched.iloc[order[n_train:]], table.iloc[order[n_train:]]


def rmse(completed: pd.DataFrame, truth: pd.DataFrame, test: pd.DataFrame, train: pd.DataFrame) -> float:
    """Mean over columns of the root mean squared error of the missing test cells.

    The unit of a column is the standard deviation of its mean-filled training rows, as in the paper, so that
    mean imputation scores a little above 1.
    """
    unit = train.fillna(train.mean()).std(ddof=0)
    squared = ((completed - truth) / unit).where(test.isna()) ** 2
    return float(np.sqrt(squared.mean()).mean())


def coverage(draws: NDArray[np.float64], truth: NDArray[np.float64], level: float = 0.95) -> float:
    """Share of true cells inside the central interval of their draws `[m, cells]`."""
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return float(np.mean((low <= truth) & (truth <= high)))
