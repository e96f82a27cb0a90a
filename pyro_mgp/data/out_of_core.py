"""Tables larger than memory: encoded column by column, sorted and turned into rows on the disk.

Every pass reads and writes files from one end to the other, with a few columns in memory at most::

    columns ──encode──▶ [D, N] ──keys, sort each column──▶ [D, N] ──turn, piece by piece──▶ rows [N, D]

The rows are those, to the bit and in the order, that a table in memory is trained on.
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

# What a fit takes of the disk: cells and fill, which are observed, held out and seen.
_BYTES_PER_CELL = 2 * 8 + 3


@dataclass(frozen=True)
class Encoded:
    """A table in files as numbers."""

    codec: TableCodec
    """What its columns are."""
    rows: EncodedTable
    """N rows, sorted by their keys, on the disk."""
    incomplete: NDArray[np.bool_]
    """Bool [D], the encoded columns with missing cells."""
    incomplete_columns: list[int]
    """Positions of the table's columns with missing cells."""


def encode_columns(
    table: ParquetTable, warp: bool, discrete_support: int, specs: Specs, scratch: Scratch
) -> Encoded:
    """Learn what the columns of a table are, and encode it.

    Args:
        table: The table.
        warp: See `ColumnCodec.fit`.
        discrete_support: Likewise.
        specs: What is known of some columns besides.
        scratch: Where the rows shall lie.

    Raises:
        ValueError, TypeError: As `TableCodec.fit` does.
        OSError: If the disk has no room.

    Warns:
        TableWarning: As `TableCodec.fit` does.
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
    """The rows of columns [D, N], which are overwritten, sorted by their keys [N]."""
    order = np.argsort(keys)
    for column in by_column:
        column[:] = np.array(column)[order]
    values = scratch.empty(*by_column.T.shape)
    observed = scratch.empty(*by_column.T.shape, dtype=torch.bool)
    for here in pieces(len(keys)):
        cells = torch.from_numpy(by_column[:, here]).T
        observed[here] = ~cells.isnan()
        values[here] = cells.where(observed[here], 0.0)
    return EncodedTable(values, observed, torch.as_tensor(keys[order].view(np.int64)))
