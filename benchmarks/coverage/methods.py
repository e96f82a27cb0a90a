"""Imputation methods that the coverage study compares."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.coverage import gaussian, multilevel, r_mice, slade
from benchmarks.coverage.design import Impute
from pyro_mgp.data.limits import split_limits
from pyro_mgp.imputer import MGPImputer
from pyro_mgp.settings import with_engine

EXACT = "exact"
"""Method that draws from the posterior under the model of the design, where the design has such a sampler."""

COMPLETE_CASES = "complete_cases"
"""Method that analyses the complete rows."""


def complete_cases(frame: pd.DataFrame, m: int, seed: int) -> list[pd.DataFrame]:
    """Return the complete rows m times, without imputation."""
    return [frame.dropna()] * m


def mgp(
    frame: pd.DataFrame, m: int, seed: int, options: Mapping[str, Any] | None = None
) -> list[pd.DataFrame]:
    """Impute with `MGPImputer`.

    Args:
        frame: Table with missing cells.
        m: Number of imputations.
        seed: Random state of the imputer.
        options: Parameters of `MGPImputer` and fields of `Engine` that differ from their defaults.
    """
    frame, specs = split_limits(frame)
    parameters = {"random_state": seed, "progress": False, "specs": specs, **with_engine(options or {})}
    return list(MGPImputer(**parameters).fit(frame).impute(m=m))


def half_of_limit(frame: pd.DataFrame, m: int, seed: int) -> list[pd.DataFrame]:
    """Return the table m times, with half the limit in cells that are known to lie below it."""
    frame, specs = split_limits(frame)
    for label, spec in specs.items():
        frame[label] = frame[label].fillna(frame[spec.upper_limit] / 2)
    return [frame] * m


def without_first(frame: pd.DataFrame, m: int, seed: int) -> list[pd.DataFrame]:
    """Impute with `MGPImputer` the other columns than the first one, of groups or weights."""
    first = frame.columns[0]
    completed = mgp(frame.drop(columns=first), m, seed)
    return [pd.concat([frame[[first]], each], axis=1) for each in completed]


def iterative(frame: pd.DataFrame, m: int, seed: int) -> list[pd.DataFrame]:
    """Impute with scikit-learn's chained Bayesian ridge regressions, drawing from their posterior."""
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    completed = []
    for j in range(m):
        # With so few rows, draws never meet its convergence criterion.
        imputer = IterativeImputer(sample_posterior=True, max_iter=10, tol=0.0, random_state=seed * m + j)
        completed.append(pd.DataFrame(imputer.fit_transform(frame), columns=frame.columns))
    return completed


def miceforest(frame: pd.DataFrame, m: int, seed: int) -> list[pd.DataFrame]:
    """Impute with chained boosted trees and predictive mean matching, default settings, five rounds."""
    import miceforest as mf  # in the extra `bench` only

    kernel = mf.ImputationKernel(frame, num_datasets=m, random_state=seed)
    kernel.mice(5, num_threads=1)
    return [kernel.complete_data(k) for k in range(m)]


def gaussian_process(frame: pd.DataFrame, m: int, seed: int, *, joint: bool = True) -> list[pd.DataFrame]:
    """Impute the only incomplete column by scikit-learn's GP regression on the others, Matérn-3/2 and noise.

    The hyperparameters maximise the marginal likelihood of 500 rows.

    Args:
        frame: Numeric table with one incomplete column.
        m: Number of imputations.
        seed: Seed of the rows and of the draws.
        joint: Whether the missing cells are drawn jointly, or independently with the same variances.

    Raises:
        ValueError: If not exactly one column is incomplete.
    """
    from sklearn.gaussian_process import GaussianProcessRegressor, kernels

    (incomplete,) = frame.columns[frame.isna().any()]
    missing = frame[incomplete].isna().to_numpy()
    X, y = frame.drop(columns=incomplete).to_numpy(), frame[incomplete].to_numpy()[~missing]
    g, mean, deviation = np.random.default_rng(seed), y.mean(), y.std()
    kernel = kernels.ConstantKernel() * kernels.Matern(nu=1.5) + kernels.WhiteKernel(0.1)
    X, X_missing, y = X[~missing], X[missing], (y - mean) / deviation
    rows = g.permutation(len(y))[:500]
    kernel = GaussianProcessRegressor(kernel).fit(X[rows], y[rows]).kernel_
    fit = GaussianProcessRegressor(kernel, optimizer=None).fit(X, y)
    centre, covariance = fit.predict(X_missing, return_cov=True)
    root = np.linalg.cholesky(covariance) if joint else np.diag(np.sqrt(np.diag(covariance)))
    completed = []
    for _ in range(m):
        table = frame.copy()
        table.loc[missing, incomplete] = mean + deviation * (centre + root @ g.normal(size=len(centre)))
        completed.append(table)
    return completed


METHODS: dict[str, Impute] = {
    COMPLETE_CASES: complete_cases,
    "mgp": mgp,
    "half_of_limit": half_of_limit,
    "without_groups": without_first,
    "without_weights": without_first,
    "observed": multilevel.observed,
    "mice_2l.pan": multilevel.pan,
    "mgp_per_cell": functools.partial(mgp, options={"joint_draws": False}),
    "gaussian": gaussian.exact,
    "second_order": slade.second_order,
    "gp": gaussian_process,
    "gp_per_cell": functools.partial(gaussian_process, joint=False),
    "iterative": iterative,
    "miceforest": miceforest,
    **{f"mice_{name}": r_mice.method(name) for name in r_mice.METHODS},
}
"""Imputation methods by name, besides `exact`."""


def find(name: str, of_design: Mapping[str, Any] | None = None) -> Impute:
    """Return the method of a name, where the name of the package may be followed by options.

    Args:
        name: Key of `METHODS`, or `mgp:` and a JSON object with the `options` of `mgp`.
        of_design: Further options of "mgp" and "mgp:...".

    Raises:
        ValueError: If there is no such method, or the options are not a JSON object.

    Example:
        >>> find('mgp:{"inputs": "earlier"}').keywords
        {'options': {'inputs': 'earlier'}}
    """
    method, _, text = name.partition(":")
    if not text and name in METHODS:
        return functools.partial(mgp, options=of_design) if of_design and name == "mgp" else METHODS[name]
    if method != "mgp":
        raise ValueError(f"methods are {[EXACT, *METHODS]} and mgp:JSON, got {name!r}")
    try:
        options = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"the options of {name!r} are not valid JSON: {error}") from error
    if not isinstance(options, dict):
        raise ValueError(f"the options of the package are a JSON object, got {text!r}")
    return functools.partial(mgp, options={**(of_design or {}), **options})
