"""Posterior given an incomplete table, as a mixture of the posteriors given its m completed tables.

    p(θ | observed) = ∫ p(θ | observed, missing) p(missing | observed) d missing ≈ 1/m Σ_j p(θ | table j)

(Gelman et al., *Bayesian Data Analysis*, 3rd ed., section 18.2). This needs no normality, but many tables
(Zhou and Reiter, American Statistician 64:159-163, 2010, use a hundred and more): the variance of the mixture
is Ū + (1 - 1/m) B where Rubin's is Ū + (1 + 1/m) B. R-hat and effective sample sizes are rank-normalised and
split (Vehtari et al., Bayesian Analysis 16:667-718, 2021); they compare chains of the same table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pyro_mgp._support.messages import listing, warn_user
from pyro_mgp.analysis.joint_tests import Numbers
from pyro_mgp.analysis.pooling import ShownAsTable, check_level, missing_information

Posterior = Mapping[str, Any]
"""Draws of each parameter, `[draws, ...]` or `[chains, draws, ...]`, as torch tensors or arrays."""

# Largest relative difference of Rubin's standard error from the standard deviation of the mixture.
_MAX_NARROW = 0.05
# A chain is split in halves, and ArviZ needs four draws in each.
_FEWEST_DRAWS = 8


class MixtureWarning(UserWarning):
    """Warning that a mixture of posteriors is too narrow, or that its chains have not converged."""


@dataclass(frozen=True, eq=False, repr=False)
class PosteriorMixture(ShownAsTable):
    """Mixture of the posteriors of a model given m completed tables.

    `table` has one row per scalar parameter (`b`, `b[0]`, `b[0, 1]`), with columns `mean`, `sd`, `low` and
    `high` (equal-tailed interval) of the mixture; `mcse`, the standard error of `mean` due to the finite m;
    `within` and `between`, the variance Ū within tables and the variance B of their means; `lambda` and `fmi`
    as in `pool`; `rhat` and `ess`, the largest R-hat and the smallest bulk effective sample size over tables
    (NaN if constant).
    """

    verb = "Posterior mixed"
    draws: Mapping[str, NDArray[Any]]
    """Combined draws of each parameter, `[m * chains * draws, ...]`, one table after the other."""
    by_table: pd.DataFrame
    """Moments `mean`, `sd` and diagnostics `rhat`, `ess_bulk`, `ess_tail` by imputation and parameter."""


def mix(
    posteriors: Sequence[Posterior],
    *,
    group_by_chain: bool = False,
    level: float = 0.95,
    max_rhat: float = 1.05,
) -> PosteriorMixture:
    """Mix the posteriors of a model given each of m completed tables, with equal weights.

    Args:
        posteriors: Draws of every parameter for each table, as returned by Pyro's `MCMC.get_samples` or
            `Predictive`: `[draws, ...]`, at least 8 and equally many for all tables.
        group_by_chain: Whether draws are `[chains, draws, ...]`, as by `get_samples(group_by_chain=True)`;
            otherwise R-hat compares the halves of a single chain.
        level: Probability of the intervals.
        max_rhat: Largest R-hat within a table without a warning; of hundreds, one exceeds 1.01 by chance.

    Raises:
        TypeError: If draws are not numbers.
        ValueError: If there are fewer than two posteriors, their shapes differ, or draws are not finite.

    Warns:
        MixtureWarning: If chains have not converged within a table, or that of few tables is too narrow.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> posteriors = [{"b": generator.normal(mean, 1, (4, 100, 2))} for mean in (0.2, 0.0, 0.1, 0.3)]
        >>> mix(posteriors, group_by_chain=True).table[["mean", "sd"]].round(1)
              mean   sd
        b[0]   0.1  1.0
        b[1]   0.2  1.0
    """
    check_level(level)
    stacked, m = _stacked(posteriors, group_by_chain), len(posteriors)
    names = [
        f"{name}[{', '.join(map(str, at))}]" if at else name
        for name, x in stacked.items()
        for at in np.ndindex(x.shape[3:])
    ]
    scalars = [x.reshape(*x.shape[:3], -1) for x in stacked.values()]
    chains = np.moveaxis(np.concatenate(scalars, axis=3).astype(np.float64), 3, 1)
    rhat, ess_bulk, ess_tail = np.array([[_diagnose(x) for x in own] for own in chains]).transpose(2, 0, 1)
    moments = {"mean": chains.mean((2, 3)), "sd": chains.std((2, 3), ddof=1)}
    figures = moments | {"rhat": rhat, "ess_bulk": ess_bulk, "ess_tail": ess_tail}
    both = pd.MultiIndex.from_product([range(m), names], names=["imputation", "parameter"])
    by_table = pd.DataFrame({name: figure.ravel() for name, figure in figures.items()}, both)
    table = _summary(chains, level, names)
    table["rhat"] = pd.DataFrame(rhat).max().to_numpy()
    table["ess"] = pd.DataFrame(ess_bulk).min().to_numpy()
    _warn(table, max_rhat, m)
    draws = {name: x.reshape(-1, *x.shape[3:]) for name, x in stacked.items()}
    return PosteriorMixture(table, m, level, draws, by_table)


def _summary(chains: Numbers, level: float, names: list[str]) -> pd.DataFrame:
    """Summarise the mixture of every parameter, given draws `[m, K, chains, draws]`."""
    together = chains.swapaxes(0, 1).reshape(len(names), -1)
    within, between = chains.var((2, 3), ddof=1).mean(0), chains.mean((2, 3)).var(0, ddof=1)
    low, high = np.quantile(together, [(1 - level) / 2, (1 + level) / 2], axis=1)
    columns = {
        "mean": together.mean(1),
        "sd": together.std(1, ddof=1),
        "low": low,
        "high": high,
        "mcse": np.sqrt(between / len(chains)),
        "within": within,
        "between": between,
        **missing_information(within, between, len(chains)),
    }
    return pd.DataFrame(columns, index=pd.Index(names)).drop(columns=["df", "riv"])


def _diagnose(chains: Numbers) -> tuple[float, float, float]:
    """Return R-hat and bulk and tail effective sample sizes of draws `[chains, draws]` of one parameter."""
    import arviz as az  # The calls below work with versions 0 and 1.

    if np.ptp(chains) == 0:
        return np.nan, np.nan, np.nan
    half = chains.shape[1] // 2
    # ArviZ does not compute R-hat of a single chain: compare its halves.
    several = chains if len(chains) > 1 else chains[0, : 2 * half].reshape(2, half)
    bulk, tail = az.ess(chains, method="bulk"), az.ess(chains, method="tail", prob=(0.05, 0.95))
    return float(az.rhat(several)), float(bulk), float(tail)


def _warn(table: pd.DataFrame, max_rhat: float, m: int) -> None:
    """Warn of chains that have not converged, and of a mixture that is too narrow."""
    if apart := table.index[table["rhat"] > max_rhat].tolist():
        found = f"R-hat of {listing(apart)} within a table is up to {table['rhat'].max():.2f}"
        advice = "chains have not converged there, see by_table; use more warm-up steps or more draws"
        warn_user(f"{found}: {advice}", MixtureWarning)
    excess = (1 + 1 / m) * table["between"]
    too_narrow = np.sqrt(table["within"] + excess) / table["sd"] - 1
    if (too_narrow > _MAX_NARROW).any():
        enough = int(np.ceil((table["lambda"] / _MAX_NARROW).max()))
        by = f"{too_narrow.max():.0%} ({too_narrow.idxmax()})"
        advice = f"draw {enough} imputations or more, or pool normal approximations by pool(...)"
        warn_user(f"the mixture of {m} posteriors is too narrow by {by}: {advice}", MixtureWarning)


def _stacked(posteriors: Sequence[Posterior], group_by_chain: bool) -> dict[str, NDArray[Any]]:
    """Stack the draws of each parameter from all tables, `[m, chains, draws, ...]`."""
    if unnamed := [posterior for posterior in posteriors if not hasattr(posterior, "items")]:
        came = type(unnamed[0]).__name__
        raise TypeError(f"expected draws by name of the parameter, as of MCMC.get_samples(), got {came}")
    arrays = [
        {name: np.asarray(x.detach().cpu() if hasattr(x, "detach") else x) for name, x in posterior.items()}
        for posterior in posteriors
    ]
    if len(arrays) < 2:
        raise ValueError(f"expected the posteriors of at least two imputations, got {len(arrays)}")
    form = "[chains, draws, ...]" if group_by_chain else "[draws, ...]"
    shapes = [{name: x.shape for name, x in posterior.items()} for posterior in arrays]
    first = shapes[0]
    leading = {shape[: 1 + group_by_chain] for shape in first.values()}
    if len(leading) != 1 or len(min(leading)) <= group_by_chain:
        raise ValueError(f"expected draws {form} of every parameter, as many of each, got shapes {first}")
    for j, posterior in enumerate(arrays):
        if shapes[j] != first:
            got = f"shapes {first} from table 0 and {shapes[j]} from table {j}"
            raise ValueError(f"expected as many draws of the same parameters from all tables, got {got}")
        for name, x in posterior.items():
            if x.dtype.kind not in "fiub":
                raise TypeError(f"draws of {name!r} must be numbers, got {x.dtype}")
            if not np.isfinite(x).all():
                raise ValueError(f"table {j}: some draws of {name!r} are not finite")
    n_draws = min(leading)[-1]
    if n_draws < _FEWEST_DRAWS:
        raise ValueError(f"expected at least {_FEWEST_DRAWS} draws {form} from each table, got {n_draws}")
    stacked = {name: np.stack([posterior[name] for posterior in arrays]) for name in first}
    return stacked if group_by_chain else {name: x[:, None] for name, x in stacked.items()}
