"""Pictures of tables with holes, of imputations and of what follows from them; needs matplotlib.

Axes in, Axes out: a picture of one panel draws on `ax`, or on that of a new figure, and returns it; one of
several panels draws on `figure` (a figure or subfigure), or a new one, and returns an array of Axes.
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
