"""Tables that are written in chunks equal the draws in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pyro_mgp import MGPImputer
from pyro_mgp.results.table_files import write_chunks


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    generator = np.random.default_rng(0)
    x = generator.normal(size=60)
    frame = pd.DataFrame(
        {
            "x": x,
            "n": pd.array(np.rint(3 * x + generator.normal(size=60)), dtype="Int64"),
            "grade": pd.Categorical(np.where(x > 0, "high", "low"), categories=["low", "high"], ordered=True),
        },
        index=[f"r{i}" for i in range(60)],
    )
    frame.loc[frame.index[::4], "n"] = pd.NA
    frame.loc[frame.index[1::5], "grade"] = None
    return frame


@pytest.fixture(scope="module")
def imputer(frame: pd.DataFrame) -> MGPImputer:
    return MGPImputer(max_steps=3, n_inducing=10, random_state=0).fit(frame)


@pytest.mark.parametrize("batch_size", [7, 60, 1000])
def test_the_files_hold_the_tables_drawn_in_memory(
    imputer: MGPImputer, frame: pd.DataFrame, batch_size: int, tmp_path: Path
) -> None:
    paths = imputer.impute_to_parquet(tmp_path / "out", m=3, batch_size=batch_size)
    assert [path.name for path in paths] == [f"imputation_0{j}.parquet" for j in (1, 2, 3)]
    for path, table in zip(paths, imputer.impute(m=3), strict=True):
        pd.testing.assert_frame_equal(pd.read_parquet(path), table, rtol=1e-9)


def test_labels_that_are_integers_are_kept(frame: pd.DataFrame, tmp_path: Path) -> None:
    numbered = frame.set_axis(range(3), axis=1)
    imputer = MGPImputer(max_steps=3, n_inducing=10, random_state=0).fit(numbered)
    (path,) = imputer.impute_to_parquet(tmp_path / "out", m=1)
    pd.testing.assert_frame_equal(pd.read_parquet(path), imputer.impute(m=1)[0], rtol=1e-9)


def test_complete_chunks_are_written_unchanged(imputer: MGPImputer, frame: pd.DataFrame, tmp_path: Path):
    whole = imputer.impute(m=1)[0]
    (path,) = imputer.impute_to_parquet(tmp_path / "out", whole, m=1, batch_size=13)
    pd.testing.assert_frame_equal(pd.read_parquet(path), whole)


def test_a_failure_leaves_nothing_and_an_old_folder_stays(imputer: MGPImputer, tmp_path: Path) -> None:
    paths = imputer.impute_to_parquet(tmp_path / "out", m=1)
    before = paths[0].read_bytes()
    with pytest.raises(ValueError, match="exists already"):
        imputer.impute_to_parquet(tmp_path / "out", m=1)

    def broken():
        yield imputer.impute(m=1)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_chunks(tmp_path / "out", broken(), imputer.impute(m=1).frame, 1, overwrite=True)
    assert paths[0].read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]
    imputer.impute_to_parquet(tmp_path / "out", m=2, overwrite=True)


@pytest.mark.parametrize(("setting", "value"), [("m", 0), ("batch_size", 0)])
def test_settings_out_of_range_are_refused_before_the_work(
    imputer: MGPImputer, setting: str, value: int, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"{setting}.* must be at least 1, got 0"):
        imputer.impute_to_parquet(tmp_path / "out", **{setting: value})
    assert not (tmp_path / "out").exists()
