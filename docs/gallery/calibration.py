import numpy as np
import pandas as pd

from pyro_mgp import MGPImputer, calibrate, plots

x, *noise = np.random.default_rng(0).normal(size=(3, 400))
table = pd.DataFrame({"x": x, "normal": x + noise[0], "skewed": np.exp(x + noise[1])})
imputer = MGPImputer(warp=False, random_state=0, progress=False)
calibration = calibrate(imputer, table, columns=["normal", "skewed"], share=0.5, progress=False)
plots.plot_calibration(calibration, ["normal", "skewed"], overall=False)
