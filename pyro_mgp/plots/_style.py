"""What all pictures share: colours, new axes, labels that fit.

Colours are Okabe and Ito's (*Color Universal Design*, 2008), which the colour-blind tell apart. In grey print
they are close to each other: whatever differs in colour differs in marker, line or hatch too. The global
style of matplotlib is left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, VERMILION = "#0072B2", "#D55E00"
REFERENCE = "0.4"
"""Lines that others are compared with."""
SHADE = "0.85"
"""What stands behind everything else."""


def axes_or_new(ax: Axes | None, width: float = 6.0, height: float = 3.6) -> Axes:
    """The axes given, or those of a new figure of so many inches."""
    if ax is not None:
        return ax
    from matplotlib import pyplot as plt

    return plt.subplots(figsize=(width, height), layout="constrained")[1]


def tidy(ax: Axes) -> Axes:
    """The axes without the two sides of the frame that measure nothing."""
    ax.spines[["top", "right"]].set_visible(False)
    return ax
