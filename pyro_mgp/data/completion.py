"""Completed tables: decoded values in the missing cells of a DataFrame."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from pyro_mgp._support.messages import listing
from pyro_mgp.data.cells import to_integers
from pyro_mgp.data.column_spec import Label
from pyro_mgp.data.dtypes import check_categories, check_labels, holes_of


def complete(frame: pd.DataFrame, cells: Mapping[Label, NDArray[Any]]) -> pd.DataFrame:
    """Return a copy of a table with missing cells filled.

    Args:
        frame: The table, which is not modified.
        cells: Decoded values of the missing cells of each column to fill, in row order. Other columns stay
            as they are, and so do cells whose value is itself missing.

    Returns:
        A table with the same columns, order, index, dtypes, categories and observed cells. Numbers are cast
        to the column's dtype, rounded for integers and clipped to its range. Only an entirely missing column
        whose dtype cannot hold the values (floats and text, say) takes their dtype.

    Raises:
        ValueError: A column is not in the table, the number of values is not the number of missing cells, or
            the column's dtype cannot hold them.

    Example:
        >>> frame = pd.DataFrame({"n": pd.array([1, None], dtype="Int8"), "x": [0.5, 1.5]})
        >>> complete(frame, {"n": np.array([7.2])})["n"].tolist()
        [1, 7]
    """
    check_labels(frame.columns)
    unknown = [name for name in cells if name not in frame.columns]
    if unknown:
        raise ValueError(f"Expected columns of the table, {listing(frame.columns)}, got {listing(unknown)}.")
    completed = frame.copy()
    for name, values in cells.items():
        completed[name] = _filled(frame[name], np.asarray(values), name)
    return completed


def _filled(column: pd.Series[Any], values: NDArray[Any], name: Label) -> pd.Series[Any]:
    """Return a column with `values` in its missing cells, in its own dtype if that can hold them."""
    holes = holes_of(column)
    if values.shape != (holes.sum(),):
        raise ValueError(
            f"Column {name!r}: expected one value per missing cell, shape ({holes.sum()},), got shape "
            f"{values.shape}."
        )
    given = ~pd.isna(values)
    values, dtype = values[given], column.dtype
    if values.size == 0:
        return column
    if not _holds(dtype, values):
        if holes.all() and given.all():
            return pd.Series(values.tolist(), index=column.index, name=column.name)
        if isinstance(dtype, pd.CategoricalDtype):
            check_categories(dtype, dict.fromkeys(values.tolist()), name)
        raise ValueError(
            f"Column {name!r}: dtype {dtype} cannot hold the values {listing(values.tolist(), 3)}."
        )
    array = column.array.copy()
    array[np.flatnonzero(holes)[given]] = _cast(values, dtype)
    return pd.Series(array, index=column.index, name=column.name, dtype=dtype)


def _holds(dtype: Any, values: NDArray[Any]) -> bool:
    """Return whether a dtype can hold `values`, numbers after rounding."""
    if dtype == np.dtype(object):
        return True
    if isinstance(dtype, pd.CategoricalDtype):
        return bool((dtype.categories.get_indexer(pd.Index(values)) >= 0).all())
    if types.is_bool_dtype(dtype):
        return all(isinstance(value, bool) for value in values.tolist())
    if types.is_numeric_dtype(dtype):
        return values.dtype.kind in "iuf"
    if getattr(dtype, "kind", "O") in "Mm":
        return bool(values.dtype.kind == dtype.kind)
    return types.is_string_dtype(dtype) and all(isinstance(value, str) for value in values.tolist())


def _cast(values: NDArray[Any], dtype: Any) -> Any:
    """Return `values` in the form that an array of a dtype stores."""
    if getattr(dtype, "kind", "O") in "Mm":
        return _cast_times(values, dtype)
    target = getattr(dtype, "numpy_dtype", dtype)
    if types.is_integer_dtype(dtype):
        return to_integers(values, np.iinfo(target)).astype(target)
    if types.is_float_dtype(dtype):
        limits = np.finfo(target)
        return np.clip(values.astype(np.float64), float(limits.min), float(limits.max)).astype(target)
    if types.is_bool_dtype(dtype):
        return values.astype(np.bool_)
    return values.astype(object)  # Python's own bool, int, float and str


def _cast_times(values: NDArray[Any], dtype: Any) -> Any:
    """Return times in microseconds (UTC) as an array of a dtype, clipped to its range."""
    zone = getattr(dtype, "tz", None) or getattr(getattr(dtype, "pyarrow_dtype", None), "tz", None)
    unit = getattr(dtype, "unit", None) or getattr(getattr(dtype, "pyarrow_dtype", None), "unit", None)
    span = np.iinfo(np.int64).max // (1000 if (unit or np.datetime_data(dtype)[0]) == "ns" else 1)
    cells = pd.Series(np.clip(values.astype(np.int64), -span, span).view(f"{values.dtype.kind}8[us]"))
    return (cells.dt.tz_localize("UTC") if zone else cells).astype(dtype).array
