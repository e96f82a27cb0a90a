import pandas as pd
from sklearn.impute import KNNImputer, SimpleImputer

from pyro_mgp import MGPImputer, ampute, energy_scores, plots

columns = ["bill_length_mm", "flipper_length_mm", "body_mass_g"]
penguins = pd.read_csv("examples/data/penguins.csv", usecols=columns)[::3]
table = ampute(penguins, 0.5, patterns=[[column] for column in columns], random_state=0)
imputers = {"means": SimpleImputer(), "neighbours": KNNImputer(), "MGP": MGPImputer(random_state=0)}
plots.plot_energy_scores(energy_scores(imputers, table, m=20, progress=False))
