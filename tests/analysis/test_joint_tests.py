"""Joint tests: against R's mitml, in limiting cases, and under reparametrisation."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pyro_mgp import pool
from pyro_mgp.analysis.joint_tests import (
    JointTest,
    PoolingWarning,
    likelihood_ratio_test,
    pool_chi2,
    pool_likelihoods,
    pool_wald,
)

AGE = json.loads((Path(__file__).parents[1] / "golden" / "pooling.json").read_text())["joint_age"]
Q = np.array(AGE["Q"])
U = np.array([[[u11, u12], [u12, u22]] for u11, u12, u22 in AGE["U11_U12_U22"]])
L1, L0 = np.array(AGE["logLik1"]), np.array(AGE["logLik0"])


def assert_equals_golden(test: JointTest, name: str) -> None:
    for field, expected in AGE[name].items():
        assert getattr(test, field) == pytest.approx(expected, rel=1e-6), field
    assert test.m == 5 and name.startswith(test.method)


def test_d1_equals_mitml() -> None:
    assert_equals_golden(pool_wald(Q, U), "D1_li_large_sample")
    assert_equals_golden(pool_wald(Q, U, df_complete=20), "D1_reiter_dfcom20")
    pooled = pool(list(zip(Q, U, strict=True)), names=["40-59", "60-99"], df_complete=20)
    assert_equals_golden(pooled.joint_test(["40-59", "60-99"]), "D1_reiter_dfcom20")


def test_d2_equals_mitml() -> None:
    assert_equals_golden(pool_chi2(AGE["wald_chi2"], 2), "D2_wald")
    assert_equals_golden(pool_chi2(2 * (L1 - L0), 2), "D2_likelihood")
    wald = np.einsum("mk,mkl,ml->m", Q, np.linalg.inv(U), Q)
    np.testing.assert_allclose(wald, AGE["wald_chi2"], rtol=1e-6)


def test_d3_equals_mitml() -> None:
    # The likelihoods at the pooled estimates follow from F and riv; that these belong together is the test.
    # mice's own D3 belongs to other likelihoods: it keeps the slopes but fits intercept and residual variance
    # of every table anew, so these are not the likelihoods at the pooled estimates (mice's issue 226).
    golden = AGE["D3_mitml"]
    ratio = golden["F"] * golden["df1"] * (1 + golden["riv"])
    assert_equals_golden(pool_likelihoods(L1, L0, 2, at_pooled=([ratio / 2] * 5, [0] * 5)), "D3_mitml")


def test_d4_equals_mitml() -> None:
    stacked = AGE["stacked_logLik_over_m"]
    test = pool_likelihoods(L1, L0, 2, stacked=(5 * stacked["fit1"], 5 * stacked["fit0"]))
    assert_equals_golden(test, "D4_mitml")


def regression(n: int = 40) -> pd.DataFrame:
    generator = np.random.default_rng(2)
    frame = pd.DataFrame({"x": generator.normal(size=n), "z": generator.normal(size=n)})
    return frame.assign(y=0.4 * frame["x"] + generator.normal(size=n))


def test_without_missing_information_d1_is_the_test_of_one_table() -> None:
    fit = smf.ols("y ~ x + z", regression()).fit()
    theirs = fit.f_test("x = 0, z = 0")
    for df_complete, df2 in ((37, 37 * 38 / 40), (math.inf, math.inf)):
        ours = pool([fit] * 4, df_complete=df_complete).joint_test(["x", "z"])
        assert pytest.approx(float(theirs.fvalue)) == ours.F and ours.riv == pytest.approx(0, abs=1e-12)
        assert ours.df2 == pytest.approx(df2)
    assert ours.p == pytest.approx(stats.chi2.sf(2 * ours.F, 2))
    # F of one table has 37 degrees of freedom, that of Barnard and Rubin or of Reiter slightly fewer.
    assert pool([fit] * 4).joint_test(["x", "z"]).p == pytest.approx(stats.f.sf(ours.F, 2, 35.15))


def test_without_missing_information_likelihood_ratios_are_those_of_one_table() -> None:
    frame = regression()
    full, null = (lambda t: smf.ols("y ~ x + z", t).fit()), (lambda t: smf.ols("y ~ 1", t).fit())
    ratio, p, df = full(frame).compare_lr_test(null(frame))
    d4 = likelihood_ratio_test([frame] * 3, full, null)
    d2 = pool_chi2([ratio] * 3, int(df))
    for test in (d2, d4):
        assert (test.df1, test.df2) == (2, math.inf)
        assert [test.F, test.p, test.riv] == pytest.approx([ratio / 2, p, 0.0])
    assert pool_likelihoods([3.0] * 3, [1.0] * 3, 1, at_pooled=([3.0] * 3, [1.0] * 3)).df2 == math.inf


@pytest.mark.parametrize("times", [1, 2])
def test_the_test_of_one_estimate_is_its_t_squared(times: int) -> None:
    pooled = pool(list(zip([*Q] * times, [*U] * times, strict=True)), df_complete=20)
    row, test = pooled.table.loc[1], pooled.joint_test(1)
    expected = [(row["estimate"] / row["se"]) ** 2, row["df"], row["p"], row["riv"]]
    assert [test.F, test.df2, test.p, test.riv] == pytest.approx(expected)


@given(st.lists(st.floats(-2, 2), min_size=4, max_size=4))
def test_d1_is_invariant_under_reparametrisation(entries: list[float]) -> None:
    A = np.array(entries).reshape(2, 2) + 3 * np.eye(2) @ np.array([[0.0, 2.0], [1.0, 0.0]])
    if abs(np.linalg.det(A)) < 0.5:
        A = np.eye(2)
    plain = pool_wald(Q, U, [1.0, -2.0], 20)
    changed = pool_wald(Q @ A.T, A @ U @ A.T, A @ [1.0, -2.0], 20)
    assert [changed.F, changed.df2, changed.riv] == pytest.approx([plain.F, plain.df2, plain.riv])


def test_contrasts_are_combinations_of_estimates() -> None:
    pooled = pool(list(zip(Q, U, strict=True)), names=["a", "b"], df_complete=20)
    difference = pool([(q[0] - q[1], u[0, 0] - 2 * u[0, 1] + u[1, 1]) for q, u in zip(Q, U, strict=True)])
    found = pooled.joint_test(contrasts=[1, -1], null=0.5)
    expected = (difference.table.loc[0, "estimate"] - 0.5) / difference.table.loc[0, "se"]
    assert pytest.approx(expected**2) == found.F
    both = pooled.joint_test(contrasts=np.eye(2), null=[1, 2])
    assert pytest.approx(pooled.joint_test(["b", "a"], null=[2, 1]).F) == both.F


def test_d1_degrees_of_freedom_with_few_imputations() -> None:
    # Where Reiter's degrees of freedom are not defined, ν₂ is below both of its limits.
    three, few = pool_wald(Q[:3], U[:3], df_complete=20), pool_wald(Q, U, df_complete=3)
    assert 0 < three.df2 < min(20, pool_wald(Q[:3], U[:3]).df2)
    assert 0 < few.df2 < 3
    near, far = (pool_wald(Q, U, df_complete=each).df2 for each in (1e5, 1e9))
    assert near == pytest.approx(far, rel=0.01)


def test_large_sample_degrees_of_freedom_are_those_of_li_raghunathan_and_rubin() -> None:
    for m in (3, 5):
        test, t = pool_wald(Q[:m], U[:m]), 2 * (m - 1)
        few = t * (1 + 1 / 2) * (1 + 1 / test.riv) ** 2 / 2
        assert test.df2 == pytest.approx(few if t <= 4 else 4 + (t - 4) * (1 + (1 - 2 / t) / test.riv) ** 2)


def test_fewer_imputations_than_constraints_are_a_warning() -> None:
    with pytest.warns(PoolingWarning, match="2 constraints from 2 imputations") as caught:
        pool_wald(Q[:2], U[:2])
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((Q[:, [0, 0]], U[:, [0, 0]][:, :, [0, 0]]), "is singular: the constraints repeat each other"),
        ((Q, np.zeros_like(U)), "is singular"),
        ((Q, np.array([[[0.0, 1.0], [1.0, 1.0]]] * 5)), "is singular"),
    ],
)
def test_invalid_arguments_of_d1_are_an_error(arguments: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        pool_wald(*arguments)


def test_terms_and_contrasts_are_checked() -> None:
    pooled = pool(list(zip(Q, U, strict=True)), names=["a", ("b", 1)])
    assert pooled.joint_test([("b", 1)]).df1 == pooled.joint_test("a").df1 == 1
    assert pooled.joint_test(("a", ("b", 1))) == pooled.joint_test()
    for terms in ("c", ["a", "c"], [], ["a", "a"]):
        with pytest.raises(ValueError, match=r"some of the estimates \['a', \('b', 1\)\], each once"):
            pooled.joint_test(terms)
    with pytest.raises(ValueError, match=r"contrasts \[k, 2\] .* got contrasts of shape \(1, 3\)"):
        pooled.joint_test(contrasts=[1, 0, 0])
    with pytest.raises(ValueError, match=r"got contrasts of shape \(0, 2\)"):
        pooled.joint_test(contrasts=np.zeros((0, 2)))
    with pytest.raises(ValueError, match="got both"):
        pooled.joint_test("a", contrasts=[1, 0])
    with pytest.raises(ValueError, match="singular"):
        pooled.joint_test(contrasts=[[1, 0], [2, 0]])


def test_likelihood_ratio_test_equals_d4_of_the_likelihoods() -> None:
    generator = np.random.default_rng(0)
    frame = regression()
    frames = [frame.assign(x=frame["x"] + 0.3 * generator.normal(size=40)) for _ in range(4)]
    formulas = ("y ~ x + z", "y ~ z")
    models = [lambda t, f=f: smf.ols(f, t).fit() for f in formulas]
    found = likelihood_ratio_test(iter(frames), *models)
    stack = pd.concat(frames)
    by_hand = pool_likelihoods(
        *[[model(t).llf for t in frames] for model in models],
        1,
        stacked=[model(stack).llf for model in models],
    )
    assert found == by_hand and found.riv > 0
    # In large samples Wald's and the likelihood-ratio test agree; here, of 40 rows, roughly.
    assert pytest.approx(pool([models[0](t) for t in frames]).joint_test("x").F, rel=0.2) == found.F
    with pytest.raises(ValueError, match="expected more in the full one"):
        likelihood_ratio_test(frames, *models[::-1])
    with pytest.raises(ValueError, match="are they nested, in this order"):
        likelihood_ratio_test(frames, *models[::-1], df=1)
    with pytest.raises(ValueError, match="at least two completed tables, got 1"):
        likelihood_ratio_test(frames[:1], *models)


def test_arguments_of_likelihoods_and_statistics_are_checked() -> None:
    for more in ({}, {"stacked": (1.0, 0.0), "at_pooled": (L1, L0)}):
        with pytest.raises(ValueError, match="either stacked, for D4, or at_pooled"):
            pool_likelihoods(L1, L0, 2, **more)
    with pytest.raises(ValueError, match=r"got shapes \(5,\) and \(4,\)"):
        pool_likelihoods(L1, L0[:4], 2, stacked=(1.0, 0.0))
    for unknown in (np.nan, -np.inf):
        with pytest.raises(ValueError, match="expected finite log-likelihoods, got"):
            pool_likelihoods([unknown, *L1[1:]], L0, 2, stacked=(1.0, 0.0))
    for df in (0, 1.5, np.nan, "2", None):
        with pytest.raises(ValueError, match=f"integer of at least 1, got {df!r}"):
            pool_chi2([1.0, 2.0], df)  # type: ignore[arg-type]
    for statistics in ([1.0], [1.0, -1.0], [1.0, np.nan]):
        with pytest.raises(ValueError, match="from 0 upwards of at least two"):
            pool_chi2(statistics, 1)


def test_d3_depends_on_differences_of_likelihoods_only() -> None:
    P1, P0 = L1 - 0.3, L0 - 0.1
    test = pool_likelihoods(L1, L0, 2, at_pooled=(P1, P0))
    assert test.riv == pytest.approx(6 / (2 * 4) * 2 * ((L1 - L0).mean() - (P1 - P0).mean()))
    assert pytest.approx(2 * (P1 - P0).mean() / (2 * (1 + test.riv))) == test.F
    shifted = pool_likelihoods(L1 + 50, L0 + 50, 2, at_pooled=(P1 - 9, P0 - 9))
    assert [shifted.F, shifted.df2] == pytest.approx([test.F, test.df2])


def test_statistics_and_likelihoods_may_be_any_numbers() -> None:
    exact = [Fraction(1), Fraction(5, 2), Fraction(4)]
    assert pool_chi2(exact, 1) == pool_chi2([1.0, 2.5, 4.0], 1)
    expected = pool_likelihoods([1.0, 2.5, 4.0], [0.0, 0.0, 0.0], 1, stacked=(7.0, 0.0))
    assert pool_likelihoods(exact, [Fraction(0)] * 3, 1, stacked=(Fraction(7), 0)) == expected


def test_the_stacked_table_of_two_tables_has_an_index_of_its_own() -> None:
    indices = []

    def model(n_params: int, log_likelihood: float) -> Any:
        def fit(table: pd.DataFrame) -> SimpleNamespace:
            indices.append(table.index.tolist())
            return SimpleNamespace(params=np.zeros(n_params), llf=log_likelihood * len(table))

        return fit

    tables = [regression(5)] * 2
    # A full model that is less likely by rounding only is no error.
    test = likelihood_ratio_test(tables, model(3, -20.0 - 1e-9), model(1, -20.0))
    assert test.df1 == 2 and pytest.approx(0, abs=1e-6) == test.F
    assert indices == [list(range(5))] * 4 + [list(range(10))] * 2


def test_d2_of_contradictory_statistics_is_negative() -> None:
    test = pool_chi2([0.0, 30.0, 0.1], 1)
    assert test.F < 0 and test.p == 1
    assert pool_chi2([90.0, 91.0], 1).p < 1e-4 and "p < 0.0001" in repr(pool_chi2([90.0, 91.0], 1))
