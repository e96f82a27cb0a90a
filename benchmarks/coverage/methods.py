"""Imputation methods that the coverage study compares."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from benchmarks.coverage import r_mice
from pyro_mgp.imputer import MGPImputer
from pyro_mgp.settings import Engine

Method = Callable[[pd.DataFrame, int, int], Sequence[pd.DataFrame]]
"""Function of `(table with missing cells, m, seed)` that returns m completed tables."""


def complete_cases(frame: pd.DataFrame, m: int, seed: int) -> list[pd.DataFrame]:
    """Return the complete rows m times, without imputation."""
    return [frame.dropna()] * m


def mgp(frame: pd.DataFrame, m: int, seed: int) -> list[pd.DataFrame]:
    """Impute with `MGPImputer` and its default settings."""
    return list(MGPImputer(random_state=seed, progress=False).fit(frame).impute(m=m))


def mgp_per_cell(frame: pd.DataFrame, m: int, seed: int) -> list[pd.DataFrame]:
    """Impute with `MGPImputer`, drawing each cell independently instead of one function per imputation."""
    imputer = MGPImputer(engine=Engine(joint_draws=False), random_state=seed, progress=False)
    return list(imputer.fit(frame).impute(m=m))


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


METHODS: dict[str, Method] = {
    "complete_cases": complete_cases,
    "mgp": mgp,
    "mgp_per_cell": mgp_per_cell,
    "iterative": iterative,
    "miceforest": miceforest,
    **{f"mice_{name}": r_mice.method(name) for name in r_mice.METHODS},
}
"""Imputation methods by name."""
