"""Impute a table by hyperimpute or gcimpute, with the Python of an environment that has them.

    PYTHON rival_script.py METHOD TABLE OUT M SEED

TABLE is an NPZ file with the array `table`, `[rows, columns]`, NaN in missing cells. OUT gets the completed
table `point`, of the same shape, the `seconds` without imports, and of a method that draws `draws`,
`[M, rows, columns]`.
"""

from __future__ import annotations

import functools
import multiprocessing
import sys
import time
from typing import Any
from unittest import mock

import numpy as np

Arrays = dict[str, Any]


def hyperimpute(table: np.ndarray, m: int, seed: int) -> Arrays:
    """Return the table completed with the default settings, which choose a regression for each column."""
    import pandas as pd
    from hyperimpute.plugins.imputers import Imputers

    frame = pd.DataFrame(table, columns=[f"c{j}" for j in range(table.shape[1])])
    started = time.perf_counter()
    completed = Imputers().get("hyperimpute", random_state=seed).fit_transform(frame)
    return {"seconds": time.perf_counter() - started, "point": np.asarray(completed, float)}


def gcimpute(table: np.ndarray, m: int, seed: int) -> Arrays:
    """Return the conditional means of a Gaussian copula, and m draws.

    Version 0.0.4 seeds numpy again for every row, so that all rows of a draw have the same noise. It is
    seeded once here. It also refuses the intervals of columns that it takes for truncated: these are
    given as ordinal.
    """
    from gcimpute.gaussian_copula import GaussianCopula

    started = time.perf_counter()
    model = GaussianCopula(random_state=seed)
    try:
        point = model.fit_transform(table)
    except ValueError:
        continuous = list(model.get_vartypes()["continuous"])
        others = [j for j in range(table.shape[1]) if j not in continuous]
        model = GaussianCopula(random_state=seed)
        point = model.fit_transform(table, continuous=continuous, ordinal=others)
    np.random.seed(seed)  # noqa: NPY002 (the generator that gcimpute uses)
    with mock.patch.object(np.random, "seed"):
        draws = model.sample_imputation(num=m)
    return {
        "seconds": time.perf_counter() - started,
        "point": np.asarray(point, float),
        "draws": np.moveaxis(draws, 2, 0),
    }


METHODS = {"hyperimpute": hyperimpute, "gcimpute": gcimpute}


def use_one_core() -> None:
    """Limit the libraries that count the cores instead of reading the environment."""
    setattr(multiprocessing, "cpu_count", lambda: 1)  # noqa: B010 (mypy forbids the assignment)
    try:
        import catboost
    except ImportError:
        return
    for model in (catboost.CatBoostClassifier, catboost.CatBoostRegressor):
        model.__init__ = functools.partialmethod(model.__init__, thread_count=1)


def main(method: str, source: str, target: str, m: str, seed: str) -> None:
    """Impute one table; the arguments are those of the command line."""
    use_one_core()
    np.savez(target, **METHODS[method](np.load(source)["table"], int(m), int(seed)))


if __name__ == "__main__":
    main(*sys.argv[1:])
