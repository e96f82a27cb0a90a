"""Conversion of cells of any kind to positions on an axis: numbers, times, durations or levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from numpy.typing import NDArray

from pyro_mgp._support.checks import result_of
from pyro_mgp.data.cells import cells_of, holes_of, natural_kind
from pyro_mgp.data.column_spec import Kind, Label
from pyro_mgp.plots._style import name_ticks, text
from pyro_mgp.results.imputations import Imputations

Numbers = NDArray[np.float64]

# Units of durations, in seconds; the largest unit that some duration exceeds threefold is used.
_UNITS = (("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0))
# Largest number of distinct whole numbers that are shown one by one.
_MOST_VALUES = 20


@dataclass(frozen=True)
class PlottedColumn:
    """Cells and draws of a column as positions on an axis."""

    name: str  # of the column, with the unit if it is not the column's own
    holes: NDArray[np.bool_]  # missing cells, Bool `[N]`
    observed: Numbers  # observed cells, in row order
    imputed: Numbers  # draws of the missing cells, `[m, n_missing]`; NaN where a draw is itself missing
    levels: Sequence[str] | None  # names of the positions 0, 1, ... of levels; None for numbers and times
    dates: bool  # whether positions are dates of matplotlib

    @property
    def available(self) -> NDArray[np.bool_]:
        """Mask of the cells that are observed, or imputed at least once, Bool `[N]`."""
        available = ~self.holes
        available[self.holes] = np.logical_or.reduce(np.isfinite(self.imputed))
        return available

    @property
    def values(self) -> Numbers:
        """Distinct observed and imputed values, ascending."""
        both = np.concatenate([self.observed, self.imputed.ravel()])
        return np.unique(both[np.isfinite(both)])

    @property
    def is_discrete(self) -> bool:
        """True if values are plotted individually: levels, or at most 20 distinct whole numbers."""
        if self.levels is not None:
            return True
        values = self.values
        return not self.dates and len(values) <= _MOST_VALUES and bool((values == np.rint(values)).all())

    def label_axis(self, ax: Axes, side: Literal["x", "y"]) -> None:
        """Label an axis with the column's name, and its ticks with levels or dates."""
        ax.set(**{f"{side}label": self.name})
        if self.levels is not None:
            name_ticks(ax, side, np.arange(len(self.levels)), self.levels)
        elif self.dates:
            axis = ax.xaxis if side == "x" else ax.yaxis
            # With maxticks=6, no number of months fits some ranges.
            locator = AutoDateLocator(minticks=3, maxticks=8)
            axis.set_major_locator(locator)
            axis.set_major_formatter(ConciseDateFormatter(locator))


def plotted(draws: Imputations, label: Label) -> PlottedColumn:
    """Return the cells and draws of a column as positions on an axis; a ValueError if there is none."""
    result_of("what impute returns", "draws", draws, Imputations)
    if label not in draws.frame.columns:
        raise ValueError(f"no column {label!r}: the table has {draws.frame.columns.tolist()}")
    column, name, names = draws.frame[label], text(label, 40), None
    holes = holes_of(column)
    cells = cells_of(column)[~holes]
    kind = cells.dtype.kind
    natural = Kind.CONTINUOUS if kind in "if" else natural_kind(column)
    none = np.full((draws.m, int(holes.sum())), np.nan)
    drawn = draws.values.get(label, none.astype(cells.dtype) if kind in "mM" else none)
    if kind == "M":
        name += " (UTC)" if isinstance(column.dtype, pd.DatetimeTZDtype) else ""
        observed, imputed = date2num(cells), date2num(drawn)
    elif kind == "m":
        seconds = [times / np.timedelta64(1, "s") for times in (cells, drawn)]
        largest = np.nanmax(np.abs(np.concatenate([each.ravel() for each in seconds])), initial=0.0)
        unit, size = next((pair for pair in _UNITS if largest > 3 * pair[1]), ("seconds", 1.0))
        name += f" ({unit})"
        observed, imputed = (each / size for each in seconds)
    elif natural in (Kind.CONTINUOUS, Kind.INTEGER) or (natural is None and drawn.dtype.kind in "if"):
        observed, imputed = cells.astype(np.float64), drawn.astype(np.float64)
    else:
        # Categories keep their own order, other levels are sorted.
        categories = column.dtype.categories if isinstance(column.dtype, pd.CategoricalDtype) else None
        both = pd.Categorical(np.concatenate([cells, drawn.ravel()], dtype=object), categories)
        both = both.remove_unused_categories()
        names = [text(level, 16) for level in both.categories]
        codes = np.where(both.codes < 0, np.nan, both.codes)
        observed, imputed = codes[: len(cells)], codes[len(cells) :].reshape(drawn.shape)
    return PlottedColumn(name, holes, observed, imputed, names, kind == "M")
