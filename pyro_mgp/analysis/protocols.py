"""Protocols of the imputers that analyses accept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import pandas as pd
from numpy.typing import ArrayLike, NDArray

from pyro_mgp.data.codecs import ColumnCodec
from pyro_mgp.data.column_spec import Label
from pyro_mgp.data.table import TableCodec
from pyro_mgp.model.chain import Chain
from pyro_mgp.sampling.initial_fill import InitialFill


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

    @property
    def chain_(self) -> Chain:
        """Trained chain."""

    @property
    def codec_(self) -> TableCodec:
        """Codec of the table."""

    @property
    def target_codec_(self) -> ColumnCodec | None:
        """Codec of the target, if there is one."""

    @property
    def initial_fill_(self) -> InitialFill:
        """Initial fill of missing cells."""

    @property
    def order_(self) -> list[str]:
        """Names of the encoded columns in the order of the chain."""

    @property
    def target_is_input(self) -> bool:
        """Whether links of other columns condition on the target."""
