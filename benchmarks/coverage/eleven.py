"""Eleven columns of five kinds, seven of them with 43 % missing cells, and interactions with a factor.

    z1, ..., z4 ~ N(0, 1) with correlations of .4
    c = a, b or c by thresholds at ±.6 of .7 z1 + N(0, 1)
    d = p < q < r < s by thresholds at -.8, 0 and .8 of .5 z2 + .5 z3 + N(0, 1)
    u = [z3 + .5 [c = b] + N(0, 1) > 0],   v = [z2 - .5 z4 + N(0, 1) > .3]
    s ~ Poisson(exp(.5 + .3 z4)),   w = .5 z1 + .3 z4² + N(0, 1)
    y = z1 + .5 z2 - .5 z3 + .4 w + .8 u - .6 v + .5 [c = b] - .5 [c = c] + z1 [c = b] - z1 [c = c]
        + .6 z2 u - .5 z3 v + .3 z1 z2 + .3 z3² + N(0, 1.44)

z1, z2, z3, c, u, v and w are each missing with a probability that rises or falls, at random, with the sum of
standardised y and z4, which are both complete.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit

from benchmarks.coverage.design import Design, Numbers, Table, equicorrelated, regression

_FACTOR, _LEVELS = ["a", "b", "c"], ["p", "q", "r", "s"]
_INCOMPLETE = ["z1", "z2", "z3", "c", "u", "v", "w"]
_RATE, _SLOPE = 0.43, 0.8


def draw(g: np.random.Generator, n: int) -> Table:
    """Draw a table of n rows."""
    z = equicorrelated(g, n, 4, 0.4)
    complete = pd.DataFrame(z, columns=["z1", "z2", "z3", "z4"])
    level = np.digitize(0.7 * z[:, 0] + g.normal(size=n), [-0.6, 0.6])
    rank = np.digitize(0.5 * z[:, 1] + 0.5 * z[:, 2] + g.normal(size=n), [-0.8, 0, 0.8])
    complete["c"] = pd.Categorical(np.array(_FACTOR)[level], _FACTOR)
    complete["d"] = pd.Categorical(np.array(_LEVELS)[rank], _LEVELS, ordered=True)
    u = z[:, 2] + 0.5 * (level == 1) + g.normal(size=n) > 0
    v = z[:, 1] - 0.5 * z[:, 3] + g.normal(size=n) > 0.3
    complete["u"], complete["v"] = pd.array(u, dtype="boolean"), pd.array(v, dtype="boolean")
    complete["s"] = g.poisson(np.exp(0.5 + 0.3 * z[:, 3]))
    complete["w"] = 0.5 * z[:, 0] + 0.3 * z[:, 3] ** 2 + g.normal(size=n)
    mean = sum(_TRUTH[name] * values for name, values in _regressors(complete).items())
    complete["y"] = mean + 1.2 * g.normal(size=n)
    score = (complete["y"] - complete["y"].mean()) / complete["y"].std() + complete["z4"]
    frame = complete.copy()
    for name in _INCOMPLETE:
        frame[name] = frame[name].mask(g.random(n) < _rates(g.choice([-1, 1]) * score.to_numpy()))
    return Table(frame, complete)


def _rates(score: Numbers) -> Numbers:
    """Return probabilities `[n]` that rise with a score, of mean `_RATE`."""
    rates = expit(_SLOPE * score)
    return np.asarray(rates * _RATE / rates.mean())


def _regressors(frame: pd.DataFrame) -> dict[str, pd.Series[Any]]:
    b, c = (frame["c"].astype(str).eq(level).astype(float) for level in ("b", "c"))
    z1, z2, z3, u, v = (frame[name].astype(float) for name in ("z1", "z2", "z3", "u", "v"))
    named = {"z1": z1, "z2": z2, "z3": z3, "w": frame["w"], "u": u, "v": v, "c=b": b, "c=c": c}
    named |= {"z1:c=b": z1 * b, "z1:c=c": z1 * c, "z2:u": z2 * u, "z3:v": z3 * v}
    return named | {"z1:z2": z1 * z2, "z3²": z3**2}


_TRUTH = {
    "intercept": 0.0, "z1": 1.0, "z2": 0.5, "z3": -0.5, "w": 0.4, "u": 0.8, "v": -0.6, "c=b": 0.5,
    "c=c": -0.5, "z1:c=b": 1.0, "z1:c=c": -1.0, "z2:u": 0.6, "z3:v": -0.5, "z1:z2": 0.3, "z3²": 0.3,
}  # fmt: skip

DESIGNS: dict[str, Design] = {
    f"eleven_{n}": Design(functools.partial(draw, n=n), regression(_regressors), 5, _TRUTH)
    for n in (2000, 10_000)
}
"""Designs by name; the number is that of the rows."""
