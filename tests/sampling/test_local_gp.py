"""Local GPs: against scikit-learn, by hand, and end to end."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math

import numpy as np
import pandas as pd
import pyro.contrib.gp.kernels as kernels
import pytest
import torch
from scipy.stats import norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Matern
from sklearn.neighbors import NearestNeighbors

from pyro_mgp import Engine, MGPImputer
from pyro_mgp.model.conditional import Moments
from pyro_mgp.model.kernels import lengthscales, linear_matern32, matern32
from pyro_mgp.model.likelihoods import Gaussian
from pyro_mgp.model.link import Link
from pyro_mgp.sampling import local_gp, neighbours
from pyro_mgp.sampling.local_gp import LocalGPParams, LocalLink
from pyro_mgp.sampling.neighbours import LocalConditional, PathPosteriors


def make(n: int = 40, k: int = 40, **changes: float) -> LocalLink:
    """Return a local GP of column 1 given columns 0 and 2, with n reference rows."""
    rows = torch.randn(n, 3).double()
    residuals = torch.sin(5 * rows[:, 0])
    params = dataclasses.replace(LocalGPParams((0.4, 1.0), 0.3, 3.0, 0.2), **changes)
    return LocalLink.of(torch.tensor([0, 2]), rows, residuals, k, params)


def test_with_all_rows_as_neighbours_it_is_exact_gp_regression() -> None:
    local, rows = make(), torch.randn(2, 5, 3).double()
    nearby = local.posterior(rows[0])
    at = nearby.moments(rows)
    exact = GaussianProcessRegressor(Matern(1.0, nu=1.5), alpha=0.3, optimizer=None)
    exact.fit(local.inputs.numpy(), local.residuals.numpy())
    for path in range(2):
        mean, sd = exact.predict(local.scaled(rows[path]).numpy(), return_std=True)
        np.testing.assert_allclose(at.mean[path], mean, atol=1e-9)
        np.testing.assert_allclose(at.variance[path] / nearby.scale, sd**2 + 0.3, atol=1e-9)


def test_the_scale_is_the_posterior_mode_of_its_conjugate_prior_and_the_residuals() -> None:
    local = make(inflation=2.0)
    covariance = Matern(1.0, nu=1.5)(local.inputs.numpy()) + 0.3 * np.eye(40)
    e = local.residuals.numpy()
    scale = (3.0 * 0.2 + e @ np.linalg.solve(covariance, e)) / (3.0 + 40)
    nearby = local.posterior(torch.randn(1, 3).double())
    np.testing.assert_allclose(nearby.scale, 4 * scale, rtol=1e-9)


def test_references_are_the_rows_whose_cell_is_observed() -> None:
    rows, residuals = torch.randn(4, 3).double(), torch.tensor([1.0, math.nan, 3.0, 4.0]).double()
    params = LocalGPParams((0.5, 2.0), 0.3, 3.0, 0.2)
    local = LocalLink.of(torch.tensor([0, 2]), rows, residuals, 2, params)
    assert local.references.tolist() == [0, 2, 3]
    torch.testing.assert_close(local.residuals, residuals[[0, 2, 3]])
    torch.testing.assert_close(local.inputs, rows[[0, 2, 3]][:, [0, 2]] / torch.tensor([0.5, 2.0]).double())
    elsewhere = dataclasses.replace(local, lengthscales=torch.tensor([1.0, 1.0]).double(), n_neighbours=3)
    torch.testing.assert_close(elsewhere.inputs, rows[[0, 2, 3]][:, [0, 2]])
    assert elsewhere.n_neighbours == 3


def test_clipping_limits_the_influence_of_an_outlier() -> None:
    """Neighbours that agree are not clipped."""
    local, rows = make(n=60, k=20), torch.randn(12, 3).double()
    honest = local.posterior(rows).moments(rows[None])
    residuals = local.residuals.clone()
    outlier = local.nearest(rows)[0, 5]
    residuals[outlier] = 100.0
    spoilt = dataclasses.replace(local, residuals=residuals)
    cut = dataclasses.replace(local.params, cut=4.0)
    carried = spoilt.posterior(rows).moments(rows[None])
    robust = dataclasses.replace(spoilt, params=cut).posterior(rows).moments(rows[None])
    touched = (local.nearest(rows) == outlier).any(1)

    def off(at: Moments) -> torch.Tensor:
        return (at.mean - honest.mean)[0, touched].abs().mean()

    assert off(carried) > 1.0
    assert off(robust) < 0.1 * off(carried)
    assert (robust.variance / carried.variance)[0, touched].median() < 1e-3
    wide = dataclasses.replace(local, params=dataclasses.replace(cut, cut=50.0))
    torch.testing.assert_close(wide.posterior(rows).moments(rows[None]).mean, honest.mean)


def test_neighbours_are_the_nearest_rows() -> None:
    local, rows = make(n=60, k=7), torch.randn(15, 3).double()
    search = NearestNeighbors(n_neighbors=7).fit(local.inputs.numpy())
    _, expected = search.kneighbors(local.scaled(rows).numpy())
    np.testing.assert_array_equal(np.sort(local.nearest(rows), 1), np.sort(expected, 1))


def test_rows_are_not_their_own_neighbours() -> None:
    local = make(n=30, k=5)
    rows = torch.zeros(30, 3).double()
    rows[:, [0, 2]] = local.inputs * local.lengthscales
    own = torch.arange(30)
    assert (local.nearest(rows) == own[:, None]).any(1).all()
    assert not (local.nearest(rows, own) == own[:, None]).any()


def _nearly_repeated(rows: torch.Tensor, times: int) -> torch.Tensor:
    """Return repeated rows with rounding errors."""
    error = 1e-14 * torch.randn(times * len(rows), rows.shape[1], dtype=torch.float64)
    return rows.repeat(times, 1) + error


def test_rounding_errors_do_not_choose_between_neighbours() -> None:
    local, rows = make(n=200, k=9), torch.randn(50, 3).double()
    exact = dataclasses.replace(local, rows=local.rows[:20].repeat(10, 1))
    almost = dataclasses.replace(local, rows=_nearly_repeated(local.rows[:20], 10))
    torch.testing.assert_close(almost.nearest(rows), exact.nearest(rows), rtol=0, atol=0)


def test_neighbours_do_not_depend_on_the_number_of_query_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds even where rows are repeated, so that many are equally distant."""
    local = make(n=200, k=9)
    local = dataclasses.replace(local, rows=_nearly_repeated(local.rows[:20], 10))
    rows, own = torch.randn(50, 3).double(), torch.arange(50) + 100
    together, others = local.nearest(rows), local.nearest(rows, own)
    monkeypatch.setattr(local_gp, "_ENTRIES_AT_ONCE", 3 * 200)
    torch.testing.assert_close(local.nearest(rows), together, rtol=0, atol=0)
    torch.testing.assert_close(local.nearest(rows, own), others, rtol=0, atol=0)


def test_no_cells_have_no_neighbours() -> None:
    local = make()
    at = local.posterior(torch.zeros(0, 3).double()).moments(torch.zeros(4, 0, 3).double())
    assert at.mean.shape == at.variance.shape == (4, 0)


def test_local_conditional_adds_the_means_and_takes_the_local_variance() -> None:
    class Sparse:
        noise, observation = torch.tensor(5.0), None

        def moments(self, rows: torch.Tensor) -> Moments:
            return Moments(rows[..., 0], rows[..., 1].square())

        def mean(self, rows: torch.Tensor) -> torch.Tensor:
            return self.moments(rows).mean

    local, rows = make(k=6), torch.randn(3, 4, 3).double()
    nearby = local.posterior(rows[0])
    corrected = LocalConditional.of(Sparse(), PathPosteriors.of([local], [0, 0, 0], rows))
    at, alone = corrected.moments(rows), nearby.moments(rows)
    torch.testing.assert_close(at.mean, rows[..., 0] + alone.mean)
    torch.testing.assert_close(at.variance, alone.variance)
    assert corrected.noise == 0


def test_local_gp_uses_the_residuals_of_drawn_functions() -> None:
    rows = torch.randn(40, 3).double()
    chance = torch.Generator().manual_seed(1)
    link = Link(matern32(2), rows[:6, [0, 2]].clone(), 1, [0, 2], Gaussian(0.1))
    values = torch.randn(3, 6, generator=chance, dtype=torch.float64)
    with torch.no_grad():
        mean, drawn = link(), link(values)
        residuals = rows[:, 1] - mean.functions(rows)[0]
        params = LocalGPParams((0.4, 1.0), 0.3, 3.0, 0.2)
        local = LocalLink.of(torch.tensor([0, 2]), rows, residuals, 12, params)
        cells = torch.randn(3, 7, 3).double()
        nearby = PathPosteriors.of([local], [0, 0, 0], cells)
        found = nearby.given_functions(drawn, mean).moments(cells)
        for path, function in enumerate(drawn.functions(rows)):
            own = dataclasses.replace(local, residuals=rows[:, 1] - function).posterior(cells[0])
            torch.testing.assert_close(found.mean[path], own.moments(cells[path : path + 1]).mean[0])
        torch.testing.assert_close(found.variance, nearby.moments(cells).variance)


def test_starts_alternate_between_metrics_and_have_their_own_neighbours() -> None:
    rows = torch.randn(40, 3).double()
    params = [LocalGPParams((0.4, 1.0), 0.3, 3.0, 0.2), LocalGPParams((1.0, 0.4), 0.1, 3.0, 0.2)]
    residuals = torch.sin(5 * rows[:, 0])
    metrics = [LocalLink.of(torch.tensor([0, 2]), rows, residuals, 12, each) for each in params]
    cells = torch.randn(5, 7, 3).double()
    found = PathPosteriors.of(metrics, [4, 7, 6, 9, 4], cells).moments(cells)
    for path, (metric, first) in enumerate([(0, 0), (1, 1), (0, 2), (1, 3), (0, 0)]):
        expected = metrics[metric].posterior(cells[first]).moments(cells[path, None])
        torch.testing.assert_close(found.mean[path], expected.mean[0])
        torch.testing.assert_close(found.variance[path], expected.variance[0])


def test_local_gps_of_several_metrics_use_the_residuals_of_their_functions() -> None:
    class Lines:
        """Linear functions of the first column."""

        observation = None

        def __init__(self, *slopes: float) -> None:
            self.slopes = torch.tensor(slopes).double()

        def functions(self, rows: torch.Tensor) -> torch.Tensor:
            return self.slopes[:, None] * rows[:, 0]

    rows = torch.randn(40, 3).double()
    params = [LocalGPParams((0.4, 1.0), 0.3, 3.0, 0.2), LocalGPParams((1.0, 0.4), 0.1, 3.0, 0.2)]
    metrics = [LocalLink.of(torch.tensor([0, 2]), rows, rows[:, 1], 12, each) for each in params]
    cells, slopes = torch.randn(3, 7, 3).double(), (0.5, -1.0, 2.0)
    nearby = PathPosteriors.of(metrics, range(3), cells)
    found = nearby.given_functions(Lines(*slopes), Lines(0.0)).moments(cells)
    for path, slope in enumerate(slopes):
        own = dataclasses.replace(metrics[path % 2], residuals=rows[:, 1] - slope * rows[:, 0])
        expected = own.posterior(cells[path]).moments(cells[path, None])
        torch.testing.assert_close(found.mean[path], expected.mean[0])


@pytest.mark.parametrize("joint", [True, False])
def test_imputations_agree_close_to_training_rows(joint: bool) -> None:
    inside, spread = [], repeated()["y"].std()
    for seed in range(3):
        frame = repeated(seed=seed)
        imputer, held_out = fit(frame, engine=Engine(joint_draws=joint))
        draws, truth = np.asarray(imputer.impute(m=100).values["y"]), frame["y"][held_out].to_numpy()
        low, high = np.quantile(draws, [0.025, 0.975], axis=0, method="weibull")
        inside.append((low <= truth) & (truth <= high))
        # If the spread of drawn functions were added to the local variance, these would be wider.
        assert np.median(high - low) < 0.5 * spread
    assert 0.93 < np.mean(np.concatenate(inside)) < 0.99


@pytest.mark.parametrize("factor", [1.0, 6.0])
def test_predictions_have_the_shape_of_the_errors(factor: float) -> None:
    """A tenth of the errors is `factor` times as large."""

    def noisy(seed: int) -> pd.DataFrame:
        frame, generator = repeated(1500, seed), np.random.default_rng(seed + 50)
        widths = np.where(generator.random(len(frame)) < 0.1, factor, 1.0)
        return frame.assign(y=frame["y"] + 0.05 * widths * generator.standard_normal(len(frame)))

    train, new = noisy(0), noisy(1)
    imputer = MGPImputer(random_state=0).fit(train[["x", "z"]], train["y"])
    assert factor == 1 or imputer.model_.neighbours.links[-1][0].params.contaminated
    for level, least, most in ((0.95, 0.92, 0.98), (0.5, 0.45, 0.6)):
        at = imputer.predict(new[["x", "z"]], level=level)
        assert least < new["y"].between(at["lower"], at["upper"]).mean() < most


def test_lengthscales_follow_the_active_dims_of_kernel_parts() -> None:
    first = kernels.RBF(2, lengthscale=torch.tensor([2.0, 3.0]), active_dims=[3, 1])
    second = kernels.Matern52(3, lengthscale=torch.tensor(5.0), active_dims=[0, 1, 2])
    kernel = kernels.Sum(kernels.Linear(1, active_dims=[4]), kernels.Sum(first, second))
    torch.testing.assert_close(lengthscales(kernel, 5), torch.tensor([5.0, 3.0, 5.0, 2.0, 1.0]))


@pytest.mark.parametrize("factory", [linear_matern32, matern32])
def test_lengthscales_are_those_of_the_matern_part(factory) -> None:
    expected = {linear_matern32: 4 * math.sqrt(3), matern32: math.sqrt(3)}[factory]
    torch.testing.assert_close(lengthscales(factory(3), 3), torch.full((3,), expected))


def repeated(n_rows: int = 1000, seed: int = 0) -> pd.DataFrame:
    """Return rows of 150 kinds, each with its own value, which no smooth function fits."""
    sorts = np.random.default_rng(9).uniform(-2, 2, (150, 3))
    generator = np.random.default_rng(seed)
    rows = sorts[generator.integers(0, 150, n_rows)] + 0.01 * generator.normal(size=(n_rows, 3))
    return pd.DataFrame(rows, columns=["x", "z", "y"])


def steps(n_rows: int = 2100, seed: int = 0) -> pd.DataFrame:
    """Return a column that is a step function of two others, noisy on one side only."""
    generator = np.random.default_rng(seed)
    x, z = generator.uniform(-2, 2, (2, n_rows))
    level = np.floor(x) % 2 + np.floor(z) % 2
    noise = np.where(x > 0, 0.3, 0.02) * generator.normal(size=n_rows)
    return pd.DataFrame({"x": x, "z": z, "y": level + noise})


def fit(frame: pd.DataFrame, **settings: object) -> tuple[MGPImputer, np.ndarray]:
    """Fit an imputer with 30 % of the cells of y held out, and return it with their mask."""
    held_out = np.random.default_rng(1).random(len(frame)) < 0.3
    with torch.random.fork_rng(devices=[]):
        imputer = MGPImputer(random_state=0, **settings).fit(frame.assign(y=frame["y"].mask(held_out)))
    return imputer, held_out


@pytest.fixture(scope="module")
def jumps() -> tuple[MGPImputer, np.ndarray]:
    return fit(steps())


def test_neighbours_predict_repeated_kinds_of_rows() -> None:
    frame, errors = repeated(), {}
    for k in (0, 16):
        imputer, held_out = fit(frame, n_neighbors=k)
        assert (imputer.neighbours_ is None) == (k == 0)
        point = np.asarray(imputer.impute(m=50).values["y"]).mean(0)
        errors[k] = np.sqrt(np.mean((point - frame["y"][held_out]) ** 2))
    assert errors[16] < 0.3 * errors[0]


def test_intervals_adapt_to_local_noise_and_have_their_coverage(jumps) -> None:
    frame, (imputer, held_out) = steps(), jumps
    draws, truth = np.asarray(imputer.impute(m=200).values["y"]), frame["y"][held_out].to_numpy()
    low, high = np.quantile(draws, [0.025, 0.975], axis=0, method="weibull")
    held = np.mean((low <= truth) & (truth <= high))
    # Three standard errors of the coverage of these cells, and of the 140 that calibrated the inflation.
    error = math.sqrt(0.95 * 0.05 * (1 / len(truth) + 1 / 140))
    assert held == pytest.approx(0.95, abs=3 * error)
    spread, noisy = draws.std(0), frame["x"][held_out].to_numpy() > 0
    assert np.median(spread[noisy]) > 1.3 * np.median(spread[~noisy])


def test_a_saved_imputer_has_its_neighbours(jumps, tmp_path) -> None:
    imputer = copy.copy(jumps[0])
    imputer.set_params(n_neighbors=5)  # applies to later fits only
    imputer.save(tmp_path / "imputer")
    loaded = MGPImputer.load(tmp_path / "imputer")
    new = steps(40, seed=2).assign(y=np.nan)
    expected = imputer.impute(new, m=3)
    np.testing.assert_array_equal(loaded.impute(new, m=3).values["y"], expected.values["y"])


def test_draws_with_neighbours_do_not_depend_on_batches_or_on_m(jumps) -> None:
    new = pd.concat([steps(60, seed=3)] * 2, ignore_index=True).assign(y=np.nan)
    imputer, _ = jumps
    expected = np.asarray(imputer.impute(new, m=6).values["y"])
    np.testing.assert_array_equal(imputer.impute(new, m=6, batch_size=7).values["y"], expected)
    np.testing.assert_array_equal(imputer.impute(new, m=2).values["y"], expected[:2])


def test_batches_are_small_where_neighbours_need_memory(jumps, monkeypatch) -> None:
    new = steps(50, seed=3).assign(y=np.nan)
    expected = np.asarray(jumps[0].impute(new, m=2).values["y"])
    most = jumps[0].neighbours_.rows_at_once(2)
    assert most == jumps[0].neighbours_.rows_at_once(1) // 2  # each imputation has neighbours of its own
    monkeypatch.setattr(neighbours, "_KEPT_AT_ONCE", 7 * neighbours._KEPT_AT_ONCE // most)
    assert jumps[0].neighbours_.rows_at_once(2) < 10
    np.testing.assert_array_equal(jumps[0].impute(new, m=2).values["y"], expected)


def test_fit_with_little_memory_has_the_same_result(monkeypatch) -> None:
    frame = steps(600)
    expected, _ = fit(frame, inputs="others")
    monkeypatch.setattr(neighbours, "_KEPT_AT_ONCE", 40 * 16 * (16 + 2))
    found, _ = fit(frame, inputs="others")
    assert found.neighbours_.rows_at_once(1) == 40
    pairs = zip(found.neighbours_.params, expected.neighbours_.params, strict=True)
    for (one,), (other,) in pairs:
        assert one.lengthscales == other.lengthscales
        assert one.inflation == pytest.approx(other.inflation, rel=0.25)


def test_steps_have_a_local_gp_unless_functions_are_propagated() -> None:
    """As numbers, and as the levels of a category."""
    frame = steps()
    punched = frame.assign(y=frame["y"].mask(np.arange(len(frame)) % 3 == 0))
    assert MGPImputer(random_state=0, engine=Engine(propagate="latent")).fit(punched).neighbours_ is None
    grade = pd.Series(np.where(punched["y"] > 1, "high", "low")).mask(punched["y"].isna())
    assert MGPImputer(random_state=0).fit(punched.assign(y=grade)).neighbours_ is not None


def test_linear_columns_have_no_local_gp() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=400)
    frame = pd.DataFrame({"x": x, "y": 2 * x + generator.normal(size=400)})
    frame.loc[:120, "y"] = np.nan
    assert MGPImputer(random_state=0).fit(frame).neighbours_ is None


def test_predict_uses_the_local_gp_of_the_target() -> None:
    frame, new = repeated(), repeated(300, seed=5)
    imputer = MGPImputer(random_state=0).fit(frame[["x", "z"]], frame["y"])
    alone = MGPImputer(random_state=0, n_neighbors=0).fit(frame[["x", "z"]], frame["y"])
    errors = [i.predict(new[["x", "z"]])["mean"].to_numpy() - new["y"] for i in (imputer, alone)]
    assert np.square(errors[0]).mean() < 0.2 * np.square(errors[1]).mean()
    predicted = imputer.predict(new[["x", "z"]])
    rank = norm.cdf(new["y"], predicted["mean"], predicted["sd"])
    assert np.mean((rank > 0.025) & (rank < 0.975)) > 0.9
    assert predicted["sd"].median() < 0.3 * frame["y"].std()


def test_a_single_neighbour_is_enough() -> None:
    frame = repeated(300)
    imputer, _ = fit(frame, n_neighbors=1)
    assert imputer.neighbours_ is not None
    assert np.isfinite(np.asarray(imputer.impute(m=2).values["y"])).all()


def test_values_of_neighbours_are_counted_by_their_correlation() -> None:
    local = make(k=5)
    is_value = torch.arange(len(local.references))[:, None] % 3 == torch.arange(3)
    local = dataclasses.replace(local, is_value=is_value)
    rows = torch.randn(2, 7, 3, dtype=torch.float64)
    posterior = local.posterior(rows[0])
    cross, _ = posterior.cross_covariance(rows)
    found = posterior.moments(rows).counts
    assert found is not None and found.shape == (2, 7, 3)
    for path, cell, value in itertools.product(range(2), range(7), range(3)):
        own = posterior.neighbourhood.nearest[cell] % 3 == value
        assert float(found[path, cell, value]) == pytest.approx(float(cross[cell, path, own].sum()))
    assert make(k=5).posterior(rows[0]).moments(rows).counts is None


def test_moments_are_joined_by_paths_and_by_cells() -> None:
    whole = Moments(torch.randn(4, 6), torch.rand(4, 6), counts=torch.rand(4, 6, 3))
    paths = torch.tensor([True, False, False, True])
    parts = [whole.select(paths, 0), whole.select(~paths, 0)]
    joined = Moments.joined(parts, 0).select(torch.tensor([0, 2, 3, 1]), 0)
    nothing = Moments(whole.mean[:, :0], whole.variance[:, :0])
    cells = Moments.joined(
        [nothing, whole.select(torch.arange(2), 1), whole.select(torch.arange(2, 6), 1)], 1
    )
    for found in (joined, cells):
        assert found.shared is None
        for name in ("mean", "variance", "counts"):
            assert torch.equal(getattr(found, name), getattr(whole, name))
