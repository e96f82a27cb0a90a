"""Energy-I-score of imputers: a ranking on the missing cells as they are, whose values need not be known.

Held-out cells are missing at random in every row; the cells of a table need not be. The score of Näf,
Grzesiak and Scornet (arXiv 2507.11297; package Iscores of R) therefore reverses the task. An imputer
completes the table. For each incomplete column, the rows in which it was missing, with their imputed values,
are then all that the imputer may learn from, and it draws the *observed* cells of the other rows, from
columns that are complete there. Draws that are distributed like the observed cells have the lowest score on
average: imputed values that are biased or too certain teach biased or too certain draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import clone

from pyro_mgp._support.messages import progress_bar
from pyro_mgp.analysis import scores
from pyro_mgp.data.cells import FAMILIES, as_stored, complete, holes_of, label_of, natural_kind, numbers_of
from pyro_mgp.data.column_spec import ColumnSpec, Label
from pyro_mgp.data.rules import Rules
from pyro_mgp.data.table import missing, plain_frame
from pyro_mgp.evaluation.adapters import AnyImputer, check_named, draw, objects_of
from pyro_mgp.evaluation.holdout import holds_levels
from pyro_mgp.settings import Parameters

_FEWEST = 10
"""Least number of missing cells of a column that is scored, as in Iscores."""


def energy_scores(
    imputers: Mapping[str, AnyImputer],
    frame: pd.DataFrame,
    *,
    m: int = 50,
    random_state: int | np.random.Generator | None = 0,
    progress: bool = True,
) -> pd.DataFrame:
    """Rank imputers by their energy-I-scores on the missing cells of a table.

    Each imputer is fitted once to the table, and once for each incomplete column.

    Args:
        imputers: Imputers by name; `calibrate` says which are accepted. Specs of columns that are left out
            for a column's score are left out with them, as are those that name such a column.
        frame: The table, with its missing cells.
        m: Draws per observed cell.
        random_state: Seed or generator for the seeds of the imputers.
        progress: Show a progress bar, on terminals only.

    Returns:
        Rows by column, and by `imputer` within it, followed by those of all columns, whose `column` is None:

        - `score`: mean energy score of the drawn cells, lower is better. Of numbers it is the CRPS of the
          draws' empirical distribution, in the column's own units; of levels see `scores.energy_of_levels`.
          NaN for a column of fewer than 10 missing cells, or that an imputer does not complete.
        - `score_sd`: that of numbers in standard deviations of the observed cells.
        - `weight`: share of missing times share of observed cells; weight of the column in the last rows,
          which are means of the columns that have scores of all imputers.
        - `cells`: number of drawn cells; `predictors`: number of columns from which they were drawn.

    Raises:
        ValueError: No imputer is given, `m` is below 2, or no column has 10 missing cells.

    Example:
        >>> from sklearn.impute import SimpleImputer
        >>> x = np.random.default_rng(0).normal(size=60)
        >>> frame = pd.DataFrame({"x": x, "y": x})
        >>> frame.loc[::3, "y"] = np.nan
        >>> def regression(frame, m, seed):
        ...     return [frame.fillna({"y": frame["x"]})] * m
        >>> table = energy_scores({"mean": SimpleImputer(), "x": regression}, frame, m=2)
        >>> table[["imputer", "column", "score"]].round(2)
          imputer column  score
        0    mean      y    0.6
        1       x      y    0.0
        2    mean   None    0.6
        3       x   None    0.0
    """
    check_named(imputers)
    if not imputers or m < 2:
        raise ValueError(f"expected at least one imputer and m of at least 2, got {len(imputers)} and m={m}")
    table, generator = plain_frame(frame), np.random.default_rng(random_state)
    labels: list[Label] = list(table.columns)
    holes = missing(table)
    columns = [label for label, own in zip(labels, holes.T, strict=True) if own.sum() >= _FEWEST]
    if not columns:
        raise ValueError(f"no column has {_FEWEST} missing cells or more, for which there is a score")
    rules = Rules.parse(None, labels)
    levels = {label for label in labels if holds_levels(table[label], label, rules)}
    seeds = generator.integers(2**31, size=1 + len(columns)).tolist()
    rows = []
    for name, imputer in progress_bar(imputers.items(), progress, desc="scoring", unit="imputer"):
        filled = draw(imputer, table, 1, seeds[0], levels=levels)
        completed = complete(table, {label: _cells(own[0], table[label]) for label, own in filled.items()})
        for label, seed in zip(columns, seeds[1:], strict=True):
            rest, drawn = _reversed(table, holes, label, completed)
            has_draws = label in filled
            score = _score(imputer, rest, table[label], drawn, m, seed, levels) if has_draws else np.nan
            share = holes[:, labels.index(label)].mean()
            spread = 0.0 if label in levels else np.nanstd(numbers_of(table[label]), ddof=1)
            figures = {"score": score, "score_sd": score / (spread or 1.0), "weight": share * (1 - share)}
            counts = {"cells": int(drawn.sum()), "predictors": rest.shape[1] - 1}
            rows.append({"imputer": name, "column": label} | figures | counts)
    return _with_means(pd.DataFrame(rows), columns)


def _reversed(
    table: pd.DataFrame, holes: NDArray[np.bool_], label: Label, completed: pd.DataFrame
) -> tuple[pd.DataFrame, NDArray[np.bool_]]:
    """Return the table from which a column's observed cells are drawn, and the rows of these, Bool `[N]`.

    It has the column, missing in these rows, and the columns that are complete there.
    """
    labels: list[Label] = list(table.columns)
    j = labels.index(label)
    others, drawn = [k for k in range(len(labels)) if k != j], ~holes[:, j]

    def predictors() -> list[Label]:
        return [labels[k] for k in others if not holes[drawn, k].any()]

    if not predictors():
        # Rows in which the least incomplete column is missing then count as those to learn from.
        drawn = drawn & ~holes[:, min(others, key=lambda k: holes[drawn, k].sum())]
    kept = {label, *predictors()}
    rest = completed[[each for each in labels if each in kept]].copy()
    rest[label] = rest[label].mask(drawn)
    return rest, drawn


def _cells(values: NDArray[Any], column: pd.Series[Any]) -> NDArray[Any]:
    """Convert draws of a column, which are numbers, seconds or levels, to its cells."""
    natural = natural_kind(column)
    return values if natural is None or values.dtype == object else as_stored(values, FAMILIES[natural])


def _score(
    imputer: AnyImputer,
    rest: pd.DataFrame,
    column: pd.Series[Any],
    drawn: NDArray[np.bool_],
    m: int,
    seed: int,
    levels: set[Label],
) -> float:
    """Return the mean energy score of m draws of a column; NaN if the imputer does not complete it."""
    label, truth = label_of(column.name), column[drawn]
    found = draw(_restricted(imputer, [*rest.columns]), rest, m, seed, levels=levels).get(label)
    if found is None:
        return np.nan
    # Cells that the imputer has left missing are missing still.
    draws = found[:, drawn[holes_of(rest[label])]]
    if label not in levels:
        return float(scores.crps(draws, numbers_of(truth)).mean())
    cells = objects_of(truth)
    of_levels = np.array(pd.unique(np.concatenate([cells, draws.ravel()])), dtype=object)
    at = pd.Index(of_levels, dtype=object).get_indexer(pd.Index(cells, dtype=object))
    return float(scores.energy_of_levels(scores.counts_of(draws, of_levels), at).mean())


def _restricted(imputer: AnyImputer, labels: list[Label]) -> AnyImputer:
    """Return an imputer for a table of some columns: one of ours without specs and order of others."""
    if not isinstance(imputer, Parameters) or not (imputer.specs or imputer.order):
        return imputer
    specs = {}
    for label, spec in (imputer.specs or {}).items():
        if spec.predictors is not None:
            spec = replace(spec, predictors=[each for each in spec.predictors if each in labels])
        if label in labels and _can_be_kept(label, spec, labels):
            specs[label] = spec
    order = None if imputer.order is None else [label for label in imputer.order if label in labels]
    return clone(imputer).set_params(specs=specs or None, order=order or None)


def _can_be_kept(label: Label, spec: ColumnSpec, labels: list[Label]) -> bool:
    """Return whether a spec names no other columns than some."""
    try:
        Rules.parse({label: spec}, labels)
    except ValueError:
        return False
    return True


def _with_means(table: pd.DataFrame, columns: list[Label]) -> pd.DataFrame:
    """Return scores column by column, with a row of the weighted means of each imputer."""
    rows = table.sort_values("column", key=lambda own: own.map(columns.index), kind="stable")
    of_all = table[table["score"].notna().groupby(table["column"]).transform("all")]
    means = []
    for name in table["imputer"].unique():
        own = of_all[of_all["imputer"] == name]
        mean = {
            each: np.average(own[each], weights=own["weight"]) if len(own) else np.nan
            for each in ("score", "score_sd")
        }
        totals = {"weight": own["weight"].sum(), "cells": own["cells"].sum()}
        means.append({"imputer": name, "column": None, **mean, **totals, "predictors": np.nan})
    both = pd.concat([rows, pd.DataFrame(means)], ignore_index=True)
    return both.assign(column=pd.Series([*rows["column"], *[None] * len(means)], dtype=object))
