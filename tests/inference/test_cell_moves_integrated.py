"""Moves of functions with missing inputs integrated out, against the density without these inputs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributions import Normal

from pyro_mgp.inference.cell_moves import N_NUMBERS_OF_MOVE, FunctionAtCandidates
from pyro_mgp.inference.data_augmentation import Regression, Rows
from pyro_mgp.inference.function_posterior import FunctionPosterior
from pyro_mgp.model.conditional import Moments
from pyro_mgp.model.later_links import Candidates

# A slope: y = v x + noise, where x ~ N(0, 1) is missing in the last four rows, of the third of which the link
# tells nothing.
INPUTS = torch.tensor([0.5, -1.5, 1.0, 2.0], dtype=torch.float64)
OUTPUTS = torch.tensor([0.9, -0.6, 0.7, 1.1], dtype=torch.float64)
OF_CELLS = torch.tensor([1.3, -0.4, 9.9, 2.1], dtype=torch.float64)
TELLS = torch.tensor([True, True, False, True])
REST = 0.1


def moments_on_a_grid() -> tuple[Tensor, Tensor]:
    """Means and standard deviations of the slope and of the logarithm of its noise variance."""
    slope = torch.linspace(-5, 5, 801, dtype=torch.float64)[:, None]
    log_noise = torch.linspace(-9, 6, 1201, dtype=torch.float64)[None, :]
    noise = log_noise.exp()
    density = Normal(0.0, 1.0).log_prob(slope) + 0.5 * log_noise - noise.log1p()
    for x, y in zip(INPUTS, OUTPUTS, strict=True):
        density = density + Normal(slope * x, noise.sqrt()).log_prob(y)
    for y in OF_CELLS[TELLS]:
        density = density + Normal(0.0, (slope.square() + noise + REST).sqrt()).log_prob(y)
    weights = (density - density.logsumexp((0, 1))).exp()
    pair = torch.stack([slope.expand_as(weights), log_noise.expand_as(weights)])
    mean = (pair * weights).sum((1, 2))
    return mean, ((pair - mean[:, None, None]).square() * weights).sum((1, 2)).sqrt()


def at_candidates(given: Regression, slope: Tensor, noise: Tensor, values: Tensor) -> FunctionAtCandidates:
    """The function at candidates `[S, k, K]`, whose only basis is the input itself."""
    posterior = FunctionPosterior.natural(torch.ones_like(slope), *given.sums(noise))
    normal = torch.randn_like(slope)
    centre = posterior.mean
    inducing = torch.stack([centre, slope - centre, posterior.draw(normal) - centre], dim=1)
    at = values.flatten(1)
    targets = OF_CELLS[:, None].expand(values.shape).flatten(1)
    ellipse = torch.cat([inducing, inducing * at[:, None]], dim=2)
    tells = TELLS.expand(len(slope), -1)
    return FunctionAtCandidates(given, ellipse, torch.full_like(at, REST), targets, tells, None)


def test_slope_and_noise_have_their_density_without_the_missing_inputs() -> None:
    n_chains, n_cells = 4000, len(OF_CELLS)
    none = Rows(torch.zeros(n_chains, 1, 0), torch.zeros(n_chains, 0), torch.zeros(n_chains, 0))
    known = Rows(INPUTS[None], 0 * INPUTS, OUTPUTS)
    given = Regression(known, Rows(*(each.double() for each in none)), None)
    slope = torch.zeros(n_chains, 1, dtype=torch.float64)
    noise, cells = torch.ones_like(slope), torch.zeros(n_chains, n_cells, dtype=torch.float64)
    draws, drawn_cells = [], []
    for step in range(40):
        candidates = Candidates.of_draws(
            cells, lambda n: n, lambda _: torch.randn(n_chains, n_cells).double()
        )
        function = at_candidates(given, slope, noise, candidates.values[..., 0])
        normal = torch.randn(n_chains, N_NUMBERS_OF_MOVE, dtype=torch.float64)
        slope, noise, found = function.moved(noise, candidates.log_weights, normal)
        cells = candidates.chosen(found, torch.randn(n_chains, n_cells).double())[..., 0]
        if step >= 15:
            draws.append(torch.cat([slope, noise.log()], dim=1))
            drawn_cells.append(cells)
    mean, sd = moments_on_a_grid()
    found = torch.stack(draws).flatten(0, 1)
    assert ((found.mean(0) - mean).abs() < 4 * sd / math.sqrt(n_chains)).all()
    torch.testing.assert_close(found.std(0), sd, rtol=0.04, atol=0.0)
    # Given the slope, a cell is a regression of x on y; where the link tells nothing it is x itself.
    of_cells, slope, noise = torch.stack(drawn_cells), found[:, :1], found[:, 1:].exp() + REST
    expected = (slope * OF_CELLS / (slope.square() + noise)).mean(0).where(TELLS, 0.0)
    assert ((of_cells.flatten(0, 1).mean(0) - expected).abs() < 4 / math.sqrt(n_chains)).all()


class Threshold:
    """Conditional of a link that observes whether its function exceeds zero, without noise of its own."""

    def log_prob(self, value: Tensor, at: Moments) -> Tensor:
        return torch.special.log_ndtr(value.sign() * at.mean / (1 + at.variance).sqrt())


def test_a_link_with_an_observation_model_moves_by_it_and_keeps_its_noise() -> None:
    n_chains = 4000
    slope = torch.zeros(n_chains, 1, dtype=torch.float64)
    none = Rows(0 * slope[:, None, :0], slope[:, :0], slope[:, :0])
    given = Regression(none, none, None)
    # One candidate of each cell: the inputs are known, and the slope has a prior of N(0, 1).
    values = torch.tensor([1.0, -0.5, 3.0, 2.0], dtype=torch.float64).expand(n_chains, -1)[..., None]
    noise, draws = torch.rand_like(slope) + 1, []
    for _ in range(15):
        function = at_candidates(given, slope, noise, values)
        function = replace(function, conditional=cast(Any, Threshold()))
        normal = torch.randn(n_chains, N_NUMBERS_OF_MOVE, dtype=torch.float64)
        slope, kept, _ = function.moved(noise, 0 * values, normal)
        assert (kept == noise).all()
        draws.append(slope)
    grid = torch.linspace(-6, 6, 2001, dtype=torch.float64)[:, None]
    at = Moments(grid * values[0, :, 0], torch.full_like(grid * values[0, :, 0], REST))
    log_density = Threshold().log_prob(OF_CELLS, at)[:, TELLS].sum(1) - 0.5 * grid[:, 0].square()
    weights = log_density.softmax(0)
    mean = (weights * grid[:, 0]).sum()
    sd = (weights * (grid[:, 0] - mean).square()).sum().sqrt()
    found = torch.stack(draws[5:]).flatten()
    assert abs(found.mean() - mean) < 4 * sd / math.sqrt(n_chains)
    torch.testing.assert_close(found.std(), sd, rtol=0.04, atol=0.0)
