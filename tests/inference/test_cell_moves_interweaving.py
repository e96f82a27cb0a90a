"""Moves of functions and noises with the missing cells of their column, against their density on a grid."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributions import Normal

from pyro_mgp.inference.cell_moves import interweave, n_numbers
from pyro_mgp.inference.data_augmentation import Regression, Rows
from pyro_mgp.inference.function_posterior import FunctionPosterior

OBSERVED = torch.tensor([0.3, -0.4, 0.9, 1.1, 0.2], dtype=torch.float64)
RESIDUALS = torch.tensor([0.5, -1.2, 0.1], dtype=torch.float64)
REST = torch.tensor([0.0, 0.2, 0.1], dtype=torch.float64)
SEEN_BY_LATER = torch.tensor([1.6, -0.2, 1.0], dtype=torch.float64)
LATER_SD = 0.4


@dataclass
class OneLaterLink:
    """A later link that predicts its cells by those of the column, with Gaussian noise."""

    n_evaluated: int = 0

    def log_likelihood(self, paths: Tensor, cells: Tensor, values: Tensor) -> Tensor:
        self.n_evaluated += len(paths)
        return Normal(values, LATER_SD).log_prob(SEEN_BY_LATER[cells])


def cells_of(function: Tensor, noise: Tensor) -> Tensor:
    """Cells `[S, k]` at constant functions `[S, 1]` and noise variances `[S, 1]`, given their residuals."""
    return function + RESIDUALS * (noise + REST).sqrt()


def moments_on_a_grid() -> tuple[Tensor, Tensor]:
    """Means and standard deviations of the constant function and of the logarithm of its noise variance."""
    function = torch.linspace(-4, 4, 801, dtype=torch.float64)[:, None]
    log_noise = torch.linspace(-8, 6, 1401, dtype=torch.float64)[None, :]
    noise = log_noise.exp()
    density = Normal(0.0, 1.0).log_prob(function) + 0.5 * log_noise - noise.log1p()
    for cell in OBSERVED:
        density = density + Normal(function, noise.sqrt()).log_prob(cell)
    for residual, rest, seen in zip(RESIDUALS, REST, SEEN_BY_LATER, strict=True):
        density = density + Normal(function + residual * (noise + rest).sqrt(), LATER_SD).log_prob(seen)
    weights = (density - density.logsumexp((0, 1))).exp()
    pair = torch.stack([function.expand_as(weights), log_noise.expand_as(weights)])
    mean = (pair * weights).sum((1, 2))
    return mean, ((pair - mean[:, None, None]).square() * weights).sum((1, 2)).sqrt()


def test_moves_leave_the_density_given_the_residuals_invariant() -> None:
    n_chains, later = 4000, OneLaterLink()
    ones = torch.ones(1, len(OBSERVED), dtype=torch.float64)
    none = Rows(torch.zeros(n_chains, 1, 0), torch.zeros(n_chains, 0), torch.zeros(n_chains, 0))
    observed = Regression(Rows(ones, 0 * OBSERVED, OBSERVED), Rows(*(each.double() for each in none)), None)
    function = torch.zeros(n_chains, 1, dtype=torch.float64)
    noise = torch.ones_like(function)
    basis = torch.ones(n_chains, 1, len(RESIDUALS), dtype=torch.float64)
    draws = []
    for step in range(45):
        cells = Rows(basis, REST.expand(n_chains, -1), cells_of(function, noise))
        posterior = FunctionPosterior.natural(torch.ones_like(function), *observed.sums(noise))
        normal = torch.randn(n_chains, n_numbers(1), dtype=torch.float64)
        moves = interweave(function, noise, observed, posterior, cells, cast(Any, later), normal)
        function, noise, moved = moves
        torch.testing.assert_close(moved, cells_of(function, noise))
        if step >= 15:
            draws.append(torch.cat([function, noise.log()], dim=1))
    mean, sd = moments_on_a_grid()
    found = torch.stack(draws).flatten(0, 1)
    # Means of 4,000 chains, whose errors are sd / √4000, or smaller by the iterations.
    assert ((found.mean(0) - mean).abs() < 4 * sd / math.sqrt(n_chains)).all()
    torch.testing.assert_close(found.std(0), sd, rtol=0.04, atol=0.0)


def test_only_chains_that_wait_for_an_angle_are_evaluated() -> None:
    n_chains, later = 400, OneLaterLink()
    function = torch.zeros(n_chains, 1, dtype=torch.float64)
    noise = torch.ones_like(function)
    cells = Rows(torch.ones(n_chains, 1, 3).double(), REST.expand(n_chains, -1), cells_of(function, noise))
    ones = torch.ones(n_chains, 1, len(OBSERVED), dtype=torch.float64)
    rows = Rows(ones, 0 * ones[:, 0], OBSERVED.expand(n_chains, -1))
    observed = Regression(Rows(ones[0, :, :0], OBSERVED[:0], OBSERVED[:0]), rows, None)
    posterior = FunctionPosterior.natural(torch.ones_like(function), *observed.sums(noise))
    normal = torch.randn(n_chains, n_numbers(1), dtype=torch.float64)
    interweave(function, noise, observed, posterior, cells, cast(Any, later), normal)
    # At the state, at every angle until one is taken, and at the new noise: an average of some five.
    assert 3 <= later.n_evaluated / (3 * n_chains) <= 6
