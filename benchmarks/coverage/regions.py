"""Means of 36 regions of a plane on which y has local structure: steps and waves.

3,000 rows lie at random in a square of side 6; a region is a square of side 1, with about 83 rows. y is

    s(u) + t(v) + waves(u, v) + N(0, .3²)

s and t are constant between twelve random places where they jump; the heights are N(0, .5²). The waves are
sin(2π k₁·(u, v)) sin(2π k₂·(u, v)), in two perpendicular directions drawn for each table, with wavelengths of
1 to 2. Some 20 to 40 rows share a step or half a wave: neighbours know it, a smooth surface over the whole
square does not, and errors of cells close to each other agree. The methods `gp` and `gp_per_cell` show how
much that matters: the same Gaussian process with joint and with independent draws.

Regions lack 20 to 60 % of y, 40 % on average; u and v are complete. The truth is a region's mean before cells
were removed, that of a finite table: the standard error is √((1 + 1/m) B) with the variance B between
imputations, and nothing is added for sampling of rows.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from benchmarks.coverage.design import Analysis, Design, Numbers, Table

_SIDE = 6
_ROWS = 3000


def draw(g: np.random.Generator, n: int = _ROWS) -> Table:
    """Draw a table of n rows with the columns u, v and y."""
    at = g.uniform(0, _SIDE, (n, 2))
    y = _steps(g, at) + _waves(g, at) + g.normal(0, 0.3, n)
    complete = pd.DataFrame({"u": at[:, 0], "v": at[:, 1], "y": y})
    region = region_of(complete)
    rates = g.permutation(np.linspace(0.2, 0.6, _SIDE**2))
    frame = complete.copy()
    for k, rate in enumerate(rates):
        rows = g.permutation(np.flatnonzero(region == k))
        frame.loc[rows[: round(rate * len(rows))], "y"] = np.nan
    return Table(frame, complete)


def _steps(g: np.random.Generator, at: Numbers) -> Numbers:
    cells = [np.digitize(at[:, k], np.sort(g.uniform(0, _SIDE, 12))) for k in (0, 1)]
    return np.asarray(sum(g.normal(0, 0.5, 13)[cell] for cell in cells))


def _waves(g: np.random.Generator, at: Numbers) -> Numbers:
    angle = g.uniform(0, np.pi) + np.array([0, np.pi / 2])
    directions = np.stack([np.cos(angle), np.sin(angle)]) / g.uniform(1, 2, 2)
    return np.asarray(np.sin(2 * np.pi * (at @ directions + g.random(2))).prod(1))


def region_of(frame: pd.DataFrame) -> Numbers:
    """Return the number of each row's region, `[n]`."""
    cell = frame[["u", "v"]].to_numpy().astype(int)
    return np.asarray(cell[:, 0] * _SIDE + cell[:, 1])


def analyse(frame: pd.DataFrame) -> Analysis:
    """Return the mean of y in each region, without variances."""
    means = frame["y"].groupby(region_of(frame)).mean()
    return Analysis([f"region {k}" for k in means.index], means.to_numpy(), np.zeros(len(means)))


DESIGNS: dict[str, Design] = {"regions": Design(draw, analyse, 40)}
"""The design by name."""
