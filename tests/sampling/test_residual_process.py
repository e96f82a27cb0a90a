"""Draws of local GPs that vary together: against closed forms of Gaussian processes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from sklearn.gaussian_process.kernels import Matern
from torch import Tensor

from benchmarks.coverage import regions
from pyro_mgp import ColumnSpec, MGPImputer
from pyro_mgp.sampling.local_gp import LocalGPParams, LocalLink
from pyro_mgp.sampling.neighbours import PathPosteriors
from pyro_mgp.sampling.residual_process import ResidualProcess
from tests.known_function import Known

N_PATHS = 6000


def normal(n: int, stream: int) -> Tensor:
    """Return standard normal numbers of a stream."""
    return torch.randn(N_PATHS, n, generator=torch.Generator().manual_seed(stream)).double()


def local_gp(k: int = 12, **changes: float) -> LocalLink:
    """Return a local GP of column 1 given columns 0 and 2, with 12 reference rows."""
    rows = torch.rand(12, 3, generator=torch.Generator().manual_seed(1)).double()
    params = dataclasses.replace(LocalGPParams((0.4, 1.0), 0.3, 3.0, 0.2), **changes)
    return LocalLink.of(torch.tensor([0, 2]), rows, torch.sin(5 * rows[:, 0]), k, params)


def cells(n: int) -> Tensor:
    """Return rows of cells that lie close to each other, `[n, 3]`."""
    return 0.3 + 0.2 * torch.rand(n, 3, generator=torch.Generator().manual_seed(2)).double()


def posterior(metrics: list[LocalLink], rows: Tensor, process: ResidualProcess | None) -> PathPosteriors:
    """Return the local GP at cells in rows `[n, D]` around the means of the sparse GP."""
    zero = Known(torch.zeros(()).double(), lambda rows: torch.zeros_like(rows[..., 0]))
    several = dataclasses.replace(zero, function=lambda rows: torch.zeros(N_PATHS, len(rows)).double())

    class Drawn(Known):
        def functions(self, rows: Tensor) -> Tensor:
            return self.function(rows)

    drawn = Drawn(several.noise, several.function)
    starts = [j % len(metrics) for j in range(N_PATHS)]
    nearby = PathPosteriors.of(metrics, starts, rows.expand(N_PATHS, -1, -1))
    return nearby.given_functions(drawn, zero, process)


def test_functions_have_the_covariance_of_the_kernel() -> None:
    local, rows = local_gp(), cells(4)
    process = ResidualProcess.of([local], range(N_PATHS), normal)
    found = torch.cov(process.functions(rows.expand(N_PATHS, -1, -1)).T)
    np.testing.assert_allclose(found, Matern(1.0, nu=1.5)(local.scaled(rows).numpy()), atol=0.06)
    noisy = torch.cov(process.references.T).diagonal()
    np.testing.assert_allclose(noisy, np.full(12, 1.3), atol=0.1)


def test_cells_vary_together_as_under_the_exact_gaussian_process() -> None:
    """With all references as neighbours: mean, covariance, and normal distribution of the mean of cells."""
    local, rows = local_gp(), cells(5)
    process = ResidualProcess.of([local], range(N_PATHS), normal)
    table = rows.expand(N_PATHS, -1, -1)
    at, alone = (posterior([local], rows, own).moments(table) for own in (process, None))
    drawn = at.mean + at.variance.sqrt() * at.standard(at.variance, normal(5, 99))
    kernel, scale = Matern(1.0, nu=1.5), float(local.posterior(rows).scale[0])
    own, references = local.scaled(rows).numpy(), local.inputs.numpy()
    cross, among = kernel(own, references), kernel(references) + 0.3 * np.eye(12)
    exact = scale * (kernel(own) + 0.3 * np.eye(5) - cross @ np.linalg.solve(among, cross.T))
    np.testing.assert_allclose(torch.cov(drawn.T), exact, atol=0.06 * exact.max())
    np.testing.assert_allclose(drawn.mean(0), alone.mean[0], atol=4 * (exact.max() / N_PATHS) ** 0.5)
    np.testing.assert_allclose(alone.variance[0], exact.diagonal(), rtol=1e-9)
    # The mean of the cells: independent cells would have too small a variance.
    assert exact.mean() > 1.5 * exact.diagonal().sum() / 25
    standard = (drawn.mean(1) - alone.mean[0].mean()) / exact.mean() ** 0.5
    assert kstest(standard.numpy(), "norm").pvalue > 1e-3


def test_each_path_has_the_metric_of_its_imputation() -> None:
    metrics = [
        local_gp(k=5),
        dataclasses.replace(local_gp(k=5), lengthscales=torch.tensor([2.0, 3.0]).double()),
    ]
    metrics[1] = dataclasses.replace(metrics[1], params=dataclasses.replace(metrics[1].params, nugget=0.6))
    rows, process = cells(6), ResidualProcess.of(metrics, range(N_PATHS), normal)
    together = posterior(metrics, rows, process).moments(rows.expand(N_PATHS, -1, -1))
    alone = posterior(metrics, rows, None).moments(rows.expand(N_PATHS, -1, -1))
    for number in (0, 1):
        paths = slice(number, None, 2)
        variance = together.shared[paths].var(0) + together.own[paths].mean(0)
        np.testing.assert_allclose(variance, alone.variance[number], rtol=0.1)
        np.testing.assert_allclose(together.shared[paths].mean(0), 0.0, atol=0.03)
        np.testing.assert_array_equal(together.variance[paths], alone.variance[paths])
        np.testing.assert_allclose(together.mean[paths].mean(0), alone.mean[number], atol=0.03)


@pytest.mark.parametrize(("kind", "most"), [("numbers", 1.3), ("bounded", 1.3), ("rounded", 1.3)])
@pytest.mark.slow
def test_means_of_regions_vary_by_their_distance_from_the_truth(kind: str, most: float) -> None:
    """The mean of z² over these tables is 1.2, 1.2 and 1.1; with independent cells it was 1.4 to 1.9."""
    squares = []
    for seed in range(8):
        table = regions.draw(np.random.default_rng(seed), 1500)
        frame, complete, specs = table.frame, table.complete, None
        if kind == "rounded":
            frame, complete = (each.assign(y=(4 * each["y"]).round() / 4) for each in (frame, complete))
        if kind == "bounded":
            least, largest = complete["y"].agg(["min", "max"])
            specs = {"y": ColumnSpec(lower=float(least) - 0.1, upper=float(largest) + 0.1)}
        # "auto" takes the same inputs for these tables.
        imputer = MGPImputer(inputs="others", specs=specs, random_state=seed, progress=False)
        draws = imputer.fit(frame).impute(m=20)
        means = np.stack([regions.analyse(draw).estimates for draw in draws])
        error = means.mean(0) - regions.analyse(complete).estimates
        squares.append((error**2 / (1.05 * means.var(0, ddof=1))).mean())
    assert 0.7 < np.mean(squares) < most
