"""Comparison of imputation methods on held-out cells of a table of numbers, booleans and categories.

Methods in common use are compared with `MGPImputer`, and with `MGPImputer` on a table in which each category
is a numeric indicator column.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

from benchmarks.coverage import methods
from pyro_mgp.analysis.scores import fair_crps
from pyro_mgp.imputer import MGPImputer

_DRAWS = 20
_TREES, _ROUNDS = 100, 5
# Pseudo-count that is added to the number of draws of each level to estimate its probability.
_PSEUDO = 0.5


@dataclass(frozen=True)
class Prediction:
    """Prediction of the missing cells of one column."""

    draws: NDArray[Any] | None
    """Draws `[m, cells]`, or None for a method without draws."""
    point: NDArray[Any] | None
    """Point predictions `[cells]`; None for the mean or the most frequent draw."""
    probabilities: pd.DataFrame | None = None
    """Probabilities of the levels, one column each; None for those estimated from the draws."""


Predictions = Mapping[str, Prediction]
"""Predictions of the missing cells by column."""

Method = Callable[[pd.DataFrame, int], Predictions]
"""Function of `(incomplete table, seed)` that imputes."""


def mgp(frame: pd.DataFrame, seed: int) -> Predictions:
    """Impute with `MGPImputer` and its default settings."""
    imputer = MGPImputer(random_state=seed, progress=False).fit(frame)
    point = pd.DataFrame(imputer.transform(frame))
    draws = imputer.impute(m=_DRAWS).values
    return {
        str(label): Prediction(values, point[label].to_numpy()[frame[label].isna()])
        for label, values in draws.items()
    }


def one_hot(frame: pd.DataFrame, seed: int) -> Predictions:
    """Impute with `MGPImputer` on indicator columns, and choose the level with the largest indicator."""
    coded = _coded(frame)
    imputer = MGPImputer(random_state=seed, discrete_support=0, warp=False, progress=False).fit(coded)
    draws = list(imputer.impute(m=_DRAWS))
    return {
        label: Prediction(np.stack([_decoded(table, frame, label) for table in draws]), None)
        for label in _incomplete(frame)
    }


def random_forests(frame: pd.DataFrame, seed: int) -> Predictions:
    """Impute with chained random forests (missForest; Stekhoven and Bühlmann 2012)."""
    frame = frame.astype({label: float if _is_number(frame[label]) else object for label in frame})
    filled = frame.copy()
    for label in _incomplete(frame):
        column = frame[label]
        start = column.mean() if _is_number(column) else column.mode()[0]
        filled[label] = column.fillna(start) if _is_number(column) else column.where(column.notna(), start)
    predictions: dict[str, Prediction] = {}
    for _ in range(_ROUNDS):
        for label in _incomplete(frame):
            holes = frame[label].isna().to_numpy()
            inputs = pd.get_dummies(filled.drop(columns=label), dtype=np.float64)
            kind = RandomForestRegressor if _is_number(frame[label]) else RandomForestClassifier
            forest = kind(_TREES, random_state=seed, n_jobs=1)
            # Via a list, because scikit-learn does not classify booleans in an array of objects.
            forest.fit(inputs[~holes], np.asarray(frame.loc[~holes, label].tolist()))
            point, probabilities = forest.predict(inputs[holes]), None
            if not _is_number(frame[label]):
                scores = forest.predict_proba(inputs[holes]) + _PSEUDO / _TREES
                probabilities = pd.DataFrame(scores / scores.sum(1, keepdims=True), columns=forest.classes_)
            filled.loc[holes, label] = point
            predictions[label] = Prediction(None, point, probabilities)
    return predictions


def miceforest(frame: pd.DataFrame, seed: int) -> Predictions:
    """Impute with chained boosted trees and predictive mean matching, default settings, five rounds."""
    rows = frame.reset_index(drop=True)
    rows = rows.astype({label: "category" for label in rows if not _is_number(rows[label])})
    tables = methods.miceforest(rows, _DRAWS, seed)
    return {
        label: Prediction(np.stack([t[label].to_numpy(object)[rows[label].isna()] for t in tables]), None)
        for label in _incomplete(frame)
    }


METHODS: dict[str, Method] = {
    "mgp": mgp,
    "one_hot": one_hot,
    "random_forests": random_forests,
    "miceforest": miceforest,
}
"""Imputation methods by name."""


def run(
    table: pd.DataFrame, methods: Sequence[str], splits: Sequence[int], rate: float = 0.2
) -> Iterator[dict[str, Any]]:
    """Hold out cells of a table, impute them by each method, and score the imputations.

    Args:
        table: Complete table of numbers, booleans and text.
        methods: Keys of `METHODS`.
        splits: Seeds of the random holdouts.
        rate: Share of the cells to hold out.

    Yields:
        Per split, method and column: `rmse` and `crps` of a number in standard deviations, `accuracy` and
        `log_score` (mean of -log p) of other columns, and the `seconds` of the whole table.

    Raises:
        ValueError: If the table has missing cells, or a method is unknown.
    """
    if table.isna().to_numpy().any():
        raise ValueError("expected a complete table, got one with missing cells: leave out those rows")
    for unknown in set(methods) - set(METHODS):
        raise ValueError(f"methods are {sorted(METHODS)}, got {unknown!r}")
    for split in splits:
        held_out = np.random.default_rng(split).random(table.shape) < rate
        incomplete = table.mask(held_out)
        for method in methods:
            started = time.perf_counter()
            predictions = METHODS[method](incomplete, split)
            seconds = time.perf_counter() - started
            for label, here in zip(table.columns, held_out.T, strict=True):
                scores = _score(predictions[label], table[label], here)
                row = {"split": split, "method": method, "column": label, "cells": int(here.sum())}
                yield {**row, **scores, "seconds": round(seconds, 2)}


def _score(prediction: Prediction, column: pd.Series[Any], held_out: NDArray[np.bool_]) -> dict[str, float]:
    truth, point = column.to_numpy()[held_out], prediction.point
    if _is_number(column):
        unit, truth = float(column.std()), truth.astype(np.float64)
        draws = None if prediction.draws is None else prediction.draws.astype(np.float64)
        point = draws.mean(0) if point is None and draws is not None else point
        error = np.asarray(point, dtype=np.float64) - truth
        crps = np.abs(error) if draws is None else fair_crps(draws, truth)
        return {"rmse": math.sqrt(np.square(error).mean()) / unit, "crps": float(crps.mean()) / unit}
    levels = sorted(column.unique())
    probabilities = prediction.probabilities
    if probabilities is None:
        m = len(prediction.draws)  # type: ignore[arg-type]
        counts = {level: (prediction.draws == level).sum(0) for level in levels}
        probabilities = (pd.DataFrame(counts) + _PSEUDO) / (m + _PSEUDO * len(levels))
    if point is None:
        point = np.asarray(probabilities.columns)[probabilities.to_numpy().argmax(1)]
    # By position, because booleans as labels would select rows.
    positions = pd.Index(probabilities.columns, dtype=object).get_indexer(pd.Index(truth, dtype=object))
    chosen = probabilities.to_numpy()[np.arange(len(truth)), positions]
    return {"accuracy": float((point == truth).mean()), "log_score": float(-np.log(chosen).mean())}


def _is_number(column: pd.Series[Any]) -> bool:
    return column.dtype.kind in "iuf"


def _incomplete(frame: pd.DataFrame) -> list[str]:
    return [str(label) for label in frame if frame[label].isna().any()]


def _coded(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the table with an indicator column per level of each column that is not numeric."""
    parts = []
    for label in frame:
        column = frame[label]
        if _is_number(column):
            parts.append(column.astype(np.float64).to_frame())
            continue
        levels = sorted(column.dropna().unique())
        hot = pd.DataFrame({f"{label}={level}": (column == level).astype(np.float64) for level in levels})
        parts.append(hot.mask(column.isna(), axis=0))
    return pd.concat(parts, axis=1)


def _decoded(coded: pd.DataFrame, frame: pd.DataFrame, label: str) -> NDArray[Any]:
    """Return the missing cells of a column from a completed table of indicators."""
    holes = frame[label].isna().to_numpy()
    if _is_number(frame[label]):
        return coded[label].to_numpy()[holes]
    levels = sorted(frame[label].dropna().unique())
    scores = coded[[f"{label}={level}" for level in levels]].to_numpy()[holes]
    return np.array(levels, dtype=object)[scores.argmax(1)]
