"""Plots of tables with missing cells, of imputations and of analyses of them.

A plot of one panel draws on the axes `ax`, or on those of a new figure, and returns them. A plot of several
panels draws on `figure` (a figure or subfigure), or on a new one, and returns an array of axes. All functions
raise an ImportError if matplotlib is not installed.
"""

from pyro_mgp.plots.analysis import plot_fmi, plot_tipping_point
from pyro_mgp.plots.calibration import plot_calibration, plot_pit
from pyro_mgp.plots.draws import plot_cells, plot_densities, plot_scatter, plot_strips
from pyro_mgp.plots.missing import plot_flux, plot_missingness, plot_patterns
from pyro_mgp.plots.model import plot_loss, plot_relevance

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
