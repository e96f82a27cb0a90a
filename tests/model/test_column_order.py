"""Choice of the column order of a sequential chain, and the test for curved relations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch import Tensor

from pyro_mgp.model.column_order import _NOISES, Evidence, best_order, complete_rows, is_curved, log_evidence


def columns(*parts: np.ndarray) -> Tensor:
    return torch.as_tensor(np.column_stack(parts))


def parabola(seed: int, n_rows: int = 80) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=n_rows)
    return x, x**2 + 0.3 * generator.normal(size=n_rows)


def gaussian(seed: int, n_rows: int = 80) -> Tensor:
    generator = np.random.default_rng(seed)
    return torch.as_tensor(generator.normal(size=(n_rows, 3)) @ generator.normal(size=(3, 3)))


def test_the_evidence_is_that_of_gp_regression_at_the_best_noise_and_scale() -> None:
    """Differences of the evidence between inputs equal those of normal densities at their best scales."""
    table = gaussian(0, 25)
    evidence = Evidence(table, [(1.0, 0.0, 0.0)])
    standardised = ((table - table.mean(0)) / table.std(0)).numpy()
    y = standardised[:, 0]

    def best(K: np.ndarray) -> float:
        densities = []
        for ratio in _NOISES:
            noisy = K + ratio * np.eye(25)
            scale = y @ np.linalg.solve(noisy, y) / 25
            around = [multivariate_normal.logpdf(y, cov=scale * s * noisy) for s in (0.9, 1.0, 1.1)]
            assert np.argmax(around) == 1
            densities.append(around[1])
        return max(densities)

    X = standardised[:, [1, 2]]
    expected = best(1.0 + X @ X.T / 2) - best(np.ones((25, 25)))
    found = evidence.of(0, frozenset([1, 2])) - evidence.of(0, frozenset())
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_best_order_puts_a_square_after_its_root(seed: int) -> None:
    x, y = parabola(seed)
    for table, expected in ((columns(x, y), [0, 1]), (columns(y, x), [1, 0])):
        assert best_order(table, [], [0, 1], []) == expected
        assert best_order(table, [], [1, 0], []) == expected


def test_columns_that_have_nothing_to_do_with_either_do_not_keep_a_square_from_its_root() -> None:
    x, y = parabola(0)
    others = np.random.default_rng(1).normal(size=(2, 80))
    order = best_order(columns(y, *others, x), [], [0, 1, 2, 3], [])
    assert order.index(3) < order.index(0)


def test_what_is_first_stays_there_unless_that_is_clearly_worse() -> None:
    x, y = parabola(0)
    assert best_order(columns(y, x), [0], [1], []) == [1, 0]
    straight = gaussian(1)
    for order in ([0, 1, 2], [2, 0, 1]):
        assert best_order(straight, order[:1], order[1:], []) == order


def test_best_order_puts_a_product_after_its_factors() -> None:
    generator = np.random.default_rng(3)
    a, b = generator.normal(size=(2, 100))
    product = a * b + 0.3 * generator.normal(size=100)
    assert best_order(columns(product, a, b), [], [0, 1, 2], [])[-1] == 0
    assert best_order(columns(product, a, b), [], [0, 1], [2]) == [1, 0]


@pytest.mark.parametrize("seed", range(5))
def test_gaussian_columns_are_not_curved_and_parabolas_are(seed: int) -> None:
    assert not is_curved(gaussian(seed), [0, 1, 2], [])
    x, y = parabola(seed)
    assert is_curved(columns(x, y), [0, 1], [])
    assert is_curved(columns(x, y), [1], [0])
    assert not is_curved(columns(x, y), [0], [])


def test_units_do_not_matter_but_to_the_density() -> None:
    x, y = parabola(2)
    table = columns(x, y)
    scaled = table * torch.tensor([1e-3, 1e4]).double() + 7.0
    assert is_curved(scaled, [0, 1], []) and best_order(scaled, [], [1, 0], []) == [0, 1]
    lost = 80 * np.log(1e-3 * 1e4)
    assert log_evidence(scaled, [0, 1], []) == pytest.approx(log_evidence(table, [0, 1], []) - lost)


def test_a_column_constant_in_complete_rows_adds_no_evidence() -> None:
    x, y = parabola(0)
    table = columns(y, np.ones(80), x)
    assert best_order(table, [], [0, 1, 2], []) in ([1, 2, 0], [2, 1, 0], [2, 0, 1])
    assert is_curved(table, [1, 2, 0], [])
    without = log_evidence(columns(x, y), [0, 1], [])
    assert log_evidence(table, [2, 0, 1], []) == pytest.approx(without)


def test_complete_rows_are_at_most_300_and_none_below_20() -> None:
    observed = torch.ones(700, 2, dtype=torch.bool)
    observed[::2, 1] = False
    rows = complete_rows(observed)
    assert rows is not None and rows.tolist() == list(range(1, 600, 2))
    observed[41:, 0] = False
    assert (rows := complete_rows(observed)) is not None and len(rows) == 20
    observed[1, 0] = False
    assert complete_rows(observed) is None
