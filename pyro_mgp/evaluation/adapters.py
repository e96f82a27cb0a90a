"""Draws of missing cells from any imputer: an `MGPImputer`, a scikit-learn transformer, or a function.

| imputer | how its m draws are obtained |
|---|---|
| an object with `fit(frame)` and `impute(m=...)` | a clone is fitted once and imputes m times |
| a scikit-learn transformer | m clones with different seeds are fitted to the numeric columns |
| a function `(frame, m, seed)` | it returns m completed tables |
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np
import pandas as pd
import sklearn.base
from numpy.typing import NDArray

from pyro_mgp._support.messages import FitWarning
from pyro_mgp.analysis.sensitivity import Imputer
from pyro_mgp.data.cells import cells_of, is_numeric, numbers_of
from pyro_mgp.data.column_spec import Label
from pyro_mgp.data.table import TableWarning, missing
from pyro_mgp.results.imputations import Imputations


class Transformer(Protocol):
    """Object that completes a numeric table, such as scikit-learn's imputers."""

    fit_transform: Callable[..., Any]  # returns the completed table as an array, `[N, C]`


AnyImputer: TypeAlias = Imputer | Transformer | Callable[[pd.DataFrame, int, int], Iterable[pd.DataFrame]]
"""Imputers that `draw` accepts."""

Draws = dict[Label, NDArray[Any]]
"""Draws of the missing cells of each incomplete column, `[m, n_missing]`: float64, or objects for levels."""


def check_named(imputers: object) -> None:
    """Raise a TypeError unless imputers are given by name."""
    if not isinstance(imputers, Mapping):
        came = type(imputers).__name__
        raise TypeError(f"expected imputers by name, such as {{'mgp': MGPImputer()}}, got {came}")


def draw(
    imputer: AnyImputer,
    frame: pd.DataFrame,
    m: int,
    seed: int,
    *,
    y: Any = None,
    refit: bool = True,
    levels: Collection[Label] = (),
) -> Draws:
    """Draw the missing cells of a table m times, in the columns that an imputer completes.

    The imputer is not changed: a clone with this seed is fitted to the table, and to a target `y` if there is
    one; only without `refit` the fitted imputer itself draws. `levels` are the labels of columns whose cells
    are levels, not numbers. Raises a TypeError for objects that are not imputers, and a ValueError if an
    imputer returns tables of another size or number, or cannot impute without a fit.
    """
    if hasattr(imputer, "impute"):
        with warnings.catch_warnings():  # about the user's table, which the user has been warned of before
            warnings.simplefilter("ignore", TableWarning)
            if refit:
                warnings.simplefilter("ignore", FitWarning)
                clone = _seeded(imputer, seed)
                clone.fit(frame) if y is None else clone.fit(frame, y)
            completed = clone.impute(m=m) if refit else imputer.impute(frame, m=m)
    elif not refit:
        raise ValueError(f"refit=False needs an imputer with impute(frame, m=...), got {imputer!r}")
    elif hasattr(imputer, "fit_transform"):
        completed = _transform(imputer, frame, m, seed, levels)
    elif callable(imputer):
        completed = list(imputer(frame.copy(), m, seed))
    else:
        others = "a scikit-learn transformer, or a function (frame, m, seed) that returns m completed tables"
        raise TypeError(f"expected an imputer with fit and impute, {others}; got {imputer!r}")
    return _read(completed, frame, m, levels)


def objects_of(column: pd.Series[Any]) -> NDArray[Any]:
    """Return the cells of a column of levels as Python's own objects, `[N]`."""
    return np.asarray(cells_of(column).astype(object))


def _seeded(estimator: Any, seed: int) -> Any:
    """Return an unfitted copy of an estimator with another seed."""
    if not hasattr(estimator, "get_params"):
        return copy.deepcopy(estimator)
    fresh = sklearn.base.clone(estimator)
    names = [name for name in fresh.get_params() if name.split("__")[-1] == "random_state"]
    return fresh.set_params(**dict.fromkeys(names, seed))


def _transform(
    transformer: Any, frame: pd.DataFrame, m: int, seed: int, levels: Collection[Label]
) -> list[pd.DataFrame]:
    """Return m completed tables of numeric columns without levels; deterministic fits are made only twice."""
    numeric = frame[[label for label in frame if is_numeric(frame[label])]]
    numbers = numeric.apply(lambda column: column.to_numpy(np.float64, na_value=np.nan))
    if not all(isinstance(label, str) for label in numbers):  # scikit-learn refuses a mixture of label types
        numbers.columns = pd.Index([f"x{j}" for j in range(numbers.shape[1])])
    tables: list[pd.DataFrame] = []
    for j in range(m):
        if j == 2 and tables[0].equals(tables[1]):
            return tables[:1] * m
        filled = np.asarray(_seeded(transformer, seed + j).fit_transform(numbers), np.float64)
        if len(filled) != len(numbers) or filled.shape[1] < numbers.shape[1]:
            raise ValueError(f"{transformer!r} turns a table of {numbers.shape} cells into {filled.shape}")
        table = pd.DataFrame(filled[:, : numbers.shape[1]], frame.index, numeric.columns)
        # Booleans are predictors only: their results would lie between 0 and 1.
        tables.append(table[[label for label in numeric if label not in levels]])
    return tables


def _read(completed: Any, frame: pd.DataFrame, m: int, levels: Collection[Label]) -> Draws:
    """Extract the draws of missing cells from completed tables or `Imputations`."""
    labels: list[Label] = list(frame.columns)
    holes = {label: own for label, own in zip(labels, missing(frame).T, strict=True) if own.any()}
    if isinstance(completed, Imputations):
        stored = {label: completed.values[label] for label in holes if label in completed.values}
        cells = {label: [pd.Series(each) for each in draws] for label, draws in stored.items()}
    else:
        tables = list(completed)
        if len(tables) != m or any(len(table) != len(frame) for table in tables):
            sizes = f"{len(tables)} of {sorted({len(table) for table in tables})} rows"
            raise ValueError(f"expected {m} completed tables of {len(frame)} rows, got {sizes}")
        found = [label for label in holes if all(label in table for table in tables)]
        cells = {label: [table[label][holes[label]] for table in tables] for label in found}
    if any(len(columns) != m for columns in cells.values()):
        raise ValueError(f"expected {m} imputations, got {len(next(iter(cells.values())))}")
    readers = {label: objects_of if label in levels else numbers_of for label in cells}
    return {label: np.stack([readers[label](each) for each in columns]) for label, columns in cells.items()}
