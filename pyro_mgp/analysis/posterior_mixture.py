"""Pooling for Bayesians: the posterior given a table with holes, as a mixture of posteriors given full ones.

    p(θ | observed) = ∫ p(θ | observed, missing) p(missing | observed) d missing ≈ 1/m Σ_j p(θ | table j)

(Gelman et al., *Bayesian Data Analysis*, 3rd ed., section 18.2). So the draws of θ from each of the m
completed tables, put together, are draws given what was observed: no rule is needed, and θ need not be
normal. That takes many tables (Zhou and Reiter, American Statistician 64:159-163, 2010, take a hundred and
more): the variance of the mixture is Ū + (1 - 1/m) B where Rubin's is Ū + (1 + 1/m) B, with Ū the mean of the
posterior variances and B the variance of the posterior means.

Whether a sampler has converged is a question to each table alone. Posteriors of different tables differ on
purpose, so that R-hat over chains of several tables tells how much is missing, not how chains mix: it exceeds
1 however long they run. Therefore R-hat and effective sample sizes are computed within tables
(rank-normalised, split; Vehtari et al., Bayesian Analysis 16:667-718, 2021).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pyro_mgp._support.messages import listing, warn_user
from pyro_mgp.analysis.rounding import rounded

Numbers = NDArray[np.float64]

Posterior = Mapping[str, Any]
"""Draws of each parameter, `[draws, ...]` or `[chains, draws, ...]`; tensors of torch, or arrays."""

# R-hat is estimated for every parameter in every table: the largest of hundreds is above 1.01 by chance.
_MAX_RHAT = 1.05
# Rubin's standard error may exceed the mixture's standard deviation by this share.
_MAX_NARROW = 0.05
# A chain is split in halves, and ArviZ needs four draws in each.
_FEWEST_DRAWS = 8


class MixingWarning(UserWarning):
    """A mixture of posteriors is not yet what it stands for."""


@dataclass(frozen=True, eq=False, repr=False)
class Mixture:
    """The posterior given what was observed.

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
    """One row per scalar parameter (`b`, `b[0]`, `b[0, 1]`): `mean`, `sd`, `low` and `high` (equal-tailed) of
    the mixture; `mcse`, how far `mean` is off because there are m tables and not ever more; `within` and
    `between`, the variance Ū within tables and B of their means; `lambda` and `fmi`, see `pooling`; `rhat`
    and `ess`, the largest R-hat and the smallest bulk effective sample size within a table (NaN if constant).
    """
    draws: Mapping[str, NDArray[Any]]
    """All draws of each parameter, `[m * chains * draws, ...]`, table after table."""
    by_table: pd.DataFrame
    """The same within each table: rows (imputation, parameter), columns `mean`, `sd`, `rhat`, `ess_bulk`,
    `ess_tail`."""
    m: int
    """Number of imputations."""
    level: float
    """Of the intervals."""

    def __repr__(self) -> str:
        return f"{self._title}\n{rounded(self.table).to_string(line_width=None)}"

    def _repr_html_(self) -> str:
        return f"<p>{self._title}</p>{rounded(self.table).to_html()}"

    @property
    def _title(self) -> str:
        return f"Posterior mixed over {self.m} imputations, {self.level:.0%} intervals"


def mix(
    posteriors: Sequence[Posterior],
    *,
    group_by_chain: bool = False,
    level: float = 0.95,
    max_rhat: float = _MAX_RHAT,
) -> Mixture:
    """Mix the posteriors of the same model given each of m completed tables, with equal weights.

    Args:
        posteriors: For each table the draws of every parameter, as `MCMC.get_samples` or `Predictive` of Pyro
            give: `[draws, ...]`, the same number in all tables, at least 8.
        group_by_chain: Whether draws are `[chains, draws, ...]`, as from
            `MCMC.get_samples(group_by_chain=True)`. R-hat is the better for it: otherwise it compares the
            halves of what is taken for one chain.
        level: Probability of the intervals.
        max_rhat: The largest R-hat within a table that goes without a warning.

    Raises:
        TypeError: Draws that are not numbers.
        ValueError: Fewer than two posteriors, of different parameters, shapes or numbers of draws, or draws
            that are not finite.

    Warns:
        MixingWarning: A sampler has not converged within some table, or there are so few tables that the
            mixture is clearly too narrow.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> posteriors = [{"b": generator.normal(mean, 1, (4, 100, 2))} for mean in (0.2, 0.0, 0.1, 0.3)]
        >>> mix(posteriors, group_by_chain=True).table.index.tolist()
        ['b[0]', 'b[1]']
    """
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level}")
    arrays = [{name: _array(name, x) for name, x in posterior.items()} for posterior in posteriors]
    grouped = _checked(arrays, group_by_chain)
    names, m = _names(grouped[0]), len(grouped)
    chains = np.stack([_scalars(posterior) for posterior in grouped])
    means, variances = chains.mean((2, 3)), chains.var((2, 3), ddof=1)
    diagnosed = np.array([[_diagnose(x) for x in table] for table in chains])
    table = _summary(chains, means, variances, level, names)
    table["rhat"], table["ess"] = _largest(diagnosed[..., 0]), -_largest(-diagnosed[..., 1])
    _warn(table, max_rhat, m)
    both = pd.MultiIndex.from_product([range(m), names], names=["imputation", "parameter"])
    parts = np.concatenate([means[..., None], np.sqrt(variances)[..., None], diagnosed], axis=2)
    columns = ["mean", "sd", "rhat", "ess_bulk", "ess_tail"]
    by_table = pd.DataFrame(parts.reshape(-1, len(columns)), both, columns)
    draws = {
        name: np.concatenate([chain for posterior in grouped for chain in posterior[name]])
        for name in grouped[0]
    }
    return Mixture(table, draws, by_table, m, level)


def _summary(
    chains: Numbers, means: Numbers, variances: Numbers, level: float, names: list[str]
) -> pd.DataFrame:
    """The mixture of every parameter, and where its variance comes from."""
    m = len(chains)  # [m, K, chains, draws]
    together = chains.swapaxes(0, 1).reshape(len(names), -1)
    within, between = variances.mean(0), means.var(0, ddof=1)
    excess = (1 + 1 / m) * between
    with np.errstate(divide="ignore", invalid="ignore"):  # parameters that are constant
        share, increase = excess / (within + excess), excess / within
        freedom = (m - 1) / np.square(share)
        fmi = (increase + 2 / (freedom + 3)) / (1 + increase)
    low, high = np.quantile(together, [(1 - level) / 2, (1 + level) / 2], axis=1)
    columns = {
        "mean": together.mean(1),
        "sd": together.std(1, ddof=1),
        "low": low,
        "high": high,
        "mcse": np.sqrt(between / m),
        "within": within,
        "between": between,
        "lambda": share,
        "fmi": fmi,
    }
    return pd.DataFrame(columns, index=pd.Index(names))


def _diagnose(chains: Numbers) -> tuple[float, float, float]:
    """R-hat, and effective sample sizes of bulk and tails, of one parameter in one table, `[chains, draws]`.

    The only place that asks ArviZ, in words that its versions 0 and 1 share.
    """
    import arviz as az

    if np.ptp(chains) == 0:
        return np.nan, np.nan, np.nan
    half = chains.shape[1] // 2
    # ArviZ gives no R-hat for one chain: its halves are compared.
    several = chains if len(chains) > 1 else chains[0, : 2 * half].reshape(2, half)
    bulk, tail = az.ess(chains, method="bulk"), az.ess(chains, method="tail", prob=(0.05, 0.95))
    return float(az.rhat(several)), float(bulk), float(tail)


def _largest(x: Numbers) -> Numbers:
    """Over tables, `[m, K]` to `[K]`; NaN where all are."""
    return np.asarray(pd.DataFrame(x).max().to_numpy())


def _warn(table: pd.DataFrame, max_rhat: float, m: int) -> None:
    apart = table.index[table["rhat"] > max_rhat].tolist()
    if apart:
        warn_user(
            f"R-hat of {listing(apart)} within a table is up to {table['rhat'].max():.2f}: chains have not "
            "converged there, see by_table; warm up longer or draw more",
            MixingWarning,
        )
    excess = (1 + 1 / m) * table["between"]
    too_narrow = np.sqrt(table["within"] + excess) / table["sd"] - 1
    if (too_narrow > _MAX_NARROW).any():
        enough = int(np.ceil((table["lambda"] / _MAX_NARROW).max()))
        warn_user(
            f"the mixture of {m} posteriors is too narrow by {too_narrow.max():.0%} ({too_narrow.idxmax()}): "
            f"draw {enough} imputations or more, or pool normal approximations by pool(...)",
            MixingWarning,
        )


# ---------------------------------------------------------------------------------------------------- checks


def _array(name: str, draws: Any) -> NDArray[Any]:
    """Draws as an array, also of a tensor that hangs on a graph or lives elsewhere."""
    x = np.asarray(draws.detach().cpu() if hasattr(draws, "detach") else draws)
    if x.dtype.kind not in "fiub":
        raise TypeError(f"draws of {name!r} must be numbers, got {x.dtype}")
    return x


def _checked(
    posteriors: list[dict[str, NDArray[Any]]], group_by_chain: bool
) -> list[dict[str, NDArray[Any]]]:
    """Draws of every table, `[chains, draws, ...]`, alike in all tables."""
    if len(posteriors) < 2:
        raise ValueError(f"expected the posteriors of at least two imputations, got {len(posteriors)}")
    form = "[chains, draws, ...]" if group_by_chain else "[draws, ...]"
    first = {name: x.shape for name, x in posteriors[0].items()}
    leading = {shape[: 1 + group_by_chain] for shape in first.values()}
    if len(leading) != 1 or len(min(leading)) <= group_by_chain:
        raise ValueError(f"expected draws {form} of every parameter, as many of each, got shapes {first}")
    for j, posterior in enumerate(posteriors):
        shapes = {name: x.shape for name, x in posterior.items()}
        if shapes != first:
            raise ValueError(
                f"expected as many draws of the same parameters from all tables, got shapes {first} from "
                f"table 0 and {shapes} from table {j}"
            )
        for name, x in posterior.items():
            if not np.isfinite(x).all():
                raise ValueError(f"table {j}: some draws of {name!r} are not finite")
    if not group_by_chain:
        posteriors = [{name: x[None] for name, x in each.items()} for each in posteriors]
    n_draws = min(leading)[-1]
    if n_draws < _FEWEST_DRAWS:
        raise ValueError(f"expected at least {_FEWEST_DRAWS} draws {form} from each table, got {n_draws}")
    return posteriors


def _names(posterior: Mapping[str, NDArray[Any]]) -> list[str]:
    """Labels of the K scalars, as ArviZ writes them."""
    return [
        f"{name}[{', '.join(map(str, at))}]" if at else name
        for name, x in posterior.items()
        for at in np.ndindex(x.shape[2:])
    ]


def _scalars(posterior: Mapping[str, NDArray[Any]]) -> Numbers:
    """Draws of the K scalars, `[K, chains, draws]`."""
    flat = [x.reshape(*x.shape[:2], -1) for x in posterior.values()]
    return np.moveaxis(np.concatenate(flat, axis=2).astype(np.float64), 2, 0)
