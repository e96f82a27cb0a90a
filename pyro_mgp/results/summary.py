"""Comparison of observed and imputed values, column by column, as a table and as text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from pyro_mgp.data.cells import holes_of, numbers_of
from pyro_mgp.data.column_spec import Label
from pyro_mgp.results.imputations import Imputations


def summarise(draws: Imputations) -> pd.DataFrame:
    """Compare the observed and imputed values of every incomplete column.

    Returns:
        One row per numeric column, and one per level of any other, the most frequent observed level first:

        - `column`: its label; `level`: the category or boolean, None for numbers; `unit`: "s since 1970" of
          points in time, "s" of durations, else None.
        - `missing`: number of missing cells of the column; `missing_share`: divided by the number of rows.
        - `observed_mean`, `observed_sd`: of the observed cells, in the column's own units, or in seconds if
          they are times (since 1970 in UTC, if points in time); for a level its share, and NaN.
        - `imputed_mean`, `imputed_sd`: these statistics of all draws of the missing cells.

        Standard deviations have the divisor n - 1, and are NaN for fewer than two values.
    """
    rows = list[tuple[Any, ...]]()
    for label, values in draws.values.items():
        column, unit = draws.frame[label], _UNITS.get(values.dtype.kind)
        holes = holes_of(column)
        compare = _compare_levels if values.dtype.kind in "bO" else _compare_numbers
        for level, *moments in compare(column[~holes], pd.Series(values.ravel())):
            rows.append((label, level, unit, int(holes.sum()), holes.mean(), *moments))
    sides = ["observed_mean", "observed_sd", "imputed_mean", "imputed_sd"]
    names = ["column", "level", "unit", "missing", "missing_share", *sides]
    table = pd.DataFrame(rows, columns=names, dtype=object)
    return table.assign(**table.drop(columns=["level", "unit"]).infer_objects())


_UNITS = {"M": "s since 1970", "m": "s"}
_LENGTHS = (("days", 86_400), ("h", 3_600), ("min", 60))


def _compare_numbers(observed: pd.Series[Any], imputed: pd.Series[Any]) -> Iterator[tuple[Any, ...]]:
    x, y = pd.Series(numbers_of(observed)), pd.Series(numbers_of(imputed))
    yield None, x.mean(), x.std(), y.mean(), y.std()


def _compare_levels(observed: pd.Series[Any], imputed: pd.Series[Any]) -> Iterator[tuple[Any, ...]]:
    left, right = (x.astype(object).value_counts(normalize=True).to_dict() for x in (observed, imputed))
    for level in sorted({*left, *right}, key=lambda level: (-left.get(level, 0.0), str(level))):
        yield level, left.get(level, 0.0), math.nan, right.get(level, 0.0), math.nan


WIDTH = 100
NAME_WIDTH = 26
_SIDE_WIDTH = 28
_LEVEL_WIDTH = 12


def format_summary(summary: pd.DataFrame) -> list[str]:
    """Format the result of `summarise` as an aligned table of at most 100 characters, one line per column.

    Numeric columns are shown as mean ± sd, other columns as the shares of their most frequent levels.
    """
    parts = [part for _, part in summary.groupby("column", sort=False)]
    numeric = [part for part in parts if part["level"].isna().all()]
    observed, imputed = _aligned(numeric, "observed"), _aligned(numeric, "imputed")
    digits = len(str(summary["missing"].max()))
    rows = [("column", "missing", "observed", "imputed")]
    for part in parts:
        label, missing, share = part.iloc[0][["column", "missing", "missing_share"]]
        sides = (observed[label], imputed[label]) if label in observed else _shares(part)
        rows.append((shortened(str(label), NAME_WIDTH), f"{missing:>{digits}}  {percent(share):>5}", *sides))
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return [
        f"{name:<{widths[0]}}   {missing:>{widths[1]}}   {left:<{widths[2]}}   {right}"
        for name, missing, left, right in rows
    ]


def _aligned(parts: Sequence[pd.DataFrame], side: str) -> dict[Label, str]:
    """Format mean and standard deviation of each numeric column as "43.92 ± 5.46", aligned at the ±."""
    texts = {part["column"].iloc[0]: mean_and_sd(part.iloc[0], side) for part in parts}
    left = max((len(mean) for mean, _ in texts.values()), default=0)
    return {label: f"{mean:>{left}} ± {sd}" for label, (mean, sd) in texts.items()}


def mean_and_sd(row: pd.Series[Any], side: str) -> tuple[str, str]:
    """Format the mean and standard deviation of observed or imputed values in a row of `summarise`."""
    mean, sd = row[f"{side}_mean"], row[f"{side}_sd"]
    if row["unit"]:
        is_date = row["unit"] != _UNITS["m"] and not math.isnan(mean)
        return (f"{pd.Timestamp(mean, unit='s'):%Y-%m-%d}" if is_date else _duration(mean)), _duration(sd)
    return _number(mean, row["observed_sd"]), _number(sd, row["observed_sd"])


def _duration(seconds: float) -> str:
    """Format a duration, given in seconds, in the largest unit in which it is at least 1."""
    if math.isnan(seconds):
        return "-"
    unit, size = next((pair for pair in _LENGTHS if abs(seconds) >= pair[1]), ("s", 1))
    return f"{seconds / size:.3g} {unit}"


def _number(x: float, sd: float) -> str:
    """Format a number to the precision of three significant digits of a standard deviation."""
    if math.isnan(x):
        return "-"
    places = max(0, 2 - math.floor(math.log10(sd))) if math.isfinite(sd) and sd > 0 else math.inf
    return f"{x:.3g}" if places > 5 or abs(x) >= 1e8 else f"{x:.{places}f}"


def _shares(part: pd.DataFrame) -> tuple[str, str]:
    """Format the observed and imputed shares of as many levels as fit, the same levels on both sides."""
    levels = [shortened(str(level), _LEVEL_WIDTH) for level in part["level"]]

    def text(side: str, n: int) -> str:
        pairs = zip(levels[:n], part[f"{side}_mean"], strict=False)
        more = ["…"] if n < len(levels) else []
        return ", ".join([f"{level} {percent(share, 0)}" for level, share in pairs] + more)

    for n in range(len(levels), 0, -1):
        observed, imputed = text("observed", n), text("imputed", n)
        if max(len(observed), len(imputed)) <= _SIDE_WIDTH:
            break
    return observed, imputed


def percent(share: float, decimals: int = 1) -> str:
    """Format a share as a percentage; tiny shares as "<0.1%" rather than "0.0%"."""
    smallest = 10.0 ** -(decimals + 2)
    return f"<{smallest:.{decimals}%}" if 0 < share < smallest / 2 else f"{share:.{decimals}%}"


def shortened(text: str, width: int) -> str:
    """Truncate text to `width` characters, with an ellipsis if it is longer."""
    return text if len(text) <= width else text[: width - 1] + "…"
