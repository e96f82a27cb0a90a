import numpy as np
import pandas as pd
from statsmodels.formula.api import ols

from pyro_mgp import AfterDropout, MGPImputer, plots, tipping_points

drug, (y, noise) = np.arange(120) % 2, np.random.default_rng(0).normal(0, 8, (2, 120))
trial = pd.DataFrame({"drug": drug, "first": y, "last": np.where(y > 6, np.nan, y - 12 * drug + noise)})
after = AfterDropout(["first", "last"], arm="drug", reference=0)
imputer = MGPImputer(**after.settings, random_state=0, progress=False).fit(trial)
scan = tipping_points(imputer, lambda t: ols("last ~ drug", t).fit(), after, [5, 10], [-5, 5], "drug", trial)
plots.plot_tipping_points(scan)
