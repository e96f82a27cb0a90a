"""Warnings at the user's own line, messages with a hint, names of rows and values, and progress bars."""

from __future__ import annotations

import shlex
import sys
import warnings
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from tqdm import tqdm

# Frames of these files stand between the user's call and the warning.
_PASSED = (str(Path(__file__).parents[1]), "sklearn/utils", "contextlib.py", "torch/utils")


class Hinted(str):
    """Message of an error or warning that ends in a hint for Python; `in_shell` ends in one for the shell."""

    in_shell: str

    def __new__(cls, message: str, python: str = "", *, shell: str = "") -> Self:
        hinted = super().__new__(cls, message + python)
        hinted.in_shell = message + shell
        return hinted


class FitWarning(UserWarning):
    """Warning that a setting could not be used as given; the message names what was used instead."""


def warn_user(message: str, category: type[Warning]) -> None:
    """Warn at the line of the nearest caller outside this package and the wrappers around it."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and any(part in frame.f_code.co_filename for part in _PASSED):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def progress_bar(items: Iterable[Any] | None, shown: bool, **options: Any) -> Any:
    """Return a bar of `tqdm` that vanishes at the end, shown on terminals only, and only if `shown`."""
    return tqdm(items, disable=None if shown else True, leave=False, **options)


def row_name(index: pd.Index[Any], position: int | np.integer[Any]) -> str:
    """Return text that names a row by its label and its position."""
    return f"row {plain(index[int(position)])!r} (position {position})"


def plain(value: Any) -> Any:
    """Convert a NumPy scalar to a Python scalar, which prints without its type; keep other values."""
    return value.item() if isinstance(value, np.generic) else value


def listing(items: Iterable[object], most: int = 10) -> str:
    """Format the first items of a list as text, for example ``['a', 'b', ... and 3 more]``."""
    listed = [repr(plain(item)) for item in items]
    more = [f"... and {len(listed) - most} more"] if len(listed) > most else []
    return f"[{', '.join(listed[:most] + more)}]"


def dropping(message: str, name: Hashable) -> Hinted:
    """Append the advice to drop a column of the table to a message."""
    python = f" Drop it: frame.drop(columns=[{name!r}])."
    return Hinted(message, python, shell=f" Drop it: --drop {shlex.quote(str(name))}.")
