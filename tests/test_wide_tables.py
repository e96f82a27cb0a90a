"""Tables with nearly as many columns as rows, or more: few of many inputs matter."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_mgp import MGPImputer
from pyro_mgp.inference.function_posterior import CoefficientScales
from pyro_mgp.inference.gibbs_chains import n_chains
from pyro_mgp.model.kernels import Matern32, linear_quadratic_matern32, trend_of
from pyro_mgp.model.likelihoods import Gaussian
from pyro_mgp.model.link import Link
from pyro_mgp.model.link_specs import is_sparse
from pyro_mgp.model.priors import shared_spread, with_priors
from pyro_mgp.model.sequential_chain import SequentialChain


def blocks(n: int, p: int, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return p columns, the first six with correlations of .7; two of these miss by two others."""
    g = np.random.default_rng(seed)
    X = g.normal(size=(n, p))
    X[:, :6] = 0.7**0.5 * g.normal(size=(n, 1)) + 0.3**0.5 * X[:, :6]
    full = pd.DataFrame(X, columns=[f"x{k}" for k in range(p)])
    frame = full.copy()
    for label, cause in (("x0", "x2"), ("x1", "x3")):
        frame[label] = frame[label].mask(g.random(n) < 1 / (1 + np.exp(0.8 - full[cause])))
    return full, frame


@pytest.mark.parametrize("p", [30, 130])
@pytest.mark.slow
def test_noise_of_many_columns_is_not_learnt(p: int) -> None:
    ratios, slopes, errors = [], [], []
    for seed in range(3):
        full, frame = blocks(100, p, seed)
        fitted = MGPImputer(random_state=0, progress=False).fit(frame)
        assert fitted.settings_.inputs.value == "earlier"
        draws = list(fitted.impute(m=20))
        for label in ("x0", "x1"):
            holes = frame[label].isna()
            cells = np.array([table[label][holes] for table in draws])
            ratios.append(np.mean([table[label].var() for table in draws]) / full[label].var())
            errors.append((cells.mean(0) - full[label][holes]).std())
        slopes += [np.polyfit(table["x4"], table["x0"], 1)[0] for table in draws]
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.12)
    assert np.mean(slopes) == pytest.approx(0.7, abs=0.12)
    # The best predictor leaves a standard deviation of .61.
    assert np.mean(errors) < 0.8


def test_links_with_many_inputs_have_sparse_terms() -> None:
    assert is_sparse(41, 200) and not is_sparse(40, 200) and not is_sparse(15, 30)
    _, frame = blocks(60, 20, 0)
    fitted = MGPImputer(random_state=0, progress=False, max_steps=3).fit(frame)
    last = fitted.chain_.links[-1]
    trend, rest = trend_of(last.kernel)
    assert trend is not None and isinstance(rest, Matern32)
    inputs = last.inputs.tolist()
    # Those that are correlated with it, and another column with a link.
    assert {2, 3, 4, 5} <= {inputs[place] for place in rest.active_dims}
    assert len(rest.active_dims) + len(trend.sparse_deviations) == len(inputs)
    assert len(rest.active_dims) < 12
    _, frame = blocks(60, 12, 0)
    fitted = MGPImputer(random_state=0, progress=False, max_steps=3).fit(frame)
    for link in fitted.chain_.links:
        trend, _ = trend_of(link.kernel)
        assert trend is not None and len(trend.sparse_deviations) == 0


def test_sparse_terms_share_a_scale_with_products() -> None:
    Xu = torch.as_tensor(np.random.default_rng(0).normal(size=(4, 3)))

    def link() -> Link:
        kernel = linear_quadratic_matern32(3, [(0, 2)], curved=[0, 2])
        return Link(kernel, Xu, 3, [0, 1, 2], Gaussian(0.5))

    sampled = with_priors(SequentialChain([link()], ["y"], n_rows=9)).links[0].kernel.kern0._pyro_samples
    assert {*sampled} == {"log_shared", "product_deviations", "sparse_deviations"}
    own, (trend, rest) = CoefficientScales.of(link()), trend_of(link().kernel)
    assert own is not None and trend is not None
    # Intercept, three linear terms, a product, and inducing values.
    assert own.products.nonzero()[:, 0].tolist() == own.coefficients.tolist() == [2, 4]
    assert shared_spread(trend) == pytest.approx(0.1)
    assert shared_spread(trend, searching=True) == pytest.approx(0.02)
    assert rest.active_dims == [0, 2]
    trend.sparse_deviations.fill_(0.25)
    X = torch.as_tensor(np.random.default_rng(1).normal(size=(5, 3)))
    torch.testing.assert_close(trend.features(X)[:, 1:4], X * torch.tensor([1.0, 0.25, 1.0]).double())


@pytest.mark.parametrize(("n_values", "chains"), [(0, 20), (300, 20), (500, 5), (700, 4), (5000, 4)])
def test_functions_of_many_values_are_drawn_in_fewer_chains(n_values: int, chains: int) -> None:
    assert n_chains(200, n_values=n_values) == chains
