"""Tables on their way into the model: as they came, as they are modelled, as numbers."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from pyro_mgp._support.messages import listing
from pyro_mgp.data.codecs import ColumnCodec, fit_column
from pyro_mgp.data.column_spec import Kind, Label
from pyro_mgp.data.encoded_table import EncodedTable
from pyro_mgp.data.rules import Rules
from pyro_mgp.data.table import Table, TableCodec, missing
from pyro_mgp.model.build import LinkSpec


@dataclass(frozen=True)
class Input:
    """A table to complete."""

    frame: pd.DataFrame
    """As it came."""
    modelled: pd.DataFrame
    """As it is modelled; see `rules`."""
    rows: EncodedTable
    """The latter, encoded."""

    def __getitem__(self, here: slice) -> Input:
        return Input(self.frame.iloc[here], self.modelled.iloc[here], self.rows[here])

    @functools.cached_property
    def holes(self) -> NDArray[np.bool_]:
        """Which cells are missing as they are modelled, Bool `[N, C]`."""
        return missing(self.modelled)

    @functools.cached_property
    def incomplete(self) -> Tensor:
        """Numbers of the rows with missing cells."""
        return torch.as_tensor(np.flatnonzero(np.logical_or.reduce(self.holes, axis=1)))


def fit_target(
    y: pd.Series[Any] | ArrayLike | None, frame: pd.DataFrame
) -> tuple[ColumnCodec | None, NDArray[np.float64] | None]:
    """The codec of a target and its standardised values `[N]`, NaN where missing.

    Raises:
        TypeError, ValueError: It is no target of this table.
    """
    if y is None:
        return None, None
    target = y if isinstance(y, pd.Series) else np.asarray(y)
    if target.ndim != 1:
        raise ValueError(f"y must have one dimension, got shape {target.shape}")
    target = pd.Series(target)
    if len(target) != len(frame):
        raise ValueError(f"y must have one value per row of X: expected {len(frame)}, got {len(target)}")
    if target.name is None:
        target = target.rename("target")
    codec = fit_column(target)
    if codec.kind is Kind.CONSTANT:
        raise ValueError(
            f"y is constant, {listing(target.dropna().unique())}: there is nothing to learn from it"
        )
    if codec.kind not in (Kind.CONTINUOUS, Kind.INTEGER):
        raise TypeError(f"y must be numeric, got {codec.kind} values (dtype {codec.dtype})")
    return codec, codec.encode(target)[:, 0]


def as_modelled(frame: pd.DataFrame, rules: Rules) -> pd.DataFrame:
    """The table that is modelled instead of the one that came; see `rules`."""
    if rules.trivial:
        return frame
    rules.check(frame)
    return rules.modelled(rules.deduce(frame))


def measured(
    codec: TableCodec, link_specs: Sequence[LinkSpec], rules: Rules, frame: pd.DataFrame
) -> list[Tensor | None]:
    """`known_variances` of a table as it came."""
    errors = rules.standard_errors(frame)
    return known_variances(codec, link_specs, as_modelled(frame, rules) if errors else frame, errors)


def known_variances(
    codec: TableCodec,
    link_specs: Sequence[LinkSpec],
    frame: pd.DataFrame,
    errors: Mapping[Label, NDArray[np.float64]],
) -> list[Tensor | None]:
    """For each link the variances of errors of measurement in standardised units, `[N]`, None without any."""
    found: dict[int, Tensor] = {}
    for column in codec.columns:
        if column.name in errors:
            standardised = column.standardised_errors(frame[column.name], errors[column.name])
            found[codec.slices[column.name].start] = torch.as_tensor(standardised).square()
    return [found.get(link.column) for link in link_specs]


def rows_of(table: Table, target: NDArray[np.float64] | None) -> EncodedTable:
    """An encoded table, a target as its last column; missing cells hold zeros."""
    values = table.values if target is None else np.column_stack([table.values, target])
    observed = ~np.isnan(values)
    return EncodedTable(
        torch.as_tensor(np.where(observed, values, 0.0)),
        torch.as_tensor(observed),
        torch.as_tensor(table.keys.view(np.int64)),
    )
