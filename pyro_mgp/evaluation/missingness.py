"""Holes: where they are, what they connect, and how to make some on purpose.

`patterns` and `flux` describe the holes of a table (van Buuren, *Flexible Imputation of Missing Data*, 2nd
ed., section 4.1); `ampute` makes holes in a table whose answers are known, so that imputations of it can be
judged (Schouten, Lugtig and Vink, *Journal of Statistical Computation and Simulation* 88:2909-2930, 2018).
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types
from scipy.optimize import brentq
from scipy.special import expit, logit

from pyro_mgp._support.messages import listing
from pyro_mgp.data.cells import cells_of, numbers_of
from pyro_mgp.data.dtypes import is_numeric
from pyro_mgp.data.table import missing

Mechanism = Literal["MCAR", "MAR", "MNAR"]
"""Whether holes come completely at random, by cells that stay observed, or by those that are lost."""
Tendency = Literal["right", "left", "mid", "tail"]
"""Which scores make holes likely: high, low, average or extreme ones."""
Unit = Literal["rows", "cells"]
"""What a proportion counts."""

_COUNTS = ("rows", "missing")


# --------------------------------------------------------------------------------------- what holes are there


def patterns(frame: pd.DataFrame) -> pd.DataFrame:
    """The different patterns of holes in the rows of a table.

    Args:
        frame: The table.

    Returns:
        One row per pattern, the most frequent first, of equally frequent ones that with fewer holes: a Bool
        column per column of the table, True where it is observed, then `rows`, in how many rows the pattern
        is found, and `missing`, the number of its holes.

    Raises:
        TypeError: `frame` is no DataFrame.
        ValueError: Its column labels are not unique, or one is "rows" or "missing".

    Example:
        >>> frame = pd.DataFrame({"x": [1.0, None, None], "sex": ["male", "female", "male"]})
        >>> patterns(frame)
               x   sex  rows  missing
        0  False  True     2        1
        1   True  True     1        0
    """
    _check_frame(frame)
    taken = [label for label in _COUNTS if label in frame.columns]
    if taken:
        raise ValueError(
            f"column {taken[0]!r} has the name of one that patterns adds, {list(_COUNTS)}: rename it first"
        )
    observed, rows = distinct_patterns(frame)
    table = pd.DataFrame(observed, columns=frame.columns.tolist())
    return table.assign(rows=rows, missing=(~observed).sum(1))


def distinct_patterns(frame: pd.DataFrame) -> tuple[NDArray[np.bool_], NDArray[np.intp]]:
    """The patterns, Bool `[K, C]`, and in how many rows each is found, `[K]`; see `patterns`."""
    observed = ~missing(frame)
    # Eight cells to a byte: sorting rows is what takes the time.
    packed = np.packbits(observed, axis=1)
    _, first, rows = np.unique(packed, axis=0, return_index=True, return_counts=True)
    distinct = observed[first]
    order = np.lexsort([(~distinct).sum(1), -rows])
    return distinct[order], rows[order]


def flux(frame: pd.DataFrame) -> pd.DataFrame:
    """How well the holes of each column are connected to the cells of the others.

    With r = 1 for an observed cell and 0 for a hole, rows i, columns j and k (*Flexible Imputation of Missing
    Data*, section 4.1.3),

        influx_j = Σ_ik (1 - r_ij) r_ik / Σ_ik r_ik,    outflux_j = Σ_ik r_ij (1 - r_ik) / Σ_ik (1 - r_ik)

    A column of high influx has many observed cells beside its holes to be imputed from; one of high outflux
    is observed beside many holes, and so may help to impute these.

    Args:
        frame: The table.

    Returns:
        One row per column: `observed`, the proportion of its cells that are, `influx` and `outflux`. A
        complete column has influx 0 and outflux 1. NaN where the whole table has no cell, or no hole.

    Raises:
        TypeError: `frame` is no DataFrame.
        ValueError: Its column labels are not unique.

    Example:
        >>> frame = pd.DataFrame({"x": [1.0, None, None], "sex": ["male", "female", None]})
        >>> flux(frame).round(2)
             observed  influx  outflux
        x        0.33    0.33     0.00
        sex      0.67    0.00     0.33
    """
    _check_frame(frame)
    r = (~missing(frame)).astype(np.float64)
    n_rows, n_columns = r.shape
    in_row = r.sum(1)
    known = in_row.sum()
    with np.errstate(invalid="ignore"):
        shares = {
            "observed": r.sum(0) / n_rows,
            "influx": (1 - r).T @ in_row / known,
            "outflux": r.T @ (n_columns - in_row) / (r.size - known),
        }
    return pd.DataFrame(shares, index=frame.columns)


# -------------------------------------------------------------------------------------- holes made on purpose


@dataclass(frozen=True)
class _Pattern:
    """Columns that go missing together."""

    columns: list[int]
    """Their positions."""
    weights: dict[int, float]
    """What the score of a row is made of, by the positions of columns."""
    share: float
    """Of the rows."""


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
    """Make holes in a table: multivariate amputation.

    Each row is dealt one pattern, at random. Of the rows of a pattern with weights w and standardised cells z

        P(the row loses the cells of its pattern) = 1 / (1 + exp(-b - t(s))),    s = Σ_j w_j z_j,

    where s is then standardised, and t(s) is s for type "right", -s for "left", -|s| for "mid" and |s| for
    "tail", and b is solved for such that the proportion holds. Rows are drawn with exactly these
    probabilities, but systematically, so that the number of holes is the one asked for: to a row, or to the
    cells of one pattern.

    In scores, booleans are 0 and 1, times are seconds, and labels count by their position: of categories in
    their own order, of text in alphabetical order. Cells that were missing before stand at the mean. Where
    all scores are equal, so are the probabilities.

    Args:
        frame: The table; it may have holes, which stay.
        proportion: Share of the rows that lose cells, or of the observed cells that are lost; see `by`. In a
            complete table, the share of incomplete rows, or of missing cells.
        mechanism: "MCAR", completely at random: s is 0. "MAR", at random: s depends on columns that the
            pattern leaves alone. "MNAR", not at random: s depends on columns that go missing.
        patterns: Columns that go missing together, by label; None for each column alone.
        weights: For each pattern its w, by label, 0 if not named. None for 1 on all columns that the
            pattern leaves alone (MAR) or makes missing (MNAR).
        frequencies: For each pattern its share of the rows, in any unit; None for equal ones.
        type: Which scores make holes likely: high ones ("right"), low ones ("left"), those near the mean
            ("mid"), or those far from it ("tail").
        by: What `proportion` counts, "rows" or "cells".
        random_state: Seed, generator or None for one of the system's.

    Returns:
        A copy with more holes: same index, columns and, where they can hold a hole, dtypes. Columns of
        bool and of integers that lose cells become pandas' nullable "boolean" and "Int64" (or of another
        width).

    Raises:
        TypeError: `frame` is no DataFrame, a pattern or its weights are no collection, or a column's dtype
            can lose no cells (sparse ones) or enter no score (periods and intervals).
        ValueError: An argument is out of range, a column is unknown, weights contradict the mechanism, or the
            patterns cannot make so many holes.

    Example:
        >>> frame = pd.DataFrame({"x": np.arange(200.0), "n": range(200), "sex": ["male", "female"] * 100})
        >>> holes = ampute(frame, 0.3, patterns=[["x"], ["x", "n"]], frequencies=[1, 3], random_state=0)
        >>> holes.isna().sum().tolist()
        [60, 45, 0]
        >>> holes["n"].dtype
        Int64Dtype()
    """
    _check_frame(frame)
    for name, value, choices in (
        ("mechanism", mechanism, get_args(Mechanism)),
        ("type", type, get_args(Tendency)),
        ("by", by, get_args(Unit)),
    ):
        if value not in choices:
            raise ValueError(f"{name} must be one of {list(choices)}, got {value!r}")
    if not isinstance(proportion, numbers.Real) or not 0 <= proportion <= 1:
        raise ValueError(f"proportion must be a number between 0 and 1, got {proportion!r}")
    chosen = _read_patterns(frame, patterns, mechanism, weights, frequencies)
    hidden = _hidden(frame, float(proportion), chosen, type, by, np.random.default_rng(random_state))
    amputed = frame.copy()
    for j in np.flatnonzero(hidden.any(0)).tolist():
        amputed.isetitem(j, _without(frame.iloc[:, j], hidden[:, j]))
    return amputed


def _hidden(
    frame: pd.DataFrame,
    proportion: float,
    chosen: Sequence[_Pattern],
    tendency: Tendency,
    by: Unit,
    generator: np.random.Generator,
) -> NDArray[np.bool_]:
    """Which observed cells are lost, Bool `[N, C]`."""
    observed = ~missing(frame)
    dealt = _deal(len(frame), [pattern.share for pattern in chosen], generator)
    lost = [observed[rows][:, p.columns].sum(1) for p, rows in zip(chosen, dealt, strict=True)]
    counts = lost if by == "cells" else [np.minimum(cells, 1) for cells in lost]
    total = round(proportion * (observed.sum() if by == "cells" else len(frame)))
    reachable = sum(int(count.sum()) for count in counts)
    if total > reachable:
        raise ValueError(
            f"proportion={proportion} asks for {total} {by}, but the patterns can take no more than "
            f"{reachable} {'observed cells' if by == 'cells' else 'rows that have something to lose'}: "
            "ask for less, or for patterns of more columns"
        )
    hidden, short = np.zeros_like(observed), 0.0
    for pattern, rows, count in zip(chosen, dealt, counts, strict=True):
        rows, count = rows[count > 0], count[count > 0]
        # What rounding takes from one pattern, the next makes good.
        goal = short + (total * count.sum() / reachable if total else 0.0)
        scores = _scores(frame, pattern.weights)[rows]
        drawn = _draw(_probabilities(_tendency(scores, tendency), count, goal), count, generator)
        short = goal - count[drawn].sum()
        hidden[np.ix_(rows[drawn], pattern.columns)] = True
    return hidden & observed


def _deal(n_rows: int, shares: Sequence[float], generator: np.random.Generator) -> list[NDArray[np.intp]]:
    """Which rows have which pattern: as many as their shares say, rounded, in random order."""
    ends = np.rint(n_rows * np.cumsum(shares)).astype(np.intp)
    return np.split(generator.permutation(n_rows), ends[:-1])


def _scores(frame: pd.DataFrame, weights: Mapping[int, float]) -> NDArray[np.float64]:
    """Weighted sums of standardised cells, `[N]`."""
    total = np.zeros(len(frame))
    for j, weight in weights.items():
        total += weight * _standardised(_as_numbers(frame.iloc[:, j]))
    return total


def _as_numbers(column: pd.Series[Any]) -> NDArray[np.float64]:
    """A column as one number per cell, `[N]`, NaN where missing."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        codes = column.cat.codes.to_numpy()
    elif getattr(column.dtype, "kind", "O") in "Mm" or is_numeric(column):
        cells = numbers_of(column)
        if np.isinf(cells).any():
            raise ValueError(f"column {column.name!r} holds infinite numbers, of which no score can be made")
        return cells
    else:
        codes = pd.factorize(cells_of(column), sort=True)[0]
    return np.where(codes < 0, np.nan, codes.astype(np.float64))


def _standardised(cells: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cells of mean 0 and standard deviation 1, 0 where missing or constant."""
    known = cells[~np.isnan(cells)]
    if not len(known) or known.min() == known.max():
        return np.zeros_like(cells)
    largest = np.abs(known).max()  # so that squares of huge numbers are finite
    scaled, known = cells / largest, known / largest
    spread = known.std()
    if spread == 0:  # they differ by less than rounding can tell
        return np.zeros_like(cells)
    return np.nan_to_num((scaled - known.mean()) / spread)


def _tendency(scores: NDArray[np.float64], tendency: Tendency) -> NDArray[np.float64]:
    """Logits of losing cells, but for an intercept."""
    s = _standardised(scores)
    return {"right": s, "left": -s, "mid": -np.abs(s), "tail": np.abs(s)}[tendency]


def _probabilities(logits: NDArray[np.float64], count: NDArray[np.intp], goal: float) -> NDArray[np.float64]:
    """Probabilities `[n]` with that intercept for which Σ count · probability is the goal."""
    share = goal / max(int(count.sum()), 1)
    if share <= 0 or share >= 1:
        return np.full(len(logits), float(share >= 1))
    # If all logits were as the largest, or the smallest, these would be the intercepts.
    low, high = logit(share) - logits.max() - 1, logit(share) - logits.min() + 1
    intercept = brentq(lambda b: count @ expit(logits + b) - goal, low, high, xtol=1e-13)
    return np.asarray(expit(logits + intercept))


def _draw(
    probabilities: NDArray[np.float64], count: NDArray[np.intp], generator: np.random.Generator
) -> NDArray[np.intp]:
    """A systematic sample: positions drawn with these probabilities, together as many as their sum says.

    Lined up by what they count, so that the sum of the counts is no more than the largest count away.
    """
    line = generator.permutation(len(probabilities))
    line = line[np.argsort(count[line], kind="stable")]
    passed = np.floor(np.round(np.cumsum(probabilities[line]), 6) + generator.random())
    return line[np.diff(passed, prepend=0.0) > 0]


def _without(column: pd.Series[Any], hidden: NDArray[np.bool_]) -> pd.Series[Any]:
    """A column that has lost some cells."""
    dtype = column.dtype
    holder: Any = dtype
    if isinstance(dtype, np.dtype) and dtype.kind in "iu":
        holder = f"{'U' if dtype.kind == 'u' else ''}Int{8 * dtype.itemsize}"
    elif isinstance(dtype, np.dtype) and dtype.kind == "b":
        holder = "boolean"
    array = column.astype(holder).array.copy()
    array[hidden] = np.nan if types.is_complex_dtype(dtype) else None
    return pd.Series(array, index=column.index, name=column.name, dtype=array.dtype)


# ----------------------------------------------------------------------------------------------------- checks


def _check_frame(frame: object) -> None:
    if not isinstance(frame, pd.DataFrame):
        raise TypeError(f"expected a pandas DataFrame, got {frame.__class__.__name__}")
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise ValueError(f"column labels must be unique, {twice!r} comes more than once")


def _read_patterns(
    frame: pd.DataFrame,
    patterns: Sequence[Collection[Hashable]] | None,
    mechanism: Mechanism,
    weights: Sequence[Mapping[Any, float]] | None,
    frequencies: Sequence[float] | None,
) -> list[_Pattern]:
    labels: list[Any] = frame.columns.tolist()
    if not labels:
        raise ValueError("expected a table with at least one column, got none")
    places = {label: j for j, label in enumerate(labels)}
    given = [[label] for label in labels] if patterns is None else list(patterns)
    together = [_columns(places, pattern, k) for k, pattern in enumerate(given)]
    if not together:
        raise ValueError("patterns must name at least one pattern, or be None for each column alone")
    shares = _shares(frequencies, len(together))
    if weights is not None and mechanism == "MCAR":
        raise ValueError("weights are for mechanism='MAR' or 'MNAR': 'MCAR' depends on no column")
    if weights is not None and len(weights) != len(together):
        raise ValueError(f"weights must be one mapping per pattern, {len(together)}, got {len(weights)}")
    chosen = []
    for k, (columns, share) in enumerate(zip(together, shares, strict=True)):
        own = None if weights is None else weights[k]
        chosen.append(_Pattern(columns, _weights(places, columns, own, mechanism, k), share))
    return chosen


def _columns(places: Mapping[Hashable, int], pattern: object, k: int) -> list[int]:
    """Positions of the columns of pattern number k."""
    if isinstance(pattern, str) or not isinstance(pattern, Collection):
        raise TypeError(
            f"pattern {k} must be a collection of column labels, such as [{pattern!r}], got {pattern!r}"
        )
    unknown = [label for label in pattern if label not in places]
    if unknown:
        raise ValueError(f"pattern {k} names {unknown[0]!r}, but the columns are {listing(places)}")
    if not pattern:
        raise ValueError(f"pattern {k} makes no column missing: leave it out, and lower the proportion")
    return sorted({places[label] for label in pattern})


def _shares(frequencies: Sequence[float] | None, n_patterns: int) -> list[float]:
    numbers_given = [1.0] * n_patterns if frequencies is None else [float(each) for each in frequencies]
    if len(numbers_given) != n_patterns:
        raise ValueError(
            f"frequencies must be one number per pattern, {n_patterns}, got {len(numbers_given)}"
        )
    total = math.fsum(numbers_given)
    if not all(0 <= each < math.inf for each in numbers_given) or not 0 < total < math.inf:
        raise ValueError(f"frequencies must be finite, not negative and not all zero, got {numbers_given}")
    return [each / total for each in numbers_given]


def _weights(
    places: Mapping[Hashable, int],
    columns: Sequence[int],
    weights: Mapping[Any, float] | None,
    mechanism: Mechanism,
    k: int,
) -> dict[int, float]:
    """The weights of pattern number k by position, those that are zero left out."""
    if mechanism == "MCAR":
        return {}
    if weights is None:
        own = {j: 1.0 for j in places.values() if (j in columns) == (mechanism == "MNAR")}
        if not own:
            raise ValueError(
                f"pattern {k} makes all columns missing: under 'MAR' holes depend on columns that stay "
                "observed. Leave one out of the pattern, or choose mechanism='MCAR' or 'MNAR'"
            )
        return own
    if not isinstance(weights, Mapping):
        raise TypeError(f"weights of pattern {k} must be a mapping from labels to numbers, got {weights!r}")
    unknown = [label for label in weights if label not in places]
    if unknown:
        raise ValueError(f"weights of pattern {k} name {unknown[0]!r}, but the columns are {listing(places)}")
    own = {places[label]: float(weight) for label, weight in weights.items() if weight != 0}
    if not own or not all(map(math.isfinite, own.values())):
        raise ValueError(
            f"weights of pattern {k} must be finite and not all zero, got {dict(weights)}: for holes that "
            "depend on no column choose mechanism='MCAR'"
        )
    of_lost = [label for label, j in places.items() if j in own and j in columns]
    if mechanism == "MAR" and of_lost:
        raise ValueError(
            f"weights of pattern {k} name {of_lost[0]!r}, which the pattern makes missing: under 'MAR' holes "
            "depend on columns that stay observed. Choose mechanism='MNAR', or another column"
        )
    if mechanism == "MNAR" and not of_lost:
        raise ValueError(
            f"weights of pattern {k} name no column that the pattern makes missing: that is mechanism='MAR'"
        )
    return own
