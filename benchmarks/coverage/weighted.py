"""A sample with unequal probabilities, which depend on what the table does not hold.

    x ~ N(0, 1),  d = .5 x + N(0, 1),  y = 1 + .5 x + .7 d + N(0, 1),  z = .5 y + N(0, 1)

From 20,000 such rows some 300 are sampled with probabilities proportional to the logistic function of
-1 + .8 d, whose inverses are the weights. d is not in the table; y is missing in some 40 % of the rows, more
probably with a large x, and z in 15 %. Estimands are the means of y and z, and the slope of y on x, in the
population: weighted means and least squares, with their linearisation variances.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.special import expit

from benchmarks.coverage.design import Analysis, Design, Table, missing_at_random

_POPULATION, _SAMPLE, _M = 20_000, 300, 20


def draw(g: np.random.Generator) -> Table:
    """Draw a sample, with its weights in the first column."""
    x, d, of_y, of_z = g.normal(size=(4, _POPULATION))
    d = 0.5 * x + d
    y = 1 + 0.5 * x + 0.7 * d + of_y
    probability = expit(-1 + 0.8 * d)
    probability *= _SAMPLE / probability.sum()
    population = pd.DataFrame({"w": 1 / probability, "x": x, "y": y, "z": 0.5 * y + of_z})
    complete = population[g.random(_POPULATION) < probability].reset_index(drop=True)
    no_y = missing_at_random(g, 0.8 * complete["x"].to_numpy(), 0.4)
    no_z = g.random(len(complete)) < 0.15
    return Table(complete.assign(y=complete["y"].mask(no_y), z=complete["z"].mask(no_z)), complete)


def analyse(frame: pd.DataFrame) -> Analysis:
    """Estimate weighted means of y and z, and the weighted slope of y on x."""
    import statsmodels.api as sm

    weights, ones = frame["w"].to_numpy(), np.ones(len(frame))
    parts = (("y", ones), ("z", ones), ("y", np.column_stack([ones, frame["x"]])))
    fits = [sm.WLS(frame[name].to_numpy(), X, weights).fit(cov_type="HC0") for name, X in parts]
    estimates, errors = np.array([(fit.params[-1], fit.bse[-1]) for fit in fits]).T
    return Analysis(list(_TRUTH), estimates, errors**2, df=len(frame) - 1)


_TRUTH = {"mean_y": 1.0, "mean_z": 0.5, "slope": 0.85}

DESIGNS: dict[str, Design] = {"weighted": Design(draw, analyse, _M, _TRUTH, options={"weights": "w"})}
"""The design by name."""
