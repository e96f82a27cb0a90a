"""Header and arrays of a saved folder; the header holds format, versions of packages, and checksums of files.

A saved folder holds `header.json`, arrays as `*.safetensors` and tables as `*.parquet`. Nothing is
pickled, so that loading never runs code. Checksums detect accidental damage; `untrusted` checks the contents.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from pyro_mgp.storage import untrusted

HEADER = "header.json"
_PACKAGES = ("torch", "pyro-ppl", "numpy", "pandas", "pyarrow", "safetensors")
_OWN = "checksum"  # the header's entry for the checksum of all its other entries
_CHANGED = "its checksum differs from the one that was written: copy the folder again"
Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of arrays by name."""


def write_header(
    folder: Path, kind: str, format_version: int, fields: Mapping[str, object], files: Sequence[str] = ()
) -> None:
    """Write `header.json`: format, versions of packages, `fields` and checksums of files.

    The folder can be loaded by the class `kind`. A new `format_version` means that older programs cannot read
    it. Raises a ValueError if the header would be larger than `read_header` accepts.
    """
    header = {
        "format": f"pyro_mgp.{kind}",
        "format_version": format_version,
        "package_version": our_version(),
        "packages": {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
        **fields,
        "checksums": {name: untrusted.digest(folder / name) for name in files},
    }
    header[_OWN] = own_checksum(header)
    text = json.dumps(header, indent=1, ensure_ascii=False) + "\n"
    try:
        untrusted.parse_json(text.encode())
    except ValueError as error:
        raise ValueError(f"this has too many columns to be saved: {error}") from error
    (folder / HEADER).write_text(text, "utf-8")


def read_header(
    path: str | os.PathLike[str], kind: str, format_version: int, files: Sequence[str] = ()
) -> dict[str, Any]:
    """Read `header.json`; raise a ValueError if this program cannot load the folder, or a file is damaged."""
    folder = Path(path)
    where = repr(str(folder))
    if not folder.is_dir():
        raise ValueError(f"there is no folder {where}: expected one written by {kind}.save")
    if not (folder / HEADER).exists():
        raise ValueError(f"{where} was not written by {kind}.save: it has no {HEADER}")
    with untrusted.damage_as_value_error(folder / HEADER):
        header = untrusted.parse_json(untrusted.read_small(folder / HEADER))
    found = header.get("format") if isinstance(header, dict) else None
    if found != f"pyro_mgp.{kind}":
        raise ValueError(f"{where} holds {repr(found)[:80]}, expected 'pyro_mgp.{kind}'")
    found_version = header.get("format_version")
    if type(found_version) is not int or found_version != format_version:
        raise ValueError(
            f"{where} has format version {_short(found_version)}, this program reads {format_version}: load "
            f"it with pyro_mgp {_short(header.get('package_version'))}, which wrote it"
        )
    with untrusted.damage_as_value_error(folder / HEADER):
        untrusted.check(header.get(_OWN) == own_checksum(header), _CHANGED)
        checksums = untrusted.build(dict, header.get("checksums"), "checksums")
    for name in files:
        with untrusted.damage_as_value_error(folder / name):
            untrusted.check(untrusted.digest(folder / name) == checksums.get(name), _CHANGED)
    return header


def _short(found: object) -> str:
    return (found if isinstance(found, str) and len(found) < 20 else repr(found))[:40]


def own_checksum(header: Mapping[str, object]) -> str:
    """Return the checksum of a header without its checksum entry; whitespace does not matter."""
    rest = {name: value for name, value in header.items() if name != _OWN}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def our_version() -> str:
    """Return the version of this package, or "unknown" if it runs from a source tree without metadata."""
    return _version("pyro_mgp") or "unknown"


def _version(package: str) -> str | None:
    """Return the version of a package, or None if it was built without metadata."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray], notes: dict[str, str] | None = None) -> None:
    """Write named arrays and texts into a safetensors file; a full disk, for example, is an OSError."""
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    try:
        save_file(contiguous, path, notes)
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def read_arrays(path: Path, check: Callable[[Shapes], None] | None = None) -> dict[str, np.ndarray]:
    """Read the arrays of a safetensors file, once `check` has passed their shapes; damage is a ValueError."""
    with untrusted.damage_as_value_error(path):
        shapes = untrusted.array_shapes(path)
    if check is not None:
        check(shapes)
    with untrusted.damage_as_value_error(path):
        return load_file(path)
