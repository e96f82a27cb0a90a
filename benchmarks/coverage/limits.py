"""Cells of which limits are known: below a limit of detection, right-censored, and within intervals.

Tables of 200 rows have a complete column z ~ N(0, 1) and log x = 1 + .5 z + N(0, .8²). Of x is known

    limit_below     that it is below its quantile of .4 ("<1.99"), in rows in which it is
    limit_above     that it is above a limit of each row's own (">3.1"), for about 40 % of the cells
    limit_within    which of the intervals between four numbers holds it, for all cells but 60

Estimands are the mean of log x and the slope of log x on z. The exact sampler knows that log x is linear in
z with normal errors (Chib, Journal of Econometrics 51:79-99, 1992), with p(β, σ²) ∝ 1/σ².
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from scipy import stats

from benchmarks.coverage.design import Analysis, Design, Numbers, Table, least_squares
from pyro_mgp.data.limits import Limits

_ROWS, _M = 200, 20
_MEAN, _SLOPE, _NOISE = 1.0, 0.5, 0.8
_KNOWN = 60
# Sweeps of the exact sampler before the first draw, and from draw to draw.
_BURN_IN, _THIN = 200, 20

Censor = Callable[[np.random.Generator, Numbers], Limits]
"""Function of the cells of x, `[n]`, that returns limits of those that are not observed."""


def below(g: np.random.Generator, x: Numbers) -> Limits:
    """Return the limit of detection of the cells below it."""
    limit = np.exp(stats.norm.ppf(0.4, _MEAN, np.hypot(_SLOPE, _NOISE)))
    return Limits(np.full(len(x), -np.inf), np.full(len(x), limit)).of(x < limit)


def above(g: np.random.Generator, x: Numbers) -> Limits:
    """Return limits of the cells above a number that is drawn for each."""
    limit = np.exp(_MEAN + 0.25 + np.hypot(_SLOPE, _NOISE) * g.normal(size=len(x)))
    return Limits(limit, np.full(len(x), np.inf)).of(x > limit)


def within(g: np.random.Generator, x: Numbers) -> Limits:
    """Return the interval of all cells but some."""
    ends = np.array([-np.inf, *np.exp([0.2, 1.0, 1.8]), np.inf])
    place = np.searchsorted(ends, x) - 1
    return Limits(ends[place], ends[place + 1]).of(g.permutation(len(x)) >= _KNOWN)


def _draw(censor: Censor) -> Callable[[np.random.Generator], Table]:
    def draw(g: np.random.Generator) -> Table:
        z = g.normal(size=_ROWS)
        x = np.exp(_MEAN + _SLOPE * z + _NOISE * g.normal(size=_ROWS))
        limits = censor(g, x)
        complete = pd.DataFrame({"z": z, "x": x})
        frame = complete.assign(x=np.where(limits.limited, np.nan, x))
        for name, ends in (("x at least", limits.lower), ("x at most", limits.upper)):
            if np.isfinite(ends).any():
                frame[name] = np.where(np.isfinite(ends), ends, np.nan)
        return Table(frame, complete)

    return draw


def analyse(frame: pd.DataFrame) -> Analysis:
    """Estimate the mean of log x and its slope on z."""
    log_x = np.log(frame["x"].clip(lower=1e-6))
    fit = least_squares(log_x, [frame["z"]])
    variances = np.array([log_x.var() / len(log_x), fit.variances[1]])
    return Analysis(["mean", "slope"], np.array([log_x.mean(), fit.slopes[1]]), variances, df=fit.df)


def exact(frame: pd.DataFrame, m: int, seed: int) -> list[pd.DataFrame]:
    """Draw m imputations by Gibbs sampling of a linear regression with censored outcomes."""
    g = np.random.default_rng([seed, 1958])
    X, y = np.column_stack([np.ones(len(frame)), frame["z"]]), np.log(frame["x"].to_numpy())
    censored = np.isnan(y)
    lower, upper = (
        np.log(frame[name].fillna(none).to_numpy()) if name in frame else np.full(len(y), np.log(none))
        for name, none in (("x at least", 1e-300), ("x at most", np.inf))
    )
    y[censored] = np.where(np.isfinite(upper), upper, lower + 1)[censored]
    root, drawn = np.linalg.cholesky(np.linalg.inv(X.T @ X)), []
    for sweep in range(_BURN_IN + m * _THIN):
        centre = root @ (root.T @ (X.T @ y))
        residual = y - X @ centre
        noise = np.sqrt(residual @ residual / g.chisquare(len(y) - 2))
        mean = (X @ (centre + noise * root @ g.normal(size=2)))[censored]
        ends = ((bound[censored] - mean) / noise for bound in (lower, upper))
        y[censored] = stats.truncnorm.rvs(*ends, mean, noise, random_state=g)
        if sweep >= _BURN_IN and (sweep - _BURN_IN) % _THIN == _THIN - 1:
            drawn.append(frame.assign(x=np.exp(y)))
    return drawn


_TRUTH = {"mean": _MEAN, "slope": _SLOPE}

DESIGNS: dict[str, Design] = {
    f"limit_{censor.__name__}": Design(_draw(censor), analyse, _M, _TRUTH, exact=exact)
    for censor in (below, above, within)
}
"""The designs by name."""
