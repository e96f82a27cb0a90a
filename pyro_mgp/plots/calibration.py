"""Plots of calibration: coverage of intervals, and ranks of true values among their draws (PIT)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from pyro_mgp._support.messages import listing
from pyro_mgp.data.column_spec import Label
from pyro_mgp.evaluation.calibration import Calibration
from pyro_mgp.plots._style import BLUE, PALE_BLUE, REFERENCE, VERMILION, panels, text, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

# Largest number of columns with a panel, beside the panel of all cells.
_MOST_PANELS = 11
_BINS, _FEW_BINS, _FEW_CELLS = 10, 5, 60
_BAD = ("too narrow", "too wide", "off centre")


def plot_calibration(
    calibration: Calibration,
    columns: Sequence[Label] | None = None,
    *,
    overall: bool = True,
    figure: FigureBase | None = None,
) -> NDArray[Any]:
    """Plot the coverage of intervals against their nominal level, for all held-out cells and each column.

    A calibrated imputer follows the diagonal; below it, intervals are too narrow. The pale band contains 95 %
    of calibrated imputers at each level alone, given the number of held-out cells (in the first panel the
    effective number, since cells of one row are correlated). Discs mark the levels of `calibration`. Lines of
    miscalibrated columns are vermilion and dashed.

    `calibration` is a result of `calibrate`. The first panel shows all cells together if `overall` is true.
    Then each of `columns` has a panel; None for the first 11, miscalibrated ones before others.

    Raises:
        ValueError: If no cell of a column was held out, or there is nothing to plot.

    Example:
        >>> from matplotlib.figure import Figure
        >>> from pyro_mgp.evaluation.diagnostics import calibrate
        >>> x = pd.DataFrame(np.random.default_rng(0).normal(size=(50, 2)), columns=["a", "b"])
        >>> draws = lambda frame, m, seed: [frame.fillna(0.1 * j) for j in range(m)]
        >>> axes = plot_calibration(calibrate(draws, x, m=9, levels=[0.5]), figure=Figure())
        >>> [ax.get_title() for ax in axes]
        ['all 10 cells', 'a (5 cells)', 'b (5 cells)']
    """
    shown = _panels(calibration, columns, overall)
    axes = panels(figure, len(shown), across=3, width=3.0, height=3.0, sharex=True, sharey=True)
    nominal = np.linspace(0, 1, 101)
    for ax, (title, cells, n_effective, bad) in zip(axes, shown, strict=True):
        needed = np.sort(cells["needed"].to_numpy())
        low, high = calibration.band(n_effective)
        band = 100 * low, 100 * high
        ax.fill_between(100 * nominal, *band, color=PALE_BLUE, linewidth=0, label="if calibrated")
        ax.plot([0, 100], [0, 100], color=REFERENCE, linewidth=1, linestyle="--")
        colour, style = (VERMILION, "--") if bad else (BLUE, "-")
        held = np.searchsorted(needed, nominal, side="right") / len(needed)
        ax.plot(100 * nominal, 100 * held, color=colour, linestyle=style, linewidth=2, label="held-out cells")
        at = np.array(calibration.levels)
        ax.plot(100 * at, 100 * np.searchsorted(needed, at, side="right") / len(needed), "o", color=colour)
        ax.set_title(title, fontsize="medium")
        ticks = range(0, 101, 25)
        ax.set(xlim=(0, 100), ylim=(0, 100), aspect="equal", xticks=ticks, yticks=ticks)
        tidy(ax)
    axes[0].figure.supxlabel("level of the interval, or set of levels (%)", fontsize="medium")
    axes[0].figure.supylabel("held-out cells inside (%)", fontsize="medium")
    axes[0].legend(loc="lower right", frameon=False, fontsize="small")
    return axes


def plot_pit(
    calibration: Calibration,
    columns: Sequence[Label] | None = None,
    *,
    overall: bool = True,
    figure: FigureBase | None = None,
) -> NDArray[Any]:
    """Plot histograms of the rank of true values among their draws (PIT), for all numbers and each column.

    They are flat if calibrated, each bar within the pale band in 95 % of cases. High bars at both ends mean
    that draws are too certain, a hill in the middle that they are too uncertain, and a slope that they are
    too low or too high. For columns of levels it is the rank of the true level by probability, which is high
    on the right if draws are too certain.

    Panels and errors are those of `plot_calibration`; the first panel shows all numbers (all levels if there
    are none).
    """
    shown = _panels(calibration, columns, overall)
    axes = panels(figure, len(shown), across=3, width=3.0, height=2.2, sharex=True)
    for ax, (title, cells, n_effective, bad) in zip(axes, shown, strict=True):
        numbers = cells[cells["kind"] == "number"]
        if len(numbers) < len(cells) and len(numbers):
            n_effective *= len(numbers) / len(cells)
            title = f"all {len(numbers)} cells of numbers"
        _draw_histogram(ax, (numbers if len(numbers) else cells)["pit"].to_numpy(), n_effective, bad)
        ax.set_title(title, fontsize="medium")
        tidy(ax)
    axes[0].figure.supxlabel("rank of the true value among its draws (PIT)", fontsize="medium")
    axes[0].figure.supylabel("density (1 if calibrated)", fontsize="medium")
    return axes


def _draw_histogram(ax: Axes, pit: NDArray[np.float64], n_effective: float, bad: bool) -> None:
    bins = _BINS if len(pit) >= _FEW_CELLS else _FEW_BINS
    n = round(n_effective)
    low, high = stats.binom.ppf([0.025, 0.975], n, 1 / bins) * bins / n
    ax.axhspan(low, high, color=PALE_BLUE, linewidth=0)
    ax.axhline(1.0, color=REFERENCE, linewidth=1, linestyle="--")
    heights = np.histogram(pit, bins, (0.0, 1.0))[0] * bins / len(pit)
    colour, hatch = (VERMILION, "///") if bad else (BLUE, None)
    middle = (np.arange(bins) + 0.5) / bins
    ax.bar(middle, heights, 0.9 / bins, color="none", edgecolor=colour, linewidth=1.6, hatch=hatch)
    ax.set(xlim=(0, 1), ylim=(0, max(1.1 * heights.max(), 1.1 * high, 2.0)), xticks=(0, 0.25, 0.5, 0.75, 1))
    ax.set_xticklabels(["0", "¼", "½", "¾", "1"])


def _panels(
    calibration: Calibration, columns: Sequence[Label] | None, overall: bool
) -> list[tuple[str, pd.DataFrame, float, bool]]:
    """Return title, held-out cells, effective number of cells and miscalibration flag of each panel."""
    cells, found = calibration.cells, []
    if overall:
        is_bad = str(calibration.verdict) in _BAD
        found.append((f"all {len(cells)} cells", cells, calibration.effective_cells, is_bad))
    table = calibration.table
    is_bad_column = dict(zip(table["column"].tolist(), table["verdict"].isin(_BAD).tolist(), strict=True))
    worst_first = sorted(is_bad_column, key=lambda label: not is_bad_column[label])[:_MOST_PANELS]
    for label in worst_first if columns is None else columns:
        if label not in is_bad_column:
            raise ValueError(f"no cell of column {label!r} was held out, only of {listing(is_bad_column)}")
        own = cells[[each == label for each in cells["column"]]]
        found.append((f"{text(label, 18)} ({len(own)} cells)", own, float(len(own)), is_bad_column[label]))
    if not found:
        raise ValueError("nothing to plot: pass columns, or overall=True")
    return found
