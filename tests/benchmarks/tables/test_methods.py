"""Imputation methods that complete a table from its own observed cells, and the script for rivals."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.paper.imputed import Imputed, holes_of
from benchmarks.paper.methods import classical
from benchmarks.tables.methods import DRAWS, missforest, rivals
from benchmarks.tables.methods.registry import METHODS
from benchmarks.tables.patterns import incomplete
from benchmarks.tables.scores import score

# Those that need R or another environment are tested by hand.
HERE = [name for name, method in METHODS.items() if method.check is None]


@pytest.fixture(scope="module")
def truth() -> pd.DataFrame:
    g = np.random.default_rng(0)
    x, y = g.normal(size=(2, 120))
    columns = np.stack([x, y, x + y, x - y], axis=1) + 0.2 * g.normal(size=(120, 4))
    return pd.DataFrame(columns, columns=list("abcd")) * [1.0, 10.0, 1.0, 1.0]


@pytest.fixture(scope="module")
def table(truth: pd.DataFrame) -> pd.DataFrame:
    return incomplete(truth, "mcar10", 0)


@pytest.fixture(scope="module")
def results(table: pd.DataFrame) -> dict[str, Imputed]:
    return {name: METHODS[name].load()(table, 0) for name in HERE}


@pytest.mark.parametrize("name", HERE)
@pytest.mark.slow
def test_every_missing_cell_is_imputed(
    name: str, table: pd.DataFrame, truth: pd.DataFrame, results: dict[str, Imputed]
) -> None:
    cells = {column: int(holes.sum()) for column, holes in holes_of(table).items()}
    imputed = results[name]
    assert {column: len(values) for column, values in imputed.point.items()} == cells
    draws = {"mgp": DRAWS, "mice_ridge": DRAWS, "miceforest": 5}.get(name)
    assert (None if imputed.draws is None else {x.shape[0] for x in imputed.draws.values()}) == (
        None if draws is None else {draws}
    )
    if name != "mean":
        assert score(imputed, table, truth).rmse < 0.7 * score(results["mean"], table, truth).rmse


def test_mgp_has_a_hundred_draws_for_the_bounds_of_intervals(
    results: dict[str, Imputed], table: pd.DataFrame, truth: pd.DataFrame
) -> None:
    imputed = results["mgp"]
    assert imputed.further_draws is not None
    assert imputed.draws is not None
    further = imputed.further_draws()
    assert further["a"].shape == (80, table["a"].isna().sum())
    assert not np.isin(further["a"][0], imputed.draws["a"]).any()
    assert score(imputed, table, truth).coverage_95 > 0.8


def test_forests_of_a_table_alone_are_those_of_the_same_table_given_twice(table: pd.DataFrame) -> None:
    forest = classical.ExtraTreesRegressor(10, random_state=0)
    pd.testing.assert_frame_equal(
        classical.chained(forest, table, table, 2), classical.chained(forest, table, table.copy(), 2)
    )


def test_missforest_stops_when_the_change_increases(
    table: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes of 1, then .1, then .5: the second table is taken."""
    start = table.fillna(table.mean())
    rounds = [start + table.isna() * shift for shift in (1.0, 1.1, 1.6, 1.6)]
    monkeypatch.setattr(missforest, "rounds_of_chain", lambda *_: ([each] for each in rounds))
    point = missforest.missforest(table, 0).point
    np.testing.assert_allclose(point["a"], table["a"].mean() + 1.1)


def test_missforest_ends_after_ten_rounds(table: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    start = table.fillna(table.mean())
    rounds = [start + table.isna() * (1 - 0.5**k) for k in range(1, 20)]
    monkeypatch.setattr(missforest, "rounds_of_chain", lambda *_: ([each] for each in rounds))
    point = missforest.missforest(table, 0).point
    np.testing.assert_allclose(point["a"], table["a"].mean() + 1 - 0.5**10)


_MEANS = """
import sys
import numpy as np
method, source, target, m, seed = sys.argv[1:]
table = np.load(source)["table"]
point = np.where(np.isnan(table), np.nanmean(table, 0) + {shift}, table)
np.savez(target, point=point, draws=np.stack([point] * int(m)), seconds=1.5)
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Script in place of that of the rivals, run by this Python."""
    path = tmp_path / "script.py"
    monkeypatch.setattr(rivals, "_SCRIPT", path)
    monkeypatch.setenv(rivals.PYTHON, sys.executable)
    return path


def test_tables_of_a_rival_are_read_with_its_own_time(script: Path, table: pd.DataFrame) -> None:
    script.write_text(_MEANS.format(shift=2.0))
    imputed = rivals.impute(table, 0, "gcimpute")
    np.testing.assert_allclose(imputed.point["b"], table["b"].mean() + 2)
    assert imputed.draws is not None
    assert imputed.draws["b"].shape == (DRAWS, table["b"].isna().sum())
    assert imputed.seconds == 1.5


def test_a_rival_that_imputes_column_means_is_refused(script: Path, table: pd.DataFrame) -> None:
    script.write_text(_MEANS.format(shift=0.0))
    with pytest.raises(RuntimeError, match="nothing but column means"):
        rivals.impute(table, 0, "hyperimpute")
    with pytest.raises(ValueError, match=r"hyperimpute does not work.*install benchmarks/tables/rivals\.txt"):
        rivals.check("hyperimpute")


def test_a_rival_that_is_no_better_than_column_means_is_refused(script: Path) -> None:
    script.write_text(_MEANS.format(shift=1.0))
    with pytest.raises(ValueError, match=r"its RMSE of a correlated table is \d\.\d\d, that of column means"):
        rivals.check("hyperimpute")


def test_the_failure_of_a_rival_has_its_last_message(script: Path) -> None:
    script.write_text("import not_there")
    with pytest.raises(ValueError, match="No module named 'not_there'"):
        rivals.check("gcimpute")


def test_without_its_interpreter_a_rival_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(rivals.PYTHON, raising=False)
    with pytest.raises(ValueError, match="--rivals-python"):
        METHODS["gcimpute"].check()  # type: ignore[misc]


def test_without_r_mixgb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(ValueError, match=r"needs R and its package mixgb \(CRAN\)"):
        METHODS["mixgb"].check()  # type: ignore[misc]
