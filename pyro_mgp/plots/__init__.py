"""Plots of missing data, imputations, fitted models and pooled analyses.

A plot of one panel draws on the axes `ax`, or on those of a new figure, and returns them. A plot of several
panels draws on `figure` (a figure or subfigure), or on a new one, and returns the axes of its panels. `draws`
are imputations, and `frame` is a table with missing cells. `n` is the largest number of patterns, points or
cells to show, at least 1; if there are more, a note gives their number. Columns that are unknown, or have
nothing to show, are a ValueError. Colours suit the background of matplotlib's current style, light or dark.
Without matplotlib, importing `pyro_mgp.plots` raises an ImportError.
"""

from typing import TYPE_CHECKING

from pyro_mgp.plots.draws import plot_cells as plot_cells
from pyro_mgp.plots.draws import plot_densities as plot_densities
from pyro_mgp.plots.draws import plot_scatter as plot_scatter
from pyro_mgp.plots.draws import plot_strips as plot_strips
from pyro_mgp.plots.missing import plot_flux as plot_flux
from pyro_mgp.plots.missing import plot_missingness as plot_missingness
from pyro_mgp.plots.missing import plot_patterns as plot_patterns
from pyro_mgp.plots.model import plot_calibration as plot_calibration
from pyro_mgp.plots.model import plot_energy_scores as plot_energy_scores
from pyro_mgp.plots.model import plot_fmi as plot_fmi
from pyro_mgp.plots.model import plot_loss as plot_loss
from pyro_mgp.plots.model import plot_pit as plot_pit
from pyro_mgp.plots.model import plot_relevance as plot_relevance
from pyro_mgp.plots.model import plot_tipping_point as plot_tipping_point
from pyro_mgp.plots.model import plot_tipping_points as plot_tipping_points
from pyro_mgp.plots.model import plot_value_of as plot_value_of
from pyro_mgp.plots.model import plot_variance_shares as plot_variance_shares

if not TYPE_CHECKING:  # the functions, without the modules
    __all__ = [name for name in dir() if name.startswith("plot_")]
