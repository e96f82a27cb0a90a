"""Missing-data patterns: their description, and amputation of tables.

`patterns` and `flux` describe the missing cells of a table (van Buuren, *Flexible Imputation of Missing
Data*, 2nd ed., section 4.1); `ampute` makes cells missing whose true values are known (Schouten, Lugtig and
Vink, *Journal of Statistical Computation and Simulation* 88:2909-2930, 2018).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types
from scipy.optimize import brentq
from scipy.special import expit, logit

from pyro_mgp._support.checks import one_of, within
from pyro_mgp._support.messages import listing
from pyro_mgp.data.cells import cells_of, is_numeric, numbers_of
from pyro_mgp.data.native_tables import read_native
from pyro_mgp.data.table import missing, plain_frame

Mechanism = Literal["MCAR", "MAR", "MNAR"]
Tendency = Literal["right", "left", "mid", "tail"]
Unit = Literal["rows", "cells"]


def patterns(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the distinct missing-data patterns of the rows of a table.

    Returns:
        One row per pattern, the most frequent first, of equally frequent ones that with fewer missing cells:
        a Bool column per column of the table, True where observed, and the numbers of `rows` and of
        `missing` cells per row.

    Raises:
        TypeError: `frame` is not a DataFrame.
        ValueError: Its column labels are not unique, or one is "rows" or "missing".

    Example:
        >>> frame = pd.DataFrame({"x": [1.0, None, None], "sex": ["male", "female", "male"]})
        >>> patterns(frame)
               x   sex  rows  missing
        0  False  True     2        1
        1   True  True     1        0
    """
    frame = _checked(frame)
    added = ["rows", "missing"]
    if taken := [label for label in added if label in frame.columns]:
        raise ValueError(f"column {taken[0]!r} has the name of one that patterns adds, {added}: rename it")
    observed, rows = distinct_patterns(frame)
    table = pd.DataFrame(observed, columns=frame.columns.tolist())
    return table.assign(rows=rows, missing=(~observed).sum(1))


def distinct_patterns(frame: pd.DataFrame) -> tuple[NDArray[np.bool_], NDArray[np.intp]]:
    """Return the distinct patterns of observed cells, Bool `[K, C]`, and their numbers of rows, `[K]`."""
    observed = ~missing(frame)
    # Sorting rows takes most of the time; eight cells to a byte make it faster.
    packed = np.packbits(observed, axis=1)
    _, first, rows = np.unique(packed, axis=0, return_index=True, return_counts=True)
    distinct = observed[first]
    order = np.lexsort([(~distinct).sum(1), -rows])
    return distinct[order], rows[order]


def flux(frame: pd.DataFrame) -> pd.DataFrame:
    """Compute influx and outflux: how the missing and observed cells of a column connect to others.

    With r = 1 for an observed cell and 0 for a missing one, rows i, columns j and k (*Flexible Imputation of
    Missing Data*, section 4.1.3),

        influx_j = Σ_ik (1 - r_ij) r_ik / Σ_ik r_ik,    outflux_j = Σ_ik r_ij (1 - r_ik) / Σ_ik (1 - r_ik)

    The missing cells of a column of high influx have many observed cells beside them, from which they can be
    imputed; a column of high outflux is observed beside many missing cells, and may help to impute these.

    Returns:
        One row per column: the proportion `observed` of its cells, `influx` and `outflux` (0 and 1 if it is
        complete; NaN if the whole table has no observed, or no missing, cell).

    Raises:
        TypeError: `frame` is not a DataFrame.
        ValueError: Its column labels are not unique.

    Example:
        >>> frame = pd.DataFrame({"x": [1.0, None, None], "sex": ["male", "female", None]})
        >>> flux(frame).round(2)
             observed  influx  outflux
        x        0.33    0.33     0.00
        sex      0.67    0.00     0.33
    """
    frame = _checked(frame)
    r = (~missing(frame)).astype(np.float64)
    in_row = r.sum(1)
    with np.errstate(invalid="ignore"):
        shares = {
            "observed": r.sum(0) / len(r),
            "influx": (1 - r).T @ in_row / r.sum(),
            "outflux": r.T @ (r.shape[1] - in_row) / (1 - r).sum(),
        }
    return pd.DataFrame(shares, index=frame.columns)


class _Pattern(NamedTuple):
    """Missing-data pattern: positions of its missing columns, weights, and share of the rows."""

    columns: list[int]
    weights: dict[int, float]
    share: float

    def logits(self, frame: pd.DataFrame, rows: NDArray[np.intp], tendency: Tendency) -> NDArray[np.float64]:
        """Return t(s) of the rows that are assigned this pattern, `[n]`; see `ampute`."""
        score = np.zeros(len(frame))
        for j, weight in self.weights.items():
            score += weight * _standardised(_as_numbers(frame.iloc[:, j]))
        s = _standardised(score[rows])
        return {"right": s, "left": -s, "mid": -np.abs(s), "tail": np.abs(s)}[tendency]


def ampute(
    frame: pd.DataFrame,
    proportion: float = 0.5,
    *,
    mechanism: Mechanism = "MAR",
    patterns: Sequence[Collection[Hashable]] | None = None,
    weights: Sequence[Mapping[Any, float]] | None = None,
    frequencies: Sequence[float] | None = None,
    type: Tendency = "right",
    by: Unit = "rows",
    random_state: int | np.random.Generator | None = None,
) -> pd.DataFrame:
    """Make cells of a table missing: multivariate amputation.

    Each row is assigned one pattern at random. For rows of a pattern with weights w and standardised cells z

        P(the row loses the cells of its pattern) = 1 / (1 + exp(-b - t(s))),    s = Σ_j w_j z_j,

    where s is then standardised, and b is solved for such that the proportion holds. Rows are drawn by
    systematic sampling, which meets the proportion up to one row, or up to the cells of one pattern.

    In scores s, booleans are 0 and 1, times are seconds, and labels are their positions, in the categories'
    own order or in alphabetical order. Cells that were missing before count as the mean.

    Args:
        frame: The table; its missing cells stay missing.
        proportion: Share of the rows that lose cells, or of the observed cells that go missing; see `by`.
        mechanism: "MCAR", missing completely at random: s is 0. "MAR", missing at random: s depends on
            columns outside the pattern. "MNAR", not at random: s depends on columns in the pattern.
        patterns: Columns that go missing together, by label; None for each column alone.
        weights: For each pattern its w, by label, 0 if not named. None for 1 on all columns that are not in
            the pattern (MAR) or in it (MNAR).
        frequencies: Relative frequency of each pattern; None for equal ones.
        type: Scores that make missing cells likely: high ones ("right": t(s) = s), low ones ("left": -s),
            those near the mean ("mid": -abs(s)), or those far from it ("tail": abs(s)).
        by: Unit of `proportion`, "rows" or "cells".
        random_state: Seed or generator; None for a seed of the operating system.

    Returns:
        A copy with more missing cells, of the same index, columns and dtypes, except that columns of bool and
        of integers that lose cells become pandas' nullable "boolean" and "Int64" (or of another width).

    Raises:
        TypeError: `frame` is not a DataFrame, `proportion` is no number, a pattern or its weights are no
            collection, or a column's dtype cannot hold missing cells (sparse ones) or be part of a score
            (periods and intervals).
        ValueError: An argument is out of range, a column is unknown, weights contradict the mechanism, or the
            patterns cannot make so many cells missing.

    Example:
        >>> frame = pd.DataFrame({"x": np.arange(200.0), "n": range(200), "sex": ["male", "female"] * 100})
        >>> holes = ampute(frame, 0.3, patterns=[["x"], ["x", "n"]], frequencies=[1, 3], random_state=0)
        >>> holes.isna().sum().tolist()
        [60, 45, 0]
    """
    frame = _checked(frame)
    one_of("mechanism", mechanism, get_args(Mechanism))
    one_of("type", type, get_args(Tendency))
    one_of("by", by, get_args(Unit))
    within("proportion", proportion, 0, 1)
    chosen = _read_patterns(frame, patterns, mechanism, weights, frequencies)
    generator = np.random.default_rng(random_state)
    observed = ~missing(frame)
    # Each pattern gets as many rows as its share says, rounded, in random order.
    ends = np.rint(len(frame) * np.cumsum([pattern.share for pattern in chosen])).astype(np.intp)
    assigned = np.split(generator.permutation(len(frame)), ends[:-1])
    counts = [observed[rows][:, p.columns].sum(1) for p, rows in zip(chosen, assigned, strict=True)]
    if by == "rows":
        counts = [np.minimum(count, 1) for count in counts]
    total = round(float(proportion) * (observed.sum() if by == "cells" else len(frame)))
    reachable = sum(int(count.sum()) for count in counts)
    if total > reachable:
        got = f"means {total} {by}, but these patterns can reach only {reachable} {by}"
        raise ValueError(f"proportion={proportion} {got}: lower it, or give patterns of more columns")
    lost, short = np.zeros_like(observed), 0.0
    for pattern, rows, count in zip(chosen, assigned, counts, strict=True):
        rows, count = rows[count > 0], count[count > 0]
        # The next pattern makes up for the rounding of the last one.
        goal = short + (total * count.sum() / reachable if total else 0.0)
        logits = pattern.logits(frame, rows, type)
        drawn = _draw(_probabilities(logits, count, goal), count, generator)
        short = goal - count[drawn].sum()
        lost[np.ix_(rows[drawn], pattern.columns)] = True
    return without_cells(frame, lost & observed)


def without_cells(frame: pd.DataFrame, cells: NDArray[np.bool_]) -> pd.DataFrame:
    """Return a copy of a table without the cells of a mask, Bool `[N, C]`.

    Columns of integers and booleans that cannot hold missing cells get pandas' nullable dtypes.
    """
    copy = frame.copy()
    for j in np.flatnonzero(cells.any(0)).tolist():
        column = frame.iloc[:, j]
        array = column.array.copy()
        if isinstance(column.dtype, np.dtype) and column.dtype.kind in "iub":
            array = pd.array(column.to_numpy(column.dtype.newbyteorder("=")))  # a nullable one
        array[cells[:, j]] = np.nan if types.is_complex_dtype(column.dtype) else None
        copy.isetitem(j, pd.Series(array, index=column.index, name=column.name, dtype=array.dtype))
    return copy


def _as_numbers(column: pd.Series[Any]) -> NDArray[np.float64]:
    """Return a column as one number per cell, `[N]`, NaN where missing."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        codes = column.cat.codes.to_numpy()
    elif getattr(column.dtype, "kind", "O") in "Mm" or is_numeric(column):
        cells = numbers_of(column)
        if np.isinf(cells).any():
            raise ValueError(f"column {column.name!r} holds infinite numbers, which cannot be scored")
        return cells
    else:
        codes = pd.factorize(cells_of(column), sort=True)[0]
    return np.where(codes < 0, np.nan, codes.astype(np.float64))


def _standardised(cells: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return cells scaled to mean 0 and standard deviation 1, 0 where missing or constant."""
    observed = cells[~np.isnan(cells)]
    if not len(observed) or observed.min() == observed.max():
        return np.zeros_like(cells)
    largest = np.abs(observed).max()  # squares of huge numbers would be infinite
    scaled, observed = cells / largest, observed / largest
    if (spread := observed.std()) == 0:  # their differences are below rounding error
        return np.zeros_like(cells)
    return np.nan_to_num((scaled - observed.mean()) / spread)


def _probabilities(logits: NDArray[np.float64], count: NDArray[np.intp], goal: float) -> NDArray[np.float64]:
    """Return logistic probabilities `[n]`, with the intercept that makes Σ count · probability the goal."""
    share = goal / max(int(count.sum()), 1)
    if share <= 0 or share >= 1:
        return np.full(len(logits), float(share >= 1))
    # The intercepts for all logits equal to the largest, or to the smallest.
    low, high = logit(share) - logits.max() - 1, logit(share) - logits.min() + 1
    intercept = brentq(lambda b: count @ expit(logits + b) - goal, low, high, xtol=1e-13)
    return np.asarray(expit(logits + intercept))


def _draw(
    probabilities: NDArray[np.float64], count: NDArray[np.intp], generator: np.random.Generator
) -> NDArray[np.intp]:
    """Draw positions by systematic sampling with the given inclusion probabilities.

    Positions are ordered by their counts, so that the sum of the counts differs from its expectation by at
    most the largest count.
    """
    line = generator.permutation(len(probabilities))
    line = line[np.argsort(count[line], kind="stable")]
    passed = np.floor(np.round(np.cumsum(probabilities[line]), 6) + generator.random())
    return line[np.diff(passed, prepend=0.0) > 0]


def _checked(table: object) -> pd.DataFrame:
    """Return a table of pandas, Polars or PyArrow as a DataFrame, with unique labels of columns."""
    frame = table if isinstance(table, pd.DataFrame) or read_native(table) is None else plain_frame(table)
    if not isinstance(frame, pd.DataFrame):
        raise TypeError(f"expected a DataFrame, got {frame.__class__.__name__}")
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise ValueError(f"column labels must be unique, {twice!r} occurs more than once")
    return frame


def _read_patterns(
    frame: pd.DataFrame,
    patterns: Sequence[Collection[Hashable]] | None,
    mechanism: Mechanism,
    weights: Sequence[Mapping[Any, float]] | None,
    frequencies: Sequence[float] | None,
) -> list[_Pattern]:
    places: dict[Any, int] = {label: j for j, label in enumerate(frame.columns)}
    if not places:
        raise ValueError("expected a table with at least one column, got none")
    given = [[label] for label in places] if patterns is None else list(patterns)
    if not given:
        raise ValueError("patterns must name at least one pattern, or be None for each column alone")
    n = len(given)
    relative = [1.0] * n if frequencies is None else [float(each) for each in frequencies]
    if len(relative) != n:
        raise ValueError(f"frequencies must be one number per pattern, {n}, got {len(relative)}")
    total = math.fsum(relative)
    if not all(0 <= each < math.inf for each in relative) or not 0 < total < math.inf:
        raise ValueError(f"frequencies must be finite, not negative and not all zero, got {relative}")
    if weights is not None and mechanism == "MCAR":
        raise ValueError("weights are for mechanism='MAR' or 'MNAR': 'MCAR' depends on no column")
    if weights is not None and len(weights) != n:
        raise ValueError(f"weights must be one mapping per pattern, {n}, got {len(weights)}")
    read = []
    for k, pattern in enumerate(given):
        if isinstance(pattern, str) or not isinstance(pattern, Collection):
            example = f"such as [{pattern!r}], got {pattern!r}"
            raise TypeError(f"pattern {k} must be a collection of column labels, {example}")
        columns = sorted({*_positions(pattern, places, f"pattern {k} names")})
        if not columns:
            raise ValueError(f"pattern {k} contains no column: remove it, and lower the proportion")
        given_weights = None if weights is None else weights[k]
        own = {} if mechanism == "MCAR" else _weights(places, columns, given_weights, mechanism, k)
        read.append(_Pattern(columns, own, relative[k] / total))
    return read


def _positions(labels: Collection[Hashable], places: Mapping[Hashable, int], who: str) -> list[int]:
    """Return the positions of columns with these labels; raise a ValueError if one is unknown."""
    if unknown := [label for label in labels if label not in places]:
        raise ValueError(f"{who} {unknown[0]!r}, but the columns are {listing(places)}")
    return [places[label] for label in labels]


def _weights(
    places: Mapping[Any, int],
    columns: Sequence[int],
    weights: Mapping[Any, float] | None,
    mechanism: Mechanism,
    k: int,
) -> dict[int, float]:
    """Return the nonzero weights of pattern k, by column position."""
    if weights is None:
        own = {j: 1.0 for j in places.values() if (j in columns) == (mechanism == "MNAR")}
        if not own:
            clash = "makes all columns missing, but under 'MAR' missingness depends on observed ones"
            advice = "remove one from it, or choose mechanism='MCAR' or 'MNAR'"
            raise ValueError(f"pattern {k} {clash}: {advice}")
        return own
    name = f"weights of pattern {k}"
    if not isinstance(weights, Mapping):
        raise TypeError(f"{name} must be a mapping from labels to numbers, got {weights!r}")
    named = zip(_positions(weights, places, f"{name} name"), weights.values(), strict=True)
    own = {j: float(weight) for j, weight in named if weight != 0}
    if not own or not all(map(math.isfinite, own.values())):
        got = f"got {dict(weights)}: if missingness depends on no column, choose mechanism='MCAR'"
        raise ValueError(f"{name} must be finite and not all zero, {got}")
    inside = [label for label, j in places.items() if j in own and j in columns]
    if mechanism == "MAR" and inside:
        clash = f"{name} name {inside[0]!r}, which the pattern makes missing, under 'MAR'"
        raise ValueError(f"{clash}: choose mechanism='MNAR', or a column that stays observed")
    if mechanism == "MNAR" and not inside:
        raise ValueError(f"{name} name no column that the pattern makes missing: choose mechanism='MAR'")
    return own
