"""Priors of the Pyro model are those under which the chains of `impute` draw noises and coefficients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from pyro import poutine
from scipy import stats
from scipy.special import expit
from sklearn.linear_model import LinearRegression, LogisticRegression

from pyro_mgp import MGPImputer
from pyro_mgp.inference.data_augmentation import Augmentation, Regression, Rows, draw_noise
from pyro_mgp.inference.function_posterior import CoefficientScales
from pyro_mgp.inference.slice_sampling import N_NUMBERS
from pyro_mgp.model.kernels import linear_quadratic_matern32
from pyro_mgp.model.likelihoods import Gaussian, Ordinal
from pyro_mgp.model.link import Link
from pyro_mgp.model.priors import with_priors
from pyro_mgp.model.sequential_chain import SequentialChain

VALUES = torch.as_tensor(np.random.default_rng(0).normal(size=(30, 2)))
OBSERVED = torch.as_tensor(np.random.default_rng(1).random((30, 2)) < 0.7)
KERNEL, RATE = "links.1.kernel.kern0.product_deviations", "links.1.kernel.kern1.variance"
SHARED = "links.1.kernel.kern0.log_shared"
Numbers = NDArray[np.float64]


def chain() -> SequentialChain:
    """Return two columns, the second a curve of the first."""
    Xu = VALUES[:4, :1]
    first = Link(linear_quadratic_matern32(0, [], 3), VALUES[:4, :0], 0, [], Gaussian(0.8))
    second = Link(linear_quadratic_matern32(1), Xu, 1, [0], Gaussian(0.5))
    return SequentialChain([first, second], ["a", "b"], n_rows=30)


def sites() -> dict[str, torch.distributions.Distribution]:
    trace = poutine.trace(with_priors(chain()).model).get_trace(VALUES, OBSERVED)
    return {name: trace.nodes[name]["fn"] for name in trace.stochastic_nodes}


def test_the_noise_has_the_density_under_which_it_is_drawn() -> None:
    """Without rows from which to learn, draws of the Gibbs sampler are draws from the prior."""
    n = 4000
    nothing = Rows(torch.zeros(n, 1, 0).double(), torch.zeros(n, 0).double(), torch.zeros(n, 0).double())
    known = Rows(*(part[0] for part in nothing))
    noise = torch.ones(n, 1).double()
    for step in range(60):
        normal = torch.as_tensor(np.random.default_rng(step).normal(size=(n, N_NUMBERS)))
        noise = draw_noise(Regression(known, nothing, None), torch.zeros(n, 1).double(), noise, normal)
    prior = sites()["links.0.likelihood.noise"]
    grid = torch.linspace(np.log(1e-5), np.log(1e5), 20_001).double()
    density = (prior.log_prob(grid.exp()) + grid).exp().cumsum(0)
    found = noise[:, 0].log().clamp(min=float(grid[0])).numpy()
    # Below the smallest noise draws are cut off.
    distance = stats.kstest(found, lambda x: np.interp(x, grid, density / density[-1])).statistic
    assert distance < 0.035


def test_coefficients_have_the_scales_under_which_they_are_drawn() -> None:
    link, priors = chain().links[1], sites()
    own = CoefficientScales.of(link)
    assert own is not None
    prior = priors[KERNEL]
    # A site without numbers is none: samples of NUTS could not be put together.
    assert KERNEL.replace("links.1", "links.0") not in priors
    assert prior.event_shape == (1,)  # a square
    # The slope of a Gaussian link has a fixed one.
    assert "links.1.kernel.kern0.linear_deviations" not in priors
    typical = link.kernel.kern0.product_deviations
    scales = torch.tensor([0.5]).double()
    wide = own.wide[own.coefficients].detach()
    assert (float(priors[SHARED].loc), float(priors[SHARED].scale)) == (0.0, 1.0)
    # Of a single product the logarithm of the scale has a standard deviation of .05.
    given = poutine.condition(with_priors(chain()).model, {SHARED: 20 * torch.tensor(0.2).double().log()})
    prior = poutine.trace(given).get_trace(VALUES, OBSERVED).nodes[KERNEL]["fn"]
    expected = stats.halfcauchy.logpdf(scales, scale=0.2 * wide).sum() - float(typical.log().sum())
    assert float(prior.log_prob(scales * typical)) == pytest.approx(expected)
    amplitude = float(link.kernel.kern1.variance.detach()) ** 0.5
    rest = stats.halfcauchy(scale=float(own.wide[own.rest][0].detach()) * amplitude)
    assert float(priors[RATE].log_prob(torch.tensor(0.04).double())) == pytest.approx(
        rest.logpdf(0.2) - np.log(2 * 0.2)
    )


def test_drawn_deviations_change_the_function_and_nothing_else_is_changed() -> None:
    own, one = chain(), with_priors(chain())
    before = {name: value.clone() for name, value in own.state_dict().items()}
    u = torch.zeros(own.links[1].n_values).double()
    u[2] = 1.0  # the square
    drawn = {"u_b": u, "e_b": torch.zeros(30).double()}
    deviations = own.links[1].kernel.kern0.product_deviations
    curvatures = []
    for factor in (3.0, 1.0):
        given = poutine.condition(one.model, drawn | {KERNEL: factor * deviations})
        site = poutine.trace(given).get_trace(VALUES, torch.ones_like(OBSERVED)).nodes["x_b"]["fn"]
        curvatures.append(site.mean / VALUES[:, 0].square())
    torch.testing.assert_close(curvatures[0], 3 * curvatures[1])
    torch.testing.assert_close(curvatures[1], deviations[0].expand(30))
    assert {name: value.equal(before[name]) for name, value in own.state_dict().items()} == dict.fromkeys(
        before, True
    )
    Augmentation(own, VALUES, OBSERVED)
    with pytest.raises(ValueError, match="has a prior"):
        Augmentation(one, VALUES, OBSERVED)


def test_likelihoods_without_noise_keep_their_parameters() -> None:
    values, shares = torch.tensor([-1.0, 1.0]).double(), torch.tensor([0.5, 0.5]).double()
    link = Link(linear_quadratic_matern32(1), VALUES[:4, :1], 1, [0], Ordinal(values, shares))
    one = with_priors(SequentialChain([link], ["b"], n_rows=30))
    assert not one.links[0].likelihood._pyro_samples
    trace = poutine.trace(one.model).get_trace(VALUES.sign(), torch.ones_like(OBSERVED))
    shared = float((0.05 * trace.nodes["links.0.kernel.kern0.log_shared"]["value"]).exp())
    for name, scale in (("linear_deviations", 1.0), ("product_deviations", 0.3 * shared)):
        prior = trace.nodes[f"links.0.kernel.kern0.{name}"]["fn"]
        torch.testing.assert_close(prior.base_dist.scale, torch.tensor([scale]).double())


def mean_squared_error(draw: Callable[[np.random.Generator, Numbers], Numbers], levels: bool) -> Numbers:
    """Return squared errors of imputed expectations and of a regression without products, over four tables.

    The expectation, for `levels` its logit, is a linear function of two out of six columns.
    """
    errors = []
    for seed in range(4):
        g = np.random.default_rng(seed)
        X, missing = g.normal(size=(150, 6)), np.arange(150) >= 100
        truth = expit(X[:, 0] - X[:, 1]) if levels else X[:, 0] - X[:, 1]
        y = draw(g, truth)
        frame = pd.DataFrame(X).assign(y=np.where(y, "yes", "no") if levels else y)
        frame.loc[missing, "y"] = None
        imputer = MGPImputer(random_state=0, progress=False, inputs="earlier", order=["y"]).fit(frame)
        drawn = np.array([table["y"][missing] for table in imputer.impute(m=40)])
        values = (drawn == "yes").astype(float) if levels else drawn.astype(float)
        # The mean of 40 draws has an error of its own.
        own = ((values.mean(0) - truth[missing]) ** 2).mean() - values.var(0, ddof=1).mean() / 40
        if levels:
            logistic = LogisticRegression(C=np.inf).fit(X[~missing], y[~missing])
            regressed = logistic.predict_proba(X[missing])[:, 1]
        else:
            regressed = LinearRegression().fit(X[~missing], y[~missing]).predict(X[missing])
        errors.append([own, ((regressed - truth[missing]) ** 2).mean()])
    return np.array(errors).mean(0)


def test_products_that_do_not_matter_let_in_little_noise_of_numbers() -> None:
    """With a tighter prior of the scale that products share the error is 2.2 times that of a regression."""
    own, regressed = mean_squared_error(lambda g, mean: mean + g.normal(size=len(mean)), levels=False)
    assert own < 1.7 * regressed


def test_products_that_do_not_matter_let_in_little_noise_of_levels() -> None:
    """With that prior and three times as wide ones of coefficients it is 2.6 times that of a regression."""
    own, regressed = mean_squared_error(lambda g, share: g.random(len(share)) < share, levels=True)
    assert own < 2.1 * regressed
