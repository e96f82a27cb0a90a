"""Completed tables written to Parquet as they are drawn, chunk of rows by chunk of rows."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from pyro_mgp.results.imputations import Imputations, table_names
from pyro_mgp.storage.atomic import atomic_folder
from pyro_mgp.storage.header import write_header

_FORMAT_VERSION = 1


def write_chunks(
    path: str | os.PathLike[str],
    chunks: Iterable[Imputations],
    like: pd.DataFrame,
    m: int,
    *,
    overwrite: bool,
) -> list[Path]:
    """Write m completed tables whose rows come chunk by chunk.

    Args:
        path: Folder to make, whole or not at all.
        chunks: m imputations of consecutive rows, in the table's order.
        like: The whole table, for the columns and dtypes of the files.
        m: Number of imputations.
        overwrite: Replace a folder that this package wrote earlier.

    Returns:
        The m paths, `imputation_01.parquet` onwards.

    Raises:
        ValueError: If `path` exists and may not be replaced, or a column cannot be stored as Parquet.
    """
    names = table_names(m, "parquet")
    with atomic_folder(path, overwrite=overwrite) as folder, contextlib.ExitStack() as files:
        try:
            schema = pa.Schema.from_pandas(like)
            writers = [files.enter_context(pq.ParquetWriter(folder / name, schema)) for name in names]
            for chunk in chunks:
                for writer, table in zip(writers, chunk, strict=True):
                    writer.write_table(pa.Table.from_pandas(table, schema))
        except pa.ArrowException as error:
            raise ValueError(f"the table cannot be written as Parquet: {error}") from error
        files.close()
        write_header(folder, "ParquetImputations", _FORMAT_VERSION, {"m": m, "files": names})
    return [Path(path) / name for name in names]
