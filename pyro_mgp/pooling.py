"""Rubin's rules: one answer from the m answers that m imputations give.

    Q̄ = mean of the estimates,  Ū = mean of their variances,  B = variance of the estimates between tables
    T = Ū + (1 + 1/m) B,        λ = (1 + 1/m) B / T,          riv = (1 + 1/m) B / Ū

Intervals are Student's t with the degrees of freedom of Barnard and Rubin (Biometrika 86:948-955, 1999),

    ν_old = (m - 1) / λ²,  ν_obs = (ν_com + 1) / (ν_com + 3) · ν_com (1 - λ),  ν = 1 / (1/ν_old + 1/ν_obs)

where ν_com are those of the complete table (van Buuren, *Flexible Imputation of Missing Data*, section 2.3).
λ is the share of the variance that is due to missing cells; fmi = (riv + 2/(ν + 3)) / (1 + riv), the fraction
of missing information, also counts that B is known from m tables only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import stats


class Fit(Protocol):
    """What an analysis of one table gives: a result of statsmodels, or anything with the same attributes."""

    @property
    def params(self) -> Any:
        """Estimates, `[K]`; a Series names them."""

    @property
    def bse(self) -> Any:
        """Their standard errors, `[K]`."""


@dataclass(frozen=True, eq=False, repr=False)
class Pooled:
    """The pooled answer.

    Example:
        >>> pooled = pool_estimates([[1.2], [1.5], [0.9]], [[0.04], [0.05], [0.045]], ["slope"])
        >>> pooled.table.round(3)[["estimate", "se", "lambda"]]
               estimate     se  lambda
        slope       1.2  0.406   0.727
    """

    table: pd.DataFrame
    """One row per estimate: `estimate`, `se`, `df`, `low` and `high` (bounds of the interval), `p` (of its
    being zero), `riv`, `lambda`, `fmi`, `efficiency` (of m imputations, against ever more)."""
    m: int
    """Number of imputations."""
    level: float
    """Of the intervals."""

    def __repr__(self) -> str:
        return f"Pooled over {self.m} imputations, {self.level:.0%} intervals\n{self.table.to_string()}"


def pool(fits: Sequence[Fit], *, level: float = 0.95, df_complete: float | None = None) -> Pooled:
    """Pool the same analysis of m completed tables.

    Args:
        fits: m results with `params` and `bse`; `df_resid`, if there, says ν_com.
        level: Probability of the intervals.
        df_complete: ν_com, if the fits do not say so; None for infinite.

    Raises:
        ValueError: Fewer than two fits, of different estimates, or standard errors that are not positive.

    Example:
        >>> import types
        >>> fits = [types.SimpleNamespace(params=[q], bse=[0.2]) for q in (1.2, 1.5, 0.9)]
        >>> round(float(pool(fits).table["estimate"].iloc[0]), 3)
        1.2
    """
    fits = list(fits)
    names = [_names(fit) for fit in fits]
    if any(each != names[0] for each in names):
        other = next(each for each in names if each != names[0])
        raise ValueError(f"the fits estimate different things: {names[0]} and {other}")
    if df_complete is None and fits:
        df_complete = getattr(fits[0], "df_resid", None)
    estimates = np.array([np.asarray(fit.params, dtype=np.float64) for fit in fits])
    variances = np.array([np.square(np.asarray(fit.bse, dtype=np.float64)) for fit in fits])
    return pool_estimates(
        estimates, variances, names[0] if fits else (), level=level, df_complete=df_complete
    )


def pool_estimates(
    estimates: ArrayLike,
    variances: ArrayLike,
    names: Sequence[Any] | None = None,
    *,
    level: float = 0.95,
    df_complete: float | None = None,
) -> Pooled:
    """Pool K estimates from each of m completed tables.

    Args:
        estimates: `[m, K]`, or `[m]` for a single one.
        variances: Squares of their standard errors, likewise.
        names: K labels for the rows of the result.
        level: Probability of the intervals.
        df_complete: ν_com, degrees of freedom had the table been complete; None for infinite.

    Raises:
        ValueError: As for `pool`.
    """
    Q, U = (np.asarray(part, dtype=np.float64) for part in (estimates, variances))
    Q, U = (part[:, None] if part.ndim == 1 else part for part in (Q, U))
    m = len(Q)
    if m < 2 or Q.shape != U.shape:
        raise ValueError(
            "expected estimates and variances of at least two imputations, of one shape, got "
            f"{Q.shape} and {U.shape}"
        )
    if not (U > 0).all():
        raise ValueError("expected positive variances of all estimates")
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level}")
    within, between = U.mean(0), Q.var(0, ddof=1)
    excess = (1 + 1 / m) * between
    total = within + excess
    share, increase = excess / total, excess / within
    freedom = _freedom(share, m, df_complete)
    se, estimate = np.sqrt(total), Q.mean(0)
    reach = stats.t.ppf((1 + level) / 2, freedom) * se
    fmi = (increase + 2 / (freedom + 3)) / (1 + increase)
    table = pd.DataFrame(
        {
            "estimate": estimate,
            "se": se,
            "df": freedom,
            "low": estimate - reach,
            "high": estimate + reach,
            "p": 2 * stats.t.sf(np.abs(estimate) / se, freedom),
            "riv": increase,
            "lambda": share,
            "fmi": fmi,
            "efficiency": 1 / (1 + fmi / m),
        },
        index=pd.Index(range(Q.shape[1]) if names is None else list(names)),
    )
    return Pooled(table, m, level)


def _names(fit: Fit) -> list[Any]:
    params = fit.params
    return params.index.tolist() if isinstance(params, pd.Series) else list(range(len(params)))


def _freedom(share: NDArray[np.float64], m: int, complete: float | None) -> NDArray[np.float64]:
    """Barnard and Rubin's ν, from λ; without missing information that of the complete table."""
    with np.errstate(divide="ignore"):
        old = (m - 1) / np.square(share)
    if complete is None or math.isinf(complete):
        return old
    observed = (complete + 1) / (complete + 3) * complete * (1 - share)
    return np.asarray(1 / (1 / old + 1 / observed))
