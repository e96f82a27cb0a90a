"""Two-part variables: written cells, candidates and their weights, and numbers, typed by hand."""

from __future__ import annotations

import math

import torch

from pyro_mgp.model.likelihoods import TwoPart

OFF, ON = torch.tensor(-2.0).double(), torch.tensor(0.5).double()  # four in five cells equal the bound
PARTS = TwoPart((0, 1), (4, 3), OFF, ON, bound=7.0, reach=0.25)


def test_the_amount_is_written_as_zero_where_the_indicator_is_on() -> None:
    indicator, amount = torch.tensor([-2.0, 0.5, -2.0]).double(), torch.tensor([1.5, 1.5, -3.0]).double()
    written = PARTS.written([indicator, amount])
    assert {column: cells.tolist() for column, cells in written.items()} == {
        4: [-2.0, 0.5, -2.0],
        3: [1.5, 0.0, -3.0],
    }
    one_for_all = PARTS.written([indicator, torch.ones(2, 3).double()])
    assert one_for_all[4].shape == one_for_all[3].shape == (2, 3)


def test_candidates_are_the_bound_and_equally_likely_amounts() -> None:
    p_on = torch.tensor([[0.2, 0.9], [0.5, 0.6], [0.1, 0.3]]).double()
    amounts = torch.arange(24.0).double().reshape(3, 2, 4)
    cells, log_weights = PARTS.candidates((1 - p_on).log(), p_on.log(), amounts)
    assert cells.shape == (3, 2, 5, 2) and log_weights.shape == (3, 2, 5)
    assert torch.equal(cells[..., 0, :], torch.stack([ON, 0 * ON]).expand(3, 2, 2))
    assert (cells[..., 1:, 0] == OFF).all() and torch.equal(cells[..., 1:, 1], amounts)
    torch.testing.assert_close(log_weights[..., 0].exp(), p_on)
    torch.testing.assert_close(log_weights[..., 1:].exp(), ((1 - p_on) / 4)[..., None].expand(3, 2, 4))


def test_numbers_are_the_bound_or_the_amount() -> None:
    indicator, amount = torch.tensor([-2.0, 0.5]).double(), torch.tensor([1.5, 1.5]).double()
    assert PARTS.numbers(indicator, amount).tolist() == [1.5, 7.0]


def test_means_within_reach_of_the_bound_are_the_bound() -> None:
    means = torch.tensor([7.0, 7.25, 6.75, 7.26, 6.74, -7.0, math.inf]).double()
    assert PARTS.is_bound(means).tolist() == [True, True, True, False, False, False, False]
    no_reach = TwoPart((0, 1), (4, 3), OFF, ON, bound=7.0)
    assert no_reach.is_bound(means).tolist() == [True] + 6 * [False]
