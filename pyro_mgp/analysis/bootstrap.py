"""Standard errors by the bootstrap, for estimates that have none.

Bootstrap then impute: every bootstrap sample of the rows is imputed anew, twice or more often. The variances
of the means of samples and within samples give that of the mean of all (von Hippel and Bartlett, Statistical
Science 36:400-420, 2021, section 4), also where imputation and analysis assume different models. Impute then
bootstrap: every completed table is bootstrapped, and Rubin's rules pool the results, which is faster.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import clone

from pyro_mgp._support.checks import at_least
from pyro_mgp._support.messages import listing, progress_bar
from pyro_mgp.analysis.pooling import ShownAsTable, check_level, t_intervals
from pyro_mgp.analysis.sensitivity import Imputer
from pyro_mgp.data.table import TableWarning, plain_frame

Numbers = NDArray[np.float64]
Estimator = Callable[[pd.DataFrame], Any]
"""Function that estimates K quantities from a completed DataFrame: a number, `[K]`, or by name."""
# Least degrees of freedom, below which t has no variance.
_LEAST_DF = 3.0


@dataclass(frozen=True, eq=False, repr=False)
class PooledBootstrap(ShownAsTable):
    """Pooled estimates of bootstrap samples: `estimate`, `se`, `df`, `low` and `high`.

    `m` is the number of imputations of each sample.
    """

    estimates: Numbers
    """Estimates from each imputation of each of B samples, `[B, m, K]`."""


def bootstrap_then_impute(
    imputer: Imputer,
    frame: pd.DataFrame,
    estimator: Estimator,
    *,
    n_samples: int = 200,
    m: int = 2,
    level: float = 0.95,
    random_state: int = 0,
    progress: bool = True,
) -> PooledBootstrap:
    """Estimate quantities from imputed bootstrap samples of a table, with standard errors.

    Args:
        imputer: Imputer, of which a clone is fitted to each sample; an `MGPImputer.with_choices` is faster.
        frame: The table, with its missing cells; rows must be independent.
        estimator: Function that estimates quantities from a completed DataFrame of pandas.
        n_samples: Number B of bootstrap samples.
        m: Imputations of each sample, at least 2.
        level: Confidence level of the intervals.
        random_state: Seed of the samples and of the clones.
        progress: Show a progress bar, on terminals only.

    Raises:
        ValueError: If there are fewer than two samples or imputations, a sample lacks what is rare and cannot
            be imputed, or estimates of samples have other names or are not finite.

    Example:
        >>> from pyro_mgp import MGPImputer
        >>> frame = pd.DataFrame({"x": np.arange(20.0), "y": np.sin(np.arange(20.0))})
        >>> frame.loc[::4, "y"] = np.nan
        >>> imputer = MGPImputer(inputs="others", max_steps=2)
        >>> pooled = bootstrap_then_impute(imputer, frame, lambda t: t["y"].median(), n_samples=5)
        >>> pooled.estimates.shape
        (5, 2, 1)
    """
    at_least("n_samples", n_samples, 2)
    at_least("m", m, 2)
    check_level(level)
    table, generator = plain_frame(frame), np.random.default_rng(random_state)
    answers: list[list[pd.Series[float]]] = []
    names: pd.Index[Any] = pd.Index([])
    for number in progress_bar(range(n_samples), progress, desc="bootstrap", unit="samples"):
        rows = generator.integers(len(table), size=len(table))
        sample = table.iloc[rows].reset_index(drop=True)
        own = clone(imputer).set_params(random_state=int(generator.integers(2**31)), progress=False)
        try:
            with warnings.catch_warnings():  # about the table, which a fit to it gives
                warnings.simplefilter("ignore", TableWarning)
                draws = own.fit(sample).impute(m=m)
        except ValueError as error:
            error.add_note(f"This is of bootstrap sample {number}, in which rows of the table are repeated.")
            raise
        expected = names if answers else None
        answers.append([_estimates(estimator(each), f"sample {number}", expected) for each in draws])
        names = answers[0][0].index
    return _pooled(np.array(answers), names, level)


def bootstrapped(
    estimator: Estimator, *, n_samples: int = 200, random_state: int = 0
) -> Callable[[pd.DataFrame], Any]:
    """Return an analysis for `Imputations.pool`, with a covariance matrix by the bootstrap of each table.

    Example:
        >>> from pyro_mgp import Imputations
        >>> frame = pd.DataFrame({"x": [*np.arange(9.0), np.nan]})
        >>> draws = Imputations(frame, {"x": [[4.0], [6.0]]}, m=2)
        >>> draws.pool(bootstrapped(lambda table: table["x"].median())).table["estimate"].tolist()
        [4.25]
    """
    at_least("n_samples", n_samples, 2)

    def analysis(table: pd.DataFrame) -> tuple[pd.Series[float], Numbers]:
        frame = plain_frame(table).reset_index(drop=True)
        generator, n = np.random.default_rng(random_state), len(frame)
        whole, samples = _estimates(estimator(frame), "the table"), []
        for number in range(n_samples):
            sample = frame.iloc[generator.integers(n, size=n)].reset_index(drop=True)
            samples.append(_estimates(estimator(sample), f"sample {number}", whole.index).to_numpy())
        return whole, np.atleast_2d(np.cov(np.array(samples), rowvar=False))

    return analysis


def _estimates(found: Any, where: str, names: pd.Index[Any] | None = None) -> pd.Series[float]:
    """Return estimates as a Series in the order of the names, which are their positions by default."""
    if isinstance(found, Mapping | pd.Series):
        own = pd.Series(dict(found.items()), dtype=np.float64)
    elif np.ndim(found) <= 1:
        own = pd.Series(np.atleast_1d(np.asarray(found, dtype=np.float64)))
    else:
        shape = np.shape(found)
        raise TypeError(f"estimators must return a number, [K], a Series or a dict, got shape {shape}")
    if names is not None and set(own.index) != set(names):
        expected = f"expected estimates {listing(names)} from every bootstrap sample"
        raise ValueError(f"{expected}, got {listing(own.index)} from {where}: is a level absent from it?")
    if not np.isfinite(own).all():
        bad = own[~np.isfinite(own)]
        raise ValueError(f"expected finite estimates, got {bad.iloc[0]} for {bad.index[0]!r} from {where}")
    return own if names is None else own[list(names)]


def _pooled(Q: Numbers, names: pd.Index[Any], level: float) -> PooledBootstrap:
    """Pool estimates `[B, m, K]` by the variance components of samples and of imputations within them."""
    B, m, _ = Q.shape
    of_samples, estimate = Q.mean(1), Q.mean((0, 1))
    within = np.square(Q - of_samples[:, None]).sum((0, 1)) / (B * (m - 1))
    between = m * np.square(of_samples - estimate).sum(0) / (B - 1)
    of_rows = (between - within) / m
    # Without a component of samples, all estimates are as of one sample.
    pooled = ((B - 1) * between + B * (m - 1) * within) / (B * m - 1)
    within = np.where(of_rows > 0, within, pooled)
    variance = (1 + 1 / B) * of_rows.clip(min=0) + within / (B * m)
    spread = ((B + 1) / (B * m) * between) ** 2 / (B - 1) + within**2 / (B * m**2 * (m - 1))
    with np.errstate(invalid="ignore"):  # constants have no variance
        df = np.where(spread > 0, variance**2 / spread, np.inf).clip(min=_LEAST_DF)
    se = np.sqrt(variance)
    return PooledBootstrap(pd.DataFrame(t_intervals(estimate, se, df, level), names), m, level, Q)
