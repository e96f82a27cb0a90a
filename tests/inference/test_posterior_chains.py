"""Chains at several draws of hyperparameters: each draws what it would draw alone."""

from __future__ import annotations

import torch
from small_chains import fresh, holey, sweep_noise

from pyro_mgp.inference.data_augmentation import Augmentation
from pyro_mgp.inference.gibbs_chains import GibbsChains
from pyro_mgp.inference.nuts import with_lengthscales
from pyro_mgp.inference.posterior_chains import PosteriorChains
from pyro_mgp.model.kernels import linear_quadratic_matern32
from pyro_mgp.model.likelihoods import Gaussian
from pyro_mgp.model.link import Link
from pyro_mgp.model.sequential_chain import SequentialChain


def chains(lengthscale: float) -> GibbsChains:
    table, observed, _ = holey()
    first = Link(linear_quadratic_matern32(0, [], 3), table[:4, :0], 0, [], Gaussian(0.8), jitter=1e-6)
    second = Link(linear_quadratic_matern32(1), table[:4, :1], 1, [0], Gaussian(0.5), jitter=1e-6)
    chain = SequentialChain([first, second], ["x", "y"], len(table), n_sweeps=2)
    chain = with_lengthscales(chain, [table.new_zeros(0), table.new_tensor([lengthscale])])
    holes = chain.holes(observed)
    noises = fresh(1, table.device), sweep_noise(len(table), 1, table.device)
    return GibbsChains(Augmentation(chain, table, observed), lambda _: table[None], *noises, holes)


@torch.no_grad()
def test_number_j_is_the_next_draw_of_its_chain() -> None:
    alone, together = [chains(scale) for scale in (0.3, 3.0)], PosteriorChains([chains(0.3), chains(3.0)])
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
