"""Survival analysis with an incomplete covariate: the design of Shah et al. (CALIBERrfimpute, 2014).

200 rows, x1, x2 ~ N(0, 1), x3 = (x1 + x2 - x1 x2) / 2 + N(0, 1), hazard exp((x1 + x2 + x3) / 2), and
censoring times that are uniform up to the median of the survival times. 20 % of x3 are missing, more probably
with large x1, x2, cumulative hazard, and after an event. The estimand is the log hazard ratio of x3 in a Cox
regression.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from benchmarks.coverage.design import Analysis, Design, Table, missing_at_random
from pyro_mgp.data.survival import Survival

_ROWS, _M, _LOG_RATIO, _RATE, _SLOPE = 200, 10, 0.5, 0.2, 0.1
_COVARIATES = ["x1", "x2", "x3"]


def draw(g: np.random.Generator) -> Table:
    """Draw a table."""
    x1, x2 = g.normal(size=(2, _ROWS))
    x3 = 0.5 * (x1 + x2 - x1 * x2) + g.normal(size=_ROWS)
    survival = g.exponential(np.exp(-_LOG_RATIO * (x1 + x2 + x3)))
    censoring = g.uniform(0, np.median(survival), _ROWS)
    complete = pd.DataFrame({"x1": x1, "x2": x2, "x3": x3})
    complete["time"], complete["event"] = np.minimum(survival, censoring), survival <= censoring
    hazard = Survival("time", "event").learn(complete).cumulative_hazard(complete)
    score = _SLOPE * (x1 + x2 + hazard + complete["event"].to_numpy())
    missing = missing_at_random(g, score, _RATE)
    return Table(complete.assign(x3=np.where(missing, np.nan, x3)), complete)


def analyse(frame: pd.DataFrame) -> Analysis:
    """Estimate the log hazard ratio of x3."""
    from statsmodels.duration.hazard_regression import PHReg  # in the extra `models` only

    columns = (frame[name].to_numpy(dtype=np.float64) for name in ("time", "event"))
    time, event = columns
    fit = PHReg(time, frame[_COVARIATES].to_numpy(dtype=np.float64), status=event).fit()
    df = float(event.sum()) - len(_COVARIATES)
    return Analysis(["x3"], fit.params[2:], np.square(fit.bse[2:]), df=df)


DESIGNS: dict[str, Design] = {
    "shah": Design(draw, analyse, _M, {"x3": _LOG_RATIO}, options={"survival": ("time", "event")})
}
"""The design by name."""
