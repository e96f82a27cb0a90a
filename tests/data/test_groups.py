"""Columns that are constant within groups are found, and completed from the other rows of a group."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pyro_mgp import ColumnSpec
from pyro_mgp.data.codecs import fit_column
from pyro_mgp.data.column_spec import Kind
from pyro_mgp.data.groups import WithinGroups


def pupils() -> pd.DataFrame:
    """Return 40 pupils in 10 classes of 5 schools."""
    group = np.repeat(np.arange(10), 4)
    g = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"class": [f"c{k}" for k in group], "school": group // 2, "score": g.normal(size=40)}
    )
    frame["teacher"] = g.integers(20, 65, 10)[group].astype(float)
    frame["town"] = pd.Categorical(np.array(["A", "B", "A", "C", "B"])[group // 2])
    frame["rare"] = np.arange(40) == 5
    return frame


def test_constant_columns_are_found_in_nested_groups() -> None:
    found = WithinGroups.find(pupils(), ["class", "school"])
    assert {*found.constant["class"]} == {"school", "teacher", "town"}
    assert {*found.constant["school"]} == {"town"}
    assert found.group_of("town") == "school"
    assert found.group_of("teacher") == "class"
    assert found.group_of("score") is None


def test_a_column_that_is_nearly_always_the_same_is_not_constant_within_groups() -> None:
    """That no group has different cells may be by chance."""
    frame = pupils().assign(rare=lambda rows: rows["class"] == "c3")
    frame = frame[frame.groupby("class").cumcount() < 2].reset_index(drop=True)
    assert "rare" in WithinGroups.find(frame.assign(rare=frame["class"] < "c5"), ["class"]).constant["class"]
    seldom = frame.assign(rare=(frame["class"] == "c3") & (frame.index % 2 == 0))
    assert "rare" not in WithinGroups.find(seldom, ["class"]).constant["class"]
    singles = frame.drop_duplicates("class")
    assert WithinGroups.find(singles, ["class"]).constant["class"] == ()


def test_cells_are_completed_from_their_group() -> None:
    frame = pupils()
    holey = frame.assign(
        teacher=frame["teacher"].mask([k % 4 > 0 for k in range(40)]).mask(frame["class"] == "c7"),
        town=frame["town"].mask(frame.index == 3),
    )
    within = WithinGroups.find(holey, ["class", "school"])
    # One observed cell in each group tells nothing.
    assert within.constant["class"] == ("school", "town")
    within = WithinGroups({"class": ("teacher", "town")})
    full = within.complete(holey)
    pd.testing.assert_frame_equal(full, frame.assign(teacher=frame["teacher"].mask(frame["class"] == "c7")))
    assert within.complete(frame) is frame


def test_different_cells_of_a_group_are_an_error() -> None:
    frame = pupils().assign(teacher=np.arange(40.0)).mask(pd.DataFrame(np.eye(40, 6, dtype=bool)).to_numpy())
    frame["class"], frame["school"] = pupils()["class"], pupils()["school"]
    within = WithinGroups({"class": ("teacher",)})
    with pytest.raises(ValueError, match="'teacher' is constant within each 'class', but 'c"):
        within.complete(frame)


@pytest.mark.parametrize("labels", [["a", "b", "c"], [3, 10, 20], [True, False, True]])
def test_groups_are_numbered_and_others_are_numbered_beyond(labels: list[object]) -> None:
    column = pd.Series(labels * 3, name="g")
    if column.dtype == bool:
        with pytest.raises(ValueError, match="booleans can be"):
            fit_column(column, spec=ColumnSpec(kind="group"))
        return
    codec = fit_column(column, spec=ColumnSpec(kind="group"))
    assert codec.kind is Kind.GROUP and codec.levels == tuple(labels)
    numbers = codec.encode(column)[:, 0] * codec.scale[0] + codec.mean[0]
    np.testing.assert_allclose(numbers, [0, 1, 2] * 3, atol=1e-12)
    new = pd.Series([labels[1], type(labels[0])(99), type(labels[0])(7), type(labels[0])(99)], name="g")
    numbers = np.rint(codec.encode(new)[:, 0] * codec.scale[0] + codec.mean[0])
    assert numbers[0] == 1 and (numbers[1:] >= 3).all()
    assert numbers[1] == numbers[3] != numbers[2]


def test_more_than_a_hundred_groups_are_allowed() -> None:
    codec = fit_column(pd.Series(np.arange(500) // 2, name="g"), spec=ColumnSpec(kind="group"))
    assert len(codec.levels or ()) == 250


def test_a_missing_group_is_an_error() -> None:
    column = pd.Series(["a", None, "b"], name="g", index=[7, 8, 9])
    with pytest.raises(ValueError, match=r"'g': row 8 \(position 1\) is missing; expected the group"):
        fit_column(column, spec=ColumnSpec(kind="group"))


def test_slopes_belong_to_groups() -> None:
    with pytest.raises(ValueError, match="give kind='group'"):
        ColumnSpec(slopes=["x"])
    with pytest.raises(TypeError, match="slopes must be a list"):
        ColumnSpec(kind="group", slopes="x")
    assert ColumnSpec(kind="group", slopes=["x"]).to_dict() == {"kind": "group", "slopes": ["x"]}


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_times_are_completed_whatever_their_unit_and_zone(unit: str, zone: str | None) -> None:
    times = pd.Series(pd.to_datetime(["2020-01-01 00:00", None, "2021-05-05 08:30", "2021-05-05 08:30"]))
    full = times.ffill()
    if zone is not None:
        times, full = times.dt.tz_localize(zone), full.dt.tz_localize(zone)
    times, full = times.dt.as_unit(unit), full.dt.as_unit(unit)
    within = WithinGroups({"id": ["birth"]})
    found = within.complete(pd.DataFrame({"id": [1, 1, 2, 2], "birth": times}))
    pd.testing.assert_series_equal(found["birth"], full, check_names=False)
    known = WithinGroups.find(pd.DataFrame({"id": [*range(9)] * 2, "birth": [*full[[0, 2, 3]]] * 6}), ["id"])
    other = known.complete(pd.DataFrame({"id": [0], "birth": times[1:2].reset_index(drop=True)}))
    assert other["birth"].tolist() == [full[0]]


def test_durations_are_completed() -> None:
    days = pd.Series(pd.to_timedelta([1, None, 2], unit="D")).dt.as_unit("ns")
    found = WithinGroups({"id": ["age"]}).complete(pd.DataFrame({"id": [1, 1, 2], "age": days}))
    assert found["age"].tolist() == [*pd.to_timedelta([1, 1, 2], unit="D")]
