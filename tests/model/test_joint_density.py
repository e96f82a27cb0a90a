"""The model and the guide of a chain stand by themselves, under any inference of Pyro's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoDelta, AutoNormal
from pyro.nn import PyroParam, PyroSample
from scipy import stats
from torch import Tensor
from torch.distributions import constraints

from pyro_mgp.inference.closed_form import ConjugateStep
from pyro_mgp.inference.data_augmentation import Augmentation
from pyro_mgp.model.chain import Chain
from pyro_mgp.model.kernels import linear_matern32, linear_quadratic_matern32, matern32
from pyro_mgp.model.likelihoods import (
    Category,
    CountScale,
    Drawn,
    Gaussian,
    HeavyTailed,
    Likelihood,
    NegativeBinomial,
    Ordinal,
)
from pyro_mgp.model.link import Link
from pyro_mgp.model.sequential_chain import SequentialChain

LIKE = torch.ones(()).double()


class Laplace(Drawn):
    """Likelihood of a user: Laplace noise whose scale is a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("noise", LIKE)
        self.scale = PyroParam(0.4 * LIKE, constraints.positive)

    def distribution(self, function: Tensor) -> dist.Laplace:
        return dist.Laplace(function, self.scale)


def small(
    kind: type[Chain] = SequentialChain, kernel: Any = matern32, n_rows: int = 60, **switches: Any
) -> tuple[Chain, Tensor, Tensor]:
    """Return an untrained chain over three related columns, its table with holes filled by 0, and a mask."""
    generator = torch.Generator().manual_seed(0)
    e = torch.randn(n_rows, 3, generator=generator, dtype=torch.float64)
    first = e[:, 0]
    second = 0.8 * first + 0.6 * e[:, 1]
    table = torch.stack([first, second, torch.sin(1.5 * first) + 0.5 * second + 0.3 * e[:, 2]], dim=1)
    observed = torch.rand(n_rows, 3, generator=generator) > 0.2
    filled = torch.where(observed, table, 0.0)
    links = []
    for d in range(3):
        inputs = list(range(d)) if kind is SequentialChain else [j for j in range(3) if j != d]
        links.append(Link(kernel(len(inputs)), filled[:8, inputs].clone(), d, inputs, Gaussian(0.3), 1e-6))
    return kind(links, ["a", "b", "c"], n_rows, backpropagate=False, **switches), filled, observed


@pytest.fixture
def empty_store() -> Iterator[None]:
    """Clear the parameters of guides that are the test's own."""
    yield
    pyro.clear_param_store()


def marginal_loss(chain: Chain, filled: Tensor, observed: Tensor, n_particles: int = 20) -> float:
    """Return the negative bound of the paper, averaged over draws of the missing cells."""
    elbo, pair = TraceMeanField_ELBO(), (chain.marginal_model, chain.marginal_guide)
    return float(np.mean([elbo.loss(*pair, filled, observed) for _ in range(n_particles)]))


# ------------------------------------------------------------------------------------------------ the bound


@pytest.mark.parametrize("kernel", [matern32, linear_matern32])
def test_the_expected_bound_is_that_of_the_closed_form(kernel: Any) -> None:
    """Given the missing cells it is quadratic in u and e, of which symmetric points give the expectation."""
    chain, filled, observed = small(Chain, kernel, n_rows=20)
    generator = torch.Generator().manual_seed(1)
    for link in chain.links:
        link.u_loc = torch.randn(8, generator=generator, dtype=torch.float64)
        root = torch.randn(8, 8, generator=generator, dtype=torch.float64)
        link.u_scale_tril = torch.linalg.cholesky(0.1 * root @ root.T + 0.05 * torch.eye(8))
    closed, drawn = ConjugateStep(chain)(filled, observed, None, 0.0)

    n_values, n_rows = 8, len(filled)
    size = 3 * (n_values + n_rows)
    points = torch.cat([torch.eye(size), -torch.eye(size)]).double() * size**0.5
    of_links = points.unflatten(1, (3, -1)).unbind(1)
    values: dict[str, Tensor] = {}
    for name, link, point in zip(chain.names, chain.links, of_links, strict=True):
        with torch.no_grad():
            values[f"u_{name}"] = (link.u_loc + point[:, :n_values] @ link.u_scale_tril.T)[:, None]
        values[f"e_{name}"] = point[:, n_values:]
        values[f"z_{name}"] = drawn[~observed[:, link.column], link.column]
    totals = []
    for program in (chain.model, chain.guide):
        with pyro.plate("points", len(points), dim=-2):
            trace = poutine.trace(poutine.condition(program, values)).get_trace(filled, observed)
        totals.append(float(trace.log_prob_sum().detach()))
    assert (totals[1] - totals[0]) / len(points) == pytest.approx(float(closed.detach()), rel=1e-8)


ANY_KIND: dict[str, Likelihood] = {
    "heavy tails": HeavyTailed(0.3),
    "counts": NegativeBinomial(CountScale(0.8, 0.6), 2.0),
    "levels": Ordinal(torch.tensor([-1.0, 0.2, 1.5]).double(), torch.tensor([0.2, 0.5, 0.3]).double()),
    "two values": Ordinal(torch.tensor([-1.0, 0.7]).double(), torch.tensor([0.4, 0.6]).double()),
    "of a user": Laplace(),
}


@pytest.mark.parametrize("likelihood", ANY_KIND.values(), ids=ANY_KIND)
def test_both_pairs_have_the_same_bound_for_any_likelihood(likelihood: Any) -> None:
    chain, filled, observed = small(Chain, n_rows=12)
    chain.links[1].likelihood = likelihood
    with torch.no_grad():
        filled[:, 1] = likelihood.draw(filled[:, 1], 0 * filled[:, 1], torch.rand(12).double())
    many = Trace_ELBO(num_particles=200, vectorize_particles=True, max_plate_nesting=1)
    ours = np.array([many.loss(chain.model, chain.guide, filled, observed) for _ in range(20)])
    theirs = [marginal_loss(chain, filled, observed, 1) for _ in range(200)]
    error = np.hypot(ours.std() / 20**0.5, np.std(theirs) / 200**0.5)
    assert abs(ours.mean() - np.mean(theirs)) < 4 * error < 4


@pytest.mark.parametrize("likelihood", ANY_KIND.values(), ids=ANY_KIND)
def test_distributions_given_the_function_are_those_of_its_moments(likelihood: Any) -> None:
    function = torch.linspace(-1.5, 1.5, 7).double()
    uniform = torch.linspace(0.05, 0.95, 7).double()
    with torch.no_grad():
        cells = likelihood.draw(function, 0 * function, uniform)
        given = likelihood.distribution(function)
        expected = likelihood(function, 0 * function).predictive_log_prob(cells)
        torch.testing.assert_close(given.log_prob(cells), expected, rtol=1e-4, atol=1e-5)
        drawn = given.expand((4000, 7)).sample()
        mean = likelihood.expectation(function, 0 * function)
    tolerance = 5 * float(drawn.std(0).max()) / 4000**0.5 + 0.02
    torch.testing.assert_close(drawn.mean(0), mean, rtol=0, atol=tolerance)


def test_measurement_error_of_known_variance_adds_to_the_noise() -> None:
    chain, filled, observed = small(Chain)
    chain.links[0].known_variance = torch.linspace(0, 3, 60).double()
    rows = torch.tensor([5, 50])
    site = (
        poutine.trace(chain.model).get_trace(filled[rows], observed[rows], rows).nodes["x_a"]["fn"].base_dist
    )
    expected = 0.3 + torch.linspace(0, 3, 60).double()[rows]
    torch.testing.assert_close(site.scale.square().detach(), expected)


@pytest.mark.parametrize("kind", [Chain, SequentialChain])
def test_a_limited_site_of_model_and_guide_scores_the_probability_of_its_interval(kind: type[Chain]) -> None:
    """Where the cell is in the interval does not matter: model minus guide is log P(a < x < b | f)."""
    chain, filled, observed = small(kind, n_rows=20)
    limits = torch.full((20, 3, 2), math.inf).double()
    limits[..., 0] = -math.inf
    rows = (~observed[:, 0]).nonzero()[:, 0]
    limits[rows, 0] = torch.tensor([-0.7, 0.4]).double()
    chain.train()
    guide = poutine.trace(chain.guide).get_trace(filled, observed, None, limits)
    model = poutine.trace(poutine.replay(chain.model, guide)).get_trace(filled, observed, None, limits)
    for trace in (model, guide):
        trace.compute_log_prob()
    own, of_guide = (trace.nodes["z_a"] for trace in (model, guide))
    assert ((own["value"] > -0.7) & (own["value"] < 0.4)).all()
    f = own["fn"].normal.mean.detach().numpy()
    deviation = float(chain.links[0].likelihood.noise.detach()) ** 0.5
    expected = np.log(stats.norm.cdf((0.4 - f) / deviation) - stats.norm.cdf((-0.7 - f) / deviation))
    difference = (own["unscaled_log_prob"] - of_guide["unscaled_log_prob"]).detach().numpy()
    np.testing.assert_allclose(difference, expected, rtol=1e-6)


def test_in_a_minibatch_everything_but_functions_counts_n_over_b() -> None:
    chain, filled, observed = small()
    rows = torch.arange(0, 60, 5)
    for program in (chain.model, chain.guide):
        trace = poutine.trace(program).get_trace(filled[rows], observed[rows], rows)
        scales = {
            name: node["scale"] for name, node in trace.nodes.items() if name[:2] in ("u_", "e_", "x_", "z_")
        }
        assert len(scales) == (12 if program == chain.model else 9)
        assert {n: s for n, s in scales.items() if s != (1 if n.startswith("u_") else 5)} == {}


# ------------------------------------------------------------------------------------ what the model says


def test_the_model_reads_nothing_of_the_guide_and_nothing_of_the_mode() -> None:
    chain, filled, observed = small(SequentialChain, partial(linear_quadratic_matern32, n_features=6))
    torch.manual_seed(0)
    trace = poutine.trace(chain.model).get_trace(filled, observed)
    assert not [name for name in trace.nodes if name.endswith(("u_loc", "u_scale_tril"))]
    trace.log_prob_sum().backward()
    of_guide = {n: p for n, p in chain.named_parameters() if "u_loc" in n or "u_scale_tril" in n}
    assert len(of_guide) == 6 and all(p.grad is None for p in of_guide.values())
    torch.manual_seed(0)
    again = poutine.trace(chain.eval().model).get_trace(filled, observed)
    assert torch.equal(again.log_prob_sum(), trace.log_prob_sum())


def test_a_row_is_drawn_link_after_link() -> None:
    """With the functions and residuals fixed, cells of later links follow the drawn ones of earlier links."""
    chain, filled, observed = small()
    trace = poutine.trace(chain.model).get_trace(filled, observed)
    nodes = trace.nodes
    table = nodes["filled"]["value"].detach()
    assert torch.equal(table[observed], filled[observed])
    for link, name in zip(chain.links, chain.names, strict=True):
        assert torch.equal(
            table[~observed[:, link.column], link.column], nodes[f"z_{name}"]["value"].detach()
        )
    with torch.no_grad():
        at = chain.conditionals([nodes[f"u_{name}"]["value"][None] for name in "abc"])[2].moments(table[None])
        f = at.mean[0] + (at.variance[0] + 1e-12).sqrt() * nodes["e_c"]["value"]
    torch.testing.assert_close(nodes["x_c"]["fn"].base_dist.loc.detach(), f, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(nodes["z_c"]["fn"].loc.detach(), f[~observed[:, 2]], atol=1e-6, rtol=1e-6)


def test_latent_propagation_writes_the_function() -> None:
    chain, filled, observed = small(Chain, propagate="latent")
    trace = poutine.trace(chain.model).get_trace(filled, observed)
    assert not [name for name in trace.nodes if name.startswith("z_")]
    holes = ~observed[:, 2]
    torch.testing.assert_close(
        trace.nodes["filled"]["value"][holes, 2], trace.nodes["x_c"]["fn"].base_dist.loc[holes]
    )


def test_categories_have_one_level_with_their_stick_breaking_probabilities() -> None:
    """Functions with next to no variance leave the probabilities of the thresholds."""
    off, on = torch.tensor([-0.5, -0.7, -0.9]).double(), torch.tensor([1.5, 1.2, 1.1]).double()
    links = []
    for k, share in enumerate((0.3, 0.5)):
        values = torch.stack([off[k], on[k]])
        likelihood = Ordinal(values, torch.tensor([1 - share, share]).double())
        kernel = matern32(1)
        kernel.variance = LIKE * 1e-12
        links.append(Link(kernel, torch.zeros(1, 1).double(), k, [3], likelihood, unless=list(range(k))))
    category = Category((0, 1), (0, 1, 2), off, on)
    chain = Chain(links, ["p", "q"], 4000, compounds=[category])
    table, observed = torch.zeros(4000, 4).double(), torch.zeros(4000, 4) > 0
    observed[:, 3] = True
    drawn = poutine.trace(chain.model).get_trace(table, observed).nodes["filled"]["value"].detach()
    is_on = drawn[:, :3] == on
    assert torch.equal(is_on | (drawn[:, :3] == off), torch.ones_like(is_on))
    assert (is_on.sum(1) == 1).all()
    assert is_on.double().mean(0).tolist() == pytest.approx([0.3, 0.35, 0.35], abs=0.03)


# ----------------------------------------------------------------------------------------------- inference


@pytest.mark.parametrize("kind", [Chain, SequentialChain])
@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
def test_plain_svi_improves_the_bound_and_moves_every_parameter(elbo: Any, kind: type[Chain]) -> None:
    chain, filled, observed = small(kind, linear_matern32)
    start = {name: parameter.detach().clone() for name, parameter in chain.named_parameters()}
    before = marginal_loss(chain, filled, observed)
    svi = SVI(chain.model, chain.guide, pyro.optim.Adam({"lr": 0.05}), elbo())
    losses = [svi.step(filled, observed) for _ in range(60)]
    assert np.mean(losses[-10:]) < np.mean(losses[:3]) - 100
    assert marginal_loss(chain, filled, observed) < before - 100
    still = [name for name, p in chain.named_parameters() if p.numel() and torch.equal(p, start[name])]
    # A link without inputs has neither lengthscales nor different inducing inputs.
    assert [name for name in still if not name.startswith("links.0.kernel")] == []
    assert len(pyro.get_param_store()) == 0


@pytest.mark.usefixtures("empty_store")
@pytest.mark.parametrize("family", [AutoNormal, AutoDelta])
def test_automatic_guides_train_and_predict(family: Any) -> None:
    chain, filled, observed = small()
    guide = family(chain.model)
    svi = SVI(chain.model, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
    losses = [svi.step(filled, observed) for _ in range(80)]
    assert np.mean(losses[-10:]) < np.mean(losses[:3]) - 100
    drawn = Predictive(chain.model, guide=guide, num_samples=7, parallel=True)(filled, observed)["filled"]
    assert drawn.shape == (7, 60, 3)
    assert torch.equal(drawn[:, observed], filled[observed].expand(7, -1))


def test_automatic_guides_honour_priors() -> None:
    """The noise has the mean of a prior that leaves it no choice."""
    chain, filled, observed = small()
    chain.links[1].likelihood.noise = PyroSample(dist.LogNormal(0.5 * LIKE, 0.01))
    with pyro.settings.context(module_local_params=True):
        guide = AutoNormal(chain.model)
        svi = SVI(chain.model, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
        for _ in range(80):
            svi.step(filled, observed)
        noise = guide.median()["links.1.likelihood.noise"]
    assert float(noise) == pytest.approx(np.exp(0.5), rel=0.05)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.slow
def test_parallel_predictions_are_those_of_one_after_the_other(training: bool) -> None:
    chain, filled, observed = small(n_sweeps=2)
    chain.train(training)
    moments = []
    for parallel in (False, True):
        draw = Predictive(chain.model, guide=chain.guide, num_samples=300, parallel=parallel)
        samples = draw(filled, observed)
        assert samples["filled"].shape == (300, 60, 3)
        assert torch.equal(samples["filled"][:, ~observed[:, 1], 1], samples["z_b"])
        missing = samples["filled"][:, ~observed]
        moments.append((missing.mean(0), missing.std(0)))
    (mean, sd), (other_mean, other_sd) = moments
    assert ((mean - other_mean).abs() < 5 * sd * (2 / 300) ** 0.5).all()
    assert ((sd / other_sd).log().abs() < 0.25).all()


def with_priors(chain: Chain) -> Chain:
    """Give the noises, and the lengthscales of links with inputs, priors."""
    for link in chain.links:
        link.likelihood.noise = PyroSample(dist.LogNormal(-1.5 * LIKE, 1.0))
        if len(link.inputs):
            scale = dist.LogNormal(0.5 * LIKE, 0.7).expand([len(link.inputs)]).to_event(1)
            link.kernel.lengthscale = PyroSample(scale)
    return chain


def test_nuts_samples_hyperparameters_functions_and_missing_cells() -> None:
    chain, filled, observed = small()
    mcmc = MCMC(
        NUTS(with_priors(chain).model, max_tree_depth=4),
        num_samples=15,
        warmup_steps=25,
        disable_progbar=True,
    )
    mcmc.run(filled, observed)
    samples = mcmc.get_samples()
    assert samples["links.2.kernel.lengthscale"].shape == (15, 2)
    assert samples["z_c"].shape == (15, int((~observed[:, 2]).sum()))
    # The prior of the noise has its median at .22; the first column is standard normal.
    assert samples["links.0.likelihood.noise"].median() > 0.5
    assert samples["links.2.likelihood.noise"].median() < 0.5
    drawn = Predictive(chain.model, samples)(filled, observed)["filled"]
    assert torch.equal(drawn[:, ~observed[:, 1], 1], samples["z_b"])


def test_samples_of_mcmc_predict_in_parallel_without_priors_of_kernels() -> None:
    chain, filled, observed = small()
    chain.links[1].likelihood.noise = PyroSample(dist.LogNormal(-1.5 * LIKE, 1.0))
    traces = [poutine.trace(chain.model).get_trace(filled, observed) for _ in range(4)]
    names = [n for n in traces[0].stochastic_nodes if n not in ("filled", "rows") and "missing" not in n]
    samples = {name: torch.stack([t.nodes[name]["value"].detach() for t in traces]) for name in names}
    drawn = Predictive(chain.model, samples, parallel=True)(filled, observed)["filled"]
    expected = torch.stack([trace.nodes["filled"]["value"].detach() for trace in traces])
    torch.testing.assert_close(drawn, expected)
    with pytest.raises(NotImplementedError, match=r"link 'b' has a prior on 'lengthscale'.*parallel=False"):
        Predictive(with_priors(chain).model, {}, num_samples=3, parallel=True)(filled, observed)


# ------------------------------------------------------------------------------------------------ refusals


def test_training_and_imputing_refuse_priors_by_name() -> None:
    chain, filled, observed = small()
    conditionals = with_priors(chain).conditionals
    for refused in (
        conditionals,
        partial(ConjugateStep, chain),
        partial(Augmentation, chain, filled, observed),
    ):
        with pytest.raises(ValueError, match=r"'likelihood\.noise' of the link of column 0 has a prior"):
            refused()
