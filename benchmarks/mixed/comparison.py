"""Tables of mixed columns: accuracy and probabilities of categories, errors and spread of numbers.

Cells of every column of a complete table are hidden at random, and each method says what they were. The
rivals are those an analyst would pick today, and our own chain on indicators of the levels as if these were
numbers.
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

from pyro_mgp.evaluation.scores import fair_crps
from pyro_mgp.imputer import MGPImputer

_DRAWS = 20
_TREES, _ROUNDS = 100, 5
# A level's probability is its share of the draws, as if each level had been drawn this much more often.
_PSEUDO = 0.5


@dataclass(frozen=True)
class Answer:
    """What a method says of the hidden cells of one column."""

    draws: NDArray[Any] | None
    """`[m, cells]`, or None where it knows no distribution."""
    point: NDArray[Any] | None
    """One value per cell, `[cells]`; None for the mean or the most frequent draw."""
    shares: pd.DataFrame | None = None
    """Probabilities of the levels, one column each, where it states them itself."""


Answers = Mapping[str, Answer]
Method = Callable[[pd.DataFrame, int], Answers]
"""`(table with holes, seed)`."""


def mgp(frame: pd.DataFrame, seed: int) -> Answers:
    """The imputer with its default settings."""
    imputer = MGPImputer(random_state=seed, progress=False).fit(frame)
    point = pd.DataFrame(imputer.transform(frame))
    draws = imputer.impute(m=_DRAWS).values
    return {
        str(label): Answer(values, point[label].to_numpy()[frame[label].isna()])
        for label, values in draws.items()
    }


def one_hot(frame: pd.DataFrame, seed: int) -> Answers:
    """The same chain with levels as numbers: an indicator each, the largest of which is the answer."""
    coded = _coded(frame)
    imputer = MGPImputer(random_state=seed, discrete_support=0, warp=False, progress=False).fit(coded)
    draws = list(imputer.impute(m=_DRAWS))
    return {
        label: Answer(np.stack([_read(table, frame, label) for table in draws]), None)
        for label in _incomplete(frame)
    }


def random_forests(frame: pd.DataFrame, seed: int) -> Answers:
    """Chained forests, of classification trees for levels (missForest; Stekhoven and Bühlmann 2012)."""
    frame = frame.astype({label: _plain_dtype(frame[label]) for label in frame})
    filled = frame.copy()
    for label in _incomplete(frame):
        column = frame[label]
        start = column.mean() if _is_number(column) else column.mode()[0]
        filled[label] = column.fillna(start) if _is_number(column) else column.where(column.notna(), start)
    answers: dict[str, Answer] = {}
    for _ in range(_ROUNDS):
        for label in _incomplete(frame):
            holes = frame[label].isna().to_numpy()
            inputs = pd.get_dummies(filled.drop(columns=label), dtype=np.float64)
            kind = RandomForestRegressor if _is_number(frame[label]) else RandomForestClassifier
            forest = kind(_TREES, random_state=seed, n_jobs=1)
            # Lists: scikit-learn does not classify booleans among objects.
            forest.fit(inputs[~holes], np.asarray(frame.loc[~holes, label].tolist()))
            point, shares = forest.predict(inputs[holes]), None
            if not _is_number(frame[label]):
                scores = forest.predict_proba(inputs[holes]) + _PSEUDO / _TREES
                shares = pd.DataFrame(scores / scores.sum(1, keepdims=True), columns=forest.classes_)
            filled.loc[holes, label] = point
            answers[label] = Answer(None, point, shares)
    return answers


def miceforest(frame: pd.DataFrame, seed: int) -> Answers:
    """Chained boosted trees with predictive mean matching, default settings, five rounds."""
    import miceforest as mf  # in the extra `bench` only

    rows = frame.reset_index(drop=True)
    rows = rows.astype({label: "category" for label in rows if not _is_number(rows[label])})
    kernel = mf.ImputationKernel(rows, num_datasets=_DRAWS, random_state=seed)
    kernel.mice(5, num_threads=1)
    tables = [kernel.complete_data(k) for k in range(_DRAWS)]
    return {
        label: Answer(np.stack([t[label].to_numpy(object)[rows[label].isna()] for t in tables]), None)
        for label in _incomplete(frame)
    }


METHODS: dict[str, Method] = {
    "mgp": mgp,
    "one_hot": one_hot,
    "random_forests": random_forests,
    "miceforest": miceforest,
}


def run(
    table: pd.DataFrame, methods: Sequence[str], splits: Sequence[int], rate: float = 0.2
) -> Iterator[dict[str, Any]]:
    """Hide cells, ask, score.

    Args:
        table: A complete table of numbers, booleans and text.
        methods: Names in `METHODS`.
        splits: Seeds of what is hidden.
        rate: Share of the cells to hide.

    Yields:
        Per split, method and column: `rmse` and `crps` in standard deviations of a number, `accuracy` and
        `log_score` (mean of -log p) of anything else, and the `seconds` of the whole table.

    Raises:
        ValueError: The table has missing cells, or a method is unknown.
    """
    if table.isna().to_numpy().any():
        raise ValueError("expected a complete table: what is hidden has to be known")
    for unknown in set(methods) - set(METHODS):
        raise ValueError(f"methods are {sorted(METHODS)}, got {unknown!r}")
    for split in splits:
        hidden = np.random.default_rng(split).random(table.shape) < rate
        holed = table.mask(hidden)
        for method in methods:
            started = time.perf_counter()
            answers = METHODS[method](holed, split)
            seconds = time.perf_counter() - started
            for label, here in zip(table.columns, hidden.T, strict=True):
                scores = _score(answers[label], table[label], here)
                row = {"split": split, "method": method, "column": label, "cells": int(here.sum())}
                yield {**row, **scores, "seconds": round(seconds, 2)}


def _score(answer: Answer, column: pd.Series[Any], hidden: NDArray[np.bool_]) -> dict[str, float]:
    truth = column.to_numpy()[hidden]
    if _is_number(column):
        unit, truth = float(column.std()), truth.astype(np.float64)
        draws = None if answer.draws is None else answer.draws.astype(np.float64)
        point = draws.mean(0) if answer.point is None and draws is not None else answer.point
        error = np.asarray(point, dtype=np.float64) - truth
        crps = np.abs(error) if draws is None else fair_crps(draws, truth)
        return {"rmse": math.sqrt(np.square(error).mean()) / unit, "crps": float(crps.mean()) / unit}
    levels = sorted(column.unique())
    shares = answer.shares
    if shares is None:
        m = len(answer.draws)  # type: ignore[arg-type]
        counts = {level: (answer.draws == level).sum(0) for level in levels}
        shares = pd.DataFrame(counts) + _PSEUDO
        shares /= m + _PSEUDO * len(levels)
    point = np.asarray(shares.columns)[shares.to_numpy().argmax(1)] if answer.point is None else answer.point
    # By position: booleans as labels would choose rows.
    places = pd.Index(shares.columns, dtype=object).get_indexer(pd.Index(truth, dtype=object))
    chosen = shares.to_numpy()[np.arange(len(truth)), places]
    return {"accuracy": float((point == truth).mean()), "log_score": float(-np.log(chosen).mean())}


def _is_number(column: pd.Series[Any]) -> bool:
    return column.dtype.kind in "iuf"


def _plain_dtype(column: pd.Series[Any]) -> type:
    return float if _is_number(column) else object


def _incomplete(frame: pd.DataFrame) -> list[str]:
    return [str(label) for label in frame if frame[label].isna().any()]


def _coded(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with an indicator column per level of what is no number, missing together."""
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


def _indicators(coded: pd.DataFrame, frame: pd.DataFrame, label: str) -> pd.DataFrame:
    levels = sorted(frame[label].dropna().unique())
    return coded[[f"{label}={level}" for level in levels]].set_axis(levels, axis=1)


def _read(coded: pd.DataFrame, frame: pd.DataFrame, label: str) -> NDArray[Any]:
    """The missing cells of a column from a filled table of indicators."""
    holes = frame[label].isna().to_numpy()
    if _is_number(frame[label]):
        return coded[label].to_numpy()[holes]
    scores = _indicators(coded, frame, label)
    return scores.columns.to_numpy(dtype=object)[scores.to_numpy()[holes].argmax(1)]
