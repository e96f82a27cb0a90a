"""Numbers, a factor and a boolean, five of them incomplete, with a square and three interactions.

    z1, ..., z4 ~ N(0, 1) with correlations of .5
    g = a, b or c by thresholds at ±.6 of z4 + N(0, 1),   t = [z3 + N(0, 1) > 0]
    y = z1 + .5 z2 + .5 z3² + t - 1.5 z1 [g = b] + z1 [g = c] - 1.5 z2 t + N(0, 1)

z1, z2, z3, g and t are missing with probability .5, .1, .5 by tertile of y + z4, which are both complete.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.coverage.design import Design, Table, equicorrelated, regression

_LEVELS = ["a", "b", "c"]
_INCOMPLETE = ["z1", "z2", "z3", "g", "t"]


def draw(g: np.random.Generator, n: int) -> Table:
    """Draw a table of n rows."""
    z = equicorrelated(g, n, 4, 0.5)
    complete = pd.DataFrame(z, columns=["z1", "z2", "z3", "z4"])
    level = np.digitize(z[:, 3] + g.normal(size=n), [-0.6, 0.6])
    true = z[:, 2] + g.normal(size=n) > 0
    complete["g"] = pd.Categorical(np.array(_LEVELS)[level], _LEVELS)
    complete["t"] = pd.array(true, dtype="boolean")
    slope = 1 - 1.5 * (level == 1) + (level == 2)
    smooth = 0.5 * z[:, 1] + 0.5 * z[:, 2] ** 2 + true - 1.5 * z[:, 1] * true
    complete["y"] = z[:, 0] * slope + smooth + g.normal(size=n)
    score = complete["y"] + complete["z4"]
    rate = np.array([0.5, 0.1, 0.5])[np.digitize(score, np.quantile(score, [1 / 3, 2 / 3]))]
    frame = complete.copy()
    frame[_INCOMPLETE] = frame[_INCOMPLETE].mask(g.random((n, 5)) < rate[:, None])
    return Table(frame, complete)


def _regressors(frame: pd.DataFrame) -> dict[str, pd.Series[Any]]:
    b, c = (frame["g"].astype(str).eq(level).astype(float) for level in ("b", "c"))
    t = frame["t"].astype(float)
    named = {name: frame[name] for name in ("z1", "z2", "z3", "z4")}
    named |= {"z3²": frame["z3"] ** 2, "t": t, "g=b": b, "g=c": c}
    return named | {"z1:g=b": frame["z1"] * b, "z1:g=c": frame["z1"] * c, "z2:t": frame["z2"] * t}


_TRUTH = dict.fromkeys(["intercept", "z3", "z4", "g=b", "g=c"], 0.0) | {
    "z1": 1.0, "z2": 0.5, "z3²": 0.5, "t": 1.0, "z1:g=b": -1.5, "z1:g=c": 1.0, "z2:t": -1.5,
}  # fmt: skip

DESIGNS: dict[str, Design] = {
    "mixed_2000": Design(functools.partial(draw, n=2000), regression(_regressors), 20, _TRUTH),
    "mixed_10000": Design(functools.partial(draw, n=10_000), regression(_regressors), 5, _TRUTH),
}
"""Designs by name; the number is that of the rows."""
