"""Columns that are constant within groups have one cell per group, with the likelihood of all its rows."""

from __future__ import annotations

import numpy as np
import torch
from known_function import Known
from scipy import stats

from pyro_mgp.model.conditional import Moments
from pyro_mgp.model.later_links import Candidates, Later, LaterLinks, slice_sample
from pyro_mgp.model.once_per_group import first_rows, members


def test_first_rows_are_those_among_some_rows() -> None:
    numbers = torch.tensor([2.0, 1.0, 2.0, 1.0, 5.0])
    everywhere = torch.ones(5, dtype=torch.bool)
    assert first_rows(numbers, everywhere).tolist() == [True, True, False, False, True]
    among = torch.tensor([False, True, True, True, False])
    assert first_rows(numbers, among).tolist() == [False, True, True, False, False]
    assert not first_rows(numbers, ~everywhere).any()


def test_members_know_the_first_position_of_their_group() -> None:
    numbers = torch.tensor([2.0, 1.0, 2.0, 1.0, 5.0])
    everywhere = torch.ones(5, dtype=torch.bool)
    # Padding repeats the last row.
    rows, position = members(numbers, torch.tensor([4, 0, 0]), everywhere)
    assert rows.tolist() == [0, 2, 4]
    assert position.tolist() == [1, 1, 0]
    rows, position = members(numbers, torch.tensor([1]), torch.tensor([True, True, True, False, True]))
    assert rows.tolist() == [1] and position.tolist() == [0]


def shared_cells(start: np.ndarray, targets: np.ndarray, noise: float) -> LaterLinks:
    """Return cells x, `[k]`, each in a row for every target y = x² + noise; y of the last row is missing."""
    k, n = len(start), len(targets)
    x, y = np.repeat(start, n), np.tile(targets, k)
    # Rows of a group need not follow each other.
    order = np.random.default_rng(0).permutation(k * n)
    table = torch.as_tensor(np.stack([x, y], axis=1)[order])[None]
    told = torch.as_tensor((np.tile(np.arange(n), k) < n - 1)[order])
    link = Known(torch.tensor(noise).double(), lambda rows: rows[..., 0].square())
    owners = torch.as_tensor(np.repeat(np.arange(k), n)[order])
    return LaterLinks([Later(link, 1, [], told)], table, [0], owners, k)


def test_the_likelihood_of_a_shared_cell_is_that_of_its_rows() -> None:
    targets = np.array([1.0, 1.6, 0.4, 99.0])
    later = shared_cells(np.array([0.3, -1.2, 2.0]), targets, 0.5)
    assert later.current.tolist() == [[0.3, -1.2, 2.0]]
    values = torch.tensor([[0.0, 1.0], [1.0, -1.0], [2.0, 0.5]]).double()
    candidates = Candidates(values[None, ..., None], torch.zeros(1, 3, 2).double())
    found = later.of_candidates(candidates)[0]
    for i, k in np.ndindex(3, 2):
        expected = stats.norm.logpdf(targets[:3], float(values[i, k]) ** 2, 0.5**0.5).sum()
        np.testing.assert_allclose(float(found[i, k]), expected, rtol=1e-9)


def test_slices_of_shared_cells_keep_their_posterior() -> None:
    k, targets = 20_000, np.array([1.5, 2.5, 2.0, 99.0])
    grid = np.linspace(-6, 6, 24_001)
    log_density = stats.norm.logpdf(grid, 0.5, 1.2)
    log_density += sum(stats.norm.logpdf(y, grid**2, 0.8**0.5) for y in targets[:3])
    distribution = np.cumsum(np.exp(log_density - log_density.max()))
    distribution /= distribution[-1]
    start = np.interp((np.arange(k) + 0.5) / k, distribution, grid)
    later = shared_cells(start, targets, 0.8)
    at = Moments(torch.full((1, k), 0.5).double(), torch.full((1, k), 0.44).double())
    numbers = [np.random.default_rng([0, i]).normal(size=(1, k)) for i in range(60)]
    found = slice_sample(at, torch.tensor(1.0).double(), later, lambda i: torch.as_tensor(numbers[i]))[0]
    assert (found.numpy() != start).mean() > 0.5
    assert stats.kstest(found.numpy(), lambda q: np.interp(q, grid, distribution)).pvalue > 1e-3
