"""Tables of Polars, PyArrow and DuckDB as DataFrames that share their memory, and back.

Narwhals turns them into Arrow tables, whose columns pandas holds as they are. Copies are made of columns that
pandas keeps in another form (categories), or that are modelled in another one: dates and times in seconds or
milliseconds, decimals, and numbers with NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import narwhals.stable.v2 as nw
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from narwhals.exceptions import DuplicateError


@dataclass(frozen=True)
class TableKind:
    """Kind of the tables of another library."""

    backend: str
    """Name that narwhals has for the library: "polars" or "pyarrow"; "pandas" for its usual dtypes."""
    schema: pa.Schema
    """Types of the columns, those of an index among them."""

    def of(self, frame: pd.DataFrame) -> Any:
        """Return a table of this kind with the cells of a DataFrame, which may have further columns."""
        if any(name in self.schema.names for name in frame.index.names):
            frame = frame.reset_index()
        labels = [name for name in self.schema.names if name in frame]
        labels += [name for name in frame if name not in labels]
        arrays = [_arrow(frame[name], self.schema) for name in labels]
        fields = [pa.field(name, array.type) for name, array in zip(labels, arrays, strict=True)]
        known = [self.schema.field(f.name) if f.name in self.schema.names else f for f in fields]
        # Fields hold what Arrow has no type for, such as the levels of an Enum of Polars.
        fields = [own.with_type(field.type) for own, field in zip(known, fields, strict=True)]
        table = pa.Table.from_arrays(arrays, schema=pa.schema(fields, self.schema.metadata))
        if self.backend == "pyarrow":
            return table
        known_backend = nw.Implementation.from_string(self.backend)
        return nw.from_arrow(table, backend=known_backend).to_native()  # type: ignore[arg-type]


def read_native(X: object) -> tuple[pd.DataFrame, TableKind] | None:
    """Return a table of another library as a DataFrame, with its kind; None for any other object.

    The kind of DuckDB's relations is that of PyArrow's tables, which all of its connections read. Equal names
    of columns are a ValueError.
    """
    given = pa.Table.from_batches([X]) if isinstance(X, pa.RecordBatch) else X
    try:
        table, backend = _arrow_table(nw.from_native(given, pass_through=True))
    except DuplicateError as error:
        raise ValueError(f"Column names must be unique: {error} Rename one of them.") from error
    if table is None:
        return None
    schema = pa.schema([field.with_type(_kept(field.type)) for field in table.schema], table.schema.metadata)
    frame = pd.DataFrame({name: _pandas(table[name]) for name in table.column_names}, copy=False)
    # The index of a DataFrame from which the table was made is no column.
    described = (table.schema.pandas_metadata or {}).get("index_columns", [])
    if index := [name for name in described if isinstance(name, str) and name in frame]:
        frame = frame.set_index(index)
    return frame, TableKind(backend, schema)


def _arrow_table(found: Any) -> tuple[pa.Table | None, str]:
    """Return an object that narwhals knows as an Arrow table, with the backend; None for others."""
    if not isinstance(found, nw.LazyFrame | nw.DataFrame):
        return None, ""
    library = found.implementation
    if isinstance(found, nw.LazyFrame):
        if library.is_duckdb():
            return found.collect(backend="pyarrow").to_native(), "pyarrow"
        return (found.collect().to_arrow(), "polars") if library.is_polars() else (None, "")
    is_known = library.is_polars() or library.is_pyarrow()
    return (found.to_arrow(), str(library.value)) if is_known else (None, "")


def _kept(kind: pa.DataType) -> pa.DataType:
    """Return the type that completed columns have: decimals and columns without any cell become floats."""
    return pa.float64() if pa.types.is_decimal(kind) or pa.types.is_null(kind) else kind


def _pandas(column: pa.ChunkedArray) -> pd.Series[Any]:
    """Return a column of an Arrow table as a Series."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        # PyArrow 21 and earlier cannot turn unsigned indices, which Polars has, into those of pandas.
        return column.cast(pa.dictionary(pa.int64(), kind.value_type, kind.ordered)).to_pandas()
    if kind != _kept(kind):
        column = column.cast(_kept(kind))
    elif pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.unit in ("s", "ms")):
        column = column.cast(pa.timestamp("us", None if pa.types.is_date(kind) else kind.tz))
    elif pa.types.is_string_view(kind):
        column = column.cast(pa.large_string())
    if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
        column = pc.if_else(pc.is_nan(column), None, column)  # NaN is missing as well
    return pd.Series(pd.arrays.ArrowExtensionArray(column), copy=False)


def _arrow(column: pd.Series[Any], schema: pa.Schema) -> pa.ChunkedArray:
    """Return a Series as a column of an Arrow table, of the type that the schema has for it."""
    array = pa.array(column.array, from_pandas=True)
    whole = array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])
    if column.name not in schema.names:
        return whole
    kind = schema.field(column.name).type
    if pa.types.is_date(kind):
        whole = pc.round_temporal(whole, unit="day")
    # Imputed times may have more digits than the unit.
    return whole.cast(kind, safe=not pa.types.is_timestamp(kind))
