"""SVGP against scikit-learn's Gaussian process regression."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from benchmarks.paper.methods.sparse import fit_links, predict


@pytest.fixture(scope="module")
def table() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, 2, generator=generator, dtype=torch.float64)
    y = torch.sin(2 * x[:, :1]) + 0.5 * x[:, 1:] + 0.1 * torch.randn(80, 1, generator=generator).double()
    return torch.cat([x, (y - y.mean()) / y.std()], dim=1)


def test_with_an_inducing_input_per_row_it_is_exact_regression(table: torch.Tensor) -> None:
    """Compare at the kernel and noise of the link, with every cell observed."""
    link = fit_links(table, torch.ones_like(table, dtype=torch.bool), 0, max_steps=30)[2]
    variance, lengthscale, noise = (
        number.detach().numpy()
        for number in (link.kernel.variance, link.kernel.lengthscale, link.likelihood.noise)
    )
    exact = GaussianProcessRegressor(
        ConstantKernel(float(variance)) * Matern(lengthscale, nu=1.5) + WhiteKernel(float(noise)),
        optimizer=None,
    )
    X, y = table[:, :2].numpy(), table[:, 2].numpy()
    new = torch.cat([torch.linspace(-2, 2, 30)[:, None].repeat(1, 2), torch.zeros(30, 1)], dim=1).double()
    expected, sd = exact.fit(X, y).predict(new[:, :2].numpy(), return_std=True)
    mean, spread = predict(link, new)
    np.testing.assert_allclose(mean[0], expected, atol=0.02)
    np.testing.assert_allclose(spread[0].sqrt(), sd, atol=0.02)


def test_each_column_is_learnt_from_its_own_observed_cells(table: torch.Tensor) -> None:
    observed = torch.ones_like(table, dtype=torch.bool)
    observed[:30, 2] = False
    filled = table.masked_fill(~observed, 0.0)
    other = table.clone()
    other[:30, 2] = 100.0
    links = fit_links(filled, observed, 0, max_steps=10)
    again = fit_links(other.where(observed, 0.0), observed, 0, max_steps=10)
    torch.testing.assert_close(predict(links[2], table), predict(again[2], table))
    mean, _ = predict(links[2], table)
    assert (mean[0, :30] - table[:30, 2]).square().mean() < 0.3
