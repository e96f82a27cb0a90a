"""Summary of results by cell, a table with a pattern of missing cells, and over all cells."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from benchmarks.paper.ranking import Study
from benchmarks.tables.methods.registry import METHODS

CELL = ("dataset", "pattern")
"""Columns that identify a cell."""

REFERENCE = "extra_trees"
"""Method to whose time the others' are related."""

# Coverage of 95 % intervals that is called close, and coverage that is acceptable.
_CLOSE, _ACCEPTABLE = (0.93, 0.97), (0.90, 0.98)

_TITLES = {name: method.title for name, method in METHODS.items()}
BY_RMSE = Study(_TITLES, "rmse", "RMSE", CELL, "tables × patterns", "seed")
"""Ranks by RMSE."""
BY_ENERGY = Study(_TITLES, "energy", "energy distance", CELL, "tables × patterns", "seed")
"""Ranks by energy distance."""


@dataclass(frozen=True)
class Wins:
    """How often a method has the lowest score, and by how much it is exceeded where it has not."""

    cells: int
    """Number of cells in which the method has a score."""
    lowest: float
    """Share of these cells in which its score is the lowest."""
    mean_excess: float
    """Mean over cells of its score relative to the lowest, minus one."""
    largest_excess: float
    """Largest of these excesses."""
    where: str
    """Cell with the largest excess."""


@dataclass(frozen=True)
class Coverage:
    """Coverage of 95 % intervals by cell."""

    close: float
    """Share of the cells with a coverage of .93 to .97."""
    lowest: float
    """Lowest coverage of a cell."""
    highest: float
    """Highest coverage of a cell."""

    @property
    def is_acceptable(self) -> bool:
        """True if the coverage of all cells is .90 to .98."""
        low, high = _ACCEPTABLE
        return low <= self.lowest and self.highest <= high


def by_cell(table: pd.DataFrame, score: str) -> pd.DataFrame:
    """Return the means of a score over seeds, `[cells, methods]`, NaN where a method has no score.

    The mean is over the seeds for which every method that has a score in the cell has it, so that methods are
    compared on the same missing cells.

    Args:
        table: Results as `Layout.read` returns them.
        score: Column of the results.
    """
    scored = table[table[score].notna()]
    wide = scored.pivot(index=[*CELL, "seed"], columns="method", values=score)
    in_cell = wide.notna().groupby(list(CELL)).transform("any")
    comparable = (wide.notna() | ~in_cell).all(axis=1)
    ordered = [method for method in METHODS if method in wide]
    return wide.loc[comparable, ordered].groupby(list(CELL), sort=False).mean()


def excess(scores: pd.DataFrame) -> pd.DataFrame:
    """Return scores `[cells, methods]` relative to the lowest of each cell, minus one."""
    return scores.div(scores.min(axis=1), axis=0) - 1


def wins(scores: pd.DataFrame) -> dict[str, Wins]:
    """Compare the methods' scores, `[cells, methods]`, of which small ones are good, by cell."""
    compared = {}
    for method, over in excess(scores).items():
        over = over.dropna()
        if len(over):
            where = ", ".join(map(str, over.index[int(over.argmax())]))
            share, mean = float((over == 0).mean()), float(over.mean())
            compared[str(method)] = Wins(len(over), share, mean, float(over.max()), where)
    return compared


def coverage(table: pd.DataFrame) -> dict[str, Coverage]:
    """Return the coverage of each method that has 95 % intervals."""
    low, high = _CLOSE
    covered = {}
    for method, shares in by_cell(table, "coverage_95").items():
        shares = shares.dropna()
        close = float(shares.between(low, high).mean())
        covered[str(method)] = Coverage(close, float(shares.min()), float(shares.max()))
    return covered


def time_ratios(table: pd.DataFrame) -> pd.DataFrame:
    """Return the times relative to that of chained extra trees, `[cells, methods]`; empty without these."""
    seconds = by_cell(table, "seconds")
    if REFERENCE not in seconds:
        return seconds.iloc[:0]
    return seconds.div(seconds[REFERENCE], axis=0).dropna(how="all")


def relative_to_rivals(scores: pd.DataFrame, method: str = "mgp") -> pd.Series[float]:
    """Return a score of a method relative to the lowest of the others, minus one: negative where it wins."""
    others = scores.drop(columns=method).min(axis=1)
    return (scores[method] / others - 1).replace([np.inf], np.nan).dropna()
