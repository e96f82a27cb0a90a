"""Hostile tables drawn by hypothesis, and properties that must hold for each of them.

The suite draws a few (`test_hostile_tables.py`). Many more, each in at most a minute of processor time:

    python -m tests.hostile_tables 2000 [--seed 0] [--defaults] [--through-csv]
"""

from __future__ import annotations

import argparse
import collections
import datetime
import decimal
import fractions
import io
import linecache
import math
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Hashable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from sklearn.exceptions import NotFittedError

import pyro_mgp
from pyro_mgp import MGPImputer
from pyro_mgp.cli import impute as impute_command
from pyro_mgp.cli.arguments import parser
from pyro_mgp.data.table import TableWarning, missing
from pyro_mgp.imputer import FitWarning
from pyro_mgp.results.imputations import Imputations

HOME = str(Path(pyro_mgp.__file__).parent)
OURS = (TableWarning, FitWarning)
MOST_SECONDS = 60.0
"""Largest processor time of a table."""
QUICK: dict[str, Any] = {"max_steps": 2, "n_sweeps": 1, "n_inducing": 8, "n_neighbors": 2}

Rng = np.random.Generator
Column = Callable[[Rng, int], Any]


def _object(items: list[Any]) -> pd.Series[Any]:
    cells = np.empty(len(items), dtype=object)
    cells[:] = items
    try:
        return pd.Series(cells)
    except UnicodeEncodeError:  # text that pandas cannot store as such
        return pd.Series(cells, dtype=object)


def _choice(*items: Any) -> Column:
    """Return a column of objects chosen at random."""
    return lambda g, n: _object([items[i] for i in g.integers(0, len(items), n)])


def _of(dtype: str, low: int, high: int) -> Column:
    return lambda g, n: pd.Series(g.integers(low, high, n, endpoint=True, dtype=np.int64)).astype(dtype)


def _arrow(kind: pa.DataType, *items: Any) -> Column:
    return lambda g, n: pd.Series([items[i] for i in g.integers(0, len(items), n)], dtype=pd.ArrowDtype(kind))


def _numbers(make: Callable[[Rng, int], Any]) -> Column:
    def column(g: Rng, n: int) -> pd.Series[Any]:
        with np.errstate(all="ignore"):
            return pd.Series(make(g, n))

    return column


def _times(unit: str, *texts: str) -> Column:
    return lambda g, n: pd.Series(np.array(texts, f"datetime64[{unit}]")[g.integers(0, len(texts), n)])


COLUMNS: dict[str, Column] = {
    # Numbers.
    "normal": _numbers(lambda g, n: g.normal(size=n)),
    "float32": _numbers(lambda g, n: g.normal(size=n).astype("float32")),
    "float16": _numbers(lambda g, n: g.normal(size=n).astype("float16")),
    "longdouble": _numbers(lambda g, n: g.normal(size=n).astype("longdouble")),
    "big-endian": _numbers(lambda g, n: g.normal(size=n).astype(">f8")),
    "lognormal": _numbers(lambda g, n: np.exp(5 * g.normal(size=n))),
    "cauchy": _numbers(lambda g, n: g.standard_cauchy(n) ** 3),
    "huge": _numbers(lambda g, n: 1e300 * g.normal(size=n)),
    "large": _numbers(lambda g, n: 1e99 * g.normal(size=n)),
    "largest": _choice(np.finfo(float).max, -np.finfo(float).max, 0.0),
    "tiny": _numbers(lambda g, n: 1e-99 * g.normal(size=n)),
    "denormal": _numbers(lambda g, n: 5e-324 * g.integers(0, 9, n)),
    "all magnitudes": _numbers(lambda g, n: g.choice([-1.0, 1.0], n) * 10.0 ** g.integers(-90, 90, n)),
    "one outlier": _numbers(lambda g, n: np.where(np.arange(n) == 1, 1e95, g.normal(size=n))),
    "almost constant": _numbers(lambda g, n: 1e9 + 1e-6 * g.integers(0, 3, n)),
    "last digit": _numbers(lambda g, n: np.where(g.random(n) < 0.5, 1.0, np.nextafter(1.0, 2.0))),
    "far from zero": _numbers(lambda g, n: 1e15 + g.integers(0, 3, n)),
    "constant": _numbers(lambda g, n: np.full(n, 3.0)),
    "all but one": _numbers(lambda g, n: (np.arange(n) == 0) * 1.0),
    "signed zeros": _numbers(lambda g, n: g.choice([0.0, -0.0, 1.0], n)),
    "infinite": _numbers(lambda g, n: g.choice([1.0, 2.0, np.inf, -np.inf], n)),
    "nan": _numbers(lambda g, n: np.full(n, np.nan)),
    "few": _numbers(lambda g, n: g.choice([1.0, 2.5, 1e6], n)),
    "nan beside NA": lambda g, n: pd.Series(
        pd.arrays.FloatingArray(g.choice([0.5, np.nan, 2.0], n), g.random(n) < 0.2)
    ),
    "complex": _numbers(lambda g, n: g.normal(size=n) + 1j),
    "sparse": lambda g, n: pd.Series(pd.arrays.SparseArray(g.choice([0.0, 1.0, 2.0], n))),
    # Integers and booleans.
    "integer": _of("int64", -5, 5),
    "int8": _of("int8", -128, 127),
    "uint8": _of("uint8", 0, 255),
    "Int64": _of("Int64", 0, 3),
    "UInt64": lambda g, n: pd.Series([[0, 2**64 - 1, 2**63][i] for i in g.integers(0, 3, n)], dtype="UInt64"),
    "ends": _numbers(lambda g, n: g.choice([-(2**63), 2**63 - 1, 0], n)),
    "counts": _numbers(lambda g, n: g.poisson(3, n)),
    "bignum": _choice(10**400, 1, 2),
    "wide": _choice(2**70, 1, 2),
    "bool": _numbers(lambda g, n: g.random(n) < 0.5),
    "boolean": lambda g, n: pd.Series(g.random(n) < 0.5, dtype="boolean"),
    "objects of bool": _choice(True, False, None),
    # Text and categories.
    "text": _choice("a", "b", "c"),
    "empty text": _choice("", "a"),
    "blank": _choice("", " ", "\t", "\n"),
    "only empty": _choice(""),
    "odd text": _choice("\0", "😀", "a=b", '"', "'", "\u202e", "\ud800", "NA", "nan", "None"),
    "long text": _choice("x" * 100_000, "y" * 100_000),
    "str": lambda g, n: pd.Series(g.choice(["u", "v"], n), dtype="str"),
    "string": lambda g, n: pd.Series(g.choice(["u", "v"], n), dtype="string"),
    "numpy text": lambda g, n: _object([np.str_(t) for t in g.choice(["u", "v"], n)]),
    "names": lambda g, n: _object([f"name {i}" for i in range(n)]),
    "bytes": _choice(b"a", b"b"),
    "category": lambda g, n: pd.Series(pd.Categorical(g.choice(["p", "q"], n), ["q", "p", "never"])),
    "ordered": lambda g, n: pd.Series(pd.Categorical(g.choice(["p", "q"], n), ["q", "p"], ordered=True)),
    "categories of numbers": lambda g, n: pd.Series(pd.Categorical(g.choice([1.5, 2.5], n))),
    "categories of infinity": lambda g, n: pd.Series(pd.Categorical(g.choice([np.inf, 2.5, -np.inf], n))),
    "categories of booleans": lambda g, n: pd.Series(pd.Categorical(g.choice([True, False], n))),
    "categories of times": lambda g, n: pd.Series(pd.Categorical(pd.to_datetime(g.integers(0, 2, n)))),
    "categories of all": lambda g, n: pd.Series(pd.Categorical.from_codes(g.integers(0, 3, n), [1, "1", ""])),
    "one category": lambda g, n: pd.Series(pd.Categorical(["p"] * n)),
    "no category": lambda g, n: pd.Series(pd.Categorical([None] * n)),
    "interval": lambda g, n: pd.Series(pd.cut(pd.Series(g.normal(size=n)), [-9, 0, 9])),
    # Times.
    "days": _times("D", "2020-01-01", "2020-01-02", "2021-06-01"),
    "nanoseconds": _times("ns", "2020-01-01T00:00:00.000000001", "2262-04-11", "1677-09-22"),
    "far days": _times("s", "0001-01-01", "9999-12-31", "2000-01-01"),
    "too far": _times("s", "-200000-01-01", "292000-01-01", "2000-01-01"),
    "beyond": lambda g, n: pd.Series(g.choice([0, 2**50, -(2**50)], n).astype("datetime64[s]")),
    "zone": lambda g, n: pd.Series(
        pd.Timestamp("2024-03-31", tz="Europe/Berlin") + pd.to_timedelta(g.integers(0, 99, n), "h")
    ),
    "two zones": _choice(pd.Timestamp("2024-01-01", tz="UTC"), pd.Timestamp("2024-01-02", tz="Asia/Tokyo")),
    "duration": lambda g, n: pd.Series(pd.to_timedelta(g.integers(-9, 9, n), "h")),
    "long duration": lambda g, n: pd.Series(g.choice([2**62, -(2**62), 0], n).astype("timedelta64[ns]")),
    "endless": lambda g, n: pd.Series(g.choice([0, 2**60], n).astype("timedelta64[s]")),
    "no time": lambda g, n: pd.Series(np.full(n, "NaT", "datetime64[ns]")),
    "dates": _choice(datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)),
    "period": lambda g, n: pd.Series(pd.period_range("2020", periods=max(n, 1), freq="M")[:n]),
    # Objects.
    "mixed": _choice(1, "a", 2.5),
    "numbers as objects": _choice(1, 2.5, True),
    "decimals": _choice(decimal.Decimal("1.5"), decimal.Decimal("NaN"), decimal.Decimal(2)),
    "fractions": _choice(fractions.Fraction(1, 3), fractions.Fraction(2, 3)),
    "numpy numbers": _choice(np.float32(1.5), np.int8(2), 3, 4.5),
    "missing of all kinds": _choice(None, np.nan, pd.NA, pd.NaT, 1.0, 2.0),
    "nothing": _choice(None, np.nan, pd.NA),
    "lists": _choice([1], [1, 2]),
    "dicts": _choice({"a": 1}, {}),
    "arrays": _choice(np.zeros(2), np.ones(2)),
    "sets": _choice({1}, frozenset({2})),
    "classes": _choice(int, object()),
    "infinite objects": _choice(math.inf, 1.0, -math.inf),
    # Arrow.
    "arrow int": _arrow(pa.int32(), 1, 2, None),
    "arrow float": _arrow(pa.float64(), 1.5, 2.5, None, float("nan")),
    "arrow text": _arrow(pa.string(), "a", "", None),
    "arrow bool": _arrow(pa.bool_(), True, False, None),
    "arrow decimal": _arrow(pa.decimal128(9, 2), decimal.Decimal("1.5"), decimal.Decimal("2.5")),
    "arrow list": _arrow(pa.list_(pa.int8()), [1], [], None),
    "arrow struct": _arrow(pa.struct([("a", pa.int8())]), {"a": 1}, None),
    "arrow date": _arrow(pa.date32(), datetime.date(2020, 1, 1), datetime.date(2020, 1, 5)),
    "arrow time": _arrow(pa.timestamp("us", "UTC"), pd.Timestamp("2020", tz="UTC"), None),
    "arrow clock": _arrow(pa.time64("us"), datetime.time(1), datetime.time(2)),
    "arrow duration": _arrow(pa.duration("s"), datetime.timedelta(1), datetime.timedelta(2)),
    "arrow dictionary": _arrow(pa.dictionary(pa.int8(), pa.string()), "a", "b", None),
    "arrow null": _arrow(pa.null(), None),
    "arrow bytes": _arrow(pa.binary(), b"a", b"b"),
}
PLAIN = [
    "normal", "integer", "counts", "bool", "boolean", "Int64", "text", "category", "ordered", "days",
    "duration", "few", "lognormal", "float32", "string", "zone", "arrow float", "arrow text",
]  # fmt: skip
"""Columns that no table is refused for."""

ODD_LABELS: list[Hashable] = [
    "", " ", "a=b", "x\0", "é", 0, -1, 2**70, 1.5, None, float("nan"), ("a", "b"), True, np.int64(7),
    pd.Timestamp("2020"), "target", "x" * 1000, b"x", "{}", "%s", "'",
]  # fmt: skip


def _index(kind: str, g: Rng, n: int) -> Any:
    match kind:
        case "repeated":
            return pd.Index(np.zeros(n, dtype=int))
        case "shuffled":
            return pd.Index(g.permutation(n))
        case "text":
            return pd.Index([f"r{i}" for i in range(n)], name="row")
        case "levels":
            return pd.MultiIndex.from_arrays([np.arange(n) % 2, np.arange(n)], names=["a", None])
        case "missing":
            return pd.Index([np.nan] * n)
        case "mixed":
            return pd.Index([i if i % 2 else str(i) for i in range(n)], dtype=object)
        case "times":
            return pd.DatetimeIndex(np.full(n, "2020-01-01", "datetime64[ns]"))
    return pd.RangeIndex(n)


INDEXES = ["range", "repeated", "shuffled", "text", "levels", "missing", "mixed", "times"]
RELATIONS = ["none", "none", "none", "twin", "multiple", "sum", "same rows", "one row again", "equal holes"]


def _related(frame: pd.DataFrame, relation: str, g: Rng) -> pd.DataFrame:
    """Return the table with dependent columns or repeated rows."""
    numbers = [i for i in range(frame.shape[1]) if frame.dtypes.iloc[i] == np.float64]
    if relation in ("twin", "multiple") and numbers:
        column = frame.iloc[:, numbers[0]]
        with np.errstate(all="ignore"):
            return frame.assign(related=column if relation == "twin" else -1e-8 * column)
    if relation == "sum" and len(numbers) > 1:
        with np.errstate(all="ignore"):
            return frame.assign(related=frame.iloc[:, numbers].sum(axis=1, skipna=False))
    if relation in ("same rows", "one row again") and len(frame):
        rows = np.zeros(len(frame), int) if relation == "one row again" else g.integers(0, 3, len(frame))
        return frame.iloc[rows % len(frame)].set_axis(frame.index)
    return frame


def _holed(frame: pd.DataFrame, share: float, g: Rng) -> pd.DataFrame:
    columns = []
    for i in range(frame.shape[1]):
        column = frame.iloc[:, i]
        here = g.random(len(frame)) < share
        try:
            columns.append(column.mask(here) if here.any() else column)
        except (TypeError, ValueError, NotImplementedError, IndexError):  # it cannot hold a missing cell
            columns.append(column)
    return pd.concat(columns, axis=1) if columns else frame


@st.composite
def tables(draw: st.DrawFn) -> pd.DataFrame:
    """Draw a table of a few columns of any kind; some are very wide, short, empty or oddly labelled."""
    g = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_rows = draw(st.sampled_from([40, 25, 25, 12, 12, 5, 3, 2, 1, 0]))
    plain, odd = st.sampled_from(PLAIN), st.sampled_from([*COLUMNS])
    kinds = [*draw(st.lists(plain, min_size=2, max_size=5)), *draw(st.lists(odd, max_size=1))]
    if g.random() < 0.2:
        kinds = draw(st.lists(odd, max_size=4))
    columns = [pd.Series(COLUMNS[kind](g, n_rows)) for kind in kinds]
    labels: list[Hashable] = [f"{kind} {i}" for i, kind in enumerate(kinds)]
    if kinds and g.random() < 0.15:
        labels[0] = ODD_LABELS[g.integers(len(ODD_LABELS))]
    if len(kinds) > 1 and g.random() < 0.04:
        labels[0] = labels[1]
    frame = pd.concat(columns, axis=1) if columns else pd.DataFrame(index=range(n_rows))
    frame.columns = pd.Index(labels, dtype=object, tupleize_cols=False)
    relation = draw(st.sampled_from(RELATIONS))
    if "big-endian" not in kinds:  # pandas itself cannot take rows of these
        frame = _related(frame, relation, g)
    frame = _holed(frame, draw(st.sampled_from([0.1, 0.3, 0.0, 0.9])), g)
    if g.random() < 0.015 and n_rows:
        wide = pd.DataFrame(g.normal(size=(n_rows, 300))).add_prefix("w")
        few = wide.columns[: g.choice([0, 3, 3, 3, 300])]
        wide[few] = wide[few].mask(g.random((n_rows, len(few))) < 0.2)
        wide.index = frame.index
        frame = pd.concat([frame, wide], axis=1)
    frame.index = _index(draw(st.sampled_from(INDEXES)), g, n_rows)
    return frame


def describe(frame: pd.DataFrame) -> str:
    """Describe a table that caused a failure."""
    dtypes = collections.Counter(map(str, frame.dtypes))
    columns = list(map(repr, frame.columns[:8]))
    return f"{frame.shape}, columns {columns}, dtypes {dict(dtypes)}\n{frame.head(12)}"


# ------------------------------------------------------------------------------------------------ properties


def is_ours(error: BaseException) -> bool:
    """Return whether an error was raised by this package, with a message, and is of a class for users."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    file = trace.tb_frame.f_code.co_filename
    # What numpy raises from its compiled code also ends in a line of ours, but not in one that raises.
    here = file.startswith(HOME) and linecache.getline(file, trace.tb_lineno).lstrip().startswith("raise")
    expected = isinstance(error, ValueError | TypeError | FloatingPointError) and not isinstance(
        error, NotFittedError
    )
    return here and expected and len(str(error)) > 20


def assert_completed(completed: pd.DataFrame, frame: pd.DataFrame, texts: Collection[Any] = ()) -> None:
    """Assert that missing cells are filled, but for those of texts, and all others unchanged."""
    assert completed.columns.identical(frame.columns)
    assert completed.index.identical(frame.index)
    holes = missing(frame)
    is_text = np.array([label in texts for label in completed.columns], dtype=bool)
    assert not (missing(completed) & ~is_text).any(), "a cell is still missing"
    for i in range(frame.shape[1]):
        came, left = frame.iloc[:, i], completed.iloc[:, i]
        if not holes[:, i].all():
            assert left.dtype == came.dtype, (left.dtype, came.dtype)
        here = ~holes[:, i]
        for a, b in zip(came.array[here], left.array[here], strict=True):
            assert type(a) is type(b) and (a is b or a == b), (came.name, came.dtype, left.dtype, a, b)
            if isinstance(a, float):
                assert math.copysign(1, a) == math.copysign(1, b), (a, b)


def impute(frame: pd.DataFrame, **changes: Any) -> str:
    """Impute a table in every way; return the outcome, and raise unexpected errors."""
    untouched = frame.copy()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            imputer = MGPImputer(random_state=0, progress=False, **changes).fit(frame)
            draws, texts = imputer.impute(m=2), imputer.model_.encoder.rules.texts
            for completed in draws:
                assert_completed(completed, frame, texts)
            assert_completed(imputer.transform(frame), frame, texts)
            new = imputer.impute(frame.head(3), m=1)
            assert_completed(new[0], frame.head(3), texts)
            draws.cells()
            _come_back(imputer, draws, frame)
            ended = "completed"
        except Exception as error:
            if not is_ours(error):
                raise
            ended = f"{type(error).__name__}: {error}"
    for warning in caught:
        assert issubclass(warning.category, OURS), f"{warning.category.__name__}: {warning.message}"
    assert_same(frame, untouched)
    return ended


def _come_back(imputer: MGPImputer, draws: Imputations, frame: pd.DataFrame) -> None:
    """Assert that a saved imputer gives equal draws, and that saved draws are equal."""
    with tempfile.TemporaryDirectory() as folder:
        imputer.save(f"{folder}/imputer")
        again = MGPImputer.load(f"{folder}/imputer").impute(frame, m=1)
        for label, values in imputer.impute(frame, m=1).values.items():
            np.testing.assert_array_equal(again.values[label], values)
        try:
            draws.save(f"{folder}/draws")
        except ValueError as error:
            if not is_ours(error):
                raise
            return
        # Files know one kind of missing cell: a NaN that a nullable column holds as a number becomes NA.
        holes = missing(frame)
        shown = [
            column.mask(holes[:, i]) if isinstance(column.dtype, pd.Float64Dtype) else column
            for i, (_, column) in enumerate(frame.items())
        ]
        plain = pd.concat(shown, axis=1).set_axis(frame.columns, axis=1)
        assert Imputations.load(f"{folder}/draws") == Imputations(plain, draws.values, draws.m)


def assert_same(frame: pd.DataFrame, untouched: pd.DataFrame) -> None:
    """Assert that the table was not changed."""
    assert frame.columns.identical(untouched.columns)
    assert frame.index.identical(untouched.index)
    for i in range(frame.shape[1]):
        for a, b in zip(frame.iloc[:, i].array, untouched.iloc[:, i].array, strict=True):
            assert a is b or (type(a) is type(b) and np.array_equal(a, b)) or (pd.isna(a) and pd.isna(b))


# ------------------------------------------------------------------------------------------------ text files

ODD_CELLS = [
    "", "NA", "nan", "1", "2", "-3", "0.5", "1e300", "1e400", "-inf", "true", "False", "a", "b", " ", "x y",
    "007", "2020-01-01", "2020-02-31", "9" * 30, '"', "'", ",", ";", "\n", "\r", "\r\n", "é", "\ufeff", "٣",
    "=1+1", "1,5", "y" * 2000, "z" * 200_000, "--", "0x10", "1_000", "\t", "\\", "NULL", "<NA>",
    "\x1a", "\u2028",
]  # fmt: skip
USUAL_CELLS = [
    ["1", "2", "3.5", "", "7"], ["a", "b", ""], ["true", "FALSE", ""], ["5", "6", "7", "8", "NA"],
    ["2020-01-01", "2021-05-06", ""], ["0001-01-01", "9999-12-31", ""],
    ["2020-01-01T23:59", "2020-01-02 00:00", ""], [" 1", "2 ", ""],
]  # fmt: skip
CORRUPTIONS = ["mark", "zero", "byte", "cut", "utf-16", "quote", "ragged"]


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """Draw the content of a CSV file, sometimes corrupted."""
    g = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_columns, n_rows = draw(st.sampled_from([3, 4, 2, 5, 1])), draw(st.sampled_from([15, 30, 6, 2, 1, 0]))
    odd = [*ODD_CELLS, *draw(st.lists(st.text(max_size=5), max_size=2))]
    columns = []
    for _ in range(n_columns):
        usual = USUAL_CELLS[g.integers(len(USUAL_CELLS))]
        cells = usual if g.random() < 0.8 else [odd[i] for i in g.integers(0, len(odd), 3)]
        columns.append([cells[i] for i in g.integers(0, len(cells), n_rows)])
    header = [f"c{i}" if g.random() < 0.95 else odd[g.integers(len(odd))] for i in range(n_columns)]
    separator = g.choice([",", ";", "\t"], p=[0.96, 0.02, 0.02])
    rows = [header, *zip(*columns, strict=True)]
    lines = [separator.join(_quoted(cell, separator) for cell in row) for row in rows]
    content = str(g.choice(["\n", "\r\n", "\r"])).join(lines).encode("utf-8", "surrogatepass")
    return _corrupted(content, CORRUPTIONS[g.integers(len(CORRUPTIONS))], g) if g.random() < 0.25 else content


def _corrupted(content: bytes, how: str, g: Rng) -> bytes:
    place = int(g.integers(len(content) + 1))
    match how:
        case "mark":
            return b"\xef\xbb\xbf" + content
        case "cut":
            return content[:place]
        case "utf-16":
            return content.decode("utf-8", "replace").encode("utf-16")
        case "ragged":
            return content + b"\n1,2,3,4,5,6,7"
    extra = {"zero": b"\0", "byte": b"\xff", "quote": b'"'}[how]
    return content[:place] + extra + content[place:]


def _quoted(cell: str, separator: str) -> str:
    if any(mark in cell for mark in (separator, '"', "\n", "\r")):
        return '"' + cell.replace('"', '""') + '"'
    return cell


def impute_file(content: bytes) -> str:
    """Impute a file by the command line; return the outcome."""
    import csv

    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "table.csv", Path(folder) / "out"
        path.write_bytes(content)
        said, errors = io.StringIO(), io.StringIO()
        with warnings.catch_warnings(record=True) as caught, redirect_stdout(said), redirect_stderr(errors):
            warnings.simplefilter("always")
            args = parser().parse_args(
                ["impute", str(path), "-o", str(out), "-m", "1", "--steps", "2", "--quiet"]
            )
            try:
                impute_command.run(args)
            except Exception as error:
                if not is_ours(error):
                    raise
                assert not out.exists()
                return f"{type(error).__name__}: {error}"
        assert not caught, [str(each.message) for each in caught]
        text = content.decode("utf-8-sig")
        came = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
        with (out / "imputation_01.csv").open(encoding="utf-8", newline="") as file:
            left = [*csv.reader(file)]
        assert len(came) == len(left)
        marks = {"", "na", "n/a", "#n/a", "<na>", "nan", "null"}
        for before, after in zip(came, left, strict=True):
            for a, b in zip(before, after, strict=True):
                assert a == b or a.strip().lower() in marks, (a, b)
        return "completed"


# ----------------------------------------------------------------------------------------------- many tables


def many(n: int, number: int, *, defaults: bool, through_csv: bool) -> int:
    """Draw n tables, print their outcomes, and return the number of failures."""
    ends: collections.Counter[str] = collections.Counter()
    reasons: collections.Counter[str] = collections.Counter()
    failures: dict[str, str] = {}
    slowest = 0.0

    def run(given_table: Any) -> None:
        nonlocal slowest
        started = time.process_time()
        try:
            ended = (
                impute_file(given_table)
                if through_csv
                else impute(given_table, **({} if defaults else QUICK))
            )
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            own = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(HOME)]
            where = f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""
            key = (
                f"{type(error).__name__} {where} {Path(last.filename).name}:{last.lineno} {str(error)[:150]}"
            )
            ended = "FAILED"
            if key not in failures and len(failures) < 60:
                shown = repr(given_table[:500]) if through_csv else describe(given_table)
                failures[key] = f"{shown}\n{''.join(traceback.format_exception(error)[-8:])}"
                print("FAILURE", key, failures[key], flush=True)
        seconds = time.process_time() - started
        slowest = max(slowest, seconds)
        if seconds > MOST_SECONDS:
            ended = "FAILED"
            failures[f"slow {seconds:.0f} s"] = (
                repr(given_table[:500]) if through_csv else describe(given_table)
            )
        reasons[ended.split(": ", 1)[-1][:60]] += 1
        ends[ended.split(":")[0]] += 1
        if sum(ends.values()) % 100 == 0:
            print(sum(ends.values()), dict(ends), f"slowest {slowest:.1f} s", flush=True)

    options = settings(
        max_examples=n,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    seed(number)(options(given(files() if through_csv else tables())(run)))()
    print(sum(ends.values()), dict(ends), f"slowest {slowest:.1f} s, {len(failures)} kinds of failure")
    print(*reasons.most_common(40), sep="\n")
    return len(failures)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("n", type=int)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--defaults", action="store_true", help="the imputer's own settings: slower")
    options.add_argument("--through-csv", action="store_true", help="text files through the command line")
    args = options.parse_args()
    sys.exit(bool(many(args.n, args.seed, defaults=args.defaults, through_csv=args.through_csv)))
