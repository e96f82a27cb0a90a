"""Quantities that papers report, of a table of 300 rows in which z is missing in 26 %, and g in 21 % of rows.

    x ~ N(0, 1),  z = .5 x + N(0, .75),  g = 1 with probability expit(.5 z)
    yes with probability expit(-.3 + .6 x + .5 z - .4 g)
    time ~ exponential with rate exp(.4 z + .5 g), censored by an independent exponential time of mean 2

z and g are missing more probably where x is large, z also where the outcome is yes. Estimands, on the scales
on which they are pooled: average marginal effects of z and g on the probability of yes (logistic regression
on x, z and g), its logit at x = 1, z = 1, g = 1, the probability of survival to time .5 where g is one
(log-log), R² of z on x and g (Fisher), and the area under the curve of z for yes (logit).
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import special

from benchmarks.coverage.design import Analysis, Design, Numbers, Table, missing_at_random
from pyro_mgp.analysis import quantities
from pyro_mgp.analysis.pooled_regression import average_effects
from pyro_mgp.analysis.regression import Regression

_ROWS, _M = 300, 20
_PLACE = pd.DataFrame({"x": [1.0], "z": [1.0], "g": [True]})
_LOGISTIC = Regression("yes ~ x + z + g", "glm", "binomial")
_OTHERS = {
    "S(.5)": quantities.survival("time", "event", 0.5),
    "R²": quantities.r_squared("z ~ x + g"),
    "AUC": quantities.area_under_curve("z", "yes"),
}


def _complete(g: np.random.Generator, n: int) -> pd.DataFrame:
    x = g.normal(size=n)
    z = 0.5 * x + 0.75**0.5 * g.normal(size=n)
    group = g.random(n) < special.expit(0.5 * z)
    yes = g.random(n) < special.expit(-0.3 + 0.6 * x + 0.5 * z - 0.4 * group)
    time, limit = g.exponential(np.exp(-0.4 * z - 0.5 * group)), g.exponential(2.0, n)
    parts = {"time": np.minimum(time, limit), "event": (time <= limit).astype(int)}
    return pd.DataFrame({"x": x, "z": z, "g": group, "yes": yes.astype(int), **parts})


def draw(g: np.random.Generator) -> Table:
    """Draw a table."""
    complete = _complete(g, _ROWS)
    no_z = missing_at_random(g, 0.5 * complete["x"].to_numpy() + complete["yes"].to_numpy() - 0.5, 0.26)
    no_g = missing_at_random(g, complete["x"].to_numpy(), 0.21)
    frame = complete.astype({"g": "boolean"})
    return Table(frame.assign(z=complete["z"].mask(no_z), g=frame["g"].mask(no_g)), complete)


def analyse(frame: pd.DataFrame) -> Analysis:
    """Estimate the quantities on the scales on which they are pooled."""
    frame = frame.astype({"g": bool})
    fit = _LOGISTIC(frame)
    effects, covariance = average_effects(fit, frame, ["z", "g"])
    place = fit.matrix(_PLACE)[0]
    names = ["AME of z", "AME of g", "logit"]
    estimates = [*effects, place @ fit.params.to_numpy()]
    variances = [*np.diag(covariance), place @ fit.covariance.to_numpy() @ place]
    for name, quantity in _OTHERS.items():
        found = quantity(frame[frame["g"]] if name == "S(.5)" else frame)
        names.append(name)
        estimates += [*found.on_scale]
        variances += [*found.variances]
    return Analysis(names, np.array(estimates), np.array(variances))


def _truth() -> dict[str, float]:
    """Return the true values, by sums over a grid of x and z."""
    x, z = np.meshgrid(np.linspace(-6, 6, 241), np.linspace(-6, 6, 961), indexing="ij")
    density = np.exp(-0.5 * (x**2 + (z - 0.5 * x) ** 2 / 0.75))
    density /= density.sum()
    g = special.expit(0.5 * z)

    def mean(values: Numbers, weights: Numbers = density) -> float:
        return float((weights * values).sum() / weights.sum())

    # Probabilities of yes without and with g.
    off = -0.3 + 0.6 * x + 0.5 * z
    without, with_g = special.expit(off), special.expit(off - 0.4)
    slope = 0.5 * (g * with_g * (1 - with_g) + (1 - g) * without * (1 - without))
    S = mean(np.exp(-0.5 * np.exp(0.4 * z + 0.5)), density * g)
    # The regression of z on x and g, from their second moments.
    p = mean(g)
    covariance = np.array([[1.0, mean(g * x)], [mean(g * x), p * (1 - p)]])
    with_z = np.array([0.5, mean(g * z)])
    of_z = [(density * part).sum(0) for part in (g * with_g + (1 - g) * without, np.ones_like(z))]
    yes, no = of_z[0], of_z[1] - of_z[0]
    area = float(yes @ (np.cumsum(no) - no / 2) / yes.sum() / no.sum())
    return {
        "AME of z": mean(slope),
        "AME of g": mean(with_g - without),
        "logit": -0.3 + 0.6 + 0.5 - 0.4,
        "S(.5)": float(np.log(-np.log(S))),
        "R²": float(np.arctanh(np.sqrt(with_z @ np.linalg.solve(covariance, with_z)))),
        "AUC": float(special.logit(area)),
    }


DESIGNS: dict[str, Design] = {
    "reported": Design(draw, analyse, _M, _truth(), options={"survival": ("time", "event")})
}
"""The designs by name."""
