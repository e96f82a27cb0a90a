"""Every system of the paper's experiments, and the rivals that users would pick today, by name.

A system's module is imported when it is run: one that needs no torch shall not pay for it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from benchmarks.paper.imputed import Imputed
    from benchmarks.paper.profiles import Budget

    Impute = Callable[[pd.DataFrame, pd.DataFrame, int, Budget], Imputed]
    """`(train, test, seed, budget)`: learns from training rows with holes, fills the holes of test rows."""


@dataclass(frozen=True)
class System:
    """An imputation method."""

    title: str
    """What tables and figures call it."""
    function: str
    """Module of this package and function in it that imputes."""
    published: str | None = None
    """Its name among the paper's figures, if it is there."""

    def load(self) -> Impute:
        """The function, imported with all it needs.

        Raises:
            ImportError: If a library that it needs is not installed.
        """
        module, name = self.function.split(".")
        try:
            impute: Impute = getattr(importlib.import_module(f"{__package__}.{module}"), name)
        except ImportError as error:
            raise ImportError(f"{error}: pip install 'pyro_mgp[bench]'") from error
        return impute


SYSTEMS: dict[str, System] = {
    "mean": System("Mean", "classical.mean", "mean"),
    "median": System("Median", "classical.median", "median"),
    "knn": System("KNN", "classical.nearest_neighbours", "knn"),
    "mice": System("MICE", "classical.mice", "mice"),
    "svgp": System("SVGP", "sparse.svgp", "svgp"),
    "gain": System("GAIN", "gain.gain", "gain"),
    "mgp": System("MGP", "mgp.mgp"),
    "extra_trees": System("Extra trees", "classical.extra_trees"),
    "miceforest": System("miceforest", "boosted.miceforest"),
    "random_forests": System("Random forests", "classical.random_forests"),
    "dgp": System("DGP", "deep.dgp", "dgp"),
    "mgp_paper": System("MGP (paper)", "mgp.mgp_paper", "mgp"),
}
"""The systems, the quicker ones first: the order in which they are run and reported."""
