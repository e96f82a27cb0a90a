"""Base class of column codecs, the codec of constants, and observation models of cells."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias, cast

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from pyro_mgp._support.messages import Hinted, listing, plain, row_name
from pyro_mgp.data.cells import FAMILIES, Family, as_stored, holes_of, label_of, natural_kind
from pyro_mgp.data.column_spec import ColumnSpec, Kind, Label
from pyro_mgp.data.limits import Limits, Numbers
from pyro_mgp.data.transforms import InverseTransform, Warp

Level: TypeAlias = str | int | float | bool

# Squares of numbers up to LARGEST, and of spreads down to 1 / LARGEST, stay well inside float64.
LARGEST = 1e100
MAX_LEVELS = 100
# Bound on standardised cells of a saved codec: those of a fit to n cells are at most the root of n.
_MOST_SCALES = 1e9


class FitOptions(NamedTuple):
    """Arguments of `fit_column`, besides the column to fit."""

    warp: bool
    discrete_support: int
    spec: ColumnSpec
    joint_density: bool
    limits: Limits | None


@dataclass(frozen=True)
class ColumnCodec:
    """Codec of one column: converts cells to standardised numbers, and back.

    A codec reads cells as numbers in the column's own units, transforms them if that makes them more nearly
    normal (`warp`), and standardises them: z = (x - mean) / scale. Missing cells are NaN. A kind of column
    subclasses it and overrides the methods in which it differs.
    """

    kind: ClassVar[Kind]
    """Kind of column that the class is for."""
    families: ClassVar[tuple[Family, ...]]
    """Storage classes of cells that can be of this kind."""

    name: Label
    family: Family
    """Storage class of the cells at fit."""
    dtype: str
    """Pandas dtype at fit, as text."""
    mean: tuple[float, ...] = ()
    """Mean of the transformed observed cells, for each encoded column."""
    scale: tuple[float, ...] = ()
    """Population standard deviation of the transformed observed cells, for each encoded column."""
    own_scale: tuple[float, ...] = ()
    """Population standard deviation of the observed cells in their own units, for each encoded column."""
    low: float = 0.0
    """Smallest observed number, in the column's own units; 0 for indicators."""
    high: float = 0.0
    """Largest observed number, in the column's own units; 1 for indicators."""

    warp = cast("Warp | None", None)
    """Transform of cells before standardisation, None for the identity."""
    levels = cast("tuple[Level, ...] | None", None)
    """Levels observed at fit, in the order of their codes; None for kinds without levels."""
    shares = cast("tuple[float, ...] | None", None)
    """Relative frequencies of evenly spaced ordered values; None for kinds that are not ordinal."""
    support = cast("tuple[float, ...] | None", None)
    """All values of a discrete support, ascending; None for any other column."""
    step = 0.0
    """Number of which draws are multiples, in the column's own units; 0 if they are not rounded."""

    @property
    def width(self) -> int:
        """Number of encoded columns: 1, the number of levels, or 0 for a constant."""
        return len(self.mean)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the encoded columns: `"bill_length_mm"`, or `"species=Adelie"` for an indicator."""
        return (str(self.name),) * self.width

    @property
    def parts(self) -> tuple[ColumnCodec, ...]:
        """Codec of each encoded column: this one, unless the column has parts of different kinds."""
        return (self,) * self.width

    @property
    def unrounded(self) -> ColumnCodec:
        """Codec that decodes means, which in floating-point columns need not be whole where draws are."""
        return self

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Bounds at which draws must be truncated, standardised; None if no truncation is needed."""
        return None

    @property
    def drawn_range(self) -> tuple[float, float]:
        """Range of draws of a transformed or integer column, in its own units."""
        return self.low, self.high

    @property
    def inverse_transform(self) -> InverseTransform | None:
        """Inverse of the transform, for standardised cells in the drawn range; None without a transform."""
        if self.warp is None:
            return None
        low, high = sorted(self.warp.forward(np.array(self.drawn_range)).tolist())
        return InverseTransform(self.mean[0], self.scale[0], low, high, self.warp.name)

    @property
    def support_encoded(self) -> Numbers | None:
        """Standardised values of a discrete support, ascending `[J]`; None for any other column."""
        return None if self.support is None else self.standardise(np.asarray(self.support))

    @property
    def indicators(self) -> tuple[Numbers, Numbers] | None:
        """Standardised values of 0 and of 1 in each indicator, `[width]` each; None without indicators."""
        return None

    @property
    def is_binary(self) -> bool:
        """True if each encoded column has two values, whose square is a linear function of them."""
        return self.indicators is not None or (self.shares is not None and len(self.shares) == 2)

    def ordinal(self, position: int = 0, unless: Sequence[int] = ()) -> tuple[Numbers, Numbers] | None:
        """Return the standardised values of an ordinal column, ascending, and their frequencies, `[K]` each.

        They are those of the encoded column at a position, where indicators `unless` are 0; None if the
        column's model is not ordinal.
        """
        if self.shares is None:
            return None
        values = self.standardise(np.linspace(self.low, self.high, len(self.shares)))
        return values, np.asarray(self.shares)

    @classmethod
    def fit(cls, column: pd.Series[Any], family: Family, options: FitOptions) -> ColumnCodec:
        """Fit a codec of this class, or a `ConstantCodec`, to a column; see `fit_column`."""
        codec = cls(label_of(column.name), family, str(column.dtype), **cls._given(column, options.spec))
        raw = codec._checked(column, at_fit=True)
        observed = raw[~np.isnan(raw[:, 0])]
        if (observed == observed[0]).all():
            if options.limits is not None:
                raise ValueError(
                    f"Column {codec.name!r}: expected observed cells that differ, from which cells within "
                    f"limits can be learnt, but all are {observed[0, 0]:g}. Drop the column or its limits."
                )
            value = 0.0 if codec.levels is not None else float(observed[0, 0])
            return ConstantCodec(codec.name, family, codec.dtype, low=value, high=value, levels=codec.levels)
        spread = float(np.ptp(observed))
        if spread < 1 / LARGEST:
            raise ValueError(
                f"Column {codec.name!r}: expected numbers that vary by at least {1 / LARGEST:g}, got a range "
                f"of {spread:g}. Rescale the column."
            )
        return codec._learn(observed, options)

    @classmethod
    def _given(cls, column: pd.Series[Any], spec: ColumnSpec) -> dict[str, Any]:
        """Return the fields that are set before cells are read as numbers: levels, or bounds of the spec."""
        return {}

    def _read(self, column: pd.Series[Any]) -> Numbers:
        """Return cells as numbers in their own units, `[N, width]`, NaN where missing or an unseen level."""
        return finite_numbers(column)[:, None]

    def _invalid(self, raw: Numbers, at_fit: bool) -> Iterable[tuple[NDArray[np.bool_], str]]:
        """Return masks of numbers that the kind does not allow, each with what it expects instead."""
        return ()

    def _checked(self, column: pd.Series[Any], *, at_fit: bool = False) -> Numbers:
        """Return the numbers of `_read`; a ValueError names the first cell that the kind does not allow."""
        raw = self._read(column)
        for wrong, expected in self._invalid(raw, at_fit):
            for row in np.flatnonzero(wrong)[:1]:
                raise ValueError(
                    f"Column {self.name!r}: {row_name(column.index, row)} holds {plain(column.iloc[row])!r}; "
                    f"expected {expected}. Correct the cell, set it missing, or change the column's spec."
                )
        return raw

    def _learn(self, observed: Numbers, options: FitOptions) -> ColumnCodec:
        """Fit the codec to observed cells, `[n, width]`, in the column's own units."""
        return self._fitted(observed)

    def _fitted(self, observed: Numbers, **fields: Any) -> Self:
        """Return the codec with the given fields and the moments of observed cells `[n, width]`."""
        warp = fields.get("warp", self.warp)
        transformed = observed if warp is None else warp.forward(observed)
        mean, scale = zip(*(moments(values) for values in transformed.T), strict=True)
        own_scale = scale if warp is None else (moments(observed[:, 0])[1],)
        low, high = float(observed.min()), float(observed.max())
        if self.shares is not None:
            counts = np.unique(observed, return_counts=True)[1]
            fields["shares"] = tuple((counts / len(observed)).tolist())
        return dataclasses.replace(
            self, mean=mean, scale=scale, own_scale=own_scale, low=low, high=high, **fields
        )

    def standardise(self, raw: Numbers) -> Numbers:
        """Transform and standardise numbers `[..., width]` given in the column's own units."""
        transformed = raw if self.warp is None else self.warp.forward(raw)
        return np.asarray((transformed - self.mean) / self.scale, dtype=np.float64)

    def in_own_units(self, standardised: Numbers) -> Numbers:
        """Return numbers `[...]` in a numeric column's own units; the inverse of `standardise`."""
        transformed = standardised[..., 0] * self.scale[0] + self.mean[0]
        return np.asarray(transformed if self.warp is None else self.warp.backward(transformed))

    def encode(self, column: pd.Series[Any]) -> Numbers:
        """Convert a column to standardised numbers, float64 `[N, width]`, NaN if missing or an unseen level.

        The dtype may be any of the family that the column had at fit, or any if all cells are missing. Cells
        of another family are a TypeError; those that the kind does not allow, a ValueError.
        """
        if (natural := natural_kind(column)) is None:
            return np.full((len(column), self.width), np.nan)
        if FAMILIES[natural] != self.family:
            raise TypeError(
                f"Column {self.name!r}: expected {self.kind} cells (dtype {self.dtype} at fit), got "
                f"{natural} cells (dtype {column.dtype}). Convert the column to {self.dtype}, or fit again."
            )
        if isinstance(column.dtype, pd.CategoricalDtype) and holes_of(column).any():
            categories = column.dtype.categories
            if absent := [level for level in self.levels or () if level not in categories]:
                raise ValueError(
                    f"Column {self.name!r}: expected a category dtype with the categories {listing(absent)}, "
                    f"which may be imputed, got only {listing(categories)}. Add them with "
                    f"frame[{self.name!r}].cat.add_categories({absent!r})."
                )
        return self.standardise(self._checked(column))

    def decode(self, values: ArrayLike, to_support: bool = False) -> NDArray[Any]:
        """Convert standardised values `[..., width]` to cells `[...]`; NaN is a ValueError.

        Numbers are float64 within the bounds, and within `drawn_range` if transformed; INTEGER and COUNT give
        int64, BOOLEAN the nearer of its two values, ORDERED the nearest level, CATEGORICAL the level with the
        largest score, and times datetime64 or timedelta64 in microseconds. With `to_support`, numbers are
        rounded to the nearest value of a discrete support.
        """
        scores = np.asarray(values, dtype=np.float64)
        if np.isnan(scores).any():
            raise ValueError(f"Column {self.name!r}: expected numbers to decode, got NaN.")
        return self._cells(scores * self.scale + self.mean, to_support)

    def _cells(self, transformed: Numbers, to_support: bool) -> NDArray[Any]:
        """Convert transformed numbers `[..., width]` to cells `[...]`."""
        return np.asarray(transformed[..., 0])

    def _levels_at(self, positions: NDArray[Any]) -> NDArray[Any]:
        """Return the levels at `positions`, as numbers or as objects."""
        levels = np.array(self.levels, dtype=None if self.family == "numbers" else object)
        return np.asarray(levels[positions.astype(np.int64)])

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that `codec_from_dict` turns into an equal codec once it has been written as JSON."""
        return {"kind": self.kind.value} | dataclasses.asdict(self)

    def check_state(self) -> None:
        """Check that the fields of a codec that was read from a file fit together; ValueError otherwise."""
        wrong = [name for name, holds in self._conditions().items() if not holds]
        if not wrong:
            with np.errstate(all="ignore"):
                extremes = self.standardise(np.array([[self.low], [self.high]]))
            wrong = [] if (np.abs(extremes) < _MOST_SCALES).all() else ["mean and scale"]
        if wrong:
            raise ValueError(f"column {self.name!r} does not fit together: {listing(wrong)}")

    def _conditions(self) -> dict[str, bool]:
        """Return named conditions that the fields of a valid codec meet."""
        n_values = 2 if self.levels is None else len(self.levels)
        return {
            "family": self.family in self.families,
            "width": len(self.mean) == len(self.scale) == len(self.own_scale) == 1,
            "scale": min((*self.scale, *self.own_scale), default=1.0) > 0,
            "range": self.low <= self.high,
            "shares": self.shares is None or (len(self.shares) == n_values > 1 and min(self.shares) > 0),
        }


@dataclass(frozen=True)
class ConstantCodec(ColumnCodec):
    """Codec of a column of one value, which has no encoded columns; `low` is that value."""

    kind = Kind.CONSTANT
    families = ()

    levels: tuple[Level, ...] | None = None
    """The one level of a column of labels, None for any other column."""

    def _read(self, column: pd.Series[Any]) -> Numbers:
        return np.empty((len(column), 0))

    def _cells(self, transformed: Numbers, to_support: bool) -> NDArray[Any]:
        values = np.full(transformed.shape[:-1], self.low)
        return as_stored(values, self.family) if self.levels is None else self._levels_at(values)

    def _conditions(self) -> dict[str, bool]:
        return {
            "width": not (self.mean or self.scale or self.own_scale),
            "labels": self.levels is not None or self.family != "labels",
            "position": self.levels is None or 0 <= self.low < len(self.levels) <= MAX_LEVELS,
        }


def finite_numbers(column: pd.Series[Any]) -> Numbers:
    """Return a column of numbers as float64 `[N]`, NaN where missing; huge numbers are a ValueError."""
    expected = f"expected finite numbers of at most {LARGEST:g} in size"
    try:
        numbers = column.to_numpy(dtype=np.float64, na_value=np.nan)
    except OverflowError as error:  # a Python integer above 1.8e308
        got = "got an integer beyond the range of 64-bit floats. Rescale the column."
        raise ValueError(f"Column {column.name!r}: {expected}, {got}") from error
    for row in np.flatnonzero(np.abs(numbers) > LARGEST)[:1]:
        where = f"Column {column.name!r}: {row_name(column.index, row)} holds {numbers[row]:g}; {expected}. "
        if np.isfinite(numbers[row]):
            raise ValueError(f"{where}Rescale the column, or correct the cell.")
        python = "set it missing: frame.replace([np.inf, -np.inf], np.nan)."
        raise ValueError(Hinted(f"{where}Correct the cell, or ", python, shell="leave it empty."))
    return numbers


def moments(values: Numbers) -> tuple[float, float]:
    """Return mean and population standard deviation, independent of the order of the values."""
    # `data`, a memoryview, yields Python's floats one by one: a list of them would take much memory.
    mean = fmean(values.data)
    return mean, math.sqrt(fmean(np.square(values - mean).data))
