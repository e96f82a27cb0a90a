"""Fits to files compared with fits to the same table in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_mgp import ColumnSpec, MGPImputer
from pyro_mgp.data.parquet_table import ParquetTable
from pyro_mgp.data.table import TableCodec, TableWarning
from pyro_mgp.data.table_encoder import encode_columns
from pyro_mgp.fitting import table_fit
from pyro_mgp.imputer import FitWarning
from pyro_mgp.storage import scratch
from pyro_mgp.storage.scratch import Scratch
from tests.storage.test_checkpoint import Crash, Crashing

SETTINGS: dict[str, Any] = {
    "random_state": 0,
    "batch_size": 400,
    "max_steps": 2,
    "n_inducing": 10,
    "n_neighbors": 4,
    "progress": False,
}


def mixed(n_rows: int) -> pd.DataFrame:
    """Return numbers, counts, booleans and a category, with a quarter of the rows twice."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(n_rows, 2)) @ generator.normal(size=(2, 6))
    x += 0.3 * generator.normal(size=x.shape)
    frame = pd.DataFrame({"skewed": np.exp(x[:, 0]), "plain": x[:, 1], "yes": x[:, 2] > 0})
    frame["level"] = np.array(["low", "mid", "high"])[np.digitize(x[:, 3], [-1, 1])]
    frame["count"] = generator.poisson(np.exp(x[:, 4].clip(max=2)))
    frame["few"] = x[:, 5].round()
    frame = frame.astype({"yes": "boolean", "count": "Int64"}).mask(generator.random(frame.shape) < 0.1)
    return pd.concat([frame, frame.iloc[: n_rows // 4]], ignore_index=True)


@pytest.fixture(autouse=True)
def _small_tables_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fit tables of more than 1000 rows as if they were larger than memory."""
    monkeypatch.setattr(table_fit, "_SMALL_ROWS", 1000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a table of 1250 rows in two files."""
    frame = mixed(1000)
    (tmp_path / "table").mkdir()
    frame.iloc[:600].to_parquet(tmp_path / "table" / "0.parquet")
    frame.iloc[600:].to_parquet(tmp_path / "table" / "1.parquet")
    return tmp_path / "table"


def test_a_fit_to_files_equals_a_fit_in_memory(folder: Path, tmp_path: Path) -> None:
    frame = pd.read_parquet(folder)
    streamed = MGPImputer(**SETTINGS).fit_parquet(folder, scratch=tmp_path)
    expected = MGPImputer(**SETTINGS).fit(frame)
    assert streamed.codec_ == expected.codec_
    assert streamed.history_.loss == expected.history_.loss
    for name, value in expected.chain_.state_dict().items():
        assert torch.equal(streamed.chain_.state_dict()[name], value), name
    draws, same = streamed.impute(frame, m=2), expected.impute(m=2)
    for label, values in same.values.items():
        assert (draws.values[label] == values).all(), label
    assert streamed.feature_names_in_.tolist() == frame.columns.tolist()
    assert [path.name for path in tmp_path.iterdir()] == ["table"]


def test_a_fit_to_files_resumes_and_drops_columns(folder: Path, tmp_path: Path) -> None:
    settings, kept = SETTINGS | {"max_steps": 12, "n_neighbors": 0, "inputs": "others"}, tmp_path / "kept"
    with pytest.raises(Crash):
        MGPImputer(**settings).fit_parquet(folder, dropped=["few"], checkpoint=Crashing(kept, 1))
    resumed = MGPImputer(**settings).fit_parquet(folder, dropped=["few"], checkpoint=kept)
    expected = MGPImputer(**settings).fit(pd.read_parquet(folder).drop(columns="few"))
    assert len(expected.history_.loss) > 5
    assert resumed.history_.loss == expected.history_.loss
    assert resumed.feature_names_in_.tolist() == expected.feature_names_in_.tolist()
    assert not kept.exists()
    with pytest.raises(ValueError, match="there is no column 'id' to leave out; there are"):
        MGPImputer(**settings).fit_parquet(folder, dropped=["id"])


def test_encoded_rows_are_those_in_memory_sorted_by_key(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = pd.read_parquet(folder)
    codec = TableCodec.fit(frame, True, 50)
    table = codec.encode_cells(frame)
    monkeypatch.setattr(scratch, "_PIECE", 100)
    assert TableCodec.fit(ParquetTable(folder), True, 50) == codec
    rows, incomplete = encode_columns(ParquetTable(folder), codec, Scratch(tmp_path))
    expected, _ = table.sorted_by_key()
    assert torch.equal(rows.keys, expected.keys)
    assert torch.equal(rows.observed, expected.observed)
    assert torch.equal(rows.values, expected.values)
    assert incomplete == np.flatnonzero(frame.isna().any()).tolist()


def test_a_fit_in_pieces_equals_a_fit_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = mixed(400)
    settings = SETTINGS | {"n_neighbors": 0, "batch_size": 150, "inputs": "others"}
    at_once = MGPImputer(**settings).fit(frame)
    monkeypatch.setattr(scratch, "_PIECE", 64)
    piecewise = MGPImputer(**settings).fit(frame)
    assert piecewise.codec_ == at_once.codec_
    np.testing.assert_allclose(piecewise.history_.loss, at_once.history_.loss, rtol=1e-8)
    np.testing.assert_allclose(piecewise.history_.validation, at_once.history_.validation, rtol=1e-6)


def test_a_small_table_is_fitted_as_in_memory(tmp_path: Path) -> None:
    frame = mixed(100)[["plain", "skewed"]].dropna(how="all").reset_index(drop=True)
    frame.to_parquet(tmp_path / "table.parquet")
    settings = SETTINGS | {"inputs": "earlier"}
    streamed = MGPImputer(**settings).fit_parquet(tmp_path / "table.parquet")
    assert streamed.sequential_
    expected = MGPImputer(**settings).fit(frame).impute(m=1)
    assert (streamed.impute(frame, m=1).values["plain"] == expected.values["plain"]).all()
    with pytest.raises(ValueError, match="fitted to files, and does not hold the table"):
        streamed.impute(m=1)


def test_the_table_is_not_kept(folder: Path, tmp_path: Path) -> None:
    imputer = MGPImputer(**SETTINGS | {"inputs": "others", "n_neighbors": 0}).fit(mixed(100))
    imputer.fit_parquet(folder, scratch=tmp_path)
    with pytest.raises(ValueError, match=r"impute_to_parquet\(path, X\) with a table, or with one part"):
        imputer.impute(m=1)
    imputer.save(tmp_path / "saved")
    assert MGPImputer.load(tmp_path / "saved").chain_.n_rows == 1250


def test_rules_of_whole_rows_are_refused(folder: Path) -> None:
    specs = {"plain": ColumnSpec(only_if="few > 0")}
    with pytest.raises(ValueError, match="one column at a time is in memory: fit a sample"):
        MGPImputer(specs=specs).fit_parquet(folder)
    with pytest.raises(ValueError, match='inputs="earlier" needs the table in memory'):
        MGPImputer(inputs="earlier").fit_parquet(folder)


def test_a_fit_that_fails_leaves_the_imputer_as_it_was(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imputer = MGPImputer(**SETTINGS | {"inputs": "others", "n_neighbors": 0}).fit(mixed(100))
    before = imputer.chain_

    def full(*_: Any, **__: Any) -> None:
        raise OSError("no room")

    monkeypatch.setattr(Scratch, "like", full)
    with pytest.raises(OSError, match="no room"):
        imputer.fit_parquet(folder, scratch=tmp_path)
    assert imputer.chain_ is before
    assert imputer.impute(m=1).m == 1
    assert [path.name for path in tmp_path.iterdir()] == ["table"]


def test_warnings_name_rows_and_columns(tmp_path: Path) -> None:
    frame = mixed(1200)[["plain", "skewed"]].assign(same=1.0)
    frame.loc[[3, 1300]] = np.nan
    frame.to_parquet(tmp_path / "table.parquet")
    with pytest.warns((TableWarning, FitWarning)) as caught:
        TableCodec.fit(ParquetTable(tmp_path))
    messages = " ".join(str(each.message) for each in caught)
    assert "2 rows are entirely missing: row 3 (position 3), row 1300 (position 1300)" in messages
    assert "Column 'same' is constant where it is observed" in messages
