"""Specifications of the links of a chain: output column, input columns and order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pyro_mgp.data.cells import numbers_of
from pyro_mgp.data.codecs import ColumnCodec
from pyro_mgp.data.codecs.base import GaussianObservation
from pyro_mgp.data.column_spec import ColumnSpec, Label, Specs
from pyro_mgp.data.encoded_table import EncodedTable
from pyro_mgp.data.table import TableCodec
from pyro_mgp.model.column_order import best_order, complete_rows, is_curved, log_evidence

_NO_SPEC = ColumnSpec()

SMALL_ROWS = 1000
"""Largest number of rows of a table with a sequential chain."""
# Largest number of columns with a link in such a table.
_SMALL_COLUMNS = 8


@dataclass(frozen=True)
class LinkSpec:
    """The output column and the input columns of one link of the chain."""

    name: str
    """Name of the encoded column that the link predicts."""
    column: int
    """Number of the encoded column that the link predicts."""
    inputs: tuple[int, ...]
    """Numbers of the encoded columns that the link predicts from."""
    unless: tuple[int, ...] = ()
    """Indicators of earlier levels of the same variable; see `Link`."""


def plan_links(
    codec: TableCodec,
    incomplete: NDArray[np.bool_],
    order: Sequence[Label] | None,
    target: ColumnCodec | None = None,
    target_is_input: bool = True,
    specs: Specs | None = None,
    sequence: Sequence[int] | None = None,
) -> list[LinkSpec]:
    """Return the specification of each link of a table, in the order of the chain, a target last.

    The inputs of a link are all columns but those of its own variable: the other indicators of a category are
    missing whenever it is, and determine it otherwise. The last indicator has no link; see `Category`.

    Args:
        codec: The table's codec.
        incomplete: Bool `[D]`, the encoded columns that get a link.
        order: Labels of the linked columns, or None for ascending standard deviation before scaling. The
            links of a category follow each other.
        target: Codec of a target, which is column D.
        target_is_input: Whether the target is an input of the other links.
        specs: Specifications of columns: whether they predict others, and which columns predict them.
        sequence: Encoded columns with a link, in order, if the inputs of each are the earlier ones and the
            columns without a link; None if they are all others. See `SequentialChain`.

    Raises:
        ValueError: If `order` does not name each column with a link exactly once, or one has no predictors.
    """
    groups = codec.groups
    if sequence is not None:
        before = [d for d in range(codec.n_encoded) if d not in sequence]
        return [LinkSpec(codec.names[d], d, (*before, *sequence[:i])) for i, d in enumerate(sequence)]
    visible = _visible(codec, specs or {})
    linked = np.flatnonzero(incomplete & ~_is_last_indicator(codec))
    if order is None:
        linked = _ascending(codec, linked)
    else:
        linked = np.concatenate([np.arange(0), *_ordered(codec, linked, order)])
    extra = (codec.n_encoded,) if target is not None and target_is_input else ()
    link_specs = [
        LinkSpec(
            codec.names[d],
            d,
            (*np.flatnonzero(visible[groups[d]] & (groups != groups[d])).tolist(), *extra),
            tuple(np.flatnonzero(groups[:d] == groups[d]).tolist()),
        )
        for d in linked.tolist()
    ]
    for link in link_specs:
        if not link.inputs:
            raise ValueError(
                f"column {link.name!r} has missing cells, but no other column is left to predict it from: "
                "give its spec more predictors, or let other columns predict"
            )
    if target is None:
        return link_specs
    name = str(target.name)
    while name in codec.names:
        name = f"target {name}"
    predicts = np.array([(specs or {}).get(column.name, _NO_SPEC).predicts for column in codec.columns])
    return [*link_specs, LinkSpec(name, codec.n_encoded, tuple(np.flatnonzero(predicts[groups]).tolist()))]


@dataclass(frozen=True)
class Plan:
    """Columns with a link in a sequential chain, and their log evidence."""

    columns: list[int]
    """Encoded columns with a link, in the order of the chain."""
    evidence: float
    """Log evidence of all columns that can have a link, in their own units, nats."""


def sequence_of(
    codec: TableCodec,
    table: EncodedTable,
    frame: pd.DataFrame,
    specs: Specs,
    *,
    every: bool,
    curved_only: bool,
) -> Plan | None:
    """Choose the encoded columns of a small table that get a link in a sequential chain, and their order.

    Complete columns that come before the first incomplete one get no link.

    Args:
        codec: The table's codec.
        table: The encoded table.
        frame: The modelled table, its rows in the order of `table`.
        specs: Specifications of columns.
        every: Whether all columns that can have a link get one.
        curved_only: Whether to return None if the relations between columns are linear: links with all other
            columns as inputs then give the same imputations with less computation.

    Returns:
        The plan, or None if the table is large, has incomplete columns whose observations are not Gaussian,
        columns that may not predict each other, or few complete rows.
    """
    if len(frame) > SMALL_ROWS:
        return None
    values, observed = table.values, table.observed
    gaussian = np.array([_is_gaussian(column, specs) for column in codec.columns for _ in column.names], bool)
    incomplete = (~observed.all(0)).numpy()
    linkable = np.flatnonzero(gaussian).tolist()
    suits = len(linkable) <= _SMALL_COLUMNS and not (incomplete & ~gaussian).any()
    rows = complete_rows(observed) if suits else None
    if rows is None or any(spec.predictors is not None or not spec.predicts for spec in specs.values()):
        return None
    first, then = [d for d in linkable if not incomplete[d]], [d for d in linkable if incomplete[d]]
    then.sort(key=lambda d: codec.raw_scale[d])
    fixed = np.flatnonzero(~gaussian).tolist()
    complete = values[rows]
    order = best_order(complete, first, then, fixed)
    needed = min((i for i, d in enumerate(order) if incomplete[d]), default=len(order))
    unlinked = 0 if every else needed
    if curved_only and not is_curved(complete, order[unlinked:], [*fixed, *order[:unlinked]]):
        return None
    evidence = log_evidence(complete, order, fixed) + _log_slopes(codec, frame.iloc[rows.numpy()])
    return Plan(order[unlinked:], evidence)


def _log_slopes(codec: TableCodec, frame: pd.DataFrame) -> float:
    """Return the log Jacobian determinant of the encoding of a table without missing cells."""
    total = 0.0
    for column in codec.columns:
        if column.width == 1:
            cells = numbers_of(frame[column.name])
            slopes = np.zeros(len(cells)) if column.warp is None else column.warp.log_slope(cells)
            total += float(slopes.sum()) - len(frame) * math.log(column.scale[0])
    return total


def _is_gaussian(column: ColumnCodec, specs: Specs) -> bool:
    """Return whether a column can be a link of a sequential chain: numbers with plain Gaussian noise."""
    gaussian = column.family == "numbers" and isinstance(column.observation(), GaussianObservation)
    error = specs.get(column.name, _NO_SPEC).standard_error
    return gaussian and column.support_encoded is None and column.bounds is None and error is None


def _visible(codec: TableCodec, specs: Specs) -> NDArray[np.bool_]:
    """Return Bool `[C, D]`: the encoded columns from which each of C columns may be predicted."""
    labels = [column.name for column in codec.columns]
    visible = np.ones((len(labels), len(labels)), dtype=bool)
    for label, spec in specs.items():
        if label not in labels:
            continue
        here = labels.index(label)
        if spec.predictors is not None:
            visible[here] = np.isin(np.arange(len(labels)), [labels.index(each) for each in spec.predictors])
        if not spec.predicts:
            visible[:, here] = False
    return visible[:, codec.groups]


def _ascending(codec: TableCodec, linked: NDArray[np.intp]) -> NDArray[np.intp]:
    """Sort columns by their standard deviation; a category's indicators stay together, at their smallest."""
    groups, scale = codec.groups, codec.raw_scale
    least = {group: scale[linked[groups[linked] == group]].min() for group in set(groups[linked].tolist())}
    return np.asarray(sorted(linked.tolist(), key=lambda d: (least[groups[d]], groups[d], d)), dtype=np.intp)


def _ordered(codec: TableCodec, linked: NDArray[np.intp], order: Sequence[Label]) -> list[NDArray[np.intp]]:
    labels = [codec.columns[group].name for group in dict.fromkeys(codec.groups[linked].tolist())]
    if len(set(order)) != len(order) or set(order) != set(labels):
        raise ValueError(
            f"order must name each column with a link once: expected {labels} in any order, got {list(order)}"
        )
    columns = [np.arange(codec.n_encoded)[codec.slices[label]] for label in order]
    return [own[np.isin(own, linked)] for own in columns]


def _is_last_indicator(codec: TableCodec) -> NDArray[np.bool_]:
    """Return Bool `[D]`: the last indicator of each category, which the others determine."""
    last = np.zeros(codec.n_encoded, dtype=bool)
    for column in codec.columns:
        if column.indicators is not None:
            last[codec.slices[column.name].stop - 1] = True
    return last
