"""Coverage study: draw tables, impute, pool a regression, and compare intervals with the true slope."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.coverage import r_mice
from benchmarks.coverage.designs import DESIGNS, Design
from benchmarks.coverage.methods import METHODS, Method
from pyro_mgp.analysis.pooling import pool_estimates

Task = tuple[str, str, int]
"""Design, method and number of the repetition."""


def tasks(
    designs: Sequence[str], methods: Sequence[str], repetitions: int, done: pd.DataFrame | None = None
) -> list[Task]:
    """Return the tasks that remain to be run.

    Args:
        designs: Keys of `DESIGNS`.
        methods: Keys of `METHODS`.
        repetitions: Tables per design.
        done: Rows of `run` so far, whose tasks are left out.

    Raises:
        ValueError: If a design or method is unknown, or R's mice is requested but not installed.
    """
    for what, names, known in (("design", designs, DESIGNS), ("method", methods, METHODS)):
        for name in names:
            if name not in known:
                raise ValueError(f"{what}s are {list(known)}, got {name!r}")
    if any(name.startswith("mice_") for name in methods):
        r_mice.check()
    finished: set[Task] = set()
    if done is not None:
        finished = set(zip(done["design"], done["method"], done["repetition"].tolist(), strict=True))
    return [task for task in itertools.product(designs, methods, range(repetitions)) if task not in finished]


def run(tasks: Iterable[Task]) -> Iterator[dict[str, Any]]:
    """Draw, impute, analyse and pool. All methods get the same table for a design and a repetition.

    Args:
        tasks: Tasks as `tasks` returns them.

    Yields:
        Per design, method and repetition: `estimate`, `low`, `high` (95 %), and the `seconds` of imputation.
    """
    for design, method, repetition in tasks:
        pooled = _run_task(DESIGNS[design], METHODS[method], repetition)
        yield {"design": design, "method": method, "repetition": repetition} | pooled


def _run_task(design: Design, method: Method, repetition: int) -> dict[str, float]:
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


def least_squares(
    y: pd.Series[Any], inputs: Sequence[pd.Series[Any]]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the coefficients of a regression, intercept first, and their variances, both `[K]`."""
    X = np.column_stack([np.ones(len(y)), *inputs])
    inverse = np.linalg.inv(X.T @ X)
    slopes = inverse @ X.T @ y.to_numpy()
    residual = y.to_numpy() - X @ slopes
    return slopes, np.diag(inverse) * (residual @ residual) / (len(y) - X.shape[1])


def summary(results: pd.DataFrame) -> pd.DataFrame:
    """Summarise the repetitions of each method on each design.

    Args:
        results: Rows of `run`.

    Returns:
        Per design and method: `n` repetitions, `bias` with its Monte Carlo error `bias_se`, `percent_bias`,
        `coverage` of the 95 % intervals with `coverage_se`, their mean `width`, and the median `seconds`.
    """
    rows = []
    for (name, method), each in results.groupby(["design", "method"], sort=False):
        truth, n = DESIGNS[str(name)].truth, len(each)
        covered = ((each["low"] <= truth) & (truth <= each["high"])).mean()
        bias = each["estimate"].mean() - truth
        rows.append(
            {
                "design": name,
                "method": method,
                "n": n,
                "bias": bias,
                "bias_se": each["estimate"].std() / np.sqrt(n),
                "percent_bias": 100 * abs(bias / truth),
                "coverage": covered,
                "coverage_se": np.sqrt(covered * (1 - covered) / n),
                "width": (each["high"] - each["low"]).mean(),
                "seconds": each["seconds"].median(),
            }
        )
    return pd.DataFrame(rows)
