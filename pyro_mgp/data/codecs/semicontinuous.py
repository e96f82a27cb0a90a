"""Codec of semicontinuous columns: numbers of which many equal a bound, such as incomes or rainfall.

Such a column is modelled in two parts (Olsen and Schafer, JASA 96:730-745, 2001): whether a number equals the
bound, and the other numbers.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pyro_mgp._support.messages import listing
from pyro_mgp.data.cells import is_floating
from pyro_mgp.data.codecs.base import ColumnCodec, FitOptions
from pyro_mgp.data.codecs.kinds import (
    BooleanCodec,
    BoundedCodec,
    ContinuousCodec,
    IntegerCodec,
    NumberCodec,
    start_at_zero,
)
from pyro_mgp.data.column_spec import ColumnSpec, Kind
from pyro_mgp.data.limits import Numbers

# The smallest or largest number has a meaning of its own if it has at least this share of the cells and so
# many of them, so many times as many as any other number, and if there are so many others. Of counts, zero is
# compared with so many of the numbers next to it: other counts may be as common as too many zeros.
_SHARE, _CELLS, _TIMES, _OTHERS, _NEXT = 0.05, 10, 2.0, 10, 2


@dataclass(frozen=True)
class SemicontinuousCodec(BoundedCodec):
    """Codec of numbers of which many equal a bound: an indicator of the bound, and the amounts, the others.

    Encoded amounts are 0, which is their mean, where the number equals the bound.
    """

    kind = Kind.SEMICONTINUOUS
    families = ("numbers",)

    bound: float = 0.0
    """Number that many cells equal: the smallest or the largest one."""
    amount: ContinuousCodec | IntegerCodec | None = None
    """Codec of the other cells."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the indicator, `"income=0"`, and of the amounts, `"income>0"`."""
        side = ">" if self.bound == self.low else "<"
        return f"{self.name}={self.bound:g}", f"{self.name}{side}{self.bound:g}"

    @property
    def parts(self) -> tuple[ColumnCodec, ...]:
        """Codecs of the indicator and of the amounts."""
        moments = self.mean[:1], self.scale[:1], self.own_scale[:1]
        shares = 1 - self.mean[0], self.mean[0]
        indicator = BooleanCodec(self.name, self.family, self.dtype, *moments, 0.0, 1.0, shares)
        return indicator, self._amounts

    @property
    def unrounded(self) -> ColumnCodec:
        """Codec whose amounts are not rounded; this one if the dtype is not of floating point."""
        own = self._amounts
        if not isinstance(own, IntegerCodec) or not is_floating(self.dtype):
            return self
        fields = {field.name: getattr(own, field.name) for field in dataclasses.fields(NumberCodec)}
        return dataclasses.replace(self, amount=ContinuousCodec(**fields))

    @property
    def indicator_values(self) -> tuple[float, float]:
        """Standardised values of the indicator, off and on."""
        return -self.mean[0] / self.scale[0], (1 - self.mean[0]) / self.scale[0]

    @property
    def of_means(self) -> tuple[float, float]:
        """The bound, and the distance within which a mean is nearer to it than to an amount.

        They are in the units in which amounts are averaged, those of the inverse of their transform.
        """
        amounts = self._amounts
        centre, spread = amounts.mean[0], amounts.scale[0]
        if amounts.warp is not None:
            centre, spread = amounts.warp.centre, amounts.warp.spread
        lower, upper = amounts.limits
        end = lower if self.bound == self.low else upper
        return (self.bound - centre) / spread, abs((end - self.bound) / spread)

    @property
    def _amounts(self) -> ContinuousCodec | IntegerCodec:
        assert self.amount is not None
        return self.amount

    def _learn(self, observed: Numbers, options: FitOptions) -> ColumnCodec:
        bound, n = _commonest_end(observed, options.spec)
        others, whole = observed[observed != bound], not (observed % 1).any()
        if len(np.unique(others)) < 2 or n < 2:
            raise ValueError(
                f"Column {self.name!r}: kind='semicontinuous' needs several cells that equal the smallest or "
                f"largest number, and others that differ; {n} of {len(observed)} equal {bound:g}, and the "
                f"others are {listing(np.unique(others).tolist())}. Leave out the kind."
            )
        lower, upper = options.spec.lower, options.spec.upper
        beyond = lower if bound < others.min() else upper
        if beyond is not None and beyond != bound:
            raise ValueError(
                f"Column {self.name!r}: cells equal {bound:g}, but its spec lets them be {beyond:g} as well, "
                "beyond which no amount is modelled. Leave out that bound, or the kind."
            )
        distance = 0.5 if whole else 0.0  # of whole amounts from the bound, half way to the next one
        if bound < others.min():
            lower = bound + distance
        else:
            upper = bound - distance
        kind = IntegerCodec if whole else ContinuousCodec
        unfitted = kind(self.name, self.family, self.dtype, lower=lower, upper=upper)
        amount = unfitted._learn(others[:, None], options._replace(discrete_support=0))
        assert isinstance(amount, ContinuousCodec | IntegerCodec)
        share = float((observed == bound).mean())
        spread = math.sqrt(share * (1 - share))
        return dataclasses.replace(
            self,
            bound=bound,
            amount=amount,
            mean=(share, 0.0),
            scale=(spread, 1.0),
            own_scale=(spread, *amount.own_scale),
            low=float(observed.min()),
            high=float(observed.max()),
        )

    def standardise(self, raw: Numbers) -> Numbers:
        """Return indicators and amounts `[..., 2]`, standardised, of numbers `[..., 1]`.

        Numbers beyond the bound count as the bound.
        """
        is_least, limits = self.bound == self.low, self._amounts.limits
        at_bound = raw <= limits[0] if is_least else raw >= limits[1]
        amounts = self._amounts.standardise(np.where(at_bound, self._amounts.low, raw))
        indicator = np.where(np.isnan(raw), np.nan, (at_bound - self.mean[0]) / self.scale[0])
        return np.concatenate([indicator, np.where(at_bound, 0.0, amounts)], axis=-1)

    def in_either_part(self, numbers: Numbers) -> Numbers:
        """Return numbers of another model `[...]`, moved to the bound or into the range of the amounts."""
        low, high = self._amounts.low, self._amounts.high
        half_way = (self.bound + (low if self.bound == self.low else high)) / 2
        at_bound = numbers < half_way if self.bound == self.low else numbers > half_way
        return np.where(at_bound, self.bound, np.clip(numbers, low, high))

    def in_own_units(self, standardised: Numbers) -> Numbers:
        """Return numbers `[...]` of indicators and amounts `[..., 2]`."""
        amounts = self._amounts.in_own_units(standardised[..., 1:])
        return np.where(standardised[..., 0] > 0, self.bound, amounts)

    def encode(self, column: pd.Series[Any]) -> Numbers:
        """Convert a column to indicators and amounts, float64 `[N, 2]`, NaN where missing."""
        encoded = super().encode(column)
        is_amount = encoded[:, 0] < 0
        if is_amount.any():  # within the reach of their transform
            encoded[is_amount, 1] = self._amounts.encode(column[is_amount])[:, 0]
        return encoded

    def _cells(self, transformed: Numbers, to_support: bool) -> NDArray[Any]:
        amounts = self._amounts.decode(transformed[..., 1:])
        return np.where(transformed[..., 0] > 0.5, self.bound, amounts).astype(amounts.dtype)

    def _conditions(self) -> dict[str, bool]:
        widths = len(self.mean) == len(self.scale) == len(self.own_scale) == 2
        amounts = {} if self.amount is None else self.amount._conditions()
        return super()._conditions() | {
            "width": widths,
            "share": widths and 0 < self.mean[0] < 1 and self.mean[1] == 0 and self.scale[1] == 1,
            "bound": self.bound in (self.low, self.high),
            "amount": self.amount is not None and all(amounts.values()),
        }


def has_common_bound(observed: Numbers, spec: ColumnSpec) -> bool:
    """Return whether so many numbers equal the smallest or largest one that it has a meaning of its own.

    It has none if the spec says that numbers may lie beyond.
    """
    bound, n = _commonest_end(observed, spec)
    ends = {float(observed.min()): spec.lower, float(observed.max()): spec.upper}
    if ends[bound] not in (None, bound):
        return False
    others = np.unique(observed[observed != bound], return_counts=True)[1]
    few = len(others) < _OTHERS or n < max(_CELLS, _SHARE * observed.size)
    compared = others[:_NEXT] if bound == 0 and start_at_zero(observed) else others
    return not few and bool(n >= _TIMES * compared.max())


def _commonest_end(observed: Numbers, spec: ColumnSpec) -> tuple[float, int]:
    """Return the smallest or the largest number, and how many cells it has.

    It is the one that is a bound of the spec, or else the one that has more cells.
    """
    low, high = float(observed.min()), float(observed.max())
    n_low, n_high = (int((observed == end).sum()) for end in (low, high))
    is_low, is_high = spec.lower == low, spec.upper == high
    if is_low != is_high:
        return (low, n_low) if is_low else (high, n_high)
    return (low, n_low) if n_low >= n_high else (high, n_high)
