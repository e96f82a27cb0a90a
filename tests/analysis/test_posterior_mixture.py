"""Mixtures of posteriors: against closed forms and Rubin's rules, and their warnings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC, NUTS, Predictive
from scipy import stats

from pyro_mgp import Imputations, pool
from pyro_mgp.analysis.posterior_mixture import MixtureWarning, mix

M, N_DRAWS = 400, 250


def regression(X: Any, y: Any, generator: np.random.Generator, n_draws: int) -> tuple[Any, Any, Any, Any]:
    """Return estimates, their covariance, and draws of coefficients and variance under the flat prior."""
    within = np.linalg.inv(X.T @ X)
    estimates, freedom = within @ X.T @ y, len(y) - X.shape[1]
    squares = np.square(y - X @ estimates).sum()
    variance = squares / generator.chisquare(freedom, n_draws)
    noise = generator.standard_normal((n_draws, X.shape[1])) @ np.linalg.cholesky(within).T
    return estimates, within * squares / freedom, estimates + np.sqrt(variance)[:, None] * noise, variance


@pytest.fixture(scope="module")
def imputed() -> dict[str, Any]:
    """Return a normal linear regression with 40 of 100 outcomes imputed from its posterior."""
    generator = np.random.default_rng(1)
    X = np.column_stack([np.ones(100), generator.normal(size=100)])
    y, seen = X @ [1.0, 0.5] + generator.normal(size=100), np.arange(100) < 60
    estimates, covariance, coefficients, variances = regression(X[seen], y[seen], generator, M)
    fits, posteriors = [], []
    for beta, variance in zip(coefficients, variances, strict=True):
        filled = np.where(seen, y, X @ beta + np.sqrt(variance) * generator.normal(size=100))
        fit, spread, draws, _ = regression(X, filled, generator, N_DRAWS)
        fits.append((fit, spread))
        posteriors.append({"beta": draws})
    return {"estimates": estimates, "covariance": covariance, "fits": fits, "mixture": mix(posteriors)}


def test_the_mixture_is_the_posterior_given_what_was_observed(imputed: dict[str, Any]) -> None:
    # Missing outcomes carry no information: the posterior is that of the complete rows.
    table, freedom = imputed["mixture"].table, 58
    scale = np.sqrt(np.diag(imputed["covariance"]))
    np.testing.assert_allclose(table["mean"], imputed["estimates"], atol=0.1 * scale.max())
    np.testing.assert_allclose(table["sd"], scale * np.sqrt(freedom / (freedom - 2)), rtol=0.05)
    reach = stats.t.ppf(0.975, freedom) * scale
    np.testing.assert_allclose(table["high"] - table["low"], 2 * reach, rtol=0.06)
    assert (abs(table["mean"] - imputed["estimates"]) < 4 * table["mcse"]).all()
    assert table["mcse"].lt(0.06 * table["sd"]).all() and table["lambda"].between(0.25, 0.55).all()


def test_the_mixture_agrees_with_rubins_rules(imputed: dict[str, Any]) -> None:
    # Posterior variances under the flat prior exceed squared standard errors by 98 / 96.
    mixture, pooled = imputed["mixture"], pool(imputed["fits"], df_complete=98)
    np.testing.assert_allclose(mixture.table["mean"], pooled.table["estimate"], atol=0.01)
    expected = pooled.ubar * 98 / 96 + (1 - 1 / M) * pooled.b
    np.testing.assert_allclose(mixture.table["sd"] ** 2, expected, rtol=0.01)
    np.testing.assert_allclose(mixture.table["within"], pooled.ubar * 98 / 96, rtol=0.02)
    np.testing.assert_allclose(mixture.table["between"], pooled.b, rtol=0.05)
    large_sample = pool(imputed["fits"])
    np.testing.assert_allclose(mixture.table["fmi"], large_sample.table["fmi"], atol=0.02)
    for bound in ("low", "high"):
        np.testing.assert_allclose(mixture.table[bound], pooled.table[bound], atol=0.02)


def posteriors(
    means: Any, shape: tuple[int, ...] = (4, 100), seed: int = 0, **more: Any
) -> list[dict[str, Any]]:
    generator = np.random.default_rng(seed)
    return [{"b": generator.normal(mean, 1.0, shape), **more} for mean in means]


def test_differences_between_tables_do_not_raise_rhat() -> None:
    apart = posteriors([-0.6, 0.6, -0.5, 0.7, 0.0, 0.3, -0.2, -0.4, 0.1, 0.2] * 2)
    mixture = mix(apart, group_by_chain=True)
    assert mixture.table.loc["b", "rhat"] < 1.05 < mixture.table.loc["b", "sd"]
    assert mixture.by_table["ess_bulk"].between(200, 800).all()
    assert mixture.table.loc["b", "ess"] == mixture.by_table["ess_bulk"].min()


def test_unconverged_chains_are_a_warning() -> None:
    several = posteriors([0.0] * 5)
    several[3]["b"][0] += 3
    with pytest.warns(
        MixtureWarning, match=r"R-hat of \['b'\] within a table is up to 1\.\d+: chains"
    ) as caught:
        mixture = mix(several, group_by_chain=True)
    assert caught[0].filename == __file__
    assert mixture.by_table["rhat"].idxmax() == (3, "b")
    mix(several, group_by_chain=True, max_rhat=3)


def test_rhat_of_a_single_chain_compares_its_halves() -> None:
    several = posteriors([0.0] * 5, (201,))
    assert mix(several).by_table["rhat"].between(0.99, 1.05).all()
    several[1]["b"] += np.linspace(-1.5, 1.5, 201)
    with pytest.warns(MixtureWarning, match="within a table"):
        assert mix(several).by_table["rhat"].idxmax() == (1, "b")


def test_too_few_tables_are_a_warning_that_recommends_a_number() -> None:
    with pytest.warns(MixtureWarning, match=r"3 posteriors is too narrow by \d+% \(b\): draw 1[2-9] imp"):
        mix(posteriors([-1.0, 0.0, 1.0]), group_by_chain=True)
    mix(posteriors(np.linspace(-1.5, 1.5, 19)), group_by_chain=True)


def test_parameters_of_any_shape_keep_their_draws() -> None:
    drawn = [
        {
            "b": torch.randn(2, 50, requires_grad=True),
            "W": torch.randn(2, 50, 2, 3).float(),
            "n": torch.ones(2, 50).long(),
        }
        for _ in range(4)
    ]
    mixture = mix(drawn, group_by_chain=True, max_rhat=2)
    labels = ["b", *(f"W[{i}, {j}]" for i in range(2) for j in range(3)), "n"]
    assert mixture.table.index.tolist() == labels
    assert mixture.by_table.index.names == ["imputation", "parameter"] and len(mixture.by_table) == 32
    assert {name: x.shape for name, x in mixture.draws.items()} == {
        "b": (400,),
        "W": (400, 2, 3),
        "n": (400,),
    }
    np.testing.assert_array_equal(mixture.draws["W"][150:200], drawn[1]["W"][1].numpy())
    assert mixture.draws["n"].dtype == np.int64
    constant = mixture.table.loc["n"]
    assert constant["mean"] == 1 and constant["sd"] == 0 and np.isnan(constant["rhat"])
    single = mix(
        [{name: x.reshape(100, *x.shape[2:]) for name, x in each.items()} for each in drawn], max_rhat=2
    )
    pd.testing.assert_frame_equal(
        single.table.drop(columns=["rhat", "ess"]), mixture.table.drop(columns=["rhat", "ess"])
    )
    np.testing.assert_array_equal(single.draws["W"], mixture.draws["W"])


def test_units_of_a_parameter_scale_its_mixture() -> None:
    plain, scaled = (
        mix([{"b": factor * each["b"]} for each in posteriors([0.1] * 6)], group_by_chain=True).table.loc["b"]
        for factor in (1.0, 1e3)
    )
    lengths = ["mean", "sd", "low", "high", "mcse"]
    np.testing.assert_allclose(scaled[lengths], 1e3 * plain[lengths])
    np.testing.assert_allclose(scaled[["within", "between"]], 1e6 * plain[["within", "between"]])
    np.testing.assert_allclose(
        scaled[["lambda", "fmi", "rhat", "ess"]], plain[["lambda", "fmi", "rhat", "ess"]]
    )


def test_a_model_of_pyro_is_mixed_over_tables() -> None:
    def model(x: torch.Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
        pyro.sample("x", dist.Normal(mean, 1.0).expand(x.shape).to_event(1), obs=x)

    observed = torch.linspace(-1, 1, 20)
    filled = [torch.cat([observed, 0.3 * torch.randn(5)]) for _ in range(4)]

    def posterior(x: torch.Tensor) -> dict[str, torch.Tensor]:
        sampler = MCMC(NUTS(model), num_samples=100, warmup_steps=50, disable_progbar=True)
        sampler.run(x)
        return sampler.get_samples(group_by_chain=True)

    mixture = mix([posterior(x) for x in filled], group_by_chain=True, max_rhat=1.2)
    exact = [25 * x.mean().item() / 25.01 for x in filled]
    assert mixture.table.loc["mean", "mean"] == pytest.approx(np.mean(exact), abs=0.06)
    assert mixture.table.loc["mean", "sd"] == pytest.approx(np.sqrt(1 / 25.01 + np.var(exact)), rel=0.2)

    def guide(x: torch.Tensor) -> None:
        pyro.sample("mean", dist.Normal(x.mean(), 0.2))

    drawn = [Predictive(model, guide=guide, num_samples=100, return_sites=["mean"])(x) for x in filled]
    assert mix(drawn, max_rhat=1.2).draws["mean"].shape == (400,)


def test_imputations_mix_a_posterior_given_each_of_their_tables() -> None:
    frame = pd.DataFrame({"y": [1.0, np.nan, 3.0], "kind": ["a", "b", "b"]}, index=[7, 8, 9])
    draws = Imputations(frame, {"y": [[1.5], [2.0], [2.5], [2.2]]}, m=4)
    noise = np.random.default_rng(0).normal(size=(2, 300))

    def posterior(table: pd.DataFrame) -> dict[str, Any]:
        return {"mean": table["y"].mean() + noise}

    mixture = draws.mix(posterior, group_by_chain=True, level=0.5)
    expected = mix([posterior(table) for table in draws], group_by_chain=True, level=0.5)
    pd.testing.assert_frame_equal(mixture.table, expected.table)
    assert (mixture.m, mixture.level) == (4, 0.5)


def test_repr_of_a_mixture() -> None:
    mixture = mix(posteriors([0.1] * 6), group_by_chain=True, level=0.9)
    assert repr(mixture).startswith("Posterior mixed over 6 imputations, 90% intervals\n")
    assert "lambda" in repr(mixture) and "<table" in mixture._repr_html_()


@pytest.mark.parametrize(
    ("given", "error", "sentence"),
    [
        ([{"b": np.zeros(9)}], ValueError, "at least two imputations, got 1"),
        (
            [{"b": np.zeros(9)}, {"a": np.zeros(9)}],
            ValueError,
            r"same parameters .* and {'a': \(9,\)} from table 1",
        ),
        (
            [{"b": np.zeros(9)}, {"b": np.zeros(8)}],
            ValueError,
            r"{'b': \(9,\)} from table 0 and {'b': \(8,\)}",
        ),
        (
            [{"b": np.zeros(9), "a": np.zeros((8, 2))}] * 2,
            ValueError,
            r"draws \[draws, ...\] .* as many of each",
        ),
        ([{}, {}], ValueError, "every parameter"),
        ([np.zeros(9)] * 2, TypeError, r"draws by name of the parameter, .* got ndarray"),
        ([{"b": np.float64(1)}] * 2, ValueError, "every parameter"),
        ([{"b": np.array(["x"] * 9)}] * 2, TypeError, "draws of 'b' must be numbers, got <U1"),
        (
            [{"b": np.zeros(9)}, {"b": np.full(9, np.nan)}],
            ValueError,
            "table 1: some draws of 'b' are not finite",
        ),
        ([{"b": np.zeros(7)}] * 2, ValueError, "at least 8 draws .* got 7"),
    ],
)
def test_invalid_posteriors_are_an_error(given: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        mix(given)


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="level must lie between 0 and 1, got 95"):
        mix(posteriors([0.0, 0.1]), level=95)
    with pytest.raises(ValueError, match=r"draws \[chains, draws, ...\]"):
        mix([{"b": np.zeros(9)}] * 2, group_by_chain=True)
