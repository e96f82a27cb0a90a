"""Draws of functions and noise variances given completed tables agree with closed forms and grids."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm
from small_chains import covariance, fresh, holey, regression

from pyro_mgp.inference import data_augmentation
from pyro_mgp.inference.data_augmentation import Augmentation, Rows, draw_noise
from pyro_mgp.inference.slice_sampling import N_NUMBERS
from pyro_mgp.model.chain import Chain
from pyro_mgp.model.conditional import Moments, TrendConditional
from pyro_mgp.model.kernels import linear_matern32, linear_quadratic_matern32, matern32
from pyro_mgp.model.likelihoods import Gaussian, Ordinal
from pyro_mgp.model.link import Link
from pyro_mgp.model.local_parameters import local_parameters
from pyro_mgp.model.sequential_chain import SequentialChain

N_PATHS = 3000
NO_CELLS = torch.zeros(0, dtype=torch.long)


@torch.no_grad()
def test_a_function_given_its_noise_is_drawn_from_the_posterior_of_gp_regression(
    device: torch.device,
) -> None:
    table, chain = regression(device)
    augmentation = Augmentation(chain, table, torch.ones_like(table, dtype=torch.bool))
    noise = torch.full((N_PATHS, 1), 0.35, dtype=torch.float64, device=device)
    given = augmentation.regression(0, table.expand(N_PATHS, -1, -1))
    function = augmentation.posterior(0, given, noise, None).draw(fresh(N_PATHS, device)(25, 1))
    conditional = augmentation.conditional(0, function, noise, torch.ones_like(function))
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
    augmentation = Augmentation(chain, table, torch.ones_like(table, dtype=torch.bool))
    noise = torch.tensor([0.1, 1e6], dtype=torch.float64, device=device).repeat(N_PATHS // 2)[:, None]
    given = augmentation.regression(0, table.expand(N_PATHS, -1, -1))
    function = augmentation.posterior(0, given, noise, None).draw(fresh(N_PATHS, device)(25, 1))
    conditional = augmentation.conditional(0, function, noise, torch.ones_like(function))
    spread = conditional.functions(table).reshape(-1, 2, 25).var(0).cpu().numpy()
    prior = np.diag(covariance(chain, table))
    np.testing.assert_allclose(spread[1], prior, rtol=0.2)
    assert (spread[0] < 0.15 * prior).all()


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
    # As if x were missing, since the tables differ.
    observed = torch.tensor([False, True], device=device).expand(400, 2)
    augmentation = Augmentation(chain, tables[0], observed)
    noise = torch.full((300, 1), 0.1, dtype=torch.float64, device=device)
    for turn in range(10):
        given = augmentation.regression(0, tables)
        function = augmentation.posterior(0, given, noise, None).draw(fresh(300, device)(4, turn))
        noise = draw_noise(given, function, noise, fresh(300, device, 1)(N_NUMBERS, turn))
    assert float(noise.mean()) == pytest.approx(0.1, abs=0.25 * float(given.completed.rest[0].mean()))


@torch.no_grad()
def test_the_noise_given_the_function_has_the_density_of_a_grid() -> None:
    """If inducing values are zero, and say nothing about the function in a third of the rows."""
    y = torch.linspace(-1, 1, 30).double()
    table = torch.stack([torch.zeros(30).double(), y], dim=-1)
    kernel = linear_matern32(1)
    link = Link(kernel, table[:1, :1], 1, [0], Gaussian(0.1), jitter=1e-6)
    chain = SequentialChain([link], ["y"], n_rows=30)
    augmentation = Augmentation(chain, table, torch.ones(30, 2, dtype=torch.bool))
    noise = torch.full((N_PATHS, 1), 0.1).double()
    given = augmentation.regression(0, table.expand(N_PATHS, -1, -1))
    rest = torch.tensor([0.5, 0.0, 0.0]).double().repeat(10)
    given = given._replace(known=Rows(torch.zeros(1, 30).double(), rest, given.known.targets))
    for turn in range(10):
        normal = fresh(N_PATHS)(N_NUMBERS, turn)
        noise = draw_noise(given, torch.zeros(N_PATHS, 1).double(), noise, normal)
    grid = np.linspace(-5, 3, 4000)  # of log s²
    variance = np.exp(grid)[:, None] + rest.numpy()
    log_density = -0.5 * (np.log(variance) + y.numpy() ** 2 / variance).sum(1)
    log_density += 0.5 * grid - np.log1p(np.exp(grid))
    share = np.exp(log_density - log_density.max()).cumsum()
    found = np.interp(noise[:, 0].log().numpy(), grid, share / share[-1])
    assert kstest(found, "uniform").pvalue > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("n_ones", [10, 3])
def test_a_function_of_ordered_values_has_the_posterior_of_a_grid(n_ones: int) -> None:
    """Latent variables replace the observations of a function that is constant over thirty rows."""
    values, shares = torch.tensor([-1.0, 1.0]).double(), torch.tensor([0.5, 0.5]).double()
    table = torch.stack([torch.ones(30), torch.arange(30).lt(n_ones) * 2.0 - 1.0], -1).double()
    link = Link(matern32(1), table[:1, :1], 1, [0], Ordinal(values, shares), jitter=1e-6)
    augmentation = Augmentation(Chain([link], ["y"], 30), table, torch.ones(30, 2, dtype=torch.bool))
    given, ones = augmentation.regression(0, table.expand(N_PATHS, -1, -1)), torch.ones(N_PATHS, 1).double()
    function, normal = torch.zeros(N_PATHS, 1).double(), fresh(N_PATHS)
    for step in range(40):
        latent = augmentation.with_latents(0, given, function, lambda n, step=step: normal(n, step, 0))
        function = augmentation.posterior(0, latent, ones, None).draw(normal(1, step, 1))
    conditional = augmentation.conditional(0, function, ones, torch.ones_like(function))
    found = conditional.functions(table[:1]).numpy()[:, 0]

    grid = np.linspace(-4, 4, 2001)
    log_density = norm.logpdf(grid) + n_ones * norm.logcdf(grid) + (30 - n_ones) * norm.logcdf(-grid)
    weights = np.exp(log_density - log_density.max())
    mean = np.average(grid, weights=weights)
    sd = np.average((grid - mean) ** 2, weights=weights) ** 0.5
    assert found.mean() == pytest.approx(mean, abs=0.1 * sd)
    assert found.std() == pytest.approx(sd, rel=0.1)


@torch.no_grad()
def test_a_level_is_learnt_from_the_rows_without_an_earlier_level() -> None:
    """Rows in which the first indicator is on do not change the function of the second one."""
    ends, shares = torch.tensor([-1.0, 1.0]).double(), torch.tensor([0.5, 0.5]).double()
    generator = torch.Generator().manual_seed(0)
    x, level = torch.randn(30, generator=generator), torch.arange(30) % 3
    table = torch.stack([x, *(2.0 * (level == k) - 1 for k in range(3))], -1).double()
    links = [
        Link(matern32(1), table[:5, :1], d, [0], Ordinal(ends, shares), 1e-6, list(range(1, d)))
        for d in (1, 2)
    ]
    chain, observed = Chain(links, ["a", "b"], 30), torch.ones(30, 4, dtype=torch.bool)
    other, noise = table.clone(), torch.ones(1, 1).double()
    other[level == 0, 2] = 1.0
    given = [(i, t, Augmentation(chain, t, observed)) for i in (0, 1) for t in (table, other)]
    means = [each.posterior(i, each.regression(i, t[None]), noise, None).mean for i, t, each in given]
    torch.testing.assert_close(means[2], means[3], rtol=0, atol=0)
    assert float((means[2] - means[0]).abs().max()) > 0.1


@torch.no_grad()
def test_uninformative_missing_cells_do_not_change_the_function() -> None:
    table, observed, chain = holey()
    augmentation = Augmentation(chain, table, observed)
    informative, known = [observed.any(1), observed[:, 1]], [observed[:, 0], observed.all(1)]
    for i in (0, 1):
        assert augmentation.known_rows[i].tolist() == known[i].nonzero()[:, 0].tolist()
        rest = informative[i] & ~known[i]
        assert augmentation.completed_rows[i].tolist() == rest.nonzero()[:, 0].tolist()
    noise, other = torch.full((2, 1), 0.5).double(), table.clone()
    other[~informative[1]] = 7.0
    given = [augmentation.regression(1, t.expand(2, -1, -1)) for t in (table, other)]
    means = [augmentation.posterior(1, rows, noise, None).mean for rows in given]
    torch.testing.assert_close(means[0], means[1], rtol=0, atol=0)


@torch.no_grad()
def test_known_rows_give_the_same_posterior_as_rows_that_are_computed_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, observed, chain = holey()
    filled, noise = table.expand(3, -1, -1), torch.tensor([[0.2], [0.5], [1.0]]).double()
    found = []
    for most in (10**6, 0):
        monkeypatch.setattr(data_augmentation, "_KNOWN_ENTRIES", most)
        augmentation = Augmentation(chain, table, observed)
        assert (len(augmentation.known_rows[1]) > 0) == (most > 0)
        given = augmentation.regression(1, filled)
        posterior = augmentation.posterior(1, given, noise, None)
        drawn = draw_noise(given, posterior.mean, noise, torch.zeros(3, N_NUMBERS).double())
        found.append((posterior.gram, posterior.mean, drawn))
    for kept, anew in zip(*found, strict=True):
        torch.testing.assert_close(kept, anew)


@pytest.mark.parametrize(("noise", "dtype"), [(0.3, torch.float32), (1e-5, torch.float64)])
def test_cells_move_in_single_precision_unless_the_noise_is_small(noise: float, dtype: torch.dtype) -> None:
    table = torch.randn(60, 3, generator=torch.Generator().manual_seed(0)).double()
    kernel = linear_quadratic_matern32(2)
    link = Link(kernel, table[:20, :2], 2, [0, 1], Gaussian(noise), jitter=1e-6)
    augmentation = Augmentation(SequentialChain([link], ["y"], 60), table, torch.ones_like(table).bool())
    function, scales = torch.randn(2, 5, link.n_values).double().unbind()
    conditional = augmentation.conditional(0, function, torch.full((5, 1), noise).double(), scales.exp())
    assert isinstance(conditional, TrendConditional)
    assert conditional.dtype is dtype
    rows = table.expand(5, -1, -1)
    paths, numbers = torch.arange(5).repeat_interleave(60), torch.arange(60).repeat(5)
    at = conditional.along(rows, [0])(paths, numbers, rows[..., :1].flatten(0, 1))
    exact = conditional.moments(rows)
    densities = [
        conditional.log_prob(rows[..., 2].flatten(), each, paths)
        for each in (at, Moments(exact.mean.flatten(), exact.variance.flatten()))
    ]
    torch.testing.assert_close(*densities, rtol=1e-2, atol=1e-2)
