"""Moments of missing cells in the joint posterior example agree with draws from the chain."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from pyro.infer import Predictive
from scipy import stats

from pyro_mgp import MGPImputer


@pytest.fixture(scope="module")
def example() -> ModuleType:
    path = Path(__file__).parents[2] / "examples" / "joint_posterior.py"
    spec = importlib.util.spec_from_file_location("joint_posterior", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_missing_cells_have_the_moments_of_the_chains_own_draws(example: ModuleType) -> None:
    frame = example.simulate(1)[1][["z", "x"]]
    mean, covariance = example.missing_cells(frame, 0)
    imputer = MGPImputer(
        n_neighbors=0, warp=False, discrete_support=0, max_steps=40, random_state=0, progress=False
    )
    table, codec = imputer.fit(frame).codec_.encode(frame), imputer.codec_.columns[1]
    chain, observed = imputer.chain_.eval(), table.observed
    drawn = Predictive(chain.model, guide=chain.guide, num_samples=600, return_sites=["filled"])(
        table.values, observed
    )["filled"].squeeze()[:, ~observed[:, 1], 1]
    drawn = codec.mean[0] + codec.scale[0] * drawn.detach().numpy()
    # In whitened coordinates, 600 draws of each cell must be standard normal and independent.
    white = np.linalg.solve(np.linalg.cholesky(covariance.numpy()), (drawn - mean.numpy()).T)
    assert stats.kstest(white.ravel(), "norm").pvalue > 1e-3
    assert stats.kstest(np.sqrt(600) * white.mean(1), "norm").pvalue > 1e-3
    # Joint draws: the mean of all cells varies more than with independent draws.
    assert drawn.mean(1).var() == pytest.approx(covariance.mean().item(), rel=0.2)
    assert covariance.mean().item() > 1.3 * covariance.diagonal().mean().item() / len(mean)
