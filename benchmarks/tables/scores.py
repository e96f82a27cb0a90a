"""Scores of imputed cells and of completed rows, in standard deviations of the complete columns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from benchmarks.paper.imputed import Cells, Imputed, cells_of
from benchmarks.paper.scores import calibration, check, mean_crps, root_mean_squared_errors, unit
from benchmarks.tables.methods import DRAWS
from pyro_mgp.analysis.scores import central_interval
from pyro_mgp.data.cells import complete

LEVELS = (0.90, 0.95)
"""Levels of the central intervals whose coverage and width are reported."""

# Numbers of rows and of completed tables that enter the energy distance.
_MOST_ROWS, _MOST_TABLES = 500, 5


@dataclass(frozen=True)
class Scores:
    """Scores of one method on one table; scores of draws are NaN for a method without, or with too few."""

    rmse: float
    """Mean over columns of the root mean squared error."""
    rmse_pooled: float
    """Root of the mean over columns of the mean squared error."""
    mae: float
    """Mean over columns of the mean absolute error of the median of the draws, or of the point prediction."""
    crps: float
    """Mean over columns of the fair continuous ranked probability score."""
    coverage_90: float
    """Share of all cells inside the central 90 % interval of their draws."""
    coverage_95: float
    """Share of all cells inside the central 95 % interval of their draws, of which it needs 39."""
    coverage_95_of_draws: float
    """The same share of 20 draws, inside the interval of all others: the coverage if draws are exact."""
    width_90: float
    """Mean over columns of the width of the central 90 % interval."""
    width_95: float
    """Mean over columns of the width of the central 95 % interval."""
    energy: float
    """Energy distance of completed and complete rows, averaged over up to five completed tables."""


def score(imputed: Imputed, table: pd.DataFrame, truth: pd.DataFrame) -> Scores:
    """Compare imputations with the true cells.

    Args:
        imputed: Imputations of a method.
        table: Incomplete table.
        truth: Complete table.

    Raises:
        ValueError: If a column lacks imputations, or some are not finite.
    """
    cells, units = cells_of(truth, table), unit(truth)
    check(imputed.point, cells)
    draws = _all_draws(imputed)
    return Scores(
        **root_mean_squared_errors(imputed.point, cells, units),
        mae=_mean_absolute_error(imputed, cells, units),
        crps=mean_crps(imputed.draws, cells, units),
        **calibration(draws, cells, units, LEVELS),
        coverage_95_of_draws=_coverage_of_draws(draws, 0.95),
        energy=_mean_energy_distance(imputed, table, truth),
    )


def energy_distance(X: NDArray[np.float64], Y: NDArray[np.float64]) -> float:
    """Return 2 E|x - y| - E|x - x'| - E|y - y'| over all pairs of rows of two tables, `[n, D]` and `[m, D]`.

    It is that of Székely and Rizzo (*Journal of Statistical Planning and Inference* 143:1249-1272, 2013), 0
    for equal tables only.
    """
    return float(2 * cdist(X, Y).mean() - cdist(X, X).mean() - cdist(Y, Y).mean())


def _mean_absolute_error(imputed: Imputed, truth: Cells, units: dict[str, float]) -> float:
    draws = imputed.draws
    medians = imputed.point if draws is None else {name: np.median(x, axis=0) for name, x in draws.items()}
    errors = [np.abs(medians[column] - cells).mean() / units[column] for column, cells in truth.items()]
    return float(np.mean(errors))


def _all_draws(imputed: Imputed) -> Cells | None:
    if imputed.draws is None or imputed.further_draws is None:
        return imputed.draws
    further = imputed.further_draws()
    return {column: np.concatenate([draws, further[column]]) for column, draws in imputed.draws.items()}


def _coverage_of_draws(draws: Cells | None, level: float) -> float:
    """Return the share of the first draws in the central intervals of all others, NaN if these are too few.

    Intervals include their bounds: the share exceeds the level in columns of few different values.
    """
    inside = list[NDArray[np.bool_]]()
    for cells in (draws or {}).values():
        if (bounds := central_interval(cells[DRAWS:], level)) is None:
            return math.nan
        inside.append((bounds[0] <= cells[:DRAWS]) & (cells[:DRAWS] <= bounds[1]))
    return float(np.concatenate(inside, axis=1).mean()) if inside else math.nan


def _mean_energy_distance(imputed: Imputed, table: pd.DataFrame, truth: pd.DataFrame) -> float:
    """Return the energy distance of completed rows and the same rows of the complete table."""
    rows = np.random.default_rng(0).permutation(len(truth))[:_MOST_ROWS]
    units, centre = np.array(list(unit(truth).values())), truth.mean().to_numpy()
    complete = (truth.to_numpy(np.float64)[rows] - centre) / units
    completed = [(values[rows] - centre) / units for values in _completed(imputed, table)]
    return float(np.mean([energy_distance(values, complete) for values in completed]))


def _completed(imputed: Imputed, table: pd.DataFrame) -> Iterator[NDArray[np.float64]]:
    """Yield the values of completed tables: some with draws, or one with the point predictions."""
    draws = imputed.draws or {column: cells[None] for column, cells in imputed.point.items()}
    for j in range(min(_MOST_TABLES, len(next(iter(draws.values()))))):
        yield complete(table, {column: cells[j] for column, cells in draws.items()}).to_numpy(np.float64)
