"""The classical rivals, by scikit-learn: means, medians, nearest neighbours, chained regressions and trees.

All are fitted to the training rows and fill the test rows from what they learnt there.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import RegressorMixin, clone
from sklearn.ensemble import ExtraTreesRegressor, RandomForestRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.experimental import enable_iterative_imputer  # noqa: F401 (scikit-learn wants it)
from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer
from sklearn.linear_model import BayesianRidge

from benchmarks.paper.imputed import Imputed
from benchmarks.paper.methods.scaling import Scaling
from benchmarks.paper.profiles import Budget

_NEIGHBOURS = 2
_MICE_ROUNDS = 10
# Chains of regressions, each fitted anew; the draws are shared out among them.
_MICE_CHAINS = 10
_TREES, _TREE_ROUNDS = 100, 5


def mean(train: pd.DataFrame, test: pd.DataFrame, seed: int, budget: Budget) -> Imputed:
    """The mean of the training column."""
    return _by(SimpleImputer(strategy="mean"), train, test)


def median(train: pd.DataFrame, test: pd.DataFrame, seed: int, budget: Budget) -> Imputed:
    """The median of the training column."""
    return _by(SimpleImputer(strategy="median"), train, test)


def nearest_neighbours(train: pd.DataFrame, test: pd.DataFrame, seed: int, budget: Budget) -> Imputed:
    """The mean of the two nearest training rows.

    Distances are taken between standardised columns. The authors' program takes them in the columns' own
    units, where the column with the largest numbers decides alone; that is a weaker rival.
    """
    scaling = Scaling.fit(train)
    imputer = KNNImputer(n_neighbors=_NEIGHBOURS).set_output(transform="pandas")
    imputer.fit(scaling.standardise(train))
    return Imputed.from_table(scaling.restore(imputer.transform(scaling.standardise(test))), test)


def mice(train: pd.DataFrame, test: pd.DataFrame, seed: int, budget: Budget) -> Imputed:
    """Ten rounds of chained linear regressions; draws from their posterior predictive distributions.

    The regressions are Bayesian ridges. On thousands of rows they are least squares but for columns that
    determine each other exactly, where least squares has no answer; and their posterior gives the draws that
    multiple imputation by chained equations is about. The point is the chain of conditional means, as in the
    paper. Draws come from ten chains with draws in their training rows too.
    """
    point = _by(_chained_ridges(seed, draws=False), train, test).point
    n_chains = min(_MICE_CHAINS, budget.draws)
    tables = []
    for chain in range(n_chains):
        with _converged_or_not():
            imputer = _chained_ridges(seed * _MICE_CHAINS + chain, draws=True).fit(train)
        # Each call goes on with the imputer's own generator, so that no two give the same draws.
        tables += [imputer.transform(test) for _ in range(chain, budget.draws, n_chains)]
    return Imputed(point, Imputed.from_tables(tables, test).draws)


def random_forests(train: pd.DataFrame, test: pd.DataFrame, seed: int, budget: Budget) -> Imputed:
    """Five rounds of chained random forests of 100 trees."""
    forest = RandomForestRegressor(_TREES, random_state=seed, n_jobs=budget.threads)
    return Imputed.from_table(chained(forest, train, test, _TREE_ROUNDS), test)


def extra_trees(train: pd.DataFrame, test: pd.DataFrame, seed: int, budget: Budget) -> Imputed:
    """Five rounds of chained ensembles of 100 extremely randomised trees."""
    forest = ExtraTreesRegressor(_TREES, random_state=seed, n_jobs=budget.threads)
    return Imputed.from_table(chained(forest, train, test, _TREE_ROUNDS), test)


def chained(regressor: RegressorMixin, train: pd.DataFrame, test: pd.DataFrame, rounds: int) -> pd.DataFrame:
    """The test table as `IterativeImputer(regressor, max_iter=rounds)` completes it, without its memory.

    `IterativeImputer` keeps every regressor for the rows to come, 140 forests for five rounds of 28 columns:
    tens of gigabytes. Here the rows to come are known, so a forest fills them and is forgotten.

    Args:
        regressor: Cloned for each column and round.
        train: Rows to learn from.
        test: Rows to complete.
        rounds: Times that every column is visited, those with the fewest missing training cells first.
    """
    tables = [train, test]
    holes = [table.isna().to_numpy() for table in tables]
    means = train.mean()
    filled = [table.fillna(means).to_numpy(np.float64, copy=True) for table in tables]
    order = np.argsort(holes[0].mean(0), kind="mergesort")
    for _ in range(rounds):
        for column in order:
            _visit(clone(regressor), column, filled, holes)
    return pd.DataFrame(filled[1], index=test.index, columns=test.columns)


def _visit(
    regressor: RegressorMixin,
    column: int,
    filled: list[NDArray[np.float64]],
    holes: list[NDArray[np.bool_]],
) -> None:
    """Predict the missing cells of a column, training rows and test rows, in place."""
    inputs = [np.delete(table, column, axis=1) for table in filled]
    known = ~holes[0][:, column]
    regressor.fit(inputs[0][known], filled[0][known, column])
    for table, rows, missing in zip(filled, inputs, holes, strict=True):
        here = missing[:, column]
        if here.any():
            table[here, column] = regressor.predict(rows[here])


def _chained_ridges(seed: int, draws: bool) -> IterativeImputer:
    imputer = IterativeImputer(
        BayesianRidge(), max_iter=_MICE_ROUNDS, sample_posterior=draws, random_state=seed
    )
    return imputer.set_output(transform="pandas")


def _by(imputer: SimpleImputer | IterativeImputer, train: pd.DataFrame, test: pd.DataFrame) -> Imputed:
    with _converged_or_not():
        completed = imputer.set_output(transform="pandas").fit(train).transform(test)
    return Imputed.from_table(completed, test)


@contextmanager
def _converged_or_not() -> Iterator[None]:
    """The number of rounds is given, whether or not the chain has settled by then."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield
