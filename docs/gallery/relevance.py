import pandas as pd

from pyro_mgp import MGPImputer, plots
from pyro_mgp.analysis.relevance import relevance

penguins = pd.read_csv("examples/data/penguins.csv").drop(columns=["island", "sex", "year"])
imputer = MGPImputer(inputs="others", random_state=0, progress=False).fit(penguins)
plots.plot_relevance(relevance(imputer))
