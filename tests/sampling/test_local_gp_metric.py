"""Metrics of local GPs: the score against quadrature, its gradient by autograd, and estimates."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm

from pyro_mgp.sampling import local_gp_metric
from pyro_mgp.sampling.local_gp import LocalGPParams, LocalLink
from pyro_mgp.sampling.local_gp_metric import Batch, LeaveOneOut, crps, learn_metrics


@pytest.mark.parametrize(("value", "mean", "sd"), [(0.3, 0.0, 1.0), (-2.0, 0.5, 0.7), (5.0, 0.0, 0.1)])
def test_the_score_is_the_integral_of_squared_differences_of_distribution_functions(value, mean, sd) -> None:
    def squared(x: float) -> float:
        return float(norm.cdf(x, mean, sd) - (x >= value)) ** 2

    ends = sorted([mean - 12 * sd, value, mean, mean + 12 * sd])
    expected = sum(quad(squared, a, b, epsabs=1e-12)[0] for a, b in pairwise(ends))
    found, *_ = crps(*(torch.tensor(x).double() for x in (value, mean, sd**2)))
    assert float(found) == pytest.approx(expected, abs=1e-8)


def batch() -> Batch:
    """Return a random batch of two links."""
    parts = torch.randn(2, 5, 6, 3), torch.randn(2, 5, 6), torch.randn(2, 5), 0.1 * torch.rand(2, 5)
    return Batch(*(part.double() for part in parts), prior=torch.tensor([0.2, 0.7]).double())


def by_hand(batch: Batch, parameters: torch.Tensor) -> torch.Tensor:
    """Evaluate the module's equations cell by cell, for autograd."""
    means = []
    for i, of_link in enumerate(parameters):
        lengthscales, nugget = of_link[:-1].exp(), of_link[-1].exp()
        scores = []
        for inputs, e, value, variance in zip(
            batch.inputs[i], batch.residuals[i], batch.targets[i], batch.variance[i], strict=True
        ):
            points = torch.cat([inputs, torch.zeros(1, 3).double()]) / lengthscales
            distance = (points[:, None] - points).square().sum(-1).add(1e-30).sqrt() * math.sqrt(3)
            K = (1 + distance) * torch.exp(-distance)
            C, c = K[:-1, :-1] + nugget * torch.eye(6).double(), K[:-1, -1]
            w, alpha = torch.linalg.solve(C, c), torch.linalg.solve(C, e)
            scale = (batch.prior[i] + e @ alpha) / (1 + 6)
            scores.append(crps(value, w @ e, scale * (1 + nugget - w @ c) + variance)[0])
        means.append(torch.stack(scores).mean())
    return torch.stack(means)


def test_scores_of_a_batch_and_their_gradients() -> None:
    some = batch()
    parameters = torch.tensor([[0.1, -0.4, 0.8, -1.0], [0.5, 0.2, -0.1, -2.0]]).double().requires_grad_()
    expected = by_hand(some, parameters)
    (gradient,) = torch.autograd.grad(expected.sum(), parameters)
    found, own = some.score(parameters.detach())
    torch.testing.assert_close(found, expected.detach())
    torch.testing.assert_close(own, gradient, rtol=1e-6, atol=1e-8)


def test_equal_rows_have_a_finite_score() -> None:
    inputs, nothing = torch.zeros(1, 4, 6, 3), torch.zeros(1, 4)
    some = Batch(inputs, torch.randn(1, 4, 6), torch.randn(1, 4), nothing, prior=torch.tensor([0.2]))
    score, gradient = some.score(torch.tensor([[0.0, 0.0, 0.0, math.log(0.3)]]))
    assert score.isfinite().all()
    torch.testing.assert_close(gradient[:, :-1], torch.zeros(1, 3))


def local_link(n: int = 1500, n_inputs: int = 2, n_neighbours: int = 24) -> LocalLink:
    """Return a local GP of residuals that are a step function of the first input."""
    rows = torch.rand(n, n_inputs).double()
    residuals = torch.floor(8 * rows[:, 0]) % 2 + 0.05 * torch.randn(n).double()
    params = LocalGPParams((0.25,) * n_inputs, 0.3, 1.0, 0.1)
    return LocalLink.of(torch.arange(n_inputs), rows, residuals, n_neighbours, params)


def learn(*links: LocalLink, median: float | None = None) -> list[tuple[torch.Tensor, float]]:
    """Learn metrics, with prior medians where the search starts if there is no other `median`."""

    def left_out_of(local: LocalLink) -> Callable[[torch.Tensor], LeaveOneOut]:
        def leave_one_out(cells: torch.Tensor) -> LeaveOneOut:
            rows = local.inputs[cells] * local.lengthscales
            nothing = torch.zeros(len(cells)).double()
            return LeaveOneOut(cells, rows, local.residuals[cells], nothing, nothing)

        return leave_one_out

    generator = torch.Generator().manual_seed(0)
    starts = [local.params.lengthscales for local in links]
    priors = [start if median is None else (median,) * len(start) for start in starts]
    return learn_metrics(links, priors, [left_out_of(local) for local in links], 2, generator)


def test_lengthscales_are_drawn_towards_their_prior_medians() -> None:
    local = local_link(50)
    noise = replace(local, residuals=torch.randn(50).double())
    short, long = (learn(noise, median=median)[0][0] for median in (0.1, 5.0))
    assert (10 * short < long).all()


def test_irrelevant_inputs_get_a_longer_lengthscale() -> None:
    ((lengthscales, nugget),) = learn(local_link())
    assert lengthscales[1] > 4 * lengthscales[0]
    assert 1e-3 <= nugget < 0.3


def test_learnt_lengthscales_predict_better() -> None:
    local, new = local_link(), local_link()
    ((found, _),) = learn(local)
    rows = new.inputs * new.lengthscales
    errors = [
        (link.posterior(rows).moments(rows[None]).mean[0] - new.residuals).square().mean()
        for link in (local, replace(local, lengthscales=found, n_neighbours=24))
    ]
    assert errors[1] < 0.75 * errors[0]


def test_a_prior_keeps_lengthscales_of_few_rows_near_their_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def change() -> torch.Tensor:
        ((found, _),) = learn(local_link(60))
        return (found / 0.25).log().abs()

    monkeypatch.setattr(local_gp_metric, "_EXPECTED_CHANGE", 1e9)
    free = change()
    monkeypatch.setattr(local_gp_metric, "_EXPECTED_CHANGE", 0.1)
    assert (change() < 0.5 * free).all()


def test_the_same_batches_give_the_same_lengthscales() -> None:
    local = local_link(200)
    ((first, nugget),), ((second, same),) = learn(local), learn(local)
    np.testing.assert_array_equal(first, second)
    assert nugget == same


@pytest.mark.parametrize("entries", [1, 2**20])
def test_links_of_different_shapes_are_learnt_together(entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With as many rows as a batch has cells, all rows are in each batch."""
    monkeypatch.setattr(local_gp_metric, "_ENTRIES_AT_ONCE", entries)
    most = local_gp_metric._CELLS
    shapes = [
        (most, 2, 24),
        (60, 2, 24),
        (most, 2, 24),
        (60, 2, 24),
        (most, 1, 24),
        (most, 3, 24),
        (most, 2, 5),
    ]
    links = [local_link(*shape) for shape in shapes]
    for local, (lengthscales, nugget) in zip(links, learn(*links), strict=True):
        ((alone, own),) = learn(local)
        torch.testing.assert_close(lengthscales, alone)
        assert nugget == pytest.approx(own)


def test_neighbours_of_a_distant_cell_are_distinguished() -> None:
    local = local_link()
    rows = local.inputs[:30] * local.lengthscales + 3000 * local.lengthscales
    nothing = torch.zeros(30).double()
    some = Batch.of([local], [LeaveOneOut(local.references[:30], rows, nothing, nothing, nothing)])
    score, gradient = some.score(torch.cat([local.lengthscales, torch.tensor([1e-3]).double()]).log()[None])
    assert score.isfinite().all()
    assert gradient.isfinite().all()
