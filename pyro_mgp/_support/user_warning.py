"""Warnings that point at the user's own line."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

# Frames of these files stand between the user's call and the warning.
_PASSED = (str(Path(__file__).parents[1]), "sklearn/utils", "contextlib.py", "torch/utils")


class FitWarning(UserWarning):
    """A setting could not be used as given; the message says what was used instead."""


def warn_user(message: str, category: type[Warning]) -> None:
    """Warn of something at the nearest caller outside this package and the wrappers around it.

    Args:
        message: What happened, and what to do.
        category: One of the package's own classes.
    """
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and any(part in frame.f_code.co_filename for part in _PASSED):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
