"""Colours, axes and labels that all plots share.

Colours are Okabe and Ito's (*Color Universal Design*, 2008), which colour-blind readers can distinguish. In
grey print they are similar; therefore things that differ in colour also differ in marker, line or hatch.
Text, outlines and greys follow the current style of matplotlib, which is not changed; on a dark background,
blue is lighter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Sequence
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import Colormap, LinearSegmentedColormap, to_hex, to_rgb, to_rgba
from matplotlib.figure import FigureBase
from numpy.typing import NDArray

from pyro_mgp.results.summary import shortened

BLUE, VERMILION = "#0072B2", "#D55E00"
"""Colours of observed cells, and of missing or imputed cells or of results that need attention."""
SKY, GREEN, ORANGE, PINK, YELLOW = "#56B4E9", "#009E73", "#E69F00", "#CC79A7", "#F0E442"
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
"""Markers of things that are compared; their number and that of `colours` have no common factor."""
LEVELS = ((SKY, ""), (ORANGE, "//"), (GREEN, ""), (YELLOW, ".."), (BLUE, "xx"), (PINK, "\\\\"), ("white", ""))
"""Colours and hatches of levels, with black outlines; adjacent ones also differ in lightness."""

# Largest width and height of a new figure, in inches.
_LARGEST_FIGURE = 16.0
_LETTERS_PER_INCH = 14.0


def ink() -> str:
    """Return the colour of text and outlines."""
    return to_hex(mpl.rcParams["text.color"])


def paper() -> str:
    """Return the colour of the background; a transparent one counts as white, or black under light text."""
    for part in ("axes.facecolor", "figure.facecolor"):
        if to_rgba(mpl.rcParams[part])[3] > 0:
            return to_hex(mpl.rcParams[part])
    return "#ffffff" if sum(to_rgb(ink())) < 1.5 else "#000000"


def is_dark() -> bool:
    """Return whether the background is darker than the text."""
    return sum(to_rgb(paper())) < sum(to_rgb(ink()))


def blue() -> str:
    """Return the colour of observed cells on this background."""
    return SKY if is_dark() else BLUE


def pale_blue() -> str:
    """Return the colour of areas of observed cells, in grey print close to the background."""
    return mixed(BLUE, paper(), 0.45) if is_dark() else "#C6DDEC"


def grey(strength: float) -> str:
    """Return a mixture of the colour of text, in proportion `strength`, and the background."""
    return mixed(ink(), paper(), strength)


def reference() -> str:
    """Return the colour of reference lines and notes."""
    return grey(0.6)


def shade() -> str:
    """Return the colour of guides in the background."""
    return grey(0.15)


def mixed(colour: str, other: str, share: float) -> str:
    """Return a mixture of two colours, of which the first has the given share."""
    r, g, b = share * np.array(to_rgb(colour)) + (1 - share) * np.array(to_rgb(other))
    return to_hex((r, g, b))


def colours() -> tuple[str, ...]:
    """Return the colours of things that are compared."""
    return (BLUE, VERMILION, GREEN, ORANGE, PINK, SKY, ink())


def blues() -> Colormap:
    """Return the colour map of amounts, whose least colour is close to the background."""
    if not is_dark():
        return mpl.colormaps["Blues"]
    return LinearSegmentedColormap.from_list("blues", [mixed(BLUE, paper(), 0.1), BLUE, "#B8E0F8"])


def axes_or_new(ax: Axes | None, width: float = 6.0, height: float = 3.6) -> Axes:
    """Return `ax`, or the axes of a new figure of `width` x `height` inches if it is None."""
    if ax is not None:
        return ax
    size = min(width, _LARGEST_FIGURE), min(height, _LARGEST_FIGURE)
    return plt.subplots(figsize=size, layout="constrained")[1]


def panels(
    figure: FigureBase | None, n: int, *, across: int, width: float, height: float, **shared: Any
) -> NDArray[Any]:
    """Return the tidied axes of n panels, `[n]`, in a grid with at most `across` columns."""
    across = min(n, across)
    down = math.ceil(n / across)
    if figure is None:
        figure = plt.figure(figsize=(width * across, height * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, **shared).ravel()
    for ax in grid[n:]:
        ax.remove()
    return np.asarray([tidy(ax) for ax in grid[:n]])


def tidy(ax: Axes) -> Axes:
    """Remove the top and right spines of axes, and return the axes."""
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def text(label: Hashable, most: int = 24) -> str:
    """Return a label as one line of at most `most` characters, with dollar signs escaped."""
    short = shortened(" ".join(str(label).split()), most)
    return re.sub(r"(?<!\\)\$", r"\\$", short)


def percent(share: float) -> str:
    """Format a share: "12 %", "0.4 %", "<0.1 %"."""
    if 0 < share < 0.001:
        return "<0.1 %"
    if 0.999 < share < 1:
        return ">99.9 %"
    return f"{100 * share:.1f} %" if 0 < share < 0.01 or 0.99 < share < 1 else f"{100 * share:.0f} %"


def spread_out(n: int, most: int) -> NDArray[np.intp]:
    """Return the positions of at most `most` of n items, evenly spaced, with the first and the last."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(np.intp))


def legend_above(ax: Axes, side: Literal["left", "right"] = "left", **options: Any) -> None:
    """Put a legend of two columns above the axes, at their left or right end."""
    placed = {"loc": f"lower {side}", "bbox_to_anchor": (float(side == "right"), 1), "borderaxespad": 0.2}
    ax.legend(**placed | {"ncols": 2, "frameon": False} | options)


def matrix(
    ax: Axes, values: NDArray[Any], rows: Sequence[Hashable], columns: Sequence[Hashable], **look: Any
) -> QuadMesh:
    """Draw a matrix as squares, with the names of its rows and columns, its first row on top."""
    squares = ax.pcolormesh(values, **look)
    ax.invert_yaxis()
    name_ticks(ax, "x", np.arange(len(columns)) + 0.5, columns)
    name_ticks(ax, "y", np.arange(len(rows)) + 0.5, rows)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    return squares


def name_ticks(
    ax: Axes, axis: Literal["x", "y"], positions: Sequence[float] | NDArray[Any], names: Sequence[Hashable]
) -> None:
    """Label positions on an axis, as many as are legible; long labels on the x axis are rotated."""
    step = -(-len(names) // (50 if axis == "x" else 40)) or 1
    labels = [text(name) for name in names[::step]]
    ax.set(**{f"{axis}ticks": positions[::step], f"{axis}ticklabels": labels})
    space = _LETTERS_PER_INCH * ax.get_window_extent().width / ax.figure.dpi
    if axis == "y" or (max(map(len, labels), default=0) + 1) * len(labels) <= space:
        return
    if len(labels) > 20:
        ax.tick_params("x", labelsize="small", labelrotation=90)
        return
    for label in ax.get_xticklabels():
        label.set(rotation=40, ha="right", rotation_mode="anchor")
