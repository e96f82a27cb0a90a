"""Limits between which missing cells lie: below a limit of detection, right-censored, interval-censored.

A missing cell that is known to lie in [a, b] contributes the probability of this interval,

    p(a <= x <= b) = ∫ 1[a <= x <= b] p(x | f) dx

to the likelihood. Draws augment the data with x, which is drawn within its limits (Tobit model; Tobin,
Econometrica 26:24-36, 1958; Chib, Journal of Econometrics 51:79-99, 1992).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pandas.api import types

from pyro_mgp._support.normal import log_between
from pyro_mgp.data.cells import holes_of, labels_of
from pyro_mgp.data.column_spec import ColumnSpec, Label

Numbers = NDArray[np.float64]

# Steps of expectation-maximisation, and the change in standard deviations at which it ends.
_MOST_STEPS, _TOLERANCE = 500, 1e-9
# A number, after a sign of comparison for a limit.
_NUMBER_OR_LIMIT = re.compile(r"\s*([<>≤≥]=?)?\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*")


@dataclass(frozen=True)
class Limits:
    """Limits of the cells of one column, `[N]` each; infinite for none."""

    lower: Numbers
    """Numbers that cells are at least."""
    upper: Numbers
    """Numbers that cells are at most."""

    @property
    def limited(self) -> NDArray[np.bool_]:
        """Bool `[N]`, the cells with a limit."""
        return np.isfinite(self.lower) | np.isfinite(self.upper)

    def __getitem__(self, rows: Any) -> Limits:
        return Limits(self.lower[rows], self.upper[rows])

    def of(self, cells: NDArray[np.bool_]) -> Limits:
        """Return the limits of some cells, Bool `[N]`, and none for the others."""
        return Limits(np.where(cells, self.lower, -np.inf), np.where(cells, self.upper, np.inf))

    def ordered(self) -> Limits:
        """Return the limits of the limited cells, `[n]`, in an order that does not depend on their rows."""
        lower, upper = self.lower[self.limited], self.upper[self.limited]
        order = np.lexsort((lower, upper))
        return Limits(lower[order], upper[order])


@dataclass(frozen=True)
class NormalFit:
    """Normal distribution that makes numbers and limits of further numbers most likely."""

    mean: float
    deviation: float
    """Standard deviation."""
    log_likelihood: float
    """Log likelihood, in nats; minus infinity if all numbers are equal."""

    @classmethod
    def of(cls, numbers: Numbers, limits: Limits) -> NormalFit:
        """Fit to sorted numbers `[n]` and the limits of k further ones, by expectation-maximisation.

        Example:
            >>> below = Limits(np.full(2, -np.inf), np.full(2, 1.0))
            >>> fit = NormalFit.of(np.array([1.0, 2.0, 3.0]), below)
            >>> round(fit.mean, 3), round(fit.deviation, 3)
            (1.256, 1.188)
        """
        mean, deviation, n = float(numbers.mean()), float(numbers.std()), len(numbers) + len(limits.lower)
        if deviation == 0:
            return cls(mean, deviation, -math.inf)
        squares = float(np.square(numbers - mean).sum())
        for _ in range(_MOST_STEPS):
            first, second = _truncated_moments(mean, deviation, limits)
            new = (len(numbers) * float(numbers.mean()) + float(first.sum())) / n
            spread = len(numbers) * (float(numbers.mean()) - new) ** 2 + squares
            variance = (spread + float((second + np.square(first - new)).sum())) / n
            change = abs(new - mean) + abs(math.sqrt(variance) - deviation)
            mean, deviation = new, math.sqrt(variance)
            if change < _TOLERANCE * deviation:
                break
        away = (numbers - mean) / deviation
        density = -0.5 * (np.square(away) + math.log(2 * math.pi)) - math.log(deviation)
        ends = ((end - mean) / deviation for end in (limits.lower, limits.upper))
        return cls(mean, deviation, float(density.sum() + _log_mass(*ends).sum()))


def _truncated_moments(mean: float, deviation: float, limits: Limits) -> tuple[Numbers, Numbers]:
    """Return means and variances of a normal distribution truncated to each of k intervals, `[k]`."""
    low, high = (limits.lower - mean) / deviation, (limits.upper - mean) / deviation
    log_mass = _log_mass(low, high)
    at_low, at_high = (
        np.exp(-0.5 * np.square(end) - 0.5 * math.log(2 * math.pi) - log_mass) for end in (low, high)
    )
    shift = at_low - at_high
    weighted = [np.where(np.isinf(end), 0.0, end) * at for end, at in ((low, at_low), (high, at_high))]
    variance = np.clip(1 + weighted[0] - weighted[1] - np.square(shift), 0.0, 1.0)
    # In narrow or distant intervals, rounding errors of the difference of densities would leave them.
    centre = np.clip(mean + deviation * shift, limits.lower, limits.upper)
    return centre, np.square(deviation) * variance


def _log_mass(low: Numbers, high: Numbers) -> Numbers:
    """Return the log probabilities of intervals under the standard normal distribution."""
    return log_between(torch.as_tensor(low), torch.as_tensor(high)).numpy()


def split_limits(frame: pd.DataFrame) -> tuple[pd.DataFrame, dict[Label, ColumnSpec]]:
    """Split columns of text that hold numbers and limits, such as "<0.5", into numbers and limits.

    A column of text all of whose cells are numbers or limits becomes one of floating-point numbers, missing
    where the text is a limit. Its limits are added as columns named "... at least" and "... at most". Columns
    so named that the table already has are taken for limits, too, if they hold numbers only where the column
    itself is missing.

    Returns:
        The table and the specs of the columns that have limits, for `MGPImputer(specs=...)`.

    Raises:
        TypeError: The table is no DataFrame of pandas.
        ValueError: The table already has a column with the name of one that is to be added, or two columns of
            one name.

    Example:
        >>> frame = pd.DataFrame({"lead": ["1.5", "<0.5", None, "2"], "age": [31, 40, 52, 46]})
        >>> split, specs = split_limits(frame)
        >>> split["lead"].tolist(), split["lead at most"].tolist()
        ([1.5, nan, nan, 2.0], [nan, 0.5, nan, nan])
        >>> specs["lead"].upper_limit
        'lead at most'
    """
    if not isinstance(frame, pd.DataFrame):
        raise TypeError(f"expected a DataFrame of pandas, got {type(frame).__name__}: convert it first")
    split = frame.copy()
    for label in labels_of(frame.columns):
        if (found := _parsed(frame[label])) is None:
            continue
        split[label], limits = found
        for name, ends in zip(_limit_names(label), (limits.lower, limits.upper), strict=True):
            if np.isfinite(ends).any():
                if name in frame.columns:
                    raise ValueError(
                        f"column {label!r} holds limits, for which a column {name!r} would be added, but "
                        "the table has one of this name. Rename it."
                    )
                split[name] = np.where(np.isfinite(ends), ends, np.nan)
    specs = {}
    for label in labels_of(split.columns):
        names = [name if _are_limits(split, name, label) else None for name in _limit_names(label)]
        if any(names):
            specs[label] = ColumnSpec(lower_limit=names[0], upper_limit=names[1])
            if types.is_integer_dtype(split[label].dtype):
                split[label] = split[label].astype("Float64")
    return split, specs


def _are_limits(frame: pd.DataFrame, name: str, label: Label) -> bool:
    """Return whether a table has a column of limits of another one's missing cells."""
    if name not in frame.columns or not all(types.is_numeric_dtype(frame[x].dtype) for x in (name, label)):
        return False
    given = ~holes_of(frame[name])
    return bool(given.any() and holes_of(frame[label])[given].all())


def _limit_names(label: Label) -> tuple[str, str]:
    """Return the names of the columns with the lower and the upper limits of a column."""
    return f"{label} at least", f"{label} at most"


def holds_limits(column: pd.Series[Any]) -> bool:
    """Return whether a column of text holds numbers and limits, such as "<0.5"."""
    return _parsed(column) is not None


def _parsed(column: pd.Series[Any]) -> tuple[Numbers, Limits] | None:
    """Return the numbers and limits that the cells of a column of text hold; None if it holds others."""
    holes = holes_of(column)
    cells = column[~holes].tolist()
    # Spreadsheets mix numbers and text.
    mixes = all(isinstance(cell, str | int | float) and not isinstance(cell, bool) for cell in cells)
    texts = [str(cell) for cell in cells]
    if not mixes or not any(isinstance(cell, str) for cell in cells):
        return None
    # Categories with an order, such as "<1", "1", "2", are levels.
    if isinstance(column.dtype, pd.CategoricalDtype):
        return None
    matches = [_NUMBER_OR_LIMIT.fullmatch(text) for text in texts]
    if not all(matches) or not any(match and match[1] for match in matches):
        return None
    found = np.repeat([[np.nan], [-np.inf], [np.inf]], len(column), axis=1)
    signs = {None: 0, "<": 2, "≤": 2, ">": 1, "≥": 1}
    for row, match in zip(np.flatnonzero(~holes), matches, strict=True):
        assert match is not None
        found[signs[match[1] and match[1][0]], row] = float(match[2])
    numbers, lower, upper = found
    return numbers, Limits(lower, upper)
