"""The process over time agrees with dense covariance matrices, and its draws with their distributions."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from pyro_mgp.inference.grouped_rows import GroupedRows
from pyro_mgp.inference.time_process import (
    CorrelatedRows,
    ProcessDraw,
    ProcessOffset,
    TimeProcess,
    draw_values,
)
from pyro_mgp.model.kernels import RandomEffects, linear_quadratic_matern32
from pyro_mgp.model.likelihoods import Gaussian, HeavyTailed
from pyro_mgp.model.link import Link
from pyro_mgp.model.ornstein_uhlenbeck import OrnsteinUhlenbeck, Visits
from pyro_mgp.model.sequential_chain import SequentialChain

SUBJECTS = torch.tensor([0, 1, 0, 1, 2, 1, 0, 1, 2])
TIMES = torch.tensor([0.1, 0.0, 2.0, 0.4, 1.0, 0.9, 0.7, 3.0, 1.6]).double()
EFFECTS = RandomEffects(0, 3, 0.0, 1.0, time=1)


def process(n_links: int = 2, log_scale: tuple[float, float] = (0.0, 0.5)) -> TimeProcess:
    visits = Visits.of(SUBJECTS, TIMES)
    known = SUBJECTS[visits.rows], TIMES[visits.rows]
    wide = torch.linspace(1.0, 2.0, n_links).double()
    return TimeProcess(0, 1, EFFECTS, list(range(n_links)), visits, known, wide, log_scale)


def normal(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.as_tensor(rng.normal(size=shape))


def drawn_of(rng: np.random.Generator, n_links: int = 2) -> ProcessDraw:
    """Return a process with arbitrary values and parameters, in two chains."""
    root = normal(rng, 2, n_links, n_links)
    precision = root @ root.mT + torch.eye(n_links).double()
    return ProcessDraw(normal(rng, 2, n_links, 9), torch.tensor([[0.7], [2.0]]).double(), precision)


def near(scale: float) -> np.ndarray:
    """Return the correlation matrix of the process at visits in their order, `[V, V]`."""
    rows = Visits.of(SUBJECTS, TIMES).rows
    subjects, times = SUBJECTS[rows].numpy(), TIMES[rows].numpy()
    return np.exp(-np.abs(times[:, None] - times) / scale) * (subjects[:, None] == subjects)


def correlated(rng: np.random.Generator, k: int, drawn: ProcessDraw) -> tuple[CorrelatedRows, np.ndarray]:
    """Return rows of a link with random intercepts, without visits 3 and 5, and their numbers."""
    numbers = torch.tensor([0, 2, 8, 7, 1, 4, 6])
    basis, design, groups = normal(rng, 2, 4, 7), torch.ones(2, 1, 7).double(), SUBJECTS[numbers]
    targets, rest = normal(rng, 2, 7), normal(rng, 2, 7).square()
    rows = GroupedRows(basis, design, groups, 3, targets, rest, torch.ones_like(rest))
    return CorrelatedRows.of(process(), k, drawn, rows, numbers), numbers.numpy()


@pytest.mark.parametrize("k", [0, 1])
def test_functions_are_drawn_by_generalised_least_squares(k: int) -> None:
    rng = np.random.default_rng(k)
    drawn, noise = drawn_of(rng), torch.tensor([[0.3], [1.2]]).double()
    rows, numbers = correlated(rng, k, drawn)
    sums = rows.sums(noise)
    here = Visits.of(SUBJECTS, TIMES).place[numbers].numpy()
    for s in range(2):
        across = np.linalg.inv(drawn.precision[s].numpy())
        gain = across[k, 1 - k] / across[1 - k, 1 - k]
        left = across[k, k] - gain * across[1 - k, k]
        V = left * near(float(drawn.scale[s]))[np.ix_(here, here)]
        V += np.diag((noise[s] + rows.rows.rest[s, here]).numpy())
        basis = rows.rows.basis[s][:, here].numpy()
        errors = (rows.rows.targets[s, here] - gain * drawn.values[s, 1 - k, here]).numpy()
        np.testing.assert_allclose(sums.gram[s], basis @ np.linalg.solve(V, basis.T), rtol=1e-9)
        np.testing.assert_allclose(sums.shift[s], basis @ np.linalg.solve(V, errors), rtol=1e-8)
        members = (SUBJECTS[numbers] == torch.arange(3)[:, None]).double().numpy()
        of_groups = members @ np.linalg.solve(V, np.vstack([basis, members, errors]).T)
        np.testing.assert_allclose(sums.cross[s, :, 0], of_groups[:, :4], rtol=1e-8)
        np.testing.assert_allclose(np.diag(sums.block[s, :, 0, 0]), of_groups[:, 4:7], rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(sums.of_effects[s, :, 0], of_groups[:, 7], rtol=1e-8)


def test_the_evidence_is_that_of_process_and_noise() -> None:
    rng = np.random.default_rng(3)
    drawn, noise = drawn_of(rng), torch.tensor([[0.3], [1.2]]).double()
    rows, numbers = correlated(rng, 0, drawn)
    here = Visits.of(SUBJECTS, TIMES).place[numbers].numpy()
    found, expected = [], []
    for other in (drawn, drawn._replace(scale=drawn.scale * 3).stretched(0, torch.tensor([0.4, 2.0]))):
        found.append(rows._log_evidence(rows.rows.targets, other, noise).numpy())
        densities = []
        for s in range(2):
            across = np.linalg.inv(other.precision[s].numpy())
            gain = across[0, 1] / across[1, 1]
            V = (across[0, 0] - gain * across[1, 0]) * near(float(other.scale[s]))[np.ix_(here, here)]
            V += np.diag((noise[s] + rows.rows.rest[s, here]).numpy())
            errors = rows.rows.targets[s, here] - gain * other.values[s, 1, here]
            densities.append(stats.multivariate_normal(np.zeros(len(V)), V).logpdf(errors))
        expected.append(densities)
    np.testing.assert_allclose(np.diff(found, axis=0), np.diff(expected, axis=0), rtol=1e-9)


def test_values_have_the_posterior_of_a_gaussian_process() -> None:
    rng, n = np.random.default_rng(4), 20_000
    one = drawn_of(rng)
    drawn = ProcessDraw(*(each[:1].expand(n, *each.shape[1:]) for each in one))
    left, observed = normal(rng, 9), torch.as_tensor(rng.uniform(0, 4, 9))
    observed[[2, 6]] = 0.0
    given = left.expand(n, -1), observed.expand(n, -1)
    moved = draw_values(process().visits, drawn, 1, *given, normal(rng, n, 9))
    assert (moved.values[:, 0] == drawn.values[:, 0]).all()
    across = np.linalg.inv(one.precision[0].numpy())
    gain = across[1, 0] / across[0, 0]
    prior = (across[1, 1] - gain * across[0, 1]) * near(0.7)
    covariance = np.linalg.inv(np.linalg.inv(prior) + np.diag(observed.numpy()))
    mean = gain * one.values[0, 0].numpy()
    mean = mean + covariance @ (observed.numpy() * (left.numpy() - mean))
    np.testing.assert_allclose(moved.values[:, 1].mean(0), mean, atol=0.03)
    np.testing.assert_allclose(np.cov(moved.values[:, 1].numpy().T), covariance, atol=0.03)


def test_parameters_keep_their_priors() -> None:
    """Data and parameters drawn in turn have the joint distribution (Geweke, JASA 99:799-804, 2004)."""
    rng, n = np.random.default_rng(5), 3000
    own = process()
    rates = torch.as_tensor(rng.gamma(0.5, own.wide.square().numpy(), (n, 2)))
    roots = normal(rng, n, 3, 2) / (2 * rates.sqrt())[:, None]
    scale, precision = (0.5 * normal(rng, n, 1)).exp(), roots.mT @ roots
    drawn = ProcessDraw(own.start(n).values, scale, precision)
    noise = [torch.as_tensor(rng.standard_cauchy((n, 1))).square() for _ in range(2)]
    new = torch.linalg.cholesky(torch.linalg.inv(precision)) @ normal(rng, n, 2, 9)
    values = new * OrnsteinUhlenbeck.of(own.visits, scale).fresh[:, None].sqrt()
    for here, before in own.visits.steps():
        kept = OrnsteinUhlenbeck.of(own.visits, scale).kept[:, None, here]
        values[..., here] += kept * values[..., before]
    drawn = drawn._replace(values=values)
    for _ in range(15):
        for k in range(2):
            cells = drawn.values[:, k] + noise[k].sqrt() * normal(rng, n, 9)
            nothing, rest = torch.zeros(n, 0, 9).double(), torch.zeros(n, 9).double()
            given = GroupedRows(nothing, nothing, own.known[0], 3, cells, rest, torch.ones_like(rest))
            rows = CorrelatedRows(own, k, drawn, given)
            noise[k], drawn = rows.draw(cells, noise[k], lambda m: normal(rng, n, m), has_noise=True)
        drawn = own.draw_covariance(drawn, normal(rng, n, own.n_numbers))
    assert stats.kstest(drawn.scale[:, 0].log(), stats.norm(0.0, 0.5).cdf).pvalue > 1e-3
    covariance = torch.linalg.inv(drawn.precision)
    for k in range(2):
        deviations = covariance[:, k, k].sqrt() / own.wide[k]
        assert stats.kstest(deviations, lambda q: 2 * stats.t.cdf(q, 2) - 1).pvalue > 1e-3
        assert stats.kstest(noise[k][:, 0].sqrt(), stats.halfcauchy.cdf).pvalue > 1e-3
    correlation = covariance[:, 0, 1] / (covariance[:, 0, 0] * covariance[:, 1, 1]).sqrt()
    assert stats.kstest(correlation, stats.uniform(-1, 2).cdf).pvalue > 1e-3
    # At the visits of one subject: the process has its own correlation.
    whitened = OrnsteinUhlenbeck.of(own.visits, drawn.scale).innovations(drawn.values)[:, 0]
    ratios = whitened / covariance[:, 0, 0, None].sqrt()
    assert stats.kstest(ratios.flatten(), stats.norm.cdf).pvalue > 1e-3


def chain(effects: RandomEffects) -> SequentialChain:
    """Return links of t, x and y with effects of subjects: columns 1, 2 and 3; column 0 has the subjects."""
    links = []
    for column, likelihood in ((1, Gaussian(0.5)), (2, Gaussian(0.5)), (3, HeavyTailed(0.5))):
        inputs = [*range(1, column), 0]
        kernel = linear_quadratic_matern32(column, [], 9, [replace(effects, place=column - 1)])
        links.append(Link(kernel, torch.zeros(4, column).double(), column, inputs, likelihood))
    return SequentialChain(links, ["t", "x", "y"], n_rows=9)


def test_links_of_numbers_with_effects_have_the_process() -> None:
    table = torch.stack([SUBJECTS.double(), TIMES, TIMES, TIMES], dim=1)
    found = TimeProcess.of(chain(EFFECTS), table)
    assert found is not None
    # Neither times themselves, nor columns with outliers.
    assert found.links == (1,) and (found.subject, found.time) == (0, 1)
    assert found.log_scale[0] == pytest.approx((math.log(0.6) + math.log(3.0)) / 2)
    assert TimeProcess.of(chain(replace(EFFECTS, time=None)), table) is None
    assert TimeProcess.of(chain(EFFECTS), table[[0, 1, 4]]) is None, "subjects have one visit each"


def test_the_offset_is_the_process_at_the_row_s_visit() -> None:
    drawn = drawn_of(np.random.default_rng(6))
    offset = ProcessOffset(process(), 1, process().known, drawn)
    table = torch.stack([SUBJECTS.double(), TIMES], dim=1).repeat(2, 1, 1)
    table[:, 3, 1] += 1e-3
    added, slopes = offset.at(table, [1])
    expected = drawn.values[:, 1, process().visits.place]
    expected[:, 3] = 0.0
    assert (added == expected).all() and (slopes == 0).all()
