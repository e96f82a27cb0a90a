"""Random effects, their covariance, and what other links tell about them agree with closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from pyro_mgp.inference.function_posterior import FunctionPosterior
from pyro_mgp.inference.random_effects import Grouping
from pyro_mgp.model.kernels import RandomEffects, linear_quadratic_matern32
from pyro_mgp.model.likelihoods import Gaussian
from pyro_mgp.model.link import Link
from pyro_mgp.model.sequential_chain import SequentialChain

N_GROUPS, N_SLOPES = 3, 1


def chain() -> SequentialChain:
    """Return links of x given groups, and of y given x, with a slope of x in each group.

    The columns of the table are z, the number of the group (mean 1, scale .8), x and y.
    """
    Xu = torch.as_tensor(np.random.default_rng(0).normal(size=(4, 4)))
    own = [RandomEffects(1, N_GROUPS, 1.0, 0.8), RandomEffects(2, N_GROUPS, 1.0, 0.8, (1,))]
    first = linear_quadratic_matern32(2, [], 12, own[:1])
    second = linear_quadratic_matern32(3, [], 12, own[1:])
    links = [
        Link(first, Xu[:, [0, 1]], 2, [0, 1], Gaussian(0.5), 1e-6),
        Link(second, Xu[:, [0, 2, 1]], 3, [0, 2, 1], Gaussian(0.5), 1e-6),
    ]
    return SequentialChain(links, ["x", "y"], n_rows=20)


def normal(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.as_tensor(rng.normal(size=shape))


def test_effects_of_all_links_belong_to_one_grouping() -> None:
    (grouping,) = Grouping.of(chain())
    assert grouping.column == 1
    assert grouping.links == (0, 1, 1)
    assert grouping.slopes == (None, None, 2)
    # After the intercept and slopes of one and of two inputs.
    assert grouping.coefficients.tolist() == [[2, 3, 4], [3, 4, 5], [6, 7, 8]]
    assert grouping.units.tolist() == [0.5] * 3
    assert grouping.wide.tolist() == [2.0] * 3


def test_without_groups_there_are_none() -> None:
    Xu = torch.zeros(1, 1).double()
    link = Link(linear_quadratic_matern32(1), Xu, 1, [0], Gaussian(0.5))
    assert Grouping.of(SequentialChain([link], ["y"], n_rows=3)) == []


def test_covariances_have_half_t_deviations_and_uniform_correlations_a_priori() -> None:
    """Effects and their covariance are drawn in turn from the joint prior (Huang and Wand, 2013)."""
    (grouping,), rng, n_chains = Grouping.of(chain()), np.random.default_rng(1), 4000
    precision = grouping.start(n_chains)
    functions = [torch.zeros(n_chains, 16).double() for _ in range(2)]
    for _ in range(80):
        factor = torch.linalg.cholesky(precision)
        drawn = torch.linalg.solve_triangular(factor.mT, normal(rng, n_chains, 3, N_GROUPS), upper=True)
        for k, (i, numbers) in enumerate(zip(grouping.links, grouping.coefficients, strict=True)):
            functions[i][:, numbers] = drawn[:, k]
        precision = grouping.draw(functions, precision, normal(rng, n_chains, grouping.n_numbers))
    covariance = torch.linalg.inv(precision).numpy()
    deviations = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    for k in range(3):
        assert stats.kstest(deviations[:, k] / 2.0, lambda q: 2 * stats.t.cdf(q, 2) - 1).pvalue > 1e-3
    for a, b in ((0, 1), (0, 2), (1, 2)):
        correlation = covariance[:, a, b] / deviations[:, a] / deviations[:, b]
        assert stats.kstest(correlation, stats.uniform(-1, 2).cdf).pvalue > 1e-3


@pytest.mark.parametrize("number", [0, 1])
def test_the_prior_given_other_links_is_the_conditional_normal(number: int) -> None:
    (grouping,), rng = Grouping.of(chain()), np.random.default_rng(2)
    root = rng.normal(size=(2, 3, 3))
    precision = torch.as_tensor(root @ root.transpose(0, 2, 1) + np.eye(3))
    functions = [normal(rng, 2, 16) for _ in range(2)]
    zeros = torch.zeros(2, 16).double()
    none = FunctionPosterior.natural(zeros + 1, torch.zeros(2, 16, 16).double(), zeros)
    gram, shift = grouping.prior_of(number, functions, precision, none)
    found = FunctionPosterior.natural(zeros + 1, gram, shift)
    effects = torch.stack([functions[i][:, c] for i, c in zip((0, 1, 1), grouping.coefficients, strict=True)])
    own = [0] if number == 0 else [1, 2]
    others = [k for k in range(3) if k not in own]
    for chain_number in range(2):
        covariance = np.linalg.inv(precision[chain_number].numpy())
        gain = covariance[np.ix_(own, others)] @ np.linalg.inv(covariance[np.ix_(others, others)])
        rest = covariance[np.ix_(own, own)] - gain @ covariance[np.ix_(others, own)]
        for group in range(N_GROUPS):
            places = grouping.coefficients[own, group]
            mean = gain @ effects[others, chain_number, group].numpy()
            np.testing.assert_allclose(found.mean[chain_number, places], mean, atol=1e-9)
            inverse = torch.cholesky_inverse(found.factor[chain_number])[places][:, places]
            np.testing.assert_allclose(inverse, rest, atol=1e-9)
    rest_of_values = [k for k in range(16) if k not in grouping.coefficients[own].flatten().tolist()]
    assert (found.mean[:, rest_of_values] == 0).all()
