"""Column codecs: convert one column of a table to standardised numbers and back; one class per kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from pyro_mgp._support.messages import dropping, listing
from pyro_mgp.data.cells import FAMILIES, label_of, natural_kind
from pyro_mgp.data.codecs import kinds
from pyro_mgp.data.codecs.base import ColumnCodec, ConstantCodec, FitOptions, finite_numbers
from pyro_mgp.data.codecs.kinds import ContinuousCodec, IntegerCodec
from pyro_mgp.data.codecs.semicontinuous import SemicontinuousCodec, has_common_bound
from pyro_mgp.data.column_spec import ColumnSpec, Kind, Label
from pyro_mgp.data.limits import Limits
from pyro_mgp.storage.untrusted import build

__all__ = ["CODECS", "ColumnCodec", "codec_from_dict", "fit_column"]

CODECS: dict[Kind, type[ColumnCodec]] = {
    Kind.CONTINUOUS: ContinuousCodec,
    Kind.HEAVY_TAILED: kinds.HeavyTailedCodec,
    Kind.INTEGER: IntegerCodec,
    Kind.SEMICONTINUOUS: SemicontinuousCodec,
    Kind.COUNT: kinds.CountCodec,
    Kind.BOOLEAN: kinds.BooleanCodec,
    Kind.CATEGORICAL: kinds.CategoricalCodec,
    Kind.ORDERED: kinds.OrderedCodec,
    Kind.DATETIME: kinds.DatetimeCodec,
    Kind.DURATION: kinds.DurationCodec,
    Kind.GROUP: kinds.GroupCodec,
    Kind.CONSTANT: ConstantCodec,
}
"""Codec of each kind of column."""


def fit_column(
    column: pd.Series[Any],
    warp: bool = False,
    discrete_support: int = 0,
    spec: ColumnSpec | None = None,
    *,
    joint_density: bool = False,
    limits: Limits | None = None,
) -> ColumnCodec:
    """Fit the codec of a column, of the class for the column's kind.

    The result does not depend on the order of the rows, to the last bit. With `warp`, numbers may be
    transformed to be more nearly normal. The support of a numeric column with at most `discrete_support`
    values counts as discrete if nine in ten cells hold a value that occurs five times or more; 0 also keeps
    integers from being taken for counts. With `joint_density` only, floating-point numbers may be counts,
    those of a discrete support of two values are boolean, and numbers may be semicontinuous. Moments and
    transform are those that make observed cells and `limits` of missing ones most likely.

    Raises:
        TypeError: The dtype is not supported, or an object column mixes types.
        ValueError: The column is entirely missing, holds infinite or huge numbers, has more than 100
            categories, or contradicts its spec.
    """
    name, spec = label_of(column.name), spec or ColumnSpec()
    if (natural := natural_kind(column)) is None:
        raise ValueError(
            dropping(f"Column {name!r} is entirely missing: expected an observed cell, got none.", name)
        )
    family = FAMILIES[natural]
    kind = _checked_kind(name, natural, spec, limits, joint_density=joint_density)
    options = FitOptions(warp, discrete_support, spec, joint_density, limits)
    codec = CODECS[kind].fit(column, family, options)
    if not joint_density or spec.kind is not None or limits is not None:
        return codec
    if not isinstance(codec, ContinuousCodec | IntegerCodec):
        return codec
    if codec.has_two_values and spec.standard_error is None:
        return kinds.BooleanCodec.fit(column, family, options)
    # A discrete support has the bound among its values, which is enough but for counts with too many zeros.
    numbers = finite_numbers(column.dropna())
    if codec.support is not None and not kinds.start_at_zero(numbers):
        return codec
    is_bound = has_common_bound(numbers, spec)
    return SemicontinuousCodec.fit(column, family, options) if is_bound else codec


def _checked_kind(
    name: Label, natural: Kind, spec: ColumnSpec, limits: Limits | None, *, joint_density: bool
) -> Kind:
    """Return the kind of a column, given that of its cells; a ValueError says why it cannot be as asked."""
    kind, family = Kind(spec.kind or natural), FAMILIES[natural]
    if kind is Kind.SEMICONTINUOUS and family == "numbers" and limits is None and not joint_density:
        kind = natural  # for links that see all other columns
    possible = [str(each) for each, codec in CODECS.items() if family in codec.families]
    if kind not in possible:
        raise ValueError(
            f"Column {name!r}: {family} can be {listing(possible)}, got kind={str(kind)!r}. Convert the "
            "column, or choose another kind."
        )
    bounded = ["continuous", "integer", "semicontinuous"]
    if kind not in bounded and (spec.lower, spec.upper) != (None, None):
        advice = "Convert the column, or leave out the bounds."
        raise ValueError(
            f"Column {name!r}: bounds are for {listing(bounded)} columns, this is {kind}. {advice}"
        )
    if limits is not None and kind is not Kind.CONTINUOUS:
        advice = f"Convert it to floating-point numbers: frame.astype({{{name!r}: 'float64'}})."
        if spec.kind is not None:
            advice = "Leave out its kind, or the limits."
        raise ValueError(f"Column {name!r}: limits are for continuous columns, this is {kind}. {advice}")
    return kind


def codec_from_dict(state: Mapping[str, Any]) -> ColumnCodec:
    """Return the codec that `ColumnCodec.to_dict` wrote; a ValueError says which field is wrong."""
    fields = build(dict[str, Any], state, "column")
    where = f"column {fields.get('name')!r}"
    codec_class = CODECS[build(Kind, fields.pop("kind", None), f"{where}.kind")]
    codec: ColumnCodec = build(codec_class, fields, where)
    codec.check_state()
    return codec
