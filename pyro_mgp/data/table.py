"""Conversion of input to a DataFrame, checks of its columns, and the codec of a whole table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from pyro_mgp._support.messages import Hinted, dropping, listing, row_name, warn_user
from pyro_mgp.data.cells import holes_of, labels_of, numbers_of
from pyro_mgp.data.codecs import ColumnCodec, fit_column
from pyro_mgp.data.codecs.kinds import ContinuousCodec, NumberCodec
from pyro_mgp.data.codecs.semicontinuous import SemicontinuousCodec
from pyro_mgp.data.column_spec import ColumnSpec, Kind, Label, Specs
from pyro_mgp.data.encoded_table import EncodedTable, Identity, no_limits, row_keys
from pyro_mgp.data.groups import WithinGroups
from pyro_mgp.data.limits import Limits, holds_limits
from pyro_mgp.data.native_tables import TableKind, read_native
from pyro_mgp.data.parquet_table import ParquetTable

# Smallest share of cells at a bound that leads to a warning.
_ATOM = 0.05


class TableWarning(UserWarning):
    """Warning about a table that can be imputed, but perhaps not as its owner intends."""


def as_frame(X: object) -> pd.DataFrame:
    """Return a table as a DataFrame; see `read_table`."""
    return read_table(X)[0]


def plain_frame(X: object) -> pd.DataFrame:
    """Return a table as a DataFrame with pandas' usual dtypes, which columns of Arrow become."""
    frame, kind = read_table(X)
    return frame if kind is None else replace(kind, backend="pandas").of(frame)


def read_table(X: object) -> tuple[pd.DataFrame, TableKind | None]:
    """Return a table as a DataFrame, and its kind if it is one of another library.

    A two-dimensional array, or a list of equally long rows, becomes a DataFrame with columns `"x0"`, `"x1"`,
    ...; of kinds that narwhals does not know, the method `to_pandas` is called. TypeError or ValueError if
    that cannot be done.
    """
    if isinstance(X, pd.DataFrame):
        return X, None
    if (found := read_native(X)) is not None:
        return found
    return _converted(X), None


def _converted(X: object) -> pd.DataFrame:
    """Return an array, rows or an object with the method `to_pandas` as a DataFrame."""
    if (isinstance(X, np.ndarray) and X.ndim == 2) or _is_list_of_rows(X):
        if isinstance(X, np.ndarray) and X.dtype.kind == "c":
            raise ValueError("Complex data not supported: split columns into real and imaginary parts.")
        frame = pd.DataFrame(X)  # type: ignore[call-overload]
        frame.columns = [f"x{j}" for j in range(frame.shape[1])]
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
        f"Expected a table: a DataFrame (pandas, Polars, PyArrow, DuckDB), a two-dimensional array, or "
        f"a list of equally long rows; got {came}. Reshape your data, or wrap it as pandas.DataFrame(...)."
    )


def _is_list_of_rows(X: object) -> bool:
    """Return whether `X` is a list or tuple of rows of equal length (pandas pads shorter rows silently)."""
    return (
        isinstance(X, list | tuple)
        and all(isinstance(row, list | tuple) or (isinstance(row, np.ndarray) and row.ndim == 1) for row in X)
        and len(set(map(len, X))) <= 1
    )


def missing(frame: pd.DataFrame) -> NDArray[np.bool_]:
    """Return a mask of the missing cells (NaN, None, `pd.NA`, `pd.NaT`) of a table, Bool `[N, C]`."""
    columns = [holes_of(column) for _, column in frame.items()]
    return np.stack(columns, axis=1) if columns else np.zeros(frame.shape, dtype=np.bool_)


@dataclass(frozen=True)
class TableCodec:
    """Codec of a table: converts its C columns to D standardised columns, and back."""

    columns: tuple[ColumnCodec, ...]
    """Codec of each column, in the table's order; names of their encoded columns are unique."""

    def __post_init__(self) -> None:
        if twice := [name for name, count in Counter(self.names).items() if count > 1]:
            raise ValueError(
                f"Encoded columns must have unique names, but {listing(twice)} would name more than one: a "
                "column's name, as text, equals another's name or its 'column=category'. Rename one of them."
            )

    @classmethod
    def fit(
        cls,
        table: pd.DataFrame | ParquetTable,
        warp: bool = False,
        discrete_support: int = 0,
        specs: Specs | None = None,
        limits: Mapping[Label, Limits] | None = None,
        within: WithinGroups | None = None,
    ) -> TableCodec:
        """Fit the codec of every column of a table, reading one column at a time; see `fit_column`.

        Columns that are constant `within` groups are fitted to one cell of each group, and times of visits
        have no transform.

        Too few rows or columns, or wrong labels of columns, are a ValueError. A TableWarning says that rows
        are entirely missing, or that an incomplete column is constant.
        """
        labels, within = labels_of(table.columns), within or WithinGroups()
        _check_fit_shape(table)
        codecs, incomplete, is_empty = [], set(), np.ones(len(table), dtype=np.bool_)
        times = {spec.time for spec in (specs or {}).values()}
        for name in labels:
            holes = holes_of(column := table[name])
            given = warp and name not in times, discrete_support, (specs or {}).get(name)
            own = (limits or {}).get(name)
            codecs.append(fit_column(column if own else within.cells(table, name), *given, limits=own))
            is_empty &= holes
            if holes.any():
                incomplete.add(name)
            _warn_of_limits(codecs[-1], column, (specs or {}).get(name))
        codec = cls(tuple(codecs))
        codec._check_varying(table, incomplete)
        _warn_of_empty_rows(table, is_empty)
        return codec

    def untransformed(
        self, table: pd.DataFrame | ParquetTable, within: WithinGroups | None = None
    ) -> TableCodec:
        """Return the codec without transforms, given the table to which it was fitted, see `fit`.

        Transforms that keep draws within bounds stay: without them, draws would pile up at a bound.
        """
        return TableCodec(
            tuple(
                column.untransformed((within or WithinGroups()).cells(table, column.name))
                if isinstance(column, NumberCodec) and column.has_optional_warp
                else column
                for column in self.columns
            )
        )

    def for_joint_density(
        self,
        frame: pd.DataFrame,
        encoded: EncodedTable,
        warp: bool,
        discrete_support: int,
        specs: Specs,
        limits: Mapping[Label, Limits] | None = None,
        within: WithinGroups | None = None,
        *,
        transforms: bool = True,
        one_part: Collection[Label] = (),
    ) -> tuple[TableCodec, EncodedTable]:
        """Return the codec refitted for a joint density, with or without transforms, and the encoded table.

        Whole numbers of floating-point type may be counts: pandas reads integers with missing cells as such,
        and zeros and ones, which are boolean unless they are of `one_part`. Transforms that keep draws within
        bounds stay, see `untransformed`, and columns with limits. Amounts of semicontinuous columns are
        transformed unless `transforms` rules it out. Complete columns, and those of `one_part`, are
        semicontinuous only if their specs say so: a linear relation to them stays linear.
        """
        columns = list(self.columns)
        for i, column in enumerate(self.columns):
            if not isinstance(column, NumberCodec) or column.has_limits:
                continue
            cells, spec = (within or WithinGroups()).cells(frame, column.name), specs.get(column.name)
            # The kind does not depend on transforms; that of amounts keeps them within the bound.
            refitted = fit_column(cells, transforms, discrete_support, spec, joint_density=True)
            is_asked = spec is not None and spec.kind is not None
            is_whole = column.name in one_part or not holes_of(frame[column.name]).any()
            has_two_parts = refitted.kind is Kind.SEMICONTINUOUS and (is_asked or not is_whole)
            is_boolean = refitted.kind is Kind.BOOLEAN and column.name not in one_part
            if refitted.kind is Kind.COUNT or has_two_parts or is_boolean:
                columns[i] = refitted
            elif column.has_optional_warp and not warp:
                columns[i] = column.untransformed(cells)
        if columns == list(self.columns):
            return self, encoded
        codec = TableCodec(tuple(columns))
        return codec, codec.encode_cells(frame, limits=limits)

    def warn_of_atoms(self, table: pd.DataFrame | ParquetTable, specs: Specs) -> None:
        """Warn of numbers of which many equal a bound, given the table of the fit.

        Either no draw will, or the column was found to have two parts, and the warning says so.
        """
        for codec in self.columns:
            is_asked = codec.name in specs and specs[codec.name].kind is not None
            if isinstance(codec, SemicontinuousCodec) and not is_asked:
                warn_user(_of_two_parts(codec), TableWarning)
            if not isinstance(codec, ContinuousCodec) or codec.support is not None:
                continue
            bounds = [bound for bound in (codec.lower, codec.upper) if bound is not None]
            cells = numbers_of(table[codec.name]) if bounds else np.empty(0)
            for bound in bounds:
                share = (cells == bound).sum() / max((~np.isnan(cells)).sum(), 1)
                if share >= _ATOM:
                    warn_user(
                        f"Column {codec.name!r}: {share:.0%} of its observed cells equal the bound "
                        f"{bound:g}, but no draw will. If they mean something of their own (no income), "
                        "model it in two parts, ColumnSpec(kind='semicontinuous'), in a table with a joint "
                        "density; or give that a boolean column, and let the number apply there (only_if).",
                        TableWarning,
                    )

    def _check_varying(self, table: pd.DataFrame | ParquetTable, incomplete: Collection[Label]) -> None:
        """Check that incomplete columns have others to predict them; warn of constant columns."""
        varying = [column.name for column in self.columns if column.width]
        if not varying:
            message = (
                f"Expected a table with a column that varies, but {listing(table.columns)} hold one value "
                "each: there is nothing to learn. "
            )
            advice = "Fill their missing cells with "
            raise ValueError(Hinted(message + advice, "frame.ffill().bfill().", shell="that value."))
        if len(varying) == 1 and varying[0] in incomplete:
            raise ValueError(
                f"Column {varying[0]!r} has missing cells, but no other column varies: there is nothing to "
                "predict it from. Add columns."
            )
        for name in [each.name for each in self.columns if not each.width and each.name in incomplete]:
            value = listing(set(table[name].dropna().tolist()))
            message = (
                f"Column {name!r} is constant where it is observed: its missing cells get that value, "
                f"{value}, in every imputation."
            )
            warn_user(dropping(message, name), TableWarning)

    def encode(
        self,
        frame: pd.DataFrame,
        identity: Identity | None = None,
        limits: Mapping[Label, Limits] | None = None,
    ) -> EncodedTable:
        """Encode a table with the columns of the fitted one; `identity` tells equal rows apart (`row_keys`).

        No rows, and columns other than at fit, are a ValueError; see `ColumnCodec.encode` for their cells. A
        TableWarning says that rows are entirely missing, or that cells hold categories unseen at fit.
        """
        check_same_columns(frame, [column.name for column in self.columns])
        if len(frame) == 0:
            raise ValueError("Expected a table with at least one row, got no rows. Check how it was made.")
        table = self.encode_cells(frame, identity, limits)
        self._warn_of_unseen(frame, table)
        _warn_of_empty_rows(frame, np.logical_and.reduce(missing(frame), axis=1))
        return table

    def encode_cells(
        self,
        frame: pd.DataFrame,
        identity: Identity | None = None,
        limits: Mapping[Label, Limits] | None = None,
    ) -> EncodedTable:
        """Encode a table, and limits of its missing cells by column, without checks and warnings."""
        values = np.concatenate([column.encode(frame[column.name]) for column in self.columns], axis=1)
        ends = no_limits(torch.as_tensor(values)).clone()
        for column in self.columns:
            if (given := (limits or {}).get(column.name)) is not None:
                if not isinstance(column, ContinuousCodec):
                    raise ValueError(
                        f"Column {column.name!r}: limits are for continuous columns, at fit it was "
                        f"{column.kind}. Fit again, with the limits."
                    )
                own = column.standardised_limits(given)
                both = torch.as_tensor(np.stack([own.lower, own.upper], axis=1))
                ends[:, self.slices[column.name].start] = both
        found = ends if ends.isfinite().any() else None
        return EncodedTable.from_numpy(values, row_keys(values, frame.index, identity, found), found)

    def _warn_of_unseen(self, frame: pd.DataFrame, table: EncodedTable) -> None:
        """Warn of cells that are observed but not encoded: their level was not observed at fit."""
        for column in self.columns:
            if column.levels is None or not column.width:
                continue
            is_encoded = table.observed[:, self.slices[column.name].start].numpy()
            unseen = np.flatnonzero(~is_encoded & ~holes_of(frame[column.name]))
            if unseen.size:
                labels = frame[column.name].iloc[unseen].unique().tolist()
                cells = "1 cell holds" if unseen.size == 1 else f"{unseen.size} cells hold"
                warn_user(
                    f"Column {column.name!r}: {cells} categories unseen at fit, {listing(labels)}, first in "
                    f"{row_name(frame.index, unseen[0])}; expected {listing(column.levels)}. They are kept, "
                    "but other cells are predicted as if they were missing. Fit again with such rows.",
                    TableWarning,
                )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the D encoded columns."""
        return tuple(name for column in self.columns for name in column.names)

    @property
    def n_encoded(self) -> int:
        """Number D of encoded columns."""
        return len(self.names)

    @property
    def slices(self) -> dict[Label, slice]:
        """Slice of the encoded columns of each column, by the column's label."""
        ends = np.cumsum([column.width for column in self.columns]).tolist()
        return {c.name: slice(end - c.width, end) for c, end in zip(self.columns, ends, strict=True)}

    @property
    def groups(self) -> NDArray[np.intp]:
        """Position of the table's column that each encoded column belongs to, `[D]`."""
        return np.repeat(np.arange(len(self.columns)), [column.width for column in self.columns])

    @property
    def of_groups(self) -> list[int]:
        """Encoded columns that hold the numbers of groups."""
        return [
            self.slices[each.name].start for each in self.columns if each.kind is Kind.GROUP and each.width
        ]

    @property
    def raw_scale(self) -> NDArray[np.float64]:
        """Standard deviation of each encoded column in its own units, float64 `[D]`."""
        return np.array([scale for column in self.columns for scale in column.own_scale], dtype=np.float64)


def _check_fit_shape(table: pd.DataFrame | ParquetTable) -> None:
    n_rows, n_columns = table.shape
    wanted = "Expected a table with at least two"
    if n_columns == 0:
        needs = f"0 feature(s) (shape=({n_rows}, 0)) while a minimum of 2 is required"
        raise ValueError(f"{wanted} columns, got no columns: {needs}. Check how it was read.")
    if n_rows < 2:
        came = "one row (n_samples=1). Fit on more rows." if n_rows else "no rows. Check how it was filtered."
        raise ValueError(f"{wanted} rows, got {came}")
    if n_columns == 1:
        why = "there is nothing to predict it from (n_features=1)"
        raise ValueError(f"{wanted} columns, got only one column, {table.columns[0]!r}: {why}. Add columns.")


def check_same_columns(frame: pd.DataFrame, expected: list[Label]) -> None:
    """Check that a table has the expected columns in the same order; a ValueError names the differences."""
    came = labels_of(frame.columns)
    if came == expected:
        return
    present, known = set(came), set(expected)
    absent = [name for name in expected if name not in present]
    extra = [name for name in came if name not in known]
    if not absent and not extra:
        raise ValueError(
            f"The columns are in another order than at fit: expected {listing(expected)}, got "
            f"{listing(came)}. Reorder them: frame[columns_at_fit]."
        )
    parts = [f"missing {listing(absent)}"] * bool(absent) + [f"unexpected {listing(extra)}"] * bool(extra)
    counts = f"X has {len(came)} features, but MGPImputer is expecting {len(expected)} features as input. "
    raise ValueError(
        f"{counts if len(came) != len(expected) else ''}The columns differ from those at fit: "
        f"{' and '.join(parts)}. Expected, in this order: {listing(expected)}. Add the missing ones (NaN "
        "will do) and drop the others."
    )


def _of_two_parts(codec: SemicontinuousCodec) -> str:
    end = "smallest" if codec.bound == codec.low else "largest"
    return (
        f"Column {codec.name!r}: {codec.mean[0]:.0%} of its observed cells equal its {end} number, "
        f"{codec.bound:g}. It is modelled in two parts: whether a cell does, and the others. If one part is "
        "enough, say so: ColumnSpec(kind='continuous')."
    )


def _warn_of_limits(codec: ColumnCodec, column: pd.Series[Any], spec: ColumnSpec | None) -> None:
    if codec.kind is Kind.CATEGORICAL and (spec is None or spec.kind is None) and holds_limits(column):
        warn_user(
            f"Column {codec.name!r} holds numbers and limits such as '<0.5' as text, and is taken for "
            "levels. If cells lie within limits, split them: frame, specs = split_limits(frame).",
            TableWarning,
        )


def _warn_of_empty_rows(table: pd.DataFrame | ParquetTable, is_empty: NDArray[np.bool_]) -> None:
    """Warn of rows without any observed cell, given as a mask `[N]`."""
    empty = np.flatnonzero(is_empty)
    if empty.size == 0:
        return
    first = ", ".join(row_name(table.index, i) for i in empty[:3]) + (", ..." if empty.size > 3 else "")
    rows = "1 row is" if empty.size == 1 else f"{empty.size} rows are"
    message = Hinted(
        f"{rows} entirely missing: {first}. With nothing to predict from, such rows are imputed from the "
        "marginal distribution of the columns. If that is not wanted, ",
        "drop them: frame.dropna(how='all').",
        shell="remove them from the table.",
    )
    warn_user(message, TableWarning)
