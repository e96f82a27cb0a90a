"""Patterns of missing cells, which are drawn for complete numeric tables; no row is missing entirely."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import brentq

from pyro_mgp.evaluation.missingness import ampute

Holes = NDArray[np.bool_]
"""Mask `[rows, columns]` of missing cells."""

# Number of groups of rows, each of which lacks a block of columns.
_GROUPS = 10


def completely_at_random(table: pd.DataFrame, rate: float, g: np.random.Generator) -> Holes:
    """Draw cells independently with equal probabilities, given that no row is missing entirely.

    With D columns and the probability q of each draw, (q - q^D) / (1 - q^D) of the cells are missing when
    rows that are missing entirely have been drawn again; q is chosen such that this is the rate.

    Args:
        table: A complete table with at least three columns.
        rate: Expected share of missing cells, at most one half.
        g: Source of randomness.
    """
    D = table.shape[1]
    q = brentq(lambda q: (q - q**D) / (1 - q**D) - rate, rate, 1 - 1e-6)
    holes = g.random(table.shape) < q
    while (empty := holes.all(1)).any():
        holes[empty] = g.random((empty.sum(), D)) < q
    return holes


def at_random(table: pd.DataFrame, rate: float, g: np.random.Generator) -> Holes:
    """Draw cells that are missing the more often the larger the observed cells of their row are.

    There is one pattern per column: it and those that follow in a random circular order, half of all columns.
    Each row is assigned a pattern, and the probability that it loses these columns increases with the sum of
    its standardised other columns, see `ampute`.

    Args:
        table: A complete table with at least two columns.
        rate: Share of missing cells, below one half.
        g: Source of randomness.
    """
    names = list(table.columns[g.permutation(table.shape[1])])
    half = (len(names) + 1) // 2
    patterns = [(names[k:] + names[:k])[:half] for k in range(len(names))]
    incomplete = ampute(table, rate, mechanism="MAR", patterns=patterns, by="cells", random_state=g)
    return incomplete.isna().to_numpy()


def in_blocks(table: pd.DataFrame, rate: float, g: np.random.Generator) -> Holes:
    """Draw blocks: ten random groups of rows, each of which lacks other columns.

    In a random circular order of the columns, the blocks follow one another, so that every column is missing
    in equally many groups, and neighbours in this order are missing together.

    Args:
        table: A complete table with at least two columns.
        rate: Share of missing cells, below one half.
        g: Source of randomness.
    """
    n, D = table.shape
    order = g.permutation(D)
    ends = np.rint(rate * D * np.arange(_GROUPS + 1)).astype(int)
    holes = np.zeros((n, D), bool)
    for rows, start, end in zip(np.array_split(g.permutation(n), _GROUPS), ends, ends[1:], strict=False):
        holes[np.ix_(rows, order[np.arange(start, end) % D])] = True
    return holes


PATTERNS: dict[str, Callable[..., Holes]] = {
    "mcar10": functools.partial(completely_at_random, rate=0.1),
    "mcar30": functools.partial(completely_at_random, rate=0.3),
    "mcar50": functools.partial(completely_at_random, rate=0.5),
    "mar30": functools.partial(at_random, rate=0.3),
    "block30": functools.partial(in_blocks, rate=0.3),
}
"""Patterns by name, which ends in the percentage of missing cells."""


def incomplete(table: pd.DataFrame, pattern: str, seed: int) -> pd.DataFrame:
    """Return a complete numeric table without the cells of a pattern.

    Args:
        table: The table.
        pattern: Key of `PATTERNS`.
        seed: Number of the draw.
    """
    return table.astype(np.float64).mask(PATTERNS[pattern](table, g=np.random.default_rng(seed)))
