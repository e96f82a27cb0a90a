"""Public tables of which 30 % of the cells are removed completely at random.

The truth is what the complete table gives: correlations, coefficients of the regression of each column on all
others, and log variances.
"""

from __future__ import annotations

import functools

import numpy as np
import pandas as pd

from benchmarks.coverage.design import Analysis, Design, Table
from benchmarks.paper import data

_RATE = 0.3
_MOST_ROWS = 3000
TABLES = ("protein", "parkinson", "airfoil", "autompg", "concreteslump", "stock", "forest")
"""Names of the tables."""


def draw(g: np.random.Generator, name: str) -> Table:
    """Draw the missing cells of a public table, of which 3,000 fixed rows are used if it has more.

    Raises:
        OSError: If the folder with the public tables lacks it, and it cannot be fetched.
    """
    complete = data.load(name, data.folder(), _MOST_ROWS).astype(np.float64)
    complete.columns = [str(column) for column in complete]
    return Table(complete.mask(g.random(complete.shape) < _RATE), complete)


def analyse(frame: pd.DataFrame) -> Analysis:
    """Return correlations, regression coefficients and log variances of a table, without variances."""
    names = [str(name) for name in frame]
    deviation = frame.to_numpy().std(0, ddof=1)
    correlation = np.corrcoef(frame.to_numpy().T)
    # The regression of column i on all others has the coefficients -P_ij / P_ii, where P is the precision.
    precision = np.linalg.inv(correlation)
    slopes = -precision / np.diag(precision)[:, None] * deviation[:, None] / deviation
    rows = [("log variance", f"log variance {a}", 2 * np.log(deviation[i])) for i, a in enumerate(names)]
    for i, a in enumerate(names):
        for j, b in enumerate(names):
            if i < j:
                rows.append(("correlation", f"correlation {a} {b}", correlation[i, j]))
            if i != j:
                rows.append(("regression", f"slope {a}|{b}", slopes[i, j]))
    kinds, labels, estimates = zip(*rows, strict=True)
    return Analysis(labels, np.array(estimates), np.zeros(len(rows)), kinds)


DESIGNS: dict[str, Design] = {
    f"real_{name}": Design(functools.partial(draw, name=name), analyse, 40) for name in TABLES
}
"""Designs by name of the table."""
