"""Do pooled intervals hold the truth as often as they promise? Designs whose truth is known, many times over.

The first two designs are those of van Buuren, *Flexible Imputation of Missing Data* (2nd ed., 2018), sections
2.5.3 and 3.2.3. The others ask for more than straight lines: a product of two incomplete columns, and a wave.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit

from benchmarks import r_mice
from pyro_mgp.analysis.pooling import pool_estimates
from pyro_mgp.imputer import MGPImputer

Numbers = NDArray[np.float64]
Task = tuple[str, str, int]


@dataclass(frozen=True)
class Design:
    """A table with holes, drawn again and again, and what is asked of it."""

    draw: Callable[[np.random.Generator], pd.DataFrame]
    """A table of numbers with holes."""
    inputs: Callable[[pd.DataFrame], list[pd.Series[Any]]]
    """Regressors of `y` in a completed table, besides an intercept."""
    term: int
    """Which regressor's slope is asked for, from 0."""
    truth: float
    m: int
    """Number of imputations."""


def _half_missing(g: np.random.Generator, table: pd.DataFrame, column: str) -> pd.DataFrame:
    """Half of a column missing completely at random."""
    table.loc[g.permutation(len(table))[: len(table) // 2], column] = np.nan
    return table


def _missing_by(g: np.random.Generator, score: Numbers, rate: float) -> NDArray[np.bool_]:
    """Which cells are missing at random, the more likely the larger a score that is always observed."""
    shift = brentq(lambda a: expit(score + a).mean() - rate, -30, 30)
    return np.asarray(g.random(len(score)) < expit(score + shift))


def _fimd_2_5_3(g: np.random.Generator) -> pd.DataFrame:
    x = g.normal(size=50)
    return _half_missing(g, pd.DataFrame({"x": x, "y": x + g.normal(size=50)}), "x")


def _fimd_3_2_3(missing: str) -> Callable[[np.random.Generator], pd.DataFrame]:
    def draw(g: np.random.Generator) -> pd.DataFrame:
        x = g.normal(4.875, 2.75, 55)
        return _half_missing(g, pd.DataFrame({"x": x, "y": 5.49 - 0.29 * x + g.normal(0, 0.86, 55)}), missing)

    return draw


def _product(rate: float) -> Callable[[np.random.Generator], pd.DataFrame]:
    """`y = x1 + x2 + x1·x2 + noise`, x1 and x2 correlated by .3; x1 and y missing more often for large x2."""

    def draw(g: np.random.Generator) -> pd.DataFrame:
        x1, x2 = g.multivariate_normal([0, 0], [[1, 0.3], [0.3, 1]], 200).T
        table = pd.DataFrame({"x1": x1, "x2": x2, "y": x1 + x2 + x1 * x2 + g.normal(size=200)})
        for column in ("x1", "y"):
            table.loc[_missing_by(g, x2, rate), column] = np.nan
        return table

    return draw


def _wave(g: np.random.Generator) -> pd.DataFrame:
    """`y = sin 2x + z/2 + noise`; x and y missing more often for large z, 30 % each."""
    x, z = g.normal(size=(2, 200))
    table = pd.DataFrame({"x": x, "z": z, "y": np.sin(2 * x) + z / 2 + g.normal(0, 0.5, 200)})
    for column in ("x", "y"):
        table.loc[_missing_by(g, z, 0.3), column] = np.nan
    return table


def _slope(frame: pd.DataFrame) -> list[pd.Series[Any]]:
    return [frame["x"]]


def _with_product(frame: pd.DataFrame) -> list[pd.Series[Any]]:
    return [frame["x1"], frame["x2"], frame["x1"] * frame["x2"]]


def _with_wave(frame: pd.DataFrame) -> list[pd.Series[Any]]:
    return [np.sin(2 * frame["x"]), frame["z"]]


DESIGNS: dict[str, Design] = {
    "fimd_2.5.3_x": Design(_fimd_2_5_3, _slope, 0, 1.0, 5),
    "fimd_3.2.3_y": Design(_fimd_3_2_3("y"), _slope, 0, -0.29, 5),
    "fimd_3.2.3_x": Design(_fimd_3_2_3("x"), _slope, 0, -0.29, 5),
    "product_20": Design(_product(0.2), _with_product, 2, 1.0, 20),
    "product_30": Design(_product(0.3), _with_product, 2, 1.0, 20),
    "product_50": Design(_product(0.5), _with_product, 2, 1.0, 20),
    "wave_30": Design(_wave, _with_wave, 0, 1.0, 20),
}
"""The designs, by name; numbers at the end are percentages of missing cells."""

Method = Callable[[pd.DataFrame, int, int], Sequence[pd.DataFrame]]
"""`(table with holes, m, seed)`: m completed tables."""


def complete_cases(frame: pd.DataFrame, m: int, seed: int) -> list[pd.DataFrame]:
    """The complete rows, m times: no imputation at all."""
    return [frame.dropna()] * m


def mgp(frame: pd.DataFrame, m: int, seed: int) -> list[pd.DataFrame]:
    """The imputer with its default settings."""
    return list(MGPImputer(random_state=seed, progress=False).fit(frame).impute(m=m))


def mgp_per_cell(frame: pd.DataFrame, m: int, seed: int) -> list[pd.DataFrame]:
    """The same with each cell drawn alone, instead of one function for all cells of an imputation."""
    imputer = MGPImputer(joint_draws=False, random_state=seed, progress=False)
    return list(imputer.fit(frame).impute(m=m))


def iterative(frame: pd.DataFrame, m: int, seed: int) -> list[pd.DataFrame]:
    """scikit-learn's chained Bayesian ridge regressions, drawing from their posterior."""
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    completed = []
    for j in range(m):
        # With so few rows its criterion of convergence is never met by draws.
        imputer = IterativeImputer(sample_posterior=True, max_iter=10, tol=0.0, random_state=seed * m + j)
        completed.append(pd.DataFrame(imputer.fit_transform(frame), columns=frame.columns))
    return completed


def miceforest(frame: pd.DataFrame, m: int, seed: int) -> list[pd.DataFrame]:
    """Chained boosted trees with predictive mean matching, default settings, five rounds."""
    import miceforest as mf  # in the extra `bench` only

    kernel = mf.ImputationKernel(frame, num_datasets=m, random_state=seed)
    kernel.mice(5, num_threads=1)
    return [kernel.complete_data(k) for k in range(m)]


METHODS: dict[str, Method] = {
    "complete_cases": complete_cases,
    "mgp": mgp,
    "mgp_per_cell": mgp_per_cell,
    "iterative": iterative,
    "miceforest": miceforest,
    **{f"mice_{name}": r_mice.method(name) for name in r_mice.METHODS},
}
"""What is compared, by name."""


def tasks(
    designs: Sequence[str], methods: Sequence[str], repetitions: int, done: pd.DataFrame | None = None
) -> list[Task]:
    """What is to be run: `(design, method, repetition)`, without what is done.

    Raises:
        ValueError: A design or method is unknown, or R's mice is asked for and not there.
    """
    for what, asked, known in (("design", designs, DESIGNS), ("method", methods, METHODS)):
        for name in asked:
            if name not in known:
                raise ValueError(f"{what}s are {list(known)}, got {name!r}")
    if any(name.startswith("mice_") for name in methods):
        r_mice.check()
    over: set[Task] = set()
    if done is not None:
        over = set(zip(done["design"], done["method"], done["repetition"].tolist(), strict=True))
    return [task for task in itertools.product(designs, methods, range(repetitions)) if task not in over]


def run(tasks: Iterable[Task]) -> Iterator[dict[str, Any]]:
    """Draw, impute, analyse, pool. All methods see the same table of a design and a repetition.

    Args:
        tasks: What to run, see `tasks`.

    Yields:
        Per design, method and repetition: `estimate`, `low`, `high` (95 %), and the `seconds` of imputation.
    """
    for design, method, repetition in tasks:
        found = _once(DESIGNS[design], METHODS[method], repetition)
        yield {"design": design, "method": method, "repetition": repetition} | found


def _once(design: Design, method: Method, repetition: int) -> dict[str, float]:
    frame = design.draw(np.random.default_rng([repetition, 2018]))
    started = time.perf_counter()
    completed = method(frame, design.m, repetition)
    seconds = time.perf_counter() - started
    fits = [least_squares(table["y"], design.inputs(table)) for table in completed]
    estimates, variances = np.array([fit[0] for fit in fits]), np.array([fit[1] for fit in fits])
    freedom = len(completed[0]) - estimates.shape[1]
    pooled = pool_estimates(estimates, variances, df_complete=freedom).table.iloc[1 + design.term]
    return {
        "estimate": round(float(pooled["estimate"]), 6),
        "low": round(float(pooled["low"]), 6),
        "high": round(float(pooled["high"]), 6),
        "seconds": round(seconds, 3),
    }


def least_squares(y: pd.Series[Any], inputs: Sequence[pd.Series[Any]]) -> tuple[Numbers, Numbers]:
    """Coefficients of a regression, the intercept first, and their variances, both `[K]`."""
    X = np.column_stack([np.ones(len(y)), *inputs])
    inverse = np.linalg.inv(X.T @ X)
    slopes = inverse @ X.T @ y.to_numpy()
    residual = y.to_numpy() - X @ slopes
    return slopes, np.diag(inverse) * (residual @ residual) / (len(y) - X.shape[1])


def summary(results: pd.DataFrame) -> pd.DataFrame:
    """What repetitions say of each method on each design.

    Args:
        results: Rows of `run`.

    Returns:
        Per design and method: `n` repetitions, `bias` with its Monte Carlo error `bias_se`, `percent_bias`,
        `coverage` of the 95 % intervals with `coverage_se`, their mean `width`, and the median `seconds`.
    """
    rows = []
    for (name, method), each in results.groupby(["design", "method"], sort=False):
        truth, n = DESIGNS[str(name)].truth, len(each)
        held = ((each["low"] <= truth) & (truth <= each["high"])).mean()
        bias = each["estimate"].mean() - truth
        rows.append(
            {
                "design": name,
                "method": method,
                "n": n,
                "bias": bias,
                "bias_se": each["estimate"].std() / np.sqrt(n),
                "percent_bias": 100 * abs(bias / truth),
                "coverage": held,
                "coverage_se": np.sqrt(held * (1 - held) / n),
                "width": (each["high"] - each["low"]).mean(),
                "seconds": each["seconds"].median(),
            }
        )
    return pd.DataFrame(rows)
