"""Tests of several estimates at once, pooled over m imputations.

    D1  from estimates and covariances:
        F = (Q̄ - Q₀)ᵀ Ū⁻¹ (Q̄ - Q₀) / (k (1 + r)),     r = (1 + 1/m) tr(B Ū⁻¹) / k
    D2  from m chi-square statistics:
        F = (d̄/k - (m + 1)/(m - 1) r) / (1 + r),       r = (1 + 1/m) var(√d)
    D3  from log-likelihoods of the m tables, at their own and at the pooled estimates, and
    D4  from those of the m tables and of all of them stacked:
        F = d̂ / (k (1 + r)),                           r = max(0, (m + 1)/(k (m - 1)) (d̄ - d̂))

where k is the number of constraints, d̄ the mean of the m statistics, and d̂ that of the likelihood ratios at
the pooled estimates (D3) or the ratio of the stacked table divided by m (D4). All take the relative increase
in variance by missing cells, r, to be the same in every direction. F is compared with Fisher's distribution
with k and ν₂ degrees of freedom.

D1: Li, Raghunathan and Rubin (JASA 86:1065-1073, 1991), ν₂ for small tables of Reiter (Biometrika 94:502-508,
2007). D2: Li, Meng, Raghunathan and Rubin (Statistica Sinica 1:65-92, 1991), for when nothing but the
statistics is known: it is the weakest. D3: Meng and Rubin (Biometrika 79:103-111, 1992). D4: Chan and Meng
(Statistica Sinica 32:1489-1514, 2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import linalg, stats

from pyro_mgp._support.messages import warn_user

Numbers = NDArray[np.float64]


class PoolingWarning(UserWarning):
    """A pooled answer rests on fewer imputations than it needs."""


class LikelihoodFit(Protocol):
    """A fit by maximum likelihood, as statsmodels gives it."""

    @property
    def params(self) -> object:
        """Estimates."""

    @property
    def llf(self) -> float:
        """Log-likelihood at its maximum."""


@dataclass(frozen=True)
class JointTest:
    """A pooled test of k constraints.

    Example:
        >>> pool_chi2([9.1, 11.3, 7.8], 2)
        D2 over 3 imputations: F(2, 102.8) = 4.039, p = 0.0205, riv = 0.109
    """

    F: float
    """The statistic; D2's can be negative, which says that there is nothing to reject."""
    df1: int
    """k, the number of constraints."""
    df2: float
    """Degrees of freedom of the denominator."""
    p: float
    """Probability of a larger F if the null hypothesis holds."""
    riv: float
    """r, the relative increase in variance that is due to missing cells, averaged over the constraints."""
    method: Literal["D1", "D2", "D3", "D4"]
    """Name of the test."""
    m: int
    """Number of imputations."""

    def __repr__(self) -> str:
        p = "p < 0.0001" if self.p < 1e-4 else f"p = {self.p:.4f}"
        return (
            f"{self.method} over {self.m} imputations: F({self.df1}, {self.df2:.1f}) = {self.F:.4g}, {p}, "
            f"riv = {self.riv:.3f}"
        )


# -------------------------------------------------------------------------------------------------------- D1


def pool_wald(
    estimates: ArrayLike, covariances: ArrayLike, null: ArrayLike = 0.0, df_complete: float | None = None
) -> JointTest:
    """D1, the pooled Wald test: that all k estimates equal the null values.

    Without differences between imputations F is that of the complete table, with ν₂ = ν_com (ν_com + 1) /
    (ν_com + 3) as for the intervals of `pool`. A single constraint gets Barnard and Rubin's degrees of
    freedom, so that F is the square of its t. Where Reiter's are not defined (k (m - 1) ≤ 4, or ν_com is too
    small) those of Li et al. are combined with ν_com as Barnard and Rubin do.

    Args:
        estimates: `[m, k]`.
        covariances: Of the estimates from each table, `[m, k, k]`.
        null: Values to compare with, `[k]` or one for all.
        df_complete: ν_com, degrees of freedom had the table been complete; None for infinite.

    Raises:
        ValueError: Fewer than two imputations, shapes that do not fit, or a mean covariance that is singular.

    Warns:
        PoolingWarning: No more imputations than constraints.

    Example:
        >>> pool_wald([[1.2, 0.3], [1.5, 0.1], [0.9, 0.2]], [[[0.04, 0.0], [0.0, 0.05]]] * 3, df_complete=30)
        D1 over 3 imputations: F(2, 4.5) = 6.987, p = 0.0415, riv = 1.633
    """
    Q, U = np.asarray(estimates, dtype=np.float64), np.asarray(covariances, dtype=np.float64)
    if Q.ndim != 2 or len(Q) < 2 or Q.shape[1] < 1 or U.shape != (*Q.shape, Q.shape[1]):
        raise ValueError(
            "expected estimates [m, k] of at least two imputations and covariances [m, k, k], got shapes "
            f"{Q.shape} and {U.shape}"
        )
    m, k = Q.shape
    if m <= k > 1:
        warn_user(
            f"a test of {k} constraints from {m} imputations cannot tell in which directions these differ: "
            f"draw more than {k}, better several times as many",
            PoolingWarning,
        )
    distance = Q.mean(0) - np.broadcast_to(np.asarray(null, dtype=np.float64), (k,))
    factor = _cholesky(U.mean(0))
    # In the units of Ū = L Lᵀ: the distance L⁻¹ (Q̄ - Q₀), and tr(B Ū⁻¹) as a sum of variances.
    statistic = np.square(linalg.solve_triangular(factor, distance, lower=True)).sum()
    between = linalg.solve_triangular(factor, Q.T, lower=True).var(1, ddof=1).sum()
    r = (1 + 1 / m) * float(between) / k
    return _tested("D1", float(statistic) / (k * (1 + r)), k, _wald_freedom(k, m, r, df_complete), r, m)


def barnard_rubin(share: Numbers, m: int, df_complete: float | None) -> Numbers:
    """Barnard and Rubin's ν, from λ.

    Args:
        share: λ, the share of the variance that is due to missing cells, any shape.
        m: Number of imputations.
        df_complete: ν_com; None for infinite.
    """
    with np.errstate(divide="ignore"):
        old = (m - 1) / np.square(share)
    return _with_complete(old, share, df_complete)


def _with_complete(large_sample: Numbers, share: Numbers, df_complete: float | None) -> Numbers:
    """Large-sample degrees of freedom, combined with those that are left of the complete table's."""
    if df_complete is None or math.isinf(df_complete):
        return large_sample
    observed = _shrunk(df_complete) * (1 - share)
    return np.asarray(1 / (1 / large_sample + 1 / observed))


def _shrunk(complete: float) -> float:
    return (complete + 1) / (complete + 3) * complete


def _wald_freedom(k: int, m: int, r: float, df_complete: float | None) -> float:
    """ν₂ of D1."""
    share = np.asarray(r / (1 + r))
    if k == 1:
        return float(barnard_rubin(share, m, df_complete))
    if df_complete is not None and math.isfinite(df_complete):
        reiter = _reiter(k * (m - 1), r, _shrunk(df_complete))
        if reiter is not None:
            return reiter
    return float(_with_complete(np.asarray(_li(k, m, r)), share, df_complete))


def _li(k: int, m: int, r: float) -> float:
    """ν₂ of Li, Raghunathan and Rubin, which D3 shares."""
    t = k * (m - 1)
    if r == 0:
        return math.inf
    return 4 + (t - 4) * (1 + (1 - 2 / t) / r) ** 2 if t > 4 else t * (1 + 1 / k) * (1 + 1 / r) ** 2 / 2


def _reiter(t: int, r: float, v: float) -> float | None:
    """ν₂ of Reiter, in his letters; None where it is not defined."""
    if t <= 4:
        return None
    a = r * t / (t - 2)
    c1, c2 = v - 2 * (1 + a), v - 4 * (1 + a)
    if c2 <= 0:
        return None
    z = 1 / c2 + (
        a**2 * c1 / ((1 + a) ** 2 * c2)
        + 8 * a**2 * c1 / ((1 + a) * c2**2)
        + 4 * a**2 / ((1 + a) * c2)
        + 4 * a**2 / (c2 * c1)
        + 16 * a**2 * c1 / c2**3
        + 8 * a**2 / c2**2
    ) / (t - 4)
    return 4 + 1 / z


def _cholesky(within: Numbers) -> Numbers:
    scale = np.sqrt(np.maximum(np.diag(within), 0))
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = within / np.outer(scale, scale)
    # Rounding leaves singular matrices eigenvalues of about 1e-16.
    if not np.isfinite(correlation).all() or np.linalg.eigvalsh(correlation)[0] < 1e-12:
        raise ValueError(
            "the mean covariance of the tested estimates is singular: the constraints repeat each other, or "
            "estimates depend on each other linearly; leave some out"
        )
    return np.asarray(linalg.cholesky(correlation, lower=True) * scale[:, None])


# -------------------------------------------------------------------------------------------------------- D2


def pool_chi2(statistics: ArrayLike, df: int) -> JointTest:
    """D2, from the chi-square statistics of one test on each of m tables.

    For Wald's, likelihood-ratio or any other statistics that are chi-square in large samples.

    Args:
        statistics: `[m]`.
        df: Their degrees of freedom, k.

    Raises:
        ValueError: Fewer than two statistics, negative ones, or `df` below 1.

    Example:
        >>> pool_chi2([14.8, 27.4, 8.6, 10.7, 19.2], 2)
        D2 over 5 imputations: F(2, 10.5) = 3.279, p = 0.0782, riv = 1.003
    """
    d = np.asarray(statistics, dtype=np.float64)
    if d.ndim != 1 or len(d) < 2 or not (d >= 0).all():
        raise ValueError(f"expected statistics [m] from 0 upwards of at least two imputations, got {d}")
    k, m = _constraints(df), len(d)
    r = (1 + 1 / m) * float(np.sqrt(d).var(ddof=1))
    F = (float(d.mean()) / k - (m + 1) / (m - 1) * r) / (1 + r)
    df2 = k ** (-3 / m) * (m - 1) * (1 + 1 / r) ** 2 if r else math.inf
    return _tested("D2", F, k, df2, r, m)


# ------------------------------------------------------------------------------------------------- D3 and D4


def pool_likelihoods(
    full: ArrayLike,
    null: ArrayLike,
    df: int,
    *,
    stacked: tuple[float, float] | None = None,
    at_pooled: tuple[ArrayLike, ArrayLike] | None = None,
) -> JointTest:
    """D4 or D3, the pooled likelihood-ratio test of a null model within a full one.

    Give either `stacked`, for D4, or `at_pooled`, for D3.

    Args:
        full: Log-likelihood of the full model fitted to each of m tables, `[m]`.
        null: That of the null model, `[m]`.
        df: k, the number of parameters that the full model has more.
        stacked: Log-likelihoods of the full and of the null model fitted to all m tables as one.
        at_pooled: Log-likelihoods `[m]` and `[m]` of the tables under the full and under the null model, each
            at its estimates averaged over the tables.

    Raises:
        ValueError: Fewer than two tables, shapes that do not fit, `df` below 1, or not exactly one of
            `stacked` and `at_pooled`.

    Example:
        >>> pool_likelihoods([-64.8, -58.2, -61.1], [-71.7, -69.0, -65.6], 2, stacked=(-185.8, -206.4))
        D4 over 3 imputations: F(2, 15.0) = 3.323, p = 0.0639, riv = 1.067
    """
    L1, L0 = _log_likelihoods(full, null)
    k, m = _constraints(df), len(L1)
    if stacked is not None and at_pooled is None:
        at_one = 2 * (float(stacked[0]) - float(stacked[1])) / m
    elif at_pooled is not None and stacked is None:
        P1, P0 = _log_likelihoods(*at_pooled)
        at_one = 2 * float((P1 - P0).mean())
    else:
        raise ValueError("give either stacked, for D4, or at_pooled, for D3")
    r = max(0.0, (m + 1) / (k * (m - 1)) * (2 * float((L1 - L0).mean()) - at_one))
    F = at_one / (k * (1 + r))
    if stacked is None:
        return _tested("D3", F, k, _li(k, m, r), r, m)
    return _tested("D4", F, k, k * (m - 1) * (1 + 1 / r) ** 2 if r else math.inf, r, m)


def likelihood_ratio_test(
    draws: Iterable[pd.DataFrame],
    full: Callable[[pd.DataFrame], LikelihoodFit],
    null: Callable[[pd.DataFrame], LikelihoodFit],
    *,
    df: int | None = None,
) -> JointTest:
    """D4, from two analyses of every completed table and of all tables stacked.

    Rows are taken to be independent. Where they are not (repeated measurements), the stacked table must keep
    the groups of different imputations apart: fit it yourself and use `pool_likelihoods`.

    Args:
        draws: `Imputations`, or m completed tables.
        full: From a table to a fit by maximum likelihood, with `params` and `llf`, as statsmodels gives.
        null: The same under the null hypothesis, a special case of the full model.
        df: k; None counts how many `params` the full model has more.

    Raises:
        ValueError: Fewer than two tables, a full model without more parameters than the null model, or one
            that is less likely than it.

    Example:
        >>> import statsmodels.formula.api as smf
        >>> frame = pd.DataFrame({"x": range(8), "y": [1, 0, 3, 2, 5, 4, 7, 7]})
        >>> tables = [frame.assign(x=frame.x + frame.index % 2 * shift) for shift in (0.1, 0.4, 0.3)]
        >>> likelihood_ratio_test(
        ...     tables, lambda t: smf.ols("y ~ x", t).fit(), lambda t: smf.ols("y ~ 1", t).fit()
        ... )
        D4 over 3 imputations: F(1, 97.5) = 11.58, p = 0.0010, riv = 0.167
    """
    tables = list(draws)
    if len(tables) < 2:
        raise ValueError(f"expected at least two completed tables, got {len(tables)}")
    stack = pd.concat(tables, ignore_index=True)
    *fits, stacked = [(full(table), null(table)) for table in (*tables, stack)]
    larger, smaller = (int(np.size(np.asarray(fit.params))) for fit in stacked)
    if df is None and larger <= smaller:
        raise ValueError(
            f"the full model has {larger} params, the null model {smaller}: expected more in the full one; "
            "if models differ otherwise, say by how many constraints with df="
        )
    L1, L0 = np.array([[float(fit.llf) for fit in pair] for pair in fits]).T
    if (L1 + 1e-6 * np.abs(L1) < L0).any():
        raise ValueError("the full model is less likely than the null model: are they nested, in this order?")
    df = larger - smaller if df is None else df
    return pool_likelihoods(L1, L0, df, stacked=(float(stacked[0].llf), float(stacked[1].llf)))


def _log_likelihoods(full: ArrayLike, null: ArrayLike) -> tuple[Numbers, Numbers]:
    L1, L0 = np.asarray(full, dtype=np.float64), np.asarray(null, dtype=np.float64)
    if L1.ndim != 1 or len(L1) < 2 or L1.shape != L0.shape:
        raise ValueError(
            "expected log-likelihoods [m] of both models on at least two tables, got shapes "
            f"{L1.shape} and {L0.shape}"
        )
    return L1, L0


# --------------------------------------------------------------------------------------------------- results


def _constraints(df: int) -> int:
    if df != int(df) or df < 1:
        raise ValueError(f"df, the number of constraints, must be an integer of at least 1, got {df}")
    return int(df)


def _tested(
    method: Literal["D1", "D2", "D3", "D4"], F: float, k: int, df2: float, r: float, m: int
) -> JointTest:
    p = stats.chi2.sf(k * F, k) if math.isinf(df2) else stats.f.sf(F, k, df2)
    return JointTest(F, k, df2, float(p), r, method, m)
