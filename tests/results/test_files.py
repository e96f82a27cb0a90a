"""Reading tables from files, with inferred dtypes, and writing completed tables in the same format."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pyro_mgp import Imputations
from pyro_mgp.results import files


def test_booleans_are_written_like_the_first_of_the_column() -> None:
    text = [["a", cell] for cell in ("b", "TRUE", "true", " false", "NA", "False", "")]
    draws = Imputations(files.typed(text), {"b": [[True, False]]}, m=1)
    completed = files.completed_text(text, draws, 0)
    assert [row[1] for row in completed] == ["b", "TRUE", "true", " false", "TRUE", "False", "false"]
    assert text[4] == ["a", "NA"]


def test_integers_with_missing_cells_in_a_foreign_parquet_file(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"n": [1, None, 3], "x": [0.5, 1.5, 3.0]}), tmp_path / "t.parquet")
    assert str(files.read_table(tmp_path / "t.parquet").frame["n"].dtype) == "Int64"


def typed(*cells: str, missing: tuple[str, ...] = files.MISSING) -> pd.Series:
    return files.typed([["x"], *([cell] for cell in cells)], missing)["x"]


@pytest.mark.parametrize(
    ("cells", "dtype", "values"),
    [
        (["181", "", "-5", "+7"], "Int64", [181, None, -5, 7]),
        (["18", "18.7", "1e5", "NaN", ".5"], "Float64", [18.0, 18.7, 1e5, None, 0.5]),
        (["0.30000000000000004", "0.1"], "Float64", [0.1 + 0.2, 0.1]),
        (["true", "False", "NA", " TRUE"], "boolean", [True, False, None, True]),
        (["yes", "no", "n/a"], "string", ["yes", "no", None]),
        (["007", "12"], "string", ["007", "12"]),
        (["a ", " a", "null", " "], "string", ["a ", " a", None, None]),
        (["9223372036854775808", "1"], "Float64", [2.0**63, 1.0]),
        (["1_000", "2"], "string", ["1_000", "2"]),
        (["none", "x"], "string", ["none", "x"]),
        (["", "NA"], "string", [None, None]),
    ],
)
def test_dtypes_are_inferred_from_cells(cells: list[str], dtype: str, values: list[object]) -> None:
    column = typed(*cells)
    assert str(column.dtype) == dtype
    assert [None if value is pd.NA else value for value in column] == values


def test_marks_of_missing_cells_replace_the_usual_ones() -> None:
    column = typed("1", "-999", ".", "", missing=("-999", "."))
    assert str(column.dtype) == "Int64" and column.isna().tolist() == [False, True, True, True]
    assert typed("NA", "DE", "", missing=("",)).isna().tolist() == [False, False, True]


@pytest.mark.parametrize("name", ["t.tsv", "t.csv.gz", "T.CSV"])
def test_other_suffixes(tmp_path: Path, name: str) -> None:
    content = "\ufeffa,b\r\n1,x\r\n\r\n,y\r\n".replace(",", "\t" if "tsv" in name else ",").encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    source = files.read_table(tmp_path / name)
    assert source.format == ("tsv" if "tsv" in name else "csv")
    assert source.text == [["a", "b"], ["1", "x"], ["", "y"]]


DATES = (
    "day,when,x\n2024-01-01,2024-01-01 10:30,1\n,2024-02-03T11:00:05,2\n2024-03-05,,3\n"
    "2024-04-01,2024-04-01 07:15,\n"
)


def test_dates_of_a_csv_are_imputed_and_written_in_the_format_of_the_column(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(DATES)
    source = files.read_table(tmp_path / "t.csv")
    assert source.frame.dtypes.astype(str).tolist() == ["datetime64[us]", "datetime64[us]", "Int64"]
    values = {
        "day": np.array([["2024-02-02"]], dtype="datetime64[us]"),
        "when": np.array([["2024-02-02T03:04"]], dtype="datetime64[us]"),
        "x": [[2]],
    }
    rows = files.completed_text(source.text, Imputations(source.frame, values, m=1), 0)
    assert rows[2] == ["2024-02-02", "2024-02-03T11:00:05", "2"]
    assert rows[3] == ["2024-03-05", "2024-02-02 03:04", "3"]
    assert files.typed([["d"], ["2024-02-30"]]).dtypes.astype(str).tolist() == ["string"]


@pytest.mark.parametrize(
    ("cells", "cell"),
    [
        (["1", "2.5", "?", "4"], "?"),
        (["1,000", "2,000", "3,500", "4,000"], "1,000"),
        (["2020-01-02", "2020-01-03", "2021-02-31", ""], "2020-01-02"),
        (["7", "8", "missing", "9"], "missing"),
    ],
)
def test_numbers_and_dates_read_as_text_are_pointed_out(cells: list[str], cell: str) -> None:
    frame = files.typed([["x", "y"], *([c, "1"] for c in cells)])
    assert files.read_as_text(frame) == [("x", cell)]


@pytest.mark.parametrize("cells", [["a", "b", "1"], ["007", "008", "009"], ["1", "2", ""], ["", "", ""]])
def test_text_and_numbers_are_not_pointed_out(cells: list[str]) -> None:
    assert files.read_as_text(files.typed([["x", "y"], *([c, "1"] for c in cells)])) == []
