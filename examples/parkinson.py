"""The paper's Parkinson experiment: RMSE of imputed test cells, beside chained Bayesian ridge regressions.

    python examples/parkinson.py parkinson.csv                       # default settings, five splits
    python examples/parkinson.py parkinson.csv --paper --splits 0    # the paper's corner

Fit on 70 % of the rows, impute the other 30 %. RMSE is the mean over columns of each column's root mean
squared error, in units of the standard deviation of the mean-filled training column, as in the paper.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
import pandas as pd
from sklearn.exceptions import ConvergenceWarning
from sklearn.experimental import enable_iterative_imputer  # noqa: F401 (scikit-learn wants it)
from sklearn.impute import IterativeImputer
from sklearn.linear_model import BayesianRidge

from benchmarks.protocol import coverage, rmse, split
from pyro_mgp import MGPImputer


def chained_ridge(train: pd.DataFrame, test: pd.DataFrame) -> pd.DataFrame:
    """scikit-learn's default imputer, which stops after ten rounds whether or not it has settled."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        imputer = IterativeImputer(BayesianRidge()).fit(train)
    return pd.DataFrame(imputer.transform(test), index=test.index, columns=test.columns)


def main() -> None:
    """Run the experiment and print one line per split."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("table", help="parkinson.csv, 1,040 rows and 24 columns")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.1, 0.4])
    parser.add_argument("--splits", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--paper", action="store_true", help="the paper's corner, 2,000 Adam steps")
    arguments = parser.parse_args()
    table = pd.read_csv(arguments.table)
    print("rate split   MGP  ridge  cover95  steps  fit s  impute s", flush=True)
    for rate in arguments.rates:
        scores = []
        for seed in arguments.splits:
            train, test, truth = split(table, rate, seed)
            settings = {"random_state": seed, "columns": "all"}
            if arguments.paper:
                imputer = MGPImputer.paper(max_steps=2000, **settings)
            else:
                imputer = MGPImputer(**settings)
            started = time.perf_counter()
            imputer.fit(train)
            fitted = time.perf_counter()
            ours = rmse(imputer.transform(test), truth, test, train)
            draws = imputer.impute(test, m=100)
            drawn = time.perf_counter()
            cells = np.concatenate([draws.values[c] for c in table], axis=1)
            true_cells = np.concatenate([truth.loc[test[c].isna(), c] for c in table])
            ridge = rmse(chained_ridge(train, test), truth, test, train)
            scores.append((ours, ridge))
            print(
                f"{rate:4.1f} {seed:5d} {ours:5.3f}  {ridge:5.3f} {coverage(cells, true_cells):8.3f} "
                f"{len(imputer.history_.loss):6d} {fitted - started:6.1f} {drawn - fitted:9.1f}",
                flush=True,
            )
        mean = np.mean(scores, axis=0)
        print(f"{rate:4.1f}  mean {mean[0]:5.3f}  {mean[1]:5.3f}", flush=True)


if __name__ == "__main__":
    main()
