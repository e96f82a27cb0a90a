"""Pictures of tables with holes, of imputations and of what follows from them; needs matplotlib.

Axes in, Axes out: a picture of one panel draws on `ax`, or on that of a new figure, and returns it; one of
several panels draws on `figure` (a figure or subfigure), or a new one, and returns an array of Axes.
"""

from pyro_mgp.plots.analysis import plot_tipping_point
from pyro_mgp.plots.missing import plot_flux, plot_missingness, plot_patterns

__all__ = ["plot_flux", "plot_missingness", "plot_patterns", "plot_tipping_point"]
