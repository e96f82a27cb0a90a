"""Pictures of imputations and of what follows from them. Axes in, Axes out; needs matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which the colour-blind tell apart; dark enough for print in grey.
_LINE, _TIPPED = "#0072B2", "#D55E00"


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
    from matplotlib import pyplot as plt

    if ax is None:
        _, ax = plt.subplots(figsize=(6, 3.6), layout="constrained")
    ax.axhline(null, color="0.4", linewidth=1, linestyle="--")
    ax.axvline(0.0, color="0.85", linewidth=6, zorder=0)
    for tipped, colour, marker, name in (
        (False, _LINE, "o", "same conclusion as without a shift"),
        (True, _TIPPED, "s", "another conclusion"),
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
    ax.spines[["top", "right"]].set_visible(False)
    return ax
