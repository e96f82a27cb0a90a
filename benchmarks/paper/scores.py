"""Scores of imputed cells: RMSE, CRPS, log density, and coverage and width of intervals.

The unit of a column is the standard deviation of its mean-filled training rows, as in the paper, so that mean
imputation scores a little above 1 in RMSE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.paper.imputed import Cells, Imputed, cells_of
from pyro_mgp.analysis.scores import central_interval, fair_crps

LEVELS = (0.50, 0.90, 0.95)
"""Levels of the central intervals whose coverage and width are reported."""


@dataclass(frozen=True)
class Scores:
    """Scores of one method on one test table; scores of a distribution are NaN for a method without one."""

    rmse: float
    """Mean over columns of the root mean squared error, as computed by the program of the paper's authors."""
    rmse_pooled: float
    """Root of the mean over columns of the mean squared error, the formula in the paper."""
    crps: float
    """Mean over columns of the fair continuous ranked probability score."""
    nlpd: float
    """Mean over columns of the negative log predictive density that the method states."""
    coverage_50: float
    """Share of all cells inside the central 50 % interval of their draws."""
    coverage_90: float
    """Share of all cells inside the central 90 % interval of their draws."""
    coverage_95: float
    """Share of all cells inside the central 95 % interval of their draws."""
    width_50: float
    """Mean over columns of the width of the central 50 % interval."""
    width_90: float
    """Mean over columns of the width of the central 90 % interval."""
    width_95: float
    """Mean over columns of the width of the central 95 % interval."""


def score(imputed: Imputed, train: pd.DataFrame, test: pd.DataFrame, truth: pd.DataFrame) -> Scores:
    """Compare imputations with the true cells.

    Args:
        imputed: Imputations of a method.
        train: Incomplete training rows, which set the units.
        test: Incomplete test rows.
        truth: Complete test rows.

    Raises:
        ValueError: If a column lacks imputations, or some are not finite.
    """
    true_cells = cells_of(truth, test)
    check(imputed.point, true_cells)
    units = unit(train)
    numbers = {
        **root_mean_squared_errors(imputed.point, true_cells, units),
        "crps": mean_crps(imputed.draws, true_cells, units),
        "nlpd": _mean_nlpd(imputed, true_cells, units),
        **calibration(imputed.draws, true_cells, units),
    }
    return Scores(**{name: float(number) for name, number in numbers.items()})


def unit(train: pd.DataFrame) -> dict[str, float]:
    """Return the standard deviation of each mean-filled training column, or 1 for a constant column."""
    spread = train.fillna(train.mean()).std(ddof=0)
    return {str(column): float(s) if s > 0 else 1.0 for column, s in spread.items()}


def root_mean_squared_errors(point: Cells, truth: Cells, units: Mapping[str, float]) -> dict[str, float]:
    """Return `rmse` and `rmse_pooled`, see `Scores`, of point predictions of the true cells."""
    squared = [np.mean(((point[column] - cells) / units[column]) ** 2) for column, cells in truth.items()]
    return {"rmse": float(np.mean(np.sqrt(squared))), "rmse_pooled": float(np.sqrt(np.mean(squared)))}


def mean_crps(draws: Cells | None, truth: Cells, units: Mapping[str, float]) -> float:
    """Return the mean over columns of the fair CRPS, NaN with fewer than two draws."""
    if draws is None or len(next(iter(draws.values()))) < 2:
        return np.nan
    each = [fair_crps(draws[column], cells).mean() / units[column] for column, cells in truth.items()]
    return float(np.mean(each))


def _mean_nlpd(imputed: Imputed, truth: Cells, units: Mapping[str, float]) -> float:
    if imputed.log_density is None:
        return np.nan
    density = imputed.log_density(truth)
    # The density per standardised unit is that per own unit times the unit.
    return float(-np.mean([density[column].mean() + np.log(units[column]) for column in truth]))


def calibration(
    draws: Cells | None, truth: Cells, units: Mapping[str, float], levels: Sequence[float] = LEVELS
) -> dict[str, float]:
    """Return coverage of all cells and mean width of central intervals, NaN where draws are too few."""
    numbers = {}
    for level in levels:
        inside, widths = list[NDArray[np.bool_]](), list[float]()
        for column, cells in truth.items():
            bounds = None if draws is None else central_interval(draws[column], level)
            if bounds is not None:
                low, high = bounds
                inside.append((low <= cells) & (cells <= high))
                widths.append(float((high - low).mean()) / units[column])
        numbers[f"coverage_{level * 100:.0f}"] = np.concatenate(inside).mean() if widths else np.nan
        numbers[f"width_{level * 100:.0f}"] = np.mean(widths) if widths else np.nan
    return numbers


def check(point: Cells, truth: Cells) -> None:
    """Raise a ValueError if a column lacks point predictions of true cells, or some are not finite."""
    for column, cells in truth.items():
        if column not in point or point[column].shape != cells.shape:
            raise ValueError(f"expected {len(cells)} imputed cells in column {column!r}")
        if not np.isfinite(point[column]).all():
            raise ValueError(f"imputed cells of column {column!r} are not finite")
