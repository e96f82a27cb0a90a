import pandas as pd

from pyro_mgp import MGPImputer, ampute, plots

columns = ["species", "flipper_length_mm", "body_mass_g"]
penguins = pd.read_csv("examples/data/penguins.csv", usecols=columns).dropna()
table = ampute(penguins, 0.2, patterns=[["body_mass_g"]], random_state=0)
draws = MGPImputer(random_state=0, progress=False).fit(table).impute(m=10)
plots.plot_strips(draws, "body_mass_g")
