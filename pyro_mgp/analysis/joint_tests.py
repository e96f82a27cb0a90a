"""Pooled tests of several estimates over m imputations.

    D1, from estimates and their covariances:
        F = (Q̄ - Q₀)ᵀ Ū⁻¹ (Q̄ - Q₀) / (k (1 + r)),     r = (1 + 1/m) tr(B Ū⁻¹) / k
    D2, from m chi-square statistics:
        F = (d̄/k - (m + 1)/(m - 1) r) / (1 + r),       r = (1 + 1/m) var(√d)
    D3, from log-likelihoods of the m tables at their own and at the pooled estimates, and
    D4, from log-likelihoods of the m tables and of the stacked table:
        F = d̂ / (k (1 + r)),                           r = max(0, (m + 1)/(k (m - 1)) (d̄ - d̂))

Here k is the number of constraints and d̄ the mean of the m statistics. d̂ is the mean likelihood ratio at
the pooled estimates (D3), or the likelihood ratio of the stacked table divided by m (D4). All tests assume
that the relative increase in variance due to missing data, r, is the same in all directions. F is compared
with an F distribution with k and ν₂ degrees of freedom.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import linalg, stats

from pyro_mgp._support.messages import warn_user

Numbers = NDArray[np.float64]
Method = Literal["D1", "D2", "D3", "D4"]


class PoolingWarning(UserWarning):
    """Warning that a pooled result needs more imputations than it has."""


@dataclass(frozen=True)
class JointTest:
    """Result of a pooled test of k constraints: F statistic, degrees of freedom and p-value."""

    F: float
    """Test statistic. That of D2 can be negative, with a p-value of 1."""
    df1: int
    """Numerator degrees of freedom: the number of constraints k."""
    df2: float
    """Denominator degrees of freedom ν₂."""
    p: float
    """P-value."""
    riv: float
    """Relative increase in variance due to missing data r, averaged over the constraints."""
    method: Method
    """Name of the test."""
    m: int
    """Number of imputations."""

    @classmethod
    def of(cls, method: Method, F: float, df1: int, df2: float, riv: float, m: int) -> JointTest:
        """Return the test with this F statistic and its p-value, from χ² if `df2` is infinite."""
        p = stats.chi2.sf(df1 * F, df1) if math.isinf(df2) else stats.f.sf(F, df1, df2)
        return cls(F, df1, df2, float(p), riv, method, m)

    def __repr__(self) -> str:
        p = "p < 0.0001" if self.p < 1e-4 else f"p = {self.p:.4f}"
        F = f"F({self.df1}, {self.df2:.1f}) = {self.F:.4g}"
        return f"{self.method} over {self.m} imputations: {F}, {p}, riv = {self.riv:.3f}"


def pool_wald(
    estimates: Numbers, covariances: Numbers, null: ArrayLike = 0.0, df_complete: float | None = None
) -> JointTest:
    """Pool Wald tests that k estimates equal their null values (D1).

    D1 is by Li, Raghunathan and Rubin (JASA 86:1065-1073, 1991), its degrees of freedom in small samples by
    Reiter (Biometrika 94:502-508, 2007). A single constraint gets those of Barnard and Rubin, so that F is
    the square of its t statistic. Where Reiter's are not defined (k (m - 1) ≤ 4, or small ν_com), those of Li
    et al. are combined with ν_com as by Barnard and Rubin.

    Estimates are `[m, k]`, covariances `[m, k, k]` and null values `[k]` or a scalar; `df_complete` is ν_com,
    None for infinite. Errors and warnings are those of `Pooled.joint_test`; a singular mean covariance matrix
    is a ValueError.
    """
    m, k = estimates.shape
    if m <= k > 1:
        warn_user(
            f"the variance between imputations is not identified for {k} constraints from {m} imputations: "
            f"draw more than {k}, preferably several times as many",
            PoolingWarning,
        )
    distance = estimates.mean(0) - np.broadcast_to(np.asarray(null, dtype=np.float64), (k,))
    factor = _cholesky(covariances.mean(0))
    # With Ū = L Lᵀ, the statistic is |L⁻¹ (Q̄ - Q₀)|², and tr(B Ū⁻¹) the sum of the variances of L⁻¹ Q.
    statistic = np.square(linalg.solve_triangular(factor, distance, lower=True)).sum()
    between = linalg.solve_triangular(factor, estimates.T, lower=True).var(1, ddof=1).sum()
    r = (1 + 1 / m) * float(between) / k
    return JointTest.of("D1", float(statistic) / (k * (1 + r)), k, _wald_df(k, m, r, df_complete), r, m)


def barnard_rubin(
    share: Numbers, m: int, df_complete: float | None, large_sample: Numbers | None = None
) -> Numbers:
    """Return the degrees of freedom of Barnard and Rubin (Biometrika 86:948-955, 1999).

        ν = 1 / (1/ν_old + 1/ν_obs),   ν_old = (m - 1) / λ²,   ν_obs = (ν_com + 1) / (ν_com + 3) ν_com (1 - λ)

    `share` is λ, of any shape, `df_complete` ν_com, and `large_sample` replaces ν_old.
    """
    if large_sample is None:
        with np.errstate(divide="ignore", over="ignore"):  # they are infinite in the limit
            large_sample = (m - 1) / np.square(share)
    if df_complete is None or math.isinf(df_complete):
        return large_sample
    return np.asarray(1 / (1 / large_sample + 1 / (_shrunk(df_complete) * (1 - share))))


def _shrunk(df_complete: float) -> float:
    """Return ν_obs of Barnard and Rubin at λ = 0."""
    return (df_complete + 1) / (df_complete + 3) * df_complete


def _wald_df(k: int, m: int, r: float, df_complete: float | None) -> float:
    """Return the denominator degrees of freedom ν₂ of D1, with the symbols of Reiter's paper."""
    t = k * (m - 1)
    if k > 1 and t > 4 and df_complete is not None and math.isfinite(df_complete):
        v, a = _shrunk(df_complete), r * t / (t - 2)
        c1, c2 = v - 2 * (1 + a), v - 4 * (1 + a)
        if c2 > 0:
            terms = c1 / (1 + a) ** 2 + 4 / (1 + a) + 4 / c1 + 8 * (c1 / (1 + a) + 1) / c2 + 16 * c1 / c2**2
            return 4 + c2 / (1 + a**2 * terms / (t - 4))
    large_sample = None if k == 1 else np.asarray(_li(k, m, r))
    return float(barnard_rubin(np.asarray(r / (1 + r)), m, df_complete, large_sample))


def _li(k: int, m: int, r: float) -> float:
    """Return the large-sample denominator df ν₂ of Li, Raghunathan and Rubin, for D1 and D3."""
    t, riv = k * (m - 1), np.float64(r)
    with np.errstate(divide="ignore", over="ignore"):  # they are infinite in the limit
        df = 4 + (t - 4) * (1 + (1 - 2 / t) / riv) ** 2 if t > 4 else t * (1 + 1 / k) * (1 + 1 / riv) ** 2 / 2
    return float(df)


def _cholesky(within: Numbers) -> Numbers:
    """Return the Cholesky factor of a covariance matrix, which must not be singular."""
    scale = np.sqrt(np.maximum(np.diag(within), 0))
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = within / np.outer(scale, scale)
    # Singular matrices have eigenvalues of about 1e-16 due to rounding.
    if not np.isfinite(correlation).all() or np.linalg.eigvalsh(correlation)[0] < 1e-12:
        reason = "the constraints repeat each other, or the estimates are linearly dependent; leave some out"
        raise ValueError(f"the mean covariance of the tested estimates is singular: {reason}")
    return np.asarray(linalg.cholesky(correlation, lower=True) * scale[:, None])


def pool_chi2(statistics: ArrayLike, df: int) -> JointTest:
    """Pool chi-square statistics of the same test on each of m tables (D2).

    D2 (Li, Meng, Raghunathan and Rubin, Statistica Sinica 1:65-92, 1991) has the least power of the pooled
    tests, and serves where only the statistics are available.

    Args:
        statistics: Statistics, `[m]`.
        df: Their degrees of freedom k.

    Raises:
        ValueError: If there are fewer than two statistics, some are negative, or `df` is below 1.

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
    return JointTest.of("D2", F, k, df2, r, m)


def pool_likelihoods(
    full: ArrayLike,
    null: ArrayLike,
    df: int,
    *,
    stacked: tuple[float, float] | None = None,
    at_pooled: tuple[ArrayLike, ArrayLike] | None = None,
) -> JointTest:
    """Pool likelihood-ratio tests of nested models (D4 or D3).

    Pass either `stacked`, for D4 (Chan and Meng, Statistica Sinica 32:1489-1514, 2022), or `at_pooled`, for
    D3 (Meng and Rubin, Biometrika 79:103-111, 1992).

    Args:
        full: Log-likelihoods of the full model, fitted to each of m tables, `[m]`.
        null: Log-likelihoods of the null model, `[m]`.
        df: Number k of parameters that the null model constrains.
        stacked: Log-likelihoods of the full and of the null model, fitted to the m tables stacked.
        at_pooled: Log-likelihoods of the tables under the full and under the null model, `[m]` each, at the
            estimates averaged over the tables.

    Raises:
        ValueError: If there are fewer than two tables, or not exactly one of `stacked` and `at_pooled`.

    Example:
        >>> pool_likelihoods([-64.8, -58.2, -61.1], [-71.7, -69.0, -65.6], 2, stacked=(-185.8, -206.4))
        D4 over 3 imputations: F(2, 15.0) = 3.323, p = 0.0639, riv = 1.067
    """
    L1, L0 = _log_likelihoods(full, null)
    k, m = _constraints(df), len(L1)
    if stacked is not None and at_pooled is None:
        ratio = 2 * (float(stacked[0]) - float(stacked[1])) / m
    elif at_pooled is not None and stacked is None:
        P1, P0 = _log_likelihoods(*at_pooled)
        ratio = 2 * float((P1 - P0).mean())
    else:
        raise ValueError("give either stacked, for D4, or at_pooled, for D3")
    r = max(0.0, (m + 1) / (k * (m - 1)) * (2 * float((L1 - L0).mean()) - ratio))
    F = ratio / (k * (1 + r))
    if stacked is None:
        return JointTest.of("D3", F, k, _li(k, m, r), r, m)
    return JointTest.of("D4", F, k, k * (m - 1) * (1 + 1 / r) ** 2 if r else math.inf, r, m)


def likelihood_ratio_test(
    draws: Iterable[pd.DataFrame],
    full: Callable[[pd.DataFrame], Any],
    null: Callable[[pd.DataFrame], Any],
    *,
    df: int | None = None,
) -> JointTest:
    """Compare two nested models by a pooled likelihood-ratio test (D4).

    Both models are fitted to each completed table and to the stacked table, whose rows are treated as
    independent. For grouped rows, label the groups of each imputation differently in the stacked table, fit
    it yourself, and use `pool_likelihoods`.

    Args:
        draws: `Imputations`, or m completed tables.
        full: Fits the full model to a table; the result has `params` and `llf`, as those of statsmodels.
        null: Fits the null model, a special case of the full model.
        df: Number k of constraints; None for the difference in the number of `params`.

    Raises:
        ValueError: If there are fewer than two tables, or the full model does not contain the null model.

    Example:
        >>> from statsmodels.formula.api import ols
        >>> frame = pd.DataFrame({"x": range(8), "y": [1, 0, 3, 2, 5, 4, 7, 7]})
        >>> tables = [frame.assign(x=frame.x + frame.index % 2 * shift) for shift in (0.1, 0.4, 0.3)]
        >>> likelihood_ratio_test(tables, lambda t: ols("y ~ x", t).fit(), lambda t: ols("y ~ 1", t).fit())
        D4 over 3 imputations: F(1, 97.5) = 11.58, p = 0.0010, riv = 0.167
    """
    tables = list(draws.in_pandas() if hasattr(draws, "in_pandas") else draws)
    if len(tables) < 2:
        raise ValueError(f"expected at least two completed tables, got {len(tables)}")
    stack = pd.concat(tables, ignore_index=True)
    fits = [(full(table), null(table)) for table in (*tables, stack)]
    larger, smaller = (int(np.size(fit.params)) for fit in fits[-1])
    if df is None and larger <= smaller:
        got = f"the full model has {larger} params, the null model {smaller}: expected more in the full one"
        raise ValueError(f"{got}; if the models differ otherwise, pass the number of constraints as df=")
    *separate, stacked = [(float(of_full.llf), float(of_null.llf)) for of_full, of_null in fits]
    L1, L0 = np.array(separate).T
    if (L1 + 1e-6 * np.abs(L1) < L0).any():
        raise ValueError("the full model is less likely than the null model: are they nested, in this order?")
    return pool_likelihoods(L1, L0, larger - smaller if df is None else df, stacked=stacked)


def _log_likelihoods(full: ArrayLike, null: ArrayLike) -> tuple[Numbers, Numbers]:
    """Check the log-likelihoods of two models, and return them as arrays `[m]`."""
    L1, L0 = np.asarray(full, dtype=np.float64), np.asarray(null, dtype=np.float64)
    if L1.ndim != 1 or len(L1) < 2 or L1.shape != L0.shape:
        shapes = f"shapes {L1.shape} and {L0.shape}"
        raise ValueError(f"expected log-likelihoods [m] of both models on at least 2 tables, got {shapes}")
    if not np.isfinite([L1, L0]).all():
        raise ValueError(f"expected finite log-likelihoods, got {L1.tolist()} and {L0.tolist()}")
    return L1, L0


def _constraints(df: int) -> int:
    """Check that a number of constraints is a positive integer, and return it as an integer."""
    if not isinstance(df, Real) or not float(df).is_integer() or df < 1:
        raise ValueError(f"df, the number of constraints, must be an integer of at least 1, got {df!r}")
    return int(df)
