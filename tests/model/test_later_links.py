"""Moves of cells given later links agree with enumeration and with densities on grids."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from known_function import Known
from scipy import stats
from torch import Tensor

from pyro_mgp.model.conditional import Moments
from pyro_mgp.model.later_links import Candidates, Later, LaterLinks, resample, slice_sample

N_CELLS = 20_000


def square_later(start: np.ndarray, y: float, noise: float) -> LaterLinks:
    """Return cells x, `[n]`, and a later link y = x² + noise with the same y in all rows."""
    table = torch.as_tensor(np.stack([start, np.full(len(start), y)], axis=-1))[None]
    link = Known(torch.tensor(noise).double(), lambda rows: rows[..., 0].square())
    return LaterLinks([Later(link, 1, [], torch.ones(len(start), dtype=torch.bool))], table, [0])


def normals(seed: int) -> Callable[[int], Tensor]:
    return lambda k: torch.as_tensor(np.random.default_rng([seed, k]).normal(size=(1, N_CELLS)))


def posterior(y: float, noise: float, prior: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, ...]:
    """Return a grid, and the distribution function of x with a prior, given y = x² + noise."""
    x = np.linspace(-6, 6, 24_001)
    distribution = np.cumsum(prior(x) * stats.norm.pdf(y, x**2, noise**0.5))
    return x, distribution / distribution[-1]


def test_choices_among_fresh_draws_keep_the_posterior() -> None:
    """Student's t noise has no elliptical slices: cells choose among draws of their own."""
    x, distribution = posterior(2.0, 0.4, lambda x: stats.t.pdf(x, 4))
    start = np.interp((np.arange(N_CELLS) + 0.5) / N_CELLS, distribution, x)

    def draw(normal: Tensor) -> Tensor:
        return torch.as_tensor(stats.t.ppf(stats.norm.cdf(normal.numpy()), 4))

    values = start
    for step in range(3):
        numbers = normals(step)
        found = resample(draw, square_later(values, 2.0, 0.4), numbers)[0].numpy()
        assert (found != values).mean() > 0.5
        values = found
        assert stats.kstest(values, lambda q: np.interp(q, x, distribution)).pvalue > 1e-3


def test_choices_converge_from_a_bad_start() -> None:
    x, distribution = posterior(2.0, 0.4, lambda x: stats.norm.pdf(x))
    values = np.full(N_CELLS, 4.0)
    for step in range(30):
        numbers = normals(step)
        values = resample(lambda n: n, square_later(values, 2.0, 0.4), numbers)[0].numpy()
    assert stats.kstest(values, lambda q: np.interp(q, x, distribution)).pvalue > 1e-3


@pytest.mark.parametrize(("y", "noise"), [(2.0, 0.4), (0.5, 0.01), (-2.0, 0.4), (6.0, 0.4)])
def test_slices_keep_the_posterior(y: float, noise: float) -> None:
    """With two modes, for which a normal approximation is wrong or is not made, and with one."""
    x, distribution = posterior(y, noise, lambda x: stats.norm.pdf(x, 0.5, 1.2))
    start = values = np.interp((np.arange(N_CELLS) + 0.5) / N_CELLS, distribution, x)
    at = Moments(torch.full((1, N_CELLS), 0.5).double(), torch.full((1, N_CELLS), 0.44).double())
    for step in range(3):
        later, one = square_later(values, y, noise), torch.tensor(1.0).double()
        values = slice_sample(at, one, later, normals(step))[0].numpy()
        assert stats.kstest(values, lambda q: np.interp(q, x, distribution)).pvalue > 1e-3
    assert (values != start).mean() > 0.99


def test_a_cell_with_a_normal_distribution_forgets_its_value_in_one_move() -> None:
    """x ~ N(0, 1) and y = 3 + 2x + N(0, 1/9): y moves the mean of x and makes it much less uncertain."""
    y, slope, noise = -1.0, 2.0, 1 / 9
    precision = 1 + slope**2 / noise
    exact = stats.norm(slope * (y - 3) / noise / precision, precision**-0.5)
    start = exact.ppf((np.arange(N_CELLS) + 0.5) / N_CELLS)
    table = torch.as_tensor(np.stack([start, np.full(N_CELLS, y)], axis=-1))[None]
    link = Known(torch.tensor(noise).double(), lambda rows: 3 + slope * rows[..., 0])
    later = LaterLinks([Later(link, 1, [], torch.ones(N_CELLS, dtype=torch.bool))], table, [0])
    at = Moments(torch.zeros(1, N_CELLS).double(), torch.full((1, N_CELLS), 0.3).double())
    found = slice_sample(at, torch.tensor(0.7).double(), later, normals(0))[0].numpy()
    assert stats.kstest(found, exact.cdf).pvalue > 1e-3
    assert abs(np.corrcoef(start, found)[0, 1]) < 0.1


@pytest.mark.parametrize("ends", [(-np.inf, 0.2), (0.9, np.inf), (-1.4, 1.2)])
def test_slices_within_limits_keep_the_truncated_posterior(ends: tuple[float, float]) -> None:
    def prior(x: np.ndarray) -> np.ndarray:
        return stats.norm.pdf(x, 0.5, 1.2) * ((x >= ends[0]) & (x <= ends[1]))

    x, distribution = posterior(2.0, 0.4, prior)
    inside = np.diff(distribution, prepend=0.0) > 0
    x, distribution = x[inside], distribution[inside]
    start = np.interp((np.arange(N_CELLS) + 0.5) / N_CELLS, distribution, x)
    at = Moments(torch.full((1, N_CELLS), 0.5).double(), torch.full((1, N_CELLS), 0.44).double())
    limits = torch.tensor(ends).double().expand(N_CELLS, 2)
    values = start
    for step in range(3):
        later, one = square_later(values, 2.0, 0.4), torch.tensor(1.0).double()
        values = slice_sample(at, one, later, normals(step), limits)[0].numpy()
        assert ((values >= ends[0]) & (values <= ends[1])).all()
        assert stats.kstest(values, lambda q: np.interp(q, x, distribution)).pvalue > 1e-3
    assert (values != start).mean() > 0.99


@pytest.mark.parametrize("informative", [True, False])
def test_levels_have_the_product_of_both_probabilities(informative: bool) -> None:
    """Three levels as indicators, and a later link that depends on them."""
    table = torch.zeros(1, N_CELLS, 4).double()
    table[..., 3] = 0.8
    effects = torch.tensor([0.0, 1.0, -0.5]).double()
    link = Known(torch.tensor(0.5).double(), lambda rows: rows[..., :3] @ effects)
    rows = torch.full((N_CELLS,), informative)
    later = LaterLinks([Later(link, 3, [], rows)], table, [0, 1, 2])
    own = torch.tensor([0.5, 0.2, 0.3]).double()
    levels = torch.eye(3).double()
    candidates = Candidates.of_levels(levels, own.log().expand(1, N_CELLS, 3))
    chosen = candidates.chosen(later.of_candidates(candidates), normals(0)(0)).argmax(-1)
    weights = own.numpy() * (stats.norm.pdf(0.8, effects.numpy(), 0.5**0.5) if informative else 1.0)
    counts = torch.bincount(chosen[0], minlength=3).numpy()
    assert stats.chisquare(counts, weights / weights.sum() * N_CELLS).pvalue > 1e-3


def test_a_later_level_says_nothing_where_an_earlier_one_is_on() -> None:
    table = torch.tensor([[[0.0, 1.0, 0.3], [0.0, -1.0, 0.3]]]).double()
    link = Known(torch.tensor(1.0).double(), lambda rows: rows[..., 0])
    later = LaterLinks([Later(link, 2, [1], torch.ones(2, dtype=torch.bool))], table, [0])
    paths, cells = torch.zeros(2, dtype=torch.long), torch.arange(2)
    found = later.log_likelihood(paths, cells, torch.tensor([0.1, 0.1]).double())
    assert found[0] == 0
    assert found[1] == pytest.approx(stats.norm.logpdf(0.3, 0.1))
