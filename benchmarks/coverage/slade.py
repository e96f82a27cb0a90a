"""Interaction of two incomplete regressors: the design of Slade and Naylor (Statistics in Medicine 39, 2020).

Four Gaussian columns with correlations of .5, y = .3 (x1 + x2 + x3 + x4) + .3 x1 x2 + N(0, 1), 200 rows. Each
of y, x1, x2 and x3 is missing with probability .35 in rows with x4 ≥ 0, and .65 in the others.

The exact sampler knows the form of the model, not its parameters:

    x ~ N(μ, Σ),   y | x ~ N(β₀ + Σ βₖ xₖ + γ x1 x2, σ²),   p(μ, Σ) ∝ |Σ|^(-5/2),   p(β, γ, σ²) ∝ 1/σ²
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from benchmarks.coverage.design import Design, Flags, Numbers, Table, regression
from benchmarks.coverage.gaussian import conditional, draw_moments

_REGRESSORS = ["x1", "x2", "x3", "x4"]
_ROWS = 200


def draw(g: np.random.Generator) -> Table:
    """Draw a table."""
    X = g.multivariate_normal(np.zeros(4), np.full((4, 4), 0.5) + 0.5 * np.eye(4), _ROWS)
    complete = pd.DataFrame(X, columns=_REGRESSORS)
    complete["y"] = 0.3 * X.sum(1) + 0.3 * X[:, 0] * X[:, 1] + g.normal(size=_ROWS)
    incomplete = ["y", "x1", "x2", "x3"]
    missing = g.random((_ROWS, 4)) < np.where(X[:, 3] >= 0, 0.35, 0.65)[:, None]
    frame = complete.copy()
    frame[incomplete] = frame[incomplete].mask(missing)
    return Table(frame, complete)


def _regressors(frame: pd.DataFrame) -> dict[str, pd.Series[Any]]:
    return {name: frame[name] for name in _REGRESSORS} | {"x1:x2": frame["x1"] * frame["x2"]}


class Parameters(NamedTuple):
    """Parameters of the model."""

    mu: Numbers
    """Mean of x, `[4]`."""
    sigma: Numbers
    """Covariance of x, `[4, 4]`."""
    beta: Numbers
    """Coefficients of 1, x1, x2, x3, x4 and x1·x2, `[6]`."""
    noise: float
    """Variance σ² of y given x."""


def exact(frame: pd.DataFrame, m: int, seed: int, burn_in: int = 200, thin: int = 50) -> list[pd.DataFrame]:
    """Draw m imputations by a Gibbs sampler of the right model.

    Args:
        frame: Table of `draw` with missing cells.
        m: Number of imputations.
        seed: Seed of the draws.
        burn_in: Sweeps before the first draw.
        thin: Sweeps from each draw to the next.
    """
    g = np.random.default_rng([seed, 2020])
    values = frame[[*_REGRESSORS, "y"]].to_numpy(dtype=np.float64)
    missing = np.isnan(values)
    filled = np.where(missing, np.nanmean(values, axis=0), values)
    drawn = []
    for sweep in range(burn_in + m * thin):
        draw_cells(g, filled, missing, draw_parameters(g, filled))
        if sweep >= burn_in and (sweep - burn_in) % thin == thin - 1:
            table = pd.DataFrame(filled.copy(), frame.index, [*_REGRESSORS, "y"])
            drawn.append(table[list(frame.columns)])
    return drawn


def draw_parameters(g: np.random.Generator, filled: Numbers) -> Parameters:
    """Draw the parameters given a complete table `[n, 5]` with the columns x1, x2, x3, x4, y."""
    X, y = _terms(filled), filled[:, 4]
    root = np.linalg.cholesky(np.linalg.inv(X.T @ X))
    centre = root @ (root.T @ (X.T @ y))
    residual = y - X @ centre
    noise = float(residual @ residual / g.chisquare(len(y) - X.shape[1]))
    mu, sigma = draw_moments(g, filled[:, :4])
    return Parameters(mu, sigma, centre + np.sqrt(noise) * root @ g.normal(size=X.shape[1]), noise)


def draw_cells(g: np.random.Generator, filled: Numbers, missing: Flags, given: Parameters) -> None:
    """Draw the missing cells of a table `[n, 5]` given the parameters, in place, column by column.

    y is linear in each x, so each x is Gaussian given the others and y:

        x_d | rest ~ N,  precision 1/s² + b²/σ²,  mean (c/s² + b (y - a)/σ²) / precision

    where N(c, s²) is the law of x_d given the other x, and a + b x_d the mean of y. In rows that lack y, y is
    integrated out: it says nothing of x_d, and is drawn last.
    """
    y_known = ~missing[:, 4]
    for d in range(4):
        rows = missing[:, d]
        intercept, slopes, spread = conditional(given.mu, given.sigma, np.arange(4) == d)
        others = np.delete(filled[rows, :4], d, axis=1)
        prior, s2 = intercept[0] + others @ slopes[0], float(spread[0, 0])
        a, b = _line_in(filled[rows], d, given.beta)
        weight = np.where(y_known[rows], 1 / given.noise, 0.0)
        precision = 1 / s2 + weight * b**2
        centre = (prior / s2 + weight * b * (filled[rows, 4] - a)) / precision
        filled[rows, d] = centre + g.normal(size=len(centre)) / np.sqrt(precision)
    rows = missing[:, 4]
    noise = np.sqrt(given.noise) * g.normal(size=int(rows.sum()))
    filled[rows, 4] = _terms(filled[rows]) @ given.beta + noise


def _line_in(rows: Numbers, d: int, beta: Numbers) -> tuple[Numbers, Numbers]:
    """Return intercepts and slopes `[r]` of the mean of y as a function of x_d."""
    at_zero, at_one = rows.copy(), rows.copy()
    at_zero[:, d], at_one[:, d] = 0, 1
    intercept = _terms(at_zero) @ beta
    return intercept, _terms(at_one) @ beta - intercept


def _terms(rows: Numbers) -> Numbers:
    """Return the regressors of y, `[n, 6]`, for rows that start with x1, x2, x3, x4."""
    return np.column_stack([np.ones(len(rows)), rows[:, :4], rows[:, 0] * rows[:, 1]])


_TRUTH = {"intercept": 0.0} | dict.fromkeys([*_REGRESSORS, "x1:x2"], 0.3)

DESIGNS: dict[str, Design] = {"slade": Design(draw, regression(_regressors), 20, _TRUTH, exact=exact)}
"""The design by name."""
