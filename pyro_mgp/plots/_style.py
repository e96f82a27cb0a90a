"""What all pictures share: colours, axes, labels that fit.

Colours are Okabe and Ito's (*Color Universal Design*, 2008), which the colour-blind tell apart. In grey print
they are close to each other: whatever differs in colour differs in marker, line or hatch too. The global
style of matplotlib is left alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

BLUE, VERMILION = "#0072B2", "#D55E00"
"""Of what was observed; of what is missing, imputed, or otherwise to be looked at."""
PALE_BLUE = "#C6DDEC"
"""The blue of areas, much lighter than vermilion in grey print."""
REFERENCE = "0.4"
"""Lines that others are compared with."""
SHADE = "0.85"
"""What stands behind everything else."""

LARGEST_FIGURE = 16.0
"""Inches that no side of a new figure exceeds."""

_ELLIPSIS = "…"
_LETTERS_PER_INCH = 14.0


def axes_or_new(ax: Axes | None, width: float = 6.0, height: float = 3.6) -> Axes:
    """The axes given, or those of a new figure of so many inches."""
    if ax is not None:
        return ax
    from matplotlib import pyplot as plt

    size = min(width, LARGEST_FIGURE), min(height, LARGEST_FIGURE)
    return plt.subplots(figsize=size, layout="constrained")[1]


def panels(
    figure: FigureBase | None, n: int, *, across: int, width: float, height: float, **shared: Any
) -> NDArray[Any]:
    """Axes of n panels, `[n]`, in rows of so many, on a figure or a new one of so many inches per panel."""
    from matplotlib import pyplot as plt

    across = min(n, across)
    down = math.ceil(n / across)
    if figure is None:
        figure = plt.figure(figsize=(width * across, height * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, **shared).ravel()
    for ax in grid[n:]:
        ax.remove()
    return np.asarray(grid[:n])


def tidy(ax: Axes) -> Axes:
    """The axes without the two sides of the frame that measure nothing."""
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def text(label: Hashable, most: int = 24) -> str:
    """A label in at most so many characters of one line, none of which matplotlib takes for mathematics."""
    whole = " ".join(str(label).split())
    short = whole if len(whole) <= most else whole[: most - 1] + _ELLIPSIS
    return re.sub(r"(?<!\\)\$", r"\\$", short)


def percent(share: float) -> str:
    """A share in words: "12 %", "0.4 %", "<0.1 %"."""
    if 0 < share < 0.001:
        return "<0.1 %"
    if 0.999 < share < 1:
        return ">99.9 %"
    return f"{100 * share:.1f} %" if 0 < share < 0.01 or 0.99 < share < 1 else f"{100 * share:.0f} %"


def spread_out(n: int, most: int) -> NDArray[np.intp]:
    """At most so many of n positions, if any, evenly apart, the first and the last among them."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(np.intp))


def name_ticks(
    ax: Axes, axis: Literal["x", "y"], positions: Sequence[float] | NDArray[Any], names: Sequence[Hashable]
) -> None:
    """Names at positions, so many that they can be read; long ones across are turned."""
    step = -(-len(names) // (50 if axis == "x" else 40)) or 1
    labels = [text(name) for name in names[::step]]
    at = [float(position) for position in positions[::step]]
    if axis == "y":
        ax.set_yticks(at, labels)
        return
    ax.set_xticks(at, labels)
    room = _LETTERS_PER_INCH * ax.get_window_extent().width / ax.figure.dpi
    if (max(map(len, labels), default=0) + 1) * len(labels) <= room:
        return
    if len(labels) > 20:
        ax.tick_params("x", labelsize="small", labelrotation=90)
        return
    for label in ax.get_xticklabels():
        label.set(rotation=40, ha="right", rotation_mode="anchor")
