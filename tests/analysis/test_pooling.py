"""Rubin's rules: against R's mice, and in limiting cases."""

from __future__ import annotations

import json
import math
import sys
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.linear_model import BayesianRidge, LinearRegression
from statsmodels.imputation.mice import MICE, MICEData
from statsmodels.miscmodels.ordinal_model import OrderedModel

from pyro_mgp import Imputations, pool, pool_synthetic
from pyro_mgp.analysis.pooling import Pooled, missing_information

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "pooling.json").read_text())
SAME_NAME = {"se": "std_error", "low": "ci_low", "high": "ci_high", "p": "p_value"}


def pool_arrays(Q: Any, U: Any, names: Any = None, **settings: Any) -> Pooled:
    return pool(list(zip(Q, U, strict=True)), names=names, **settings)


def fits(Q: Any, U: Any, **more: Any) -> list[SimpleNamespace]:
    return [SimpleNamespace(params=np.array(q), bse=np.sqrt(u), **more) for q, u in zip(Q, U, strict=True)]


@pytest.mark.parametrize("name", ["ubar", "b", "t"])
def test_within_between_and_total_variance_equal_mice(name: str) -> None:
    pooled = pool_arrays(GOLDEN["Q"], GOLDEN["U_diag"], GOLDEN["terms"])
    np.testing.assert_allclose(getattr(pooled, name), GOLDEN["pooled"][name], rtol=1e-6)


def test_series_and_matrices_are_labelled_by_the_estimates() -> None:
    names = ["age", "bmi"]
    pooled = pool([([1.0 + k, 2.0], np.diag([0.1, 0.2])) for k in range(3)], names=names)
    found = {name: getattr(pooled, name) for name in ("ubar", "b", "t")} | {"m": pooled.recommended_m()}
    assert all(each.name == name and each.index.tolist() == names for name, each in found.items())
    assert pooled.covariance.index.tolist() == pooled.covariance.columns.tolist() == names
    assert pooled.covariance.loc["age", "age"] == pytest.approx(0.1 + 4 / 3)


@pytest.mark.parametrize("name", ["estimate", "se", "df", "riv", "lambda", "fmi", "p", "low", "high"])
def test_a_regression_pools_as_in_mice(name: str) -> None:
    table = pool_arrays(GOLDEN["Q"], GOLDEN["U_diag"], GOLDEN["terms"], df_complete=GOLDEN["dfcom"]).table
    expected = GOLDEN["pooled"][SAME_NAME.get(name, name)]
    np.testing.assert_allclose(table[name], expected, rtol=1e-6)
    assert table.index.tolist() == GOLDEN["terms"]


def test_a_single_estimate_pools_as_in_mice() -> None:
    scalar = GOLDEN["scalar"]
    row = pool_arrays(scalar["Q"], scalar["U"], df_complete=scalar["n"] - scalar["k"]).table.iloc[0]
    found = [row["estimate"], row["se"] ** 2, row["df"], row["riv"], row["fmi"]]
    np.testing.assert_allclose(found, [scalar[k] for k in ("qbar", "t", "df", "r", "fmi")], rtol=1e-6)
    pooled = pool([(q, u) for q, u in zip(scalar["Q"], scalar["U"], strict=True)])
    np.testing.assert_allclose([pooled.ubar[0], pooled.b[0]], [scalar["ubar"], scalar["b"]], rtol=1e-6)


def test_pooling_without_missing_information_is_the_analysis_of_one_table() -> None:
    row = pool_arrays([1.5] * 4, [0.25] * 4, df_complete=12).table.iloc[0]
    assert row[["estimate", "se", "riv", "lambda"]].tolist() == [1.5, 0.5, 0.0, 0.0]
    assert row["df"] == pytest.approx(12 * 13 / 15)
    assert row["high"] - 1.5 == pytest.approx(0.5 * stats.t.ppf(0.975, 12 * 13 / 15))
    unlimited = pool_arrays([1.5] * 4, [0.25] * 4).table.iloc[0]
    assert unlimited["df"] == np.inf
    assert unlimited["high"] - 1.5 == pytest.approx(0.5 * stats.norm.ppf(0.975))


def test_results_of_statsmodels_bring_names_and_degrees_of_freedom() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=40)
    tables = [pd.DataFrame({"x": x, "y": x + generator.normal(size=40)}) for _ in range(3)]
    results = [sm.OLS(t["y"], sm.add_constant(t[["x"]])).fit() for t in tables]
    pooled = pool(results, level=0.9)
    assert pooled.table.index.tolist() == ["const", "x"]
    by_hand = pool_arrays(
        [r.params for r in results], [r.bse**2 for r in results], ["const", "x"], level=0.9, df_complete=38
    )
    pd.testing.assert_frame_equal(pooled.table, by_hand.table)
    assert "Pooled over 3 imputations, 90% intervals" in repr(pooled)


def test_imputations_pool_an_analysis_of_each_of_their_tables() -> None:
    frame = pd.DataFrame({"y": [1.0, 2.0, np.nan, 4.0], "x": [1.0, 2.0, 3.0, 5.0]})
    draws = Imputations(frame, {"y": [[2.5], [3.5], [3.0]]}, m=3)

    def regression(table: pd.DataFrame) -> Any:
        return sm.OLS(table["y"], sm.add_constant(table[["x"]])).fit()

    expected = pool([regression(table) for table in draws], level=0.5).table
    pd.testing.assert_frame_equal(draws.pool(regression, level=0.5).table, expected)
    assert (draws.pool(regression, df_complete=1).table["df"] < expected["df"]).all()
    pairs = draws.pool(lambda t: (t["y"].mean(), t["y"].sem() ** 2), names=["mean of y"])
    assert pairs.table["estimate"].to_dict() == {"mean of y": pytest.approx(2.5)}


@pytest.mark.parametrize(
    ("Q", "U", "sentence"),
    [
        ([[1.0]], [[1.0]], r"at least two imputations, got one: draw more, such as impute\(m=20\)"),
        ([[1.0], [2.0]], [[1.0, 1.0], [1.0, 1.0]], r"of one shape, got \(2, 1\) and \(2, 2\)"),
        ([[1.0], [2.0]], [[1.0], [0.0]], "positive variances"),
    ],
)
def test_invalid_estimates_are_an_error(Q: Any, U: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        pool_arrays(Q, U)


def test_variances_in_another_order_are_an_error() -> None:
    fit = pd.Series([1.0, 2.0], index=["a", "b"]), pd.Series([0.1, 0.2], index=["b", "a"])
    with pytest.raises(ValueError, match=r"of the estimates, \['a', 'b'\], got those of \['b', 'a'\]"):
        pool([fit] * 2)
    assert pool([(fit[0], fit[1].reset_index(drop=True))] * 2).table.index.tolist() == ["a", "b"]


def test_an_analysis_is_a_function_and_a_level_a_number() -> None:
    draws = Imputations(pd.DataFrame({"y": [1.0, np.nan]}), {"y": [[2.5], [3.5]]}, m=2)
    with pytest.raises(TypeError, match="got 'y ~ 1': for a formula, call fit"):
        draws.pool("y ~ 1")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="level must be a number, got '95%'"):
        pool([(1.0, 0.1), (2.0, 0.1)], level="95%")  # type: ignore[arg-type]


def test_fits_of_different_estimates_are_an_error() -> None:
    one, other = pd.Series([1.0], index=["a"]), pd.Series([1.0], index=["b"])
    with pytest.raises(ValueError, match=r"different estimates: \['a'\] and \['b'\]"):
        pool([SimpleNamespace(params=params, bse=[1.0]) for params in (one, other)])
    with pytest.raises(ValueError, match="level must lie between 0 and 1, got 95"):
        pool(fits([[1.0], [2.0]], [[1.0], [1.0]]), level=95)


def tables(m: int = 3, n: int = 120) -> list[pd.DataFrame]:
    """Return completed tables that differ in some cells of x."""
    generator = np.random.default_rng(4)
    x, group = generator.normal(size=n), np.repeat(np.arange(n // 10), 10)
    y = x + generator.normal(size=n) + generator.normal(size=n // 10)[group]
    frame = pd.DataFrame({"x": x, "y": y, "group": group, "positive": (y > 0).astype(int)})
    frame["grade"] = pd.Categorical(np.digitize(y, [-1, 1]), ordered=True)
    frame["code"], frame["time"] = frame["grade"].cat.codes, generator.exponential(size=n)
    frame["event"] = (np.arange(n) % 3 == 0).astype(int)
    holes = generator.random(n) < 0.3
    return [frame.assign(x=np.where(holes, generator.normal(size=n), x)) for _ in range(m)]


MODELS = {
    "OLS": lambda t: smf.ols("y ~ x", t).fit(),
    "OLS of arrays": lambda t: sm.OLS(t["y"].to_numpy(), sm.add_constant(t[["x"]].to_numpy())).fit(),
    "GLM": lambda t: smf.glm("positive ~ x", t, family=sm.families.Binomial()).fit(),
    "Logit": lambda t: smf.logit("positive ~ x", t).fit(disp=0),
    "MNLogit": lambda t: smf.mnlogit("code ~ x", t).fit(disp=0),
    "MNLogit of arrays": lambda t: sm.MNLogit(t["code"].to_numpy(), t[["x"]].to_numpy()).fit(disp=0),
    "MixedLM": lambda t: smf.mixedlm("y ~ x", t, groups=t["group"]).fit(),
    "GEE": lambda t: smf.gee("y ~ x", "group", t).fit(),
    "PHReg": lambda t: smf.phreg("time ~ x", t, status=t["event"]).fit(),
    "OrderedModel": lambda t: OrderedModel.from_formula("grade ~ x", t).fit(method="bfgs", disp=0),
    "RLM": lambda t: smf.rlm("y ~ x", t).fit(),
    "quantile regression": lambda t: smf.quantreg("y ~ x", t).fit(),
}
NAMES = {
    "OLS of arrays": ["const", "x1"],
    "MNLogit": [("1", "Intercept"), ("1", "x"), ("2", "Intercept"), ("2", "x")],
    "MNLogit of arrays": [(0, "x1"), (1, "x1")],
    "MixedLM": ["Intercept", "x", "Group Var"],
    "PHReg": ["x"],
    "OrderedModel": ["x", "0/1", "1/2"],
}


# Of 12 clusters, 40 events, and 120 rows, of which two coefficients and two variances are estimated.
DF_COMPLETE = {"GEE": 12 - 1, "PHReg": 40 - 1, "MixedLM": 120 - 4}


@pytest.mark.parametrize("model", MODELS)
def test_models_of_statsmodels_pool_by_name(model: str) -> None:
    results = [MODELS[model](table) for table in tables()]
    pooled = pool(results)
    assert pooled.table.index.tolist() == NAMES.get(model, ["Intercept", "x"])
    covariances = np.array([r.cov_params() for r in results])
    df = DF_COMPLETE.get(model, results[0].df_resid)
    by_hand = pool_arrays([np.asarray(r.params).T.ravel() for r in results], covariances, df_complete=df)
    np.testing.assert_array_equal(pooled.table, by_hand.table)
    np.testing.assert_allclose(pooled.variances[0], np.asarray(results[0].bse).T.ravel() ** 2)
    assert pooled.joint_test(contrasts=[0] * (len(pooled.table) - 1) + [1]).df1 == 1


def test_titles_have_all_digits_of_the_level() -> None:
    pairs = [(1.2, 0.04), (1.5, 0.05)]
    titles = {level: pool(pairs, level=level).title for level in (0.95, 0.975, 0.999)}
    assert [title.split(", ")[1] for title in titles.values()] == [
        f"{share}% intervals" for share in ("95", "97.5", "99.9")
    ]


def test_cluster_robust_errors_give_the_number_of_clusters() -> None:
    results = [smf.ols("y ~ x", t).fit(cov_type="cluster", cov_kwds={"groups": t["group"]}) for t in tables()]
    assert pool(results).df_complete == results[0].df_resid_inference == 11


def test_pool_takes_the_smallest_degrees_of_freedom() -> None:
    several = [SimpleNamespace(params=[q], bse=[1.0], df_resid=df) for q, df in ((1.0, 20), (2.0, 18))]
    assert pool(several).df_complete == 18
    assert pool(several, df_complete=np.inf).df_complete == np.inf


def test_pool_agrees_with_statsmodels_mice() -> None:
    frame = tables()[0][["x", "y"]].mask(np.random.default_rng(0).random((120, 2)) < 0.2)
    mice = MICE("y ~ x", sm.OLS, MICEData(frame))
    theirs, ours = mice.fit(2, 6), pool(mice.results_list, df_complete=np.inf)
    np.testing.assert_allclose(ours.table["estimate"], theirs.params)
    np.testing.assert_allclose(ours.covariance, theirs.cov_params())
    np.testing.assert_allclose(ours.table["lambda"], theirs.frac_miss_info)


def test_pairs_of_arrays_pool_as_results_do() -> None:
    results = [smf.ols("y ~ x", table).fit() for table in tables()]
    expected = pool(results)
    for pairs in (
        [(r.params, r.cov_params()) for r in results],
        [[r.params.to_numpy(), r.bse.to_numpy() ** 2] for r in results],
    ):
        pooled = pool(pairs, names=["Intercept", "x"], df_complete=118)
        pd.testing.assert_frame_equal(pooled.table, expected.table)
    assert pool([(1.0, 0.1), (2.0, 0.1)]).estimates.shape == (2, 1)
    with pytest.raises(ValueError, match="not their covariances"):
        assert pooled.covariances is None and pooled.joint_test()
    pd.testing.assert_series_equal(
        pd.Series(np.diag(expected.covariance), expected.t.index), expected.t, check_names=False
    )


def test_estimates_and_variances_may_be_any_numbers() -> None:
    one = [(Fraction(1, 2), Fraction(4)), (Fraction(3, 2), Fraction(5))]
    expected = pool([(0.5, 4.0), (1.5, 5.0)]).table
    pd.testing.assert_frame_equal(pool(one).table, expected)
    of_objects = [SimpleNamespace(params=[q], cov_params=[[u]]) for q, u in one]
    fitted = [SimpleNamespace(params_=[q], variance_matrix_=[[u]]) for q, u in one]
    for results in (of_objects, fitted):
        np.testing.assert_array_equal(pool(results).table, expected)


def test_a_series_of_estimates_names_them_whatever_holds_the_variances() -> None:
    estimates = [pd.Series([q, 2.0], ["x", "z"]) for q in (1.0, 1.5)]
    assert pool([(each, [0.1, 0.2]) for each in estimates]).table.index.tolist() == ["x", "z"]


def test_estimates_in_a_frame_without_named_covariances_are_numbered() -> None:
    multivariate = [
        SimpleNamespace(params=pd.DataFrame([[q, 2.0]]), cov_params=np.eye(2)) for q in (1.0, 1.5)
    ]
    assert pool(multivariate).table.index.tolist() == [0, 1]


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_covariances_are_symmetric_up_to_rounding_in_any_unit(unit: float) -> None:
    units = np.outer([unit, 2.0], [unit, 2.0])
    nearly, not_nearly = (units * [[1.0, 0.5], [0.5 + error, 1.0]] for error in (1e-9, 1e-3))
    assert pool([([1.0, 2.0], nearly)] * 2).covariances is not None
    with pytest.raises(ValueError, match="symmetric covariance matrices"):
        pool([([1.0, 2.0], not_nearly)] * 2)


def test_one_estimate_can_be_tested_without_covariances() -> None:
    pooled = pool([([q, 2.0], [0.04, 0.05]) for q in (1.2, 1.5, 0.9)], names=["slope", ("b", 1)])
    for name in pooled.table.index:
        row, test = pooled.table.loc[[name]].iloc[0], pooled.joint_test(name)
        expected = [(row["estimate"] / row["se"]) ** 2, row["p"], row["riv"]]
        assert [test.F, test.p, test.riv] == pytest.approx(expected)
        assert test == pooled.joint_test([name])
    half = pooled.joint_test(contrasts=[0, Fraction(1, 2)])
    assert pytest.approx(half.F) == pooled.joint_test(("b", 1)).F
    with pytest.raises(ValueError, match="not their covariances: pool results with cov_params, or"):
        pooled.joint_test(contrasts=[1, -1])


def test_estimates_of_synthetic_tables_are_pooled_one_by_one() -> None:
    Q, U = np.array([[1.0, 9.0], [2.0, 8.5], [3.0, 9.1], [6.0, 9.6]]), np.array([[0.5, 0.1]] * 4)
    table = pool_synthetic(list(zip(Q, U, strict=True)), names=["a", "b"]).table
    for k, name in enumerate(table.index):
        fits = list(zip(Q[:, k], U[:, k], strict=True))
        alone = pool_synthetic(fits, names=[name]).table
        pd.testing.assert_frame_equal(table.loc[[name]], alone)
        # The interval with the level 1 - p just reaches zero.
        reaching = pool_synthetic(fits, level=1 - float(alone.loc[name, "p"])).table
        assert reaching.loc[0, "low"] == pytest.approx(0, abs=1e-6)


def test_equal_estimates_of_synthetic_tables_have_the_variance_of_one() -> None:
    row = pool_synthetic([(1.5, 0.25)] * 4).table.iloc[0]
    assert row[["estimate", "se", "df"]].tolist() == [1.5, 0.5, math.inf]
    assert row["high"] - 1.5 == pytest.approx(0.5 * stats.norm.ppf(0.975))


def test_parameters_that_do_not_vary_have_no_missing_information() -> None:
    found = missing_information(np.array([0.0, 0.0, 1.0]), np.array([0.0, 1.0, 0.0]), 4)
    np.testing.assert_array_equal(found["lambda"], [np.nan, 1.0, 0.0])
    np.testing.assert_array_equal(found["riv"], [np.nan, np.inf, 0.0])
    np.testing.assert_array_equal(found["df"], [np.nan, 3.0, np.inf])


@pytest.mark.parametrize("level", [0.0, 1.0, 1.5])
def test_levels_of_intervals_lie_strictly_between_zero_and_one(level: float) -> None:
    with pytest.raises(ValueError, match=f"between 0 and 1, got {level}"):
        pool([(1.0, 0.1), (2.0, 0.1)], level=level)


def test_recommended_numbers_of_imputations_follow_the_quadratic_rule() -> None:
    pooled = pool_arrays(GOLDEN["Q"], GOLDEN["U_diag"], GOLDEN["terms"], df_complete=20)
    # chl by hand: logit(.366279) = -.548708; + 1.959964 √(2/5) = .690882; its expit is .666146
    assert pooled.recommended_m()["chl"] == math.ceil(1 + 0.5 * (0.666146 / 0.05) ** 2) == 90
    assert (pooled.recommended_m(cv=0.1) < pooled.recommended_m()).all()
    assert pool_arrays([1.5] * 4, [0.25] * 4).recommended_m().tolist() == [1]
    with pytest.raises(ValueError, match="cv must be positive, got 0"):
        pooled.recommended_m(cv=0)


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(0.1, 4)), min_size=2, max_size=8), st.floats(-4, 4))
def test_units_of_the_estimates_scale_the_answer(fits: list[tuple[float, float]], log_scale: float) -> None:
    scale = np.exp(log_scale)
    table = pool(fits, df_complete=30).table
    scaled = pool([(scale * q, scale**2 * u) for q, u in fits], df_complete=30).table
    lengths = ["estimate", "se", "low", "high"]
    np.testing.assert_allclose(scaled[lengths], scale * table[lengths], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(
        scaled.drop(columns=lengths), table.drop(columns=lengths), rtol=1e-6, atol=1e-12
    )


@pytest.mark.parametrize("apart", [2.4e-79, 1e-100, 1e-157, 1e-170])
def test_estimates_that_hardly_differ_have_the_degrees_of_freedom_of_equal_ones(apart: float) -> None:
    """Squares of the share of missing information, or their reciprocals, are no floating-point numbers."""
    assert pool([(0.0, 1.0), (apart, 1.0)], df_complete=30).table["df"].item() == pytest.approx(31 / 33 * 30)
    assert math.isinf(pool_synthetic([(0.0, 1.0), (apart, 1.0)]).table["df"].item())
    for m in (4, 3):
        fits = [([j * apart, 0.0], np.eye(2)) for j in range(m)]
        assert math.isinf(pool(fits).joint_test().df2)


@given(st.lists(st.floats(-1, 1), min_size=3, max_size=6).filter(lambda q: np.ptp(q) > 1e-3))
def test_pool_converges_to_one_table_as_tables_become_equal(estimates: list[float]) -> None:
    limit = pool_arrays([0.0] * 3, [1.0] * 3, df_complete=20).table
    far, near = (
        pool_arrays(
            1e-6 * step * (np.array(estimates) - np.mean(estimates)), np.ones(len(estimates)), df_complete=20
        )
        for step in (1e3, 1.0)
    )
    columns = ["estimate", "se", "df", "low", "high"]
    for pooled, tolerance in ((far, 1e-4), (near, 1e-9)):
        np.testing.assert_allclose(pooled.table[columns], limit[columns], rtol=tolerance, atol=1e-9)


def test_a_notebook_shows_the_rounded_table() -> None:
    pooled = pool_arrays(GOLDEN["Q"], GOLDEN["U_diag"], ["<b>", *GOLDEN["terms"][1:]], df_complete=20)
    shown = pooled._repr_html_()
    assert "Pooled over 5 imputations" in shown and "&lt;b&gt;" in shown and "<td>0.05275</td>" in shown
    assert "<.001" in repr(pooled)
    assert all(len(line) < 100 for line in repr(pooled).splitlines())


def test_pooled_keeps_its_inputs() -> None:
    pooled = pool(fits(GOLDEN["Q"], GOLDEN["U_diag"]), df_complete=20)
    assert isinstance(pooled, Pooled) and pooled.df_complete == 20 and pooled.m == 5
    np.testing.assert_array_equal(pooled.estimates, GOLDEN["Q"])
    np.testing.assert_allclose(pooled.variances, GOLDEN["U_diag"])


@pytest.mark.parametrize(
    ("results", "error", "sentence"),
    [
        ([], ValueError, "at least two imputations, got none"),
        ([3.0, 4.0], TypeError, "expected a result with params .* got float"),
        (
            [SimpleNamespace(params=[1.0])] * 2,
            TypeError,
            "SimpleNamespace has params but neither cov_params nor",
        ),
        (
            [SimpleNamespace(params=[1.0], bse=[np.nan])] * 2,
            ValueError,
            r"variance nan of 0 in table 0; leave",
        ),
        ([([1.0, np.inf], [1.0, 1.0])] * 2, ValueError, "got inf with variance 1.0 of 1 in table 0"),
        ([(1.0, 1.0), ([1.0, 2.0], [1.0, 1.0])], ValueError, r"different estimates: \[0\] and \[0, 1\]"),
        (
            [([1.0, 2.0], np.eye(2)), ([1.0, 2.0], [1.0, 1.0])],
            ValueError,
            "variances of one shape from all fits",
        ),
        ([([1.0, 2.0], [[1.0, 0.5], [0.0, 1.0]])] * 2, ValueError, "symmetric covariance matrices"),
    ],
)
def test_incomplete_fits_are_an_error(results: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        pool(results)


def test_names_and_degrees_of_freedom_are_checked() -> None:
    with pytest.raises(ValueError, match=r"one name for each of 1 estimates, got \['a', 'b'\]"):
        pool([(1.0, 1.0), (2.0, 1.0)], names=["a", "b"])
    with pytest.raises(ValueError, match="df_complete must be positive, got 0"):
        pool([(1.0, 1.0), (2.0, 1.0)], df_complete=0)


def test_fitted_objects_of_lifelines_are_read() -> None:
    """Attributes are those of a `WeibullAFTFitter` of lifelines 0.30."""
    names = pd.MultiIndex.from_tuples([("lambda_", "x"), ("lambda_", "Intercept"), ("rho_", "Intercept")])
    fits = [
        SimpleNamespace(
            params_=pd.Series([-0.44 + shift, -0.09, -0.11], names),
            variance_matrix_=pd.DataFrame(np.diag([0.012, 0.011, 0.005]) - 1e-4, names, names),
        )
        for shift in (0.0, 0.1, 0.2)
    ]
    pooled = pool(fits)
    assert pooled.table.index.tolist() == names.tolist()
    assert pooled.table["estimate"].tolist() == pytest.approx([-0.34, -0.09, -0.11])
    assert pooled.ubar.tolist() == pytest.approx([0.0119, 0.0109, 0.0049])
    assert pooled.covariance.iloc[0, 1] == pytest.approx(-1e-4)


def test_bayesian_ridge_regressions_are_read_and_others_have_no_standard_errors() -> None:
    g = np.random.default_rng(0)
    X = pd.DataFrame({"a": g.normal(size=40), "b": g.normal(size=40)})
    fits = [BayesianRidge().fit(X, X["a"] + g.normal(size=40)) for _ in range(3)]
    pooled = pool(fits)
    assert pooled.table.index.tolist() == ["a", "b"]
    assert pooled.ubar["a"] == pytest.approx(np.mean([fit.sigma_[0, 0] for fit in fits]))
    with pytest.raises(TypeError, match=r"a pair \(.*\); of scikit-learn only Bayesian ridge regression has"):
        pool([LinearRegression().fit(X, X["a"])] * 2)


def test_summaries_take_any_names() -> None:
    pooled = pool([([1.0 + k, 2.0], [0.1, 0.1]) for k in range(3)], names=[(0, "a"), (0, "b")])
    assert pooled.summary()["term"].tolist() == [(0, "a"), (0, "b")]
    assert pool([(1.0, 1.0), (2.0, 1.0)], names=[0]).summary()["term"].dtype == object


def test_latex_escapes_names_and_aligns_numbers_to_the_right() -> None:
    pooled = pool([([1.0 + k, 2.0], [0.1, 0.01]) for k in range(3)], names=["a_1", "b"])
    shown = pooled.to_latex()
    assert r"a\_1" in shown and r"\begin{tabular}{l" + 10 * "r" + "}" in shown
    assert "$<$.001" in shown


def test_summaries_are_the_table_with_its_terms_as_first_column() -> None:
    pooled = pool([(1.2, 0.04), (1.5, 0.05)], names=["x"])
    row = pooled.table.loc["x"].drop("efficiency")
    summary = pooled.summary()
    assert summary.columns.tolist() == ["term", *row.index] and summary.index.tolist() == [0]
    assert summary.loc[0, row.index].tolist() == row.tolist()
    ratios, changed = pooled.summary(exponentiate=True).loc[0], ["estimate", "low", "high"]
    np.testing.assert_allclose(ratios[changed].astype(float), np.exp(row[changed]))
    same = row.index.difference(changed)
    assert ratios[same].tolist() == row[same].tolist()


def test_great_tables_get_the_rounded_table_and_its_title(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is not needed otherwise: a stand-in records what it is given."""

    class GT:
        def __init__(self, frame: pd.DataFrame) -> None:
            self.frame = frame

        def tab_header(self, title: str) -> tuple[pd.DataFrame, str]:
            return self.frame, title

    monkeypatch.setitem(sys.modules, "great_tables", SimpleNamespace(GT=GT))
    pooled = pool([(1.2, 0.04), (1.5, 0.05)], names=["slope"])
    frame, title = pooled.to_great_table()
    assert frame.loc[0, ["term", "estimate"]].tolist() == ["slope", "1.35"] and title == pooled.title
