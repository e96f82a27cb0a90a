"""Sweep, evidence bound and Pyro interface of the chain."""

from __future__ import annotations

import copy
import math

import numpy as np
import pyro
import pyro.contrib.gp.kernels as kernels
import pytest
import torch
from pyro.infer import SVI, Predictive, Trace_ELBO, TraceMeanField_ELBO
from scipy.stats import multivariate_normal
from torch.distributions import MultivariateNormal, kl_divergence

from pyro_mgp.model.chain import Chain
from pyro_mgp.model.kernels import linear_matern32, matern32
from pyro_mgp.model.likelihoods import Category, CountScale, Gaussian, HeavyTailed, NegativeBinomial, Ordinal
from pyro_mgp.model.link import Link


def make_chain(kernel=linear_matern32, n_rows=12, n_inducing=5, seed=0, **switches):
    """Return a chain over 3 columns with a q(u) that is neither prior nor degenerate, and its table."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(n_rows, 3, generator=generator, dtype=torch.float64)
    observed = torch.rand(n_rows, 3, generator=generator) > 0.3
    links = []
    for column in range(3):
        inputs = [d for d in range(3) if d != column]
        Xu = table[:n_inducing][:, inputs].clone()
        link = Link(kernel(2), Xu, column, inputs, Gaussian(0.2 + 0.1 * column))
        link.u_loc = torch.randn(n_inducing, generator=generator, dtype=torch.float64)
        root = torch.randn(n_inducing, n_inducing, generator=generator, dtype=torch.float64)
        link.u_scale_tril = torch.linalg.cholesky(0.1 * root @ root.T + 0.05 * torch.eye(n_inducing))
        links.append(link)
    return Chain(links, ["a", "b", "c"], n_rows, **switches), table, observed


def fixed(noise):
    """Return noise `[S, n, L]` in the form that a sweep takes."""
    return lambda link, rows: noise[:, rows, link]


# ------------------------------------------------------------------------------------ the bound, in NumPy


def matern(X, Z, variance, lengthscale):
    r = np.sqrt((((X[:, None] - Z[None]) / lengthscale) ** 2).sum(-1) + 1e-12)
    return variance * (1 + math.sqrt(3) * r) * np.exp(-math.sqrt(3) * r)


def paper_bound(chain, table, observed, noise, factor):
    """Compute the paper's objective by loops over paths, rows and links, unwhitened and in NumPy."""
    n_paths = len(noise)
    expected = 0.0
    divergence = 0.0
    links = []
    for link in chain.links:
        kernel = link.kernel
        variance, lengthscale = (p.detach().numpy() for p in (kernel.variance, kernel.lengthscale))
        Z = link.Xu.detach().numpy()
        K = matern(Z, Z, variance, lengthscale)
        K = K + 1e-10 * np.diag(K).mean() * np.eye(len(Z))
        L = np.linalg.cholesky(K)
        r, T = L @ link.u_loc.detach().numpy(), L @ link.u_scale_tril.detach().numpy()
        S = T @ T.T
        divergence += 0.5 * (
            np.trace(np.linalg.solve(K, S)) + r @ np.linalg.solve(K, r) - len(Z)
            + np.linalg.slogdet(K)[1] - np.linalg.slogdet(S)[1]
        )  # fmt: skip
        links.append((link, Z, variance, lengthscale, K, r, S, link.likelihood.noise.item()))
    for s in range(n_paths):
        for i, row in enumerate(table):
            x = row.copy()
            for number, (link, Z, variance, lengthscale, K, r, S, s2) in enumerate(links):
                inputs = x[link.inputs.numpy()]
                alpha = np.linalg.solve(K, matern(Z, inputs[None], variance, lengthscale)[:, 0])
                mu = alpha @ r
                var = float(variance) - alpha @ (K - S) @ alpha
                if observed[i, link.column]:
                    value = row[link.column]
                    expected += -0.5 * math.log(2 * math.pi * s2) - ((value - mu) ** 2 + var) / (2 * s2)
                else:
                    total = var + (s2 if chain.propagate == "predictive" else 0.0)
                    x[link.column] = mu + noise[s, i, number] * math.sqrt(total + 1e-12)
    return factor * expected / n_paths - divergence


@pytest.mark.parametrize("propagate", ["latent", "predictive"])
@pytest.mark.parametrize("n_paths", [1, 3])
def test_loss_equals_the_papers_bound_evaluated_in_numpy(propagate, n_paths):
    chain, table, observed = make_chain(matern32, n_paths=n_paths, propagate=propagate)
    noise = torch.randn(n_paths, 12, 3, dtype=torch.float64)
    loss = TraceMeanField_ELBO().loss(
        chain.marginal_model, chain.marginal_guide, table, observed, noise=fixed(noise)
    )
    bound = paper_bound(chain, table.numpy(), observed.numpy(), noise.numpy(), 1.0)
    assert loss == pytest.approx(-bound, rel=1e-8)


def test_a_minibatch_is_scaled_by_n_over_b():
    chain, table, observed = make_chain(matern32, n_paths=2)
    rows = torch.tensor([3, 7, 1, 10])
    noise = torch.randn(2, 4, 3, dtype=torch.float64)
    loss = TraceMeanField_ELBO().loss(
        chain.marginal_model, chain.marginal_guide, table[rows], observed[rows], rows, noise=fixed(noise)
    )
    bound = paper_bound(chain, table[rows].numpy(), observed[rows].numpy(), noise.numpy(), 12 / 4)
    assert loss == pytest.approx(-bound, rel=1e-8)


def test_under_plain_trace_elbo_only_the_kl_is_sampled():
    chain, table, observed = make_chain(matern32)
    noise = fixed(torch.randn(1, 12, 3, dtype=torch.float64))
    torch.manual_seed(3)
    loss = Trace_ELBO().loss(chain.marginal_model, chain.marginal_guide, table, observed, noise=noise)
    exact = TraceMeanField_ELBO().loss(
        chain.marginal_model, chain.marginal_guide, table, observed, noise=noise
    )
    torch.manual_seed(3)
    sampled_kl = exact_kl = 0.0
    for link in chain.links:
        loc, tril = link.u_loc.detach(), link.u_scale_tril.detach()
        u = MultivariateNormal(loc, scale_tril=tril).sample()
        q = multivariate_normal(loc.numpy(), (tril @ tril.T).numpy()).logpdf(u.numpy())
        sampled_kl += q - multivariate_normal(np.zeros(5), np.eye(5)).logpdf(u.numpy())
        prior = MultivariateNormal(torch.zeros(5).double(), torch.eye(5).double())
        exact_kl += float(kl_divergence(MultivariateNormal(loc, scale_tril=tril), prior))
    assert loss - sampled_kl == pytest.approx(exact - exact_kl, rel=1e-8)


# ----------------------------------------------------------------------------------------------- the sweep


def linear_link(column, source, slope):
    """Return a link whose function is slope · x: linear kernel, one inducing input at 1, q(u) a point."""
    link = Link(kernels.Linear(1), torch.ones(1, 1).double(), column, [source], Gaussian(0.01))
    link.u_loc = torch.tensor([slope]).double() / math.sqrt(1 + 1e-6)
    link.u_scale_tril = torch.tensor([[1e-9]]).double()
    return link


def test_a_sweep_gives_the_rows_typed_by_hand():
    """A sweep of links y = 2x and x = 3y without noise gives 3 rows that are typed by hand."""
    chain = Chain([linear_link(1, 0, 2.0), linear_link(0, 1, 3.0)], ["b", "a"], n_rows=3, propagate="latent")
    start = torch.tensor([[[1.0, 0.0], [0.0, 4.0], [5.0, 0.0]]]).double()
    observed = torch.tensor([[True, False], [False, True], [False, False]])
    silence = fixed(torch.zeros(1, 3, 2).double())
    with torch.no_grad():
        filled, visited = chain.sweep(chain.conditionals(), start, observed, silence)
    expected = torch.tensor([[[1.0, 2.0], [12.0, 4.0], [30.0, 10.0]]]).double()
    torch.testing.assert_close(filled, expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(visited[0].mean, torch.tensor([[2.0, 0.0, 10.0]]).double(), atol=1e-4, rtol=0)
    assert start[0, 0, 1] == 0.0, "the caller's table has been written to"


def test_evaluating_only_missing_cells_gives_the_same_draws():
    chain, table, observed = make_chain(n_paths=4)
    start, noise = table.expand(4, -1, -1), fixed(torch.randn(4, 12, 3).double())
    holes = [(~observed[:, link.column]).nonzero()[:, 0] for link in chain.links]
    with torch.no_grad():
        everywhere, _ = chain.sweep(chain.conditionals(), start, observed, noise)
        in_holes, _ = chain.sweep(chain.conditionals(), start, observed, noise, holes)
    torch.testing.assert_close(in_holes, everywhere, atol=1e-12, rtol=1e-12)


def test_observed_cells_are_never_written():
    chain, table, observed = make_chain()
    filled = chain.model(table, observed)
    assert torch.equal(filled[observed], table[observed])
    assert (filled[~observed] != table[~observed]).all()


def test_predictive_draws_carry_the_noise_and_latent_ones_do_not():
    draws = {}
    for propagate in ("latent", "predictive"):
        chain, table, observed = make_chain(propagate=propagate)
        noise = fixed(torch.ones(1, 12, 3).double())
        with torch.no_grad():
            filled, visited = chain.sweep(chain.conditionals(), table[None], observed, noise)
        hole = (~observed[:, 0]).nonzero()[0, 0]
        draws[propagate] = float(filled[0, hole, 0] - visited[0].mean[0, hole])
        variance = float(visited[0].variance[0, hole])
    assert draws["latent"] ** 2 == pytest.approx(variance, rel=1e-6)
    assert draws["predictive"] ** 2 == pytest.approx(variance + 0.2, rel=1e-6)


def test_gradients_pass_through_draws_only_when_asked():
    """The noise of column 0 influences later links through its draws only."""
    gradients = {}
    for backpropagate in (True, False):
        chain, table, observed = make_chain(backpropagate=backpropagate)
        observed[:, 0] = False  # no cell of its own to learn from
        noise = fixed(torch.ones(1, 12, 3).double())
        TraceMeanField_ELBO().differentiable_loss(
            chain.marginal_model, chain.marginal_guide, table, observed, noise=noise
        ).backward()
        gradients[backpropagate] = float(chain.links[0].likelihood.noise_unconstrained.grad)
    assert gradients[False] == 0.0
    assert abs(gradients[True]) > 1e-3


DRAWN_FROM = {
    "heavy tails": (HeavyTailed(0.3), "scale_unconstrained", True),
    "counts": (NegativeBinomial(CountScale(0.8, 0.6), 2.0), "offset", False),
    "levels": (Ordinal(torch.tensor([-1.0, 0.2, 1.5]).double(), torch.ones(3).double()), "thresholds", False),
}


@pytest.mark.parametrize(("likelihood", "parameter", "passes"), DRAWN_FROM.values(), ids=DRAWN_FROM)
def test_gradients_pass_through_draws_of_numbers_not_of_values(likelihood, parameter, passes):
    """The parameters of column 0 influence later links through its draws only."""
    chain, table, observed = make_chain(backpropagate=True)
    chain.links[0].likelihood = copy.deepcopy(likelihood)
    observed[:, 0] = False
    noise = fixed(torch.ones(1, 12, 3).double())
    TraceMeanField_ELBO().differentiable_loss(
        chain.marginal_model, chain.marginal_guide, table, observed, noise=noise
    ).backward()
    own = dict(chain.links[0].likelihood.named_parameters())
    name = next(name for name in own if name.startswith(parameter))
    gradient = own[name].grad
    assert (gradient is not None and bool((gradient.abs() > 1e-4).any())) == passes
    assert all(p.grad is not None and p.grad.isfinite().all() for p in chain.links[2].parameters())


# ---------------------------------------------------------------------------------------- the face to Pyro


@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
@pytest.mark.parametrize("kernel", [matern32, linear_matern32, kernels.RBF])
@pytest.mark.parametrize("backpropagate", [True, False])
def test_gradient_reaches_every_named_parameter(elbo, kernel, backpropagate):
    chain, table, observed = make_chain(kernel, backpropagate=backpropagate)
    elbo().differentiable_loss(chain.marginal_model, chain.marginal_guide, table, observed).backward()
    dead = [n for n, p in chain.named_parameters() if p.grad is None or not (p.grad != 0).any()]
    assert not dead
    assert len(list(chain.named_parameters())) == 3 * len(list(chain.links[0].named_parameters())) > 0


def test_a_user_trains_with_plain_svi_and_the_global_store_stays_empty():
    losses = []
    for _ in range(2):  # a second chain must train as the first did, not inherit from it
        torch.manual_seed(0)
        chain, table, observed = make_chain()
        svi = SVI(chain.model, chain.guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
        losses.append([svi.step(table, observed) for _ in range(60)])
    assert losses[0] == losses[1]
    assert np.mean(losses[0][-10:]) < np.mean(losses[0][:3]) - 10
    assert len(pyro.get_param_store()) == 0


def test_svi_trains_beside_a_store_in_use():
    """Parameters of the same name in Pyro's global store are neither read nor written."""
    pyro.param("links.0.u_loc", torch.tensor([5.0]))
    chain, table, observed = make_chain()
    svi = SVI(chain.model, chain.guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
    svi.step(table, observed)
    assert dict(pyro.get_param_store()) == {"links.0.u_loc": torch.tensor([5.0])}
    pyro.clear_param_store()


def test_predictive_draws_one_function_for_all_rows(monkeypatch):
    """In evaluation mode `Predictive` returns the sweep of the u that it returns."""
    chain, table, observed = make_chain(n_sweeps=2)
    chain.eval()
    noise = fixed(torch.randn(1, 12, 3).double())
    monkeypatch.setattr("pyro_mgp.model.chain.fresh_noise", lambda filled: noise)
    samples = Predictive(chain.model, guide=chain.guide, num_samples=3)(table, observed)
    assert samples["filled"].shape == (3, 12, 3)
    for j in range(3):
        functions = [samples[f"u_{name}"][j].reshape(1, -1) for name in "abc"]
        filled = table[None]
        with torch.no_grad():
            for _ in range(2):
                filled, _ = chain.sweep(chain.conditionals(functions), filled, observed, noise)
        torch.testing.assert_close(samples["filled"][j], filled[0])
    assert len(pyro.get_param_store()) == 0


def test_log_density_is_that_of_the_mixture_over_sweeps():
    """With a fill that draws do not change, a held-out cell has the density of the predictive normal."""
    chain, table, observed = make_chain(propagate="predictive")
    observed[:] = True
    scored = torch.zeros_like(observed)
    scored[4, 1] = True
    density = chain.log_density(table, observed & ~scored, table, scored, n_paths=3)
    with torch.no_grad():
        moments = chain.links[1]().moments(table[None, 4:5])
    sd = math.sqrt(float(moments.variance) + 0.3)
    expected = torch.distributions.Normal(float(moments.mean), sd).log_prob(table[4, 1])
    assert density.tolist() == pytest.approx([float(expected)], rel=1e-7)


def test_links_and_names_must_pair_up():
    chain, _, _ = make_chain()
    with pytest.raises(ValueError, match=r"one name and one column per link.*3 links.*\['a', 'b'\]"):
        Chain(list(chain.links), ["a", "b"], 12)
    twice = [make_chain()[0].links[0], make_chain()[0].links[0]]
    with pytest.raises(ValueError, match=r"columns \[0, 0\]"):
        Chain(twice, ["a", "b"], 12)


def test_links_of_a_category_must_follow_each_other():
    chain, _, _ = make_chain()
    two = torch.zeros(3).double()
    with pytest.raises(ValueError, match=r"must follow each other, got links number \(0, 2\)"):
        Chain(list(chain.links), ["a", "b", "c"], 12, compounds=[Category((0, 2), (0, 2, 3), two, two + 1)])
