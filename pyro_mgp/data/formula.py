"""Formulas over the columns of a table: "weight / height**2", "sex == 'female' and age > 12".

They are evaluated here, node by node, and hold arithmetic and comparisons of columns and nothing else: a
formula that was read from a file must not be able to run anything.
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
from pyro_mgp.data.column_spec import Label
from pyro_mgp.data.dtypes import holes_of, is_boolean, is_numeric

FUNCTIONS = ("abs", "exp", "expm1", "log", "log10", "log1p", "sqrt", "sin", "cos", "tan", "arctan2")
"""What a formula may call."""
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
    ast.Not: lambda truth: ~_truth(truth),
    ast.Invert: lambda truth: ~_truth(truth),
    **dict.fromkeys((ast.And, ast.BitAnd), lambda left, right: _truth(left) & _truth(right)),
    **dict.fromkeys((ast.Or, ast.BitOr), lambda left, right: _truth(left) | _truth(right)),
}
_NODES = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Call, ast.Name, ast.Constant),
    *(ast.List, ast.Tuple, ast.Load, *_OPERATORS),
)
# How far a solution may be from solving its equation, as a share of the numbers in it.
_TOLERANCE = 1e-9
# A sum is exact to about a millionth of that share of its terms.
_ROUNDING = 1e-6


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
            while name in text or name in columns:
                name += "_"
            quoted[name] = _column(match.group(1), columns, text)
            return name

        expression = re.sub(r"`([^`]+)`", placeholder, text.strip())
        try:
            tree = ast.parse(expression, mode="eval")
        except SyntaxError as error:
            raise ValueError(f"the formula {text!r} cannot be read: {error.msg}") from error
        nodes = list(ast.walk(tree))
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        lists = [c for n in nodes if isinstance(n, ast.Compare) for c in n.comparators if _is_list(c)]
        for node in nodes:
            strange = isinstance(node, ast.Constant) and type(node.value) not in (bool, int, float, str)
            if not isinstance(node, _NODES) or strange or (_is_list(node) and node not in lists):
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
        """The columns that it is made of."""
        return tuple(dict.fromkeys(self.names.values()))

    @property
    def implied(self) -> dict[Label, Any]:
        """What some columns are wherever it is true: the constants that it says they equal."""
        body = ast.parse(self.expression, mode="eval").body
        parts = body.values if isinstance(body, ast.BoolOp) and isinstance(body.op, ast.And) else [body]
        found = {}
        for part in parts:
            match part:
                case ast.Compare(
                    left=ast.Name(id=name), ops=[ast.Eq()], comparators=[ast.Constant(value=value)]
                ):
                    found[self.names[name]] = value
        return found

    def value(self, frame: pd.DataFrame) -> NDArray[np.float64]:
        """Its value in each row, float64 [N], NaN where one of its columns is missing."""
        known, values = self.known(frame), np.full(len(frame), np.nan)
        if known.any():
            result = self._evaluate(frame[known])
            if result.dtype.kind not in "bif":
                raise ValueError(f"the formula {self.text!r} must give numbers, as in 'weight / height**2'")
            values[known] = result
        return values

    def holds(self, frame: pd.DataFrame) -> NDArray[np.bool_]:
        """Where it is true, Bool [N]; not where one of its columns is missing."""
        known, truths = self.known(frame), np.zeros(len(frame), dtype=np.bool_)
        if known.any():
            result = self._evaluate(frame[known])
            if result.dtype.kind != "b" and not self._is_flag(frame):
                raise ValueError(
                    f"the formula {self.text!r} must be a condition, true or false, as in 'age > 12'"
                )
            truths[known] = result
        return truths

    def _is_flag(self, frame: pd.DataFrame) -> bool:
        """Whether it is one column of booleans."""
        return self.expression in self.names and is_boolean(frame[self.names[self.expression]])

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
            # A difference is as exact as the numbers that it is of.
            size = np.maximum(np.abs(values), _ROUNDING * self._largest(cells, own, root.x))
        good = root.success & (np.abs(root.f_x) <= _TOLERANCE * size)
        return np.where(good, root.x, np.nan)

    def _largest(
        self, cells: Mapping[str, Any], own: Collection[str], x: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """The largest number that goes into each row, [N]."""
        others = [np.abs(c) for name, c in cells.items() if name not in own and c.dtype == np.float64]
        return np.max([np.abs(x), *others], axis=0)

    def _evaluate(self, frame: pd.DataFrame) -> NDArray[Any]:
        return np.broadcast_to(self._of_cells(self._cells(frame)), (len(frame),))

    def _cells(self, frame: pd.DataFrame) -> dict[str, NDArray[Any]]:
        return {name: _plain_cells(frame[label]) for name, label in self.names.items()}

    def _of_cells(self, cells: Mapping[str, Any]) -> NDArray[Any]:
        """The formula of columns by their names; NaN and infinity where it has no value."""
        columns = {name: pd.Series(column) for name, column in cells.items()}
        try:
            with np.errstate(all="ignore"):
                return np.asarray(_result(ast.parse(self.expression, mode="eval").body, columns))
        except (TypeError, ValueError) as error:
            raise ValueError(f"the formula {self.text!r} cannot be worked out: {error}") from error


def _result(node: ast.AST, columns: Mapping[str, Any]) -> Any:
    """What a checked formula is, of columns by their names."""
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
        case ast.Compare(left=left, ops=ops, comparators=others):
            sides = pairwise([_result(each, columns) for each in (left, *others)])
            return reduce(operator.and_, [_OPERATORS[type(op)](*s) for op, s in zip(ops, sides, strict=True)])
    raise TypeError(f"unexpected {type(node).__name__}")


def _truth(cells: Any) -> Any:
    """Conditions, and columns of booleans, which are 0 and 1 in arithmetic."""
    if getattr(cells, "dtype", None) == np.float64 and not cells.isin([0.0, 1.0]).all():
        raise TypeError("numbers are neither true nor false")
    return cells.astype(np.bool_)


def _is_list(node: ast.AST) -> bool:
    return isinstance(node, ast.List | ast.Tuple)


def _column(name: str, columns: Collection[Label], text: str) -> Label:
    if name in columns:
        return name
    if name.isdecimal() and int(name) in columns:
        return int(name)
    raise ValueError(f"the formula {text!r} names {name!r}, but the columns are {listing(columns)}")


def _plain_cells(column: pd.Series[Any]) -> Any:
    """Cells as formulas work on them: numbers, booleans as 0 and 1; times and ordered levels; or objects."""
    if is_numeric(column):
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    if isinstance(column.dtype, pd.CategoricalDtype):
        return column.array if column.dtype.ordered else column.to_numpy(dtype=object)
    if getattr(column.dtype, "kind", "O") == "M":
        return pd.to_datetime(column).array
    return column.array if getattr(column.dtype, "kind", "O") == "m" else column.to_numpy(dtype=object)
