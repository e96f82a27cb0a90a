"""Plots of the fitted model: the loss during training, and which column informs which."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pyro_mgp.plots._style import BLUE, REFERENCE, VERMILION, axes_or_new, name_ticks, panels, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

    from pyro_mgp.imputer import MGPImputer
    from pyro_mgp.inference.training import History

# Largest number of columns at which entries are written into the matrix.
_MOST_WRITTEN = 12


def plot_loss(training: MGPImputer | History, *, figure: FigureBase | None = None) -> NDArray[Any]:
    """Plot the loss at each training step, and below it the score of held-out cells if there are any.

    Args:
        training: A fitted imputer, or its `history_`.
        figure: Figure to draw on; None for a new one.

    Returns:
        Axes of the negative ELBO, and of the mean predictive log density of held-out cells, in which a line
        marks the step whose parameters were kept. Only the first if no cells were held out.

    Raises:
        ValueError: If the history has no steps.

    Example:
        >>> from matplotlib.figure import Figure
        >>> from pyro_mgp.inference.training import History
        >>> history = History(loss=[9.0, 5.0, 4.0], validation=[-1.2, -0.9], steps=[1, 3], best_step=3)
        >>> loss, score = plot_loss(history, figure=Figure())
        >>> score.lines[0].get_ydata().tolist()
        [-1.2, -0.9]
    """
    history: History = getattr(training, "history_", training)
    if not history.loss:
        raise ValueError("nothing was trained: the history holds no steps")
    scored = bool(history.validation)
    axes = panels(figure, 1 + scored, across=1, width=6.0, height=2.4 if scored else 3.2, sharex=True)
    steps = np.arange(1, len(history.loss) + 1)
    axes[0].plot(steps, history.loss, color=BLUE, linewidth=1.5, marker="." if len(steps) <= 100 else "")
    axes[0].set_ylabel("loss (nats)")
    if scored:
        axes[1].plot(
            history.steps, history.validation, color=VERMILION, linewidth=1.2, marker="s", markersize=4
        )
        axes[1].set_ylabel("held-out log density\n(nats per cell)")
        for ax in axes:
            ax.axvline(history.best_step, color=REFERENCE, linewidth=1, linestyle="--", label="kept")
        axes[1].legend(loc="best", frameon=False)
    axes[-1].set_xlabel("training step")
    axes[-1].xaxis.get_major_locator().set_params(integer=True)
    for ax in axes:
        tidy(ax)
    return axes


def plot_relevance(relevance: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Plot which column informs which: one row per modelled column, dark squares for relevant inputs.

    Compare columns within a row, since rows of labels and counts have other units. Values are written into
    the squares of up to 12 columns. Crosses mark columns that are not inputs.

    Args:
        relevance: Result of `relevance.relevance`.
        ax: Axes to draw on, which are returned; None for new axes. A colour bar takes some of their space.

    Raises:
        ValueError: If no column was modelled.

    Example:
        >>> from matplotlib.figure import Figure
        >>> table = pd.DataFrame({"x": [0.9], "z": [0.1], "y": [np.nan]}, index=["y"])
        >>> ax = plot_relevance(table, Figure().subplots())
        >>> [text.get_text() for text in ax.texts]
        ['0.90', '0.10', '×']
    """
    if relevance.empty:
        raise ValueError("no column was modelled: there is no relevance to plot")
    values = relevance.to_numpy(dtype=np.float64)
    n_rows, n_columns = values.shape
    ax = axes_or_new(ax, 3.4 + 0.5 * n_columns, 1.8 + 0.42 * n_rows)
    largest = float(np.nanmax(values, initial=0.0)) or 1.0
    image = ax.pcolormesh(values, cmap="Blues", vmin=0.0, vmax=largest, edgecolor="0.9")
    image.set_linewidth(1.0 if n_columns <= 40 else 0.0)
    ax.invert_yaxis()
    name_ticks(ax, "x", np.arange(n_columns) + 0.5, relevance.columns.tolist())
    name_ticks(ax, "y", np.arange(n_rows) + 0.5, relevance.index.tolist())
    ax.set_xlabel("informed by")
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    if n_columns <= _MOST_WRITTEN:
        _write_in(ax, values, largest)
    else:
        rows, columns = np.nonzero(np.isnan(values))
        ax.plot(columns + 0.5, rows + 0.5, "x", color=REFERENCE, markersize=3)
    ax.figure.colorbar(image, ax=ax, label="relevance", pad=0.02)
    return ax


def _write_in(ax: Axes, values: NDArray[np.float64], largest: float) -> None:
    """Write values into the squares, in white on dark ones."""
    for (i, j), value in np.ndenumerate(values):
        colour = REFERENCE if np.isnan(value) else "white" if value > 0.55 * largest else "black"
        words = "×" if np.isnan(value) else f"{value:.2f}"
        ax.text(j + 0.5, i + 0.5, words, ha="center", va="center", fontsize="small", color=colour)
