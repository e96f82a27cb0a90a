import pandas as pd

from pyro_mgp import MGPImputer, ampute, plots

columns = ["species", "flipper_length_mm", "body_mass_g", "sex"]
penguins = pd.read_csv("examples/data/penguins.csv", usecols=columns)
table = ampute(penguins, 0.5, patterns=[["flipper_length_mm"], ["sex"]], random_state=0)
draws = MGPImputer(random_state=0, progress=False).fit(table).impute(m=5)
plots.plot_fmi(draws.fit("body_mass_g ~ species + sex + flipper_length_mm"))
