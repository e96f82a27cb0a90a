"""DataFrame ⇄ numbers: tables, their holes, and the codecs of all their columns.

A :class:`TableCodec` learns from a table what its columns hold (see `column`), and turns tables into numbers
and numbers back into cells. Missing cells (NaN, None, ``pd.NA``, ``pd.NaT``) are NaN inside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from pyro_mgp._support.messages import Hinted, dropping, listing, row_name, warn_user
from pyro_mgp.data.cells import numbers_of, to_integers
from pyro_mgp.data.codecs import ColumnCodec, codec_from_dict, fit_column
from pyro_mgp.data.codecs.numeric import ContinuousCodec
from pyro_mgp.data.column_spec import Label, Specs
from pyro_mgp.data.dtypes import check_categories, holes_of, label_of
from pyro_mgp.data.encoded_table import EncodedTable
from pyro_mgp.data.row_keys import Identity, row_keys
from pyro_mgp.data.transforms import InverseTransform

__all__ = [
    "Columns",
    "TableCodec",
    "TableWarning",
    "as_frame",
    "check_same_columns",
    "complete",
    "missing",
    "warn_of_empty_rows",
]


# Share of the cells that equal a bound from which on they are more than chance.
_ATOM = 0.05


class TableWarning(UserWarning):
    """Something about a table that its owner may want to change; the result is still well defined."""


# ------------------------------------------------------------------------------------ tables and their holes


def as_frame(X: object) -> pd.DataFrame:
    """The table ``X`` as a DataFrame.

    A DataFrame comes back as it is, the same object. A two-dimensional array, or a list of equally long rows,
    becomes a DataFrame with columns ``"x0"``, ``"x1"``, ... What knows how to become one, as tables of Polars
    and PyArrow do, is asked to (``to_pandas``).

    Raises:
        TypeError: ``X`` is anything else, or sparse.
        ValueError: ``X`` is an array of another dimension, or of complex numbers.

    Example:
        >>> as_frame([[1.5, "a"], [2.5, None]]).columns.tolist()
        ['x0', 'x1']
    """
    if isinstance(X, pd.DataFrame):
        return X
    if (isinstance(X, np.ndarray) and X.ndim == 2) or _is_list_of_rows(X):
        if isinstance(X, np.ndarray) and X.dtype.kind == "c":
            raise ValueError(
                "Complex data not supported: split each column into its real and imaginary part."
            )
        frame = pd.DataFrame(X if isinstance(X, np.ndarray) else list(X))  # type: ignore[call-overload]
        frame.columns = pd.Index([f"x{j}" for j in range(frame.shape[1])])
        return frame
    if callable(convert := getattr(X, "to_pandas", None)):
        return as_frame(convert())
    if hasattr(X, "toarray"):
        raise TypeError("Sparse input is not supported: make it dense with X.toarray().")
    if hasattr(X, "__array__") and not isinstance(X, np.ndarray | pd.Series | pd.Index):
        return as_frame(np.asarray(X))
    came = f"an array of shape {X.shape}" if isinstance(X, np.ndarray) else f"{type(X).__name__}"
    error = ValueError if isinstance(X, np.ndarray) else TypeError
    raise error(
        f"Expected a table: a pandas DataFrame, a two-dimensional array, or a list of equally long rows; "
        f"got {came}. Reshape your data, or wrap it as pandas.DataFrame(...)."
    )


def _is_list_of_rows(X: object) -> bool:
    """Whether ``X`` is a list or tuple of rows of one length (pandas would pad shorter rows in silence)."""
    if not isinstance(X, list | tuple):
        return False
    if not all(isinstance(row, list | tuple) or (isinstance(row, np.ndarray) and row.ndim == 1) for row in X):
        return False
    return len({len(row) for row in X}) <= 1


def missing(frame: pd.DataFrame) -> NDArray[np.bool_]:
    """Which cells of ``frame`` are missing: Bool [N, C], True for NaN, None, ``pd.NA`` and ``pd.NaT``.

    Example:
        >>> missing(pd.DataFrame({"a": [1.0, None], "b": ["x", "y"]})).tolist()
        [[False, False], [True, False]]
    """
    holes = np.zeros(frame.shape, dtype=np.bool_)
    for j in range(frame.shape[1]):
        holes[:, j] = holes_of(frame.iloc[:, j])
    return holes


# ---------------------------------------------------------------------------------------------- whole tables


class Columns(Protocol):
    """A table that gives one column at a time: a DataFrame, or one in files."""

    @property
    def columns(self) -> pd.Index[Any]:
        """The labels."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""

    def items(self) -> Iterable[tuple[Hashable, pd.Series[Any]]]:
        """Labels and columns, in order."""

    def __getitem__(self, label: Any, /) -> Any:
        """The column of a label."""


@dataclass(frozen=True)
class TableCodec:
    """How a table of C columns becomes D encoded columns and back: a tuple of column codecs.

    Attributes:
        columns: One :class:`ColumnCodec` per column, in the table's order.

    Raises:
        ValueError: Two encoded columns would have the same name.

    Example:
        >>> frame = pd.DataFrame({"mass": [1.0, 3.0, None], "species": ["Gentoo", "Adelie", "Adelie"]})
        >>> codec = TableCodec.fit(frame)
        >>> codec.names
        ('mass', 'species=Adelie', 'species=Gentoo')
        >>> codec.encode(frame).observed.tolist()
        [[True, True, True], [True, True, True], [False, True, True]]
    """

    columns: tuple[ColumnCodec, ...]

    def __post_init__(self) -> None:
        _check_unique_names(self.names)

    @classmethod
    def fit(
        cls, frame: pd.DataFrame, warp: bool = False, discrete_support: int = 0, specs: Specs | None = None
    ) -> TableCodec:
        """Learn the codec of every column of ``frame``.

        Args:
            frame: The table.
            warp: See :meth:`ColumnCodec.fit`.
            discrete_support: Likewise.
            specs: What is known of some columns besides.

        Raises:
            TypeError: A column has an unsupported dtype or mixes types.
            ValueError: The table has fewer than two rows or columns, labels that are neither text nor
                integers or not unique, a column that :meth:`ColumnCodec.fit` refuses, or one with holes
                beside which no other varies.

        Warns:
            TableWarning: Rows are entirely missing, or a column with holes is constant.
        """
        codec = cls.fit_columns(frame, warp, discrete_support, specs or {})
        warn_of_empty_rows(frame.index, np.logical_and.reduce(missing(frame), axis=1))
        return codec

    @classmethod
    def fit_encode(
        cls, frame: pd.DataFrame, warp: bool = False, discrete_support: int = 0, specs: Specs | None = None
    ) -> tuple[TableCodec, EncodedTable]:
        """The codec of ``frame`` and ``frame`` encoded: :meth:`fit`, then :meth:`encode`, warning once."""
        codec = cls.fit_columns(frame, warp, discrete_support, specs or {})
        return codec, codec.encode(frame)

    @classmethod
    def fit_columns(cls, table: Columns, warp: bool, discrete_support: int, specs: Specs) -> TableCodec:
        """What :meth:`fit` learns, of a table of which one column at a time need be in memory.

        It does not look at whole rows, so it does not warn of those that are entirely missing.
        """
        _check_labels(table)
        _check_fit_shape(table)
        codecs, incomplete = [], []
        for label, column in table.items():
            codecs.append(fit_column(column, warp, discrete_support, specs.get(label_of(label))))
            incomplete.append(bool(holes_of(column).any()))
            _warn_of_atoms(codecs[-1], column)
        codec = cls(tuple(codecs))
        codec._check_varying(table, incomplete)
        return codec

    def straight(self, frame: pd.DataFrame, discrete_support: int, specs: Specs) -> TableCodec:
        """The same codec of the same table without bends; itself if it has none."""
        if all(column.warp is None for column in self.columns):
            return self
        labelled = zip(self.columns, frame.items(), strict=True)
        return TableCodec(
            tuple(
                own if own.warp is None else fit_column(cells, False, discrete_support, specs.get(own.name))
                for own, (_, cells) in labelled
            )
        )

    def _check_varying(self, table: Columns, incomplete: Sequence[bool]) -> None:
        """Columns with holes need others to be predicted from; constant ones can only be repeated."""
        varying = [column.name for column in self.columns if column.width]
        if not varying:
            raise ValueError(
                f"Expected a table with a column that varies, but {listing(table.columns)} hold one value "
                "each: there is nothing to learn. Fill their holes with frame.ffill().bfill()."
            )
        alone = [c.name for c, any_hole in zip(self.columns, incomplete, strict=True) if any_hole and c.width]
        if alone and len(varying) == 1:
            raise ValueError(
                f"Column {alone[0]!r} has missing cells, but no other column varies: there is nothing to "
                "predict it from. Add columns."
            )
        for column, any_hole in zip(self.columns, incomplete, strict=True):
            if any_hole and not column.width:
                value = listing(set(table[column.name].dropna().tolist()))
                warn_user(
                    dropping(
                        f"Column {column.name!r} is constant where it is observed: its missing cells get "
                        f"that value, {value}, in every imputation.",
                        column.name,
                    ),
                    TableWarning,
                )

    def encode(self, frame: pd.DataFrame, identity: Identity | None = None) -> EncodedTable:
        """``frame``, with the columns of the fitted one in the same order, as numbers.

        Args:
            frame: The table.
            identity: What tells equal rows apart, if not their labels; see :func:`row_keys`.

        Raises:
            TypeError: A column holds another kind of cell than at fit.
            ValueError: No rows; missing, extra, duplicate or reordered columns; infinite or huge numbers.

        Warns:
            TableWarning: Rows are entirely missing, or cells hold categories unseen at fit: these are kept,
                but tell nothing of other cells.
        """
        _check_labels(frame)
        check_same_columns(frame, [column.name for column in self.columns])
        if len(frame) == 0:
            raise ValueError(
                "Expected a table with at least one row, got no rows. Check how it was filtered."
            )
        table = self.encode_again(frame, identity)
        self._warn_of_unseen(frame)
        warn_of_empty_rows(frame.index, np.logical_and.reduce(missing(frame), axis=1))
        return table

    def encode_again(self, frame: pd.DataFrame, identity: Identity | None = None) -> EncodedTable:
        """What :meth:`encode` gives, of a table that has been checked and warned of."""
        values = np.concatenate([column.encode(frame[column.name]) for column in self.columns], axis=1)
        return EncodedTable.from_numpy(values, row_keys(values, frame.index, identity))

    def _warn_of_unseen(self, frame: pd.DataFrame) -> None:
        for column in self.columns:
            unseen = np.flatnonzero(column.unseen(frame[column.name]))
            if unseen.size:
                labels = frame[column.name].iloc[unseen].unique().tolist()
                cells = "1 cell holds" if unseen.size == 1 else f"{unseen.size} cells hold"
                warn_user(
                    f"Column {column.name!r}: {cells} categories unseen at fit, {listing(labels)}, first in "
                    f"{row_name(frame.index, unseen[0])}; expected {listing(column.levels or ())}. They are "
                    "kept, and count as missing where other cells are predicted from them. To learn from "
                    "them, fit again with rows of that category.",
                    TableWarning,
                )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the D encoded columns."""
        return tuple(name for column in self.columns for name in column.names)

    @property
    def n_encoded(self) -> int:
        """D, the number of encoded columns."""
        return sum(column.width for column in self.columns)

    @property
    def slices(self) -> dict[Label, slice]:
        """Where the encoded columns of each column stand, by the column's label."""
        ends = np.cumsum([column.width for column in self.columns]).tolist()
        return {c.name: slice(end - c.width, end) for c, end in zip(self.columns, ends, strict=True)}

    @property
    def groups(self) -> NDArray[np.intp]:
        """Position of the column each encoded column came from, [D]."""
        return np.repeat(np.arange(len(self.columns)), [column.width for column in self.columns])

    @property
    def inverse_transforms(self) -> list[InverseTransform | None]:
        """How the bend of each of the D encoded columns is undone, None where there is none."""
        return [column.inverse_transform for column in self.columns for _ in column.names]

    @property
    def raw_scale(self) -> NDArray[np.float64]:
        """Standard deviation of each encoded column before scaling, float64 [D], in its own units."""
        return np.array([scale for column in self.columns for scale in column.own_scale], dtype=np.float64)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict from which :meth:`from_dict` makes an equal codec."""
        return {"columns": [column.to_dict() for column in self.columns]}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> TableCodec:
        """The codec that :meth:`to_dict` wrote."""
        return cls(tuple(codec_from_dict(column) for column in state["columns"]))


# ------------------------------------------------------------------------------------------ numbers to cells


def complete(frame: pd.DataFrame, cells: Mapping[Label, NDArray[Any]]) -> pd.DataFrame:
    """A copy of ``frame`` with missing cells filled.

    Args:
        frame: The table; never modified.
        cells: For each column to fill, the decoded values of its missing cells, one-dimensional, in row order
            (:meth:`ColumnCodec.decode`). Columns not named keep their holes, and so do cells whose value is
            itself missing.

    Returns:
        A table with the same columns, order, index, dtypes and categories; observed cells are the same to the
        bit. Numbers are cast to the column's dtype, rounded for integers and clipped to its range. The one
        exception: a column entirely missing whose dtype cannot hold the values (text in floats) takes theirs.

    Raises:
        ValueError: A column is not in the table, the number of values is not the number of missing cells, or
            the column's dtype cannot hold them.

    Example:
        >>> frame = pd.DataFrame({"n": pd.array([1, None], dtype="Int8"), "x": [0.5, 1.5]})
        >>> complete(frame, {"n": np.array([7.2])})["n"].tolist()
        [1, 7]
    """
    _check_labels(frame)
    unknown = [name for name in cells if name not in frame.columns]
    if unknown:
        raise ValueError(f"Expected columns of the table, {listing(frame.columns)}, got {listing(unknown)}.")
    completed = frame.copy()
    for name, values in cells.items():
        completed[name] = _filled(frame[name], np.asarray(values), name)
    return completed


def _filled(column: pd.Series[Any], values: NDArray[Any], name: Label) -> pd.Series[Any]:
    """``column`` with ``values`` in its holes, in its own dtype."""
    holes = holes_of(column)
    if values.shape != (holes.sum(),):
        raise ValueError(
            f"Column {name!r}: expected one value per missing cell, shape ({holes.sum()},), got shape "
            f"{values.shape}."
        )
    given = ~pd.isna(values)
    values, dtype = values[given], column.dtype
    if values.size == 0:
        return column
    if not _holds(dtype, values):
        if holes.all() and given.all():
            return pd.Series(values.tolist(), index=column.index, name=column.name)
        if isinstance(dtype, pd.CategoricalDtype):
            check_categories(dtype, dict.fromkeys(values.tolist()), name)
        raise ValueError(
            f"Column {name!r}: dtype {dtype} cannot hold the values {listing(values.tolist(), 3)}."
        )
    array = column.array.copy()
    array[np.flatnonzero(holes)[given]] = _cast(values, dtype)
    return pd.Series(array, index=column.index, name=column.name, dtype=dtype)


def _holds(dtype: Any, values: NDArray[Any]) -> bool:
    """Whether cells of ``dtype`` can be ``values``, numbers after rounding."""
    if dtype == np.dtype(object):
        return True
    if isinstance(dtype, pd.CategoricalDtype):
        return bool((dtype.categories.get_indexer(pd.Index(values)) >= 0).all())
    if types.is_bool_dtype(dtype):
        return all(isinstance(value, bool) for value in values.tolist())
    if types.is_numeric_dtype(dtype):
        return values.dtype.kind in "iuf"
    if getattr(dtype, "kind", "O") in "Mm":
        return bool(values.dtype.kind == dtype.kind)
    return types.is_string_dtype(dtype) and all(isinstance(value, str) for value in values.tolist())


def _cast(values: NDArray[Any], dtype: Any) -> Any:
    """``values`` as what an array of ``dtype`` stores."""
    if getattr(dtype, "kind", "O") in "Mm":
        return _cast_times(values, dtype)
    target = getattr(dtype, "numpy_dtype", dtype)
    if types.is_integer_dtype(dtype):
        return to_integers(values, np.iinfo(target)).astype(target)
    if types.is_float_dtype(dtype):
        limits = np.finfo(target)
        return np.clip(values.astype(np.float64), float(limits.min), float(limits.max)).astype(target)
    if types.is_bool_dtype(dtype):
        return values.astype(np.bool_)
    return values.astype(object)  # Python's own bool, int, float and str


def _cast_times(values: NDArray[Any], dtype: Any) -> Any:
    """Times in microseconds, points in time in UTC, as an array of ``dtype``, kept within its range."""
    zone = getattr(dtype, "tz", None) or getattr(getattr(dtype, "pyarrow_dtype", None), "tz", None)
    unit = getattr(dtype, "unit", None) or getattr(getattr(dtype, "pyarrow_dtype", None), "unit", None)
    span = np.iinfo(np.int64).max // (1000 if (unit or np.datetime_data(dtype)[0]) == "ns" else 1)
    cells = pd.Series(np.clip(values.astype(np.int64), -span, span).view(f"{values.dtype.kind}8[us]"))
    return (cells.dt.tz_localize("UTC") if zone else cells).astype(dtype).array


# ---------------------------------------------------------------------------------------------------- checks


def _check_labels(frame: Columns) -> None:
    for name in frame.columns:
        label_of(name)
    twice = frame.columns[frame.columns.duplicated()].unique().tolist()
    if twice:
        raise ValueError(
            f"Column names must be unique, got {listing(twice)} more than once. Rename or drop duplicates."
        )


def _check_fit_shape(frame: Columns) -> None:
    n_rows, n_columns = frame.shape
    if n_columns == 0:
        raise ValueError(
            "Expected a table with at least two columns, got no columns: 0 feature(s) "
            f"(shape=({n_rows}, 0)) while a minimum of 2 is required. Check how it was read."
        )
    if n_rows == 0:
        raise ValueError("Expected a table with at least two rows, got no rows. Check how it was filtered.")
    if n_rows == 1:
        raise ValueError(
            "Expected a table with at least two rows, got one row (n_samples=1). Fit on more rows."
        )
    if n_columns == 1:
        raise ValueError(
            f"Expected a table with at least two columns, got only one column, {frame.columns[0]!r}: there "
            "is nothing to predict it from (n_features=1). Add columns."
        )


def check_same_columns(frame: pd.DataFrame, expected: list[Label]) -> None:
    """That a table has the columns of the fitted one, in the same order; a ValueError says what differs."""
    came = [label_of(name) for name in frame.columns]
    if came == expected:
        return
    absent = [name for name in expected if name not in set(came)]
    extra = [name for name in came if name not in set(expected)]
    if not absent and not extra:
        raise ValueError(
            f"The columns are in another order than at fit: expected {listing(expected)}, got "
            f"{listing(came)}. Reorder them: frame[columns_at_fit]."
        )
    parts = [f"missing {listing(absent)}"] * bool(absent) + [f"unexpected {listing(extra)}"] * bool(extra)
    counts = ""
    if len(came) != len(expected):
        counts = (
            f"X has {len(came)} features, but MGPImputer is expecting {len(expected)} features as input. "
        )
    raise ValueError(
        f"{counts}The columns differ from those at fit: {' and '.join(parts)}. Expected, in this order: "
        f"{listing(expected)}. Add the missing ones (NaN will do) and drop the others."
    )


def _check_unique_names(names: tuple[str, ...]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(
            f"Encoded columns must have unique names, but {listing(twice)} would name more than one: a "
            "column's name, read as text, equals another's name or its 'column=category'. Rename one of them."
        )


def _warn_of_atoms(codec: ColumnCodec, column: pd.Series[Any]) -> None:
    if not isinstance(codec, ContinuousCodec) or codec.support is not None:
        return
    cells = numbers_of(column)
    for bound in (codec.lower, codec.upper):
        share = (cells == bound).sum() / max((~np.isnan(cells)).sum(), 1)
        if share >= _ATOM:
            warn_user(
                f"Column {codec.name!r}: {share:.0%} of its observed cells equal the bound {bound:g}, but no "
                "draw will. If they mean something of their own (no income, below detection), give that a "
                "boolean column, and let the number apply there (only_if).",
                TableWarning,
            )


def warn_of_empty_rows(index: pd.Index[Any], is_empty: NDArray[np.bool_]) -> None:
    """Warn of rows without any observed cell, Bool [N], by their labels."""
    empty = np.flatnonzero(is_empty)
    if empty.size == 0:
        return
    first = ", ".join(row_name(index, i) for i in empty[:3]) + (", ..." if empty.size > 3 else "")
    are = "1 row is" if empty.size == 1 else f"{empty.size} rows are"
    warn_user(
        Hinted(
            f"{are} entirely missing: {first}. With nothing to predict from, such rows are imputed from the "
            "marginal distribution of the columns. If that is not wanted, ",
            "drop them: frame.dropna(how='all').",
            shell="remove them from the table.",
        ),
        TableWarning,
    )
