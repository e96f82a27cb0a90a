"""Cells of columns: kinds of dtypes, missing cells, conversion to NumPy arrays, completion of tables."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from pyro_mgp._support.messages import Hinted, listing, plain, row_name
from pyro_mgp.data.column_spec import Kind, Label

Family = Literal["numbers", "booleans", "labels", "datetimes", "durations"]
"""Storage class of cells: a new table may use any dtype of the family that a column had at fit."""

FAMILIES: dict[Kind, Family] = {
    Kind.CONTINUOUS: "numbers",
    Kind.INTEGER: "numbers",
    Kind.BOOLEAN: "booleans",
    Kind.CATEGORICAL: "labels",
    Kind.ORDERED: "labels",
    Kind.DATETIME: "datetimes",
    Kind.DURATION: "durations",
}
"""Family of each kind that a dtype can suggest."""

# Kinds of columns by the letter of their dtype, and of object columns by what pandas infers from their cells.
_KIND_OF_LETTER = {
    "b": Kind.BOOLEAN,
    "i": Kind.INTEGER,
    "u": Kind.INTEGER,
    "f": Kind.CONTINUOUS,
    "M": Kind.DATETIME,
    "m": Kind.DURATION,
}
_KIND_OF_OBJECTS = {
    "boolean": Kind.BOOLEAN,
    "integer": Kind.INTEGER,
    "floating": Kind.CONTINUOUS,
    "mixed-integer-float": Kind.CONTINUOUS,
    "string": Kind.CATEGORICAL,
}
# Times in microseconds that 64 bits hold; the smallest integer of all stands for NaT.
_TIMES = (-float(2**63 - 1024), float(2**63 - 1024))


def holes_of(column: pd.Series[Any]) -> NDArray[np.bool_]:
    """Return a mask of the missing cells of a column, Bool `[N]`."""
    holes = column.isna().to_numpy(dtype=np.bool_)
    if not isinstance(column.dtype, np.dtype) and types.is_float_dtype(column.dtype):
        # Nullable floats can hold a NaN beside NA, depending on the pandas version and its options.
        holes = holes | np.isnan(column.to_numpy(dtype=np.float64, na_value=np.nan))
    return holes


def label_of(name: Hashable) -> Label:
    """Return a column label as Python's own `str` or `int`; any other type is a ValueError."""
    if isinstance(name, str):
        return str(name)
    if isinstance(name, int | np.integer) and not isinstance(name, bool):
        return int(name)
    raise ValueError(
        f"Column labels must be text or integers, got {name!r} ({type(name).__name__}). "
        "Rename the columns, for example frame.columns = [str(c) for c in frame.columns]."
    )


def labels_of(columns: pd.Index[Any]) -> list[Label]:
    """Return the labels of columns by `label_of`; duplicates are a ValueError, too."""
    labels = [label_of(name) for name in columns]
    if twice := columns[columns.duplicated()].unique().tolist():
        raise ValueError(f"Column names must be unique, got {listing(twice)} more than once. Rename them.")
    return labels


def natural_kind(column: pd.Series[Any]) -> Kind | None:
    """Return the kind that a dtype suggests, None if all cells are missing; TypeError if there is none."""
    dtype = column.dtype
    if isinstance(dtype, np.dtype) and not dtype.isnative:
        raise _unsupported(column, f"{dtype} (in the byte order of another machine)")
    is_empty = holes_of(column).all()
    if str(dtype) == "null[pyarrow]":  # of an empty column
        return None
    if dtype == np.dtype(object):
        return None if is_empty else _object_kind(column)
    kind = _KIND_OF_LETTER.get(getattr(dtype, "kind", "O"))
    if isinstance(dtype, pd.CategoricalDtype):
        kind = Kind.ORDERED if dtype.ordered else Kind.CATEGORICAL
    elif isinstance(dtype, pd.SparseDtype | pd.PeriodDtype) or str(dtype).startswith(("date32", "date64")):
        kind = None
    elif types.is_string_dtype(dtype):
        kind = Kind.CATEGORICAL
    if kind is None:
        raise _unsupported(column, str(dtype))
    return None if is_empty else kind


def _object_kind(column: pd.Series[Any]) -> Kind:
    """Return the common kind of the observed cells of an object column."""
    positions = np.flatnonzero(~holes_of(column))
    cells = column.to_numpy()[positions]
    if kind := _KIND_OF_OBJECTS.get(types.infer_dtype(cells)):
        return kind
    kinds = [_KIND_OF_OBJECTS.get(types.infer_dtype([cell])) for cell in cells]
    families = [kind and FAMILIES[kind] for kind in kinds]
    first, came = families[0], type(cells[0]).__name__
    for position, cell, family in zip(positions, cells, families, strict=True):
        if family != first:
            raise TypeError(
                f"Column {column.name!r} mixes types: expected one type of cell, got {came} first, but "
                f"{row_name(column.index, position)} holds {plain(cell)!r} ({type(cell).__name__}). Convert "
                f"by pandas.to_numeric(frame[{column.name!r}]) or frame[{column.name!r}].astype('string')."
            )
    raise _unsupported(column, f"object, holding {came}")


def _unsupported(column: pd.Series[Any], came: str) -> TypeError:
    """Return the error for an unsupported dtype, with advice on how to convert it."""
    cell = f"frame[{column.name!r}]"
    advice = {
        "byte order": f"Convert it: {cell}.astype({cell}.dtype.newbyteorder()).",
        "sparse": f"Make it dense: {cell}.sparse.to_dense().",
        "dictionary": f"Convert it: {cell}.astype('category').",
        "timestamp": f"Convert it: pandas.to_datetime({cell}, utc=True).",
        "timedelta": f"Convert it: pandas.to_timedelta({cell}).",
        "date": f"Convert it: pandas.to_datetime({cell}).",
        "period": f"Turn it into a number, for example {cell}.dt.year.",
        "complex": "Split it into two columns, the real and the imaginary part.",
        "decimal": f"Convert it: {cell}.astype('float64').",
    }
    fitting = next((text for word, text in advice.items() if word in came.lower()), "Convert it.")
    expected = "expected numbers, booleans, text, pandas categories or times"
    message = f"Column {column.name!r}: {expected}, got dtype {came}. {fitting} Or drop it: "
    dropped = f"frame.drop(columns=[{column.name!r}])."
    return TypeError(Hinted(message, dropped, shell=f"--drop {column.name!r}."))


def is_numeric(column: pd.Series[Any]) -> bool:
    """Return whether the cells of a column are numbers or booleans, or all missing."""
    return natural_kind(column) in (Kind.CONTINUOUS, Kind.INTEGER, Kind.BOOLEAN, None)


def is_boolean(column: pd.Series[Any]) -> bool:
    """Return whether the cells of a column are booleans."""
    return natural_kind(column) is Kind.BOOLEAN


def numbers_of(column: pd.Series[Any]) -> NDArray[np.float64]:
    """Convert a column to numbers, or times in seconds, float64 `[N]`, NaN where missing."""
    if natural_kind(column) in (Kind.DATETIME, Kind.DURATION):
        return seconds_of(column)
    return column.to_numpy(dtype=np.float64, na_value=np.nan)


def seconds_of(column: pd.Series[Any]) -> NDArray[np.float64]:
    """Convert durations, or times since 1970 (UTC), to seconds, float64 `[N]`, NaN where missing."""
    if column.dtype.kind == "M" and column.dt.tz is not None:
        column = column.dt.tz_convert("UTC").dt.tz_localize(None)
    unit = np.dtype(f"{column.dtype.kind}8[us]")
    try:
        cells = np.asarray(column.astype(unit))
    except ValueError as error:  # pandas' and PyArrow's errors for times out of bounds
        raise ValueError(
            f"Column {column.name!r}: expected times within 290,000 years of 1970, which 64 bits of "
            f"microseconds hold: {error}. Correct the cell, or set it missing."
        ) from error
    return np.where(np.isnat(cells), np.nan, cells.astype(np.int64) / 1e6)


def cells_of(column: pd.Series[Any]) -> NDArray[Any]:
    """Convert cells `[N]` to the form in which `Imputations` stores draws; missing: NaN, NaT or None."""
    holes, letter = holes_of(column), getattr(column.dtype, "kind", "O")
    if letter in "Mm":
        times = as_stored(np.where(holes, 0.0, seconds_of(column)), FAMILIES[_KIND_OF_LETTER[letter]])
        times[holes] = np.array("NaT", dtype=times.dtype)
        return times
    if letter in "biu" and not holes.any():
        return column.to_numpy(dtype=np.bool_ if letter == "b" else np.int64)
    if letter in "iuf":
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    cells = column.to_numpy(dtype=object, copy=True)
    cells[holes] = None
    return cells


def to_integers(values: NDArray[Any], dtype: Any = np.int64) -> NDArray[Any]:
    """Round `values` and cast them to an integer dtype, clipped to its range and that of int64."""
    limits = np.iinfo(dtype)
    low, high = int(limits.min), min(int(limits.max), 2**63 - 1)
    if values.dtype.kind == "f":
        # 2⁶³ - 1 is not a float64: clip to the largest one below, or the cast would wrap around.
        values, high = np.rint(values), min(float(high), np.nextafter(2.0**63, 0.0))
    return np.asarray(np.clip(values, low, high)).astype(np.int64).astype(dtype)


def is_floating(dtype: str) -> bool:
    """Return whether the text of a pandas dtype is that of floating-point numbers."""
    return any(name in dtype.lower() for name in ("float", "double"))


def as_stored(numbers: NDArray[np.float64], family: Family) -> NDArray[Any]:
    """Convert numbers in own units or seconds to cells: booleans, times in microseconds, or numbers."""
    if family == "booleans":
        return np.asarray(numbers >= 0.5)
    if family in ("datetimes", "durations"):
        unit = "datetime64[us]" if family == "datetimes" else "timedelta64[us]"
        return to_integers(np.clip(numbers * 1e6, *_TIMES)).view(unit)
    return numbers


def complete(frame: pd.DataFrame, cells: Mapping[Label, NDArray[Any]]) -> pd.DataFrame:
    """Return a copy of a table with missing cells filled by the decoded values of each column, in row order.

    Dtypes and observed cells stay as they are; cells whose value is itself missing stay missing. Numbers are
    rounded for integers and clipped to the range of their dtype. Only an entirely missing column whose dtype
    cannot hold the values (floats and text, say) takes their dtype; for any other, that is a ValueError.
    """
    completed = frame.copy()
    for name, values in cells.items():
        completed[name] = _filled(frame[name], values)
    return completed


def _filled(column: pd.Series[Any], values: NDArray[Any]) -> pd.Series[Any]:
    """Fill the missing cells of a column with `values`, in the column's dtype if it can hold them."""
    holes, given, dtype = holes_of(column), ~pd.isna(values), column.dtype
    values = values[given]
    if values.size == 0:
        return column
    if (stored := _cast(values, dtype)) is None:
        if holes.all() and given.all():
            return pd.Series(values.tolist(), index=column.index, name=column.name)
        message = f"Column {column.name!r}: dtype {dtype} cannot hold the values {listing(values, 3)}."
        raise ValueError(message)
    array = column.array.copy()
    array[np.flatnonzero(holes)[given]] = stored
    return pd.Series(array, index=column.index, name=column.name, dtype=dtype)


def _cast(values: NDArray[Any], dtype: Any) -> Any:
    """Return `values` as an array of a dtype stores them, numbers rounded and clipped; None if it cannot."""
    letter, target = getattr(dtype, "kind", "O"), getattr(dtype, "numpy_dtype", dtype)
    if isinstance(dtype, pd.CategoricalDtype):
        fits = bool((dtype.categories.get_indexer(pd.Index(values)) >= 0).all())
    elif letter == "b":
        fits = all(isinstance(value, bool) for value in values.tolist())
    elif letter in "iuf":
        if values.dtype.kind not in "iuf":
            return None
        if letter != "f":
            return to_integers(values, target)
        limits = np.finfo(target)
        return np.clip(values.astype(np.float64), float(limits.min), float(limits.max)).astype(target)
    elif letter in "Mm":
        return _cast_times(values, dtype) if values.dtype.kind == letter else None
    else:
        is_text = types.is_string_dtype(dtype) and all(isinstance(value, str) for value in values.tolist())
        fits = dtype == np.dtype(object) or is_text
    return values.astype(object) if fits else None  # Python's own bool, int, float and str


def _cast_times(values: NDArray[Any], dtype: Any) -> Any:
    """Convert times (UTC) to an array of a dtype, clipped to its range."""
    arrow = getattr(dtype, "pyarrow_dtype", dtype)
    zone, unit = getattr(arrow, "tz", None), getattr(arrow, "unit", None)
    span = np.iinfo(np.int64).max // (1000 if (unit or np.datetime_data(dtype)[0]) == "ns" else 1)
    stored = f"{values.dtype.kind}8[us]"
    cells = pd.Series(np.clip(values.astype(stored).astype(np.int64), -span, span).view(stored))
    return (cells.dt.tz_localize("UTC") if zone else cells).astype(dtype).array
