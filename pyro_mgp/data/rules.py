"""What column specs say of whole tables: derived columns, columns that apply in some rows, standard errors.

A table as it came is not the table that is modelled::

    as it came ── deduce ──▶ what follows from observed cells is filled in
               ── modelled ▶ without columns that are no variables; no cell where its column does not apply
    draws of the modelled table ── settle ──▶ draws of the holes of the table as it came
"""

from __future__ import annotations

import graphlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pyro_mgp._support.messages import listing, plain, row_name, warn_user
from pyro_mgp.data.cells import cells_of
from pyro_mgp.data.column_spec import ColumnSpec, Label, Specs
from pyro_mgp.data.dtypes import holes_of, is_boolean, is_integer, is_numeric, label_of
from pyro_mgp.data.formula import Formula
from pyro_mgp.data.table import TableWarning, complete

Cells = dict[Label, NDArray[Any]]
"""Values of the holes of each incomplete column, `[m, n_missing]`, holes in row order."""

# How far an observed cell may be from what its formula gives, as a share: tables hold rounded numbers.
_TOLERANCE = 0.01
_MOST_DECIMALS = 12
# How far a rounded number may be from the exact one, in units of its last place.
_ROUNDED = 0.51
# How far draws may be from their formula, as a share, and of how many sources at most it may move each.
_EXACT = 1e-9
_MOST_MOVED = 4
_NONE = np.zeros(1)
# Steps by which sources of a derived cell move together, and the step of a slope in standard deviations.
_SHARED_STEPS, _SLOPE_STEP = 4, 1e-4
# Between these quantiles of a column a solution is looked for first.
_MIDDLE = (0.4, 0.6)


@dataclass(frozen=True)
class Range:
    """Where a column of numbers is."""

    middle: tuple[float, float]
    """Two different numbers around its middle."""
    variance: float
    """Of its observed cells; one, if there are none."""

    @classmethod
    def of(cls, column: pd.Series[Any]) -> Range:
        """Of a column of numbers."""
        known = _numbers(column)[~holes_of(column)]
        return cls(_middle(column), float(known.var()) if len(known) else 1.0)


@dataclass(frozen=True)
class Rules:
    """The rules of a table.

    Example:
        >>> rules = Rules.parse({"total": ColumnSpec(derived="a + b")}, ["a", "b", "total"])
        >>> frame = pd.DataFrame({"a": [1.0, None], "b": [2.0, 3.0], "total": [None, 7.0]})
        >>> rules.deduce(frame)
             a    b  total
        0  1.0  2.0    3.0
        1  4.0  3.0    7.0
    """

    derived: Mapping[Label, Formula]
    """Columns that follow from others, each after those it is made of."""
    only_if: Mapping[Label, Formula]
    """Where columns apply."""
    specs: Specs
    """All that is known."""
    ranges: Mapping[Label, Range] = field(default_factory=dict)
    """Where numeric columns of the fitted table are: partitions of another must not look for theirs."""

    @classmethod
    def parse(cls, specs: Specs | None, columns: Sequence[Label]) -> Rules:
        """The rules that specs say for a table with these columns.

        Raises:
            TypeError: A spec is none.
            ValueError: A spec names a column that is not there or is no variable, a formula cannot be read,
                or columns are derived from each other in a circle.
        """
        specs = dict(specs or {})
        for label, spec in specs.items():
            if label not in columns:
                raise ValueError(f"specs name column {label!r}, but the table has {listing(columns)}")
            if not isinstance(spec, ColumnSpec):
                raise TypeError(f"specs must be ColumnSpec, got {spec!r} for column {label!r}")
        derived, only_if = (_formulas(specs, name, columns) for name in ("derived", "only_if"))
        sources = {label: formula.sources for label, formula in derived.items()}
        try:
            order = [each for each in graphlib.TopologicalSorter(sources).static_order() if each in derived]
        except graphlib.CycleError as error:
            raise ValueError(f"columns are derived from each other in a circle: {error.args[1]}") from error
        rules = cls({label: derived[label] for label in order}, only_if, specs)
        rules._check_named(columns)
        return rules

    def learn(self, frame: pd.DataFrame) -> Rules:
        """The same rules, with the ranges of the numeric columns of a table."""
        numeric = [label for label in frame.columns if is_numeric(frame[label])] if self.derived else []
        return replace(self, ranges={label_of(each): Range.of(frame[each]) for each in numeric})

    def _range(self, column: pd.Series[Any]) -> Range:
        label = label_of(column.name)
        return self.ranges[label] if label in self.ranges else Range.of(column)

    def _check_named(self, columns: Sequence[Label]) -> None:
        """That predictors are variables, and standard errors columns of their own."""
        variables = {*columns} - self.no_variables
        for label, spec in self.specs.items():
            wrong = [each for each in spec.predictors or () if each not in variables]
            if spec.standard_error is not None and spec.standard_error not in {*columns} - {
                label,
                *self.derived,
            }:
                wrong.append(spec.standard_error)
            if wrong:
                raise ValueError(
                    f"the spec of column {label!r} names {wrong[0]!r}, which is no column to learn from"
                )

    @property
    def trivial(self) -> bool:
        """Whether the table as it came is the one that is modelled, and all its holes are filled."""
        return not (self.derived or self.only_if or self.no_variables or self.left_alone)

    @property
    def no_variables(self) -> set[Label]:
        """Columns that are not modelled: derived ones and standard errors."""
        errors = {spec.standard_error for spec in self.specs.values() if spec.standard_error is not None}
        return {*self.derived, *errors}

    @property
    def left_alone(self) -> set[Label]:
        """Columns whose holes stay."""
        errors = self.no_variables - {*self.derived}
        return {label for label, spec in self.specs.items() if not spec.impute} | errors

    @property
    def may_stay_missing(self) -> list[Label]:
        """Columns whose holes may not be filled in all draws."""
        found = {label for label in self.only_if if self.specs[label].otherwise is None} | self.left_alone
        return sorted({*found, *self.derived}, key=str)  # a formula may have no value, as a / 0

    @property
    def _order(self) -> list[Label]:
        """Columns with a formula, each after those that it hangs on; in circles derived ones first."""
        formulas = {**self.only_if, **self.derived}
        try:
            graph = {label: formula.sources for label, formula in formulas.items()}
            return [label for label in graphlib.TopologicalSorter(graph).static_order() if label in formulas]
        except graphlib.CycleError:
            return [*self.derived, *self.only_if]

    @property
    def of_variables(self) -> Specs:
        """The specs of the columns that are modelled."""
        return {label: spec for label, spec in self.specs.items() if label not in self.no_variables}

    # ------------------------------------------------------------------------------------ before the model

    def check_columns_alone(self) -> None:
        """That the rules can be kept without a look at whole rows.

        Raises:
            ValueError: If they cannot.
        """
        if self.derived or self.only_if or self.no_variables:
            raise ValueError(
                "derived columns, only_if and standard_error look at whole rows of a table, but here one "
                "column at a time is in memory: fit a sample of the rows with fit(frame), or leave these "
                "specs out"
            )

    def check(self, frame: pd.DataFrame) -> None:
        """That the observed cells of a table keep the rules.

        Raises:
            ValueError: A derived cell is not what its formula gives, or a column has another value than
                `otherwise` where it does not apply; names the row.
        """
        for label, formula in self.derived.items():
            if not is_numeric(frame[label]):
                raise ValueError(
                    f"Column {label!r} is derived, so it must hold numbers, got {frame[label].dtype}"
                )
            given, value = _numbers(frame[label]), formula.value(frame)
            near = np.maximum(_TOLERANCE * np.abs(given), _ROUNDED * _last_place(given))
            off = np.abs(given - value) > near
            if off.any():
                first = int(np.flatnonzero(off)[0])
                raise ValueError(
                    f"Column {label!r} is derived as {formula.text!r}: {row_name(frame.index, first)} holds "
                    f"{given[first]:g}; expected {value[first]:g}. Correct the cell or the formula."
                )
        for label, formula in self.only_if.items():
            outside = formula.known(frame) & ~formula.holds(frame) & ~holes_of(frame[label])
            strange = outside & ~self._is_otherwise(frame[label])
            if strange.any():
                first = int(np.flatnonzero(strange)[0])
                raise ValueError(
                    f"Column {label!r} applies only if {formula.text!r}: {row_name(frame.index, first)} "
                    f"holds {plain(frame[label].iloc[first])!r}; expected a missing cell, or otherwise="
                    f"{self.specs[label].otherwise!r}. Correct the cell, the condition, or set otherwise."
                )

    def _is_otherwise(self, column: pd.Series[Any]) -> NDArray[np.bool_]:
        """Which cells are what stands where their column does not apply, [N].

        Raises:
            ValueError: The column cannot hold that.
        """
        otherwise = self.specs[label_of(column.name)].otherwise
        if otherwise is None:
            return np.zeros(len(column), dtype=np.bool_)
        try:
            everywhere = column.mask(np.ones(len(column), dtype=np.bool_), otherwise)
            if everywhere.dtype != column.dtype or (is_boolean(column) != isinstance(otherwise, bool)):
                raise TypeError
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"Column {column.name!r}: dtype {column.dtype} cannot hold otherwise={otherwise!r}"
            ) from error
        return (column.astype(object) == everywhere.astype(object)).fillna(False).to_numpy(dtype=np.bool_)

    def errors(self, frame: pd.DataFrame) -> dict[Label, NDArray[np.float64]]:
        """Standard errors of the cells of some columns, by the column's label, [N], in its own units.

        Raises:
            ValueError: An observed cell has none, or a negative or infinite one; names the row.
        """
        found = {}
        for label, spec in self.specs.items():
            if spec.standard_error is not None:
                errors, here = _numbers(frame[spec.standard_error]), ~holes_of(frame[label])
                wrong = here & ~((errors >= 0) & np.isfinite(errors))
                if wrong.any():
                    first = int(np.flatnonzero(wrong)[0])
                    raise ValueError(
                        f"Column {spec.standard_error!r} holds the standard errors of {label!r}: "
                        f"{row_name(frame.index, first)} holds {errors[first]:g}; "
                        "expected a number of at least 0 wherever the other is observed. Give the cell one."
                    )
                found[label] = np.where(here, errors, 0.0)
        return found

    def deduce(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The table with the cells filled in that follow from observed ones.

        These are derived cells whose sources are observed, and the only missing source of an observed derived
        cell, if its formula can be solved for it; and what a condition says a column equals, where the column
        to which it applies is observed.
        """
        for label, formula in self.only_if.items():
            applies = ~holes_of(frame[label]) & ~self._is_otherwise(frame[label])
            for source, value in formula.implied.items():
                frame = frame.copy()
                frame[source] = frame[source].mask(applies & holes_of(frame[source]), value)
        for label, formula in self.only_if.items():
            if (otherwise := self.specs[label].otherwise) is not None:
                outside = formula.known(frame) & ~formula.holds(frame) & holes_of(frame[label])
                frame = frame.copy()
                frame[label] = frame[label].mask(outside, otherwise)
        n_holes = -1
        while (left := sum(int(holes_of(frame[label]).sum()) for label in frame.columns)) != n_holes:
            n_holes = left
            for label, formula in self.derived.items():
                frame = _filled(frame, label, formula.value(frame))
            for label, formula in reversed([*self.derived.items()]):
                for source in formula.sources:
                    frame = self._solved(frame, label, source, formula)
        return frame

    def _solved(self, frame: pd.DataFrame, label: Label, source: Label, formula: Formula) -> pd.DataFrame:
        """The table with a source solved for where it alone is missing and the derived cell is there."""
        if not is_numeric(frame[source]):
            return frame
        missing_sources = np.sum([holes_of(frame[each]) for each in formula.sources], axis=0)
        rows = holes_of(frame[source]) & (missing_sources == 1) & ~holes_of(frame[label])
        if not rows.any():
            return frame
        wanted = _numbers(frame[label])[rows]
        values = formula.solve(frame[rows], source, wanted, self._range(frame[source]).middle)
        values = _possible(frame[source], values)
        return _filled(frame, source, _spread(values, rows))

    def modelled(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The table of variables, with holes where they do not apply."""
        variables = frame.drop(columns=[label for label in frame.columns if label in self.no_variables])
        for label, formula in self.only_if.items():
            outside = formula.known(frame) & ~formula.holds(frame)
            variables[label] = frame[label].mask(outside)
        return variables

    # ------------------------------------------------------------------------------------- after the model

    def settle(self, frame: pd.DataFrame, modelled: pd.DataFrame, draws: Cells, m: int) -> Cells:
        """Draws of the holes of the table as it came, from draws of those of the modelled table.

        Args:
            frame: The table as it came.
            modelled: What `modelled` gave for it.
            draws: Draws of the holes of the latter.
            m: Number of draws.

        Warns:
            TableWarning: A derived cell was observed, two of its sources or more were not, and the formula
                could not be solved for any of these: there the identity does not hold.
        """
        holes = {label: holes_of(frame[label]) for label in frame.columns}
        filled = [label for label, here in holes.items() if here.any() and label not in self.left_alone]
        deduced, broken = self.deduce(frame), dict.fromkeys(self.derived, 0)
        spread = {label: self._spread_of(modelled[label], values) for label, values in draws.items()}
        tables = []
        for j in range(m):
            drawn = complete(modelled, {label: values[j] for label, values in draws.items()})
            tables.append(self._settled(frame, deduced, drawn, spread))
            for label, formula in self.derived.items():
                given, value = _numbers(deduced[label]), formula.value(tables[-1])
                off = np.abs(given - value) > _EXACT * np.maximum(np.abs(given), np.abs(value))
                drawn_row = np.logical_or.reduce([holes_of(deduced[each]) for each in formula.sources])
                broken[label] = max(broken[label], int((off & drawn_row).sum()))
        for label, count in broken.items():
            if count:
                warn_user(
                    f"Column {label!r} is derived as {self.derived[label].text!r}: in {count} rows it is "
                    "observed, several of its sources are not, and no value of these was found that gives "
                    "it. There draws do not keep the formula.",
                    TableWarning,
                )
        return {
            label_of(label): np.stack([cells_of(table[label][holes[label]]) for table in tables])
            for label in filled
        }

    def _spread_of(self, column: pd.Series[Any], draws: NDArray[Any]) -> NDArray[np.float64]:
        """Variance of the draws `[m, n_missing]` of each hole of a column of numbers, [N], zero elsewhere."""
        variance, holes = np.zeros(len(column)), holes_of(column)
        if draws.dtype.kind == "f":
            variance[holes] = draws.var(0, ddof=1) if len(draws) > 1 else self._range(column).variance
        return variance

    def _settled(
        self,
        frame: pd.DataFrame,
        deduced: pd.DataFrame,
        drawn: pd.DataFrame,
        spread: Mapping[Label, NDArray[np.float64]],
    ) -> pd.DataFrame:
        """One completed table of variables as the rules want it, with the other columns."""
        full = deduced.copy()
        full[drawn.columns] = drawn
        wanted = {label: _numbers(deduced[label]) for label in self.derived}
        for label, formula in reversed([*self.derived.items()]):
            table = self._applied(frame, deduced, full)
            free = {each: holes_of(deduced[each]) for each in formula.sources}
            for each in set(self.only_if) & {*formula.sources}:
                free[each] = free[each] & self.only_if[each].holds(table)
            near = self._shared(table, wanted[label], free, formula, spread)
            fitted = self._made_to_fit(near, wanted[label], free, formula)
            for each in formula.sources:
                if not fitted[each].equals(table[each]):
                    changed = _numbers(fitted[each]) != _numbers(table[each])
                    full[each] = full[each].where(~changed, fitted[each])
                    if each in wanted:
                        wanted[each] = np.where(changed, _numbers(fitted[each]), wanted[each])
        return self._applied(frame, deduced, full)

    def _applied(self, frame: pd.DataFrame, deduced: pd.DataFrame, full: pd.DataFrame) -> pd.DataFrame:
        """A full table with derived cells computed, and columns where they apply."""
        table = full.copy()
        for label in self._order:
            if label in self.derived:
                table[label] = deduced[label]
                table = _filled(table, label, self.derived[label].value(table))
                continue
            came, outside = holes_of(frame[label]), ~self.only_if[label].holds(table)
            table[label] = table[label].mask(outside & came, self.specs[label].otherwise)
            # An observed cell of another row was a hole of the model's only.
            table[label] = table[label].where(came, frame[label])
        return table

    def _shared(
        self,
        table: pd.DataFrame,
        wanted: NDArray[np.float64],
        free: Mapping[Label, NDArray[np.bool_]],
        formula: Formula,
        spread: Mapping[Label, NDArray[np.float64]],
    ) -> pd.DataFrame:
        """The table with drawn sources of observed derived cells moved towards what the formula asks for.

        Each goes as far as its draws vary: as independent normal numbers do, given a sum of theirs. A formula
        that is no sum is taken for one, again and again.
        """
        sources = [each for each in formula.sources if spread.get(each, _NONE).any()]
        rows = ~np.isnan(wanted) & (np.sum([free[each] for each in sources], axis=0) > 1)
        if not rows.any():
            return table
        trial = table[rows].copy()
        variances = {each: np.where(free[each], spread[each], 0.0)[rows] for each in sources}
        # One that is drawn in other rows only has no slope to be found here.
        sources = [each for each in sources if variances[each].any()]
        for _ in range(_SHARED_STEPS):
            now, slopes = formula.value(trial), {}
            for each in sources:
                step = _SLOPE_STEP * np.sqrt(np.where(variances[each] > 0, variances[each], 1.0))
                ahead = trial.copy()
                ahead[each] = ahead[each] + step
                slopes[each] = (formula.value(ahead) - now) / step
            with np.errstate(all="ignore"):
                parts = [
                    np.where(v > 0, v * slopes[e] ** 2, 0.0) for e, v in variances.items() if e in slopes
                ]
                total = np.sum(parts, axis=0)
                for each in sources:
                    move = variances[each] * slopes[each] / total * (wanted[rows] - now)
                    moved = _numbers(trial[each]) + np.where(np.isfinite(move), move, 0.0)
                    trial[each] = np.where(variances[each] > 0, self._clipped(each, moved), trial[each])
        for each in sources:
            table = _replaced(table, each, _spread(np.where(variances[each] > 0, trial[each], np.nan), rows))
        return table

    def _made_to_fit(
        self,
        table: pd.DataFrame,
        wanted: NDArray[np.float64],
        free: dict[Label, NDArray[np.bool_]],
        formula: Formula,
    ) -> pd.DataFrame:
        """The table with drawn sources of each observed derived cell made what the formula asks for.

        One is, if it stays within its bounds then; else others go as near to theirs as they need first.
        """
        numeric = [each for each in formula.sources if is_numeric(table[each])]
        numeric.sort(key=lambda each: each in self.derived)
        unmet = ~np.isnan(wanted) & np.logical_or.reduce(list(free.values()))
        sizes = range(1, min(len(numeric), _MOST_MOVED) + 1)
        for moved in (each for size in sizes for each in itertools.permutations(numeric, size)):
            rows = unmet & np.logical_and.reduce([free[each] for each in moved])
            if not rows.any():
                continue
            trial = table[rows]
            for source in moved:
                values = formula.solve(trial, source, wanted[rows], self._range(table[source]).middle)
                values = self._clipped(source, values)
                if source != moved[-1] and is_integer(table[source]):
                    values = np.round(values)
                trial = _replaced(trial, source, _possible(table[source], values))
            largest = np.abs(trial[numeric].astype(np.float64)).max(axis=1)
            exact = _EXACT * np.maximum(np.abs(wanted[rows]), largest)
            found = np.abs(formula.value(trial) - wanted[rows]) <= exact
            for source in moved:
                values = np.where(found, _numbers(trial[source]), np.nan)
                table = _replaced(table, source, _spread(values, rows))
            unmet[np.flatnonzero(rows)[found]] = False
        return table

    def _clipped(self, label: Label, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Values of a column kept within its bounds."""
        spec = self.specs.get(label, ColumnSpec())
        lower = -np.inf if spec.lower is None else spec.lower
        return np.clip(values, lower, np.inf if spec.upper is None else spec.upper)


def _formulas(specs: Specs, name: str, columns: Sequence[Label]) -> dict[Label, Formula]:
    """The formulas of one argument of the specs, by column."""
    texts = {label: getattr(spec, name) for label, spec in specs.items()}
    return {label: Formula.parse(text, columns) for label, text in texts.items() if text is not None}


def _spread(values: NDArray[np.float64], rows: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Values of some rows as values of all, NaN elsewhere."""
    spread = np.full(len(rows), np.nan)
    spread[rows] = values
    return spread


def _replaced(frame: pd.DataFrame, label: Label, values: NDArray[np.float64]) -> pd.DataFrame:
    """The table with numbers, [N], in a column where they are not NaN."""
    frame = frame.copy()
    frame[label] = frame[label].mask(~np.isnan(values))
    return _filled(frame, label, values)


def _filled(frame: pd.DataFrame, label: Label, values: NDArray[np.float64]) -> pd.DataFrame:
    """The table with numbers, [N], in those holes of a column for which they are finite."""
    cells: NDArray[Any] = np.where(np.isfinite(values), values, np.nan)[holes_of(frame[label])]
    if not np.isfinite(cells).any():
        return frame
    if is_boolean(frame[label]):
        cells = np.array([None if np.isnan(cell) else bool(cell) for cell in cells], dtype=object)
    return complete(frame, {label: cells})


def _possible(column: pd.Series[Any], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Numbers for a column, NaN for those that it cannot hold."""
    if is_boolean(column):
        return np.where(np.isin(np.round(values, 9), (0.0, 1.0)), np.round(values), np.nan)
    if is_integer(column):
        return np.where(np.isclose(values, np.round(values), rtol=0, atol=1e-6), np.round(values), np.nan)
    return values


def _numbers(column: pd.Series[Any]) -> NDArray[np.float64]:
    return column.to_numpy(dtype=np.float64, na_value=np.nan)


def _middle(column: pd.Series[Any]) -> tuple[float, float]:
    """Two different numbers around the middle of a column."""
    if holes_of(column).all():
        return 1.0, 2.0
    low, high = np.nanquantile(_numbers(column), _MIDDLE).tolist()
    return low, high if high > low else low + max(1.0, abs(low))


def _last_place(numbers: NDArray[np.float64]) -> float:
    """The unit of the last decimal place that numbers are given to."""
    known = numbers[~np.isnan(numbers)]
    return next(
        (10.0**-d for d in range(_MOST_DECIMALS) if np.allclose(known, known.round(d), 1e-12, 0)), 0.0
    )
