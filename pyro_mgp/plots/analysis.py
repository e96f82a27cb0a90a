"""Plots of pooled analyses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from pyro_mgp.plots._style import (
    BLUE,
    REFERENCE,
    SHADE,
    VERMILION,
    axes_or_new,
    legend_above,
    name_ticks,
    tidy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from pyro_mgp.analysis.pooling import Pooled


def plot_tipping_point(scan: pd.DataFrame, ax: Axes | None = None, *, null: float = 0.0) -> Axes:
    """Plot the pooled estimate and its interval against the shift; squares mark a changed conclusion.

    Args:
        scan: Result of `tipping_point`.
        ax: Axes to draw on, which are returned; None for new axes.
        null: Null value of the estimate, drawn as a horizontal line.
    """
    ax = axes_or_new(ax)
    ax.axhline(null, color=REFERENCE, linewidth=1, linestyle="--")
    ax.axvline(0.0, color=SHADE, linewidth=6, zorder=0)
    for tipped, colour, marker, name in (
        (False, BLUE, "o", "same conclusion as without a shift"),
        (True, VERMILION, "s", "changed conclusion"),
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


def plot_fmi(pooled: Pooled, ax: Axes | None = None) -> Axes:
    """Plot the fraction of missing information (fmi) and λ of each coefficient.

    Discs are fmi; squares are λ, the share of the variance that is due to missing cells. fmi also includes
    the uncertainty of the variance between m imputations: if the two are far apart, increase m.

    Args:
        pooled: Pooled estimates.
        ax: Axes to draw on, which are returned; None for new axes.

    Example:
        >>> from matplotlib.figure import Figure
        >>> from pyro_mgp.analysis.pooling import pool_estimates
        >>> ax = plot_fmi(pool_estimates([[1.2], [1.5]], [[0.04], [0.05]], ["x"]), Figure().subplots())
        >>> [line.get_label() for line in ax.lines]
        ['fmi', 'λ']
    """
    table = pooled.table
    rows = np.arange(len(table))
    ax = axes_or_new(ax, 6.0, 1.4 + 0.28 * len(table))
    ax.hlines(rows, 0, 1, color=SHADE, linewidth=0.8, zorder=0)
    ax.hlines(rows, table["lambda"], table["fmi"], color=VERMILION, linewidth=1.5, zorder=1)
    ax.plot(table["fmi"], rows, "o", color=VERMILION, markersize=7, label="fmi")
    ax.plot(table["lambda"], rows, "s", color=BLUE, markerfacecolor="white", markersize=5, label="λ")
    name_ticks(ax, "y", rows, table.index.tolist())
    ax.set(xlim=(0, 1), ylim=(len(table) - 0.4, -0.6))
    ax.set_xlabel(f"share due to missing cells (m = {pooled.m})")
    legend_above(ax, "right")
    return tidy(ax)
