"""Adam on one vector agrees with `torch.optim`."""

from __future__ import annotations

import torch
from torch import nn

from pyro_mgp.inference.adam import Adam


def test_it_moves_as_torchs_does():
    ours = [nn.Parameter(torch.randn(3, 2).double()), nn.Parameter(torch.randn(()).double())]
    theirs = [nn.Parameter(leaf.detach().clone()) for leaf in ours]
    adam, reference = Adam(ours), torch.optim.Adam(theirs, lr=0.1)
    for _ in range(20):
        for leaves in (ours, theirs):
            for leaf in leaves:
                leaf.grad = None
            (leaves[0].square().sum() * leaves[1].exp()).backward()
        adam.step(0.1)
        reference.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_decay_leads_back_to_the_start():
    leaf = nn.Parameter(torch.tensor([1.0, 2.0]).double())
    adam = Adam([leaf], weight_decay=0.5)
    leaf.data += 1.0  # moved by someone else
    leaf.grad = torch.zeros(2).double()
    adam.step(0.2)
    torch.testing.assert_close(leaf.data, torch.tensor([1.9, 2.9]).double())


def test_after_forgetting_a_step_is_as_the_first():
    leaf = nn.Parameter(torch.zeros(1))
    adam = Adam([leaf])
    for gradient in (5.0, -3.0):
        leaf.grad = torch.tensor([gradient])
        adam.step(0.1)
        adam.forget()
    torch.testing.assert_close(leaf.data, torch.zeros(1), atol=1e-6, rtol=0)


def test_a_parameter_without_gradient_stays():
    still, moving = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    adam = Adam([still, moving])
    moving.sum().backward()
    adam.step(0.1)
    assert still.tolist() == [1.0, 1.0]
    torch.testing.assert_close(moving.data, torch.full((2,), 0.9))


def test_released_parameters_have_memory_of_their_own():
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    adam = Adam([first, second])
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    adam.release()
    assert first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()
    adam.vector.fill_(5.0)
    assert first.tolist() == [1.0, 1.0]


def test_without_parameters_there_is_nothing_to_do():
    adam = Adam([])
    adam.step(0.1)
    adam.release()
    assert adam.n_steps == 0
