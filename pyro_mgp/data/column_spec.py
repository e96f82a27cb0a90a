"""Kinds of columns, and the specification of a column by the user."""

from __future__ import annotations

import enum
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pyro_mgp._support.checks import truth
from pyro_mgp._support.messages import plain

Label: TypeAlias = str | int


class Kind(enum.StrEnum):
    """Kind of a column, which determines its observation model."""

    CONTINUOUS = "continuous"
    """Numbers: Gaussian, after a transform if that is clearly likelier."""
    HEAVY_TAILED = "heavy-tailed"
    """Numbers with outliers: Student's t."""
    INTEGER = "integer"
    """Integers: as continuous, and rounded; cumulative probit if there are two values."""
    SEMICONTINUOUS = "semicontinuous"
    """Numbers of which many equal the smallest (or largest) one, such as 0: whether a number does is a
    boolean, and the others are as continuous or integer. Detected in tables with a joint density."""
    COUNT = "count"
    """Integers from 0 upwards: negative binomial with a log link; detected by their distribution."""
    BOOLEAN = "boolean"
    """Booleans: cumulative probit. In a joint density also real numbers of two values."""
    ORDERED = "ordered"
    """Ordered levels: cumulative probit."""
    CATEGORICAL = "categorical"
    """Unordered levels: a sequence of probit regressions, one per level."""
    DATETIME = "datetime"
    """Points in time: as continuous."""
    DURATION = "duration"
    """Durations: as continuous."""
    GROUP = "group"
    """Labels of groups such as schools or patients: random effects in the models of other columns."""
    CONSTANT = "constant"
    """A single observed value, with which missing cells are filled."""


@dataclass(frozen=True)
class ColumnSpec:
    """User's specification of one column; every argument is optional.

    Args:
        kind: A `Kind` or its name, to override the one that dtype and cells suggest.
        lower: Lower bound of the cells, in the column's own units.
        upper: Upper bound of the cells.
        derived: Formula of other columns, "weight / height**2" for example (see `formula.Formula`). It is
            computed from imputed columns, and is not a predictor.
        only_if: Condition under which the column applies, "sex == 'female'" for example. Elsewhere none of
            its cells counts as missing.
        otherwise: Value of the cells where the column does not apply; None leaves them as they are.
        predictors: Labels of the columns from which this one is predicted; None for all.
        predicts: Whether other columns are predicted from this one. In a joint density, missing cells of
            other columns still agree with its relation to them if it is incomplete. A column of text or
            identifiers that predicts nothing is left as it is.
        impute: Whether missing cells are filled in the output; as predictors they are filled in any case.
        standard_error: Label of a column that holds the standard error of each observed cell. That column is
            neither imputed nor a predictor.
        lower_limit: Label of a column of numbers that missing cells are at least; no limit where it is
            missing. It is neither imputed nor a predictor. For right-censored cells.
        upper_limit: Label of a column of numbers that missing cells are at most, such as the limit of
            detection of cells below it. With `lower_limit`, cells are interval-censored.
        slopes: For kind "group", labels of columns that have a slope in each group, besides its intercept.
        time: For kind "group", label of a column of times, complete and different in the rows of a group:
            cells of a subject at close times are alike, besides its intercept.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: The kind is unknown, the bounds are no interval, or arguments contradict each other.

    Example:
        >>> ColumnSpec(kind="count").kind is Kind.COUNT
        True
        >>> ColumnSpec(derived="weight / height**2").derived
        'weight / height**2'
    """

    kind: Kind | str | None = None
    lower: float | None = None
    upper: float | None = None
    derived: str | None = None
    only_if: str | None = None
    otherwise: str | float | bool | None = None
    predictors: Sequence[Label] | None = None
    predicts: bool = True
    impute: bool = True
    standard_error: Label | None = None
    lower_limit: Label | None = None
    upper_limit: Label | None = None
    slopes: Sequence[Label] = ()
    time: Label | None = None

    def __post_init__(self) -> None:
        if self.kind is not None:
            if self.kind not in (kinds := [str(each) for each in Kind]):
                raise ValueError(f"kind must be one of {kinds[:-1]}, got {self.kind!r}")
            object.__setattr__(self, "kind", Kind(self.kind))
        for name in ("lower", "upper"):
            if (bound := getattr(self, name)) is None:
                continue
            if isinstance(bound, bool) or not isinstance(bound, numbers.Real):
                raise TypeError(f"{name} must be a number or None, got {bound!r}")
            if not math.isfinite(bound):
                raise ValueError(f"{name} must be finite, or None for no bound, got {bound}")
            object.__setattr__(self, name, float(bound))
        object.__setattr__(self, "otherwise", plain(self.otherwise))
        if self.lower is not None and self.upper is not None and self.lower >= self.upper:
            raise ValueError(f"lower must be less than upper, got {self.lower} and {self.upper}")
        for name in ("derived", "only_if"):
            if not isinstance(own := getattr(self, name), str | None):
                raise TypeError(f"{name} must be the text of a formula, got {own!r}")
        for name in ("standard_error", "lower_limit", "upper_limit", "time"):
            if not isinstance(own := getattr(self, name), str | int | None):
                raise TypeError(f"{name} must be the label of a column, got {own!r}")
        for name in ("predicts", "impute"):
            truth(name, getattr(self, name))
        for name in ("predictors", "slopes"):
            if isinstance(own := getattr(self, name), str):
                raise TypeError(f"{name} must be a list of column labels, got the text {own!r}")
            if not isinstance(own, Iterable | None):
                raise TypeError(f"{name} must be a list of column labels, got {own!r}")
        object.__setattr__(self, "slopes", tuple(self.slopes))
        for name in ("slopes", "time"):
            if getattr(self, name) not in ((), None) and self.kind != Kind.GROUP:
                raise ValueError(f"{name} is an argument for groups: give kind='group', or leave it out")
        if self.predictors is not None:
            object.__setattr__(self, "predictors", tuple(self.predictors))
        if self.otherwise is not None and self.only_if is None:
            raise ValueError("otherwise is the value of cells where a column does not apply: give only_if")
        if self.derived is not None and len(self.to_dict()) > 1:
            raise ValueError(
                "a derived column is computed from other columns and takes no other arguments: leave out "
                f"{[name for name in self.to_dict() if name != 'derived']}"
            )

    @property
    def limit_columns(self) -> tuple[Label, ...]:
        """Labels of the columns with limits of missing cells."""
        return tuple(each for each in (self.lower_limit, self.upper_limit) if each is not None)

    @property
    def described_by(self) -> tuple[Label, ...]:
        """Labels of columns that describe the cells of this one, and are not modelled themselves."""
        errors = () if self.standard_error is None else (self.standard_error,)
        return errors + self.limit_columns

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments that differ from the defaults as a JSON-able dict."""
        state = {name: value for name, value in vars(self).items() if value != getattr(ColumnSpec, name)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in state.items()}


Specs: TypeAlias = Mapping[Label, ColumnSpec]
