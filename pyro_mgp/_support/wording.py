"""How errors and warnings of the table code name rows, values and lists of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
import pandas as pd


def row_name(index: pd.Index[Any], position: int | np.integer[Any]) -> str:
    """A row by its label and its position."""
    return f"row {plain(index[int(position)])!r} (position {position})"


def plain(value: Any) -> Any:
    """A scalar of numpy as Python's own, which prints without its type."""
    return value.item() if isinstance(value, np.generic) else value


def listing(items: Iterable[object], most: int = 10) -> str:
    """The first items, as in ``['a', 'b', ... and 3 more]``."""
    listed = [repr(plain(item)) for item in items]
    more = [f"... and {len(listed) - most} more"] if len(listed) > most else []
    return f"[{', '.join(listed[:most] + more)}]"


def drop_it(name: Hashable) -> str:
    """What to do about a column that is of no use."""
    return f"Drop it: frame.drop(columns=[{name!r}])."
