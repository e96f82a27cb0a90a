"""Tables in Parquet files that may be larger than memory, read one column at a time."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from pyro_mgp._support.messages import listing

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A file, a folder of files, or several files whose rows follow each other in that order."""


class ParquetTable:
    """Table in Parquet files, whose columns are read on access, without the `dropped` ones.

    Dtypes are those of `pandas.read_parquet`; they are nullable in files that pandas has not written, in
    which integers stay integers. A ValueError says which file or column does not exist or is damaged.
    """

    def __init__(self, path: Paths, dropped: Sequence[Hashable] = ()) -> None:
        self.path: Any = str(path) if isinstance(path, str | os.PathLike) else [str(each) for each in path]
        for each in [self.path] if isinstance(self.path, str) else self.path:
            if not Path(each).exists():
                raise ValueError(f"there is no file or folder {each!r}")
        try:
            dataset = pq.ParquetDataset(self.path)
            self._n_rows = sum(fragment.count_rows() for fragment in dataset.fragments)
            columns = {fragment.path: fragment.physical_schema.names for fragment in dataset.fragments}
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(error) from error
        if not dataset.files:
            raise ValueError(f"{self.path!r} holds no Parquet file")
        _check_same_names(columns)
        metadata = dataset.schema.pandas_metadata or {}
        self._options: dict[str, Any] = {} if metadata else {"dtype_backend": "numpy_nullable"}
        names = [name for name in dataset.schema.names if name not in metadata.get("index_columns", [])]
        # Names of columns in files are text; labels in pandas may be integers.
        labels = dataset.schema.empty_table().to_pandas().columns
        self.columns: pd.Index[Any] = without(labels, dropped)
        self._names = dict(zip(labels, names, strict=True))

    def __len__(self) -> int:
        """Number of rows."""
        return self._n_rows

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and number of columns."""
        return self._n_rows, len(self.columns)

    @property
    def index(self) -> pd.Index[Any]:
        """Row labels."""
        return self.read(self.columns[:1]).index

    def __getitem__(self, label: Hashable) -> pd.Series[Any]:
        return self.read([label]).iloc[:, 0]

    def read(self, labels: Iterable[Hashable] | None = None) -> pd.DataFrame:
        """Read some columns, or the whole table; a damaged file is a ValueError."""
        names = [self._names[each] for each in (self.columns if labels is None else labels)]
        try:
            return pd.read_parquet(self.path, columns=names, **self._options)
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> ValueError:
        return ValueError(f"{self.path!r} cannot be read as Parquet, or is damaged: {error}")


def _check_same_names(columns: Mapping[str, Sequence[str]]) -> None:
    """Raise a ValueError that names a file without the columns of the first one, or with others."""
    (first, names), *others = columns.items()
    for path, own in others:
        for name in [*names, *own]:
            if (name in names) != (name in own) and not name.startswith("__index_level_"):
                has, lacks = (first, path) if name in names else (path, first)
                only = f"{has!r} has a column {name!r}, which {lacks!r} lacks"
                raise ValueError(f"expected files of the same columns, but {only}")


def without(labels: pd.Index[Any], dropped: Sequence[Hashable]) -> pd.Index[Any]:
    """Return column labels without the dropped ones, all of which must exist."""
    for label in dropped:
        if label not in labels:
            raise ValueError(f"there is no column {label!r} to leave out; there are {listing(labels)}")
    return labels[[label not in dropped for label in labels]]
