"""Order of the levels of a category: evidence of links, and orders that it prefers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import statsmodels.api as sm
import torch
from scipy.special import expit, log_expit, logsumexp

from pyro_mgp.model.level_order import LevelEvidence, best_level_order


def stages(n_rows: int = 300) -> tuple[torch.Tensor, torch.Tensor]:
    """Return an input `[n, 1]`, and the number of one of three stages that it passes through, `[n]`."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=n_rows) * 3
    stage = np.digitize(x + 0.5 * generator.normal(size=n_rows), [-1.5, 1.5])
    return torch.as_tensor(x[:, None]), torch.as_tensor(stage)


def test_the_evidence_of_a_link_is_that_of_logistic_regression_by_integration() -> None:
    """It equals an integral over intercept and slope, in the rows without the earlier level."""
    inputs, level = stages(120)
    found = LevelEvidence(inputs, level, 3).of(1, frozenset([0]))
    standard = ((inputs - inputs.mean()) / inputs.std(correction=0))[level > 0, 0].numpy()
    sign = np.where(level[level > 0] == 1, 1.0, -1.0)
    intercept, slope = np.meshgrid(np.linspace(-15, 15, 301), np.linspace(-6, 6, 241), indexing="ij")
    log_prior = -0.5 * (0.01 * intercept**2 + slope**2) + 0.5 * math.log(0.01) - math.log(2 * math.pi)
    log_joint = log_prior + sum(
        log_expit(s * (intercept + slope * x)) for s, x in zip(sign, standard, strict=True)
    )
    expected = logsumexp(log_joint) + math.log(0.1 * 0.05)
    assert abs(found - expected) < 0.1  # Laplace's method


def test_where_the_prior_hardly_matters_the_evidence_follows_from_that_of_statsmodels() -> None:
    generator = np.random.default_rng(1)
    x = generator.normal(size=(4000, 2))
    level = np.where(
        generator.random(4000) < expit(x @ [1.0, -0.5] - 0.3), 0, 1 + generator.integers(2, size=4000)
    )
    found = LevelEvidence(torch.as_tensor(x), torch.as_tensor(level), 3).of(0, frozenset())
    standard = (x - x.mean(0)) / x.std(0)
    fit = sm.Logit(level == 0, sm.add_constant(standard)).fit(disp=0)
    log_prior = -0.5 * (fit.params**2 @ [0.01, 1, 1]) + 0.5 * math.log(0.01)
    information = np.linalg.inv(fit.cov_params()) + np.diag([0.01, 1, 1])
    assert found == pytest.approx(fit.llf + log_prior - 0.5 * np.linalg.slogdet(information)[1], abs=0.01)


def test_the_last_level_and_levels_without_rows_add_nothing_that_rows_could_tell() -> None:
    inputs, level = stages()
    evidence = LevelEvidence(inputs, level.where(level < 2, 4), 5)  # no row has level 2 or 3
    assert evidence.of(0, frozenset([1, 2, 3, 4])) == 0
    assert evidence.of(2, frozenset([0, 1, 4])) == pytest.approx(0.0)


@pytest.mark.parametrize("names", [[0, 1, 2], [1, 2, 0], [2, 0, 1]])
def test_a_level_between_others_does_not_come_first_whatever_its_number(names: list[int]) -> None:
    """The order of the last two levels is of no importance."""
    inputs, level = stages()
    order = best_level_order(inputs, torch.tensor(names)[level], 3)
    assert sorted(order) == [0, 1, 2]
    assert order[0] != names[1]


@pytest.mark.parametrize("by_name", [False, True])
def test_rare_levels_of_a_multinomial_logit_come_before_the_most_frequent_one(by_name: bool) -> None:
    generator = np.random.default_rng(2)
    level = generator.choice(4, size=600, p=[0.6, 0.3, 0.07, 0.03])
    means = np.array([[0.0, 0.0], [0.5, 0.5], [-1.0, 1.0], [1.5, -1.0]])
    inputs = torch.as_tensor(means[level] + generator.normal(size=(600, 2)))
    number = np.arange(4)[::-1] if by_name else np.arange(4)
    order = best_level_order(inputs, torch.as_tensor(number[level]), 4)
    assert {number[2], number[3]} == set(order[:2])


def test_without_inputs_the_rarest_level_comes_first() -> None:
    level = torch.tensor([1] * 9 + [2] * 3 + [0] * 5)
    assert best_level_order(torch.zeros(17, 0).double(), level, 3) == [2, 0, 1]


@pytest.mark.parametrize("rare_first", [False, True])
def test_of_many_levels_the_order_of_the_table_or_of_frequencies_is_kept(rare_first: bool) -> None:
    """Of levels along a line, those at an end are told from all others."""
    sizes = (
        torch.tensor([9, 8, 10, 7, 11, 6, 12] * 4).sort().values
        if rare_first
        else 8 + torch.arange(28) * 5 % 7
    )
    along = torch.repeat_interleave(torch.arange(28), sizes)
    number = torch.arange(28).flip(0) * 3 % 28 if rare_first else torch.arange(28)
    order = best_level_order(along[:, None].double(), number[along], 28)
    expected = torch.bincount(number[along], minlength=28).argsort(stable=True) if rare_first else number
    assert order == expected.tolist()
