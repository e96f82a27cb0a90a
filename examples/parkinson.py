"""Accuracy of imputed test cells on the Parkinson table, beside scikit-learn's chained ridge regressions.

    python examples/parkinson.py parkinson.csv                       # default settings, five splits
    python examples/parkinson.py parkinson.csv --paper --splits 0    # the settings of the paper

Cells are removed completely at random. The imputer is fitted to 70 % of the rows and imputes the other 30 %.
RMSE is the mean over columns of each column's root mean squared error, in units of the standard deviation of
the mean-filled training column, as in the paper; cover95 is the share of true cells inside the 95 % interval
of 100 draws. `python -m benchmarks.paper.tables` compares more methods on more tables.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
import pandas as pd
from sklearn.exceptions import ConvergenceWarning
from sklearn.experimental import enable_iterative_imputer  # noqa: F401 (scikit-learn requires this import)
from sklearn.impute import IterativeImputer
from sklearn.linear_model import BayesianRidge

from pyro_mgp import Imputations, MGPImputer


def split(table: pd.DataFrame, rate: float, seed: int) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return incomplete training rows, incomplete test rows, and complete test rows."""
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(table))
    incomplete = table.astype(float).mask(generator.random(table.shape) < rate)
    train, test = order[: int(0.7 * len(table))], order[int(0.7 * len(table)) :]
    return incomplete.iloc[train], incomplete.iloc[test], table.iloc[test]


def rmse(completed: pd.DataFrame, truth: pd.DataFrame, test: pd.DataFrame, train: pd.DataFrame) -> float:
    """Return the mean over columns of the RMSE of missing test cells, in standard deviations."""
    unit = train.fillna(train.mean()).std(ddof=0)
    squared = ((completed - truth) / unit).where(test.isna()) ** 2
    return float(np.sqrt(squared.mean()).mean())


def coverage(draws: Imputations, truth: pd.DataFrame, test: pd.DataFrame) -> float:
    """Return the share of true cells inside the central 95 % interval of their draws."""
    inside = []
    for column, values in draws.values.items():
        low, high = np.quantile(values, [0.025, 0.975], axis=0)
        inside.append(truth.loc[test[column].isna(), column].between(low, high))
    return float(np.concatenate(inside).mean())


def chained_ridge(train: pd.DataFrame, test: pd.DataFrame) -> pd.DataFrame:
    """Complete the test rows with scikit-learn's default imputer, ten rounds whether or not it converges."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        imputer = IterativeImputer(BayesianRidge()).fit(train)
    return pd.DataFrame(imputer.transform(test), index=test.index, columns=test.columns)


def run(table: pd.DataFrame, rate: float, seed: int, paper: bool) -> tuple[float, float]:
    """Run one split and print its scores; return the RMSE of our imputer and of chained ridge regressions."""
    train, test, truth = split(table, rate, seed)
    if paper:
        imputer = MGPImputer.paper(max_steps=2000, random_state=seed, columns="all")
    else:
        imputer = MGPImputer(random_state=seed, columns="all")
    started = time.perf_counter()
    imputer.fit(train)
    fitted = time.perf_counter()
    ours = rmse(imputer.transform(test), truth, test, train)
    draws = imputer.impute(test, m=100)
    imputed = time.perf_counter()
    ridge = rmse(chained_ridge(train, test), truth, test, train)
    print(
        f"{rate:4.1f} {seed:5d} {ours:5.3f}  {ridge:5.3f} {coverage(draws, truth, test):8.3f} "
        f"{len(imputer.history_.loss):6d} {fitted - started:6.1f} {imputed - fitted:9.1f}",
        flush=True,
    )
    return ours, ridge


def main() -> None:
    """Print a line per split and the means over splits."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("table", help="parkinson.csv, 1,040 rows and 24 columns")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.1, 0.4])
    parser.add_argument("--splits", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--paper", action="store_true", help="the settings of the paper, 2,000 Adam steps")
    arguments = parser.parse_args()
    table = pd.read_csv(arguments.table)
    print("rate split   MGP  ridge  cover95  steps  fit s  impute s", flush=True)
    for rate in arguments.rates:
        scores = [run(table, rate, seed, arguments.paper) for seed in arguments.splits]
        ours, ridge = np.mean(scores, axis=0)
        print(f"{rate:4.1f}  mean {ours:5.3f}  {ridge:5.3f}", flush=True)


if __name__ == "__main__":
    main()
