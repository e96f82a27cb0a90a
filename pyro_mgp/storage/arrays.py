"""Reading and writing of named arrays in safetensors files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from pyro_mgp.storage import untrusted

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of arrays by name."""


def write_arrays(
    path: Path, arrays: Mapping[str, np.ndarray], notes: Mapping[str, str] | None = None
) -> None:
    """Write named numeric or boolean arrays of any shape, and named texts, into a safetensors file.

    Raises:
        OSError: If the file cannot be written, for example because the disk is full.
    """
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    try:
        save_file(contiguous, path, None if notes is None else dict(notes))
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def read_arrays(path: Path, check: Callable[[Shapes], None] | None = None) -> dict[str, np.ndarray]:
    """Read the named arrays of a safetensors file, after `check` has approved their shapes.

    Raises:
        ValueError: If the file is missing, damaged, cut short, or not as expected.
    """
    with untrusted.damage_as_value_error(path):
        shapes = untrusted.array_shapes(path)
    if check is not None:
        check(shapes)
    with untrusted.damage_as_value_error(path):
        return load_file(path)
