"""R-hat and effective sample sizes agree with ArviZ, and judge chains by what their draws need."""

from __future__ import annotations

import math

import arviz as az
import numpy as np
import pytest
import torch
from torch import Tensor

from pyro_mgp.inference.mixing import Record, bulk_ess, largest_rhat, split_rhat


def autoregressive(n_chains: int, n_iterations: int, n: int, tau: float, seed: int = 0) -> Tensor:
    """Return stationary traces `[chains, iterations, n]` whose integrated autocorrelation time is tau."""
    rho, generator = (tau - 1) / (tau + 1), torch.Generator().manual_seed(seed)
    steps = torch.randn(n_iterations, n_chains, n, dtype=torch.float64, generator=generator)
    states = [steps[0]]
    for step in steps[1:]:
        states.append(rho * states[-1] + math.sqrt(1 - rho**2) * step)
    return torch.stack(states, 1)


@pytest.mark.parametrize(("n_chains", "n_iterations"), [(4, 5), (20, 25), (8, 50), (4, 401)])
@pytest.mark.parametrize("tau", [1, 4])
def test_they_agree_with_arviz(n_chains: int, n_iterations: int, tau: float) -> None:
    traces = autoregressive(n_chains, n_iterations, 6, tau).exp()
    traces[..., 1] = (traces[..., 1] > 1).double()  # many ties
    traces[0, :, 2] *= 3  # chains of different spread
    columns = [each.numpy() for each in traces.unbind(-1)]
    np.testing.assert_allclose(split_rhat(traces), [float(az.rhat(x)) for x in columns], rtol=1e-6)
    if n_iterations >= 50:  # ArviZ leaves out the last lags
        np.testing.assert_allclose(bulk_ess(traces), [float(az.ess(x)) for x in columns], rtol=0.05)


@pytest.mark.parametrize(("n_chains", "n_sweeps", "n_draws"), [(20, 5, 1), (20, 5, 5), (4, 5, 5), (4, 1, 8)])
def test_independent_draws_are_not_too_far_apart(n_chains: int, n_sweeps: int, n_draws: int) -> None:
    """Of a hundred tables with ten columns, about one is expected to be called slow."""
    traces = autoregressive(n_chains, n_sweeps * n_draws, 1000, 1)
    worst = split_rhat(traces).view(100, 10).amax(1)
    assert (worst > largest_rhat(n_chains, n_sweeps * n_draws, n_draws, 10)).sum() <= 3


@pytest.mark.parametrize(("tau", "low", "high"), [(5, 0, 0.1), (20, 0.95, 1)])
def test_chains_are_slow_if_their_draws_depend_on_each_other(tau: float, low: float, high: float) -> None:
    """Draws are five iterations apart; R-hat of iterations is above 1 in both cases."""
    worst = split_rhat(autoregressive(20, 25, 1000, tau)).view(100, 10).amax(1)
    assert (worst > 1.05).all()
    assert low <= float((worst > largest_rhat(20, 25, 5, 10)).double().mean()) <= high


def test_chains_that_do_not_move() -> None:
    stuck = torch.arange(4.0).double()[:, None, None].expand(4, 20, 1)
    noise = 0.01 * autoregressive(4, 20, 1, 1)
    assert split_rhat(stuck + noise) > 2 > largest_rhat(4, 20, 4)
    assert bulk_ess(stuck + noise) < 6
    constant = torch.ones(4, 20, 1).double()
    assert split_rhat(constant).isnan().all() and bulk_ess(constant).isnan().all()


def test_too_few_iterations_are_not_judged() -> None:
    traces = autoregressive(20, 3, 2, 1)
    assert split_rhat(traces).isnan().all() and bulk_ess(traces).isnan().all()
    assert largest_rhat(20, 3, 3) == math.inf


def test_of_many_draws_a_small_r_hat_is_expected() -> None:
    assert largest_rhat(20, 2000, 400, 10) == 1.05
    assert largest_rhat(20, 500, 100, 10) < largest_rhat(20, 50, 10, 10) < largest_rhat(20, 5, 1, 10)


def test_a_record_keeps_the_moments_of_columns_and_cells() -> None:
    tables = torch.randn(12, 4, 6, 3, generator=torch.Generator().manual_seed(0)).double() + 5
    rows = [torch.tensor([0, 2, 3]), torch.tensor([1])]
    record = Record({3: (rows[0], 2), 4: (rows[1], 0)})
    for filled in tables:
        record = record.with_iteration(filled)
    chains = tables.movedim(0, 1).numpy()
    first, second = chains[:, :, [0, 2, 3], 2], chains[:, :, [1], 0]
    expected = np.stack([[own.mean(2), own.std(2)] for own in (first, second)])
    np.testing.assert_allclose(record.traces(), expected.transpose(2, 3, 1, 0), atol=1e-12)
    found = record.rhat_of_cells()
    for own, cells in zip(found, (first, second), strict=True):
        rhat = [float(az.rhat(cells[..., i], method="identity")) for i in range(cells.shape[2])]
        np.testing.assert_allclose(own, rhat, rtol=1e-4)
    assert record.mean.dtype == record.squares.dtype == torch.float32
    one = Record({0: (rows[0], 2)}).with_iteration(tables[0])
    assert one.rhat_of_cells()[0].isnan().all()


def test_a_record_of_a_complete_table_is_empty() -> None:
    record = Record({}).with_iteration(torch.zeros(2, 3, 2))
    assert not record.trace
