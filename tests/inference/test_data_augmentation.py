"""Draws of functions and noise variances given completed tables agree with closed forms and grids."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.stats import chi2, invgamma, kstest, multivariate_normal
from torch import Tensor

from pyro_mgp._support.keyed_noise import KeyedNoise
from pyro_mgp.inference.data_augmentation import Augmentation, Drawn, _chi_squared
from pyro_mgp.model.kernels import linear_matern32, matern32
from pyro_mgp.model.likelihoods import Gaussian
from pyro_mgp.model.link import Link
from pyro_mgp.model.local_parameters import local_parameters
from pyro_mgp.model.sequential_chain import SequentialChain

N_PATHS = 3000


def fresh(n_paths: int, device: torch.device | str = "cpu", seed: int = 0) -> Callable[..., Tensor]:
    def normal(n: int, *stream: int) -> Tensor:
        return KeyedNoise(seed, torch.arange(n, device=device), range(n_paths)).normal(*stream)

    return normal


def sweep_noise(n_rows: int, n_paths: int, device: torch.device | str = "cpu") -> Callable:
    noise = KeyedNoise(1, torch.arange(n_rows, device=device), range(n_paths))
    return lambda turn: lambda link, rows: noise.normal(turn, link, rows=rows)


def regression(device: torch.device, n_rows: int = 25) -> tuple[Tensor, SequentialChain]:
    """Return y = sin(2x) + noise of .2, and a chain of one link with an inducing input at every row."""
    generator = np.random.default_rng(2)
    x = generator.normal(size=n_rows)
    y = np.sin(2 * x) + 0.2**0.5 * generator.normal(size=n_rows)
    table = torch.tensor(np.column_stack([x, y]), device=device)
    link = Link(linear_matern32(1), table[:, :1], 1, [0], Gaussian(0.35), jitter=1e-6)
    return table, SequentialChain([link], ["y"], n_rows=n_rows)


def covariance(chain: SequentialChain, table: Tensor) -> np.ndarray:
    with torch.no_grad(), local_parameters():
        return chain.links[0].kernel(table[:, :1]).cpu().numpy()


@torch.no_grad()
def test_a_function_given_its_noise_is_drawn_from_the_posterior_of_gp_regression(
    device: torch.device,
) -> None:
    table, chain = regression(device)
    augmentation = Augmentation(chain, torch.ones(25, 2, dtype=torch.bool, device=device))
    noise = torch.full((N_PATHS, 1), 0.35, dtype=torch.float64, device=device)
    function, _ = augmentation.learn(0, table.expand(N_PATHS, -1, -1), noise, fresh(N_PATHS, device), 1)
    (conditional,) = augmentation.conditionals([function], [noise])
    at = conditional.functions(table).cpu().numpy()

    K, y = covariance(chain, table), table[:, 1].cpu().numpy()
    gain = np.linalg.solve(K + 0.35 * np.eye(25), K).T
    posterior = K - gain @ K
    sd = np.sqrt(np.diag(posterior))
    np.testing.assert_allclose(at.mean(0), gain @ y, atol=5 * sd.max() / N_PATHS**0.5)
    np.testing.assert_allclose(np.cov(at.T), posterior, atol=7 * sd.max() ** 2 / N_PATHS**0.5)


@torch.no_grad()
def test_each_path_has_the_function_of_its_own_noise(device: torch.device) -> None:
    """Paths with a very large noise variance draw functions from the prior."""
    table, chain = regression(device)
    augmentation = Augmentation(chain, torch.ones(25, 2, dtype=torch.bool, device=device))
    noise = torch.tensor([0.1, 1e6], dtype=torch.float64, device=device).repeat(N_PATHS // 2)[:, None]
    function, _ = augmentation.learn(0, table.expand(N_PATHS, -1, -1), noise, fresh(N_PATHS, device), 1)
    (conditional,) = augmentation.conditionals([function], [noise])
    spread = conditional.functions(table).reshape(-1, 2, 25).var(0).cpu().numpy()
    prior = np.diag(covariance(chain, table))
    np.testing.assert_allclose(spread[1], prior, rtol=0.2)
    assert (spread[0] < 0.15 * prior).all()


@torch.no_grad()
def test_iterations_on_a_complete_table_reach_the_joint_posterior(device: torch.device) -> None:
    """Draws agree with a grid over the noise variance, with p(s²) ∝ 1/s², and start from the prior of u."""
    table, chain = regression(device)
    augmentation = Augmentation(chain, torch.ones(25, 2, dtype=torch.bool, device=device))
    drawn = augmentation.run(
        table.expand(N_PATHS, -1, -1), fresh(N_PATHS, device), sweep_noise(25, N_PATHS, device)
    )
    found = drawn.noises[0][:, 0].cpu().numpy()
    (conditional,) = augmentation.conditionals(drawn.functions, drawn.noises)
    at = conditional.functions(table).cpu().numpy()

    K, y, grid = covariance(chain, table), table[:, 1].cpu().numpy(), np.exp(np.linspace(-5, 2, 300))
    log_density = [multivariate_normal.logpdf(y, cov=K + s2 * np.eye(25)) for s2 in grid]
    weights = np.exp(log_density - np.max(log_density))  # d log s² takes the prior
    weights /= weights.sum()
    distribution = np.cumsum(weights) - weights / 2
    assert kstest(found, lambda q: np.interp(q, grid, distribution)).statistic < 0.04
    means = [K @ np.linalg.solve(K + s2 * np.eye(25), y) for s2 in grid]
    np.testing.assert_allclose(at.mean(0), weights @ np.array(means), atol=0.05)


@torch.no_grad()
def test_what_inducing_values_cannot_say_is_no_noise(device: torch.device) -> None:
    """With few inducing inputs the noise variance of many tables from the model stays near .1."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 1, generator=generator).double().to(device)
    link = Link(matern32(1), x[:4], 1, [0], Gaussian(0.1), jitter=1e-6)
    chain = SequentialChain([link], ["y"], n_rows=400)
    with local_parameters():
        K = link.kernel(x)
    eps = torch.randn(400, 300, generator=generator).double().to(device)
    errors = torch.randn(400, 300, generator=generator).double().to(device)
    y = torch.linalg.cholesky(K + 1e-9 * torch.eye(400).to(K)) @ eps + 0.1**0.5 * errors
    tables = torch.stack([x.expand(-1, 300), y], dim=-1).movedim(1, 0)
    augmentation = Augmentation(chain, torch.ones(400, 2, dtype=torch.bool, device=device))
    noise = torch.full((300, 1), 0.1, dtype=torch.float64, device=device)
    for turn in range(10):
        _, noise = augmentation.learn(0, tables, noise, fresh(300, device), turn)
    cross, prior = augmentation.kernels.at(0, tables[0])
    rest = prior.mean() - (augmentation.inverse[0] @ cross).square().sum(0).mean()
    assert float(noise.mean()) == pytest.approx(0.1, abs=0.25 * float(rest))


@torch.no_grad()
def test_the_noise_given_the_function_is_inverse_gamma() -> None:
    """If the function is zero, the noise variance is drawn from Σ y² / χ²_n."""
    y = torch.linspace(-1, 1, 30).double()
    table = torch.stack([torch.zeros(30).double(), y], dim=-1)
    kernel = linear_matern32(1)
    link = Link(kernel, table[:1, :1], 1, [0], Gaussian(0.1), jitter=1e-6)
    augmentation = Augmentation(
        SequentialChain([link], ["y"], n_rows=30), torch.ones(30, 2, dtype=torch.bool)
    )
    augmentation.inverse = augmentation.inverse * 1e-9  # no covariance with the inducing inputs, ...
    augmentation.kernels.at = lambda number, rows: (  # type: ignore[method-assign]
        torch.zeros(1, len(rows)).double(),
        torch.zeros(len(rows)).double(),  # ... and no variance
    )
    noise = torch.full((N_PATHS, 1), 0.1).double()
    _, drawn = augmentation.learn(0, table.expand(N_PATHS, -1, -1), noise, fresh(N_PATHS), 1)
    exact = invgamma(15, scale=float(y.square().sum()) / 2)
    assert kstest(drawn[:, 0].numpy(), exact.cdf).pvalue > 1e-3


@pytest.mark.parametrize("freedom", [20, 50, 1000])
def test_chi_squared_numbers_are_chi_squared(freedom: int) -> None:
    levels = torch.tensor([0.001, 0.025, 0.5, 0.975, 0.999]).double()
    found = _chi_squared(freedom, torch.special.ndtri(levels)).numpy()
    np.testing.assert_allclose(chi2(freedom).cdf(found), levels, atol=2e-3, rtol=0.2)


def holey(n_rows: int = 40) -> tuple[Tensor, Tensor, SequentialChain]:
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
    return table, observed, SequentialChain(links, ["x", "y"], n_rows)


@torch.no_grad()
def test_an_imputation_has_the_same_function_in_any_company() -> None:
    table, observed, chain = holey()
    augmentation = Augmentation(chain, observed)
    few, many = (augmentation.run(table.expand(m, -1, -1), fresh(m), sweep_noise(40, m)) for m in (3, 8))
    for name in ("functions", "noises"):
        for left, right in zip(getattr(few, name), getattr(many, name), strict=True):
            torch.testing.assert_close(left, right[:3], rtol=0, atol=1e-9)
            assert (right.std(0) > 0).all()


@torch.no_grad()
def test_uninformative_missing_cells_do_not_change_the_function() -> None:
    table, observed, chain = holey()
    augmentation = Augmentation(chain, observed)
    informative = [observed.any(1), observed[:, 1]]
    assert [augmentation.learning_rows[i].tolist() for i in (0, 1)] == [
        rows.nonzero()[:, 0].tolist() for rows in informative
    ]
    noise, other = torch.full((2, 1), 0.5).double(), table.clone()
    other[~informative[1]] = 7.0
    learnt = [augmentation.learn(1, t.expand(2, -1, -1), noise, fresh(2), 1) for t in (table, other)]
    torch.testing.assert_close(learnt[0], learnt[1], rtol=0, atol=0)


def test_draws_are_put_together_by_imputation() -> None:
    parts = [Drawn([torch.full((n, 2), float(n))], [torch.full((n, 1), -float(n))]) for n in (1, 2)]
    whole = Drawn.cat(parts)
    assert whole.functions[0][:, 0].tolist() == [1.0, 2.0, 2.0]
    assert whole.noises[0][:, 0].tolist() == [-1.0, -2.0, -2.0]
