"""Benchmark of partitions: the generated table, and the check of completed tables."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from benchmarks import partitions


def test_the_table_has_the_requested_rows_and_missing_cells_in_files_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "_ROWS_PER_FILE", 400)
    partitions.write_table(tmp_path, 1000)
    parts = [pd.read_parquet(path) for path in sorted(tmp_path.iterdir())]
    assert [len(part) for part in parts] == [400, 400, 200]
    table = pd.concat(parts)
    assert table.shape[1] == 10
    assert table.isna().mean().mean() == pytest.approx(0.1, abs=0.02)
    assert abs(parts[0].corr() - parts[1].corr()).max().max() < 0.3  # rows of one distribution
    assert not table.duplicated().any()


def test_tables_with_rows_or_cells_missing_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "imputation_01"
    folder.mkdir()
    pd.DataFrame({"x": [1.0, 2.0]}).to_parquet(folder / "part-0000.parquet")
    partitions.check_complete(tmp_path, 2, 1)
    with pytest.raises(ValueError, match="expected 3 rows in imputation 1, got 2"):
        partitions.check_complete(tmp_path, 3, 1)
    pd.DataFrame({"x": [1.0, None]}).to_parquet(folder / "part-0000.parquet")
    with pytest.raises(ValueError, match="expected no missing cells"):
        partitions.check_complete(tmp_path, 2, 1)
