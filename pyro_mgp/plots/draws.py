"""Plots of imputations beside the observed cells.

Observed cells are blue, with thick lines and discs; imputed cells are vermilion, with thin lines and hollow
markers. Points in time with a time zone are shown in UTC.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import FigureBase
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter1d

from pyro_mgp._support.checks import at_least, result_of
from pyro_mgp._support.messages import listing
from pyro_mgp.data.column_spec import Label
from pyro_mgp.plots import _style as style
from pyro_mgp.plots._columns import Numbers, PlottedColumn, plotted
from pyro_mgp.plots._style import VERMILION, blue, ink, pale_blue, paper, reference, shade
from pyro_mgp.results.imputations import Imputations

# Largest numbers of panels of densities, of imputations in a row of strips, and of points in a strip.
_MOST_PANELS, _MOST_STRIPS, _MOST_POINTS = 12, 20, 300
# Largest number of observed points in a scatter plot.
_MOST_OBSERVED = 5_000
# Largest number of levels that have a colour of their own.
_MOST_LEVELS = 6
# Least number of missing cells for which each imputation has a curve.
_FEWEST = 10
# Points of a curve.
_GRID = 1024
# Tails of a density that are cut off: share of the cells at either end, distance in interquartile ranges.
_BEYOND, _FENCE = 0.005, 10.0


def plot_densities(
    draws: Imputations, columns: Sequence[Label] | None = None, *, figure: FigureBase | None = None
) -> NDArray[Any]:
    """Plot the distributions of observed and imputed cells, one panel per column.

    Numbers and times have densities: a thick line for the observed cells, a thin line for each imputation.
    With fewer than 10 missing cells, all imputations share one dashed line, and ticks mark the draws. Labels,
    booleans and few distinct whole numbers have shares: bars for the observed cells, a circle for each
    imputation. Long tails are cut off, at most half a per cent of the cells at either end.

    The two distributions need not agree, since missing cells may differ from observed ones. The curve of each
    imputation should be plausible. Without `columns`, the first 12 with imputed cells are shown.

    Example:
        >>> import pandas as pd
        >>> from matplotlib.figure import Figure
        >>> frame = pd.DataFrame({"sex": ["male", None, "female", "male"]})
        >>> drawn = Imputations(frame, {"sex": [["male"], ["female"]]}, m=2)
        >>> (ax,) = plot_densities(drawn, figure=Figure())
        >>> [round(float(bar.get_height()), 2) for bar in ax.patches]
        [0.33, 0.67]
    """
    result_of("what impute returns", "draws", draws, Imputations)
    labels = [*draws.values][:_MOST_PANELS] if columns is None else columns
    found = [_imputed(draws, label) for label in labels]
    if not found:
        raise ValueError("no column has imputed cells")
    axes = style.panels(figure, len(found), across=3, width=3.4, height=2.6)
    for ax, column in zip(axes, found, strict=True):
        (_draw_shares if column.is_discrete else _draw_densities)(ax, column)
        column.label_axis(ax, "x")
    if columns is None and len(draws.values) > len(labels):
        title = f"the first {len(labels)} of {len(draws.values)} incomplete columns"
        axes[0].figure.suptitle(title, fontsize="small", color=reference())
    together = any(not each.is_discrete and each.imputed.shape[1] < _FEWEST for each in found)
    _legend_of_densities(axes, draws.m, together)
    return axes


def plot_strips(draws: Imputations, column: Label, ax: Axes | None = None) -> Axes:
    """Plot the observed cells and each imputation side by side, as box plots over points.

    Boxes contain the middle half, their line is the median, and whiskers extend to 1.5 times the box. At most
    300 cells have points, evenly spaced by rank. For labels and booleans, the area of a circle is the share
    of its level. At most the first 20 imputations are shown.
    """
    found = _imputed(draws, column)
    ax = style.axes_or_new(ax, 7.0, 3.8)
    strips = [found.observed, *found.imputed[:_MOST_STRIPS]]
    jitter = np.random.default_rng(0)
    for k, strip in enumerate(strips):
        cells = np.sort(strip[np.isfinite(strip)])
        if len(cells) and found.levels is not None:
            _draw_balloons(ax, k, cells)
        elif len(cells):
            chosen = cells[style.spread_out(len(cells), _MOST_POINTS)]
            _draw_points(ax, k + jitter.uniform(-0.28, 0.28, len(chosen)), chosen, k > 0, small=True)
            _draw_box(ax, k, cells)
    found.label_axis(ax, "y")
    if found.levels is not None:
        ax.set_ylim(-0.6, len(found.levels) - 0.4)
    ax.set_xlim(-0.7, len(strips) - 0.3)
    style.name_ticks(ax, "x", np.arange(len(strips)), range(len(strips)))
    ax.axvline(0.5, color=shade(), linewidth=1)
    first = f", the first {_MOST_STRIPS} of {draws.m}" if draws.m > _MOST_STRIPS else ""
    ax.set_xlabel(f"imputation{first} (0: observed)")
    return style.tidy(ax)


def plot_scatter(draws: Imputations, x: Label, y: Label, ax: Axes | None = None, *, n: int = 200) -> Axes:
    """Plot two columns against each other, with intervals for imputed cells.

    A row with a missing cell in either column is a diamond at the mean of its draws, with bars from their 5 %
    to their 95 % quantile in each missing direction. Labels and booleans are shown by their most frequent
    draw, without a bar, and points are jittered. At most `n` imputed and 5000 observed points are shown,
    evenly spaced in row order.

    Raises:
        ValueError: If a column is unknown, both are the same, or `n` is below 1.
    """
    if x == y:
        raise ValueError(f"x and y must be different columns, got {x!r} twice")
    at_least("n, the number of imputed points to show,", n, 1)
    across, upwards = plotted(draws, x), plotted(draws, y)
    ax = style.axes_or_new(ax, 5.4, 4.4)
    imputed = across.holes | upwards.holes
    observed, drawn = np.flatnonzero(~imputed), np.flatnonzero(imputed & across.available & upwards.available)
    observed = observed[style.spread_out(len(observed), _MOST_OBSERVED)]
    shown = drawn[style.spread_out(len(drawn), n)]
    jitter = np.random.default_rng(0)
    (_, at_x, _), (_, at_y, _) = _spots(across, observed, jitter), _spots(upwards, observed, jitter)
    _draw_points(ax, at_x, at_y, imputed=False, small=len(observed) > 500, label="observed")
    if len(shown):
        (left, at_x, right), (low, at_y, high) = (_spots(each, shown, jitter) for each in (across, upwards))
        ax.hlines(at_y, left, right, color=VERMILION, linewidth=0.8, zorder=2)
        ax.vlines(at_x, low, high, color=VERMILION, linewidth=0.8, zorder=2)
        some = f" ({len(shown)} of {len(drawn)})" if len(shown) < len(drawn) else ""
        _draw_points(ax, at_x, at_y, imputed=True, small=False, label=f"imputed: mean, 90 %{some}")
    across.label_axis(ax, "x")
    upwards.label_axis(ax, "y")
    style.legend_above(ax, columnspacing=1.2, handlelength=1.5)
    return style.tidy(ax)


def plot_cells(draws: Imputations, column: Label, ax: Axes | None = None, *, n: int = 30) -> Axes:
    """Plot missing cells one by one: medians of their draws, with 50 % (thick) and 90 % intervals (thin).

    Cells are sorted by their medians; the band in the background contains 90 % of the observed cells. For
    labels and booleans, bars show the share of draws of each level, cells in row order. At most `n` cells are
    shown, evenly spaced among the sorted ones.
    """
    at_least("n, the number of cells to show,", n, 1)
    found = _imputed(draws, column)
    rows = draws.frame.index[found.holes]
    available = np.flatnonzero(found.available[found.holes])
    if found.levels is None:
        with np.errstate(invalid="ignore"):
            medians = np.nanmedian(found.imputed[:, available], axis=0)
        available = available[np.argsort(medians, kind="stable")]
    shown = available[style.spread_out(len(available), n)]
    ax = style.axes_or_new(ax, 5.6, 1.4 + 0.22 * len(shown))
    if found.levels is None:
        _draw_intervals(ax, found, shown)
        found.label_axis(ax, "x")
    else:
        _draw_level_shares(ax, found, shown)
        ax.set_xlabel(f"share of the {draws.m} draws of {found.name}")
    names = [", ".join(map(str, row)) if isinstance(row, tuple) else row for row in rows[shown]]
    style.name_ticks(ax, "y", np.arange(len(shown)), names)
    ax.set_ylim(len(shown) - 0.4, -0.6)
    some = f" ({len(shown)} of {len(available)} missing cells)" if len(shown) < len(available) else ""
    ax.set_ylabel(f"row{some}")
    style.legend_above(ax, columnspacing=1.2, handlelength=1.5)
    return style.tidy(ax)


def _imputed(draws: Imputations, label: Label) -> PlottedColumn:
    """Return a column for plotting; raise a ValueError if it has no imputed cells."""
    found = plotted(draws, label)
    if not np.isfinite(found.imputed).any():
        others = listing(draws.values)
        raise ValueError(f"column {label!r} has no imputed cells; those with some are {others}")
    return found


def _spots(column: PlottedColumn, rows: NDArray[np.intp], jitter: np.random.Generator) -> Numbers:
    """Return lower end, centre and upper end of the interval of each plotted cell, `[3, n]`."""
    # Position of each cell among the missing or the observed cells.
    place = np.where(column.holes, np.cumsum(column.holes), np.cumsum(~column.holes)) - 1
    spots, missing = np.empty((3, len(rows))), column.holes[rows]
    spots[:, ~missing] = column.observed[place[rows[~missing]]]
    drawn = column.imputed[:, place[rows[missing]]]
    if column.levels is not None:
        spots[:, missing] = _shares(drawn, len(column.levels)).argmax(0)
        return spots + jitter.uniform(-0.15, 0.15, len(rows))
    if missing.any():
        spots[::2, missing] = np.nanquantile(drawn, [0.05, 0.95], axis=0)
        spots[1, missing] = np.nanmean(drawn, axis=0)
    return spots


def _shares(cells: Numbers, n_levels: int) -> Numbers:
    """Return the share of each level in the draws `[m, n]` of each cell, `[n_levels, n]`."""
    counts = np.equal.outer(np.arange(n_levels), cells).sum(1)
    return counts / np.maximum(counts.sum(0), 1)


def _draw_densities(ax: Axes, column: PlottedColumn) -> None:
    cells, drawn = column.observed, column.imputed
    low, high = _range_shown(np.concatenate([cells, drawn[np.isfinite(drawn)]]))
    if len(cells):
        ax.plot(*density(cells, low, high), color=blue(), linewidth=2.4, label="observed", zorder=4)
    if drawn.shape[1] < _FEWEST:
        together = drawn[np.isfinite(drawn)]
        ax.plot(*density(together, low, high), color=VERMILION, linewidth=1.2, linestyle="--", zorder=3)
        at_bottom = ax.get_xaxis_transform()
        ax.plot(together, np.zeros(len(together)), "|", color=VERMILION, markersize=9, transform=at_bottom)
    else:
        for present in (draw[np.isfinite(draw)] for draw in drawn):
            if len(present):
                ax.plot(*density(present, low, high), color=VERMILION, linewidth=0.7, alpha=0.7, zorder=3)
    ax.set(xlim=(low, high), ylim=(0, None), yticks=[])
    ax.spines["left"].set_visible(False)


def _draw_shares(ax: Axes, column: PlottedColumn) -> None:
    values = column.values if column.levels is None else np.arange(len(column.levels), dtype=np.float64)
    gap = np.diff(values).min() if len(values) > 1 else 1.0
    observed = (column.observed[:, None] == values).mean(0) if len(column.observed) else np.zeros(len(values))
    ax.bar(values, observed, 0.8 * gap, color=pale_blue(), edgecolor=blue(), linewidth=1.2, label="observed")
    jitter = np.random.default_rng(0)
    for cells in (draw[np.isfinite(draw)] for draw in column.imputed):
        if len(cells):
            shares = (cells[:, None] == values).mean(0)
            across = values + gap * jitter.uniform(-0.25, 0.25)
            ax.plot(across, shares, "o", color=VERMILION, markerfacecolor="none", markersize=4, alpha=0.7)
    ax.set(ylim=(0, None), ylabel="share")


def density(cells: Numbers, low: float, high: float) -> tuple[Numbers, Numbers]:
    """Return positions and heights of a Gaussian kernel density of cells `[n]`, by Silverman's rule.

    Cells are counted in bins first, which makes the time nearly independent of their number; those beyond the
    shown range are left out.
    """
    spread = min(cells.std(), np.subtract(*np.quantile(cells, [0.75, 0.25])) / 1.349 or np.inf)
    step = (high - low) / _GRID
    bandwidth = max(0.9 * spread * len(cells) ** -0.2, 2 * step)
    shares = np.histogram(cells, _GRID, (low, high))[0] / (len(cells) * step)
    heights = gaussian_filter1d(shares, bandwidth / step, mode="constant")
    return np.asarray(low + step * (np.arange(_GRID) + 0.5)), heights


def _range_shown(cells: Numbers) -> tuple[float, float]:
    """Return axis limits that contain nearly all cells, without far outliers."""
    smallest, largest = float(cells.min()), float(cells.max())
    low, first, third, high = np.quantile(cells, [_BEYOND, 0.25, 0.75, 1 - _BEYOND]).tolist()
    fence = _FENCE * (third - first) or np.inf
    low, high = max(low, first - fence), min(high, third + fence)
    margin = 0.5 * (high - low) or 0.5 * (largest - smallest) or 0.5 * (abs(largest) or 1.0)
    return max(smallest - margin / 4, low - margin), min(largest + margin / 4, high + margin)


def _legend_of_densities(axes: NDArray[Any], m: int, together: bool) -> None:
    """Add a legend, below all panels if the layout reserves space for it."""
    imputed = f"imputed, {m} times" if m > 1 else "imputed"
    looks: list[dict[str, Any]] = [
        {"color": blue(), "linewidth": 2.4, "label": "observed"},
        {"color": VERMILION, "linewidth": 0.9, "marker": "o", "mfc": "none", "ms": 4, "label": imputed},
        {"color": VERMILION, "linewidth": 1.2, "linestyle": "--", "label": "all imputations together"},
    ]
    handles = [Line2D([], [], **look) for look in looks[: 2 + together]]
    figure = axes[0].figure
    if isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine):
        figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    else:
        axes[0].legend(handles=handles, loc="best", frameon=False, fontsize="small")


def _draw_points(
    ax: Axes, x: Numbers, y: Numbers, imputed: bool, small: bool, label: str | None = None
) -> None:
    """Plot observed cells as discs, or imputed cells as diamonds, which are hollow if small."""
    look: dict[str, Any] = {"marker": "o", "color": blue(), "mew": 0.0, "alpha": 0.55, "zorder": 1}
    if imputed:
        look = {"marker": "D", "color": VERMILION, "mfc": paper(), "mew": 1.2, "alpha": 1.0, "zorder": 3}
        look |= {"mfc": "none", "mew": 0.7, "alpha": 0.55} if small else {}
    ax.plot(x, y, linestyle="none", markersize=2.8 if small else 4.5, label=label, **look)


def _draw_box(ax: Axes, k: int, cells: Numbers) -> None:
    parts = {"boxprops": 0.9, "whiskerprops": 0.9, "capprops": 0.9, "medianprops": 1.8}
    lines: dict[str, Any] = {part: {"color": ink(), "linewidth": width} for part, width in parts.items()}
    ax.boxplot([cells], positions=[k], widths=0.62, showfliers=False, manage_ticks=False, **lines)


def _draw_balloons(ax: Axes, k: int, codes: Numbers) -> None:
    levels, counts = np.unique(codes, return_counts=True)
    area, (face, edge) = 350 * counts / counts.sum(), (paper(), VERMILION) if k else (blue(), blue())
    ax.scatter(np.full(len(levels), k), levels, area, facecolor=face, edgecolor=edge, linewidth=1.2)


def _draw_intervals(ax: Axes, column: PlottedColumn, shown: NDArray[np.intp]) -> None:
    if len(column.observed):
        low, high = np.quantile(column.observed, [0.05, 0.95]).tolist()
        ax.axvspan(low, high, color=pale_blue(), alpha=0.6, zorder=0, label="90 % of observed cells")
    q = np.nanquantile(column.imputed[:, shown], [0.05, 0.25, 0.5, 0.75, 0.95], axis=0)
    rows = np.arange(len(shown))
    ax.hlines(rows, q[0], q[4], color=VERMILION, linewidth=1.0, label="90 % of draws")
    ax.hlines(rows, q[1], q[3], color=VERMILION, linewidth=3.5, label="50 %")
    ax.plot(q[2], rows, "o", color=paper(), markeredgecolor=ink(), markersize=4.5, label="median")


def _draw_level_shares(ax: Axes, column: PlottedColumn, shown: NDArray[np.intp]) -> None:
    """Draw stacked bars of the shares of levels; the rarest of many levels are combined."""
    names = list(column.levels or ())
    shares = _shares(column.imputed[:, shown], len(names))
    frequent = np.sort(np.argsort(-shares.sum(1), kind="stable")[:_MOST_LEVELS])
    parts = [(names[i], shares[i]) for i in frequent]
    if len(names) > _MOST_LEVELS:
        parts.append((f"{len(names) - _MOST_LEVELS} others", 1 - shares[frequent].sum(0)))
    left = np.zeros(len(shown))
    for (name, share), (colour, hatch) in zip(parts, style.LEVELS, strict=False):
        look: dict[str, Any] = {"color": colour, "hatch": hatch, "edgecolor": "black", "linewidth": 0.6}
        label = style.text(name) if not name.startswith("_") else f" {name}"
        ax.barh(np.arange(len(shown)), share, 0.75, left, label=label, **look)
        left += share
    ax.set_xlim(0, 1)
