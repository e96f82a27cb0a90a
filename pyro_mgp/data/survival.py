"""Survival times as predictors: they enter a model as the cumulative hazard at them.

A covariate given a time that may be censored depends on it, to first order, through the event indicator and
the cumulative baseline hazard at that time, for which the Nelson-Aalen estimator stands (White and Royston,
Statistics in Medicine 28:1982-1998, 2009):

    H(t) = Σ_{tᵢ <= t} dᵢ / nᵢ,      dᵢ events at tᵢ, nᵢ rows at risk
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from pyro_mgp._support.messages import plain, row_name
from pyro_mgp.data.cells import holes_of, is_numeric, natural_kind, numbers_of
from pyro_mgp.data.column_spec import Kind, Label
from pyro_mgp.data.limits import Numbers

# Most steps of the cumulative hazard that are kept.
_MOST_STEPS = 1000


@dataclass(frozen=True)
class Survival:
    """Survival outcome of two complete columns, with the cumulative hazard of the table of the fit.

    Example:
        >>> frame = pd.DataFrame({"time": [1.0, 2.0, 2.0, 5.0], "event": [True, True, False, False]})
        >>> Survival("time", "event").learn(frame).cumulative_hazard(frame).round(3).tolist()
        [0.25, 0.583, 0.583, 0.583]
    """

    time: Label
    """Label of the column of times, of numbers or durations."""
    event: Label
    """Label of the column that tells whether the event occurred at the time: booleans, or 0 and 1."""
    times: tuple[float, ...] = ()
    """Ascending times after which the cumulative hazard is larger."""
    hazards: tuple[float, ...] = ()
    """Cumulative hazards from these times on."""

    def learn(self, frame: pd.DataFrame) -> Survival:
        """Return the outcome with the cumulative hazard of a table."""
        self.check(frame)
        times, events = numbers_of(frame[self.time]), numbers_of(frame[self.event])
        steps, place = np.unique(times, return_inverse=True)
        occurred, left = np.bincount(place, events), np.bincount(place)
        at_risk = len(times) - np.concatenate([[0], np.cumsum(left)[:-1]])
        hazards = np.cumsum(occurred / at_risk)
        kept = np.flatnonzero(occurred)
        if len(kept) > _MOST_STEPS:
            kept = kept[np.unique(np.linspace(0, len(kept) - 1, _MOST_STEPS).round().astype(int))]
        return replace(self, times=tuple(steps[kept].tolist()), hazards=tuple(hazards[kept].tolist()))

    def check(self, frame: pd.DataFrame) -> None:
        """Check the columns of a table; a ValueError or TypeError names the row."""
        if natural_kind(frame[self.time]) not in (Kind.CONTINUOUS, Kind.INTEGER, Kind.DURATION):
            raise TypeError(
                f"Column {self.time!r} holds survival times: expected numbers or durations, got dtype "
                f"{frame[self.time].dtype}"
            )
        if not is_numeric(frame[self.event]):
            raise TypeError(
                f"Column {self.event!r} tells whether events occurred: expected booleans, or 0 and 1, got "
                f"dtype {frame[self.event].dtype}"
            )
        for label, expected in ((self.time, "a survival time"), (self.event, "whether the event occurred")):
            for row in np.flatnonzero(holes_of(frame[label]))[:1]:
                raise ValueError(
                    f"Column {label!r}: {row_name(frame.index, row)} is missing, expected {expected}. Drop "
                    "such rows; or leave survival out, and give censored times as cells within limits, "
                    "ColumnSpec(lower_limit=...), which are imputed."
                )
        times, events = numbers_of(frame[self.time]), numbers_of(frame[self.event])
        for label, wrong, expected in (
            (self.time, times < 0, "a time of at least 0"),
            (self.event, ~np.isin(events, (0, 1)), "0 or 1"),
        ):
            for row in np.flatnonzero(wrong)[:1]:
                raise ValueError(
                    f"Column {label!r}: {row_name(frame.index, row)} holds "
                    f"{plain(frame[label].iloc[row])!r}, expected {expected}. Correct the cell."
                )
        if not self.times and not events.any():
            raise ValueError(
                f"Column {self.event!r}: expected at least one event, got none. Leave survival out."
            )

    def cumulative_hazard(self, frame: pd.DataFrame) -> Numbers:
        """Return the cumulative hazard at the times of a table, `[N]`."""
        steps = np.array([0.0, *self.hazards])
        return np.asarray(steps[np.searchsorted(self.times, numbers_of(frame[self.time]), side="right")])
