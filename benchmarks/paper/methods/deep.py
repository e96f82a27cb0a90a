"""Imputation by a deep GP of five layers on mean-filled rows (DGP; Salimbeni and Deisenroth, NIPS 2017).

    F⁰ = mean-filled row,   Fˡ = Fˡ⁻¹ + fˡ(Fˡ⁻¹),  l = 1 ... 4,   x_d = f_d(F⁴ without d) + noise

The hidden layers have D outputs each, identity means, and one kernel and set of inducing inputs for all
outputs. The last layer consists of the links of the one-layer model (`sparse`), and training starts from
their optimum: any gain is due to depth.

A cell must not be an input of its own prediction. In each training step, one observed cell d(i) of every row
i is therefore replaced by the mean and scored in place of all n_i observed cells of its row:

    L = N/B · Σ_i n_i E_q[log p(x_id(i) | f_id(i))] - Σ KL[q(u) ‖ p(u)]

In the authors' program the scored cells are inputs. The network then learns to repeat its inputs, which are
means in missing cells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from pyro.contrib.gp.kernels import Kernel
from pyro.nn import PyroModule, PyroParam
from torch import Tensor
from torch.distributions import constraints

from benchmarks.paper.imputed import Imputed
from benchmarks.paper.methods.scaling import Scaling
from benchmarks.paper.methods.sparse import N_INDUCING, fit_links, new_link, tensors
from benchmarks.paper.profiles import Budget
from pyro_mgp.inference.adam import Adam
from pyro_mgp.model.cholesky import factorise
from pyro_mgp.model.conditional import Moments
from pyro_mgp.model.kernels import Matern32
from pyro_mgp.model.link import Link, condition
from pyro_mgp.model.local_parameters import LocalModule, local_method

N_LAYERS = 5
"""Number of layers, the last included, as in the paper."""

_LEARNING_RATE = 0.01
_JITTER = 1e-6
# Hidden layers start close to the identity, as in Salimbeni and Deisenroth, with functions of small variance.
_HIDDEN_VARIANCE = 1e-3
_HIDDEN_SCALE = 1.0
# Paths times rows that are predicted at once, which limits memory to about 200 MB.
_ROWS_AT_ONCE = 10_000
_TINY = 1e-12


def dgp(train: pd.DataFrame, test: pd.DataFrame, seed: int, budget: Budget) -> Imputed:
    """Impute by a deep GP of five layers, Matérn 3/2, 100 inducing inputs per layer and link."""
    scaling = Scaling.fit(train)
    filled, observed, rows = tensors(scaling, train, test, budget.device)
    links = fit_links(filled, observed, seed, budget.svgp_steps)
    with torch.random.fork_rng([filled.device] if filled.is_cuda else []):
        torch.manual_seed(seed)
        start = filled[torch.randperm(len(filled), device=filled.device)[:N_INDUCING]]
        network = DeepGP(start, links, N_LAYERS)
        network.learn(filled, observed, budget)
        moments = [part.cpu().numpy() for part in network.predict(rows, budget.draws)]
    by_column = {str(column): (m, v) for column, m, v in zip(test.columns, *moments, strict=True)}
    return scaling.imputed(by_column, test, budget.draws, np.random.default_rng(seed))


class Layer(LocalModule):
    """Layer of D whitened sparse GPs that share inputs, kernel and inducing inputs.

    Args:
        kernel: Covariance function over the P inputs.
        Xu: Initial inducing inputs, `[M, P]`.
        n_outputs: Number of outputs D.
        scale: Initial standard deviation of q(v).
    """

    def __init__(self, kernel: Kernel, Xu: Tensor, n_outputs: int, scale: float) -> None:
        super().__init__()
        identity = torch.eye(len(Xu), dtype=Xu.dtype, device=Xu.device)
        self.kernel = kernel.to(Xu)
        self.Xu = PyroParam(Xu.clone())
        self.u_loc = PyroParam(Xu.new_zeros(n_outputs, len(Xu)))
        self.u_scale_tril = PyroParam(scale * identity.repeat(n_outputs, 1, 1), constraints.lower_cholesky)

    def forward(self, rows: Tensor) -> Moments:
        """Return the moments `[n, D]` of all outputs at rows `[n, P]`."""
        Xu = self.Xu
        factor = factorise(self.kernel(Xu), _JITTER)
        basis = torch.linalg.solve_triangular(factor, self.kernel(Xu, rows), upper=False)
        explained = (self.u_scale_tril.mT @ basis).square().sum(1) - basis.square().sum(0)
        variance = (self.kernel(rows, diag=True) + explained).clamp(min=0)
        return Moments((self.u_loc @ basis).T, variance.T)


class DeepGP(LocalModule):
    """Deep GP of hidden layers with identity means and a last layer with a link per column.

    Args:
        Xu: Initial inducing inputs of the hidden layers, `[M, D]`.
        links: Links of all D columns, in order, whose parameters initialise the last layer.
        n_layers: Number of layers, the last included.
    """

    def __init__(self, Xu: Tensor, links: Sequence[Link], n_layers: int) -> None:
        super().__init__()
        n_columns = Xu.shape[1]
        self.hidden_layers: Sequence[Layer] = PyroModule[torch.nn.ModuleList](
            [Layer(_starting_kernel(n_columns), Xu, n_columns, _HIDDEN_SCALE) for _ in range(n_layers - 1)]
        )
        self.links: Sequence[Link] = PyroModule[torch.nn.ModuleList](
            [_copy(link, n_columns) for link in links]
        )

    def learn(self, filled: Tensor, observed: Tensor, budget: Budget) -> list[float]:
        """Train by Adam on minibatches, and return the loss per row of each step.

        Args:
            filled: Mean-filled table, `[N, D]`, standardised units.
            observed: Bool `[N, D]`.
            budget: Number of steps, rows and paths per step.
        """
        adam = Adam(self.parameters())
        losses = []
        for step in range(budget.dgp_steps):
            rows = torch.randint(len(filled), (budget.dgp_batch_size,), device=filled.device)
            self.zero_grad()
            loss = self.loss(filled[rows], observed[rows], len(filled), budget.dgp_paths)
            loss.backward()
            # The rate decays to zero; otherwise noise of the last minibatches would remain in q(u).
            adam.step(_LEARNING_RATE * (1 - step / budget.dgp_steps))
            losses.append(float(loss.detach()) / len(filled))
        adam.release()
        return losses

    @local_method
    def loss(self, filled: Tensor, observed: Tensor, n_rows: int, n_paths: int) -> Tensor:
        """Estimate the negative bound on a minibatch with one held-out cell per row.

        Args:
            filled: Mean-filled rows, `[B, D]`.
            observed: Bool `[B, D]`.
            n_rows: Number of rows N of the training table.
            n_paths: Number of paths through the layers.
        """
        held_out = _one_of(observed)
        moments = self.moments(filled.masked_fill(held_out, 0.0), n_paths)
        weight = observed.sum(1) * n_rows / (len(filled) * n_paths)
        total = filled.new_zeros(())
        for link, at in zip(self.links, moments, strict=True):
            here = held_out[:, link.column].nonzero()[:, 0]
            scored = link.likelihood(at.mean[:, here], at.variance[:, here])
            total = total + (weight[here] * scored.log_prob(filled[here, link.column])).sum()
        return self.divergence() - total

    def divergence(self) -> Tensor:
        """Return the sum of the KL divergences of all q(v) from their prior N(0, I)."""
        parts = [(layer.u_loc, layer.u_scale_tril) for layer in (*self.hidden_layers, *self.links)]
        return torch.stack([_divergence(loc, tril) for loc, tril in parts]).sum()

    def moments(self, filled: Tensor, n_paths: int) -> list[Moments]:
        """Return moments `[S, n]` of the function of each column at rows `[n, D]`, for S paths."""
        F = filled.repeat(n_paths, 1)
        for layer in self.hidden_layers:
            at = layer(F)
            F = F + at.mean + torch.randn_like(F) * (at.variance + _TINY).sqrt()
        F = F.view(n_paths, *filled.shape)
        return [conditional.moments(F) for conditional in condition(self.links)]

    @torch.no_grad()
    @local_method
    def predict(self, rows: Tensor, n_paths: int) -> tuple[Tensor, Tensor]:
        """Return means and variances `[D, S, n]` of observations at mean-filled rows `[n, D]`."""
        parts = [self.moments(some, n_paths) for some in rows.split(max(1, _ROWS_AT_ONCE // n_paths))]
        columns = list(zip(*parts, strict=True))
        mean = torch.stack([torch.cat([at.mean for at in column], dim=1) for column in columns])
        variance = torch.stack([torch.cat([at.variance for at in column], dim=1) for column in columns])
        noise = torch.stack([link.likelihood.noise for link in self.links])
        return mean, variance + noise[:, None, None]


def _one_of(observed: Tensor) -> Tensor:
    """Choose a random observed cell of every row that has any, Bool `[B, D]`."""
    uniform = torch.rand(observed.shape, device=observed.device) * observed
    return (uniform == uniform.amax(1, keepdim=True)) & observed


def _copy(link: Link, n_columns: int) -> Link:
    """Return a link with equal parameters: Pyro requires one that has not run as part of another module."""
    copy = new_link(link.column, link.Xu.detach().new_zeros(link.n_inducing, n_columns))
    copy.load_state_dict(link.state_dict())
    return copy


def _starting_kernel(n_inputs: int) -> Kernel:
    lengthscale = torch.full((n_inputs,), math.sqrt(n_inputs))
    return Matern32(n_inputs, torch.tensor(_HIDDEN_VARIANCE), lengthscale)


def _divergence(loc: Tensor, tril: Tensor) -> Tensor:
    """Return KL[N(r, T Tᵀ) ‖ N(0, I)] for r `[..., M]` and T `[..., M, M]`, summed."""
    log_det = 2 * tril.diagonal(dim1=-2, dim2=-1).log().sum()
    return 0.5 * (tril.square().sum() + loc.square().sum() - loc.numel() - log_det)
