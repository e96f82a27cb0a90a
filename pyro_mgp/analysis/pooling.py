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
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from pyro_mgp.analysis.joint_tests import (
    JointTest,
    PoolingWarning,
    barnard_rubin,
    likelihood_ratio_test,
    pool_chi2,
    pool_likelihoods,
    pool_wald,
)
from pyro_mgp.analysis.rounding import rounded

__all__ = [
    "Fit",
    "JointTest",
    "Pooled",
    "PoolingWarning",
    "likelihood_ratio_test",
    "pool",
    "pool_chi2",
    "pool_estimates",
    "pool_likelihoods",
    "pool_wald",
]

Numbers = NDArray[np.float64]


class Result(Protocol):
    """What an analysis of one table gives: a result of statsmodels, or anything with the same attributes.

    Besides `params` it has `cov_params` (a method or an array, `[K, K]`) or `bse` (standard errors, `[K]`).
    """

    @property
    def params(self) -> Any:
        """Estimates, `[K]`; a Series names them."""


Fit: TypeAlias = Result | tuple[ArrayLike, ArrayLike]
"""A result, or a pair of estimates `[K]` and their variances `[K]` or covariance matrix `[K, K]`."""


@dataclass(frozen=True, eq=False, repr=False)
class Pooled:
    """The pooled answer.

    Example:
        >>> pooled = pool_estimates([[1.2], [1.5], [0.9]], [[0.04], [0.05], [0.045]], ["slope"])
        >>> pooled.table.round(3)[["estimate", "se", "lambda"]]
               estimate     se  lambda
        slope       1.2  0.406   0.727
        >>> pooled
        Pooled over 3 imputations, 95% intervals
              estimate      se   df    low   high      p    riv lambda    fmi efficiency
        slope      1.2  0.4062  3.8  0.046  2.354  0.045  2.667  0.727  0.808      0.788
    """

    table: pd.DataFrame
    """One row per estimate: `estimate`, `se`, `df`, `low` and `high` (bounds of the interval), `p` (of its
    being zero), `riv`, `lambda`, `fmi`, `efficiency` (of m imputations, against ever more)."""
    m: int
    """Number of imputations."""
    level: float
    """Of the intervals."""
    estimates: Numbers
    """From each table, `[m, K]`."""
    variances: Numbers
    """Squares of their standard errors, `[m, K]`."""
    covariances: Numbers | None = None
    """Their covariance matrices, `[m, K, K]`, if the fits know them."""
    df_complete: float | None = None
    """ν_com; None for infinite."""

    @property
    def ubar(self) -> pd.Series[float]:
        """Ū, the variance within tables."""
        return pd.Series(self.variances.mean(0), self.table.index, name="ubar")

    @property
    def b(self) -> pd.Series[float]:
        """B, the variance between tables."""
        return pd.Series(self.estimates.var(0, ddof=1), self.table.index, name="b")

    @property
    def t(self) -> pd.Series[float]:
        """T, the total variance: the square of the standard error."""
        return (self.ubar + (1 + 1 / self.m) * self.b).rename("t")

    @property
    def covariance(self) -> pd.DataFrame:
        """T as a matrix, `[K, K]`.

        Raises:
            ValueError: If the fits gave variances only.
        """
        within = self._covariances().mean(0)
        between = np.atleast_2d(np.cov(self.estimates, rowvar=False))
        names = self.table.index
        return pd.DataFrame(within + (1 + 1 / self.m) * between, index=names, columns=names)

    def joint_test(
        self,
        terms: Hashable | Sequence[Hashable] | None = None,
        *,
        contrasts: ArrayLike | None = None,
        null: ArrayLike = 0.0,
    ) -> JointTest:
        """D1: whether several estimates, or combinations of estimates, all equal the null values.

        Args:
            terms: Names of the estimates to test, or one name; None for all, intercept included.
            contrasts: Instead of names, a matrix `[k, K]` of coefficients of the K estimates.
            null: Values to compare with, `[k]` or one for all.

        Raises:
            ValueError: Terms that were not estimated, contrasts of another shape, fits that gave variances
                only, or constraints that repeat each other.

        Warns:
            PoolingWarning: No more imputations than constraints.

        Example:
            >>> fits = [([q, 0.1 + q / 9], [[0.04, 0.01], [0.01, 0.05]]) for q in (1.2, 1.5, 0.9, 1.1)]
            >>> pooled = pool(fits, names=["x", "z"], df_complete=40)
            >>> pooled.joint_test(["x", "z"])
            D1 over 4 imputations: F(2, 6.0) = 8.683, p = 0.0169, riv = 0.992
            >>> pooled.joint_test(contrasts=[[1, -1]])  # is x's slope z's?
            D1 over 4 imputations: F(1, 8.2) = 6.771, p = 0.0310, riv = 0.882
        """
        C = self._contrasts(terms, contrasts)
        covariances = C @ self._covariances(set(np.flatnonzero(C.any(0)).tolist())) @ C.T
        return pool_wald(self.estimates @ C.T, covariances, null, self.df_complete)

    def recommended_m(self, cv: float = 0.05, level: float = 0.95) -> pd.Series[int]:
        """How many imputations each standard error needs to come out alike if the table is imputed again.

        m = 1 + ½ (fmi / cv)², by von Hippel's quadratic rule (Sociological Methods & Research 49:699-718,
        2020), where fmi is the upper bound of its interval, logit(fmi) ± z √(2/m): these imputations are the
        first of his two stages. Take the largest of the estimates that matter.

        Args:
            cv: Coefficient of variation of the standard error over repeated imputation.
            level: Of the interval of fmi.

        Raises:
            ValueError: If `cv` is not positive, or `level` does not lie between 0 and 1.

        Example:
            >>> pool_estimates([1.2, 1.5, 0.9], [0.04, 0.05, 0.045]).recommended_m().tolist()
            [184]
        """
        if cv <= 0:
            raise ValueError(f"cv must be positive, got {cv}")
        _check_level(level)
        z = stats.norm.ppf((1 + level) / 2)
        fmi = self.table["fmi"].to_numpy()
        upper = special.expit(special.logit(fmi) + z * math.sqrt(2 / self.m))
        needed = np.ceil(1 + np.square(upper / cv) / 2).astype(np.int64)
        return pd.Series(needed, self.table.index, name="m")

    def __repr__(self) -> str:
        return f"{self._title}\n{rounded(self.table).to_string(line_width=None)}"

    def _repr_html_(self) -> str:
        return f"<p>{self._title}</p>{rounded(self.table).to_html()}"

    @property
    def _title(self) -> str:
        return f"Pooled over {self.m} imputations, {self.level:.0%} intervals"

    def _contrasts(self, terms: Hashable | Sequence[Hashable] | None, contrasts: ArrayLike | None) -> Numbers:
        """Coefficients `[k, K]` of the K estimates."""
        names, K = self.table.index.tolist(), len(self.table)
        if contrasts is not None:
            C = np.atleast_2d(np.asarray(contrasts, dtype=np.float64))
            if terms is not None or C.ndim != 2 or C.shape[1] != K:
                raise ValueError(
                    f"expected either terms, or contrasts [k, {K}] of the estimates {names}, got "
                    f"{'both' if terms is not None else f'contrasts of shape {C.shape}'}"
                )
            return C
        chosen = names if terms is None else [terms] if _is_one(terms, names) else list(_each(terms))
        unknown = [term for term in chosen if term not in names]
        if unknown or not chosen or len(set(chosen)) < len(chosen):
            raise ValueError(f"expected some of the estimates {names}, each once, got {chosen}")
        return np.eye(K)[[names.index(term) for term in chosen]]

    def _covariances(self, needed: set[int] | None = None) -> Numbers:
        if self.covariances is not None:
            return self.covariances
        if len(needed or range(len(self.table))) == 1:
            return np.einsum("mk,kl->mkl", self.variances, np.eye(len(self.table)))
        raise ValueError(
            "the fits gave variances of the estimates, not their covariances: pool results with cov_params, "
            "or pairs of estimates and covariance matrices"
        )


def pool(
    fits: Sequence[Fit],
    *,
    level: float = 0.95,
    df_complete: float | None = None,
    names: Sequence[Any] | None = None,
) -> Pooled:
    """Pool the same analysis of m completed tables.

    A result may be of any model of statsmodels that knows standard errors, or of anything else with `params`
    and `cov_params` or `bse`. ν_com is its `df_resid` (the smallest, if tables differ), as in R's mice, also
    where the analysis itself compares with a normal distribution (generalised linear, mixed, ordered and
    survival models): pooled intervals get a little wider and tend to the same limit. Standard errors by
    clusters bring ν_com = number of clusters - 1. `df_complete=math.inf` asks for large-sample intervals.

    Args:
        fits: m results, or m pairs of estimates `[K]` and their variances `[K]` or covariances `[K, K]`.
        level: Probability of the intervals.
        df_complete: ν_com, if the fits do not say so, or say it wrongly; infinite if nobody says so.
        names: K labels, if the fits have none.

    Raises:
        TypeError: A fit without estimates or without standard errors.
        ValueError: Fewer than two fits, of different estimates, or standard errors that are not positive.

    Example:
        >>> import types
        >>> fits = [types.SimpleNamespace(params=[q], bse=[0.2]) for q in (1.2, 1.5, 0.9)]
        >>> round(float(pool(fits).table["estimate"].iloc[0]), 3)
        1.2
        >>> pool([(1.2, 0.04), (1.5, 0.05), (0.9, 0.045)], names=["slope"]).table["df"].round(2)
        slope    3.78
        Name: df, dtype: float64
    """
    answers = [_read(fit) for fit in fits]
    if not answers:
        raise ValueError("expected fits of at least two imputations, got none")
    first = answers[0]
    for other in answers:
        if other.names != first.names or other.estimates.shape != first.estimates.shape:
            raise ValueError(
                f"the fits estimate different things: {first.labels} and {other.labels}; did a level of a "
                "category not occur in some tables?"
            )
    known = [each.df_complete for each in answers if each.df_complete is not None]
    return pool_estimates(
        np.stack([each.estimates for each in answers]),
        _stacked([each.variances for each in answers]),
        first.labels if names is None else names,
        level=level,
        df_complete=min(known, default=None) if df_complete is None else df_complete,
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
        variances: Squares of their standard errors, likewise, or their covariance matrices `[m, K, K]`.
        names: K labels for the rows of the result.
        level: Probability of the intervals.
        df_complete: ν_com, degrees of freedom had the table been complete; None for infinite.

    Raises:
        ValueError: As for `pool`.
    """
    Q, U, covariances = _checked(estimates, variances)
    m, K = Q.shape
    index = _index(range(K) if names is None else names, K)
    _check(Q, U, covariances, index)
    _check_level(level)
    if df_complete is not None and not df_complete > 0:
        raise ValueError(f"df_complete must be positive, got {df_complete}")
    within, between = U.mean(0), Q.var(0, ddof=1)
    excess = (1 + 1 / m) * between
    total = within + excess
    share, increase = excess / total, excess / within
    freedom = barnard_rubin(share, m, df_complete)
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
        index=index,
    )
    return Pooled(table, m, level, Q, U, covariances, df_complete)


# -------------------------------------------------------------------------------------- what fits have to say


@dataclass(frozen=True)
class _Answer:
    """What one fit says."""

    names: list[Any] | None
    estimates: Numbers
    variances: Numbers
    """`[K]` or `[K, K]`."""
    df_complete: float | None = None

    @property
    def labels(self) -> list[Any]:
        return list(range(len(self.estimates))) if self.names is None else self.names


def _read(fit: Any) -> _Answer:
    if isinstance(fit, tuple | list) and len(fit) == 2:
        estimates = np.atleast_1d(np.asarray(fit[0], dtype=np.float64))
        names = fit[0].index.tolist() if isinstance(fit[0], pd.Series) else None
        return _Answer(names, estimates, np.atleast_1d(np.asarray(fit[1], dtype=np.float64)))
    if not hasattr(fit, "params"):
        raise TypeError(
            "expected a result with params and cov_params or bse, or a pair (estimates, variances), got "
            f"{type(fit).__name__}"
        )
    params, covariance = fit.params, getattr(fit, "cov_params", None)
    covariance = covariance() if callable(covariance) else covariance
    if covariance is None and getattr(fit, "bse", None) is None:
        raise TypeError(
            f"{type(fit).__name__} has params but neither cov_params nor bse: without standard errors there "
            "is nothing to pool (a penalised fit?)"
        )
    # Models of several outcomes have params [K, J] and stack them outcome by outcome.
    estimates = np.asarray(params, dtype=np.float64).T.ravel()
    if covariance is None:
        variances = np.square(np.asarray(fit.bse, dtype=np.float64)).T.ravel()
    else:
        variances = np.asarray(covariance, dtype=np.float64)
    freedom = getattr(fit, "df_resid_inference", None) or getattr(fit, "df_resid", None)
    return _Answer(_names(fit, params, covariance), estimates, variances, freedom)


def _names(fit: Any, params: Any, covariance: Any) -> list[Any] | None:
    """How the fit calls its estimates, if it does."""
    if isinstance(params, pd.Series):
        return params.index.tolist()
    if isinstance(params, pd.DataFrame) and isinstance(covariance, pd.DataFrame):
        return covariance.index.tolist()
    names = getattr(getattr(fit, "model", None), "exog_names", None)
    if names is None:
        return None
    if np.ndim(params) == 2:
        names = [(outcome, name) for outcome in range(np.shape(params)[1]) for name in names]
    return list(names) if len(names) == np.size(params) else None


def _stacked(parts: Sequence[Numbers]) -> Numbers:
    shapes = sorted({part.shape for part in parts})
    if len(shapes) > 1:
        raise ValueError(f"expected variances of one shape from all fits, got {shapes}")
    return np.stack(parts)


# ---------------------------------------------------------------------------------------------------- checks


def _checked(estimates: ArrayLike, variances: ArrayLike) -> tuple[Numbers, Numbers, Numbers | None]:
    """Estimates `[m, K]`, variances `[m, K]`, and covariances `[m, K, K]` if these were given."""
    Q, U = (np.asarray(part, dtype=np.float64) for part in (estimates, variances))
    Q, U = (part[:, None] if part.ndim == 1 else part for part in (Q, U))
    with_covariances = Q.ndim == 2 and U.shape == (*Q.shape, Q.shape[-1])
    if len(Q) < 2 or Q.ndim != 2 or (Q.shape != U.shape and not with_covariances):
        raise ValueError(
            "expected estimates and variances of at least two imputations, of one shape, got "
            f"{Q.shape} and {U.shape}"
        )
    return (Q, np.diagonal(U, axis1=1, axis2=2), U) if with_covariances else (Q, U, None)


def _check(Q: Numbers, U: Numbers, covariances: Numbers | None, index: pd.Index[Any]) -> None:
    good = np.isfinite(Q) & np.isfinite(U) & (U > 0)
    if not good.all():
        table, k = np.argwhere(~good)[0].tolist()
        raise ValueError(
            f"expected finite estimates and positive variances of all estimates, got {Q[table, k]} with "
            f"variance {U[table, k]} of {index.tolist()[k]!r} in table {table}; leave it out: pool pairs "
            "(estimates, variances) of the others"
        )
    if covariances is None:
        return
    scale = np.sqrt(U[:, :, None] * U[:, None, :])
    if not (np.abs(covariances - covariances.transpose(0, 2, 1)) <= 1e-6 * scale).all():
        raise ValueError("expected symmetric covariance matrices of finite numbers")


def _index(names: Sequence[Any] | range, K: int) -> pd.Index[Any]:
    if len(names) != K:
        raise ValueError(f"expected one name for each of {K} estimates, got {list(names)}")
    return pd.Index(list(names))


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level}")


def _is_one(terms: Any, names: Sequence[Any]) -> bool:
    """Whether this is one name, which may itself be a tuple."""
    return isinstance(terms, str) or (isinstance(terms, Hashable) and terms in names)


def _each(terms: Any) -> Sequence[Any]:
    return list(terms) if np.iterable(terms) else [terms]
