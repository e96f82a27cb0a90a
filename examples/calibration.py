"""Calibration of predictive probabilities and coverage of pooled intervals, for columns from known models.

    python examples/calibration.py --designs binary count --repetitions 300

Each repetition draws 400 rows of two correlated numbers x1 and x2 and a column y from a known model given
both. A third of y is missing, more often for large x1, and a fifth of x2 completely at random. The table is
imputed with the default settings. The script prints

- the expected calibration error of predictive probabilities, which are shares of draws (ten bins of 10 %), -
for logistic and Poisson regression of y on x1 and x2, pooled over 20 imputations: bias, coverage and width of
  95 % intervals of the coefficients (intercept, x1, x2), and the width for complete tables.

statsmodels fits the regressions: pip install statsmodels.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable

import numpy as np
import pandas as pd
import statsmodels.api as sm
from numpy.typing import NDArray
from tqdm import tqdm

from pyro_mgp import MGPImputer, pool

Numbers = NDArray[np.float64]

N_ROWS, N_DRAWS, N_POOLED = 400, 200, 20
# Coefficients of the intercept, x1 and x2.
TRUTH = {"binary": (-0.3, 1.0, -0.8), "count": (0.5, 0.5, -0.4)}
FAMILIES = {"binary": sm.families.Binomial(), "count": sm.families.Poisson()}


def binary(x1: Numbers, x2: Numbers, generator: np.random.Generator) -> pd.Series:
    """Draw booleans from a logistic regression."""
    constant, first, second = TRUTH["binary"]
    probability = 1 / (1 + np.exp(-(constant + first * x1 + second * x2)))
    return pd.Series(generator.random(len(x1)) < probability, dtype="boolean")


def count(x1: Numbers, x2: Numbers, generator: np.random.Generator) -> pd.Series:
    """Draw counts from a Poisson regression."""
    constant, first, second = TRUTH["count"]
    return pd.Series(generator.poisson(np.exp(constant + first * x1 + second * x2)), dtype="Int64")


def ordinal(x1: Numbers, x2: Numbers, generator: np.random.Generator) -> pd.Series:
    """Draw four ordered levels from a cumulative logit model."""
    grade = np.digitize(x1 - 0.8 * x2 + generator.logistic(size=len(x1)), [-1.5, 0.0, 1.5])
    return pd.Series(pd.Categorical.from_codes(grade, list("abcd"), ordered=True))


def category(x1: Numbers, x2: Numbers, generator: np.random.Generator) -> pd.Series:
    """Draw three levels from a multinomial logit model."""
    scores = np.stack([np.zeros_like(x1), 1.2 * x1, 0.5 + x2 - 0.5 * x1], axis=1)
    return pd.Series(np.array(list("abc"))[(scores + generator.gumbel(size=scores.shape)).argmax(1)])


DESIGNS: dict[str, Callable[[Numbers, Numbers, np.random.Generator], pd.Series]] = {
    "binary": binary,
    "count": count,
    "ordinal": ordinal,
    "category": category,
}


def table(design: str, seed: int, n_rows: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return a complete table, and the table with missing cells."""
    generator = np.random.default_rng(seed)
    x1 = generator.normal(size=n_rows)
    x2 = 0.5 * x1 + np.sqrt(0.75) * generator.normal(size=n_rows)
    full = pd.DataFrame({"x1": x1, "x2": x2, "y": DESIGNS[design](x1, x2, generator)})
    incomplete = full.copy()
    incomplete.loc[generator.random(n_rows) < 1 / (1 + np.exp(0.9 - x1)), "y"] = None
    incomplete.loc[generator.random(n_rows) < 0.2, "x2"] = np.nan
    return full, incomplete


def regress(frame: pd.DataFrame, design: str) -> sm.regression.linear_model.RegressionResults:
    """Fit the regression of y on x1 and x2."""
    inputs = sm.add_constant(frame[["x1", "x2"]].to_numpy(np.float64))
    return sm.GLM(frame["y"].to_numpy(np.float64), inputs, family=FAMILIES[design]).fit()


def calibration_error(probabilities: Numbers, outcomes: NDArray[np.bool_]) -> float:
    """Return the expected calibration error: mean distance of probability and frequency in bins of 10 %."""
    bins = np.minimum((10 * probabilities).astype(int), 9)
    cells = [bins == b for b in set(bins)]
    return float(sum(abs(probabilities[c].mean() - outcomes[c].mean()) * c.mean() for c in cells))


def run(design: str, repetitions: int, n_rows: int = N_ROWS, n_draws: int = N_DRAWS) -> str:
    """Run the repetitions of a design and return a summary in words."""
    probabilities, outcomes, inside, errors, widths, complete = [], [], [], [], [], []
    for seed in tqdm(range(repetitions), desc=design, disable=None):
        full, incomplete = table(design, seed, n_rows)
        imputer = MGPImputer(random_state=seed, progress=False).fit(incomplete)
        draws, truth = imputer.impute(m=n_draws).values["y"], full["y"][incomplete["y"].isna()].to_numpy()
        for value in np.unique(draws.astype(str)):
            probabilities.append((draws.astype(str) == value).mean(0))
            outcomes.append(truth.astype(str) == value)
        if design in TRUTH:
            pooled = pool([regress(each, design) for each in imputer.impute(m=N_POOLED)]).table
            inside.append(pooled["low"].le(TRUTH[design]) & pooled["high"].ge(TRUTH[design]))
            errors.append(pooled["estimate"] - TRUTH[design])
            widths.append(pooled["high"] - pooled["low"])
            complete.append(np.diff(regress(full, design).conf_int())[:, 0])
    error = calibration_error(np.concatenate(probabilities), np.concatenate(outcomes))
    text = f"{design}: calibration error {error:.4f}"
    if design in TRUTH:
        means = {"coverage": inside, "bias": errors, "width": widths, "width when complete": complete}
        text += "".join(f"; {name} {np.round(np.mean(each, 0), 3)}" for name, each in means.items())
    return text


def main() -> None:
    """Print a summary of each design."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--designs", nargs="+", choices=list(DESIGNS), default=list(DESIGNS))
    parser.add_argument("--repetitions", type=int, default=300)
    parser.add_argument("--quick", action="store_true", help="one repetition with a small table only")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    for design in args.designs:
        print(run(design, 1, 100, 20) if args.quick else run(design, args.repetitions), flush=True)


if __name__ == "__main__":
    main()
