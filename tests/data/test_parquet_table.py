"""Parquet files read column by column, compared with `pandas.read_parquet`."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pandas.testing import assert_frame_equal, assert_index_equal, assert_series_equal

from pyro_mgp.data.parquet_table import ParquetTable


def mixed() -> pd.DataFrame:
    """Return a column of every kind that Parquet stores, with missing cells and row labels."""
    return pd.DataFrame(
        {
            "x": [1.5, None, 3.0, 2.5],
            "n": pd.array([1, None, 3, 4], dtype="Int64"),
            "yes": [True, None, False, True],
            "text": ["a", None, "b", "a"],
            "kind": pd.Categorical(["u", "v", None, "u"], categories=["v", "u"], ordered=True),
            "when": pd.to_datetime(["2020-01-01", None, "2021-01-01", "2022-05-05"]),
        },
        index=pd.Index(["q", "r", "s", "t"], name="row"),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the mixed table in two files."""
    mixed().iloc[:3].to_parquet(tmp_path / "part_0.parquet")
    mixed().iloc[3:].to_parquet(tmp_path / "part_1.parquet")
    return tmp_path


def test_a_folder_is_read_column_by_column_as_pandas_reads_it(folder: Path) -> None:
    whole, table = pd.read_parquet(folder), ParquetTable(folder)
    assert (len(table), table.shape) == (4, whole.shape)
    assert_index_equal(table.columns, whole.columns)
    assert_index_equal(table.index, whole.index)
    for label, column in whole.items():
        assert_series_equal(table[label], column)
    assert_frame_equal(table.read(), whole)


def test_several_files_follow_each_other_in_the_order_given(folder: Path) -> None:
    table = ParquetTable([folder / "part_1.parquet", folder / "part_0.parquet"])
    assert table["x"].index.tolist() == ["t", "q", "r", "s"]
    assert len(ParquetTable(folder / "part_0.parquet")) == 3


def test_labels_that_are_numbers_stay_numbers(tmp_path: Path) -> None:
    frame = pd.DataFrame({0: [1.0, 2.0], 7: [3.0, 4.0]})
    frame.to_parquet(tmp_path / "table.parquet")
    table = ParquetTable(tmp_path / "table.parquet")
    assert table.columns.tolist() == [0, 7]
    assert_series_equal(table[7], frame[7])


def test_integers_with_missing_cells_of_other_programs_stay_integers(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1, None, 2], "s": ["a", None, "b"]}), tmp_path / "table.parquet")
    assert str(ParquetTable(tmp_path / "table.parquet")["n"].dtype) == "Int64"


def test_missing_and_invalid_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no file or folder '.*nothing.parquet'"):
        ParquetTable([tmp_path / "nothing.parquet"])
    with pytest.raises(ValueError, match="holds no Parquet file"):
        ParquetTable(tmp_path)
    (tmp_path / "text.parquet").write_text("not at all")
    with pytest.raises(ValueError, match=r"text.parquet.* cannot be read as Parquet, or is damaged"):
        ParquetTable(tmp_path / "text.parquet")


def test_files_of_other_columns_are_named(folder: Path, tmp_path: Path) -> None:
    pd.DataFrame({"x": [1.0]}).to_parquet(tmp_path / "other.parquet")
    files = [folder / "part_0.parquet", tmp_path / "other.parquet"]
    for given, has in ((files, "part_0.parquet"), (files[::-1], "part_0.parquet")):
        with pytest.raises(ValueError, match=f"{has}' has a column .*, which '.*other.parquet' lacks"):
            ParquetTable(given)


def test_damaged_files_are_named_on_reading(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    pd.DataFrame({"x": range(1000)}).to_parquet(path, compression="gzip")
    content = bytearray(path.read_bytes())
    content[4:200] = bytes(196)
    path.write_bytes(content)
    with pytest.raises(ValueError, match="cannot be read as Parquet, or is damaged"):
        ParquetTable(path)["x"]
