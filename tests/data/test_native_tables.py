"""Tables of Polars, PyArrow and DuckDB: Polars and PyArrow come out again, and columns are not copied."""

import datetime as dt

import duckdb
import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from matplotlib.figure import Figure
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from statsmodels.formula.api import ols

from pyro_mgp import Imputations, MGPImputer, ampute, compare, likelihood_ratio_test
from pyro_mgp.analysis.quantities import correlation
from pyro_mgp.data.native_tables import read_native
from pyro_mgp.data.table import missing
from pyro_mgp.plots import plot_missingness

LEVELS = ["low", "mid", "high"]


def survey(n=60):
    """A table with a column of every kind, a fifth of whose cells are missing."""
    g = np.random.default_rng(0)
    x = g.normal(size=n)

    def lose(cells):
        return [None if g.random() < 0.2 else cell for cell in cells]

    start, level = dt.datetime(2026, 1, 1), [LEVELS[k] for k in np.digitize(x, [-0.5, 0.5])]
    times = [start + dt.timedelta(hours=10 * float(value)) for value in x]
    return pl.DataFrame(
        {
            "float": lose(x.tolist()),
            "float32": pl.Series(lose((x + g.normal(size=n)).tolist()), dtype=pl.Float32),
            "integer": lose((10 * x).astype(int).tolist()),
            "small": pl.Series(lose(np.digitize(x, [-1, 0, 1]).tolist()), dtype=pl.UInt8),
            "boolean": lose((x > 0).tolist()),
            "text": lose(level),
            "category": pl.Series(lose(level), dtype=pl.Categorical),
            "ordered": pl.Series(lose(level), dtype=pl.Enum(LEVELS)),
            "time": lose(times),
            "zoned": pl.Series(lose(times)).dt.replace_time_zone("Europe/Berlin"),
            "date": lose([time.date() for time in times]),
            "duration": lose([time - start for time in times]),
            "nan": pl.Series([float("nan") if g.random() < 0.2 else float(value) for value in x]),
        }
    )


FRAME = survey()
NUMBERS = FRAME.select("float", "float32", "integer", "text")


def small(**changes):
    """An imputer that is fast: the kinds of tables do not depend on its model."""
    return MGPImputer(**{"inputs": "others", "max_steps": 3, "random_state": 0, "progress": False, **changes})


def test_a_table_comes_back_as_it_was():
    frame, kind = read_native(FRAME)
    assert kind.backend == "polars" and kind.of(frame).equals(
        FRAME.with_columns(pl.col("nan").fill_nan(None))
    )
    table = NUMBERS.to_arrow()
    frame, kind = read_native(table)
    assert kind.backend == "pyarrow" and kind.of(frame).equals(table)
    lazy, kind = read_native(NUMBERS.lazy())
    assert kind.of(lazy).equals(NUMBERS)
    assert read_native(pd.DataFrame({"x": [1.0]})) is None and read_native(np.zeros((2, 2))) is None


def test_columns_share_the_memory_of_the_table():
    table = NUMBERS.to_arrow()
    before = pa.total_allocated_bytes()
    frame, kind = read_native(table)
    for name in table.column_names:
        own = pa.array(frame[name].array)
        assert own.buffers()[1].address == table[name].chunk(0).buffers()[1].address
    again = kind.of(frame)
    assert again["float"].chunk(0).buffers()[1].address == table["float"].chunk(0).buffers()[1].address
    assert pa.total_allocated_bytes() - before < 64 * table.num_columns  # of a column: 480 bytes or more


def test_polars_in_polars_out():
    imputer = small().fit(FRAME)
    assert imputer.feature_names_in_.tolist() == FRAME.columns
    draws = imputer.impute(m=2)
    assert draws == imputer.impute(FRAME, m=2)
    for table in (*draws, imputer.transform(FRAME)):
        assert isinstance(table, pl.DataFrame) and table.schema == FRAME.schema
        assert sum(table.null_count().row(0)) == 0 and table["nan"].is_nan().sum() == 0
        for name in FRAME.columns[:-1]:
            seen = FRAME[name].is_not_null()
            assert table[name].filter(seen).equals(FRAME[name].filter(seen))


def test_pyarrow_in_pyarrow_out():
    table = FRAME.drop("category", "ordered").to_arrow()
    completed = small().fit(table).impute(m=2)[1]
    assert isinstance(completed, pa.Table) and completed.schema.equals(table.schema, check_metadata=True)
    assert sum(column.null_count for column in completed.columns) == 0


def test_relations_of_duckdb_give_tables_that_any_connection_reads():
    connection = duckdb.connect()
    relation = connection.from_arrow(NUMBERS.to_arrow())
    completed = small().fit(relation).impute(m=2)[1]
    assert isinstance(completed, pa.Table) and completed.column_names == relation.columns
    found = connection.sql("SELECT count(*), avg(float) FROM completed").fetchall()[0]
    assert found == (len(NUMBERS), pytest.approx(pc.mean(completed["float"]).as_py()))


def test_decimals_and_columns_without_cells_become_floats():
    connection = duckdb.connect()
    decimals = connection.sql("SELECT i::DOUBLE AS x, i * 1.5 AS d FROM range(30) t(i)")
    frame, kind = read_native(decimals)
    assert frame["d"].to_numpy(float).tolist() == [1.5 * i for i in range(30)]
    assert kind.schema.types == [pa.float64(), pa.float64()]
    empty = NUMBERS.with_columns(pl.lit(None).alias("integer"))
    with pytest.raises(ValueError, match=r"no observed cell|entirely missing"):
        small().fit(empty)
    completed = small().fit(NUMBERS).transform(empty.with_columns(pl.col("float").fill_null(0.0)))
    assert completed["integer"].null_count() == 0


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_times_keep_their_unit(unit):
    frame = pl.DataFrame({"float": np.arange(60.0)}).with_columns(time=FRAME["time"].dt.cast_time_unit(unit))
    completed = small().fit(frame).impute(m=1)[0]
    assert completed.schema == frame.schema
    seen = frame["time"].is_not_null()
    assert completed["time"].filter(seen).equals(frame["time"].filter(seen))


def test_the_index_of_a_frame_in_pyarrow_is_no_column():
    frame = pd.DataFrame({"x": [1.0, 2.0, np.nan, 4.0] * 5, "y": np.arange(20.0)}).iloc[1:]
    frame.index = frame.index.to_numpy() ** 2
    table = pa.Table.from_pandas(frame)
    imputer = small().fit(table)
    assert imputer.feature_names_in_.tolist() == ["x", "y"]
    completed = imputer.impute(m=1)[0]
    assert completed.schema.equals(table.schema)
    assert completed["__index_level_0__"].equals(table["__index_level_0__"])


def test_views_of_text_record_batches_and_equal_names():
    views = NUMBERS.with_columns(pl.lit(0.5).alias("integer")).to_arrow()
    views = views.set_column(3, "text", views["text"].cast(pa.string_view()))
    completed = small().fit(views).impute(m=1)[0]
    assert completed.schema.equals(views.schema) and completed["text"].null_count == 0
    batch = NUMBERS.to_arrow().to_batches()[0]
    assert isinstance(small().fit(batch).impute(m=1)[0], pa.Table)
    twice = pa.Table.from_arrays([pa.array([1.0, 2.0])] * 2, names=["x", "x"])
    with pytest.raises(ValueError, match="names must be unique"):
        small().fit(twice)


def test_scikit_learn_converts_what_it_does_not_know():
    table = NUMBERS.drop("text").to_arrow()
    assert isinstance(small().set_output(transform="pandas").fit_transform(table), pd.DataFrame)
    assert isinstance(small().set_output(transform="polars").fit_transform(table), pl.DataFrame)
    connection = duckdb.connect()
    relation = connection.from_arrow(table)
    pipeline = make_pipeline(small(), LinearRegression()).fit(relation, np.arange(len(NUMBERS)))
    assert pipeline.predict(relation).shape == (len(NUMBERS),)


def test_functions_and_pictures_see_the_usual_dtypes_of_pandas():
    seen = []

    def zero(frame, m, seed):
        seen.append(frame.dtypes.astype(str).tolist())
        return [frame.fillna(0.0)] * m

    numbers = NUMBERS.drop("text", "integer")
    compare({"zero": zero}, numbers, m=2, levels=[0.3])
    assert seen[0] == ["float64", "float32"]
    assert isinstance(ampute(numbers.fill_null(0.0), 0.2), pd.DataFrame)
    assert len(plot_missingness(NUMBERS, ax=Figure().subplots()).get_xticklabels()) > 0


def test_likelihood_ratio_tests_take_imputations_of_polars():
    draws = small().fit(NUMBERS).impute(m=3)
    models = [lambda table, f=f: ols(f, table).fit() for f in ("float ~ text", "float ~ 1")]
    test = likelihood_ratio_test(draws, *models)
    assert 0 <= test.p <= 1


def test_missing_indicators_are_of_the_same_kind():
    completed = small(add_indicator=True).fit(NUMBERS).transform(NUMBERS)
    assert completed["missingindicator_float"].to_list() == NUMBERS["float"].is_null().to_list()


@pytest.mark.slow
def test_imputed_cells_are_those_of_the_same_table_in_pandas():
    frame = NUMBERS.to_pandas()
    own, other = (small(inputs="auto").fit(table).impute(m=2) for table in (frame, NUMBERS))
    for name in ("float", "text"):
        assert (own.values[name] == other.values[name]).all()


def test_analyses_see_the_kind_that_was_imputed_and_formulas_see_pandas(tmp_path):
    draws = small().fit(NUMBERS).impute(m=3)
    kinds = []

    def mean(table):
        kinds.append(type(table))
        return [table["float"].mean()], [table["float"].var() / len(table)]

    pooled = draws.pool(mean)
    assert kinds == [pl.DataFrame] * 3
    frames = draws.in_pandas()
    assert [frames[0][name].dtype.kind for name in ("float", "integer")] == ["f", "i"]
    assert frames[0]["float"].to_numpy().tolist() == draws[0]["float"].to_list()
    fitted = draws.fit("float ~ 1")
    assert fitted.table["estimate"].iloc[0] == pytest.approx(pooled.table["estimate"].iloc[0])
    assert "text[T.low]" in draws.fit("float ~ text").table.index
    assert draws.estimate(correlation("float", "float32")).table["estimate"].notna().all()
    long = draws.to_mice()
    assert len(long) == 4 * len(NUMBERS) and missing(long.iloc[len(NUMBERS) :]).sum() == 0
    draws.save(tmp_path / "draws")
    loaded = Imputations.load(tmp_path / "draws")
    assert loaded == draws and isinstance(loaded[0], pd.DataFrame)


def test_a_dataset_of_all_completed_tables(tmp_path):
    draws = small().fit(NUMBERS).impute(m=3)
    draws.write_dataset(tmp_path / "draws")
    lazy = pl.scan_parquet(tmp_path / "draws", hive_partitioning=True)
    sums = lazy.group_by("imputation").agg(pl.col("float").sum()).sort("imputation").collect()
    assert sums["imputation"].to_list() == [1, 2, 3]
    assert sums["float"].to_list() == pytest.approx([table["float"].sum() for table in draws])
    rows = duckdb.sql(f"SELECT count(*) FROM read_parquet('{tmp_path}/draws/**/*.parquet')").fetchall()
    assert rows == [(3 * len(NUMBERS),)]
    with pytest.raises(ValueError, match="exists already"):
        draws.write_dataset(tmp_path / "draws")
    with pytest.raises(ValueError, match="must have text as labels"):
        Imputations(pd.DataFrame({0: [1.0, np.nan]}), {0: [[1.0]]}, m=1).write_dataset(tmp_path / "other")
    taken = Imputations(pd.DataFrame({"imputation": [1.0, np.nan]}), {"imputation": [[1.0]]}, m=1)
    with pytest.raises(ValueError, match="has a column 'imputation'"):
        taken.write_dataset(tmp_path / "other")


def test_every_backend_that_narwhals_calls_eager_is_read():
    for backend in ("polars", "pyarrow"):
        table = nw.from_dict({"x": [1.0, None, 3.0]}, backend=backend).to_native()
        frame, kind = read_native(table)
        assert kind.backend == backend and frame["x"].isna().tolist() == [False, True, False]
