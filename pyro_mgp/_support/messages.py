"""Warnings that point at the user's own line, and how messages name rows, values and lists of them."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

# Frames of these files stand between the user's call and the warning.
_PASSED = (str(Path(__file__).parents[1]), "sklearn/utils", "contextlib.py", "torch/utils")


class FitWarning(UserWarning):
    """Warning that a setting could not be used as given; the message names what was used instead."""


def warn_user(message: str, category: type[Warning]) -> None:
    """Warn at the line of the nearest caller outside this package and the wrappers around it.

    Args:
        message: The warning, with advice.
        category: Its class, one of the package's own.
    """
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and any(part in frame.f_code.co_filename for part in _PASSED):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def row_name(index: pd.Index[Any], position: int | np.integer[Any]) -> str:
    """Return the name of a row: its label and its position."""
    return f"row {plain(index[int(position)])!r} (position {position})"


def plain(value: Any) -> Any:
    """Return a NumPy scalar as a Python scalar, which prints without its type; other values as they are."""
    return value.item() if isinstance(value, np.generic) else value


def listing(items: Iterable[object], most: int = 10) -> str:
    """Return the first items as text, for example ``['a', 'b', ... and 3 more]``."""
    listed = [repr(plain(item)) for item in items]
    more = [f"... and {len(listed) - most} more"] if len(listed) > most else []
    return f"[{', '.join(listed[:most] + more)}]"


def drop_it(name: Hashable) -> str:
    """Return the advice to drop a useless column."""
    return f"Drop it: frame.drop(columns=[{name!r}])."
