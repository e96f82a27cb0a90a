"""A few hostile tables and files, and regression tests for failures that many of them found."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hostile_tables import QUICK, files, impute, impute_file, tables
from hypothesis import HealthCheck, given, settings

from pyro_mgp import Imputations, MGPImputer
from pyro_mgp.data.cells import complete, natural_kind
from pyro_mgp.data.codecs import fit_column
from pyro_mgp.results.table_files import write_table

NULL = pd.ArrowDtype(pa.null())
few = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))


@few
@given(tables())
@pytest.mark.slow
def test_hostile_tables_are_completed_or_refused(frame: pd.DataFrame) -> None:
    ended = impute(frame, **QUICK)
    assert ended == "completed" or ended.startswith(("ValueError: ", "TypeError: ", "FloatingPointError: "))


@few
@given(files())
@pytest.mark.slow
def test_hostile_files_are_completed_or_refused(content: bytes) -> None:
    ended = impute_file(content)
    assert ended == "completed" or ended.startswith(("ValueError: ", "TypeError: ", "FloatingPointError: "))


def test_a_table_of_constants_has_nothing_to_learn_from() -> None:
    frame = pd.DataFrame({"a": [1.0, 1.0, None], "b": ["x", "x", "x"]})
    with pytest.raises(ValueError, match=r"a column that varies, but \['a', 'b'\] hold one value each"):
        MGPImputer().fit(frame)


def test_complete_text_needs_no_link() -> None:
    frame = pd.DataFrame({label: ["u", "v"] * 12 for label in ("a", "b")}, dtype="string")
    assert impute(frame, **QUICK) == "completed"


def test_numbers_of_other_machines_are_refused() -> None:
    frame = pd.DataFrame({"a": np.arange(5).astype(">f8"), "b": np.arange(5.0)})
    with pytest.raises(TypeError, match=r"'a': .*in the byte order of another machine.* Convert it"):
        MGPImputer().fit(frame)


def test_an_empty_column_of_arrow_is_imputed_as_one_of_pandas_is() -> None:
    frame = pd.DataFrame({"a": np.arange(30.0), "b": np.sqrt(np.arange(30.0))})
    frame.loc[::7, "b"] = np.nan
    imputer = MGPImputer(**QUICK).fit(frame)
    tables = [frame.assign(b=pd.Series([None] * 30, dtype=dtype)) for dtype in (NULL, "float64")]
    first, second = (imputer.impute(table, m=2) for table in tables)
    np.testing.assert_array_equal(first.values["b"], second.values["b"])


def test_times_in_object_columns_are_refused_with_advice() -> None:
    days = pd.Series([pd.Timestamp("2020-01-01", tz="UTC"), pd.Timestamp("2021-01-01", tz="Europe/Berlin")])
    for column, advice in ((days, "to_datetime"), (pd.Series(pd.to_timedelta([1, 2], "D")), "to_timedelta")):
        with pytest.raises(TypeError, match=rf"Convert it: pandas.{advice}\(frame\['a'\]"):
            natural_kind(column.astype(object).rename("a"))


def test_infinite_categories_are_refused() -> None:
    with pytest.raises(TypeError, match="finite numbers or booleans, got inf"):
        fit_column(pd.Series(pd.Categorical([np.inf, 1.0, 1.0]), name="a"))


@pytest.mark.parametrize("dtype", ["datetime64[s]", "timedelta64[s]"])
def test_times_beyond_64_bits_of_microseconds_are_refused(dtype: str) -> None:
    with pytest.raises(ValueError, match="Column 'a': expected times within 290,000 years of 1970"):
        fit_column(pd.Series(np.array([0, 2**50]), name="a").astype(dtype))


def test_draws_of_times_end_with_the_calendar() -> None:
    codec = fit_column(pd.Series(np.array(["1900-01-01", "2000-01-01"], "datetime64[s]"), name="a"))
    drawn = codec.decode([[-1e9], [1e9]]).tolist()
    assert [each.year for each in drawn] == [1, 9999]


def test_draws_beyond_nanoseconds_fit_into_seconds() -> None:
    frame = pd.DataFrame({"a": np.array(["9999-12-31", "NaT"], "datetime64[s]")})
    drawn = complete(frame, {"a": np.array(["9000-01-01"], "datetime64[us]")})
    assert drawn["a"].dt.year.tolist() == [9999, 9000]
    in_nanoseconds = pd.DataFrame({"a": np.array(["2020-01-01", "NaT"], "datetime64[ns]")})
    assert complete(in_nanoseconds, {"a": np.array(["9000-01-01"], "datetime64[us]")})["a"].dt.year[1] == 2262


def test_text_of_arrow_is_loaded_as_such(tmp_path: Path) -> None:
    text = pd.Series(["a", None], dtype=pd.ArrowDtype(pa.string()))
    draws = Imputations(pd.DataFrame({"t": text}), {"t": [["b"]]}, m=1)
    draws.save(tmp_path / "draws")
    assert Imputations.load(tmp_path / "draws") == draws


def test_cells_with_carriage_returns_come_back(tmp_path: Path) -> None:
    cells = ["x\ry", "\r", "\r\n", "\n", '"', "z"]
    write_table(tmp_path / "t.csv", pd.DataFrame({"a": cells, "b": range(6)}), "csv")
    with (tmp_path / "t.csv").open(encoding="utf-8", newline="") as file:
        assert [row[0] for row in csv.reader(file)] == ["a", *cells]


def test_a_file_with_carriage_returns_is_completed_cell_by_cell() -> None:
    rows = "".join(f'"{i % 3}\r{i % 2}",{i},{"" if i == 4 else i * i}\n' for i in range(12))
    assert impute_file(f"t,n,x\n{rows}".encode()) == "completed"
