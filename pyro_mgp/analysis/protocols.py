"""Protocols of the imputers that analyses accept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import pandas as pd
from numpy.typing import ArrayLike, NDArray

from pyro_mgp.data.column_spec import Label
from pyro_mgp.sampling.fitted_model import FittedModel


class CompletedTables(Protocol):
    """Multiple imputations of a table; iteration gives the completed tables."""

    @property
    def values(self) -> Mapping[Label, NDArray[Any]]:
        """Draws of the missing cells of each incomplete column, `[m, n_missing]`."""

    def __iter__(self) -> Iterator[pd.DataFrame]: ...


class Imputer(Protocol):
    """Fitted imputer whose draws can be shifted."""

    def impute(
        self,
        X: pd.DataFrame | ArrayLike | None = None,
        m: int = 20,
        *,
        delta: Mapping[Label, float] | None = None,
    ) -> CompletedTables:
        """Draw m imputations, with the draws of some columns shifted by `delta`."""


class ChainImputer(Protocol):
    """Fitted imputer with a chain of Gaussian processes."""

    model_: FittedModel
    """Everything that the fit has learnt."""
