"""Export to ArviZ, in both of its versions: draws of missing cells and predictions of observed cells."""

from __future__ import annotations

import copy
import json
import pickle
from importlib.metadata import version

import arviz as az
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pyro_mgp import ColumnSpec, Imputations, MGPImputer
from pyro_mgp.model.local_parameters import local_parameters
from pyro_mgp.results.arviz_export import to_arviz
from pyro_mgp.settings import with_engine

BEFORE_1 = int(version("arviz").split(".")[0]) < 1
# ArviZ 0.x with recent versions of Matplotlib.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Passing a dict or None as alias_mapping"),
]


def group(tree, name):
    """Return a group as a dataset, in both versions."""
    found = tree[name]
    return found if isinstance(found, xr.Dataset) else found.to_dataset()


def groups(tree):
    return set(tree.groups()) if BEFORE_1 else {name.strip("/") for name in tree.groups if name != "/"}


def gaussian(n_rows=150, seed=0):
    """x complete, y = sin(2x) + noise with a third of its cells missing."""
    generator = np.random.default_rng(seed)
    x = generator.uniform(-2, 2, n_rows)
    y = 10 + 3 * np.sin(2 * x) + generator.normal(size=n_rows)
    return pd.DataFrame({"x": x, "y": np.where(generator.random(n_rows) < 0.3, np.nan, y)})


def mixed(n_rows=60, seed=0):
    """Return columns of all kinds, most with missing cells."""
    generator = np.random.default_rng(seed)
    z = generator.normal(size=n_rows)
    frame = pd.DataFrame(
        {
            "complete": z,
            "number": 2 * z + generator.normal(size=n_rows),
            "integer": pd.array(np.round(50 + 20 * z + generator.normal(size=n_rows)), dtype="Int64"),
            "flag": pd.array(z + generator.normal(size=n_rows) > 0, dtype="boolean"),
            "old flag": np.array(z > 0.3, dtype=object),
            "text": np.where(z + generator.normal(size=n_rows) > 0, "up", "down"),
            "level": pd.Categorical.from_codes(np.digitize(z, [-0.5, 0.5]), ["c", "a", "b"]),
            "grade": pd.Categorical.from_codes(np.digitize(z, [-0.5, 0.5]), ["x", "y", "z"], ordered=True),
            "day": pd.Timestamp("2024-02-28") + pd.to_timedelta(np.round(30 * z), unit="D"),
            "wait": pd.to_timedelta(np.exp(z), unit="h"),
        }
    )
    for i, label in enumerate(frame.columns[1:]):
        frame.loc[generator.random(n_rows) < 0.15, label] = None if i else np.nan
    return frame


def small(**settings):
    fast = {"random_state": 0, "max_steps": 5, "n_inducing": 20, "n_sweeps": 2, "progress": False}
    return MGPImputer(**with_engine({**fast, **settings}))


@pytest.fixture(scope="module")
def of_mixed():
    return small().fit(mixed()).impute(m=4)


# ------------------------------------------------------------------------------------ what observed cells say


# Nothing but one sparse GP, from x to y.
PLAIN = {
    "n_neighbors": 0,
    "discrete_support": 0,
    "warp": False,
    "max_steps": 40,
    "n_inducing": 30,
    "order": ["y"],
}


@pytest.fixture(scope="module")
def of_gaussian():
    imputer = small(**PLAIN).fit(gaussian())
    return imputer, imputer.impute(m=1000).to_arviz()


def test_observed_cells_of_a_gaussian_column_follow_the_sparse_gp(of_gaussian):
    """Compute mean and variance at the drawn inducing values in NumPy from the kernel's matrices."""
    imputer, tree = of_gaussian
    frame, (link,) = gaussian(), imputer.chain_.links
    seen = frame["y"].notna().to_numpy()
    x = (frame["x"] - frame["x"].mean()) / frame["x"].std(ddof=0)
    with local_parameters():
        import torch

        with torch.no_grad():
            Z, X = link.Xu, torch.tensor(x[seen].tolist()).to(link.Xu)[:, None]
            K_ZZ, K_ZX, k_XX = (link.kernel(*pair).cpu().numpy() for pair in ((Z,), (Z, X), (X,)))
    K_ZZ = K_ZZ + link.jitter * K_ZZ.diagonal().mean() * np.eye(len(K_ZZ))
    basis = np.linalg.solve(np.linalg.cholesky(K_ZZ), K_ZX)
    mean = group(tree, "posterior")["u_y"][0].to_numpy() @ basis
    noise = group(tree, "posterior")["noise_y"][0].to_numpy()[:, None]
    spread = np.sqrt(k_XX.diagonal() - (basis**2).sum(0) + noise)
    own_mean, own_spread = np.nanmean(frame["y"]), np.nanstd(frame["y"])
    predictive = stats.norm(own_mean + own_spread * mean, own_spread * spread)

    log_density = group(tree, "log_likelihood")["y"][0].to_numpy()
    np.testing.assert_allclose(log_density, predictive.logpdf(frame["y"][seen]), atol=1e-4)
    ranks = predictive.cdf(group(tree, "in_sample_predictive")["y"][0].to_numpy())
    assert stats.kstest(ranks.ravel(), "uniform").pvalue > 0.01
    # Beyond means and variances: a cell's replicates are independent of those of its neighbour.
    assert abs(np.corrcoef(ranks[:, :-1].ravel(), ranks[:, 1:].ravel())[0, 1]) < 0.05


def test_the_posterior_holds_the_parameters_of_the_links(of_gaussian):
    imputer, tree = of_gaussian
    posterior, (link,) = group(tree, "posterior"), imputer.chain_.links
    assert posterior["u_y"].dims == ("chain", "draw", "inducing") and posterior["u_y"].shape == (1, 1000, 30)
    noise = posterior["noise_y"]
    assert noise.attrs["estimate"] == "drawn" and noise.shape == (1, 1000)
    # With n cells and k parameters its standard deviation is √(2 / (n - k)) in relation to its mean.
    n_cells = int(gaussian()["y"].notna().sum())
    assert float(noise.mean()) == pytest.approx(link.likelihood.noise.item(), rel=0.15)
    assert float(noise.std() / noise.mean()) == pytest.approx((2 / (n_cells - 8)) ** 0.5, rel=0.15)
    lengthscale = posterior["matern32_lengthscale_y"]
    assert lengthscale.coords["y_input"].values.tolist() == ["x"]
    means = imputer.impute(m=1000).values["y"].mean(axis=1)
    np.testing.assert_allclose(posterior["imputed_mean_y"][0], means)


def test_ranks_of_observed_cells_are_uniform_under_the_true_model(of_gaussian):
    _, tree = of_gaussian
    observed = group(tree, "observed_data")["y"].to_numpy()
    ranks = (group(tree, "in_sample_predictive")["y"] <= observed).mean(("chain", "draw"))
    assert stats.kstest(ranks, "uniform").pvalue > 0.05


def test_leave_one_out_predictions_agree_with_refitting(of_gaussian):
    """Compare importance sampling with refitting, to Monte Carlo error."""
    _, tree = of_gaussian
    frame = gaussian()
    elpd = az.loo(tree, var_name="y", pointwise=True)
    pointwise = elpd.loo_i if BEFORE_1 else elpd.elpd_i
    known = np.flatnonzero(frame["y"].notna())[::20]
    without = frame.copy()
    without.loc[known, "y"] = np.nan
    imputer = small(**PLAIN).fit(without)
    held_out = group(imputer.impute(frame.loc[known], m=200).to_arviz(), "log_likelihood")["y"]
    refitted = np.log(np.exp(held_out).mean(("chain", "draw")))
    np.testing.assert_allclose(pointwise.sel(y_row=known), refitted, atol=0.25)


KINDS = {
    # How y comes from a standard normal number, its spec, and settings.
    "normal": (lambda e: 5 + 2 * e, {}, {}),
    "arcsinh": (lambda e: np.sinh(1.5 * e), {}, {}),
    "log": (np.exp, {"lower": 0}, {}),
    "softplus": (lambda e: np.logaddexp(0, 2 * e), {"lower": 0}, {}),
    "logit": (lambda e: 1 / (1 + np.exp(-e)), {"lower": 0, "upper": 1}, {}),
    "cut off": (lambda e: np.abs(e), {"lower": 0}, {"warp": False}),
    "heavy tails": (lambda e: e + (e > 1.5) * 3, {"kind": "heavy-tailed"}, {}),
    "integers": (lambda e: np.round(50 + 20 * e), {"kind": "integer"}, {"discrete_support": 0}),
    "bounded integers": (
        lambda e: np.round(20 + 5 * e).clip(12, 28),
        {"kind": "integer", "lower": 10, "upper": 30},
        {"discrete_support": 0},
    ),
    "discrete support": (lambda e: np.round(2 * e.clip(-1.5, 1.5)) / 2, {}, {}),
    "counts": (lambda e: np.floor(np.exp(1 + e)), {"kind": "count"}, {}),
    "two values": (lambda e: (e > 0).astype(float), {"kind": "boolean"}, {}),
    "ordered": (lambda e: np.digitize(e, [-1.0, 0.5]).astype(float), {"kind": "ordered"}, {}),
    "categories": (lambda e: np.digitize(e, [-1.0, 0.5]).astype(float), {"kind": "categorical"}, {}),
    "days": (lambda e: pd.Timestamp("2024-01-01") + pd.to_timedelta(np.round(9 * e), unit="D"), {}, {}),
    "moments": (lambda e: pd.Timestamp("2024-01-01") + pd.to_timedelta(9.7 * e, unit="D"), {}, {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_log_densities_integrate_to_the_distribution_of_replicates(kind):
    """Integrate densities, or add probabilities, over values of y in new rows that are equal otherwise."""
    make, spec, settings = KINDS[kind]
    generator = np.random.default_rng(0)
    e = generator.normal(size=300)
    frame = pd.DataFrame({"x": 0.5 * e + generator.normal(size=300), "y": make(e)})
    frame.loc[::4, "y"] = None
    specs = {"y": ColumnSpec(**spec)} if spec else None
    imputer = small(n_neighbors=0, specs=specs, **settings).fit(frame)
    rows = grid(frame["y"].dropna())
    rows = np.repeat(rows, -(-1500 // len(rows)))
    tree = imputer.impute(pd.DataFrame({"x": 0.3, "y": rows}), m=20).to_arviz()
    log_density = group(tree, "log_likelihood")["y"]
    values = group(tree, "observed_data")["y"].to_numpy().astype(float)
    density = np.exp(log_density).mean(("chain", "draw")).to_numpy()
    replicates = group(tree, "in_sample_predictive")["y"].to_numpy().ravel()
    if log_density.attrs["unit"] == "log probability":
        values, first = np.unique(values, return_index=True)
        expected = np.array([(replicates == value).mean() for value in values])
        np.testing.assert_allclose(density[first], expected, atol=0.02)
        if kind != "counts":  # of which there is no largest
            assert density[first].sum() == pytest.approx(1, abs=1e-3)
    else:
        reached = np.concatenate([[0], (np.diff(values) * (density[1:] + density[:-1]) / 2).cumsum()])
        expected = np.array([((replicates > values[0]) & (replicates <= value)).mean() for value in values])
        # Draws of a transformed column that would lie beyond its observed range are at the ends of the range.
        np.testing.assert_allclose(reached[:-1], expected[:-1], atol=0.02)
        assert reached[-1] > 0.85


def grid(observed):
    """Return all possible values of a column, or many between its smallest and its largest."""
    if observed.dtype.kind == "M":
        step = pd.Timedelta("1D") if (observed == observed.dt.floor("D")).all() else pd.Timedelta("1h")
        wide = 30 * pd.Timedelta("1D")
        return pd.date_range(observed.min() - wide, observed.max() + wide, freq=step).to_series().to_numpy()
    if (observed % 0.5 == 0).all():
        whole = (observed % 1 == 0).all()
        return (
            np.arange(10, 31.0) if observed.min() == 12 else values_between(observed, 1.0 if whole else 0.5)
        )
    return np.interp(np.linspace(0, 1, 1500), np.linspace(0, 1, len(observed)), np.sort(observed))


def values_between(observed, step):
    return np.arange(observed.min(), observed.max() + step, step)


@pytest.fixture(scope="module")
def jumps():
    return with_jumps(0)


def with_jumps(seed):
    """Return a table whose second column oscillates with its first, where neighbours predict better."""
    generator = np.random.default_rng(seed)
    x = generator.uniform(-3, 3, 400)
    full = pd.DataFrame({"x": x, "y": np.sign(np.sin(6 * x)) + 0.1 * generator.normal(size=400)})
    frame = full.copy()
    frame.loc[generator.random(400) < 0.2, "y"] = np.nan
    frame.loc[frame.index[frame["y"].notna()][[5, 9]], "x"] = np.nan
    imputer = small(discrete_support=0, warp=False, n_inducing=50, order=["y", "x"]).fit(frame)
    assert imputer.neighbours_ is not None
    return full, frame, imputer


def test_no_cell_is_a_neighbour_of_itself(jumps, tmp_path):
    """A row is identified by its key, or by its cells after loading; a copy of it is a neighbour."""
    _, frame, imputer = jumps
    own = group(imputer.impute(m=30).to_arviz(), "log_likelihood")["y"]
    imputer.save(tmp_path / "imputer")
    loaded = MGPImputer.load(tmp_path / "imputer")
    for other in (imputer.impute(frame, m=30), loaded.impute(frame, m=30)):
        np.testing.assert_allclose(group(other.to_arviz(), "log_likelihood")["y"], own, atol=1e-6)
    shifted = frame.assign(x=frame["x"] + 1e-5)
    seen = group(imputer.impute(shifted, m=30).to_arviz(), "log_likelihood")["y"]
    assert seen.mean() > own.mean() + 0.1


@pytest.mark.slow
def test_coverage_of_observed_and_missing_cells_agrees_with_neighbours():
    """Checks of observed cells are valid for missing cells only if both have the same coverage."""
    found = {"in_sample_predictive": [], "predictions": []}
    for seed in range(4):
        full, _, imputer = with_jumps(seed)
        tree = imputer.impute(m=100).to_arviz()
        for name, covered in found.items():
            values = group(tree, name)["y"]
            truth = full["y"].to_numpy()[values["y_position"]]
            ranks = (values <= truth).mean(("chain", "draw"))
            covered.append(float(((ranks > 0.025) & (ranks < 0.975)).mean()))
            assert 0.4 < float(ranks.mean()) < 0.6
    assert 0.85 < np.mean(found["in_sample_predictive"]) < 0.995
    assert 0.85 < np.mean(found["predictions"]) < 0.995


def test_measurement_errors_widen_replicates_but_not_imputed_cells():
    frame = gaussian().assign(error=2.0)
    imputer = small(n_neighbors=0, warp=False, specs={"y": ColumnSpec(standard_error="error")}).fit(frame)
    tree = imputer.impute(m=200).to_arviz()
    replicates = group(tree, "in_sample_predictive")["y"].std(("chain", "draw")).mean()
    imputed = group(tree, "predictions")["y"].std(("chain", "draw")).mean()
    assert float(replicates) ** 2 == pytest.approx(float(imputed) ** 2 + 4, rel=0.1)


# ---------------------------------------------------------------------------------------------- what is there


@pytest.mark.slow
def test_predictions_are_the_draws(of_mixed):
    tree, frame = of_mixed.to_arviz(), of_mixed.frame
    predictions = group(tree, "predictions")
    assert [found.attrs["column"] for found in predictions.values()] == list(of_mixed.values)
    for (label, values), (name, found) in zip(of_mixed.values.items(), predictions.items(), strict=True):
        assert found.dims == ("chain", "draw", f"{name}_row") and found.dtype.kind in "if"
        assert found.coords[f"{name}_row"].values.tolist() == frame.index[frame[label].isna()].tolist()
        if values.dtype.kind in "mM":
            np.testing.assert_allclose(found[0], values.astype(np.int64) / 1e6)
        elif "levels" in found.attrs:
            levels = json.loads(found.attrs["levels"])
            assert [[levels[code] for code in draw] for draw in found[0].values] == values.tolist()
        else:
            assert (found[0].values == values).all()


def test_observed_cells_have_replicates_and_finite_log_densities(of_mixed):
    tree, frame = of_mixed.to_arviz(), of_mixed.frame
    observed, replicates, densities = (
        group(tree, name) for name in ("observed_data", "in_sample_predictive", "log_likelihood")
    )
    assert list(observed) == list(replicates) == list(densities)
    assert {found.attrs["column"] for found in observed.values()} == set(of_mixed.values)
    for name, found in observed.items():
        rows = np.flatnonzero(frame[found.attrs["column"]].notna())
        assert found.coords[f"{name}_position"].values.tolist() == rows.tolist()
        assert replicates[name].shape == densities[name].shape == (1, 4, len(rows))
        assert found.dtype == replicates[name].dtype
        assert np.isfinite(densities[name]).all()
    constant = group(tree, "constant_data")
    assert (constant["observed"].values == frame.notna().to_numpy()).all()
    known = constant["mean"].to_series()
    assert known["number"] == pytest.approx(frame["number"].mean())
    assert known["flag"] == pytest.approx(frame["flag"].mean())
    assert np.isnan(known["text"])


def test_levels_keep_their_order(of_mixed):
    predictions = group(of_mixed.to_arviz(), "predictions")
    levels = {
        label: json.loads(predictions[label].attrs["levels"]) for label in ("level", "grade", "text", "flag")
    }
    expected = {"level": [*"cab"], "grade": [*"xyz"], "text": ["down", "up"], "flag": [False, True]}
    assert levels == expected
    assert predictions["day"].attrs["unit"] == "seconds since 1970 (UTC)"


@pytest.mark.parametrize("load", ["load", "pickle", "copy", "by hand"])
def test_imputations_without_an_imputer_export_draws_and_observed_cells(of_mixed, load, tmp_path):
    of_mixed.save(tmp_path / "draws")
    draws = {
        "load": lambda: Imputations.load(tmp_path / "draws"),
        "pickle": lambda: pickle.loads(pickle.dumps(of_mixed)),
        "copy": lambda: copy.deepcopy(of_mixed),
        "by hand": lambda: Imputations(of_mixed.frame, of_mixed.values, of_mixed.m),
    }[load]()
    assert draws == of_mixed
    tree = draws.to_arviz()
    mixing = {"sample_stats"} if draws.mixing else set()
    assert groups(tree) == {"posterior", "predictions", "observed_data", "constant_data", *mixing}
    assert group(tree, "predictions").identical(group(of_mixed.to_arviz(), "predictions"))
    assert all(name.startswith("imputed_") for name in group(tree, "posterior"))


def test_predictions_of_observed_cells_ignore_shifts_and_include_new_tables():
    frame = gaussian()
    imputer = small(n_neighbors=0).fit(frame)
    own = imputer.impute(m=5).to_arviz()
    again = imputer.impute(frame.iloc[:50], m=5).to_arviz()
    shifted = imputer.impute(m=5, delta={"y": 3.0}).to_arviz()
    densities = group(own, "log_likelihood")["y"]
    np.testing.assert_allclose(
        group(again, "log_likelihood")["y"], densities.where(densities["y_position"] < 50, drop=True)
    )
    np.testing.assert_allclose(group(shifted, "log_likelihood")["y"], densities)
    gain = group(shifted, "predictions")["y"] - group(own, "predictions")["y"]
    np.testing.assert_allclose(gain, 3.0, atol=0.01)


def test_a_target_has_variables_like_a_column():
    frame = gaussian()
    target = pd.Series(frame["x"] + np.random.default_rng(1).normal(size=len(frame)), name="y")
    target[:10] = np.nan
    tree = small(n_neighbors=0).fit(frame, target).impute(m=4).to_arviz()
    observed = group(tree, "observed_data")
    assert list(observed) == ["y", "target_y"]
    np.testing.assert_allclose(observed["target_y"], target[10:])
    assert list(group(tree, "predictions")) == ["y"]
    assert "target y" in group(tree, "posterior")["matern32_lengthscale_y"].coords["y_input"]


def test_derived_cells_are_not_observations():
    generator = np.random.default_rng(0)
    frame = pd.DataFrame({"a": generator.normal(size=80), "sex": np.where(np.arange(80) % 2, "f", "m")})
    frame["b"] = frame["a"] + generator.normal(size=80)
    frame["total"] = frame["a"] + frame["b"]
    frame["births"] = np.where(frame["sex"] == "f", generator.normal(size=80) + frame["a"], np.nan)
    frame.loc[:20, "b"] = np.nan
    frame.loc[10:30, "total"] = np.nan
    frame.loc[40:50, ["births", "sex"]] = None
    frame["smokes"] = np.where(frame["sex"] == "f", np.where(frame["a"] > 0, "yes", "no"), None)
    frame.loc[44:54, "smokes"] = None
    specs = {label: ColumnSpec(only_if="sex == 'f'") for label in ("births", "smokes")}
    draws = small(specs=specs | {"total": ColumnSpec(derived="a + b")}).fit(frame).impute(m=4)
    tree = draws.to_arviz()
    observed = group(tree, "observed_data")
    assert observed["b"].coords["b_row"].values.tolist() == [*range(21, 80)]
    assert "total" not in observed
    births = group(tree, "predictions")["births"]
    np.testing.assert_array_equal(np.isnan(births[0]), pd.isna(draws.values["births"]))
    assert np.isnan(births).any() and np.isfinite(group(tree, "posterior")["imputed_mean_births"]).all()
    assert pd.isna(draws.values["smokes"]).any()
    np.testing.assert_allclose(group(tree, "posterior")["imputed_share_smokes"].sum("smokes_level"), 1)


@pytest.mark.parametrize("corner", [{}, {"propagate": "latent"}, {"joint_draws": False}])
def test_engine_settings_have_observed_cells(of_mixed, corner):
    tree = (small(**corner).fit(mixed()).impute(m=3) if corner else of_mixed).to_arviz()
    assert all(np.isfinite(found).all() for found in group(tree, "log_likelihood").values())
    assert ("u_number" in group(tree, "posterior")) is corner.get("joint_draws", True)


def test_a_sequential_chain_predicts_from_earlier_columns_with_drawn_noises():
    generator = np.random.default_rng(0)
    z = generator.normal(size=120)
    x = z + 0.5 * generator.normal(size=120)
    frame = pd.DataFrame({"z": z, "x": x, "y": x**2 + 0.3 * generator.normal(size=120)})
    frame[["x", "y"]] = frame[["x", "y"]].mask(generator.random((120, 2)) < 0.2)
    tree = small(inputs="earlier").fit(frame).impute(m=200).to_arviz()
    posterior = group(tree, "posterior")
    first, second = (str(name) for name in group(tree, "observed_data"))
    assert posterior[f"{first}_input"].values.tolist() == ["z"]
    assert posterior[f"{second}_input"].values.tolist() == ["z", first]
    assert posterior[f"noise_{second}"].attrs["estimate"] == "drawn"
    assert len(np.unique(posterior[f"noise_{second}"])) == 200
    for name, observed in group(tree, "observed_data").items():
        ranks = (group(tree, "in_sample_predictive")[name] <= observed).mean(("chain", "draw"))
        assert stats.kstest(ranks, "uniform").pvalue > 0.01
        assert np.isfinite(group(tree, "log_likelihood")[name]).all()


def test_some_rows_are_enough():
    draws = small(n_neighbors=0).fit(gaussian()).impute(m=3)
    whole = group(draws.to_arviz(), "log_likelihood")["y"]
    for rows in ([3, 4, 5, 60], np.isin(np.arange(150), [3, 4, 5, 60])):
        some = group(draws.to_arviz(rows=rows), "log_likelihood")["y"]
        wanted = [row for row in (3, 4, 5, 60) if row in whole["y_row"]]
        np.testing.assert_allclose(some, whole.sel(y_row=wanted))
    few = draws.to_arviz(max_rows=20)
    assert few.attrs["observed_rows"] == "observed cells of 20 of 150 rows"
    assert 0 < group(few, "observed_data")["y"].size <= 20
    assert group(few, "predictions").identical(group(draws.to_arviz(), "predictions"))
    for wrong in ([150], [0.5], [[1]], [True, False]):
        with pytest.raises(ValueError, match="rows must be positions from 0 to 149"):
            draws.to_arviz(rows=wrong)
    with pytest.raises(ValueError, match="max_rows must be at least 1"):
        draws.to_arviz(max_rows=0)


def test_fits_are_chains():
    frame = gaussian()
    first, second = (small(random_state=seed).fit(frame) for seed in (0, 1))
    tree = to_arviz([first.impute(m=30), second.impute(m=30)])
    predictions = group(tree, "predictions")["y"]
    np.testing.assert_array_equal(predictions[1], second.impute(m=30).values["y"])
    summary = az.summary(tree, var_names=["imputed_mean_y"], round_to=4)
    assert float(summary["r_hat"].iloc[0]) < 1.2
    with pytest.raises(ValueError, match="chain 1 has another one"):
        to_arviz([first.impute(m=3), first.impute(frame.iloc[1:], m=3)])
    with pytest.raises(ValueError, match="the same number of imputations, got 3 in chain 0 and 4 in chain 1"):
        to_arviz([first.impute(m=3), first.impute(m=4)])
    other = small(random_state=1, n_inducing=10).fit(frame)
    together = group(to_arviz([first.impute(m=3), other.impute(m=3)]), "posterior")
    assert "u_y" not in together and together["noise_y"].shape == (2, 3)
    with pytest.raises(ValueError, match="got none"):
        to_arviz([])
    with pytest.raises(TypeError, match="expected Imputations for each chain, got DataFrame"):
        to_arviz([frame])


# ------------------------------------------------------------------------------------ names, labels and files

INDEXES = {
    "dates": pd.date_range("2024-01-01", periods=60),
    "zoned": pd.date_range("2024-01-01", periods=60, tz="Europe/Berlin"),
    "levels": pd.MultiIndex.from_product([range(6), [*"abcdefghij"]]),
    "twice": pd.Index([*range(30), *range(30)]),
    "text": pd.Index([f"row {i}" for i in range(60)], dtype="string"),
    "odd": pd.Index([None, 1.5, "a", *range(57)], dtype=object),
}
NAMES = ["a/b", "", " (mm)", "chain", "x", "x_row", 0, "temp °C", "..", "row", "draw"]


def round_trips(tree, folder):
    """Write the tree to netCDF and Zarr, and yield it as read again."""
    tree.to_netcdf(folder / "tree.nc")
    yield az.from_netcdf(folder / "tree.nc")
    zarr = tree.to_datatree() if BEFORE_1 else tree
    zarr.to_zarr(folder / "tree.zarr", consolidated=False)
    yield xr.open_datatree(folder / "tree.zarr", engine="zarr", consolidated=False)


def assert_same(tree, other):
    for name in groups(tree):
        read = other[name]
        read = read if isinstance(read, xr.Dataset) else read.to_dataset()
        xr.testing.assert_identical(group(tree, name), read)
    assert tree.attrs == dict(other.attrs)


@pytest.mark.parametrize("index", INDEXES)
def test_files_hold_indexes_of_any_kind(index, tmp_path):
    frame = pd.DataFrame({"x": np.arange(60.0), "sex": [*"mf"] * 30}, INDEXES[index])
    frame.iloc[::7] = None
    draws = {"x": np.zeros((2, 9)), "sex": np.full((2, 9), "f", dtype=object)}
    tree = Imputations(frame, draws, 2).to_arviz()
    assert group(tree, "predictions")["x_position"].values.tolist() == [*range(0, 60, 7)]
    for other in round_trips(tree, tmp_path):
        assert_same(tree, other)


def test_files_hold_predictions_of_observed_cells(of_mixed, of_gaussian, tmp_path):
    tree = of_mixed.to_arviz()
    tree.to_netcdf(tmp_path / "mixed.nc")
    assert_same(tree, az.from_netcdf(tmp_path / "mixed.nc"))
    _, tree = of_gaussian
    for other in round_trips(tree, tmp_path):
        assert_same(tree, other)


def test_files_hold_columns_of_any_name(tmp_path):
    frame = pd.DataFrame(np.eye(3, len(NAMES)), columns=NAMES)
    frame.iloc[2] = np.nan
    tree = Imputations(frame, {name: np.ones((2, 1)) for name in NAMES}, 2).to_arviz()
    for other in round_trips(tree, tmp_path):
        assert_same(tree, other)


def test_links_are_named_after_columns_of_any_name():
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(generator.normal(size=(40, len(NAMES))), columns=NAMES)
    frame[:] = frame.mask(generator.random(frame.shape) < 0.1)
    tree = small(inputs="others").fit(frame).impute(m=2).to_arviz()
    assert {found.attrs["column"] for found in group(tree, "log_likelihood").values()} == {*map(str, NAMES)}
    drawn = [found for name, found in group(tree, "posterior").items() if name.startswith("u_")]
    assert {found.attrs["link"] for found in drawn} == {*map(str, NAMES)}


@settings(max_examples=15, deadline=None)
@given(names=st.lists(st.text(max_size=6) | st.integers(0, 9), min_size=1, max_size=5, unique_by=str))
def test_columns_of_any_name_have_distinct_variables(names):
    frame = pd.DataFrame(np.nan, range(2), pd.Index(names, dtype=object))
    frame.iloc[0] = 1.0
    draws = Imputations(frame, {name: [[i]] for i, name in enumerate(names)}, 1)
    predictions = group(draws.to_arviz(), "predictions")
    assert {found.attrs["column"]: found.item() for found in predictions.data_vars.values()} == {
        str(name): i for i, name in enumerate(names)
    }


# ---------------------------------------------------------------------------------------- ArviZ works with it


def test_arviz_computes_summaries_and_loo(of_gaussian):
    _, tree = of_gaussian
    summary = az.summary(tree, var_names=["imputed"], filter_vars="like")
    assert summary.index.tolist() == ["imputed_mean_y"]
    loo = az.loo(tree, var_name="y")
    densities = group(tree, "log_likelihood")["y"]
    assert loo.n_data_points == densities.sizes["y_row"]
    seen = float(np.log(np.exp(densities).mean(("chain", "draw"))).sum())
    assert seen - 15 < (loo.elpd_loo if BEFORE_1 else loo.elpd) < seen


def test_arviz_draws_pictures(of_mixed, of_gaussian):
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("agg")
    (_, tree), several = of_gaussian, of_mixed.to_arviz()
    for each in (tree, several):
        each["posterior_predictive"] = each["in_sample_predictive"]
    columns = ["number", "day", "wait"]
    if BEFORE_1:
        pictures = {
            "forest": lambda: az.plot_forest(tree.predictions, var_names=["y"]),
            "predicted": lambda: az.plot_ppc(tree, var_names=["y"], num_pp_samples=20, random_seed=0),
            "u-values": lambda: az.plot_bpv(tree, var_names=["y"], kind="u_value"),
            "leave one out": lambda: az.plot_loo_pit(tree, y="y", ecdf=True),
            "several": lambda: az.plot_ppc(several, var_names=columns, num_pp_samples=4, random_seed=0),
        }
    else:
        pictures = {
            "forest": lambda: az.plot_forest(tree, group="predictions", var_names=["y"]),
            "predicted": lambda: az.plot_ppc_dist(tree, var_names=["y"]),
            "u-values": lambda: az.plot_ppc_pit(tree, var_names=["y"]),
            "leave one out": lambda: az.plot_loo_pit(tree, var_names=["y"]),
            "several": lambda: az.plot_ppc_dist(several, var_names=columns, num_samples=4),
        }
    for name, draw in pictures.items():
        draw()
        axes = plt.gcf().axes
        assert sum(bool(each.lines or each.collections) for each in axes) >= (3 if name == "several" else 1)
        plt.close("all")
