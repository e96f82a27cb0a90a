"""Sensitivity analysis for cells missing not at random, by shifting the imputations (δ-adjustment).

Draws shifted by δ show the consequences if the missing cells of a column are not distributed like observed
ones with the same predictors (van Buuren, *Flexible Imputation of Missing Data*, sections 3.8 and 9.2).
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats

from pyro_mgp._support.messages import listing
from pyro_mgp.analysis.pooling import Fit, pool
from pyro_mgp.data.column_spec import Kind, Label
from pyro_mgp.data.table import TableCodec


class Imputer(Protocol):
    """Object that draws the missing cells of a table, such as `MGPImputer`."""

    impute: Callable[..., Any]
    """Return imputations: `impute(X, m=..., delta={column: shift})`, of the fitted table if X is None.
    `calibrate` and `compare` also call `fit(frame)`."""


def shifts(codec: TableCodec, delta: Mapping[Label, float]) -> dict[int, float]:
    """Convert shifts δ of columns to shifts of latent functions in standardised units, by encoded column.

    δ is on the scale of the column's likelihood, see `MGPImputer.impute`. If all are zero, none is returned.
    A column that is unknown, constant or of more than two unordered levels, or a δ that is no finite number,
    is a ValueError.
    """
    if not isinstance(delta, Mapping):
        raise TypeError(f"delta must be shifts by label, such as {{'income': -5.0}}, got {delta!r}")
    columns = {column.name: column for column in codec.columns if column.width}
    found: dict[int, float] = {}
    for label, value in delta.items():
        if label not in columns:
            raise ValueError(f"delta names column {label!r}, but columns that vary are {listing(columns)}")
        if isinstance(value, bool) or not isinstance(value, numbers.Real) or not np.isfinite(float(value)):
            raise ValueError(f"delta of column {label!r} must be a finite number, got {value!r}")
        column, scale = columns[label], 1.0
        if column.kind is Kind.SEMICONTINUOUS:
            raise ValueError(
                f"delta of column {label!r}: it is modelled in two parts, which have no common scale to be "
                "shifted on; fit it with ColumnSpec(kind='continuous')"
            )
        if column.indicators is not None:
            if column.width > 2:
                raise ValueError(
                    f"delta of column {label!r}: a category of {column.width} levels has no scale to be "
                    "shifted on; make it ordered, or a boolean of one level against the others"
                )
            scale = -1.0  # the link models the indicator of the first level
        elif column.ordinal() is None and column.kind is not Kind.COUNT:
            scale = column.scale[0]
        found[codec.slices[label].start] = float(value) / scale
    # A zero beside other shifts is kept, so that a scan over both is continuous at zero.
    return found if any(found.values()) else {}


def tipping_point(
    imputer: Imputer,
    analysis: Callable[[pd.DataFrame], Fit],
    column: Label,
    deltas: Iterable[float],
    term: Any,
    X: pd.DataFrame | ArrayLike | None = None,
    *,
    m: int = 20,
    level: float = 0.95,
    null: float = 0.0,
) -> pd.DataFrame:
    """Scan a pooled estimate over shifts of a column's imputations, to find where a conclusion changes.

    Args:
        imputer: Fitted imputer; it is not refitted.
        analysis: Analysis of a completed table, which returns anything that `pool` accepts.
        column: Column whose draws are shifted.
        deltas: Shifts δ, in the units of `MGPImputer.impute`; zero is always added.
        term: Estimate to follow: its name in `params`, or its position.
        X: Table to impute; None for the training table.
        m: Number of imputations.
        level: Confidence level of the intervals.
        null: Null value of the estimate.

    Returns:
        One row per shift in ascending order: `delta`; `imputed_mean` of the shifted draws (NaN for labels);
        `estimate`, `low`, `high`, and `p` of the null value; and `tipped`, whether the interval lies above,
        below or around the null value unlike the interval at δ = 0.

    Raises:
        ValueError: As for `MGPImputer.impute`, or if the column has no missing cells.

    Example:
        >>> from pyro_mgp import MGPImputer
        >>> frame = pd.DataFrame({"x": np.arange(30.0), "y": np.arange(30.0) % 7})
        >>> frame.loc[::3, "y"] = np.nan
        >>> imputer = MGPImputer(random_state=0, max_steps=5).fit(frame)
        >>> def mean(table):
        ...     return table["y"].mean(), table["y"].sem() ** 2
        >>> tipping_point(imputer, mean, "y", [-20], 0, m=3)["tipped"].tolist()
        [True, False]
    """
    rows = []
    for delta in sorted({0.0, *map(float, deltas)}):
        draws = imputer.impute(X, m, delta={column: delta})
        if column not in draws.values:
            raise ValueError(f"column {column!r} has no missing cells: there is nothing to shift")
        drawn = draws.values[column]
        mean = float(drawn.mean()) if drawn.dtype.kind in "fib" else np.nan
        scanned = estimated(draws, analysis, term, level, null)
        rows.append({"delta": delta, "imputed_mean": mean} | scanned)
    table = pd.DataFrame(rows)
    return tipped(table, table["delta"] == 0.0, null)


def estimated(
    draws: Iterable[pd.DataFrame],
    analysis: Callable[[pd.DataFrame], Fit],
    term: Any,
    level: float,
    null: float,
) -> dict[str, float]:
    """Return the pooled estimate of a term, the ends of its interval, and the p-value of the null value."""
    pooled = pool([analysis(table) for table in draws], level=level).table
    is_position = isinstance(term, int) and -len(pooled) <= term < len(pooled)
    if term not in pooled.index and not is_position:
        raise ValueError(f"term must be one of {listing(pooled.index)}, or its position, got {term!r}")
    row = pooled.loc[term] if term in pooled.index else pooled.iloc[term]
    p = 2 * stats.t.sf(abs(row["estimate"] - null) / row["se"], row["df"])
    return {**row[["estimate", "low", "high"]], "p": p}


def tipped(table: pd.DataFrame, base: pd.Series[bool], null: float) -> pd.DataFrame:
    """Return estimates with a column `tipped`: whether the conclusion differs from that of the row `base`."""
    side = np.sign(table["low"] - null) + np.sign(table["high"] - null)
    return table.assign(tipped=side != side[base].iloc[0])
