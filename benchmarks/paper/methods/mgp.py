"""Imputation by `MGPImputer`, with its default settings and with those of the paper."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch.distributions import Normal

from benchmarks.paper.imputed import Cells, Density, Imputed, holes_of
from benchmarks.paper.profiles import Budget
from pyro_mgp.imputer import MGPImputer
from pyro_mgp.model.chain import fresh_noise

# Number of mixture components of the reported density, and number of rows that are evaluated at once.
_COMPONENTS, _ROWS_AT_ONCE = 50, 400


def mgp(train: pd.DataFrame, test: pd.DataFrame, seed: int, budget: Budget) -> Imputed:
    """Impute with `MGPImputer` and its default settings for tables that are not small (`inputs="others"`)."""
    imputer = MGPImputer(
        inputs="others", random_state=seed, columns="all", device=budget.device, progress=False
    )
    return _impute(imputer, train, test, budget)


def mgp_paper(train: pd.DataFrame, test: pd.DataFrame, seed: int, budget: Budget) -> Imputed:
    """Impute with `MGPImputer.paper`, the method and settings of the paper."""
    imputer = MGPImputer.paper(
        random_state=seed,
        columns="all",
        device=budget.device,
        progress=False,
        max_steps=budget.mgp_paper_steps,
        batch_size=budget.mgp_paper_batch_size,
        n_paths=budget.mgp_paper_paths,
    )
    return _impute(imputer, train, test, budget)


def _impute(imputer: MGPImputer, train: pd.DataFrame, test: pd.DataFrame, budget: Budget) -> Imputed:
    imputations = imputer.fit(train).impute(test, m=budget.draws)
    draws = {str(column): np.asarray(values, np.float64) for column, values in imputations.values.items()}
    return Imputed.from_draws(draws, log_density_of(imputer, test))


def log_density_of(imputer: MGPImputer, test: pd.DataFrame) -> Density:
    """Return the predictive log density of a fitted imputer for the missing cells of a table.

    The density of a cell is the mixture over paths of its predictive distributions in the last sweep through
    the chain; in a column with discrete support, it is that of the Gaussian before the support is taken into
    account.

    Args:
        imputer: Imputer fitted to numeric columns, all of which have links.
        test: Incomplete table.
    """

    def log_density(values: Cells) -> Cells:
        holes, truth = holes_of(test), test.copy()
        for column, missing in holes.items():
            truth.loc[missing, column] = values[column]
        density = _encoded_log_density(imputer, test, truth)
        logs: dict[str, NDArray[np.float64]] = {}
        for d, codec in enumerate(imputer.codec_.columns):
            column = str(codec.name)
            if column in holes:
                logs[column] = density[holes[column], d] - math.log(codec.scale[0])
                if codec.warp is not None:
                    logs[column] += codec.warp.log_slope(values[column])
        return logs

    return log_density


@torch.no_grad()
def _encoded_log_density(imputer: MGPImputer, test: pd.DataFrame, truth: pd.DataFrame) -> NDArray[np.float64]:
    """Return the log density `[n, D]` of true cells missing in `test`, 0 elsewhere, in encoded units."""
    chain, device = imputer.chain_, imputer.initial_fill_.device
    rows, values = imputer.codec_.encode(test), imputer.codec_.encode(truth).values
    density = torch.zeros_like(values)
    sampler, paths = imputer.model_.sampler(), range(_COMPONENTS)
    marginals = sampler.cache.marginals(chain)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(imputer.seed_)
        for here in torch.arange(len(rows)).split(_ROWS_AT_ONCE):
            some, true_values = rows[here].to(device), values[here].to(device)
            start = sampler.starts(some, paths)
            missing = [(~some.observed[:, link.column]).nonzero()[:, 0] for link in chain.links]
            predictive = sampler.predictive(some, paths, start, missing)
            conditionals = [predictive(i, own, None) for i, own in enumerate(marginals)]
            noises, of_sweeps = [fresh_noise(start)] * chain.n_sweeps, [conditionals] * chain.n_sweeps
            *_, (_, visited) = chain.sweeps(of_sweeps, start, some.observed, noises.__getitem__, missing)
            for i, (link, cells, moments) in enumerate(zip(chain.links, missing, visited, strict=True)):
                spread = (moments.variance + conditionals[i].noise).sqrt()
                components = Normal(moments.mean, spread).log_prob(true_values[cells, link.column])
                mixture = components.logsumexp(0) - math.log(_COMPONENTS)
                density[here[cells.cpu()], link.column] = mixture.cpu()
    return density.numpy()
