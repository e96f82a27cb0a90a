"""Tables: cells come back as they went in, and errors say what to do."""

from __future__ import annotations

import datetime
import json
import warnings
from collections import namedtuple
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_mgp.data.cells import complete
from pyro_mgp.data.codecs import ColumnCodec, codec_from_dict, fit_column
from pyro_mgp.data.column_spec import ColumnSpec, Kind, Label
from pyro_mgp.data.encoded_table import row_keys
from pyro_mgp.data.table import TableCodec, TableWarning, as_frame, missing

NAN = np.nan


def penguins() -> pd.DataFrame:
    """One column of each kind, a hole in each, an index of text."""
    return pd.DataFrame(
        {
            "mass": [1.0, 3.0, NAN, 5.0],
            "age": pd.array([2, 4, 4, None], dtype="Int64"),
            "female": pd.array([True, None, False, True], dtype="boolean"),
            "species": ["Gentoo", "Adelie", "Adelie", None],
        },
        index=["a", "b", "c", "d"],
    )


def beside(column: pd.Series[Any]) -> pd.DataFrame:
    """A table of ``column``, named x, and another, which makes it one that can be fitted."""
    return pd.DataFrame({"x": column, "other": np.arange(len(column), dtype=np.float64)}, index=column.index)


def fit_x(column: pd.Series[Any]) -> ColumnCodec:
    return TableCodec.fit(beside(column)).columns[0]


def decoded_holes(codec: TableCodec, full: pd.DataFrame, holed: pd.DataFrame) -> dict[Label, np.ndarray]:
    """The cells of ``full`` that ``holed`` lacks, after a trip through the numbers."""
    values, holes = codec.encode(full).values, missing(holed)
    return {
        column.name: column.decode(values[holes[:, j], codec.slices[column.name]])
        for j, column in enumerate(codec.columns)
    }


def through_json(codec: TableCodec) -> TableCodec:
    states = json.loads(json.dumps([column.to_dict() for column in codec.columns]))
    return TableCodec(tuple(map(codec_from_dict, states)))


# --------------------------------------------------------------------------------------------- typed by hand


def test_a_small_table_encodes_as_typed_by_hand() -> None:
    codec = TableCodec.fit(penguins())
    table = codec.encode(penguins())
    # Means 3, 10/3, 2/3, 2/3, 1/3; standard deviations m, a, f, f, f.
    m, a, f = np.sqrt(8 / 3), np.sqrt(8 / 9), np.sqrt(2) / 3
    expected = np.array(
        [
            [-2 / m, (-4 / 3) / a, (1 / 3) / f, (-2 / 3) / f, (2 / 3) / f],
            [0.0, (2 / 3) / a, NAN, (1 / 3) / f, (-1 / 3) / f],
            [NAN, (2 / 3) / a, (-2 / 3) / f, (1 / 3) / f, (-1 / 3) / f],
            [2 / m, NAN, (1 / 3) / f, NAN, NAN],
        ]
    )
    np.testing.assert_allclose(table.to_numpy(), expected, rtol=0, atol=1e-14)
    np.testing.assert_array_equal(table.observed, ~np.isnan(expected))
    assert (table.values.dtype, table.observed.dtype, table.keys.dtype) == (
        torch.float64,
        torch.bool,
        torch.int64,
    )
    assert codec.names == ("mass", "age", "female", "species=Adelie", "species=Gentoo")
    assert codec.n_encoded == 5
    assert list(codec.slices.items()) == [
        ("mass", slice(0, 1)),
        ("age", slice(1, 2)),
        ("female", slice(2, 3)),
        ("species", slice(3, 5)),
    ]
    assert codec.groups.tolist() == [0, 1, 2, 3, 3]
    np.testing.assert_allclose(codec.raw_scale, [m, a, f, f, f], rtol=1e-14)


def test_a_small_table_completes_as_typed_by_hand() -> None:
    frame = penguins()
    cells = {
        "mass": np.array([2.25]),
        "age": np.array([7]),
        "female": np.array([False]),
        "species": np.array(["Gentoo"], dtype=object),
    }
    expected = pd.DataFrame(
        {
            "mass": [1.0, 3.0, 2.25, 5.0],
            "age": pd.array([2, 4, 4, 7], dtype="Int64"),
            "female": pd.array([True, False, False, True], dtype="boolean"),
            "species": ["Gentoo", "Adelie", "Adelie", "Gentoo"],
        },
        index=["a", "b", "c", "d"],
    )
    pd.testing.assert_frame_equal(complete(frame, cells), expected)
    pd.testing.assert_frame_equal(frame, penguins())


def splitmix64(state: int) -> int:
    """One output of the generator, in Python's integers; its published first output checks it."""
    modulus = 2**64
    z = (state + 0x9E3779B97F4A7C15) % modulus
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % modulus
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % modulus
    return z ^ (z >> 31)


def test_row_keys_are_splitmix64_of_cells_and_rank() -> None:
    assert splitmix64(0) == 0xE220A8397B1DCDAF
    values = np.array([[0.0, -1.5], [0.0, -1.5], [2.0, NAN]])
    keys = row_keys(values, pd.Index(["a", "b", "c"])).tolist()
    twins = splitmix64(splitmix64(0) ^ (2**64 - 1_500_000))
    first, second = splitmix64(twins), splitmix64((twins + 0x9E3779B97F4A7C15) % 2**64)
    alone = splitmix64(splitmix64(splitmix64(2_000_000) ^ 2**63))
    # pandas' hash of "b" is below that of "a": a change there would change imputations of equal rows.
    assert keys == [second, first, alone]


# -------------------------------------------------------------------------------------- as_frame and missing


def test_as_frame_passes_a_frame_through() -> None:
    frame = penguins()
    assert as_frame(frame) is frame


@pytest.mark.parametrize(
    "X",
    [
        np.array([[1.0, 2.0], [3.0, NAN]]),
        np.array([[1, "a"], [None, "b"]], dtype=object),
        [[1, "a"], (2, None)],
        ((1, 2), np.array([3, 4])),
        [namedtuple("Row", "a b")(1, 2)],
    ],
)
def test_as_frame_names_the_columns_of_an_array(X: Any) -> None:
    frame = as_frame(X)
    assert frame.columns.tolist() == ["x0", "x1"]
    for row, expected in zip(frame.itertuples(index=False), X, strict=True):
        assert [None if pd.isna(c) else c for c in row] == [None if pd.isna(c) else c for c in expected]


@pytest.mark.parametrize(
    ("X", "came"),
    [
        (np.arange(3.0), r"an array of shape \(3,\)"),
        (np.zeros((2, 2, 2)), r"an array of shape \(2, 2, 2\)"),
        (pd.Series([1.0]), "Series"),
        ([[1, 2], [3]], "list"),
        ([1, 2], "list"),
        ([np.zeros((2, 2))], "list"),
        ({"a": [1]}, "dict"),
        (None, "NoneType"),
    ],
)
def test_as_frame_refuses_anything_else(X: object, came: str) -> None:
    error = ValueError if isinstance(X, np.ndarray) else TypeError
    with pytest.raises(error, match=f"Expected a table: a DataFrame.*got {came}"):
        as_frame(X)


def test_missing_knows_every_sign_of_a_hole() -> None:
    frame = pd.DataFrame(
        {
            "object": pd.Series([1, None, NAN, pd.NA, pd.NaT], dtype=object),
            "nullable": pd.array([1, None, 3, 4, 5], dtype="Int8"),
            "text": ["a", "b", None, "d", ""],
            "category": pd.Categorical(["a", "b", "c", None, "a"]),
        }
    )
    expected = [[0, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1], [1, 0, 0, 0]]
    np.testing.assert_array_equal(missing(frame), np.array(expected, dtype=bool))
    assert missing(pd.DataFrame(index=[0, 1])).shape == (2, 0)


# ------------------------------------------------------------------------------------------ kinds and dtypes

DAYS = [pd.Timestamp(day) for day in ("2024-02-28", "1969-07-20", "1969-07-20", "2026-01-01 12:30:00.000001")]
HOURS = [pd.Timedelta(hours=hours) for hours in (0, -2, -2, 1.5)]

COLUMNS = [
    ([1, 2, 2, 4], "int64", Kind.INTEGER),
    ([1, 2, 2, 4], "uint8", Kind.INTEGER),
    ([1, 2, 2, 4], "Int16", Kind.INTEGER),
    ([1, 2, 2, 4], object, Kind.INTEGER),
    ([1.0, 2.0, 2.0, 4.0], "float64", Kind.CONTINUOUS),
    ([1.0, 2.5, 2.0, 4.0], "float32", Kind.CONTINUOUS),
    ([1.0, 2.5, 2.0, 4.0], "Float64", Kind.CONTINUOUS),
    ([1, 2.5, 2, 4.0], object, Kind.CONTINUOUS),
    ([True, False, True, True], "bool", Kind.BOOLEAN),
    ([True, False, True, True], "boolean", Kind.BOOLEAN),
    ([True, False, np.bool_(True), True], object, Kind.BOOLEAN),
    (["b", "a", "a", "c"], "str", Kind.CATEGORICAL),
    (["b", "a", "a", "c"], "string", Kind.CATEGORICAL),
    (["b", "a", "a", "c"], object, Kind.CATEGORICAL),
    (["b", "a", "a", "c"], "category", Kind.CATEGORICAL),
    ([3, 1, 1, 2], "category", Kind.CATEGORICAL),
    ([0.5, 1.5, 1.5, 2.0], "category", Kind.CATEGORICAL),
    ([True, False, True, True], "category", Kind.CATEGORICAL),
    ([1, 2, 2, 4], "int64[pyarrow]", Kind.INTEGER),
    ([1.0, 2.5, 2.0, 4.0], "double[pyarrow]", Kind.CONTINUOUS),
    ([1.0, 2.5, 2.0, 4.0], "float[pyarrow]", Kind.CONTINUOUS),
    ([True, False, True, True], "bool[pyarrow]", Kind.BOOLEAN),
    (["b", "a", "a", "c"], "string[pyarrow]", Kind.CATEGORICAL),
    (["b", "a", "a", "c"], "large_string[pyarrow]", Kind.CATEGORICAL),
    (["b", "a", "a", "c"], pd.CategoricalDtype(["c", "a", "b"], ordered=True), Kind.ORDERED),
    ([3, 1, 1, 2], pd.CategoricalDtype([1, 2, 3, 4], ordered=True), Kind.ORDERED),
    *[
        (DAYS, dtype, Kind.DATETIME)
        for dtype in ("datetime64[ns]", "datetime64[s]", "timestamp[us][pyarrow]")
    ],
    ([day.tz_localize("Asia/Tokyo") for day in DAYS], "datetime64[us, Asia/Tokyo]", Kind.DATETIME),
    ([day.tz_localize("Asia/Tokyo") for day in DAYS], "timestamp[us, tz=Asia/Tokyo][pyarrow]", Kind.DATETIME),
    *[
        (HOURS, dtype, Kind.DURATION)
        for dtype in ("timedelta64[ns]", "timedelta64[ms]", "duration[us][pyarrow]")
    ],
    ([4.0, 4.0, 4.0, 4.0], "float64", Kind.CONSTANT),
    ([4, 4, 4, 4], "Int64", Kind.CONSTANT),
    ([True, True, True, True], "boolean", Kind.CONSTANT),
    (["a", "a", "a", "a"], "category", Kind.CONSTANT),
    ([DAYS[0]] * 4, "datetime64[ns]", Kind.CONSTANT),
]


@pytest.mark.parametrize(("cells", "dtype", "kind"), COLUMNS)
def test_every_dtype_has_a_kind_and_goes_round(cells: list[Any], dtype: Any, kind: Kind) -> None:
    full = pd.Series(cells, dtype=dtype, name="x")
    codec = TableCodec.fit(beside(full))
    x = codec.columns[0]
    assert (x.kind, x.dtype) == (kind, str(full.dtype))
    if kind not in (Kind.DATETIME, Kind.DURATION):
        assert x.decode(x.encode(full)).tolist() == cells
    holed = full.copy()
    if not (isinstance(full.dtype, np.dtype) and full.dtype.kind in "iub"):  # these cannot have holes
        holed[[1, 3]] = None
        assert holed.isna().sum() == 2
    assert holed.dtype == full.dtype
    table = beside(holed)
    completed = complete(table, decoded_holes(codec, beside(full), table))
    pd.testing.assert_frame_equal(completed, beside(full), check_exact=True)
    if dtype is object:
        plain = [cell.item() if isinstance(cell, np.generic) else cell for cell in cells]
        types = [float, float] if kind is Kind.CONTINUOUS else [type(plain[1]), type(plain[3])]
        assert [type(cell) for cell in completed["x"][[1, 3]]] == types


def test_levels_are_the_observed_ones_in_a_fixed_order() -> None:
    dtype = pd.CategoricalDtype(["small", "medium", "large", "huge"], ordered=True)
    sizes = fit_x(pd.Series(["large", "small", None, "large"], dtype=dtype))
    assert sizes.levels == ("small", "large")
    assert (sizes.kind, sizes.names, sizes.shares) == (Kind.ORDERED, ("x",), (1 / 3, 2 / 3))
    colours = fit_x(
        pd.Series(["red", "blue", None, "red"], dtype=pd.CategoricalDtype(["red", "blue", "green"]))
    )
    assert (colours.kind, colours.names) == (Kind.CATEGORICAL, ("x=red", "x=blue"))
    assert fit_x(pd.Series(["b", "a", None, "B"])).levels == ("B", "a", "b")


def test_integer_labels_name_columns_too() -> None:
    codec = TableCodec.fit(pd.DataFrame({7: [1.0, 2.0], 3: ["u", "v"]}))
    assert codec.names == ("7", "3=u", "3=v")
    assert codec.slices == {7: slice(0, 1), 3: slice(1, 3)}


# ---------------------------------------------------------------------------------------------------- decode


def test_integers_are_rounded_and_kept_within_the_observed_range() -> None:
    codec = fit_x(pd.Series([-3, 0, 3]))  # mean 0, sd √6
    raw = np.array([0.4, 0.6, -2.6, 1e40, -1e40, np.inf])
    decoded = codec.decode(raw[:, None] / 6**0.5)
    assert decoded.dtype == np.int64
    assert decoded.tolist() == [0, 1, -3, 3, -3, 3]
    assert codec.ordinal() is None


def test_integers_of_two_values_are_one_of_them() -> None:
    codec = fit_x(pd.Series([1, 5, 5, None], dtype="Int64"))
    off, on = codec.ordinal()[0][:, None]
    raw = (np.array([-7.0, 1.0, 2.9, 3.1, 5.0, 40.0]) - codec.mean[0]) / codec.scale[0]
    assert codec.decode(raw[:, None]).tolist() == [1, 1, 1, 5, 5, 5]
    assert codec.decode(np.stack([off, on])).tolist() == [1, 5]


def test_indicators_have_a_value_for_no_and_one_for_yes() -> None:
    codec = fit_x(pd.Series(["a", "b", "b", "b"]))
    off, on = codec.indicators
    hot = np.where(np.eye(2, dtype=bool), on, off)
    np.testing.assert_allclose(hot, codec.encode(pd.Series(["a", "b"], name="x")))
    assert fit_x(pd.Series([0.0, 1.0])).indicators is None


def test_booleans_turn_true_at_one_half_in_their_own_units() -> None:
    codec = fit_x(pd.Series([True, False, False, False]))
    half = (0.5 - 0.25) / np.sqrt(3 / 16)
    assert codec.decode([[half - 1e-9], [half + 1e-9]]).tolist() == [False, True]


def test_categories_are_compared_before_standardising() -> None:
    codec = fit_x(pd.Series(["rare"] + ["common"] * 9))
    assert codec.levels == ("common", "rare")
    # At the means the scores are .9 and .1, although the standardised values are equal.
    assert codec.decode([0.0, 0.0]) == "common"
    # One sd up for rare and down for common: .1 + .3 against .9 - .3.
    assert codec.decode([[-1.0, 1.0], [-2.0, 2.0]]).tolist() == ["common", "rare"]


@pytest.mark.parametrize("cells", [[1.0, 2.0], [1, 2], [True, False], ["a", "b"]])
def test_decode_keeps_leading_axes(cells: list[Any]) -> None:
    codec = fit_x(pd.Series(cells))
    values = np.zeros((5, 3, codec.width))
    assert codec.decode(values).shape == (5, 3)
    assert codec.decode(values[0, 0]).shape == ()
    assert codec.decode(values[:0]).shape == (0, 3)


def test_decode_refuses_nan() -> None:
    codec = fit_x(pd.Series(["a", "b"]))
    with pytest.raises(ValueError, match="Column 'x': expected numbers to decode, got NaN"):
        codec.decode([0.0, NAN])


# -------------------------------------------------------------------------------------------------- complete


def test_complete_keeps_index_columns_and_dtypes() -> None:
    index = pd.MultiIndex.from_tuples([("u", 1), ("u", 1), ("v", 2)], names=["site", "visit"])
    frame = pd.DataFrame(
        {
            2: pd.Series([0.1, NAN, 0.3], dtype="float32").to_numpy(),
            1: pd.array(["p", None, "q"], dtype="string"),
            "size": pd.Categorical([None, "l", "s"], categories=["s", "m", "l"], ordered=True),
        },
        index=index,
    )
    frame.attrs["source"] = "field book"
    completed = complete(frame, {"size": np.array(["m"]), 1: np.array(["p"]), 2: np.array([2.0])})
    pd.testing.assert_index_equal(completed.index, index)
    pd.testing.assert_index_equal(completed.columns, frame.columns)
    pd.testing.assert_series_equal(completed.dtypes, frame.dtypes)
    assert completed["size"].cat.ordered
    assert completed["size"].tolist() == ["m", "l", "s"]
    assert completed[1].tolist() == ["p", "p", "q"]
    assert completed[2].tolist() == [np.float32(0.1), 2.0, np.float32(0.3)]
    assert completed.attrs == {"source": "field book"}


def test_complete_does_not_sort_out_duplicate_index_labels() -> None:
    frame = pd.DataFrame({"a": [NAN, 1.0, NAN], "b": [1.0, 2.0, 3.0]}, index=[5, 5, 5])
    assert complete(frame, {"a": np.array([7.0, 8.0])})["a"].tolist() == [7.0, 1.0, 8.0]


def test_complete_leaves_columns_not_named_alone() -> None:
    completed = complete(penguins(), {"mass": np.array([9.0])})
    assert missing(completed).sum(axis=0).tolist() == [0, 1, 1, 1]


def test_complete_casts_and_clips_numbers_to_the_dtype() -> None:
    frame = pd.DataFrame(
        {
            "tiny": pd.array([1, None, None, None], dtype="Int8"),
            "natural": pd.array([2**64 - 1, None, None, None], dtype="UInt64"),
            "half": np.array([1.0, NAN, NAN, NAN], dtype=np.float16),
            "object": pd.Series([1, None, None, None], dtype=object),
        }
    )
    cells = np.array([1000, -1000, 7])
    completed = complete(frame, dict.fromkeys(["tiny", "natural", "object"], cells) | {"half": cells * 1e9})
    assert completed["tiny"].tolist() == [1, 127, -128, 7]
    assert completed["natural"].tolist() == [2**64 - 1, 1000, 0, 7]
    assert completed["half"].tolist() == [1.0, 65504.0, -65504.0, 65504.0]
    assert [type(cell) for cell in completed["object"]] == [int] * 4
    floats = complete(frame[["tiny"]], {"tiny": np.array([6.6, 1e30, -1e30])})
    assert floats["tiny"].tolist() == [1, 7, 127, -128]
    pd.testing.assert_series_equal(completed.dtypes, frame.dtypes)


def test_complete_never_rewrites_an_observed_cell() -> None:
    precise = 2**60 + 1  # not a float64
    odd = np.array([-0.0, 5e-324, 0.1 + 0.2, NAN])
    frame = pd.DataFrame({"n": pd.array([precise, 1, 2, None], dtype="Int64"), "x": odd})
    completed = complete(frame, {"n": np.array([3]), "x": np.array([1.0])})
    assert completed["n"].tolist() == [precise, 1, 2, 3]
    assert completed["x"].to_numpy()[:3].tobytes() == odd[:3].tobytes()


def test_an_entirely_missing_column_takes_values_its_dtype_cannot_hold() -> None:
    frame = pd.DataFrame({"text": [NAN, NAN], "flag": [NAN, NAN], "n": [NAN, NAN], "object": [None, None]})
    completed = complete(
        frame,
        {
            "text": np.array(["a", "b"], dtype=object),
            "flag": np.array([True, False]),
            "n": np.array([1, 2]),
            "object": np.array([1, 2]),
        },
    )
    assert completed["text"].tolist() == ["a", "b"]
    assert completed["flag"].dtype == bool
    assert completed["n"].dtype == np.float64  # floats hold integers, so the dtype stays
    assert completed["object"].dtype == object


def test_complete_refuses_what_does_not_fit() -> None:
    frame = penguins().astype({"species": "category"})
    with pytest.raises(ValueError, match=r"'species': dtype category cannot hold the values \['Chinstrap'\]"):
        complete(frame, {"species": np.array(["Chinstrap"])})
    with pytest.raises(ValueError, match=r"Column 'mass': dtype float64 cannot hold the values \['heavy'\]"):
        complete(frame, {"mass": np.array(["heavy"])})
    with pytest.raises(ValueError, match="Column 'female': dtype boolean cannot hold"):
        complete(frame, {"female": np.array([0.7])})


def test_a_wide_table_completes_without_a_warning() -> None:
    frame = pd.DataFrame(np.where(np.eye(150) == 1, NAN, 1.0))
    completed = complete(frame, {j: np.array([2.0]) for j in range(150)})
    np.testing.assert_array_equal(completed.to_numpy(), 1.0 + np.eye(150))


# -------------------------------------------------------------------------------------------- saving as JSON


@pytest.mark.parametrize("labels", [["a", "1"], [1, 2], [1.0, 2.5], [True, False], ["1", 1]])
def test_labels_keep_their_type_through_json(labels: list[Any]) -> None:
    dtype = pd.CategoricalDtype(labels)
    column = pd.Series(pd.Categorical(labels, dtype=dtype), name="x")
    if labels == ["1", 1]:
        with pytest.raises(ValueError, match=r"unique names, but \['x=1'\] would name more than one"):
            fit_x(column)
        return
    codec = TableCodec.fit(beside(column))
    again = through_json(codec)
    assert again == codec
    assert [type(level) for level in again.columns[0].levels or ()] == [type(label) for label in labels]
    assert again.columns[0].decode(np.eye(2)).tolist() == labels


# --------------------------------------------------------------------------------------- errors and warnings


def two(x: Any, index: Any = None) -> pd.DataFrame:
    return beside(pd.Series(x, index=index))


FIT_ERRORS: list[tuple[pd.DataFrame, type[Exception], str]] = [
    (
        pd.DataFrame([[1.0, 2.0], [2.0, 1.0]], columns=["a", "a"]),
        ValueError,
        r"names must be unique, got \['a'\] more than once",
    ),
    (
        pd.DataFrame({("a", 1): [1.0, 2.0]}),
        ValueError,
        r"labels must be text or integers, got \('a', 1\) \(tuple\)",
    ),
    (pd.DataFrame({1.5: [1.0, 2.0], "b": [1, 2]}), ValueError, r"labels must be .*got 1\.5 \(float\)"),
    (pd.DataFrame({True: [1.0, 2.0], "b": [1, 2]}), ValueError, r"labels must be .*got True \(bool\)"),
    (pd.DataFrame(), ValueError, "at least two columns, got no columns"),
    (pd.DataFrame({"a": [], "b": []}), ValueError, "at least two rows, got no rows"),
    (pd.DataFrame({"a": [1.0], "b": [2.0]}), ValueError, "at least two rows, got one row"),
    (pd.DataFrame({"a": [1.0, 2.0]}), ValueError, "at least two columns, got only one column, 'a'"),
    (two([NAN, NAN]), ValueError, r"'x' is entirely missing.*Drop it: frame\.drop\(columns=\['x'\]\)"),
    (two([None, None]), ValueError, "'x' is entirely missing"),
    (two(pd.array([None, None], dtype="Int64")), ValueError, "'x' is entirely missing"),
    (two(pd.Categorical([None, None])), ValueError, "'x' is entirely missing"),
    (
        pd.DataFrame({"x": [1.0, 2.0, NAN], "other": [3, 3, 3]}),
        ValueError,
        "'x' has missing cells, but no other column varies",
    ),
    (
        two([0.0, 1e-200]),
        ValueError,
        "'x': expected numbers that vary by at least 1e-100, got a range of 1e-200",
    ),
    (
        two([1.0, 2.0, -np.inf], ["p", "q", "r"]),
        ValueError,
        r"'x': row 'r' \(position 2\) holds -inf; expected finite numbers",
    ),
    (two([1.0, -2e100], [9, 8]), ValueError, r"'x': row 8 \(position 1\) holds -2e\+100; .*1e\+100.*Rescale"),
    (two(pd.Series([1, -(10**400)], dtype=object)), ValueError, "'x': .*beyond the range of 64-bit floats"),
    (
        two([f"id{i:03}" for i in range(101)]),
        ValueError,
        r"'x': .*at most 100 categories, got 101 .*identifier",
    ),
    (
        two(pd.Series([datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)])),
        TypeError,
        r"'x': expected numbers.*object, holding date.*pandas\.to_datetime\(frame\['x'\]\)",
    ),
    (two(pd.period_range("2020", periods=2, freq="D")), TypeError, "'x': .*period"),
    (two([1 + 2j, 2 + 1j]), TypeError, "'x': .*complex128.*real and the imaginary"),
    (two(pd.arrays.SparseArray([0.0, 1.0])), TypeError, r"'x': .*Sparse.*sparse\.to_dense"),
    (two(pd.Series([b"u", b"v"])), TypeError, r"'x': .*object, holding bytes.*drop it"),
    (
        two(pd.Series(["u", None, 5, "v"], index=list("pqrs"), dtype=object)),
        TypeError,
        r"'x' mixes types: .*got str first, but row 'r' \(position 2\) holds 5 \(int\)",
    ),
    (
        two(pd.Series([1, 2.5, True], dtype=object)),
        TypeError,
        r"'x' mixes types: .*got int first, but row 2 \(position 2\) holds True \(bool\)",
    ),
    (
        two(pd.cut([1, 2, 3], 2)),
        TypeError,
        r"'x': expected categories that are text.*rename_categories\(str\)",
    ),
    (
        pd.DataFrame({"a": ["b", "c"], "a=b": [1.0, 2.0]}),
        ValueError,
        r"unique names, but \['a=b'\] would name more than one.*Rename",
    ),
    (pd.DataFrame({1: [1.0, 2.0], "1": [1.0, 2.0]}), ValueError, r"unique names, but \['1'\]"),
]


@pytest.mark.parametrize(
    ("frame", "error", "match"), FIT_ERRORS, ids=[match[:40] for *_, match in FIT_ERRORS]
)
def test_fit_says_what_is_wrong(frame: pd.DataFrame, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        TableCodec.fit(frame)


def test_a_hundred_categories_are_accepted() -> None:
    assert fit_x(pd.Series([f"id{i}" for i in range(100)])).width == 100


def with_column(name: str, cells: Any) -> pd.DataFrame:
    frame = penguins()
    frame[name] = pd.Series(cells, index=frame.index)
    return frame


TRANSFORM_ERRORS: list[tuple[pd.DataFrame, type[Exception], str]] = [
    (
        penguins().drop(columns="age"),
        ValueError,
        r"differ from those at fit: missing \['age'\]\. Expected, in this order: \['mass', 'age'",
    ),
    (penguins().assign(z=1), ValueError, r"differ from those at fit: unexpected \['z'\]"),
    (penguins().rename(columns={"age": "z"}), ValueError, r"missing \['age'\] and unexpected \['z'\]"),
    (
        penguins()[["age", "mass", "female", "species"]],
        ValueError,
        r"another order than at fit: expected \['mass', 'age', .*got \['age', 'mass'",
    ),
    (
        penguins()[["mass", "age", "female", "species", "age"]],
        ValueError,
        r"names must be unique, got \['age'\]",
    ),
    (penguins().iloc[:0], ValueError, "at least one row, got no rows"),
    (
        with_column("mass", ["1", "2", "3", "4"]),
        TypeError,
        r"'mass': expected continuous cells \(dtype float64 at fit\), got categorical cells \(dtype",
    ),
    (with_column("mass", [True, False, True, True]), TypeError, "'mass': expected continuous .*got boolean"),
    (with_column("age", ["1", "2", "3", "4"]), TypeError, "'age': expected integer cells .*got categorical"),
    (with_column("female", [0, 1, 0, 1]), TypeError, "'female': expected boolean cells .*got integer"),
    (
        with_column("species", [0.0, 1.0, 0.0, 1.0]),
        TypeError,
        "'species': expected categorical .*got continuous",
    ),
    (
        with_column("species", pd.Timestamp("2020-01-01")),
        TypeError,
        "'species': expected categorical cells .*got datetime",
    ),
    (
        with_column("species", pd.Categorical(["Gentoo", None, "Gentoo", "Gentoo"])),
        ValueError,
        r"'species': .*categories \['Adelie'\].*got only \['Gentoo'\].*add_categories\(\['Adelie'\]\)",
    ),
    (with_column("mass", [1.0, np.inf, 2.0, 3.0]), ValueError, r"'mass': row 'b' \(position 1\) holds inf"),
    (with_column("age", [1, 2, 3, 1e101]), ValueError, r"'age': row 'd' \(position 3\) holds 1e\+101"),
]


@pytest.mark.parametrize(
    ("frame", "error", "match"), TRANSFORM_ERRORS, ids=[match[:40] for *_, match in TRANSFORM_ERRORS]
)
def test_encode_says_what_is_wrong(frame: pd.DataFrame, error: type[Exception], match: str) -> None:
    codec = TableCodec.fit(penguins())
    with pytest.raises(error, match=match):
        codec.encode(frame)


def test_long_lists_in_messages_are_cut() -> None:
    frame = pd.DataFrame(np.eye(30)).rename(columns=str)
    with pytest.raises(ValueError, match=r"'9', \.\.\. and 20 more\]"):
        TableCodec.fit(frame).encode(frame[frame.columns[::-1]])


def test_numbers_may_come_as_another_dtype_of_numbers() -> None:
    codec = TableCodec.fit(penguins())
    expected = codec.encode(penguins()).values
    other = penguins().astype({"mass": "Float32", "age": "float64", "species": "category"})
    other["female"] = other["female"].astype(object)
    np.testing.assert_array_equal(codec.encode(other).values, expected)
    between = codec.encode(with_column("age", [2.5, 2, 4, 4])).values[0, 1]
    assert between == pytest.approx((2.5 - 10 / 3) / np.sqrt(8 / 9))


@pytest.mark.parametrize("holes", [[NAN] * 4, pd.Series([None] * 4, dtype=object).tolist(), [pd.NA] * 4])
@pytest.mark.parametrize("name", ["mass", "age", "female", "species"])
def test_an_entirely_missing_column_is_welcome_in_new_tables(name: str, holes: list[Any]) -> None:
    frame = with_column(name, holes)
    codec = TableCodec.fit(penguins())
    table = codec.encode(frame)
    assert not table.observed[:, codec.slices[name]].any()
    assert table.observed.any()


def test_rows_entirely_missing_are_named_in_one_warning() -> None:
    frame = penguins().reindex(["a", "u", "b", "v", "c", "d", "w", "z"])
    message = r"4 rows are entirely missing: row 'u' \(position 1\), row 'v' .*, row 'w' .*, \.\.\..*marginal"
    with pytest.warns(TableWarning, match=message) as seen:
        codec = TableCodec.fit(frame)
    assert len(seen) == 1
    with pytest.warns(TableWarning, match=message):
        codec.encode(frame)


def test_encode_cells_does_not_repeat_the_warnings_of_fit() -> None:
    frame = penguins().reindex(["a", "b", "c", "d", "e"])
    with pytest.warns(TableWarning, match=r"1 row is entirely missing: row 'e' \(position 4\)\.") as seen:
        codec = TableCodec.fit(frame)
        table = codec.encode_cells(frame)
    assert len(seen) == 1
    assert codec == TableCodec.fit(frame.dropna(how="all"))
    assert table.observed[:, codec.groups == 0].tolist() == [[True], [True], [False], [True], [False]]


# -------------------------------------------------------------------------------------------------- row keys


def test_equal_rows_have_different_keys_that_travel_with_their_labels() -> None:
    frame = pd.DataFrame({"a": [1.0, 1.0, 1.0, 2.0], "b": ["u", "u", "u", "v"]}, index=["p", "q", "r", "s"])
    codec = TableCodec.fit(frame)
    keys = pd.Series(codec.encode(frame).keys.numpy(), index=frame.index)
    assert keys.is_unique
    shuffled = frame.loc[["s", "r", "p", "q"]]
    np.testing.assert_array_equal(codec.encode(shuffled).keys, keys[shuffled.index])


def test_a_key_depends_on_the_row_alone() -> None:
    rng = np.random.default_rng(0)
    values = np.where(rng.random((100, 4)) < 0.2, NAN, rng.normal(size=(100, 4)))
    values = values[~np.isnan(values).all(axis=1)]
    index = pd.RangeIndex(len(values))
    keys = row_keys(values, index)
    assert len(set(keys.tolist())) == len(values)
    np.testing.assert_array_equal(row_keys(values[:7], index[:7]), keys[:7])
    np.testing.assert_array_equal(row_keys(values, index[::-1]), keys)


def test_keys_see_cells_up_to_a_millionth() -> None:
    base = np.array([[0.0, 1.0]])
    index = pd.Index([0])
    key = row_keys(base, index)[0]
    assert row_keys(base + 1e-9, index)[0] == key
    assert row_keys(np.array([[-0.0, 1.0]]), index)[0] == key
    others = [[1e-5, 1.0], [1.0, 0.0], [NAN, 1.0], [0.0, NAN], [0.0, 1e300], [0.0, -1e300]]
    assert len({key, *(row_keys(np.array([other]), index)[0] for other in others)}) == 7


@pytest.mark.parametrize(
    "index",
    [
        pd.MultiIndex.from_tuples([("u", 1), ("u", 2), ("v", 1)]),
        pd.Index([1.5, NAN, 2.5]),
        pd.Index(["a", 1, None], dtype=object),
        pd.Index([("a", 1), 2, "b"], dtype=object, tupleize_cols=False),
        pd.date_range("2020", periods=3),
        pd.CategoricalIndex(["p", "q", "r"]),
        pd.interval_range(0, 3),
    ],
)
def test_any_index_can_rank_equal_rows(index: pd.Index[Any]) -> None:
    keys = row_keys(np.ones((3, 2)), index)
    assert len(set(keys.tolist())) == 3
    np.testing.assert_array_equal(row_keys(np.ones((3, 2)), index[[2, 0, 1]]), keys[[2, 0, 1]])


# ---------------------------------------------------------------------------------- for any table whatsoever

FLOATS = st.floats(-1e6, 1e6, allow_subnormal=False).map(lambda x: round(x, 6))
INTEGERS = st.integers(-100, 100)
TEXTS = st.sampled_from(["", "a", "b", "ü", "None"])
DATES = st.integers(-(10**7), 10**7).map(lambda minutes: pd.Timestamp(minutes * 60, unit="s"))
CELLS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("float64", FLOATS),
    ("Float64", FLOATS),
    ("float32", INTEGERS.map(lambda n: n / 8)),
    ("Int8", INTEGERS),
    ("Int64", st.integers(-(2**45), 2**45)),
    ("boolean", st.booleans()),
    ("str", TEXTS),
    ("string", TEXTS),
    ("category", TEXTS),
    ("category", INTEGERS.map(lambda n: n % 4)),
    (pd.CategoricalDtype(["None", "ü", "b", "a", "", "never"], ordered=True), TEXTS),
    ("datetime64[ns]", DATES),
    ("datetime64[s]", DATES),
    ("datetime64[us, Europe/Berlin]", DATES.map(lambda day: day.tz_localize("UTC"))),
    ("timedelta64[ms]", INTEGERS.map(lambda n: pd.Timedelta(minutes=n))),
    ("double[pyarrow]", FLOATS),
    ("string[pyarrow]", TEXTS),
    ("timestamp[us][pyarrow]", DATES),
    (object, INTEGERS),
    (object, st.booleans()),
    (object, TEXTS),
    (object, FLOATS),
]


def varies(cells: list[Any]) -> bool:
    return len(set(cells)) > 1


@st.composite
def tables(draw: st.DrawFn) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A complete table of any mixture of dtypes, and the same with holes in every column."""
    n_rows = draw(st.integers(3, 8))
    full = {}
    for j, (dtype, cell) in enumerate(draw(st.lists(st.sampled_from(CELLS), min_size=2, max_size=5))):
        cells = draw(st.lists(cell, min_size=n_rows, max_size=n_rows).filter(varies if j < 2 else bool))
        full[f"c{j}"] = pd.Series(cells, dtype=dtype)
    frame = pd.DataFrame(full)
    frame.index = pd.Index(draw(st.lists(st.integers(0, 9), min_size=n_rows, max_size=n_rows)))
    holes = draw(st.lists(st.booleans(), min_size=frame.size, max_size=frame.size))
    return frame, frame.mask(np.array(holes).reshape(frame.shape))


def permutation(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(n)


any_table = settings(max_examples=200, deadline=None)


@any_table
@given(tables())
def test_decoded_cells_give_back_the_table(table: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    full, holed = table
    codec = TableCodec.fit(full)
    completed = complete(holed, decoded_holes(codec, full, holed))
    pd.testing.assert_frame_equal(completed, full, rtol=1e-9, atol=1e-9)
    close = (Kind.CONTINUOUS, Kind.CONSTANT)
    exact = [c.name for c in codec.columns if c.kind not in close]
    pd.testing.assert_frame_equal(completed[exact], full[exact], check_exact=True)


@any_table
@given(tables(), st.floats(-30, 30))
def test_an_observed_cell_never_changes(table: tuple[pd.DataFrame, pd.DataFrame], value: float) -> None:
    full, holed = table
    before = holed.copy()
    codec, holes = TableCodec.fit(full), missing(holed)
    cells: dict[Label, np.ndarray] = {
        column.name: column.decode(np.full((holes[:, j].sum(), column.width), value))
        for j, column in enumerate(codec.columns)
    }
    completed = complete(holed, cells)
    assert not missing(completed).any()
    pd.testing.assert_frame_equal(completed.mask(holes), holed, check_exact=True)
    pd.testing.assert_series_equal(completed.dtypes, holed.dtypes)
    pd.testing.assert_frame_equal(holed, before, check_exact=True)


@any_table
@given(tables())
def test_observed_agrees_with_missing(table: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    full, holed = table
    codec = TableCodec.fit(full)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TableWarning)
        encoded = codec.encode(holed)
    np.testing.assert_array_equal(encoded.observed, ~missing(holed)[:, codec.groups])
    np.testing.assert_array_equal(encoded.observed, ~np.isnan(encoded.to_numpy()))


@any_table
@given(tables(), st.integers(0, 2**32))
def test_permuted_rows_permute_values_and_keys(table: tuple[pd.DataFrame, pd.DataFrame], seed: int) -> None:
    full, _ = table
    full = full.set_axis(range(len(full)))
    order = permutation(len(full), seed)
    codec = TableCodec.fit(full)
    assert TableCodec.fit(full.iloc[order]) == codec
    straight, permuted = codec.encode(full), codec.encode(full.iloc[order])
    np.testing.assert_array_equal(permuted.values, straight.values[order])
    np.testing.assert_array_equal(permuted.keys, straight.keys[order])
    assert len(set(straight.keys.tolist())) == len(full)


@any_table
@given(st.lists(FLOATS, min_size=2, max_size=9, unique=True), st.floats(1e-6, 1e6), st.integers(-40, 40))
def test_units_do_not_matter(cells: list[float], factor: float, exponent: int) -> None:
    scale = factor * 10.0**exponent
    x = np.array(cells)
    plain, scaled = (beside(pd.Series(values)) for values in (x, scale * x))
    expected = TableCodec.fit(plain).encode(plain).values
    codec = TableCodec.fit(scaled)
    np.testing.assert_allclose(codec.encode(scaled).values, expected, rtol=0, atol=1e-9)
    np.testing.assert_allclose(
        codec.columns[0].decode(expected[:, :1]), scale * x, rtol=1e-9, atol=1e-9 * scale
    )


@any_table
@given(tables())
def test_standardised_columns_have_mean_zero_and_sd_one(table: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    full, _ = table
    values = TableCodec.fit(full).encode(full).to_numpy()
    np.testing.assert_allclose(values.mean(axis=0), 0.0, atol=1e-6)
    np.testing.assert_allclose(values.std(axis=0), 1.0, atol=1e-6)


@any_table
@given(tables())
def test_a_codec_survives_json(table: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    full, _ = table
    codec = TableCodec.fit(full)
    again = through_json(codec)
    assert again == codec
    np.testing.assert_array_equal(again.encode(full).values, codec.encode(full).values)


# ------------------------------------------------------------------------------------------- discrete support


def test_a_column_has_few_values_if_they_come_again() -> None:
    ratings = pd.Series(np.repeat([1.0, 2.5, 4.0], [20, 20, 20]), name="rating")
    assert fit_column(ratings, discrete_support=50).support == (1.0, 2.5, 4.0)
    assert fit_column(ratings, discrete_support=3).support == (1.0, 2.5, 4.0)
    assert fit_column(ratings, discrete_support=2).support is None
    assert fit_column(ratings).support is None
    rare = pd.concat([ratings, pd.Series([7.0, 8.0, 9.0])], ignore_index=True).rename("rating")
    assert fit_column(rare, discrete_support=50).support == (1.0, 2.5, 4.0, 7.0, 8.0, 9.0)
    mostly_once = pd.concat([ratings, pd.Series(np.arange(10.0, 17.0))], ignore_index=True).rename("rating")
    assert fit_column(mostly_once, discrete_support=50).support is None


def test_booleans_two_integers_and_labels_have_no_discrete_support() -> None:
    for cells in ([True, False], [1, 2], ["a", "b"]):
        assert fit_column(pd.Series(cells * 20, name="c"), discrete_support=50).support_encoded is None


@pytest.mark.parametrize("warp", [False, True])
def test_few_values_come_back_to_the_last_digit(warp: bool) -> None:
    column = pd.Series(np.repeat([0.1, 0.3, 1 / 3, 50.0], [300, 200, 100, 5]), name="dose")
    codec = fit_column(column, warp=warp, discrete_support=50)
    assert (codec.warp is not None) == warp
    assert codec.support_encoded is not None
    np.testing.assert_allclose(np.unique(codec.encode(column)), codec.support_encoded)
    nearly = np.round(codec.encode(column), 5)
    assert codec.decode(nearly, to_support=True).tolist() == column.tolist()
    assert codec.decode(nearly).tolist() != column.tolist()
    assert codec_from_dict(json.loads(json.dumps(codec.to_dict()))) == codec


def test_integers_of_few_values_stay_integers() -> None:
    codec = fit_column(pd.Series([0, 1, 5] * 10, name="children"), discrete_support=50)
    decoded = codec.decode(codec.encode(pd.Series([2.4, 3.6])), to_support=True)
    assert decoded.tolist() == [1, 5]
    assert decoded.dtype == np.int64


def test_cells_at_a_bound_that_no_draw_equals_are_pointed_out() -> None:
    cells = np.r_[np.zeros(30), np.linspace(1, 9, 70)]
    frame = pd.DataFrame({"x": cells, "other": np.arange(100.0)})
    with pytest.warns(
        TableWarning, match="'x': 30% of its observed cells equal the bound 0, but no draw will"
    ):
        TableCodec.fit(frame, specs={"x": ColumnSpec(lower=0)}).warn_of_atoms(frame, {})
    TableCodec.fit(frame, specs={"x": ColumnSpec(lower=-1)}).warn_of_atoms(frame, {})


def test_in_a_joint_density_whole_numbers_may_be_counts_and_transforms_may_be_dropped():
    generator = np.random.default_rng(0)
    visits = np.where(generator.random(400) < 0.2, np.nan, generator.poisson(3, 400))
    frame = pd.DataFrame(
        {"visits": visits, "income": np.exp(2 * generator.normal(size=400)), "x": 1.0 - visits}
    )
    codec = TableCodec.fit(frame, True, 50)
    table = codec.encode_cells(frame)
    assert [column.kind for column in codec.columns] == [Kind.CONTINUOUS] * 3
    assert codec.columns[1].warp is not None
    for warp in (True, False):
        other, encoded = codec.for_joint_density(frame, table, warp, 50, {})
        assert [column.kind for column in other.columns] == [Kind.COUNT, Kind.CONTINUOUS, Kind.CONTINUOUS]
        assert (other.columns[1].warp is not None) == warp and other.columns[2] == codec.columns[2]
        expected = other.encode_cells(frame)
        assert torch.equal(encoded.values, expected.values) and torch.equal(encoded.keys, expected.keys)
    same = codec.for_joint_density(frame, table, True, 50, {"visits": ColumnSpec(kind="continuous")})
    assert same == (codec, table)


def test_in_a_joint_density_numbers_of_two_values_are_boolean_unless_they_have_slopes():
    arm = pd.Series([0.0, 1.0, 1.0, np.nan] * 10)
    frame = pd.DataFrame({"arm": arm, "x": np.linspace(0, 1, 40), "z": arm})
    codec = TableCodec.fit(frame, True, 50)
    table = codec.encode_cells(frame)
    assert [column.kind for column in codec.columns] == [Kind.CONTINUOUS] * 3
    other, encoded = codec.for_joint_density(frame, table, True, 50, {}, one_part=["z"])
    assert [column.kind for column in other.columns] == [Kind.BOOLEAN, Kind.CONTINUOUS, Kind.CONTINUOUS]
    assert torch.equal(encoded.values, table.values)
