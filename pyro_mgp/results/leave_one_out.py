"""Leave-one-out predictive densities of observed cells, by Pareto-smoothed importance sampling."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from pyro_mgp._support.messages import FitWarning, listing, warn_user
from pyro_mgp.results.arviz_export import to_arviz
from pyro_mgp.results.imputations import Imputations


def leave_one_out(
    draws: Imputations | Sequence[Imputations], *, rows: ArrayLike | None = None, max_rows: int = 10_000
) -> pd.DataFrame:
    """Estimate the log density of every observed cell, given all cells but this one (PSIS-LOO).

    Draws are weighted by the inverse density of the cell (Vehtari, Gelman and Gabry, Statistics and Computing
    27:1413-1432, 2017). Where weights vary too much, Pareto k is above min(1 - 1 / log10(draws), 0.7), and
    the estimate is refused: hold out cells instead, by `calibrate(imputer, frame, folds=5)`.

    Args:
        draws: Imputations by a fitted imputer, or several of the same table: hundreds of draws in all.
        rows: As in `to_arviz`.
        max_rows: As in `to_arviz`.

    Returns:
        One row per column with a link: `column`, its name in the export; `elpd`, the sum of the log densities
        (of log probabilities, if discrete) of its cells, per unit of the column, NaN if refused; `se`, its
        standard error; `cells`, their number; `pareto_k`, the largest one; `unreliable`, the number of cells
        in which it is too large. Columns may not be added up, since each is predicted from the others.

    Raises:
        ValueError: If the imputations were loaded, copied or made by hand.

    Warns:
        FitWarning: If the estimates of some columns are refused.
    """
    import arviz as az  # The calls below work with versions 0 and 1.

    chains, found = [draws] if isinstance(draws, Imputations) else draws, list[dict[str, Any]]()
    if any(chain.observed_cells is None for chain in chains):
        raise ValueError("log densities need the imputer: pass what impute returned, not loaded or copied")
    tree = to_arviz(chains, rows=rows, max_rows=max_rows)
    for name in tree["log_likelihood"].data_vars:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Estimated shape parameter of Pareto", UserWarning)
            loo = az.loo(tree, var_name=str(name), pointwise=True)
        k, elpd = np.asarray(loo.pareto_k), loo.elpd_loo if hasattr(loo, "elpd_loo") else loo.elpd
        row = {"column": name, "elpd": float(elpd), "se": float(loo.se), "cells": k.size}
        found.append(row | {"pareto_k": k.max(), "unreliable": int((k > loo.good_k).sum())})
    table = pd.DataFrame(found)
    refused = table["unreliable"] > 0
    table.loc[refused, ["elpd", "se"]] = np.nan
    if refused.any():
        warn_user(
            f"Pareto k is up to {table['pareto_k'].max():.2f}, above {loo.good_k:.2f}, in columns "
            f"{listing(table['column'][refused])}: their leave-one-out densities are refused. Draw more "
            "imputations, or hold out cells: calibrate(imputer, frame, folds=5)",
            FitWarning,
        )
    return table
