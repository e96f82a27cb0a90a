"""Tables of Polars, PyArrow, DuckDB and others as DataFrames that share their memory, and back.

Narwhals turns them into Arrow tables, whose columns pandas holds as they are. A copy is made of categories,
whose codes pandas keeps in another form, of dates, which are modelled as times, and of numbers with NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import narwhals.stable.v2 as nw
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class TableKind:
    """Kind of the tables of another library."""

    backend: str
    """Name that narwhals has for the library, such as "polars"."""
    schema: pa.Schema
    """Types of the columns."""

    def of(self, frame: pd.DataFrame) -> Any:
        """Return a table of this kind with the cells of a DataFrame, which may have further columns."""
        arrays = {name: _arrow(frame[name], self.schema) for name in frame.columns}
        fields = [
            self.schema.field(name) if name in self.schema.names else pa.field(name, array.type)
            for name, array in arrays.items()
        ]
        table = pa.Table.from_arrays([*arrays.values()], schema=pa.schema(fields, self.schema.metadata))
        if self.backend == "pyarrow":
            return table
        if self.backend == "duckdb":
            import duckdb

            return duckdb.from_arrow(table)
        known = nw.Implementation.from_string(self.backend)
        return nw.from_arrow(table, backend=known).to_native()  # type: ignore[arg-type]


def read_native(X: object) -> tuple[pd.DataFrame, TableKind] | None:
    """Return a table of another library as a DataFrame, with its kind; None for any other object."""
    found = nw.from_native(X, pass_through=True)
    if isinstance(found, nw.LazyFrame) and found.implementation.is_duckdb():
        table = found.collect(backend="pyarrow").to_native()
    elif isinstance(found, nw.LazyFrame) and found.implementation.is_polars():
        table = found.collect().to_arrow()
    elif isinstance(found, nw.DataFrame) and not found.implementation.is_pandas():
        table = found.to_arrow()
    else:
        return None
    columns = {name: _pandas(table[name]) for name in table.column_names}
    return pd.DataFrame(columns, copy=False), TableKind(str(found.implementation.value), table.schema)


def _pandas(column: pa.ChunkedArray) -> pd.Series[Any]:
    """Return a column of an Arrow table as a Series, without a copy unless it holds categories or dates."""
    if pa.types.is_dictionary(column.type):
        return column.to_pandas()
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("us"))
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
    return (pc.round_temporal(whole, unit="day") if pa.types.is_date(kind) else whole).cast(kind)
