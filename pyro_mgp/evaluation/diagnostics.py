"""May these imputations be trusted? Hide observed cells, impute them, compare.

Whoever imputes says of each missing cell how uncertain it is. Cells that are observed tell whether that is
so: some are hidden, a copy of the imputer learns from the rest, and of a hundred 90 % intervals of its draws
about ninety must hold what was hidden.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from tqdm import tqdm

from pyro_mgp.data.cells import cells_of, numbers_of
from pyro_mgp.data.column_spec import Label
from pyro_mgp.data.rules import Rules
from pyro_mgp.data.table import as_frame, missing
from pyro_mgp.evaluation import scores
from pyro_mgp.evaluation.adapters import AnyImputer, Draws, draw, rules_of
from pyro_mgp.evaluation.calibration import Calibration, Verdict
from pyro_mgp.evaluation.holdout import Plan, hide, is_label, plan

__all__ = ["Calibration", "Verdict", "calibrate", "compare"]

LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Nominal levels of intervals."""


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
    random_state: int | np.random.Generator | None = 0,
    progress: bool = True,
) -> Calibration:
    """Hide observed cells, draw them m times, and compare the draws with the truth.

    Draws are judged where they matter: in columns that have holes, beside the holes that are there. A cell
    that follows from others by the imputer's specs is never hidden, nor the last cell of a level or a row.

    Args:
        imputer: An `MGPImputer`, fitted or not; it is not changed. Or anything else with `fit(frame)` and
            `impute(m=...)`; a scikit-learn transformer, whose draws come from m fits with different seeds, to
            the columns of numbers; or a function `(frame, m, seed)` that gives m completed tables.
        frame: The table, holes included.
        columns: Whose cells to hide; None for those with holes (all, if none has).
        share: Of the observed cells of each column, completely at random.
        folds: Hide every observed cell once instead, in so many parts: as many fits, and all that the table
            can tell.
        m: Draws per cell. An interval of level p needs (1 + p)/(1 - p) of them: 39 for 95 %.
        levels: Nominal levels of intervals.
        refit: Fit a clone to what is not hidden. False conditions the fitted imputer on it, at no cost; but
            it learnt from the hidden cells, so its errors look smaller than they are.
        y: Target, if the imputer was fitted with one.
        random_state: Seed or generator: what is hidden, and the seeds of the clones.
        progress: Show a progress bar over folds, on terminals only.

    Returns:
        The figures, and a verdict in words.

    Raises:
        ValueError: No cell can be hidden, a setting makes no sense, or the imputer leaves a cell missing.
        TypeError: `imputer` is nothing that imputes.

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
    compared = _calibrate(
        {"": imputer}, frame, columns, share, folds, m, levels, refit, y, random_state, progress
    )
    return compared[""]


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
    random_state: int | np.random.Generator | None = 0,
    progress: bool = True,
) -> pd.DataFrame:
    """What several imputers say of the same hidden cells.

    Args:
        imputers: By name; see `calibrate` for what they may be, and for the other arguments. What one of them
            fills nothing of has no row in the column.
        frame: The table.
        columns: See `calibrate`.
        share: See `calibrate`.
        folds: See `calibrate`.
        m: See `calibrate`.
        levels: See `calibrate`.
        refit: See `calibrate`.
        y: See `calibrate`.
        random_state: See `calibrate`.
        progress: See `calibrate`.

    Returns:
        The rows of `Calibration.table`, column by column, each with the name of the `imputer`; at the end
        those of `Calibration.overall`, whose `column` is None.

    Raises:
        ValueError, TypeError: As `calibrate`.

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
    if not imputers:
        raise ValueError("expected at least one imputer to compare")
    compared = _calibrate(imputers, frame, columns, share, folds, m, levels, refit, y, random_state, progress)
    tables = [each.table.assign(imputer=name) for name, each in compared.items()]
    order = list(dict.fromkeys(label for table in tables for label in table["column"]))
    rows = pd.concat(tables, ignore_index=True)
    rows = rows.iloc[np.argsort([order.index(label) for label in rows["column"]], kind="stable")]
    overall = [each.overall.to_dict() | {"imputer": name} for name, each in compared.items()]
    records = [*rows.to_dict("records"), *overall]
    together = pd.DataFrame(records, columns=["imputer", *tables[0].columns.drop("imputer")])
    return together.assign(column=pd.Series([row["column"] for row in records], dtype=object))


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
    progress: bool,
) -> dict[str, Calibration]:
    """Each imputer's calibration on the same hidden cells."""
    if m < 2:
        raise ValueError(f"m must be at least 2: one draw says nothing of how much they vary; got {m}")
    if not levels or not all(0 < level < 1 for level in levels):
        raise ValueError(f"levels must lie between 0 and 1, got {list(levels)}")
    frame = as_frame(X)
    generator = np.random.default_rng(random_state)
    rules = {name: rules_of(imputer, frame) for name, imputer in imputers.items()}
    told = next((each for each in rules.values() if not each.trivial), next(iter(rules.values())))
    chosen = plan(frame, columns, share, folds, told, generator)
    seeds = generator.integers(2**31, size=len(chosen.folds)).tolist()
    ascending = tuple(sorted(levels))
    how = _how(share, folds, refit)
    rounds = tqdm(
        list(zip(chosen.folds, seeds, strict=True)),
        desc="calibrating",
        unit="fold",
        disable=None if progress and folds else True,
        leave=False,
    )
    parts: dict[str, list[pd.DataFrame]] = {name: [] for name in imputers}
    for k, (hidden, seed) in enumerate(rounds):
        if not hidden.any():
            continue
        holed = hide(frame, hidden)
        columns_of: list[Label] = list(frame.columns)
        labels = [label for label in columns_of if is_label(frame[label], label, told)]
        for name, imputer in imputers.items():
            drawn = draw(imputer, holed, m, seed, y=y, refit=refit, levels=labels)
            # Every imputer is judged by the same randomisation.
            ties = np.random.default_rng(seed)
            scored = _scored(frame, holed, hidden, drawn, rules[name], set(labels), ascending, ties)
            parts[name] += [part.assign(fold=k) for part in scored]
    return {name: _result(name, parts[name], chosen, ascending, m, how) for name in imputers}


def _how(share: float, folds: int | None, refit: bool) -> str:
    hidden = (
        f"every observed cell once, in {folds} folds" if folds else f"{100 * share:g} % of the observed cells"
    )
    return f"{hidden}, {'fitted without them' if refit else 'by the imputer that had seen them'}"


def _result(
    name: str, parts: list[pd.DataFrame], chosen: Plan, levels: tuple[float, ...], m: int, how: str
) -> Calibration:
    if not parts:
        raise ValueError(f"imputer {name!r} fills none of the hidden cells" if name else "no cell was filled")
    cells = pd.concat(parts, ignore_index=True)
    order = {label: i for i, label in enumerate(dict.fromkeys(cells["column"]))}
    by = np.lexsort([cells["position"], cells["column"].map(order)])
    return Calibration(cells.iloc[by].reset_index(drop=True), chosen.left_out, levels, m, how)


# ------------------------------------------------------------------------------------------------ scores


def _scored(
    frame: pd.DataFrame,
    holed: pd.DataFrame,
    hidden: NDArray[np.bool_],
    draws: Draws,
    rules: Rules,
    labels: set[Label],
    levels: Sequence[float],
    generator: np.random.Generator,
) -> list[pd.DataFrame]:
    """Draws of hidden cells beside the truth, one table per column."""
    holes, errors, parts = missing(holed), rules.standard_errors(frame), []
    noise = generator.spawn(1)[0]
    for j, label in enumerate(frame.columns):
        here = hidden[:, j]
        if not here.any():
            continue
        uniform = generator.random(int(here.sum()))
        if label not in draws:
            continue
        drawn = draws[label][:, here[holes[:, j]]]
        if pd.isna(drawn).any():
            raise ValueError(f"column {label!r}: the imputer leaves cells missing")
        if label in errors:  # what was observed has a known error, which draws of the truth have not
            drawn = drawn + errors[label][here] * noise.normal(size=drawn.shape)
        score = _of_levels if label in labels else _of_numbers
        scored = score(frame[label], here, holed[label], drawn, uniform, levels)
        kind = "level" if label in labels else "number"
        where = {
            "row": pd.Series(frame.index[here].to_flat_index(), dtype=object),
            "position": np.flatnonzero(here),
            "column": pd.Series([label] * int(here.sum()), dtype=object),
            "kind": kind,
        }
        parts.append(pd.DataFrame(where | scored))
    return parts


def _of_numbers(
    column: pd.Series[Any],
    here: NDArray[np.bool_],
    visible: pd.Series[Any],
    draws: NDArray[np.float64],
    uniform: NDArray[np.float64],
    levels: Sequence[float],
) -> dict[str, Any]:
    numbers, seen = numbers_of(column), numbers_of(visible)
    truth, point, seen = numbers[here], draws.mean(0), seen[~np.isnan(seen)]
    rank = scores.pit(draws, truth, uniform)
    closed: dict[str, Any] = {}
    for level in levels:
        bounds = scores.central_interval(draws, level)
        low, high = bounds or (np.full(len(truth), np.nan),) * 2
        inside = np.where(np.isnan(low), np.nan, (low <= truth) & (truth <= high))
        closed |= {f"closed_{100 * level:g}": inside, f"width_{100 * level:g}": high - low}
    steps = np.diff(np.unique(numbers[~np.isnan(numbers)]))
    return {
        "truth": column[here].astype(object).reset_index(drop=True),
        "point": pd.Series(point, dtype=object),
        "pit": rank,
        "needed": np.abs(2 * rank - 1),
        **closed,
        "error": point - truth,
        "crps": scores.fair_crps(draws, truth),
        "brier": np.nan,
        "log_score": scores.log_density(draws, truth, seen.mean(), seen.std(ddof=1), steps.min()),
        "scale": np.nanstd(numbers, ddof=1),
    }


def _of_levels(
    column: pd.Series[Any],
    here: NDArray[np.bool_],
    visible: pd.Series[Any],
    draws: NDArray[Any],
    uniform: NDArray[np.float64],
    levels: Sequence[float],
) -> dict[str, Any]:
    truth = _objects(column)[here]
    seen = _objects(visible)
    seen = seen[~pd.isna(seen)]
    found = np.array(pd.unique(np.concatenate([seen, truth, draws.ravel()])), dtype=object)
    counts = scores.counts_of(draws, found)
    at = pd.Index(found, dtype=object).get_indexer(pd.Index(truth, dtype=object))
    rank = scores.rank_of_level(counts, at, uniform)
    closed: dict[str, Any] = {}
    for level in levels:
        held = scores.smallest_set(counts, level)
        closed |= {
            f"closed_{100 * level:g}": held[np.arange(len(at)), at].astype(np.float64),
            f"width_{100 * level:g}": held.sum(1).astype(np.float64),
        }
    shares = scores.counts_of(seen[:, None], found)[0] / len(seen)
    chance = (counts[np.arange(len(at)), at] + shares[at]) / (len(draws) + 1)
    return {
        "truth": pd.Series(truth, dtype=object),
        "point": pd.Series(found[counts.argmax(1)], dtype=object),
        "pit": rank,
        "needed": rank,
        **closed,
        "error": np.nan,
        "crps": np.nan,
        "brier": scores.fair_brier(counts, at),
        "log_score": np.log(chance),
        "scale": np.nan,
    }


def _objects(column: pd.Series[Any]) -> NDArray[Any]:
    """Cells of a column of levels as Python's own objects."""
    return np.asarray(cells_of(column).astype(object))
