"""What a design of the coverage study consists of: incomplete tables, an analysis, and the truth."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]

Impute = Callable[[pd.DataFrame, int, int], Sequence[pd.DataFrame]]
"""Function of `(table with missing cells, m, seed)` that returns m completed tables."""


class Table(NamedTuple):
    """A table drawn from a design."""

    frame: pd.DataFrame
    """The table with missing cells, which methods impute."""
    complete: pd.DataFrame
    """The same table before cells were removed."""


class Analysis(NamedTuple):
    """Estimates of K quantities from one completed table."""

    names: Sequence[str]
    """Name of each estimand."""
    estimates: Numbers
    """Estimates, `[K]`."""
    variances: Numbers
    """Squared standard errors, `[K]`; zeros where the table itself is the population."""
    kinds: Sequence[str] | None = None
    """Kind of each estimand, over which summaries average; None if all are of one kind."""
    df: float = math.inf
    """Residual degrees of freedom."""


@dataclass(frozen=True)
class Design:
    """Distribution of an incomplete table, and the quantities to estimate from it.

    Without `truth` the complete table is the population: the truth is what `analyse` makes of it, and
    intervals are ± 1.96 √((1 + 1/m) B) with the variance B between imputations. Coverage of the central 95 %
    intervals of missing cells is recorded as well.
    """

    draw: Callable[[np.random.Generator], Table]
    """Function that draws a table."""
    analyse: Callable[[pd.DataFrame], Analysis]
    """Analysis of a completed table."""
    m: int
    """Number of imputations."""
    truth: Mapping[str, float] | None = None
    """True value of each estimand; None where the complete table is the population."""
    exact: Impute | None = field(default=None, kw_only=True)
    """Sampler of the posterior under the model that generated the tables; None if there is none."""
    options: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    """Parameters of `MGPImputer` that describe the table."""
    seeds: int = field(default=1, kw_only=True)
    """Number of successive repetitions with the same table, which differ in the seed of imputation only."""


class LeastSquares(NamedTuple):
    """A fitted linear regression."""

    slopes: Numbers
    """Coefficients, intercept first, `[K]`."""
    variances: Numbers
    """Their squared standard errors, `[K]`."""
    df: int
    """Residual degrees of freedom."""


def least_squares(y: pd.Series[Any], inputs: Sequence[pd.Series[Any]]) -> LeastSquares:
    """Regress `y` on an intercept and the given regressors."""
    X = np.column_stack([np.ones(len(y)), *inputs]).astype(np.float64)
    inverse = np.linalg.inv(X.T @ X)
    slopes = inverse @ X.T @ y.to_numpy()
    residual, df = y.to_numpy() - X @ slopes, len(y) - X.shape[1]
    return LeastSquares(slopes, np.diag(inverse) * (residual @ residual) / df, df)


def regression(
    inputs: Callable[[pd.DataFrame], Mapping[str, pd.Series[Any]]], only: str | None = None
) -> Callable[[pd.DataFrame], Analysis]:
    """Return the analysis that regresses `y` on named regressors.

    Args:
        inputs: Function of a completed table that returns the regressors by name, without the intercept.
        only: Name of the single coefficient to report; None reports all, with the intercept.
    """

    def analyse(frame: pd.DataFrame) -> Analysis:
        named = inputs(frame)
        fit = least_squares(frame["y"], list(named.values()))
        names = ["intercept", *named]
        kept = [k for k, name in enumerate(names) if only in (None, name)]
        return Analysis([names[k] for k in kept], fit.slopes[kept], fit.variances[kept], df=fit.df)

    return analyse


def equicorrelated(g: np.random.Generator, n: int, p: int, correlation: float) -> Numbers:
    """Draw rows `[n, p]` of standard normal variables with equal correlations ≥ 0.

    Rows are drawn from a shared variable and `p` own ones. NumPy's `multivariate_normal` rotates by the
    eigenvectors of the covariance, which are not unique here: its rows depend on the processor.
    """
    shared, own = g.normal(size=(n, 1)), g.normal(size=(n, p))
    return math.sqrt(correlation) * shared + math.sqrt(1 - correlation) * own


def missing_at_random(g: np.random.Generator, score: Numbers, rate: float) -> Flags:
    """Draw missing cells `[n]`, more probable where an observed score `[n]` is larger."""
    shift = brentq(lambda a: expit(score + a).mean() - rate, -30, 30)
    return np.asarray(g.random(len(score)) < expit(score + shift))
