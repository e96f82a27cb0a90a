import pandas as pd

from pyro_mgp import ampute, plots

penguins = pd.read_csv("examples/data/penguins.csv")
together = [["bill_length_mm", "bill_depth_mm"], ["body_mass_g"], ["sex"]]
table = ampute(penguins, 0.4, patterns=together, random_state=0)
plots.plot_missingness(table)
