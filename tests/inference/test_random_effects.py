"""Random effects, their covariance, and what other links tell about them agree with closed forms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from pyro.contrib.gp.kernels import Sum
from scipy import stats
from torch import Tensor

from pyro_mgp.inference.random_effects import (
    EffectsDraw,
    EffectsOffset,
    Grouping,
    with_effects,
    without_effects,
)
from pyro_mgp.model.kernels import RandomEffects, linear_quadratic_matern32, trend_of
from pyro_mgp.model.likelihoods import Gaussian
from pyro_mgp.model.link import Link
from pyro_mgp.model.sequential_chain import SequentialChain

N_GROUPS = 3
# Columns of the table: z, the number of the group, x and y.
GROUPS = torch.tensor([0, 2, 1, 2, 0, 5])


def chain(n_in_kernel: int | None = None) -> SequentialChain:
    """Return links of x given z and groups, and of y given x as well, with a slope of x in each group."""
    Xu = torch.as_tensor(np.random.default_rng(0).normal(size=(4, 4)))
    own = RandomEffects(1, N_GROUPS, 1.0, 0.8, n_in_kernel=n_in_kernel)
    first = linear_quadratic_matern32(2, [], 12, [own])
    second = linear_quadratic_matern32(3, [], 12, [replace(own, place=2, slopes=(1,))])
    links = [
        Link(first, Xu[:, [0, 1]], 2, [0, 1], Gaussian(0.5), 1e-10),
        Link(second, Xu[:, [0, 2, 1]], 3, [0, 2, 1], Gaussian(0.5), 1e-10),
    ]
    return SequentialChain(links, ["x", "y"], n_rows=20)


def normal(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.as_tensor(rng.normal(size=shape))


def table(rng: np.random.Generator) -> Tensor:
    rows = normal(rng, 6, 4)
    rows[:, 1] = (GROUPS - 1.0) / 0.8
    return rows


def test_effects_of_all_links_belong_to_one_grouping() -> None:
    (grouping,) = Grouping.of(chain())
    assert grouping.column == 1
    assert grouping.links == (0, 1, 1)
    assert grouping.slopes == (None, None, 2)
    assert grouping.wide.tolist() == [1.0] * 3
    assert [grouping.of_link(i) for i in range(2)] == [[0], [1, 2]]
    start = grouping.start(2)
    assert start.values.shape == (2, 3, N_GROUPS) and (start.precision == 4 * torch.eye(3)).all()


def test_without_groups_there_are_none() -> None:
    Xu = torch.zeros(1, 1).double()
    link = Link(linear_quadratic_matern32(1), Xu, 1, [0], Gaussian(0.5))
    own = SequentialChain([link], ["y"], n_rows=3)
    assert Grouping.of(own) == [] and without_effects(own) is own


def test_covariances_have_half_t_deviations_and_uniform_correlations_a_priori() -> None:
    """Effects and their covariance are drawn in turn from the joint prior (Huang and Wand, 2013)."""
    (grouping,), rng, n_chains = Grouping.of(chain()), np.random.default_rng(1), 4000
    drawn = grouping.start(n_chains)
    for _ in range(80):
        factor = torch.linalg.cholesky(drawn.precision)
        values = torch.linalg.solve_triangular(factor.mT, normal(rng, n_chains, 3, N_GROUPS), upper=True)
        drawn = drawn._replace(values=values)
        drawn = grouping.draw_precision(drawn, normal(rng, n_chains, grouping.n_numbers))
    covariance = torch.linalg.inv(drawn.precision).numpy()
    deviations = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    for k in range(3):
        assert stats.kstest(deviations[:, k], lambda q: 2 * stats.t.cdf(q, 2) - 1).pvalue > 1e-3
    for a, b in ((0, 1), (0, 2), (1, 2)):
        correlation = covariance[:, a, b] / deviations[:, a] / deviations[:, b]
        assert stats.kstest(correlation, stats.uniform(-1, 2).cdf).pvalue > 1e-3


@pytest.mark.parametrize("own", [[0], [1, 2]])
def test_the_prior_given_other_links_is_the_conditional_normal(own: list[int]) -> None:
    (grouping,), rng = Grouping.of(chain()), np.random.default_rng(2)
    root = rng.normal(size=(2, 3, 3))
    precision = torch.as_tensor(root @ root.transpose(0, 2, 1) + np.eye(3))
    effects = normal(rng, 2, 3, N_GROUPS)
    found, shift = grouping.prior_of(own, EffectsDraw(effects, precision))
    others = [k for k in range(3) if k not in own]
    for s in range(2):
        covariance = np.linalg.inv(precision[s].numpy())
        gain = covariance[np.ix_(own, others)] @ np.linalg.inv(covariance[np.ix_(others, others)])
        rest = covariance[np.ix_(own, own)] - gain @ covariance[np.ix_(others, own)]
        np.testing.assert_allclose(np.linalg.inv(found[s]), rest, atol=1e-9)
        np.testing.assert_allclose(rest @ shift[s].numpy(), gain @ effects[s, others].numpy(), atol=1e-9)


@pytest.mark.parametrize("n_in_kernel", [None, 2])
def test_function_plus_offset_is_the_function_of_a_kernel_with_effects(n_in_kernel: int | None) -> None:
    own, rng = chain(n_in_kernel), np.random.default_rng(3)
    few, rows = without_effects(own), table(rng)
    groupings = Grouping.of(few)
    assert [each.in_kernel for link in few.links for each in trend_of(link.kernel)[0].effects] == [(), ()]
    functions = [normal(rng, 2, link.n_values) for link in few.links]
    drawn = [groupings[0].start(2)._replace(values=normal(rng, 2, 3, N_GROUPS))]
    own_groups = trend_of(own.links[0].kernel)[0].effects[0].in_kernel
    drawn[0].values[..., [g for g in range(N_GROUPS) if g not in own_groups]] = 0.0
    whole = own.conditionals(with_effects(own, functions, groupings, drawn))
    apart = few.conditionals(functions)
    for i in range(2):
        offset = EffectsOffset(groupings[0], groupings[0].of_link(i), drawn[0].values)
        added, _ = offset.at(rows.expand(2, -1, -1), ())
        assert (added[:, GROUPS == 5] == 0).all()
        found, expected = whole[i].functions(rows), apart[i].functions(rows) + added
        torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-6)


def test_offsets_are_linear_in_columns_with_slopes() -> None:
    (grouping,), rng = Grouping.of(chain()), np.random.default_rng(4)
    rows = table(rng).expand(2, -1, -1)
    offset = EffectsOffset(grouping, [1, 2], normal(rng, 2, 3, N_GROUPS))
    whole, _ = offset.at(rows, ())
    rest, slopes = offset.at(rows, (0, 2))
    assert (slopes[..., 0] == 0).all()
    torch.testing.assert_close(rest + slopes[..., 1] * rows[..., 2], whole)


def test_chains_without_effects_have_the_marginals_of_the_others() -> None:
    own, rng = chain(), np.random.default_rng(5)
    with torch.no_grad():
        for link in own.links:
            root = normal(rng, link.n_values, link.n_values) / 4 + torch.eye(link.n_values)
            link.u_loc, link.u_scale_tril = normal(rng, link.n_values), torch.linalg.cholesky(root @ root.T)
    few = without_effects(own)
    for before, after in zip(own.links, few.links, strict=True):
        n_others = trend_of(before.kernel)[0].n_others
        assert isinstance(after.kernel, Sum) and after.n_values == 3 + 4
        for covariance, loc, link in (
            (before.u_scale_tril @ before.u_scale_tril.T, before.u_loc, before),
            (after.u_scale_tril @ after.u_scale_tril.T, after.u_loc, after),
        ):
            kept = [*range(n_others), *range(link.n_values - 4, link.n_values)]
            if link is before:
                expected = loc[kept], covariance[kept][:, kept]
            else:
                torch.testing.assert_close((loc[kept], covariance[kept][:, kept]), expected)
