"""Designs of the coverage study, exact samplers, least squares, tasks, pooling and summaries."""

from __future__ import annotations

import functools

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

from benchmarks.coverage import (
    __main__,
    curves,
    eleven,
    gaussian,
    methods,
    mixed,
    plot,
    r_mice,
    real,
    regions,
    simulation,
    slade,
    summary,
)
from benchmarks.coverage.design import Analysis, Design, Table, equicorrelated, least_squares
from benchmarks.coverage.designs import DESIGNS, matching
from benchmarks.coverage.methods import METHODS


def complete(design, n_tables):
    """Return the complete rows of many tables."""
    tables = [design.draw(np.random.default_rng(k)).frame.dropna() for k in range(n_tables)]
    return pd.concat(tables, ignore_index=True)


# ----------------------------------------------------------------------------------------------- designs


def test_equicorrelated_columns_have_unit_variances_and_equal_correlations():
    rows = equicorrelated(np.random.default_rng(0), 50_000, 3, 0.4)
    np.testing.assert_allclose(rows.mean(0), 0, atol=0.02)
    np.testing.assert_allclose(np.cov(rows.T), 0.4 + 0.6 * np.eye(3), atol=0.03)


@pytest.mark.parametrize("name", curves.DESIGNS)
def test_complete_rows_estimate_the_true_slope_without_bias(name):
    """In all these designs missingness depends on regressors only, which leaves complete rows unbiased."""
    design = DESIGNS[name]
    fit = design.analyse(complete(design, 200))
    ((slope,), (variance,)) = fit.estimates, fit.variances
    truth = design.truth[fit.names[0]]
    assert abs(slope - truth) < 4 * np.sqrt(variance)
    assert np.sqrt(variance) < 0.1 * abs(truth)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, design in (gaussian.DESIGNS | slade.DESIGNS | mixed.DESIGNS | eleven.DESIGNS).items()
        if design.truth is not None
    ],
)
def test_complete_tables_estimate_the_truth_without_bias(name):
    design = DESIGNS[name]
    n = max(1, 10_000 // len(design.draw(np.random.default_rng(0)).frame))
    whole = pd.concat([design.draw(np.random.default_rng(k)).complete for k in range(n)], ignore_index=True)
    fit = design.analyse(whole)
    error = fit.estimates - [design.truth[each] for each in fit.names]
    assert set(fit.names) == set(design.truth)
    assert np.abs(error / np.sqrt(fit.variances)).max() < 4


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        ("fimd_2.5.3_x", {"x": 0.5}),
        ("product_20", {"x1": 0.2, "y": 0.2}),
        ("product_50", {"x1": 0.5, "y": 0.5}),
        ("g2_200", {"a": 0.4, "b": 0.24}),
        ("g4_200", dict.fromkeys("abcd", 0.25)),
        ("few_25", dict.fromkeys("abcd", 0.25)),
        ("slade", dict.fromkeys(["x1", "x2", "x3", "y"], 0.5)),
        ("mixed_2000", dict.fromkeys(["z1", "z2", "z3", "g", "t"], 1.1 / 3)),
        ("eleven_2000", dict.fromkeys(["z1", "z2", "z3", "c", "u", "v", "w"], 0.43)),
        ("regions", {"y": 0.4}),
    ],
)
def test_share_of_missing_cells_is_that_of_the_design(name, rates):
    tables = [DESIGNS[name].draw(np.random.default_rng(k)) for k in range(2 if name == "regions" else 50)]
    holes = pd.concat([table.frame for table in tables]).isna().mean()
    assert holes[holes > 0].to_dict() == pytest.approx(rates, abs=0.02)
    for frame, whole in tables:
        pd.testing.assert_frame_equal(frame, whole.mask(frame.isna()))


def test_cells_of_the_mixed_design_are_missing_more_often_in_the_outer_thirds_of_the_score():
    frame, whole = mixed.draw(np.random.default_rng(0), 10_000)
    third = pd.qcut(whole["y"] + whole["z4"], 3, labels=False)
    np.testing.assert_allclose(frame["g"].isna().groupby(third).mean(), [0.5, 0.1, 0.5], atol=0.03)


def test_regions_differ_in_the_share_of_missing_cells():
    frame, whole = regions.draw(np.random.default_rng(0))
    shares = frame["y"].isna().groupby(regions.region_of(whole)).mean()
    assert len(shares) == 36
    np.testing.assert_allclose([shares.min(), shares.max()], [0.2, 0.6], atol=0.02)
    means = regions.analyse(whole)
    assert means.estimates[7] == pytest.approx(whole["y"][regions.region_of(whole) == 7].mean())


def test_variances_of_gaussian_estimands_are_those_over_many_tables():
    fits = [gaussian.analyse(gaussian.draw_two(np.random.default_rng(k), 200).complete) for k in range(1000)]
    spread = np.var([fit.estimates for fit in fits], axis=0)
    np.testing.assert_allclose(np.mean([fit.variances for fit in fits], axis=0), spread, rtol=0.2)


def test_real_tables_have_the_slopes_of_least_squares(tmp_path, monkeypatch):
    g = np.random.default_rng(0)
    values = g.normal(size=(60, 4)) @ g.normal(size=(4, 4)) * [1, 10, 0.1, 100]
    (tmp_path / "suite").mkdir()
    pd.DataFrame(values).to_csv(tmp_path / "suite" / "airfoil.csv.gz", header=False, index=False)
    monkeypatch.setenv("PYRO_MGP_DATA", str(tmp_path))
    table = DESIGNS["real_airfoil"].draw(np.random.default_rng(1))
    assert 0.2 < table.frame.isna().to_numpy().mean() < 0.4
    fit = real.analyse(table.complete)
    found = dict(zip(fit.names, fit.estimates, strict=True))
    slopes = least_squares(table.complete["c1"], [table.complete[c] for c in ("c0", "c2", "c3")]).slopes
    np.testing.assert_allclose([found["slope c1|c0"], found["slope c1|c3"]], slopes[[1, 3]])
    assert found["correlation c0 c2"] == pytest.approx(table.complete.corr().loc["c0", "c2"])
    assert found["log variance c3"] == pytest.approx(np.log(table.complete["c3"].var()))
    assert pd.Series(fit.kinds).value_counts().to_dict() == {
        "regression": 12, "correlation": 6, "log variance": 4,
    }  # fmt: skip


def test_least_squares_are_those_of_statsmodels():
    rows = complete(DESIGNS["product_30"], 1)
    inputs = [rows["x1"], rows["x2"], rows["x1"] * rows["x2"]]
    slopes, variances, df = least_squares(rows["y"], inputs)
    fit = sm.OLS(rows["y"], sm.add_constant(np.column_stack(inputs))).fit()
    np.testing.assert_allclose(slopes, fit.params)
    np.testing.assert_allclose(np.sqrt(variances), fit.bse)
    assert df == fit.df_resid
    only = DESIGNS["product_30"].analyse(rows)
    assert only.names == ["x1:x2"] and only.estimates.tolist() == [slopes[3]] and only.df == df


# ---------------------------------------------------------------------------------------- exact samplers


def test_the_gaussian_sampler_has_the_mean_and_variance_that_theory_gives():
    """With one incomplete column the imputed mean has a closed form.

    Under Jeffreys' prior the regression of b on a has σ² ~ RSS / χ²(r - 1) and β | σ² ~ N(β̂, σ² (X'X)⁻¹) from
    r observed rows, so that the sum of the n - r imputed cells, with the sums s of their regressors, has the
    mean s'β̂ and the variance RSS / (r - 3) · (s'(X'X)⁻¹s + n - r).
    """
    table = gaussian.draw_two(np.random.default_rng(3), 40).complete
    frame = table.copy()
    frame.loc[25:, "b"] = np.nan
    observed, missing = frame[:25], frame[25:]
    X = np.column_stack([np.ones(25), observed["a"]])
    inverse = np.linalg.inv(X.T @ X)
    slopes = inverse @ X.T @ observed["b"]
    residual = observed["b"] - X @ slopes
    s = np.array([15, missing["a"].sum()])
    variance = residual @ residual / (25 - 3) * (s @ inverse @ s + 15)
    sums = [draw["b"][25:].sum() for draw in gaussian.exact(frame, 1000, 0, burn_in=20, thin=3)]
    assert np.mean(sums) == pytest.approx(s @ slopes, abs=4 * np.sqrt(variance / 1000))
    assert np.var(sums) == pytest.approx(variance, rel=0.2)


def test_the_gaussian_sampler_keeps_observed_cells_and_completes_empty_rows():
    frame, _ = gaussian.draw_four(np.random.default_rng(0), 30)
    frame.iloc[4] = np.nan
    for draw in gaussian.exact(frame, 2, 0, burn_in=2, thin=2):
        assert not draw.isna().to_numpy().any()
        pd.testing.assert_frame_equal(draw.where(frame.notna()), frame)


def test_parameters_of_the_slade_sampler_have_their_posterior_given_complete_data():
    """Given complete data, β has the mean and the covariance of least squares, times (n - 6) / (n - 8)."""
    whole = slade.draw(np.random.default_rng(0)).complete
    X = sm.add_constant(whole[["x1", "x2", "x3", "x4"]].assign(product=whole["x1"] * whole["x2"]))
    fit = sm.OLS(whole["y"], X).fit()
    g, values = np.random.default_rng(1), whole.to_numpy()
    draws = [slade.draw_parameters(g, values, slade.product) for _ in range(3000)]
    beta = np.array([each.beta for each in draws])
    np.testing.assert_allclose(beta.mean(0), fit.params, atol=0.1 * fit.bse.min())
    np.testing.assert_allclose(beta.var(0), fit.bse**2 * (200 - 6) / (200 - 8), rtol=0.1)
    assert np.mean([each.noise for each in draws]) == pytest.approx(fit.ssr / (200 - 8), rel=0.02)
    np.testing.assert_allclose(
        np.mean([each.mu for each in draws], axis=0), whole.iloc[:, :4].mean(), atol=0.02
    )


@pytest.mark.parametrize("terms", [slade.product, slade.all_products])
@pytest.mark.parametrize("with_y", [True, False])
def test_a_cell_of_the_slade_sampler_has_its_conditional_distribution(with_y, terms):
    """x1 given the other cells, against its density on a grid: p(x) p(y | x), or p(x) where y is missing."""
    sigma = np.full((4, 4), 0.5) + 0.5 * np.eye(4)
    line, product, square = [0.1, 0.4, -0.3, 0.2, 0.3], 0.8, 0.4
    beta, noise = np.array([*line, product]), 0.7
    if terms is slade.all_products:  # which start with x1 x1 and x1 x2
        beta = np.array([*line, square, product, *[0.0] * 8])
    given = slade.Parameters(np.array([0.2, 0, 0, -0.1]), sigma, beta, noise)
    row = np.array([0.0, 1.2, -0.4, 0.5, 2.0])
    grid = np.linspace(-6, 6, 2001)
    points = np.tile(row, (2001, 1))
    points[:, 0] = grid
    away = points[:, :4] - given.mu
    log = -0.5 * np.einsum("ni,ij,nj->n", away, np.linalg.inv(sigma), away)
    if with_y:
        at = line[0] + points[:, :4] @ line[1:] + product * grid * row[1]
        at += square * grid**2 * (terms is slade.all_products)
        log -= 0.5 * (row[4] - at) ** 2 / noise
    weight = np.exp(log - log.max()) / np.exp(log - log.max()).sum()
    mean = weight @ grid
    table, missing = np.tile(row, (20_000, 1)), np.zeros((20_000, 5), dtype=bool)
    missing[:, 0], missing[:, 4] = True, not with_y
    g = np.random.default_rng(0)
    for _ in range(15):
        slade.draw_cells(g, table, missing, given, terms)
    assert table[:, 0].mean() == pytest.approx(mean, abs=0.03)
    assert table[:, 0].var() == pytest.approx(weight @ (grid - mean) ** 2, rel=0.04)


def test_the_slade_sampler_completes_tables_and_keeps_observed_cells():
    frame, whole = slade.draw(np.random.default_rng(0))
    draws = slade.exact(frame, 3, 0, burn_in=5, thin=5)
    for draw in draws:
        assert not draw.isna().to_numpy().any()
        pd.testing.assert_frame_equal(draw.where(frame.notna()), frame)
    assert not draws[0].equals(draws[1])
    (same,) = slade.exact(whole, 1, 0, burn_in=0, thin=1)
    pd.testing.assert_frame_equal(same, whole)


# ------------------------------------------------------------------------------------------------ methods


@pytest.mark.parametrize(
    "method",
    ["mgp", "gp", "gaussian", 'mgp:{"joint_draws": false, "max_steps": 5}', "iterative", "complete_cases"],
)
def test_methods_impute_all_missing_cells_and_keep_observed_ones(method):
    frame = DESIGNS["fimd_3.2.3_y"].draw(np.random.default_rng(0)).frame
    tables = methods.find(method)(frame, 3, 1)
    assert len(tables) == 3
    for table in tables:
        assert not table.isna().to_numpy().any()
        kept = table if method == "complete_cases" else table[frame["y"].notna()]
        pd.testing.assert_frame_equal(kept, frame.dropna())


def test_options_of_the_package_are_read_from_its_name():
    method = methods.find('mgp:{"inputs": "earlier", "n_paths": 2}')
    assert method.func is methods.mgp and method.keywords["options"] == {"inputs": "earlier", "n_paths": 2}


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("gan", "methods are .*got 'gan'"), ("mgp:{", "not valid JSON"), ("mgp:[1]", "are a JSON object")],
)
def test_unknown_methods_and_options_are_refused(name, sentence):
    with pytest.raises(ValueError, match=sentence):
        methods.find(name)


def test_without_r_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(r_mice.shutil, "which", lambda _: None)
    with pytest.raises(ValueError, match="r-cran-mice"):
        simulation.tasks(["product_20"], ["mice_pmm"], 1)


def test_tables_that_r_wrote_get_back_their_dtypes(tmp_path):
    frame, whole = mixed.draw(np.random.default_rng(0), 30)
    rows = whole.assign(**{".imp": 1, ".id": range(1, 31), "t": whole["t"].astype(str).str.upper()})
    rows.to_csv(tmp_path / "completed.csv", index=False)
    restored = r_mice.restore(pd.read_csv(tmp_path / "completed.csv"), frame)
    pd.testing.assert_frame_equal(restored, whole)


# ------------------------------------------------------------------------------- tasks, pooling, results


def test_tasks_leave_out_finished_repetitions(tmp_path):
    names, out = ["fimd_2.5.3_x", "fimd_3.2.3_x"], tmp_path / "results.csv"
    list(simulation.record(simulation.run(simulation.tasks(names, ["complete_cases"], 3)), str(out)))
    first = pd.read_csv(out)
    assert len(first) == 6
    assert simulation.tasks(names, ["complete_cases"], 3, first) == []
    rest = simulation.tasks(names, ["complete_cases"], 4, first)
    assert rest == [(design, "complete_cases", 3) for design in names]
    list(simulation.record(simulation.run(rest), str(out)))
    again = pd.read_csv(out)
    assert len(again) == 8
    pd.testing.assert_frame_equal(first, again[:6])


def test_several_processes_give_the_same_rows():
    tasks = simulation.tasks(["fimd_2.5.3_x", "g2_50"], ["complete_cases"], 2)
    one, two = dict(simulation.run(tasks)), dict(simulation.run(tasks, jobs=2))
    assert set(one) == set(two)
    for task, rows in one.items():
        assert [row | {"seconds": 0} for row in rows] == [row | {"seconds": 0} for row in two[task]]


def test_a_table_that_fails_does_not_end_the_study(tmp_path, monkeypatch):
    def fail(frame, m, seed):
        if seed == 0:
            raise FloatingPointError("no")
        return methods.complete_cases(frame, m, seed)

    monkeypatch.setitem(METHODS, "fails", fail)
    out = tmp_path / "results.csv"
    tasks = simulation.tasks(["fimd_2.5.3_x"], ["fails"], 2)
    errors = dict(simulation.record(simulation.run(tasks), str(out)))
    assert list(errors.values()) == ["FloatingPointError: no", None]
    assert simulation.tasks(["fimd_2.5.3_x"], ["fails"], 2, pd.read_csv(out)) == tasks[:1]


@pytest.mark.parametrize(
    ("design", "method", "sentence"),
    [
        ("fimd", "mgp", r"designs are \['fimd_2.5.3_x'.*got 'fimd'"),
        ("product_20", "gan", "methods are .*got 'gan'"),
        ("mixed_2000", "exact", "'mixed_2000' has no exact sampler"),
        ("regions", "complete_cases", "intervals of 'regions' need imputations"),
    ],
)
def test_unknown_designs_and_methods_are_refused(design, method, sentence):
    with pytest.raises(ValueError, match=sentence):
        simulation.tasks([design], [method], 1)


def test_patterns_of_designs_that_match_none_are_refused():
    assert matching(["g?_200", "slade"]) == ["g2_200", "g4_200", "slade"]
    with pytest.raises(ValueError, match=r"designs are .*got 'g9_\*'"):
        matching(["g2_50", "g9_*"])


def test_intervals_of_a_finite_table_use_the_variance_between_imputations_only():
    whole = pd.DataFrame({"y": [1.0, 2.0, 3.0]})
    design = Design(
        lambda g: Table(whole.mask(whole["y"] > 2), whole),
        lambda frame: Analysis(["mean"], np.array([frame["y"].mean()]), np.zeros(1)),
        3,
    )
    completed = [pd.DataFrame({"y": [1.0, 2.0, drawn]}) for drawn in (3.0, 6.0, 6.0)]
    (row,) = simulation.compare(design, completed, whole)
    between = np.var([2.0, 3.0, 3.0], ddof=1)
    assert row["truth"] == 2 and row["estimate"] == pytest.approx(8 / 3)
    assert row["between"] == pytest.approx(between)
    assert row["width"] == pytest.approx(2 * 1.96 * np.sqrt(4 / 3 * between))
    assert row["covered"] == 1


def test_intervals_of_cells_hold_a_further_draw_with_their_probability():
    draws = np.random.default_rng(0).normal(size=(40, 20_000))
    whole = pd.DataFrame({"y": np.zeros(20_000)}).assign(y=np.random.default_rng(1).normal(size=20_000))
    frame = whole.mask(whole == whole)
    (row,) = simulation.cells(frame, [pd.DataFrame({"y": draw}) for draw in draws], whole)
    assert row["kind"] == "cells" and row["covered"] == pytest.approx(0.95, abs=0.005)


def test_the_exact_sampler_is_compared_with_itself_and_with_others(monkeypatch):
    shorter = functools.partial(gaussian.exact, burn_in=10, thin=1)
    small = Design(DESIGNS["g2_50"].draw, gaussian.analyse, 5, DESIGNS["g2_50"].truth, exact=shorter)
    monkeypatch.setitem(DESIGNS, "small", small)
    tasks = simulation.tasks(["small"], ["exact", "complete_cases"], 3)
    results = pd.DataFrame([row for _, rows in simulation.run(tasks) for row in rows])
    table = summary.per_estimand(results).set_index(["method", "estimand"])
    assert (table.loc["exact", "between"] == 1).all() and (table.loc["exact", "width_ratio"] == 1).all()
    assert (table.loc["complete_cases", "between"] < 1e-30).all()  # pandas rounds the mean of equal numbers
    averages = summary.per_design(results).set_index(["method", "kind"])
    assert averages.loc[("exact", "all"), "estimands"] == 9
    assert averages.loc[("exact", "slope"), "between"] == 1
    assert averages.loc[("exact", "all"), "coverage"] == pytest.approx(table.loc["exact", "coverage"].mean())


# ---------------------------------------------------------------------------------------------- summaries


def rows_of(estimates, ses, *, design="fimd_2.5.3_x", method="mgp", estimand="x", between=0.01):
    """Return result rows with intervals of ± 2 standard errors around estimates of 1."""
    estimates, ses = np.asarray(estimates), np.asarray(ses)
    columns = {"kind": "coefficient", "estimand": estimand, "truth": 1.0, "estimate": estimates, "se": ses}
    frame = pd.DataFrame({"design": design, "method": method, "repetition": range(len(estimates)), **columns})
    covered = (np.abs(estimates - 1) <= 2 * ses).astype(float)
    return frame.assign(between=between, covered=covered, width=4 * ses, seconds=1.0)


def test_summary_as_computed_by_hand():
    results = rows_of([0.9, 1.1, 1.2, 1.2], [0.2, 0.1, 0.05, 0.2])
    (row,) = summary.per_estimand(results).to_dict("records")
    assert row["n"] == 4 and row["coverage"] == 0.75
    assert row["bias"] == pytest.approx(0.1)
    assert row["width"] == pytest.approx(4 * (0.2 + 0.1 + 0.05 + 0.2) / 4)
    assert row["coverage_se"] == pytest.approx(np.sqrt(0.75 * 0.25 / 4))
    assert row["bias_se"] == pytest.approx(results["estimate"].std() / 2)
    assert row["z2"] == pytest.approx((0.25 + 1 + 16 + 1) / 4)
    assert np.isnan(row["between"]) and np.isnan(row["seed_ratio"])


def test_ratios_to_the_exact_sampler_are_ratios_of_means():
    ours = rows_of([1.0, 1.0], [0.1, 0.3], between=[0.01, 0.03])
    exact = rows_of([1.0, 1.0], [0.2, 0.2], method="exact", between=[0.02, 0.04])
    table = summary.per_estimand(pd.concat([ours, exact])).set_index("method")
    assert table.loc["mgp", "between"] == pytest.approx(0.04 / 0.06)
    # Left out one at a time, the ratios are .75 and .5.
    assert table.loc["mgp", "between_se"] == pytest.approx(np.sqrt(np.var([0.75, 0.5])))
    assert table.loc["mgp", "width_ratio"] == pytest.approx(1.0)
    assert table.loc["exact", "between"] == 1


def test_averages_over_estimands_take_the_absolute_bias_of_each():
    results = pd.concat(
        [rows_of([1.1, 1.3], [0.2, 0.1], estimand="x"), rows_of([0.7, 0.7], [0.2, 0.2], estimand="z")]
    )
    (row,) = summary.per_design(results).to_dict("records")
    assert row["tables"] == 2 and row["estimands"] == 2
    assert row["absolute_bias"] == pytest.approx((0.2 + 0.3) / 2)
    assert row["coverage"] == 0.75 and row["least_coverage"] == 0.5
    assert row["coverage_se"] == pytest.approx(np.std([1, 0.5], ddof=1) / np.sqrt(2))


def test_spread_over_seeds_is_that_within_tables():
    estimates = np.r_[1.0 + 0.1 * np.arange(8), 3.0 + 0.1 * np.arange(8)]
    results = rows_of(estimates, np.full(16, 0.5), design="g2_3000_seeds")
    (row,) = summary.per_estimand(results).to_dict("records")
    assert row["seed_ratio"] == pytest.approx(np.std(0.1 * np.arange(8), ddof=1) / 0.5)


def test_designs_for_seeds_impute_the_same_table_with_different_seeds(monkeypatch):
    seen = []
    monkeypatch.setitem(
        METHODS, "seen", lambda frame, m, seed: seen.append((frame, seed)) or [frame.dropna()] * m
    )
    for repetition in (0, 7, 8):
        simulation.run_task(("g2_3000_seeds", "seen", repetition))
    (first, a), (second, b), (third, c) = seen
    assert (a, b, c) == (0, 7, 8)
    pd.testing.assert_frame_equal(first, second)
    assert not first.equals(third)


def test_coverage_over_real_tables_averages_tables_of_any_size():
    averages = pd.DataFrame(
        {
            "design": ["real_airfoil", "real_stock", "regions"], "method": "mgp", "kind": "correlation",
            "estimands": [15, 66, 36], "coverage": [0.8, 1.0, 0.1], "z2": 1.0,
        }
    )  # fmt: skip
    (row,) = summary.over_tables(averages).to_dict("records")
    assert row["designs"] == 2 and row["coverage"] == pytest.approx(0.9) and row["least_coverage"] == 0.8
    assert row["coverage_se"] == pytest.approx(0.1)


def test_the_plot_describes_the_summary(tmp_path):
    rows = [
        ("fimd_2.5.3_x", "mgp", "coefficient", 0.94), ("fimd_2.5.3_x", "mice_norm", "coefficient", 0.5),
        ("g2_50", "mgp", "mean", 0.2), ("g2_50", "mgp", "slope", 0.4), ("g2_50", "mgp", "all", 0.3),
        ("wave_30", 'mgp:{"m": 1}', "coefficient", 1.0),
    ]  # fmt: skip
    table = pd.DataFrame(rows, columns=["design", "method", "kind", "coverage"])
    description = plot.draw(table.assign(tables=100, coverage_se=0.02, width=0.4), tmp_path / "coverage.png")
    middle = "fimd_2.5.3_x: mgp 94 %, mice_norm 50 %; wave_30"
    assert middle in description and description.endswith('wave_30: mgp:{"m": 1} 100 %; g2_50: mgp 30 %')
    assert (tmp_path / "coverage.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_continues_and_writes_summaries(tmp_path, capsys):
    out, stem = tmp_path / "results.csv", tmp_path / "summary"
    common = ["-o", str(out), "--designs", "g2_5*", "--methods", "complete_cases", "--summary", str(stem)]
    for repetitions in ("1", "2"):
        assert __main__.main([*common, "--repetitions", repetitions]) == 0
    assert len(pd.read_csv(out)) == 2 * 9
    assert set(pd.read_csv(f"{stem}_designs.csv")["tables"]) == {2}
    assert len(pd.read_csv(f"{stem}_estimands.csv")) == 9
    assert "log variance" in capsys.readouterr().out
