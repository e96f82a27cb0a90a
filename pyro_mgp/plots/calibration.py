"""Pictures of calibration: does what was hidden lie where the draws say?"""

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

# Columns with a panel of their own, beside the one for all.
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
    """Share of hidden cells that intervals hold, against what the intervals promise; all cells, then columns.

    The line of a calibrated imputer is the diagonal; below it, intervals are too narrow. In the pale band lie
    19 of 20 calibrated imputers, at each level alone, with so many hidden cells (in the first panel with as
    many independent ones as they are worth, those of one row hanging together). Discs mark the nominal levels
    of `calibration`. Lines of columns whose verdict is bad are vermilion and dashed.

    Args:
        calibration: What `calibrate` gave.
        columns: Which columns have a panel; None for the 11 that come first, bad ones before others.
        overall: Whether the first panel is that of all.
        figure: Where to draw; None for a new figure.

    Returns:
        The Axes of the panels: all cells, then one per column.

    Raises:
        ValueError: No cell of a column was hidden, or there is nothing to draw.
        ImportError: matplotlib is not installed.

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
    for ax, (title, cells, worth, bad) in zip(axes, shown, strict=True):
        needed = np.sort(cells["needed"].to_numpy())
        low, high = calibration.band(worth)
        ax.fill_between(
            100 * nominal, 100 * low, 100 * high, color=PALE_BLUE, linewidth=0, label="if calibrated"
        )
        ax.plot([0, 100], [0, 100], color=REFERENCE, linewidth=1, linestyle="--")
        colour, style = (VERMILION, "--") if bad else (BLUE, "-")
        held = np.searchsorted(needed, nominal, side="right") / len(needed)
        ax.plot(100 * nominal, 100 * held, color=colour, linestyle=style, linewidth=2, label="hidden cells")
        at = np.array(calibration.levels)
        ax.plot(100 * at, 100 * np.searchsorted(needed, at, side="right") / len(needed), "o", color=colour)
        ax.set_title(title, fontsize="medium")
        ax.set(
            xlim=(0, 100), ylim=(0, 100), aspect="equal", xticks=range(0, 101, 25), yticks=range(0, 101, 25)
        )
        tidy(ax)
    axes[0].figure.supxlabel("level of the interval, or set of levels (%)", fontsize="medium")
    axes[0].figure.supylabel("hidden cells it holds (%)", fontsize="medium")
    axes[0].legend(loc="lower right", frameon=False, fontsize="small")
    return axes


def plot_pit(
    calibration: Calibration,
    columns: Sequence[Label] | None = None,
    *,
    overall: bool = True,
    figure: FigureBase | None = None,
) -> NDArray[Any]:
    """Histograms of where the truth stands among its draws; all numbers, then column by column.

    They are flat if calibrated, and within the pale band in 19 of 20 cases, for each bar alone. Two high ends
    mean draws that are too certain, a hill in the middle too uncertain ones, a slope draws that lie too low
    or too high. Of columns of levels it is the rank of the true level by probability: high to the right
    where draws are too certain.

    Args:
        calibration: What `calibrate` gave.
        columns: Which columns have a panel; None for the 11 that come first, bad ones before others.
        overall: Whether the first panel is that of all.
        figure: Where to draw; None for a new figure.

    Returns:
        The Axes of the panels: all numbers (all levels if there are none), then one per column.

    Raises:
        ValueError: No cell of a column was hidden, or there is nothing to draw.
        ImportError: matplotlib is not installed.
    """
    shown = _panels(calibration, columns, overall)
    axes = panels(figure, len(shown), across=3, width=3.0, height=2.2, sharex=True)
    for ax, (title, cells, worth, bad) in zip(axes, shown, strict=True):
        numbers = cells[cells["kind"] == "number"]
        if len(numbers) < len(cells) and len(numbers):
            worth, title = worth * len(numbers) / len(cells), f"all {len(numbers)} cells of numbers"
        _draw_histogram(ax, (numbers if len(numbers) else cells)["pit"].to_numpy(), worth, bad)
        ax.set_title(title, fontsize="medium")
        tidy(ax)
    axes[0].figure.supxlabel("place of the truth among its draws (PIT)", fontsize="medium")
    axes[0].figure.supylabel("density (1 if calibrated)", fontsize="medium")
    return axes


def _draw_histogram(ax: Axes, pit: NDArray[np.float64], worth: float, bad: bool) -> None:
    bins = _BINS if len(pit) >= _FEW_CELLS else _FEW_BINS
    low, high = (stats.binom.ppf(q, round(worth), 1 / bins) * bins / round(worth) for q in (0.025, 0.975))
    ax.axhspan(low, high, color=PALE_BLUE, linewidth=0)
    ax.axhline(1.0, color=REFERENCE, linewidth=1, linestyle="--")
    heights = np.histogram(pit, bins, (0.0, 1.0))[0] * bins / len(pit)
    colour = VERMILION if bad else BLUE
    ax.bar(
        (np.arange(bins) + 0.5) / bins,
        heights,
        0.9 / bins,
        color="none",
        edgecolor=colour,
        linewidth=1.6,
        hatch="///" if bad else None,
    )
    ax.set(xlim=(0, 1), ylim=(0, max(1.1 * heights.max(), 1.1 * high, 2.0)), xticks=(0, 0.25, 0.5, 0.75, 1))
    ax.set_xticklabels(["0", "¼", "½", "¾", "1"])


def _chosen(calibration: Calibration, columns: Sequence[Label] | None) -> list[Label]:
    labels: list[Label] = calibration.table["column"].tolist()
    if columns is None:
        verdicts = dict(zip(labels, calibration.table["verdict"], strict=True))
        return sorted(labels, key=lambda label: verdicts[label] not in _BAD)[:_MOST_PANELS]
    unknown = [label for label in columns if label not in labels]
    if unknown:
        raise ValueError(f"no cell of column {unknown[0]!r} was hidden; of {listing(labels)} some were")
    return list(columns)


def _panels(
    calibration: Calibration, columns: Sequence[Label] | None, overall: bool
) -> list[tuple[str, pd.DataFrame, float, bool]]:
    """Title, cells, worth in independent cells, and whether the verdict is bad."""
    cells, found = calibration.cells, []
    if overall:
        is_bad = str(calibration.verdict) in _BAD
        found.append((f"all {len(cells)} cells", cells, calibration.effective_cells, is_bad))
    verdicts = dict(zip(calibration.table["column"], calibration.table["verdict"], strict=True))
    for label in _chosen(calibration, columns):
        own = cells[[each == label for each in cells["column"]]]
        found.append((f"{text(label, 18)} ({len(own)} cells)", own, float(len(own)), verdicts[label] in _BAD))
    if not found:
        raise ValueError("nothing to draw: name columns, or ask for all of them together")
    return found
