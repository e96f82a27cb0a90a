"""Draws of missing cells: joint over rows, keyed, and with the right spread."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_mgp import Engine, MGPImputer
from pyro_mgp.inference import data_augmentation
from pyro_mgp.model import link as link_module
from pyro_mgp.model.local_parameters import local_parameters
from pyro_mgp.sampling import neighbours
from tests.encoded_rows import encoded


def toy(n_rows=120, seed=0):
    """Return complete x, and y = sin(2x) + noise with half of its cells missing."""
    generator = np.random.default_rng(seed)
    x = generator.uniform(-2, 2, n_rows)
    y = np.sin(2 * x) + 0.4 * generator.normal(size=n_rows)
    return pd.DataFrame({"x": x, "y": np.where(generator.random(n_rows) < 0.5, np.nan, y)})


def exact_variance_of_the_mean(imputer, frame):
    """Return the variance of the mean of y's missing cells under the exact GP with the imputer's kernel."""
    (link,) = imputer.chain_.links
    table = encoded(imputer, frame)
    seen = table.observed[:, 1].cpu().numpy()
    with torch.no_grad(), local_parameters():
        K, noise = link.kernel(table.values[:, :1]).cpu().numpy(), link.likelihood.noise.item()
    gain = np.linalg.solve(K[np.ix_(seen, seen)] + noise * np.eye(seen.sum()), K[np.ix_(seen, ~seen)])
    posterior = K[np.ix_(~seen, ~seen)] - K[np.ix_(~seen, seen)] @ gain
    n_missing = (~seen).sum()
    (_, scale) = imputer.codec_.raw_scale
    return scale**2 * (posterior.sum() / n_missing**2 + noise / n_missing)


@pytest.fixture(scope="module")
def drawn():
    """Return imputers whose draws are joint (True) and cell by cell (False), each with 1,000 draws of y."""
    imputers = {
        joint: MGPImputer(n_inducing=120, engine=Engine(joint_draws=joint), max_steps=40, random_state=1).fit(
            toy()
        )
        for joint in (True, False)
    }
    return {joint: (imputer, imputer.impute(m=1000).values["y"]) for joint, imputer in imputers.items()}


@pytest.mark.slow
def test_joint_draws_carry_the_uncertainty_of_the_function_and_cells_drawn_alone_do_not(drawn):
    """The mean of the imputed cells varies between imputations as under the exact GP, as pooling requires."""
    variances = {joint: values.mean(axis=1).var(ddof=1) for joint, (_, values) in drawn.items()}
    exact = exact_variance_of_the_mean(drawn[False][0], toy())
    # The standard error of a variance from 1,000 draws is 4.5 %.
    assert variances[True] == pytest.approx(exact, rel=0.15)
    assert variances[False] < 0.6 * exact


def two_columns(seed, n_rows=100):
    """Return correlated normal columns, of which one or the other is missing in most rows."""
    generator = np.random.default_rng(seed)
    cells = generator.multivariate_normal([0, 0], [[1, 0.6], [0.6, 1]], n_rows)
    first = generator.random(n_rows) < 0.4
    second = ~first & (generator.random(n_rows) < 0.4)
    return np.where(np.column_stack([first, second]), np.nan, cells)


def exact_draws(table, n_chains=300, n_iterations=40):
    """Draw the missing cells of two normal columns `[n, 2]` by Gibbs sampling, with p(Σ) ∝ |Σ|^(-3/2)."""
    generator, n_rows = np.random.default_rng(0), len(table)
    filled = np.where(np.isnan(table), 0.0, table) + np.zeros((n_chains, 1, 1))
    for _ in range(n_iterations):
        mean = filled.mean(1)
        scatter = (filled - mean[:, None]).transpose(0, 2, 1) @ (filled - mean[:, None])
        # The precision matrix is Wishart with n - 1 degrees of freedom, the means are normal given it.
        normal = np.linalg.cholesky(np.linalg.inv(scatter)) @ generator.normal(size=(n_chains, 2, n_rows - 1))
        covariance = np.linalg.inv(normal @ normal.transpose(0, 2, 1))
        noise = np.linalg.cholesky(covariance / n_rows) @ generator.normal(size=(n_chains, 2, 1))
        mean = mean + noise[..., 0]
        for column, other in ((0, 1), (1, 0)):
            here = np.isnan(table[:, column])
            slope = covariance[:, 0, 1] / covariance[:, other, other]
            spread = np.sqrt(covariance[:, column, column] - slope * covariance[:, 0, 1])
            centred = filled[:, here, other] - mean[:, other, None]
            eps = generator.normal(size=centred.shape)
            filled[:, here, column] = mean[:, column, None] + slope[:, None] * centred + spread[:, None] * eps
    return filled


def associations(tables):
    """Return the transformed correlation and both slopes of tables `[m, n, 2]`, `[m, 3]`."""
    (a, b) = (tables - tables.mean(1, keepdims=True)).transpose(2, 0, 1)
    aa, ab, bb = (a * a).sum(1), (a * b).sum(1), (b * b).sum(1)
    return np.column_stack([np.arctanh(ab / np.sqrt(aa * bb)), ab / aa, ab / bb])


def test_associations_vary_between_imputations_as_under_the_exact_posterior():
    """Functions from q(u), and cells by sweeps given them, would give about half of the variances."""
    ratios = []
    for seed in range(5):
        table = two_columns(seed)
        imputer = MGPImputer(inputs="others", random_state=0, n_inducing=30, progress=False)
        tables = imputer.fit(pd.DataFrame(table, columns=["a", "b"])).impute(m=100)
        found = associations(np.stack([completed.to_numpy() for completed in tables])).var(0)
        ratios.append(found / associations(exact_draws(table)).var(0))
    # One of these variances has a standard error of 15 %, their mean one of some 6 %.
    assert 0.8 < np.mean(ratios) < 1.25


def curved(n_rows=160):
    """Return three columns with steps, each with missing cells."""
    generator = np.random.default_rng(3)
    a, b = generator.normal(size=(2, n_rows))
    c = np.floor(2 * a) + b + 0.1 * generator.normal(size=n_rows)
    frame = pd.DataFrame({"a": a, "b": b, "c": c}).mask(generator.random((n_rows, 3)) < 0.2)
    return frame.dropna(how="all").reset_index(drop=True)


@pytest.mark.parametrize(
    "settings", [{"inputs": "others"}, {"inputs": "earlier"}, {"n_neighbors": 4}], ids=str
)
@pytest.mark.slow
def test_rows_of_the_training_table_have_their_draws_in_any_table(settings):
    """They are the states of chains, which a sweep with shifts of zero repeats; other rows have sweeps."""
    frame = curved()
    imputer = MGPImputer(random_state=0, progress=False, **settings).fit(frame)
    own = imputer.impute(m=7)
    changed = frame.iloc[:40] + 0.5
    changed.index += 1000
    other = imputer.impute(changed, m=3)
    together = imputer.impute(pd.concat([frame.iloc[:50], changed, frame.iloc[50:]]), m=3, batch_size=70)
    for j in range(3):
        pd.testing.assert_frame_equal(together[j].loc[frame.index], own[j])
        pd.testing.assert_frame_equal(together[j].loc[changed.index], other[j])

    sampler, rows = imputer.model_.sampler(), imputer.model_.training
    chains = sampler.chains(rows)
    while len(chains.kept) < 2:
        chains._draw()
    imputations = range(chains.n_chains, 2 * chains.n_chains)
    unshifted = dataclasses.replace(sampler, shifts={sampler.chain.links[0].column: 0.0})
    # In a joint density, other cells are visited once more after a shift.
    for each in (sampler,) if imputer.model_.is_sequential else (sampler, unshifted):
        (_, _, swept), *rest = each.swept(rows, imputations, batch_size=1000)
        assert not rest
        torch.testing.assert_close(swept, chains.state.filled, rtol=0, atol=1e-9)


@torch.no_grad()
def test_new_rows_sweep_through_functions_from_q_of_u_before_the_last_sweep():
    imputer = MGPImputer(inputs="others", n_neighbors=0, random_state=1, progress=False).fit(toy())
    sampler, imputations = imputer.model_.sampler(), range(1000)
    last = sampler.sparse(imputations)
    rows = torch.tensor([[-1.0, 0.0], [0.4, 0.0], [3.0, 0.0]], device=sampler.start.device).double()
    (early,) = sampler.sparse_of_burn_in(imputations, last)
    at = sampler.chain.conditionals()[0].moments(rows[None])
    given_u = sampler.chain.conditionals([link.u_loc[None] for link in sampler.chain.links])
    # What the inducing values do not determine is drawn for each cell.
    sd = (at.variance[0] - given_u[0].moments(rows[None]).variance[0]).sqrt()
    functions = early.functions(rows)
    assert ((functions.mean(0) - at.mean[0]).abs() < 4 * sd / 1000**0.5).all()
    torch.testing.assert_close(functions.std(0), sd, rtol=0.1, atol=0.0)
    assert (functions - last[0].functions(rows)).abs().min() > 0


def test_new_rows_of_a_joint_density_have_the_same_functions_in_all_sweeps():
    frame = two_columns(seed=0)
    sampler = MGPImputer(inputs="earlier", random_state=0, progress=False).fit(frame).model_.sampler()
    last = sampler.sparse(range(2))
    assert sampler.sparse_of_burn_in(range(2), last) is last


def test_neighbourhoods_too_large_to_be_kept_are_computed_again(monkeypatch):
    g = np.random.default_rng(0)
    x = g.uniform(-2, 2, 300)
    frame = pd.DataFrame({"x": x, "y": np.sin(9 * x) + 0.1 * g.normal(size=300), "z": g.normal(size=300)})
    frame = frame.mask(g.random(frame.shape) < 0.1).dropna(how="all")
    imputer = MGPImputer(inputs="others", n_neighbors=4, random_state=0, progress=False).fit(frame)
    assert any(imputer.model_.neighbours.links)
    expected = imputer.impute(m=2)
    monkeypatch.setattr(neighbours, "_KEPT_FOR_LONG", 0)
    assert copy.deepcopy(imputer).impute(m=2) == expected


def test_marginals_of_joint_and_independent_draws_are_equal(drawn):
    draws = {joint: values for joint, (_, values) in drawn.items()}
    sd = draws[True].std(0)
    np.testing.assert_allclose(draws[False].mean(0), draws[True].mean(0), atol=0.2 * sd.max())
    np.testing.assert_allclose(draws[False].std(0), sd, rtol=0.15)


@pytest.mark.parametrize(("joint", "after"), [(True, [1, 1, 1, 2, 3]), (False, [1, 1, 1, 1, 2])])
def test_links_are_factorised_once_until_a_parameter_changes(joint, after, monkeypatch):
    """Joint draws run chains of functions for each seed, which continue for further imputations."""
    frame, calls, counts = toy(), [], []
    for module in (data_augmentation, link_module):
        own = module.factorise
        monkeypatch.setattr(module, "factorise", lambda *a, own=own: calls.append(1) or own(*a))
    # Local GPs would factorise the marginals, too.
    settings = {"inputs": "others", "random_state": 0, "max_steps": 2, "n_neighbors": 0, "progress": False}
    imputer = MGPImputer(engine=Engine(joint_draws=joint), **settings).fit(frame)
    calls.clear()

    def impute(**changes):
        draws = imputer.impute(frame, **changes)
        counts.append(len(calls))
        return draws

    first = impute(m=3)
    assert impute(m=3) == first
    impute(m=4)
    other = impute(m=4, random_state=5)
    with torch.no_grad():
        imputer.chain_.links[0].likelihood.noise_unconstrained += 1.0
    noisier = impute(m=4, random_state=5)
    assert counts == after
    assert noisier != other
    if not joint:  # otherwise noises are drawn
        assert noisier.values["y"].std() > first.values["y"].std()


def test_a_copy_of_an_imputer_draws_the_same():
    imputer = MGPImputer(random_state=0, max_steps=2, progress=False).fit(toy())
    draws = imputer.impute(m=3)
    assert copy.deepcopy(imputer).impute(m=3) == draws
    assert pickle.loads(pickle.dumps(imputer)).impute(m=3) == draws
