"""Cells of a column as numpy arrays: numbers in their own units, times in seconds, draws as stored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from pandas.api import types

from pyro_mgp.data.column_spec import Kind
from pyro_mgp.data.dtypes import Family, holes_of, natural_kind

# Times in microseconds that 64 bits hold; the smallest integer of all stands for NaT.
_TIMES = (-float(2**63 - 1024), float(2**63 - 1024))


def numbers_of(column: pd.Series[Any]) -> NDArray[np.float64]:
    """Return numbers in their own units, or times in seconds, float64 `[N]`, NaN where missing."""
    if natural_kind(column) in (Kind.DATETIME, Kind.DURATION):
        return seconds_of(column)
    return column.to_numpy(dtype=np.float64, na_value=np.nan)


def seconds_of(column: pd.Series[Any]) -> NDArray[np.float64]:
    """Return durations in seconds, or times in seconds since 1970 (UTC), float64 `[N]`, NaN where missing.

    Raises:
        ValueError: A time is further than 290,000 years from 1970.
    """
    if column.dtype.kind == "M" and column.dt.tz is not None:
        column = column.dt.tz_convert("UTC").dt.tz_localize(None)
    unit = np.dtype(f"{column.dtype.kind}8[us]")
    try:
        cells = np.asarray(column.astype(unit))
    except (pd.errors.OutOfBoundsDatetime, pd.errors.OutOfBoundsTimedelta, pa.ArrowInvalid) as error:
        raise ValueError(
            f"Column {column.name!r}: expected times within 290,000 years of 1970, which 64 bits of "
            f"microseconds hold: {error}. Correct the cell, or set it missing."
        ) from error
    return np.where(np.isnat(cells), np.nan, cells.astype(np.int64) / 1e6)


def cells_of(column: pd.Series[Any]) -> NDArray[Any]:
    """Return the cells of a column in the form in which `Imputations` stores draws, `[N]`.

    Missing cells are NaN, NaT or None.
    """
    holes, letter = holes_of(column), getattr(column.dtype, "kind", "O")
    is_category = isinstance(column.dtype, pd.CategoricalDtype)
    if letter in "Mm" and not is_category:
        times = (
            np.rint(np.where(holes, 0.0, seconds_of(column)) * 1e6).astype(np.int64).view(f"{letter}8[us]")
        )
        times[holes] = np.array("NaT", dtype=times.dtype)
        return times
    if is_category or not types.is_numeric_dtype(column.dtype) or types.is_bool_dtype(column.dtype):
        boolean = types.is_bool_dtype(column.dtype) and not is_category and not holes.any()
        cells = column.to_numpy(dtype=object, copy=True)
        cells[holes] = None
        return cells.astype(np.bool_) if boolean else cells
    if types.is_integer_dtype(column.dtype) and not holes.any():
        return column.to_numpy(dtype=np.int64)
    return column.to_numpy(dtype=np.float64, na_value=np.nan)


def objects(items: Iterable[object]) -> NDArray[np.object_]:
    """Return a one-dimensional object array that keeps every item as the Python object it is."""
    listed = list(items)
    array = np.empty(len(listed), dtype=object)
    array[:] = listed
    return array


def to_integers(values: NDArray[Any], limits: np.iinfo[Any]) -> NDArray[np.int64]:
    """Return `values` rounded and clipped to `limits` and to int64."""
    low, high = max(int(limits.min), -(2**63)), min(int(limits.max), 2**63 - 1)
    if values.dtype.kind == "f":
        # 2⁶³ - 1 is not a float64: clip to the largest one below, or the cast would wrap around.
        top = min(float(high), np.nextafter(2.0**63, 0.0))
        return np.asarray(np.clip(np.rint(values), float(low), top)).astype(np.int64)
    return np.asarray(np.clip(values, low, high)).astype(np.int64)


def as_stored(numbers: NDArray[np.float64], family: Family) -> NDArray[Any]:
    """Return numbers in own units or seconds as cells: booleans, times in microseconds, or the numbers."""
    if family == "booleans":
        return np.asarray(numbers >= 0.5)
    if family in ("datetimes", "durations"):
        unit = "datetime64[us]" if family == "datetimes" else "timedelta64[us]"
        return to_integers(np.clip(numbers * 1e6, *_TIMES), np.iinfo(np.int64)).view(unit)
    return np.asarray(numbers)
