"""Pictures of tables with holes, of imputations and of what follows from them; needs matplotlib.

Axes in, Axes out: a picture of one panel draws on `ax`, or on that of a new figure, and returns it.
"""

from pyro_mgp.plots.analysis import plot_tipping_point

__all__ = ["plot_tipping_point"]
