import pandas as pd

from pyro_mgp import MGPImputer, ampute, plots

columns = ["species", "flipper_length_mm", "body_mass_g"]
penguins = pd.read_csv("examples/data/penguins.csv", usecols=columns)
table = ampute(penguins, 0.3, patterns=[["flipper_length_mm"], ["body_mass_g"]], random_state=0)
draws = MGPImputer(random_state=0, progress=False).fit(table).impute(m=10)
plots.plot_scatter(draws, "flipper_length_mm", "body_mass_g", n=40)
