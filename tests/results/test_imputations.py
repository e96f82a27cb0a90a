"""Imputations: completed tables, the summary of cells, saving and loading."""

from __future__ import annotations

import copy
import datetime
import json
import pickle
from collections import Counter
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from golden.analyses.tables import imputations
from hypothesis import given
from hypothesis import strategies as st
from signing import sign

from pyro_mgp.results.imputations import Imputations
from pyro_mgp.storage.frames import read_frame, write_frame
from pyro_mgp.storage.header import read_arrays, write_arrays

MALE, FEMALE = "male", "female"


def mixed() -> Imputations:
    """Four rows, one or two missing cells in each kind of column, three imputations; countable by hand."""
    frame = pd.DataFrame(
        {
            "species": ["Adelie", "Gentoo", "Adelie", "Chinstrap"],
            "mass": [3.75, np.nan, 3.25, np.nan],
            "sex": pd.Categorical([MALE, None, FEMALE, MALE], categories=[MALE, FEMALE]),
            "count": pd.array([4, 5, None, 7], dtype="Int16"),
            "seen": pd.array([None, True, False, True], dtype="boolean"),
        },
        index=["a", "b", "c", "d"],
    )
    values = {
        "mass": np.array([[1.0, 5.0], [2.0, 5.0], [6.0, 5.0]]),
        "sex": np.array([[FEMALE], [MALE], [FEMALE]], dtype=object),
        "count": np.array([[3], [9], [3]]),
        "seen": np.array([[True], [False], [False]]),
    }
    return Imputations(frame, values, m=3)


def one_column(column: object, draws: object) -> Imputations:
    return Imputations(pd.DataFrame({"x": column}), {"x": np.asarray(draws)}, m=len(draws))


def assert_identical(left: pd.DataFrame, right: pd.DataFrame) -> None:
    exact = {"check_exact": True, "check_index_type": "exact", "check_column_type": "exact"}
    pd.testing.assert_frame_equal(left, right, **exact)
    for a, b in zip(left.dtypes, right.dtypes, strict=True):
        assert str(a) == str(b)
        if isinstance(a, pd.CategoricalDtype):  # pandas takes unordered categories in another order for equal
            assert a.categories.tolist() == b.categories.tolist()


# --------------------------------------------------------------------------------------- a sequence of tables


def test_a_completed_table_is_the_table_with_one_draw_in_its_missing_cells() -> None:
    expected = pd.DataFrame(
        {
            "species": ["Adelie", "Gentoo", "Adelie", "Chinstrap"],
            "mass": [3.75, 2.0, 3.25, 5.0],
            "sex": pd.Categorical([MALE, MALE, FEMALE, MALE], categories=[MALE, FEMALE]),
            "count": pd.array([4, 5, 9, 7], dtype="Int16"),
            "seen": pd.array([False, True, False, True], dtype="boolean"),
        },
        index=["a", "b", "c", "d"],
    )
    assert_identical(mixed()[1], expected)


def test_it_is_a_sequence() -> None:
    draws = mixed()
    assert len(draws) == draws.m == 3
    tables = list(draws)
    assert len(tables) == 3
    for j, table in enumerate(tables):
        assert_identical(table, draws[j])
        assert_identical(table, draws[np.int64(j - 3)])


@pytest.mark.parametrize("j", [3, -4])
def test_an_index_out_of_range_raises_an_error_with_the_range(j: int) -> None:
    with pytest.raises(IndexError, match=rf"there is no imputation {j}: they are numbered from 0 to 2"):
        mixed()[j]


def test_a_slice_is_no_index() -> None:
    with pytest.raises(TypeError, match="slice"):
        mixed()[0:2]


def test_repr_gives_the_dimensions() -> None:
    assert repr(mixed()) == "Imputations(m=3, 4 rows x 5 columns, 5 missing cells in 4 columns)"


@given(st.lists(st.floats(width=64) | st.none(), min_size=1, max_size=8))
def test_observed_cells_stay_the_same_to_the_bit(cells: list[float | None]) -> None:
    column = np.array([np.nan if c is None else c for c in cells])
    holes = np.isnan(column)
    draws = Imputations(pd.DataFrame({"x": column}), {"x": np.full((2, holes.sum()), 7.5)}, m=2)
    completed = draws[1]["x"].to_numpy()
    assert completed[~holes].tobytes() == column[~holes].tobytes()
    assert (completed[holes] == 7.5).all()


def test_a_table_without_missing_cells_is_every_completed_table(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [1, 2], "y": ["a", "b"]})
    draws = Imputations(frame, {}, m=2)
    assert draws.values == {}
    for table in draws:
        assert_identical(table, frame)
    assert draws.cells().shape == (0, len(mixed().cells().columns))
    assert draws.cells().columns.tolist() == mixed().cells().columns.tolist()
    draws.save(tmp_path / "draws")
    assert Imputations.load(tmp_path / "draws") == draws


def test_arguments_are_copied_and_values_are_read_only() -> None:
    frame, values = pd.DataFrame({"x": [1.0, np.nan]}), np.array([[2.0]])
    draws = Imputations(frame, {"x": values}, m=1)
    frame.loc[0, "x"] = values[0, 0] = -1.0
    assert draws[0]["x"].tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="read-only"):
        draws.values["x"][0, 0] = 0.0


def test_columns_are_in_the_tables_order_and_numbers_are_widened() -> None:
    frame = pd.DataFrame({"a": [np.nan], "b": [np.nan], "c": [0.0]})
    values = {
        "b": np.array([[2]], dtype="int8"),
        "a": np.array([[1]], dtype="float32"),
        "c": np.empty((1, 0)),
    }
    draws = Imputations(frame, values, m=1)
    assert {label: array.dtype.name for label, array in draws.values.items()} == {
        "a": "float64",
        "b": "int64",
    }


def test_equality_compares_the_table_the_draws_and_m() -> None:
    draws = mixed()
    other = {**draws.values, "mass": draws.values["mass"] + 1}
    assert draws == mixed()
    assert draws != Imputations(draws.frame, other, m=3)
    assert draws != Imputations(draws.frame.rename(columns={"species": "kind"}), draws.values, m=3)
    assert draws != Imputations(draws.frame, {k: v[:2] for k, v in draws.values.items()}, m=2)
    assert draws != "draws"


def test_equality_compares_the_columns_that_have_draws() -> None:
    frame = pd.DataFrame({"x": [1.0, None], "y": [None, 2.0]})
    of_x, of_y, of_none = (
        Imputations(frame, {label: [[3.0]] for label in labels}, m=1, may_stay_missing={"x", "y"})
        for labels in ("x", "y", "")
    )
    assert of_x != of_y and of_x != of_none and of_x == copy.deepcopy(of_x)


def test_it_can_be_sent_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(mixed())) == mixed() == copy.deepcopy(mixed())


# -------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, r"column 'x' has 2 missing cells, but values has no draws for it"),
        (
            {"x": np.zeros((2, 3))},
            r"column 'x': draws must have shape \[m, n_missing\] = \[2, 2\], got \[2, 3\]",
        ),
        ({"x": np.zeros((3, 2))}, r"= \[2, 2\], got \[3, 2\]"),
        ({"x": np.zeros(2)}, r"= \[2, 2\], got \[2\]"),
        ({"x": np.zeros((2, 2)), "y": np.zeros((2, 1))}, r"column 'y': .* = \[2, 0\], got \[2, 1\]"),
        (
            {"x": np.zeros((2, 2)), "z": np.zeros((2, 1))},
            r"draws for column 'z', but the table has \['x', 'y'\]",
        ),
        (
            {"x": np.zeros((2, 2), complex)},
            r"column 'x': draws must be float, int, bool, time or object, got complex128",
        ),
        (
            {"x": np.array([[1, 2], [np.nan, 3]])},
            r"column 'x': imputation 1 of missing cell 0 is itself missing",
        ),
    ],
)
def test_draws_that_do_not_fit_the_table(values: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Imputations(pd.DataFrame({"x": [np.nan, 1.0, np.nan], "y": [1.0, 2.0, 3.0]}), values, m=2)


@pytest.mark.parametrize("m", [0, -1])
def test_m_below_one(m: int) -> None:
    with pytest.raises(ValueError, match=f"m, the number of imputations, must be at least 1, got {m}"):
        Imputations(pd.DataFrame({"x": [1.0]}), {}, m=m)


def test_m_that_is_no_integer() -> None:
    with pytest.raises(TypeError, match=r"m, the number of imputations, must be an integer, got 2\.0"):
        Imputations(pd.DataFrame({"x": [1.0]}), {}, m=2.0)  # type: ignore[arg-type]


def test_a_draw_that_is_not_a_category() -> None:
    with pytest.raises(
        ValueError, match=r"column 'x': draws must be among the categories \['b', 'a'\], got 'c'"
    ):
        one_column(pd.Categorical(["a", None], categories=["b", "a"]), np.array([["a"], ["c"]], dtype=object))


def test_column_labels_that_are_not_unique() -> None:
    with pytest.raises(ValueError, match="column labels must be unique, 'x' occurs more than once"):
        Imputations(pd.DataFrame([[1.0, 2.0]], columns=["x", "x"]), {}, m=1)


# ------------------------------------------------------------------------------------------------------ cells


def test_cells_of_a_table_counted_by_hand() -> None:
    nan, share = np.nan, 2 / 3
    expected = pd.DataFrame(
        [
            # draws 1, 2, 6: mean 3, squared deviations 4 + 1 + 9 over 2; the 5 % point is a tenth of the way
            ["b", "mass", 3.0, np.sqrt(7.0), 1.1, 2.0, 5.6, None, nan],
            ["d", "mass", 5.0, 0.0, 5.0, 5.0, 5.0, None, nan],
            ["b", "sex", nan, nan, nan, nan, nan, FEMALE, share],
            # draws 3, 9, 3: mean 5, squared deviations 4 + 16 + 4 over 2
            ["c", "count", 5.0, np.sqrt(12.0), 3.0, 3.0, 8.4, 3, share],
            # draws 1, 0, 0: mean 1/3, squared deviations 4/9 + 1/9 + 1/9 over 2
            ["a", "seen", 1 / 3, np.sqrt(1 / 3), 0.0, 0.0, 0.9, False, share],
        ],
        columns=["row", "column", "mean", "sd", "q05", "q50", "q95", "mode", "mode_share"],
    ).astype({"mode": object})
    pd.testing.assert_frame_equal(mixed().cells(), expected)


def test_one_imputation_has_no_standard_deviation() -> None:
    cells = one_column([1.0, np.nan], [[4.0]]).cells()
    assert np.isnan(cells.loc[0, "sd"])
    assert cells.loc[0, ["mean", "q05", "q50", "q95"]].tolist() == [4.0] * 4


@pytest.mark.parametrize(
    ("column", "first"),
    [
        (pd.Categorical([None], categories=["b", "a"]), "b"),  # the order of the categories
        (pd.Series([None], dtype=object), "a"),  # no order of their own: sorted
    ],
)
def test_the_mode_of_a_tie_is_the_first_in_order(column: object, first: str) -> None:
    cells = one_column(column, np.array([["a"], ["b"]], dtype=object)).cells()
    assert cells.loc[0, ["mode", "mode_share"]].tolist() == [first, 0.5]


@given(st.lists(st.lists(st.integers(-2, 2), min_size=3, max_size=3), min_size=1, max_size=9))
def test_the_mode_is_the_most_frequent_draw(rows: list[list[int]]) -> None:
    cells = one_column(pd.array([None] * 3, dtype="Int64"), rows).cells()
    for i, (mode, share) in enumerate(zip(cells["mode"], cells["mode_share"], strict=True)):
        counts = Counter(row[i] for row in rows)
        most = max(counts.values())
        assert mode == min(value for value, n in counts.items() if n == most)
        assert share == most / len(rows)


def test_row_labels_of_several_levels_are_tuples() -> None:
    index = pd.MultiIndex.from_tuples([("p", 1), ("p", 2)], names=["patient", "visit"])
    draws = Imputations(pd.DataFrame({"x": [1.0, np.nan]}, index=index), {"x": np.array([[0.0]])}, m=1)
    assert draws.cells()["row"].tolist() == [("p", 2)]


# ---------------------------------------------------------------------------------------------- save and load

ROUND_TRIPS = {
    "float64": ([0.1, np.nan], [[1 / 3], [np.inf]]),
    "float32": (np.array([0.1, np.nan], dtype="float32"), [[0.5]]),
    "Float64": (pd.array([0.1, None], dtype="Float64"), [[0.5]]),
    "Int64 beyond float64": (pd.array([2**53 + 1, None], dtype="Int64"), [[2**53 + 3]]),
    "UInt8": (pd.array([255, None], dtype="UInt8"), [[0]]),
    "boolean": (pd.array([True, None], dtype="boolean"), [[False]]),
    "str": (pd.Series(["ä", None], dtype="str"), [["ö"], ["ä"]]),
    "string": (pd.array(["a", None], dtype="string"), [["b"]]),
    "string[python]": (pd.array(["a", None], dtype="string[python]"), [["b"]]),
    "int64[pyarrow]": (pd.array([1, None], dtype="int64[pyarrow]"), [[2]]),
    "object None": (pd.Series(["a", None], dtype=object), [["b"]]),
    "object NaN": (pd.Series(["a", np.nan], dtype=object), [["b"]]),
    "object NA": (pd.Series([True, pd.NA], dtype=object), [[True]]),
    "object int": (pd.Series([1, None], dtype=object), [[2]]),
    "categories unordered": (pd.Categorical(["b", None], categories=["c", "b", "a"]), [["a"], ["c"]]),
    "categories ordered": (pd.Categorical(["b", None], categories=["c", "b"], ordered=True), [["c"]]),
    "categories int": (pd.Categorical([2, None], categories=[3, 2, 1]), [[1]]),
    "categories float": (pd.Categorical([2.5, None], categories=[3.0, 2.5]), [[3.0]]),
    "categories bool": (pd.Categorical([True, None], categories=[True, False]), [[False]]),
    "all missing": ([np.nan, np.nan], [[1.0, 2.0]]),
}


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_every_dtype_comes_back_equal(name: str, tmp_path: Path) -> None:
    column, draws = ROUND_TRIPS[name]
    saved = one_column(column, np.array(draws, dtype=object) if isinstance(draws[0][0], str) else draws)
    saved.save(tmp_path / "draws")
    loaded = Imputations.load(tmp_path / "draws")
    assert loaded == saved
    assert_identical(loaded.frame, saved.frame)
    for before, after in zip(saved, loaded, strict=True):
        assert_identical(before, after)


COMPLETE_COLUMNS = {
    "datetime": pd.to_datetime(["2020-01-01", None]).tz_localize("Europe/Madrid"),
    "timedelta": pd.to_timedelta([1, None], unit="s"),
    "intervals": pd.cut([1.0, 3.0], 2),
    "dates": pd.Series([datetime.date(2020, 1, 1), pd.NaT], dtype=object),
    "decimals": pd.Series([Decimal("0.10"), None], dtype=object),
    "mixed": pd.Series([1, "a"], dtype=object),
    "tuples": pd.Series([(1, "a"), (pd.Timestamp("2020"), None)], dtype=object),
}


@pytest.mark.parametrize("name", COMPLETE_COLUMNS)
def test_complete_columns_of_other_dtypes_are_stored(name: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": COMPLETE_COLUMNS[name]})
    write_frame(tmp_path / "frame.parquet", frame)
    assert_identical(read_frame(tmp_path / "frame.parquet"), frame)


INDEXES = {
    "range": pd.RangeIndex(3, 7, 2, name="r"),
    "int": pd.Index([5, 5], name="x"),
    "Int64": pd.Index([1, None], dtype="Int64"),
    "str": pd.Index(["a", "b"], name=("a", 1)),
    "object": pd.Index(["a", None], dtype=object),
    "tuples": pd.Index([("a", 1), ("b", 2)], tupleize_cols=False),
    "categories": pd.CategoricalIndex(["u", "v"], categories=["w", "v", "u"], name="c"),
    "time": pd.DatetimeIndex(["2020", "2022"], name="when"),
    "levels": pd.MultiIndex.from_arrays(
        [["a", "b"], pd.Categorical([1, 0], categories=[1, 0])], names=["p", None]
    ),
    "levels named by numbers": pd.MultiIndex.from_tuples([("a", 1), ("a", 2)], names=[1, 0]),
    "levels of one name": pd.MultiIndex.from_tuples([("a", 1), ("a", 2)], names=["p", "p"]),
}


@pytest.mark.parametrize("name", INDEXES)
def test_every_index_comes_back_equal(name: str, tmp_path: Path) -> None:
    draws = Imputations(
        pd.DataFrame({"x": [1.0, np.nan]}, index=INDEXES[name]), {"x": np.array([[2.0]])}, m=1
    )
    draws.save(tmp_path / "draws")
    loaded = Imputations.load(tmp_path / "draws")
    assert loaded == draws
    assert_identical(loaded.frame, draws.frame)


@pytest.mark.parametrize(
    "columns",
    [
        pd.RangeIndex(2),
        pd.Index(["1", 1]),
        pd.Index(["a", "b"], name="vars"),
        pd.Index(["a", "b"], dtype=object),
    ],
    ids=["range", "text and number", "named", "object"],
)
def test_column_labels_come_back_equal(columns: pd.Index, tmp_path: Path) -> None:
    draws = Imputations(pd.DataFrame([[1.0, np.nan]], columns=columns), {columns[1]: np.array([[2.0]])}, m=1)
    draws.save(tmp_path / "draws")
    loaded = Imputations.load(tmp_path / "draws")
    assert loaded == draws
    assert_identical(loaded.frame, draws.frame)


def test_a_table_without_rows_or_columns_comes_back(tmp_path: Path) -> None:
    for i, frame in enumerate([pd.DataFrame({"x": []}), pd.DataFrame(index=["a"]), pd.DataFrame()]):
        write_frame(tmp_path / f"{i}.parquet", frame)
        assert_identical(read_frame(tmp_path / f"{i}.parquet"), frame)


def test_summaries_are_identical_after_loading(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(40, 30)).T  # columns first in memory
    draws = Imputations(pd.DataFrame({"x": [np.nan] * 40 + [0.0]}), {"x": values}, m=30)
    draws.save(tmp_path / "draws")
    pd.testing.assert_frame_equal(
        Imputations.load(tmp_path / "draws").cells(), draws.cells(), check_exact=True
    )


def test_the_folder_holds_three_open_formats_and_a_header(tmp_path: Path) -> None:
    mixed().save(tmp_path / "deep" / "draws")
    folder = tmp_path / "deep" / "draws"
    assert sorted(p.name for p in folder.iterdir()) == ["draws.safetensors", "frame.parquet", "header.json"]
    header = json.loads((folder / "header.json").read_text())
    assert header["format"] == "pyro_mgp.Imputations"
    assert (header["format_version"], header["m"], len(header["columns"])) == (3, 3, 4)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([{1}, {2}], r"column '0: x': a value of type set cannot be stored: \{1\}"),
        ([1j, 2j], r"the table cannot be stored as Parquet: .*column 0: x.* complex128"),
        (pd.arrays.SparseArray([1.0, 0.0]), r"cannot be stored as Parquet: Sparse .*column 0: x"),
    ],
)
def test_objects_that_cannot_be_stored_are_named_and_nothing_is_written(
    column: object, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        Imputations(pd.DataFrame({"x": column}), {}, m=1).save(tmp_path / "draws")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_kept_unless_overwrite(tmp_path: Path) -> None:
    old, new = one_column([np.nan], [[1.0]]), one_column([np.nan], [[2.0]])
    old.save(tmp_path / "draws")
    with pytest.raises(
        ValueError, match=r"'.*draws' exists already: choose another path, or pass overwrite=True"
    ):
        new.save(tmp_path / "draws")
    assert Imputations.load(tmp_path / "draws") == old
    new.save(tmp_path / "draws", overwrite=True)
    assert Imputations.load(tmp_path / "draws") == new
    assert [p.name for p in tmp_path.iterdir()] == ["draws"]


def test_a_folder_of_somebody_else_is_never_overwritten(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    mixed().save(home, overwrite=True)  # empty: nothing is lost
    (home / "header.json").unlink()
    with pytest.raises(ValueError, match="was not written by pyro_mgp, so it is not overwritten"):
        mixed().save(home, overwrite=True)
    (tmp_path / "file").write_text("precious")
    with pytest.raises(ValueError, match="was not written by pyro_mgp"):
        mixed().save(tmp_path / "file", overwrite=True)
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_failure_in_the_middle_leaves_what_was_there(
    overwrite: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if overwrite:
        mixed().save(tmp_path / "draws")

    def fail(path: Path, arrays: object) -> None:
        path.write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr("pyro_mgp.results.imputations.write_arrays", fail)
    with pytest.raises(OSError, match="no space left"):
        one_column([np.nan], [[1.0]]).save(tmp_path / "draws", overwrite=overwrite)
    assert [p.name for p in tmp_path.iterdir()] == ["draws"] * overwrite
    assert not overwrite or Imputations.load(tmp_path / "draws") == mixed()


def test_a_failed_swap_puts_the_old_folder_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mixed().save(tmp_path / "draws")
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if self.suffix == ".partial":
            raise OSError("device is gone")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="device is gone"):
        mixed().save(tmp_path / "draws", overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == ["draws"]
    assert Imputations.load(tmp_path / "draws") == mixed()


def damage(folder: Path, how: str) -> None:
    """Spoil a saved folder: 'cut x' halves the file x, 'lose x' removes it, JSON changes the header."""
    verb, _, name = how.partition(" ")
    if verb == "cut":
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])
    elif verb == "lose":
        (folder / name).unlink()
    else:
        header = json.loads((folder / "header.json").read_text())
        (folder / "header.json").write_text(json.dumps({**header, **json.loads(how)}))
        sign(folder)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("cut header.json", "header.json' is damaged or cut short"),
        ("cut draws.safetensors", "draws.safetensors' is damaged or cut short"),
        ("cut frame.parquet", "frame.parquet' is damaged or cut short"),
        ("lose header.json", "was not written by Imputations.save: it has no header.json"),
        ("lose draws.safetensors", "draws.safetensors' is missing: the folder is incomplete"),
        ("lose frame.parquet", "frame.parquet' is missing: the folder is incomplete"),
        ('{"format": "pyro_mgp.MGPImputer"}', "holds 'pyro_mgp.MGPImputer', expected 'pyro_mgp.Imputations'"),
        (
            '{"format_version": 9, "package_version": "9.9"}',
            r"has format version 9, this program reads 3: load it with pyro_mgp 9\.9, which",
        ),
        (
            '{"m": 4}',
            r"do not fit together: expected draws of the shapes .*\(4, 2\).*, got .*\(3, 2\)",
        ),
        ('{"columns": [{"label": "mass", "array": "9"}]}', "do not fit together: '9'"),
    ],
)
def test_a_damaged_folder_raises_an_error_that_names_the_damage(
    how: str, message: str, tmp_path: Path
) -> None:
    mixed().save(tmp_path / "draws")
    damage(tmp_path / "draws", how)
    with pytest.raises(ValueError, match=message):
        Imputations.load(tmp_path / "draws")


def test_loading_an_absent_or_foreign_folder(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"there is no folder '.*nowhere': expected one written by Imputations.save"
    ):
        Imputations.load(tmp_path / "nowhere")
    (tmp_path / "header.json").write_text("[1, 2]")
    with pytest.raises(ValueError, match=r"holds None, expected 'pyro_mgp\.Imputations'"):
        Imputations.load(tmp_path)
    pd.DataFrame({"x": [1]}).to_parquet(tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="is a Parquet file, but not one that pyro_mgp wrote"):
        read_frame(tmp_path / "x.parquet")


def test_arrays_keep_their_shape_dtype_and_order(tmp_path: Path) -> None:
    arrays = {"scalar": np.array(1.5), "turned": np.arange(6).reshape(2, 3).T, "none": np.empty((2, 0), bool)}
    write_arrays(tmp_path / "x.safetensors", arrays)
    loaded = read_arrays(tmp_path / "x.safetensors")
    for name, array in arrays.items():
        np.testing.assert_array_equal(loaded[name], array, strict=True)


# ----------------------------------------------------------------------------------------------- write_tables


def test_csv_tables_are_what_pandas_reads_back(tmp_path: Path) -> None:
    draws = one_column([1.5, np.nan], [[2.25], [1 / 3]])
    paths = draws.write_tables(tmp_path / "out")
    assert [p.name for p in paths] == ["imputation_01.csv", "imputation_02.csv"]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["imputation_01.csv", "imputation_02.csv"]
    assert paths[0].read_text() == "x\n1.5\n2.25\n"
    for path, table in zip(paths, draws, strict=True):
        assert_identical(pd.read_csv(path), table)


@pytest.mark.parametrize(
    ("index", "first_line"),
    [(pd.Index([7, 8]), ",x"), (pd.RangeIndex(2, name="id"), "id,x"), (pd.RangeIndex(1, 3), ",x")],
)
def test_csv_keeps_an_index_other_than_row_numbers(index: pd.Index, first_line: str, tmp_path: Path) -> None:
    draws = Imputations(pd.DataFrame({"x": [1.0, np.nan]}, index=index), {"x": np.array([[2.0]])}, m=1)
    assert draws.write_tables(tmp_path)[0].read_text().splitlines()[0] == first_line


def test_parquet_tables_keep_dtypes(tmp_path: Path) -> None:
    paths = mixed().write_tables(tmp_path, suffix="parquet")
    assert paths[2] == tmp_path / "imputation_03.parquet"
    assert_identical(pd.read_parquet(paths[2]), mixed()[2])


def test_numbers_are_padded_to_the_width_of_m(tmp_path: Path) -> None:
    paths = Imputations(pd.DataFrame({"x": [1.0]}), {}, m=100).write_tables(tmp_path)
    assert [paths[0].name, paths[99].name] == ["imputation_001.csv", "imputation_100.csv"]


def test_tables_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"suffix must be one of \('csv', 'parquet'\), got 'xlsx'"):
        mixed().write_tables(tmp_path, suffix="xlsx")  # type: ignore[arg-type]
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="file' is a file, expected a folder to write the tables into"):
        mixed().write_tables(tmp_path / "file")
    odd = Imputations(pd.DataFrame({"x": pd.Series([1, "a"], dtype=object)}), {}, m=1)
    with pytest.raises(ValueError, match=r"cannot be written as Parquet: .*column x.* Write it as CSV"):
        odd.write_tables(tmp_path, suffix="parquet")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    mixed().write_tables(tmp_path)
    with pytest.raises(
        ValueError, match=r"holds imputations already, 'imputation_01.csv': choose another folder"
    ):
        mixed().write_tables(tmp_path, suffix="parquet")


def test_r_reads_the_long_format_of_mice() -> None:
    """R's mice pooled `mids.csv`, see `golden/analyses`: as it pools the completed tables."""
    folder = Path(__file__).parents[1] / "golden" / "analyses"
    long = pd.read_csv(folder / "tables.csv")
    tables = [table.drop(columns="imp").reset_index(drop=True) for _, table in long.groupby("imp")]
    found = imputations(tables).to_mice()
    pd.testing.assert_frame_equal(found, pd.read_csv(folder / "mids.csv"), check_dtype=False)
    golden = pd.read_csv(folder / "pooled.csv", skipinitialspace=True).set_index("analysis")
    pd.testing.assert_frame_equal(
        golden.loc["mids"].reset_index(drop=True), golden.loc["ols"].reset_index(drop=True)
    )
    for j, table in enumerate(tables, start=1):
        rows = found[found[".imp"] == j].reset_index(drop=True)
        pd.testing.assert_frame_equal(rows[table.columns], table, check_dtype=False)


def test_columns_that_mice_reserves_are_an_error() -> None:
    draws = Imputations(pd.DataFrame({".id": [1.0, np.nan]}), {".id": [[2.0]]}, m=1)
    with pytest.raises(ValueError, match=r"has a column '\.id', which mice reserves: rename it"):
        draws.to_mice()
