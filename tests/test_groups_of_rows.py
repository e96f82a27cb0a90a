"""Groups of rows, from a table to imputations, new groups, files and Pyro."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pyro.infer import Predictive, Trace_ELBO

from pyro_mgp import ColumnSpec, Engine, MGPImputer, calibrate
from pyro_mgp.analysis.relevance import relevance
from pyro_mgp.analysis.variance_shares import variance_shares
from pyro_mgp.imputer import FitWarning
from pyro_mgp.scaling.partitions import impute_partition

SCHOOL = {"school": ColumnSpec(kind="group")}


def pupils(n_schools: int = 30, size: int = 8, seed: int = 0) -> pd.DataFrame:
    """Return y = x + w + u + noise with school effects u of variance 1; x, y and w of some schools miss."""
    g, school = np.random.default_rng(seed), np.repeat(np.arange(n_schools), size)
    w, u = g.normal(size=n_schools)[school], g.normal(size=n_schools)[school]
    x = g.normal(size=len(school))
    frame = pd.DataFrame({"school": [f"s{k}" for k in school], "x": x, "w": w})
    frame["kind"] = pd.Categorical(np.where(w < -0.5, "a", np.where(w < 0.5, "b", "c")))
    frame["y"] = x + w + u + 0.6 * g.normal(size=len(school))
    frame["x"] = frame["x"].mask(g.random(len(school)) < 0.2)
    frame["y"] = frame["y"].mask(frame["x"].notna() & (g.random(len(school)) < 0.3))
    return frame


def imputer(specs: dict[Any, ColumnSpec] = SCHOOL, **settings: Any) -> MGPImputer:
    return MGPImputer(specs=specs, random_state=0, progress=False, **settings)


@pytest.fixture(scope="module")
def fitted() -> MGPImputer:
    frame = pupils()
    frame["w"] = frame["w"].mask(frame["school"].isin(["s3", "s4", "s5"]))
    frame["kind"] = frame["kind"].mask(frame["school"].isin(["s4", "s6"]))
    # The other rows of this school tell it.
    frame.loc[(frame["school"] == "s0") & (frame.index % 2 == 0), "w"] = np.nan
    return imputer().fit(frame)


def test_imputed_cells_shrink_towards_the_mean_of_their_school() -> None:
    """Expectations of missing y, of which all inputs are observed, are those of a mixed model."""
    frame = pupils(seed=3)
    frame["x"] = pupils(seed=3)["x"].fillna(0.0)
    draws = imputer().fit(frame).impute(m=200)
    holes = frame["y"].isna().to_numpy()
    found = np.mean([table["y"][holes] for table in draws], axis=0)
    seen, codes = frame[~holes], pd.factorize(frame["school"])[0]
    X = np.column_stack([np.ones(len(frame)), frame["x"], frame["w"]])
    Z = (codes[:, None] == np.arange(30)).astype(float)

    def predicted(ratio: float) -> tuple[float, np.ndarray]:
        V = np.eye(len(seen)) + ratio * Z[~holes] @ Z[~holes].T
        whole = np.linalg.inv(V)
        A, y = X[~holes], seen["y"].to_numpy()
        beta = np.linalg.solve(A.T @ whole @ A, A.T @ whole @ y)
        rest = y - A @ beta
        fit = len(y) * np.log(rest @ whole @ rest) + np.linalg.slogdet(V)[1]
        return fit, X[holes] @ beta + ratio * Z[holes] @ Z[~holes].T @ whole @ rest

    _, expected = min((predicted(ratio) for ratio in np.geomspace(0.5, 8, 20)), key=lambda each: each[0])
    # Draws of one cell have a standard deviation of about .65, its mean over 200 draws one of .05. The
    # parameters of the mixed model are estimates, which are averaged over here.
    assert np.sqrt(np.mean((found - expected) ** 2)) < 0.18
    assert np.polyfit(expected, found, 1)[0] == pytest.approx(1.0, abs=0.05)
    fixed = X[holes] @ np.linalg.lstsq(X[~holes], seen["y"], rcond=None)[0]
    assert np.sqrt(np.mean((found - fixed) ** 2)) > 0.5


def test_the_order_of_columns_does_not_matter() -> None:
    """Effects of both links are correlated in one of the orders."""
    frame = pupils(40, 6, seed=1)
    slopes = []
    for order in (["x", "y"], ["y", "x"]):
        draws = imputer(inputs="earlier", order=order).fit(frame).impute(m=40)
        within = [
            table[["x", "y"]] - table.groupby("school")[["x", "y"]].transform("mean") for table in draws
        ]
        slopes.append(np.mean([(own["x"] * own["y"]).sum() / (own["x"] ** 2).sum() for own in within]))
    assert slopes[0] == pytest.approx(1.0, abs=0.15)
    assert slopes[0] == pytest.approx(slopes[1], abs=0.05)


@pytest.mark.slow
def test_columns_of_a_school_have_one_cell_per_school(fitted: MGPImputer) -> None:
    links = {link.name: link for link in fitted.model_.link_specs}
    kinds = [name for name in fitted.order_ if name.startswith("kind=")]
    assert len(kinds) == 2
    assert (
        {*fitted.order_[:3]} == {"w", *kinds} == {n for n, link in links.items() if link.once_per is not None}
    )
    assert [len(links[name].effects) for name in ("w", *kinds, "x", "y")] == [0, 0, 0, 1, 1]
    draws = fitted.impute(m=30)
    truth, given = pupils(), draws.frame
    for table in draws:
        assert (table.groupby("school")[["w", "kind"]].nunique() == 1).all(axis=None)
        assert np.allclose(table["w"][table["school"] == "s0"], truth["w"][0])
    lost = given[given["w"].isna()].groupby("school").head(1).query("school != 's0'").index
    found = np.array([table.loc[lost, "w"] for table in draws])
    assert (found.std(0) > 0.05).all()
    point = fitted.transform(given)
    assert (point.groupby("school")[["w", "kind"]].nunique() == 1).all(axis=None)
    np.testing.assert_allclose(point.loc[lost, "w"], found.mean(0), atol=0.6)


@pytest.mark.slow
def test_the_cell_of_a_school_is_told_by_all_its_rows() -> None:
    """In y = w + noise the posterior of w has the variance of the mean of its rows."""
    g, school = np.random.default_rng(0), np.repeat(np.arange(60), 9)
    w = g.normal(size=60)
    frame = pd.DataFrame({"school": school, "w": w[school], "y": w[school] + 0.6 * g.normal(size=540)})
    frame["z"] = g.normal(size=540)
    full, frame = frame, frame.assign(w=frame["w"].mask(frame["school"] % 3 == 0))
    draws = imputer().fit(frame).impute(m=100)
    cells = np.array([table["w"][::9][::3] for table in draws])
    error = cells.mean(0) - full["w"][::9][::3]
    # Of .6² / 9, and some for what is not known of the effects of schools, which there are none of.
    assert 0.18 < np.sqrt((error**2).mean()) < 0.45
    assert (error**2 / cells.var(0)).mean() == pytest.approx(1.0, abs=0.6)


@pytest.mark.slow
def test_new_groups_have_effects_of_their_own(fitted: MGPImputer) -> None:
    rows = pupils().iloc[:24].assign(y=np.nan, x=np.linspace(-0.1, 0.1, 24), w=0.0)
    rows["school"] = ["new"] * 8 + ["other"] * 8 + ["s2"] * 8
    m = 400
    draws = fitted.impute(rows, m=m)
    y = np.array([table["y"] for table in draws])
    correlation = np.corrcoef(y.T)
    same, different = correlation[:8, :8][~np.eye(8, dtype=bool)], correlation[:8, 8:16]
    # The variance of effects is 1, that of noise .36.
    assert same.mean() == pytest.approx(1 / 1.36, abs=0.15)
    assert abs(different.mean()) < 0.15
    known = y[:, 16:].var(0).mean()
    assert known < 0.75 * y[:, :16].var(0).mean()
    # Whichever other groups are imputed with them.
    alone = fitted.impute(rows.iloc[:8], m=m)
    np.testing.assert_allclose([table["y"] for table in alone], y[:, :8], rtol=1e-4)


def test_slopes_differ_between_groups() -> None:
    g, school = np.random.default_rng(2), np.repeat(np.arange(25), 12)
    t, slope = g.uniform(-1, 1, 300), g.normal(0, 2, 25)
    frame = pd.DataFrame({"school": school, "t": t, "y": slope[school] * t + 0.3 * g.normal(size=300)})
    full, frame = frame, frame.assign(y=frame["y"].mask(g.random(300) < 0.3))
    errors = {}
    for slopes in ((), ("t",)):
        draws = imputer({"school": ColumnSpec(kind="group", slopes=slopes)}).fit(frame).impute(m=20)
        error = np.mean([table["y"] for table in draws], axis=0) - full["y"]
        errors[slopes] = np.sqrt((error[frame["y"].isna()] ** 2).mean())
    assert errors["t",] < 0.45
    assert errors["t",] < 0.6 * errors[()]


def test_columns_with_slopes_come_before_others() -> None:
    """Where growth is curved, a search by evidence alone may put time last, without slopes."""
    g, patient = np.random.default_rng(5), np.repeat(np.arange(40), 5)
    y = g.normal(size=40)[patient] + g.normal(size=200)
    frame = pd.DataFrame({"patient": patient, "y": y, "t": y**2 / 2 + 0.1 * g.normal(size=200)})
    frame["y"] = frame["y"].mask(g.random(200) < 0.3)
    without = imputer({"patient": ColumnSpec(kind="group")}).fit(frame)
    assert without.order_ == ["y", "t"]
    (link,) = imputer({"patient": ColumnSpec(kind="group", slopes=["t"])}).fit(frame).model_.link_specs
    assert link.name == "y" and len(link.effects[0].slopes) == 1


def test_columns_may_have_no_effects() -> None:
    frame = pupils(10, 6).drop(columns=["w", "kind"])
    specs = SCHOOL | {"x": ColumnSpec(predictors=["y"])}
    links = {link.name: link for link in imputer(specs, max_steps=3).fit(frame).model_.link_specs}
    assert len(links["x"].effects) == 0 and len(links["y"].effects) == 1


def test_new_rows_get_the_cells_of_their_school(fitted: MGPImputer, tmp_path: Path) -> None:
    truth = pupils()
    rows = truth[truth["school"].isin(["s1", "s2"])].assign(w=np.nan, kind=None, y=np.nan)
    rows["kind"] = pd.Categorical(rows["kind"], categories=["a", "b", "c"])
    fitted.save(tmp_path / "imputer", overwrite=True)
    for own in (fitted, MGPImputer.load(tmp_path / "imputer")):
        for table in own.impute(rows, m=2):
            np.testing.assert_allclose(table["w"], truth.loc[rows.index, "w"], rtol=1e-9)
            assert (table["kind"] == truth.loc[rows.index, "kind"]).all()
    # A label of 0 is a label like others.
    holey = truth.assign(y=truth["y"].mask(truth.index % 5 == 0)).rename(columns={"school": 0})
    imputer({0: SCHOOL["school"]}).fit(holey).save(tmp_path / "numbered")
    (table,) = MGPImputer.load(tmp_path / "numbered").impute(rows.rename(columns={"school": 0}), m=1)
    np.testing.assert_allclose(table["w"], truth.loc[rows.index, "w"], rtol=1e-9)
    rows.loc[rows.index[:2], "w"] = [1.0, 2.0]
    with pytest.raises(ValueError, match="'w' is constant within each 'school', but 's1' has"):
        fitted.impute(rows, m=2)


def test_partitions_that_may_share_cells_of_groups_are_refused(fitted: MGPImputer) -> None:
    with pytest.raises(ValueError, match="of which other partitions may have rows"):
        impute_partition(fitted, pupils().iloc[:4].assign(school="new"), 2)


def scores(n_schools: int, size: int, seed: int, first: int = 0) -> pd.DataFrame:
    """Return y = 1 + x / 2 + u + noise with school effects u of variance 1, and whether a noisy y passes."""
    g, school = np.random.default_rng(seed), np.repeat(np.arange(n_schools), size)
    x = g.normal(size=len(school))
    y = 1 + 0.5 * x + g.normal(size=n_schools)[school] + 0.6 * g.normal(size=len(school))
    passed = pd.array(y + 0.5 * g.normal(size=len(school)) > 1, dtype="boolean")
    return pd.DataFrame({"school": [f"s{first + k}" for k in school], "x": x, "y": y, "passed": passed})


def holey_scores() -> pd.DataFrame:
    frame, g = scores(50, 8, seed=0), np.random.default_rng(9)
    frame.loc[g.random(len(frame)) < 0.25, "y"] = np.nan
    frame.loc[g.random(len(frame)) < 0.2, "passed"] = pd.NA
    return frame


@pytest.mark.parametrize("columns", [["school", "x", "y"], ["school", "x", "y", "passed"]])
@pytest.mark.slow
def test_effects_of_new_groups_are_drawn_given_their_rows(columns: list[str]) -> None:
    """With y only, means are those of the posterior at true parameters; whether pupils passed tells more."""
    fitted = imputer().fit(holey_scores()[columns])
    truth = scores(60, 6, seed=5, first=1000)
    left_out = np.arange(len(truth)) % 6 < 3
    rows = truth.assign(y=truth["y"].mask(left_out))[columns]
    drawn = np.array([table["y"] for table in fitted.impute(rows, m=100)])[:, left_out]
    y, fixed = truth["y"].to_numpy(), 1 + 0.5 * truth["x"].to_numpy()
    # Three cells of a school are known in complete rows, with a noise of variance .36.
    mean = (y - fixed).reshape(60, 6)[:, 3:].sum(1) / 0.36 / (1 + 3 / 0.36)
    expected = fixed[left_out] + np.repeat(mean, 3)
    error = drawn.mean(0) - y[left_out]
    assert (error**2 / drawn.var(0)).mean() == pytest.approx(1.0, abs=0.3)
    if columns[-1] == "y":
        assert np.corrcoef(drawn.mean(0), expected)[0, 1] > 0.98
        np.testing.assert_allclose(np.polyfit(expected, drawn.mean(0), 1), [1.0, 0.0], atol=0.12)
    else:
        assert np.mean(error**2) < 0.9 * np.mean((expected - y[left_out]) ** 2)
    point = np.asarray(fitted.transform(rows)["y"])[left_out]
    assert np.corrcoef(point, drawn.mean(0))[0, 1] > 0.97


def test_draws_for_new_groups_do_not_depend_on_batches_or_on_rows_of_others(tmp_path: Path) -> None:
    fitted = imputer(max_steps=5).fit(holey_scores())
    rows = scores(6, 6, seed=5, first=1000)
    rows.loc[::2, "y"] = np.nan
    together = fitted.impute(rows, m=2)
    for one, other in zip(fitted.impute(rows, m=2, batch_size=4), together, strict=True):
        pd.testing.assert_frame_equal(one, other, rtol=1e-5)
    alone = fitted.impute(rows.iloc[:6], m=2)
    for one, other in zip(alone, together, strict=True):
        pd.testing.assert_frame_equal(one, other.iloc[:6], rtol=1e-4)
    paths = fitted.impute_to_parquet(tmp_path / "tables", rows, m=2, batch_size=4)
    for path, table in zip(paths, together, strict=True):
        pd.testing.assert_frame_equal(pd.read_parquet(path), table, rtol=1e-5, check_dtype=False)


def test_too_many_effects_are_an_error() -> None:
    rows = np.arange(4402)
    frame = pd.DataFrame({"patient": rows // 2, "item": rows % 2201, "y": rows / 2.0})
    frame.loc[3, "y"] = np.nan
    with pytest.raises(
        ValueError, match="2201 effects are of smaller columns of groups: expected at most 2000"
    ):
        imputer({name: ColumnSpec(kind="group") for name in ("patient", "item")}).fit(frame)


def test_limits_are_those_of_rows() -> None:
    frame = pupils(10, 6)
    frame["w"], frame["most"] = frame["w"].mask(frame["school"] == "s1"), 1.0
    frame["most"] = frame["most"].where(frame["school"] == "s1")
    with pytest.raises(ValueError, match="'w' is constant within groups, and its spec names limits"):
        imputer(SCHOOL | {"w": ColumnSpec(upper_limit="most")}).fit(frame)


def test_crossed_groups() -> None:
    g = np.random.default_rng(4)
    frame = pd.DataFrame({"rater": g.integers(0, 20, 400), "item": [f"i{k}" for k in g.integers(0, 25, 400)]})
    effects = g.normal(size=20)[frame["rater"]] + g.normal(size=25)[[int(i[1:]) for i in frame["item"]]]
    full = frame.assign(score=effects + 0.3 * g.normal(size=400), z=g.normal(size=400))
    frame = full.assign(score=full["score"].mask(g.random(400) < 0.3))
    specs = {label: ColumnSpec(kind="group") for label in ("rater", "item")}
    draws = imputer(specs).fit(frame).impute(m=20)
    error = np.mean([table["score"] for table in draws], axis=0) - full["score"]
    assert np.sqrt((error[frame["score"].isna()] ** 2).mean()) < 0.5  # their standard deviation is 1.4


@pytest.mark.slow
def test_ordered_levels_and_counts_have_effects() -> None:
    # Without rows of missing amounts, whose filled ones would know nothing of the school.
    frame = pupils(40, 14, seed=5).dropna().reset_index(drop=True)
    g, y = np.random.default_rng(0), frame["y"]
    frame["count"] = g.poisson(np.exp(0.5 * y))
    frame["grade"] = pd.Categorical(
        np.select([y < -1, y < 1], ["low", "middle"], "high"), ["low", "middle", "high"], True
    )
    frame = frame.drop(columns=["y", "kind"])
    full, holes = frame, g.random((len(frame), 2)) < 0.3
    frame = frame.assign(
        count=frame["count"].astype(float).mask(holes[:, 0]), grade=frame["grade"].mask(holes[:, 1])
    )
    fitted = imputer().fit(frame)
    assert [len(link.effects) for link in fitted.model_.link_specs] == [1] * len(fitted.model_.link_specs)
    draws = fitted.impute(m=20)
    right = np.mean([(table["grade"] == full["grade"])[holes[:, 1]].mean() for table in draws])
    without = MGPImputer(random_state=0, progress=False).fit(frame.drop(columns="school")).impute(m=20)
    before = np.mean([(table["grade"] == full["grade"])[holes[:, 1]].mean() for table in without])
    assert right > before + 0.04


def test_a_saved_imputer_draws_the_same(fitted: MGPImputer, tmp_path: Path) -> None:
    rows = pupils().iloc[:12].assign(y=np.nan)
    rows.loc[:5, "school"] = "new"
    warnings.simplefilter("ignore", FitWarning)
    fitted.save(tmp_path / "imputer")
    loaded = MGPImputer.load(tmp_path / "imputer")
    assert loaded.impute(rows, m=3) == fitted.impute(rows, m=3)
    assert loaded.model_.encoder.rules.within == fitted.model_.encoder.rules.within


def test_pyro_draws_imputations_and_trains(fitted: MGPImputer) -> None:
    chain, rows = fitted.chain_, fitted.model_.training
    assert rows is not None
    drawn = Predictive(chain.model, guide=chain.guide, num_samples=3)(rows.values, rows.observed)["filled"]
    assert drawn.shape[-2:] == rows.values.shape
    numbers = rows.values[:, 0]
    w = list(fitted.codec_.names).index("w")
    for group in numbers.unique():
        assert (drawn[..., numbers == group, w].std(-1) < 1e-9).all()
    chain.train()
    loss = Trace_ELBO().loss(chain.model, chain.guide, rows.values, rows.observed)
    chain.eval()
    assert np.isfinite(loss)
    with_svi = imputer(inference="svi", max_steps=3).fit(pupils(10, 5))
    assert len(with_svi.impute(m=2)) == 2


def test_diagnostics_and_files(fitted: MGPImputer, tmp_path: Path) -> None:
    frame = pupils(15, 6).drop(columns="kind")
    report = calibrate(imputer(max_steps=5), frame, columns=["x", "y", "w"], m=20, progress=False)
    # Cells of w follow from the other rows of their school.
    assert [*report.table["column"]] == ["x", "y"]
    frame.to_parquet(tmp_path / "pupils.parquet")
    from_file = imputer().fit_parquet(tmp_path / "pupils.parquet")
    assert from_file.impute(frame, m=2) == imputer().fit(frame).impute(frame, m=2)
    assert fitted.impute(m=2).to_arviz()["posterior"].sizes["draw"] == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"inputs": "others"}, r"random effects of groups cannot be had, since inputs=\"others\" has none"),
        ({"kernel": "matern32"}, r"a kernel of your own has none: take kernel=\"auto\""),
        ({"inference": "mcmc"}, r"inference=\"mcmc\" draws none"),
        ({"engine": Engine(joint_draws=False)}, "it needs joint predictive draws"),
        ({"order": ["x", "w", "y"], "inputs": "earlier"}, "constant within groups come before others"),
        ({"order": ["w", "y"], "inputs": "earlier"}, r"order must also name \['x'\]"),
        (
            {"order": ["w", "z"], "inputs": "earlier"},
            r"order must name columns, each once: .* got \['w', 'z'\]",
        ),
        (
            {"order": ["w", "w"], "inputs": "earlier"},
            r"order must name columns, each once: .* got \['w', 'w'\]",
        ),
        ({"specs": {"school": ColumnSpec(kind="group", slopes=["z"])}}, "names column 'z', but the table"),
        (
            {"specs": {"school": ColumnSpec(kind="group", slopes=["w"])}},
            r"slopes of \['w'\], constant within",
        ),
    ],
)
def test_what_cannot_be_had_is_an_error(settings: dict[str, Any], message: str) -> None:
    frame = pupils(8, 4).drop(columns="kind")
    frame["w"] = frame["w"].mask(frame["school"] == "s1")
    with pytest.raises(ValueError, match=message):
        imputer(**{"specs": SCHOOL, **settings}).fit(frame)


def test_a_row_without_a_group_is_named() -> None:
    frame = pupils(8, 4)
    frame.loc[3, "school"] = None
    with pytest.raises(ValueError, match=r"'school': row 3 \(position 3\) is missing; expected the group"):
        imputer().fit(frame)


def test_effects_have_their_scale_in_the_density_of_the_model(fitted: MGPImputer) -> None:
    """Priors of effects are those of `model.priors`, for inference by Pyro."""
    from pyro_mgp.model.priors import with_priors

    sampled = with_priors(fitted.chain_).links[-1].kernel.kern0._pyro_samples
    assert "effect_deviations" in sampled
    assert torch.is_tensor(fitted.chain_.links[-1].kernel.kern0.effect_deviations)


@pytest.fixture(scope="module")
def many() -> tuple[MGPImputer, pd.DataFrame]:
    """Return a fit to 400 groups of four, more than kernels hold, and its complete table; y are integers."""
    g, group = np.random.default_rng(0), np.repeat(np.arange(400), 4)
    full = pd.DataFrame({"group": group, "x": g.normal(size=1600)})
    full["y"] = (full["x"] + 2 * g.normal(size=400)[group] + 0.3 * g.normal(size=1600)).round()
    full["z"] = 0.5 * full["y"] + g.normal(size=400)[group] + 0.3 * g.normal(size=1600)
    frame = full.assign(y=full["y"].mask(g.random(1600) < 0.25))
    return imputer({"group": ColumnSpec(kind="group")}).fit(frame), full


def test_groups_that_kernels_do_not_hold_have_effects(many: tuple[MGPImputer, pd.DataFrame]) -> None:
    fitted, full = many
    (effects,) = fitted.model_.link_specs[0].effects
    assert len(effects.in_kernel) == 250 and fitted.chain_.n_rows == 1600
    lost = fitted.model_.own_table().frame["y"].isna().to_numpy()
    drawn = np.array([table["y"][lost] for table in fitted.impute(m=20)])
    errors, is_known = drawn.mean(0) - full["y"][lost], full["group"][lost].isin(effects.in_kernel)
    # Noise and rounding have a standard deviation of .42.
    for own in (is_known, ~is_known):
        assert np.sqrt((errors[own] ** 2).mean()) < 0.6
        assert 0.3 < drawn[:, own].std(0).mean() < 0.7


def test_analyses_of_kernels_take_rows_of_their_groups(many: tuple[MGPImputer, pd.DataFrame]) -> None:
    fitted, full = many
    assert variance_shares(fitted).loc["y", "unexplained"] < 0.1
    new = full.head(40).assign(group=np.arange(1000, 1040))
    assert relevance(fitted, new).loc["y", "z"] > 0.1, "of groups that were not in the table of the fit"


def test_replicates_in_new_groups_have_the_effects_that_were_drawn(fitted: MGPImputer) -> None:
    x = np.linspace(-1, 1, 16)
    kind = pd.Categorical(["b"] * 16, categories=["a", "b", "c"])
    rows = pd.DataFrame({"school": "new", "x": x, "w": 0.0, "kind": kind, "y": x + 3})
    rows["y"] += 0.6 * np.random.default_rng(0).normal(size=16)
    rows.loc[::4, "y"] = np.nan
    tree = fitted.impute(rows, m=20).to_arviz()
    replicates = tree["in_sample_predictive"]["y"].mean(("chain", "draw"))
    # Effects have a standard deviation of 1, and twelve rows tell of this one.
    assert abs(float((replicates - tree["observed_data"]["y"]).mean())) < 0.4
