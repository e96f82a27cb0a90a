"""Folders written whole or not at all, and read back with errors a person can act on.

What this package saves is a folder: `header.json` says what it is, `*.safetensors` hold arrays, `*.parquet`
hold tables. Nothing is pickled, so loading a folder never runs code from it. For a class that saves itself:

    | writing                                               | reading                                   |
    |-------------------------------------------------------|-------------------------------------------|
    | `with atomic_folder(path) as folder:`                 |                                           |
    | `    write_arrays(folder / "x.safetensors", arrays)`  | `read_header(path, kind, version, files)` |
    | `    write_frame(folder / "x.parquet", frame)`        | `read_arrays(...)`                        |
    | `    write_header(folder, kind, version, fields, files)` | `read_frame(...)`                      |

The header holds checksums of itself and of the files: what was damaged on its way is not taken for data. That
a file is what it says, sizes and shapes included, is checked all the same (`_untrusted`).
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import platform
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from pyro_mgp.storage import untrusted

HEADER = "header.json"
Shapes = Mapping[str, tuple[int, ...]]
# What stands in a header for a checksum of all else in it.
_OWN = "checksum"
# What a file that says what it should not can make pandas and Python raise.
MISFITS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    NotImplementedError,
    TypeError,
    ValueError,
    RecursionError,
)
_FRAME_KEY = b"pyro_mgp"
_ARROW_TEXT, _ARROW_TEXT_NAME = pd.ArrowDtype(pa.string()), "string in arrow"

# ------------------------------------------------------------------------------------------------ folders


@contextmanager
def atomic_folder(path: str | os.PathLike[str], *, overwrite: bool = False) -> Iterator[Path]:
    """Give an empty folder to write into, which becomes `path` when the block ends without an error.

    The folder lies beside `path` until then, so a failure leaves nothing behind and an old `path` untouched.

    Args:
        path: Where the folder will be; missing parents are made.
        overwrite: Replace a folder this package wrote (one with a `header.json` of ours) or an empty one.

    Raises:
        ValueError: If `path` exists and may not be replaced.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     with atomic_folder(f"{parent}/out") as folder:
        ...         _ = (folder / "a.txt").write_text("a")
        ...     os.listdir(f"{parent}/out")
        ['a.txt']
    """
    target = Path(path).resolve()
    _check_replaceable(target, overwrite)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.partial")
    partial.mkdir()
    try:
        yield partial
        become(partial, target, overwrite=overwrite)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def become(partial: Path, target: Path, *, overwrite: bool = False) -> None:
    """Let a finished folder take its place; after a power failure, too, there is the old or the new one.

    Args:
        partial: The folder, beside `target`.
        target: Where it will be.
        overwrite: See `atomic_folder`.

    Raises:
        ValueError: If `target` exists and may not be replaced.
    """
    _check_replaceable(target, overwrite)
    for path in [*partial.rglob("*"), partial]:
        flush(path)
    _move(partial, target)
    flush(target.parent)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Give a path to write a file to, which becomes `path` when the block ends without an error.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     with atomic_file(Path(parent) / "a.txt") as partial:
        ...         _ = partial.write_text("a")
        ...     os.listdir(parent)
        ['a.txt']
    """
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        yield partial
        flush(partial)
        partial.replace(path)
        flush(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Have the disk keep a file, or the names in a folder, before anything else is done."""
    if path.is_dir() and os.name == "nt":  # where folders cannot be opened
        return
    number = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _check_replaceable(target: Path, overwrite: bool) -> None:
    if not target.exists():
        return
    if not overwrite:
        raise ValueError(f"{str(target)!r} exists already: choose another path, or pass overwrite=True")
    if not target.is_dir() or (any(target.iterdir()) and not _is_ours(target)):
        raise ValueError(
            f"{str(target)!r} was not written by pyro_mgp, so it is not overwritten: "
            "choose another path, or remove it yourself"
        )


def _is_ours(folder: Path) -> bool:
    try:
        return str(json.loads((folder / HEADER).read_text("utf-8"))["format"]).startswith("pyro_mgp.")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _move(partial: Path, target: Path) -> None:
    if not target.exists():
        partial.rename(target)
        return
    old = partial.with_suffix(".old")
    target.rename(old)
    try:
        partial.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old)


# ------------------------------------------------------------------------------------------------ header


def write_header(
    folder: Path, kind: str, format_version: int, fields: Mapping[str, object], files: Sequence[str] = ()
) -> None:
    """Write `header.json`: what the folder holds, in which format, by which versions, and `fields`.

    Args:
        folder: Where to write.
        kind: Name of the class that can load the folder, "Imputations".
        format_version: Raised whenever an older program could no longer read the folder.
        fields: Anything JSON knows; column labels and the like go through `to_json` first.
        files: Files in the folder, written before, whose checksums go into the header.

    Raises:
        ValueError: If the header would be larger than one that `read_header` takes.
    """
    header = {
        "format": f"pyro_mgp.{kind}",
        "format_version": format_version,
        "package_version": our_version(),
        "packages": _versions(),
        **fields,
        "checksums": {name: untrusted.digest(folder / name) for name in files},
    }
    header[_OWN] = _own_checksum(header)
    text = json.dumps(header, indent=1, ensure_ascii=False) + "\n"
    try:
        untrusted.parse_json(text.encode())
    except ValueError as error:
        raise ValueError(f"this has too many columns to be saved: {error}") from error
    (folder / HEADER).write_text(text, "utf-8")


def read_header(
    path: str | os.PathLike[str],
    kind: str,
    format_version: int,
    files: Sequence[str] = (),
    older: Sequence[int] = (),
) -> dict[str, Any]:
    """Read `header.json` and check that this program can load the folder, and that nothing in it changed.

    Args:
        path: The folder.
        kind: See `write_header`.
        format_version: Of the format that this program writes.
        files: Files whose checksums the header must hold.
        older: Versions of the format that can be read, too; those without checksums are not checked.

    Raises:
        ValueError: If there is no such folder, it is not one of ours, its header or one of its files is
            damaged, or it holds another class or another version of the format.
    """
    folder = Path(path)
    where = repr(str(folder))
    if not folder.is_dir():
        raise ValueError(f"there is no folder {where}: expected one written by {kind}.save")
    if not (folder / HEADER).exists():
        raise ValueError(f"{where} was not written by {kind}.save: it has no {HEADER}")
    with _told_as_value_error(folder / HEADER):
        header = untrusted.parse_json(untrusted.read_small(folder / HEADER))
    found = header.get("format") if isinstance(header, dict) else None
    if found != f"pyro_mgp.{kind}":
        raise ValueError(f"{where} holds {repr(found)[:80]}, expected 'pyro_mgp.{kind}'")
    came, known = header.get("format_version"), [*older, format_version]
    if type(came) is not int or came not in known:
        readable = f"version {format_version}" if not older else f"versions {min(known)} to {format_version}"
        raise ValueError(
            f"{where} has format version {_short(came)}, this program reads {readable}: load it with "
            f"pyro_mgp {_short(header.get('package_version'))}, which wrote it"
        )
    with _told_as_value_error(folder / HEADER):
        _check_own(header, required=bool(files) and came == format_version)
        checksums = untrusted.build(dict, header.get("checksums", {}), "checksums")
    if came == format_version:
        for name in files:
            _check_file(folder / name, checksums.get(name))
    return header


def _short(found: object) -> str:
    return (found if isinstance(found, str) and len(found) < 20 else repr(found))[:40]


def _own_checksum(header: Mapping[str, object]) -> str:
    """Of all else in the header, however it is spaced."""
    rest = {name: value for name, value in header.items() if name != _OWN}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _check_own(header: Mapping[str, Any], *, required: bool) -> None:
    if (_OWN in header or required) and header.get(_OWN) != _own_checksum(header):
        raise ValueError("it is not what was written, by its checksum: copy the folder again")


def _check_file(path: Path, checksum: object) -> None:
    with _told_as_value_error(path):
        if untrusted.digest(path) != checksum:
            raise ValueError("it is not what was written, by its checksum: copy the folder again")


def _versions() -> dict[str, str]:
    """Of what computes and writes, for those who look for a difference."""
    found = {"python": platform.python_version()}
    for name in ("torch", "pyro-ppl", "numpy", "pandas", "pyarrow", "safetensors"):
        with contextlib.suppress(PackageNotFoundError):  # built without metadata
            found[name] = version(name)
    return found


def our_version() -> str:
    """The version of this package, "unknown" when run from a source tree."""
    try:
        return version("pyro_mgp")
    except PackageNotFoundError:  # run from a source tree
        return "unknown"


@contextmanager
def _told_as_value_error(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise ValueError(f"{str(path)!r} is missing: the folder is incomplete") from error
    except (OSError, ValueError, SafetensorError, pa.ArrowException) as error:
        raise ValueError(f"{str(path)!r} is damaged or cut short: {error}") from error


# ------------------------------------------------------------------------------------------------ arrays


def write_arrays(
    path: Path, arrays: Mapping[str, np.ndarray], notes: Mapping[str, str] | None = None
) -> None:
    """Write named numeric or boolean arrays of any shape as safetensors.

    Args:
        path: The file.
        arrays: By name.
        notes: Text to go with them.

    Raises:
        OSError: If they cannot be written, the disk being full, say.
    """
    try:
        save_file(
            {name: np.asarray(array, order="C") for name, array in arrays.items()},
            path,
            None if notes is None else dict(notes),
        )
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def read_arrays(path: Path, check: Callable[[Shapes], None] | None = None) -> dict[str, np.ndarray]:
    """Read what `write_arrays` wrote.

    Args:
        path: The file.
        check: Raises a ValueError for shapes that it does not expect, before memory is taken for the arrays.

    Raises:
        ValueError: If the file is missing, damaged, cut short, or not as expected.
    """
    with _told_as_value_error(path):
        shapes = untrusted.array_shapes(path)
    if check is not None:
        check(shapes)
    with _told_as_value_error(path):
        return load_file(path)


# ------------------------------------------------------------------------------------------------ scalars

# Objects that may stand in a cell or a label and that JSON does not know: how each is tagged, written, read.
_TAGGED: dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    tuple: ("tuple", lambda v: [to_json(x) for x in v], lambda v: tuple(from_json(x) for x in v)),
    type(pd.NA): ("NA", lambda v: None, lambda v: pd.NA),
    type(pd.NaT): ("NaT", lambda v: None, lambda v: pd.NaT),
    pd.Timestamp: ("timestamp", lambda v: v.isoformat(), pd.Timestamp),
    pd.Timedelta: ("timedelta", lambda v: v.isoformat(), pd.Timedelta),
    pd.Interval: (
        "interval",
        lambda v: [to_json(v.left), to_json(v.right), v.closed],
        lambda v: pd.Interval(from_json(v[0]), from_json(v[1]), v[2]),
    ),
    datetime.date: ("date", lambda v: v.isoformat(), datetime.date.fromisoformat),
    Decimal: ("decimal", str, Decimal),
}
_READ = {tag: read for tag, _, read in _TAGGED.values()}


def to_json(value: Any) -> Any:
    """A cell or label as something JSON can hold; `from_json` gives it back, NaN, NA and tuples included.

    Raises:
        ValueError: If the value is of a type that cannot be stored.

    Example:
        >>> to_json(("a", 1)), from_json({"tuple": ["a", 1]})
        ({'tuple': ['a', 1]}, ('a', 1))
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) not in _TAGGED:
        raise ValueError(f"a value of type {type(value).__name__} cannot be stored: {value!r}")
    tag, write, _ = _TAGGED[type(value)]
    return {tag: write(value)}


def from_json(value: Any) -> Any:
    """The cell or label that `to_json` wrote.

    Raises:
        ValueError: If it is none.
    """
    if not isinstance(value, dict):
        return value
    if len(value) != 1 or not set(value) <= set(_READ):
        raise ValueError(f"expected a cell or a label, got {str(value)[:80]}")
    ((tag, content),) = value.items()
    return _READ[tag](content)


# ------------------------------------------------------------------------------------------------ tables

# Parquet and its pandas metadata lose object columns (None, NaN and NA become one), the categories of
# numbers, and the dtypes of an index. So every column and index level is stored under its position in a form
# that Parquet keeps, and what is needed to come back stands in the file's metadata.


def write_frame(path: Path, frame: pd.DataFrame) -> None:
    """Write a table as Parquet such that `read_frame` gives back an equal one.

    Values, dtypes (categories in their order, nullable, object), index and column labels all come back.
    The frequency of a DatetimeIndex and `frame.attrs` do not; a NaN in a nullable column comes back as NA.

    Raises:
        ValueError: If a column holds what cannot be stored (sparse or complex numbers, objects other than
            numbers, text, dates, intervals and tuples of these); names the column.
    """
    index, columns = frame.index, frame.columns
    is_range = isinstance(index, pd.RangeIndex)
    levels = [] if is_range else [_level(index, i) for i in range(index.nlevels)]
    parts = {f"index {i}": pd.Series(level, dtype=level.dtype) for i, level in enumerate(levels)}
    parts |= {f"{i}: {label}": frame.iloc[:, i] for i, label in enumerate(columns)}
    stored = {name: _encode(name, series) for name, series in parts.items()}
    schema = {
        "index": _index_to_json(index) if is_range else {"names": [to_json(name) for name in index.names]},
        "columns": _index_to_json(columns),
        "parts": [how for _, how in stored.values()],
    }
    plain = pd.DataFrame({name: array for name, (array, _) in stored.items()}, index=range(len(frame)))
    try:
        table = pa.Table.from_pandas(plain, preserve_index=False)
        metadata = {**table.schema.metadata, _FRAME_KEY: json.dumps(schema).encode()}
        pq.write_table(table.replace_schema_metadata(metadata), path)
    except (pa.ArrowException, TypeError) as error:
        raise ValueError(f"the table cannot be stored as Parquet: {error}") from error


def read_frame(path: Path) -> pd.DataFrame:
    """Read the table that `write_frame` wrote.

    Raises:
        ValueError: If the file is missing, damaged, cut short, would become a table out of all proportion to
            its size, or was not written by `write_frame`.
    """
    with _told_as_value_error(path):
        untrusted.check_parquet(path)
        table = pq.read_table(path)
    if _FRAME_KEY not in (table.schema.metadata or {}):
        raise ValueError(f"{str(path)!r} is a Parquet file, but not one that pyro_mgp wrote")
    try:
        schema = untrusted.parse_json(table.schema.metadata[_FRAME_KEY])
        return _restored(table.to_pandas(), schema)
    except MISFITS as error:
        raise ValueError(f"{str(path)!r} does not say how its table was: {error}") from error


def _restored(plain: pd.DataFrame, schema: Mapping[str, Any]) -> pd.DataFrame:
    """A table from its stored form, and from what was written of it."""
    parts = [_decode(plain.iloc[:, i], how) for i, how in enumerate(schema["parts"])]
    columns = _index_from_json(schema["columns"], plain.shape[1])
    n_levels = len(parts) - len(columns)
    if n_levels > 0:
        names = [from_json(name) for name in schema["index"]["names"]]
        index = _join([_as_index(level, level.dtype) for level in parts[:n_levels]], names)
    else:
        index = _index_from_json(schema["index"])
    if parts and len(index) != len(plain):
        raise ValueError(f"its index has {len(index)} rows, its columns have {len(plain)}")
    frame = pd.DataFrame(dict(enumerate(parts[max(n_levels, 0) :])), index=range(len(index)))
    return frame.set_axis(index, axis="index").set_axis(columns, axis="columns")


def _encode(name: str, series: pd.Series[Any]) -> tuple[Any, dict[str, Any]]:
    dtype = series.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        how = {"categories": _index_to_json(dtype.categories), "ordered": dtype.ordered}
        return series.cat.codes.to_numpy(), how
    if pd.api.types.is_object_dtype(dtype):
        try:
            return pd.array([json.dumps(to_json(v)) for v in series], dtype="string"), {"dtype": "object"}
        except ValueError as error:
            raise ValueError(f"column {name!r}: {error}") from error
    return series.array, {"dtype": _dtype_name(dtype)}


def _decode(stored: pd.Series[Any], how: dict[str, Any]) -> pd.Series[Any]:
    if "categories" in how:
        dtype = pd.CategoricalDtype(_index_from_json(how["categories"]), how["ordered"])
        return pd.Series(pd.Categorical.from_codes(stored.to_numpy(), dtype=dtype))
    if how["dtype"] == "object":
        return pd.Series([from_json(untrusted.parse_json(text.encode())) for text in stored], dtype=object)
    return stored if _dtype_name(stored.dtype) == how["dtype"] else stored.astype(_dtype_of(how["dtype"]))


def _dtype_name(dtype: Any) -> str:
    if isinstance(dtype, pd.StringDtype) and dtype.na_value is pd.NA:
        return f"string[{dtype.storage}]"  # str(dtype) leaves the storage out
    if dtype == _ARROW_TEXT and isinstance(dtype, pd.ArrowDtype):
        return _ARROW_TEXT_NAME  # str(dtype) is the name of pandas' own
    return str(dtype)


def _dtype_of(name: str) -> Any:
    """The dtype that `_dtype_name` named.

    Raises:
        ValueError: It is none that a table can have: a number, text or objects, a time or an interval.
    """
    if name == _ARROW_TEXT_NAME:
        return _ARROW_TEXT
    dtype = pd.api.types.pandas_dtype(name)
    if isinstance(dtype, np.dtype) and dtype.kind not in "biufOMm":
        raise ValueError(f"expected the dtype of a column, got {name!r}")  # "S999999999" takes memory
    return dtype


def _index_to_json(index: pd.Index[Any]) -> dict[str, Any]:
    names = [to_json(name) for name in index.names]
    if isinstance(index, pd.RangeIndex):
        return {"names": names, "range": [index.start, index.stop, index.step]}
    levels = [_level(index, i) for i in range(index.nlevels)]
    values = [[to_json(v) for v in level] for level in levels]
    return {"names": names, "dtypes": [_dtype_name(level.dtype) for level in levels], "values": values}


def _index_from_json(stored: dict[str, Any], most: int | None = None) -> pd.Index[Any]:
    names = [from_json(name) for name in stored["names"]]
    if "range" in stored:
        start, stop, step = stored["range"]
        if most is not None and len(range(start, stop, step)) > most:
            raise ValueError(f"expected at most {most} labels")
        return pd.RangeIndex(start, stop, step, name=names[0])
    pairs = zip(stored["values"], stored["dtypes"], strict=True)
    return _join([_as_index([from_json(v) for v in values], dtype) for values, dtype in pairs], names)


def _level(index: pd.Index[Any], i: int) -> pd.Index[Any]:
    if not isinstance(index, pd.MultiIndex):
        return index
    return index.set_names([None] * index.nlevels).get_level_values(i)  # a name could pass for a position


def _as_index(values: Any, dtype: Any) -> pd.Index[Any]:
    return pd.Index(values, dtype=_dtype_of(dtype) if isinstance(dtype, str) else dtype, tupleize_cols=False)


def _join(levels: list[pd.Index[Any]], names: list[Any]) -> pd.Index[Any]:
    if len(levels) > 1:
        return pd.MultiIndex.from_arrays(levels, names=names)
    return levels[0].rename(names[0])
