import pandas as pd

from pyro_mgp import MGPImputer, ampute, plots

penguins = pd.read_csv("examples/data/penguins.csv", usecols=["species", "body_mass_g", "sex"])
table = ampute(penguins, 0.4, patterns=[["body_mass_g"], ["sex"]], random_state=0)
draws = MGPImputer(random_state=0, progress=False).fit(table).impute(m=10)
plots.plot_densities(draws, ["body_mass_g", "sex"])
