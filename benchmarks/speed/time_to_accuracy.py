"""Time to reach an accuracy: natural gradients against Adam, and the default imputer against extra trees."""

from __future__ import annotations

import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.experimental import enable_iterative_imputer  # noqa: F401 (scikit-learn requires this import)
from sklearn.impute import IterativeImputer

from benchmarks.figures import Row
from benchmarks.paper import data
from benchmarks.paper.protocol import rmse, split
from pyro_mgp.data.cells import complete
from pyro_mgp.imputer import MGPImputer
from pyro_mgp.inference.training import History
from pyro_mgp.settings import Engine

# Steps and learning rate of training by Adam alone: a rate of .1 ended at -.213, .03 at -.251.
_ADAM_STEPS, _ADAM_RATE = 2000, 0.1
# Maximum steps of training by natural gradients.
_NATURAL_STEPS = 100
# Number of validation scores whose mean is compared, as in training.
_SMOOTHED = 3


def measure_training(folder: Path, steps: int = _ADAM_STEPS) -> list[Row]:
    """Measure how soon natural gradients reach the held-out log density that Adam alone ends with."""
    train, *_ = split(data.parkinson(folder), 0.1, 0)
    # The sparse GPs alone, without early stopping.
    imputer = MGPImputer(
        n_neighbors=0,
        inputs="others",
        warp=False,
        max_steps=_NATURAL_STEPS,
        engine=Engine(patience=steps),
        columns="all",
        random_state=0,
        progress=False,
    )
    natural = imputer.fit(train).history_
    by_adam = Engine(patience=steps, weight_decay=0.0)
    imputer.set_params(engine=by_adam, inference="svi", max_steps=steps, learning_rate=_ADAM_RATE)
    adam = imputer.fit(train).history_
    goal = smoothed(adam)[-1]
    reached = [step for step, score in zip(natural.steps, smoothed(natural), strict=True) if score >= goal]
    if not reached:
        best = max(smoothed(natural))
        detail = f"not reached: {best:.3f} after {natural.steps[-1]} steps, Adam {goal:.3f}"
        return [Row("natural gradients against Adam, steps", float("nan"), "×", "≥ 20", detail)]
    seconds = natural.seconds * reached[0] / natural.steps[-1]
    detail = f"held-out log density {goal:.3f} after {reached[0]} and {adam.steps[-1]} steps"
    return [
        Row("Adam ÷ natural gradients, steps", adam.steps[-1] / reached[0], "×", "≥ 20", detail),
        Row(
            "Adam ÷ natural gradients, time",
            adam.seconds / seconds,
            "×",
            "≥ 10",
            f"{seconds:.1f} s and {adam.seconds:.0f} s",
        ),
    ]


def smoothed(history: History) -> list[float]:
    """Return the running mean of the last three validation scores, at each validation."""
    scores = history.validation
    return [float(np.mean(scores[max(0, k + 1 - _SMOOTHED) : k + 1])) for k in range(len(scores))]


@dataclass(frozen=True)
class Result:
    """Time and accuracy of an imputer on one split."""

    seconds: float
    """Seconds to fit and impute."""
    rmse: float
    """RMSE of the missing test cells, in standard deviations."""


def ours(train: pd.DataFrame, test: pd.DataFrame, truth: pd.DataFrame, seed: int) -> Result:
    """Fit with default settings and impute training and test rows 20 times; score the mean for test rows."""
    start = time.perf_counter()
    imputer = MGPImputer(random_state=seed, columns="all", progress=False).fit(train)
    imputer.impute(m=20)
    draws = imputer.impute(test, m=20)
    seconds = time.perf_counter() - start
    means = {label: np.asarray(values, dtype=float).mean(0) for label, values in draws.values.items()}
    return Result(seconds, rmse(complete(test, means), truth, test, train))


def extra_trees(train: pd.DataFrame, test: pd.DataFrame, truth: pd.DataFrame, seed: int) -> Result:
    """Fit chained extra trees in five rounds, and complete the test table once."""
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        trees = ExtraTreesRegressor(100, random_state=seed)
        imputer = IterativeImputer(trees, max_iter=5, random_state=seed).fit(train)
    completed = pd.DataFrame(imputer.transform(test), index=test.index, columns=test.columns)
    return Result(time.perf_counter() - start, rmse(completed, truth, test, train))


def in_own_process(method: str, table: str, folder: Path, rate: float, seed: int) -> Result:
    """Run a method in a new process: objects of earlier runs in memory change its time by 15 %.

    Args:
        method: "ours" or "extra_trees".
        table: "parkinson" or "protein".
        folder: Folder with the public tables.
        rate: Share of the cells to remove.
        seed: Number of the split.
    """
    command = (
        "from pathlib import Path\n"
        "from benchmarks.paper import data, protocol\n"
        "from benchmarks.speed import time_to_accuracy\n"
        f"parts = protocol.split(data.{table}(Path({str(folder)!r})), {rate}, {seed})\n"
        f"result = time_to_accuracy.{method}(*parts, {seed})\n"
        "print(result.seconds, result.rmse)\n"
    )
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    return Result(*map(float, done.stdout.split()))


def measure_forests(folder: Path, splits: Sequence[int] = (0, 1)) -> list[Row]:
    """Compare default imputer and chained extra trees on Parkinson (10 and 40 %) and Protein (10 %)."""
    return [
        *against_trees("Parkinson 10 %", "parkinson", folder, 0.1, splits, "≤ 0.25"),
        *against_trees("Parkinson 40 %", "parkinson", folder, 0.4, splits, "≤ 0.25"),
        *against_trees("Protein 10 %", "protein", folder, 0.1, splits[:1], "≤ 0.1"),
    ]


def against_trees(
    name: str, table: str, folder: Path, rate: float, splits: Sequence[int], asked: str
) -> list[Row]:
    """Measure time and RMSE of the default imputer relative to extra trees, from means over splits."""
    methods = ("ours", "extra_trees")
    pairs = [[in_own_process(method, table, folder, rate, seed) for method in methods] for seed in splits]
    seconds = np.mean([[result.seconds for result in pair] for pair in pairs], axis=0)
    errors = np.mean([[result.rmse for result in pair] for pair in pairs], axis=0)
    return [
        Row(
            f"{name}, time ÷ extra trees",
            seconds[0] / seconds[1],
            "×",
            asked,
            f"{seconds[0]:.1f} s, extra trees {seconds[1]:.1f} s",
        ),
        Row(
            f"{name}, RMSE ÷ extra trees",
            errors[0] / errors[1],
            "×",
            "≤ 1",
            f"{errors[0]:.3f}, extra trees {errors[1]:.3f}",
        ),
    ]
