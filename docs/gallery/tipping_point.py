import pandas as pd
from statsmodels.formula.api import ols

from pyro_mgp import MGPImputer, plots, tipping_point

birds = pd.read_csv("examples/data/penguins.csv").dropna().query("species != 'Gentoo'")
birds.loc[(birds["species"] == "Chinstrap") & (birds.index % 2 == 0), "flipper_length_mm"] = None


def analysis(table):
    return ols("flipper_length_mm ~ species", table).fit()


imputer = MGPImputer(random_state=0, progress=False).fit(birds)
scan = tipping_point(imputer, analysis, "flipper_length_mm", range(-12, 1, 2), "species[T.Chinstrap]")
plots.plot_tipping_point(scan)
