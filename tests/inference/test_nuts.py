"""Lengthscales drawn by NUTS: from their prior without data, short ones for waves, without global state."""

from __future__ import annotations

import math

import numpy as np
import pyro
import pytest
import torch
from pyro import poutine
from scipy.stats import kstest, lognorm, multivariate_normal

from pyro_mgp.inference import nuts
from pyro_mgp.inference.nuts import draw_lengthscales, with_lengthscales
from pyro_mgp.model.kernels import linear_quadratic_matern32
from pyro_mgp.model.likelihoods import Gaussian
from pyro_mgp.model.link import Link
from pyro_mgp.model.local_parameters import local_parameters
from pyro_mgp.model.priors import with_priors
from pyro_mgp.model.sequential_chain import SequentialChain

LENGTHSCALE = "links.1.kernel.kern1.lengthscale"


def chain(table: torch.Tensor) -> SequentialChain:
    """Return two columns, the second a curve of the first."""
    first = Link(linear_quadratic_matern32(0, [], 3), table[:3, :0], 0, [], Gaussian(0.8))
    second = Link(linear_quadratic_matern32(1), table[:3, :1], 1, [0], Gaussian(0.5))
    return SequentialChain([first, second], ["x", "y"], n_rows=len(table))


def curve(n: int) -> torch.Tensor:
    g = np.random.default_rng(0)
    x = g.normal(size=n)
    y = np.sin(4 * x) + 0.1 * g.normal(size=n)
    return torch.as_tensor(np.stack([x, y], 1))


def test_the_collapsed_density_is_that_of_gaussian_process_regression() -> None:
    table = curve(7)
    observed = torch.ones_like(table, dtype=torch.bool)
    observed[2, 0] = observed[4, 1] = False
    model = with_priors(chain(table), lengthscales=True).collapsed_model
    torch.manual_seed(0)
    trace = poutine.trace(model).get_trace(table, observed)
    trace.compute_log_prob()
    value = {name: trace.nodes[name]["value"].detach().numpy() for name in trace.stochastic_nodes}
    # No later link reads y: its missing cell is integrated out. That of x is a site without a density.
    assert "z_y" not in value
    assert value["z_x"].shape == (1,)
    assert trace.nodes["z_x"]["log_prob_sum"].item() == 0
    x, y = table[:, 0].numpy().copy(), table[observed[:, 1], 1].numpy()
    x[2] = value["z_x"][0]
    own, rest = "links.{}.likelihood.noise", "links.{}.kernel.kern1.variance"
    flat = 4 + value[rest.format(0)] + value[own.format(0)] * np.eye(7)
    assert trace.nodes["x_x"]["log_prob"].item() == pytest.approx(multivariate_normal.logpdf(x, cov=flat))
    x = x[observed[:, 1].numpy()]
    # A link with one input has a fixed variance of 2 for its slope.
    features = np.stack([2**0.5 * x, x**2 * value["links.1.kernel.kern0.product_deviations"]])
    r = math.sqrt(3) * np.abs(x[:, None] - x) / value[LENGTHSCALE]
    curved = value[rest.format(1)] * (1 + r) * np.exp(-r)
    covariance = 4 + features.T @ features + curved + value[own.format(1)] * np.eye(6)
    expected = multivariate_normal.logpdf(y, cov=covariance)
    assert trace.nodes["x_y"]["log_prob"].item() == pytest.approx(expected)


def test_without_data_draws_come_from_the_prior(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nuts, "_WARMUP", 40)
    monkeypatch.setattr(nuts, "_THINNING", 1)
    monkeypatch.setattr(nuts, "_MAX_DEPTH", 4)
    table = curve(1)
    _, drawn = draw_lengthscales(chain(table), table, torch.ones_like(table, dtype=torch.bool), 100, 0)
    assert drawn.shape == (100, 1)
    assert kstest(drawn[:, 0].numpy(), lognorm(1, scale=4).cdf).statistic < 0.17


def test_a_wave_has_a_short_lengthscale_and_no_global_state_is_touched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nuts, "_WARMUP", 40)
    monkeypatch.setattr(nuts, "_THINNING", 1)
    monkeypatch.setattr(nuts, "_MAX_DEPTH", 4)
    table = curve(20)
    observed = torch.ones_like(table, dtype=torch.bool)
    observed[3, 0] = False
    state, names = torch.get_rng_state(), list(pyro.get_param_store())
    none, drawn = draw_lengthscales(chain(table), table, observed, 8, 7)
    assert torch.equal(torch.get_rng_state(), state)
    assert list(pyro.get_param_store()) == names
    assert none.shape == (8, 0)
    assert drawn.shape == (8, 1)
    assert float(drawn.median()) < 2  # the median of the prior is 4
    assert len(drawn.unique()) > 4
    again = draw_lengthscales(chain(table), table, observed, 8, 7)[1]
    assert torch.equal(again, drawn)


def test_a_copy_has_other_lengthscales_and_the_chain_keeps_its_own() -> None:
    table = curve(5)
    own = chain(table)
    other = with_lengthscales(own, [table.new_zeros(0), torch.tensor([0.3]).double()])
    with local_parameters():
        assert other.links[1].kernel.kern1.lengthscale.item() == pytest.approx(0.3)
        assert own.links[1].kernel.kern1.lengthscale.item() == pytest.approx(4.0)
