"""What a pandas dtype says about the cells of a column: their natural kind, and which of them are missing."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
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

# A bool is an int in Python, hence the order.
_KIND_OF_TYPE: tuple[tuple[tuple[type, ...], Kind], ...] = (
    ((bool, np.bool_), Kind.BOOLEAN),
    ((int, np.integer), Kind.INTEGER),
    ((float, np.floating), Kind.CONTINUOUS),
    ((str,), Kind.CATEGORICAL),
)


def holes_of(column: pd.Series[Any]) -> NDArray[np.bool_]:
    """Return a mask of the missing cells of a column, Bool `[N]`."""
    holes = column.isna().to_numpy(dtype=np.bool_)
    if not isinstance(column.dtype, np.dtype) and types.is_float_dtype(column.dtype):
        # Nullable floats can hold a NaN beside NA, depending on the pandas version and its options.
        holes = holes | np.isnan(column.to_numpy(dtype=np.float64, na_value=np.nan))
    return holes


def label_of(name: Hashable) -> Label:
    """Return a column label as Python's own `str` or `int`.

    Raises:
        ValueError: It is neither text nor an integer.
    """
    if isinstance(name, str):
        return str(name)
    if isinstance(name, int | np.integer) and not isinstance(name, bool):
        return int(name)
    raise ValueError(
        f"Column labels must be text or integers, got {name!r} ({type(name).__name__}). "
        "Rename the columns, for example frame.columns = [str(c) for c in frame.columns]."
    )


def check_labels(columns: pd.Index[Any]) -> None:
    """Check that the labels of columns are text or integers and unique; ValueError otherwise."""
    for name in columns:
        label_of(name)
    twice = columns[columns.duplicated()].unique().tolist()
    if twice:
        raise ValueError(
            f"Column names must be unique, got {listing(twice)} more than once. Rename or drop duplicates."
        )


def natural_kind(column: pd.Series[Any]) -> Kind | None:
    """Return the kind that the dtype of a column suggests, None if all its cells are missing.

    Raises:
        TypeError: The dtype is not supported, or an object column mixes types.
    """
    dtype = column.dtype
    if dtype == np.dtype(object):
        return _object_kind(column)
    letter = getattr(dtype, "kind", "O")
    if isinstance(dtype, np.dtype) and not dtype.isnative:
        raise _unsupported(column, f"{dtype} (in the byte order of another machine)")
    if isinstance(dtype, pd.CategoricalDtype):
        kind = Kind.ORDERED if dtype.ordered else Kind.CATEGORICAL
    elif isinstance(dtype, pd.SparseDtype | pd.PeriodDtype) or types.is_complex_dtype(dtype):
        raise _unsupported(column, str(dtype))
    elif types.is_bool_dtype(dtype):
        kind = Kind.BOOLEAN
    elif types.is_integer_dtype(dtype):
        kind = Kind.INTEGER
    elif types.is_float_dtype(dtype):
        kind = Kind.CONTINUOUS
    elif types.is_string_dtype(dtype):
        kind = Kind.CATEGORICAL
    elif letter in "Mm" and not str(dtype).startswith(("date32", "date64")):
        kind = Kind.DATETIME if letter == "M" else Kind.DURATION
    else:
        raise _unsupported(column, str(dtype))
    return None if holes_of(column).all() else kind


def _object_kind(column: pd.Series[Any]) -> Kind | None:
    """Return the common kind of the observed cells of an object column, None if it has none."""
    positions = np.flatnonzero(~holes_of(column))
    if positions.size == 0:
        return None
    cells = column.array[positions]
    kind_of_type = {cell_type: _type_kind(cell_type) for cell_type in set(map(type, cells))}
    kinds = set(kind_of_type.values())
    if kinds == {Kind.INTEGER, Kind.CONTINUOUS}:
        return Kind.CONTINUOUS
    first = type(cells[0])
    if len(kinds) > 1:
        families = {t: None if kind is None else FAMILIES[kind] for t, kind in kind_of_type.items()}
        odd = next(i for i, cell in enumerate(cells) if families[type(cell)] != families[first])
        raise TypeError(
            f"Column {column.name!r} mixes types: expected one type of cell, got {first.__name__} first, but "
            f"{row_name(column.index, positions[odd])} holds {plain(cells[odd])!r} "
            f"({type(cells[odd]).__name__}). Convert the column, for example with "
            f"pandas.to_numeric(frame[{column.name!r}]) or frame[{column.name!r}].astype('string')."
        )
    kind = kind_of_type[first]
    if kind is None:
        raise _unsupported(column, f"object, holding {first.__name__}")
    return kind


def _type_kind(cell_type: type) -> Kind | None:
    """Return the kind of Python objects of a type, None if it is not supported."""
    return next((kind for classes, kind in _KIND_OF_TYPE if issubclass(cell_type, classes)), None)


def _unsupported(column: pd.Series[Any], came: str) -> TypeError:
    """Return the error for an unsupported dtype, with advice on how to convert it."""
    cell = f"frame[{column.name!r}]"
    advice = {
        "byte order": f"Convert it: {cell}.astype({cell}.dtype.newbyteorder()).",
        "sparse": f"Make it dense: {cell}.sparse.to_dense().",
        "date": f"Convert it: pandas.to_datetime({cell}).",
        "period": f"Turn it into a number, for example {cell}.dt.year.",
        "complex": "Split it into two columns, the real and the imaginary part.",
        "decimal": f"Convert it: {cell}.astype('float64').",
    }
    fitting = next((text for word, text in advice.items() if word in came.lower()), "Convert it.")
    return TypeError(
        Hinted(
            f"Column {column.name!r}: expected numbers, booleans, text, pandas categories or times, got "
            f"dtype {came}. {fitting} Or drop it: ",
            f"frame.drop(columns=[{column.name!r}]).",
            shell=f"--drop {column.name!r}.",
        )
    )


def is_numeric(column: pd.Series[Any]) -> bool:
    """Return whether the cells of a column are numbers or booleans, or all missing."""
    return natural_kind(column) in (Kind.CONTINUOUS, Kind.INTEGER, Kind.BOOLEAN, None)


def is_boolean(column: pd.Series[Any]) -> bool:
    """Return whether the cells of a column are booleans."""
    return natural_kind(column) is Kind.BOOLEAN


def is_integer(column: pd.Series[Any]) -> bool:
    """Return whether the dtype of a column holds integers only."""
    return bool(types.is_integer_dtype(column.dtype))


def check_categories(dtype: pd.CategoricalDtype, labels: Iterable[object], name: Label) -> None:
    """Check that a category dtype has all the labels that may be imputed.

    Raises:
        ValueError: A label is not among its categories.
    """
    absent = [label for label in labels if label not in dtype.categories]
    if absent:
        raise ValueError(
            f"Column {name!r}: expected a category dtype with the categories {listing(absent)}, which may "
            f"be imputed, got only {listing(dtype.categories.tolist())}. Add them with "
            f"frame[{name!r}].cat.add_categories({absent!r})."
        )
