"""Every system of the paper's experiments, and the rivals that users would pick today, by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from pyro_mgp.bench import boosted, classical, deep, gain, ours, sparse
from pyro_mgp.bench.imputed import Imputed
from pyro_mgp.bench.profiles import Budget

Impute = Callable[[pd.DataFrame, pd.DataFrame, int, Budget], Imputed]
"""`(train, test, seed, budget)`: learns from training rows with holes, fills the holes of test rows."""


@dataclass(frozen=True)
class System:
    """An imputation method."""

    title: str
    """What tables and figures call it."""
    impute: Impute
    """See `Impute`."""
    published: str | None = None
    """Its name among the paper's figures, if it is there."""
    needs: str | None = None
    """A module that comes with the `bench` extra."""

    def load(self) -> None:
        """Import what it needs, so that this is not counted as its time.

        Raises:
            ImportError: If it is not installed.
        """
        if self.needs is not None:
            try:
                importlib.import_module(self.needs)
            except ImportError as error:
                raise ImportError(f"{error}: pip install 'pyro_mgp[bench]'") from error


SYSTEMS: dict[str, System] = {
    "mean": System("Mean", classical.mean, "mean"),
    "median": System("Median", classical.median, "median"),
    "knn": System("KNN", classical.nearest_neighbours, "knn"),
    "mice": System("MICE", classical.mice, "mice"),
    "svgp": System("SVGP", sparse.svgp, "svgp"),
    "gain": System("GAIN", gain.gain, "gain"),
    "mgp": System("MGP", ours.mgp),
    "extra_trees": System("Extra trees", classical.extra_trees),
    "miceforest": System("miceforest", boosted.miceforest, needs="miceforest"),
    "random_forests": System("Random forests", classical.random_forests),
    "dgp": System("DGP", deep.dgp, "dgp"),
    "mgp_paper": System("MGP (paper)", ours.mgp_paper, "mgp"),
}
"""The systems, the quicker ones first: the order in which they are run and reported."""
