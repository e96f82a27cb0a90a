"""Draws of missing cells: joint over rows, keyed, and with the right spread."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm

from pyro_mgp import Engine, MGPImputer
from pyro_mgp.model import chain
from pyro_mgp.model.local_parameters import local_parameters
from pyro_mgp.sampling.sampler import GaussianMixture


def toy(n_rows=120, seed=0):
    """Return complete x, and y = sin(2x) + noise with half of its cells missing."""
    generator = np.random.default_rng(seed)
    x = generator.uniform(-2, 2, n_rows)
    y = np.sin(2 * x) + 0.4 * generator.normal(size=n_rows)
    return pd.DataFrame({"x": x, "y": np.where(generator.random(n_rows) < 0.5, np.nan, y)})


def exact_variance_of_the_mean(imputer, frame):
    """Return the variance of the mean of y's missing cells under the exact GP with the imputer's kernel."""
    (link,) = imputer.chain_.links
    table = imputer.codec_.encode(frame)
    seen = table.observed[:, 1].numpy()
    with torch.no_grad(), local_parameters():
        K, noise = link.kernel(table.values[:, :1]).numpy(), link.likelihood.noise.item()
    gain = np.linalg.solve(K[np.ix_(seen, seen)] + noise * np.eye(seen.sum()), K[np.ix_(seen, ~seen)])
    posterior = K[np.ix_(~seen, ~seen)] - K[np.ix_(~seen, seen)] @ gain
    n_missing = (~seen).sum()
    (_, scale) = imputer.codec_.raw_scale
    return scale**2 * (posterior.sum() / n_missing**2 + noise / n_missing)


def test_joint_draws_carry_the_uncertainty_of_the_function_and_cells_drawn_alone_do_not():
    """The mean of the imputed cells varies between imputations as under the exact GP, as pooling requires."""
    frame = toy()
    variances = {}
    for joint in (True, False):
        imputer = MGPImputer(
            n_inducing=120, engine=Engine(joint_draws=joint), max_steps=40, random_state=1
        ).fit(frame)
        means = imputer.impute(m=1000).values["y"].mean(axis=1)
        variances[joint] = means.var(ddof=1)
    exact = exact_variance_of_the_mean(imputer, frame)
    # The standard error of a variance from 1,000 draws is 4.5 %.
    assert variances[True] == pytest.approx(exact, rel=0.15)
    assert variances[False] < 0.6 * exact


def test_marginals_of_joint_and_independent_draws_are_equal():
    frame = toy()
    draws = {}
    for joint in (True, False):
        imputer = MGPImputer(
            n_inducing=120, engine=Engine(joint_draws=joint), max_steps=40, random_state=1
        ).fit(frame)
        draws[joint] = imputer.impute(m=1000).values["y"]
    sd = draws[True].std(0)
    np.testing.assert_allclose(draws[False].mean(0), draws[True].mean(0), atol=0.2 * sd.max())
    np.testing.assert_allclose(draws[False].std(0), sd, rtol=0.15)


def test_quantiles_of_a_mixture_invert_its_distribution_function():
    mean, variance = torch.randn(5, 8).double(), torch.rand(5, 8).double() + 0.1
    mixture = GaussianMixture(mean, variance)
    for level in (0.025, 0.5, 0.9):
        found = mixture.quantile(level).numpy()
        reached = norm.cdf(found, mean.numpy(), variance.sqrt().numpy()).mean(0)
        np.testing.assert_allclose(reached, level, atol=1e-9)


def test_moments_of_a_mixture_are_those_of_its_draws():
    mixture = GaussianMixture(torch.tensor([[0.0], [4.0]]), torch.tensor([[1.0], [3.0]]))
    assert float(mixture.expectation()) == 2.0
    assert float(mixture.standard_deviation()) == pytest.approx((2 + 4) ** 0.5)


def test_links_are_factorised_once_until_a_parameter_changes(monkeypatch):
    frame = toy()
    # Local GPs would factorise the marginals, too.
    imputer = MGPImputer(inputs="others", random_state=0, max_steps=2, n_neighbors=0, progress=False).fit(
        frame
    )
    calls, condition = [], chain.condition
    monkeypatch.setattr(chain, "condition", lambda *a, **k: calls.append(1) or condition(*a, **k))
    first = imputer.impute(frame, m=3)
    assert imputer.impute(frame, m=3) == first
    assert len(calls) == 1
    imputer.impute(frame, m=4)  # other functions
    imputer.impute(frame, m=4, random_state=5)
    assert len(calls) == 3
    with torch.no_grad():
        imputer.chain_.links[0].likelihood.noise_unconstrained += 1.0
    noisier = imputer.impute(frame, m=4, random_state=5)
    assert len(calls) == 4
    assert noisier.values["y"].std() > first.values["y"].std()


def test_a_copy_of_an_imputer_draws_the_same():
    imputer = MGPImputer(random_state=0, max_steps=2, progress=False).fit(toy())
    draws = imputer.impute(m=3)
    assert copy.deepcopy(imputer).impute(m=3) == draws
    assert pickle.loads(pickle.dumps(imputer)).impute(m=3) == draws
