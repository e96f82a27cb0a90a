"""One column ⇄ numbers: what a dtype is, this room knows, and `table` for whole tables.

A :class:`ColumnCodec` learns from a column what its cells are, and turns cells into numbers and numbers back
into cells. A column x becomes standardised columns z = (x - mean) / scale, with mean and scale (the
population standard deviation) of the observed cells; numbers may be bent first (``warp``)::

    kind            what it reads                                 encoded columns
    CONTINUOUS      floats                                        1
    HEAVY_TAILED    numbers, if asked for                         1
    INTEGER         integers                                      1
    COUNT           integers distributed as counts are            1, of log(1 + x)
    BOOLEAN         booleans; two numbers, if asked for           1, from False = 0 and True = 1
    ORDERED         ordered pandas categories                     1, from the positions of the levels
    CATEGORICAL     text, pandas categories                       1 per level observed at fit (one-hot)
    DATETIME        points in time                                1, in seconds since 1970 (UTC)
    DURATION        lengths of time                               1, in seconds; none negative if none was
    CONSTANT        anything of which one value was observed      0

Missing cells (NaN, None, ``pd.NA``, ``pd.NaT``) are NaN inside, and so are categories unseen at fit. A
one-hot cell is missing in all its encoded columns or in none.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from pandas.api import types
from scipy import optimize, stats

from pyro_mgp._support.messages import Hinted, dropping, listing, plain, row_name
from pyro_mgp.data.cells import numbers_of, objects, seconds_of, to_integers
from pyro_mgp.data.column_spec import ColumnSpec, Kind, Label
from pyro_mgp.data.dtypes import (
    FAMILIES,
    Family,
    check_categories,
    holes_of,
    is_numeric,
    label_of,
    natural_kind,
)
from pyro_mgp.data.transforms import InverseTransform, Warp
from pyro_mgp.storage.scratch import pieces
from pyro_mgp.storage.untrusted import build

__all__ = ["ColumnCodec"]

Level: TypeAlias = str | int | float | bool

# Squares of numbers up to LARGEST, and of spreads down to 1 / LARGEST, stay well inside float64.
LARGEST = 1e100
MAX_LEVELS = 100
_INFINITE = (math.inf, -math.inf)
# A draw of a count is no larger than an integer that a float holds exactly.
_LARGEST_COUNT = 2.0**53
# A column has few values if at least so many of its cells hold one that is there so often.
_MOSTLY, _OFTEN = 0.9, 5
# An integer column that reaches from 0 to so far counts something if a negative binomial distribution of the
# same mean is so near, in nats per cell, beside what chance makes of it.
_LEAST_REACH, _NEAR = 5.0, 0.05
# ... and if no more than so many cells would have been larger than the largest: ratings end, counts do not.
_MOST_BEYOND = 1.0
# Draws of counts that nobody asked for end at so many times the largest cell.
_MOST_TIMES = 2.0
# How far beyond the observed cells draws of a log may go, in their range.
_FURTHER = 2.0
# Times in microseconds that 64 bits hold; the smallest integer of all is no time.
_TIMES = (-float(2**63 - 1024), float(2**63 - 1024))
# The first and the last day of the years 1 to 9999, in seconds since 1970.
_CALENDAR = (-62_135_596_800.0, 253_402_214_400.0)
# Lengths in seconds of which times may be multiples: days, hours, minutes, seconds.
_STEPS = (86_400.0, 3_600.0, 60.0, 1.0)

_MAY_BE: dict[Family, tuple[Kind, ...]] = {
    "numbers": (
        Kind.CONTINUOUS,
        Kind.HEAVY_TAILED,
        Kind.INTEGER,
        Kind.COUNT,
        Kind.BOOLEAN,
        Kind.ORDERED,
        Kind.CATEGORICAL,
    ),
    "booleans": (Kind.BOOLEAN,),
    "labels": (Kind.CATEGORICAL, Kind.ORDERED),
    "datetimes": (Kind.DATETIME,),
    "durations": (Kind.DURATION,),
}
_WHOLE = (Kind.INTEGER, Kind.COUNT)
# Kinds that may have bounds, and those that few values and a bend are for.
_BOUNDED = (Kind.CONTINUOUS, Kind.INTEGER)


@dataclass(frozen=True)
class ColumnCodec:
    """How one column becomes numbers and back.

    Attributes:
        name: The column's label.
        kind: What its cells are.
        family: How they are stored.
        dtype: Its pandas dtype at fit, as text.
        levels: The levels observed at fit, of CATEGORICAL in the order of the encoded columns, of ORDERED in
            their own; None of other kinds, but for labels that are CONSTANT.
        mean: Mean of the observed cells, one per encoded column, in the column's own units; of the bent cells
            if there is a warp.
        scale: Population standard deviation of the observed cells, likewise.
        average: Mean of the observed cells of COUNT in its own units; else 0.
        low: Smallest observed cell of an encoded column, in its own units; 0 for indicators.
        high: Largest, likewise; 1 for indicators.
        two_valued: Whether it is a boolean, or an integer seen as ``low`` and ``high`` only.
        own_scale: Population standard deviation of the observed cells in the column's own units, bent or not.
        warp: How numbers are bent before they are standardised; None if they are not.
        few: All its values in ascending order if it is numeric and they are few, else None.
        shares: How frequent each value is, in ascending order, if it is two-valued or ORDERED; else None.
        lower: What no cell lies below, in its own units; None for no bound.
        upper: What no cell lies above, likewise.
        step: What times are multiples of, in seconds; 0 if of nothing.
        most: The largest count that is drawn.

    Example:
        >>> codec = ColumnCodec.fit(pd.Series([1.0, 3.0, None], name="mass"))
        >>> codec.mean, codec.scale
        ((2.0,), (1.0,))
        >>> codec.encode(pd.Series([4.0, None], name="mass")).tolist()
        [[2.0], [nan]]
        >>> codec.decode([[2.0]]).tolist()
        [4.0]
    """

    name: Label
    kind: Kind
    family: Family
    dtype: str
    levels: tuple[Level, ...] | None
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    low: float
    high: float
    two_valued: bool
    own_scale: tuple[float, ...]
    warp: Warp | None
    few: tuple[float, ...] | None = None
    average: float = 0.0
    shares: tuple[float, ...] | None = None
    lower: float | None = None
    upper: float | None = None
    step: float = 0.0
    most: float = _LARGEST_COUNT

    @classmethod
    def fit(
        cls,
        column: pd.Series[Any],
        warp: bool = False,
        discrete_support: int = 0,
        spec: ColumnSpec | None = None,
    ) -> ColumnCodec:
        """Learn the codec of ``column``.

        Args:
            column: The column.
            warp: Whether numbers may be bent.
            discrete_support: Most different values of a numeric column whose support counts as discrete. They
                have to come again, too: nine in ten cells hold a value that is there five times or more. 0
                also keeps integers from being taken for counts.
            spec: What is known of it besides.

        Sums are rounded exactly once, so the rows' order does not change a single bit of the codec.

        Raises:
            TypeError: The dtype is not supported, or an object column mixes types.
            ValueError: The column is entirely missing, holds infinite or huge numbers, has more than 100
                categories, or is not what ``spec`` says.
        """
        name, spec = label_of(column.name), spec or ColumnSpec()
        natural = natural_kind(column)
        if natural is None:
            raise ValueError(
                dropping(f"Column {name!r} is entirely missing: expected an observed cell, got none.", name)
            )
        family = FAMILIES[natural]
        kind = _chosen_kind(column, natural, spec)
        levels = _levels(column) if kind in (Kind.CATEGORICAL, Kind.ORDERED) else None
        raw = _raw(column, name, kind, levels)
        observed, most = raw[~np.isnan(raw[:, 0])], _LARGEST_COUNT
        free = spec.kind is None and spec.lower is None and spec.upper is None
        if kind is Kind.INTEGER and free and discrete_support and _are_counts(observed[:, 0]):
            kind, most = Kind.COUNT, _MOST_TIMES * float(observed.max())
        known = cls(name, kind, family, str(column.dtype), levels, (), (), 0.0, 0.0, False, (), None)
        known = dataclasses.replace(known, lower=spec.lower, upper=spec.upper, most=most)
        known._check_request(column, raw)
        if (observed == observed[0]).all():
            value = 0.0 if levels is not None else float(observed[0, 0])
            return dataclasses.replace(known, kind=Kind.CONSTANT, low=value, high=value)
        _check_spread(name, observed)
        return known._learn(observed, warp, discrete_support)

    def _learn(self, observed: NDArray[np.float64], warp: bool, discrete_support: int) -> ColumnCodec:
        """This codec with what its observed cells [n, width], in their own units, say."""
        low, high = float(observed.min()), float(observed.max())
        bend, few = None, None
        two_valued = self.kind is Kind.BOOLEAN
        if self.kind is Kind.DURATION and warp:
            bend = Warp.choose(observed[:, 0], 0.0 if low >= 0 else None)
        if self.kind in _BOUNDED:
            two_valued = self.kind is Kind.INTEGER and bool(((observed == low) | (observed == high)).all())
            bend = Warp.choose(observed[:, 0], self.lower, self.upper) if warp else None
            few = None if two_valued else _few(observed[:, 0], discrete_support)
        if self.kind is Kind.COUNT:
            bend = Warp(-1.0, 1.0, "log")
        straight = observed if bend is None else bend.forward(observed)
        mean, scale = zip(*(_moments(values) for values in straight.T), strict=True)
        own_scale = scale if bend is None else (_moments(observed[:, 0])[1],)
        shares = None
        if two_valued or self.kind is Kind.ORDERED:
            counts = np.unique(observed[:, 0], return_counts=True)[1]
            shares = tuple((counts / len(observed)).tolist())
        step = 0.0
        if self.kind in (Kind.DATETIME, Kind.DURATION):
            step = next((step for step in _STEPS if not (observed % step).any()), 0.0)
        return dataclasses.replace(
            self,
            mean=mean,
            scale=scale,
            low=low,
            high=high,
            two_valued=two_valued,
            own_scale=own_scale,
            warp=bend,
            few=few,
            average=_moments(observed[:, 0])[0] if self.kind is Kind.COUNT else 0.0,
            shares=shares,
            step=step,
        )

    @property
    def width(self) -> int:
        """Number of encoded columns: 1, the number of levels, or 0 of a constant."""
        return len(self.mean)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the encoded columns: ``"bill_length_mm"``, or ``"species=Adelie"`` for a level."""
        if self.kind is Kind.CATEGORICAL and self.levels is not None:
            return tuple(f"{self.name}={level}" for level in self.levels)
        return (str(self.name),) * self.width

    @property
    def inverse_transform(self) -> InverseTransform | None:
        """How the bend of its standardised cells is undone, within its range; None without one."""
        if self.warp is None:
            return None
        low, high = sorted(self.warp.forward(np.array(self.drawn_range)).tolist())
        return InverseTransform(self.mean[0], self.scale[0], low, high, self.warp.bend)

    @property
    def drawn_range(self) -> tuple[float, float]:
        """What draws of a bent or whole column keep within: its bounds, or else its observed cells."""
        if self.kind is Kind.COUNT:
            return 0.0, self.most
        lower = self.low if self._floor is None else self._floor
        upper = self.high if self.upper is None else self.upper
        if self.warp is not None and self.warp.bend == "softplus":
            return (lower, LARGEST) if self.upper is None else (-LARGEST, upper)
        if self.warp is not None and self.warp.bend == "log":
            room = _FURTHER * (self.high - self.low)
            return (lower, upper + room) if self.upper is None else (lower - room, upper)
        whole = self.kind is Kind.INTEGER
        return (math.ceil(lower), math.floor(upper)) if whole else (lower, upper)

    @property
    def _floor(self) -> float | None:
        """The lower bound; of lengths of time none of which was negative, zero."""
        never_negative = self.kind is Kind.DURATION and self.low >= 0
        return 0.0 if self.lower is None and never_negative else self.lower

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Bounds of standardised draws, infinite where there is none; None if a draw needs not be told."""
        unbounded = self._floor is None and self.upper is None
        if unbounded or self.two_valued:
            return None
        if self.warp is not None and self.warp.keeps_bounds:
            return self._far_side if self.warp.bend == "log" else None
        lower = -math.inf if self._floor is None else self._floor
        upper = math.inf if self.upper is None else self.upper
        if self.kind is Kind.INTEGER:  # what is rounded to a bound is within it
            lower, upper = np.ceil(lower) - 0.5, np.floor(upper) + 0.5
        raw = np.array([lower, upper])
        bent = raw if self.warp is None else self.warp.forward(raw)
        lower, upper = ((bent - self.mean[0]) / self.scale[0]).tolist()
        return lower, upper

    @property
    def _far_side(self) -> tuple[float, float]:
        """Bounds of standardised draws of a log: they end not far from the cells where there is no bound.

        A normal tail becomes an exponential one there.
        """
        if self.warp is None:
            raise TypeError("a column without a bend has no far side")
        far = self.warp.forward(np.array([self.drawn_range[1 if self.upper is None else 0]]))
        return -math.inf, float((far[0] - self.mean[0]) / self.scale[0])

    def encode(self, column: pd.Series[Any]) -> NDArray[np.float64]:
        """``column`` standardised: float64 [N, width], NaN where missing or a category unseen at fit.

        Integers, floats and their nullable forms may stand in for each other; an entirely missing column may
        have any supported dtype.

        Raises:
            TypeError: The column holds another kind of cell than at fit, or an unsupported one.
            ValueError: A number is infinite or huge, beyond a bound, or not whole in a column of counts.
        """
        natural = natural_kind(column)
        if natural is None:
            return np.full((len(column), self.width), np.nan)
        self._check_family(column, natural)
        if self.width == 0:
            return np.empty((len(column), 0))
        raw = _raw(column, self.name, self.kind, self.levels)
        self._check_cells(column, raw)
        if self.warp is not None:
            raw = self.warp.forward(raw)
        if self.warp is not None and self.warp.keeps_bounds and self.kind is not Kind.COUNT:
            # A new cell at the bound is no further off than any other that is beyond those seen.
            low, high = sorted(self.warp.forward(np.array([self.low, self.high])).tolist())
            raw = np.clip(raw, low - self.scale[0], high + self.scale[0])
        return np.asarray((raw - self.mean) / self.scale, dtype=np.float64)

    def standardised_errors(self, column: pd.Series[Any], errors: NDArray[np.float64]) -> NDArray[np.float64]:
        """Standard errors [N] of the cells in units of standardised ones; of bent cells to first order.

        Raises:
            ValueError: The column is not CONTINUOUS.
        """
        if self.kind is not Kind.CONTINUOUS:
            raise ValueError(
                f"Column {self.name!r}: standard errors are for continuous columns, but this is {self.kind}."
            )
        if self.warp is not None:
            cells = column.to_numpy(dtype=np.float64, na_value=np.nan)
            errors = errors * np.exp(np.where(np.isnan(cells), 0.0, self.warp.log_slope(cells)))
        return np.asarray(errors / self.scale[0])

    def unseen(self, column: pd.Series[Any]) -> NDArray[np.bool_]:
        """Which cells hold a category that was not there at fit, Bool [N]."""
        if self.levels is None or natural_kind(column) is None:
            return np.zeros(len(column), dtype=np.bool_)
        return (_codes(column, self.levels) < 0) & ~holes_of(column)

    def decode(self, values: ArrayLike, to_few: bool = False) -> NDArray[Any]:
        """Cells from standardised ``values`` [..., width], as an array [...] in the column's own units.

        With ``to_few`` each number becomes the nearest of ``few``.

        Numbers are float64, kept within the bounds, and within the observed range if the column is bent;
        INTEGER int64, rounded and kept within the bounds or else the observed range, or the nearer of two
        values where only two were observed; COUNT int64 from 0 upwards; BOOLEAN bool, True from 0.5 upwards;
        ORDERED the nearest level and CATEGORICAL the level with the largest score, in an object array (or
        numbers, if that is what they are); times datetime64 or timedelta64 in microseconds.

        Raises:
            ValueError: The last axis is not ``width`` long, or a value is NaN.
        """
        scores = np.asarray(values, dtype=np.float64)
        if scores.ndim == 0 or scores.shape[-1] != self.width:
            raise ValueError(
                f"Column {self.name!r}: expected values of shape (..., {self.width}), got {scores.shape}."
            )
        if np.isnan(scores).any():
            raise ValueError(f"Column {self.name!r}: expected numbers to decode, got NaN.")
        if self.kind is Kind.CONSTANT:
            return self._cells(np.full(scores.shape[:-1], self.low))
        raw = scores * self.scale + self.mean
        if self.kind is Kind.CATEGORICAL:
            return self._cells(raw.argmax(axis=-1))
        if self.kind is Kind.ORDERED:
            return self._cells(np.clip(np.rint(raw[..., 0]), self.low, self.high))
        raw = raw[..., 0] if self.warp is None else self.warp.backward(raw[..., 0])
        return self._cells(self._valid(raw, to_few))

    def _valid(self, raw: NDArray[np.float64], to_few: bool) -> NDArray[np.float64]:
        """Numbers in the column's own units made what its cells can be."""
        if self.two_valued:
            return np.where(raw >= (self.low + self.high) / 2, self.high, self.low)
        if self.step:
            raw = np.rint(raw / self.step) * self.step
        if self.kind is Kind.DATETIME:
            # Where no calendar goes, no draw does.
            raw = np.clip(raw, min(self.low, _CALENDAR[0]), max(self.high, _CALENDAR[1]))
        if to_few and self.few is not None:
            few = np.asarray(self.few)
            raw = few[np.searchsorted((few[1:] + few[:-1]) / 2, raw)]
        if self.kind in _WHOLE or self.warp is not None:
            # Of a bend, a normal tail becomes an exponential one: without a bound, one draw outweighs a
            # column. Of whole numbers: no -1 children, no grade 7 out of 6.
            return np.clip(np.rint(raw) if self.kind in _WHOLE else raw, *self.drawn_range)
        lower, upper = self._floor, self.upper
        return raw if lower is None and upper is None else np.clip(raw, lower, upper)

    def _cells(self, raw: NDArray[Any]) -> NDArray[Any]:
        """Cells from what `_raw` reads, or positions of levels, as they are stored."""
        if self.levels is not None:
            levels = np.asarray(self.levels) if self.family == "numbers" else objects(self.levels)
            return np.asarray(levels[raw.astype(np.int64)])
        if self.family == "booleans":
            return np.asarray(raw >= 0.5)
        if self.family in ("datetimes", "durations"):
            unit = "datetime64[us]" if self.family == "datetimes" else "timedelta64[us]"
            return to_integers(np.clip(raw * 1e6, *_TIMES), np.iinfo(np.int64)).view(unit)
        if self.kind in _WHOLE or (self.two_valued and self.low.is_integer() and self.high.is_integer()):
            return to_integers(raw, np.iinfo(np.int64))
        return np.asarray(raw)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict from which :meth:`from_dict` makes an equal codec."""
        state = {
            name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()
        }
        return {
            **state,
            "kind": self.kind.value,
            "warp": None if self.warp is None else dataclasses.asdict(self.warp),
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> ColumnCodec:
        """The codec that :meth:`to_dict` wrote; labels come back with the type they had.

        Raises:
            ValueError: It is none, or says of itself what does not fit together.
        """
        codec: ColumnCodec = build(cls, state, f"column {state.get('name')!r}")
        codec._check_state()
        return codec

    def _check_state(self) -> None:
        """That what a file says of a column fits together."""
        n_levels = 0 if self.levels is None else len(self.levels)
        width = {Kind.CONSTANT: 0, Kind.CATEGORICAL: n_levels}.get(self.kind, 1)
        ordinal = self.two_valued or self.kind is Kind.ORDERED
        labelled = self.kind in (Kind.CATEGORICAL, Kind.ORDERED)
        bounds = (
            -math.inf if self.lower is None else self.lower,
            math.inf if self.upper is None else self.upper,
        )
        holds = {
            "family": self.kind is Kind.CONSTANT or self.kind in _MAY_BE[self.family],
            "width": len(self.mean) == len(self.scale) == len(self.own_scale) == width,
            "scale": min((*self.scale, *self.own_scale), default=1.0) > 0,
            "range": self.low <= self.high and bounds[0] < bounds[1],
            "levels": n_levels <= MAX_LEVELS and len(set(map(repr, self.levels or ()))) == n_levels,
            "positions": self.levels is None or 0 <= self.low <= self.high <= max(n_levels - 1, 1),
            "labels": self.levels is not None or not (labelled or self.family == "labels"),
            "shares": (self.shares is not None) == ordinal and min(self.shares or (1.0,)) > 0,
            # Were it far outside, "no" and "yes" would be rounded to one number.
            "mean": self.kind is not Kind.CATEGORICAL
            or all(self.low <= mean <= self.high for mean in self.mean),
            "values": self.shares is None
            or (len(self.shares) > 1 and not (self.two_valued and self.shares[2:])),
            "few": self.few is None or (len(self.few) > 0 and list(self.few) == sorted(set(self.few))),
            "bend": self.kind is not Kind.COUNT or self.warp is not None,
            "spread": self.warp is None or (width == 1 and self.warp.spread != 0),
            "step": self.step >= 0 and self.most >= 0,
        }
        wrong = [name for name, true in holds.items() if not true]
        if wrong:
            raise ValueError(f"column {self.name!r} does not fit together: {listing(wrong)}")

    @property
    def support_encoded(self) -> NDArray[np.float64] | None:
        """``few``, standardised [J]."""
        if self.few is None:
            return None
        raw = np.asarray(self.few)
        bent = raw if self.warp is None else self.warp.forward(raw)
        return np.asarray((bent - self.mean[0]) / self.scale[0], dtype=np.float64)

    @property
    def ordinal(self) -> NDArray[np.float64] | None:
        """Its values in ascending order, standardised [K], if it is two-valued or ORDERED; else None."""
        if self.shares is None:
            return None
        raw = np.linspace(self.low, self.high, len(self.shares))
        return np.asarray((raw - self.mean[0]) / self.scale[0], dtype=np.float64)

    @property
    def indicators(self) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Standardised values [width] of "no" and "yes" in each encoded column of CATEGORICAL; else None."""
        if self.kind is not Kind.CATEGORICAL:
            return None
        mean, scale = np.asarray(self.mean), np.asarray(self.scale)
        return (self.low - mean) / scale, (self.high - mean) / scale

    def _check_family(self, column: pd.Series[Any], natural: Kind) -> None:
        if FAMILIES[natural] != self.family:
            raise TypeError(
                f"Column {self.name!r}: expected {self.kind} cells (dtype {self.dtype} at fit), got "
                f"{natural} cells (dtype {column.dtype}). Convert the column to {self.dtype}, or fit again."
            )
        if isinstance(column.dtype, pd.CategoricalDtype) and holes_of(column).any():
            check_categories(column.dtype, self.levels or (), self.name)

    def _check_cells(self, column: pd.Series[Any], raw: NDArray[np.float64]) -> None:
        """Cells [N, width], in their own units, within the bounds; counts, if they are to be."""
        cells = raw[:, 0]
        rules: list[tuple[NDArray[np.bool_], str]] = []
        if self.lower is not None:
            rules.append((cells < self.lower, f"numbers of at least {self.lower:g}"))
        if self.upper is not None:
            rules.append((cells > self.upper, f"numbers of at most {self.upper:g}"))
        if self.kind is Kind.COUNT:
            rules.append(((cells < 0) | _is_fraction(cells), "a count, 0, 1, 2, ..."))
        for wrong, expected in rules:
            _check_each(column, self.name, wrong, expected)

    def _check_request(self, column: pd.Series[Any], raw: NDArray[np.float64]) -> None:
        """Cells at fit, as `_check_cells`, of the kind that was asked for."""
        self._check_cells(column, raw)
        if self.kind is Kind.INTEGER:
            _check_each(column, self.name, _is_fraction(raw[:, 0]), "whole numbers")
        if self.kind is Kind.BOOLEAN:
            values = np.unique(raw[~np.isnan(raw)])[:2]
            third = ~np.isnan(raw[:, 0]) & ~np.isin(raw[:, 0], values)
            _check_each(column, self.name, third, f"one of two values, {listing(values)}")


def _is_fraction(cells: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which cells are numbers, but not whole ones."""
    return np.asarray((cells % 1 != 0) & ~np.isnan(cells))


def _few(observed: NDArray[np.float64], most: int) -> tuple[float, ...] | None:
    """The different values of a column if there are at most ``most``, and they come again and again."""
    values, counts = np.unique(observed, return_counts=True)
    again = counts[counts >= _OFTEN].sum()
    if len(values) > most or again < _MOSTLY * len(observed):
        return None
    return tuple(values.tolist())


def _are_counts(observed: NDArray[np.float64]) -> bool:
    """Whether integers [n] are distributed as counts are: from 0 upwards, nearly negative binomial."""
    if observed.min() != 0 or observed.max() < _LEAST_REACH:
        return False
    values, counts = np.unique(observed, return_counts=True)
    mean, share = observed.mean(), counts / len(observed)

    def distance(log_r: float) -> float:
        r = math.exp(log_r)
        return float((share * (np.log(share) - stats.nbinom.logpmf(values, r, r / (r + mean)))).sum())

    nearest = optimize.minimize_scalar(distance, bounds=(-5.0, 10.0), method="bounded")
    r = math.exp(nearest.x)
    beyond = len(observed) * float(stats.nbinom.sf(values[-1], r, r / (r + mean)))
    return beyond < _MOST_BEYOND and float(nearest.fun) < _NEAR + (len(values) - 1) / (2 * len(observed))


# ------------------------------------------------------------------------------------------ reading a column


def _chosen_kind(column: pd.Series[Any], natural: Kind, spec: ColumnSpec) -> Kind:
    """The kind that a column has, given the one that dtype and cells suggest and what was asked for."""
    kind = natural if spec.kind is None else Kind(spec.kind)
    family = FAMILIES[natural]
    if kind not in _MAY_BE[family]:
        raise ValueError(
            f"Column {column.name!r}: {family} can be {listing(map(str, _MAY_BE[family]))}, got "
            f"kind={str(kind)!r}. Convert the column, or choose another kind."
        )
    if kind is Kind.ORDERED and family == "labels" and not isinstance(column.dtype, pd.CategoricalDtype):
        raise ValueError(
            f"Column {column.name!r}: kind='ordered' needs the order of its levels, but {column.dtype} has "
            f"none: make it pandas.Categorical(frame[{column.name!r}], categories=[...], ordered=True)."
        )
    if kind not in _BOUNDED and (spec.lower is not None or spec.upper is not None):
        raise ValueError(
            f"Column {column.name!r}: bounds are for {listing(map(str, _BOUNDED))} columns, this is {kind}."
        )
    return kind


def _raw(
    column: pd.Series[Any], name: Label, kind: Kind, levels: tuple[Level, ...] | None
) -> NDArray[np.float64]:
    """The cells as numbers in their own units: float64 [N, width], NaN where missing or an unseen level."""
    if levels is not None:
        if is_numeric(column):
            _check_size(column, name, numbers_of(column))
        codes = _codes(column, levels)
        if kind is Kind.ORDERED:
            return np.where(codes < 0, np.nan, codes)[:, None]
        hot = np.equal.outer(codes, np.arange(len(levels))).astype(np.float64)
        hot[codes < 0] = np.nan
        return hot
    if kind in (Kind.DATETIME, Kind.DURATION):
        return seconds_of(column)[:, None]
    try:
        numbers = column.to_numpy(dtype=np.float64, na_value=np.nan)
    except OverflowError as error:  # a Python integer above 1.8e308
        raise ValueError(
            f"Column {name!r}: expected numbers of at most {LARGEST:g} in size, got an integer beyond the "
            "range of 64-bit floats. Rescale the column."
        ) from error
    _check_size(column, name, numbers)
    return numbers[:, None]


def _codes(column: pd.Series[Any], levels: tuple[Level, ...]) -> NDArray[np.intp]:
    """Positions of the cells among ``levels``, [N], -1 where missing or unseen."""
    labels = pd.Index(column.astype(object), dtype=object)
    return np.asarray(pd.Index(objects(levels), dtype=object).get_indexer(labels))


def _levels(column: pd.Series[Any]) -> tuple[Level, ...]:
    """Observed levels: in category order for the category dtype, else sorted."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        codes = np.unique(column.cat.codes.to_numpy())
        found = column.cat.categories[codes[codes >= 0]].tolist()
        levels = tuple(plain(level) for level in found)
    elif types.is_numeric_dtype(column.dtype):
        levels = tuple(map(plain, np.unique(np.asarray(column[~holes_of(column)].to_list()))))
    else:
        levels = tuple(sorted(str(label) for label in column[~holes_of(column)].unique()))
    odd = [level for level in levels if not isinstance(level, str | int | float) or level in _INFINITE]
    # Infinite cells of a column of numbers are refused where the row is known.
    if odd and not types.is_numeric_dtype(column.dtype):
        raise TypeError(
            f"Column {column.name!r}: expected categories that are text, finite numbers or booleans, got "
            f"{odd[0]!r} ({type(odd[0]).__name__}). Rename them: "
            f"frame[{column.name!r}].cat.rename_categories(str)."
        )
    if len(levels) > MAX_LEVELS:
        raise ValueError(
            f"Column {column.name!r}: expected at most {MAX_LEVELS} categories, got {len(levels)} "
            f"({listing(levels, 3)}). It is probably an identifier: drop it, or group its categories."
        )
    return levels


def _moments(values: NDArray[np.float64]) -> tuple[float, float]:
    """Mean and population standard deviation, both independent of the order of ``values``."""
    mean = _exact_sum(values) / len(values)
    variance = _exact_sum(np.square(values - mean)) / len(values)
    return mean, math.sqrt(variance)


def _exact_sum(values: NDArray[np.float64]) -> float:
    """The sum, rounded once; Python's own numbers take four times the memory, so few are made at a time."""
    return math.fsum(itertools.chain.from_iterable(values[rows].tolist() for rows in pieces(len(values))))


# ---------------------------------------------------------------------------------------------------- checks


def _check_size(column: pd.Series[Any], name: Label, numbers: NDArray[np.float64]) -> None:
    infinite = np.flatnonzero(np.isinf(numbers))
    if infinite.size:
        raise ValueError(
            Hinted(
                f"Column {name!r}: {row_name(column.index, infinite[0])} holds {numbers[infinite[0]]}; "
                "expected finite numbers. Correct the cell, or ",
                "set it missing: frame.replace([np.inf, -np.inf], np.nan).",
                shell="leave it empty.",
            )
        )
    huge = np.flatnonzero(np.abs(numbers) > LARGEST)
    if huge.size:
        raise ValueError(
            f"Column {name!r}: {row_name(column.index, huge[0])} holds {numbers[huge[0]]:g}; expected "
            f"numbers of at most {LARGEST:g} in size. Rescale the column."
        )


def _check_spread(name: Label, observed: NDArray[np.float64]) -> None:
    """Observed cells further apart than the smallest spread we can standardise."""
    spread = float(np.ptp(observed))
    if spread < 1 / LARGEST:
        raise ValueError(
            f"Column {name!r}: expected numbers that vary by at least {1 / LARGEST:g}, got a range of "
            f"{spread:g}. Rescale the column."
        )


def _check_each(column: pd.Series[Any], name: Label, wrong: NDArray[np.bool_], expected: str) -> None:
    """That no cell is wrong, or an error that names the first one."""
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        raise ValueError(
            f"Column {name!r}: {row_name(column.index, first)} holds {plain(column.iloc[first])!r}; expected "
            f"{expected}. Correct the cell, set it missing, or change what the column's spec says."
        )
