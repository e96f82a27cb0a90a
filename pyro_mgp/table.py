"""DataFrame ⇄ numbers: the only room of the package that knows what a dtype is.

A :class:`TableCodec` learns from a table what its columns hold, and turns tables into numbers and numbers
back into cells. A column x becomes standardised columns z = (x - mean) / scale, with mean and scale (the
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
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from pandas.api import types

from pyro_mgp.user_warning import warn_user
from pyro_mgp.warp import Unbent, Warp

__all__ = [
    "ColumnCodec",
    "Kind",
    "Label",
    "Table",
    "TableCodec",
    "TableWarning",
    "as_frame",
    "complete",
    "missing",
    "row_keys",
]

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


class TableWarning(UserWarning):
    """Something about a table that its owner may want to change; the result is still well defined."""


# ------------------------------------------------------------------------------------ tables and their holes


def as_frame(X: object) -> pd.DataFrame:
    """The table ``X`` as a DataFrame.

    A DataFrame comes back as it is, the same object. A two-dimensional array, or a list of equally long rows,
    becomes a DataFrame with columns ``"x0"``, ``"x1"``, ...

    Raises:
        TypeError: ``X`` is anything else.

    Example:
        >>> as_frame([[1.5, "a"], [2.5, None]]).columns.tolist()
        ['x0', 'x1']
    """
    if isinstance(X, pd.DataFrame):
        return X
    if (isinstance(X, np.ndarray) and X.ndim == 2) or _is_list_of_rows(X):
        frame = pd.DataFrame(X if isinstance(X, np.ndarray) else list(X))  # type: ignore[call-overload]
        frame.columns = pd.Index([f"x{j}" for j in range(frame.shape[1])])
        return frame
    came = f"an array of shape {X.shape}" if isinstance(X, np.ndarray) else f"{type(X).__name__}"
    raise TypeError(
        f"Expected a table: a pandas DataFrame, a two-dimensional array, or a list of equally long rows; "
        f"got {came}. Wrap it as pandas.DataFrame(...)."
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
        holes[:, j] = _holes(frame.iloc[:, j])
    return holes


def _holes(column: pd.Series[Any]) -> NDArray[np.bool_]:
    """Missing cells of one column, Bool [N]."""
    holes = column.isna().to_numpy(dtype=np.bool_)
    if not isinstance(column.dtype, np.dtype) and types.is_float_dtype(column.dtype):
        # Nullable floats can hide a NaN beside NA, depending on the pandas version and its options.
        holes = holes | np.isnan(column.to_numpy(dtype=np.float64, na_value=np.nan))
    return holes


# ------------------------------------------------------------------------------------------------ one column


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
        name = _label(column.name)
        kind = _kind(column)
        if kind is None:
            raise ValueError(
                f"Column {name!r} is entirely missing: expected at least two different observed cells, got "
                f"none. {_drop(name)}"
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
            return _to_integers(self._within_range(raw[..., 0]), np.iinfo(np.int64))
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
        if isinstance(column.dtype, pd.CategoricalDtype) and _holes(column).any():
            _check_categories(column.dtype, self.levels or (), self.name)


def _few(observed: NDArray[np.float64], most: int) -> tuple[float, ...] | None:
    """The different values of a column if there are at most ``most``, and they come again and again."""
    values, counts = np.unique(observed, return_counts=True)
    again = counts[counts >= _OFTEN].sum()
    if len(values) > most or again < _MOSTLY * len(observed):
        return None
    return tuple(values.tolist())


def _label(name: Hashable) -> Label:
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
    return None if _holes(column).all() else kind


def _object_kind(column: pd.Series[Any]) -> Kind | None:
    """The kind of an object column: that of its observed cells, which must agree."""
    positions = np.flatnonzero(~_holes(column))
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
            f"{_row(column.index, positions[odd])} holds {_plain(cells[odd])!r} "
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
    holes = _holes(column)
    labels = pd.Index(column.astype(object), dtype=object)
    codes = pd.Index(_objects(levels), dtype=object).get_indexer(labels)
    unseen = np.flatnonzero((codes < 0) & ~holes)
    if unseen.size:
        raise ValueError(
            f"Column {name!r}: {_row(column.index, unseen[0])} holds the category "
            f"{_plain(labels[unseen[0]])!r}, unseen at fit; expected one of {_listing(levels)}. Correct the "
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
        levels = tuple(sorted(str(label) for label in column[~_holes(column)].unique()))
    odd = [level for level in levels if not isinstance(level, str | int | float)]
    if odd:
        raise TypeError(
            f"Column {column.name!r}: expected categories that are text, numbers or booleans, got {odd[0]!r} "
            f"({type(odd[0]).__name__}). Rename them: frame[{column.name!r}].cat.rename_categories(str)."
        )
    if len(levels) > MAX_LEVELS:
        raise ValueError(
            f"Column {column.name!r}: expected at most {MAX_LEVELS} categories, got {len(levels)} "
            f"({_listing(levels, 3)}). It is probably an identifier: drop it, or group its categories."
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
            f"Column {name!r}: {_row(column.index, infinite[0])} holds {numbers[infinite[0]]}; expected "
            "finite numbers. Correct the cell, or set it missing: frame.replace([np.inf, -np.inf], np.nan)."
        )
    huge = np.flatnonzero(np.abs(numbers) > LARGEST)
    if huge.size:
        raise ValueError(
            f"Column {name!r}: {_row(column.index, huge[0])} holds {numbers[huge[0]]:g}; expected numbers of "
            f"at most {LARGEST:g} in size. Rescale the column."
        )


def _check_varies(column: pd.Series[Any], name: Label, observed: NDArray[np.float64]) -> None:
    """At least two distinct observed cells, further apart than the smallest spread we can standardise."""
    if observed.shape[1] > 1:
        return  # two levels or more, each observed
    spread = float(np.ptp(observed))  # a single level is all ones
    if spread == 0.0:
        value = column[~_holes(column)].iloc[0]
        raise ValueError(
            f"Column {name!r} is constant: expected at least two different observed cells, got only "
            f"{_plain(value)!r}. There is nothing to learn from it. {_drop(name)}"
        )
    if spread < 1 / LARGEST:
        raise ValueError(
            f"Column {name!r}: expected numbers that vary by at least {1 / LARGEST:g}, got a range of "
            f"{spread:g}. Rescale the column."
        )


def _check_categories(dtype: pd.CategoricalDtype, labels: Iterable[object], name: Label) -> None:
    """A category column with holes must have room for whatever label goes into them."""
    absent = [label for label in labels if label not in dtype.categories]
    if absent:
        raise ValueError(
            f"Column {name!r}: expected a category dtype with the categories {_listing(absent)}, which may "
            f"be imputed, got only {_listing(dtype.categories.tolist())}. Add them with "
            f"frame[{name!r}].cat.add_categories({absent!r})."
        )


def _check_labels(frame: pd.DataFrame) -> None:
    for name in frame.columns:
        _label(name)
    twice = frame.columns[frame.columns.duplicated()].unique().tolist()
    if twice:
        raise ValueError(
            f"Column names must be unique, got {_listing(twice)} more than once. Rename or drop duplicates."
        )


def _check_fit_shape(frame: pd.DataFrame) -> None:
    n_rows, n_columns = frame.shape
    if n_columns == 0:
        raise ValueError("Expected a table with at least two columns, got no columns. Check how it was read.")
    if n_rows == 0:
        raise ValueError("Expected a table with at least two rows, got no rows. Check how it was filtered.")
    if n_rows == 1:
        raise ValueError("Expected a table with at least two rows, got one row. Fit on more rows.")
    if n_columns == 1:
        raise ValueError(
            f"Expected a table with at least two columns, got only one column, {frame.columns[0]!r}: there "
            "is nothing to predict it from. Add columns."
        )


def _check_same_columns(frame: pd.DataFrame, expected: list[Label]) -> None:
    came = [_label(name) for name in frame.columns]
    if came == expected:
        return
    absent = [name for name in expected if name not in set(came)]
    extra = [name for name in came if name not in set(expected)]
    if not absent and not extra:
        raise ValueError(
            f"The columns are in another order than at fit: expected {_listing(expected)}, got "
            f"{_listing(came)}. Reorder them: frame[columns_at_fit]."
        )
    parts = [f"missing {_listing(absent)}"] * bool(absent) + [f"unexpected {_listing(extra)}"] * bool(extra)
    raise ValueError(
        f"The columns differ from those at fit: {' and '.join(parts)}. Expected, in this order: "
        f"{_listing(expected)}. Add the missing ones (NaN will do) and drop the others."
    )


def _check_unique_names(names: tuple[str, ...]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(
            f"Encoded columns must have unique names, but {_listing(twice)} would name more than one: a "
            "column's name, read as text, equals another's name or its 'column=category'. Rename one of them."
        )


def _warn_of_empty_rows(index: pd.Index[Any], holes: NDArray[np.bool_]) -> None:
    empty = np.flatnonzero(holes.all(axis=1))
    if empty.size == 0:
        return
    first = ", ".join(_row(index, i) for i in empty[:3]) + (", ..." if empty.size > 3 else "")
    are = "1 row is" if empty.size == 1 else f"{empty.size} rows are"
    warn_user(
        f"{are} entirely missing: {first}. With nothing to predict from, such rows are imputed from the "
        "marginal distribution of the columns. Drop them with frame.dropna(how='all') if that is not wanted.",
        TableWarning,
    )


def _row(index: pd.Index[Any], position: int | np.integer[Any]) -> str:
    return f"row {_plain(index[int(position)])!r} (position {position})"


def _plain(value: Any) -> Any:
    """A scalar of numpy as Python's own, which prints without its type."""
    return value.item() if isinstance(value, np.generic) else value


def _listing(items: Iterable[object], most: int = 10) -> str:
    """The first items, as in ``['a', 'b', ... and 3 more]``."""
    listed = [repr(_plain(item)) for item in items]
    more = [f"... and {len(listed) - most} more"] if len(listed) > most else []
    return f"[{', '.join(listed[:most] + more)}]"


def _drop(name: Label) -> str:
    return f"Drop it: frame.drop(columns=[{name!r}])."


# ---------------------------------------------------------------------------------------------- whole tables


@dataclass(frozen=True, eq=False)
class Table:
    """A table as numbers.

    Attributes:
        values: float64 [N, D], standardised, NaN where missing.
        observed: Bool [N, D], True where we have the cell.
        keys: uint64 [N], one per row; see :func:`row_keys`.
    """

    values: NDArray[np.float64]
    observed: NDArray[np.bool_]
    keys: NDArray[np.uint64]


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
    def fit(cls, frame: pd.DataFrame, warp: bool = False, few_values: int = 0) -> TableCodec:
        """Learn the codec of every column of ``frame``; see :meth:`ColumnCodec.fit` for the arguments.

        Raises:
            TypeError: A column has an unsupported dtype or mixes types.
            ValueError: The table has fewer than two rows or columns, labels that are neither text nor
                integers or not unique, or a column that :meth:`ColumnCodec.fit` refuses.

        Warns:
            TableWarning: Rows are entirely missing.
        """
        codec = cls._learn(frame, warp, few_values)
        _warn_of_empty_rows(frame.index, missing(frame))
        return codec

    @classmethod
    def fit_encode(
        cls, frame: pd.DataFrame, warp: bool = False, few_values: int = 0
    ) -> tuple[TableCodec, Table]:
        """The codec of ``frame`` and ``frame`` encoded: :meth:`fit`, then :meth:`encode`, warning once."""
        codec = cls._learn(frame, warp, few_values)
        return codec, codec.encode(frame)

    @classmethod
    def _learn(cls, frame: pd.DataFrame, warp: bool, few_values: int) -> TableCodec:
        _check_labels(frame)
        _check_fit_shape(frame)
        return cls(tuple(ColumnCodec.fit(column, warp, few_values) for _, column in frame.items()))

    def encode(self, frame: pd.DataFrame) -> Table:
        """``frame``, with the columns of the fitted one in the same order, as numbers.

        Raises:
            TypeError: A column holds another kind of cell than at fit.
            ValueError: No rows; missing, extra, duplicate or reordered columns; infinite or huge numbers; a
                category unseen at fit.

        Warns:
            TableWarning: Rows are entirely missing.
        """
        _check_labels(frame)
        _check_same_columns(frame, [column.name for column in self.columns])
        if len(frame) == 0:
            raise ValueError(
                "Expected a table with at least one row, got no rows. Check how it was filtered."
            )
        values = np.concatenate([column.encode(frame[column.name]) for column in self.columns], axis=1)
        holes = np.isnan(values)
        _warn_of_empty_rows(frame.index, holes)
        return Table(values, ~holes, row_keys(values, frame.index))

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
    def unbent(self) -> list[Unbent | None]:
        """How the bend of each of the D encoded columns is undone, None where there is none."""
        return [column.unbent for column in self.columns for _ in column.names]

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
        return cls(tuple(ColumnCodec.from_dict(column) for column in state["columns"]))


# ------------------------------------------------------------------------------------------ numbers to cells


def complete(frame: pd.DataFrame, cells: Mapping[Label, NDArray[Any]]) -> pd.DataFrame:
    """A copy of ``frame`` with missing cells filled.

    Args:
        frame: The table; never modified.
        cells: For each column to fill, the decoded values of its missing cells, one-dimensional, in row order
            (:meth:`ColumnCodec.decode`). Columns not named keep their holes.

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
        raise ValueError(
            f"Expected columns of the table, {_listing(frame.columns)}, got {_listing(unknown)}."
        )
    completed = frame.copy()
    for name, values in cells.items():
        completed[name] = _filled(frame[name], np.asarray(values), name)
    return completed


def _filled(column: pd.Series[Any], values: NDArray[Any], name: Label) -> pd.Series[Any]:
    """``column`` with ``values`` in its holes, in its own dtype."""
    holes = _holes(column)
    if values.shape != (holes.sum(),):
        raise ValueError(
            f"Column {name!r}: expected one value per missing cell, shape ({holes.sum()},), got shape "
            f"{values.shape}."
        )
    if values.size == 0:
        return column
    dtype = column.dtype
    if not _holds(dtype, values):
        if holes.all():
            return pd.Series(values.tolist(), index=column.index, name=column.name)
        if isinstance(dtype, pd.CategoricalDtype):
            _check_categories(dtype, dict.fromkeys(values.tolist()), name)
        raise ValueError(
            f"Column {name!r}: dtype {dtype} cannot hold the values {_listing(values.tolist(), 3)}."
        )
    array = column.array.copy()
    array[holes] = _cast(values, dtype)
    return pd.Series(array, index=column.index, name=column.name, dtype=dtype)


def _holds(dtype: Any, values: NDArray[Any]) -> bool:
    """Whether cells of ``dtype`` can be ``values``, numbers after rounding."""
    if dtype == np.dtype(object):
        return True
    if isinstance(dtype, pd.CategoricalDtype):
        return bool((dtype.categories.get_indexer(pd.Index(values)) >= 0).all())
    if types.is_bool_dtype(dtype):
        return values.dtype.kind == "b"
    if types.is_numeric_dtype(dtype):
        return values.dtype.kind in "iuf"
    return types.is_string_dtype(dtype) and all(isinstance(value, str) for value in values.tolist())


def _cast(values: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """``values`` as what an array of ``dtype`` stores."""
    target = getattr(dtype, "numpy_dtype", dtype)
    if types.is_integer_dtype(dtype):
        return _to_integers(values, np.iinfo(target)).astype(target)
    if types.is_float_dtype(dtype):
        limits = np.finfo(target)
        return np.clip(values.astype(np.float64), float(limits.min), float(limits.max)).astype(target)
    if types.is_bool_dtype(dtype):
        return values.astype(np.bool_)
    return values.astype(object)  # Python's own bool, int, float and str


def _to_integers(values: NDArray[Any], limits: np.iinfo[Any]) -> NDArray[np.int64]:
    """``values`` rounded and clipped to ``limits`` and to int64."""
    low, high = max(int(limits.min), -(2**63)), min(int(limits.max), 2**63 - 1)
    if values.dtype.kind == "f":
        # 2⁶³ - 1 is no float64: clip to the largest one below, or the cast would wrap around.
        top = min(float(high), np.nextafter(2.0**63, 0.0))
        return np.asarray(np.clip(np.rint(values), float(low), top)).astype(np.int64)
    return np.asarray(np.clip(values, low, high)).astype(np.int64)


# -------------------------------------------------------------------------------------------------- row keys

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MISSING = np.int64(-(2**63))


def row_keys(values: NDArray[np.float64], index: pd.Index[Any]) -> NDArray[np.uint64]:
    """A key per row that travels with the row, for random draws that must not depend on batches or row order.

    The key is a hash of the row's cells, rounded to 1e-6, mixed with the row's rank among rows equal to it.
    Equal rows are ranked by the hash of their index label, then by position. So permuting a table together
    with its index permutes its keys; only equal rows with equal labels may swap theirs, which nobody can see.
    Keys are the same in every process and on every platform.

    Args:
        values: Standardised cells, float64 [N, D], NaN where missing.
        index: The N row labels.

    Returns:
        uint64 [N].

    Raises:
        ValueError: ``values`` and ``index`` differ in length.

    Example:
        >>> values = np.array([[0.0, 1.0], [0.0, 1.0], [2.0, np.nan]])
        >>> keys = row_keys(values, pd.Index(["a", "b", "c"]))
        >>> bool((row_keys(values[::-1], pd.Index(["c", "b", "a"])) == keys[::-1]).all())
        True
    """
    if len(values) != len(index):
        raise ValueError(f"Expected one index label per row, got {len(values)} rows and {len(index)} labels.")
    content = np.zeros(len(values), dtype=np.uint64)
    for column in values.T:
        content = _mix(content ^ _rounded(column))
    return _mix(content + _rank_among_equals(content, _label_hashes(index)) * _GOLDEN)


def _rounded(column: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Cells in units of 1e-6 as the bits of an int64, a fixed pattern where missing."""
    # The limit keeps clear of the sentinel; the cast to integers makes -0. and 0. one.
    units = np.clip(np.rint(np.where(np.isnan(column), 0.0, column) * 1e6), -(2.0**62), 2.0**62)
    return np.where(np.isnan(column), _MISSING, units.astype(np.int64)).view(np.uint64)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One step of splitmix64 (Steele, Lea, Flood 2014): neighbouring inputs, unrelated outputs."""
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _rank_among_equals(content: NDArray[np.uint64], labels: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """0, 1, ... among rows of equal ``content``, by ``labels``, then by position (the sort is stable)."""
    order = np.lexsort((labels, content))
    ordered = content[order]
    positions = np.arange(len(content))
    is_first = np.ones(len(content), dtype=np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    start = np.maximum.accumulate(np.where(is_first, positions, 0))
    ranks = np.empty(len(content), dtype=np.uint64)
    ranks[order] = (positions - start).astype(np.uint64)
    return ranks


def _label_hashes(index: pd.Index[Any]) -> NDArray[np.uint64]:
    try:
        hashes = pd.util.hash_pandas_object(index, index=False)
    except (TypeError, ValueError):  # pandas cannot hash labels of mixed types when some are tuples
        hashes = pd.util.hash_pandas_object(pd.Index([repr(label) for label in index]), index=False)
    return np.asarray(hashes, dtype=np.uint64)
