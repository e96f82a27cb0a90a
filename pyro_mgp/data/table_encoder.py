"""Encoding of a user's table, and decoding of draws to cells in the columns' own units."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from pyro_mgp._support.messages import listing
from pyro_mgp.data.cells import holes_of
from pyro_mgp.data.codecs import ColumnCodec, fit_column
from pyro_mgp.data.codecs.kinds import standardised_errors
from pyro_mgp.data.column_spec import Kind, Label
from pyro_mgp.data.encoded_table import (
    EncodedTable,
    RowIds,
    content_hashes,
    label_hashes,
    row_keys,
    without_ids,
)
from pyro_mgp.data.limits import Limits
from pyro_mgp.data.native_tables import TableKind
from pyro_mgp.data.parquet_table import ParquetTable
from pyro_mgp.data.rules import Rules
from pyro_mgp.data.table import TableCodec, check_same_columns, missing, read_table
from pyro_mgp.storage.scratch import Scratch, pieces

# Disk space of a fit: values, initial fill, and masks of observed, held-out and training cells.
_BYTES_PER_CELL = 2 * 8 + 3


@dataclass(frozen=True)
class InputTable:
    """Table to complete, in three forms: as given, as modelled, and encoded."""

    frame: pd.DataFrame
    modelled: pd.DataFrame
    """The table that `Rules.modelled` returns; the same object as `frame` where no column spec changes it."""
    encoded: EncodedTable
    """The modelled table, encoded, with the target as its last column if there is one."""
    limits: Mapping[Label, Limits] = field(default_factory=dict)
    """Limits of missing cells in their own units, by column."""
    has_new_effects: NDArray[np.bool_] | None = None
    """Rows of groups, or visits, that were not in the table of the fit, Bool `[N]`; None without any."""
    kind: TableKind | None = None
    """Kind of the table, if it is one of another library."""

    def __getitem__(self, rows: slice) -> InputTable:
        limits = {label: own[rows] for label, own in self.limits.items()}
        new = None if self.has_new_effects is None else self.has_new_effects[rows]
        tables = self.frame.iloc[rows], self.modelled.iloc[rows], self.encoded[rows]
        return InputTable(*tables, limits, new, self.kind)

    @functools.cached_property
    def holes(self) -> NDArray[np.bool_]:
        """Missing cells of the modelled table, Bool `[N, C]`."""
        return missing(self.modelled)

    @functools.cached_property
    def incomplete(self) -> Tensor:
        """Positions of the rows with missing cells, and of those that tell of new effects, `[n]`."""
        rows = np.logical_or.reduce(self.holes, axis=1)
        return torch.as_tensor(
            np.flatnonzero(rows if self.has_new_effects is None else rows | self.has_new_effects)
        )


@dataclass(frozen=True)
class TableEncoder:
    """Encoder of tables that have the columns of the fitted table, and decoder of draws."""

    rules: Rules
    codec: TableCodec
    """Codecs of the modelled columns."""
    target: ColumnCodec | None
    """Codec of the target of `fit(X, y)`, which is the last encoded column; None without a target."""
    columns: list[Label]
    """Labels of the table's columns, in order."""
    incomplete: list[int]
    """Positions of the columns that had missing cells at fit."""

    @property
    def n_encoded(self) -> int:
        """Number D of encoded columns, the target included."""
        return self.codec.n_encoded + (self.target is not None)

    def encode(self, X: pd.DataFrame | ArrayLike, row_ids: RowIds = None) -> InputTable:
        """Check and encode a table with the columns of the fitted one; its target is missing."""
        frame, kind = read_table(X)
        own, identity = without_ids(frame, row_ids, self.columns)
        check_same_columns(own, self.columns)
        modelled = self.rules.modelled(own)
        limits = self.rules.limits(own)
        encoded = self.codec.encode(modelled, identity, limits)
        if self.target is not None:
            encoded = encoded.append_column(np.full(len(frame), np.nan))
        return InputTable(frame, modelled, encoded, limits, kind=kind)

    def identify(self, X: pd.DataFrame) -> tuple[NDArray[np.intp], NDArray[np.uint64], NDArray[np.uint64]]:
        """Return the positions of the incomplete rows, hashes of their cells, and hashes of their labels."""
        table = self.codec.encode_cells(self.rules.modelled(X), limits=self.rules.limits(X))
        rows = np.flatnonzero(~table.observed.all(1).numpy())
        limits = None if table.limits is None else table.limits[rows]
        return rows, content_hashes(table.to_numpy()[rows], limits), label_hashes(X.index[rows])

    def error_variances(self, frame: pd.DataFrame) -> dict[int, Tensor]:
        """Return the variances of measurement errors by encoded column, each `[N]`, in standardised units."""
        errors, found = self.rules.standard_errors(frame), {}
        modelled = self.rules.modelled(frame) if errors else frame
        for column in self.codec.columns:
            if column.name in errors:
                standardised = standardised_errors(column, modelled[column.name], errors[column.name])
                found[self.codec.slices[column.name].start] = torch.as_tensor(standardised).square()
        return found

    def decode(
        self,
        given: InputTable,
        batches: Iterable[tuple[slice, Tensor]],
        m: int,
        on_support: Collection[int] = (),
        *,
        are_means: bool = False,
    ) -> dict[Label, NDArray[Any]]:
        """Return m draws, or means, of missing cells in the columns' own units, by label, `[m, n_missing]`.

        `batches` are slices of the table's incomplete rows, in order, each with these rows filled,
        `[m, n, D]`. Draws of the encoded columns `on_support` are exactly values of their discrete support.
        Means (`are_means`) are rounded in columns of integers only, by dtype or kind.
        """
        holes, slices = given.holes[given.incomplete.numpy()], self.codec.slices
        incomplete = np.flatnonzero(np.logical_or.reduce(holes, axis=0))
        parts: dict[Label, list[NDArray[Any]]] = defaultdict(list)
        limits = {label: own[given.incomplete.numpy()] for label, own in given.limits.items()}
        for rows, filled in batches:
            numbers = filled.cpu().numpy()
            for position in incomplete:
                column = self.codec.columns[position]
                cells = numbers[:, holes[rows, position], slices[column.name]]
                exact = column.width == 1 and slices[column.name].start in on_support
                decoded = (column.unrounded if are_means else column).decode(cells, exact)
                if column.name in limits:  # draws are rounded in standardised units
                    own = limits[column.name][rows][holes[rows, position]]
                    decoded = np.clip(decoded, own.lower, own.upper)
                parts[column.name].append(decoded)
        draws = {label: np.concatenate(part, axis=1) for label, part in parts.items()}
        if self.rules.trivial:
            return draws
        return self.rules.apply_to_draws(given.frame, given.modelled, draws, m)


def fit_target(
    y: pd.Series[Any] | ArrayLike | None, frame: pd.DataFrame
) -> tuple[ColumnCodec | None, NDArray[np.float64] | None]:
    """Return the codec of a target and its standardised values `[N]`, NaN where missing; None without `y`."""
    if y is None:
        return None, None
    values = y if isinstance(y, pd.Series) else np.asarray(y)
    if values.ndim != 1:
        raise ValueError(f"y must have one dimension, got shape {values.shape}")
    target = pd.Series(values)
    if len(target) != len(frame):
        raise ValueError(f"y must have one value per row of X: expected {len(frame)}, got {len(target)}")
    if target.isna().all():
        raise ValueError("y is entirely missing: expected observed numbers, got none")
    if target.name is None:
        target = target.rename("target")
    codec = fit_column(target)
    if codec.kind is Kind.CONSTANT:
        raise ValueError(f"y is constant, {listing(target.dropna().unique())}: there is nothing to learn")
    if codec.kind not in (Kind.CONTINUOUS, Kind.INTEGER):
        raise TypeError(f"y must be numeric, got {codec.kind} values (dtype {codec.dtype})")
    return codec, codec.encode(target)[:, 0]


def encode_columns(
    table: ParquetTable, codec: TableCodec, scratch: Scratch
) -> tuple[EncodedTable, list[int]]:
    """Encode a table in temporary files.

    Returns the rows sorted by their keys, and the positions of the columns with missing cells. An OSError
    says that the disk is full.
    """
    n_rows, n_columns = table.shape
    scratch.check_room(_BYTES_PER_CELL * n_rows * n_columns)
    by_column = scratch.empty(codec.n_encoded, n_rows).numpy()
    incomplete = []
    for position, column in enumerate(codec.columns):
        cells = table[column.name]
        by_column[codec.slices[column.name]] = column.encode(cells).T
        incomplete += [position] * bool(holes_of(cells).any())
    return _sorted_rows(by_column, row_keys(by_column.T, table.index), scratch), incomplete


def _sorted_rows(by_column: NDArray[np.float64], keys: NDArray[np.uint64], scratch: Scratch) -> EncodedTable:
    """Return the encoded rows of columns `[D, N]`, sorted by key `[N]`; overwrites the columns."""
    order = np.argsort(keys)
    for column in by_column:
        column[:] = np.array(column)[order]
    values = scratch.empty(*by_column.T.shape)
    observed = scratch.empty(*by_column.T.shape, dtype=torch.bool)
    for rows in pieces(len(keys)):
        cells = torch.from_numpy(by_column[:, rows]).T
        observed[rows] = ~cells.isnan()
        values[rows] = cells.where(observed[rows], 0.0)
    return EncodedTable(values, observed, torch.as_tensor(keys[order].view(np.int64)))
