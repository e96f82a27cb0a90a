"""Gaussian tables, for which the posterior distribution of missing cells is known.

Rows are independent N(μ, Σ), with ones on the diagonal of Σ and .6 beside it. The exact sampler is data
augmentation (Schafer, *Analysis of Incomplete Multivariate Data*, 1997, chapter 5) under Jeffreys' prior.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy import stats

from benchmarks.coverage.design import Analysis, Design, Flags, Numbers, Table, equicorrelated

_CORRELATION = 0.6
_UPPER = 0.9
_UPPER_SCORE = float(stats.norm.ppf(_UPPER))


def _gaussian(g: np.random.Generator, n: int, p: int) -> pd.DataFrame:
    return pd.DataFrame(equicorrelated(g, n, p, _CORRELATION), columns=list("abcd"[:p]))


def draw_two(g: np.random.Generator, n: int) -> Table:
    """Draw two columns; a row lacks the first with probability .4, and otherwise the second with .4."""
    complete = _gaussian(g, n, 2)
    first = g.random(n) < 0.4
    second = ~first & (g.random(n) < 0.4)
    return Table(complete.mask(np.column_stack([first, second])), complete)


def draw_four(g: np.random.Generator, n: int) -> Table:
    """Draw four columns; a quarter of all cells is missing completely at random."""
    complete = _gaussian(g, n, 4)
    return Table(complete.mask(g.random((n, 4)) < 0.25), complete)


# --------------------------------------------------------------------------------------------- estimands


def analyse(frame: pd.DataFrame) -> Analysis:
    """Estimate means, log variances, 90 % quantiles, Fisher's z, and slopes of each column on each other one.

    Variances of the estimates are those under normality, with n in place of n - 1 where it does not matter.
    """
    rows = list(_estimands(frame.to_numpy(dtype=np.float64), [str(name) for name in frame]))
    kinds, names, estimates, variances = zip(*rows, strict=True)
    return Analysis(names, np.array(estimates), np.array(variances), kinds, len(frame) - 2)


def _estimands(values: Numbers, names: list[str]) -> Iterator[tuple[str, str, float, float]]:
    """Yield kind, name, estimate and variance of each estimand of a table `[n, p]`."""
    n, covariance = len(values), np.cov(values.T)
    height = stats.norm.pdf(_UPPER_SCORE)
    for i, a in enumerate(names):
        v = float(covariance[i, i])
        yield "mean", f"mean {a}", float(values[:, i].mean()), v / n
        yield "log variance", f"log variance {a}", math.log(v), 2 / (n - 1)
        upper = float(np.quantile(values[:, i], _UPPER))
        yield "quantile", f"q90 {a}", upper, _UPPER * (1 - _UPPER) * v / (n * height**2)
        for j, b in enumerate(names):
            slope, r = covariance[i, j] / covariance[j, j], covariance[i, j] / math.sqrt(v * covariance[j, j])
            if i < j:
                yield "z", f"z {a} {b}", math.atanh(r), 1 / (n - 3)
            if i != j:
                yield "slope", f"slope {a}|{b}", slope, (v / covariance[j, j]) * (1 - r**2) / (n - 2)


def _truth(p: int) -> dict[str, float]:
    """Return the true value of each estimand of p columns."""
    names = analyse(
        pd.DataFrame(np.random.default_rng(0).normal(size=(9, p)), columns=list("abcd"[:p]))
    ).names
    values = {
        "mean": 0.0,
        "log": 0.0,
        "q90": _UPPER_SCORE,
        "z": math.atanh(_CORRELATION),
        "slope": _CORRELATION,
    }
    return {name: values[name.split()[0]] for name in names}


# ----------------------------------------------------------------------------------------- exact sampler


def exact(frame: pd.DataFrame, m: int, seed: int, burn_in: int = 100, thin: int = 10) -> list[pd.DataFrame]:
    """Draw m imputations of a Gaussian table from their posterior distribution.

    Args:
        frame: Numeric table with missing cells.
        m: Number of imputations.
        seed: Seed of the draws.
        burn_in: Sweeps before the first draw.
        thin: Sweeps from each draw to the next.
    """
    g = np.random.default_rng([seed, 1997])
    values = frame.to_numpy(dtype=np.float64)
    missing = np.isnan(values)
    filled = np.where(missing, np.nanmean(values, axis=0), values)
    patterns, which = np.unique(missing, axis=0, return_inverse=True)
    groups = [
        (pattern, np.flatnonzero(which.ravel() == k)) for k, pattern in enumerate(patterns) if pattern.any()
    ]
    drawn = []
    for sweep in range(burn_in + m * thin):
        mu, sigma = draw_moments(g, filled)
        for pattern, rows in groups:
            filled[np.ix_(rows, pattern)] = _draw_cells(g, filled[rows], pattern, mu, sigma)
        if sweep >= burn_in and (sweep - burn_in) % thin == thin - 1:
            drawn.append(pd.DataFrame(filled.copy(), frame.index, frame.columns))
    return drawn


def draw_moments(g: np.random.Generator, values: Numbers) -> tuple[Numbers, Numbers]:
    """Draw μ `[p]` and Σ `[p, p]` given a complete table `[n, p]`, under Jeffreys' prior |Σ|^(-(p + 1)/2)."""
    n, mean = len(values), values.mean(0)
    scatter = (values - mean).T @ (values - mean)
    sigma = np.atleast_2d(stats.invwishart(n - 1, scatter).rvs(random_state=g))
    return g.multivariate_normal(mean, sigma / n), sigma


def conditional(mu: Numbers, sigma: Numbers, missing: Flags) -> tuple[Numbers, Numbers, Numbers]:
    """Return the law of the missing columns given the others.

    It is that of intercept `[k]` + slopes `[k, p - k]` · others + N(0, covariance `[k, k]`).

    Args:
        mu: Mean, `[p]`.
        sigma: Covariance, `[p, p]`.
        missing: Which columns are missing, `[p]`.
    """
    a, b = np.flatnonzero(missing), np.flatnonzero(~missing)
    slopes = np.asarray(np.linalg.solve(sigma[np.ix_(b, b)], sigma[np.ix_(b, a)]).T, dtype=np.float64)
    return mu[a] - slopes @ mu[b], slopes, sigma[np.ix_(a, a)] - slopes @ sigma[np.ix_(b, a)]


def _draw_cells(
    g: np.random.Generator, rows: Numbers, missing: Flags, mu: Numbers, sigma: Numbers
) -> Numbers:
    """Draw the missing columns `[r, k]` of rows `[r, p]` that all lack the same columns."""
    intercept, slopes, spread = conditional(mu, sigma, missing)
    noise = g.normal(size=(len(rows), len(intercept))) @ np.linalg.cholesky(spread).T
    return np.asarray(intercept + rows[:, ~missing] @ slopes.T + noise)


def _design(draw: functools.partial[Table], p: int, *, seeds: int = 1) -> Design:
    return Design(draw, analyse, 40, _truth(p), exact=exact, seeds=seeds)


DESIGNS: dict[str, Design] = {
    "g2_50": _design(functools.partial(draw_two, n=50), 2),
    "g2_200": _design(functools.partial(draw_two, n=200), 2),
    "g2_3000": _design(functools.partial(draw_two, n=3000), 2),
    "g4_200": _design(functools.partial(draw_four, n=200), 4),
    "few_25": Design(functools.partial(draw_four, n=25), analyse, 40, exact=exact),
    "g2_3000_seeds": _design(functools.partial(draw_two, n=3000), 2, seeds=8),
}
"""Designs by name; the last number is that of the rows."""
