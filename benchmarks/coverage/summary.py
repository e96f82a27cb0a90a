"""Summaries of a coverage study with their Monte Carlo standard errors.

The tables of a design are the independent units: standard errors of averages over estimands are those
between tables, and are missing if there is one table only. Ratios are ratios of means, with jackknife
standard errors.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.coverage.designs import DESIGNS
from benchmarks.coverage.methods import EXACT
from benchmarks.coverage.simulation import CELLS

_KEYS = ["design", "repetition", "kind", "estimand"]
ALL = "all"
"""Kind of the averages over all estimands of a design."""


def per_estimand(results: pd.DataFrame) -> pd.DataFrame:
    """Summarise each estimand of each method and design.

    Args:
        results: Rows of `simulation.run`.

    Returns:
        Per design, method and estimand, with standard errors `..._se`: `n` repetitions, the mean error
        `bias`, `coverage` of the 95 % intervals, their mean `width`, the mean of z² = (error / se)², and
        `between`, the mean variance between imputations divided by that of the exact sampler on the same
        tables. `width_ratio` compares widths with the exact sampler's in the same way. `seed_ratio` is the
        standard deviation of estimates over seeds, on the same table, divided by their mean `se`.
    """
    keys = ["design", "method", "kind", "estimand"]
    rows = []
    for key, each in _with_exact(results).groupby(keys, sort=False):
        error, n = (each["estimate"] - each["truth"]).to_numpy(), len(each)
        covered = float(each["covered"].mean())
        rows.append(
            dict(zip(keys, key, strict=True))
            | {"n": n, "bias": error.mean(), "bias_se": _se(error), "coverage": covered}
            | {"coverage_se": np.sqrt(covered * (1 - covered) / n), "width": each["width"].mean()}
            | _mean_z2(each["z2"].to_numpy())
            | _ratio("between", each["between"], each["between_exact"])
            | _ratio("width_ratio", each["width"], each["width_exact"])
            | {"seed_ratio": _seed_ratio(each)}
        )
    return pd.DataFrame(rows)


def per_design(results: pd.DataFrame) -> pd.DataFrame:
    """Average over the estimands of each kind, and over all of them but cells, for each method and design.

    Args:
        results: Rows of `simulation.run`.

    Returns:
        Per design, method and kind, with standard errors `..._se`: number of `tables` and of `estimands`,
        `absolute_bias` (mean over estimands of |bias|), mean and `least_coverage`, mean `width` and z²,
        mean, `least_between` and `most_between` of the ratios of variances between imputations,
        `width_ratio`, `seed_ratio`, and the median `seconds` of an imputed table.
    """
    joined, estimands = _with_exact(results), per_estimand(results)
    rows = []
    for (design, method, kind), part in estimands.groupby(["design", "method", "kind"], sort=False):
        own = joined[(joined["design"] == design) & (joined["method"] == method)]
        rows.append(_averages(own[own["kind"] == kind], part, str(kind)))
        of_method = estimands[(estimands["design"] == design) & (estimands["method"] == method)]
        rest = of_method[of_method["kind"] != CELLS]
        if kind == rest["kind"].iloc[-1] and rest["kind"].nunique() > 1:
            rows.append(_averages(own[own["kind"] != CELLS], rest, ALL))
    return pd.DataFrame(rows)


def over_tables(averages: pd.DataFrame) -> pd.DataFrame:
    """Average the coverage of each kind over the designs of public tables, which have names `real_...`.

    Args:
        averages: Table of `per_design`.

    Returns:
        Per method and kind: number of `designs`, mean coverage with its standard error between designs, the
        least coverage of a design, and the mean of z².
    """
    real = averages[averages["design"].str.startswith("real_")]
    groups = real.groupby(["method", "kind"], sort=False)
    return groups.agg(
        designs=("design", "size"),
        coverage=("coverage", "mean"),
        coverage_se=("coverage", lambda each: each.std() / np.sqrt(len(each))),
        least_coverage=("coverage", "min"),
        z2=("z2", "mean"),
    ).reset_index()


def _with_exact(results: pd.DataFrame) -> pd.DataFrame:
    """Add z² and, of the exact sampler on the same table, width and variance between imputations."""
    exact = results.loc[results["method"] == EXACT, [*_KEYS, "between", "width"]]
    joined = results.merge(exact, how="left", on=_KEYS, suffixes=("", "_exact"))
    se = joined["se"].where(joined["se"] > 0)
    return joined.assign(z2=((joined["estimate"] - joined["truth"]) / se) ** 2)


def _averages(rows: pd.DataFrame, estimands: pd.DataFrame, kind: str) -> dict[str, object]:
    """Average rows of one design and method, of which `estimands` is the summary."""
    tables = rows.groupby("repetition")
    coverage = tables["covered"].mean().to_numpy()
    between = estimands["between"]
    errors = _errors(rows)
    return {
        "design": rows["design"].iloc[0],
        "method": rows["method"].iloc[0],
        "kind": kind,
        "tables": tables.ngroups,
        "estimands": len(estimands),
        "absolute_bias": float(np.abs(errors.mean(0)).mean()),
        "absolute_bias_se": _jackknife(errors, lambda part: float(np.abs(part.mean(0)).mean())),
        "coverage": coverage.mean(),
        "coverage_se": _se(coverage),
        "least_coverage": estimands["coverage"].min(),
        "width": estimands["width"].mean(),
        **_mean_z2(tables["z2"].mean().to_numpy()),
        "between": between.mean(),
        "between_se": _between_se(rows),
        "least_between": between.min(),
        "most_between": between.max(),
        "width_ratio": estimands["width_ratio"].mean(),
        "seed_ratio": estimands["seed_ratio"].mean(),
        "seconds": tables["seconds"].first().median(),
    }


def _errors(rows: pd.DataFrame) -> NDArray[np.float64]:
    """Return the errors by table and estimand, `[tables, K]`."""
    errors = rows.assign(error=rows["estimate"] - rows["truth"])
    return errors.pivot(index="repetition", columns="estimand", values="error").to_numpy()


def _between_se(rows: pd.DataFrame) -> float:
    """Return the standard error of the mean over estimands of the ratio of variances between imputations."""
    pair = [
        rows.pivot(index="repetition", columns="estimand", values=c) for c in ("between", "between_exact")
    ]
    both = np.stack([each.to_numpy() for each in pair], axis=1)  # [tables, 2, K]
    both = both[~np.isnan(both).any((1, 2))]
    return _jackknife(both, lambda part: float((part[:, 0].mean(0) / part[:, 1].mean(0)).mean()))


def _ratio(name: str, ours: pd.Series[float], exact: pd.Series[float]) -> dict[str, float]:
    """Return the ratio of means and its standard error."""
    both = np.column_stack([ours, exact])
    both = both[~np.isnan(both).any(1)]
    if not len(both):
        return {name: np.nan, f"{name}_se": np.nan}

    def ratio(part: NDArray[np.float64]) -> float:
        return float(part[:, 0].mean() / part[:, 1].mean()) if part[:, 1].any() else np.nan

    return {name: ratio(both), f"{name}_se": _jackknife(both, ratio)}


def _mean_z2(values: NDArray[np.float64]) -> dict[str, float]:
    return {"z2": float(values.mean()), "z2_se": _se(values)}


def _seed_ratio(each: pd.DataFrame) -> float:
    """Return the standard deviation over seeds within tables, divided by the mean standard error."""
    seeds = DESIGNS[str(each["design"].iloc[0])].seeds
    table = each["repetition"] // seeds
    if seeds == 1 or each["repetition"].nunique() == table.nunique():
        return np.nan
    within = each.groupby(table)["estimate"].var().mean()
    return float(np.sqrt(within) / each["se"].mean())


def _se(values: NDArray[np.float64]) -> float:
    """Return the standard error of a mean; NaN for a single value."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else np.nan


def _jackknife(units: NDArray[np.float64], statistic: Callable[[NDArray[np.float64]], float]) -> float:
    """Return the standard error of a statistic of independent units `[n, ...]`; NaN for a single unit."""
    n = len(units)
    if n < 2 or np.isnan(units).any():
        return np.nan
    left_out = np.array([statistic(np.delete(units, i, axis=0)) for i in range(n)])
    return float(np.sqrt((n - 1) * left_out.var()))
