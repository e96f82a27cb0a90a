"""Imputation by scikit-learn: means, medians, nearest neighbours, chained regressions and chained forests.

All methods are fitted to the training rows only and then impute the test rows. A table that is to be imputed
itself is given as both, as one object.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import RegressorMixin, clone
from sklearn.ensemble import ExtraTreesRegressor, RandomForestRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.experimental import enable_iterative_imputer  # noqa: F401 (scikit-learn requires this import)
from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer
from sklearn.linear_model import BayesianRidge

from benchmarks.paper.imputed import Imputed
from benchmarks.paper.methods.scaling import Scaling
from benchmarks.paper.profiles import Budget

_MICE_ROUNDS = 10
# Number of independently fitted chains of regressions, each of which gives an equal share of the draws.
_MICE_CHAINS = 10
_TREES, _TREE_ROUNDS = 100, 5


def mean(train: pd.DataFrame, test: pd.DataFrame, seed: int, budget: Budget) -> Imputed:
    """Impute with the mean of the training column."""
    return _impute(SimpleImputer(strategy="mean"), train, test)


def median(train: pd.DataFrame, test: pd.DataFrame, seed: int, budget: Budget) -> Imputed:
    """Impute with the median of the training column."""
    return _impute(SimpleImputer(strategy="median"), train, test)


def nearest_neighbours(train: pd.DataFrame, test: pd.DataFrame, seed: int, budget: Budget) -> Imputed:
    """Impute with the mean of the nearest training rows.

    Distances are computed from standardised columns. The program of the paper's authors uses the columns' own
    units, in which the column with the largest numbers dominates the distance; its results are worse.
    """
    scaling = Scaling.fit(train)
    imputer = KNNImputer(n_neighbors=budget.neighbours).set_output(transform="pandas")
    imputer.fit(scaling.standardise(train))
    return Imputed.from_table(scaling.restore(imputer.transform(scaling.standardise(test))), test)


def mice(train: pd.DataFrame, test: pd.DataFrame, seed: int, budget: Budget) -> Imputed:
    """Impute with ten rounds of chained Bayesian ridge regressions; draw from their posterior predictive.

    With thousands of rows, ridge regressions are close to least squares, but also defined for collinear
    columns. The point prediction is the chain of conditional means, as in the paper. Draws come from ten
    chains, in which the missing cells of the training rows are drawn as well.
    """
    point = _impute(_chained_ridges(seed, draws=False), train, test).point
    n_chains = min(_MICE_CHAINS, budget.draws)
    tables = []
    for chain in range(n_chains):
        with _ignore_convergence():
            imputer = _chained_ridges(seed * _MICE_CHAINS + chain, draws=True).fit(train)
        # The imputer keeps its random state between calls, so that draws differ.
        tables += [imputer.transform(test) for _ in range(chain, budget.draws, n_chains)]
    return Imputed(point, Imputed.from_tables(tables, test).draws)


def random_forests(train: pd.DataFrame, test: pd.DataFrame, seed: int, budget: Budget) -> Imputed:
    """Impute with five rounds of chained random forests of 100 trees."""
    forest = RandomForestRegressor(_TREES, random_state=seed, n_jobs=budget.threads)
    return Imputed.from_table(chained(forest, train, test, _TREE_ROUNDS), test)


def extra_trees(train: pd.DataFrame, test: pd.DataFrame, seed: int, budget: Budget) -> Imputed:
    """Impute with five rounds of chained ensembles of 100 extremely randomised trees."""
    forest = ExtraTreesRegressor(_TREES, random_state=seed, n_jobs=budget.threads)
    return Imputed.from_table(chained(forest, train, test, _TREE_ROUNDS), test)


def chained(regressor: RegressorMixin, train: pd.DataFrame, test: pd.DataFrame, rounds: int) -> pd.DataFrame:
    """Complete the test table as `IterativeImputer(regressor, max_iter=rounds)` would, with less memory.

    `IterativeImputer` keeps every fitted regressor for new rows, 140 forests for five rounds of 28 columns:
    tens of gigabytes. Here the new rows are given at once, and each forest is discarded after its
    predictions.

    Args:
        regressor: Regressor that is cloned for each column and round.
        train: Rows to learn from.
        test: Rows to complete, which may be the same object.
        rounds: Number of rounds through the columns, those with the fewest missing training cells first.
    """
    tables = [train] if test is train else [train, test]
    return next(itertools.islice(rounds_of_chain(regressor, tables), rounds - 1, None))[-1]


def rounds_of_chain(
    regressor: RegressorMixin, tables: Sequence[pd.DataFrame]
) -> Iterator[list[pd.DataFrame]]:
    """Yield completed copies of tables after each round through the columns, without end.

    Args:
        regressor: Regressor that is cloned for each column and round.
        tables: Incomplete tables with the same columns. Regressors are fitted to the first.
    """
    holes = [table.isna().to_numpy() for table in tables]
    means = tables[0].mean()
    filled = [table.fillna(means).to_numpy(np.float64, copy=True) for table in tables]
    order = np.argsort(holes[0].mean(0), kind="mergesort")
    while True:
        for column in order:
            _update_column(clone(regressor), column, filled, holes)
        yield [
            pd.DataFrame(values.copy(), table.index, table.columns)
            for values, table in zip(filled, tables, strict=True)
        ]


def _update_column(
    regressor: RegressorMixin,
    column: int,
    filled: list[NDArray[np.float64]],
    holes: list[NDArray[np.bool_]],
) -> None:
    """Predict the missing cells of a column in training and test rows, in place."""
    inputs = [np.delete(table, column, axis=1) for table in filled]
    observed = ~holes[0][:, column]
    regressor.fit(inputs[0][observed], filled[0][observed, column])
    for table, rows, missing in zip(filled, inputs, holes, strict=True):
        here = missing[:, column]
        if here.any():
            table[here, column] = regressor.predict(rows[here])


def _chained_ridges(seed: int, draws: bool) -> IterativeImputer:
    imputer = IterativeImputer(
        BayesianRidge(), max_iter=_MICE_ROUNDS, sample_posterior=draws, random_state=seed
    )
    return imputer.set_output(transform="pandas")


def _impute(imputer: SimpleImputer | IterativeImputer, train: pd.DataFrame, test: pd.DataFrame) -> Imputed:
    with _ignore_convergence():
        completed = imputer.set_output(transform="pandas").fit(train).transform(test)
    return Imputed.from_table(completed, test)


@contextmanager
def _ignore_convergence() -> Iterator[None]:
    """Ignore warnings that a chain has not converged: the number of rounds is part of the protocol."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield
