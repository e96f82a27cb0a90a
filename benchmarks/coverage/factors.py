"""Three factors beside numbers: links have more than 15 inputs, and so products of some only.

    z1, ..., z4 ~ N(0, 1) with correlations of .4
    f, h and k have 3, 4 and 5 equally frequent levels by .7 z1, .7 z2 and .7 z3 + N(0, 1)
    u = [z3 + .5 [f = f1] + N(0, 1) > 0]
    y = z1 + .5 z2 - .5 z3 + .8 u + .5 [f = f1] - .5 [f = f2] + z1 [f = f1] - z1 [f = f2]
        + .6 z2 u - .8 z3 [h = h2] + .5 [k = k3] + .3 z3² + N(0, 1)

z1, z2, z3, f, h, k and u are each missing with probability .5, .1, .5 by tertile of y + z4, both complete.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.coverage.design import Design, Table, equicorrelated, regression

_LEVELS = {"f": 3, "h": 4, "k": 5}
_INCOMPLETE = ["z1", "z2", "z3", "f", "h", "k", "u"]


def draw(g: np.random.Generator, n: int) -> Table:
    """Draw a table of n rows."""
    z = equicorrelated(g, n, 4, 0.4)
    complete = pd.DataFrame(z, columns=["z1", "z2", "z3", "z4"])
    for column, (name, levels) in enumerate(_LEVELS.items()):
        ranks = pd.Series(0.7 * z[:, column] + g.normal(size=n)).rank(pct=True)
        complete[name] = pd.cut(ranks, levels, labels=[f"{name}{i}" for i in range(levels)], ordered=False)
    u = z[:, 2] + 0.5 * (complete["f"] == "f1") + g.normal(size=n) > 0
    complete["u"] = pd.array(u, dtype="boolean")
    complete["y"] = sum(_TRUTH[name] * values for name, values in _regressors(complete).items())
    complete["y"] += g.normal(size=n)
    score = complete["y"] + complete["z4"]
    rate = np.array([0.5, 0.1, 0.5])[np.digitize(score, np.quantile(score, [1 / 3, 2 / 3]))]
    frame = complete.copy()
    frame[_INCOMPLETE] = frame[_INCOMPLETE].mask(g.random((n, len(_INCOMPLETE))) < rate[:, None])
    return Table(frame, complete)


def _regressors(frame: pd.DataFrame) -> dict[str, pd.Series[Any]]:
    f1, f2, h2, k3 = (frame[name[0]].astype(str).eq(name).astype(float) for name in ("f1", "f2", "h2", "k3"))
    z1, z2, z3, u = (frame[name].astype(float) for name in ("z1", "z2", "z3", "u"))
    named = {"z1": z1, "z2": z2, "z3": z3, "u": u, "f1": f1, "f2": f2, "h2": h2, "k3": k3, "z3²": z3**2}
    return named | {"z1:f1": z1 * f1, "z1:f2": z1 * f2, "z2:u": z2 * u, "z3:h2": z3 * h2}


_TRUTH = {
    "intercept": 0.0, "z1": 1.0, "z2": 0.5, "z3": -0.5, "u": 0.8, "f1": 0.5, "f2": -0.5, "h2": 0.0,
    "k3": 0.5, "z3²": 0.3, "z1:f1": 1.0, "z1:f2": -1.0, "z2:u": 0.6, "z3:h2": -0.8,
}  # fmt: skip

DESIGNS: dict[str, Design] = {
    "factors_2000": Design(functools.partial(draw, n=2000), regression(_regressors), 20, _TRUTH)
}
"""Designs by name; the number is that of the rows."""
