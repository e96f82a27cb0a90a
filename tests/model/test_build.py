"""Chains built from link specifications, their likelihoods and starting values."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyro
import pytest
import statsmodels.api as sm
import torch
from linked_table import CODEC, INCOMPLETE
from pyro.infer import TraceMeanField_ELBO

from pyro_mgp import ColumnSpec, MGPImputer
from pyro_mgp.data.table import TableCodec
from pyro_mgp.model.build import (
    build_chain,
    compounds,
    likelihoods,
    starting_noise,
)
from pyro_mgp.model.kernels import matern32
from pyro_mgp.model.likelihoods import Gaussian, Ordinal
from pyro_mgp.model.link_specs import LinkSpec, plan_links


def slope_of_product(counts: np.ndarray, X: np.ndarray) -> float:
    """Return the coefficient of the product of two columns in a Poisson regression."""
    design = np.column_stack([np.ones(len(X)), X, X.prod(1)])
    return float(sm.GLM(counts, design, family=sm.families.Poisson()).fit().params[3])


def gaussians(n_links: int) -> list[Gaussian]:
    return [Gaussian(0.5) for _ in range(n_links)]


# ----------------------------------------------------------------------------------------- the starting noise


def test_noise_starts_at_four_fifths_of_the_residual_variance_of_a_regression(device: torch.device) -> None:
    generator = np.random.default_rng(0)
    table = generator.standard_normal((50, 4)) @ generator.standard_normal((4, 4))
    table = (table - table.mean(0)) / table.std(0)
    specs = [LinkSpec("c", 2, (0, 1, 3)), LinkSpec("a", 0, (3,))]
    covariance = torch.tensor(np.cov(table.T, ddof=0), device=device)
    residuals = []
    for spec in specs:
        X = np.column_stack([np.ones(50), table[:, spec.inputs]])
        fitted = X @ np.linalg.lstsq(X, table[:, spec.column])[0]
        residuals.append(np.mean((table[:, spec.column] - fitted) ** 2))
    expected = [0.8 * residual for residual in residuals]
    assert starting_noise(covariance, specs) == pytest.approx(expected, rel=1e-9)


# -------------------------------------------------------------------------------------------------- the chain


@pytest.mark.parametrize("train_inducing", [True, False])
def test_build_chain_follows_the_link_specs(train_inducing: bool, device: torch.device) -> None:
    specs = plan_links(CODEC, INCOMPLETE, ["width", "height", "species"])
    inducing = torch.randn(4, 6, dtype=torch.float64, device=device)
    noise = [0.1, 0.2, 0.3, 0.4]
    chain = build_chain(
        specs,
        matern32,
        inducing,
        [Gaussian(variance) for variance in noise],
        train_inducing=train_inducing,
        n_rows=6,
        propagate="latent",
        n_paths=3,
    )
    assert chain.names == ("width", "height", "species=a", "species=b")
    assert [link.column for link in chain.links] == [4, 0, 1, 2]
    for link, spec, variance in zip(chain.links, specs, noise, strict=True):
        assert tuple(link.inputs.tolist()) == spec.inputs
        assert tuple(link.unless) == spec.unless
        assert torch.equal(link.Xu, inducing[:, list(spec.inputs)])
        assert link.likelihood.noise.item() == pytest.approx(variance)
        assert link.Xu_unconstrained.requires_grad is train_inducing
        assert all(p.requires_grad for name, p in link.named_parameters() if "Xu" not in name)
        assert all(p.device.type == device.type for p in link.parameters())
        assert all(p.dtype == torch.float64 for p in link.parameters())
    assert (chain.n_rows, chain.propagate, chain.n_paths) == (6, "latent", 3)
    kernels = {id(link.kernel) for link in chain.links}
    assert len(kernels) == 4


def test_the_links_do_not_share_their_inducing_inputs_with_the_table() -> None:
    inducing = torch.zeros(2, 6).double()
    specs = plan_links(CODEC, INCOMPLETE, None)
    chain = build_chain(specs, matern32, inducing, gaussians(4), train_inducing=True, n_rows=6)
    chain.links[0].Xu_unconstrained.data.fill_(7.0)
    assert not inducing.any()
    assert not chain.links[1].Xu.any()


@pytest.mark.parametrize("labels", [("x", "u_x"), ("a", "filled"), ("rows", "paths"), ("a b", "ä=1.5")])
def test_any_two_labels_make_a_chain_that_can_be_scored(labels: tuple[str, str]) -> None:
    codec = TableCodec.fit(pd.DataFrame(np.arange(6.0).reshape(3, 2), columns=labels))
    specs = plan_links(codec, np.ones(2, dtype=bool), None)
    chain = build_chain(
        specs, matern32, torch.zeros(1, 2).double(), gaussians(2), train_inducing=True, n_rows=3, n_paths=2
    )
    table = torch.zeros(3, 2).double()
    with pyro.settings.context(module_local_params=True):
        for pair in ((chain.model, chain.guide), (chain.marginal_model, chain.marginal_guide)):
            assert TraceMeanField_ELBO().differentiable_loss(*pair, table, table == 0).isfinite()


def test_numbers_are_gaussian_and_all_else_has_two_values() -> None:
    frame = pd.DataFrame(
        {
            "yes": [True, False, False, False],
            "side": [2, 7, 7, 2],
            "count": [1, 2, 3, 9],
            "kind": ["a", "b", "c", "c"],
        }
    )
    codec = TableCodec.fit(frame)
    specs = plan_links(codec, np.ones(codec.n_encoded, dtype=bool), ["yes", "side", "count", "kind"])
    found = likelihoods(codec, specs, [0.1] * 5)
    assert [isinstance(each, Ordinal) for each in found] == [True, True, False, True, True]
    encoded = codec.encode(frame).values
    for likelihood, spec in zip(found, specs, strict=True):
        if isinstance(likelihood, Ordinal):
            np.testing.assert_allclose(likelihood.values, np.unique(encoded[:, spec.column]))
    # Where nothing is known of a row, its values are as frequent as in the table: three in four are not
    # "yes" and not "a", two in three of the others are not "b".
    below = [float(torch.special.ndtr(found[k].thresholds).detach()) for k in (0, 3, 4)]
    assert below == pytest.approx([0.75, 0.75, 2 / 3])
    (category,) = compounds(codec, specs, torch.device("cpu"))
    assert (category.links, category.columns) == ((3, 4), (3, 4, 5))


def test_imputed_counts_depend_on_products_of_numbers() -> None:
    """Without products in their link the slope of imputed counts is .64, .71 and .65 of the others'."""
    ratios = []
    for seed in range(3):
        generator = np.random.default_rng(seed)
        a, b = X = generator.normal(size=(2, 400))
        counts = generator.poisson(np.exp(0.7 + 0.3 * a + 0.3 * b + 0.25 * a * b)).astype(float)
        missing = np.arange(400) >= 240
        frame = pd.DataFrame({"a": a, "b": b, "visits": np.where(missing, np.nan, counts)})
        imputer = MGPImputer(specs={"visits": ColumnSpec(kind="count")}, random_state=0, progress=False)
        imputer.set_params(inputs="earlier", order=["visits"])
        drawn = [table["visits"][missing].to_numpy(float) for table in imputer.fit(frame).impute(m=20)]
        slopes = [slope_of_product(each, X[:, missing].T) for each in drawn]
        ratios.append(np.mean(slopes) / slope_of_product(counts[~missing], X[:, ~missing].T))
    assert 0.8 < np.mean(ratios) < 1.1
