"""Chains of one or two links with the random numbers that Gibbs sampling takes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from pyro_mgp._support.keyed_noise import KeyedNoise
from pyro_mgp.model.chain import Chain
from pyro_mgp.model.kernels import linear_matern32
from pyro_mgp.model.likelihoods import Gaussian
from pyro_mgp.model.link import Link
from pyro_mgp.model.local_parameters import local_parameters
from pyro_mgp.model.sequential_chain import SequentialChain


def fresh(n_paths: int, device: torch.device | str = "cpu", seed: int = 0) -> Callable[..., Tensor]:
    def normal(n: int, *stream: int) -> Tensor:
        return KeyedNoise(seed, torch.arange(n, device=device), range(n_paths)).normal(*stream)

    return normal


def sweep_noise(n_rows: int, n_paths: int, device: torch.device | str = "cpu") -> Callable:
    noise = KeyedNoise(1, torch.arange(n_rows, device=device), range(n_paths))
    return lambda draw, sweep: lambda link, rows: noise.normal(draw, sweep, link, rows=rows)


def regression(device: torch.device, n_rows: int = 25) -> tuple[Tensor, SequentialChain]:
    """Return y = sin(2x) + noise of .2, and a chain of one link with an inducing input at every row."""
    generator = np.random.default_rng(2)
    x = generator.normal(size=n_rows)
    y = np.sin(2 * x) + 0.2**0.5 * generator.normal(size=n_rows)
    table = torch.tensor(np.column_stack([x, y]), device=device)
    link = Link(linear_matern32(1), table[:, :1], 1, [0], Gaussian(0.35), jitter=1e-6)
    return table, SequentialChain([link], ["y"], n_rows=n_rows, n_sweeps=10)


def covariance(chain: SequentialChain, table: Tensor) -> np.ndarray:
    with torch.no_grad(), local_parameters():
        return chain.links[0].kernel(table[:, :1]).cpu().numpy()


def holey(n_rows: int = 40, n_sweeps: int = 5) -> tuple[Tensor, Tensor, Chain]:
    """Return x and y = x² + noise, both with missing cells."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(n_rows, generator=generator).double()
    y = x.square() + 0.3 * torch.randn(n_rows, generator=generator).double()
    table, observed = torch.stack([x, y], -1), torch.rand(n_rows, 2, generator=generator) > 0.25
    table = table.where(observed, 0.0)
    links = [
        Link(linear_matern32(d), table[:10, :d], d, list(range(d)), Gaussian(0.5), jitter=1e-6)
        for d in (0, 1)
    ]
    return table, observed, SequentialChain(links, ["x", "y"], n_rows, n_sweeps=n_sweeps)
