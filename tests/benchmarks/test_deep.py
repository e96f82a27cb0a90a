"""Deep GP: its layers agree with links, every parameter gets a gradient, and depth keeps the accuracy."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from benchmarks.paper.methods.deep import DeepGP, Layer, _one_of
from benchmarks.paper.methods.sparse import fit_links, predict
from benchmarks.paper.profiles import Budget
from pyro_mgp.model.kernels import matern32
from pyro_mgp.model.likelihoods import Gaussian
from pyro_mgp.model.link import Link

BUDGET = Budget(dgp_steps=60, dgp_batch_size=100, dgp_paths=1)


@pytest.fixture
def table() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(150, 1, generator=generator, dtype=torch.float64)
    noise = 0.1 * torch.randn(150, 3, generator=generator, dtype=torch.float64)
    table = torch.cat([x, torch.sin(2 * x), x.square()], dim=1) + noise
    return (table - table.mean(0)) / table.std(0)


@pytest.fixture
def network(table: torch.Tensor) -> DeepGP:
    return DeepGP(table[:20], fit_links(table, torch.ones_like(table).bool(), 0, 20), n_layers=3)


def test_a_layer_has_the_moments_of_our_link_for_each_output(table: torch.Tensor) -> None:
    layer = Layer(matern32(3), table[:10], 2, scale=0.5)
    layer.u_loc = torch.randn(2, 10, dtype=torch.float64)
    layer.u_scale_tril = torch.randn(2, 10, 10, dtype=torch.float64).tril(-1) + torch.eye(10).double()
    moments = layer(table)
    for output in range(2):
        link = Link(matern32(3), table[:10], 3, [0, 1, 2], Gaussian(0.1), jitter=1e-6)
        link.u_loc, link.u_scale_tril = layer.u_loc[output], layer.u_scale_tril[output]
        expected = link().moments(table[None])
        torch.testing.assert_close(moments.mean[:, output], expected.mean[0])
        torch.testing.assert_close(moments.variance[:, output], expected.variance[0])


def test_the_gradient_reaches_every_parameter(network: DeepGP, table: torch.Tensor) -> None:
    network.loss(table, torch.ones_like(table).bool(), 150, n_paths=2).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


def test_the_divergence_is_that_of_torch(network: DeepGP) -> None:
    with torch.no_grad():
        for layer in network.hidden_layers:
            layer.u_loc = torch.randn_like(layer.u_loc)
    expected = torch.zeros(())
    for part in (*network.hidden_layers, *network.links):
        loc, tril = part.u_loc, part.u_scale_tril
        prior = torch.distributions.MultivariateNormal(
            torch.zeros_like(loc), torch.eye(loc.shape[-1]).double()
        )
        posterior = torch.distributions.MultivariateNormal(loc, scale_tril=tril)
        expected = expected + torch.distributions.kl_divergence(posterior, prior).sum()
    torch.testing.assert_close(network.divergence(), expected)


def test_it_learns(network: DeepGP, table: torch.Tensor) -> None:
    observed = torch.ones_like(table).bool()
    losses = network.learn(table, observed, BUDGET)
    assert sum(losses[-15:]) < sum(losses[:15])


def test_it_predicts_a_smooth_function_as_one_layer_does(network: DeepGP, table: torch.Tensor) -> None:
    network.learn(table, torch.ones_like(table).bool(), dataclasses.replace(BUDGET, dgp_steps=30))
    rows = table.clone()
    rows[:, 1] = 0.0
    mean, variance = network.predict(rows, n_paths=30)
    assert mean.shape == variance.shape == (3, 30, 150)
    error = (mean[1].mean(0) - table[:, 1]).square().mean().sqrt()
    one_layer, _ = predict(fit_links(table, torch.ones_like(table).bool(), 0, 20)[1], rows)
    assert error < 1.5 * (one_layer[0] - table[:, 1]).square().mean().sqrt()
    assert error < 0.4


def test_one_observed_cell_of_every_row_is_held_out() -> None:
    observed = torch.rand(200, 6) < 0.5
    observed[0] = False
    held_out = _one_of(observed)
    assert not (held_out & ~observed).any()
    assert (held_out.sum(1) == observed.any(1)).all()
    assert held_out.any(0).all()


def test_predictions_of_a_held_out_cell_do_not_depend_on_its_value(
    network: DeepGP, table: torch.Tensor
) -> None:
    """The scored cell of a row is replaced by the mean before the moments are computed."""
    seen = []
    network.moments = lambda filled, n_paths: seen.append(filled) or DeepGP.moments(network, filled, n_paths)
    network.loss(table, torch.tensor([False, True, False]).expand(150, 3), 150, n_paths=1)
    assert (seen[0][:, 1] == 0).all()
    torch.testing.assert_close(seen[0][:, [0, 2]], table[:, [0, 2]])
