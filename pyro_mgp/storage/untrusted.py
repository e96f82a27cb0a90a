"""Files that may come from strangers: what is checked before memory is taken for them, or a word believed.

A checksum shows that a file is the one that was written, not who wrote it: who changes a file can write the
checksum, too. So sizes and shapes are looked at first, in what a file says of itself; JSON becomes objects
by their annotations only (`build`); and nothing is ever unpickled.
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
import struct
import types
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from safetensors import SafetensorError

T = TypeVar("T")

MALFORMED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    NotImplementedError,
    TypeError,
    ValueError,
    RecursionError,
)
"""Exceptions that malformed contents of a file can raise in pandas and Python."""

# Bytes of a JSON text, and things in it: at most 150 MB of objects are made of it.
_MOST_JSON, _MOST_BRACKETS, _MOST_COMMAS, _DEEPEST = 2**24, 500_000, 2_500_000, 32
# Bytes of the header of a safetensors file, which names its arrays and their shapes.
_MOST_NAMES = 2**22
_ITEM_SIZES = {
    **{"BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "F16": 2},
    **{"U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8},
}
_INFINITE = 1e308
# Compression that cannot blow up by more than 25 times, unlike that of zip files.
_TEXTS = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
_CODECS = {"UNCOMPRESSED", "SNAPPY"}
# A table of so many bytes may come from a file of any size, a larger one from at least a thousandth of it.
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
    """That a path is a file with an end, and not a pipe or a device; gives its size.

    Raises:
        FileNotFoundError: It is not there.
        ValueError: It is something else.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("expected a file, got a folder, a pipe or a device")
    return found.st_size


def digest(path: Path) -> str:
    """The SHA-256 checksum of a file."""
    check_file(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def parse_json(text: bytes) -> Any:
    """What a JSON text holds.

    Raises:
        ValueError: It is none, or larger or deeper than one that this package writes.
    """
    brackets, commas = text.count(b"[") + text.count(b"{"), text.count(b",")
    if len(text) > _MOST_JSON or brackets > _MOST_BRACKETS or commas > _MOST_COMMAS:
        raise ValueError(
            f"expected at most {_MOST_JSON} bytes with {_MOST_BRACKETS} lists and {_MOST_COMMAS} commas, got "
            f"{len(text)} bytes with {brackets} and {commas}"
        )
    try:
        found = json.loads(text.decode("utf-8"))
    except RecursionError as error:
        raise ValueError(f"expected lists in lists no deeper than {_DEEPEST}") from error
    _check_depth(found)
    return found


def _check_depth(found: Any) -> None:
    layer = [found]
    for _ in range(_DEEPEST):
        inside = [each for each in layer if isinstance(each, list | dict)]
        if not inside:
            return
        layer = [item for each in inside for item in (each if isinstance(each, list) else each.values())]
    raise ValueError(f"expected lists in lists no deeper than {_DEEPEST}")


def read_small(path: Path) -> bytes:
    """The bytes of a file that is to hold JSON, read only if they are not too many."""
    size = check_file(path)
    if size > _MOST_JSON:
        raise ValueError(f"expected at most {_MOST_JSON} bytes, got {size}")
    return path.read_bytes()


# ------------------------------------------------------------------------------------------------- arrays


def array_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of the arrays in a safetensors file, by what its header says; nothing else is read.

    Raises:
        ValueError: The header is none, or does not fit the size of the file.
    """
    size = check_file(path)
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= min(size - 8, _MOST_NAMES):
            raise ValueError(f"its header is to have {length} bytes, the file has {size}")
        header = parse_json(file.read(length))
    if not isinstance(header, dict):
        raise ValueError("its header is no list of arrays")
    arrays = {name: entry for name, entry in header.items() if name != "__metadata__"}
    shapes, held = {}, 0
    for name, entry in arrays.items():
        shapes[name], n_bytes = _shape(name, entry)
        held += n_bytes
    if size > _memory():
        raise ValueError(f"its arrays take {size / 1e9:.0f} GB, this machine has {_memory() / 1e9:.0f} GB")
    if held != size - 8 - length:
        raise ValueError(f"its arrays are to take {held} bytes, the file holds {size - 8 - length}")
    return shapes


def _shape(name: str, entry: Any) -> tuple[tuple[int, ...], int]:
    """Shape and size in bytes of an array by its entry in the header."""
    try:
        shape, (begin, end) = tuple(entry["shape"]), entry["data_offsets"]
        item = _ITEM_SIZES[entry["dtype"]]
        whole = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
        n_bytes = math.prod(shape) * item if whole and len(shape) <= 8 else -1
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the header says nothing that can be read of array {name[:80]!r}") from error
    if n_bytes != end - begin:
        raise ValueError(f"array {name[:80]!r} has the shape {str(shape)[:80]}, but other bytes")
    return shape, n_bytes


def _memory() -> float:
    """Bytes of memory that this machine has, if it tells."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return math.inf


def check_finite(name: str, array: np.ndarray, *, may_be_nan: bool = False) -> None:
    """That an array holds no infinity, and no NaN unless it may.

    Raises:
        ValueError: It does.
    """
    if array.dtype.kind == "f":
        wrong = np.isinf(array) if may_be_nan else ~np.isfinite(array)
        if wrong.any():
            raise ValueError(f"array {name!r} holds numbers that are not finite")


# ------------------------------------------------------------------------------------------------- tables


def check_parquet(path: Path) -> None:
    """That reading a Parquet file takes memory in keeping with its size, by what it says of itself.

    Raises:
        ValueError: It does not, or is compressed in a way that this package does not use.
        pyarrow.ArrowException: It is no Parquet file.
    """
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
        _check_memory(_bytes_of_text(path, texts), size)


def _bytes_of_text(path: Path, columns: list[str]) -> int:
    """How long all text is together; text that comes again is stored, and here read, once."""
    batches = pq.ParquetFile(path, read_dictionary=columns).iter_batches(2**16, columns=columns)
    return sum(_bytes_of_column(column) for batch in batches for column in batch.columns)


def _bytes_of_column(column: Any) -> int:
    if not isinstance(column, pa.DictionaryArray):
        return int(column.nbytes)
    lengths = pc.binary_length(column.dictionary).cast(pa.int64())
    return int(pc.sum(pc.take(lengths, column.indices)).as_py() or 0)


def _check_memory(wanted: int, size: int) -> None:
    if wanted > max(_SMALL_TABLE, _MOST_TIMES * size):
        raise ValueError(f"its {size} bytes are to become {wanted}: that is no table of ours")


# ------------------------------------------------------------------------------------------------ objects


def build(kind: Any, found: Any, where: str) -> Any:
    """What JSON holds as an object of a type, all the way down; numbers must be finite.

    Args:
        kind: A dataclass, an enumeration, a literal, a tuple, a list, a dictionary, an optional or a plain
            type.
        found: What `parse_json` gave.
        where: What to call it.

    Raises:
        ValueError: It is something else; says what, and where.
    """
    origin = get_origin(kind)
    if kind is Any:
        return found
    if origin in (types.UnionType, typing.Union):
        return _build_one_of(get_args(kind), found, where)
    if origin is Literal:
        return _expected(
            found, any(found == c and type(found) is type(c) for c in get_args(kind)), kind, where
        )
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
        name = getattr(kind, "__name__", str(kind))
        raise ValueError(f"{where}: expected {name}, got {str(found)[:80]!r}")
    return found


def _build_one_of(kinds: Sequence[Any], found: Any, where: str) -> Any:
    if found is None and types.NoneType in kinds:
        return None
    for kind in kinds:
        if kind is types.NoneType:
            continue
        try:
            return build(kind, found, where)
        except ValueError:
            if len(kinds) - (types.NoneType in kinds) == 1:
                raise
    return _expected(found, False, " or ".join(getattr(kind, "__name__", str(kind)) for kind in kinds), where)


def _build_items(kind: Any, found: Any, where: str) -> Any:
    each, *others = get_args(kind)
    _expected(found, isinstance(found, list), list, where)
    if get_origin(kind) is not tuple or others == [...]:
        items = [build(each, item, f"{where}[{i}]") for i, item in enumerate(found)]
        return items if get_origin(kind) is list else tuple(items)
    pairs = zip((each, *others), _expected(found, len(found) == 1 + len(others), kind, where), strict=True)
    return tuple(build(own, item, f"{where}[{i}]") for i, (own, item) in enumerate(pairs))


def _build_fields(kind: Any, found: Any, where: str) -> Any:
    _expected(found, isinstance(found, dict), kind, where)
    hints = _hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    unknown = sorted(set(found) - set(fields))
    absent = [n for n, f in fields.items() if n not in found and _needed(f)]
    if unknown or absent:
        raise ValueError(f"{where}: expected the fields {sorted(fields)}, got {sorted(found)}"[:500])
    return kind(**{name: build(hints[name], value, f"{where}.{name}") for name, value in found.items()})


def _needed(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


@functools.cache
def _hints(kind: Any) -> Mapping[str, Any]:
    return typing.get_type_hints(kind)


def check(true: bool, sentence: str) -> None:
    """That something holds of what a file says.

    Raises:
        ValueError: It does not, with that sentence.
    """
    if not true:
        raise ValueError(sentence)


def check_among(numbers: Collection[int], n: int, what: str) -> None:
    """That numbers are positions among n things, none of them twice.

    Raises:
        ValueError: They are not.
    """
    check(
        len(set(numbers)) == len(numbers) and all(0 <= number < n for number in numbers),
        f"{what}: expected different positions from 0 to {n - 1}",
    )
