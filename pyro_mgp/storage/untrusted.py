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

# Limits of a JSON text: bytes, brackets, commas and depth. Its objects take at most 150 MB.
_MOST_JSON, _MOST_BRACKETS, _MOST_COMMAS, _DEEPEST = 2**24, 500_000, 2_500_000, 32
# Most bytes of the header of a safetensors file, which holds names and shapes of arrays.
_MOST_NAMES = 2**22
_ITEM_SIZES = {
    **{"BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "F16": 2},
    **{"U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8},
}
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
    """Check that a path is a regular file, not a pipe or a device, and return its size in bytes.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the path is not a regular file.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("expected a file, got a folder, a pipe or a device")
    return found.st_size


def digest(path: Path) -> str:
    """Return the SHA-256 checksum of a file."""
    check_file(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def parse_json(text: bytes) -> Any:
    """Parse a JSON text of limited size and depth.

    Raises:
        ValueError: If the text is no JSON, or larger or deeper than this package writes.
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
    """Return the bytes of a JSON file, after checking its size."""
    size = check_file(path)
    if size > _MOST_JSON:
        raise ValueError(f"expected at most {_MOST_JSON} bytes, got {size}")
    return path.read_bytes()


def array_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays in a safetensors file; only its header is read.

    Raises:
        ValueError: If the header is malformed or disagrees with the size of the file.
    """
    size = check_file(path)
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= min(size - 8, _MOST_NAMES):
            raise ValueError(f"its header claims {length} bytes, the file has {size}")
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
        raise ValueError(f"its arrays claim {held} bytes, the file holds {size - 8 - length}")
    return shapes


def _shape(name: str, entry: Any) -> tuple[tuple[int, ...], int]:
    """Return shape and size in bytes of an array, from its entry in the header."""
    try:
        shape, (begin, end) = tuple(entry["shape"]), entry["data_offsets"]
        item = _ITEM_SIZES[entry["dtype"]]
        whole = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
        n_bytes = math.prod(shape) * item if whole and len(shape) <= 8 else -1
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the header entry of array {name[:80]!r} is malformed") from error
    if n_bytes != end - begin:
        raise ValueError(f"array {name[:80]!r} has the shape {str(shape)[:80]}, but another number of bytes")
    return shape, n_bytes


def _memory() -> float:
    """Return the bytes of memory of this machine, infinity if unknown."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return math.inf


def check_finite(name: str, array: np.ndarray, *, may_be_nan: bool = False) -> None:
    """Check that an array holds no infinities, and no NaN unless `may_be_nan`.

    Raises:
        ValueError: If it does.
    """
    if array.dtype.kind == "f":
        wrong = np.isinf(array) if may_be_nan else ~np.isfinite(array)
        if wrong.any():
            raise ValueError(f"array {name!r} holds numbers that are not finite")


def check_parquet(path: Path) -> None:
    """Check from its metadata that a Parquet file does not expand to a table far larger than itself.

    Raises:
        ValueError: If it does, or if it uses a compression that this package does not use.
        pyarrow.ArrowException: If it is no Parquet file.
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
    """Return the total length of all text, reading repeated text only once."""
    batches = pq.ParquetFile(path, read_dictionary=columns).iter_batches(2**16, columns=columns)
    return sum(_bytes_of_column(column) for batch in batches for column in batch.columns)


def _bytes_of_column(column: Any) -> int:
    if not isinstance(column, pa.DictionaryArray):
        return int(column.nbytes)
    lengths = pc.binary_length(column.dictionary).cast(pa.int64())
    return int(pc.sum(pc.take(lengths, column.indices)).as_py() or 0)


def _check_memory(wanted: int, size: int) -> None:
    if wanted > max(_SMALL_TABLE, _MOST_TIMES * size):
        raise ValueError(f"its {size} bytes expand to {wanted}: this package writes no such file")


def build(kind: Any, found: Any, where: str) -> Any:
    """Build an object of a type, recursively, from parsed JSON; numbers must be finite.

    Args:
        kind: A dataclass, an enumeration, a literal, a tuple, a list, a dictionary, an optional or a plain
            type.
        found: The value that `parse_json` returned.
        where: Name of the value in messages.

    Raises:
        ValueError: If the value does not have the type; the message says what was expected, and where.
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
    """Raise an error with the given message unless a condition on the contents of a file is true.

    Raises:
        ValueError: If the condition is false.
    """
    if not true:
        raise ValueError(sentence)


def check_among(numbers: Collection[int], n: int, what: str) -> None:
    """Check that numbers are distinct positions in a sequence of n items.

    Raises:
        ValueError: If they are not.
    """
    check(
        len(set(numbers)) == len(numbers) and all(0 <= number < n for number in numbers),
        f"{what}: expected different positions from 0 to {n - 1}",
    )
