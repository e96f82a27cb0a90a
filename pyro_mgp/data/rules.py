"""Rules of a table: derived columns, columns that apply to some rows only, standard errors and limits."""

from __future__ import annotations

import graphlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from pyro_mgp._support.messages import listing, plain, row_name, warn_user
from pyro_mgp.data.cells import (
    cells_of,
    complete,
    holes_of,
    is_boolean,
    is_numeric,
    label_of,
    labels_of,
    natural_kind,
    numbers_of,
)
from pyro_mgp.data.codecs.base import MAX_LEVELS
from pyro_mgp.data.column_spec import ColumnSpec, Kind, Label, Specs
from pyro_mgp.data.formula import Formula
from pyro_mgp.data.groups import WithinGroups
from pyro_mgp.data.limits import Limits, holds_limits
from pyro_mgp.data.survival import Survival
from pyro_mgp.data.table import TableWarning, missing
from pyro_mgp.data.weights import log_weights

Cells = dict[Label, NDArray[Any]]
"""Values of the missing cells of each incomplete column, `[m, n_missing]`, in row order."""

# Labels of which more than half of the cells differ are texts, if they are more than so many.
_MOST_ONCE = 20
# Largest relative difference between an observed cell and its formula: tables hold rounded numbers.
_TOLERANCE = 0.01
_MOST_DECIMALS = 12
# Largest difference between a rounded number and the exact one, in units of its last place.
_ROUNDED = 0.51
# Largest relative difference between an imputed cell and its formula.
_EXACT = 1e-9
# The search for a missing source starts between these quantiles of its column.
_MIDDLE = (0.4, 0.6)


@dataclass(frozen=True)
class Rules:
    """Rules that specs set: they turn a table into the modelled one, and draws for that into draws for it."""

    derived: Mapping[Label, Formula]
    """Formulas of the derived columns; each column follows its sources."""
    only_if: Mapping[Label, Formula]
    """Conditions under which columns apply to a row."""
    specs: Specs
    """All column specs, by label."""
    middles: Mapping[Label, tuple[float, float]] = field(default_factory=dict)
    """Two numbers in the middle of each numeric column at fit, where the search for missing cells starts."""
    survival: Survival | None = None
    """Survival outcome whose time enters the model as its cumulative hazard; None without one."""
    texts: frozenset[Label] = frozenset()
    """Columns of text or identifiers, which are left as they are."""
    within: WithinGroups = field(default_factory=WithinGroups)
    """Columns that were constant within groups at fit."""
    weights: Label | None = None
    """Column of sampling weights, which enter the model as their logarithms; None without one."""

    @classmethod
    def parse(
        cls,
        specs: Specs | None,
        columns: Sequence[Label],
        survival: tuple[Label, Label] | None = None,
        weights: Label | None = None,
    ) -> Rules:
        """Return the rules that specs, the columns of a survival outcome, and weights set for a table.

        Specs that name a column that cannot be used, and wrong or circular formulas, are a ValueError.
        """
        specs = dict(specs or {})
        for label, spec in specs.items():
            if label not in columns:
                raise ValueError(f"specs name column {label!r}, but the table has {listing(columns)}")
            if not isinstance(spec, ColumnSpec):
                raise TypeError(f"specs must be ColumnSpec, got {spec!r} for column {label!r}")
        derived, only_if = (_formulas(specs, name, columns) for name in ("derived", "only_if"))
        try:
            rules = cls({label: derived[label] for label in _sources_first(derived)}, only_if, specs)
        except graphlib.CycleError as error:
            raise ValueError(f"columns are derived from each other in a circle: {error.args[1]}") from error
        variables = {*columns} - rules.not_modelled
        for label, spec in specs.items():
            wrong = [each for each in spec.predictors or () if each not in variables]
            of_groups = [*spec.slopes, *(() if spec.time is None else [spec.time])]
            wrong += [each for each in of_groups if each not in variables - {label} - rules.groups]
            wrong += [each for each in spec.described_by if each not in {*columns} - {label, *derived}]
            if wrong:
                expected = "another column of the table that is not derived"
                raise _wrong(f"the spec of column {label!r}", wrong[0], columns, expected)
        if len(subjects := [label for label, spec in specs.items() if spec.time is not None]) > 1:
            raise ValueError(
                f"the specs of columns {listing(subjects)} name times: expected one process over time"
            )
        if weights is not None and weights not in variables:
            expected = (
                "the label of a column of the table that is not derived and does not describe another one"
            )
            raise _wrong("weights", weights, columns, expected)
        if weights in specs:
            raise ValueError(
                f"column {weights!r} holds weights, of which the logarithm is modelled: leave out its spec"
            )
        outcome = None if survival is None else _survival(survival, variables, columns)
        if outcome is not None and weights in (outcome.time, outcome.event):
            raise ValueError(f"column {weights!r} cannot hold both weights and a survival outcome")
        others = {weights} | (set() if outcome is None else {outcome.time, outcome.event})
        for label, spec in specs.items():
            if spec.time is not None and spec.time in others:
                raise ValueError(
                    f"column {spec.time!r} cannot hold times of {label!r} as well as weights or a survival "
                    "outcome, which are modelled on another scale"
                )
        return replace(rules, survival=outcome, weights=weights)

    def learn(self, frame: pd.DataFrame) -> Rules:
        """Return these rules with what they learn from a table.

        These are the `middles` of numeric columns, if any column is derived, the cumulative hazard,
        columns that are constant within groups, and those of text or identifiers, of which a TableWarning
        tells.
        """
        labels = labels_of(frame.columns)
        numeric = [label for label in labels if is_numeric(frame[label])] if self.derived else []
        middles = {label: _middle(frame[label]) for label in numeric}
        survival = None if self.survival is None else self.survival.learn(frame)
        specs = {**self.specs, **_specs_of_times(frame, self.specs)}
        texts, groups = self._texts_of(frame), [each for each in labels if each in self.groups]
        modelled = frame.drop(columns=list(self.not_modelled | texts))
        within = WithinGroups.find(modelled, groups)
        for group, constant in within.constant.items():
            own = self.specs[group]
            if wrong := [label for label in own.slopes if label in constant and label != own.time]:
                raise ValueError(
                    f"The spec of column {group!r} names slopes of {listing(wrong)}, constant within its "
                    "groups: there they cannot be told from intercepts. Leave them out."
                )
        return replace(self, specs=specs, middles=middles, survival=survival, texts=texts, within=within)

    @property
    def groups(self) -> set[Label]:
        """Labels of the columns of groups."""
        return {label for label, spec in self.specs.items() if spec.kind is Kind.GROUP}

    def _texts_of(self, frame: pd.DataFrame) -> frozenset[Label]:
        """Return the columns of text or identifiers that no spec makes predictors, with a warning for each.

        There is none for columns whose specs say that they predict nothing.
        """
        of_no_use = {label for label, spec in self.specs.items() if spec == ColumnSpec(predicts=False)}
        named = {*self.specs, *(each for spec in self.specs.values() for each in spec.predictors or ())}
        others = [label for label in labels_of(frame.columns) if label not in self.not_modelled]
        may_be = [label for label in others if label not in named or label in of_no_use]
        texts = frozenset(label for label in may_be if _is_text(frame[label]))
        for label in sorted(texts - of_no_use, key=str):
            cells = frame[label].dropna()
            advice = "If its cells are levels, group rare ones, or say so: ColumnSpec(kind='categorical')."
            if holds_limits(cells):
                advice = "If cells lie within limits, split them: frame, specs = split_limits(frame)."
            elif pd.to_numeric(cells.astype(str), errors="coerce").notna().mean() > 0.5:
                advice = f"If its cells are numbers, convert it by pandas.to_numeric(frame[{label!r}])."
            warn_user(
                f"Column {label!r} holds {cells.nunique()} different texts in {len(cells)} cells: it is "
                f"taken for text or an identifier, is left as it is, and predicts no other column. {advice}",
                TableWarning,
            )
        return texts

    @property
    def trivial(self) -> bool:
        """True if there are no rules: the user's table is modelled unchanged and imputed completely."""
        changes = self.only_if or self.not_modelled or self.not_imputed or self.on_other_scales
        return not (changes or any(self.within.constant.values()))

    @property
    def not_modelled(self) -> set[Label]:
        """Labels of columns that are not modelled: derived ones, standard errors, limits and texts."""
        describing = {label for spec in self.specs.values() for label in spec.described_by}
        return {*self.derived, *describing, *self.texts}

    @property
    def not_imputed(self) -> set[Label]:
        """Labels of the columns whose missing cells stay missing."""
        describing = self.not_modelled - {*self.derived}
        return {label for label, spec in self.specs.items() if not spec.impute} | describing

    @property
    def on_other_scales(self) -> set[Label]:
        """Labels of complete columns that are modelled on a scale of their own: hazards, and log weights."""
        times = set() if self.survival is None else {self.survival.time}
        return times | (set() if self.weights is None else {self.weights})

    @property
    def may_stay_missing(self) -> list[Label]:
        """Labels of the columns that may have missing cells after imputation."""
        found = {label for label in self.only_if if self.specs[label].otherwise is None} | self.not_imputed
        return sorted({*found, *self.derived}, key=str)  # a formula may have no value, as a / 0

    @property
    def modelled_specs(self) -> Specs:
        """Specs of the columns that are modelled, but for those on other scales."""
        outside = self.not_modelled | self.on_other_scales
        specs = {label: spec for label, spec in self.specs.items() if label not in outside}
        if self.weights is None:
            return specs
        # All columns are predicted from weights.
        return {
            label: spec
            if spec.predictors is None
            else replace(spec, predictors=[*spec.predictors, self.weights])
            for label, spec in specs.items()
        }

    def check(self, frame: pd.DataFrame) -> None:
        """Check that the observed cells of a table follow the rules; a ValueError names the row otherwise."""
        for label, formula in self.derived.items():
            if not is_numeric(frame[label]):
                raise ValueError(f"Column {label!r} is derived: expected numbers, got {frame[label].dtype}")
            given, value = numbers_of(frame[label]), formula.value(frame)
            tolerance = np.maximum(_TOLERANCE * np.abs(given), _ROUNDED * _last_place(given))
            with np.errstate(invalid="ignore"):  # differences of infinite numbers
                off = np.isfinite(given) & (np.abs(given - value) > tolerance)
            off |= np.isinf(given) & ~np.isnan(value) & (given != value)
            for row in np.flatnonzero(off)[:1]:
                raise ValueError(
                    f"Column {label!r} is derived as {formula.text!r}: {row_name(frame.index, row)} holds "
                    f"{given[row]:g}; expected {value[row]:g}. Correct the cell or the formula."
                )
        for label, formula in self.only_if.items():
            unexpected = formula.fails(frame) & ~holes_of(frame[label]) & ~self._is_otherwise(frame[label])
            for row in np.flatnonzero(unexpected)[:1]:
                raise ValueError(
                    f"Column {label!r} applies only if {formula.text!r}: {row_name(frame.index, row)} "
                    f"holds {plain(frame[label].iloc[row])!r}; expected a missing cell, or otherwise="
                    f"{self.specs[label].otherwise!r}. Correct the cell, the condition, or set otherwise."
                )

    def _is_otherwise(self, column: pd.Series[Any]) -> NDArray[np.bool_]:
        """Return a mask of the cells that equal the `otherwise` of their column, Bool `[N]`."""
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

    def standard_errors(self, frame: pd.DataFrame) -> dict[Label, NDArray[np.float64]]:
        """Return the standard errors of observed cells in their own units, `[N]`, by column."""
        found = {}
        for label, spec in self.specs.items():
            if spec.standard_error is not None:
                if not is_numeric(own := frame[spec.standard_error]):
                    raise TypeError(
                        f"Column {spec.standard_error!r} holds the standard errors of {label!r}: expected "
                        f"numbers, got dtype {own.dtype}. Convert it by pandas.to_numeric."
                    )
                errors, observed = numbers_of(frame[spec.standard_error]), ~holes_of(frame[label])
                for row in np.flatnonzero(observed & ~((errors >= 0) & np.isfinite(errors)))[:1]:
                    raise ValueError(
                        f"Column {spec.standard_error!r} holds the standard errors of {label!r}: "
                        f"{row_name(frame.index, row)} holds {errors[row]:g}; expected a finite number of at "
                        f"least 0 wherever {label!r} is observed. Correct the cell."
                    )
                found[label] = np.where(observed, errors, 0.0)
        return found

    def limits(self, frame: pd.DataFrame) -> dict[Label, Limits]:
        """Return the limits of missing cells in their own units, for each column whose spec names limits.

        A limit that an observed cell or the other limit contradicts is a ValueError that names the row.
        """
        with_limits = {label: spec for label, spec in self.specs.items() if spec.limit_columns}
        if with_limits and not self.trivial:
            frame = self.deduce(frame)
        return {label: _checked_limits(frame, label, spec) for label, spec in with_limits.items()}

    def deduce(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Fill the missing cells that follow from observed cells by the rules.

        These are cells of columns that are constant within groups, derived cells, the only missing source of
        a derived cell, a column that must equal a constant for an observed column to apply, and `otherwise`,
        where a condition is false.
        """
        frame = self.within.complete(frame).copy()
        for label, formula in self.only_if.items():
            applies = ~holes_of(frame[label]) & ~self._is_otherwise(frame[label])
            for source, value in formula.implied.items():
                frame[source] = _with_constant(frame[source], applies & holes_of(frame[source]), value)
        for label, formula in self.only_if.items():
            if (otherwise := self.specs[label].otherwise) is not None:
                outside = formula.fails(frame) & holes_of(frame[label])
                frame[label] = frame[label].mask(outside, otherwise)
        n_missing = -1
        while (left := int(missing(frame).sum())) != n_missing:
            n_missing = left
            for label, formula in self.derived.items():
                frame = _filled(frame, label, formula.value(frame))
            for label, formula in reversed([*self.derived.items()]):
                for source in formula.sources:
                    frame = self._solved(frame, label, source, formula)
        return frame

    def _solved(self, frame: pd.DataFrame, label: Label, source: Label, formula: Formula) -> pd.DataFrame:
        """Fill a source of a derived column by solving the formula, where only this source is missing."""
        missing_sources = np.sum([holes_of(frame[each]) for each in formula.sources], axis=0)
        rows = holes_of(frame[source]) & (missing_sources == 1) & ~holes_of(frame[label])
        if not (is_numeric(frame[source]) and rows.any()):
            return frame
        middle = self.middles[source] if source in self.middles else _middle(frame[source])
        values = np.full(len(frame), np.nan)
        values[rows] = formula.solve(frame[rows], source, numbers_of(frame[label])[rows], middle)
        return _filled(frame, source, _possible(frame[source], values))

    def modelled(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the table that is modelled, with missing cells where a column does not apply.

        It is the same object if there are no rules. A cell that contradicts a rule is a ValueError.
        """
        for label, spec in self.specs.items():
            if spec.time is not None:
                _check_times(frame, label, spec.time)
        if self.trivial:
            return frame
        self.check(frame)
        frame = self.deduce(frame)
        variables = frame.drop(columns=list(self.not_modelled))
        for label, formula in self.only_if.items():
            variables[label] = frame[label].mask(formula.fails(frame))
        if self.survival is not None:
            self.survival.check(frame)
            variables[self.survival.time] = self.survival.cumulative_hazard(frame)
        if self.weights is not None:
            variables[self.weights] = log_weights(frame[self.weights])
        return variables

    def apply_to_draws(self, frame: pd.DataFrame, modelled: pd.DataFrame, draws: Cells, m: int) -> Cells:
        """Apply the rules to m draws for the modelled table, to get those of the user's missing cells.

        Missing derived cells are computed in each draw. Where several sources of an observed derived cell
        are missing, these are left as they were imputed, and a TableWarning says so.
        """
        deduced, tables = self.deduce(frame), []
        for j in range(m):
            drawn = complete(modelled, {label: values[j] for label, values in draws.items()})
            full = deduced.copy()
            own = [label for label in drawn.columns if label not in self.on_other_scales]
            full[own] = drawn[own]
            tables.append(self._completed(frame, full))
        self._warn_of_violations(deduced, tables)
        return {
            label_of(label): np.stack([cells_of(table[label][here]) for table in tables])
            for label in frame.columns
            if (here := holes_of(frame[label])).any() and label not in self.not_imputed
        }

    def _completed(self, frame: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
        """Compute the derived cells of a completed table, and set `otherwise` where columns do not apply."""
        try:
            order = _sources_first({**self.only_if, **self.derived})
        except graphlib.CycleError:
            order = [*self.derived, *self.only_if]
        for label in order:
            if label in self.derived:
                table = _filled(table, label, self.derived[label].value(table))
                continue
            holes, outside = holes_of(frame[label]), ~self.only_if[label].holds(table)
            table[label] = table[label].mask(outside & holes, self.specs[label].otherwise)
            # The model also imputes cells that are observed as `otherwise`.
            table[label] = table[label].where(holes, frame[label])
        return table

    def _warn_of_violations(self, deduced: pd.DataFrame, tables: Sequence[pd.DataFrame]) -> None:
        for label, formula in self.derived.items():
            imputed = ~formula.sources_observed(deduced)
            given = numbers_of(deduced[label])[imputed]
            values = np.stack([formula.value(table[imputed]) for table in tables])
            off = np.abs(given - values) > _EXACT * np.maximum(np.abs(given), np.abs(values))
            if n := int(off.sum(axis=1).max()):
                warn_user(
                    f"Column {label!r} is derived as {formula.text!r}. In {n} row{'s' * (n > 1)} it is "
                    "observed, but several of its sources are missing, or the formula has no solution for "
                    "the missing one. There the sources are imputed without it, and it does not hold.",
                    TableWarning,
                )


def _is_text(column: pd.Series[Any]) -> bool:
    """Return whether a column holds text or identifiers: labels that are too many, or mostly different."""
    if natural_kind(column) is not Kind.CATEGORICAL or isinstance(column.dtype, pd.CategoricalDtype):
        return False
    n_different, n_cells = column.nunique(), int(column.notna().sum())
    return n_different > MAX_LEVELS or (n_different > _MOST_ONCE and n_different > n_cells / 2)


def _specs_of_times(frame: pd.DataFrame, specs: Specs) -> dict[Label, ColumnSpec]:
    """Return the specs of columns of times, whose numbers are continuous: counts would have a log scale."""
    found = dict[Label, ColumnSpec]()
    for label, spec in specs.items():
        if spec.time is None:
            continue
        own = specs.get(spec.time, ColumnSpec())
        if own.kind not in (None, Kind.CONTINUOUS, Kind.INTEGER, Kind.DATETIME, Kind.DURATION):
            raise ValueError(
                f"Column {spec.time!r} holds the times of {label!r}, which are numbers or dates: leave out "
                f"kind={str(own.kind)!r} of its spec"
            )
        if is_numeric(frame[spec.time]):
            found[spec.time] = replace(own, kind=Kind.CONTINUOUS)
    return found


def _check_times(frame: pd.DataFrame, subject: Label, time: Label) -> None:
    """Check that times are complete, and differ in the rows of a subject; a ValueError names the row."""
    times = frame[time]
    if not (is_numeric(times) or types.is_datetime64_any_dtype(times) or types.is_timedelta64_dtype(times)):
        raise ValueError(
            f"Column {time!r} holds the times of {subject!r}: expected numbers or dates, got {times.dtype}. "
            "Convert texts by pandas.to_datetime"
        )
    for row in np.flatnonzero(holes_of(times))[:1]:
        raise ValueError(
            f"Column {time!r} holds the times of {subject!r}: {row_name(frame.index, row)} is missing; "
            "expected a time in each row. Fill it in, or drop the row."
        )
    for row in np.flatnonzero(frame.duplicated([subject, time]) & ~holes_of(frame[subject]))[:1]:
        raise ValueError(
            f"Column {time!r} holds the times of {subject!r}: {row_name(frame.index, row)} repeats time "
            f"{plain(times.iloc[row])} of {plain(frame[subject].iloc[row])!r}; expected one row for each "
            "visit. Drop repeated rows, or make their times differ."
        )


def _wrong(who: str, label: Label, columns: Sequence[Label], expected: str) -> ValueError:
    """Return the error for the label of a column that is not in the table, or not one of those expected."""
    if label not in columns:
        return ValueError(f"{who} names column {label!r}, but the table has {listing(columns)}")
    return ValueError(f"{who} names {label!r}: expected {expected}")


def _survival(
    outcome: tuple[Label, Label], variables: Collection[Label], columns: Sequence[Label]
) -> Survival:
    """Return the outcome of columns of times and events, which must be among the modelled ones."""
    time, event = outcome
    for label in outcome:
        if label not in variables:
            expected = "the labels of two columns of the table that are not derived, of times and of events"
            raise _wrong("survival", label, columns, f"{expected}, got {outcome!r}")
    if time == event:
        raise ValueError(f"survival names {time!r} twice: expected a column of times and one of events")
    return Survival(time, event)


def _checked_limits(frame: pd.DataFrame, label: Label, spec: ColumnSpec) -> Limits:
    """Return the limits of a column's missing cells in their own units, after checks."""
    for own in (label, *spec.limit_columns):
        if not is_numeric(frame[own]) or is_boolean(frame[own]):
            role = "has limits" if own == label else f"holds limits of {label!r}"
            raise TypeError(
                f"Column {own!r} {role}: expected numbers, got dtype {frame[own].dtype}. Convert it by "
                "pandas.to_numeric."
            )
    columns, cells = (spec.lower_limit, spec.upper_limit), numbers_of(frame[label])
    lower, upper = (
        np.full(len(frame), none) if column is None else _or_none(numbers_of(frame[column]), none)
        for column, none in zip(columns, (-np.inf, np.inf), strict=True)
    )
    for row in np.flatnonzero(lower > upper)[:1]:
        raise ValueError(
            f"Column {label!r}: {row_name(frame.index, row)} has the lower limit {lower[row]:g} in "
            f"{columns[0]!r}, above the upper limit {upper[row]:g} in {columns[1]!r}. Correct one of them."
        )
    for row in np.flatnonzero((cells < lower) | (cells > upper))[:1]:
        is_low = cells[row] < lower[row]
        name, words = (columns[0], "at least") if is_low else (columns[1], "at most")
        raise ValueError(
            f"Column {label!r}: {row_name(frame.index, row)} holds {cells[row]:g}, but {name!r} says that it "
            f"is {words} {(lower if is_low else upper)[row]:g}. Limits are those of missing cells: correct "
            f"the cell, or leave {name!r} empty where {label!r} is observed."
        )
    limits = Limits(lower, upper).of(holes_of(frame[label]))
    least, most = spec.lower, spec.upper
    possible = limits.upper >= (-np.inf if least is None else least)
    possible &= limits.lower <= (np.inf if most is None else most)
    for row in np.flatnonzero(~possible)[:1]:
        raise ValueError(
            f"Column {label!r}: {row_name(frame.index, row)} has limits {limits.lower[row]:g} and "
            f"{limits.upper[row]:g}, but its spec has the bounds lower={least} and upper={most}. Correct "
            "the limit or the bounds."
        )
    _warn_of_reversed_limits(label, spec, limits, cells)
    return limits


def _or_none(limits: NDArray[np.float64], none: float) -> NDArray[np.float64]:
    """Return limits with an infinite number, which is no limit, in place of missing ones."""
    return np.where(np.isnan(limits), none, limits)


def _warn_of_reversed_limits(
    label: Label, spec: ColumnSpec, limits: Limits, cells: NDArray[np.float64]
) -> None:
    """Warn of a limit of detection given as the wrong limit: it then says next to nothing."""
    known = cells[~np.isnan(cells)]
    if len(spec.limit_columns) != 1 or not limits.limited.any() or not len(known):
        return
    lower = spec.lower_limit is not None
    ends = (limits.lower if lower else limits.upper)[limits.limited]
    if not (known.min() >= ends.max() if lower else known.max() <= ends.min()):
        return
    other, end, place = ("upper_limit", "least", "below") if lower else ("lower_limit", "most", "above")
    warn_user(
        f"Column {label!r}: {spec.limit_columns[0]!r} says that its missing cells are at {end} numbers "
        f"beyond which no observed cell lies. If it holds limits of detection, and the cells lie {place} "
        f"these, name it as {other}.",
        TableWarning,
    )


def _formulas(specs: Specs, name: str, columns: Sequence[Label]) -> dict[Label, Formula]:
    """Return the formulas that one argument of the specs holds, by column."""
    texts = {label: getattr(spec, name) for label, spec in specs.items()}
    return {label: Formula.parse(text, columns) for label, text in texts.items() if text is not None}


def _sources_first(formulas: Mapping[Label, Formula]) -> list[Label]:
    """Sort columns with a formula, each after its sources; graphlib.CycleError if that is impossible."""
    graph = {label: formula.sources for label, formula in formulas.items()}
    return [label for label in graphlib.TopologicalSorter(graph).static_order() if label in formulas]


def _with_constant(column: pd.Series[Any], cells: NDArray[np.bool_], value: Any) -> pd.Series[Any]:
    """Fill cells of a column with a constant to which a condition compares it."""
    if not cells.any():
        return column
    if isinstance(value, bool | int | float):
        if is_boolean(column) and value in (0, 1):
            value = bool(value)
        elif is_numeric(column):
            value = float(value)
    try:
        return column.mask(cells, value)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"Column {column.name!r}: dtype {column.dtype} cannot hold {value!r}, as only_if asks"
        ) from error


def _filled(frame: pd.DataFrame, label: Label, values: NDArray[np.float64]) -> pd.DataFrame:
    """Fill the missing cells of a column with those of the numbers `[N]` that are finite."""
    cells: NDArray[Any] = np.where(np.isfinite(values), values, np.nan)[holes_of(frame[label])]
    if not np.isfinite(cells).any():
        return frame
    if is_boolean(frame[label]):
        cells = np.array([None if np.isnan(cell) else bool(cell) for cell in cells], dtype=object)
    return complete(frame, {label: cells})


def _possible(column: pd.Series[Any], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return numbers as a column's dtype can hold them, NaN in place of impossible ones."""
    if is_boolean(column):
        return np.where(np.isin(np.round(values, 9), (0.0, 1.0)), np.round(values), np.nan)
    near = np.isclose(values, np.round(values), rtol=0, atol=1e-6)
    return np.where(near, np.round(values), np.nan) if types.is_integer_dtype(column.dtype) else values


def _middle(column: pd.Series[Any]) -> tuple[float, float]:
    """Return two different numbers near the median of a column."""
    if holes_of(column).all():
        return 1.0, 2.0
    low, high = np.nanquantile(numbers_of(column), _MIDDLE).tolist()
    return low, high if high > low else low + max(1.0, abs(low))


def _last_place(numbers: NDArray[np.float64]) -> float:
    """Return the unit of the last decimal place of numbers, such as 0.01."""
    given = numbers[~np.isnan(numbers)]
    return next(
        (10.0**-d for d in range(_MOST_DECIMALS) if np.allclose(given, given.round(d), 1e-12, 0)), 0.0
    )
