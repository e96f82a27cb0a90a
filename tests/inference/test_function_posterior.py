"""Drawn standard deviations of coefficients agree with their conditional densities."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from pyro_mgp.inference.function_posterior import CoefficientScales, FunctionPosterior
from pyro_mgp.model.kernels import linear_quadratic_matern32, matern32
from pyro_mgp.model.likelihoods import Gaussian
from pyro_mgp.model.link import Link


def test_standard_deviations_have_their_conditional_densities() -> None:
    n_chains, values = 4000, torch.tensor([0.5, 7.0, -1.5]).double()
    wide, grid = torch.tensor([0.3, 1.0, 1.0]).double(), np.linspace(np.log(1e-3), np.log(1e3), 40_001)
    none = torch.zeros(3, dtype=torch.bool)
    own = CoefficientScales(torch.tensor([0, 2]), none, none.nonzero()[:, 0], none, wide, spread=0.0)
    scales, rng = torch.ones(n_chains, 3).double(), np.random.default_rng(0)
    for _ in range(25):
        drawn = values.expand(n_chains, -1)
        scales = own.draw(drawn, scales, lambda n: torch.as_tensor(rng.normal(size=(n_chains, n))))
    assert (scales[:, 1] == 1).all()
    for k in (0, 2):
        density = stats.halfcauchy.logpdf(np.exp(grid), scale=float(wide[k])) + grid
        density += stats.norm.logpdf(float(values[k]), scale=np.exp(grid))
        distribution = np.cumsum(np.exp(density - density.max()))
        shares = np.interp(scales[:, k].log().numpy(), grid, distribution / distribution[-1])
        assert stats.kstest(shares, "uniform").pvalue > 1e-3


def link(factory: object) -> Link:
    Xu = torch.as_tensor(np.random.default_rng(0).normal(size=(4, 2)))
    return Link(factory(2), Xu, 2, [0, 1], Gaussian(0.5))  # type: ignore[operator]


def test_kernels_without_a_trend_have_no_drawn_scales() -> None:
    assert CoefficientScales.of(link(matern32)) is None


def test_every_product_has_a_scale_and_inducing_values_share_one() -> None:
    own = CoefficientScales.of(link(linear_quadratic_matern32))
    assert own is not None
    # Intercept, two slopes, three products, four inducing values.
    assert own.coefficients.tolist() == [3, 4, 5]
    assert own.rest.tolist() == [False] * 6 + [True] * 4
    values, scales = torch.ones(3, 10).double(), torch.ones(3, 10).double()
    drawn = own.draw(values, scales, lambda n: torch.randn(3, n, generator=seeded(0)).double())
    assert torch.equal(drawn[:, :3], scales[:, :3])
    assert len(set(drawn[0, 3:6].tolist())) == 3
    none = FunctionPosterior.natural(scales.square(), torch.zeros(3, 10, 10).double(), 0 * scales)
    rescaled, _ = own.rescale(drawn, none, torch.randn(3, 5, generator=seeded(2)).double())
    assert torch.equal(rescaled[:, :3], drawn[:, :3])
    # Those of products move together.
    torch.testing.assert_close(rescaled[:, 3:6] / rescaled[:, 3:4], drawn[:, 3:6] / drawn[:, 3:4])
    assert not torch.equal(rescaled[:, 3:6], drawn[:, 3:6])
    assert (rescaled[:, 6:] == rescaled[:, 6:7]).all()


@pytest.mark.parametrize("spread", [0.15, 0.7])
@pytest.mark.slow
def test_without_rows_standard_deviations_of_products_follow_their_prior(spread: float) -> None:
    own = CoefficientScales.of(link(linear_quadratic_matern32))
    assert own is not None
    assert own.spread == pytest.approx(0.15)  # three products
    own = dataclasses.replace(own, spread=spread)
    n_chains, generator = 4000, seeded(0)
    nothing = torch.zeros(10, 10).double().expand(n_chains, -1, -1), torch.zeros(n_chains, 10).double()
    scales = torch.ones(n_chains, 10).double()

    def fresh(n: int) -> Tensor:
        return torch.randn(n_chains, n, generator=generator).double()

    for _ in range(100):
        posterior = FunctionPosterior.natural(scales.square(), *nothing)
        scales, posterior = own.rescale(scales, posterior, fresh(5))
        scales = own.draw(posterior.draw(fresh(10)), scales, fresh)
    # A log-normal variable that three products share, times a half-Cauchy variable of each.
    rng = np.random.default_rng(0)
    each = np.log(np.tan(np.pi / 2 * rng.random((2, 200_000))))
    expected = each[0] + spread * rng.normal(size=200_000)
    ratios = (scales / own.wide.detach()).log()[:, 3:6].numpy()
    for found in ratios.T:
        assert stats.ks_2samp(found, expected).pvalue > 1e-3
    assert stats.ks_2samp(ratios[:, 0] - ratios[:, 1], each[0] - each[1]).pvalue > 1e-3


def test_the_scale_of_inducing_values_has_its_density_with_the_function_integrated_out() -> None:
    own = CoefficientScales.of(link(linear_quadratic_matern32))
    assert own is not None
    rest_alone = dataclasses.replace(own, spread=0.0)
    n_chains, generator = 4000, seeded(0)
    basis = torch.randn(10, 8, generator=generator).double()
    targets = torch.tensor([1.0, -2.0, 0.5, 1.5, 0.0, 2.0, -1.0, 0.7]).double()
    gram, shift = basis @ basis.T, basis @ targets
    scales = torch.ones(n_chains, 10).double()
    of_chains = gram.expand(n_chains, -1, -1), shift.expand(n_chains, -1)
    posterior = FunctionPosterior.natural(scales.square(), *of_chains)
    for _ in range(60):
        normal = torch.randn(n_chains, 5, generator=generator).double()
        scales, posterior = rest_alone.rescale(scales, posterior, normal)
    expected = FunctionPosterior.natural(scales.square(), *of_chains)
    torch.testing.assert_close(posterior.mean, expected.mean)
    torch.testing.assert_close(posterior.factor, expected.factor)

    grid = np.linspace(np.log(1e-3), np.log(1e2), 501)
    of_grid = torch.where(own.rest, torch.as_tensor(np.exp(grid))[:, None], 1.0)
    covariances = (basis.T * of_grid.square()[:, None]) @ basis + torch.eye(8).double()
    density = torch.distributions.MultivariateNormal(0 * targets, covariances).log_prob(targets).numpy()
    density = density + stats.halfcauchy.logpdf(np.exp(grid), scale=float(own.wide[-1].detach())) + grid
    distribution = np.cumsum(np.exp(density - density.max()))
    distribution /= distribution[-1]
    found = scales[:, -1].log().numpy()
    assert stats.kstest(found, lambda x: np.interp(x, grid, distribution)).pvalue > 1e-3


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
