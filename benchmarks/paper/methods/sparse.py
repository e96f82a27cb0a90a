"""Imputation by a sparse variational GP per column on the other columns (SVGP, Hensman et al. 2013).

Each GP is a link of the package, trained in a chain of its own: missing cells of its inputs are replaced by
means in training and prediction, and no draws are propagated.

The evidence lower bound is that of the paper's SVGP. Natural gradients with early stopping on held-out cells
reach its optimum sooner than the paper's 10,000 steps of Adam.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from benchmarks.paper.imputed import Imputed
from benchmarks.paper.methods.scaling import Scaling
from benchmarks.paper.profiles import Budget
from pyro_mgp.data.encoded_table import EncodedTable
from pyro_mgp.inference.training import Options, train
from pyro_mgp.model.chain import Chain
from pyro_mgp.model.kernels import matern32
from pyro_mgp.model.likelihoods import Gaussian
from pyro_mgp.model.link import Link
from pyro_mgp.model.local_parameters import local_parameters

N_INDUCING = 100
"""Inducing inputs per layer or link, as in the paper."""

_STARTING_NOISE = 0.5
_JITTER = 1e-6
_HELD_OUT = 0.1
_LEARNING_RATE = 0.1


def svgp(train: pd.DataFrame, test: pd.DataFrame, seed: int, budget: Budget) -> Imputed:
    """Impute with sparse GPs with Matérn 3/2 kernels (ARD) and 100 trained inducing inputs each."""
    scaling = Scaling.fit(train)
    filled, observed, rows = tensors(scaling, train, test, budget.device)
    links = fit_links(filled, observed, seed, budget.svgp_steps)
    moments = {}
    for link in links:
        mean, variance = predict(link, rows)
        moments[str(test.columns[link.column])] = mean.cpu().numpy(), variance.cpu().numpy()
    return scaling.imputed(moments, test, budget.draws, np.random.default_rng(seed))


def tensors(
    scaling: Scaling, train: pd.DataFrame, test: pd.DataFrame, device: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean-filled training rows `[N, D]`, their observed cells, and mean-filled test rows `[n, D]`."""
    parts = (*scaling.mean_filled(train), scaling.mean_filled(test)[0])
    filled, observed, rows = (torch.as_tensor(part, device=device) for part in parts)
    return filled, observed, rows


def fit_links(filled: Tensor, observed: Tensor, seed: int, max_steps: int) -> list[Link]:
    """Return a trained link for each column.

    Args:
        filled: Mean-filled table, `[N, D]`, standardised units.
        observed: Bool `[N, D]`.
        seed: Seed of inducing inputs, held-out cells and minibatches.
        max_steps: Maximum number of training steps per link.
    """
    generator = torch.Generator().manual_seed(seed)
    inducing = filled[torch.randperm(len(filled), generator=generator)[:N_INDUCING].to(filled.device)]
    held_out = torch.rand(filled.shape, generator=generator).to(filled.device) < _HELD_OUT
    options = Options(max_steps=max_steps, learning_rate=_LEARNING_RATE, weight_decay=0.0, refresh_fill=False)
    table = EncodedTable(filled, observed, torch.arange(len(filled)))
    links = []
    for column in range(filled.shape[1]):
        chain = Chain([new_link(column, inducing)], [f"c{column}"], len(filled), backpropagate=False)
        # Validation uses the link's own column only; cells held out elsewhere remain in its inputs.
        validation = torch.zeros_like(observed)
        validation[:, column] = (held_out & observed)[:, column]
        train(chain, table, validation, filled.clone(), options, seed=seed, progress=False)
        links.append(chain.links[0])
    return links


def new_link(column: int, inducing: Tensor) -> Link:
    """Return an untrained link.

    Args:
        column: Column that it predicts from all others.
        inducing: Rows of the filled table as initial inducing inputs, `[M, D]`.
    """
    inputs = [d for d in range(inducing.shape[1]) if d != column]
    kernel, likelihood = matern32(len(inputs)), Gaussian(_STARTING_NOISE)
    return Link(kernel, inducing[:, inputs].clone(), column, inputs, likelihood, _JITTER)


@torch.no_grad()
def predict(link: Link, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance `[1, n]` of observations at filled rows `[n, D]`, in standardised units."""
    with local_parameters():
        moments = link().moments(rows[None])
        return moments.mean, moments.variance + link.likelihood.noise
