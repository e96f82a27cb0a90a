"""Chains of Gibbs sampling reach the posterior, and draw the same whatever else is drawn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pyro.contrib.gp.kernels import Linear
from scipy.stats import kstest, multivariate_normal
from small_chains import covariance, fresh, holey, regression, sweep_noise
from torch import Tensor

from pyro_mgp.inference.chain_state import Drawn, LinkDraw
from pyro_mgp.inference.data_augmentation import Augmentation
from pyro_mgp.inference.gibbs_chains import GibbsChains, PosteriorChains, n_chains
from pyro_mgp.inference.nuts import with_lengthscales
from pyro_mgp.model.chain import Chain, Noise
from pyro_mgp.model.kernels import linear_matern32, linear_quadratic_matern32
from pyro_mgp.model.likelihoods import Gaussian
from pyro_mgp.model.link import Link
from pyro_mgp.model.sequential_chain import SequentialChain

N_PATHS = 3000
NO_CELLS = torch.zeros(0, dtype=torch.long)


def seeing_all_others(table: Tensor, n_sweeps: int) -> Chain:
    """Return a chain of two links, each of which has the other's column as input."""
    links = [
        Link(linear_matern32(1), table[:10, 1 - d, None], d, [1 - d], Gaussian(0.5), jitter=1e-6)
        for d in (0, 1)
    ]
    return Chain(links, ["x", "y"], len(table), n_sweeps=n_sweeps)


@torch.no_grad()
def test_iterations_on_a_complete_table_reach_the_joint_posterior(device: torch.device) -> None:
    """Draws agree with a grid over the noise variance, with p(s²) ∝ 1/s², and start from the prior of u."""
    table, chain = regression(device)
    augmentation = Augmentation(chain, table, torch.ones_like(table, dtype=torch.bool))
    noises = fresh(N_PATHS, device), sweep_noise(25, N_PATHS, device)
    chains = GibbsChains(augmentation, lambda _: table.expand(N_PATHS, -1, -1), *noises, [NO_CELLS])
    drawn = chains.draws(range(N_PATHS))
    found = drawn.links[0].noise[:, 0].cpu().numpy()
    (conditional,) = chains.conditionals(range(N_PATHS), drawn)
    at = conditional.functions(table).cpu().numpy()

    K, y, grid = covariance(chain, table), table[:, 1].cpu().numpy(), np.exp(np.linspace(-5, 2, 300))
    log_density = [multivariate_normal.logpdf(y, cov=K + s2 * np.eye(25)) for s2 in grid]
    weights = np.exp(log_density - np.max(log_density))  # d log s² takes the prior
    weights /= weights.sum()
    distribution = np.cumsum(weights) - weights / 2
    assert kstest(found, lambda q: np.interp(q, grid, distribution)).statistic < 0.04
    means = [K @ np.linalg.solve(K + s2 * np.eye(25), y) for s2 in grid]
    np.testing.assert_allclose(at.mean(0), weights @ np.array(means), atol=0.05)


def drawn_slopes(table: Tensor, *, bagged: bool) -> Tensor:
    """Return draws of the slope of y on x through the origin, `[N_PATHS]`, given a table `[n, 2]`."""
    kernel, at_one = Linear(1, torch.tensor(10.0).double()), table.new_ones(1, 2)
    chain = Chain([Link(kernel, at_one[:, :1], 1, [0], Gaussian(1.0))], ["y"], len(table))
    augmentation = Augmentation(chain, table, torch.ones_like(table, dtype=torch.bool))
    noises, start = (fresh(N_PATHS), sweep_noise(len(table), N_PATHS)), table.expand(N_PATHS, -1, -1)
    chains, paths = (
        GibbsChains(augmentation, lambda _: start, *noises, [NO_CELLS], bagged=bagged),
        range(N_PATHS),
    )
    return chains.conditionals(paths, chains.draws(paths))[0].functions(at_one)[:, 0]


@torch.no_grad()
@pytest.mark.parametrize("is_right", [True, False])
def test_a_bagged_posterior_adds_the_sandwich_variance_to_that_of_the_posterior(is_right: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    x, noise = torch.randn(2, 400, generator=generator).double()
    table = torch.stack([x, 0.5 * x + (noise if is_right else x.abs() * noise)], -1)
    alone, bagged = (drawn_slopes(table, bagged=bagged) for bagged in (False, True))
    residual = table[:, 1] - alone.mean() * x
    sandwich = (x.square() * residual.square()).sum() / x.square().sum() ** 2
    assert (0.5 < sandwich / alone.var() < 1.5) if is_right else (sandwich / alone.var() > 2.5)
    assert float(bagged.mean()) == pytest.approx(float(alone.mean()), abs=0.02)
    assert float(bagged.var()) == pytest.approx(float(alone.var() + sandwich), rel=0.15)


@torch.no_grad()
def test_an_imputation_has_the_same_function_in_any_company() -> None:
    table, observed, chain = holey()
    augmentation, start = Augmentation(chain, table, observed), table.expand(4, -1, -1)
    more = fresh(4), sweep_noise(40, 4), chain.holes(table, observed)
    chains, others = (GibbsChains(augmentation, lambda _: start, *more) for _ in range(2))
    few, many = chains.draws(range(3)), others.draws(range(11))
    for drawn in (few, chains.draws([2, 10])):
        numbers = [0, 1, 2] if drawn is few else [2, 10]
        for of_link, others_of_link in zip(drawn.links, many.links, strict=True):
            for left, right in zip(of_link[:2], others_of_link[:2], strict=True):
                torch.testing.assert_close(left, right[numbers], rtol=0, atol=1e-9)
                assert (right.std(0) > 0).all()


@torch.no_grad()
@pytest.mark.parametrize("kind", [Chain, SequentialChain])
def test_a_sweep_from_the_kept_cells_repeats_the_last_one(kind: type[Chain]) -> None:
    """With functions, noises and numbers of a draw it ends where the chains stand."""
    table, observed, chain = holey(n_sweeps=3)
    chain = chain if kind is SequentialChain else seeing_all_others(table, 3)
    augmentation, noise = Augmentation(chain, table, observed), sweep_noise(len(table), 4)
    chains = GibbsChains(
        augmentation, lambda _: table.expand(4, -1, -1), fresh(4), noise, chain.holes(table, observed)
    )
    drawn = chains.draws(range(4, 8))
    start = table.repeat(4, 1, 1)
    start[:, ~observed] = drawn.cells
    conditionals = chains.conditionals(range(4, 8), drawn)
    found, _ = chain.sweep(conditionals, start, observed, noise(1, 2), chain.holes(table, observed))
    torch.testing.assert_close(found, chains.state.filled, rtol=0, atol=1e-12)
    assert (start - found)[:, ~observed].abs().min() > 0


@torch.no_grad()
@pytest.mark.parametrize(("searching", "n_iterations"), [(True, 6), (False, 9)])
def test_a_search_for_a_plan_has_a_shorter_burn_in(searching: bool, n_iterations: int) -> None:
    table, observed, chain = holey(n_sweeps=3)
    noise, swept = sweep_noise(len(table), 4), list[tuple[int, int]]()

    def counted(draw: int, sweep: int) -> Noise:
        swept.append((draw, sweep))
        return noise(draw, sweep)

    augmentation = Augmentation(chain, table, observed, searching=searching)
    given = lambda _: table.expand(4, -1, -1), fresh(4), counted, chain.holes(table, observed)
    chains = GibbsChains(augmentation, *given)
    chains.draws(range(4))
    assert len(swept) == len(set(swept)) == n_iterations
    chains.draws(range(8))
    assert len(swept) == n_iterations + 3


@pytest.mark.parametrize(
    ("rows", "chains"), [(1, 20), (500, 20), (501, 10), (1000, 10), (1001, 5), (10_000, 4)]
)
def test_small_tables_have_more_chains_a_divisor_of_twenty(rows: int, chains: int) -> None:
    assert n_chains(rows) == chains


@pytest.mark.parametrize(("rows", "chains"), [(1, 20), (10_000, 20), (10_001, 12), (20_000, 8), (50_000, 4)])
def test_chains_with_local_gps_are_more(rows: int, chains: int) -> None:
    assert n_chains(rows, local_gps=True) == chains


def test_draws_are_put_together_by_imputation() -> None:
    parts = [
        Drawn(
            [LinkDraw(torch.full((n, 2), n), torch.full((n, 1), -n), torch.full((n, 2), n / 2))],
            torch.full((n, 3), n + 5.0),
            torch.full((n, 3), n + 50.0),
        )
        for n in (1, 2)
    ]
    whole = Drawn.cat(parts)
    assert whole.cells[:, 2].tolist() == [6.0, 7.0, 7.0]
    assert whole.redrawn[:, 2].tolist() == [51.0, 52.0, 52.0]
    assert whole[[2, 0]].cells[:, 0].tolist() == [7.0, 6.0]
    assert whole.links[0].function[:, 0].tolist() == [1.0, 2.0, 2.0]
    assert whole.links[0].noise[:, 0].tolist() == [-1.0, -2.0, -2.0]


@torch.no_grad()
@pytest.mark.parametrize("continues", [True, False])
def test_only_chains_of_a_joint_density_go_on_from_draw_to_draw(continues: bool) -> None:
    table, observed, chain = holey()
    observed[::5] = False  # the start matters to rows without any observed cell
    chain = chain if continues else seeing_all_others(table, 5)
    filled = torch.randn(3, 4, *table.shape, generator=torch.Generator().manual_seed(0)).double()
    filled = torch.where(observed, table, filled)
    more = fresh(4), sweep_noise(len(table), 4), chain.holes(table, observed)

    def after_draws(n: int, *starts: int) -> GibbsChains:
        chains = GibbsChains(Augmentation(chain, table, observed), lambda k: filled[starts[k]], *more)
        chains.draws(range(4 * n))
        return chains

    chains, others = after_draws(3, 0, 1, 2), after_draws(3, 1, 0, 2)
    same = [
        bool((own.cells == other.cells).all()) for own, other in zip(chains.kept, others.kept, strict=True)
    ]
    assert same == ([False] * 3 if continues else [False, False, True])
    assert chains.n_recorded == ((4, 15, 3) if continues else (12, 4, 1))
    assert chains.record.mean.shape == (4 if continues else 12, int((~observed).sum()))


def chains_at(lengthscale: float) -> GibbsChains:
    table, observed, _ = holey()
    first = Link(linear_quadratic_matern32(0, [], 3), table[:4, :0], 0, [], Gaussian(0.8), jitter=1e-6)
    second = Link(linear_quadratic_matern32(1), table[:4, :1], 1, [0], Gaussian(0.5), jitter=1e-6)
    chain = SequentialChain([first, second], ["x", "y"], len(table), n_sweeps=2)
    chain = with_lengthscales(chain, [table.new_zeros(0), table.new_tensor([lengthscale])])
    holes = chain.holes(table, observed)
    noises = fresh(1, table.device), sweep_noise(len(table), 1, table.device)
    return GibbsChains(Augmentation(chain, table, observed), lambda _: table[None], *noises, holes)


@torch.no_grad()
def test_number_j_of_chains_at_drawn_lengthscales_is_the_next_draw_of_its_chain() -> None:
    alone, together = (
        [chains_at(scale) for scale in (0.3, 3.0)],
        PosteriorChains([chains_at(0.3), chains_at(3.0)]),
    )
    found = together.draws([3, 0, 1])
    for path, (chain, draw) in enumerate([(1, 1), (0, 0), (1, 0)]):
        own = alone[chain].draws([draw])
        assert torch.equal(found.cells[path], own.cells[0])
        assert torch.equal(found.links[1].function[path], own.links[1].function[0])
    assert not torch.equal(found.links[1].function[1], found.links[1].function[2])
    # Both chains have made two draws of two iterations, after burn-in, and are compared.
    assert together.n_recorded == (2, 4, 2)
    assert together.record.traces().shape[:2] == (2, 4)
    rows = alone[0].augmentation.chain.links[1].Xu.new_tensor([[[0.5, 0.0]]])
    conditional = together.conditionals([3, 0, 1], found)[1].moments(rows.expand(3, 1, 2))
    for path, chain in enumerate((1, 0, 1)):
        own = together.chains[chain].conditionals([0], found[[path]])[1].moments(rows)
        assert torch.equal(conditional.mean[path], own.mean[0])
