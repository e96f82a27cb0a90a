"""Draws of missing cells from anything that imputes: ours, scikit-learn's, or a function.

| what | how it is asked for m draws |
|---|---|
| an object with `fit(frame)` and `impute(m=...)` | a clone is fitted and asked once |
| a scikit-learn transformer | clones are fitted to the columns of numbers, m times with other seeds |
| a function `(frame, m, seed)` | it is called, and gives m completed tables |
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import clone

from pyro_mgp.data.cells import cells_of, numbers_of
from pyro_mgp.data.column_spec import Label
from pyro_mgp.data.dtypes import is_numeric
from pyro_mgp.data.rules import Rules
from pyro_mgp.data.table import TableWarning, missing
from pyro_mgp.imputer import FitWarning
from pyro_mgp.results.imputations import Imputations

AnyImputer: TypeAlias = Any
"""What `draw` understands: see the table above."""

Draws = dict[Label, NDArray[Any]]
"""Per column with missing cells its draws `[m, n_missing]`: float64, or object for levels."""


def rules_of(imputer: AnyImputer, frame: pd.DataFrame) -> Rules:
    """What an imputer was told of the table."""
    return Rules.parse(getattr(imputer, "specs", None), frame.columns.tolist())


def draw(
    imputer: AnyImputer,
    frame: pd.DataFrame,
    m: int,
    seed: int,
    *,
    y: Any = None,
    refit: bool = True,
    levels: Iterable[Label] = (),
) -> Draws:
    """M draws of the missing cells of a table.

    Args:
        imputer: One of those named above; it stays as it is.
        frame: The table.
        m: Number of draws.
        seed: What randomness starts from.
        y: Target to fit to besides; for imputers with `fit(frame, y)`.
        refit: Fit a clone to the table; otherwise what the imputer has learnt before is used.
        levels: Labels of the columns whose cells are levels, not numbers.

    Returns:
        Draws of the columns that the imputer fills.

    Raises:
        TypeError: It is nothing that imputes.
        ValueError: It leaves cells missing, gives other tables than it was asked for, or cannot draw without
            being fitted.
    """
    if hasattr(imputer, "impute"):
        with warnings.catch_warnings():  # the user has heard what there is to say of the table
            warnings.simplefilter("ignore", TableWarning)
            if refit:
                warnings.simplefilter("ignore", FitWarning)
            given = _impute(imputer, frame, m, seed, y, refit)
    elif not refit:
        raise ValueError(f"refit=False needs an imputer with impute(frame, m=...), got {imputer!r}")
    elif hasattr(imputer, "fit_transform"):
        given = _transform(imputer, frame, m, seed, set(levels))
    elif callable(imputer):
        given = list(imputer(frame.copy(), m, seed))
    else:
        raise TypeError(
            "expected an imputer with fit and impute, a scikit-learn transformer, or a function "
            f"(frame, m, seed) that gives m completed tables; got {imputer!r}"
        )
    return _read(given, frame, m, set(levels))


def _impute(imputer: AnyImputer, frame: pd.DataFrame, m: int, seed: int, y: Any, refit: bool) -> Any:
    if not refit:
        return imputer.impute(frame, m=m)
    fresh = _seeded(imputer, seed)
    fresh.fit(frame) if y is None else fresh.fit(frame, y)
    return fresh.impute(m=m)


def _seeded(estimator: Any, seed: int) -> Any:
    """An unfitted copy with a seed of its own."""
    if not hasattr(estimator, "get_params"):
        return copy.deepcopy(estimator)
    fresh = clone(estimator)
    names = [name for name in fresh.get_params() if name.split("__")[-1] == "random_state"]
    return fresh.set_params(**dict.fromkeys(names, seed))


def _transform(
    transformer: Any, frame: pd.DataFrame, m: int, seed: int, levels: set[Label]
) -> list[pd.DataFrame]:
    """Completed tables of the columns of numbers; a transformer that draws nothing is asked twice only.

    Booleans are seen as numbers, but not filled: what lies between 0 and 1 is no boolean.
    """
    numeric = frame[[label for label in frame if is_numeric(frame[label])]]
    numbers = numeric.apply(lambda column: column.to_numpy(np.float64, na_value=np.nan))
    if not all(isinstance(label, str) for label in numbers):  # scikit-learn knows no others beside text
        numbers.columns = pd.Index([f"x{j}" for j in range(numbers.shape[1])])
    tables: list[pd.DataFrame] = []
    for j in range(m):
        if j == 2 and tables[0].equals(tables[1]):
            return tables[:1] * m
        filled = np.asarray(_seeded(transformer, seed + j).fit_transform(numbers), np.float64)
        if len(filled) != len(numbers) or filled.shape[1] < numbers.shape[1]:
            raise ValueError(f"{transformer!r} turns a table of {numbers.shape} cells into {filled.shape}")
        table = pd.DataFrame(filled[:, : numbers.shape[1]], frame.index, numeric.columns)
        tables.append(table[[label for label in numeric if label not in levels]])
    return tables


def _read(given: Any, frame: pd.DataFrame, m: int, levels: set[Label]) -> Draws:
    """Draws from what an imputer gave."""
    labels: list[Label] = list(frame.columns)
    holes = {label: here for label, here in zip(labels, missing(frame).T, strict=True) if here.any()}
    read: Callable[[Label], NDArray[Any]]
    if isinstance(given, Imputations):
        values: Mapping[Label, NDArray[Any]] = given.values
        filled = [label for label in holes if label in values]

        def read(label: Label) -> NDArray[Any]:
            return _as_numbers(values[label]) if label not in levels else values[label].astype(object)

    else:
        tables = list(given)
        if len(tables) != m or any(len(table) != len(frame) for table in tables):
            raise ValueError(f"expected {m} completed tables of {len(frame)} rows, got {_sizes(tables)}")
        filled = [label for label in holes if all(label in table for table in tables)]

        def read(label: Label) -> NDArray[Any]:
            cells = (lambda x: cells_of(x).astype(object)) if label in levels else numbers_of
            return np.stack([cells(table[label])[holes[label]] for table in tables])

    draws = {label: read(label) for label in filled}
    if any(len(values) != m for values in draws.values()):
        raise ValueError(f"expected {m} imputations, got {len(next(iter(draws.values())))}")
    return draws


def _as_numbers(values: NDArray[Any]) -> NDArray[np.float64]:
    """Draws of numbers or times, as they are held, as numbers or seconds."""
    if values.dtype.kind in "Mm":
        return np.where(np.isnat(values), np.nan, values.astype(np.int64) / 1e6)
    return values.astype(np.float64)


def _sizes(tables: list[Any]) -> str:
    lengths = sorted({len(table) for table in tables})
    return f"{len(tables)} of {lengths} rows"
