"""Imputation methods by name: functions that complete a table from its own observed cells.

The module of a method is imported when the method is loaded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.coverage import r_mice
from benchmarks.paper.methods import registry as paper
from benchmarks.paper.methods.registry import import_function
from benchmarks.tables.methods import DRAWS, r_mixgb, rivals

if TYPE_CHECKING:
    import pandas as pd

    from benchmarks.paper.imputed import Imputed

    Impute = Callable[[pd.DataFrame, int], Imputed]
    """Function of `(incomplete table, seed)` that imputes its missing cells."""

# Each completed table of miceforest has its own forests, which take as long again.
_MICEFOREST_DRAWS = 5

# KNN has the default number of neighbours of scikit-learn.
_NEIGHBOURS = 5


@dataclass(frozen=True)
class Method:
    """Imputation method."""

    title: str
    """Name in tables and figures."""
    load: Callable[[], Impute]
    """Function that imports and returns the function that imputes."""
    check: Callable[[], None] | None = None
    """Function that raises a ValueError if what the method needs beside Python packages is not there."""


def _own(function: str) -> Callable[[], Impute]:
    """Return a loader of a function of this package, "module.name"."""
    return functools.partial(import_function, function, __package__)


def _of_paper(name: str) -> Callable[[], Impute]:
    """Return a loader of a method of the paper's experiments, for which training and test rows are one."""

    def load() -> Impute:
        from benchmarks.paper.profiles import Budget

        impute = paper.METHODS[name].load()
        budget = Budget(draws=DRAWS, miceforest_datasets=_MICEFOREST_DRAWS, neighbours=_NEIGHBOURS)
        return lambda table, seed: impute(table, table, seed, budget)

    return load


def _in_r(complete: Callable[[pd.DataFrame, int, int], list[pd.DataFrame]]) -> Callable[[], Impute]:
    """Return a loader of a function of `(table, m, seed)` that returns m completed tables."""

    def load() -> Impute:
        from benchmarks.paper.imputed import Imputed

        return lambda table, seed: Imputed.from_tables(complete(table, DRAWS, seed), table)

    return load


def _rival(name: str) -> Method:
    """Return a method that is run by the Python of another environment."""
    impute = functools.partial(rivals.impute, name=name)
    return Method(name, lambda: impute, functools.partial(rivals.check, name))


METHODS: dict[str, Method] = {
    "mean": Method("Mean", _of_paper("mean")),
    "knn": Method("KNN", _of_paper("knn")),
    "mice_ridge": Method("MICE ridge", _of_paper("mice")),
    "mgp": Method("MGP", _own("mgp.mgp")),
    "extra_trees": Method("Extra trees", _of_paper("extra_trees")),
    "missforest": Method("missForest", _own("missforest.missforest")),
    "miceforest": Method("miceforest", _of_paper("miceforest")),
    "mice_pmm": Method("mice PMM", _in_r(r_mice.method("pmm", collinear=True)), r_mice.check),
    "mice_cart": Method("mice CART", _in_r(r_mice.method("cart", collinear=True)), r_mice.check),
    "mice_rf": Method("mice RF", _in_r(r_mice.method("rf", collinear=True)), r_mice.check),
    "mixgb": Method("mixgb", _in_r(r_mixgb.complete), functools.partial(r_mice.check, "mixgb", "CRAN")),
    "gcimpute": _rival("gcimpute"),
    "hyperimpute": _rival("hyperimpute"),
}
"""Methods by name, in the order in which they are run and reported."""
