"""Reference-based imputation of a trial, against R's rbmi and against itself under missing at random."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_mgp import AfterDropout, MGPImputer, tipping_points
from pyro_mgp.imputer import FitWarning
from pyro_mgp.sampling.after_dropout import Subjects, Visits

VISITS = ["week_1", "week_2", "week_3"]


def trial(n=80, seed=0):
    g = np.random.default_rng(seed)
    frame = pd.DataFrame({"arm": ["drug", "placebo"] * (n // 2), "base": g.normal(20, 3, size=n)})
    own, effect = g.normal(size=n), (frame["arm"] == "drug").to_numpy()
    for k, visit in enumerate(VISITS):
        frame[visit] = 0.3 * frame["base"] - (1 + k) * effect + own + g.normal(size=n)
    frame.loc[:14, "week_3"] = np.nan
    frame.loc[5:14, "week_2"] = np.nan
    frame.loc[20, "week_2"] = np.nan
    return frame.set_index(pd.Index([f"s{i}" for i in range(n)]))


FRAME = trial()
JUMP = AfterDropout(VISITS, arm="arm", reference="placebo")


@pytest.fixture(scope="module")
def imputer():
    return MGPImputer(**JUMP.settings, random_state=0).fit(FRAME)


def assumed(**changes):
    return AfterDropout(**{**JUMP.__dict__, **changes})


def test_subjects_of_the_reference_arm_and_cells_before_dropout_are_missing_at_random(imputer):
    mar, jumped = imputer.impute(m=3), imputer.impute(m=3, after_dropout=JUMP)
    assert imputer.impute(m=3, after_dropout=assumed(strategy="MAR")) == mar
    for j in range(3):
        moved = (jumped[j][VISITS] != mar[j][VISITS]).to_numpy()
        drug = (FRAME["arm"] == "drug").to_numpy()
        after = np.zeros_like(moved)
        after[:15, 2] = after[5:15, 1] = True
        assert (moved == (after & drug[:, None])).all()


def test_without_an_effect_of_the_arm_in_any_draw_the_strategies_agree(imputer):
    mar = imputer.impute(m=2)
    jumped = imputer.impute(m=2, after_dropout=JUMP)
    carried = imputer.impute(m=2, after_dropout=assumed(strategy="CIR"))
    means = [
        draws.values["week_3"][:, FRAME["arm"][:15] == "drug"].mean() for draws in (mar, carried, jumped)
    ]
    assert means[0] < means[1] < means[2]  # the drug lowers the outcome, more with time


def test_delta_is_added_to_cells_after_dropout_in_their_own_units(imputer):
    plain = imputer.impute(m=2, after_dropout=JUMP)
    given = {"drug": {"week_3": 2.5}, "placebo": -1.0}
    moved = imputer.impute(m=2, after_dropout=assumed(delta=given))
    drug = (FRAME["arm"] == "drug").to_numpy()
    expected = np.where(drug[:15], 2.5, -1.0)
    np.testing.assert_allclose((moved.values["week_3"] - plain.values["week_3"])[0], expected, atol=1e-9)
    lost = np.flatnonzero(FRAME["week_2"].isna())
    expected = np.where(drug[lost] | (lost == 20), 0.0, -1.0)
    np.testing.assert_allclose((moved.values["week_2"] - plain.values["week_2"])[1], expected, atol=1e-9)
    none = imputer.impute(m=2, after_dropout=assumed(delta={"drug": 0.0, "placebo": {"week_2": 0}}))
    assert none == plain


def test_a_strategy_for_each_subject(imputer):
    each = pd.Series(["CR", "J2R"] * 40, FRAME.index)[::-1]
    mixed = imputer.impute(m=2, after_dropout=assumed(strategy=each))
    for strategy in ("CR", "J2R"):
        own = imputer.impute(m=2, after_dropout=assumed(strategy=strategy))
        rows = (each[FRAME.index] == strategy).to_numpy()[:15]
        assert (mixed.values["week_3"][:, rows] == own.values["week_3"][:, rows]).all()


def test_draws_do_not_depend_on_batches_and_are_written_to_parquet(imputer, tmp_path):
    whole = imputer.impute(m=2, after_dropout=JUMP)
    assert imputer.impute(m=2, after_dropout=JUMP, batch_size=4) == whole
    paths = imputer.impute_to_parquet(tmp_path / "draws", FRAME, 2, after_dropout=JUMP, batch_size=7)
    for path, table in zip(paths, whole, strict=True):
        pd.testing.assert_frame_equal(pd.read_parquet(path), table)


def test_checkpoints_resume_with_the_same_draws(imputer, tmp_path):
    assert imputer.impute(m=2, after_dropout=JUMP, checkpoint=tmp_path / "kept") == imputer.impute(
        m=2, after_dropout=JUMP
    )


@pytest.mark.parametrize("kind", ["numbers", "booleans", "category", "integers"])
def test_arms_of_two_values_are_those_of_the_same_table_with_text(imputer, kind):
    drug = FRAME["arm"] == "drug"
    arms = {
        "numbers": (drug.astype(float), 0.0),
        "integers": (drug.astype("Int64"), 0),
        "booleans": (drug, False),
        "category": (FRAME["arm"].astype("category"), "placebo"),
    }
    arm, reference = arms[kind]
    frame, after = FRAME.assign(arm=arm), assumed(reference=reference)
    own = MGPImputer(**after.settings, random_state=0).fit(frame).impute(m=40, after_dropout=after)
    text = imputer.impute(m=40, after_dropout=JUMP)
    difference = own.values["week_3"].mean(0) - text.values["week_3"].mean(0)
    assert np.abs(difference).mean() < 0.5  # of a standard deviation of 2.5
    with pytest.raises(ValueError, match="reference names arm 'sham'"):
        MGPImputer(**after.settings).fit(frame).impute(m=1, after_dropout=assumed(reference="sham"))


def test_three_arms_must_have_levels(imputer):
    frame = FRAME.assign(arm=np.arange(80) % 3)
    after = assumed(reference=0)
    with pytest.raises(ValueError, match="must be text, an unordered category, or have two values"):
        MGPImputer(**after.settings).fit(frame).impute(m=1, after_dropout=after)
    text = frame.assign(arm="a" + frame["arm"].astype(str))
    after = assumed(reference="a0")
    draws = MGPImputer(**after.settings, random_state=0).fit(text).impute(m=2, after_dropout=after)
    assert draws.values["week_3"].shape == (2, 15)


def test_visits_may_be_integers():
    frame = FRAME.assign(**{visit: FRAME[visit].round().astype("Int64") for visit in VISITS})
    draws = MGPImputer(**JUMP.settings, random_state=0).fit(frame).impute(m=3, after_dropout=JUMP)
    assert draws[0]["week_3"].dtype == "Int64"


def test_strategies_by_position_and_none_for_subjects_who_stay(imputer):
    dropped = pd.Series("CR", FRAME.index[:15])
    by_label = imputer.impute(m=2, after_dropout=assumed(strategy=dropped))
    by_position = ["CR" if i < 15 else None for i in range(80)]
    assert imputer.impute(m=2, after_dropout=assumed(strategy=by_position)) == by_label
    assert by_label == imputer.impute(m=2, after_dropout=assumed(strategy="CR"))
    with pytest.raises(ValueError, match="strategy has 3 values for 80 rows"):
        imputer.impute(m=2, after_dropout=assumed(strategy=["CR"] * 3))


def test_other_objects_are_refused(imputer):
    with pytest.raises(TypeError, match="must be an AfterDropout"):
        imputer.impute(m=1, after_dropout="J2R")
    for strategy in ({"s0": "CR"}, 3):
        with pytest.raises(TypeError, match="strategy must be one of"):
            assumed(strategy=strategy)
    with pytest.raises(TypeError, match="delta must be numbers by arm"):
        assumed(delta=3.0)
    scan = {"analysis": lambda table: ([1.0], [1.0]), "deltas": 1.0, "deltas_of_reference": 0.0, "X": FRAME}
    with pytest.raises(ValueError, match="names arm 'grp', but columns are"):
        tipping_points(imputer, after_dropout=assumed(arm="grp"), term=0, m=2, **scan)
    with pytest.raises(ValueError, match="is not among the arms"):
        tipping_points(imputer, after_dropout=assumed(reference=0), term=0, m=2, **scan)
    with pytest.raises(ValueError, match="term must be one of"):
        tipping_points(imputer, after_dropout=JUMP, term="b", m=2, **scan)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"visits": []}, "visits must be labels"),
        ({"visits": ["week_1", "week_1"]}, "'week_1' occurs more than once"),
        ({"delta": {"drug": "much"}}, "finite"),
        ({"visits": "week_1"}, "visits must be labels"),
        ({"strategy": "jump"}, "strategy must be one of"),
        ({"delta": {"drug": {"week_9": 1.0}}}, "names 'week_9'"),
        ({"delta": {"drug": np.inf}}, "finite"),
    ],
)
def test_assumptions_are_checked(changes, message):
    with pytest.raises(ValueError, match=message):
        assumed(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arm": "group"}, "names 'group', but columns are"),
        ({"visits": ["base", *VISITS]}, "'base' has no link"),
        ({"visits": VISITS[::-1]}, "'week_2' is not predicted from the arm and all earlier visits"),
        ({"reference": "sham"}, "reference names arm 'sham', but column 'arm' has .'drug', 'placebo'"),
        ({"delta": {"sham": 1.0}}, "delta names arm 'sham'"),
        ({"strategy": pd.Series({"s0": "CR"})}, r"no value for row 's1'"),
    ],
)
def test_what_the_imputer_lacks_is_named(imputer, changes, message):
    with pytest.raises(ValueError, match=message):
        imputer.impute(m=1, after_dropout=assumed(**changes))


def test_other_models_are_refused():
    imputer = MGPImputer(inputs="others", max_steps=2, random_state=0).fit(FRAME)
    with pytest.raises(ValueError, match=r"'week_1' has no link.*\*\*after_dropout.settings"):
        imputer.impute(m=1, after_dropout=JUMP)


def test_no_mean_is_carried_forward_without_a_visit(imputer):
    lost = FRAME.assign(**{visit: FRAME[visit].where(FRAME.index != "s2") for visit in VISITS})
    with pytest.raises(ValueError, match=r"row 's2' .* has no observed visit, whose mean LMCF"):
        imputer.impute(lost, m=1, after_dropout=assumed(strategy="LMCF"))
    assert imputer.impute(lost, m=1, after_dropout=JUMP).values["week_1"].shape == (1, 1)


def test_a_missing_arm_is_refused(imputer):
    unknown = FRAME.assign(arm=FRAME["arm"].where(FRAME.index != "s3"))
    with pytest.warns(FitWarning), pytest.raises(ValueError, match="arm 'arm' is missing in row 's3'"):
        imputer.impute(unknown, m=1, after_dropout=JUMP)


def test_tipping_points_scan_both_arms(imputer):
    def difference(table):
        of_arms = table.groupby("arm")["week_3"]
        return [of_arms.mean()["placebo"] - of_arms.mean()["drug"]], [(of_arms.sem() ** 2).sum()]

    scanned = tipping_points(imputer, difference, JUMP, [10.0], [3.0], 0, FRAME, m=3)
    assert scanned[["delta_of_reference", "delta"]].to_numpy().tolist() == [[0, 0], [0, 10], [3, 0], [3, 10]]
    jumped = imputer.impute(m=3, after_dropout=JUMP).pool(difference).table["estimate"].iloc[0]
    # Eight of forty subjects of the drug, and seven of placebo, drop out.
    expected = jumped + np.array([0, -10 * 8 / 40, 3 * 7 / 40, 3 * 7 / 40 - 10 * 8 / 40])
    np.testing.assert_allclose(scanned["estimate"], expected, atol=1e-9)
    assert scanned["tipped"].tolist() == [False, True, False, True]


GOLDEN = Path(__file__).parents[1] / "golden" / "trial"
"""Changes of a score of 172 patients, and what the quick start of R's rbmi (m = 150) makes of them."""


def test_jump_to_reference_agrees_with_rbmi():
    visits = pd.read_csv(GOLDEN / "antidepressant.csv")
    table = visits.pivot(index=["PATIENT", "THERAPY", "BASVAL"], columns="VISIT", values="CHANGE")
    table = table.add_prefix("CHANGE_").reset_index().set_index("PATIENT").rename_axis(columns=None)
    golden = pd.read_csv(GOLDEN / "rbmi.csv").set_index("term")
    strategies = pd.Series("J2R", table.index)
    strategies[3618] = "MAR"  # as there
    labels = [f"CHANGE_{visit}" for visit in (4, 5, 6, 7)]
    after = AfterDropout(labels, arm="THERAPY", reference="PLACEBO", strategy=strategies)
    draws = MGPImputer(**after.settings, random_state=1).fit(table).impute(m=150, after_dropout=after)
    for visit in (5, 6, 7):
        pooled = draws.fit(f"CHANGE_{visit} ~ THERAPY + BASVAL").table.loc["THERAPY[T.PLACEBO]"]
        monte_carlo = (pooled["lambda"] * pooled["se"] ** 2 / 150) ** 0.5
        assert abs(pooled["estimate"] - golden.loc[f"trt_{visit}", "estimate"]) < 2 * monte_carlo
        assert abs(pooled["se"] / golden.loc[f"trt_{visit}", "se"] - 1) < 0.05


def test_draws_of_a_fit_have_the_means_of_the_conditional_normal_distribution(imputer):
    """Functions of a link are linear: their slopes give the effects and the covariance of the visits."""
    conditionals, columns = (
        imputer.model_.sampler().sparse([0]),
        [link.column for link in imputer.chain_.links],
    )
    place = range(imputer.codec_.n_encoded)[imputer.codec_.slices["arm"]]
    arms = imputer.model_.encode(FRAME.iloc[:2]).encoded.values[:, list(place)]  # drug and placebo

    def value(k, arm, visits):
        row = torch.zeros(1, 1, imputer.codec_.n_encoded).double()
        row[0, 0, list(place)], row[0, 0, columns] = arms[arm], torch.as_tensor(visits).double()
        return float(conditionals[k].mean(row))

    at_zero = np.array([[value(k, arm, np.zeros(3)) for k in range(3)] for arm in range(2)])
    slopes = np.array([[value(k, 1, np.eye(3)[d]) - at_zero[1, k] for d in range(3)] for k in range(3)])
    total = np.linalg.inv(np.eye(3) - slopes)
    covariance = total @ np.diag([float(own.noise.ravel()[0]) for own in conditionals]) @ total.T
    effect = total @ (at_zero[0] - at_zero[1])
    rows = torch.randn(1, 4, imputer.codec_.n_encoded, generator=torch.Generator().manual_seed(0)).double()
    rows[..., list(place)] = arms[0]
    visits = Visits(columns, conditionals, place, arms[1])
    after, everyone = (torch.arange(3) >= 1).expand(4, 3), torch.ones(4, dtype=torch.bool)
    gain = covariance[1:, :1] @ np.linalg.inv(covariance[:1, :1])
    expected = {"J2R": -effect[1:], "CR": gain @ effect[:1] - effect[1:], "CIR": effect[0] - effect[1:]}
    for strategy, moved in expected.items():
        follow = {each: everyone & (each == strategy) for each in ("J2R", "CR", "CIR", "LMCF")}
        drawn = (visits.redrawn(rows, Subjects(after, follow)) - rows)[0][:, columns]
        np.testing.assert_allclose(drawn[:, 1:], np.broadcast_to(moved, (4, 2)), atol=1e-6)
