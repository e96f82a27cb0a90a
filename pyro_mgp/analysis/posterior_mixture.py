"""Posterior given an incomplete table, as a mixture of the posteriors given its m completed tables.

    p(θ | observed) = ∫ p(θ | observed, missing) p(missing | observed) d missing ≈ 1/m Σ_j p(θ | table j)

(Gelman et al., *Bayesian Data Analysis*, 3rd ed., section 18.2). The combined draws of θ from all completed
tables are therefore draws given the observed cells. This needs no combining rule and no normality, but many
tables (Zhou and Reiter, American Statistician 64:159-163, 2010, use a hundred and more): the variance of the
mixture is Ū + (1 - 1/m) B where Rubin's is Ū + (1 + 1/m) B, with Ū the mean of the posterior variances and B
the variance of the posterior means.

Convergence is diagnosed within each table. The posteriors of different tables differ by design, so that R-hat
over chains of several tables exceeds 1 however long the chains run: it measures missing information, not
mixing. R-hat and effective sample sizes are rank-normalised and split (Vehtari et al., Bayesian Analysis
16:667-718, 2021).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pyro_mgp._support.messages import listing, warn_user
from pyro_mgp.analysis.pooling import check_level, missing_information
from pyro_mgp.analysis.tables import ShownAsTable

Numbers = NDArray[np.float64]

Posterior = Mapping[str, Any]
"""Draws of each parameter, `[draws, ...]` or `[chains, draws, ...]`, as torch tensors or arrays."""

# R-hat is estimated for every parameter in every table, and the largest of hundreds exceeds 1.01 by chance.
_MAX_RHAT = 1.05
# Largest relative difference of Rubin's standard error from the standard deviation of the mixture.
_MAX_NARROW = 0.05
# A chain is split in halves, and ArviZ needs four draws in each.
_FEWEST_DRAWS = 8


class MixtureWarning(UserWarning):
    """Warning that a mixture of posteriors is too narrow, or that its chains have not converged."""


@dataclass(frozen=True, eq=False, repr=False)
class PosteriorMixture(ShownAsTable):
    """Mixture of the posteriors of a model given m completed tables.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> mixture = mix([{"b": generator.normal(mean, 1, 500)} for mean in (0.2, 0.0, 0.1, 0.3)])
        >>> mixture.table[["mean", "sd"]].round(1)
           mean   sd
        b   0.2  1.0
        >>> mixture.draws["b"].shape
        (2000,)
    """

    table: pd.DataFrame
    """One row per scalar parameter (`b`, `b[0]`, `b[0, 1]`), with columns `mean`, `sd`, `low` and `high`
    (equal-tailed interval) of the mixture; `mcse`, the standard error of `mean` due to the finite m; `within`
    and `between`, the variance Ū within tables and the variance B of their means; `lambda` and `fmi` as in
    `pool`; `rhat` and `ess`, the largest R-hat and the smallest bulk effective sample size over tables (NaN
    if constant).
    """
    draws: Mapping[str, NDArray[Any]]
    """Combined draws of each parameter, `[m * chains * draws, ...]`, one table after the other."""
    by_table: pd.DataFrame
    """Summary of each table: rows (imputation, parameter), columns `mean`, `sd`, `rhat`, `ess_bulk`,
    `ess_tail`."""
    m: int
    """Number of imputations."""
    level: float
    """Probability of the intervals."""

    @property
    def title(self) -> str:
        """Heading of the displayed table."""
        return f"Posterior mixed over {self.m} imputations, {self.level:.0%} intervals"


def mix(
    posteriors: Sequence[Posterior],
    *,
    group_by_chain: bool = False,
    level: float = 0.95,
    max_rhat: float = _MAX_RHAT,
) -> PosteriorMixture:
    """Mix the posteriors of a model given each of m completed tables, with equal weights.

    Args:
        posteriors: Draws of every parameter for each table, as returned by Pyro's `MCMC.get_samples` or
            `Predictive`: `[draws, ...]`, at least 8 and equally many for all tables.
        group_by_chain: Whether draws are `[chains, draws, ...]`, as from
            `MCMC.get_samples(group_by_chain=True)`. This improves R-hat, which otherwise compares the halves
            of a single chain.
        level: Probability of the intervals.
        max_rhat: Largest R-hat within a table without a warning.

    Raises:
        TypeError: If draws are not numbers.
        ValueError: If there are fewer than two posteriors, parameters, shapes or numbers of draws differ, or
            draws are not finite.

    Warns:
        MixtureWarning: If chains have not converged within some table, or there are too few tables, which
            makes the mixture too narrow.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> posteriors = [{"b": generator.normal(mean, 1, (4, 100, 2))} for mean in (0.2, 0.0, 0.1, 0.3)]
        >>> mix(posteriors, group_by_chain=True).table.index.tolist()
        ['b[0]', 'b[1]']
    """
    check_level(level)
    stacked = _stacked(posteriors, group_by_chain)
    names, m = _names(stacked), len(posteriors)
    scalars = [x.reshape(*x.shape[:3], -1) for x in stacked.values()]
    chains = np.moveaxis(np.concatenate(scalars, axis=3).astype(np.float64), 3, 1)
    means, variances = chains.mean((2, 3)), chains.var((2, 3), ddof=1)
    diagnosed = np.array([[_diagnose(x) for x in table] for table in chains])
    table = _summary(chains, means, variances, level, names)
    table["rhat"] = pd.DataFrame(diagnosed[..., 0]).max().to_numpy()
    table["ess"] = pd.DataFrame(diagnosed[..., 1]).min().to_numpy()
    _warn(table, max_rhat, m)
    both = pd.MultiIndex.from_product([range(m), names], names=["imputation", "parameter"])
    parts = np.concatenate([means[..., None], np.sqrt(variances)[..., None], diagnosed], axis=2)
    columns = ["mean", "sd", "rhat", "ess_bulk", "ess_tail"]
    by_table = pd.DataFrame(parts.reshape(-1, len(columns)), both, columns)
    draws = {name: x.reshape(-1, *x.shape[3:]) for name, x in stacked.items()}
    return PosteriorMixture(table, draws, by_table, m, level)


def _summary(
    chains: Numbers, means: Numbers, variances: Numbers, level: float, names: list[str]
) -> pd.DataFrame:
    """Summarise the mixture of every parameter, given draws `[m, K, chains, draws]` and moments `[m, K]`."""
    together = chains.swapaxes(0, 1).reshape(len(names), -1)
    within, between = variances.mean(0), means.var(0, ddof=1)
    of_missing = missing_information(within, between, len(chains))
    low, high = np.quantile(together, [(1 - level) / 2, (1 + level) / 2], axis=1)
    columns = {
        "mean": together.mean(1),
        "sd": together.std(1, ddof=1),
        "low": low,
        "high": high,
        "mcse": np.sqrt(between / len(chains)),
        "within": within,
        "between": between,
        **{name: of_missing[name] for name in ("lambda", "fmi")},
    }
    return pd.DataFrame(columns, index=pd.Index(names))


def _diagnose(chains: Numbers) -> tuple[float, float, float]:
    """Return R-hat and the bulk and tail effective sample sizes of draws `[chains, draws]` of one parameter.

    The calls work with versions 0 and 1 of ArviZ.
    """
    import arviz as az

    if np.ptp(chains) == 0:
        return np.nan, np.nan, np.nan
    half = chains.shape[1] // 2
    # ArviZ does not compute R-hat of a single chain: compare its halves.
    several = chains if len(chains) > 1 else chains[0, : 2 * half].reshape(2, half)
    bulk, tail = az.ess(chains, method="bulk"), az.ess(chains, method="tail", prob=(0.05, 0.95))
    return float(az.rhat(several)), float(bulk), float(tail)


def _warn(table: pd.DataFrame, max_rhat: float, m: int) -> None:
    """Warn of chains that have not converged, and of a mixture that is too narrow."""
    apart = table.index[table["rhat"] > max_rhat].tolist()
    if apart:
        warn_user(
            f"R-hat of {listing(apart)} within a table is up to {table['rhat'].max():.2f}: chains have not "
            "converged there, see by_table; use more warm-up steps or more draws",
            MixtureWarning,
        )
    excess = (1 + 1 / m) * table["between"]
    too_narrow = np.sqrt(table["within"] + excess) / table["sd"] - 1
    if (too_narrow > _MAX_NARROW).any():
        enough = int(np.ceil((table["lambda"] / _MAX_NARROW).max()))
        warn_user(
            f"the mixture of {m} posteriors is too narrow by {too_narrow.max():.0%} ({too_narrow.idxmax()}): "
            f"draw {enough} imputations or more, or pool normal approximations by pool(...)",
            MixtureWarning,
        )


def _stacked(posteriors: Sequence[Posterior], group_by_chain: bool) -> dict[str, NDArray[Any]]:
    """Stack the draws of every parameter, `[m, chains, draws, ...]`, of the same shape in all tables."""
    arrays = [{name: _array(name, x) for name, x in posterior.items()} for posterior in posteriors]
    if len(arrays) < 2:
        raise ValueError(f"expected the posteriors of at least two imputations, got {len(arrays)}")
    form = "[chains, draws, ...]" if group_by_chain else "[draws, ...]"
    first = {name: x.shape for name, x in arrays[0].items()}
    leading = {shape[: 1 + group_by_chain] for shape in first.values()}
    if len(leading) != 1 or len(min(leading)) <= group_by_chain:
        raise ValueError(f"expected draws {form} of every parameter, as many of each, got shapes {first}")
    for j, posterior in enumerate(arrays):
        shapes = {name: x.shape for name, x in posterior.items()}
        if shapes != first:
            raise ValueError(
                f"expected as many draws of the same parameters from all tables, got shapes {first} from "
                f"table 0 and {shapes} from table {j}"
            )
        for name, x in posterior.items():
            if not np.isfinite(x).all():
                raise ValueError(f"table {j}: some draws of {name!r} are not finite")
    n_draws = min(leading)[-1]
    if n_draws < _FEWEST_DRAWS:
        raise ValueError(f"expected at least {_FEWEST_DRAWS} draws {form} from each table, got {n_draws}")
    stacked = {name: np.stack([posterior[name] for posterior in arrays]) for name in first}
    return stacked if group_by_chain else {name: x[:, None] for name, x in stacked.items()}


def _array(name: str, draws: Any) -> NDArray[Any]:
    """Return draws as an array; tensors may require gradients or lie on another device."""
    x = np.asarray(draws.detach().cpu() if hasattr(draws, "detach") else draws)
    if x.dtype.kind not in "fiub":
        raise TypeError(f"draws of {name!r} must be numbers, got {x.dtype}")
    return x


def _names(stacked: Mapping[str, NDArray[Any]]) -> list[str]:
    """Return labels of the K scalar parameters, in the style of ArviZ."""
    return [
        f"{name}[{', '.join(map(str, at))}]" if at else name
        for name, x in stacked.items()
        for at in np.ndindex(x.shape[3:])
    ]
