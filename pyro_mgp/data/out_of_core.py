"""Encoding of tables larger than memory, column by column, on the disk.

Every pass reads and writes files sequentially, with a few columns in memory at most::

    columns ── encode ──▶ [D, N] ── sort each column by keys ──▶ [D, N] ── transpose in pieces ──▶ rows [N, D]

The rows and their order equal those of training on a table in memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pyro_mgp.data.column_spec import Specs
from pyro_mgp.data.dtypes import holes_of
from pyro_mgp.data.encoded_table import EncodedTable
from pyro_mgp.data.parquet_table import ParquetTable
from pyro_mgp.data.row_keys import row_keys
from pyro_mgp.data.table import TableCodec, warn_of_empty_rows
from pyro_mgp.storage.scratch import Scratch, pieces

# Disk space of a fit: values, initial fill, and masks of observed, held-out and training cells.
_BYTES_PER_CELL = 2 * 8 + 3


@dataclass(frozen=True)
class Encoded:
    """Encoded table on the disk, with its codec."""

    codec: TableCodec
    """Codec of the table's columns."""
    rows: EncodedTable
    """N rows, sorted by their keys, on the disk."""
    incomplete: NDArray[np.bool_]
    """Mask of the encoded columns with missing cells, Bool `[D]`."""
    incomplete_columns: list[int]
    """Positions of the table's columns with missing cells."""


def encode_columns(
    table: ParquetTable, warp: bool, discrete_support: int, specs: Specs, scratch: Scratch
) -> Encoded:
    """Fit the codec of a table, and encode the table.

    Args:
        table: The table.
        warp: Whether to transform columns, see `fit_column`.
        discrete_support: Largest number of values of a discrete column, see `fit_column`.
        specs: Specs of columns, by label.
        scratch: Storage of the encoded rows.

    Raises:
        ValueError, TypeError: As `TableCodec.fit`.
        OSError: The disk is full.

    Warns:
        TableWarning: As `TableCodec.fit`.
    """
    n_rows, n_columns = table.shape
    scratch.check_room(_BYTES_PER_CELL * n_rows * n_columns)
    codec = TableCodec.fit_columns(table, warp, discrete_support, specs)
    by_column = scratch.empty(codec.n_encoded, n_rows).numpy()
    is_empty, incomplete_columns = np.ones(n_rows, dtype=np.bool_), []
    for position, column in enumerate(codec.columns):
        cells = table[column.name]
        by_column[codec.slices[column.name]] = column.encode(cells).T
        holes = holes_of(cells)
        is_empty &= holes
        incomplete_columns += [position] * bool(holes.any())
    index = table.index
    warn_of_empty_rows(index, is_empty)
    rows = _sorted_rows(by_column, row_keys(by_column.T, index), scratch)
    incomplete = np.isin(codec.groups, incomplete_columns)
    return Encoded(codec, rows, incomplete, incomplete_columns)


def _sorted_rows(by_column: NDArray[np.float64], keys: NDArray[np.uint64], scratch: Scratch) -> EncodedTable:
    """Return the rows of columns `[D, N]`, sorted by their keys `[N]`; overwrites the columns."""
    order = np.argsort(keys)
    for column in by_column:
        column[:] = np.array(column)[order]
    values = scratch.empty(*by_column.T.shape)
    observed = scratch.empty(*by_column.T.shape, dtype=torch.bool)
    for rows in pieces(len(keys)):
        cells = torch.from_numpy(by_column[:, rows]).T
        observed[rows] = ~cells.isnan()
        values[rows] = cells.where(observed[rows], 0.0)
    return EncodedTable(values, observed, torch.as_tensor(keys[order].view(np.int64)))
