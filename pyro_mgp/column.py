"""One column ⇄ numbers: what a dtype is, this room knows, and `table` for whole tables.

A :class:`ColumnCodec` learns from a column what its cells are, and turns cells into numbers and numbers back
into cells. A column x becomes standardised columns z = (x - mean) / scale, with mean and scale (the
population standard deviation) of the observed cells; numbers with long tails may be bent first (``warp``)::

    kind          what it reads                               encoded columns
    CONTINUOUS    floats                                      1
    INTEGER       integers                                    1
    BOOLEAN       booleans                                    1, from False = 0 and True = 1
    CATEGORICAL   text, pandas categories                     1 per level observed at fit (one-hot)

Missing cells (NaN, None, ``pd.NA``, ``pd.NaT``) are NaN inside, and nothing else is. A one-hot cell is
missing in all its encoded columns or in none.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from pandas.api import types

from pyro_mgp.warp import Unbent, Warp
from pyro_mgp.wording import drop_it, listing, plain, row_name

__all__ = ["ColumnCodec", "Kind", "Label", "check_categories", "holes_of", "label_of", "to_integers"]


Label: TypeAlias = str | int
Level: TypeAlias = str | int | float | bool

# Squares of numbers up to LARGEST, and of spreads down to 1 / LARGEST, stay well inside float64.
LARGEST = 1e100
MAX_LEVELS = 100

# A column has few values if at least so many of its cells hold one that is there so often.
_MOSTLY, _OFTEN = 0.9, 5


class Kind(enum.StrEnum):
    """What the cells of a column are."""

    CONTINUOUS = "continuous"
    INTEGER = "integer"
    BOOLEAN = "boolean"
    CATEGORICAL = "categorical"


def holes_of(column: pd.Series[Any]) -> NDArray[np.bool_]:
    """Missing cells of one column, Bool [N]."""
    holes = column.isna().to_numpy(dtype=np.bool_)
    if not isinstance(column.dtype, np.dtype) and types.is_float_dtype(column.dtype):
        # Nullable floats can hide a NaN beside NA, depending on the pandas version and its options.
        holes = holes | np.isnan(column.to_numpy(dtype=np.float64, na_value=np.nan))
    return holes


@dataclass(frozen=True)
class ColumnCodec:
    """How one column becomes numbers and back.

    Attributes:
        name: The column's label.
        kind: What its cells are.
        dtype: Its pandas dtype at fit, as text.
        levels: The categories observed at fit, in the order of the encoded columns; None unless CATEGORICAL.
        mean: Mean of the observed cells, one per encoded column, in the column's own units; of the bent cells
            if there is a warp.
        scale: Population standard deviation of the observed cells, likewise.
        low: Smallest observed cell of an encoded column, in its own units; 0 for indicators.
        high: Largest, likewise; 1 for indicators.
        two_valued: Whether it is a boolean, or an integer seen as ``low`` and ``high`` only.
        own_scale: Population standard deviation of the observed cells in the column's own units, bent or not.
        warp: How numbers are bent before they are standardised; None if they are not.
        few: All its values in ascending order if it is numeric and they are few, else None.

    Example:
        >>> codec = ColumnCodec.fit(pd.Series([1.0, 3.0, None], name="mass"))
        >>> codec.mean, codec.scale
        ((2.0,), (1.0,))
        >>> codec.encode(pd.Series([4.0, None], name="mass")).tolist()
        [[2.0], [nan]]
        >>> codec.decode([[2.0]]).tolist()
        [4.0]
    """

    name: Label
    kind: Kind
    dtype: str
    levels: tuple[Level, ...] | None
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    low: float
    high: float
    two_valued: bool
    own_scale: tuple[float, ...]
    warp: Warp | None
    few: tuple[float, ...] | None = None

    @classmethod
    def fit(cls, column: pd.Series[Any], warp: bool = False, few_values: int = 0) -> ColumnCodec:
        """Learn the codec of ``column``, which must vary.

        Args:
            column: The column.
            warp: Whether numbers with long tails may be bent.
            few_values: Most different values of a numeric column that counts as one of few values. They have
                to come again, too: nine in ten cells hold a value that is there five times or more.

        Sums are rounded exactly once, so the rows' order does not change a single bit of the codec.

        Raises:
            TypeError: The dtype is not supported, or an object column mixes types.
            ValueError: The column is entirely missing or constant, holds infinite or huge numbers, or has
                more than 100 categories.
        """
        name = label_of(column.name)
        kind = _kind(column)
        if kind is None:
            raise ValueError(
                f"Column {name!r} is entirely missing: expected at least two different observed cells, got "
                f"none. {drop_it(name)}"
            )
        levels = _levels(column) if kind is Kind.CATEGORICAL else None
        raw = _raw(column, name, kind, levels)
        observed = raw[~np.isnan(raw[:, 0])]
        _check_varies(column, name, observed)
        numeric = kind in (Kind.CONTINUOUS, Kind.INTEGER)
        bend = Warp.choose(observed[:, 0]) if warp and numeric else None
        straight = observed if bend is None else bend.forward(observed)
        mean, scale = zip(*(_moments(values) for values in straight.T), strict=True)
        own_scale = scale if bend is None else (_moments(observed[:, 0])[1],)
        low, high = float(observed.min()), float(observed.max())
        only_two = bool(((observed == low) | (observed == high)).all())
        two_valued = only_two and kind in (Kind.BOOLEAN, Kind.INTEGER)
        few = _few(observed[:, 0], few_values) if numeric and not two_valued else None
        return cls(
            name, kind, str(column.dtype), levels, mean, scale, low, high, two_valued, own_scale, bend, few
        )

    @property
    def width(self) -> int:
        """Number of encoded columns: 1, or the number of levels."""
        return len(self.mean)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the encoded columns: ``"bill_length_mm"``, or ``"species=Adelie"`` for a level."""
        if self.levels is None:
            return (str(self.name),)
        return tuple(f"{self.name}={level}" for level in self.levels)

    @property
    def unbent(self) -> Unbent | None:
        """How the bend of its standardised cells is undone, within the observed range; None without one."""
        if self.warp is None:
            return None
        low, high = self.warp.forward(np.array([self.low, self.high]))
        return Unbent(self.mean[0], self.scale[0], float(low), float(high))

    def encode(self, column: pd.Series[Any]) -> NDArray[np.float64]:
        """``column`` standardised: float64 [N, width], NaN where missing.

        Integers, floats and their nullable forms may stand in for each other; an entirely missing column may
        have any supported dtype.

        Raises:
            TypeError: The column holds another kind of cell than at fit, or an unsupported one.
            ValueError: A number is infinite or huge, or a category was not seen at fit.
        """
        kind = _kind(column)
        if kind is None:
            return np.full((len(column), self.width), np.nan)
        self._check_kind(column, kind)
        raw = _raw(column, self.name, self.kind, self.levels)
        if self.warp is not None:
            raw = self.warp.forward(raw)
        return np.asarray((raw - self.mean) / self.scale, dtype=np.float64)

    def decode(self, values: ArrayLike, to_few: bool = False) -> NDArray[Any]:
        """Cells from standardised ``values`` [..., width], as an array [...] in the column's own units.

        With ``to_few`` each number becomes the nearest of ``few``.

        CONTINUOUS gives float64, clipped to the observed range if the column is bent; INTEGER int64, rounded
        and clipped to the observed range, or the nearer of two values where only two were observed; BOOLEAN
        bool, True from 0.5 upwards; CATEGORICAL an object array of labels, the level with the largest score.

        Raises:
            ValueError: The last axis is not ``width`` long, or a value is NaN.
        """
        scores = np.asarray(values, dtype=np.float64)
        if scores.ndim == 0 or scores.shape[-1] != self.width:
            raise ValueError(
                f"Column {self.name!r}: expected values of shape (..., {self.width}), got {scores.shape}."
            )
        if np.isnan(scores).any():
            raise ValueError(f"Column {self.name!r}: expected numbers to decode, got NaN.")
        raw = scores * self.scale + self.mean
        if self.warp is not None:
            # A normal tail becomes an exponential one: without a bound, one draw outweighs a column.
            raw = self._within_range(self.warp.backward(raw))
        if self.levels is not None:
            return np.asarray(_objects(self.levels)[raw.argmax(axis=-1)], dtype=object)
        if self.kind is Kind.BOOLEAN:
            return np.asarray(raw[..., 0] >= 0.5)
        if to_few and self.few is not None:
            few = np.asarray(self.few)
            raw = few[np.searchsorted((few[1:] + few[:-1]) / 2, raw)]
        if self.kind is Kind.INTEGER:
            return to_integers(self._within_range(raw[..., 0]), np.iinfo(np.int64))
        return np.asarray(raw[..., 0])

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict from which :meth:`from_dict` makes an equal codec."""
        return {
            "name": self.name,
            "kind": self.kind.value,
            "dtype": self.dtype,
            "levels": None if self.levels is None else list(self.levels),
            "mean": list(self.mean),
            "scale": list(self.scale),
            "low": self.low,
            "high": self.high,
            "two_valued": self.two_valued,
            "own_scale": list(self.own_scale),
            "warp": None if self.warp is None else dataclasses.asdict(self.warp),
            "few": None if self.few is None else list(self.few),
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> ColumnCodec:
        """The codec that :meth:`to_dict` wrote; labels come back with the type they had."""
        levels = None if state["levels"] is None else tuple(state["levels"])
        tuples = {"levels": levels} | {name: tuple(state[name]) for name in ("mean", "scale", "own_scale")}
        warp = None if state["warp"] is None else Warp(**state["warp"])
        few = None if state["few"] is None else tuple(state["few"])
        return cls(**{**state, **tuples, "kind": Kind(state["kind"]), "warp": warp, "few": few})

    @property
    def few_encoded(self) -> NDArray[np.float64] | None:
        """``few``, standardised [J]."""
        if self.few is None:
            return None
        raw = np.asarray(self.few)
        bent = raw if self.warp is None else self.warp.forward(raw)
        return np.asarray((bent - self.mean[0]) / self.scale[0], dtype=np.float64)

    @property
    def discrete(self) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Standardised values [width] of "no" and "yes" in each encoded column, if nothing lies between."""
        if self.levels is None and not self.two_valued:
            return None
        mean, scale = np.asarray(self.mean), np.asarray(self.scale)
        return (self.low - mean) / scale, (self.high - mean) / scale

    def _within_range(self, raw: NDArray[np.float64]) -> NDArray[np.float64]:
        """Numbers clipped to the observed range: no -1 children, no grade 7 out of 6."""
        if self.two_valued:
            return np.where(raw >= (self.low + self.high) / 2, self.high, self.low)
        return np.clip(raw, self.low, self.high)

    def _check_kind(self, column: pd.Series[Any], kind: Kind) -> None:
        numeric = {Kind.CONTINUOUS, Kind.INTEGER}
        if kind is not self.kind and not {kind, self.kind} <= numeric:
            raise TypeError(
                f"Column {self.name!r}: expected {self.kind} cells (dtype {self.dtype} at fit), got {kind} "
                f"cells (dtype {column.dtype}). Convert the column to {self.dtype}, or fit again."
            )
        if isinstance(column.dtype, pd.CategoricalDtype) and holes_of(column).any():
            check_categories(column.dtype, self.levels or (), self.name)


def _few(observed: NDArray[np.float64], most: int) -> tuple[float, ...] | None:
    """The different values of a column if there are at most ``most``, and they come again and again."""
    values, counts = np.unique(observed, return_counts=True)
    again = counts[counts >= _OFTEN].sum()
    if len(values) > most or again < _MOSTLY * len(observed):
        return None
    return tuple(values.tolist())


def label_of(name: Hashable) -> Label:
    """``name`` as a column label: numpy's text and integers become Python's."""
    if isinstance(name, str):
        return str(name)
    if isinstance(name, int | np.integer) and not isinstance(name, bool):
        return int(name)
    raise ValueError(
        f"Column labels must be text or integers, got {name!r} ({type(name).__name__}). "
        "Rename the columns, for example frame.columns = [str(c) for c in frame.columns]."
    )


# ------------------------------------------------------------------------------------------ reading a column


def _kind(column: pd.Series[Any]) -> Kind | None:
    """The kind of ``column``'s cells, None if all are missing; TypeError if it is none of ours."""
    dtype = column.dtype
    if dtype == np.dtype(object):
        return _object_kind(column)
    if isinstance(dtype, pd.CategoricalDtype):
        kind = Kind.CATEGORICAL
    elif isinstance(dtype, pd.SparseDtype) or types.is_complex_dtype(dtype):
        raise _unsupported(column, str(dtype))
    elif types.is_bool_dtype(dtype):
        kind = Kind.BOOLEAN
    elif types.is_integer_dtype(dtype):
        kind = Kind.INTEGER
    elif types.is_float_dtype(dtype):
        kind = Kind.CONTINUOUS
    elif types.is_string_dtype(dtype):
        kind = Kind.CATEGORICAL
    else:
        raise _unsupported(column, str(dtype))
    return None if holes_of(column).all() else kind


def _object_kind(column: pd.Series[Any]) -> Kind | None:
    """The kind of an object column: that of its observed cells, which must agree."""
    positions = np.flatnonzero(~holes_of(column))
    if positions.size == 0:
        return None
    cells = column.array[positions]
    of_type = {cell_type: _type_kind(cell_type) for cell_type in set(map(type, cells))}
    kinds = set(of_type.values())
    if kinds == {Kind.INTEGER, Kind.CONTINUOUS}:
        return Kind.CONTINUOUS
    first = type(cells[0])
    if len(kinds) > 1:
        families = {t: "number" if k in (Kind.INTEGER, Kind.CONTINUOUS) else k for t, k in of_type.items()}
        odd = next(i for i, cell in enumerate(cells) if families[type(cell)] != families[first])
        raise TypeError(
            f"Column {column.name!r} mixes types: expected one type of cell, got {first.__name__} first, but "
            f"{row_name(column.index, positions[odd])} holds {plain(cells[odd])!r} "
            f"({type(cells[odd]).__name__}). Convert the column, for example with "
            f"pandas.to_numeric(frame[{column.name!r}]) or frame[{column.name!r}].astype('string')."
        )
    kind = of_type[first]
    if kind is None:
        raise _unsupported(column, f"object, holding {first.__name__}")
    return kind


def _type_kind(cell_type: type) -> Kind | None:
    """The kind of a Python object in a cell, by its type. A bool is an int in Python, so bool comes first."""
    families: tuple[tuple[tuple[type, ...], Kind], ...] = (
        ((bool, np.bool_), Kind.BOOLEAN),
        ((int, np.integer), Kind.INTEGER),
        ((float, np.floating), Kind.CONTINUOUS),
        ((str,), Kind.CATEGORICAL),
    )
    return next((kind for classes, kind in families if issubclass(cell_type, classes)), None)


def _unsupported(column: pd.Series[Any], came: str) -> TypeError:
    """The error for a dtype outside our four kinds, with the way out that fits it."""
    cell = f"frame[{column.name!r}]"
    days = f"Turn it into a number, for example (d - d.min()).dt.days with d = pandas.to_datetime({cell})."
    seconds = f"Turn it into a number: pandas.to_timedelta({cell}).dt.total_seconds()."
    hints = {
        "sparse": f"Make it dense: {cell}.sparse.to_dense().",
        "timedelta": seconds,
        "duration": seconds,
        "date": days,
        "timestamp": days,
        "period": f"Turn it into a number, for example {cell}.dt.year.",
        "complex": "Split it into two columns, the real and the imaginary part.",
        "decimal": f"Convert it: {cell}.astype('float64').",
    }
    advice = next((hint for key, hint in hints.items() if key in came.lower()), "Convert it.")
    return TypeError(
        f"Column {column.name!r}: expected numbers, booleans, text or pandas categories, got dtype {came}. "
        f"{advice} Or drop it: frame.drop(columns=[{column.name!r}])."
    )


def _raw(
    column: pd.Series[Any], name: Label, kind: Kind, levels: tuple[Level, ...] | None
) -> NDArray[np.float64]:
    """The cells as numbers in their own units: float64 [N, width], NaN where missing."""
    if levels is not None:
        return _one_hot(column, name, levels)
    try:
        numbers = column.to_numpy(dtype=np.float64, na_value=np.nan)
    except OverflowError as error:  # a Python integer above 1.8e308
        raise ValueError(
            f"Column {name!r}: expected numbers of at most {LARGEST:g} in size, got an integer beyond the "
            "range of 64-bit floats. Rescale the column."
        ) from error
    _check_size(column, name, numbers)
    return numbers[:, None]


def _one_hot(column: pd.Series[Any], name: Label, levels: tuple[Level, ...]) -> NDArray[np.float64]:
    """Indicators of the ``levels``: 0. or 1., [N, width], a row of NaN where missing."""
    holes = holes_of(column)
    labels = pd.Index(column.astype(object), dtype=object)
    codes = pd.Index(_objects(levels), dtype=object).get_indexer(labels)
    unseen = np.flatnonzero((codes < 0) & ~holes)
    if unseen.size:
        raise ValueError(
            f"Column {name!r}: {row_name(column.index, unseen[0])} holds the category "
            f"{plain(labels[unseen[0]])!r}, unseen at fit; expected one of {listing(levels)}. Correct the "
            "cell, set it missing, or fit again with rows of that category."
        )
    hot = np.equal.outer(codes, np.arange(len(levels))).astype(np.float64)
    hot[holes] = np.nan
    return hot


def _levels(column: pd.Series[Any]) -> tuple[Level, ...]:
    """Observed categories: in category order for the category dtype, else sorted."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        codes = np.unique(column.cat.codes.to_numpy())
        found = column.cat.categories[codes[codes >= 0]].tolist()
        levels = tuple(level.item() if isinstance(level, np.generic) else level for level in found)
    else:
        levels = tuple(sorted(str(label) for label in column[~holes_of(column)].unique()))
    odd = [level for level in levels if not isinstance(level, str | int | float)]
    if odd:
        raise TypeError(
            f"Column {column.name!r}: expected categories that are text, numbers or booleans, got {odd[0]!r} "
            f"({type(odd[0]).__name__}). Rename them: frame[{column.name!r}].cat.rename_categories(str)."
        )
    if len(levels) > MAX_LEVELS:
        raise ValueError(
            f"Column {column.name!r}: expected at most {MAX_LEVELS} categories, got {len(levels)} "
            f"({listing(levels, 3)}). It is probably an identifier: drop it, or group its categories."
        )
    return levels


def _moments(values: NDArray[np.float64]) -> tuple[float, float]:
    """Mean and population standard deviation, both independent of the order of ``values``."""
    mean = math.fsum(values.tolist()) / len(values)
    variance = math.fsum(np.square(values - mean).tolist()) / len(values)
    return mean, math.sqrt(variance)


def _objects(items: Iterable[object]) -> NDArray[np.object_]:
    """A one-dimensional object array that keeps every item as the Python object it is."""
    listed = list(items)
    array = np.empty(len(listed), dtype=object)
    array[:] = listed
    return array


# ---------------------------------------------------------------------------------------------------- checks


def _check_size(column: pd.Series[Any], name: Label, numbers: NDArray[np.float64]) -> None:
    infinite = np.flatnonzero(np.isinf(numbers))
    if infinite.size:
        raise ValueError(
            f"Column {name!r}: {row_name(column.index, infinite[0])} holds {numbers[infinite[0]]}; expected "
            "finite numbers. Correct the cell, or set it missing: frame.replace([np.inf, -np.inf], np.nan)."
        )
    huge = np.flatnonzero(np.abs(numbers) > LARGEST)
    if huge.size:
        raise ValueError(
            f"Column {name!r}: {row_name(column.index, huge[0])} holds {numbers[huge[0]]:g}; expected numbers "
            f"of at most {LARGEST:g} in size. Rescale the column."
        )


def _check_varies(column: pd.Series[Any], name: Label, observed: NDArray[np.float64]) -> None:
    """At least two distinct observed cells, further apart than the smallest spread we can standardise."""
    if observed.shape[1] > 1:
        return  # two levels or more, each observed
    spread = float(np.ptp(observed))  # a single level is all ones
    if spread == 0.0:
        value = column[~holes_of(column)].iloc[0]
        raise ValueError(
            f"Column {name!r} is constant: expected at least two different observed cells, got only "
            f"{plain(value)!r}. There is nothing to learn from it. {drop_it(name)}"
        )
    if spread < 1 / LARGEST:
        raise ValueError(
            f"Column {name!r}: expected numbers that vary by at least {1 / LARGEST:g}, got a range of "
            f"{spread:g}. Rescale the column."
        )


def check_categories(dtype: pd.CategoricalDtype, labels: Iterable[object], name: Label) -> None:
    """A category column with holes must have room for whatever label goes into them."""
    absent = [label for label in labels if label not in dtype.categories]
    if absent:
        raise ValueError(
            f"Column {name!r}: expected a category dtype with the categories {listing(absent)}, which may "
            f"be imputed, got only {listing(dtype.categories.tolist())}. Add them with "
            f"frame[{name!r}].cat.add_categories({absent!r})."
        )


def to_integers(values: NDArray[Any], limits: np.iinfo[Any]) -> NDArray[np.int64]:
    """``values`` rounded and clipped to ``limits`` and to int64."""
    low, high = max(int(limits.min), -(2**63)), min(int(limits.max), 2**63 - 1)
    if values.dtype.kind == "f":
        # 2⁶³ - 1 is no float64: clip to the largest one below, or the cast would wrap around.
        top = min(float(high), np.nextafter(2.0**63, 0.0))
        return np.asarray(np.clip(np.rint(values), float(low), top)).astype(np.int64)
    return np.asarray(np.clip(values, low, high)).astype(np.int64)
