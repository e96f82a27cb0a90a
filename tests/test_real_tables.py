"""Tables as analysts have them: every kind of column goes in as it is and comes out valid."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_mgp import ColumnSpec, Imputations, MGPImputer
from pyro_mgp.data.column_spec import Kind
from pyro_mgp.data.table import TableCodec, TableWarning, missing

LEVELS = ["poor", "fair", "good", "very good"]


def survey(n: int = 160, seed: int = 0) -> pd.DataFrame:
    """A complete table with a column of every kind, all telling something of each other."""
    generator = np.random.default_rng(seed)
    health = generator.normal(size=n)

    def like_health(noise: float = 1.0) -> np.ndarray:
        return health + noise * generator.normal(size=n)

    return pd.DataFrame(
        {
            "weight": 70 + 10 * like_health(),
            "income": np.exp(7 + 0.5 * like_health()).astype("float32"),
            "share": 1 / (1 + np.exp(-like_health())),
            "age": pd.array(np.rint(50 + 15 * like_health()), dtype="Int64"),
            "visits": pd.array(generator.poisson(np.exp(0.5 - 0.5 * health)), dtype="Int16"),
            "smoker": pd.array(like_health() < -0.5, dtype="boolean"),
            "grade": pd.Categorical(
                np.array(LEVELS)[np.digitize(like_health(), [-1, 0.2, 1.2])],
                [*LEVELS, "unknown"],
                ordered=True,
            ),
            "site": pd.Series(generator.choice(["north", "south", "east"], n), dtype="str"),
            "colour": pd.Categorical(np.where(like_health() > 0, "red", "blue"), ["blue", "green", "red"]),
            "born": pd.Timestamp("1970-01-01") + pd.to_timedelta(np.rint(900 * like_health()), unit="D"),
            "stay": pd.to_timedelta(np.rint(np.exp(1 - 0.3 * like_health())), unit="h"),
            "seen": pd.Series(pd.Timestamp("2024-05-01", tz="Europe/Berlin")).repeat(n).reset_index(drop=True)
            + pd.to_timedelta(np.rint(600 * like_health()), unit="min"),
            "error": pd.array(like_health(), dtype="double[pyarrow]"),
            "unit": "mmol",
        }
    )


KINDS = [
    *(Kind.CONTINUOUS,) * 3,
    Kind.INTEGER,
    Kind.COUNT,
    Kind.BOOLEAN,
    Kind.ORDERED,
    *(Kind.CATEGORICAL,) * 2,
    Kind.DATETIME,
    Kind.DURATION,
    Kind.DATETIME,
    Kind.CONTINUOUS,
    Kind.CONSTANT,
]


def holed(frame: pd.DataFrame, share: float = 0.3, seed: int = 1) -> pd.DataFrame:
    return frame.mask(np.random.default_rng(seed).random(frame.shape) < share)


def assert_valid(completed: pd.DataFrame, frame: pd.DataFrame) -> None:
    """A completed table: the one that came, with its holes filled by values that its columns can have."""
    assert completed.dtypes.equals(frame.dtypes)
    assert completed.index.identical(frame.index)
    assert not missing(completed).any()
    for label in frame:
        here = ~missing(frame[[label]])[:, 0]
        assert completed.loc[here, label].equals(frame.loc[here, label])


SPECS = {
    "income": ColumnSpec(lower=0),
    "share": ColumnSpec(lower=0, upper=1),
    "age": ColumnSpec(lower=0, upper=120),
    "error": ColumnSpec(kind="heavy-tailed"),
}


@pytest.fixture(scope="module")
def fitted() -> MGPImputer:
    """Fitted to the survey with holes, indexed by site and row; no test may change it."""
    frame = holed(survey())
    frame.index = pd.MultiIndex.from_arrays([["u", "v"] * 80, np.arange(160) // 2], names=["centre", None])
    imputer = MGPImputer(specs=SPECS, max_steps=10, n_sweeps=2, n_neighbors=8, random_state=0, progress=False)
    with pytest.warns(TableWarning, match="Column 'unit' is constant"):
        return imputer.fit(frame)


@pytest.mark.slow
def test_every_kind_is_found(fitted: MGPImputer) -> None:
    expected = [Kind.HEAVY_TAILED if k == 12 else kind for k, kind in enumerate(KINDS)]
    assert [column.kind for column in fitted.codec_.columns] == expected


@pytest.mark.slow
def test_every_draw_is_a_valid_table(fitted: MGPImputer) -> None:
    draws = fitted.impute(m=6)
    for completed in draws:
        assert_valid(completed, draws.frame)
        assert completed["share"].between(0, 1, inclusive="neither").all()
        assert (completed["income"] > 0).all()
        assert completed["age"].between(0, 120).all()
        assert (completed["visits"] >= 0).all()
        assert not (completed["grade"] == "unknown").any()
        assert not (completed["colour"] == "green").any()
        assert (completed["born"] == completed["born"].dt.normalize()).all()
        assert (completed["unit"] == "mmol").all()
    some = draws.frame.head(40)
    assert_valid(fitted.transform(some), some)


def test_draws_of_values_vary_and_are_never_means(fitted: MGPImputer) -> None:
    draws = fitted.impute(m=30).values
    for label in ("visits", "smoker", "grade", "site", "colour"):
        assert max(len(set(cell)) for cell in draws[label].T.tolist()) > 1
    assert draws["visits"].dtype == np.int64
    assert set(draws["smoker"].ravel().tolist()) == {True, False}


def test_what_was_saved_draws_the_same(fitted: MGPImputer, tmp_path: Any) -> None:
    draws = fitted.impute(m=2)
    fitted.save(tmp_path / "imputer")
    draws.save(tmp_path / "draws")
    assert Imputations.load(tmp_path / "draws") == draws
    assert MGPImputer.load(tmp_path / "imputer").impute(draws.frame, m=2) == draws


def test_draws_tell_what_was_hidden(fitted: MGPImputer) -> None:
    frame, draws = survey(), fitted.impute(m=50)
    for label in ("weight", "visits", "smoker", "grade", "born", "stay", "error"):
        held_out = missing(draws.frame[[label]])[:, 0]
        truth, values = frame[label][held_out], draws.values[label]
        if label == "grade":
            truth, values = truth.cat.codes, np.vectorize(LEVELS.index)(values)
        elif values.dtype.kind in "Mm":
            truth, values = truth.astype("int64"), values.astype("int64")
        # The standard error with some fifty cells is .15; correlations of visits are .19 to .34 by seed.
        assert np.corrcoef(truth.astype("float64"), values.astype("float64").mean(0))[0, 1] > 0.15


def test_unseen_categories_are_kept_and_tell_nothing(fitted: MGPImputer) -> None:
    new = holed(survey(20, seed=5))
    new["grade"] = new["grade"].where(np.arange(20) > 2, "unknown")
    new["site"] = new["site"].where(np.arange(20) > 0, "west")
    with pytest.warns(TableWarning) as caught:
        draws = fitted.impute(new, m=2)
    said = [str(warning.message) for warning in caught if "unseen" in str(warning.message)]
    assert len(said) == 2
    assert "'grade': 3 cells hold categories unseen at fit, ['unknown'], first in row 0" in said[0]
    assert "'site': 1 cell holds categories unseen at fit, ['west']" in said[1]
    assert (draws[0]["grade"].iloc[:3] == "unknown").all()
    assert draws[0]["site"].iloc[0] == "west"
    assert not (draws.values["grade"] == "unknown").any()


@pytest.mark.parametrize("inputs", ["others", "earlier"])
def test_fifty_levels_and_a_level_that_is_never_there(inputs: Any) -> None:
    generator = np.random.default_rng(0)
    codes = generator.integers(0, 50, 300)
    town = pd.Categorical.from_codes(codes, [f"t{i:02}" for i in range(51)])
    frame = pd.DataFrame({"town": town, "x": codes // 10 + 0.1 * generator.normal(size=300)})
    frame.loc[generator.random(300) < 0.2, "town"] = None
    imputer = MGPImputer(
        inputs=inputs, order=["town"], max_steps=5, n_sweeps=1, random_state=0, progress=False
    )
    draws = imputer.fit(frame).impute(m=10).values["town"]
    assert set(draws.ravel()) <= {f"t{i:02}" for i in range(50)}
    drawn = np.vectorize(lambda label: int(label[1:]) // 10)(draws)
    assert (drawn == codes[frame["town"].isna()] // 10).mean() > 0.6


def test_tables_of_others_become_data_frames() -> None:
    class Polars:  # its tables, and those of PyArrow, have this method
        def to_pandas(self) -> pd.DataFrame:
            return survey()[["weight", "error", "site"]].mask(
                (np.arange(160)[:, None] + np.arange(3)) % 4 == 0
            )

    imputer = MGPImputer(max_steps=3, random_state=0, progress=False)
    imputer.fit(Polars())
    assert imputer.impute(Polars(), m=2) == imputer.impute(m=2)


DTYPES = {label: dtype for label, dtype in survey().dtypes.items() if label != "unit"}


@settings(max_examples=250, deadline=None)
@given(st.data())
def test_draws_for_any_choice_of_columns_rows_and_holes_make_valid_tables(data: st.DataObject) -> None:
    """The way through the codec and `Imputations` for random tables, with standard normal draws."""
    labels = data.draw(st.lists(st.sampled_from(list(DTYPES)), min_size=2, max_size=6, unique=True))
    full = survey(40, seed=data.draw(st.integers(0, 5)))[labels]
    rows = data.draw(st.lists(st.integers(0, 39), min_size=4, max_size=20))
    full = full.iloc[[*rows, *range(8)]]  # rows come again, and so do their labels
    frame = holed(full, 0.3, seed=data.draw(st.integers(0, 10**6)))
    if missing(frame).all(axis=0).any():
        return
    codec = TableCodec.fit(full, True, 50)
    generator = np.random.default_rng(0)
    values = {
        column.name: column.decode(generator.normal(size=(3, holes.sum(), column.width)))
        for column, holes in zip(codec.columns, missing(frame).T, strict=True)
        if holes.any()
    }
    for completed in Imputations(frame, values, 3):
        assert_valid(completed, frame)
