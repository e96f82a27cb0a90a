"""Simulation designs: tables with missing cells whose regression coefficients are known.

The first designs are those of van Buuren, *Flexible Imputation of Missing Data* (2nd ed., 2018), sections
2.5.3 and 3.2.3. The others are nonlinear: a product of two incomplete columns, and a sine wave.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit


@dataclass(frozen=True)
class Design:
    """Distribution of an incomplete table, and the regression coefficient to estimate from it."""

    draw: Callable[[np.random.Generator], pd.DataFrame]
    """Function that draws a numeric table with missing cells."""
    inputs: Callable[[pd.DataFrame], list[pd.Series[Any]]]
    """Regressors of `y` in a completed table, besides an intercept."""
    term: int
    """Position among the regressors of the one whose slope is estimated."""
    truth: float
    """True value of that slope."""
    m: int
    """Number of imputations."""


def _half_missing(g: np.random.Generator, table: pd.DataFrame, column: str) -> pd.DataFrame:
    """Remove half of a column completely at random."""
    table.loc[g.permutation(len(table))[: len(table) // 2], column] = np.nan
    return table


def _missing_at_random(g: np.random.Generator, score: NDArray[np.float64], rate: float) -> NDArray[np.bool_]:
    """Draw missing cells `[n]`, more probable where an observed score `[n]` is larger."""
    shift = brentq(lambda a: expit(score + a).mean() - rate, -30, 30)
    return np.asarray(g.random(len(score)) < expit(score + shift))


def _fimd_2_5_3(g: np.random.Generator) -> pd.DataFrame:
    x = g.normal(size=50)
    return _half_missing(g, pd.DataFrame({"x": x, "y": x + g.normal(size=50)}), "x")


def _fimd_3_2_3(missing: str) -> Callable[[np.random.Generator], pd.DataFrame]:
    def draw(g: np.random.Generator) -> pd.DataFrame:
        x = g.normal(4.875, 2.75, 55)
        return _half_missing(g, pd.DataFrame({"x": x, "y": 5.49 - 0.29 * x + g.normal(0, 0.86, 55)}), missing)

    return draw


def _product(rate: float) -> Callable[[np.random.Generator], pd.DataFrame]:
    """Return a draw function: y = x1 + x2 + x1·x2 + noise; x1 and y missing more often for large x2."""

    def draw(g: np.random.Generator) -> pd.DataFrame:
        x1, x2 = g.multivariate_normal([0, 0], [[1, 0.3], [0.3, 1]], 200).T
        table = pd.DataFrame({"x1": x1, "x2": x2, "y": x1 + x2 + x1 * x2 + g.normal(size=200)})
        for column in ("x1", "y"):
            table.loc[_missing_at_random(g, x2, rate), column] = np.nan
        return table

    return draw


def _wave(g: np.random.Generator) -> pd.DataFrame:
    """Draw a table with y = sin 2x + z/2 + noise; 30 % of x and y missing, more often for large z."""
    x, z = g.normal(size=(2, 200))
    table = pd.DataFrame({"x": x, "z": z, "y": np.sin(2 * x) + z / 2 + g.normal(0, 0.5, 200)})
    for column in ("x", "y"):
        table.loc[_missing_at_random(g, z, 0.3), column] = np.nan
    return table


def _slope(frame: pd.DataFrame) -> list[pd.Series[Any]]:
    return [frame["x"]]


def _with_product(frame: pd.DataFrame) -> list[pd.Series[Any]]:
    return [frame["x1"], frame["x2"], frame["x1"] * frame["x2"]]


def _with_wave(frame: pd.DataFrame) -> list[pd.Series[Any]]:
    return [np.sin(2 * frame["x"]), frame["z"]]


DESIGNS: dict[str, Design] = {
    "fimd_2.5.3_x": Design(_fimd_2_5_3, _slope, 0, 1.0, 5),
    "fimd_3.2.3_y": Design(_fimd_3_2_3("y"), _slope, 0, -0.29, 5),
    "fimd_3.2.3_x": Design(_fimd_3_2_3("x"), _slope, 0, -0.29, 5),
    "product_20": Design(_product(0.2), _with_product, 2, 1.0, 20),
    "product_30": Design(_product(0.3), _with_product, 2, 1.0, 20),
    "product_50": Design(_product(0.5), _with_product, 2, 1.0, 20),
    "wave_30": Design(_wave, _with_wave, 0, 1.0, 20),
}
"""Designs by name; a number at the end is the percentage of missing cells."""
