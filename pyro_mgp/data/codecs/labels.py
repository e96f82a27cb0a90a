"""Codecs of booleans and of labels: ordered levels and unordered categories."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from pyro_mgp._support.messages import listing, plain
from pyro_mgp.data.cells import as_stored, holes_of, is_numeric, to_integers
from pyro_mgp.data.codecs.base import (
    MAX_LEVELS,
    ColumnCodec,
    Level,
    Numbers,
    ObservationModel,
    OrdinalObservation,
    finite_numbers,
    level_cells,
    nearer,
)
from pyro_mgp.data.column_spec import ColumnSpec, Kind


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

    def _cells(self, transformed: Numbers, to_support: bool) -> NDArray[Any]:
        raw = nearer(transformed[..., 0], self.low, self.high)
        if self.family == "numbers" and self.low.is_integer() and self.high.is_integer():
            return to_integers(raw)
        return as_stored(raw, self.family)

    def _conditions(self) -> dict[str, bool]:
        return super()._conditions() | {"shares": len(self.shares) == 2 and min(self.shares) > 0}


@dataclass(frozen=True)
class _LevelCodec(ColumnCodec):
    """Base of the codecs of levels, which are read as their positions among `levels`."""

    families = ("labels", "numbers")

    levels: tuple[Level, ...] = ()

    @classmethod
    def _given(cls, column: pd.Series[Any], spec: ColumnSpec) -> dict[str, Any]:
        return {"levels": _levels(column)}

    def _read(self, column: pd.Series[Any]) -> Numbers:
        if is_numeric(column):
            finite_numbers(column)
        labels = pd.Index(column.astype(object), dtype=object)
        positions = pd.Index(self.levels, dtype=object).get_indexer(labels)
        return np.where(positions < 0, np.nan, positions)[:, None]

    def _conditions(self) -> dict[str, bool]:
        n_levels = len(self.levels)
        return super()._conditions() | {
            "levels": n_levels <= MAX_LEVELS and len(set(map(repr, self.levels))) == n_levels
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
                f"Column {column.name!r}: kind='ordered' needs the order of its levels, but {column.dtype} "
                f"has none: make it pandas.Categorical(frame[{column.name!r}], categories=[...], "
                "ordered=True)."
            )
        return super()._given(column, spec)

    def _cells(self, transformed: Numbers, to_support: bool) -> NDArray[Any]:
        positions = np.clip(np.rint(transformed[..., 0]), self.low, self.high)
        return level_cells(self.levels, self.family, positions)

    def _conditions(self) -> dict[str, bool]:
        return super()._conditions() | {
            "positions": (self.low, self.high) == (0, len(self.levels) - 1),
            "shares": len(self.shares) == len(self.levels) > 1 and min(self.shares) > 0,
        }


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

    def observation(self, position: int = 0, unless: Sequence[int] = ()) -> ObservationModel:
        """Return the binary probit model of one indicator, for rows where the indicators `unless` are 0."""
        shares = np.asarray(self.mean)
        share = shares[position] / (1.0 - shares[list(unless)].sum())
        values = np.array([ends[position] for ends in (self.indicators or ())])
        return OrdinalObservation(values, np.array([1 - share, share]))

    def _cells(self, transformed: Numbers, to_support: bool) -> NDArray[Any]:
        return level_cells(self.levels, self.family, transformed.argmax(axis=-1))

    def _conditions(self) -> dict[str, bool]:
        return super()._conditions() | {
            "width": len(self.mean) == len(self.scale) == len(self.own_scale) == len(self.levels) > 1,
            # Far outside, 0 and 1 would be standardised to the same number.
            "mean": all(0 <= mean <= 1 for mean in self.mean),
        }


def _levels(column: pd.Series[Any]) -> tuple[Level, ...]:
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
    if len(levels) > MAX_LEVELS:
        raise ValueError(
            f"Column {column.name!r}: expected at most {MAX_LEVELS} categories, got {len(levels)} "
            f"({listing(levels, 3)}). It is probably an identifier: drop it, or group its categories."
        )
    return levels
