"""Choice of the column order of a sequential chain: evidence, and moves of variables."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import statsmodels.api as sm
import torch
from scipy.stats import multivariate_normal
from torch import Tensor

from pyro_mgp.model.column_order import _NOISES, _VARIANCES, MOST_INPUTS, Evidence, best_order


def evidence_of(*columns: np.ndarray) -> Evidence:
    """Return the evidence of numeric columns."""
    table = torch.as_tensor(np.column_stack(columns))
    return Evidence(table, list(range(len(columns))), [False] * len(columns))


def parabola(seed: int, n_rows: int = 80) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=n_rows)
    return x, x**2 + 0.3 * generator.normal(size=n_rows)


def gaussian(seed: int, n_rows: int = 80) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return generator.normal(size=(n_rows, 3)) @ generator.normal(size=(3, 3))


def test_the_evidence_is_that_of_regression_at_the_best_noise_scale_and_prior() -> None:
    """It equals normal densities of the column at the covariance of the terms, up to a constant."""
    table = gaussian(0, 25)
    standard = (table - table.mean(0)) / table.std(0, ddof=1)
    y, X = standard[:, 0], standard[:, 1:]
    products = np.column_stack([X[:, 0] ** 2, X[:, 0] * X[:, 1], X[:, 1] ** 2])
    products -= products.mean(0)

    def density(K: np.ndarray, ratio: float) -> float:
        noisy = K + ratio * np.eye(25)
        scale = y @ np.linalg.solve(noisy, y) / 25
        return float(multivariate_normal.logpdf(y, cov=scale * noisy))

    def best(kernels: list[np.ndarray]) -> float:
        return max(density(K, ratio) for K, ratio in itertools.product(kernels, _NOISES))

    covariances = [
        linear / 2 * X @ X.T + product / 2 * products @ products.T
        for linear, product, curve in _VARIANCES
        if curve == 0
    ]
    found = evidence_of(*table.T)
    straight = found.of(0, frozenset([1, 2])) - found.of(0, frozenset())
    # Curves of one column can only add to it.
    assert straight >= best(covariances) - best([np.zeros((25, 25))]) - 1e-8
    without = evidence_of(*np.sign(table).T * 1.0)  # two values have no curves
    assert np.isfinite(without.of(0, frozenset([1, 2])))


def test_the_evidence_without_curves_equals_the_normal_density() -> None:
    """Columns of three values have no curves."""
    generator = np.random.default_rng(2)
    x = generator.integers(0, 2, size=40).astype(float)
    y = x + generator.normal(size=40)
    found = evidence_of(y, x)
    standard = [(c - c.mean()) / c.std(ddof=1) for c in (y, x)]
    square = standard[1] ** 2 - (standard[1] ** 2).mean()

    def best(kernels: list[np.ndarray]) -> float:
        densities = []
        for K, ratio in itertools.product(kernels, _NOISES):
            noisy = K + ratio * np.eye(40)
            scale = standard[0] @ np.linalg.solve(noisy, standard[0]) / 40
            densities.append(multivariate_normal.logpdf(standard[0], cov=scale * noisy))
        return float(max(densities))

    kernels = [
        a * np.outer(standard[1], standard[1]) + b * np.outer(square, square) for a, b, _ in _VARIANCES
    ]
    expected = best(kernels) - best([np.zeros((40, 40))])
    assert found.of(0, frozenset([1])) - found.of(0, frozenset()) == pytest.approx(expected, abs=1e-6)


def test_models_of_few_terms_are_those_of_forward_selection_by_least_squares() -> None:
    """Sixteen indicators and a sign, whose only terms are linear and products with it."""
    generator = np.random.default_rng(5)
    n, levels = 400, 16
    level, sign = np.eye(levels)[generator.integers(0, levels, n)], generator.choice([-1.0, 1.0], n)
    y = 2 * level[:, 3] * sign - level[:, 5] + 0.5 * sign + generator.normal(size=n)
    table = np.column_stack([level, sign, y])
    variables = [0] * levels + [1, 2], [True] * (levels + 1) + [False]
    found = Evidence(torch.as_tensor(table), *variables).of(2, frozenset([0, 1]))

    standard = (table - table.mean(0)) / table.std(0, ddof=1)
    products = standard[:, :levels] * standard[:, [levels]]
    terms = np.column_stack([standard[:, :-1], products - products.mean(0)])
    chosen, expected = list[int](), list[float]()
    for k in range(12):
        fits = [np.linalg.lstsq(terms[:, [*chosen, t]], standard[:, -1])[0] for t in range(terms.shape[1])]
        squares = [
            float(np.square(standard[:, -1] - terms[:, [*chosen, t]] @ fit).sum())
            for t, fit in enumerate(fits)
        ]
        chosen.append(int(np.argmin(squares)))
        models = math.log(math.comb(terms.shape[1], k + 1))
        expected.append(-n / 2 * math.log(min(squares) / n) - (k + 1) / 2 * math.log(n) - models)
    assert found == pytest.approx(max(expected), abs=1e-6)


def test_inputs_without_use_do_not_move_an_outcome_from_the_end() -> None:
    """A factor of ten levels matters little; with all of its products the outcome's link would seem bad."""
    generator = np.random.default_rng(6)
    n, levels = 1000, 10
    number = generator.integers(0, levels, n)
    x, z = generator.normal(size=(2, n))
    y = x * z + 0.5 * (number == 3) + generator.normal(size=n)
    table = np.column_stack([np.eye(levels)[number], x, z, y])
    variables = [0] * levels + [1, 2, 3], [True] * levels + [False] * 3
    assert best_order(Evidence(torch.as_tensor(table), *variables), [], [3, 0, 1, 2])[-1] == 3


@pytest.mark.parametrize("noise", [0.1, 1.0])
def test_complete_columns_stay_in_front_if_one_is_the_square_of_another(noise: float) -> None:
    """Their own order, in which the square comes first, must not count for moving them."""
    generator = np.random.default_rng(8)
    a = generator.normal(size=1000)
    square = a**2 + noise * generator.normal(size=1000)
    y = a + noise * generator.normal(size=1000)
    assert best_order(evidence_of(square, a, y), [0, 1], [2])[-1] == 2


def test_links_that_are_linear_in_few_of_many_inputs_are_not_curved() -> None:
    generator = np.random.default_rng(9)
    x = generator.normal(size=(1000, 20))
    evidence = evidence_of(*x.T, x[:, 0] + x[:, 2] + generator.normal(size=1000))
    assert max(evidence.of_curvature(variable) for variable in range(21)) < 3


def test_wide_tables_have_products_from_fewer_completions() -> None:
    generator = np.random.default_rng(10)
    x = generator.normal(size=(2000, 40))
    y = x[:, 0] * x[:, 1] + 0.3 * generator.normal(size=2000)
    table = torch.as_tensor(np.column_stack([x, y])).repeat(20, 1)
    evidence = Evidence(table, list(range(41)), [False] * 41, 2000)
    assert evidence.of(40, frozenset([0, 1])) - evidence.of(40, frozenset()) > 1000


def test_best_inputs_are_those_of_the_terms_that_matter() -> None:
    generator = np.random.default_rng(7)
    x = generator.normal(size=(500, 20))
    y = x[:, 0] * x[:, 1] + np.sin(3 * x[:, 2]) + 0.5 * x[:, 5] + 0.3 * generator.normal(size=500)
    best = evidence_of(*x.T, y).best_inputs(20, range(20))
    assert {0, 1, 2, 5} <= set(best)
    assert len(best) <= MOST_INPUTS


def test_matrices_of_wide_tables_are_small() -> None:
    """With all products of 300 columns they took 18 GB."""
    table = torch.randn(100, 300, generator=torch.Generator().manual_seed(0)).double()
    evidence = Evidence(table, list(range(300)), [False] * 300)
    assert evidence.products.nbytes < 1e8
    assert np.isfinite(evidence.of(0, frozenset(range(1, 300))))


@pytest.mark.parametrize("seed", range(3))
def test_best_order_puts_a_square_after_its_root(seed: int) -> None:
    x, y = parabola(seed)
    assert best_order(evidence_of(x, y), [], [0, 1]) == [0, 1]
    assert best_order(evidence_of(y, x), [], [0, 1]) == [1, 0]


def test_unrelated_columns_between_do_not_keep_a_square_from_its_root() -> None:
    x, y = parabola(0)
    others = np.random.default_rng(1).normal(size=(2, 80))
    order = best_order(evidence_of(y, *others, x), [], [0, 1, 2, 3])
    assert order.index(3) < order.index(0)


def test_what_is_first_stays_there_unless_that_is_clearly_worse() -> None:
    x, y = parabola(0)
    assert best_order(evidence_of(y, x), [0], [1]) == [1, 0]
    straight = evidence_of(*gaussian(1).T)
    for order in ([0, 1, 2], [2, 0, 1]):
        assert best_order(straight, order[:1], order[1:]) == order


def test_best_order_puts_a_product_after_its_factors() -> None:
    generator = np.random.default_rng(3)
    a, b = generator.normal(size=(2, 100))
    product = a * b + 0.3 * generator.normal(size=100)
    assert best_order(evidence_of(product, a, b), [], [0, 1, 2])[-1] == 0


def level_and_number(seed: int, n_rows: int = 300) -> tuple[Tensor, list[int], list[bool]]:
    """Return three indicators of a level, and two numbers whose product depends on the level."""
    generator = np.random.default_rng(seed)
    level = generator.integers(0, 3, n_rows)
    x = generator.normal(size=n_rows)
    y = np.array([1.0, -1.0, 0.0])[level] * x + 0.3 * generator.normal(size=n_rows)
    table = np.column_stack([np.eye(3)[level], x, y])
    return torch.as_tensor(table), [0, 0, 0, 1, 2], [True] * 3 + [False] * 2


def test_an_interaction_with_a_level_puts_the_outcome_last() -> None:
    evidence = Evidence(*level_and_number(0))
    assert best_order(evidence, [], [2, 0, 1])[-1] == 2


@pytest.mark.parametrize("n_levels", [2, 3, 6])
def test_the_evidence_of_a_category_is_that_of_multinomial_regression(n_levels: int) -> None:
    generator = np.random.default_rng(1)
    x = generator.normal(size=(10_000, 2))
    utilities = x @ generator.normal(size=(2, n_levels)) * 0.3 + generator.gumbel(size=(10_000, n_levels))
    level = utilities.argmax(1)
    table = torch.as_tensor(np.column_stack([np.eye(n_levels)[level], x]))
    evidence = Evidence(table, [0] * n_levels + [1, 2], [True] * n_levels + [False] * 2)
    gain = evidence.of(0, frozenset([1, 2])) - evidence.of(0, frozenset())
    fitted, alone = (
        sm.MNLogit(level, inputs).fit(disp=False) for inputs in (sm.add_constant(x), np.ones(10_000))
    )
    # Twice as many coefficients as levels but one, at ½ log n each.
    expected = fitted.llf - alone.llf - (n_levels - 1) * np.log(10_000)
    assert gain == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(("slope", "expected"), [(0.0, 0.0), (100.0, 1.0)])
def test_a_level_has_at_most_the_evidence_of_its_entropy(slope: float, expected: float) -> None:
    generator = np.random.default_rng(0)
    x = generator.choice([-1.0, 1.0], 400)
    level = generator.random(400) < 1 / (1 + np.exp(-slope * x))
    evidence = Evidence(torch.as_tensor(np.stack([level, x], 1)), [0, 1], [True, False])
    gain = evidence.of(0, frozenset([1])) - evidence.of(0, frozenset())
    assert gain / 400 == pytest.approx(expected * np.log(2), abs=0.02)


def test_sums_are_averaged_over_completions() -> None:
    table, *variables = level_and_number(0)
    once, thrice = Evidence(table, *variables), Evidence(table.repeat(3, 1), *variables, len(table))
    assert thrice.of_order([0, 1, 2]) == pytest.approx(once.of_order([0, 1, 2]), rel=1e-2)


def test_columns_that_are_constant_have_no_evidence() -> None:
    x, y = parabola(4)
    found = evidence_of(x, y, np.zeros(80))
    assert found.of(2, frozenset([0, 1])) == 0.0
    assert found.of_order([0, 1, 2]) == found.of_order([0, 1])
