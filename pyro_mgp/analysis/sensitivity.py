"""Cells that are missing for reasons of their own: what if the imputations were shifted?

A fitted chain assumes that the missing cells of a column are like observed ones with the same predictors.
Shifted by δ, its draws say what follows if they are not (van Buuren, *Flexible Imputation of Missing Data*,
sections 3.8 and 9.2). A scan over δ finds the tipping point, where a conclusion changes.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats

from pyro_mgp._support.messages import listing
from pyro_mgp.analysis.pooling import Fit, pool
from pyro_mgp.data.column_spec import Kind, Label
from pyro_mgp.data.table import TableCodec

if TYPE_CHECKING:
    from pyro_mgp.imputer import MGPImputer


def shifts(codec: TableCodec, delta: Mapping[Label, float]) -> dict[int, float]:
    """The shifts of links' functions, by their encoded columns, that δ of some columns mean.

    Args:
        codec: The table's codec.
        delta: δ by label, on the scale of the column's likelihood: in its own units for numbers and times (in
            seconds), in those of the bend for numbers that are bent (a log for a log bend), standard
            deviations of the probit for booleans, ordered levels and categories of two levels (towards the
            later one), and the log of the mean for counts.

    Raises:
        ValueError: A column is not there, or has more than two unordered levels, or δ is not finite.
    """
    columns = {column.name: column for column in codec.columns}
    found: dict[int, float] = {}
    for label, value in delta.items():
        if label not in columns or not columns[label].width:
            varying = [name for name, column in columns.items() if column.width]
            raise ValueError(f"delta names column {label!r}, but columns that vary are {listing(varying)}")
        if isinstance(value, bool) or not isinstance(value, numbers.Real) or not np.isfinite(float(value)):
            raise ValueError(f"delta of column {label!r} must be a finite number, got {value!r}")
        column, first = columns[label], codec.slices[label].start
        if column.kind is Kind.CATEGORICAL:
            if column.width > 2:
                raise ValueError(
                    f"delta of column {label!r}: a category of {column.width} levels has no scale to be "
                    "shifted on; make it ordered, or a boolean of one level against the others"
                )
            found[first] = -float(value)  # its link asks whether it is the first level
        elif column.ordinal is not None or column.kind is Kind.COUNT:
            found[first] = float(value)
        else:
            found[first] = float(value) / column.scale[0]
    # A column not to be shifted beside one that is: a scan of both then meets its own 0 smoothly.
    return found if any(found.values()) else {}


def tipping_point(
    imputer: MGPImputer,
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
    """How a pooled estimate changes as the imputations of a column are shifted.

    Args:
        imputer: A fitted imputer; one fit serves all shifts.
        analysis: What is done with each completed table; gives `params` and `bse`, as statsmodels does.
        column: The column whose draws are shifted.
        deltas: Shifts to try, see `MGPImputer.impute`; zero, the assumption of the fit, is tried in any case.
        term: The estimate to follow: its name in `params`, or its position.
        X: Table to impute; None for the fitted one.
        m: Number of imputations.
        level: Probability of the intervals.
        null: What the estimate is compared with.

    Returns:
        One row per shift, ascending: `delta`; `imputed_mean` of the shifted column's draws, NaN for labels;
        `estimate`, `low`, `high`, `p` against the null; and `tipped`, whether the interval says something
        else about the null than at zero: above, below, or neither.

    Raises:
        ValueError: As for `MGPImputer.impute`, or if the column has no missing cells.

    Example:
        >>> from types import SimpleNamespace
        >>> from pyro_mgp import MGPImputer
        >>> frame = pd.DataFrame({"x": np.arange(30.0), "y": np.arange(30.0) % 7})
        >>> frame.loc[::3, "y"] = np.nan
        >>> imputer = MGPImputer(random_state=0, max_steps=5).fit(frame)
        >>> def mean_of_y(table):
        ...     return SimpleNamespace(params=[table["y"].mean()], bse=[table["y"].sem()])
        >>> tipping_point(imputer, mean_of_y, "y", [-20], 0, m=3)["tipped"].tolist()
        [True, False]
    """
    rows = []
    for delta in sorted({0.0, *map(float, deltas)}):
        draws = imputer.impute(X, m, delta={column: delta})
        if column not in draws.values:
            raise ValueError(f"column {column!r} has no missing cells: there is nothing to shift")
        pooled = pool([analysis(table) for table in draws], level=level).table
        row = pooled.loc[term] if term in pooled.index else pooled.iloc[term]
        drawn = draws.values[column]
        rows.append(
            {
                "delta": delta,
                "imputed_mean": float(drawn.mean()) if drawn.dtype.kind in "fib" else np.nan,
                "estimate": row["estimate"],
                "low": row["low"],
                "high": row["high"],
                "p": 2 * stats.t.sf(abs(row["estimate"] - null) / row["se"], row["df"]),
            }
        )
    table = pd.DataFrame(rows)
    side = np.sign(table["low"] - null) + np.sign(table["high"] - null)
    table["tipped"] = side != side[table["delta"] == 0.0].iloc[0]
    return table
