"""GAIN: losses as computed by hand, and accuracy on correlated columns."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks.paper.methods.gain import Networks, gain
from benchmarks.paper.profiles import Budget
from benchmarks.paper.protocol import rmse, split


@pytest.fixture
def networks() -> Networks:
    return Networks(3)


def test_losses_are_those_of_the_paper(networks: Networks) -> None:
    values, hint = torch.rand(4, 3), torch.zeros(4, 3)
    observed = torch.tensor([[True, True, False]]).expand(4, 3)
    m = observed.float()
    with torch.no_grad():
        G = networks.generate(values, observed)
        D = torch.sigmoid(networks.discriminator(torch.cat([values * m + G * (1 - m), hint], dim=1)))
        ours = (
            networks.discriminator_loss(values, observed, hint),
            networks.generator_loss(values, observed, hint),
        )
    torch.testing.assert_close(ours[0], -(m * D.log() + (1 - m) * (1 - D).log()).mean())
    squared = (m * (values - G) ** 2).mean() / m.mean()
    torch.testing.assert_close(ours[1], -((1 - m) * D.log()).mean() + 10 * squared)


def test_each_loss_moves_its_own_network(networks: Networks) -> None:
    table = torch.rand(50, 3).masked_fill(torch.rand(50, 3) < 0.2, torch.nan)
    before = [parameter.detach().clone() for parameter in networks.parameters()]
    networks.learn(table, iterations=1)
    after = list(networks.parameters())
    assert len(after) == 12
    assert not any(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    networks.zero_grad()
    networks.discriminator_loss(table.nan_to_num(), ~table.isnan(), torch.zeros(50, 3)).backward()
    assert all(parameter.grad is None for parameter in networks.generator.parameters())


def test_imputations_are_in_range_and_observed_cells_are_kept(networks: Networks) -> None:
    table = torch.rand(50, 3).masked_fill(torch.rand(50, 3) < 0.2, torch.nan)
    completed = networks.complete(table)
    assert ((completed >= 0) & (completed <= 1)).all()
    assert torch.equal(completed[~table.isnan()], table[~table.isnan()])


def test_imputations_of_correlated_columns_are_better_than_means() -> None:
    generator = np.random.default_rng(0)
    columns = generator.normal(size=(600, 1)) + 0.2 * generator.normal(size=(600, 8))
    train, test, truth = split(pd.DataFrame(columns, columns=list("abcdefgh")), 0.2, 0)
    imputed = gain(train, test, 0, Budget(gain_iterations=1500))
    completed = test.copy()
    for column, values in imputed.point.items():
        completed.loc[test[column].isna(), column] = values
    assert rmse(completed, truth, test, train) < 0.6
    assert rmse(test.fillna(train.mean()), truth, test, train) > 0.9
