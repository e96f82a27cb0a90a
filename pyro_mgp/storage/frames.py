"""Lossless storage of tables in Parquet files, and of cells and labels in JSON.

Parquet and its pandas metadata lose object columns (None, NaN and NA become one), categories of numbers, and
the dtypes of an index. Every column and index level is therefore stored under its position in a form that
Parquet keeps, and the file's metadata says how to restore it.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from pyro_mgp.storage import untrusted

_FRAME_KEY = b"pyro_mgp"
_ARROW_TEXT, _ARROW_TEXT_NAME = pd.ArrowDtype(pa.string()), "string in arrow"

# Types of cells and labels that JSON lacks: tag, function that writes, function that reads.
_TAGGED: dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    tuple: ("tuple", lambda v: [to_json(x) for x in v], lambda v: tuple(from_json(x) for x in v)),
    type(pd.NA): ("NA", lambda v: None, lambda v: pd.NA),
    type(pd.NaT): ("NaT", lambda v: None, lambda v: pd.NaT),
    pd.Timestamp: ("timestamp", lambda v: v.isoformat(), pd.Timestamp),
    pd.Timedelta: ("timedelta", lambda v: v.isoformat(), pd.Timedelta),
    pd.Interval: (
        "interval",
        lambda v: [to_json(v.left), to_json(v.right), v.closed],
        lambda v: pd.Interval(from_json(v[0]), from_json(v[1]), v[2]),
    ),
    datetime.date: ("date", lambda v: v.isoformat(), datetime.date.fromisoformat),
    Decimal: ("decimal", str, Decimal),
}
_READ = {tag: read for tag, _, read in _TAGGED.values()}


def to_json(value: Any) -> Any:
    """Convert a cell or label to a value that JSON can hold and `from_json` converts back."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) not in _TAGGED:
        raise ValueError(f"a value of type {type(value).__name__} cannot be stored: {value!r}")
    tag, write, _ = _TAGGED[type(value)]
    return {tag: write(value)}


def from_json(value: Any) -> Any:
    """Convert a value that `to_json` returned to the cell or label; raise a ValueError for other values."""
    if not isinstance(value, dict):
        return value
    if len(value) != 1 or not value.keys() <= _READ.keys():
        raise ValueError(f"expected a cell or a label, got {str(value)[:80]}")
    ((tag, content),) = value.items()
    return _READ[tag](content)


def write_frame(path: Path, frame: pd.DataFrame) -> None:
    """Write a table as a Parquet file from which `read_frame` restores an equal table.

    Values, dtypes (ordered categories, nullable, object), index and column labels are restored.
    The frequency of a DatetimeIndex and `frame.attrs` are lost; a NaN in a nullable column becomes NA. Raises
    a ValueError that names a column with values that cannot be stored: sparse or complex numbers, objects
    other than numbers, text, dates, intervals and tuples of these.
    """
    index, columns = frame.index, frame.columns
    is_range = isinstance(index, pd.RangeIndex)
    levels = [] if is_range else _levels(index)
    parts = {f"index {i}": pd.Series(level, dtype=level.dtype) for i, level in enumerate(levels)}
    parts |= {f"{i}: {label}": frame.iloc[:, i] for i, label in enumerate(columns)}
    stored = {name: _encode(name, series) for name, series in parts.items()}
    schema = {
        "index": _index_to_json(index) if is_range else {"names": [to_json(name) for name in index.names]},
        "columns": _index_to_json(columns),
        "parts": [how for _, how in stored.values()],
    }
    plain = pd.DataFrame({name: array for name, (array, _) in stored.items()}, index=range(len(frame)))
    try:
        table = pa.Table.from_pandas(plain, preserve_index=False)
        metadata = {**table.schema.metadata, _FRAME_KEY: json.dumps(schema).encode()}
        pq.write_table(table.replace_schema_metadata(metadata), path)
    except (pa.ArrowException, TypeError) as error:
        raise ValueError(f"the table cannot be stored as Parquet: {error}") from error


def read_frame(path: Path) -> pd.DataFrame:
    """Read a table from a Parquet file; raise a ValueError if it is damaged, or not from `write_frame`."""
    with untrusted.damage_as_value_error(path):
        untrusted.check_parquet(path)
        table = pq.read_table(path)
    if _FRAME_KEY not in (table.schema.metadata or {}):
        raise ValueError(f"{str(path)!r} is a Parquet file, but not one that pyro_mgp wrote")
    try:
        schema = untrusted.parse_json(table.schema.metadata[_FRAME_KEY])
        return _restored(table.to_pandas(), schema)
    except untrusted.MALFORMED as error:
        raise ValueError(f"{str(path)!r} does not describe its table: {error}") from error


def _restored(plain: pd.DataFrame, schema: Mapping[str, Any]) -> pd.DataFrame:
    """Return the table, given its stored columns and the description in the file's metadata."""
    parts = [_decode(plain.iloc[:, i], how) for i, how in enumerate(schema["parts"])]
    columns = _index_from_json(schema["columns"], plain.shape[1])
    n_levels = len(parts) - len(columns)
    if n_levels > 0:
        names = [from_json(name) for name in schema["index"]["names"]]
        index = _join([(level, level.dtype) for level in parts[:n_levels]], names)
    else:
        index = _index_from_json(schema["index"])
    if parts and len(index) != len(plain):
        raise ValueError(f"its index has {len(index)} rows, its columns have {len(plain)}")
    frame = pd.DataFrame(dict(enumerate(parts[max(n_levels, 0) :])), index=range(len(index)))
    return frame.set_axis(index, axis="index").set_axis(columns, axis="columns")


def _encode(name: str, series: pd.Series[Any]) -> tuple[Any, dict[str, Any]]:
    dtype = series.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        how = {"categories": _index_to_json(dtype.categories), "ordered": dtype.ordered}
        return series.cat.codes.to_numpy(), how
    if pd.api.types.is_object_dtype(dtype):
        try:
            return pd.array([json.dumps(to_json(v)) for v in series], dtype="string"), {"dtype": "object"}
        except ValueError as error:
            raise ValueError(f"column {name!r}: {error}") from error
    return series.array, {"dtype": _dtype_name(dtype)}


def _decode(stored: pd.Series[Any], how: dict[str, Any]) -> pd.Series[Any]:
    if "categories" in how:
        dtype = pd.CategoricalDtype(_index_from_json(how["categories"]), how["ordered"])
        return pd.Series(pd.Categorical.from_codes(stored.to_numpy(), dtype=dtype))
    if how["dtype"] == "object":
        return pd.Series([from_json(untrusted.parse_json(text.encode())) for text in stored], dtype=object)
    return stored if _dtype_name(stored.dtype) == how["dtype"] else stored.astype(_dtype_of(how["dtype"]))


def _dtype_name(dtype: Any) -> str:
    if isinstance(dtype, pd.StringDtype) and dtype.na_value is pd.NA:
        return f"string[{dtype.storage}]"  # str(dtype) leaves the storage out
    if dtype == _ARROW_TEXT and isinstance(dtype, pd.ArrowDtype):
        return _ARROW_TEXT_NAME  # str(dtype) is the name of pandas' own
    return str(dtype)


def _dtype_of(name: str) -> Any:
    """Return the dtype named by `_dtype_name`; raise a ValueError if no column can have it."""
    if name == _ARROW_TEXT_NAME:
        return _ARROW_TEXT
    dtype = pd.api.types.pandas_dtype(name)
    if name == "str" and isinstance(dtype, np.dtype):  # pandas before 3 has text in columns of objects
        return np.dtype(object)
    if isinstance(dtype, np.dtype) and dtype.kind not in "biufOMm":
        raise ValueError(f"expected the dtype of a column, got {name!r}")  # "S999999999" takes memory
    return dtype


def _index_to_json(index: pd.Index[Any]) -> dict[str, Any]:
    names = [to_json(name) for name in index.names]
    if isinstance(index, pd.RangeIndex):
        return {"names": names, "range": [index.start, index.stop, index.step]}
    levels = _levels(index)
    values = [[to_json(v) for v in level] for level in levels]
    return {"names": names, "dtypes": [_dtype_name(level.dtype) for level in levels], "values": values}


def _index_from_json(stored: dict[str, Any], most: int | None = None) -> pd.Index[Any]:
    names = [from_json(name) for name in stored["names"]]
    if "range" in stored:
        start, stop, step = stored["range"]
        if most is not None and len(range(start, stop, step)) > most:
            raise ValueError(f"expected at most {most} labels")
        return pd.RangeIndex(start, stop, step, name=names[0])
    pairs = zip(stored["values"], stored["dtypes"], strict=True)
    return _join([([from_json(v) for v in values], _dtype_of(dtype)) for values, dtype in pairs], names)


def _levels(index: pd.Index[Any]) -> list[pd.Index[Any]]:
    unnamed = index.set_names([None] * index.nlevels)  # a name could be taken for a position
    return [unnamed.get_level_values(i) for i in range(index.nlevels)]


def _join(stored: list[tuple[Any, Any]], names: list[Any]) -> pd.Index[Any]:
    """Return the index whose levels have the given values and dtypes."""
    levels = [pd.Index(values, dtype=dtype, tupleize_cols=False) for values, dtype in stored]
    if len(levels) > 1:
        return pd.MultiIndex.from_arrays(levels, names=names)
    return levels[0].rename(names[0])
