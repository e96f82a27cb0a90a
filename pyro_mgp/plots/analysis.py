"""Pictures of what follows from imputations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from pyro_mgp.plots._style import BLUE, REFERENCE, SHADE, VERMILION, axes_or_new, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_tipping_point(scan: pd.DataFrame, ax: Axes | None = None, *, null: float = 0.0) -> Axes:
    """The pooled estimate and its interval, shift by shift; orange squares where the conclusion is another.

    Args:
        scan: What `tipping_point` gives.
        ax: Where to draw; None for new axes.
        null: What the estimate is compared with: a horizontal line.

    Returns:
        The axes.

    Raises:
        ImportError: matplotlib is not installed.
    """
    ax = axes_or_new(ax)
    ax.axhline(null, color=REFERENCE, linewidth=1, linestyle="--")
    ax.axvline(0.0, color=SHADE, linewidth=6, zorder=0)
    for tipped, colour, marker, name in (
        (False, BLUE, "o", "same conclusion as without a shift"),
        (True, VERMILION, "s", "another conclusion"),
    ):
        rows = scan[scan["tipped"] == tipped]
        if len(rows):
            reach = [rows["estimate"] - rows["low"], rows["high"] - rows["estimate"]]
            ax.errorbar(
                rows["delta"], rows["estimate"], reach, fmt=marker, color=colour, capsize=3, label=name
            )
    ax.set_xlabel("shift of the imputed cells (δ)")
    ax.set_ylabel("pooled estimate, with its interval")
    ax.legend(frameon=False, loc="best")
    return tidy(ax)
