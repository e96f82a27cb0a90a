"""Checks of files from untrusted sources, made before memory is allocated for their contents.

A checksum shows that a file is the one that was written, but not who wrote it: whoever changes a file can
change the checksum, too. Sizes and shapes are therefore checked first, from the headers of files. JSON
becomes objects only as type annotations allow (`build`), and nothing is ever unpickled.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import json
import math
import os
import stat
import types
import typing
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from safetensors import SafetensorError, safe_open

T = TypeVar("T")

MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError)
"""Exceptions that malformed contents of a file can raise in pandas and Python."""

# Limits of a JSON text: bytes, brackets, commas and depth. Its objects take at most 150 MB.
_MOST_JSON, _MOST_BRACKETS, _MOST_COMMAS, _DEEPEST = 2**24, 500_000, 2_500_000, 32
# Most bytes of the header of a safetensors file, which holds names and shapes of arrays.
_MOST_NAMES = 2**22
# Types of numbers that NumPy has.
_DTYPES = {"BOOL", "U8", "I8", "U16", "I16", "F16", "U32", "I32", "F32", "U64", "I64", "F64"}
_INFINITE = 1e308
_TEXTS = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
# Snappy expands data by a factor of at most 25, unlike the compression of zip files.
_CODECS = {"UNCOMPRESSED", "SNAPPY"}
# Tables of at most 2**26 bytes may come from files of any size; larger ones are at most 1000 times the file.
_SMALL_TABLE, _MOST_TIMES = 2**26, 1000


@contextmanager
def damage_as_value_error(path: Path) -> Iterator[None]:
    """Turn the errors of reading a file into a ValueError that names it and says that it is damaged."""
    try:
        yield
    except FileNotFoundError as error:
        raise ValueError(f"{str(path)!r} is missing: the folder is incomplete") from error
    except (OSError, ValueError, SafetensorError, pa.ArrowException) as error:
        raise ValueError(f"{str(path)!r} is damaged or cut short: {error}") from error


def check_file(path: Path) -> int:
    """Return the size of a file in bytes; raise a ValueError if it is a folder, a pipe or a device."""
    found = path.stat()
    check(stat.S_ISREG(found.st_mode), "expected a file, got a folder, a pipe or a device")
    return found.st_size


def digest(path: Path) -> str:
    """Return the SHA-256 checksum of a file."""
    check_file(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def parse_json(text: bytes) -> Any:
    """Parse a JSON text; raise a ValueError if it is larger or deeper than this package writes."""
    brackets, commas = text.count(b"[") + text.count(b"{"), text.count(b",")
    small = len(text) <= _MOST_JSON and brackets <= _MOST_BRACKETS and commas <= _MOST_COMMAS
    most = f"{_MOST_JSON} bytes with {_MOST_BRACKETS} lists and {_MOST_COMMAS} commas"
    check(small, f"expected at most {most}, got {len(text)} bytes with {brackets} and {commas}")
    try:
        found = json.loads(text.decode("utf-8"))
    except RecursionError as error:
        raise ValueError(f"expected lists in lists no deeper than {_DEEPEST}") from error
    _check_depth([found], _DEEPEST + 1)
    return found


def _check_depth(found: Any, most: int) -> None:
    """Check that lists and dictionaries are nested in fewer than `most` levels."""
    check(most > 0, f"expected lists in lists no deeper than {_DEEPEST}")
    for item in found.values() if isinstance(found, dict) else found:
        if isinstance(item, list | dict):
            _check_depth(item, most - 1)


def read_small(path: Path) -> bytes:
    """Return the bytes of a JSON file, after checking its size."""
    size = check_file(path)
    check(size <= _MOST_JSON, f"expected at most {_MOST_JSON} bytes, got {size}")
    return path.read_bytes()


def array_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays in a safetensors file, from its header.

    Raises a ValueError if the header is larger than those of this package or the arrays than the memory, a
    SafetensorError if it is malformed or disagrees with the size of the file.
    """
    size = check_file(path)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    check(2 <= length <= min(size - 8, _MOST_NAMES), f"its header claims {length} bytes, the file has {size}")
    check(size <= _memory(), f"its {size / 1e9:.0f} GB are more than the {_memory() / 1e9:.0f} GB of memory")
    with safe_open(path, "numpy") as arrays:
        entries = {name: arrays.get_slice(name) for name in arrays.keys()}  # noqa: SIM118 (no dict)
    kinds = sorted({entry.get_dtype() for entry in entries.values()} - _DTYPES)
    check(not kinds, f"expected arrays of {sorted(_DTYPES)}, got {kinds}")
    return {name: tuple(entry.get_shape()) for name, entry in entries.items()}


def _memory() -> float:
    """Return the bytes of memory of this machine, infinity if unknown."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return math.inf


def check_parquet(path: Path) -> None:
    """Raise a ValueError if a Parquet file expands to a table far larger than itself, by its metadata."""
    size = check_file(path)
    file = pq.ParquetFile(path)
    metadata, schema = file.metadata, file.schema_arrow
    check(metadata.serialized_size <= _MOST_JSON, f"expected metadata of at most {_MOST_JSON} bytes")
    check(not any(field.type.num_fields for field in schema), "expected plain cells, got lists or structures")
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    parts = [group.column(j) for group in groups for j in range(group.num_columns)]
    codecs = sorted({part.compression for part in parts} - _CODECS)
    check(not codecs, f"expected compression {sorted(_CODECS)}, got {codecs}")
    rows = max(metadata.num_rows, sum(group.num_rows for group in groups))
    _check_memory(8 * rows * max(metadata.num_columns, 1), size)
    _check_memory(sum(part.total_uncompressed_size for part in parts), size)
    texts = [field.name for field in schema if field.type in _TEXTS]
    if texts:
        # A dictionary holds repeated text only once.
        batches = pq.ParquetFile(path, read_dictionary=texts).iter_batches(2**16, columns=texts)
        _check_memory(sum(_bytes_of_text(column) for batch in batches for column in batch.columns), size)


def _bytes_of_text(column: Any) -> int:
    if not isinstance(column, pa.DictionaryArray):
        return int(column.nbytes)
    lengths = pc.binary_length(column.dictionary).cast(pa.int64())
    return int(pc.sum(pc.take(lengths, column.indices)).as_py() or 0)


def _check_memory(wanted: int, size: int) -> None:
    most = max(_SMALL_TABLE, _MOST_TIMES * size)
    check(wanted <= most, f"its {size} bytes expand to {wanted}: this package writes no such file")


def build(kind: Any, found: Any, where: str) -> Any:
    """Convert parsed JSON to an object of a given type, recursively; numbers must be finite.

    The type is a dataclass, enumeration, literal, tuple, list, dictionary, optional or plain type. Values of
    another type raise a ValueError that says what was expected, and `where`.
    """
    origin = get_origin(kind)
    if kind is Any:
        return found
    if origin in (types.UnionType, typing.Union):
        return _build_one_of(kind, found, where)
    if origin is Literal:
        among = any(found == choice and type(found) is type(choice) for choice in get_args(kind))
        return _expected(found, among, kind, where)
    if origin in (tuple, list, Sequence):
        return _build_items(kind, found, where)
    if origin is dict:
        _expected(found, isinstance(found, dict), dict, where)
        return {name: build(get_args(kind)[1], value, f"{where}.{name}") for name, value in found.items()}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(_expected(found, found in [each.value for each in kind], kind, where))
    if dataclasses.is_dataclass(kind):
        return _build_fields(kind, found, where)
    if kind is float:
        number = isinstance(found, int | float) and not isinstance(found, bool)
        return _expected(found, number and abs(found) < _INFINITE, "a finite number", where)
    return _expected(found, type(found) is kind, kind, where)


def _expected(found: T, right: bool, kind: Any, where: str) -> T:
    if not right:
        raise ValueError(f"{where}: expected {getattr(kind, '__name__', str(kind))}, got {str(found)[:80]!r}")
    return found


def _build_one_of(kind: Any, found: Any, where: str) -> Any:
    others = [each for each in get_args(kind) if each is not types.NoneType]
    if found is None and len(others) < len(get_args(kind)):
        return None
    if len(others) == 1:
        return build(others[0], found, where)
    for each in others:
        with suppress(ValueError):
            return build(each, found, where)
    return _expected(found, False, str(kind), where)


def _build_items(kind: Any, found: Any, where: str) -> Any:
    each, *others = get_args(kind)
    _expected(found, isinstance(found, list), list, where)
    is_fixed = get_origin(kind) is tuple and others != [...]
    kinds = [each, *others] if is_fixed else [each] * len(found)
    _expected(found, len(found) == len(kinds), kind, where)
    pairs = enumerate(zip(kinds, found, strict=True))
    items = [build(own, item, f"{where}[{i}]") for i, (own, item) in pairs]
    return items if get_origin(kind) is list else tuple(items)


def _build_fields(kind: Any, found: Any, where: str) -> Any:
    _expected(found, isinstance(found, dict), kind, where)
    hints, fields = _hints(kind), {field.name: field for field in dataclasses.fields(kind)}
    needed = {name for name, field in fields.items() if field.default is field.default_factory is MISSING}
    right = needed <= set(found) <= set(fields)
    check(right, f"{where}: expected the fields {sorted(fields)}, got {sorted(found)}"[:500])
    return kind(**{name: build(hints[name], value, f"{where}.{name}") for name, value in found.items()})


_hints = functools.cache(typing.get_type_hints)


def check(true: bool, sentence: str) -> None:
    """Raise a ValueError with the given message unless a condition on the contents of a file is true."""
    if not true:
        raise ValueError(sentence)


def check_among(numbers: Collection[int], n: int, what: str) -> None:
    """Raise a ValueError unless numbers are distinct positions in a sequence of n items."""
    right = len(set(numbers)) == len(numbers) and all(0 <= number < n for number in numbers)
    check(right, f"{what}: expected different positions from 0 to {n - 1}")
