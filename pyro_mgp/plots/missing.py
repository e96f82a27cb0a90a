"""Plots of missing cells: their positions, their patterns, and the flux between columns."""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, ListedColormap
from matplotlib.patches import Patch
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

from pyro_mgp._support.checks import at_least
from pyro_mgp.data.table import as_frame, missing
from pyro_mgp.evaluation.missingness import distinct_patterns, flux
from pyro_mgp.plots import _style as style
from pyro_mgp.plots._style import VERMILION, blue, pale_blue, paper, reference

# Largest number of lines of a map; of more rows, several share a line.
_LINES = 500
# Least intensity of a line with a missing cell.
_FAINTEST = 0.2
# Largest number of columns above which shares of missing cells are written.
_MOST_SHARES = 25
# Largest number of columns in a plot of patterns.
_MOST_COLUMNS = 40


def plot_missingness(frame: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Plot a map of the missing cells, with the rows and columns of the table.

    Above 500 rows, several rows share a line, whose colour shows the share of missing cells. Up to 25 columns
    have their share of missing cells written above them.

    Raises:
        ValueError: If the table has no rows or no columns.

    Example:
        >>> from matplotlib.figure import Figure
        >>> frame = pd.DataFrame({"x": [1.0, None], "y": ["a", "b"]})
        >>> ax = plot_missingness(frame, Figure().subplots())
        >>> ax.images[0].get_array().tolist()
        [[0.0, 0.0], [1.0, 0.0]]
    """
    frame = as_frame(frame)
    holes = _holes(frame)
    n_rows, n_columns = holes.shape
    per_line = -(-n_rows // _LINES)
    starts = np.arange(0, n_rows, per_line)
    counts = np.add.reduceat(holes, starts, axis=0, dtype=np.int64)
    shares = counts / np.diff(np.append(starts, n_rows))[:, None]
    ax = style.axes_or_new(ax, 2.0 + 0.42 * n_columns if n_columns <= 30 else 12.0, 4.6)
    colours = LinearSegmentedColormap.from_list("missing", [pale_blue(), VERMILION])
    intensity = np.where(shares > 0, _FAINTEST + (1 - _FAINTEST) * shares, 0.0)
    bottom = len(starts) * per_line
    scale: dict[str, Any] = {"cmap": colours, "vmin": 0, "vmax": 1, "interpolation": "nearest"}
    ax.imshow(intensity, aspect="auto", extent=(-0.5, n_columns - 0.5, bottom, 0), **scale)
    ax.set_ylim(n_rows, 0)
    for j in range(1, n_columns if n_columns <= _MOST_COLUMNS else 0):
        ax.axvline(j - 0.5, color=paper(), linewidth=1)
    style.name_ticks(ax, "x", np.arange(n_columns), frame.columns.tolist())
    ax.set_ylabel("row" if per_line == 1 else f"row ({per_line} to a line)")
    _label_cells(ax, holes.mean(0))
    return ax


def plot_patterns(frame: pd.DataFrame, ax: Axes | None = None, *, n: int = 20) -> Axes:
    """Plot the patterns of missing cells with their numbers of rows, the most frequent pattern on top.

    At most `n` patterns are shown, and at most 40 columns, those with the most missing cells. A note counts
    the rows with other patterns.

    Raises:
        ValueError: If the table has no rows or no columns, or `n` is below 1.

    Example:
        >>> from matplotlib.figure import Figure
        >>> frame = pd.DataFrame({"x": [1.0, None, None], "y": ["a", "b", "c"]})
        >>> ax = plot_patterns(frame, Figure().subplots())
        >>> [label.get_text() for label in ax.get_yticklabels()]
        ['2 rows (67 %)', '1 row (33 %)']
    """
    at_least("n, the number of patterns to show,", n, 1)
    frame = as_frame(frame)
    holes = _holes(frame)
    n_rows, n_columns = holes.shape
    observed, rows = distinct_patterns(frame)
    in_column = holes.sum(0)
    shown = np.sort(np.argsort(-in_column, kind="stable")[:_MOST_COLUMNS])
    patterns = observed[:n]
    ax = style.axes_or_new(ax, 3.0 + 0.42 * len(shown), 1.6 + 0.3 * len(patterns))
    colours = ListedColormap([pale_blue(), VERMILION])
    names = [f"{k} row{'s' if k > 1 else ''} ({style.percent(k / n_rows)})" for k in rows[:n].tolist()]
    look = {"cmap": colours, "vmin": 0, "vmax": 1, "edgecolor": paper(), "linewidth": 1.5}
    style.matrix(ax, ~patterns[:, shown], names, frame.columns[shown].tolist(), **look)
    _label_cells(ax, in_column[shown] / n_rows, offset=0.5)
    left_out = []
    if more := len(rows) - len(patterns):
        left_out.append(f"{rows[n:].sum()} rows in {more} other pattern{'s' if more > 1 else ''}")
    if len(shown) < n_columns:
        left_out.append(f"{n_columns - len(shown)} columns with fewer missing cells")
    if left_out:
        ax.set_xlabel(f"not shown: {', '.join(left_out)}", fontsize="small", color=reference())
    return ax


def plot_flux(frame: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Plot the outflux of each column against its influx, as `missingness.flux` computes them.

    Columns at the top are observed where others are missing, and therefore help to impute these. Columns at
    the right are missing where others are observed. Names are left out where they would overlap.

    Raises:
        ValueError: If the table has no rows, columns or missing cells.

    Example:
        >>> from matplotlib.figure import Figure
        >>> frame = pd.DataFrame({"x": [1.0, None], "y": ["a", "b"]})
        >>> ax = plot_flux(frame, Figure().subplots())
        >>> [text.get_text() for text in ax.texts]
        ['y', 'x']
    """
    frame = as_frame(frame)
    if not _holes(frame).any():
        raise ValueError("the table has no missing cells: there is no flux between its columns")
    table = flux(frame)
    ax = style.axes_or_new(ax, 5.4, 5.0)
    ax.plot([0, 1], [1, 0], color=reference(), linewidth=1, linestyle="--", zorder=0)
    complete = (table["observed"] == 1).to_numpy()
    points = table[["influx", "outflux"]].fillna(0.0).to_numpy()
    for group, colour, marker, name in (
        (complete, blue(), "s", "complete"),
        (~complete, VERMILION, "o", "with missing cells"),
    ):
        if group.any():
            ax.plot(*points[group].T, marker, color=colour, label=name, clip_on=False, zorder=3)
    reach = min(max(points[:, 0].max() * 1.3, 0.1), 1.0)
    ax.set(xlim=(-0.02 * reach, reach), ylim=(-0.03, 1.03))
    _name_points(ax, points / [reach, 1.0], table.index.tolist())
    ax.set_xlabel("influx: connection of its missing cells to observed cells")
    ax.set_ylabel("outflux: connection of its observed cells to missing cells")
    style.legend_above(ax, "right")
    return style.tidy(ax)


def _holes(frame: pd.DataFrame) -> NDArray[np.bool_]:
    """Return the missing cells, Bool `[N, C]`; raise a ValueError if there are no rows or no columns."""
    if frame.size == 0:
        shape = "{} rows x {} columns".format(*frame.shape)
        raise ValueError(f"expected a table with rows and columns, got {shape}")
    return missing(frame)


def _label_cells(ax: Axes, shares: NDArray[np.float64], offset: float = 0.0) -> None:
    """Write the share of missing cells above each of a few columns, and add the legend of the colours."""
    place: dict[str, Any] = {"xycoords": ax.get_xaxis_transform(), "textcoords": "offset points"}
    look: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": "x-small", "annotation_clip": False}
    for j, share in enumerate(shares.tolist() if len(shares) <= _MOST_SHARES else ()):
        ax.annotate(style.percent(share) if share else "–", (j + offset, 1.0), (0, 3), **place, **look)
    handles = [Patch(facecolor=pale_blue(), label="observed"), Patch(facecolor=VERMILION, label="missing")]
    style.legend_above(ax, handles=handles, bbox_to_anchor=(0, 1.06))


# Height of a line, width of a letter, and gap between a point and its name, as shares of the axes.
_LINE, _LETTER, _GAP = 0.036, 0.0145, 0.02
# Distance below which points share a label, and the largest number of names in a label.
_TOGETHER, _MOST_NAMES = 0.015, 3


def _name_points(ax: Axes, places: NDArray[np.float64], names: list[Hashable]) -> None:
    """Label points `[n, 2]`, in axes coordinates, at places where the names overlap nothing."""
    reach = ax.get_xlim()[1]
    taken = [Bbox([place - _GAP / 2, place + _GAP / 2]) for place in places]
    left_over = np.lexsort([places[:, 0], -places[:, 1]])  # from top to bottom
    while left_over.size:
        x, y = places[left_over[0]].tolist()
        near = np.abs(places[left_over] - [x, y]).max(1) < _TOGETHER
        group, left_over = left_over[near], left_over[~near]
        lines = [style.text(names[i]) for i in group[:_MOST_NAMES]]
        if len(group) > _MOST_NAMES:
            lines.append(f"and {len(group) - _MOST_NAMES} more")
        wide, half = _LETTER * max(map(len, lines)), _LINE * len(lines) / 2
        for side, shift in itertools.product(("left", "right"), (0.0, -_LINE, _LINE)):
            low = min(max(y + shift - half, -half), 1.0 + _GAP - 2 * half)
            left = x + _GAP if side == "left" else x - _GAP - wide
            box = Bbox.from_bounds(left, low, wide, 2 * half)
            if left > -_GAP and left + wide < 1.05 and not any(map(box.fully_overlaps, taken)):
                taken.append(box)
                start = left if side == "left" else left + wide
                behind = {"facecolor": paper(), "edgecolor": "none", "pad": 0.5, "alpha": 0.8}
                words, middle = "\n".join(lines), low + half
                ax.text(start * reach, middle, words, ha=side, va="center", fontsize="small", bbox=behind)
                break
