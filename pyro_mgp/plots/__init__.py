"""Plots of missing data, imputations, fitted models and pooled analyses.

A plot of one panel draws on the axes `ax`, or on those of a new figure, and returns them. A plot of several
panels draws on `figure` (a figure or subfigure), or on a new one, and returns the axes of its panels. `draws`
are imputations, and `frame` is a table with missing cells. `n` is the largest number of patterns, points or
cells to show, at least 1; if there are more, a note gives their number. Columns that are unknown, or have
nothing to show, are a ValueError. The package needs matplotlib, and raises an ImportError without it.
"""

from pyro_mgp.plots.draws import plot_cells, plot_densities, plot_scatter, plot_strips
from pyro_mgp.plots.missing import plot_flux, plot_missingness, plot_patterns
from pyro_mgp.plots.model import (
    plot_calibration,
    plot_fmi,
    plot_loss,
    plot_pit,
    plot_relevance,
    plot_tipping_point,
)

__all__ = [
    "plot_calibration",
    "plot_cells",
    "plot_densities",
    "plot_flux",
    "plot_fmi",
    "plot_loss",
    "plot_missingness",
    "plot_patterns",
    "plot_pit",
    "plot_relevance",
    "plot_scatter",
    "plot_strips",
    "plot_tipping_point",
]
