"""Parts of Parquet files: all rows once, original types, and no partial file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyro_mgp import MGPImputer
from pyro_mgp.scaling.partitions import FittedState, Job, Part, parts_of


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    generator = np.random.default_rng(0)
    x = generator.normal(size=40)
    frame = pd.DataFrame(
        {
            "x": x,
            "n": pd.array(np.rint(9 * x), dtype="Int64"),
            "name": [f"row {i}" for i in range(40)],
            "seen": pd.array(x > 0, dtype="boolean"),
            "level": pd.Categorical(np.where(x > 0.5, "high", "low"), categories=["low", "high"]),
        }
    )
    frame.loc[::3, "x"] = np.nan
    frame.loc[1::4, "n"] = pd.NA
    frame.loc[2::5, "level"] = None
    return frame


@pytest.fixture(scope="module")
def state(frame: pd.DataFrame) -> FittedState:
    imputer = MGPImputer(max_steps=2, n_inducing=10, random_state=0, progress=False)
    return FittedState(imputer.fit(frame.drop(columns="name")))


def job(folder: Path, dropped: tuple[str, ...] = ("name",)) -> Job:
    made = Job(folder, 2, dropped)
    for each in made.folders:
        each.mkdir(parents=True)
    return made


def test_parts_are_runs_of_row_groups_in_order_of_names(frame: pd.DataFrame, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    frame[:16].to_parquet(tmp_path / "b" / "1.parquet", row_group_size=4)
    frame[16:].to_parquet(tmp_path / "c.parquet")
    frame.to_parquet(tmp_path / "_hidden.parquet")
    frame.to_parquet(tmp_path / ".partial.parquet")
    (tmp_path / "_SUCCESS").touch()
    parts = parts_of(tmp_path, rows_at_once=10)
    assert [(p.row_groups, p.n_rows, p.number, p.first) for p in parts] == [
        ((0, 1), 8, 0, 0),
        ((2, 3), 8, 1, 8),
        ((0,), 24, 2, 16),
    ]
    assert [part.name for part in parts] == ["part-0000.parquet", "part-0001.parquet", "part-0002.parquet"]
    pd.testing.assert_frame_equal(pd.concat([part.read() for part in parts]), frame)


def test_rows_without_labels_are_numbered(frame: pd.DataFrame, tmp_path: Path) -> None:
    frame[:30].to_parquet(tmp_path / "1.parquet")
    frame[30:].reset_index(drop=True).to_parquet(tmp_path / "2.parquet")
    labelled = frame.set_axis([f"r{i}" for i in range(40)])
    labelled.to_parquet(tmp_path / "3.parquet")
    one, two, three = parts_of(tmp_path)
    assert two.read().index.equals(pd.RangeIndex(30, 40))
    assert three.read().index.equals(labelled.index)
    assert one.read().index.equals(pd.RangeIndex(30))


def test_integers_with_missing_cells_of_other_programs_stay_integers(tmp_path: Path) -> None:
    kinds = [pa.int8(), pa.int64(), pa.uint16(), pa.float32(), pa.float64()]
    columns = {str(kind): pa.array([1, None], kind) for kind in kinds}
    columns |= {"text": pa.array(["a", None]), "truth": pa.array([True, None])}
    pq.write_table(pa.table(columns), tmp_path / "1.parquet")
    (part,) = parts_of(tmp_path)
    expected = pd.read_parquet(tmp_path / "1.parquet", dtype_backend="numpy_nullable")
    pd.testing.assert_frame_equal(part.read(), expected)


@pytest.mark.parametrize("from_pandas", [True, False])
def test_completed_parts_keep_the_schema(
    frame: pd.DataFrame, state: FittedState, tmp_path: Path, from_pandas: bool
) -> None:
    (tmp_path / "in").mkdir()
    table = pa.Table.from_pandas(frame)
    pq.write_table(
        table if from_pandas else table.replace_schema_metadata(None), tmp_path / "in" / "1.parquet"
    )
    (part,) = parts_of(tmp_path / "in")
    made = job(tmp_path / "out")
    assert made.impute(state, part) == []
    assert made.impute(state, part) == []  # again, as after a failure
    expected = state.imputer().impute(frame.drop(columns="name"), m=2)
    for folder, completed in zip(made.folders, expected, strict=True):
        assert [path.name for path in folder.iterdir()] == ["part-0000.parquet"]
        found = pq.read_table(folder / "part-0000.parquet")
        assert found.schema.equals(pq.read_schema(part.path), check_metadata=False)
        assert found.column("name").equals(table.column("name"))
        for label in completed.columns:
            assert found.column(label).to_pylist() == completed[label].tolist()


def test_a_column_of_ids_distinguishes_rows(frame: pd.DataFrame, state: FittedState, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    frame.to_parquet(tmp_path / "in" / "1.parquet", row_group_size=15)
    made = job(tmp_path / "out", dropped=())
    for part in parts_of(tmp_path / "in", rows_at_once=15):
        made.impute(state, part, "name")
    found = pd.read_parquet(made.folders[1])
    expected = state.imputer().impute(frame, m=2, row_ids="name")[1]
    pd.testing.assert_frame_equal(found, expected, check_exact=True)


@pytest.mark.parametrize("labels", [[0] * 20 + [1] * 20, [1, 0] * 20], ids=["sorted", "unsorted"])
def test_rows_with_equal_labels_are_completed_once(
    frame: pd.DataFrame, state: FittedState, tmp_path: Path, labels: list[int]
) -> None:
    (tmp_path / "in").mkdir()
    labelled = frame.set_axis(labels)
    labelled.to_parquet(tmp_path / "in" / "1.parquet")
    made = job(tmp_path / "out")
    made.impute(state, parts_of(tmp_path / "in")[0])
    expected = state.imputer().impute(labelled.drop(columns="name"), m=2)[0]
    found = pd.read_parquet(made.folders[0])
    pd.testing.assert_frame_equal(found.drop(columns="name"), expected, check_exact=True)
    assert found["name"].tolist() == frame["name"].tolist()


def test_a_failure_leaves_no_file(
    frame: pd.DataFrame, state: FittedState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    frame.to_parquet(tmp_path / "in" / "1.parquet")
    made = job(tmp_path / "out")

    def broken(table: pa.Table, path: Path) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", broken)
    with pytest.raises(OSError, match="No space left"):
        made.impute(state, parts_of(tmp_path / "in")[0])
    assert [path for folder in made.folders for path in folder.iterdir()] == []


def test_invalid_files_are_refused(frame: pd.DataFrame, state: FittedState, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a folder of Parquet files"):
        parts_of(tmp_path / "none")
    with pytest.raises(ValueError, match=r"no file that ends in \.parquet"):
        parts_of(tmp_path)
    frame.drop(columns="name").to_parquet(tmp_path / "1.parquet")
    with pytest.raises(ValueError, match=r"1\.parquet, rows from 0: there is no column 'name' to leave out"):
        Job(tmp_path, 2, ("name",)).impute(state, parts_of(tmp_path)[0])
    (tmp_path / "1.parquet").write_bytes(b"PAR1 cut short")
    with pytest.raises(ValueError, match=r"1\.parquet' cannot be read"):
        parts_of(tmp_path)
    with pytest.raises(ValueError, match=r"1\.parquet' cannot be read"):
        Part(tmp_path / "1.parquet", (0,), 1).read()
