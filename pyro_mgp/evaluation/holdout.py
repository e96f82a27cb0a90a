"""Which observed cells to hide, so that what an imputer says of them can be compared with what they are.

Cells are hidden completely at random, column by column. Some stay: a fit needs observed cells of every column
and level, and a cell that follows from others is no test of anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from pyro_mgp._support.messages import listing
from pyro_mgp.data.column_spec import Label
from pyro_mgp.data.dtypes import is_boolean, is_numeric, label_of
from pyro_mgp.data.rules import Rules
from pyro_mgp.data.table import missing

FEWEST_CELLS = 10
"""A column with fewer observed cells is not hidden from."""

# Most of the observed cells of a column that may be hidden at a time.
_MOST = 0.5


@dataclass(frozen=True)
class Plan:
    """What is hidden."""

    folds: tuple[NDArray[np.bool_], ...]
    """Which cells to hide at a time, Bool `[N, C]` each; no cell is in two."""
    left_out: pd.DataFrame
    """What could not be hidden: `column`, `cells` (how many), `why`."""


def plan(
    frame: pd.DataFrame,
    columns: Sequence[Label] | None,
    share: float,
    n_folds: int | None,
    rules: Rules,
    generator: np.random.Generator,
) -> Plan:
    """Choose the cells to hide.

    Args:
        frame: The table.
        columns: Whose cells; None for the columns that have holes, or for all if none has: what an imputer
            makes of columns that are complete nobody needs to know, and predictors with holes are another
            task than predictors without.
        share: Of the observed cells of each of them, above 0 and at most 0.5; at least one cell is hidden.
        n_folds: Hide every cell once, in so many folds, instead (but the last one of a level, say).
        rules: What is known of the table: cells that follow from others are not hidden.
        generator: What the cells are chosen with.

    Raises:
        ValueError: The share or the number of folds makes no sense, a column is unknown, or no cell can be
            hidden.

    Example:
        >>> frame = pd.DataFrame({"x": [None, 1.0, 2.0, 3.0] * 5, "y": range(20)})
        >>> chosen = plan(frame, None, 0.2, None, Rules.parse(None, ["x", "y"]), np.random.default_rng(0))
        >>> chosen.folds[0].sum(axis=0).tolist()
        [3, 0]
    """
    if n_folds is None and not 0 < share <= _MOST:
        raise ValueError(f"share must be above 0 and at most {_MOST}, got {share}")
    if n_folds is not None and n_folds < 2:
        raise ValueError(f"folds must be at least 2, got {n_folds}")
    observed, labels = ~missing(frame), [label_of(label) for label in frame.columns]
    left_out: list[tuple[Label, int, str]] = []
    fold_of = np.full(frame.shape, -1)
    levels: dict[int, bool] = {}
    for label in _chosen(frame, columns, observed):
        j = labels.index(label)
        why = _no_test(frame[label], observed[:, j], label, rules)
        if why is not None:
            left_out.append((label, int(observed[:, j].sum()), why))
            continue
        levels[j] = is_label(frame[label], label, rules)
        fold_of[:, j] = _spread_over_folds(frame[label], observed[:, j], levels[j], share, n_folds, generator)
    if n_folds is not None:
        _no_row_in_one_fold(fold_of, observed, n_folds, generator)
    for j, is_level in levels.items():
        _keep_enough(frame[labels[j]], fold_of[:, j], is_level, n_folds or 1, generator)
    folds = []
    for k in range(n_folds or 1):
        hidden, removed = _without_what_follows(frame, fold_of == k, rules)
        hidden = _keep_a_cell_per_row(hidden, observed, generator)
        folds.append(hidden)
        left_out += [
            (label, int(count), "follows from other cells")
            for label, count in zip(frame.columns, removed, strict=True)
            if count
        ]
    if not np.any(folds):
        reasons = "; ".join(f"{label!r}: {why}" for label, _, why in left_out)
        reasons = reasons or "each is the last one of its level or row"
        raise ValueError(f"there is no cell to hide ({reasons}): name other columns")
    return Plan(tuple(folds), _counted(left_out))


def hide(frame: pd.DataFrame, hidden: NDArray[np.bool_]) -> pd.DataFrame:
    """A copy of the table with cells hidden; what they are stays, integers integers and booleans booleans.

    Args:
        frame: The table.
        hidden: Which cells, Bool `[N, C]`.

    Returns:
        The table with more holes. Integers and booleans that cannot hold any become pandas' nullable ones.

    Example:
        >>> frame = pd.DataFrame({"n": [1, 2], "yes": [True, False]})
        >>> hide(frame, np.array([[True, False], [False, True]]))
              n    yes
        0  <NA>   True
        1     2   <NA>
    """
    holed = frame.copy()
    for label, here in zip(frame.columns, hidden.T, strict=True):
        if here.any():
            holed[label] = with_room(frame[label]).mask(here)
    return holed


def with_room(column: pd.Series[Any]) -> pd.Series[Any]:
    """The column with a dtype that can hold missing cells."""
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "iub":
        name = "boolean" if column.dtype.kind == "b" else column.dtype.name
        return column.astype(types.pandas_dtype(name.replace("uint", "UInt").replace("int", "Int")))
    return column


def is_label(column: pd.Series[Any], label: Label, rules: Rules) -> bool:
    """Whether cells are levels rather than numbers or times."""
    spec = rules.specs.get(label)
    if spec is not None and str(spec.kind) in ("categorical", "boolean"):
        return True
    if isinstance(column.dtype, pd.CategoricalDtype) or is_boolean(column):
        return True
    is_time = getattr(column.dtype, "kind", "O") in "Mm"
    return not (is_time or is_numeric(column))


# ------------------------------------------------------------------------------------------------ steps


def _counted(left_out: list[tuple[Label, int, str]]) -> pd.DataFrame:
    """What was left out, one row per column and reason."""
    counts: dict[tuple[Label, str], int] = {}
    for label, count, why in left_out:
        counts[label, why] = counts.get((label, why), 0) + count
    rows = [(label, count, why) for (label, why), count in counts.items()]
    return pd.DataFrame(rows, columns=["column", "cells", "why"])


def _chosen(frame: pd.DataFrame, columns: Sequence[Label] | None, observed: NDArray[np.bool_]) -> list[Label]:
    labels: list[Label] = list(frame.columns)
    if columns is None:
        incomplete = [label for label, here in zip(labels, observed.T, strict=True) if not here.all()]
        return incomplete or labels
    unknown = [label for label in columns if label not in labels]
    if unknown:
        raise ValueError(
            f"there is no column {unknown[0]!r} to hide cells of; the table has {listing(labels)}"
        )
    return list(dict.fromkeys(columns))


def _no_test(column: pd.Series[Any], observed: NDArray[np.bool_], label: Label, rules: Rules) -> str | None:
    """Why cells of a column are not to be hidden, if there is a reason."""
    if label in rules.derived:
        return "is derived from other columns"
    if label in rules.not_modelled:
        return "holds standard errors"
    if label in rules.not_imputed:
        return "is not imputed (impute=False)"
    if observed.sum() < FEWEST_CELLS:
        return f"has fewer than {FEWEST_CELLS} observed cells"
    if column[observed].nunique() < 2:
        return "is constant"
    return None


def _spread_over_folds(
    column: pd.Series[Any],
    observed: NDArray[np.bool_],
    levels: bool,
    share: float,
    n_folds: int | None,
    generator: np.random.Generator,
) -> NDArray[np.intp]:
    """Fold of each cell of a column, [N]; -1 where it stays."""
    rows = generator.permutation(np.flatnonzero(observed))
    fold_of = np.full(len(column), -1)
    if n_folds is None:
        fold_of[rows[: max(1, round(share * len(rows)))]] = 0
    else:
        if levels:  # in turn, so that no fold gets all cells of one
            rows = rows[np.argsort(pd.factorize(column.astype(object))[0][rows], kind="stable")]
        fold_of[rows] = (np.arange(len(rows)) + generator.integers(n_folds)) % n_folds
    return fold_of


def _no_row_in_one_fold(
    fold_of: NDArray[np.intp], observed: NDArray[np.bool_], n_folds: int, generator: np.random.Generator
) -> None:
    """Move a cell of each row all of whose cells are hidden together to the next fold, in place.

    That of a column of which the next fold has least: no fold shall hide most of a column.
    """
    sizes = np.stack([(fold_of == k).sum(0) for k in range(n_folds)])
    lowest = np.where(observed, fold_of, n_folds).min(1)
    highest = np.where(observed, fold_of, -1).max(1)
    for i in np.flatnonzero((lowest == highest) & (highest >= 0) & (observed.sum(1) > 1)):
        fold, here = highest[i], np.flatnonzero(observed[i])
        after = (fold + 1) % n_folds
        more = sizes[after, here] - sizes[fold, here]
        moved = generator.choice(here[more == more.min()])
        fold_of[i, moved] = after
        sizes[[fold, after], moved] += [-1, 1]


def _keep_enough(
    column: pd.Series[Any],
    fold_of: NDArray[np.intp],
    levels: bool,
    n_folds: int,
    generator: np.random.Generator,
) -> None:
    """Let some cells of a column stay, in place.

    Of each level one stays in every fold, as otherwise nothing could be said of it; of numbers enough that
    they are not all the same.
    """
    codes = pd.factorize(column.astype(object))[0]
    for k in range(n_folds):
        hidden = fold_of == k
        stay = np.unique(codes[(codes >= 0) & ~hidden])
        gone = np.setdiff1d(codes[hidden], stay)
        for code in gone if levels else gone[: max(0, 2 - len(stay))]:
            fold_of[generator.choice(np.flatnonzero(hidden & (codes == code)))] = -1


def _without_what_follows(
    frame: pd.DataFrame, hidden: NDArray[np.bool_], rules: Rules
) -> tuple[NDArray[np.bool_], NDArray[np.intp]]:
    """What is hidden without cells that follow from those that stay, and how many these are per column [C].

    Nor are cells hidden of which the table does not tell whether they apply.
    """
    removed = np.zeros_like(hidden)
    while not rules.trivial:
        deduced = rules.deduce(hide(frame, hidden))
        gives_away = hidden & ~missing(deduced)
        for label, formula in rules.only_if.items():
            j = frame.columns.get_loc(label)
            gives_away[:, j] |= hidden[:, j] & ~formula.sources_observed(deduced)
        if not gives_away.any():
            break
        removed |= gives_away
        hidden = hidden & ~gives_away
    return hidden, removed.sum(0)


def _keep_a_cell_per_row(
    hidden: NDArray[np.bool_], observed: NDArray[np.bool_], generator: np.random.Generator
) -> NDArray[np.bool_]:
    """What is hidden, but for one cell of each row that would lose all: nothing would speak for them."""
    kept = hidden.copy()
    for i in np.flatnonzero(hidden.any(1) & ~(observed & ~hidden).any(1)):
        kept[i, generator.choice(np.flatnonzero(hidden[i]))] = False
    return kept
