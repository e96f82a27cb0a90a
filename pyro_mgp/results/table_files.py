"""Files of completed tables: their names, and writing them as CSV or Parquet, whole or in chunks of rows."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from pyro_mgp._support.messages import Hinted
from pyro_mgp.storage.atomic import atomic_folder
from pyro_mgp.storage.header import write_header

DELIMITERS = {"csv": ",", "tsv": "\t"}
"""Separator of the cells of a text file, by its suffix."""

_FORMAT_VERSION = 1


def table_names(m: int, suffix: str) -> list[str]:
    """Return the file names of m completed tables, `imputation_01.csv`, ..., with at least two digits."""
    digits = max(2, len(str(m)))
    return [f"imputation_{j + 1:0{digits}d}.{suffix}" for j in range(m)]


def write_table(path: Path, table: pd.DataFrame, suffix: str) -> None:
    """Write a table as "csv", "tsv" or "parquet"; text files omit an index that is 0, 1, 2, ..."""
    if suffix != "parquet":
        plain = table.index.identical(pd.RangeIndex(len(table)))
        with open_text(path) as file:
            table.to_csv(file, sep=DELIMITERS[suffix], index=not plain, lineterminator="\r\n")
        return
    try:
        table.to_parquet(path)
    except (ValueError, TypeError, NotImplementedError) as error:
        message = f"the table cannot be written as Parquet: {error}. "
        raise ValueError(Hinted(message, "Write it as CSV.", shell="Try --format csv.")) from error


def open_text(path: Path) -> TextIO:
    r"""Open a text file for `csv.writer`, with lines that end in \n instead of \r\n.

    Python before 3.13 quotes a cell that contains \r only if rows end in one. Without quotes, the \r would be
    read as the end of the row.
    """
    return _Rows(path.open("wb"), "utf-8", newline="")


class _Rows(io.TextIOWrapper):
    r"""Text file that replaces \r\n, with which `csv.writer` ends rows, by \n."""

    def write(self, row: str) -> int:
        return super().write(row.removesuffix("\r\n") + "\n")


def write_chunks(
    path: str | os.PathLike[str],
    chunks: Iterable[Iterable[pd.DataFrame]],
    like: pd.DataFrame,
    m: int,
    *,
    overwrite: bool,
) -> list[Path]:
    """Write m completed tables to Parquet files in chunks of rows, and return their paths.

    The folder `path` appears atomically. Each chunk holds consecutive rows of the table in m completed
    versions; the files have the columns and dtypes of `like`.
    """
    names = table_names(m, "parquet")
    with atomic_folder(path, overwrite=overwrite) as folder, contextlib.ExitStack() as files:
        try:
            schema = pa.Schema.from_pandas(like)
            writers = [files.enter_context(pq.ParquetWriter(folder / name, schema)) for name in names]
            for chunk in chunks:
                for writer, table in zip(writers, chunk, strict=True):
                    # A schema names columns by text; its metadata keep labels that are integers.
                    writer.write_table(pa.Table.from_pandas(table.rename(columns=str), schema))
        except pa.ArrowException as error:
            raise ValueError(f"the table cannot be written as Parquet: {error}") from error
        files.close()
        write_header(folder, "ParquetImputations", _FORMAT_VERSION, {"m": m, "files": names})
    return [Path(path) / name for name in names]
