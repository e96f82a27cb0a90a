"""Amounts and counts of which 30 % are zero: 300 rows, in 28 % of which z is missing, and in 15 % y.

    x ~ N(0, 1),  P(z = 0 | x) = Φ(-.6 - .6 x)
    two_part          log z = 1 + .5 x + N(0, .6²) where z > 0
    two_part_counts   z = 1 + Poisson(exp(1 + .5 x)) where z > 0
    y = .3 x + .5 [z > 0] + .4 log z [z > 0] + N(0, 1)

y is missing more probably where x is large; in rows with y, z is where x + y is. Estimands are the share of
zeros, the mean of z, the slope of log z on x where z > 0, and the coefficients of y.
"""

from __future__ import annotations

import functools

import numpy as np
import pandas as pd
from scipy import stats

from benchmarks.coverage.design import Analysis, Design, Table, least_squares, missing_at_random

_ROWS, _M = 300, 20
_ZERO, _AMOUNT, _NOISE = (-0.6, -0.6), (1.0, 0.5), 0.6
_OUTCOME = {"x": 0.3, "any": 0.5, "log z": 0.4}


def draw(g: np.random.Generator, counts: bool = False) -> Table:
    """Draw a table, of amounts or of counts."""
    x = g.normal(size=_ROWS)
    is_zero = g.random(_ROWS) < stats.norm.cdf(_ZERO[0] + _ZERO[1] * x)
    log_z = _AMOUNT[0] + _AMOUNT[1] * x
    log_z = np.log(1 + g.poisson(np.exp(log_z))) if counts else log_z + _NOISE * g.normal(size=_ROWS)
    z = np.where(is_zero, 0.0, np.exp(log_z).round() if counts else np.exp(log_z))
    slope, step, of_log = _OUTCOME.values()
    y = slope * x + np.where(is_zero, 0.0, step + of_log * log_z) + g.normal(size=_ROWS)
    complete = pd.DataFrame({"x": x, "z": z, "y": y})
    no_y = missing_at_random(g, x, 0.15)
    no_z = missing_at_random(g, 0.7 * (x + y), 0.35) & ~no_y
    return Table(complete.assign(z=complete["z"].mask(no_z), y=complete["y"].mask(no_y)), complete)


def analyse(frame: pd.DataFrame) -> Analysis:
    """Estimate the share of zeros, the mean of z, the slope of log z, and the coefficients of y."""
    z, some = frame["z"], frame["z"] > 0
    share, n = 1 - some.mean(), len(frame)
    log_z = np.log(z.where(some, 1.0))
    amounts = least_squares(log_z[some], [frame.loc[some, "x"]])
    outcome = least_squares(frame["y"], [frame["x"], some, log_z])
    estimates = [share, z.mean(), amounts.slopes[1], *outcome.slopes[1:]]
    variances = [share * (1 - share) / n, z.var() / n, amounts.variances[1], *outcome.variances[1:]]
    names = ["share", "mean", "slope", *(f"y on {name}" for name in _OUTCOME)]
    return Analysis(names, np.array(estimates), np.array(variances), df=n - 4)


def _truth(counts: bool = False) -> dict[str, float]:
    """Return the true values; those of means and of the slope by Gauss-Hermite quadrature over x."""
    x, weights = np.polynomial.hermite_e.hermegauss(60)
    zero, log_z = stats.norm.cdf(_ZERO[0] + _ZERO[1] * x), _AMOUNT[0] + _AMOUNT[1] * x
    amount = np.exp(log_z + _NOISE**2 / 2)
    if counts:
        n = np.arange(400)
        amount, log_z = 1 + np.exp(log_z), stats.poisson.pmf(n, np.exp(log_z)[:, None]) @ np.log(1 + n)
    share, mean = ((weights @ each) / weights.sum() for each in (zero, (1 - zero) * amount))
    of_amounts = weights * (1 - zero)
    centred = x - of_amounts @ x / of_amounts.sum()
    slope = of_amounts @ (centred * log_z) / (of_amounts @ centred**2)
    coefficients = {f"y on {name}": value for name, value in _OUTCOME.items()}
    return {"share": float(share), "mean": float(mean), "slope": float(slope), **coefficients}


DESIGNS: dict[str, Design] = {
    "two_part": Design(draw, analyse, _M, _truth()),
    "two_part_counts": Design(functools.partial(draw, counts=True), analyse, _M, _truth(counts=True)),
}
"""The designs by name."""
