"""Codecs of the kinds of columns: numbers, times, booleans, and ordered and unordered levels."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types
from scipy import optimize, stats

from pyro_mgp._support.messages import listing, plain, row_name
from pyro_mgp.data.cells import (
    as_stored,
    holes_of,
    is_floating,
    is_numeric,
    numbers_of,
    seconds_of,
    to_integers,
)
from pyro_mgp.data.codecs.base import (
    LARGEST,
    MAX_LEVELS,
    ColumnCodec,
    FitOptions,
    Level,
    finite_numbers,
    moments,
)
from pyro_mgp.data.column_spec import ColumnSpec, Kind, Label
from pyro_mgp.data.limits import Limits, NormalFit, Numbers
from pyro_mgp.data.transforms import Warp

# Counts that were detected, not asked for, are drawn up to so many times the largest observed one.
_MOST_TIMES = 2.0
# Fewest observed cells, all of them whole, that show that a floating-point column holds whole numbers.
_FEWEST_WHOLE = 50
# Integers up to this one are exact in float64.
_LARGEST_COUNT = 2.0**53
# Integers that range from 0 to at least _LEAST_REACH are counts if the Kullback-Leibler divergence from the
# nearest negative binomial distribution of the same mean is below _NEAR nats, sampling error apart, ...
_LEAST_REACH, _NEAR = 5.0, 0.05
# ... and if it expects fewer than so many cells beyond the largest: ratings have an end, counts do not.
_MOST_BEYOND = 1.0
# Support is discrete if at least this share of the cells hold values that occur at least so often.
_MOSTLY, _OFTEN = 0.9, 5
# Draws of a log-transformed column end so many observed ranges beyond the observed cells.
_FURTHER = 2.0
# First and last day of the years 1 to 9999, in seconds since 1970.
_CALENDAR = (-62_135_596_800.0, 253_402_214_400.0)
# Numbers of groups that were not in the table of the fit.
_OTHER_GROUPS = 2**32
# Days, hours, minutes and seconds, in seconds.
_STEPS = (86_400.0, 3_600.0, 60.0, 1.0)


@dataclass(frozen=True)
class BoundedCodec(ColumnCodec):
    """Base of the codecs of numbers that may have bounds."""

    lower: float | None = None
    """Smallest possible number in the column's own units, None for no bound."""
    upper: float | None = None
    """Largest possible number, None for no bound."""

    @classmethod
    def _given(cls, column: pd.Series[Any], spec: ColumnSpec) -> dict[str, Any]:
        return {"lower": spec.lower, "upper": spec.upper}

    def _invalid(self, raw: Numbers, at_fit: bool) -> Iterable[tuple[NDArray[np.bool_], str]]:
        lower, upper = self.limits
        yield raw < lower, f"numbers of at least {lower:g}"
        yield raw > upper, f"numbers of at most {upper:g}"

    @property
    def limits(self) -> tuple[float, float]:
        """Lower and upper bound of cells in their own units, infinite where there is none."""
        return -math.inf if self.lower is None else self.lower, math.inf if self.upper is None else self.upper


@dataclass(frozen=True)
class NumberCodec(BoundedCodec):
    """Base of the codecs of numbers that may be transformed, and have bounds and a discrete support."""

    warp: Warp | None = None
    has_limits: bool = False
    """Whether missing cells may have limits, beyond which no cell was observed."""
    support: tuple[float, ...] | None = None

    def _learn(self, observed: Numbers, options: FitOptions) -> ColumnCodec:
        if options.limits is not None:
            return self._learn_within(observed, options.limits.ordered(), warp=options.warp)
        bounded = self.lower is not None or self.upper is not None
        may_count = options.joint_density or self.kind is Kind.INTEGER
        detects = options.spec.kind is None and not bounded and options.discrete_support and may_count
        if detects and _are_counts(observed):
            most = _MOST_TIMES * float(observed.max())
            return CountCodec(self.name, self.family, self.dtype, most=most)._learn(observed, options)
        warp = Warp.choose(observed[:, 0], self.lower, self.upper) if options.warp else None
        return self._fitted(observed, warp=warp, support=_support(observed, options.discrete_support))

    def _learn_within(self, observed: Numbers, limits: Limits, *, warp: bool) -> ColumnCodec:
        """Fit the codec to observed cells and the limits of missing ones."""
        numbers = np.sort(observed[:, 0])
        chosen = Warp.choose(numbers, self.lower, self.upper, limits) if warp else None
        codec = self._fitted(observed, warp=chosen, has_limits=True)
        if chosen is not None:
            numbers, limits = np.sort(chosen.forward(numbers)), chosen.of_limits(limits)
        fit = NormalFit.of(numbers, limits)
        return dataclasses.replace(codec, mean=(fit.mean,), scale=(fit.deviation,))

    def standardised_limits(self, limits: Limits) -> Limits:
        """Return limits of cells in standardised units; a ValueError says which leave no possible cell."""
        if self.warp is not None and (row := self.warp.first_impossible(limits)) is not None:
            raise ValueError(
                f"Column {self.name!r}: expected cells on one side of {self.warp.centre:g}, as at fit; "
                f"position {row} is at least {limits.lower[row]:g} and at most {limits.upper[row]:g}. "
                "Correct the limit; or fit to such rows, or with warp=False."
            )
        ends = limits if self.warp is None else self.warp.of_limits(limits)
        return Limits(*((each - self.mean[0]) / self.scale[0] for each in (ends.lower, ends.upper)))

    @property
    def has_two_values(self) -> bool:
        """True if a discrete support has two values, and bounds let no cell lie beyond them."""
        is_between = self.lower in (None, self.low) and self.upper in (None, self.high)
        return is_between and self.support is not None and len(self.support) == 2

    @property
    def needs_warp(self) -> bool:
        """True if draws would pile up at a bound without the transform."""
        return self.warp is not None and self.warp.keeps_bounds and bool(np.isfinite(self.limits).any())

    @property
    def has_optional_warp(self) -> bool:
        """True if the column has a transform that neither its bounds nor limits of cells need."""
        return self.warp is not None and not (self.needs_warp or self.has_limits)

    def untransformed(self, column: pd.Series[Any]) -> Self:
        """Return the codec without transform, given the column to which it was fitted."""
        raw = self._checked(column)
        return self._fitted(raw[~np.isnan(raw[:, 0])], warp=None)

    @property
    def drawn_range(self) -> tuple[float, float]:
        """Range of draws of a transformed or integer column: its bounds, or else the observed range."""
        margin = 0.0  # of draws beyond the observed range, on the side without a bound
        if self.warp is not None and self.needs_warp and self.warp.name in ("log", "softplus"):
            margin = LARGEST if self.warp.name == "softplus" else _FURTHER * (self.high - self.low)
        margin = LARGEST if self.has_limits else margin
        lower, upper = self.limits
        return (
            self.low - margin if math.isinf(lower) else lower,
            self.high + margin if math.isinf(upper) else upper,
        )

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Bounds at which draws must be truncated, standardised; None if no truncation is needed."""
        if self.warp is not None and self.needs_warp:
            if self.warp.name != "log":
                return None
            # The exponential of a normal tail is long: draws end with the drawn range.
            far = self.drawn_range[1 if self.upper is None else 0]
            return -math.inf, float(self.standardise(np.array([far]))[0])
        if self.shares is not None or not np.isfinite(self.limits).any():
            return None
        lower, upper = self.limits
        if self.kind is Kind.INTEGER:  # draws are truncated before they are rounded
            lower, upper = np.ceil(lower) - 0.5, np.floor(upper) + 0.5
        lower, upper = self.standardise(np.array([lower, upper])).tolist()
        return lower, upper

    def encode(self, column: pd.Series[Any]) -> Numbers:
        """Convert a column to standardised numbers, float64 `[N, 1]`, NaN where missing."""
        encoded = super().encode(column)
        if self.warp is None or not self.warp.keeps_bounds:
            return encoded
        # A new cell at a bound, where the transform is infinite, counts as just beyond the observed range.
        low, high = np.sort(self.standardise(np.array([self.low, self.high])))
        return np.clip(encoded, low - 1, high + 1)

    def _cells(self, transformed: Numbers, to_support: bool) -> NDArray[Any]:
        raw = transformed[..., 0] if self.warp is None else self.warp.backward(transformed[..., 0])
        if to_support and self.support is not None:
            support = np.asarray(self.support)
            raw = support[np.searchsorted((support[1:] + support[:-1]) / 2, raw)]
        # The inverse transform makes a normal tail exponential: one draw could outweigh a whole column.
        return np.clip(raw, *(self.limits if self.warp is None else self.drawn_range))

    def _conditions(self) -> dict[str, bool]:
        return super()._conditions() | {
            "bounds": self.limits[0] < self.limits[1],
            "spread": self.warp is None or self.warp.spread != 0,
            "support": self.support is None or list(self.support) == sorted(set(self.support)) != [],
        }


@dataclass(frozen=True)
class ContinuousCodec(NumberCodec):
    """Codec of real numbers with Gaussian noise, transformed if that is clearly more likely."""

    kind = Kind.CONTINUOUS
    families = ("numbers",)

    is_whole: bool = False
    """Whether draws are whole, as all observed cells are: pandas reads integers with holes as floats."""

    def _learn(self, observed: Numbers, options: FitOptions) -> ColumnCodec:
        codec = super()._learn(observed, options)
        is_whole = len(observed) >= _FEWEST_WHOLE and not (observed % 1).any()
        if not isinstance(codec, ContinuousCodec) or not is_whole or not options.discrete_support:
            return codec
        return codec if codec.has_limits else dataclasses.replace(codec, is_whole=True)

    @property
    def unrounded(self) -> ContinuousCodec:
        """Codec without rounding to whole numbers."""
        return dataclasses.replace(self, is_whole=False)

    def _cells(self, transformed: Numbers, to_support: bool) -> NDArray[Any]:
        raw = super()._cells(transformed, to_support)
        if not self.is_whole:
            return raw
        # Adding zero turns -0.0 into 0.0.
        return np.clip(np.rint(raw), np.ceil(self.limits[0]), np.floor(self.limits[1])) + 0.0


class HeavyTailedCodec(ColumnCodec):
    """Codec of numbers with outliers, with Student's t noise."""

    kind = Kind.HEAVY_TAILED
    families = ("numbers",)


@dataclass(frozen=True)
class CountCodec(ColumnCodec):
    """Codec of counts with a negative binomial model, encoded as log(1 + count)."""

    kind = Kind.COUNT
    families = ("numbers",)
    warp = Warp(-1.0, 1.0, "log")

    average: float = 0.0
    """Mean count."""
    most: float = _LARGEST_COUNT
    """Largest count that is drawn."""

    def _invalid(self, raw: Numbers, at_fit: bool) -> Iterable[tuple[NDArray[np.bool_], str]]:
        yield (raw < 0) | (raw % 1 > 0), "a count, 0, 1, 2, ..."

    def _learn(self, observed: Numbers, options: FitOptions) -> ColumnCodec:
        return self._fitted(observed, average=moments(observed[:, 0])[0])

    @property
    def drawn_range(self) -> tuple[float, float]:
        """Smallest and largest count that is drawn."""
        return 0.0, self.most

    @property
    def unrounded(self) -> ColumnCodec:
        """Codec of numbers with the same transform; this one if the dtype is not of floating point."""
        if not is_floating(self.dtype):
            return self
        lower, upper = self.drawn_range
        return dataclasses.replace(as_continuous(self), lower=lower, upper=upper, warp=self.warp)

    def _cells(self, transformed: Numbers, to_support: bool) -> NDArray[Any]:
        counts = np.rint(self.warp.backward(transformed[..., 0]))
        return to_integers(np.clip(counts, *self.drawn_range))

    def _conditions(self) -> dict[str, bool]:
        return super()._conditions() | {"most": self.most >= 0}


@dataclass(frozen=True)
class IntegerCodec(NumberCodec):
    """Codec of whole numbers: modelled as continuous and rounded; ordinal if there are two values."""

    kind = Kind.INTEGER
    families = ("numbers",)
    step = 1.0

    shares: tuple[float, ...] | None = None

    def _invalid(self, raw: Numbers, at_fit: bool) -> Iterable[tuple[NDArray[np.bool_], str]]:
        yield from super()._invalid(raw, at_fit)
        if at_fit:
            yield raw % 1 > 0, "whole numbers"

    def _learn(self, observed: Numbers, options: FitOptions) -> ColumnCodec:
        if len(np.unique(observed)) > 2:
            return super()._learn(observed, options)
        return dataclasses.replace(self, shares=())._fitted(observed)

    @property
    def drawn_range(self) -> tuple[float, float]:
        """Range of draws: the whole numbers within the bounds, or else the observed range."""
        lower, upper = super().drawn_range
        return float(np.ceil(lower)), float(np.floor(upper))

    def _cells(self, transformed: Numbers, to_support: bool) -> NDArray[Any]:
        raw = super()._cells(transformed, to_support)
        if self.shares is not None:
            raw = np.where(raw >= (self.low + self.high) / 2, self.high, self.low)
        return to_integers(np.clip(np.rint(raw), *self.drawn_range))


@dataclass(frozen=True)
class _TimeCodec(ColumnCodec):
    """Base of the codecs of times, which are read as seconds and rounded to multiples of `step`."""

    step: float = 0.0
    """Largest unit of which all observed times are multiples, in seconds; 0 if there is none."""

    def _read(self, column: pd.Series[Any]) -> Numbers:
        return seconds_of(column)[:, None]

    def _invalid(self, raw: Numbers, at_fit: bool) -> Iterable[tuple[NDArray[np.bool_], str]]:
        return ()

    def _fitted(self, observed: Numbers, **fields: Any) -> Self:
        step = next((step for step in _STEPS if not (observed % step).any()), 0.0)
        return super()._fitted(observed, step=step, **fields)

    def _cells(self, transformed: Numbers, to_support: bool) -> NDArray[Any]:
        seconds = super()._cells(transformed, to_support)
        return as_stored(np.rint(seconds / self.step) * self.step if self.step else seconds, self.family)

    def _conditions(self) -> dict[str, bool]:
        return super()._conditions() | {"step": self.step >= 0}


class DatetimeCodec(_TimeCodec):
    """Codec of points in time: Gaussian, as seconds since 1970 (UTC)."""

    kind = Kind.DATETIME
    families = ("datetimes",)

    def _cells(self, transformed: Numbers, to_support: bool) -> NDArray[Any]:
        first, last = min(self.low, _CALENDAR[0]), max(self.high, _CALENDAR[1])
        return super()._cells(np.clip(transformed, first, last), to_support)


@dataclass(frozen=True)
class DurationCodec(_TimeCodec, NumberCodec):
    """Codec of durations in seconds: continuous, and not negative unless some of the data are."""

    kind = Kind.DURATION
    families = ("durations",)

    @property
    def limits(self) -> tuple[float, float]:
        """Bounds of draws in seconds: 0 and infinity unless a negative duration was observed."""
        return 0.0 if self.low >= 0 else -math.inf, math.inf

    def _learn(self, observed: Numbers, options: FitOptions) -> ColumnCodec:
        lower = 0.0 if observed.min() >= 0 else None
        return self._fitted(observed, warp=Warp.choose(observed[:, 0], lower) if options.warp else None)


@dataclass(frozen=True)
class BooleanCodec(ColumnCodec):
    """Codec of booleans, or of numbers with two values, with a cumulative probit model."""

    kind = Kind.BOOLEAN
    families = ("booleans", "numbers")

    shares: tuple[float, ...] = ()

    def _invalid(self, raw: Numbers, at_fit: bool) -> Iterable[tuple[NDArray[np.bool_], str]]:
        if at_fit:
            values = np.unique(raw[~np.isnan(raw)])[:2]
            yield ~np.isnan(raw) & ~np.isin(raw, values), f"one of two values, {listing(values)}"

    @property
    def unrounded(self) -> ColumnCodec:
        """Codec of numbers between the two values; this one if the dtype is not of floating point."""
        if self.family != "numbers" or not is_floating(self.dtype):
            return self
        return dataclasses.replace(as_continuous(self), lower=self.low, upper=self.high)

    def _cells(self, transformed: Numbers, to_support: bool) -> NDArray[Any]:
        raw = np.where(transformed[..., 0] >= (self.low + self.high) / 2, self.high, self.low)
        if self.family == "numbers" and self.low.is_integer() and self.high.is_integer():
            return to_integers(raw)
        return as_stored(raw, self.family)


@dataclass(frozen=True)
class _LevelCodec(ColumnCodec):
    """Base of the codecs of levels, which are read as their positions among `levels`."""

    families = ("labels", "numbers")
    most_levels: ClassVar[int] = MAX_LEVELS

    levels: tuple[Level, ...] = ()

    @classmethod
    def _given(cls, column: pd.Series[Any], spec: ColumnSpec) -> dict[str, Any]:
        """Return the observed levels: in category order for the category dtype, else sorted."""
        numeric = types.is_numeric_dtype(column.dtype)
        if isinstance(column.dtype, pd.CategoricalDtype):
            codes = np.unique(column.cat.codes.to_numpy())
            levels = tuple(map(plain, column.cat.categories[codes[codes >= 0]].tolist()))
        elif numeric:
            levels = tuple(map(plain, np.unique(np.asarray(column[~holes_of(column)].to_list()))))
        else:
            levels = tuple(sorted(str(label) for label in column[~holes_of(column)].unique()))
        odd = [x for x in levels if not isinstance(x, str | int | float) or x in (math.inf, -math.inf)]
        # An infinite number gets an error that names its row, see `finite_numbers`.
        if odd and not numeric:
            raise TypeError(
                f"Column {column.name!r}: expected categories that are text, finite numbers or booleans, got "
                f"{odd[0]!r} ({type(odd[0]).__name__}). Rename them: "
                f"frame[{column.name!r}].cat.rename_categories(str)."
            )
        if len(levels) > cls.most_levels:
            raise ValueError(
                f"Column {column.name!r}: expected at most {cls.most_levels} categories, got {len(levels)} "
                f"({listing(levels, 3)}). It is probably an identifier: drop it, or group its categories."
            )
        return {"levels": levels}

    def _read(self, column: pd.Series[Any]) -> Numbers:
        if is_numeric(column):
            finite_numbers(column)
        labels = pd.Index(column.astype(object), dtype=object)
        positions = pd.Index(self.levels, dtype=object).get_indexer(labels)
        return np.where(positions < 0, np.nan, positions)[:, None]

    def _conditions(self) -> dict[str, bool]:
        n_levels = len(self.levels)
        return super()._conditions() | {
            "levels": n_levels <= self.most_levels and len(set(map(repr, self.levels))) == n_levels
        }


@dataclass(frozen=True)
class OrderedCodec(_LevelCodec):
    """Codec of ordered levels, with a cumulative probit model."""

    kind = Kind.ORDERED

    shares: tuple[float, ...] = ()

    @classmethod
    def _given(cls, column: pd.Series[Any], spec: ColumnSpec) -> dict[str, Any]:
        if not is_numeric(column) and not isinstance(column.dtype, pd.CategoricalDtype):
            raise ValueError(
                f"Column {column.name!r}: kind='ordered' needs the order of its levels, which {column.dtype} "
                f"lacks: make it pandas.Categorical(frame[{column.name!r}], categories=[...], ordered=True)."
            )
        return super()._given(column, spec)

    def _cells(self, transformed: Numbers, to_support: bool) -> NDArray[Any]:
        positions = np.clip(np.rint(transformed[..., 0]), self.low, self.high)
        return self._levels_at(positions)

    def _conditions(self) -> dict[str, bool]:
        return super()._conditions() | {"positions": (self.low, self.high) == (0, len(self.levels) - 1)}


@dataclass(frozen=True)
class CategoricalCodec(_LevelCodec):
    """Codec of unordered levels: one indicator per level, with a probit model for all but the last."""

    kind = Kind.CATEGORICAL

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the indicators, `"species=Adelie"`."""
        return tuple(f"{self.name}={level}" for level in self.levels) if self.width else ()

    def _read(self, column: pd.Series[Any]) -> Numbers:
        positions = super()._read(column)
        return np.where(np.isnan(positions), np.nan, positions == np.arange(len(self.levels)))

    @property
    def indicators(self) -> tuple[Numbers, Numbers] | None:
        """Standardised values of 0 and of 1 in each indicator, `[width]` each."""
        return self.standardise(np.zeros(self.width)), self.standardise(np.ones(self.width))

    def ordinal(self, position: int = 0, unless: Sequence[int] = ()) -> tuple[Numbers, Numbers] | None:
        """Return the two values of an indicator, with their frequencies where indicators `unless` are 0."""
        shares = np.asarray(self.mean)
        share = shares[position] / (1.0 - shares[list(unless)].sum())
        values = np.array([ends[position] for ends in (self.indicators or ())])
        return values, np.array([1 - share, share])

    def _cells(self, transformed: Numbers, to_support: bool) -> NDArray[Any]:
        return self._levels_at(transformed.argmax(axis=-1))

    def _conditions(self) -> dict[str, bool]:
        return super()._conditions() | {
            "width": len(self.mean) == len(self.scale) == len(self.own_scale) == len(self.levels) > 1,
            # Far outside, 0 and 1 would be standardised to the same number.
            "mean": all(0 <= mean <= 1 for mean in self.mean),
        }


@dataclass(frozen=True)
class GroupCodec(_LevelCodec):
    """Codec of groups, by their standardised positions among `levels`; other groups are numbered beyond."""

    kind = Kind.GROUP
    most_levels = 10**6

    slopes: tuple[Label, ...] = ()
    """Labels of the columns that have a slope in each group."""
    time: Label | None = None
    """Label of the column with the times of a process within groups; None without one."""

    @classmethod
    def _given(cls, column: pd.Series[Any], spec: ColumnSpec) -> dict[str, Any]:
        return super()._given(column, spec) | {"slopes": tuple(spec.slopes), "time": spec.time}

    def _read(self, column: pd.Series[Any]) -> Numbers:
        for row in np.flatnonzero(holes_of(column))[:1]:
            raise ValueError(
                f"Column {self.name!r}: {row_name(column.index, row)} is missing; expected the group of "
                "each row. Drop such rows, or give rows of unknown groups one of their own."
            )
        positions = super()._read(column)
        if len(unseen := np.flatnonzero(np.isnan(positions[:, 0]))):
            labels = column.iloc[unseen]
            # Integers and floats of the same value are one group.
            names = numbers_of(labels) if is_numeric(labels) else labels.astype(str).to_numpy(dtype=object)
            hashes = pd.util.hash_array(names)
            positions[unseen, 0] = len(self.levels) + hashes % _OTHER_GROUPS
        return positions


def standardised_errors(codec: ColumnCodec, column: pd.Series[Any], errors: Numbers) -> Numbers:
    """Convert standard errors `[N]` of continuous cells to standardised units, to first order."""
    if codec.kind is not Kind.CONTINUOUS:
        raise ValueError(
            f"Column {codec.name!r}: standard errors are for continuous columns, but this is {codec.kind}."
        )
    if codec.warp is not None:
        cells = numbers_of(column)
        errors = errors * np.exp(np.where(np.isnan(cells), 0.0, codec.warp.log_slope(cells)))
    return np.asarray(errors / codec.scale[0])


def as_continuous(codec: ColumnCodec) -> ContinuousCodec:
    """Return the codec that decodes the numbers of another to floats, without bounds or rounding."""
    moments = (codec.mean, codec.scale, codec.own_scale, codec.low, codec.high)
    return ContinuousCodec(codec.name, codec.family, codec.dtype, *moments)


def _support(observed: Numbers, most: int) -> tuple[float, ...] | None:
    """Return the distinct values if there are at most `most` and nearly all are repeated, else None."""
    values, counts = np.unique(observed, return_counts=True)
    repeated = counts[counts >= _OFTEN].sum()
    return None if len(values) > most or repeated < _MOSTLY * len(observed) else tuple(values.tolist())


def start_at_zero(observed: Numbers) -> bool:
    """Return whether numbers are whole, and zero is the smallest."""
    return observed.min() == 0 and not bool((observed % 1).any())


def _are_counts(observed: Numbers) -> bool:
    """Return whether numbers are whole, start at 0 and are nearly negative binomial."""
    if not start_at_zero(observed) or observed.max() < _LEAST_REACH:
        return False
    values, counts = np.unique(observed, return_counts=True)
    mean, share = observed.mean(), counts / len(observed)

    def divergence(log_r: float) -> float:
        r = math.exp(log_r)
        return float((share * (np.log(share) - stats.nbinom.logpmf(values, r, r / (r + mean)))).sum())

    nearest = optimize.minimize_scalar(divergence, bounds=(-5.0, 10.0), method="bounded")
    r = math.exp(nearest.x)
    beyond = len(observed) * float(stats.nbinom.sf(values[-1], r, r / (r + mean)))
    return beyond < _MOST_BEYOND and float(nearest.fun) < _NEAR + (len(values) - 1) / (2 * len(observed))
