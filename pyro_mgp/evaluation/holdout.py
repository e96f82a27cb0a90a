"""Choice of observed cells to hold out, so that their imputations can be compared with their true values.

Cells are held out completely at random, column by column. Some are always kept: a fit needs observed cells of
every column and level, and a cell that follows from other cells does not test an imputer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.random import Generator
from numpy.typing import NDArray

from pyro_mgp._support.messages import listing
from pyro_mgp.data.cells import label_of, natural_kind
from pyro_mgp.data.column_spec import Kind, Label
from pyro_mgp.data.rules import Rules
from pyro_mgp.data.table import missing
from pyro_mgp.evaluation.missingness import without_cells

Mask = NDArray[np.bool_]
"""Mask of the cells of a table or of a column."""
# No cells are held out of columns with fewer observed cells.
_FEWEST_CELLS = 10
# Largest share of the observed cells of a column that may be held out at a time.
_MOST = 0.5


def choose_holdout(
    frame: pd.DataFrame,
    columns: Sequence[Label] | None,
    share: float,
    n_folds: int | None,
    rules: Rules,
    generator: Generator,
) -> tuple[list[Mask], pd.DataFrame]:
    """Choose observed cells of a table to hold out.

    `columns`, `share` and `n_folds` are as in `diagnostics.calibrate`; cells that follow from others by
    `rules` are not held out. Returns one mask per fold, Bool `[N, C]`, which do not overlap, and a table of
    the cells that could not be held out: `column`, `cells` (how many), `why`. Raises a ValueError if a number
    is out of range, a column is unknown, or no cell can be held out.
    """
    if n_folds is None and not 0 < share <= _MOST:
        raise ValueError(f"share must be above 0 and at most {_MOST}, got {share}")
    if n_folds is not None and n_folds < 2:
        raise ValueError(f"folds must be at least 2, got {n_folds}")
    observed, labels = ~missing(frame), [label_of(label) for label in frame.columns]
    left_out: list[tuple[Label, int, str]] = []
    fold_of = np.full(frame.shape, -1)
    of_levels: dict[int, bool] = {}
    for label in _candidates(labels, columns, observed):
        j = labels.index(label)
        if why := _unsuitable(frame[label], observed[:, j], label, rules):
            left_out.append((label, int(observed[:, j].sum()), why))
            continue
        of_levels[j] = holds_levels(frame[label], label, rules)
        fold_of[:, j] = _assign_folds(frame[label], observed[:, j], of_levels[j], share, n_folds, generator)
    if n_folds is not None:
        _spread_rows(fold_of, observed, n_folds, generator)
    for j, levels in of_levels.items():
        _keep_enough(frame[labels[j]], fold_of[:, j], levels, n_folds or 1, generator)
    folds = []
    for k in range(n_folds or 1):
        held_out, removed = _without_deducible(frame, fold_of == k, rules)
        # A row without any observed cell could not be imputed from its own cells.
        for i in np.flatnonzero(held_out.any(1) & ~(observed & ~held_out).any(1)):
            held_out[i, generator.choice(np.flatnonzero(held_out[i]))] = False
        folds.append(held_out)
        counts = zip(labels, removed.tolist(), strict=True)
        left_out += [(label, count, "follows from other cells") for label, count in counts if count]
    if not np.any(folds):
        reasons = [f"{label!r}: {why}" for label, _, why in left_out]
        why = "; ".join(reasons) or "each is the last one of its level or row"
        raise ValueError(f"there is no cell to hold out ({why}): name other columns")
    table = pd.DataFrame(left_out, columns=["column", "cells", "why"])
    counted = table.groupby(["column", "why"], sort=False, as_index=False).sum()
    return folds, counted[table.columns]


def holds_levels(column: pd.Series[Any], label: Label, rules: Rules) -> bool:
    """Return whether the cells of a column are levels, not numbers or times."""
    asked, kinds = getattr(rules.specs.get(label), "kind", None), (Kind.BOOLEAN, Kind.CATEGORICAL)
    return asked in kinds or isinstance(column.dtype, pd.CategoricalDtype) or natural_kind(column) in kinds


def _candidates(labels: Sequence[Label], columns: Sequence[Label] | None, observed: Mask) -> Sequence[Label]:
    """Return the labels of the columns to hold cells out of, by default all incomplete ones."""
    if columns is None:
        return [label for label, own in zip(labels, observed.T, strict=True) if not own.all()] or labels
    if unknown := [label for label in columns if label not in labels]:
        known = listing(labels)
        raise ValueError(f"there is no column {unknown[0]!r} to hold cells out of; the table has {known}")
    return list(dict.fromkeys(columns))


def _unsuitable(column: pd.Series[Any], observed: Mask, label: Label, rules: Rules) -> str | None:
    """Return the reason why no cells of a column can be held out, or None if they can."""
    if label in rules.derived:
        return "is derived from other columns"
    if label in rules.groups:
        return "holds groups"
    if label == rules.weights:
        return "holds weights"
    if label in rules.texts:
        return "holds text or identifiers"
    if label in rules.not_modelled:
        return "holds standard errors or limits of another column"
    if label in rules.not_imputed:
        return "is not imputed (impute=False)"
    if observed.sum() < _FEWEST_CELLS:
        return f"has fewer than {_FEWEST_CELLS} observed cells"
    return "is constant" if column[observed].nunique() < 2 else None


def _assign_folds(
    column: pd.Series[Any],
    observed: Mask,
    levels: bool,
    share: float,
    n_folds: int | None,
    generator: Generator,
) -> NDArray[np.intp]:
    """Return the fold of each cell of a column, `[N]`, -1 for cells that are kept."""
    rows = generator.permutation(np.flatnonzero(observed))
    fold_of = np.full(len(column), -1)
    if n_folds is None:
        fold_of[rows[: max(1, round(share * len(rows)))]] = 0
        return fold_of
    if levels:  # in turn, so that no fold gets all cells of a level
        rows = rows[np.argsort(pd.factorize(column.astype(object))[0][rows], kind="stable")]
    fold_of[rows] = (np.arange(len(rows)) + generator.integers(n_folds)) % n_folds
    return fold_of


def _spread_rows(fold_of: NDArray[np.intp], observed: Mask, n_folds: int, generator: Generator) -> None:
    """Move one cell of each row whose cells are all in one fold to the next fold, in place.

    The cell is of a column with the fewest cells in the next fold, so that no fold gets most of a column.
    """
    sizes = np.stack([(fold_of == k).sum(0) for k in range(n_folds)])
    lowest = np.where(observed, fold_of, n_folds).min(1)
    highest = np.where(observed, fold_of, -1).max(1)
    for i in np.flatnonzero((lowest == highest) & (highest >= 0) & (observed.sum(1) > 1)):
        fold, columns = highest[i], np.flatnonzero(observed[i])
        after = (fold + 1) % n_folds
        more = sizes[after, columns] - sizes[fold, columns]
        moved = generator.choice(columns[more == more.min()])
        fold_of[i, moved] = after
        sizes[[fold, after], moved] += [-1, 1]


def _keep_enough(
    column: pd.Series[Any], fold_of: NDArray[np.intp], levels: bool, n_folds: int, generator: Generator
) -> None:
    """Keep the cells needed to fit a column, in place: one of each level, or two different numbers."""
    codes = pd.factorize(column.astype(object))[0]
    for k in range(n_folds):
        held_out = fold_of == k
        kept = np.unique(codes[(codes >= 0) & ~held_out])
        lost = np.setdiff1d(codes[held_out], kept)
        for code in lost if levels else lost[: max(0, 2 - len(kept))]:
            fold_of[generator.choice(np.flatnonzero(held_out & (codes == code)))] = -1


def _without_deducible(frame: pd.DataFrame, held_out: Mask, rules: Rules) -> tuple[Mask, NDArray[np.intp]]:
    """Remove held-out cells that kept cells determine; return the mask, and the number removed, `[C]`.

    Cells are also kept if the remaining table does not determine whether their column applies.
    """
    removed = np.zeros_like(held_out)
    while not rules.trivial:
        deduced = rules.deduce(without_cells(frame, held_out))
        deducible = held_out & ~missing(deduced)
        for label, formula in rules.only_if.items():
            j = frame.columns.get_loc(label)
            deducible[:, j] |= held_out[:, j] & ~formula.sources_observed(deduced)
        if not deducible.any():
            break
        removed |= deducible
        held_out = held_out & ~deducible
    return held_out, removed.sum(0)
