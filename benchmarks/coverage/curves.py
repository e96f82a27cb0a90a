"""Small tables with a straight line, a product or a wave, whose slope is known.

The first designs are those of van Buuren, *Flexible Imputation of Missing Data* (2nd ed., 2018), sections
2.5.3 and 3.2.3. The others are nonlinear: a product of two incomplete columns, and a sine wave.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.coverage.design import Design, Table, missing_at_random, regression


def _half_missing(g: np.random.Generator, complete: pd.DataFrame, column: str) -> Table:
    """Remove half of a column completely at random."""
    frame = complete.copy()
    frame.loc[g.permutation(len(frame))[: len(frame) // 2], column] = np.nan
    return Table(frame, complete)


def _missing_by(
    g: np.random.Generator, complete: pd.DataFrame, score: str, rate: float, *columns: str
) -> Table:
    """Remove cells of some columns at random given the column `score`."""
    frame = complete.copy()
    for column in columns:
        frame.loc[missing_at_random(g, complete[score].to_numpy(), rate), column] = np.nan
    return Table(frame, complete)


def _fimd_2_5_3(g: np.random.Generator) -> Table:
    x = g.normal(size=50)
    return _half_missing(g, pd.DataFrame({"x": x, "y": x + g.normal(size=50)}), "x")


def _fimd_3_2_3(missing: str) -> Callable[[np.random.Generator], Table]:
    def draw(g: np.random.Generator) -> Table:
        x = g.normal(4.875, 2.75, 55)
        return _half_missing(g, pd.DataFrame({"x": x, "y": 5.49 - 0.29 * x + g.normal(0, 0.86, 55)}), missing)

    return draw


def _product(rate: float) -> Callable[[np.random.Generator], Table]:
    """Return a draw function: y = x1 + x2 + x1·x2 + noise; x1 and y missing more often for large x2."""

    def draw(g: np.random.Generator) -> Table:
        x1, x2 = g.multivariate_normal([0, 0], [[1, 0.3], [0.3, 1]], 200).T
        table = pd.DataFrame({"x1": x1, "x2": x2, "y": x1 + x2 + x1 * x2 + g.normal(size=200)})
        return _missing_by(g, table, "x2", rate, "x1", "y")

    return draw


def _wave(g: np.random.Generator) -> Table:
    """Draw a table with y = sin 2x + z/2 + noise; 30 % of x and y missing, more often for large z."""
    x, z = g.normal(size=(2, 200))
    table = pd.DataFrame({"x": x, "z": z, "y": np.sin(2 * x) + z / 2 + g.normal(0, 0.5, 200)})
    return _missing_by(g, table, "z", 0.3, "x", "y")


def _line(frame: pd.DataFrame) -> dict[str, pd.Series[Any]]:
    return {"x": frame["x"]}


def _with_product(frame: pd.DataFrame) -> dict[str, pd.Series[Any]]:
    return {"x1": frame["x1"], "x2": frame["x2"], "x1:x2": frame["x1"] * frame["x2"]}


def _with_wave(frame: pd.DataFrame) -> dict[str, pd.Series[Any]]:
    return {"sin 2x": np.sin(2 * frame["x"]), "z": frame["z"]}


_SLOPE, _PRODUCT, _WAVE = (
    regression(_line, "x"),
    regression(_with_product, "x1:x2"),
    regression(_with_wave, "sin 2x"),
)

DESIGNS: dict[str, Design] = {
    "fimd_2.5.3_x": Design(_fimd_2_5_3, _SLOPE, 5, {"x": 1.0}),
    "fimd_3.2.3_y": Design(_fimd_3_2_3("y"), _SLOPE, 5, {"x": -0.29}),
    "fimd_3.2.3_x": Design(_fimd_3_2_3("x"), _SLOPE, 5, {"x": -0.29}),
    "product_20": Design(_product(0.2), _PRODUCT, 20, {"x1:x2": 1.0}),
    "product_30": Design(_product(0.3), _PRODUCT, 20, {"x1:x2": 1.0}),
    "product_50": Design(_product(0.5), _PRODUCT, 20, {"x1:x2": 1.0}),
    "wave_30": Design(_wave, _WAVE, 20, {"sin 2x": 1.0}),
}
"""Designs by name; a number at the end is the percentage of missing cells."""
