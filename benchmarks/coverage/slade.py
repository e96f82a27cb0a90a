"""Interaction of two incomplete regressors: the design of Slade and Naylor (Statistics in Medicine 39, 2020).

Four Gaussian columns with correlations of .5, y = .3 (x1 + x2 + x3 + x4) + .3 x1 x2 + N(0, 1), 200 rows. Each
of y, x1, x2 and x3 is missing with probability .35 in rows with x4 ≥ 0, and .65 in the others.

The exact sampler knows the form of the model, not its parameters:

    x ~ N(μ, Σ),   y | x ~ N(βᵀ φ(x), σ²),   p(μ, Σ) ∝ |Σ|^(-5/2),   p(β, σ²) ∝ 1/σ²,   φ(x) = (1, x, x1 x2)

The sampler `second_order` has all squares and products in φ: it does not know which term matters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from benchmarks.coverage.design import Design, Flags, Numbers, Table, equicorrelated, regression
from benchmarks.coverage.gaussian import conditional, draw_moments

_REGRESSORS = ["x1", "x2", "x3", "x4"]
_ROWS = 200
# Values among which a missing cell chooses.
_CANDIDATES = 6

Terms = Callable[[Numbers], Numbers]
"""Function from rows `[..., 5]`, which start with x1, x2, x3, x4, to the regressors of y, `[..., P]`."""


def draw(g: np.random.Generator) -> Table:
    """Draw a table."""
    X = equicorrelated(g, _ROWS, 4, 0.5)
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
    """Coefficients of the regressors of y, `[P]`."""
    noise: float
    """Variance σ² of y given x."""


def product(rows: Numbers) -> Numbers:
    """Return the regressors 1, x1, x2, x3, x4 and x1·x2."""
    x = rows[..., :4]
    return np.concatenate([np.ones_like(x[..., :1]), x, x[..., :1] * x[..., 1:2]], axis=-1)


def all_products(rows: Numbers) -> Numbers:
    """Return the regressors 1, x1, x2, x3, x4 and their ten squares and products."""
    x = rows[..., :4]
    pairs = [x[..., i] * x[..., j] for i, j in combinations_with_replacement(range(4), 2)]
    return np.concatenate([np.ones_like(x[..., :1]), x, np.stack(pairs, -1)], axis=-1)


def gibbs(
    frame: pd.DataFrame, m: int, seed: int, terms: Terms, burn_in: int = 200, thin: int = 50
) -> list[pd.DataFrame]:
    """Draw m imputations by Gibbs sampling.

    Args:
        frame: Table of `draw` with missing cells.
        m: Number of imputations.
        seed: Seed of the draws.
        terms: Regressors of y.
        burn_in: Sweeps before the first draw.
        thin: Sweeps from each draw to the next.
    """
    g = np.random.default_rng([seed, 2020])
    values = frame[[*_REGRESSORS, "y"]].to_numpy(dtype=np.float64)
    missing = np.isnan(values)
    filled = np.where(missing, np.nanmean(values, axis=0), values)
    drawn = []
    for sweep in range(burn_in + m * thin):
        draw_cells(g, filled, missing, draw_parameters(g, filled, terms), terms)
        if sweep >= burn_in and (sweep - burn_in) % thin == thin - 1:
            table = pd.DataFrame(filled.copy(), frame.index, [*_REGRESSORS, "y"])
            drawn.append(table[list(frame.columns)])
    return drawn


exact = functools.partial(gibbs, terms=product)
"""Gibbs sampling of the right model."""
second_order = functools.partial(gibbs, terms=all_products)
"""Gibbs sampling of a model that does not know which square or product matters."""


def draw_parameters(g: np.random.Generator, filled: Numbers, terms: Terms) -> Parameters:
    """Draw the parameters given a complete table `[n, 5]` with the columns x1, x2, x3, x4, y."""
    X, y = terms(filled), filled[:, 4]
    root = np.linalg.cholesky(np.linalg.inv(X.T @ X))
    centre = root @ (root.T @ (X.T @ y))
    residual = y - X @ centre
    noise = float(residual @ residual / g.chisquare(len(y) - X.shape[1]))
    mu, sigma = draw_moments(g, filled[:, :4])
    return Parameters(mu, sigma, centre + np.sqrt(noise) * root @ g.normal(size=X.shape[1]), noise)


def draw_cells(
    g: np.random.Generator, filled: Numbers, missing: Flags, given: Parameters, terms: Terms
) -> None:
    """Draw the missing cells of a table `[n, 5]` given the parameters, in place, column by column.

    A cell of x chooses, with weights p(y | x), among its last value and draws from its normal distribution
    given the other x. Its last value is one more such draw, so that the choice leaves the posterior as it is
    (particle Gibbs; Andrieu, Doucet and Holenstein, 2010). In rows that lack y, y is integrated out: it says
    nothing of x, and is drawn last.
    """
    y_known = ~missing[:, 4]
    for d in range(4):
        rows = missing[:, d]
        intercept, slopes, spread = conditional(given.mu, given.sigma, np.arange(4) == d)
        centre = intercept[0] + np.delete(filled[rows, :4], d, axis=1) @ slopes[0]
        fresh = centre + np.sqrt(float(spread[0, 0])) * g.normal(size=(_CANDIDATES - 1, len(centre)))
        candidates = np.vstack([filled[rows, d], fresh])
        tables = np.repeat(filled[rows][None], _CANDIDATES, axis=0)
        tables[..., d] = candidates
        error = filled[rows, 4] - terms(tables) @ given.beta
        log_weight = np.where(y_known[rows], -0.5 * error**2 / given.noise, 0.0)
        chosen = (log_weight + g.gumbel(size=log_weight.shape)).argmax(axis=0)
        filled[rows, d] = np.take_along_axis(candidates, chosen[None], axis=0)[0]
    rows = missing[:, 4]
    noise = np.sqrt(given.noise) * g.normal(size=int(rows.sum()))
    filled[rows, 4] = terms(filled[rows]) @ given.beta + noise


_TRUTH = {"intercept": 0.0} | dict.fromkeys([*_REGRESSORS, "x1:x2"], 0.3)

DESIGNS: dict[str, Design] = {"slade": Design(draw, regression(_regressors), 20, _TRUTH, exact=exact)}
"""The design by name."""
