"""Formulas over the columns of a table: "weight / height**2", "sex == 'female' and age > 12".

They are evaluated by `pandas.DataFrame.eval`, once they are found to be arithmetic and comparisons of columns
and nothing else: a formula that was read from a file must not be able to run anything.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import elementwise

from pyro_mgp.column import holes_of, is_numeric
from pyro_mgp.column_spec import Label
from pyro_mgp.wording import listing

FUNCTIONS = ("abs", "exp", "expm1", "log", "log10", "log1p", "sqrt", "sin", "cos", "tan", "arctan2")
"""What a formula may call."""
_NODES = (
    ast.Expression,
    ast.BinOp,
    ast.UnaryOp,
    ast.BoolOp,
    ast.Compare,
    ast.Call,
    ast.Name,
    ast.Constant,
    ast.List,
    ast.Tuple,
    ast.Load,
    ast.operator,
    ast.unaryop,
    ast.boolop,
    ast.cmpop,
)
# How far a solution may be from solving its equation, as a share of the numbers in it.
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Formula:
    """A formula over columns.

    Example:
        >>> formula = Formula.parse("weight / height**2", ["height", "weight"])
        >>> formula.sources
        ('height', 'weight')
        >>> formula.value(pd.DataFrame({"height": [2.0, None], "weight": [100.0, 70.0]})).tolist()
        [25.0, nan]
    """

    text: str
    """As the user wrote it."""
    expression: str
    """The same with the names of `names`."""
    names: Mapping[str, Label]
    """The columns that it is made of, by a name that is an identifier."""

    @classmethod
    def parse(cls, text: str, columns: Collection[Label]) -> Formula:
        """A formula over some of these columns; labels that are no identifiers stand `between backticks`.

        Raises:
            ValueError: It is not a formula, names what is no column, or does more than a formula may.
        """
        quoted: dict[str, Label] = {}

        def placeholder(match: re.Match[str]) -> str:
            name = f"quoted_{len(quoted)}_"
            quoted[name] = _column(match.group(1), columns, text)
            return name

        expression = re.sub(r"`([^`]+)`", placeholder, text.strip())
        try:
            tree = ast.parse(expression, mode="eval")
        except SyntaxError as error:
            raise ValueError(f"the formula {text!r} cannot be read: {error.msg}") from error
        nodes = list(ast.walk(tree))
        called = [node.func for node in nodes if isinstance(node, ast.Call)]
        for node in nodes:
            if not isinstance(node, _NODES):
                raise ValueError(
                    f"the formula {text!r} may hold columns, numbers, text, arithmetic, comparisons and "
                    f"{listing(FUNCTIONS, 20)}, but not {type(node).__name__}"
                )
        for function in called:
            if not isinstance(function, ast.Name) or function.id not in FUNCTIONS:
                raise ValueError(f"the formula {text!r} may call {listing(FUNCTIONS, 20)} only")
        used = {node.id for node in nodes if isinstance(node, ast.Name)} - {f.id for f in called}  # type: ignore[attr-defined]
        names = {name: quoted[name] if name in quoted else _column(name, columns, text) for name in used}
        if not names:
            raise ValueError(f"the formula {text!r} names no column: expected some of {listing(columns)}")
        return cls(text, expression, dict(sorted(names.items())))

    @property
    def sources(self) -> tuple[Label, ...]:
        """The columns that it is made of."""
        return tuple(dict.fromkeys(self.names.values()))

    def value(self, frame: pd.DataFrame) -> NDArray[np.float64]:
        """Its value in each row, float64 [N], NaN where one of its columns is missing."""
        return np.where(self.known(frame), self._evaluate(frame), np.nan).astype(np.float64)

    def holds(self, frame: pd.DataFrame) -> NDArray[np.bool_]:
        """Where it is true, Bool [N]; not where one of its columns is missing."""
        result = self._evaluate(frame)
        if result.dtype.kind != "b":
            raise ValueError(
                f"the formula {self.text!r} must be a condition, true or false, as in 'age > 12'"
            )
        return np.asarray(result & self.known(frame))

    def known(self, frame: pd.DataFrame) -> NDArray[np.bool_]:
        """Where none of its columns is missing, Bool [N]."""
        return ~np.logical_or.reduce([holes_of(frame[label]) for label in self.sources])

    def solve(
        self, frame: pd.DataFrame, source: Label, values: NDArray[np.float64], near: tuple[float, float]
    ) -> NDArray[np.float64]:
        """What one column must be for the formula to have given values.

        Args:
            frame: Rows in which all other columns are known.
            source: The column that is looked for; numbers.
            values: What the formula shall be, [N].
            near: Two numbers around which to look.

        Returns:
            A solution in each row, float64 [N], NaN where none is found.
        """
        cells = self._cells(frame)
        own = [name for name, label in self.names.items() if label == source]

        def miss(x: NDArray[np.float64], row: NDArray[np.float64]) -> NDArray[np.float64]:
            at = row.astype(np.intp)
            here = {name: column[at] for name, column in cells.items()} | dict.fromkeys(own, x)
            return self._of_cells(here).astype(np.float64) - values[at]

        rows = np.arange(len(frame), dtype=np.float64)
        with np.errstate(all="ignore"):
            ends = (np.full(len(frame), end) for end in near)
            bracket = elementwise.bracket_root(miss, *ends, args=(rows,))
            root = elementwise.find_root(miss, bracket.bracket, args=(rows,))
        good = root.success & (np.abs(root.f_x) <= _TOLERANCE * np.maximum(np.abs(values), 1e-300))
        return np.where(good, root.x, np.nan)

    def _evaluate(self, frame: pd.DataFrame) -> NDArray[Any]:
        return np.broadcast_to(self._of_cells(self._cells(frame)), (len(frame),))

    def _cells(self, frame: pd.DataFrame) -> dict[str, NDArray[Any]]:
        return {name: _plain_cells(frame[label]) for name, label in self.names.items()}

    def _of_cells(self, cells: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """The formula of columns by their names; NaN and infinity where it has no value."""
        with np.errstate(all="ignore"):
            return np.asarray(pd.DataFrame(cells).eval(self.expression, engine="python"))


def _column(name: str, columns: Collection[Label], text: str) -> Label:
    if name in columns:
        return name
    if name.isdigit() and int(name) in columns:
        return int(name)
    raise ValueError(f"the formula {text!r} names {name!r}, but the columns are {listing(columns)}")


def _plain_cells(column: pd.Series[Any]) -> NDArray[Any]:
    """Cells as formulas work on them: numbers, booleans as 0 and 1; times; or objects."""
    if is_numeric(column):
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    is_time = getattr(column.dtype, "kind", "O") in "Mm"
    return column.to_numpy() if is_time else column.to_numpy(dtype=object)
