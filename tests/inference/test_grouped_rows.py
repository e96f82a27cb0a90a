"""What rows tell of functions and random effects agrees with dense matrices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from pyro_mgp.inference.data_augmentation import Regression, Rows
from pyro_mgp.inference.function_posterior import FunctionPosterior
from pyro_mgp.inference.grouped_rows import EffectsGiven, EffectsOfLink, EffectsPosterior, GroupedRows
from pyro_mgp.inference.random_effects import EffectsDraw, EffectsOffset, Grouping
from pyro_mgp.model.kernels import RandomEffects

# Two chains; rows with two columns of groups, of 4 and 3 groups, and x, to which one of them has slopes.
N_CHAINS, N_ROWS, N_VALUES = 2, 12, 3
GROUPS = torch.arange(N_ROWS) % 4
OTHERS = (torch.arange(N_ROWS) * 5) % 3
NOISE = torch.tensor([[0.4], [1.5]]).double()


def groupings() -> list[Grouping]:
    """Return effects of two links: intercepts and slopes of the larger groups, intercepts of the others."""
    wide = torch.ones(4).double()
    return [
        Grouping(1, RandomEffects(1, 3, 0.0, 1.0), (0, 1), (None, None), wide[:2]),
        Grouping(0, RandomEffects(0, 4, 0.0, 1.0), (0, 1, 1), (None, None, 2), wide[:3]),
    ]


def normal(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.as_tensor(rng.normal(size=shape))


def drawn_of(rng: np.random.Generator) -> list[EffectsDraw]:
    drawn = []
    for grouping in groupings():
        n_effects, n_groups = len(grouping.links), grouping.effects.n_groups
        root = normal(rng, N_CHAINS, n_effects, n_effects)
        precision = root @ root.mT + torch.eye(n_effects)
        drawn.append(EffectsDraw(normal(rng, N_CHAINS, n_effects, n_groups), precision))
    return drawn


def rows_of(rng: np.random.Generator, effects: EffectsOfLink) -> GroupedRows:
    """Return rows, the first five of which are known, with weights."""
    table = torch.stack([GROUPS.double(), OTHERS.double(), normal(rng, N_ROWS)], dim=1)
    known = Rows(normal(rng, N_VALUES, 5), normal(rng, 5).square(), normal(rng, 5))
    sizes = (N_CHAINS, N_VALUES, 7), (N_CHAINS, 7), (N_CHAINS, 7)
    basis, rest, targets = (normal(rng, *size) for size in sizes)
    weights = normal(rng, N_CHAINS, N_ROWS).square()
    given = Regression(known, Rows(basis, rest.square(), targets), weights)
    return effects.rows(given, table.expand(N_CHAINS, -1, -1))


def dense(rows: GroupedRows, s: int) -> Tensor:
    """Return the design of function, effects of other groups, and effects of each group in turn."""
    members = (rows.groups == torch.arange(rows.n_groups)[:, None]).double()
    own = (members[:, None] * rows.design[s]).flatten(0, 1)
    return torch.cat([rows.basis[s], own])


def prior_of(effects: EffectsOfLink, drawn: list[EffectsDraw], s: int) -> tuple[Tensor, Tensor]:
    """Return precision and shift of the prior of all values in the order of `dense`."""
    (of_others, told_others), (own, told) = (
        grouping.prior_of(grouping.of_link(effects.number), each)
        for grouping, each in zip(groupings(), drawn, strict=True)
    )
    parts = [
        torch.eye(N_VALUES).double(),
        torch.kron(of_others[s], torch.eye(3).double()),
        torch.kron(torch.eye(4).double(), own[s]),
    ]
    zeros = torch.zeros(N_VALUES).double()
    shift = torch.cat([zeros, told_others[s].flatten(), told[s].T.flatten()])
    return torch.block_diag(*parts), shift


def found(effects: EffectsOfLink, rows: GroupedRows, drawn: list[EffectsDraw]) -> EffectsPosterior:
    given = effects.given(rows.sums(NOISE), drawn)
    ones = torch.ones(N_CHAINS, N_VALUES).double()
    return EffectsPosterior(FunctionPosterior.natural(ones, given.gram, given.shift), given)


@pytest.mark.parametrize("number", [0, 1])
def test_function_and_effects_have_their_joint_normal_distribution(number: int) -> None:
    """Draws are linear in normal numbers, whose coefficients give the covariance matrix."""
    effects, rng = EffectsOfLink.of(number, groupings()), np.random.default_rng(number)
    assert effects is not None and effects.eliminated == 1 and effects.others == [0]
    rows, drawn = rows_of(rng, effects), drawn_of(rng)
    posterior = found(effects, rows, drawn)
    n_numbers = N_VALUES + posterior.effects.n_numbers

    def draw(numbers: Tensor) -> Tensor:
        function = posterior.function.draw(numbers[:, :N_VALUES])
        values, own = posterior.effects.draw(function, numbers[:, N_VALUES:])
        return torch.cat([values, own.flatten(1)], dim=1)

    zero = torch.zeros(N_CHAINS, n_numbers).double()
    mean = draw(zero)
    units = [torch.eye(n_numbers).double()[k].expand(N_CHAINS, -1) for k in range(n_numbers)]
    root = torch.stack([draw(unit) - mean for unit in units], dim=2)
    for s in range(N_CHAINS):
        design, (precision, shift) = dense(rows, s), prior_of(effects, drawn, s)
        weighted = design * rows.weights[s] / (NOISE[s] + rows.rest[s])
        precision = precision + weighted @ design.T
        torch.testing.assert_close(root[s] @ root[s].T, torch.linalg.inv(precision))
        torch.testing.assert_close(mean[s], torch.linalg.solve(precision, shift + weighted @ rows.targets[s]))
        torch.testing.assert_close(left(rows, mean, posterior)[s], rows.targets[s] - mean[s] @ design)


def left(rows: GroupedRows, values: Tensor, posterior: EffectsPosterior) -> Tensor:
    """Return what values in the order of `dense` leave of the targets."""
    shape = posterior.effects.eliminated[0].shift.shape
    n_values = values.shape[1] - shape[1] * shape[2]
    return rows.left(values[:, :n_values], values[:, n_values:].view(shape))


@pytest.mark.parametrize("number", [0, 1])
def test_moments_in_rows_are_those_of_the_joint_distribution(number: int) -> None:
    effects, rng = EffectsOfLink.of(number, groupings()), np.random.default_rng(2 + number)
    assert effects is not None
    rows, drawn = rows_of(rng, effects), drawn_of(rng)
    mean, variance = found(effects, rows, drawn).moments(rows)
    for s in range(N_CHAINS):
        design, (precision, shift) = dense(rows, s), prior_of(effects, drawn, s)
        weighted = design * rows.weights[s] / (NOISE[s] + rows.rest[s])
        covariance = torch.linalg.inv(precision + weighted @ design.T)
        torch.testing.assert_close(mean[s], (covariance @ (shift + weighted @ rows.targets[s])) @ design)
        torch.testing.assert_close(variance[s], (design * (covariance @ design)).sum(0))


def test_effects_are_written_where_offsets_read_them() -> None:
    effects, rng = EffectsOfLink.of(1, groupings()), np.random.default_rng(4)
    assert effects is not None
    rows, drawn = rows_of(rng, effects), drawn_of(rng)
    told: EffectsGiven = effects.given(rows.sums(NOISE), drawn)
    function, numbers = normal(rng, N_CHAINS, N_VALUES), normal(rng, N_CHAINS, told.n_numbers)
    values, own = told.draw(function, numbers)
    written = effects.written(drawn, values, own)
    table = torch.stack([GROUPS.double(), OTHERS.double(), rows.design[0, 1]], dim=1)
    offset = sum(each.at(table.expand(N_CHAINS, -1, -1), ())[0] for each in effects.offsets(written))
    without = replace(rows, targets=torch.zeros_like(rows.targets)).left(values, own)
    of_function = (function[:, None] @ rows.basis[:, :N_VALUES])[:, 0]
    torch.testing.assert_close(offset, -without - of_function)
    for before, after in zip(drawn, written, strict=True):
        assert (before.values[:, 0] == after.values[:, 0]).all(), "effects of the other link"


def test_links_without_effects_have_none_and_subjects_come_first() -> None:
    assert EffectsOfLink.of(2, groupings()) is None
    first = EffectsOfLink.of(1, groupings(), 0)
    assert first is not None and first.eliminated == 0 and first.others == [1]
    offset = first.offsets(drawn_of(np.random.default_rng(5)))
    assert [type(each) for each in offset] == [EffectsOffset] * 2
