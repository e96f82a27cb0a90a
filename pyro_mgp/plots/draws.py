"""Pictures of imputations beside what was observed.

What was observed is blue, drawn with thick lines and discs; what was imputed is vermilion, thin and hollow.
Points in time of a zone are shown in UTC.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pyro_mgp._support.messages import listing
from pyro_mgp.data.column_spec import Label
from pyro_mgp.plots._places import Numbers, Places, places
from pyro_mgp.plots._style import (
    BLUE,
    PALE_BLUE,
    REFERENCE,
    SHADE,
    VERMILION,
    axes_or_new,
    name_ticks,
    panels,
    spread_out,
    text,
    tidy,
)
from pyro_mgp.results.imputations import Imputations

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

# Panels of densities in one figure, imputations in one row of strips, points in one strip.
_MOST_PANELS, _MOST_STRIPS, _MOST_POINTS = 12, 20, 300
# Observed points of a scatter.
_MOST_OBSERVED = 5_000
# Levels of a forest of cells that have a colour of their own.
_MOST_LEVELS = 6
# Fewer missing cells make no curve of their own in each imputation.
_FEWEST = 10
# Points of a curve.
_GRID = 1024
# Far tails of a density: the share of the cells at either end, the distance in interquartile ranges.
_BEYOND, _FENCE = 0.005, 10.0


def plot_densities(
    draws: Imputations, columns: Sequence[Label] | None = None, *, figure: FigureBase | None = None
) -> NDArray[Any]:
    """Distributions of observed and of imputed cells, a panel per column.

    Of numbers and times a density: observed cells a thick line, each imputation a thin one. With fewer than
    10 missing cells all imputations share one dashed line, and a tick marks each draw. Of labels, booleans
    and few whole numbers the shares of the values: bars of observed cells, a circle for each imputation.
    Tails far from the rest are cut off, at half a per cent of the cells.

    The two need not agree: cells that are missing may well differ from those that are not. Each imputation's
    curve should be plausible.

    Args:
        draws: The imputations.
        columns: Which columns; None for those with imputed cells, the first 12 at most, as a title says.
        figure: Where to draw; None for a new figure.

    Returns:
        The Axes of the panels, one per column.

    Raises:
        ValueError: A column is unknown or has no imputed cells, or none has.
        ImportError: matplotlib is not installed.

    Example:
        >>> import pandas as pd
        >>> from matplotlib.figure import Figure
        >>> frame = pd.DataFrame({"sex": ["male", None, "female", "male"]})
        >>> drawn = Imputations(frame, {"sex": [["male"], ["female"]]}, m=2)
        >>> (ax,) = plot_densities(drawn, figure=Figure())
        >>> [round(float(bar.get_height()), 2) for bar in ax.patches]
        [0.33, 0.67]
    """
    labels = list(draws.values) if columns is None else list(columns)
    shown = labels[:_MOST_PANELS] if columns is None else labels
    found = [_imputed(draws, label) for label in shown]
    if not found:
        raise ValueError("no column has imputed cells")
    axes = panels(figure, len(found), across=3, width=3.4, height=2.6)
    for ax, column in zip(axes, found, strict=True):
        if column.few:
            _draw_shares(ax, column)
        else:
            _draw_densities(ax, column)
        tidy(ax)
    if len(shown) < len(labels):
        axes[0].figure.suptitle(
            f"the first {len(shown)} of {len(labels)} incomplete columns", fontsize="small", color=REFERENCE
        )
    together = any(not each.few and each.drawn.shape[1] < _FEWEST for each in found)
    _legend_of_densities(axes, draws.m, together)
    return axes


def plot_strips(draws: Imputations, column: Label, ax: Axes | None = None) -> Axes:
    """Observed cells, and those of each imputation, side by side: boxes over points.

    Boxes hold the middle half, their line is the median, whiskers reach to 1.5 times the box. Of more than
    300 cells, as many points are shown, evenly chosen by rank. Of labels and booleans, the area of a circle
    is the share of its level.

    Args:
        draws: The imputations, of which the first 20 at most are shown.
        column: Which column.
        ax: Where to draw; None for new axes.

    Returns:
        The axes.

    Raises:
        ValueError: The column is unknown or has no imputed cells.
        ImportError: matplotlib is not installed.
    """
    here = _imputed(draws, column)
    ax = axes_or_new(ax, 7.0, 3.8)
    strips = [here.observed, *here.drawn[:_MOST_STRIPS]]
    jitter = np.random.default_rng(0)
    for k, strip in enumerate(strips):
        cells = np.sort(strip[np.isfinite(strip)])
        if here.levels is not None:
            _draw_balloons(ax, k, cells)
            continue
        chosen = cells[spread_out(len(cells), _MOST_POINTS)] if len(cells) else cells
        _draw_points(ax, k + jitter.uniform(-0.28, 0.28, len(chosen)), chosen, k > 0, small=True)
        if len(cells):
            _draw_box(ax, k, cells)
    here.dress(ax, "y")
    if here.levels is not None:
        ax.set_ylim(-0.6, len(here.levels) - 0.4)
    ax.set_xlim(-0.7, len(strips) - 0.3)
    name_ticks(ax, "x", np.arange(len(strips)), range(len(strips)))
    ax.axvline(0.5, color=SHADE, linewidth=1)
    first = f", the first {_MOST_STRIPS} of {draws.m}" if draws.m > _MOST_STRIPS else ""
    ax.set_xlabel(f"imputation{first} (0: observed)")
    return tidy(ax)


def plot_scatter(draws: Imputations, x: Label, y: Label, ax: Axes | None = None, *, n: int = 200) -> Axes:
    """Two columns against each other: observed points, and imputed ones with their intervals.

    A row with a missing cell in either column is a diamond at the mean of its draws, with bars from their 5 %
    to their 95 % quantile in the directions in which it is missing. Of labels and booleans, the most frequent
    draw stands for the mean, without a bar, and points are spread a little.

    Args:
        draws: The imputations.
        x: Column across.
        y: Column upwards.
        ax: Where to draw; None for new axes.
        n: Most imputed points to show, evenly chosen in row order, as a note says. Of the observed ones,
            5000 at most are.

    Returns:
        The axes.

    Raises:
        ValueError: A column is unknown, both are the same, or `n` is below 1.
        ImportError: matplotlib is not installed.
    """
    if x == y:
        raise ValueError(f"x and y must be different columns, got {x!r} twice")
    if n < 1:
        raise ValueError(f"n, the number of imputed points to show, must be at least 1, got {n}")
    across, upwards = places(draws, x), places(draws, y)
    ax = axes_or_new(ax, 5.4, 4.4)
    imputed = across.holes | upwards.holes
    known, drawn = np.flatnonzero(~imputed), np.flatnonzero(imputed & across.told & upwards.told)
    known, shown = known[spread_out(len(known), _MOST_OBSERVED)], drawn[spread_out(len(drawn), n)]
    jitter = np.random.default_rng(0)
    (_, at_x, _), (_, at_y, _) = _spots(across, known, jitter), _spots(upwards, known, jitter)
    _draw_points(ax, at_x, at_y, imputed=False, small=len(known) > 500, label="observed")
    if len(shown):
        (left, at_x, right), (low, at_y, high) = (_spots(each, shown, jitter) for each in (across, upwards))
        ax.hlines(at_y, left, right, color=VERMILION, linewidth=0.8, zorder=2)
        ax.vlines(at_x, low, high, color=VERMILION, linewidth=0.8, zorder=2)
        some = f" ({len(shown)} of {len(drawn)})" if len(shown) < len(drawn) else ""
        label = f"imputed: mean, 90 %{some}"
        _draw_points(ax, at_x, at_y, imputed=True, small=False, label=label)
    across.dress(ax, "x")
    upwards.dress(ax, "y")
    _legend_above(ax)
    return tidy(ax)


def plot_cells(draws: Imputations, column: Label, ax: Axes | None = None, *, n: int = 30) -> Axes:
    """Missing cells one by one: medians of their draws, 50 % (thick) and 90 % intervals (thin).

    Cells are sorted by their medians; behind them the range that holds 90 % of the observed cells. Of labels
    and booleans, bars show how often each level was drawn, cells in row order.

    Args:
        draws: The imputations.
        column: Which column.
        ax: Where to draw; None for new axes.
        n: Most cells to show, evenly chosen among the sorted ones; a note says so.

    Returns:
        The axes.

    Raises:
        ValueError: The column is unknown or has no imputed cells, or `n` is below 1.
        ImportError: matplotlib is not installed.
    """
    if n < 1:
        raise ValueError(f"n, the number of cells to show, must be at least 1, got {n}")
    here = _imputed(draws, column)
    rows = draws.frame.index[here.holes]
    told = np.flatnonzero(here.told[here.holes])
    if here.levels is None:
        with np.errstate(invalid="ignore"):
            told = told[np.argsort(np.nanmedian(here.drawn[:, told], axis=0), kind="stable")]
    shown = told[spread_out(len(told), n)]
    ax = axes_or_new(ax, 5.6, 1.4 + 0.22 * len(shown))
    if here.levels is None:
        _draw_intervals(ax, here, shown)
        here.dress(ax, "x")
    else:
        _draw_level_shares(ax, here, shown)
        ax.set_xlabel(f"share of the {draws.m} draws of {here.name}")
    names = [", ".join(map(str, row)) if isinstance(row, tuple) else row for row in rows[shown]]
    name_ticks(ax, "y", np.arange(len(shown)), names)
    ax.set_ylim(len(shown) - 0.4, -0.6)
    some = f" ({len(shown)} of {len(told)} missing cells)" if len(shown) < len(told) else ""
    ax.set_ylabel(f"row{some}")
    _legend_above(ax)
    return tidy(ax)


# ---------------------------------------------------------------------------------------- what is drawn where


def _imputed(draws: Imputations, label: Label) -> Places:
    """A column with at least one draw."""
    found = places(draws, label)
    if not np.isfinite(found.drawn).any():
        raise ValueError(
            f"column {label!r} has no imputed cells; those with some are {listing(draws.values)}"
        )
    return found


def _spots(column: Places, rows: NDArray[np.intp], jitter: np.random.Generator) -> Numbers:
    """Low end, middle and high end of cells, `[3, n]`: all the same where one is observed, or a level."""
    place = np.zeros(len(column.holes), dtype=np.intp)  # among the holes, or among the others
    for kind in (column.holes, ~column.holes):
        place[kind] = np.arange(kind.sum())
    spots, missing = np.empty((3, len(rows))), column.holes[rows]
    spots[:, ~missing] = column.observed[place[rows[~missing]]]
    drawn = column.drawn[:, place[rows[missing]]]
    if column.levels is not None:
        spots[:, missing] = _shares(drawn, len(column.levels)).argmax(0)
        return spots + jitter.uniform(-0.15, 0.15, len(rows))
    if missing.any():
        spots[::2, missing] = np.nanquantile(drawn, [0.05, 0.95], axis=0)
        spots[1, missing] = np.nanmean(drawn, axis=0)
    return spots


def _shares(cells: Numbers, n_levels: int) -> Numbers:
    """How often each cell was drawn to be each level, `[n_levels, n]`, from draws `[m, n]`."""
    counts = np.equal.outer(np.arange(n_levels), cells).sum(1)
    return counts / np.maximum(counts.sum(0), 1)


# ---------------------------------------------------------------------------------------------- distributions


def _draw_densities(ax: Axes, column: Places) -> None:
    cells, drawn = column.observed, column.drawn
    low, high = _range_shown(np.concatenate([cells, drawn[np.isfinite(drawn)]]))
    if len(cells):
        ax.plot(*density(cells, low, high), color=BLUE, linewidth=2.4, label="observed", zorder=4)
    if drawn.shape[1] < _FEWEST:
        together = drawn[np.isfinite(drawn)]
        ax.plot(*density(together, low, high), color=VERMILION, linewidth=1.2, linestyle="--", zorder=3)
        ax.plot(
            together,
            np.zeros(len(together)),
            "|",
            color=VERMILION,
            markersize=9,
            transform=ax.get_xaxis_transform(),
        )
    else:
        for draw in drawn:
            known = draw[np.isfinite(draw)]
            if len(known):
                ax.plot(*density(known, low, high), color=VERMILION, linewidth=0.7, alpha=0.7, zorder=3)
    ax.set_xlim(low, high)
    ax.set_ylim(bottom=0)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    column.dress(ax, "x")


def _draw_shares(ax: Axes, column: Places) -> None:
    values = column.values if column.levels is None else np.arange(len(column.levels), dtype=np.float64)
    gap = np.diff(values).min() if len(values) > 1 else 1.0
    observed = (column.observed[:, None] == values).mean(0) if len(column.observed) else np.zeros(len(values))
    ax.bar(values, observed, 0.8 * gap, color=PALE_BLUE, edgecolor=BLUE, linewidth=1.2, label="observed")
    jitter = np.random.default_rng(0)
    for draw in column.drawn:
        known = draw[np.isfinite(draw)]
        if len(known):
            shares = (known[:, None] == values).mean(0)
            across = values + gap * jitter.uniform(-0.25, 0.25)
            ax.plot(across, shares, "o", color=VERMILION, markerfacecolor="none", markersize=4, alpha=0.7)
    ax.set_ylim(0, None)
    ax.set_ylabel("share")
    column.dress(ax, "x")


def density(cells: Numbers, low: float, high: float) -> tuple[Numbers, Numbers]:
    """A Gaussian kernel density of cells `[n]` between two ends, by Silverman's rule: places and heights.

    Cells are counted in bins first, so that it takes as long for a million as for a hundred.
    """
    spread = min(cells.std(), np.subtract(*np.quantile(cells, [0.75, 0.25])) / 1.349 or np.inf)
    step = (high - low) / _GRID
    bandwidth = max(0.9 * spread * len(cells) ** -0.2, 2 * step)
    reach = int(np.ceil(4 * bandwidth / step))
    edges = low + step * np.arange(-reach, _GRID + reach + 1)
    counts, _ = np.histogram(cells, edges)
    kernel = np.exp(-0.5 * (step * np.arange(-reach, reach + 1) / bandwidth) ** 2)
    heights = np.convolve(counts, kernel / kernel.sum(), mode="valid") / (len(cells) * step)
    return np.asarray(low + step * (np.arange(_GRID) + 0.5)), np.asarray(heights)


def _range_shown(cells: Numbers) -> tuple[float, float]:
    """From the smallest cell to the largest, but not much further than where nearly all are."""
    smallest, largest = float(cells.min()), float(cells.max())
    low, first, third, high = np.quantile(cells, [_BEYOND, 0.25, 0.75, 1 - _BEYOND]).tolist()
    fence = _FENCE * (third - first) or np.inf
    low, high = max(low, first - fence), min(high, third + fence)
    room = 0.5 * (high - low) or 0.5 * (largest - smallest) or 0.5 * (abs(largest) or 1.0)
    return max(smallest - room / 4, low - room), min(largest + room / 4, high + room)


def _legend_of_densities(axes: NDArray[Any], m: int, together: bool) -> None:
    """What lines, bars and circles mean, above all panels if the layout keeps room for it."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=BLUE, linewidth=2.4, label="observed"),
        Line2D(
            [], [], color=VERMILION, linewidth=0.9, marker="o", markerfacecolor="none", markersize=4,
            label=f"imputed, {m} times" if m > 1 else "imputed",
        ),
    ]  # fmt: skip
    if together:
        handles.append(
            Line2D([], [], color=VERMILION, linewidth=1.2, linestyle="--", label="all imputations together")
        )
    figure = axes[0].figure
    engine = figure.get_layout_engine() if hasattr(figure, "get_layout_engine") else None
    if engine is not None and type(engine).__name__ == "ConstrainedLayoutEngine":
        figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    else:
        axes[0].legend(handles=handles, loc="best", frameon=False, fontsize="small")


# ------------------------------------------------------------------------------------------- points and boxes


def _draw_points(
    ax: Axes, x: Numbers, y: Numbers, imputed: bool, small: bool, label: str | None = None
) -> None:
    """Discs of observed cells, or diamonds of imputed ones, hollow if they are small."""
    colour = VERMILION if imputed else BLUE
    ax.plot(
        x,
        y,
        "D" if imputed else "o",
        color=colour,
        markerfacecolor=colour if not imputed else "none" if small else "white",
        markeredgewidth=0.0 if not imputed else 0.7 if small else 1.2,
        markersize=2.8 if small else 4.5,
        alpha=1.0 if imputed and not small else 0.55,
        label=label,
        zorder=3 if imputed else 1,
    )


def _draw_box(ax: Axes, k: int, cells: Numbers) -> None:
    line = {"color": "black", "linewidth": 0.9}
    ax.boxplot(
        [cells],
        positions=[k],
        widths=0.62,
        showfliers=False,
        manage_ticks=False,
        boxprops=line,
        whiskerprops=line,
        capprops=line,
        medianprops={"color": "black", "linewidth": 1.8},
    )


def _draw_balloons(ax: Axes, k: int, codes: Numbers) -> None:
    levels, counts = np.unique(codes, return_counts=True)
    if len(levels):
        ax.scatter(
            np.full(len(levels), k),
            levels,
            s=350 * counts / counts.sum(),
            facecolor="white" if k else BLUE,
            edgecolor=VERMILION if k else BLUE,
            linewidth=1.2,
        )


# ----------------------------------------------------------------------------------------------- cell by cell


def _draw_intervals(ax: Axes, column: Places, shown: NDArray[np.intp]) -> None:
    if len(column.observed):
        low, high = np.quantile(column.observed, [0.05, 0.95]).tolist()
        ax.axvspan(low, high, color=PALE_BLUE, alpha=0.6, zorder=0, label="90 % of observed cells")
    q = np.nanquantile(column.drawn[:, shown], [0.05, 0.25, 0.5, 0.75, 0.95], axis=0)
    rows = np.arange(len(shown))
    ax.hlines(rows, q[0], q[4], color=VERMILION, linewidth=1.0, label="90 % of draws")
    ax.hlines(rows, q[1], q[3], color=VERMILION, linewidth=3.5, label="50 %")
    ax.plot(q[2], rows, "o", color="white", markeredgecolor="black", markersize=4.5, label="median")


def _draw_level_shares(ax: Axes, column: Places, shown: NDArray[np.intp]) -> None:
    """Bars of the levels' shares, one after the other; of many levels, the rarest together."""
    names = list(column.levels or ())
    shares = _shares(column.drawn[:, shown], len(names))
    frequent = np.sort(np.argsort(-shares.sum(1), kind="stable")[:_MOST_LEVELS])
    parts = [(names[i], shares[i]) for i in frequent]
    if len(names) > _MOST_LEVELS:
        parts.append((f"{len(names) - _MOST_LEVELS} others", 1 - shares[frequent].sum(0)))
    left = np.zeros(len(shown))
    for (name, share), (colour, hatch) in zip(parts, _LEVEL_LOOKS, strict=False):
        ax.barh(
            np.arange(len(shown)), share, 0.75, left, color=colour, hatch=hatch, edgecolor="black",
            linewidth=0.6, label=text(name) if not name.startswith("_") else f" {name}",
        )  # fmt: skip
        left += share
    ax.set_xlim(0, 1)


# Colours and hatches of levels: neighbours differ in lightness, too.
_LEVEL_LOOKS = (
    ("#56B4E9", ""),
    ("#E69F00", "//"),
    ("#009E73", ""),
    ("#F0E442", ".."),
    ("#0072B2", "xx"),
    ("#CC79A7", "\\\\"),
    ("white", ""),
)


def _legend_above(ax: Axes) -> None:
    ax.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=2,
        frameon=False,
        borderaxespad=0.2,
        columnspacing=1.2,
        handlelength=1.5,
    )
