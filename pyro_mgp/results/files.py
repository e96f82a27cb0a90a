"""Tables from files and into files, by their suffix.

A CSV is kept as text beside what its cells mean, so that observed cells leave letter by letter as they came:
"18" stays "18", "true" stays "true".
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from pyro_mgp.data import table
from pyro_mgp.data.column_spec import Label
from pyro_mgp.results.imputations import DELIMITERS, Imputations, open_text, table_names, write_table
from pyro_mgp.storage.atomic import atomic_file

MISSING = ("NA", "N/A", "#N/A", "<NA>", "NaN", "NULL")
"""What stands for a missing cell in a CSV, in upper or lower case, besides an empty cell."""

_FORMATS = {".csv": "csv", ".tsv": "tsv", ".parquet": "parquet", ".pq": "parquet"}


@dataclass(frozen=True)
class Source:
    """A table as it came from a file."""

    frame: pd.DataFrame
    """What the cells mean: nullable integers, floats and booleans, or text."""
    format: str
    """"csv", "tsv" or "parquet"."""
    text: list[list[str]] | None = None
    """How they were spelt: the header and the rows of a CSV, row labels first if it has any; else None."""


def read_table(path: Path, missing: Sequence[str] = MISSING) -> Source:
    """Read a table from a CSV or Parquet file, by its suffix.

    Args:
        path: File that ends in .csv, .tsv (either may be followed by .gz), .parquet or .pq.
        missing: What marks a missing cell in a CSV, in upper or lower case, besides an empty cell.

    Returns:
        The table. A column of a CSV is boolean if all observed cells are true or false in any case, integer
        or float if all are such numbers, else text. Numbers with leading zeros ("007") are codes, so text.

    Raises:
        ValueError: If there is no such file, its suffix is another, or its content is no table; with the
            line where known.
        OSError: If the file cannot be read.
    """
    if not path.exists():
        raise ValueError(f"there is no file {str(path)!r}")
    if path.is_dir():
        raise ValueError(f"{str(path)!r} is a folder, expected a CSV or Parquet file")
    zipped = path.suffix.lower() == ".gz"
    suffix = (path.with_suffix("") if zipped else path).suffix.lower()
    format = _FORMATS.get(suffix)
    if format is None or (zipped and format == "parquet"):
        known = ", ".join(_FORMATS)
        raise ValueError(
            f"{str(path)!r}: expected a file that ends in {known} or .csv.gz, got {path.suffix!r}"
        )
    if format == "parquet":
        return Source(_read_parquet(path), format)
    text = _parse(_decode(_unzip(path) if zipped else path.read_bytes(), path), format, path)
    return Source(typed(text, missing), format, text)


def _unzip(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{str(path)!r} is no gzip file, or is cut short: {error}") from error


def _decode(content: bytes, path: Path) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{str(path)!r} is not UTF-8 text: line {line} holds the byte 0x{content[error.start]:02x}; "
            "save it again with the encoding UTF-8"
        ) from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ValueError(f"{str(path)!r} is not a text file: line {line} holds a zero byte")
    return text


def _parse(content: str, format: str, path: Path) -> list[list[str]]:
    """The header and the rows, all of one length."""
    where = repr(str(path))
    reader = csv.reader(io.StringIO(content, newline=""), delimiter=DELIMITERS[format], strict=True)
    rows: list[list[str]] = []
    try:
        for row in reader:
            if not row:  # a blank line
                continue
            rows.append(row)
            if len(row) != len(rows[0]):
                raise ValueError(
                    f"{where}, line {reader.line_num}: expected {len(rows[0])} fields, one per name in the "
                    f"header, got {len(row)}"
                )
    except csv.Error as error:
        raise ValueError(f"{where}, line {reader.line_num}: {error}") from error
    if not rows:
        raise ValueError(f"{where} is empty: expected a header with the names of the columns, and rows")
    _check_names(rows[0], format, where)
    return rows


def _check_names(names: list[str], format: str, where: str) -> None:
    if len(names) == 1 and ";" in names[0]:
        raise ValueError(
            f"{where} seems to be separated by semicolons: expected {DELIMITERS[format]!r}; save it again "
            "with that, and with points in decimal numbers"
        )
    for position, name in enumerate(names):
        if position and not name.strip():
            raise ValueError(f"{where}: column {position + 1} has no name in the header")
        if name in names[:position]:
            raise ValueError(f"{where}: the header names {name!r} more than once")


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        # Pandas knows its own dtypes again; elsewhere integers with holes would become floats.
        if b"pandas" in (pq.read_schema(path).metadata or {}):
            return pd.read_parquet(path)
        return pd.read_parquet(path, dtype_backend="numpy_nullable")
    except pa.ArrowException as error:
        raise ValueError(f"{str(path)!r} is no Parquet file, or is damaged: {error}") from error


# --------------------------------------------------------------------------------------- what cells mean

_TRUTH = {"true": True, "false": False}
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_CODE = re.compile(r"[+-]?0\d+", re.ASCII)
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?", re.ASCII)
_NUMBER = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf|infinity)", re.ASCII | re.IGNORECASE)


def typed(text: Sequence[Sequence[str]], missing: Sequence[str] = MISSING) -> pd.DataFrame:
    """What the cells of a CSV mean.

    Args:
        text: Header and rows. A first column without a name holds row labels and becomes the index.
        missing: What marks a missing cell, in upper or lower case, besides an empty cell.

    Returns:
        One column per named column: boolean, Int64, Float64, datetime64 in microseconds (of dates and times
        as ISO 8601 spells them) or string.

    Example:
        >>> typed([["n", "x", "ok"], ["1", "2.50", "true"], ["", "NA", "false"]])
              n     x     ok
        0     1   2.5   True
        1  <NA>  <NA>  False
    """
    names, *rows = text
    holes = frozenset({"", *(mark.strip().lower() for mark in missing)})
    labelled = not names[0].strip()
    columns = {
        name: _typed_column([row[j] for row in rows], holes)
        for j, name in enumerate(names)
        if j or not labelled
    }
    index = pd.Index([row[0] for row in rows], dtype=object) if labelled else pd.RangeIndex(len(rows))
    return pd.DataFrame(columns, index=index)


def _typed_column(cells: list[str], holes: frozenset[str]) -> Any:
    bare = [cell.strip() for cell in cells]
    observed = {cell for cell in bare if cell.lower() not in holes}
    dtype, read = _type(observed)
    spelt = cells if dtype == "string" else bare  # spaces in text may mean something
    values = [None if key.lower() in holes else read(cell) for key, cell in zip(bare, spelt, strict=True)]
    return pd.array(values, dtype=dtype)  # type: ignore[call-overload]


def _type(observed: set[str]) -> tuple[str, Callable[[str], Any]]:
    """The dtype of a column with these cells, and what reads one of them."""
    if not observed or any(_CODE.fullmatch(cell) for cell in observed):
        return "string", str
    if all(cell.lower() in _TRUTH for cell in observed):
        return "boolean", lambda cell: _TRUTH[cell.lower()]
    if all(_INTEGER.fullmatch(cell) and len(cell) <= 20 and abs(int(cell)) < 2**63 for cell in observed):
        return "Int64", int
    if all(_NUMBER.fullmatch(cell) for cell in observed):
        return "Float64", float
    if all(_is_time(cell) for cell in observed):
        return "datetime64[us]", datetime.fromisoformat
    return "string", str


def _is_time(cell: str) -> bool:
    """Whether a cell is a date, or a date and a time without a zone."""
    if not (_DAY.fullmatch(cell) or _TIME.fullmatch(cell)):
        return False
    try:
        datetime.fromisoformat(cell)
    except ValueError:  # the 31st of February
        return False
    return True


def read_as_text(frame: pd.DataFrame) -> list[tuple[Label, str]]:
    """Text columns most of whose cells are numbers or dates, each with a cell that is not a number.

    A mark for missing cells that nobody told of ("?", "-"), thousands separators and dates make such columns.
    """
    found: list[tuple[Label, str]] = []
    for label in frame.columns:
        if frame[label].dtype != "string":
            continue
        cells = frame[label].dropna().astype(str)
        other = cells[pd.to_numeric(cells.str.replace(",", ""), errors="coerce").isna()]
        commas = cells[cells.str.contains(",", regex=False)]
        dates = pd.to_datetime(cells, format="ISO8601", errors="coerce").notna()
        if len(cells) and (len(other) < len(cells) / 2 or dates.mean() > 0.5):
            strange = pd.concat([other, commas])
            found += [(label, strange.iloc[0])] if len(strange) else []
    return found


def row_counter(frame: pd.DataFrame) -> Label | None:
    """The label of the first column if it only counts the rows, from 0 or 1; else None."""
    if frame.shape[1] < 3 or len(frame) < 3:
        return None
    first = frame.iloc[:, 0].tolist()
    counts = all(type(cell) is int for cell in first) and first[0] in (0, 1)
    return frame.columns[0] if counts and first == list(range(first[0], first[0] + len(first))) else None


# ------------------------------------------------------------------------------------------------ writing


def write_tables(folder: Path, source: Source, draws: Imputations, format: str) -> list[str]:
    """Write the m completed tables; columns that the draws do not know pass through as they came.

    Each appears when it is whole. Those that are there already stay: a run that was interrupted goes on.

    Args:
        folder: Where to write.
        source: The table as it came.
        draws: Draws of its missing cells, or of those of some of its columns.
        format: "csv", "tsv" or "parquet".

    Returns:
        The names of the files, `imputation_01.csv`, `imputation_02.csv`, ...

    Raises:
        ValueError: If a column cannot be stored as Parquet.
    """
    names = table_names(draws.m, format)
    for j, name in enumerate(names):
        if not (folder / name).exists():
            with atomic_file(folder / name) as path:
                _write_table(path, source, draws, j, format)
    return names


def _write_table(path: Path, source: Source, draws: Imputations, j: int, format: str) -> None:
    if format != "parquet" and source.text is not None:
        rows = completed_text(source.text, draws, j)
        with open_text(path) as file:
            csv.writer(file, delimiter=DELIMITERS[format], lineterminator="\r\n").writerows(rows)
    else:
        write_table(path, completed_frame(source, draws, j), format)


def completed_frame(source: Source, draws: Imputations, j: int) -> pd.DataFrame:
    """Completed table j, columns outside the draws included."""
    full, completed = source.frame.copy(), draws[j]
    for label in draws.values:
        full[label] = completed[label]
    return full


def completed_text(text: Sequence[Sequence[str]], draws: Imputations, j: int) -> list[list[str]]:
    """Completed table j as the header and rows of a CSV, observed cells spelt as they came.

    Args:
        text: Header and rows as they came.
        draws: Draws of the missing cells, or of those of some columns.
        j: Which imputation, from 0.
    """
    rows = [list(row) for row in text]
    for label, values in draws.values.items():
        position = text[0].index(str(label))
        holes = table.missing(draws.frame[[label]])[:, 0].nonzero()[0].tolist()
        spell = _speller([row[position] for row in text[1:]], values.dtype.kind)
        for i, value in zip(holes, values[j].tolist(), strict=True):
            rows[i + 1][position] = spell(value)
    return rows


def _speller(cells: Sequence[str], letter: str) -> Callable[[Any], str]:
    """How to spell draws of a dtype with this letter in a column of these cells: as the column does first."""
    if letter == "M":
        first = next(cell.strip() for cell in cells if _is_time(cell.strip()))
        if _DAY.fullmatch(first):
            return lambda value: str(value.date())
        precise = {16: "minutes", 19: "seconds"}.get(len(first), "microseconds")
        return lambda value: str(value.isoformat(first[10], precise))
    if letter != "b":
        return str
    spelling = {_TRUTH[cell.strip().lower()]: cell.strip() for cell in reversed(cells) if _is_truth(cell)}
    return lambda value: spelling[value]


def _is_truth(cell: str) -> bool:
    return cell.strip().lower() in _TRUTH
