"""Discrete support: the regression against scikit-learn, probabilities by hand, draws end to end."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import softmax
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression

from pyro_mgp import Engine, MGPImputer
from pyro_mgp.model.conditional import Conditional, Moments
from pyro_mgp.model.likelihoods.levels import nearest_value
from pyro_mgp.sampling import discrete_support
from pyro_mgp.sampling.discrete_support import DiscreteSupport


def three() -> DiscreteSupport:
    values, log_weights, frequencies = torch.tensor(
        [[-1.0, 0.0, 2.0], [0.0, 1.0, -1.0], [0.3, 0.6, 0.1]], dtype=torch.float64
    )
    return DiscreteSupport(values, log_weights, frequencies, 0.7, 1.5)


def test_probabilities_are_a_weighted_student_density_at_the_values() -> None:
    mean, variance = (torch.tensor(x, dtype=torch.float64) for x in ([0.3, -2.0], [0.5, 2.0]))
    found = three().log_probabilities(mean, variance).exp()
    for i, (m, v) in enumerate([(0.3, 0.5), (-2.0, 2.0)]):
        weights = [
            np.exp(w) * (1 + (a - m) ** 2 / v) ** -0.7 for a, w in [(-1.0, 0.0), (0.0, 1.0), (2.0, -1.0)]
        ]
        np.testing.assert_allclose(found[i], np.divide(weights, np.sum(weights)), rtol=1e-12)
    expected = found @ three().values
    torch.testing.assert_close(three().expectation(mean, variance), expected)
    # The slope favours values on the side of the mean.
    steeper = dataclasses.replace(three(), slope=0.4, typical_variance=0.3).log_probabilities(mean, variance)
    gain = 0.4 * (mean / (variance + 0.3))[:, None] * three().values
    torch.testing.assert_close(steeper.exp(), (found.log() + gain).softmax(-1))


def test_frequencies_of_draws_are_the_probabilities() -> None:
    support, n = three(), 40_000
    mean, variance = torch.full((n,), 0.3).double(), torch.full((n,), 0.5).double()
    uniform = (torch.arange(n).double() + 0.5) / n
    drawn = support.draw(mean, variance, uniform)
    shares = [(drawn == value).double().mean().item() for value in support.values]
    np.testing.assert_allclose(shares, support.log_probabilities(mean[0], variance[0]).exp(), atol=2 / n)


def test_draws_at_extreme_means_are_values_of_the_column() -> None:
    support = three()
    for mean in (-1e9, 1e9, 0.3):
        drawn = support.draw(torch.tensor([mean]).double(), torch.zeros(1).double(), torch.rand(1).double())
        assert drawn in support.values


def test_the_nearest_value_is_the_most_probable_however_small_the_variance() -> None:
    even = dataclasses.replace(three(), log_weights=torch.zeros(3).double())
    mean = torch.tensor([-0.6, 0.4, 1.2]).double()
    for variance in (1e-2, 1e-6, 1e-12):
        found = even.log_probabilities(mean, torch.full_like(mean, variance)).argmax(-1)
        assert found.tolist() == [0, 1, 2]


def cells(n: int, log_weights: list[float], sharpness: float) -> tuple[DiscreteSupport, torch.Tensor, ...]:
    """Return cells drawn from a discrete support with these weights and λ, and their predictions."""
    values = torch.arange(len(log_weights)).double()
    weights = torch.tensor(log_weights).double()
    support = DiscreteSupport(values, weights, weights.softmax(0), sharpness)
    mean, variance = 3 * torch.rand(n).double() - 0.5, 0.2 + torch.rand(n).double()
    return support, support.draw(mean, variance, torch.rand(n).double()), mean, variance


def shares(values: torch.Tensor, observed: torch.Tensor) -> torch.Tensor:
    return (observed[:, None] == values).double().mean(0)


def test_fit_recovers_weights_and_sharpness() -> None:
    truth, observed, mean, variance = cells(20_000, [0.0, -1.5, 1.0], 2.0)
    found = DiscreteSupport.fit(truth.values, observed, mean, variance, shares(truth.values, observed))
    assert found.sharpness == pytest.approx(2.0, rel=0.05)
    weights = found.log_weights - found.log_weights[0]
    np.testing.assert_allclose(weights, truth.log_weights, atol=0.1)


def test_fit_of_two_values_is_a_logistic_regression(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a ridge, log odds = intercept + λ (misfit of one value - misfit of the other) + γ m."""
    monkeypatch.setattr(discrete_support, "_WEIGHT_RIDGE", 1e-9)
    monkeypatch.setattr(discrete_support, "_SLOPE_RIDGE", 1e-9)
    truth, observed, mean, variance = cells(500, [0.0, -1.0], 0.8)
    found = DiscreteSupport.fit(truth.values, observed, mean, variance, shares(truth.values, observed))
    misfits = (1 + mean**2 / variance).log() - (1 + (mean - 1) ** 2 / variance).log()
    features = torch.stack([misfits, mean / (variance + variance.mean())], dim=-1).numpy()
    expected = LogisticRegression(C=1e10, tol=1e-10).fit(features, observed.numpy())
    assert found.sharpness == pytest.approx(expected.coef_[0, 0], rel=1e-4)
    assert found.slope == pytest.approx(expected.coef_[0, 1], rel=1e-4)
    weights = found.log_weights[1] - found.log_weights[0]
    assert float(weights) == pytest.approx(expected.intercept_[0], abs=1e-4)


def test_newton_step_is_that_of_gradient_and_hessian() -> None:
    truth, observed, mean, variance = cells(60, [0.0, 0.5, -0.5], 1.2)
    features = torch.stack([-discrete_support._misfit(truth.values, mean, variance), torch.randn(60, 3)], -1)
    start, ridge = torch.tensor([[0.1, 0.2, 0.3, 1.0, 0.0], [0.5, 0.5, 0.5, 5.0, 4.0]]).double()
    regression = discrete_support._Regression(features, observed.long(), start, ridge)
    at = torch.tensor([0.3, -0.2, 0.1, 0.6, 0.4]).double()

    def height(parameters: torch.Tensor) -> torch.Tensor:
        logs = (parameters[:3] + features @ parameters[3:]).log_softmax(-1)
        chosen = logs.gather(1, observed.long()[:, None]).sum()
        return chosen - (ridge * (parameters - start).square()).sum() / 2

    assert regression.objective(at) == pytest.approx(float(height(at)))
    gradient = torch.autograd.functional.jacobian(height, at)
    hessian = torch.autograd.functional.hessian(height, at)
    torch.testing.assert_close(regression.newton_step(at), -torch.linalg.solve(hessian, gradient))


def counts_of(n: int, n_values: int) -> torch.Tensor:
    """Return weights of the values among a random number of neighbours, `[n, J]`."""
    return 5 * torch.rand(n, n_values).double().square() * torch.rand(n, 1).double()


def test_neighbours_change_the_weights() -> None:
    support, counts = three(), torch.tensor([[2.0, 0.0, 1.0]]).double()
    mean, variance = torch.tensor([[0.3], [0.5]], dtype=torch.float64)
    logits = [
        weight
        + 1.5 * math.log((own + frequency) / 4 / frequency)
        - 0.7 * math.log1p((value - 0.3) ** 2 / 0.5)
        for value, weight, frequency, own in zip(
            support.values.tolist(), support.log_weights.tolist(), (0.3, 0.6, 0.1), (2, 0, 1), strict=True
        )
    ]
    found = support.given(counts).log_probabilities(mean, variance).exp()
    np.testing.assert_allclose(found[0], softmax(logits), rtol=1e-12)
    # Without neighbours, the frequencies among them are those of the column.
    torch.testing.assert_close(support.given(0 * counts).log_weights[0], support.log_weights)
    assert support.given(None) is support


def test_fit_recovers_the_locality() -> None:
    truth, _, mean, variance = cells(30_000, [0.0, -1.5, 1.0], 2.0)
    truth, counts = dataclasses.replace(truth, locality=0.8), counts_of(30_000, 3)
    observed = truth.given(counts).draw(mean, variance, torch.rand(30_000).double())
    found = DiscreteSupport.fit(truth.values, observed, mean, variance, truth.frequencies, counts)
    assert found.locality == pytest.approx(0.8, rel=0.1)
    assert found.sharpness == pytest.approx(2.0, rel=0.1)
    assert DiscreteSupport.fit(truth.values, observed, mean, variance, truth.frequencies).locality == 0


def levels_of(n: int) -> torch.Tensor:
    """Return log probabilities of two levels, as a sparse GP may predict them, `[n, 2]`."""
    return torch.stack([torch.zeros(n).double(), 2 * torch.randn(n).double()], dim=-1).log_softmax(-1)


def test_levels_keep_probabilities_that_are_right() -> None:
    levels, values = levels_of(20_000), torch.tensor([-0.5, 2.0]).double()
    observed = values[(torch.rand(20_000).double() < levels[:, 1].exp()).long()]
    mean, variance = levels.exp() @ values, torch.ones(20_000).double()
    given = torch.full_like(mean, 0.5), variance, shares(values, observed), None, levels
    found = DiscreteSupport.fit(values, observed, *given)
    assert found.trust == pytest.approx(1.0, abs=0.05)
    given_levels = found.given(None, levels).log_probabilities(mean, variance)
    np.testing.assert_allclose(given_levels.exp(), levels.exp(), atol=0.02)
    # A few cells leave the prior, which is these probabilities.
    few = [each[:3] if each is not None and len(each) > 3 else each for each in given]
    alone = DiscreteSupport.fit(values, observed[:3], *few)
    assert alone.trust == pytest.approx(1.0, abs=0.3)


def test_levels_and_neighbours_share_the_prediction() -> None:
    levels, counts, values = levels_of(30_000), counts_of(30_000, 2), torch.tensor([-1.0, 1.0]).double()
    nothing, frequencies = torch.zeros(30_000).double(), torch.tensor([0.5, 0.5]).double()
    truth = DiscreteSupport(values, torch.zeros(2).double(), frequencies, 0.0, 0.8, 0.6)
    observed = truth.given(counts, levels).draw(nothing, nothing + 1, torch.rand(30_000).double())
    found = DiscreteSupport.fit(values, observed, nothing, nothing + 1, frequencies, counts, levels)
    assert found.locality == pytest.approx(0.8, rel=0.1)
    assert found.trust == pytest.approx(0.6, rel=0.1)


def test_neighbours_with_other_values_have_no_effect() -> None:
    truth, _, mean, variance = cells(2000, [0.0, 0.0, 0.0], 1.0)
    counts = counts_of(2000, 3)
    against = dataclasses.replace(truth, locality=-1.0).given(counts)
    observed = against.draw(mean, variance, torch.rand(2000).double())
    found = DiscreteSupport.fit(truth.values, observed, mean, variance, truth.frequencies, counts)
    assert found.locality == 0
    alone = DiscreteSupport.fit(truth.values, observed, mean, variance, truth.frequencies)
    assert found.sharpness == pytest.approx(alone.sharpness)


def test_expected_values_are_as_steep_in_the_mean_as_observed_ones() -> None:
    """Most cells have the smallest value, and errors of others are larger than s² says: no λ suits both."""
    generator, values = torch.Generator().manual_seed(0), torch.arange(6).double()
    mean = 5 * torch.rand(4000, generator=generator).double().square()
    errors = 0.4 * mean * torch.randn(4000, generator=generator).double()
    observed, variance = values[nearest_value(values, mean + errors)], torch.full_like(mean, 0.1)
    found = DiscreteSupport.fit(values, observed, mean, variance, shares(values, observed))
    difference = found.expectation(mean, variance) - observed
    assert difference.mean() == pytest.approx(0, abs=0.01)
    assert (difference * mean).mean() == pytest.approx(0, abs=0.01)


def test_a_normal_support_is_a_weighted_normal_density_at_the_values() -> None:
    """Its variance is a typical one, whatever that of the prediction."""
    mean, variance = (torch.tensor(x, dtype=torch.float64) for x in ([0.3, -1.0], [0.5, 2.0]))
    support = dataclasses.replace(three(), sharpness=1.0, is_normal=True, typical_variance=0.64)
    weights = np.exp([0.0, 1.0, -1.0]) * norm.pdf([-1.0, 0.0, 2.0], mean[:, None], 0.8)
    found = support.log_probabilities(mean, variance).exp()
    np.testing.assert_allclose(found, weights / weights.sum(1, keepdims=True), rtol=1e-12)


def test_weights_of_a_normal_support_give_the_frequencies_of_the_values() -> None:
    """Of values that are cut from a normal distribution, expectations stay near the mean within the range."""
    generator = np.random.default_rng(3)
    mean = torch.as_tensor(generator.normal(size=4000))
    values = torch.arange(-3.0, 4.0).double()
    observed = torch.as_tensor(generator.normal(mean, 0.8)).round().clamp(-3, 3)
    variance = torch.full_like(mean, 0.8**2 + 1 / 12)  # rounding adds the variance of a uniform error
    frequencies = torch.bincount(nearest_value(values, observed), minlength=7) / len(mean)
    fit = DiscreteSupport.fit_normal(values, observed, mean, variance, frequencies.double())
    expected = fit.log_probabilities(mean, variance).exp().mean(0)
    torch.testing.assert_close(expected, frequencies.double(), atol=1e-3, rtol=0)
    inner = mean[mean.abs() < 1.5]
    assert (fit.expectation(inner, torch.full_like(inner, variance[0].item())) - inner).abs().max() < 0.1
    found = DiscreteSupport.from_dict(fit.to_dict(), values)
    torch.testing.assert_close(found.log_probabilities(mean, variance), fit.log_probabilities(mean, variance))


def test_items_of_a_joint_density_are_as_steep_in_their_functions_as_numbers() -> None:
    """A regression on leave-one-out predictions is less steep, where these have large errors."""
    generator = np.random.default_rng(0)
    trait = generator.normal(size=(150, 1))
    noisy = 0.7 * trait + 0.7 * generator.normal(size=(150, 5))
    frame = pd.DataFrame(1.0 + np.digitize(noisy, [-1.2, -0.4, 0.4, 1.2])).add_prefix("item")
    frame = frame.mask(generator.random(frame.shape) < 0.25)
    fitted = MGPImputer(inputs="earlier", random_state=0, progress=False).fit(frame)
    assert fitted.discrete_support_ is not None
    for support, link in zip(fitted.discrete_support_, fitted.model_.chain.links, strict=True):
        mean, noise = torch.tensor([-0.5, 0.5]).double(), link.likelihood.noise.detach()
        low, high = support.expectation(mean, noise.expand(2)).tolist()
        assert high - low == pytest.approx(1.0, abs=0.12)


def test_one_outlier_does_not_dominate_the_fit() -> None:
    truth, observed, mean, variance = cells(500, [0.0, 0.0, 0.0], 1.0)
    before = DiscreteSupport.fit(truth.values, observed, mean, variance, shares(truth.values, observed))
    observed[0], mean[0], variance[0] = 0.0, 2.0, 1e-9
    after = DiscreteSupport.fit(truth.values, observed, mean, variance, shares(truth.values, observed))
    assert after.sharpness > 0.5 * before.sharpness


def test_conditional_with_discrete_support_adds_the_noise() -> None:
    support, eps = three(), torch.randn(2, 50).double()
    moments = Moments(torch.randn(2, 50).double(), torch.rand(1, 50).double())
    conditional = Conditional(torch.tensor(0.5).double(), observation=support, noisy=True)
    variance = (moments.variance + 0.5).expand(2, 50)
    torch.testing.assert_close(
        conditional.draw(moments, eps), support.draw(moments.mean, variance, torch.special.ndtr(eps))
    )
    torch.testing.assert_close(conditional.expectation(moments), support.expectation(moments.mean, variance))
    drawn = support.log_probabilities(moments.mean, variance).exp() @ support.values.exp()
    torch.testing.assert_close(conditional.expectation(moments, torch.exp), drawn)


def ratings(n: int = 600, seed: int = 0) -> pd.DataFrame:
    """Return skewed grades from 1 to 5 in steps of 0.5 that depend on x."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=n)
    grade = np.clip(np.round(2 * np.exp(0.5 * x + 0.3 * generator.normal(size=n))) / 2 + 1, 1, 5)
    return pd.DataFrame({"x": x, "grade": grade})


def with_missing(frame: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray]:
    held_out = np.random.default_rng(1).random(len(frame)) < 0.3
    return frame.assign(grade=frame["grade"].mask(held_out)), held_out


@pytest.mark.parametrize("dtype", ["float64", "Int64", "float32"])
def test_draws_are_values_of_the_column_to_the_last_digit(dtype: str) -> None:
    frame = ratings()
    frame["grade"] = (2 * frame["grade"] if dtype == "Int64" else frame["grade"] / 3).astype(dtype)
    holes, held_out = with_missing(frame)
    draws = MGPImputer(random_state=0).fit(holes).impute(m=5)
    seen = set(holes["grade"].dropna())
    assert set(draws[0].loc[held_out, "grade"]) <= seen
    assert draws[0]["grade"].dtype == holes["grade"].dtype


def test_values_are_drawn_with_their_frequencies() -> None:
    frame = ratings(1500)
    holes, held_out = with_missing(frame)
    drawn = np.asarray(MGPImputer(random_state=0).fit(holes).impute(m=20).values["grade"])
    truth = frame.loc[held_out, "grade"].to_numpy()
    for value in np.unique(truth):
        share = np.mean(truth == value)
        error = math.sqrt(share * (1 - share) / len(truth))
        assert np.mean(drawn == value) == pytest.approx(share, abs=4 * error)
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    assert np.mean((low <= truth) & (truth <= high)) > 0.93


def test_values_that_later_columns_inform_have_the_probabilities_of_bayes_theorem() -> None:
    """y = x z + noise: no link that predicts x from y and z with one noise variance has them."""
    generator, n = np.random.default_rng(0), 600
    x = np.round(2 * generator.normal(size=n).clip(-2, 2)) / 2
    z = generator.normal(size=n)
    y, missing = x * z + 0.5 * generator.normal(size=n), generator.random(n) < 0.4
    imputer = MGPImputer(random_state=0).fit(
        pd.DataFrame({"x": np.where(missing, np.nan, x), "z": z, "y": y})
    )
    drawn = np.asarray(imputer.impute(m=100).values["x"])
    values, counts = np.unique(x[~missing], return_counts=True)
    likelihood = norm.pdf(y[missing, None], values * z[missing, None], 0.5)
    expected = counts * likelihood / (counts * likelihood).sum(1, keepdims=True)
    found = np.stack([(drawn == value).mean(0) for value in values], axis=1)
    # The mean distance of shares of 100 exact draws would be about 0.08; with inputs="others" it is 0.23.
    assert np.abs(found - expected).sum(1).mean() / 2 < 0.12
    assert (drawn.mean(0) - expected @ values).mean() == pytest.approx(0, abs=0.04)
    assert imputer.sequential_


def test_discrete_support_can_be_switched_off_and_needs_repeated_values() -> None:
    holes, held_out = with_missing(ratings())
    loose = MGPImputer(random_state=0, discrete_support=0).fit(holes).impute(m=2)
    assert not set(loose[0].loc[held_out, "grade"]) <= set(holes["grade"].dropna())
    support = MGPImputer(random_state=0, discrete_support=4).fit(holes)
    assert support.discrete_support_ == [None]
    unique = holes.assign(grade=holes["grade"] + np.arange(len(holes)) * 1e-6)
    assert MGPImputer(random_state=0).fit(unique).discrete_support_ == [None]


def test_transform_returns_means_not_values() -> None:
    holes, held_out = with_missing(ratings())
    imputer = MGPImputer(random_state=0).fit(holes)
    point = imputer.transform(holes).loc[held_out, "grade"].to_numpy()
    drawn = np.asarray(imputer.impute(m=200).values["grade"]).mean(0)
    assert np.abs(point - drawn).max() < 0.35
    assert np.abs(point - drawn).mean() < 0.06
    assert not set(point) <= set(holes["grade"].dropna())


def test_a_saved_imputer_draws_the_same_values(tmp_path) -> None:
    holes, _ = with_missing(ratings(300))
    imputer = MGPImputer(random_state=0).fit(holes)
    imputer.save(tmp_path / "imputer")
    loaded = MGPImputer.load(tmp_path / "imputer")
    pd.testing.assert_frame_equal(loaded.impute(holes, m=2)[1], imputer.impute(holes, m=2)[1])


def test_latent_propagation_has_no_discrete_support() -> None:
    holes, _ = with_missing(ratings(200))
    imputer = MGPImputer(random_state=0, engine=Engine(propagate="latent"))
    assert imputer.fit(holes).discrete_support_ == [None]


@pytest.mark.parametrize("settings", [{}, {"precision": "mixed"}], ids=["double", "mixed"])
def test_close_values_next_to_a_missing_value_code_are_all_drawn(settings: dict[str, str]) -> None:
    """Next to 99999999, the values 0 to 3 are 1e-7 standard deviations apart."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=600)
    answer = generator.integers(0, 4, size=600).astype(float)
    answer[:8] = 99999999.0
    frame = pd.DataFrame({"x": x, "answer": answer}).mask(
        np.c_[np.zeros(600), generator.random(600) < 0.3] > 0
    )
    drawn = np.asarray(
        MGPImputer(random_state=0, warp=False, **settings).fit(frame).impute(m=20).values["answer"]
    )
    shares = [np.mean(drawn == value) for value in range(4)]
    assert min(shares) > 0.1
    assert set(np.unique(drawn)) <= {0.0, 1.0, 2.0, 3.0, 99999999.0}


def test_wrong_predictions_are_ignored_and_frequencies_kept() -> None:
    generator = torch.Generator().manual_seed(0)
    values, shares = torch.tensor([-1.0, 0.0, 1.0]).double(), torch.tensor([0.6, 0.3, 0.1]).double()
    observed = values[torch.multinomial(shares, 2000, replacement=True, generator=generator)]
    mean, variance = -observed, torch.full_like(observed, 0.3)
    support = DiscreteSupport.fit(values, observed, mean, variance, shares)
    drawn = support.log_probabilities(mean, variance).exp().mean(0)
    torch.testing.assert_close(drawn, shares, rtol=0, atol=0.03)


def two_kinds(n: int = 600) -> pd.DataFrame:
    """Return y that is 0 left of x = 0, and -3 or 3 right of it, with missing cells."""
    rng = np.random.default_rng(0)
    x, z = rng.uniform(-1, 1, size=(2, n))
    y = np.where(x < 0, 0.0, np.where(rng.random(n) < 0.5, -3.0, 3.0))
    frame = pd.DataFrame({"x": x, "y": y, "z": z + 0.1 * x})
    return frame.mask((rng.random((n, 3)) < 0.2) & [False, True, True])


@pytest.fixture(scope="module")
def of_two_kinds() -> tuple[MGPImputer, pd.DataFrame]:
    """An imputer of `two_kinds` whose y depends on the values of neighbours, and new rows without y."""
    imputer = MGPImputer(random_state=0, inputs="others", progress=False).fit(two_kinds())
    x = np.linspace(0.1, 0.9, 15)
    return imputer, pd.DataFrame({"x": x, "y": np.nan, "z": 0.1 * x})


def support_of(imputer: MGPImputer, name: str) -> DiscreteSupport:
    support = imputer.discrete_support_[imputer.model_.chain.names.index(name)]
    assert support is not None
    return support


def test_values_between_those_of_neighbours_are_not_drawn(
    of_two_kinds: tuple[MGPImputer, pd.DataFrame],
) -> None:
    imputer, new = of_two_kinds
    assert support_of(imputer, "y").locality > 0.2
    drawn = np.stack([draw["y"] for draw in imputer.impute(new, m=40)])
    assert (drawn == 0).mean() < 0.1
    assert 0.3 < (drawn == 3).mean() < 0.7


def test_local_frequencies_do_not_depend_on_other_rows_and_survive_saving(
    of_two_kinds: tuple[MGPImputer, pd.DataFrame], tmp_path: Path
) -> None:
    imputer, new = of_two_kinds
    whole = [draw["y"] for draw in imputer.impute(new, m=4)]
    imputer.save(tmp_path / "imputer")
    loaded = MGPImputer.load(tmp_path / "imputer")
    for other in (imputer.impute(new.iloc[3:5], m=4), loaded.impute(new.iloc[3:5], m=4)):
        for ours, theirs in zip(whole, other, strict=True):
            pd.testing.assert_series_equal(ours.iloc[3:5], theirs["y"])


def test_observed_cells_are_predicted_with_local_frequencies(
    of_two_kinds: tuple[MGPImputer, pd.DataFrame],
) -> None:
    frame = two_kinds()
    draws = of_two_kinds[0].impute(m=20)
    replicated = draws.to_arviz()["in_sample_predictive"]["y"].to_numpy().reshape(20, -1)
    seen = frame["x"][frame["y"].notna()].to_numpy() > 0.1
    assert (replicated[:, seen] == 0).mean() < 0.15
