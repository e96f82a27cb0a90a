"""Missing-data patterns and flux as in R's mice 3.15; amputation with the requested probabilities."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.special import expit

from pyro_mgp.data.table import missing
from pyro_mgp.evaluation.missingness import ampute, flux, patterns

PENGUINS = Path(__file__).parents[2] / "examples" / "data" / "penguins.csv"
NAN = np.nan


def pattern4() -> pd.DataFrame:
    """The general pattern of *Flexible Imputation of Missing Data*, section 4.1."""
    columns = {
        "A": [26, 42, 86, 9, 20, 89, NAN, NAN],
        "B": [88, 66, 54, 92, 83, NAN, NAN, NAN],
        "C": [32, 21, NAN, NAN, NAN, 41, 35, 33],
    }
    return pd.DataFrame(columns, dtype=float)


def numbers(n_rows: int = 1000, correlation: float = 0.0) -> pd.DataFrame:
    covariance = np.full((3, 3), correlation) + (1 - correlation) * np.eye(3)
    cells = np.random.default_rng(1).multivariate_normal(np.zeros(3), covariance, n_rows)
    return pd.DataFrame(cells, columns=["x", "y", "z"])


def hostile(n_rows: int = 240) -> pd.DataFrame:
    """Return cells of every kind, labels that are not text, and an index that is not a range."""
    rng = np.random.default_rng(2)
    table = pd.DataFrame(
        {
            7: rng.normal(size=n_rows).astype(np.float32),
            "whole": rng.integers(0, 9, n_rows).astype(np.int16),
            "unsigned": rng.integers(0, 200, n_rows).astype(np.uint8),
            "nullable": pd.array(rng.integers(0, 3, n_rows), dtype="Int64"),
            "flag": rng.random(n_rows) < 0.3,
            "flag?": np.where(rng.random(n_rows) < 0.1, None, rng.random(n_rows) < 0.5),
            "text": rng.choice(["$a", "b", "c c"], n_rows),
            "level": pd.Categorical(rng.choice(["low", "high"], n_rows), ["low", "high"], ordered=True),
            "nominal": pd.Categorical(rng.choice([1, 5, 9], n_rows)),
            "when": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, n_rows), unit="D"),
            "zoned": pd.date_range("2021-03-01", periods=n_rows, freq="h", tz="Europe/Berlin"),
            "took": pd.to_timedelta(rng.integers(1, 99, n_rows), unit="min"),
            "constant": 1.5,
        }
    )
    table.loc[rng.random(n_rows) < 0.2, 7] = NAN
    table.loc[rng.random(n_rows) < 0.1, "when"] = pd.NaT
    return table.set_index(pd.Index([f"r{i % 100}" for i in range(n_rows)]))


# ------------------------------------------------------------------------------------- what holes are there


def test_flux_of_pattern4_is_that_of_mice() -> None:
    expected = pd.DataFrame(
        {"observed": [0.75, 0.625, 0.625], "influx": [0.125, 0.25, 0.375], "outflux": [0.5, 0.375, 0.625]},
        index=list("ABC"),
    )
    pd.testing.assert_frame_equal(flux(pattern4()), expected)


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=6))
def test_flux_counts_pairs_of_missing_and_observed_cells(known: list[list[bool]]) -> None:
    r = np.array(known)
    assume(r.any() and not r.all())
    answer = flux(pd.DataFrame(np.where(r, 1.0, NAN)))
    for j in range(3):
        others = list(itertools.product(range(len(r)), range(3)))
        assert answer["observed"][j] == pytest.approx(r[:, j].mean())
        assert answer["influx"][j] == pytest.approx(sum(not r[i, j] and r[i, k] for i, k in others) / r.sum())
        away = sum(r[i, j] and not r[i, k] for i, k in others)
        assert answer["outflux"][j] == pytest.approx(away / (~r).sum())


def test_flux_is_nan_without_missing_or_without_observed_cells() -> None:
    assert flux(pd.DataFrame({"x": [1.0, 2.0]})).isna().to_numpy().tolist() == [[False, False, True]]
    assert flux(pd.DataFrame({"x": [NAN, NAN]})).isna().to_numpy().tolist() == [[False, True, False]]


def test_patterns_of_pattern4_are_those_of_mice() -> None:
    table = patterns(pattern4())
    assert table.columns.tolist() == ["A", "B", "C", "rows", "missing"]
    by_mice = {(1, 1, 0, 3, 1), (1, 1, 1, 2, 0), (0, 0, 1, 2, 2), (1, 0, 1, 1, 1)}
    assert {tuple(map(int, row)) for row in table.itertuples(index=False)} == by_mice
    assert table["rows"].tolist() == [3, 2, 2, 1]
    assert table["missing"].tolist() == [1, 0, 2, 1]


def test_patterns_of_a_hostile_table_count_all_rows_and_holes() -> None:
    table = patterns(hostile())
    assert table["rows"].sum() == len(hostile())
    assert (table["rows"] * table["missing"]).sum() == missing(hostile()).sum()
    assert table[[7, "when"]].dtypes.astype(str).tolist() == ["bool", "bool"]


def test_patterns_do_not_take_the_name_of_a_column() -> None:
    with pytest.raises(ValueError, match="'rows' has the name of one that patterns adds"):
        patterns(pd.DataFrame({"rows": [1.0]}))


# ------------------------------------------------------------------------------------- how many holes


@pytest.mark.parametrize("mechanism", ["MCAR", "MAR", "MNAR"])
@pytest.mark.parametrize("tendency", ["right", "left", "mid", "tail"])
@pytest.mark.parametrize("proportion", [0.0, 0.07, 0.5, 0.95, 1.0])
def test_exactly_the_proportion_of_rows_is_incomplete(
    mechanism: Any, tendency: Any, proportion: float
) -> None:
    frame = numbers(211)
    holes = ampute(frame, proportion, mechanism=mechanism, type=tendency, random_state=3)
    assert missing(holes).any(axis=1).sum() == round(211 * proportion)


@settings(max_examples=60, deadline=None)
@given(
    n_rows=st.integers(200, 300),
    n_columns=st.integers(2, 6),
    proportion=st.floats(0, 0.3),
    by=st.sampled_from(["rows", "cells"]),
    mechanism=st.sampled_from(["MCAR", "MAR", "MNAR"]),
    tendency=st.sampled_from(["right", "left", "mid", "tail"]),
    seed=st.integers(0, 9),
    data=st.data(),
)
def test_cells_that_stay_are_unchanged_and_the_proportion_holds(
    n_rows: int,
    n_columns: int,
    proportion: float,
    by: Any,
    mechanism: Any,
    tendency: Any,
    seed: int,
    data: st.DataObject,
) -> None:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.standard_t(2, (n_rows, n_columns)))
    frame = frame.mask(rng.random(frame.shape) < 0.1 * (seed % 2))
    before = frame.copy()
    several = st.lists(
        st.sets(st.integers(0, n_columns - 1), min_size=1, max_size=n_columns - 1), min_size=1, max_size=4
    )
    together = data.draw(several)
    shares = data.draw(st.lists(st.integers(1, 9), min_size=len(together), max_size=len(together)))
    known = ~missing(frame)
    dealt = np.array(shares) / sum(shares)
    reachable = (
        dealt @ [known[:, sorted(pattern)].mean(0).sum() for pattern in together] / known.sum(1).mean()
    )
    assume(by == "rows" or proportion < 0.9 * reachable)
    holes = ampute(
        frame,
        proportion,
        mechanism=mechanism,
        patterns=together,
        frequencies=shares,
        type=tendency,
        by=by,
        random_state=seed,
    )
    lost = missing(holes) & known
    pd.testing.assert_frame_equal(frame, before)
    np.testing.assert_array_equal(holes.to_numpy()[known & ~lost], frame.to_numpy()[known & ~lost])
    assert not (~missing(holes) & ~known).any()
    reached = lost.any(axis=1).mean() if by == "rows" else lost.sum() / known.sum()
    assert abs(reached - proportion) <= 0.01
    allowed = [set(pattern) for pattern in together]
    for row, still in zip(lost[lost.any(axis=1)], known[lost.any(axis=1)], strict=True):
        assert any(set(np.flatnonzero(row)) == pattern & set(np.flatnonzero(still)) for pattern in allowed)


def test_patterns_come_as_often_as_their_frequencies_say() -> None:
    holes = ampute(numbers(), 0.6, patterns=[["x"], ["y", "z"], ["z"]], frequencies=[2, 1, 0], random_state=0)
    table = patterns(holes).set_index(["x", "y", "z"])["rows"]
    assert table.to_dict() == {(False, True, True): 400, (True, True, True): 400, (True, False, False): 200}


def test_without_patterns_each_column_goes_missing_alone_and_equally_often() -> None:
    holes = ampute(numbers(900), 0.5, random_state=0)
    assert holes.isna().sum().tolist() == [150, 150, 150]
    assert patterns(holes)["missing"].max() == 1


def test_proportions_of_cells_hold_up_to_one_pattern() -> None:
    holes = ampute(numbers(), 0.2, patterns=[["x", "y"], ["z"]], by="cells", random_state=0)
    assert abs(missing(holes).sum() - 600) <= 2


# ------------------------------------------------------------------------------------- which holes


def lost_share(frame: pd.DataFrame, **settings: Any) -> np.ndarray:
    """Return the share of 150 amputations in which each row loses its x, `[N]`."""
    rng = np.random.default_rng(0)
    many = [ampute(frame, 0.4, patterns=[["x"]], random_state=rng, **settings) for _ in range(150)]
    return np.mean([holes["x"].isna().to_numpy() for holes in many], axis=0)


@pytest.mark.parametrize(
    ("tendency", "logit"),
    [("right", lambda s: s), ("left", lambda s: -s), ("mid", lambda s: -abs(s)), ("tail", abs)],
)
def test_rows_lose_cells_with_the_probabilities_of_the_formula(tendency: Any, logit: Any) -> None:
    frame = numbers(200)
    score = (2 * frame["y"] / frame["y"].std(ddof=0) - frame["z"] / frame["z"].std(ddof=0)).to_numpy()
    s = logit((score - score.mean()) / score.std())
    grid = np.linspace(-3, 3, 6_001)
    intercept = grid[np.argmin([abs(expit(s + b).mean() - 0.4) for b in grid])]
    expected = expit(s + intercept)
    found = lost_share(frame, weights=[{"y": 2, "z": -1}], type=tendency)
    # Of 150 draws, standard errors are at most .041.
    assert np.abs(found - expected).max() < 5 * 0.041
    assert np.abs((found - expected).mean()) < 1e-3
    assert np.corrcoef(found, expected)[0, 1] > 0.9


@pytest.mark.parametrize(
    ("mechanism", "tendency", "by_mice"),
    [
        ("MAR", "right", [-0.016, 0.360, 0.347, 0.789, 1.188]),
        ("MAR", "left", [-0.003, -0.364, -0.350, 0.801, 1.193]),
        ("MAR", "mid", [0.000, 0.008, -0.013, 0.802, 0.869]),
        ("MAR", "tail", [0.000, -0.005, 0.003, 0.813, 1.419]),
        ("MNAR", "right", [0.505, 0.003, -0.018, 0.832, 1.138]),
        ("MNAR", "tail", [-0.004, 0.002, -0.004, 1.010, 1.143]),
    ],
)
def test_rows_that_lose_cells_are_like_those_that_mice_chooses(
    mechanism: Any, tendency: Any, by_mice: list[float]
) -> None:
    # ampute(d, prop = .4, patterns = rbind(c(0, 1, 1)), mech, type) of mice 3.15, 20,000 normal rows.
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(20_000, 3)), columns=["x", "y", "z"])
    holes = ampute(frame, 0.4, patterns=[["x"]], mechanism=mechanism, type=tendency, random_state=1)
    lost = frame[holes["x"].isna()]
    found = [*lost.mean(), lost["x"].abs().mean(), (lost["y"] + lost["z"]).abs().mean()]
    # Standard errors of the difference between two such samples are some .015.
    np.testing.assert_allclose(found, by_mice, atol=0.05)


def test_mcar_does_not_depend_on_cells() -> None:
    frame = numbers(200, correlation=0.5)
    found = lost_share(frame, mechanism="MCAR")
    assert abs(found.mean() - 0.4) < 1e-9
    assert found.std() < 1.2 * np.sqrt(0.4 * 0.6 / 150)
    assert all(abs(np.corrcoef(found, frame[label])[0, 1]) < 0.25 for label in frame)


def test_mar_depends_on_kept_columns_and_mnar_on_missing_ones() -> None:
    frame = numbers(4000)

    def gaps(mechanism: Any) -> dict[str, float]:
        lost = ampute(frame, 0.5, mechanism=mechanism, patterns=[["x"]], random_state=5)["x"].isna()
        return {label: frame.loc[lost, label].mean() - frame.loc[~lost, label].mean() for label in frame}

    # Of independent columns, means of two halves of 4000 rows differ by .03 by chance.
    mcar, mar, mnar = gaps("MCAR"), gaps("MAR"), gaps("MNAR")
    assert all(abs(gap) < 0.12 for gap in mcar.values())
    assert abs(mar["x"]) < 0.12
    assert mar["y"] > 0.4
    assert mar["z"] > 0.4
    assert mnar["x"] > 0.6
    assert abs(mnar["y"]) < 0.12
    assert abs(mnar["z"]) < 0.12


@pytest.mark.parametrize("label", ["whole", "flag", "text", "level", "nominal", "zoned", "took", "nullable"])
def test_cells_of_every_kind_enter_scores(label: str) -> None:
    frame = hostile(1000)
    cells = frame[label]
    ranks = cells.astype("category").cat.codes if label != "level" else cells.cat.codes
    lost = ampute(frame, 0.5, patterns=[["constant"]], weights=[{label: 1}], random_state=0)[
        "constant"
    ].isna()
    assert ranks[lost.to_numpy()].mean() > ranks[~lost.to_numpy()].mean() + 0.25 * ranks.std()


def test_missing_cells_score_as_the_mean() -> None:
    frame = numbers(1000).mask(np.random.default_rng(0).random((1000, 3)) < [0, 0.5, 0])
    known = frame["y"].notna().to_numpy()
    found = lost_share(frame, weights=[{"y": 1}])
    assert found[~known].std() < 0.06
    assert found[known].std() > 0.15
    assert abs(found[~known].mean() - 0.4) < 0.05


# ------------------------------------------------------------------------------------- what comes back


@pytest.mark.parametrize("mechanism", ["MCAR", "MAR", "MNAR"])
@pytest.mark.parametrize("by", ["rows", "cells"])
def test_amputation_keeps_dtypes_labels_and_index(mechanism: Any, by: Any) -> None:
    frame = hostile()
    before = frame.copy(deep=True)
    proportion = 0.9 if by == "rows" else 0.05
    holes = ampute(frame, proportion, mechanism=mechanism, by=by, random_state=0)
    pd.testing.assert_frame_equal(frame, before)
    assert holes.index.equals(frame.index)
    assert holes.columns.equals(frame.columns)
    held = {"whole": "Int16", "unsigned": "UInt8", "flag": "boolean"}
    assert holes.dtypes.astype(str).to_dict() == frame.dtypes.astype(str).to_dict() | held
    lost = missing(holes) & ~missing(frame)
    reached = lost.any(axis=1).mean() if by == "rows" else lost.sum() / (~missing(frame)).sum()
    assert abs(reached - proportion) <= 0.01
    for j, label in enumerate(frame):
        stays = ~missing(holes)[:, j]
        assert holes[label][stays].tolist() == frame[label][stays].tolist()
        assert lost[:, j].any()


def test_columns_that_lose_nothing_keep_their_dtype() -> None:
    frame = pd.DataFrame({"n": [1, 2, 3, 4], "flag": [True, False, True, True]})
    pd.testing.assert_frame_equal(ampute(frame, 0.0), frame)
    assert ampute(frame, 0.5, patterns=[["n"]], random_state=0)["flag"].dtype == bool


def test_the_same_seed_makes_the_same_holes_and_a_generator_moves_on() -> None:
    frame = numbers(200)
    pd.testing.assert_frame_equal(ampute(frame, random_state=4), ampute(frame, random_state=4))
    rng = np.random.default_rng(4)
    first, second = ampute(frame, random_state=rng), ampute(frame, random_state=rng)
    pd.testing.assert_frame_equal(first, ampute(frame, random_state=4))
    assert not first.equals(second)


def test_penguins_lose_body_mass_where_flippers_are_long() -> None:
    penguins = pd.read_csv(PENGUINS)
    holes = ampute(
        penguins,
        0.4,
        patterns=[["body_mass_g"], ["sex", "bill_length_mm"]],
        weights=[{"flipper_length_mm": 1}, {"species": 1, "year": -0.5}],
        random_state=0,
    )
    lost = missing(holes) & ~missing(penguins)
    assert lost.any(axis=1).sum() == round(0.4 * len(penguins))
    heavy = penguins["flipper_length_mm"][lost[:, penguins.columns.get_loc("body_mass_g")]].mean()
    assert heavy > penguins["flipper_length_mm"].mean() + 4


# ------------------------------------------------------------------------------------- what is refused


def test_a_proportion_is_a_number() -> None:
    with pytest.raises(TypeError, match=r"proportion must be a number, got '0\.5'"):
        ampute(pd.DataFrame({"a": [1.0, 2.0]}), "0.5")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"proportion": 1.2}, "proportion must lie between 0 and 1, got 1.2"),
        ({"proportion": NAN}, "proportion must lie between 0 and 1, got nan"),
        ({"mechanism": "mar"}, "mechanism must be one of .* got 'mar'"),
        ({"type": "up"}, "type must be one of .* got 'up'"),
        ({"by": "columns"}, "by must be one of .* got 'columns'"),
        ({"patterns": []}, "at least one pattern"),
        ({"patterns": [[]]}, "pattern 0 contains no column"),
        ({"patterns": [["x"], ["w"]]}, "pattern 1 names 'w', but the columns are"),
        ({"patterns": [["x", "y", "z"]]}, "pattern 0 makes all columns missing"),
        ({"patterns": [["x"]], "frequencies": [1, 2]}, "one number per pattern, 1, got 2"),
        ({"patterns": [["x"]], "frequencies": [-1]}, "frequencies must be finite, not negative"),
        ({"patterns": [["x"], ["y"]], "frequencies": [0, 0]}, "not all zero"),
        ({"mechanism": "MCAR", "weights": [{"x": 1}] * 3}, "weights are for mechanism='MAR' or 'MNAR'"),
        ({"weights": [{"x": 1}]}, "one mapping per pattern, 3, got 1"),
        ({"patterns": [["x"]], "weights": [{"w": 1}]}, "weights of pattern 0 name 'w'"),
        ({"patterns": [["x"]], "weights": [{"y": 0}]}, "not all zero"),
        ({"patterns": [["x"]], "weights": [{"y": np.inf}]}, "must be finite"),
        ({"patterns": [["x"]], "weights": [{"x": 1, "y": 1}]}, "'x', which the pattern makes missing"),
        ({"patterns": [["x"]], "weights": [{"y": 1}], "mechanism": "MNAR"}, "choose mechanism='MAR'"),
        ({"patterns": [["x"]], "by": "cells"}, "can reach only 200 cells"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ampute(numbers(200), **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"patterns": ["x"]}, r"pattern 0 must be a collection of column labels, such as \['x'\]"),
        ({"patterns": [3]}, "pattern 0 must be a collection"),
        ({"patterns": [["x"]], "weights": [[1, 2]]}, "must be a mapping from labels to numbers"),
    ],
)
def test_patterns_and_weights_of_another_type_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        ampute(numbers(200), **settings)


def test_invalid_tables_are_refused() -> None:
    twice = pd.DataFrame([[1, 2]], columns=["x", "x"])
    for function in (ampute, flux, patterns):
        with pytest.raises(TypeError, match="expected a DataFrame, got ndarray"):
            function(np.zeros((2, 2)))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="'x' occurs more than once"):
            function(twice)
    with pytest.raises(ValueError, match="infinite numbers"):
        ampute(pd.DataFrame({"x": [1.0, np.inf, 0.0], "y": 1.0}), random_state=0)
    with pytest.raises(ValueError, match="at least one column"):
        ampute(pd.DataFrame(index=range(3)))


def test_rows_without_observed_cells_of_a_pattern_are_not_counted() -> None:
    frame = pd.DataFrame({"x": [NAN] * 60 + [1.0] * 40, "y": np.arange(100.0)})
    holes = ampute(frame, 0.4, patterns=[["x"]], mechanism="MCAR", random_state=0)
    assert holes["x"].isna().all()
    with pytest.raises(ValueError, match="means 50 rows, but these patterns can reach only 40 rows"):
        ampute(frame, 0.5, patterns=[["x"]], mechanism="MCAR", random_state=0)
