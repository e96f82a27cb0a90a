"""A conditional of several paths gives each path what its own part gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from pyro_mgp.inference.data_augmentation import Augmentation
from pyro_mgp.inference.nuts import with_lengthscales
from pyro_mgp.model.conditional import PathwiseConditional, Shifted, TrendConditional
from pyro_mgp.model.kernels import linear_quadratic_matern32
from pyro_mgp.model.likelihoods import Gaussian, Ordinal
from pyro_mgp.model.link import Link
from pyro_mgp.model.sequential_chain import SequentialChain

TABLE = torch.as_tensor(np.random.default_rng(0).normal(size=(12, 2)))


@torch.no_grad()
def parts(n: int) -> list:
    """Return conditionals of a function with n different lengthscales, one path each, in double precision."""
    link = Link(linear_quadratic_matern32(1), TABLE[:5, :1], 1, [0], Gaussian(0.5))
    chain, found = SequentialChain([link], ["y"], n_rows=12), []
    for path in range(n):
        of_path = with_lengthscales(chain, [torch.tensor([0.5 + path]).double()])
        augmentation = Augmentation(of_path, TABLE, torch.ones_like(TABLE, dtype=torch.bool))
        values = torch.as_tensor(np.random.default_rng(path).normal(size=(1, link.n_values)))
        noise = torch.full((1, 1), 1.0 + path).double()
        conditional = augmentation.conditional(0, values, noise, torch.ones_like(values))
        assert isinstance(conditional, TrendConditional)
        found.append(replace(conditional, dtype=torch.float64))
    return found


def test_paths_have_the_moments_of_their_parts() -> None:
    of_paths = parts(3)
    both = PathwiseConditional.of(of_paths)
    rows = torch.stack([TABLE, TABLE.flip(0), TABLE + 1])
    own = [part.moments(rows[i][None]) for i, part in enumerate(of_paths)]
    found = both.moments(rows)
    assert torch.equal(found.mean, torch.cat([at.mean for at in own]))
    assert torch.equal(found.variance, torch.cat([at.variance for at in own]))
    assert not torch.allclose(own[0].mean, of_paths[1].moments(rows[:1]).mean)
    assert both.noise.flatten().tolist() == [1.0, 2.0, 3.0]
    functions = torch.cat([part.functions(TABLE) for part in of_paths])
    assert torch.equal(both.functions(TABLE), functions)


def test_cells_move_on_any_paths_in_any_order() -> None:
    both = PathwiseConditional.of(parts(3))
    table = TABLE.expand(3, -1, -1)
    along = both.along(table, [0])
    paths, rows = torch.tensor([2, 0, 2, 1]), torch.tensor([4, 4, 0, 7])
    values = torch.tensor([[0.3], [0.3], [-1.0], [2.0]]).double()
    expected = []
    for path, row, value in zip(paths.tolist(), rows.tolist(), values, strict=True):
        moved = TABLE[row].clone()
        moved[0] = value
        expected.append(both.parts[path].moments(moved[None, None]))
    found = along(paths, rows, values)
    torch.testing.assert_close(found.mean, torch.cat([at.mean[0] for at in expected]))
    torch.testing.assert_close(found.variance, torch.cat([at.variance[0] for at in expected]))
    assert len(found.mean.unique()) == 4


@torch.no_grad()
def test_a_shifted_conditional_draws_by_the_observation_model_of_the_other() -> None:
    levels = torch.tensor([-1.0, 0.0, 2.0]).double()
    plain = PathwiseConditional.of(parts(2)).observed_as(Ordinal(levels, torch.ones(3).double()), noisy=False)
    rows, eps = TABLE.expand(2, -1, -1), torch.as_tensor(np.random.default_rng(1).normal(size=(2, 12)))
    shifted = Shifted.of(plain, 1.5)
    drawn, unshifted = (each.draw(each.moments(rows), eps) for each in (shifted, plain))
    assert torch.isin(drawn, levels).all()
    assert (drawn >= unshifted).all() and drawn.mean() > unshifted.mean()
