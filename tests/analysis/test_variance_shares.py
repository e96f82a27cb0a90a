"""Parts of a link's prediction explain shares of a column's variance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pyro_mgp import MGPImputer
from pyro_mgp.analysis.variance_shares import PARTS, variance_shares


def frame(n_rows: int = 500) -> pd.DataFrame:
    """Return a table with a line, a parabola, steps along a line, and noise."""
    generator = np.random.default_rng(0)
    x, place = generator.normal(size=n_rows), generator.uniform(0, 20, n_rows)
    columns = {
        "x": x,
        "place": place,
        "line": 2 * x + generator.normal(size=n_rows),
        "curve": x**2 + 0.1 * generator.normal(size=n_rows),
        "steps": generator.normal(size=21)[place.astype(int)] + 0.1 * generator.normal(size=n_rows),
        "noise": generator.normal(size=n_rows),
    }
    table = pd.DataFrame(columns)
    holes = generator.random(table.shape) < 0.1
    holes[:, :2] = False
    return table.mask(holes)


@pytest.fixture(scope="module")
def imputer() -> MGPImputer:
    return MGPImputer(inputs="others", random_state=0, progress=False).fit(frame())


def test_shares_add_up_to_one(imputer: MGPImputer) -> None:
    shares = variance_shares(imputer)
    assert list(shares.columns) == list(PARTS)
    assert sorted(shares.index) == ["curve", "line", "noise", "steps"]
    np.testing.assert_allclose(shares.sum(axis=1), 1)


def test_each_part_explains_the_column_that_is_made_of_it(imputer: MGPImputer) -> None:
    shares = variance_shares(imputer)
    assert shares.loc["line", "linear"] == pytest.approx(0.8, abs=0.08)  # 4 of 5
    assert shares.loc["curve"].drop("linear").idxmax() == "curved"
    assert shares["nearby rows"].idxmax() == "steps" and shares.loc["steps", "unexplained"] < 0.05
    assert shares.loc["noise", "unexplained"] > 0.8


def test_rows_that_are_given_are_recognised_as_those_of_the_fit(imputer: MGPImputer, tmp_path: Path) -> None:
    shares = variance_shares(imputer)
    pd.testing.assert_frame_equal(variance_shares(imputer, frame()), shares)
    imputer.save(tmp_path / "model")
    loaded = MGPImputer.load(tmp_path / "model")
    pd.testing.assert_frame_equal(variance_shares(loaded, frame()), shares)
    with pytest.raises(ValueError, match="does not hold the table"):
        variance_shares(loaded)


def test_labels_have_shares_of_their_latent_functions() -> None:
    table = frame(200)
    table["flag"] = (table["x"] > 0).astype("boolean").mask(np.arange(200) % 5 == 0)
    table["kind"] = pd.Categorical(np.where(table["place"] < 7, "a", np.where(table["place"] < 14, "b", "c")))
    table.loc[::7, "kind"] = None
    smooth = MGPImputer(n_neighbors=0, random_state=0, progress=False).fit(table)
    shares = variance_shares(smooth).loc[["flag", "kind"]]
    np.testing.assert_allclose(shares["unexplained"], 0, atol=1e-9)
    np.testing.assert_allclose(shares.sum(axis=1), 1)


def test_levels_with_local_gps_have_shares_of_their_indicators() -> None:
    table = frame()
    of_steps = np.random.default_rng(1).integers(2, size=21)
    table["kind"] = np.array(["even", "odd"])[of_steps[table["place"].to_numpy().astype(int)]]
    table.loc[::7, "kind"] = None
    shares = variance_shares(MGPImputer(inputs="others", random_state=0, progress=False).fit(table)).loc[
        "kind"
    ]
    assert shares["nearby rows"] > 0.02 and shares["unexplained"] > 0.01
    assert shares.sum() == pytest.approx(1)
