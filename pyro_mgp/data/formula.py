"""Formulas over the columns of a table: "weight / height**2", "sex == 'female' and age > 12".

A formula read from a file must not run code: only nodes of a whitelist are evaluated.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import elementwise

from pyro_mgp._support.messages import listing
from pyro_mgp.data.cells import holes_of, is_boolean, natural_kind
from pyro_mgp.data.column_spec import Kind, Label

FUNCTIONS = ("abs", "exp", "expm1", "log", "log10", "log1p", "sqrt", "sin", "cos", "tan", "arctan2")
"""Functions that a formula may call."""
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda cells, items: reduce(operator.or_, [cells == item for item in items]),
    ast.NotIn: lambda cells, items: reduce(operator.and_, [cells != item for item in items]),
    **dict.fromkeys((ast.Not, ast.Invert), lambda truth: ~_truth(truth)),
    **dict.fromkeys((ast.And, ast.BitAnd), lambda left, right: _truth(left) & _truth(right)),
    **dict.fromkeys((ast.Or, ast.BitOr), lambda left, right: _truth(left) | _truth(right)),
}
_NODES = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Call, ast.Name, ast.Constant),
    *(ast.List, ast.Tuple, ast.Load, *_OPERATORS),
)
# Largest residual of an accepted solution, relative to the value of the formula.
_TOLERANCE = 1e-9
# Rounding error of a sum relative to its largest term, in units of that tolerance.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Formula:
    """Arithmetic expression or condition over the columns of a table."""

    text: str
    """The formula as the user wrote it."""
    expression: str
    """The formula as a Python expression over `names`."""
    names: Mapping[str, Label]
    """Labels of the columns in the formula, by the identifiers that stand for them in `expression`."""

    @classmethod
    def parse(cls, text: str, columns: Collection[Label]) -> Formula:
        """Parse a formula over given columns; labels that are not identifiers are put in `backticks`.

        A text that is no formula, names an unknown column or uses what formulas may not is a ValueError.
        """
        quoted: dict[str, Label] = {}

        def placeholder(match: re.Match[str]) -> str:
            name = f"quoted_{len(quoted)}_"
            while name in text or name in columns:
                name += "_"
            quoted[name] = _column(match.group(1), columns, text)
            return name

        expression = re.sub(r"`([^`]+)`", placeholder, text.strip())
        try:
            tree = ast.parse(expression, mode="eval")
        except SyntaxError as error:
            raise ValueError(f"the formula {text!r} cannot be parsed: {error.msg}") from error
        nodes = list(ast.walk(tree))
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        compared = [side for node in nodes if isinstance(node, ast.Compare) for side in node.comparators]
        for node in nodes:
            foreign = isinstance(node, ast.Constant) and type(node.value) not in (bool, int, float, str)
            stray = isinstance(node, ast.List | ast.Tuple) and node not in compared
            if not isinstance(node, _NODES) or foreign or stray:
                raise ValueError(
                    f"the formula {text!r} may hold columns, numbers, text, arithmetic, comparisons and "
                    f"{listing(FUNCTIONS, 20)}, but not {type(node).__name__}"
                )
        for call in calls:
            function = call.func
            if not isinstance(function, ast.Name) or function.id not in FUNCTIONS:
                raise ValueError(f"the formula {text!r} may call {listing(FUNCTIONS, 20)} only")
            if len(call.args) != (n_arguments := 2 if function.id == "arctan2" else 1):
                raise ValueError(f"the formula {text!r} must give {function.id} {n_arguments} argument(s)")
        functions = [call.func for call in calls]
        used = {node.id for node in nodes if isinstance(node, ast.Name) and node not in functions}
        names = {name: quoted[name] if name in quoted else _column(name, columns, text) for name in used}
        if not names:
            raise ValueError(f"the formula {text!r} names no column: expected some of {listing(columns)}")
        return cls(text, expression, dict(sorted(names.items())))

    @property
    def sources(self) -> tuple[Label, ...]:
        """Labels of the columns that the formula uses."""
        return tuple(dict.fromkeys(self.names.values()))

    @property
    def implied(self) -> dict[Label, Any]:
        """Constants that the condition fixes for columns, such as "female" for sex == 'female', by label."""
        body = ast.parse(self.expression, mode="eval").body
        parts = body.values if isinstance(body, ast.BoolOp) and isinstance(body.op, ast.And) else [body]
        found = {}
        for part in parts:
            match part:
                case ast.Compare(ast.Name(name), [ast.Eq()], [ast.Constant(value)]):
                    found[self.names[name]] = value
        return found

    def value(self, frame: pd.DataFrame) -> NDArray[np.float64]:
        """Evaluate the formula in each row, float64 `[N]`, NaN where one of its columns is missing."""
        return self._of_rows(frame, "bif", "give numbers, as in 'weight / height**2'", np.nan)

    def holds(self, frame: pd.DataFrame) -> NDArray[np.bool_]:
        """Return the rows in which the condition is true, Bool `[N]`; False where a column is missing."""
        # One column of booleans is evaluated as numbers.
        is_flag = self.expression in self.names and is_boolean(frame[self.names[self.expression]])
        wanted = "be a condition, true or false, as in 'age > 12'"
        return self._of_rows(frame, "bf" if is_flag else "b", wanted, False)

    def fails(self, frame: pd.DataFrame) -> NDArray[np.bool_]:
        """Return the rows in which the condition is false, Bool `[N]`; False where a column is missing."""
        return self.sources_observed(frame) & ~self.holds(frame)

    def sources_observed(self, frame: pd.DataFrame) -> NDArray[np.bool_]:
        """Return the rows in which all columns of the formula are observed, Bool `[N]`."""
        return ~np.logical_or.reduce([holes_of(frame[label]) for label in self.sources])

    def solve(
        self, frame: pd.DataFrame, source: Label, values: NDArray[np.float64], near: tuple[float, float]
    ) -> NDArray[np.float64]:
        """Solve the formula for a numeric column, float64 `[N]`, NaN where no solution is found.

        In all rows of `frame`, the other columns are observed, and `values` `[N]` are those of the formula.
        The search starts from two numbers `near`.
        """
        cells = self._cells(frame)
        own = [name for name, label in self.names.items() if label == source]

        def residual(x: NDArray[np.float64], row: NDArray[np.float64]) -> NDArray[np.float64]:
            at = row.astype(np.intp)
            here = {name: column[at] for name, column in cells.items()} | dict.fromkeys(own, x)
            return self._of_cells(here).astype(np.float64) - values[at]

        rows = np.arange(len(frame), dtype=np.float64)
        with np.errstate(all="ignore"):
            ends = (np.full(len(frame), end) for end in near)
            bracket = elementwise.bracket_root(residual, *ends, args=(rows,))
            root = elementwise.find_root(residual, bracket.bracket, args=(rows,))
            # A difference is only as exact as its terms.
            others = [np.abs(c) for name, c in cells.items() if name not in own and c.dtype == np.float64]
            size = np.maximum(np.abs(values), _ROUNDING * np.max([np.abs(root.x), *others], axis=0))
        solved = root.success & (np.abs(root.f_x) <= _TOLERANCE * size)
        return np.where(solved, root.x, np.nan)

    def _of_rows(
        self, frame: pd.DataFrame, letters: str, wanted: str, otherwise: float | bool
    ) -> NDArray[Any]:
        """Evaluate the formula in complete rows, as a dtype of `letters`; other rows hold `otherwise`.

        The results have the dtype of `otherwise`.
        """
        complete, results = self.sources_observed(frame), np.full(len(frame), otherwise)
        if complete.any():
            found = self._of_cells(self._cells(frame[complete]))
            if found.dtype.kind not in letters:
                raise ValueError(f"the formula {self.text!r} must {wanted}")
            results[complete] = found
        return results

    def _cells(self, frame: pd.DataFrame) -> dict[str, NDArray[Any]]:
        return {name: _plain_cells(frame[label]) for name, label in self.names.items()}

    def _of_cells(self, cells: Mapping[str, Any]) -> NDArray[Any]:
        """Evaluate the formula, given the columns by name; the result may hold NaN and infinity."""
        columns = {name: pd.Series(column) for name, column in cells.items()}
        try:
            with np.errstate(all="ignore"):
                return np.asarray(_result(ast.parse(self.expression, mode="eval").body, columns))
        except (TypeError, ValueError) as error:
            raise ValueError(f"the formula {self.text!r} cannot be evaluated: {error}") from error


def _result(node: ast.AST, columns: Mapping[str, Any]) -> Any:
    """Evaluate a node of a checked formula, given the columns by name."""
    match node:
        case ast.Constant(value=value):
            return np.float64(value) if type(value) is int else value
        case ast.Name(id=name):
            return columns[name]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_result(item, columns) for item in items]
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return getattr(np, name)(*[_result(each, columns) for each in arguments])
        case ast.UnaryOp(op=op, operand=operand):
            return _OPERATORS[type(op)](_result(operand, columns))
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_result(left, columns), _result(right, columns))
        case ast.BoolOp(op=op, values=parts):
            return reduce(_OPERATORS[type(op)], [_result(part, columns) for part in parts])
        case ast.Compare(left=left, ops=ops, comparators=right):
            sides = pairwise([_result(each, columns) for each in (left, *right)])
            return reduce(operator.and_, [_OPERATORS[type(op)](*s) for op, s in zip(ops, sides, strict=True)])
    raise TypeError(f"unexpected {type(node).__name__}")


def _truth(cells: Any) -> Any:
    """Convert conditions, or columns with 0 and 1, to booleans."""
    values = np.asarray(cells)
    if values.dtype.kind not in "bf" or not np.isin(values, (0.0, 1.0)).all():
        raise TypeError(
            "expected conditions: write comparisons joined by & or | in parentheses, or join them by and, or"
        )
    return values.astype(np.bool_)


def _column(name: str, columns: Collection[Label], text: str) -> Label:
    if name in columns:
        return name
    if name.isdecimal() and int(name) in columns:
        return int(name)
    raise ValueError(f"the formula {text!r} names {name!r}, but the columns are {listing(columns)}")


def _plain_cells(column: pd.Series[Any]) -> Any:
    """Return cells for evaluation: numbers (booleans as 0 and 1), times, ordered levels, or objects."""
    match natural_kind(column):
        case Kind.CONTINUOUS | Kind.INTEGER | Kind.BOOLEAN | None:
            return column.to_numpy(dtype=np.float64, na_value=np.nan)
        case Kind.DATETIME:
            return pd.to_datetime(column).array
        case Kind.DURATION | Kind.ORDERED:
            return column.array
        case _:
            return column.to_numpy(dtype=object)
