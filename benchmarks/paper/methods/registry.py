"""Imputation methods by name: those of the paper's experiments and others in common use.

The module of a method is imported when the method is loaded, so that a method without torch does not import
it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from benchmarks.paper.imputed import Imputed
    from benchmarks.paper.profiles import Budget

    Impute = Callable[[pd.DataFrame, pd.DataFrame, int, Budget], Imputed]
    """Function of `(train, test, seed, budget)` that learns from training rows and imputes test rows."""


@dataclass(frozen=True)
class Method:
    """Imputation method."""

    title: str
    """Name in tables and figures."""
    function: str
    """Module of this package, and function in it that imputes, separated by a dot."""
    published: str | None = None
    """Name among the published figures, or None if the paper does not have the method."""

    def load(self) -> Impute:
        """Import and return the function that imputes.

        Raises:
            ImportError: If a library that the method needs is not installed.
        """
        impute: Impute = import_function(self.function, __package__)
        return impute


def import_function(function: str, package: str) -> Any:
    """Import and return a function of a package.

    Args:
        function: Module of the package, and function in it, separated by a dot.
        package: Name of the package.

    Raises:
        ImportError: If a library that the module needs is not installed.
    """
    module, name = function.split(".")
    try:
        return getattr(importlib.import_module(f"{package}.{module}"), name)
    except ImportError as error:
        raise ImportError(f"{error}: pip install 'pyro_mgp[bench]'") from error


METHODS: dict[str, Method] = {
    "mean": Method("Mean", "classical.mean", "mean"),
    "median": Method("Median", "classical.median", "median"),
    "knn": Method("KNN", "classical.nearest_neighbours", "knn"),
    "mice": Method("MICE", "classical.mice", "mice"),
    "svgp": Method("SVGP", "sparse.svgp", "svgp"),
    "gain": Method("GAIN", "gain.gain", "gain"),
    "mgp": Method("MGP", "mgp.mgp"),
    "extra_trees": Method("Extra trees", "classical.extra_trees"),
    "miceforest": Method("miceforest", "boosted.miceforest"),
    "random_forests": Method("Random forests", "classical.random_forests"),
    "dgp": Method("DGP", "deep.dgp", "dgp"),
    "mgp_paper": Method("MGP (paper)", "mgp.mgp_paper", "mgp"),
}
"""Methods by name, roughly by increasing time, in the order in which they are run and reported."""
