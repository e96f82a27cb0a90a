"""Pooled regressions agree with R's mice and the packages that it pools; see `golden/analyses`."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import statsmodels.api as sm
from scipy.optimize import linprog

from pyro_mgp.analysis.joint_tests import PoolingWarning
from pyro_mgp.analysis.pooled_regression import PooledRegression, average_effects
from pyro_mgp.analysis.pooling import Pooled, pool
from pyro_mgp.analysis.regression import Regression
from pyro_mgp.results.imputations import Imputations

FOLDER = Path(__file__).parents[1] / "golden" / "analyses"
GOLDEN = pd.read_csv(FOLDER / "pooled.csv", skipinitialspace=True).set_index("analysis")
LEVELS = pd.CategoricalDtype(["low", "mid", "high"], ordered=True)
LONG = pd.read_csv(FOLDER / "tables.csv").astype({"k": "category", "level": LEVELS})
TABLES = [table.drop(columns="imp") for _, table in LONG.groupby("imp")]


def fitted(formula: str, model: Any = "ols", **options: Any) -> PooledRegression:
    return PooledRegression.of(Regression(formula, model, **options), TABLES)


def assert_golden(name: str, found: Pooled, rtol: float = 1e-6) -> None:
    """Check estimates, standard errors and degrees of freedom; terms have the order of R."""
    expected = GOLDEN.loc[name]
    for column in ("estimate", "se"):
        np.testing.assert_allclose(found.table[column], expected[column], rtol=rtol, atol=rtol)
    np.testing.assert_allclose(found.table["df"], expected["df"], rtol=10 * rtol)


@pytest.mark.parametrize(
    ("name", "formula", "options"),
    [
        ("ols", "y ~ x * k", {}),
        ("binomial", "yes ~ x + k", {"model": "glm", "family": "binomial"}),
        ("poisson", "count ~ x + k", {"model": "glm", "family": "poisson"}),
        ("phreg", "time ~ x + k", {"model": "phreg", "event": "event"}),
        ("weighted", "y ~ x + k", {"weights": "w"}),
        ("clustered", "yes ~ x + k", {"model": "glm", "family": "binomial", "cluster": "site"}),
        ("weighted_binomial", "yes ~ x + k", {"model": "glm", "family": "binomial", "weights": "w"}),
        (
            "weighted_clustered",
            "yes ~ x + k",
            {"model": "glm", "family": "binomial", "weights": "w", "cluster": "site"},
        ),
    ],
)
def test_regressions_agree_with_r(name: str, formula: str, options: dict[str, Any]) -> None:
    found = fitted(formula, **options)
    assert_golden(name, found)
    terms = [term.replace("[T.", "").replace("]", "") for term in found.table.index]
    named = GOLDEN.loc[name, "term"].str.replace("(Intercept)", "Intercept").tolist()
    assert sorted(terms) == sorted(named)


def test_ordered_levels_have_the_thresholds_of_polr() -> None:
    found = fitted("level ~ x + k", "ordered")
    assert found.table.index.tolist() == ["x", "k[T.b]", "k[T.c]", "low|mid", "mid|high"]
    assert_golden("ordered", found, rtol=1e-4)


def test_mixed_models_agree_with_lme4() -> None:
    assert_golden("mixed", fitted("y ~ x + k", "mixed", cluster="site"), rtol=1e-5)


def test_estimating_equations_agree_with_geepack() -> None:
    """Both estimate the correlation within clusters by moments, but not by the same ones."""
    assert_golden("gee", fitted("yes ~ x + k", "gee", family="binomial", cluster="site"), rtol=2e-3)


def test_estimating_equations_have_their_closed_form() -> None:
    """Of normal outcomes, given the correlation by moments with n - p degrees of freedom."""
    g, n, p = np.random.default_rng(0), 120, 2
    site, x = np.repeat(np.arange(30), 4), g.normal(size=n)
    y = 1 + 0.5 * x + g.normal(size=30)[site] + g.normal(size=n)
    found = Regression("y ~ x", "gee", cluster="site")(pd.DataFrame({"x": x, "y": y, "site": site}))
    X = np.stack([np.ones(n), x], axis=1).reshape(30, 4, p)
    Y, correlation = y.reshape(30, 4), 0.0
    for _ in range(100):
        W = np.linalg.inv((1 - correlation) * np.eye(4) + correlation)
        information = np.einsum("sip,ij,sjq->pq", X, W, X)
        beta = np.linalg.solve(information, np.einsum("sip,ij,sj->p", X, W, Y))
        r = Y - X @ beta
        products = (r.sum(1) ** 2 - (r**2).sum(1)).sum() / 2
        correlation = products / (30 * 6 - p) / ((r**2).sum() / (n - p))
    scores = np.einsum("sip,ij,sj->sp", X, W, r)
    covariance = np.linalg.solve(information, np.linalg.solve(information, scores.T @ scores).T)
    np.testing.assert_allclose(found.params, beta, rtol=1e-6)
    np.testing.assert_allclose(found.covariance, covariance, rtol=1e-5)


@pytest.mark.parametrize("quantile", [0.25, 0.5, 0.9])
def test_quantile_regressions_solve_their_linear_programme(quantile: float) -> None:
    g, n = np.random.default_rng(0), 80
    x = g.normal(size=n)
    y = 1 + 0.5 * x + g.standard_t(3, size=n)
    found = Regression("y ~ x", "quantile", quantile=quantile)(pd.DataFrame({"x": x, "y": y}))
    X, costs = np.stack([np.ones(n), x], axis=1), [quantile, 1 - quantile]
    parts = np.hstack([X, -X, np.eye(n), -np.eye(n)])
    solved = linprog(np.r_[np.zeros(4), np.repeat(costs, n)], A_eq=parts, b_eq=y).x
    np.testing.assert_allclose(found.params, solved[:2] - solved[2:4], atol=2e-6)


def test_predictions_agree_with_r() -> None:
    rows = pd.DataFrame({"x": [-1.0, 0.0, 2.0], "k": pd.Categorical(["a", "b", "c"])}, index=["p", "q", "r"])
    found = fitted("yes ~ x + k", "glm", family="binomial").predict(rows)
    expected = GOLDEN.loc["predict"]
    np.testing.assert_allclose(found["link"], expected["estimate"], rtol=1e-6)
    np.testing.assert_allclose(found["se"], expected["se"], rtol=1e-6)
    np.testing.assert_allclose(found["estimate"], 1 / (1 + np.exp(-expected["estimate"])), rtol=1e-6)
    assert found.index.tolist() == ["p", "q", "r"]
    assert (found["low"] < found["estimate"]).all() and (found["estimate"] < found["high"]).all()


def test_marginal_effects_agree_with_r() -> None:
    found = fitted("yes ~ x * k", "glm", family="binomial").marginal_effects(["x", "k"])
    assert found.table.index.tolist() == GOLDEN.loc["effects", "term"].tolist()
    assert_golden("effects", found)


def test_marginal_effects_of_a_linear_model_are_its_coefficients() -> None:
    regression = fitted("y ~ x + k")
    found = regression.marginal_effects().table.loc[["k: b - a", "k: c - a", "x"], ["estimate", "se", "df"]]
    expected = regression.table.loc[["k[T.b]", "k[T.c]", "x"], ["estimate", "se", "df"]]
    np.testing.assert_allclose(found, expected, rtol=1e-8)


def test_quantile_regressions_are_those_of_statsmodels() -> None:
    found = fitted("y ~ x", "quantile", quantile=0.25)
    fits = [
        sm.QuantReg(table["y"], sm.add_constant(table["x"])).fit(q=0.25, p_tol=1e-8, max_iter=5_000)
        for table in TABLES
    ]
    np.testing.assert_allclose(found.table, pool(fits).table, rtol=1e-10)


def test_completed_tables_are_fitted_by_one_line() -> None:
    frame = TABLES[0].assign(y=TABLES[0]["y"].where(np.arange(160) > 5))
    lost = np.array([table["y"].iloc[:6] for table in TABLES])
    draws = Imputations(frame, {"y": lost}, m=5)
    found = draws.fit("yes ~ y", family="binomial")
    expected = draws.pool(
        lambda table: sm.GLM(table["yes"], sm.add_constant(table["y"]), sm.families.Binomial()).fit()
    )
    np.testing.assert_allclose(found.table, expected.table, rtol=1e-6)
    odds = found.summary(exponentiate=True)
    assert odds.columns.tolist()[:3] == ["term", "estimate", "se"]
    np.testing.assert_allclose(odds["high"], np.exp(found.table["high"]))
    assert "\\toprule" in found.to_latex() and "<table" in found.to_html()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "mixed"}, "model='mixed' needs cluster, the label of a column"),
        ({"model": "phreg"}, "model='phreg' needs event"),
        ({"model": "quantile", "weights": "w"}, "model='quantile' takes no weights"),
        ({"model": "ols", "family": "binomial"}, "takes no family"),
        ({"model": "probit"}, "model must be one of"),
        ({"formula": "y"}, "expected a formula such as"),
        ({"weights": "v"}, "weights names column 'v', but the table has"),
        ({"formula": "y ~ hole"}, "the formula 'y ~ hole' has no value of 'hole' in some rows"),
        ({"formula": "y ~ q"}, r"the formula 'y ~ q' names 'q', but the columns are \['x', "),
        ({"formula": "q ~ x"}, "the formula 'q ~ x' names 'q', but the columns are"),
        ({"formula": "y ~ log10(q)"}, "names 'q', but the columns are"),
        ({"formula": "y ~ foo(x)"}, "names 'foo', but the columns are"),
        ({"formula": "y ~ x +"}, r"the formula 'y ~ x \+' cannot be evaluated: Operator `\+` [^\x1b]*$"),
        ({"formula": "y ~ (1 | k)"}, "For random effects, give model='mixed' and cluster="),
        ({"formula": "y ~ I(1 / (x - x))"}, r"term 'I\(1 / \(x - x\)\)' is not finite in some rows"),
        ({"formula": "y ~ "}, "expected a formula such as"),
        ({"formula": None}, "expected a formula such as"),
        ({"model": "quantile", "quantile": 95}, "quantile must lie between 0 and 1, got 95"),
        ({"model": "mixed", "cluster": "k", "random": "~ q"}, "the formula '~ q' names 'q'"),
        ({"weights": "k"}, "column 'k': expected numbers, got"),
        (
            {"formula": "y ~ x", "model": "phreg", "event": "event"},
            "model='phreg' takes values from 0 to inf",
        ),
        ({"model": "ordered"}, "needs an outcome with ordered levels"),
        ({"formula": "k ~ x"}, "has levels"),
        ({"formula": "k ~ x", "model": "glm", "family": "binomial"}, "has levels"),
        ({"formula": "y + x ~ 1"}, "expected one number on the left"),
        ({"formula": "hole ~ x"}, "column 'hole' has 160 missing cells"),
        ({"formula": "count ~ x", "model": "glm", "family": "binomial"}, "takes values from 0 to 1"),
        ({"formula": "time ~ x", "model": "phreg", "event": "count"}, "expected true and false, or 1 and 0"),
        ({"weights": "x"}, "expected no negative ones"),
        ({"cluster": "hole"}, "column 'hole' has 160 missing cells"),
        ({"formula": "y ~ x + I(2 * x)"}, r"term 'I\(2 \* x\)' is a linear function of others"),
        ({"formula": "time ~ 0 + k", "model": "phreg", "event": "event"}, "has no intercept: leave"),
    ],
)
def test_what_does_not_fit_is_an_error(options: dict[str, Any], message: str) -> None:
    table = TABLES[0].assign(hole=np.nan)
    with pytest.raises(ValueError, match=message):
        Regression(**{"formula": "y ~ x", "model": "ols"} | options)(table)


def test_outcomes_without_expectation_are_not_predicted() -> None:
    for found in (fitted("level ~ x", "ordered"), fitted("time ~ x", "phreg", event="event")):
        with pytest.raises(ValueError, match="has no expectation: take the coefficients"):
            found.predict(TABLES[0].head())
        with pytest.raises(ValueError, match="has no expectation: take the coefficients"):
            found.marginal_effects()
    with pytest.raises(ValueError, match=r"expected columns of the formula, \['x'\], got \['k'\]"):
        fitted("y ~ x").marginal_effects("k")


def one(formula: str, table: pd.DataFrame, model: Any = "ols", **options: Any) -> Any:
    return Regression(formula, model, **options)(table).params


def test_outcomes_of_two_levels_count_the_second() -> None:
    table = TABLES[0].assign(said=np.where(TABLES[0]["yes"] == 1, "yes", "no"))
    expected = one("yes ~ x", table, "glm", family="binomial")
    unused = pd.CategoricalDtype(["unknown", "no", "yes"])
    named = table.rename(columns={"said": "they ~ said"})
    for formula, own in (
        ("said ~ x", table),
        ("said ~ x", table.astype({"said": unused})),
        ("said ~ x", table.astype({"said": "string"})),
        ("`they ~ said` ~ x", named),
    ):
        pd.testing.assert_series_equal(one(formula, own, "glm", family="binomial"), expected)


def test_columns_of_any_type_that_means_the_same_give_the_same() -> None:
    table = TABLES[0].rename(columns={"x": 7})
    expected = one("y ~ `7` + k", table)
    other = table.astype({7: object, "y": object, "k": pd.CategoricalDtype(["a", "b", "c", "none"])})
    pd.testing.assert_series_equal(one("y ~ `7` + k", other), expected)
    pd.testing.assert_series_equal(one("y ~ `7` + k", table.astype({"k": "string"})), expected)
    named = pa.Table.from_pandas(table.rename(columns=str)).to_pandas(types_mapper=pd.ArrowDtype)
    arrow = named.rename(columns={"7": 7}).set_axis(range(5, 5 + len(table)))
    pd.testing.assert_series_equal(one("y ~ `7` + k", arrow), expected)
    weighted = table.assign(w=table["w"].where(table["site"] > 3, 0.0))
    some = Regression("y ~ `7`", "ols", weights="w")
    few = some(weighted[weighted["site"] > 3])
    pd.testing.assert_frame_equal(some(weighted).covariance, few.covariance)
    assert some(weighted).df_resid == few.df_resid


def test_labels_of_rows_may_repeat() -> None:
    table = TABLES[0]
    both = Regression("yes ~ x", "glm", "binomial", weights="w", cluster="site")
    repeated = both(table.set_axis(np.zeros(len(table), dtype=int)))
    pd.testing.assert_frame_equal(repeated.covariance, both(table).covariance)


def test_marginal_effects_stay_within_the_table() -> None:
    """Square roots and splines have no values beyond; the effect of a spline is that of its function."""
    table = TABLES[0].assign(z=TABLES[0]["count"].clip(0, 4).astype(float))
    found = Regression("y ~ np.sqrt(z)", "ols")(table)
    slope = found.params["np.sqrt(z)"] / (2 * np.sqrt(table["z"].mask(table["z"] == 0)))
    effects, _ = average_effects(found, table[table["z"] > 0], ["z"])
    assert effects["z"] == pytest.approx(slope.mean(), rel=1e-4)
    spline = Regression("y ~ bs(x, df=4)", "ols")(table)
    effects, covariance = average_effects(spline, table, ["x"])
    assert np.isfinite(effects["x"]) and covariance[0, 0] > 0
    with pytest.raises(ValueError, match="a level is not among those of the fit"):
        average_effects(Regression("y ~ C(z)", "ols")(table), table, ["z"])
    with pytest.raises(ValueError, match="'z' enters the formula by levels"):
        average_effects(Regression("y ~ I(z > 1.5)", "ols")(table), table, ["z"])


def test_a_column_is_given_by_its_label() -> None:
    with pytest.raises(TypeError, match="weights must be the label of a column, got ndarray"):
        Regression("y ~ x", "ols", weights=np.ones(160))  # type: ignore[arg-type]


def test_the_user_is_warned_of_certain_outcomes_at_the_own_line() -> None:
    table = TABLES[0].assign(sure=TABLES[0]["x"] > 0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Regression("sure ~ x", "glm", "binomial")(table)
    ours = [each for each in caught if each.category is PoolingWarning]
    assert [each.filename for each in ours] == [__file__]


def test_predictions_refuse_levels_that_were_not_fitted() -> None:
    rows = pd.DataFrame({"x": [0.0], "k": ["d"]})
    with pytest.raises(ValueError, match=r"a level is not among those of the fit: {'d'}$"):
        fitted("y ~ x + k").predict(rows)
    with pytest.raises(ValueError, match="the formula 'y ~ x' names 'x', but the columns are"):
        fitted("y ~ x").predict(rows[["k"]])


def test_gamma_regressions_have_positive_predictions() -> None:
    found = fitted("time ~ x", "glm", family="gamma").predict(pd.DataFrame({"x": [-3.0, 3.0]}))
    assert (found["low"] > 0).all() and (found["low"] < found["high"]).all()


def test_certain_predictions_are_named() -> None:
    table = TABLES[0].assign(group=np.where(TABLES[0]["site"] < 4, "s", "t"))
    table["yes"] = table["yes"].where(table["group"] == "t", 1)
    with pytest.warns(PoolingWarning, match="predicts an outcome with certainty"):
        Regression("yes ~ group", "glm", "binomial")(table)


def test_fits_can_be_sent_to_another_process() -> None:
    found = pickle.loads(pickle.dumps(fitted("yes ~ x", "glm", family="binomial")))
    rows = TABLES[0].head(3)
    pd.testing.assert_frame_equal(
        found.predict(rows), fitted("yes ~ x", "glm", family="binomial").predict(rows)
    )
