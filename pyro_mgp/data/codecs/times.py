"""Codecs of points in time and of durations, which are read as seconds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pyro_mgp.data.cells import as_stored, seconds_of
from pyro_mgp.data.codecs.base import ColumnCodec, FitOptions
from pyro_mgp.data.codecs.numeric import NumberCodec
from pyro_mgp.data.codecs.observations import Numbers
from pyro_mgp.data.column_spec import Kind
from pyro_mgp.data.transforms import Warp

# First and last day of the years 1 to 9999, in seconds since 1970.
_CALENDAR = (-62_135_596_800.0, 253_402_214_400.0)
# Days, hours, minutes and seconds, in seconds.
_STEPS = (86_400.0, 3_600.0, 60.0, 1.0)


@dataclass(frozen=True)
class DatetimeCodec(ColumnCodec):
    """Codec of points in time: Gaussian, in seconds since 1970 (UTC).

    Attributes:
        step: Largest unit of which all observed times are multiples, in seconds; 0 if there is none.
    """

    kind = Kind.DATETIME
    families = ("datetimes",)

    step: float = 0.0

    def _read(self, column: pd.Series[Any]) -> Numbers:
        return seconds_of(column)[:, None]

    def _learn(self, observed: Numbers, options: FitOptions) -> ColumnCodec:
        return self._fitted(observed, step=_step(observed))

    def _cells(self, transformed: Numbers, to_support: bool) -> NDArray[Any]:
        seconds = _rounded(transformed[..., 0], self.step)
        first, last = min(self.low, _CALENDAR[0]), max(self.high, _CALENDAR[1])
        return as_stored(np.clip(seconds, first, last), self.family)

    def _conditions(self) -> dict[str, bool]:
        return super()._conditions() | {"step": self.step >= 0}


@dataclass(frozen=True)
class DurationCodec(NumberCodec):
    """Codec of durations: as continuous numbers of seconds, never negative if none was.

    Attributes:
        step: Largest unit of which all observed durations are multiples, in seconds; 0 if there is none.
    """

    kind = Kind.DURATION
    families = ("durations",)

    step: float = 0.0

    def _read(self, column: pd.Series[Any]) -> Numbers:
        return seconds_of(column)[:, None]

    def _invalid(self, raw: Numbers, at_fit: bool) -> Iterable[tuple[NDArray[np.bool_], str]]:
        return ()

    @property
    def limits(self) -> tuple[float, float]:
        """Bounds of draws in seconds: 0 and infinity unless a negative duration was observed."""
        return 0.0 if self.low >= 0 else -math.inf, math.inf

    def _learn(self, observed: Numbers, options: FitOptions) -> ColumnCodec:
        lower = 0.0 if observed.min() >= 0 else None
        warp = Warp.choose(observed[:, 0], lower) if options.warp else None
        return self._fitted(observed, warp, step=_step(observed))

    def _cells(self, transformed: Numbers, to_support: bool) -> NDArray[Any]:
        seconds = _rounded(super()._cells(transformed, to_support), self.step)
        return as_stored(seconds, self.family)

    def _conditions(self) -> dict[str, bool]:
        return super()._conditions() | {"step": self.step >= 0}


def _step(observed: Numbers) -> float:
    """Return the largest unit of which all observed times are multiples, 0 if there is none."""
    return next((step for step in _STEPS if not (observed % step).any()), 0.0)


def _rounded(seconds: Numbers, step: float) -> Numbers:
    """Return times rounded to multiples of a step."""
    return np.rint(seconds / step) * step if step else seconds
