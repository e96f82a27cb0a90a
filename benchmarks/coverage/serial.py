"""Visits whose deviations are alike at close times: `serial`.

100 patients in two arms, six visits at times of their own in [0, 3]. A biomarker x and an outcome

    y = .3 t + .3 arm + .5 t arm + .5 x + z + e

where z and the smooth part of x are Ornstein-Uhlenbeck processes of range 1 and standard deviation 1, with
correlation .5 between them, and noise of x and e has standard deviation .5. Of each visit x or y may be
missing, more probably with a large y or x.

Estimands are the coefficients of t arm and of x, and that of the last visit's residual in a regression of
residuals on it: all by least squares, with standard errors robust to clusters (Liang and Zeger, 1986).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import integrate

from benchmarks.coverage.design import Analysis, Design, Numbers, Table, missing_at_random

_PATIENTS, _VISITS, _LAST, _M, _RATE = 100, 6, 3.0, 20, 0.6
_OF_T, _OF_ARM, _OF_BOTH, _SLOPE, _CORRELATION, _NOISE = 0.3, 0.3, 0.5, 0.5, 0.5, 0.5


def draw(g: np.random.Generator) -> Table:
    """Draw a table of visits, in long format."""
    patient = np.repeat(np.arange(_PATIENTS), _VISITS)
    times = np.sort(g.uniform(0, _LAST, (_PATIENTS, _VISITS)))
    arm = (g.permutation(_PATIENTS) % 2)[patient].astype(np.float64)
    near = np.linalg.cholesky(np.exp(-np.abs(times[:, :, None] - times[:, None])))
    across = np.linalg.cholesky([[1.0, _CORRELATION], [_CORRELATION, 1.0]])
    smooth = across @ (near @ g.normal(size=(_PATIENTS, _VISITS, 2))).reshape(-1, 2).T
    noisy = smooth + _NOISE * g.normal(size=smooth.shape)
    t, x = times.ravel(), noisy[0]
    y = _OF_T * t + _OF_ARM * arm + _OF_BOTH * t * arm + _SLOPE * x + noisy[1]
    complete = pd.DataFrame({"patient": patient, "t": t, "arm": arm, "x": x, "y": y})
    frame, of_x = complete.copy(), g.random(len(patient)) < 0.5
    for name, rows, cause in (("x", of_x, y), ("y", ~of_x, x)):
        frame.loc[rows & missing_at_random(g, 0.6 * cause, _RATE), name] = np.nan
    return Table(frame, complete)


def _robust(y: Numbers, X: Numbers, clusters: NDArray[np.intp]) -> Any:
    """Fit least squares, with standard errors that are robust to clusters."""
    import statsmodels.api as sm

    return sm.OLS(y, X).fit(cov_type="cluster", cov_kwds={"groups": clusters})


def analyse(frame: pd.DataFrame) -> Analysis:
    """Estimate the coefficients of t arm and x, and of the last visit's residual."""
    patient = frame["patient"].to_numpy()
    t, arm, x, y = (frame[name].to_numpy(dtype=np.float64) for name in ("t", "arm", "x", "y"))
    fit = _robust(y, np.column_stack([np.ones(len(t)), t, arm, t * arm, x]), patient)
    follows = patient[1:] == patient[:-1]
    last = np.column_stack([np.ones(follows.sum()), fit.resid[:-1][follows]])
    of_last = _robust(fit.resid[1:][follows], last, patient[1:][follows])
    estimates, errors = np.append(fit.params[3:], of_last.params[1]), np.append(fit.bse[3:], of_last.bse[1])
    return Analysis(["t:arm", "x", "last"], estimates, errors**2, df=_PATIENTS - 1)


def _truth() -> dict[str, float]:
    """Return the coefficients in an infinite table."""
    further = _CORRELATION / (1 + _NOISE**2)  # of x on z
    smooth = 1 + further**2 - 2 * further * _CORRELATION
    noise = _NOISE**2 * (1 + further**2)
    # Gaps of ordered uniform times, of which they are a share with a beta distribution.
    near, _ = integrate.quad(lambda b: _VISITS * (1 - b) ** (_VISITS - 1) * math.exp(-_LAST * b), 0, 1)
    return {"t:arm": _OF_BOTH, "x": _SLOPE + further, "last": smooth * near / (smooth + noise)}


DESIGNS: dict[str, Design] = {
    "serial": Design(draw, analyse, _M, _truth(), options={"subject": "patient", "time": "t"})
}
"""The design by name."""
