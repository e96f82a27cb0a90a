"""Reading tables from CSV and Parquet files, and writing completed tables in the same format.

The text of a CSV is kept beside its parsed cells, and observed cells are written with their original text:
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

from pyro_mgp.data.cells import complete, holes_of
from pyro_mgp.data.column_spec import Label
from pyro_mgp.data.parquet_table import ParquetTable
from pyro_mgp.results.imputations import Imputations
from pyro_mgp.results.table_files import DELIMITERS, open_text, table_names, write_table
from pyro_mgp.storage.atomic import atomic_file

MISSING = ("NA", "N/A", "#N/A", "<NA>", "NaN", "NULL")
"""Text that marks a missing cell in a CSV, in upper or lower case, besides an empty cell."""

_FORMATS = {".csv": "csv", ".tsv": "tsv", ".parquet": "parquet", ".pq": "parquet"}


@dataclass(frozen=True)
class Source:
    """Table that was read from a file, with its format and its original text."""

    frame: pd.DataFrame  # the parsed table: nullable integers, floats and booleans, times or text
    format: str  # "csv", "tsv" or "parquet"
    text: list[list[str]] | None = None  # header and rows of a CSV as text, row labels first if there are any


def read_table(path: Path, missing: Sequence[str] = MISSING) -> Source:
    """Read a table from a file that ends in .csv, .tsv (either may be followed by .gz), .parquet or .pq.

    In text, `missing` marks missing cells, in upper or lower case, besides empty cells; dtypes are those of
    `typed`. A file with another suffix, or whose content is not a table, is a ValueError.
    """
    zipped = path.suffix.lower() == ".gz"
    suffix = (path.with_suffix("") if zipped else path).suffix.lower()
    format = _FORMATS.get(suffix)
    if format is None or (zipped and format == "parquet"):
        expected = f"expected a file that ends in {', '.join(_FORMATS)} or .csv.gz"
        raise ValueError(f"{str(path)!r}: {expected}, got {path.suffix!r}")
    if format == "parquet":
        return Source(ParquetTable(path).read(), format)
    text = _parse(_read_text(path, zipped), format, path)
    return Source(typed(text, missing), format, text)


def _read_text(path: Path, zipped: bool) -> str:
    content = path.read_bytes()
    try:
        content = gzip.decompress(content) if zipped else content
        text = content.decode("utf-8-sig")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{str(path)!r} is not a gzip file, or is truncated: {error}") from error
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        found = f"line {line} holds the byte 0x{content[error.start]:02x}"
        advice = "save it again with the encoding UTF-8"
        raise ValueError(f"{str(path)!r} is not UTF-8 text: {found}; {advice}") from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ValueError(f"{str(path)!r} is not a text file: line {line} holds a zero byte")
    return text


def _parse(content: str, format: str, path: Path) -> list[list[str]]:
    """Split the content of a CSV into header and rows of equal length."""
    where = repr(str(path))
    reader = csv.reader(io.StringIO(content, newline=""), delimiter=DELIMITERS[format], strict=True)
    rows: list[list[str]] = []
    try:
        for row in filter(None, reader):  # without blank lines
            rows.append(row)
            if len(row) != len(rows[0]):
                expected = f"expected {len(rows[0])} fields, one per name in the header"
                raise ValueError(f"{where}, line {reader.line_num}: {expected}, got {len(row)}")
    except csv.Error as error:
        raise ValueError(f"{where}, line {reader.line_num}: {error}") from error
    if not rows:
        raise ValueError(f"{where} is empty: expected a header with the names of the columns, and rows")
    _check_names(rows[0], format, where)
    return rows


def _check_names(names: list[str], format: str, where: str) -> None:
    for other, word in ((";", "semicolons"), ("\t", "tabs"), (",", "commas")):
        if len(names) == 1 and other in names[0] and other != DELIMITERS[format]:
            expected = f"expected {DELIMITERS[format]!r}; save it again with that separator"
            advice = f"{expected}, and with points in decimal numbers"
            raise ValueError(f"{where} seems to be separated by {word}: {advice}")
    for position, name in enumerate(names):
        if position and not name.strip():
            raise ValueError(f"{where}: column {position + 1} has no name in the header")
        if name in names[:position]:
            raise ValueError(f"{where}: the header names {name!r} more than once")


_TRUTH = {"true": True, "false": False}
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_CODE = re.compile(r"[+-]?0\d+", re.ASCII)
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?)?", re.ASCII)
_NUMBER = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf|infinity)", re.ASCII | re.IGNORECASE)


def typed(text: Sequence[Sequence[str]], missing: Sequence[str] = MISSING) -> pd.DataFrame:
    """Convert the text of a CSV, given as header and rows, to a table with inferred dtypes.

    A first column without a name becomes the index. Columns are boolean if all observed cells are true or
    false in any case, Int64 or Float64 if all are numbers, datetime64 in microseconds if all are dates or
    times in ISO 8601, else string. Numbers with leading zeros ("007") are codes, and therefore string.
    """
    names, *rows = text
    holes = frozenset({"", *(mark.strip().lower() for mark in missing)})
    labelled = not names[0].strip()
    cells = {name: [row[j] for row in rows] for j, name in enumerate(names) if j or not labelled}
    columns = {name: _typed_column(column, holes) for name, column in cells.items()}
    index = pd.Index([row[0] for row in rows], dtype=object) if labelled else pd.RangeIndex(len(rows))
    return pd.DataFrame(columns, index=index)


def _typed_column(cells: list[str], holes: frozenset[str]) -> Any:
    bare = [cell.strip() for cell in cells]
    observed = {cell for cell in bare if cell.lower() not in holes}
    dtype, read = _type(observed)
    text = cells if dtype == "string" else bare  # spaces in text may be meaningful
    values = [None if key.lower() in holes else read(cell) for key, cell in zip(bare, text, strict=True)]
    return pd.array(values, dtype=dtype)  # type: ignore[call-overload]


def _type(observed: set[str]) -> tuple[str, Callable[[str], Any]]:
    """Infer the dtype of a column from its cells, and return it with a function that parses a cell."""
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
    """Return whether a cell is a date, or a date and a time without a time zone."""
    try:
        datetime.fromisoformat(cell)
    except ValueError:  # such as 31 February
        return False
    return _TIME.fullmatch(cell) is not None


def read_as_text(frame: pd.DataFrame) -> list[tuple[Label, str]]:
    """Find text columns of mostly numbers or dates, each with a cell that is not a number.

    An undeclared mark of missing cells ("?", "-"), thousands separators or invalid dates cause such columns.
    """
    found: list[tuple[Label, str]] = []
    for label in frame.columns[frame.dtypes == "string"]:
        cells = frame[label].dropna().astype(str)
        other = cells[pd.to_numeric(cells.str.replace(",", ""), errors="coerce").isna()]
        strange = pd.concat([other, cells[cells.str.contains(",", regex=False)]])
        dates = pd.to_datetime(cells, format="ISO8601", errors="coerce").notna()
        if len(strange) and (len(other) < len(cells) / 2 or dates.mean() > 0.5):
            found.append((label, strange.iloc[0]))
    return found


def row_counter(frame: pd.DataFrame) -> Label | None:
    """Return the label of the first column if it numbers the rows from 0 or 1, else None."""
    if frame.shape[1] < 3 or len(frame) < 3:
        return None
    first = frame.iloc[:, 0].tolist()
    counts = all(type(cell) is int for cell in first) and first[0] in (0, 1)
    return frame.columns[0] if counts and first == list(range(first[0], first[0] + len(first))) else None


def write_tables(folder: Path, source: Source, draws: Imputations, format: str) -> list[str]:
    """Write the m completed tables as "csv", "tsv" or "parquet", and return the names of the files.

    Each file appears atomically. Existing files are kept, which continues a run that was interrupted. Columns
    without draws stay as they are.
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
        return
    cells = {label: values[j] for label, values in draws.values.items()}
    write_table(path, complete(source.frame, cells), format)


def completed_text(text: Sequence[Sequence[str]], draws: Imputations, j: int) -> list[list[str]]:
    """Return completed table j as header and rows of a CSV; cells without a draw keep their original text."""
    rows = [list(row) for row in text]
    for label, values in draws.values.items():
        position, column = text[0].index(str(label)), draws.frame[label]
        holes = holes_of(column).nonzero()[0].tolist()
        formatted = _formatter([row[position] for row in text[1:]], column.dtype.kind)
        drawn = values[j]
        for i, value, is_left in zip(holes, drawn.tolist(), pd.isna(drawn), strict=True):
            if not is_left:
                rows[i + 1][position] = formatted(value)
    return rows


def _formatter(cells: Sequence[str], letter: str) -> Callable[[Any], str]:
    """Return a function that formats draws like the observed cells of a column, whose dtype has a kind."""
    if letter == "M":
        first = next(cell.strip() for cell in cells if _is_time(cell.strip()))
        if len(first) == 10:
            return lambda value: str(value.date())
        precise = {16: "minutes", 19: "seconds"}.get(len(first), "microseconds")
        return lambda value: str(value.isoformat(first[10], precise))
    if letter in "iu":  # draws are floats if some cells stay missing
        return lambda value: str(int(value))
    if letter != "b":
        return str
    texts = {_TRUTH[c.lower()]: c for c in map(str.strip, reversed(cells)) if c.lower() in _TRUTH}
    return lambda value: texts[value]
