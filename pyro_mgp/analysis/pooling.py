"""Rubin's rules: pooled estimates and standard errors from m imputations.

    Q̄ = mean of the estimates,  Ū = mean of their variances,  B = variance of the estimates between tables
    T = Ū + (1 + 1/m) B,        λ = (1 + 1/m) B / T,          riv = (1 + 1/m) B / Ū

Confidence intervals use Student's t with the degrees of freedom ν of `barnard_rubin`. λ is the share of the
variance that is due to missing data; the fraction of missing information fmi = (riv + 2/(ν + 3)) / (1 + riv)
also accounts for estimating B from m tables.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import special, stats

from pyro_mgp._support.checks import number
from pyro_mgp.analysis.joint_tests import JointTest, Numbers, barnard_rubin, pool_wald

_FOUR_DIGITS = ("estimate", "se", "mean", "sd", "low", "high", "within", "between", "mcse")
_FORMATS = {**dict.fromkeys(_FOUR_DIGITS, "{:.4g}"), "df": "{:.1f}", "ess": "{:.0f}"}


# Attributes with estimates and their covariance matrix, of lifelines, and of scikit-learn's Bayesian ridge.
_FITTED = (("params_", "variance_matrix_"), ("coef_", "sigma_"))

Fit: TypeAlias = Any
"""Result as of statsmodels, or pair of estimates and their variances or covariance matrix, see `pool`."""


@dataclass(frozen=True, eq=False, repr=False)
class ShownAsTable:
    """Base class of results over m imputations that are displayed as a rounded table with a title."""

    verb: ClassVar[str] = "Pooled"
    """First word of the title."""
    table: pd.DataFrame
    """One row per estimate or parameter, with the columns listed by the subclass."""
    m: int
    """Number of imputations."""
    level: float
    """Probability of the intervals."""

    @property
    def title(self) -> str:
        """Heading of the displayed table."""
        return f"{self.verb} over {self.m} imputations, {100 * self.level:g}% intervals"

    def __repr__(self) -> str:
        return f"{self.title}\n{self._rounded().to_string(line_width=None)}"

    def _repr_html_(self) -> str:
        return f"<p>{self.title}</p>{self.to_html()}"

    def to_html(self) -> str:
        """Return the rounded table in HTML."""
        return self._rounded().to_html()

    def to_latex(self) -> str:
        """Return the rounded table in LaTeX, for the package booktabs."""
        text = self._rounded().to_latex(escape=True, column_format="l" + "r" * self.table.shape[1])
        return text.replace("<", "$<$").replace("|", "$|$")

    def to_great_table(self) -> Any:
        """Return the rounded table as a `GT` of the package great_tables, which must be installed."""
        from great_tables import GT

        return GT(self._rounded().rename_axis("term").reset_index()).tab_header(title=self.title)

    def _rounded(self) -> pd.DataFrame:
        """Format estimates with four significant digits, shares and p-values with three decimals."""
        text = self.table.apply(lambda column: column.map(_FORMATS.get(column.name, "{:.3f}").format))
        if "p" in text:
            text["p"] = text["p"].mask(self.table["p"] < 0.0005, "<.001")
        return text


@dataclass(frozen=True, eq=False, repr=False)
class Pooled(ShownAsTable):
    """Pooled estimates of K parameters over m imputations.

    Columns of `table`: `estimate`, `se`, `df`, `low` and `high` (confidence interval), `p` (of an estimate of
    zero), `riv`, `lambda`, `fmi`, and `efficiency` (relative to infinitely many imputations).
    """

    estimates: Numbers
    """Estimates from each table, `[m, K]`."""
    variances: Numbers
    """Squared standard errors, `[m, K]`."""
    covariances: Numbers | None = None
    """Covariance matrices, `[m, K, K]`; None if the fits gave variances only."""
    df_complete: float | None = None
    """Residual degrees of freedom ν_com of the complete-data analysis; None for infinite."""

    @property
    def ubar(self) -> pd.Series[float]:
        """Within-imputation variance Ū of each estimate."""
        return pd.Series(self.variances.mean(0), self.table.index, name="ubar")

    @property
    def b(self) -> pd.Series[float]:
        """Between-imputation variance B of each estimate."""
        return pd.Series(self.estimates.var(0, ddof=1), self.table.index, name="b")

    @property
    def t(self) -> pd.Series[float]:
        """Total variance T of each estimate, the square of its standard error."""
        return (self.ubar + (1 + 1 / self.m) * self.b).rename("t")

    @property
    def covariance(self) -> pd.DataFrame:
        """Total covariance matrix of the estimates, `[K, K]`.

        Raises:
            ValueError: If the fits gave variances only.
        """
        within = self._covariances().mean(0)
        between = np.atleast_2d(np.cov(self.estimates, rowvar=False))
        return pd.DataFrame(within + (1 + 1 / self.m) * between, self.table.index, self.table.index)

    def summary(self, *, exponentiate: bool = False) -> pd.DataFrame:
        """Return a tidy table: a row for each `term`, and no index, for export and for pictures.

        Args:
            exponentiate: Whether estimates and intervals are exponentials, such as odds or hazard ratios;
                standard errors stay those of the logarithms.

        Example:
            >>> pool([(1.2, 0.04), (1.5, 0.05)], names=["x"]).summary()[["term", "estimate", "p"]].round(2)
              term  estimate     p
            0    x      1.35  0.03
        """
        found = self.table.drop(columns="efficiency").reset_index(drop=True)
        found.insert(0, "term", pd.Series([*self.table.index], dtype=object))
        if exponentiate:
            columns = ["estimate", "low", "high"]
            found[columns] = np.exp(found[columns])
        return found

    def joint_test(
        self,
        terms: Hashable | Sequence[Hashable] | None = None,
        *,
        contrasts: ArrayLike | None = None,
        null: ArrayLike = 0.0,
    ) -> JointTest:
        """Test that several estimates, or linear combinations of them, equal their null values (D1).

        Args:
            terms: Names of the estimates to test, or one name; None for all, including the intercept.
            contrasts: Coefficients of the K estimates `[k, K]`, instead of `terms`.
            null: Null values, `[k]` or a scalar.

        Raises:
            ValueError: If terms or contrasts do not fit, or the fits gave variances only.

        Warns:
            PoolingWarning: If there are no more imputations than constraints.

        Example:
            >>> fits = [([q, 0.1 + q / 9], [[0.04, 0.01], [0.01, 0.05]]) for q in (1.2, 1.5, 0.9, 1.1)]
            >>> pooled = pool(fits, names=["x", "z"], df_complete=40)
            >>> pooled.joint_test(["x", "z"])
            D1 over 4 imputations: F(2, 6.0) = 8.683, p = 0.0169, riv = 0.992
            >>> pooled.joint_test(contrasts=[[1, -1]])  # equal slopes
            D1 over 4 imputations: F(1, 8.2) = 6.771, p = 0.0310, riv = 0.882
        """
        C = self._contrasts(terms, contrasts)
        covariances = C @ self._covariances(set(np.flatnonzero(C.any(0)).tolist())) @ C.T
        return pool_wald(self.estimates @ C.T, covariances, null, self.df_complete)

    def recommended_m(self, cv: float = 0.05, level: float = 0.95) -> pd.Series[int]:
        """Return the number of imputations needed for replicable standard errors.

        By the quadratic rule m = 1 + ½ (fmi / cv)² of von Hippel (Sociological Methods & Research 49:699-718,
        2020), with fmi at the upper bound of its confidence interval logit(fmi) ± z √(2/m).

        Args:
            cv: Coefficient of variation of the standard error over repeated imputation.
            level: Confidence level of the interval of fmi.

        Raises:
            ValueError: If `cv` is not positive, or `level` is not between 0 and 1.

        Example:
            >>> pool([(1.2, 0.04), (1.5, 0.05), (0.9, 0.045)]).recommended_m().tolist()
            [184]
        """
        if cv <= 0:
            raise ValueError(f"cv must be positive, got {cv}")
        check_level(level)
        z = stats.norm.ppf((1 + level) / 2)
        upper = special.expit(special.logit(self.table["fmi"].to_numpy()) + z * math.sqrt(2 / self.m))
        needed = np.ceil(1 + np.square(upper / cv) / 2).astype(np.int64)
        return pd.Series(needed, self.table.index, name="m")

    def _contrasts(self, terms: Hashable | Sequence[Hashable] | None, contrasts: ArrayLike | None) -> Numbers:
        """Return the contrast matrix `[k, K]` of the tested linear combinations of estimates."""
        names, K = self.table.index.tolist(), len(self.table)
        if contrasts is not None:
            C = np.atleast_2d(np.asarray(contrasts, dtype=np.float64))
            if terms is not None or C.shape[1:] != (K,) or len(C) == 0:
                got = f"contrasts of shape {C.shape}" if terms is None else "both"
                raise ValueError(f"expected either terms, or contrasts [k, {K}] of {names}, got {got}")
            return C
        # A single name may itself be a tuple.
        is_name = isinstance(terms, str) or (isinstance(terms, Hashable) and terms in names)
        several: Any = [terms] if is_name or not np.iterable(terms) else terms
        chosen = names if terms is None else list(several)
        if not chosen or any(term not in names for term in chosen) or len(set(chosen)) < len(chosen):
            raise ValueError(f"expected some of the estimates {names}, each once, got {chosen}")
        return np.eye(K)[[names.index(term) for term in chosen]]

    def _covariances(self, needed: set[int] | None = None) -> Numbers:
        """Return the covariance matrices of the estimates of each table, `[m, K, K]`."""
        if self.covariances is not None:
            return self.covariances
        if len(needed or range(len(self.table))) == 1:
            return np.einsum("mk,kl->mkl", self.variances, np.eye(len(self.table)))
        advice = "pool results with cov_params, or pairs of estimates and covariance matrices"
        raise ValueError(f"the fits gave variances of the estimates, not their covariances: {advice}")


def pool(
    fits: Sequence[Fit],
    *,
    level: float = 0.95,
    df_complete: float | None = None,
    names: Sequence[Any] | None = None,
) -> Pooled:
    """Pool an analysis of m completed tables by Rubin's rules.

    As in R's mice, ν_com is the smallest `df_resid` of the results, even if the analysis uses a normal
    distribution: in a Cox regression events minus coefficients, in a mixed model rows minus all parameters.
    Standard errors that are robust to clusters, as those of GEE, give ν_com = number of clusters - 1.

    Args:
        fits: Results of the m analyses, of statsmodels or any objects with `params` and `cov_params` or
            `bse`; fitted objects of lifelines, or Bayesian ridge regressions of scikit-learn; or pairs of
            estimates `[K]` and their variances `[K]` or covariance matrices `[K, K]`.
        level: Confidence level of the intervals.
        df_complete: Residual degrees of freedom ν_com of the complete-data analysis; None for those of the
            fits, or infinite if these have none; `math.inf` for large-sample intervals.
        names: Labels of the K estimates; None to read them from the fits.

    Raises:
        TypeError: If a fit has no estimates or no standard errors.
        ValueError: If there are fewer than two fits, estimates differ, or standard errors are not positive.

    Example:
        >>> pool([(1.2, 0.04), (1.5, 0.05), (0.9, 0.045)], names=["slope"])
        Pooled over 3 imputations, 95% intervals
              estimate      se   df    low   high      p    riv lambda    fmi efficiency
        slope      1.2  0.4062  3.8  0.046  2.354  0.045  2.667  0.727  0.808      0.788
    """
    answers = _answers(fits, names)
    Q, U, m = answers.estimates, answers.variances, len(answers.estimates)
    if df_complete is None:
        df_complete = answers.df_complete
    check_level(level)
    if df_complete is not None and not df_complete > 0:
        raise ValueError(f"df_complete must be positive, got {df_complete}")
    within, between = U.mean(0), Q.var(0, ddof=1)
    se, estimate = np.sqrt(within + (1 + 1 / m) * between), Q.mean(0)
    of_missing = missing_information(within, between, m, df_complete)
    df = of_missing.pop("df")
    columns = {
        **t_intervals(estimate, se, df, level),
        "p": 2 * stats.t.sf(np.abs(estimate) / se, df),
        **of_missing,
        "efficiency": 1 / (1 + of_missing["fmi"] / m),
    }
    table = pd.DataFrame(columns, pd.Index(answers.names))
    return Pooled(table, m, level, Q, U, answers.covariances, df_complete)


@dataclass(frozen=True, eq=False, repr=False)
class PooledSynthetic(ShownAsTable):
    """Pooled estimates of synthetic tables: `estimate`, `se`, `df`, `low`, `high` and `p`."""


def pool_synthetic(
    fits: Sequence[Fit], *, level: float = 0.95, names: Sequence[Any] | None = None
) -> PooledSynthetic:
    """Pool an analysis of m synthetic tables.

    An estimate from a synthetic table varies around that of the fitted one, by the drawn functions as much as
    this varies around the truth, V, and by its own rows, Ū. With B = V + Ū on average, the mean of the
    estimates has the variance

        V + B/m = (1 + 1/m) B - Ū,  with (m - 1) (1 - mŪ / ((m + 1) B))² degrees of freedom

    (Raghunathan, Reiter and Rubin, Journal of Official Statistics 19:1-16, 2003). Of a fitted table without
    missing cells, and synthetic ones of as many rows, V = Ū, and

        Ū + B/m,  with (m - 1) (1 + mŪ/B)² degrees of freedom

    (Reiter, Survey Methodology 29:181-188, 2003) is more precise; of one with missing cells it is too small.
    The larger of both is taken: in theory, 95 % intervals of 20 tables contain the truth in 95.5 to 97 % of
    cases, of 50 tables in 95 to 96.5 %, but those of 3 tables in 89 to 95 %, if V is one to three times Ū.
    With fewer rows than the fitted table they contain it more often.

    Arguments and errors are those of `pool`, but degrees of freedom of the fits are not used.

    Example:
        >>> pool_synthetic([(1.2, 0.04), (1.5, 0.05), (0.9, 0.045)], names=["slope"])
        Pooled over 3 imputations, 95% intervals
              estimate     se   df    low   high     p
        slope      1.2 0.2739 12.5 0.6058  1.794 0.001
    """
    answers = _answers(fits, names)
    Q, m = answers.estimates, len(answers.estimates)
    check_level(level)
    within, between, estimate = answers.variances.mean(0), Q.var(0, ddof=1), Q.mean(0)
    of_functions, least = (1 + 1 / m) * between - within, within + between / m
    with np.errstate(divide="ignore", over="ignore"):  # the degrees of freedom are infinite in the limit
        share = m * within / between
        df = (m - 1) * np.where(of_functions > least, 1 - share / (m + 1), 1 + share) ** 2
    se = np.sqrt(np.maximum(of_functions, least))
    columns = t_intervals(estimate, se, df, level)
    columns["p"] = 2 * stats.t.sf(np.abs(estimate) / se, df)
    return PooledSynthetic(pd.DataFrame(columns, pd.Index(answers.names)), m, level)


def t_intervals(estimate: Numbers, se: Numbers, df: Numbers, level: float) -> dict[str, Numbers]:
    """Return `estimate`, `se`, `df`, and the ends `low` and `high` of Student's t intervals, `[K]` each."""
    reach = stats.t.ppf((1 + level) / 2, df) * se
    return {"estimate": estimate, "se": se, "df": df, "low": estimate - reach, "high": estimate + reach}


@dataclass(frozen=True)
class _Answers:
    """Estimates of m fits, `[m, K]`, with their names, variances, covariances and degrees of freedom."""

    names: list[Any]
    estimates: Numbers
    variances: Numbers
    covariances: Numbers | None
    df_complete: float | None


def _answers(fits: Sequence[Fit], given: Sequence[Any] | None) -> _Answers:
    """Read and check the fits of m tables; for errors see `pool`."""
    answers = [_read(fit) for fit in fits]
    if not answers:
        raise ValueError("expected fits of at least two imputations, got none")
    labels, estimates, variances, df_of_fits = zip(*answers, strict=True)
    if other := [each for each in labels if each != labels[0]]:
        different = f"{labels[0]} and {other[0]}; is a level of a category absent from some tables?"
        raise ValueError(f"the fits have different estimates: {different}")
    if len(shapes := {each.shape for each in variances}) > 1:
        raise ValueError(f"expected variances of one shape from all fits, got {sorted(shapes)}")
    df_complete = min((df for df in df_of_fits if df is not None), default=None)
    names = list(labels[0] if given is None else given)
    Q, U, covariances = _checked(np.stack(estimates), np.stack(variances), names)
    return _Answers(names, Q, U, covariances, df_complete)


def missing_information(
    within: Numbers, between: Numbers, m: int, df_complete: float | None = None
) -> dict[str, Numbers]:
    """Compute df, riv, λ and fmi of K estimates from their variances Ū and B, `[K]`."""
    excess = (1 + 1 / m) * between
    with np.errstate(divide="ignore", invalid="ignore"):  # constant parameters have no variance
        share, riv = excess / (within + excess), excess / within
        df = barnard_rubin(share, m, df_complete)
        fmi = (riv + 2 / (df + 3)) / (1 + riv)
    return {"df": df, "riv": riv, "lambda": share, "fmi": fmi}


def check_level(level: float) -> None:
    """Raise a ValueError unless the probability of an interval is between 0 and 1."""
    if not 0 < number("level", level) < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level}")


def _read(fit: Fit) -> tuple[list[Any], Numbers, Numbers, float | None]:
    """Return the names of a fit's estimates, the estimates, their (co)variances, and its ν_com."""
    if isinstance(fit, tuple | list) and len(fit) == 2:
        estimates = np.atleast_1d(np.asarray(fit[0], dtype=np.float64))
        names = fit[0].index.tolist() if isinstance(fit[0], pd.Series) else list(range(len(estimates)))
        of = fit[1].index.tolist() if isinstance(fit[1], pd.Series | pd.DataFrame) else names
        if of != names and sorted(of, key=str) == sorted(names, key=str):
            raise ValueError(f"expected variances in the order of the estimates, {names}, got those of {of}")
        return names, estimates, np.atleast_1d(np.asarray(fit[1], dtype=np.float64)), None
    for estimates_of, covariance_of in _FITTED:
        if hasattr(fit, estimates_of) and hasattr(fit, covariance_of):
            return _read_fitted(fit, getattr(fit, estimates_of), getattr(fit, covariance_of))
    if not hasattr(fit, "params"):
        expected = "a result with params and cov_params or bse, or a pair (estimates, variances)"
        if hasattr(fit, "coef_"):
            expected += "; of scikit-learn only Bayesian ridge regression has standard errors"
        raise TypeError(f"expected {expected}, got {type(fit).__name__}")
    params, covariance = fit.params, getattr(fit, "cov_params", None)
    covariance = covariance() if callable(covariance) else covariance
    if covariance is None and getattr(fit, "bse", None) is None:
        got = f"{type(fit).__name__} has params but neither cov_params nor bse"
        raise TypeError(f"{got}: pooling needs standard errors, which penalised fits do not have")
    # Multivariate models have params [K, J], with covariances in the order of the outcomes.
    estimates = np.asarray(params, dtype=np.float64).T.ravel()
    variances = np.asarray(fit.bse if covariance is None else covariance, dtype=np.float64)
    if covariance is None:
        variances = np.square(variances).T.ravel()
    return _names(fit, params, covariance), estimates, variances, df_complete_of(fit)


def df_complete_of(fit: Any) -> float | None:
    """Return ν_com of a fit of statsmodels; None if it is unknown."""
    model: Any = getattr(fit, "model", None)
    n_params = np.size(fit.params)
    if hasattr(model, "num_group"):  # GEE, whose standard errors are robust to clusters
        return float(model.num_group - 1)
    if hasattr(model, "status"):  # PHReg
        return float(np.sum(model.status) - n_params)
    if hasattr(model, "k_re"):  # MixedLM, whose residual variance is no element of `params`
        return float(model.nobs - n_params - 1)
    df: float | None = getattr(fit, "df_resid_inference", None) or getattr(fit, "df_resid", None)
    return df


def _read_fitted(fit: Any, values: Any, covariance: Any) -> tuple[list[Any], Numbers, Numbers, None]:
    """Return names, estimates and covariance matrix of a fitted object, and None for its ν_com."""
    estimates = np.atleast_1d(np.asarray(values, dtype=np.float64))
    given = getattr(fit, "feature_names_in_", range(len(estimates)))
    names = values.index if isinstance(values, pd.Series) else given
    return list(names), estimates, np.atleast_2d(np.asarray(covariance, dtype=np.float64)), None


def _names(fit: Any, params: Any, covariance: Any) -> list[Any]:
    """Return the names of the estimates of a fit, or their positions if they have no names."""
    if isinstance(params, pd.Series):
        return params.index.tolist()
    if isinstance(params, pd.DataFrame) and isinstance(covariance, pd.DataFrame):
        return covariance.index.tolist()
    names = getattr(getattr(fit, "model", None), "exog_names", None) or []
    if np.ndim(params) == 2:
        names = [(outcome, name) for outcome in range(np.shape(params)[1]) for name in names]
    return list(names if len(names) == np.size(params) else range(np.size(params)))


def _checked(Q: Numbers, U: Numbers, names: Sequence[Any]) -> tuple[Numbers, Numbers, Numbers | None]:
    """Check and return estimates and variances `[m, K]`, and covariances `[m, K, K]` if `U` holds these."""
    covariances = U if Q.ndim == 2 and U.shape == (*Q.shape, Q.shape[-1]) else None
    if len(Q) < 2:
        raise ValueError(
            "expected fits of at least two imputations, got one: draw more, such as impute(m=20)"
        )
    if Q.ndim != 2 or (Q.shape != U.shape and covariances is None):
        raise ValueError(f"expected estimates and variances of one shape, got {Q.shape} and {U.shape}")
    if len(names) != Q.shape[1]:
        raise ValueError(f"expected one name for each of {Q.shape[1]} estimates, got {names}")
    U = U if covariances is None else np.diagonal(U, axis1=1, axis2=2)
    good = np.isfinite(Q) & np.isfinite(U) & (U > 0)
    if not good.all():
        table, k = np.argwhere(~good)[0].tolist()
        got = f"{Q[table, k]} with variance {U[table, k]} of {names[k]!r} in table {table}"
        advice = "leave it out: pool pairs (estimates, variances) of the others"
        raise ValueError(f"expected finite estimates and positive variances, got {got}; {advice}")
    if covariances is not None:
        scale = np.sqrt(U[:, :, None] * U[:, None, :])
        if not (np.abs(covariances - covariances.transpose(0, 2, 1)) <= 1e-6 * scale).all():
            raise ValueError("expected symmetric covariance matrices of finite numbers")
    return Q, U, covariances
