"""Calibration of imputers: hold out observed cells, impute them, and compare with the true values.

Some observed cells are held out, a copy of the imputer is fitted to the rest, and of a hundred 90 % intervals
of its draws about ninety must contain the true value.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.utils.parallel import Parallel, delayed

from pyro_mgp._support.messages import progress_bar
from pyro_mgp.analysis import scores
from pyro_mgp.analysis.scores import Floats
from pyro_mgp.data.cells import numbers_of
from pyro_mgp.data.column_spec import Label
from pyro_mgp.data.rules import Rules
from pyro_mgp.data.table import TableWarning, missing, plain_frame
from pyro_mgp.evaluation.adapters import AnyImputer, Draws, check_named, draw, objects_of
from pyro_mgp.evaluation.calibration import Calibration
from pyro_mgp.evaluation.energy_score import energy_scores
from pyro_mgp.evaluation.holdout import Mask, choose_holdout, holds_levels
from pyro_mgp.evaluation.missingness import without_cells
from pyro_mgp.settings import Parameters

LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Default nominal levels of intervals."""


def calibrate(
    imputer: AnyImputer,
    frame: pd.DataFrame,
    *,
    columns: Sequence[Label] | None = None,
    share: float = 0.1,
    folds: int | None = None,
    m: int = 100,
    levels: Sequence[float] = LEVELS,
    refit: bool = True,
    y: Any = None,
    energy: bool = False,
    random_state: int | np.random.Generator | None = 0,
    n_jobs: int | None = None,
    progress: bool = True,
) -> Calibration:
    """Hold out observed cells, draw them m times, and compare the draws with the true values.

    A cell that follows from others by the imputer's specs is never held out, nor the last cell of a level or
    of a row.

    Args:
        imputer: An `MGPImputer`, fitted or not, which is not changed, or one `with_choices`, which saves the
            search for a joint density in each fit; any other object with `fit(frame)` and `impute(m=...)`;
            a scikit-learn transformer, whose draws are m fits to the numeric columns with different seeds; or
            a function `(frame, m, seed)` that returns m completed tables.
        frame: The table, with its missing cells.
        columns: Columns whose cells are held out; None for incomplete columns, or all of a complete table.
        share: Share of the observed cells of each column, held out completely at random.
        folds: If given, hold out every observed cell once, in this many folds with a fit each.
        m: Draws per cell. An interval of level p needs (1 + p)/(1 - p) of them: 39 for 95 %.
        levels: Nominal levels of intervals.
        refit: Fit a clone to the cells that are not held out. If False, the fitted imputer conditions on
            them, which saves time but underestimates errors, because it was fitted to the held-out cells.
        y: Target, if the imputer was fitted with one.
        energy: Whether to compute energy-I-scores too, which compare imputers on the missing cells as they
            are, by 50 draws of a further fit for each incomplete column, without `y`; see `energy_scores`.
        random_state: Seed or generator for the choice of cells and the seeds of the clones.
        n_jobs: Processes that fit folds side by side, as in joblib: None is one, -1 all processors. They must
            be able to import what the imputer needs; the result is the same.
        progress: Show a progress bar over folds, on terminals only.

    Returns:
        Coverage and scores by column, and a verdict.

    Raises:
        ValueError: No cell can be held out, a setting is out of range, or the imputer leaves a cell missing.
        TypeError: `imputer` is not an imputer.

    Example:
        >>> from pyro_mgp import MGPImputer
        >>> x = np.random.default_rng(0).normal(size=60)
        >>> frame = pd.DataFrame({"x": x, "y": x + np.random.default_rng(1).normal(size=60)})
        >>> frame.loc[::6, "y"] = np.nan
        >>> result = calibrate(MGPImputer(max_steps=3, progress=False), frame, m=20, levels=[0.5, 0.9])
        >>> result.table[["column", "cells", "verdict"]]
          column  cells                verdict
        0      y      5  too few cells to tell
    """
    only = {"": imputer}
    given = columns, share, folds, m, levels, refit, y, random_state, n_jobs, progress
    calibration = _calibrate(only, frame, *given)[""]
    if not energy:
        return calibration
    scored = energy_scores(only, frame, random_state=random_state, progress=progress)
    return replace(calibration, energy=scored.drop(columns="imputer"))


def compare(
    imputers: Mapping[str, AnyImputer],
    frame: pd.DataFrame,
    *,
    columns: Sequence[Label] | None = None,
    share: float = 0.1,
    folds: int | None = None,
    m: int = 100,
    levels: Sequence[float] = LEVELS,
    refit: bool = True,
    y: Any = None,
    energy: bool = False,
    random_state: int | np.random.Generator | None = 0,
    n_jobs: int | None = None,
    progress: bool = True,
) -> pd.DataFrame:
    """Compare the calibration and scores of several imputers on the same held-out cells.

    Arguments and errors are those of `calibrate`, with `imputers` by name. An imputer has no row for a column
    that it does not complete.

    Returns:
        Rows of `Calibration.table`, column by column, with the name of the `imputer`, followed by those of
        `Calibration.overall`, whose `column` is None. With `energy`, `energy_sd` is `score_sd` of
        `energy_scores`.

    Example:
        >>> from sklearn.impute import SimpleImputer
        >>> x = np.random.default_rng(0).normal(size=(200, 2))
        >>> frame = pd.DataFrame(x, columns=["a", "b"])
        >>> both = {"mean": SimpleImputer(), "zero": SimpleImputer(strategy="constant", fill_value=0)}
        >>> compare(both, frame, m=2, levels=[0.3])[["imputer", "column", "rmse_sd"]].round(2)
          imputer column  rmse_sd
        0    mean      a     1.21
        1    zero      a     1.22
        2    mean      b     0.64
        3    zero      b     0.64
        4    mean   None     0.93
        5    zero   None     0.93
    """
    check_named(imputers)
    if not imputers:
        raise ValueError("expected at least one imputer to compare")
    given = columns, share, folds, m, levels, refit, y, random_state, n_jobs, progress
    found = _calibrate(imputers, frame, *given)
    named = [{"imputer": name} | row for name, own in found.items() for row in own.table.to_dict("records")]
    labels = [row["column"] for row in named]
    rows = sorted(named, key=lambda row: labels.index(row["column"]))
    rows += [{"imputer": name} | own.overall.to_dict() for name, own in found.items()]
    table = pd.DataFrame(rows).assign(column=pd.Series([row["column"] for row in rows], dtype=object))
    if not energy:
        return table
    scored = energy_scores(imputers, frame, random_state=random_state, progress=progress)
    own = zip(scored["imputer"], scored["column"], strict=True)
    by_both = dict(zip(own, scored["score_sd"], strict=True))
    both = zip(table["imputer"], table["column"], strict=True)
    return table.assign(energy_sd=[by_both.get(each, np.nan) for each in both])


def _rules(imputer: AnyImputer, frame: pd.DataFrame) -> Rules:
    """Return the rules of an imputer of ours for a table; those of any other are trivial."""
    if not isinstance(imputer, Parameters):
        return Rules.parse(None, frame.columns.tolist())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TableWarning)  # fits give them
        return imputer.rules(frame.columns.tolist()).learn(frame)


def _calibrate(
    imputers: Mapping[str, AnyImputer],
    X: pd.DataFrame,
    columns: Sequence[Label] | None,
    share: float,
    folds: int | None,
    m: int,
    levels: Sequence[float],
    refit: bool,
    y: Any,
    random_state: int | np.random.Generator | None,
    n_jobs: int | None,
    progress: bool,
) -> dict[str, Calibration]:
    """Return each imputer's calibration on the same held-out cells."""
    if m < 2:
        raise ValueError(f"m must be at least 2, because one draw does not show a spread; got {m}")
    if not np.iterable(levels) or not levels or not all(0 < level < 1 for level in levels):
        raise ValueError(f"levels must be numbers between 0 and 1, such as [0.5, 0.95], got {levels}")
    frame = plain_frame(X)
    generator, ascending = np.random.default_rng(random_state), tuple(sorted(levels))
    labels: list[Label] = list(frame.columns)
    rules = {name: _rules(each, frame) for name, each in imputers.items()}
    shared = min(rules.values(), key=lambda each: each.trivial)  # the first that are not trivial
    masks, left_out = choose_holdout(frame, columns, share, folds, shared, generator)
    seeds = generator.integers(2**31, size=len(masks)).tolist()
    of_levels = {label for label in labels if holds_levels(frame[label], label, shared)}
    held = (
        f"every observed cell once, in {folds} folds" if folds else f"{100 * share:g} % of the observed cells"
    )
    how = f"{held}, {'fitted without them' if refit else 'by the imputer that was fitted with them'}"

    def fold(k: int) -> list[list[pd.DataFrame]]:
        found, rest = [], without_cells(frame, masks[k])
        for name, imputer in imputers.items():
            draws = draw(imputer, rest, m, seeds[k], y=y, refit=refit, levels=of_levels)
            scored = _scored(frame, masks[k], draws, rules[name], of_levels, ascending, seeds[k])
            found.append([part.assign(fold=k) for part in scored])
        return found

    numbers = [k for k, held_out in enumerate(masks) if held_out.any()]
    done = Parallel(n_jobs=n_jobs, return_as="generator")(delayed(fold)(k) for k in numbers)
    shown = progress and folds is not None
    rounds = [*progress_bar(done, shown, desc="calibrating", unit="fold", total=len(numbers))]
    parts = {name: [part for each in rounds for part in each[i]] for i, name in enumerate(imputers)}
    found = {}
    for name, tables in parts.items():
        if not tables:
            prefix = f"imputer {name!r}" if name else "the imputer"
            raise ValueError(f"{prefix} completes none of the held-out cells")
        cells = pd.concat(tables, ignore_index=True)
        by = np.lexsort([cells["position"].to_numpy(), pd.factorize(cells["column"])[0]])
        cells = cells.iloc[by].reset_index(drop=True)
        found[name] = Calibration(cells, left_out, ascending, m, how)
    return found


def _scored(
    frame: pd.DataFrame,
    held_out: Mask,
    draws: Draws,
    rules: Rules,
    of_levels: set[Label],
    levels: Sequence[float],
    seed: int,
) -> list[pd.DataFrame]:
    """Return true values and scores of held-out cells, one table per column; the seed breaks ties."""
    holes, errors, parts = missing(frame) | held_out, rules.standard_errors(frame), []
    generator = np.random.default_rng(seed)
    noise = generator.spawn(1)[0]
    for j in np.flatnonzero(held_out.any(0)):
        label, cells = list(frame.columns)[j], held_out[:, j]
        n = int(cells.sum())
        uniform = generator.random(n)
        if label not in draws:
            continue
        drawn = draws[label][:, cells[holes[:, j]]]
        if pd.isna(drawn).any():
            raise ValueError(f"column {label!r}: the imputer leaves cells missing")
        if label in errors:  # draws are of the true value, the held-out cell has an error of measurement
            drawn = drawn + errors[label][cells] * noise.normal(size=drawn.shape)
        score, kind = (_score_levels, "level") if label in of_levels else (_score_numbers, "number")
        where = {
            "row": pd.Series(frame.index[cells].to_flat_index(), dtype=object),
            "position": np.flatnonzero(cells),
            "column": pd.Series([label] * n, dtype=object),
            "kind": kind,
        }
        parts.append(pd.DataFrame(where | score(frame[label], cells, drawn, uniform, levels)))
    return parts


def _score_numbers(
    column: pd.Series[Any], cells: Mask, draws: Floats, uniform: Floats, levels: Sequence[float]
) -> dict[str, Any]:
    """Score the draws of held-out numbers, and return the columns of `Calibration.cells`."""
    numbers = numbers_of(column)
    observed = ~np.isnan(numbers)
    truth, point, kept = numbers[cells], draws.mean(0), numbers[observed & ~cells]
    rank = scores.pit(draws, truth, uniform)
    closed: dict[str, Any] = {}
    for level in levels:
        bounds = scores.central_interval(draws, level)
        low, high = bounds or (np.full(len(truth), np.nan),) * 2
        inside = np.where(np.isnan(low), np.nan, (low <= truth) & (truth <= high))
        closed |= {f"closed_{100 * level:g}": inside, f"width_{100 * level:g}": high - low}
    step = np.diff(np.unique(numbers[observed])).min()
    return {
        "truth": column[cells].astype(object).reset_index(drop=True),
        "point": pd.Series(point, dtype=object),
        "pit": rank,
        "needed": np.abs(2 * rank - 1),
        **closed,
        "error": point - truth,
        "crps": scores.fair_crps(draws, truth),
        "brier": np.nan,
        "log_score": scores.log_density(draws, truth, kept.mean(), kept.std(ddof=1), step),
        "scale": np.nanstd(numbers, ddof=1),
    }


def _score_levels(
    column: pd.Series[Any], cells: Mask, draws: NDArray[Any], uniform: Floats, levels: Sequence[float]
) -> dict[str, Any]:
    """Score the draws of held-out levels, and return the columns of `Calibration.cells`."""
    values = objects_of(column)
    truth, kept = values[cells], values[~pd.isna(values) & ~cells]
    found = np.array(pd.unique(np.concatenate([kept, truth, draws.ravel()])), dtype=object)
    counts = scores.counts_of(draws, found)
    at = pd.Index(found, dtype=object).get_indexer(pd.Index(truth, dtype=object))
    of_truth = (np.arange(len(at)), at)
    rank = scores.rank_of_level(counts, at, uniform)
    closed: dict[str, Any] = {}
    for level in levels:
        smallest = scores.smallest_set(counts, level)
        closed[f"closed_{100 * level:g}"] = smallest[of_truth].astype(np.float64)
        closed[f"width_{100 * level:g}"] = smallest.sum(1).astype(np.float64)
    shares = scores.counts_of(kept[:, None], found)[0] / len(kept)
    return {
        "truth": pd.Series(truth, dtype=object),
        "point": pd.Series(found[counts.argmax(1)], dtype=object),
        "pit": rank,
        "needed": rank,
        **closed,
        "error": np.nan,
        "crps": np.nan,
        "brier": scores.fair_brier(counts, at),
        "log_score": np.log((counts[of_truth] + shares[at]) / (len(draws) + 1)),
        "scale": np.nan,
    }
