"""Quantities other than regression coefficients, pooled over m completed tables.

Rubin's rules take estimates for normal. A quantity with bounds is therefore pooled on a scale without,

    correlation, R                    artanh r,          variance 1 / (n - 3)  (Fisher)
    probability, area under a curve   logit p,           variance of p / (p (1 - p))²
    survival probability              log(-log S),       variance of log S / (log S)²  (Greenwood)
    mean, quantile, difference        itself

and estimate and interval are transformed back (van Buuren, Flexible Imputation of Missing Data, 2018,
section 5.2; Marshall et al., BMC Med. Res. Methodol. 9:57, 2009). Each function here returns an analysis of a
completed table, for `Imputations.estimate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from scipy import special, stats

from pyro_mgp.analysis.joint_tests import Numbers
from pyro_mgp.analysis.pooling import Pooled, ShownAsTable, pool
from pyro_mgp.analysis.regression import Regression, complete, indicator, numbers
from pyro_mgp.data.column_spec import Label

Function: TypeAlias = Callable[[Numbers], Any]


@dataclass(frozen=True)
class Scale:
    """Scale on which a quantity is pooled."""

    to: Function
    back: Function


IDENTITY = Scale(lambda value: value, lambda value: value)
FISHER = Scale(np.arctanh, np.tanh)
LOGIT = Scale(special.logit, special.expit)
LOG_LOG = Scale(lambda S: np.log(-np.log(S)), lambda value: np.exp(-np.exp(value)))
R_SQUARED = Scale(
    lambda value: np.arctanh(np.sqrt(value)), lambda value: np.square(np.tanh(np.maximum(value, 0.0)))
)


class Estimates(NamedTuple):
    """Estimates of quantities from one completed table."""

    values: pd.Series[float]
    """Estimates `[K]`, by name."""
    variances: Numbers
    """Their variances on the scale on which they are pooled, `[K]`."""
    scale: Scale
    df: float = np.inf
    """Degrees of freedom of the complete-data analysis."""

    @property
    def on_scale(self) -> pd.Series[float]:
        """Estimates on the scale on which they are pooled, `[K]`."""
        values: Numbers = self.scale.to(np.asarray(self.values, dtype=np.float64))
        return pd.Series(values, self.values.index, dtype=np.float64)


Quantity = Callable[[pd.DataFrame], Estimates]
"""Analysis of a completed table."""


@dataclass(frozen=True, eq=False, repr=False)
class PooledQuantities(ShownAsTable):
    """Pooled quantities: `estimate`, `low`, `high`, and `df`, `riv`, `lambda` and `fmi` as in `Pooled`."""

    pooled: Pooled
    """Pooled estimates on the scale on which they are normal."""

    @classmethod
    def of(cls, quantity: Quantity, tables: Iterable[pd.DataFrame], level: float = 0.95) -> PooledQuantities:
        """Estimate a quantity from completed tables and pool it; for errors see `pool`."""
        if not callable(quantity):
            raise TypeError(f"expected a quantity, such as quantities.mean('income'), got {quantity!r}")
        found = [quantity(table) for table in tables]
        scale, df = found[0].scale, min(each.df for each in found)
        fits = [(each.on_scale, each.variances) for each in found]
        pooled = pool(fits, level=level, df_complete=df)
        shares = pooled.table[["df", "riv", "lambda", "fmi"]]
        parts = {name: scale.back(pooled.table[name].to_numpy()) for name in ("estimate", "low", "high")}
        table = pd.DataFrame(parts, shares.index)
        # A scale that decreases exchanges the ends.
        table[["low", "high"]] = np.sort(table[["low", "high"]].to_numpy(), axis=1)
        return cls(pd.concat([table, shares], axis=1), pooled.m, level, pooled)


def mean(column: Label) -> Quantity:
    """Return the mean of a column.

    Example:
        >>> frame = pd.DataFrame({"x": [1.0, 2.0, 4.0, 5.0]})
        >>> mean("x")(frame).values.tolist()
        [3.0]
    """

    def estimate(table: pd.DataFrame) -> Estimates:
        x = numbers(table, column)
        return _single(f"mean of {column}", x.mean(), x.var(ddof=1) / len(x), IDENTITY, len(x) - 1)

    return estimate


def proportion(column: Label, level: Any = True) -> Quantity:
    """Return the share of rows in which a column has a level.

    Example:
        >>> frame = pd.DataFrame({"answer": ["yes", "no", "yes", "yes"]})
        >>> proportion("answer", "yes")(frame).values.tolist()
        [0.75]
    """

    def estimate(table: pd.DataFrame) -> Estimates:
        p, n = float((complete(table, column) == level).mean()), len(table)
        if not 0 < p < 1:
            raise ValueError(
                f"column {column!r}: {p:.0%} of the rows have level {level!r}; expected some, not all"
            )
        return _single(f"{column} = {level}", p, 1 / (n * p * (1 - p)), LOGIT)

    return estimate


def correlation(x: Label, y: Label) -> Quantity:
    """Return Pearson's correlation of two columns, which is pooled by Fisher's z.

    Example:
        >>> frame = pd.DataFrame({"x": [1.0, 2.0, 3.0, 4.0], "y": [1.0, 3.0, 2.0, 4.0]})
        >>> correlation("x", "y")(frame).values.round(6).tolist()
        [0.8]
    """

    def estimate(table: pd.DataFrame) -> Estimates:
        r = float(np.corrcoef(numbers(table, x), numbers(table, y))[0, 1])
        return _single(f"{x}, {y}", r, 1 / (len(table) - 3), FISHER)

    return estimate


def quantile(column: Label, q: float | Sequence[float]) -> Quantity:
    """Return quantiles of a column, with the variances of Maritz and Jarrett (JASA 73:194-196, 1978).

    Example:
        >>> frame = pd.DataFrame({"x": [1.0, 2.0, 4.0, 8.0, 9.0]})
        >>> quantile("x", [0.25, 0.5])(frame).values.tolist()
        [2.0, 4.0]
    """
    levels = np.atleast_1d(np.asarray(q, dtype=np.float64))
    if not ((levels > 0) & (levels < 1)).all():
        raise ValueError(f"q must lie between 0 and 1, got {q}")

    def estimate(table: pd.DataFrame) -> Estimates:
        x = numbers(table, column)
        names = [f"{level:g} quantile of {column}" for level in levels]
        deviations = np.asarray(stats.mstats.mjci(x, levels))
        return Estimates(pd.Series(np.quantile(x, levels), names), np.square(deviations), IDENTITY)

    return estimate


def standardised_difference(column: Label, by: Label) -> Quantity:
    """Return the difference between the means of two groups over the root of their mean variance.

    It is that of the second value of `by` minus the first, in the order of categories or sorted; its
    variance is n / (n₁ n₀) + d² / 2n (Hedges and Olkin, Statistical Methods for Meta-Analysis, 1985).

    Example:
        >>> frame = pd.DataFrame({"arm": ["a", "a", "b", "b"], "x": [1.0, 3.0, 2.0, 4.0]})
        >>> standardised_difference("x", by="arm")(frame).values.round(3).to_dict()
        {'x: b - a': 0.707}
    """

    def estimate(table: pd.DataFrame) -> Estimates:
        column_of_groups = complete(table, by)
        is_category = isinstance(column_of_groups.dtype, pd.CategoricalDtype)
        used = column_of_groups.cat.remove_unused_categories().cat.categories if is_category else ()
        values = list(used) or sorted(column_of_groups.unique())
        if len(values) != 2:
            raise ValueError(f"column {by!r} has {len(values)} values: expected two groups to compare")
        low, high = (numbers(table[table[by] == value], column) for value in values)
        d = (high.mean() - low.mean()) / np.sqrt((high.var(ddof=1) + low.var(ddof=1)) / 2)
        n = len(low) + len(high)
        variance = n / (len(low) * len(high)) + d**2 / (2 * n)
        return _single(f"{column}: {values[1]} - {values[0]}", d, variance, IDENTITY)

    return estimate


def area_under_curve(score: Label | Callable[[pd.DataFrame], Any], outcome: Label) -> Quantity:
    """Return the probability that a row with the outcome has a higher score than one without (AUC).

    The variance is that of DeLong et al. (Biometrics 44:837-845, 1988).

    Args:
        score: Column, or function of a completed table.
        outcome: Column that is true, or one, in rows with the outcome.

    Example:
        >>> frame = pd.DataFrame({"score": [1.0, 2.0, 3.0, 4.0], "ill": [False, True, False, True]})
        >>> area_under_curve("score", "ill")(frame).values.tolist()
        [0.75]
    """

    def estimate(table: pd.DataFrame) -> Estimates:
        values = np.asarray(score(table) if callable(score) else numbers(table, score), dtype=np.float64)
        has = indicator(complete(table, outcome)) > 0
        n1, n0 = int(has.sum()), int((~has).sum())
        if min(n1, n0) < 2:
            raise ValueError(f"outcome {outcome!r}: {n1} rows have it and {n0} do not; expected two at least")
        ranks = stats.rankdata(values)
        # Share of the other rows that each row is on the right side of, ties by half.
        with_it = (ranks[has] - stats.rankdata(values[has])) / n0
        without = 1 - (ranks[~has] - stats.rankdata(values[~has])) / n1
        area = float(with_it.mean())
        variance = with_it.var(ddof=1) / n1 + without.var(ddof=1) / n0
        return _single(f"AUC of {outcome}", area, variance / (area * (1 - area)) ** 2, LOGIT)

    return estimate


def survival(time: Label, event: Label, at: float | Sequence[float]) -> Quantity:
    """Return the survival probabilities of Kaplan and Meier at some times, with Greenwood's variances.

    Example:
        >>> frame = pd.DataFrame({"time": [1.0, 2.0, 3.0, 4.0], "event": [1, 0, 1, 0]})
        >>> survival("time", "event", at=3.0)(frame).values.to_dict()
        {'S(3)': 0.375}
    """
    times = np.atleast_1d(np.asarray(at, dtype=np.float64))

    def estimate(table: pd.DataFrame) -> Estimates:
        try:
            from statsmodels.duration.survfunc import SurvfuncRight
        except ModuleNotFoundError as error:
            raise ImportError("survival curves need statsmodels: pip install 'pyro_mgp[models]'") from error
        t, happened = numbers(table, time), indicator(complete(table, event))
        if (times > t.max()).any():
            raise ValueError(f"survival at {times.tolist()} is not known: the last time is {t.max():g}")
        curve = SurvfuncRight(t, happened)
        last = np.searchsorted(curve.surv_times, times, side="right") - 1
        values = np.where(last >= 0, curve.surv_prob[last], 1.0)
        if not ((values > 0) & (values < 1)).all():
            raise ValueError(
                f"survival at {times.tolist()} is {values.tolist()} in a completed table: expected times "
                "after the first event and before the last"
            )
        variances = np.square(curve.surv_prob_se[last] / values / np.log(values))
        names = [f"S({end:g})" for end in times]
        return Estimates(pd.Series(values, names), variances, LOG_LOG)

    return estimate


def r_squared(formula: str) -> Quantity:
    """Return the share of variance that a linear regression by formula explains.

    It is pooled by the square root (Harel, J. Appl. Stat. 36:1109-1118, 2009).

    Example:
        >>> frame = pd.DataFrame({"x": [1.0, 2.0, 3.0, 4.0], "y": [1.0, 3.0, 2.0, 4.0]})
        >>> r_squared("y ~ x")(frame).values.round(6).tolist()
        [0.64]
    """
    regression = Regression(formula, "ols")

    def estimate(table: pd.DataFrame) -> Estimates:
        fit = regression(table)
        if "Intercept" not in fit.params:
            raise ValueError(f"R² needs an intercept: leave '0 +' or '- 1' out of {formula!r}")
        value = float(fit.result.rsquared)
        return _single("R²", value, 1 / (len(table) - 3), R_SQUARED)

    return estimate


def _single(name: str, value: float, variance: float, scale: Scale, df: float = np.inf) -> Estimates:
    return Estimates(pd.Series([float(value)], [name]), np.array([variance]), scale, df)
