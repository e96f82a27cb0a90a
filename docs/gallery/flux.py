import pandas as pd

from pyro_mgp import ampute, plots

penguins = pd.read_csv("examples/data/penguins.csv").drop(columns="year").dropna()
together = [["bill_length_mm", "bill_depth_mm"], ["body_mass_g"], ["body_mass_g", "sex"]]
table = ampute(penguins, 0.7, patterns=together, frequencies=[0.2, 0.2, 0.6], random_state=0)
plots.plot_flux(table)
