import numpy as np
import pandas as pd

from pyro_mgp import MGPImputer, plots
from pyro_mgp.analysis.variance_shares import variance_shares

x, *noise = np.random.default_rng(0).normal(size=(4, 300))
table = pd.DataFrame({"line": x + noise[0], "curve": x**2 + noise[1], "waves": np.sin(8 * x) + noise[2] / 3})
table = table.mask(np.random.default_rng(1).random(table.shape) < 0.1).assign(x=x)
imputer = MGPImputer(random_state=0, progress=False).fit(table)
plots.plot_variance_shares(variance_shares(imputer))
