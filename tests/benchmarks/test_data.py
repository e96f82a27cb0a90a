"""Public tables: read from a folder, or fetched and checked."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmarks.paper import data


@pytest.fixture
def numbers() -> pd.DataFrame:
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(50, 3)))
    return table.assign(constant=1.0)


@pytest.mark.parametrize("file", ["protein.csv.gz", "protein.csv"])
def test_a_table_comes_from_a_folder_without_its_constant_columns(
    tmp_path: Path, numbers: pd.DataFrame, file: str
) -> None:
    numbers.to_csv(tmp_path / file, header=False, index=False)
    table = data.load("protein", tmp_path)
    assert table.columns.tolist() == ["c0", "c1", "c2"]
    np.testing.assert_allclose(table, numbers.iloc[:, :3])


def test_a_subset_of_rows_is_that_of_the_protocol(tmp_path: Path, numbers: pd.DataFrame) -> None:
    numbers.to_csv(tmp_path / "keggdirected.csv.gz", header=False, index=False)
    table = data.load("keggdirected", tmp_path, rows=20)
    kept = np.random.default_rng(123).permutation(50)[:20]
    np.testing.assert_allclose(table, numbers.iloc[kept, :3])
    assert len(data.load("keggdirected", tmp_path, rows=1000)) == 50


def test_parkinson_keeps_its_header(tmp_path: Path, numbers: pd.DataFrame) -> None:
    numbers.set_axis(["a", "b", "c", "d"], axis=1).to_csv(tmp_path / "parkinson.csv", index=False)
    assert data.parkinson(tmp_path).columns.tolist() == ["a", "b", "c"]


@pytest.mark.parametrize("name", ["total_brain_volume", "TotalBrainVolume"])
def test_the_private_table_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ValueError, match="fifth table, total brain volume, is clinical data"):
        data.load(name)


def test_other_names_are_refused_with_those_that_exist() -> None:
    with pytest.raises(ValueError, match=r"no table 'iris'.*'protein', 'keggdirected'"):
        data.load("iris")


def test_a_folder_without_the_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no protein\.csv\.gz in"):
        data.load("protein", tmp_path)


def _fetch_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sha256: str) -> Path:
    """Fetch a Parkinson table whose four files are in a folder instead of on a server."""
    parts = {
        "train_data": pd.DataFrame({"Unnamed: 0": [1, 2], "Unnamed: 1": [3, 4]}),
        "train_labels": pd.DataFrame({"Unnamed: 2": [5, 6]}),
        "test_data": pd.DataFrame({"Unnamed: 0": [7], "Unnamed: 1": [8]}),
        "test_labels": pd.DataFrame({"Unnamed: 2": [9]}),
    }
    for name, part in parts.items():
        part.to_csv(tmp_path / f"parkinson_{name}.csv", index=False)
    url = (tmp_path / "parkinson_{}.csv").as_uri().replace("%7B%7D", "{}")
    dataset = data.Dataset("Parkinson", "parkinson.csv", url, sha256, header=True)
    monkeypatch.setitem(data.DATASETS, "parkinson", dataset)
    monkeypatch.setattr("pooch.os_cache", lambda _: tmp_path / "cache")
    return data.fetch("parkinson")


WHOLE = "x00,x01,x02\n1,3,5\n2,4,6\n7,8,9\n"


def test_the_parts_of_the_parkinson_table_are_put_together_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = _fetch_from(tmp_path, monkeypatch, hashlib.sha256(WHOLE.encode()).hexdigest())
    assert kept.read_text() == WHOLE
    assert data.load("parkinson").shape == (3, 3)


def test_a_wrong_checksum_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="hash"):
        _fetch_from(tmp_path, monkeypatch, "0" * 64)
    assert not (tmp_path / "cache" / "parkinson.csv").exists()


def test_without_a_network_the_error_suggests_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr("pooch.retrieve", fail)
    with pytest.raises(OSError, match=r"cannot be fetched \(no route\); name a folder that holds protein"):
        data.load("protein")
