"""Imputation by `MGPImputer` with its default settings."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pandas as pd

from benchmarks.paper.imputed import Cells, Imputed, cells_of
from benchmarks.tables.methods import DRAWS
from pyro_mgp.imputer import MGPImputer

# The bounds of a 95 % interval are far in the tails; with 100 draws they are the 2.5th from either end.
_INTERVAL_DRAWS = 100


def mgp(table: pd.DataFrame, seed: int) -> Imputed:
    """Impute with `MGPImputer` and its default settings; the point prediction is that of `transform`.

    The time is that of the fit and 20 imputations.
    """
    started = time.perf_counter()
    imputer = MGPImputer(random_state=seed, progress=False).fit(table)

    def draw(m: int | Sequence[int]) -> Cells:
        values = imputer.impute(m=m).values
        return {str(column): np.asarray(draws, np.float64) for column, draws in values.items()}

    draws = draw(DRAWS)
    seconds = time.perf_counter() - started
    point = cells_of(pd.DataFrame(imputer.transform(table)), table)
    further = range(DRAWS, _INTERVAL_DRAWS)
    return Imputed(point, draws, seconds=seconds, further_draws=lambda: draw(further))
