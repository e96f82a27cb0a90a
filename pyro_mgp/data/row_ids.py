"""Ids of rows, which distinguish equal rows of a table in any partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from pyro_mgp._support.messages import Hinted, listing, row_name
from pyro_mgp.data.column_spec import Label
from pyro_mgp.data.row_keys import Identity, Ranks

RowIds = Label | ArrayLike | Ranks | None
"""Label of a column of ids, an id for each row `[N]`, or `Ranks`; None for the labels of the index."""


def without_ids(
    frame: pd.DataFrame, row_ids: RowIds, modelled: Sequence[Label]
) -> tuple[pd.DataFrame, Identity | None]:
    """Return a table without its column of ids, if it has one, and the ids.

    Args:
        frame: The table, N rows.
        row_ids: The ids.
        modelled: Labels of the columns that the imputer was fitted to.

    Raises:
        ValueError: The column does not exist or was fitted, an id is missing, or there is not one id per row.

    Example:
        >>> table, ids = without_ids(pd.DataFrame({"id": [7, 8], "x": [1.0, None]}), "id", ["x"])
        >>> table.columns.tolist(), ids.tolist()
        (['x'], [7, 8])
    """
    if row_ids is None or isinstance(row_ids, Ranks):
        return frame, row_ids
    if isinstance(row_ids, (str, int, np.integer)):
        if row_ids not in frame.columns:
            raise ValueError(f"row_ids names {row_ids!r}, but the columns are {listing(frame.columns)}")
        if row_ids in modelled:
            raise ValueError(
                Hinted(
                    f"row_ids names {row_ids!r}, which the imputer was fitted to: fit it without the ids, ",
                    f"fit(frame.drop(columns=[{row_ids!r}])), or give the ids as an array",
                    shell=f"`pyro-mgp fit` with --drop {row_ids}, or choose another column",
                )
            )
        return frame.drop(columns=[row_ids]), _checked(frame[row_ids], frame.index)
    return frame, _checked(row_ids, frame.index)


def _checked(row_ids: Any, rows: pd.Index[Any]) -> pd.Index[Any]:
    """Return the ids as an index, after checking that no row lacks one."""
    ids = pd.Index(row_ids, tupleize_cols=False)
    if len(ids) != len(rows):
        raise ValueError(f"row_ids must hold one id per row: expected {len(rows)}, got {len(ids)}")
    holes = np.flatnonzero(ids.isna())
    if holes.size:
        raise ValueError(f"row_ids must not be missing: {row_name(rows, holes[0])} has none")
    return ids
