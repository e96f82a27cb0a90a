"""What a user says of a column that its cells do not tell."""

from __future__ import annotations

import enum
import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pyro_mgp._support.messages import plain

Label: TypeAlias = str | int


class Kind(enum.StrEnum):
    """What the cells of a column are, and so which observation model they have."""

    CONTINUOUS = "continuous"
    """Numbers: Gaussian, of a bend if that is clearly likelier."""
    HEAVY_TAILED = "heavy-tailed"
    """Numbers with outliers that shall not draw the function to them: Student's t."""
    INTEGER = "integer"
    """Whole numbers: as continuous, and rounded; cumulative probit if they are two."""
    COUNT = "count"
    """Whole numbers from 0 upwards: negative binomial with a log link. Found by how they are distributed."""
    BOOLEAN = "boolean"
    """True and False: cumulative probit."""
    ORDERED = "ordered"
    """Levels in an order: cumulative probit."""
    CATEGORICAL = "categorical"
    """Levels without one: a probit regression for each level after the other."""
    DATETIME = "datetime"
    """Points in time: as continuous."""
    DURATION = "duration"
    """Lengths of time: as continuous."""
    CONSTANT = "constant"
    """One value only, which is all that its holes can be filled with."""


@dataclass(frozen=True)
class ColumnSpec:
    """What is known of one column besides its cells; all of it is optional.

    Args:
        kind: A `Kind` or its name, if the one found from dtype and cells is not the one that is meant.
        lower: What no cell lies below, in the column's own units.
        upper: What no cell lies above.
        derived: How it follows from others, "weight / height**2" for example (see `formula.Formula`). It is
            computed, never imputed on its own, and no other column learns from it.
        only_if: Where it applies, likewise: "sex == 'female'". Elsewhere its cells are no holes.
        otherwise: What stands where it does not apply; None leaves such cells as they are.
        predictors: Labels of the columns that its link sees; None for all.
        predicts: Whether the links of other columns see it.
        impute: Whether its holes are filled in what comes out; others see them filled in any case.
        standard_error: Label of a column that holds the standard error of each observed cell. That column is
            no variable: it is neither imputed nor learnt from.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: There is no such kind, the bounds are no interval, or two arguments contradict each other.

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

    def __post_init__(self) -> None:
        if self.kind is not None:
            object.__setattr__(self, "kind", _kind(self.kind))
        for name in ("lower", "upper"):
            bound = getattr(self, name)
            if bound is not None:
                if not math.isfinite(_number(name, bound)):
                    raise ValueError(f"{name} must be finite, or None for no bound, got {bound}")
                object.__setattr__(self, name, float(bound))
        object.__setattr__(self, "otherwise", plain(self.otherwise))
        if self.lower is not None and self.upper is not None and self.lower >= self.upper:
            raise ValueError(f"lower must be less than upper, got {self.lower} and {self.upper}")
        if isinstance(self.predictors, str):
            raise TypeError(f"predictors must be a list of column labels, got the text {self.predictors!r}")
        if self.predictors is not None:
            object.__setattr__(self, "predictors", tuple(self.predictors))
        if self.otherwise is not None and self.only_if is None:
            raise ValueError("otherwise says what stands where a column does not apply: give only_if, too")
        if self.derived is not None and len(self.to_dict()) > 1:
            raise ValueError(
                "a derived column is computed from others, which say all there is to say of it: leave out "
                f"{[name for name in self.to_dict() if name != 'derived']}"
            )

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict of what differs from the defaults; `ColumnSpec(**it)` is equal."""
        state = {name: value for name, value in vars(self).items() if value != getattr(ColumnSpec, name)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in state.items()}


Specs: TypeAlias = Mapping[Label, ColumnSpec]


def _kind(kind: Kind | str) -> Kind:
    try:
        return Kind(kind)
    except ValueError as error:
        names = [str(each) for each in Kind if each is not Kind.CONSTANT]
        raise ValueError(f"kind must be one of {names}, got {kind!r}") from error


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number or None, got {value!r}")
    return float(value)
