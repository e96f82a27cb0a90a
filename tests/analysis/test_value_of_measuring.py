"""Expected variances after a measurement, against those of known normal distributions."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pyro_mgp import Imputations, MGPImputer, value_of_measuring

LABELS = ["a", "b", "c", "d"]


def covariance_of(seed: int) -> np.ndarray:
    """Return a covariance matrix of four columns, the last of which is predicted."""
    g = np.random.default_rng(seed)
    factors = g.normal(size=(4, 2))
    return factors @ factors.T + np.diag(g.uniform(0.2, 1.0, 4))


def conditional(covariance: np.ndarray, target: int, given: list[int]) -> float:
    """Return the variance of a column given some others."""
    cross = covariance[target, given]
    return float(
        covariance[target, target] - cross @ np.linalg.solve(covariance[np.ix_(given, given)], cross)
    )


def rows_without(n: int, labels: list[str], seed: int = 0) -> pd.DataFrame:
    frame = pd.DataFrame(np.random.default_rng(seed).normal(size=(n, 4)), columns=LABELS)
    frame[labels] = np.nan
    return frame


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.slow
def test_a_fitted_imputer_ranks_the_columns_to_measure_in_new_rows(seed: int) -> None:
    """Of ten normal tables: `a` is known, and `b` or `c` may be measured to predict `d`."""
    covariance = covariance_of(seed)
    table = np.random.default_rng(100 + seed).multivariate_normal(np.zeros(4), covariance, size=2000)
    frame = pd.DataFrame(table, columns=LABELS)
    frame.loc[1900:, ["b", "c", "d"]] = np.nan
    linear = {"kernel": "linear", "inputs": "earlier", "warp": False, "discrete_support": 0, "n_sweeps": 1}
    linear |= {"order": ["b", "c", "d"], "max_steps": 5}
    imputer = MGPImputer(**linear, random_state=0, progress=False).fit(frame)
    found = imputer.value_of(frame.loc[1900:], "d", by="column", m=300).set_index("column")
    expected = {label: conditional(covariance, 3, [0, place]) for label, place in (("b", 1), ("c", 2))}
    before = conditional(covariance, 3, [0])
    assert found["variance"].iloc[0] == pytest.approx(before, rel=0.1)
    for label, variance in expected.items():
        assert found.loc[label, "expected"] == pytest.approx(variance, rel=0.1)
        assert found.loc[label, "removed"] == pytest.approx(1 - variance / before, abs=0.05)
    assert found.index[0] == min(expected, key=lambda label: expected[label])


@pytest.mark.parametrize("seed", range(10))
def test_cells_are_ranked_by_the_variance_of_a_mean_that_they_remove(seed: int) -> None:
    """Of rows with one and with two missing cells, drawn from their exact distributions."""
    covariance, m = covariance_of(seed), 1500
    frame = rows_without(3, ["d"])
    frame.loc[1, "c"] = np.nan
    frame.loc[2, ["b", "c"]] = np.nan
    g, cells = np.random.default_rng(seed), {label: [] for label in LABELS}
    variances, removed = [], {}
    for row in range(3):
        missing = [k for k in range(4) if np.isnan(frame.iloc[row, k])]
        known = [k for k in range(4) if k not in missing]
        gain = covariance[np.ix_(missing, known)] @ np.linalg.inv(covariance[np.ix_(known, known)])
        own = covariance[np.ix_(missing, missing)] - gain @ covariance[np.ix_(known, missing)]
        draws = g.multivariate_normal(gain @ frame.iloc[row, known], own, size=m)
        for k, column in zip(missing, draws.T, strict=True):
            cells[LABELS[k]].append(column)
            removed[row, LABELS[k]] = own[-1, missing.index(k)] ** 2 / own[missing.index(k), missing.index(k)]
        variances.append(own[-1, -1])
    values = {label: np.array(own).T for label, own in cells.items() if own}
    draws = Imputations(frame, values, m)
    found = value_of_measuring(draws, lambda table: table["d"].mean()).set_index(["row", "column"])
    variance = sum(variances) / 9
    assert found["variance"].iloc[0] == pytest.approx(variance, rel=0.1)
    for cell, own in removed.items():
        assert found.loc[cell, "expected"] == pytest.approx(variance - own / 9, rel=0.1)
    order = sorted(removed, key=lambda cell: -removed[cell])
    assert found.index[0] == order[0] or removed[found.index[0]] > 0.9 * removed[order[0]]


def test_a_budget_chooses_what_earlier_measurements_do_not_tell() -> None:
    g, m = np.random.default_rng(0), 5000
    x, own = g.normal(size=(2, m))
    values = {"x": x[:, None], "again": (x + 0.1 * g.normal(size=m))[:, None], "z": own[:, None]}
    values["y"] = (2 * x + own + g.normal(size=m))[:, None]
    draws = Imputations(pd.DataFrame({label: [np.nan] for label in values}), values, m)
    alone = value_of_measuring(draws, "y", by="column")
    assert alone["column"].tolist() == ["x", "again", "z"]
    np.testing.assert_allclose(alone["removed"], [4 / 6, 4 / 6 / 1.01, 1 / 6], atol=0.02)
    chosen = value_of_measuring(draws, "y", by="column", budget=2)
    assert chosen["column"].tolist() == ["x", "z"]
    np.testing.assert_allclose(chosen["expected"], [2.0, 1.0], atol=0.1)
    assert chosen["removed"].sum() == pytest.approx(
        1 - chosen["expected"].iloc[-1] / chosen["variance"].iloc[0]
    )
    whole = value_of_measuring(draws, "y", by="row")
    assert whole["row"].tolist() == [0] and whole["expected"].iloc[0] == pytest.approx(1.0, abs=0.06)


def test_levels_are_measured_and_predicted_by_their_indicators() -> None:
    g, m = np.random.default_rng(1), 4000
    level = g.choice(["u", "v", "w"], m)
    y = np.where(level == "u", 0.0, np.where(level == "v", 3.0, 1.0)) + g.normal(size=m)
    frame = pd.DataFrame({"level": [None], "y": [np.nan]})
    draws = Imputations(frame, {"level": level[:, None].astype(object), "y": y[:, None]}, m)
    means = np.var([0.0, 3.0, 1.0])
    found = value_of_measuring(draws, "y")
    assert found["removed"].iloc[0] == pytest.approx(means / (1 + means), abs=0.03)
    assert value_of_measuring(draws, "level")["variance"].iloc[0] == pytest.approx(3 * 2 / 9, abs=0.02)


def test_cells_that_tell_nothing_remove_nothing_on_average() -> None:
    g, m = np.random.default_rng(2), 50
    frame = pd.DataFrame({"x": [np.nan] * 200, "y": [np.nan] * 200})
    draws = Imputations(frame, {"x": g.normal(size=(m, 200)), "y": g.normal(size=(m, 200))}, m)
    assert value_of_measuring(draws, "y", by="column")["removed"].iloc[0] == pytest.approx(0.0, abs=0.01)


def test_cells_that_stay_missing_are_left_out() -> None:
    g, m = np.random.default_rng(3), 200
    times = np.datetime64("2026-01-01", "us") + (1e9 * g.normal(size=(m, 2))).astype("timedelta64[us]")
    times[:, 1] = np.datetime64("NaT", "us")
    frame = pd.DataFrame({"t": pd.Series([pd.NaT] * 2, dtype="datetime64[us]"), "x": [np.nan] * 2})
    x = np.stack([(times[:, 0] - times[0, 0]).astype(float), g.normal(size=m)], axis=1)
    draws = Imputations(frame, {"t": times, "x": x}, m, may_stay_missing=["t"])
    found = value_of_measuring(draws, "t")
    assert found["row"].tolist() == [0] and found["removed"].iloc[0] == pytest.approx(1.0)


def test_draws_are_enough_for_what_is_measured_together() -> None:
    g = np.random.default_rng(4)
    draws = Imputations(pd.DataFrame({"y": [np.nan] * 40}), {"y": g.normal(size=(100, 40))}, 100)
    with pytest.raises(ValueError, match=r"100 imputations cannot tell what 40 cells say together: draw 160"):
        value_of_measuring(draws, lambda table: table["y"].mean(), by="column")
    assert len(value_of_measuring(draws, lambda table: table[["y"]].mean(), budget=5)) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": "x", "by": "table"}, "by must be one of"),
        ({"target": "z"}, "must be a function or a column with draws"),
        ({"target": lambda table: 1.0}, "does not vary between draws"),
        ({"target": lambda table: np.nan}, "one finite number"),
        ({"target": ["x"]}, "target must be a function or a column with draws"),
        ({"target": "x", "budget": 0}, "budget"),
        ({"target": "x"}, "no missing cell can be measured"),
    ],
)
def test_what_has_no_value_is_refused(arguments: dict, message: str) -> None:
    draws = Imputations(pd.DataFrame({"x": [1.0, np.nan]}), {"x": [[0.5], [1.5], [2.0]]}, m=3)
    with pytest.raises(ValueError, match=message):
        value_of_measuring(draws, **arguments)
    with pytest.raises(ValueError, match="three imputations"):
        value_of_measuring(Imputations(pd.DataFrame({"x": [np.nan]}), {"x": [[0.5]]}, m=1), "x")
