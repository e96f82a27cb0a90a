"""Wide tables: 200 rows of 50 or 500 columns, of which twenty are correlated with others.

Columns are normal, with correlations of .6 among the first ten, .3 among the next ten, and none elsewhere.
Six of these, three of each ten, are missing in 30 % of the rows, more probably with a large sum of four
others. Estimands are their means, variances and covariances; estimates of variances and covariances have
their standard errors under normality.
"""

from __future__ import annotations

import functools

import numpy as np
import pandas as pd

from benchmarks.coverage.design import Analysis, Design, Numbers, Table, missing_at_random

_ROWS, _M, _RATE = 200, 10, 0.3
_INCOMPLETE, _CAUSES = [0, 1, 2, 10, 11, 12], [5, 6, 15, 16]
_ABOVE = np.triu_indices(len(_INCOMPLETE))


def _covariance(p: int) -> Numbers:
    covariance = np.eye(p)
    for block, correlation in ((slice(0, 10), 0.6), (slice(10, 20), 0.3)):
        covariance[block, block] += correlation * (1 - np.eye(10))
    return covariance


def draw(g: np.random.Generator, p: int) -> Table:
    """Draw a table of p columns."""
    X = g.normal(size=(_ROWS, p)) @ np.linalg.cholesky(_covariance(p)).T
    complete = pd.DataFrame(X, columns=[f"x{k}" for k in range(p)])
    frame, score = complete.copy(), X[:, _CAUSES].sum(axis=1) / 2
    for k in _INCOMPLETE:
        frame.loc[missing_at_random(g, score, _RATE), f"x{k}"] = np.nan
    return Table(frame, complete)


def _names() -> list[str]:
    names = [f"x{k}" for k in _INCOMPLETE]
    pairs = [(names[i], names[k]) for i, k in zip(*_ABOVE, strict=True)]
    return [f"mean {name}" for name in names] + [f"cov {a} {b}" for a, b in pairs]


def analyse(frame: pd.DataFrame) -> Analysis:
    """Estimate means, variances and covariances of the six columns."""
    X = frame[[f"x{k}" for k in _INCOMPLETE]].to_numpy()
    covariance, n = np.cov(X.T), len(X)
    of_means = np.diag(covariance) / n
    products = np.outer(np.diag(covariance), np.diag(covariance)) + covariance**2
    of_covariances = products[_ABOVE] / (n - 1)
    estimates = np.append(X.mean(axis=0), covariance[_ABOVE])
    kinds = [
        "mean" if name.startswith("mean") else "variance" if len({*name.split()}) == 2 else "covariance"
        for name in _names()
    ]
    return Analysis(_names(), estimates, np.append(of_means, of_covariances), kinds, df=n - 1)


def _truth() -> dict[str, float]:
    covariance = _covariance(20)[np.ix_(_INCOMPLETE, _INCOMPLETE)]
    values = np.append(np.zeros(len(_INCOMPLETE)), covariance[_ABOVE])
    return dict(zip(_names(), values.tolist(), strict=True))


DESIGNS: dict[str, Design] = {
    f"wide_{p}": Design(functools.partial(draw, p=p), analyse, _M, _truth()) for p in (50, 500)
}
"""The designs by name."""
