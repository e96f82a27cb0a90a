import pandas as pd

from pyro_mgp import MGPImputer, plots

columns = ["species", "bill_length_mm", "flipper_length_mm", "body_mass_g", "sex"]
penguins = pd.read_csv("examples/data/penguins.csv", usecols=columns)[::2]
penguins.iloc[::5, 1:] = None
imputer = MGPImputer(random_state=0, progress=False).fit(penguins)
plots.plot_value_of(imputer.value_of(penguins, "body_mass_g", by="column", m=100))
