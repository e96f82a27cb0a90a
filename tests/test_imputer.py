"""The front door as a user meets it: tables in, imputations out, and sentences that say what is wrong."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyro
import pyro.contrib.gp.kernels as kernels
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pyro.infer import Trace_ELBO
from pyro.optim import Adam
from safetensors.numpy import load_file, save_file
from signing import sign
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from benchmarks.coverage import curves
from pyro_mgp import ColumnSpec, Imputations, MGPImputer
from pyro_mgp.data.table import TableWarning, missing
from pyro_mgp.fitting import table_fit
from pyro_mgp.imputer import FitWarning
from pyro_mgp.saving import FORMAT_VERSION
from pyro_mgp.settings import Engine, with_engine

NAN = np.nan


def small(**changes: Any) -> MGPImputer:
    """An imputer that is fitted quickly."""
    quick = {"max_steps": 5, "n_inducing": 10, "n_sweeps": 2, "random_state": 0}
    return MGPImputer(**with_engine({**quick, **changes}))


def toy(n_rows: int = 40) -> pd.DataFrame:
    """y follows x, z is complete; a third of y and a fifth of x are missing."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=n_rows)
    frame = pd.DataFrame({"x": x, "y": 2 * x + 0.5 * rng.normal(size=n_rows), "z": rng.normal(size=n_rows)})
    frame.loc[::3, "y"] = NAN
    frame.loc[1::5, "x"] = NAN
    return frame


def mixed(n_rows: int = 30) -> pd.DataFrame:
    """One column of each dtype, a hole in each that can have one; all but str are driven by one number."""
    rng = np.random.default_rng(2)
    t = np.linspace(-1, 1, n_rows) + 0.3 * rng.normal(size=n_rows)
    word = pd.Series(np.where(t > 0.3, "high", np.where(t < -0.3, "low", "mid")), dtype=object)
    sizes = pd.CategoricalDtype(["low", "mid", "high", "huge"], ordered=True)
    frame = pd.DataFrame(
        {
            "float": t + 0.1 * rng.normal(size=n_rows),
            "float32": (100 * t).astype(np.float32),
            "Int64": pd.array(np.rint(10 * t).astype(int), dtype="Int64"),
            "Int8": pd.array(np.rint(5 * t).astype(int), dtype="Int8"),
            "boolean": pd.array(t > 0, dtype="boolean"),
            "flag": pd.Series([bool(v > 0.2) for v in t], dtype=object),
            "str": pd.Series(rng.choice(["low", "mid", "high"], size=n_rows), dtype="str"),
            "string": word.astype("string"),
            "text": word,
            "size": word.astype(sizes),
            "int": np.rint(7 * t).astype(np.int64),
            "bool": t > 0.1,
        }
    )
    for j, label in enumerate(frame.columns[:-2]):
        frame.loc[j % 4 :: 6, label] = None
    return frame


def assert_completes(completed: pd.DataFrame, frame: pd.DataFrame) -> None:
    """`completed` is `frame` with its holes filled and nothing else changed."""
    assert completed.index.identical(frame.index)
    assert completed.columns.identical(frame.columns)
    assert not missing(completed).any()
    for label in frame.columns:
        before, after = frame[label], completed[label]
        assert after.dtype == before.dtype
        if isinstance(before.dtype, pd.CategoricalDtype):
            assert after.cat.categories.tolist() == before.cat.categories.tolist()
            assert after.cat.ordered == before.cat.ordered
        seen = before.notna().to_numpy()
        pd.testing.assert_series_equal(after[seen], before[seen], check_exact=True)
        if isinstance(before.dtype, np.dtype) and before.dtype != object:
            assert after[seen].to_numpy().tobytes() == before[seen].to_numpy().tobytes()


def assert_close(left: Imputations, right: Imputations) -> None:
    """The same draws, but for the odd one whose fifth decimal a sum taken in another order has turned."""
    assert list(left.values) == list(right.values)
    for label, draws in left.values.items():
        if draws.dtype == np.float64:
            last_decimal = 2e-5 * float(left.frame[label].astype(float).std())
            np.testing.assert_allclose(draws, right.values[label], rtol=1e-8, atol=last_decimal)
        else:
            np.testing.assert_array_equal(draws, right.values[label])


def first(draws: Imputations, m: int) -> Imputations:
    return Imputations(draws.frame, {label: values[:m] for label, values in draws.values.items()}, m)


@pytest.fixture(scope="module")
def fitted() -> MGPImputer:
    """Fitted to `toy()`; no test may change it."""
    return small(max_steps=20).fit(toy())


@pytest.fixture(scope="module")
def usual() -> Imputations:
    """Two draws for `toy()` with the settings of `small`."""
    return small().fit(toy()).impute(m=2)


@pytest.fixture(scope="module")
def fitted_mixed() -> MGPImputer:
    """Fitted to `mixed()`; no test may change it."""
    return small(n_sweeps=2).fit(mixed())


@pytest.fixture(scope="module")
def saved(fitted: MGPImputer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `fitted`; tests that spoil it take a copy."""
    path = tmp_path_factory.mktemp("saved") / "imputer"
    fitted.save(path)
    return path


# -------------------------------------------------------------------------------------------- the public face


@pytest.mark.slow
def test_completed_tables_are_the_table_with_its_holes_filled(fitted_mixed: MGPImputer) -> None:
    frame = mixed()
    draws = fitted_mixed.impute(m=3)
    assert (len(draws), draws.m) == (3, 3)
    for completed in [*draws, fitted_mixed.transform(frame)]:
        assert_completes(completed, frame)
        assert [type(cell) for cell in completed["flag"]] == [bool] * len(frame)
        assert {type(cell) for cell in completed["text"]} == {str}


INDEXES = {
    "labels": pd.Index([f"r{i}" for i in range(8)], name="who"),
    "levels": pd.MultiIndex.from_product([["u", "v"], [2, 1], ["b", "a"]], names=["site", "visit", None]),
    "duplicates": pd.Index([5, 5, 5, 1, 1, 2, 5, 5]),
    "equal": pd.MultiIndex.from_tuples([("u", 1)] * 8),
    "dates": pd.date_range("2024-01-01", periods=8),
}


@pytest.mark.parametrize("index", INDEXES.values(), ids=INDEXES)
def test_new_rows_keep_their_index(fitted_mixed: MGPImputer, index: pd.Index[Any]) -> None:
    new = mixed().iloc[8:16].set_axis(index)
    assert missing(new).any(axis=0).sum() == 10
    assert_completes(fitted_mixed.transform(new), new)
    draws = fitted_mixed.impute(new, m=2)
    for completed in draws:
        assert_completes(completed, new)
    plain = fitted_mixed.impute(new.reset_index(drop=True), m=2)
    for label, values in draws.values.items():  # no two rows are equal, so labels decide nothing
        np.testing.assert_array_equal(values, plain.values[label])


@pytest.mark.parametrize("index", [INDEXES["levels"], INDEXES["duplicates"]])
def test_fit_takes_any_index(index: pd.Index[Any]) -> None:
    frame = toy(8).set_axis(index)
    for completed in small(n_inducing=None).fit(frame).impute(m=2):
        assert_completes(completed, frame)


@pytest.mark.slow
def test_draws_differ_between_imputations(fitted_mixed: MGPImputer) -> None:
    draws = fitted_mixed.impute(m=200)  # one boolean is uncertain, with a probability of some .03
    assert list(draws.values) == mixed().columns[:-2].tolist()
    different = {
        label: [len(set(cell)) for cell in draws.T.tolist()] for label, draws in draws.values.items()
    }
    assert min(different["float"] + different["float32"]) > 50  # a slice sampler may keep a cell
    assert min(max(different[label]) for label in ("Int64", "Int8")) > 2
    assert max(max(different[label]) for label in ("boolean", "flag")) == 2
    assert sum(levels > 1 for levels in different["str"]) >= 3  # nothing explains it


def test_own_rows_need_no_table(fitted: MGPImputer) -> None:
    frame = toy()
    assert fitted.impute(m=2) == fitted.impute(frame, m=2)
    ours = small().fit(frame)
    before = ours.impute(m=2)
    frame.loc[:, "y"] = 0.0
    pd.testing.assert_frame_equal(before.frame, toy())
    assert ours.impute(m=2) == before  # what happens to the user's table later does not matter


def test_neither_the_table_nor_the_target_is_changed() -> None:
    frame, y = mixed(), pd.Series(np.arange(30.0), name="t")
    y[3] = NAN
    imputer = small().fit(frame, y)
    imputer.impute(frame, m=2)
    imputer.transform(frame)
    imputer.predict(frame)
    pd.testing.assert_frame_equal(frame, mixed(), check_exact=True)
    assert y.isna().tolist() == [i == 3 for i in range(30)]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_an_array_gives_an_array(fitted: MGPImputer, dtype: type) -> None:
    array = toy().to_numpy(dtype)
    imputer = small(max_steps=20).fit(array)
    completed = imputer.transform(array)
    assert isinstance(completed, np.ndarray)
    assert (completed.dtype, completed.shape) == (dtype, array.shape)
    seen = ~np.isnan(array)
    assert completed[seen].tobytes() == array[seen].tobytes()
    assert np.isfinite(completed).all()
    # A cell that narrower floats round otherwise can give its row other noise: the answer is near, not equal.
    tolerance = 1e-8 if dtype is np.float64 else 0.3
    np.testing.assert_allclose(completed, fitted.transform(toy()), rtol=0, atol=tolerance)
    draws = imputer.impute(array[:5], m=2)
    assert [table.columns.tolist() for table in draws] == [["x0", "x1", "x2"]] * 2


def test_an_object_array_and_a_list_of_rows_are_tables_too() -> None:
    rows = [[0.5 * i, "b" if i % 2 else "a", None if i == 3 else i * i] for i in range(10)]
    rows[4][1] = None
    imputer = small(n_inducing=None).fit(np.array(rows, dtype=object))
    completed = imputer.transform(rows)
    assert isinstance(completed, np.ndarray)
    assert completed[4, 1] in ("a", "b")
    assert isinstance(completed[3, 2], int | float)
    assert completed[5].tolist() == rows[5]


def test_transform_is_the_posterior_mean() -> None:
    frame = toy()
    fitted = small(n_sweeps=10).fit(frame)
    point, draws = fitted.transform(frame), fitted.impute(m=200)
    for label, values in draws.values.items():
        filled = point[label][frame[label].isna()].to_numpy()
        # 20 functions or more are averaged: the error is below sd / sqrt(20) = .22 sd.
        error = (filled - values.mean(0)) / values.std(0)
        assert np.sqrt(np.mean(error**2)) < 0.2
        assert np.abs(error).max() < 0.5
        assert filled.std() > 3 * (filled - values.mean(0)).std()  # so a constant would not pass


def test_transform_rounds_means_for_integer_dtypes_only() -> None:
    frame = (2 * toy(90)).round()
    label = next(iter(frame.columns[frame.isna().any()]))
    fitted = small(n_sweeps=10).fit(frame)
    point, holes = fitted.transform(frame)[label], frame[label].isna()
    drawn = fitted.impute(m=200).values[label]
    assert not (drawn % 1).any() and (point[holes] % 1).any()
    error = (point[holes].to_numpy() - drawn.mean(0)) / drawn.std(0)
    assert np.sqrt(np.mean(error**2)) < 0.2
    integers = frame.astype({label: "Int64"})
    assert small().fit(integers).transform(integers)[label].dtype == "Int64"


def test_transform_takes_the_mode_of_labels_and_booleans(fitted_mixed: MGPImputer) -> None:
    frame = mixed()
    point = fitted_mixed.transform(frame)
    cells = fitted_mixed.impute(m=60).cells()
    clear = cells[cells["column"].isin(["boolean", "flag", "str", "string", "text", "size"])]
    clear = clear[clear["mode_share"] > 0.7]
    assert clear["column"].nunique() >= 4
    assert all(
        point.loc[row, column] == mode for row, column, mode in clear[["row", "column", "mode"]].values
    )


def test_cells_summarise_the_draws(fitted: MGPImputer) -> None:
    frame = toy()
    draws = fitted.impute(m=7)
    cells = draws.cells()
    holes = [(row, label) for label in ("x", "y") for row in frame.index[frame[label].isna()]]
    assert list(zip(cells["row"], cells["column"], strict=True)) == holes
    drawn = np.array([[table.loc[row, label] for table in draws] for row, label in holes])
    np.testing.assert_allclose(cells["mean"], drawn.mean(1))
    np.testing.assert_allclose(cells["sd"], drawn.std(1, ddof=1))
    np.testing.assert_allclose(cells["q50"], np.median(drawn, axis=1))


def test_a_column_entirely_missing_in_new_rows_is_filled(fitted_mixed: MGPImputer) -> None:
    new = mixed().iloc[8:12].assign(size=NAN, boolean=None, float=NAN)
    completed = fitted_mixed.transform(new)
    assert not missing(completed).any()
    assert completed["size"].isin(["low", "mid", "high"]).all()
    assert completed["boolean"].isin([True, False]).all()
    assert completed["float"].nunique() == 4


@pytest.mark.parametrize("training", [{}, {"n_paths": 2}], ids=["closed form", "SVI"])
@pytest.mark.parametrize(
    "names",
    [[7, "a.b c", 3], ["", "7", "µ/g"], ["x", "u_x", "z"], ["rows", "paths", "z"], ["filled", "links", "z"]],
    ids=str,
)
def test_columns_may_have_any_names(usual: Imputations, names: list[Any], training: dict[str, Any]) -> None:
    frame = toy().set_axis(names, axis=1)
    imputer = small(**training).fit(frame)
    assert imputer.order_ == [str(name) for name in names[:2]]
    plain = small(**training).fit(toy()).impute(m=2) if training else usual
    for completed, expected in zip(imputer.impute(m=2), plain, strict=True):
        assert_completes(completed, frame)
        np.testing.assert_allclose(completed.to_numpy(), expected.to_numpy())


def test_nothing_works_before_fit() -> None:
    for use in (
        lambda i: i.transform(toy()),
        lambda i: i.impute(),
        lambda i: i.impute(toy()),
        lambda i: i.predict(toy()),
        lambda i: i.save("never"),
    ):
        with pytest.raises(NotFittedError, match="not fitted yet"):
            use(MGPImputer())
    assert not Path("never").exists()


def test_nothing_is_printed_off_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    small(progress=True).fit(toy()).impute(m=2)
    assert capfd.readouterr() == ("", "")


def test_the_device_may_be_named(device: torch.device, tmp_path: Path) -> None:
    frame = mixed()[["float", "boolean", "text", "int"]]
    imputer = small(device=str(device), n_sweeps=1).fit(frame)
    assert {p.device.type for p in imputer.chain_.parameters()} == {device.type}
    imputer.save(tmp_path / "imputer")
    loaded = MGPImputer.load(tmp_path / "imputer", device="cpu")
    assert {p.device.type for p in loaded.chain_.parameters()} == {"cpu"}
    there, here = imputer.impute(frame, m=2), loaded.impute(frame, m=2)
    np.testing.assert_allclose(there.values["float"], here.values["float"], atol=1e-6)


# ------------------------------------------------------------------------------------------------ determinism


def test_same_seed_same_draws(fitted: MGPImputer) -> None:
    again = small(max_steps=20).fit(toy())
    assert again.impute(m=3) == fitted.impute(m=3)
    pd.testing.assert_frame_equal(again.transform(toy()), fitted.transform(toy()), check_exact=True)
    other = small(max_steps=20, random_state=1).fit(toy()).impute(m=3)
    assert (other.values["y"] != fitted.impute(m=3).values["y"]).all()


def test_asking_twice_gives_the_same(fitted: MGPImputer) -> None:
    assert fitted.impute(m=3) == fitted.impute(m=3)


@pytest.mark.parametrize("which", ["fitted", "fitted_mixed"])
def test_five_imputations_are_the_first_five_of_twenty(which: str, request: pytest.FixtureRequest) -> None:
    imputer: MGPImputer = request.getfixturevalue(which)
    assert_close(imputer.impute(m=5), first(imputer.impute(m=20), 5))


@pytest.mark.parametrize("batch_size", [1, 7, 1000])
@pytest.mark.parametrize("which", ["fitted", "fitted_mixed"])
def test_draws_do_not_depend_on_the_batch_size(
    which: str, batch_size: int, request: pytest.FixtureRequest
) -> None:
    imputer: MGPImputer = request.getfixturevalue(which)
    assert_close(imputer.impute(m=2, batch_size=batch_size), imputer.impute(m=2))


def test_draws_do_not_depend_on_the_batch_size_when_cells_are_drawn_alone() -> None:
    imputer = small(joint_draws=False).fit(toy())
    assert_close(imputer.impute(m=4, batch_size=3), imputer.impute(m=4))


def test_draws_of_a_row_do_not_depend_on_its_company(fitted: MGPImputer) -> None:
    frame = toy()
    together = fitted.impute(m=4)
    alone = [fitted.impute(frame.loc[[row]], m=4) for row in frame.index]
    for label in ("x", "y"):
        parts = [draws.values[label] for draws in alone if label in draws.values]
        np.testing.assert_allclose(np.hstack(parts), together.values[label], rtol=1e-8, atol=1e-8)


def test_two_imputations_of_equal_rows_differ(fitted: MGPImputer) -> None:
    twins = pd.DataFrame({"x": [0.5] * 3, "y": [NAN] * 3, "z": [0.1] * 3})
    values = fitted.impute(twins, m=1).values["y"]
    assert len(np.unique(values)) == 3


def test_a_seed_at_impute_gives_other_draws(fitted: MGPImputer) -> None:
    own, other = fitted.impute(m=2), fitted.impute(m=2, random_state=9)
    assert (own.values["y"] != other.values["y"]).all()
    assert fitted.impute(m=2, random_state=9) == other
    assert fitted.impute(m=2, random_state=np.int64(fitted.seed_)) == own
    a, b = (fitted.impute(m=2, random_state=np.random.default_rng(4)) for _ in range(2))
    assert a == b


def test_random_state_takes_every_kind_of_seed() -> None:
    def draws(random_state: Any) -> Imputations:
        return small(random_state=random_state).fit(toy()).impute(m=2)

    assert draws(3) == draws(np.int64(3))
    assert draws(np.random.RandomState(3)) == draws(np.random.RandomState(3))
    assert draws(np.random.default_rng(3)) == draws(np.random.default_rng(3))
    generator = np.random.default_rng(3)
    assert draws(generator) != draws(generator)  # the user's generator moves on
    free = small(random_state=None).fit(toy())
    assert free.impute(m=2) == free.impute(m=2)
    assert free.seed_ != small(random_state=None).fit(toy()).seed_
    with pytest.raises(ValueError, match="random_state must be at least 0, got -1"):
        draws(-1)
    with pytest.raises(TypeError, match=r"random_state must be an integer, got 1\.5"):
        draws(1.5)


@pytest.mark.parametrize("seed", [2**31, 2**63 - 1, 2**70])
def test_a_large_seed_works_or_is_refused_by_name(seed: int) -> None:
    try:
        assert small(random_state=seed).fit(toy()).impute(m=1).m == 1
    except ValueError as error:
        assert "random_state" in str(error)


def test_nothing_global_is_touched() -> None:
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002 (the legacy generator is the global state that is meant)
    torch.manual_seed(5)
    pyro.param("theirs", torch.tensor(1.0))

    def state() -> tuple[Any, ...]:
        return (
            random.getstate(),
            [part.tolist() if isinstance(part, np.ndarray) else part for part in np.random.get_state()],  # noqa: NPY002
            torch.get_rng_state().tolist(),
            torch.get_default_dtype(),
            torch.get_num_threads(),
            torch.is_grad_enabled(),
            torch.distributions.Distribution._validate_args,
            {name: value.item() for name, value in pyro.get_param_store().items()},
            pyro.settings.get(),
        )

    before = state()
    for imputer in (
        small(),
        MGPImputer.paper(max_steps=2, n_inducing=5, n_paths=2),
        small(random_state=None),
    ):
        imputer.fit(toy(), np.arange(40.0)).impute(m=2)
        imputer.transform(toy())
        imputer.predict(toy())
    assert state() == before
    pyro.clear_param_store()


def test_results_do_not_depend_on_what_is_global(fitted: MGPImputer) -> None:
    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002
    assert small(max_steps=20).fit(toy()).impute(m=2) == fitted.impute(m=2)
    torch.set_default_dtype(torch.float64)
    try:
        wide = small(max_steps=20).fit(toy())
    finally:
        torch.set_default_dtype(torch.float32)
    np.testing.assert_allclose(
        wide.impute(m=2).values["y"], fitted.impute(m=2).values["y"], rtol=0, atol=1e-3
    )


ALONE = """
import sys, numpy as np, pandas as pd
from pyro_mgp import MGPImputer
imputer = MGPImputer(max_steps=5, n_inducing=10, n_sweeps=2, random_state=0, device=sys.argv[3])
draws = imputer.fit(pd.read_pickle(sys.argv[1])).impute(m=2)
np.save(sys.argv[2], draws.values["y"])
"""


def test_an_imputer_fitted_after_another_is_as_if_fitted_alone(tmp_path: Path) -> None:
    other = toy().assign(y=lambda f: -5 * f["x"] + f["z"] ** 2).where(toy().notna())
    one = small().fit(toy()).impute(m=2)
    two = small().fit(other).impute(m=2)
    assert small().fit(toy()).impute(m=2) == one
    other.to_pickle(tmp_path / "other.pkl")
    paths = {"PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])}
    files, device = [str(tmp_path / "other.pkl"), str(tmp_path / "y.npy")], os.environ["PYRO_MGP_TEST_DEVICE"]
    command = [sys.executable, "-c", ALONE, *files, device]
    subprocess.run(command, check=True, env=os.environ | paths)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), two.values["y"], rtol=1e-8, atol=1e-8)


# -------------------------------------------------------------------------------------------- property tests

# Every example of FEW fits twice. The tables are small as they come: shrinking them would take minutes.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
FEW = settings(deadline=None, max_examples=8, phases=PHASES, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def numeric_tables(draw: st.DrawFn) -> pd.DataFrame:
    """Three columns of small numbers, the first complete; holes anywhere else but in two rows that vary."""
    n_rows = draw(st.integers(3, 10))
    cell = st.integers(-300, 300).map(lambda i: i / 100)
    cells = np.array(draw(st.lists(st.tuples(cell, cell, cell), min_size=n_rows, max_size=n_rows)))
    holes = np.array(draw(st.lists(st.tuples(*[st.booleans()] * 2), min_size=n_rows, max_size=n_rows)))
    cells[0], cells[1], holes[:2] = 0.0, [1.0, 3.0, -2.0], False
    cells[:, 1:][holes] = NAN
    return pd.DataFrame(cells, columns=["a", "b", "c"], index=[f"r{i}" for i in range(n_rows)])


@st.composite
def mixed_rows(draw: st.DrawFn) -> pd.DataFrame:
    """New rows for `fitted_mixed`: any cells that its columns can hold, holes anywhere."""
    n_rows = draw(st.integers(1, 6))
    template = mixed()

    def column(label: str) -> pd.Series[Any]:
        if label in ("float", "float32"):
            cell: st.SearchStrategy[Any] = st.floats(-1e6, 1e6, width=32)
        elif label in ("Int64", "Int8", "int"):
            cell = st.integers(-128, 127)
        elif label in ("boolean", "flag", "bool"):
            cell = st.booleans()
        else:
            cell = st.sampled_from(["low", "mid", "high"])
        if label not in ("int", "bool"):  # these dtypes have no way to say missing
            cell = st.none() | cell
        cells = draw(st.lists(cell, min_size=n_rows, max_size=n_rows))
        return pd.Series(cells, dtype=template[label].dtype)

    index = draw(st.lists(st.integers(0, 2), min_size=n_rows, max_size=n_rows))
    return pd.DataFrame({label: column(label) for label in template.columns}).set_axis(index)


@FEW
@given(frame=numeric_tables())
def test_observed_cells_never_change(frame: pd.DataFrame) -> None:
    frame["flag"] = pd.array([None if v < 0 else v > 1 for v in frame["a"]], dtype="boolean")
    frame["word"] = pd.Categorical(["u", "v", *["w"] * (len(frame) - 2)])
    frame.iloc[:2, frame.columns.get_loc("flag")] = [True, False]
    imputer = small(n_inducing=None, max_steps=2).fit(frame)
    draws = imputer.impute(m=2)
    for completed in [*draws, imputer.transform(frame)]:
        assert_completes(completed, frame)
        assert np.isfinite(completed[["a", "b", "c"]]).all(axis=None)


@settings(FEW, max_examples=4)
@given(new=mixed_rows())
@pytest.mark.slow
def test_any_new_rows_are_completed(fitted_mixed: MGPImputer, new: pd.DataFrame) -> None:
    draws = fitted_mixed.impute(new, m=2)
    for completed in [*draws, fitted_mixed.transform(new)]:
        assert_completes(completed, new)
        assert np.isfinite(completed[["float", "float32"]]).all(axis=None)
        for label in ("str", "string", "text", "size"):
            assert completed[label].isin(["low", "mid", "high"]).all()


@FEW
@given(frame=numeric_tables(), data=st.data())
@pytest.mark.slow
def test_permuted_rows_permute_the_answer(frame: pd.DataFrame, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(frame))))
    turned = frame.iloc[order]
    one, two = (small(n_inducing=5 if len(frame) > 5 else None).fit(table) for table in (frame, turned))
    for ours, theirs in zip(one.impute(m=2), two.impute(m=2), strict=True):
        pd.testing.assert_frame_equal(ours.iloc[order], theirs, rtol=1e-6, atol=1e-8)
    pd.testing.assert_frame_equal(
        one.transform(frame).iloc[order], two.transform(turned), rtol=1e-6, atol=1e-8
    )


@FEW
@given(new=numeric_tables(), data=st.data())
def test_permuted_new_rows_permute_the_answer(
    fitted: MGPImputer, new: pd.DataFrame, data: st.DataObject
) -> None:
    new = new[["b", "c", "a"]].set_axis(["x", "y", "z"], axis=1)
    order = data.draw(st.permutations(range(len(new))))
    for ours, theirs in zip(fitted.impute(new, m=2), fitted.impute(new.iloc[order], m=2), strict=True):
        pd.testing.assert_frame_equal(ours.iloc[order], theirs, rtol=1e-8, atol=1e-8)


@FEW
@given(frame=numeric_tables(), label=st.sampled_from(["a", "b", "c"]))
def test_a_columns_units_scale_its_answer(frame: pd.DataFrame, label: str) -> None:
    # In neither unit are all numbers positive: a log of positive numbers would depend on the zero.
    order = [column for column in ("c", "b") if frame[column].isna().any()]
    scaled = frame.assign(**{label: 1000 * frame[label] - 5})
    one, two = (small(n_inducing=None, order=order).fit(table) for table in (frame, scaled))
    pairs = [*zip(one.impute(m=2), two.impute(m=2), strict=True)]
    for ours, theirs in [*pairs, (one.transform(frame), two.transform(scaled))]:
        expected = ours.assign(**{label: 1000 * ours[label] - 5})
        pd.testing.assert_frame_equal(expected, theirs, rtol=1e-5, atol=1e-5)


# ------------------------------------------------------------------------------------------- bad input at fit

BAD_TABLES: dict[str, tuple[Callable[[pd.DataFrame], object], type[Exception], str]] = {
    "entirely missing": (lambda f: f.assign(y=NAN), ValueError, "Column 'y' is entirely missing.*Drop it"),
    "infinite": (
        lambda f: f.set_axis(list("abcdefghij" * 4)).assign(z=[1.0] * 3 + [np.inf] + [2.0] * 36),
        ValueError,
        r"Column 'z': row 'd' \(position 3\) holds inf; expected finite numbers",
    ),
    "1e300": (
        lambda f: f.assign(z=[0.0] * 39 + [-1e300]),
        ValueError,
        r"Column 'z': row 39 \(position 39\) holds -1e\+300; .* at most 1e\+100",
    ),
    "duplicate names": (
        lambda f: f.set_axis(["x", "y", "y"], axis=1),
        ValueError,
        r"Column names must be unique, got \['y'\]",
    ),
    "no rows": (lambda f: f.iloc[:0], ValueError, "at least two rows, got no rows"),
    "one row": (lambda f: f.iloc[[2]], ValueError, "at least two rows, got one row"),
    "no columns": (lambda f: f[[]], ValueError, "at least two columns, got no columns"),
    "one column": (lambda f: f[["y"]], ValueError, "at least two columns, got only one column, 'y'"),
    "mixed types": (
        lambda f: f.assign(w=[1, "b"] * 20),
        TypeError,
        r"Column 'w' mixes types.*row 1 \(position 1\) holds 'b'",
    ),
    "periods": (
        lambda f: f.assign(w=pd.period_range("2024-01-01", periods=40)),
        TypeError,
        "Column 'w': expected numbers, booleans, text, pandas categories or times, got dtype period",
    ),
    "not a table": (lambda f: f["y"], TypeError, "Expected a table: .*got Series"),
}


@pytest.mark.parametrize(("spoil", "error", "sentence"), BAD_TABLES.values(), ids=BAD_TABLES)
def test_fit_refuses_a_table_it_cannot_use(
    spoil: Callable[[pd.DataFrame], object], error: type[Exception], sentence: str
) -> None:
    imputer = small()
    with pytest.raises(error, match=sentence):
        imputer.fit(spoil(toy()))
    with pytest.raises(NotFittedError):
        imputer.transform(toy())


def test_a_row_entirely_missing_is_imputed_from_the_marginal() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=100)
    frame = pd.DataFrame({"x": 10 + 2 * x, "y": -x + 0.5 * rng.normal(size=100)}).set_axis(range(100, 200))
    frame.loc[103] = NAN
    with pytest.warns(TableWarning, match=r"1 row is entirely missing: row 103 \(position 3\)") as said:
        imputer = small(max_steps=20).fit(frame)
    assert len(said) == 1
    assert said[0].filename == __file__
    draws = imputer.impute(m=300)  # the fitted table: what there is to say has been said
    assert_completes(draws[0], frame)
    row = np.column_stack([draws.values["x"], draws.values["y"]])
    off = np.abs(row.mean(0) - frame.mean()) / frame.std()
    spread = row.std(0) / frame.std()
    assert (off < 0.5).all()
    assert ((spread > 0.6) & (spread < 1.5)).all()
    assert np.corrcoef(row.T)[0, 1] < -0.6  # jointly, not column by column
    with pytest.warns(TableWarning):
        assert_completes(imputer.transform(frame), frame)


@pytest.mark.parametrize("columns", ["incomplete", "all"])
def test_a_table_without_holes_comes_back_unchanged(columns: Any, tmp_path: Path) -> None:
    full = mixed().dropna()
    assert len(full) >= 4
    imputer = small(columns=columns, n_inducing=3).fit(full)
    draws = imputer.impute(m=3)
    assert (draws.m, len(draws.cells())) == (3, 0)
    imputer.save(tmp_path / "imputer")
    loaded = MGPImputer.load(tmp_path / "imputer")
    tables = [*draws, imputer.transform(full), loaded.transform(full), *loaded.impute(full, m=1)]
    for completed in tables:
        pd.testing.assert_frame_equal(completed, full, check_exact=True)
        assert_completes(completed, full)


def test_more_inducing_inputs_than_rows_are_reduced_and_said_once() -> None:
    with pytest.warns(
        FitWarning, match="n_inducing=41 is more than the 40 rows of the table; using 40"
    ) as said:
        imputer = small(n_inducing=41).fit(toy())
    assert len(said) == 1
    assert said[0].filename == __file__
    assert [link.n_inducing for link in imputer.chain_.links] == [40, 40]
    assert [link.n_inducing for link in small(n_inducing=None).fit(toy()).chain_.links] == [40, 40]
    assert [link.n_inducing for link in small(n_inducing=40).fit(toy()).chain_.links] == [40, 40]


BAD_SETTINGS: list[tuple[dict[str, Any], type[Exception], str]] = [
    *[
        ({name: 0}, ValueError, f"{name} must be at least 1, got 0")
        for name in ("n_sweeps", "n_paths", "max_steps", "batch_size", "patience", "n_inducing")
    ],
    ({"m": 5}, TypeError, r"MGPImputer\.__init__\(\) got an unexpected keyword argument 'm'"),
    ({"max_steps": 2.5}, TypeError, r"max_steps must be an integer, got 2\.5"),
    ({"n_inducing": "many"}, TypeError, "n_inducing must be an integer, got 'many'"),
    (
        {"propagate": "mean"},
        ValueError,
        r"propagate must be one of \['predictive', 'latent'\], got 'mean'",
    ),
    ({"initial_fill": "zero"}, ValueError, r"initial_fill must be one of \[.*'linear'.*\], got 'zero'"),
    ({"columns": ["x"]}, ValueError, r"columns must be one of \['incomplete', 'all'\], got \['x'\]"),
    ({"learning_rate": 0.0}, ValueError, r"learning_rate must be positive and finite, got 0\.0"),
    ({"learning_rate": NAN}, ValueError, "learning_rate must be positive and finite, got nan"),
    (
        {"validation_fraction": -0.1},
        ValueError,
        r"validation_fraction must lie between 0 and 0\.5, got -0\.1",
    ),
    ({"validation_fraction": 0.6}, ValueError, r"validation_fraction must lie between 0 and 0\.5, got 0\.6"),
    (
        {"inference": "closed_form", "backpropagate": True},
        ValueError,
        'inference="closed_form" cannot be used: gradients pass through the draws',
    ),
    (
        {"inference": "closed_form", "n_paths": 2},
        ValueError,
        'inference="closed_form" cannot be used: n_paths=2',
    ),
    ({"inference": "exact"}, ValueError, "inference must be one of .*'svi'.* got 'exact'"),
    ({"optimizer": Adam({"lr": 0.1})}, ValueError, "optimizer needs inference=\"svi\", got inference='auto'"),
    ({"loss": Trace_ELBO()}, ValueError, "loss needs inference=\"svi\", got inference='auto'"),
    (
        {"inference": "svi", "optimizer": torch.optim.Adam},
        TypeError,
        r"optimizer must be a pyro\.optim\.optim\.PyroOptim or None",
    ),
    (
        {"inference": "svi", "optimizer": Adam(lambda name: {"lr": 0.1})},
        ValueError,
        "optimizer must have a dict of settings",
    ),
    ({"inference": "svi", "loss": 1}, TypeError, r"loss must be a pyro\.infer\.elbo\.ELBO or None, got 1"),
    (
        {"kernel": "rbf"},
        ValueError,
        r"kernel must be 'auto', one of .*'linear\+quadratic\+matern32', 'matern32'\].*got 'rbf'",
    ),
    ({"order": ["y"]}, ValueError, r"order must name each column with a link once: expected \['x', 'y'\]"),
    ({"order": ["x", "y", "y"]}, ValueError, r"order must name .* got \['x', 'y', 'y'\]"),
    ({"order": ["x", "y", "z"]}, ValueError, r"order must name .* got \['x', 'y', 'z'\]"),
    ({"device": "abacus"}, ValueError, "device"),
]


@pytest.mark.parametrize(
    ("n_rows", "settings", "expected"),
    [
        (400, {}, 15),
        (200, {}, 20),
        (400, {"n_neighbors": 0}, 20),
        (400, {"propagate": "latent"}, 20),
        (400, {"specs": {"b": ColumnSpec(kind="heavy-tailed")}}, 20),
        (400, {"max_steps": 5}, 5),
    ],
)
def test_links_that_nearby_rows_correct_take_fewer_steps(
    n_rows: int, settings: dict[str, Any], expected: int
) -> None:
    values = np.random.default_rng(0).normal(size=(n_rows, 2)) @ [[1, 0.9], [0, 0.5]]
    values[:50, 0], values[50:100, 1] = np.nan, np.nan
    frame = pd.DataFrame(values, columns=["a", "b"])
    fitted = small(**{"max_steps": None, "patience": 100, "inputs": "others", **settings}).fit(frame)
    assert len(fitted.history_.loss) == expected


@pytest.mark.parametrize(
    ("setting", "error", "sentence"),
    BAD_SETTINGS,
    ids=[re.sub(r" at 0x\w+", "", str(s)) for s, _, _ in BAD_SETTINGS],
)
def test_fit_refuses_a_setting_out_of_range(
    setting: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        small(**setting).fit(toy())


@pytest.mark.skipif(torch.cuda.is_available(), reason="shows what happens without an accelerator")
def test_a_device_that_is_not_there_is_a_value_error(saved: Path) -> None:
    with pytest.raises(ValueError, match="cuda"):
        small(device="cuda").fit(toy())
    with pytest.raises(ValueError, match="cuda"):
        MGPImputer.load(saved, device="cuda")


def test_a_learning_rate_that_diverges_says_so() -> None:
    with pytest.raises((ValueError, FloatingPointError), match="learning rate"):
        small(learning_rate=1e8, max_steps=50).fit(toy())


def test_a_column_with_two_observed_cells_survives_the_validation() -> None:
    rng = np.random.default_rng(0)
    array = rng.normal(size=(60, 4))
    array[:, 1] += array[:, 0]
    array[rng.random(array.shape) < 0.3] = NAN
    array[:, 0] = rng.normal(size=60)
    array[2:, 3] = NAN
    array[:2, 3] = [1.0, 2.0]
    for seed in range(8):  # a quarter of the seeds would hold both cells out
        imputer = small(max_steps=1, n_sweeps=1, n_inducing=5, random_state=seed, validation_fraction=0.5)
        assert np.isfinite(imputer.fit(array).transform(array)).all()


# --------------------------------------------------------------------------------- bad input to a fitted one

BAD_ROWS: dict[str, tuple[Callable[[pd.DataFrame], object], type[Exception], str]] = {
    "missing": (
        lambda f: f.drop(columns="float"),
        ValueError,
        r"columns differ from those at fit: missing \['float'\]",
    ),
    "extra": (lambda f: f.assign(w=1.0), ValueError, r"unexpected \['w'\]"),
    "renamed": (
        lambda f: f.rename(columns={"float": "Float"}),
        ValueError,
        r"missing \['float'\] and unexpected \['Float'\]",
    ),
    "reordered": (lambda f: f[f.columns[::-1]], ValueError, "another order than at fit.*Reorder them"),
    "text for numbers": (
        lambda f: f.assign(float="1.5"),
        TypeError,
        r"Column 'float': expected continuous cells \(dtype float64 at fit\), got categorical",
    ),
    "numbers for booleans": (
        lambda f: f.assign(boolean=1),
        TypeError,
        "Column 'boolean': expected boolean cells .*got integer cells",
    ),
    "numbers for text": (
        lambda f: f.assign(str=1.0),
        TypeError,
        "Column 'str': expected categorical cells .*got continuous cells",
    ),
    "infinite": (
        lambda f: f.assign(float=-np.inf),
        ValueError,
        r"Column 'float': row 8 \(position 0\) holds -inf",
    ),
    "1e300": (lambda f: f.assign(float=1e300), ValueError, r"Column 'float': row .* holds 1e\+300"),
    "duplicate names": (
        lambda f: f.rename(columns={"float": "str"}),
        ValueError,
        r"Column names must be unique, got \['str'\]",
    ),
    "no rows": (lambda f: f.iloc[:0], ValueError, "at least one row, got no rows"),
    "an array": (lambda f: f.to_numpy(), ValueError, "columns differ from those at fit"),
}


@pytest.mark.parametrize("use", [MGPImputer.transform, MGPImputer.impute], ids=["transform", "impute"])
@pytest.mark.parametrize(("spoil", "error", "sentence"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_new_rows_must_fit_the_fitted_table(
    fitted_mixed: MGPImputer,
    use: Callable[[MGPImputer, object], object],
    spoil: Callable[[pd.DataFrame], object],
    error: type[Exception],
    sentence: str,
) -> None:
    with pytest.raises(error, match=sentence):
        use(fitted_mixed, spoil(mixed().iloc[8:16]))


def test_an_array_with_other_columns_is_refused() -> None:
    imputer = small().fit(toy().to_numpy())
    with pytest.raises(ValueError, match=r"missing \['x2'\]"):
        imputer.transform(toy().to_numpy()[:, :2])


def test_floats_stand_in_for_integers_and_stay_floats(fitted_mixed: MGPImputer) -> None:
    new = mixed().iloc[:6].astype({"Int64": "float64"})
    assert new["Int64"].isna().any()
    completed = fitted_mixed.transform(new)
    assert_completes(completed, new)
    assert (completed["Int64"] % 1 == 0).all()


@pytest.mark.parametrize("m", [0, -3])
def test_there_is_at_least_one_imputation(fitted: MGPImputer, m: int) -> None:
    with pytest.raises(ValueError, match=f"m, the number of imputations, must be at least 1, got {m}"):
        fitted.impute(m=m)


def test_m_and_batch_size_are_integers(fitted: MGPImputer) -> None:
    with pytest.raises(TypeError, match=r"m, the number of imputations, must be an integer, got 2\.0"):
        fitted.impute(m=2.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"expected a table, got 5: .*, impute\(m=5\)"):
        fitted.impute(5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        fitted.impute(m=1, batch_size=0)
    assert fitted.impute(m=np.int64(2)).m == 2  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------- a target


def regression(n_rows: int, seed: int) -> tuple[pd.DataFrame, pd.Series[Any]]:
    """y = 100 + 30 a - 20 b + noise of sd 5; a is missing in every sixth row, b in every seventh other."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(n_rows, 2)), columns=["a", "b"])
    y = 100 + 30 * frame["a"] - 20 * frame["b"] + 5 * rng.normal(size=n_rows)
    frame.loc[::6, "a"] = NAN
    frame.loc[frame["a"].notna() & (frame.index % 7 == 3), "b"] = NAN
    return frame, y.rename("yield")


@pytest.fixture(scope="module")
def regressor() -> MGPImputer:
    """Fitted to 100 rows of `regression`, target and all; no test may change it."""
    return small(max_steps=20, n_inducing=30).fit(*regression(100, 0))


def test_predictions_are_near_and_intervals_cover(regressor: MGPImputer) -> None:
    frame, y = regression(300, 1)
    frame.index, y.index = [f"r{i}" for i in range(300)], [f"r{i}" for i in range(300)]
    answer = regressor.predict(frame)
    assert answer.columns.tolist() == ["mean", "sd", "lower", "upper"]
    assert answer.index.identical(frame.index)
    complete = frame.notna().all(axis=1)
    error = answer["mean"] - y
    assert np.sqrt((error**2).mean()) < 0.5 * y.std()
    assert np.sqrt((error[complete] ** 2).mean()) < 0.35 * y.std()
    for rows in (complete, ~complete):
        inside = y[rows].between(answer["lower"][rows], answer["upper"][rows]).mean()
        assert 0.85 <= inside <= 1.0
    assert (answer["lower"] < answer["mean"]).all()
    assert (answer["mean"] < answer["upper"]).all()
    assert answer["sd"][~complete].mean() > 1.2 * answer["sd"][complete].mean()  # holes cost certainty


def test_predictions_are_sharp_where_the_columns_were_complete() -> None:
    frame, y = regression(100, 0)
    complete = frame.notna().all(axis=1)
    imputer = small(max_steps=200, n_inducing=30).fit(frame[complete], y[complete])
    new, truth = regression(300, 1)
    new, truth = new.dropna(), truth[new.notna().all(axis=1)]
    answer = imputer.predict(new)
    assert np.sqrt(((answer["mean"] - truth) ** 2).mean()) < 1.3 * 5  # 5 is the noise
    assert answer["sd"].between(4, 8).mean() > 0.95
    assert truth.between(answer["lower"], answer["upper"]).mean() > 0.85


def test_the_interval_has_the_level_asked_for(regressor: MGPImputer) -> None:
    frame, _ = regression(20, 2)
    wide, narrow = regressor.predict(frame), regressor.predict(frame, level=0.5)
    complete = frame.notna().all(axis=1)
    ratio = (narrow["upper"] - narrow["lower"]) / (wide["upper"] - wide["lower"])
    np.testing.assert_allclose(ratio[complete], 0.6745 / 1.96, atol=0.03)
    pd.testing.assert_frame_equal(wide[["mean", "sd"]], narrow[["mean", "sd"]])
    for level in (0, 1, 1.5):
        with pytest.raises(ValueError, match=f"level must lie between 0 and 1, got {level}"):
            regressor.predict(frame, level=level)


def test_predict_refuses_other_columns(regressor: MGPImputer) -> None:
    with pytest.raises(ValueError, match=r"missing \['b'\]"):
        regressor.predict(pd.DataFrame({"a": [1.0]}))


def test_the_targets_units_scale_the_prediction(regressor: MGPImputer) -> None:
    frame, y = regression(100, 0)
    scaled = small(max_steps=20, n_inducing=30).fit(frame, 1000 * y + 5).predict(frame.head())
    expected = regressor.predict(frame.head()) * 1000
    expected[["mean", "lower", "upper"]] += 5
    pd.testing.assert_frame_equal(scaled, expected, rtol=1e-6)


def test_a_target_may_be_incomplete() -> None:
    frame, y = regression(100, 0)
    holed = y.mask(np.arange(100) % 4 == 0)
    imputer = small(max_steps=20, n_inducing=30).fit(frame, holed)
    unseen = holed.isna() & frame.notna().all(axis=1)
    error = imputer.predict(frame)["mean"][unseen] - y[unseen]
    assert np.sqrt((error**2).mean()) < 0.35 * y.std()


@pytest.mark.parametrize(
    "y",
    [
        [*range(39), None],
        np.arange(40.0),
        np.arange(40, dtype=np.int8),
        pd.Series([*range(39), None], dtype="Int64", name="x"),  # the name of a column, too
        pd.Series(range(40), index=range(100, 140), name=3),
    ],
    ids=["list", "array", "int8", "Int64", "other index"],
)
def test_a_target_may_come_in_many_forms(y: Any) -> None:
    answer = small().fit(toy(), y).predict(toy())
    assert answer.shape == (40, 4)
    assert np.isfinite(answer).all(axis=None)


@pytest.mark.parametrize(
    ("y", "error", "sentence"),
    [
        (["a", "b"] * 20, TypeError, "y must be numeric, got categorical values"),
        ([True, False] * 20, TypeError, "y must be numeric, got boolean values"),
        (pd.Series(["a", "b"] * 20, dtype="category"), TypeError, "y must be numeric, got categorical"),
        (np.arange(39.0), ValueError, "one value per row of X: expected 40, got 39"),
        (np.full(40, NAN), ValueError, "y is entirely missing: expected observed numbers"),
        (np.ones(40), ValueError, "y is constant"),
        (np.r_[np.arange(39.0), np.inf], ValueError, r"Column 'target': row 39 \(position 39\) holds inf"),
    ],
)
def test_fit_refuses_a_target_it_cannot_use(y: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        small().fit(toy(), y)


def test_predict_needs_a_target(fitted: MGPImputer) -> None:
    with pytest.raises(ValueError, match=r"predict needs a target: call fit\(X, y\) first"):
        fitted.predict(toy())
    imputer = small().fit(toy(), np.arange(40.0)).fit(toy())  # the second fit forgets the target
    with pytest.raises(ValueError, match="predict needs a target"):
        imputer.predict(toy())


def test_the_target_is_the_last_link_and_no_column_of_the_imputations() -> None:
    one = small().fit(toy(), np.arange(40.0))
    two = small().fit(toy(), -5 * toy()["z"] ** 2)
    assert one.order_ == ["x", "y", "target"]
    assert two.order_ == ["x", "y", "target z"]  # a column has its name already
    assert list(two.impute(m=1).values) == ["x", "y"]


def test_the_target_informs_the_imputations_of_the_fitted_rows() -> None:
    """x is y but for a little noise: y shows where a hole of x lies, unless x may not see it."""
    generator = np.random.default_rng(5)
    x = generator.normal(size=150)
    frame = pd.DataFrame(
        {"x": np.where(generator.random(150) < 0.3, np.nan, x), "z": generator.normal(size=150)}
    )
    y, holes = x + 0.1 * generator.normal(size=150), frame["x"].isna()
    errors = {}
    for seen in (True, False):
        imputer = MGPImputer(
            engine=Engine(target_is_input=seen), max_steps=20, random_state=0, n_inducing=30
        ).fit(frame, y)
        errors[seen] = np.abs(imputer.impute(m=5).values["x"] - x[holes]).mean()
        # Other rows come without a target: x is as unknown as it was.
        assert np.abs(imputer.impute(frame, m=5).values["x"] - x[holes]).mean() > 0.5
    assert errors[True] < 0.3
    assert errors[False] > 0.5


# ----------------------------------------------------------------------------------------------------- saving


def rbf(input_dim: int) -> kernels.Kernel:
    """A kernel of the user's own."""
    return kernels.RBF(input_dim, lengthscale=torch.full((input_dim,), 2.0))


SAVED: dict[str, Callable[[], tuple[MGPImputer, pd.DataFrame]]] = {
    "numbers": lambda: (small().fit(toy()), toy()),
    "target": lambda: (small().fit(toy(), np.arange(40.0)), toy()),
    "paper": lambda: (MGPImputer.paper(max_steps=2, n_inducing=5, n_paths=2).fit(toy()), toy()),
    "all columns": lambda: (small(columns="all").fit(toy()), toy()),
    "order": lambda: (small(order=("y", "x")).fit(toy()), toy()),
    "no seed": lambda: (small(random_state=None).fit(toy()), toy()),
    "generator": lambda: (small(random_state=np.random.default_rng(0)).fit(toy()), toy()),
    "integer labels": lambda: (
        small(order=[2, 1]).fit(toy().set_axis([1, 2, 3], axis=1)),
        toy().set_axis([1, 2, 3], axis=1),
    ),
    "numpy settings": lambda: (
        small(max_steps=np.int64(3), learning_rate=np.float32(0.1), joint_draws=np.bool_(True)).fit(toy()),
        toy(),
    ),
}


@pytest.mark.parametrize("case", ["every dtype", *SAVED])
@pytest.mark.slow
def test_a_loaded_imputer_is_the_saved_one(case: str, fitted_mixed: MGPImputer, tmp_path: Path) -> None:
    imputer, frame = SAVED[case]() if case in SAVED else (fitted_mixed, mixed())
    imputer.save(tmp_path / "deep" / "imputer")
    assert sorted(os.listdir(tmp_path / "deep")) == ["imputer"]
    assert sorted(os.listdir(tmp_path / "deep" / "imputer")) == ["arrays.safetensors", "header.json"]
    loaded = MGPImputer.load(tmp_path / "deep" / "imputer")
    new = frame.iloc[3:17]
    assert loaded.impute(new, m=3) == imputer.impute(new, m=3)
    pd.testing.assert_frame_equal(loaded.transform(new), imputer.transform(new), check_exact=True)
    if case == "target":
        pd.testing.assert_frame_equal(loaded.predict(new), imputer.predict(new), check_exact=True)
    assert loaded.history_ == imputer.history_
    assert len(loaded.history_.loss) > 0
    assert (loaded.seed_, loaded.order_, loaded.codec_) == (imputer.seed_, imputer.order_, imputer.codec_)
    assert loaded.get_feature_names_out().tolist() == imputer.get_feature_names_out().tolist()
    apart = {"device", "random_state", "order"}
    ours, theirs = imputer.get_params(), loaded.get_params()
    assert {k: v for k, v in ours.items() if k not in apart} == {
        k: v for k, v in theirs.items() if k not in apart
    }
    assert not loaded.chain_.training
    loaded.save(tmp_path / "again")
    assert MGPImputer.load(tmp_path / "again").impute(new, m=2) == imputer.impute(new, m=2)


def test_a_loaded_imputer_fits_again(saved: Path, fitted: MGPImputer) -> None:
    assert MGPImputer.load(saved).fit(toy()).impute(m=2) == fitted.impute(m=2)


def test_a_loaded_imputer_does_not_hold_the_table(saved: Path) -> None:
    with pytest.raises(
        ValueError, match=r"does not hold the table it was fitted to: call impute\(X, m=\.\.\.\)"
    ):
        MGPImputer.load(saved).impute(m=2)


def test_the_header_is_json_that_a_person_can_read(saved: Path, fitted: MGPImputer) -> None:
    header = json.loads((saved / "header.json").read_text("utf-8"))
    assert header["format"] == "pyro_mgp.MGPImputer"
    assert header["history"]["loss"] == fitted.history_.loss
    assert header["settings"]["n_inducing"] == 10


def test_an_existing_folder_is_kept_unless_it_may_be_replaced(
    saved: Path, fitted_mixed: MGPImputer, tmp_path: Path
) -> None:
    ours = tmp_path / "ours"
    shutil.copytree(saved, ours)
    with pytest.raises(ValueError, match="exists already: choose another path, or pass overwrite=True"):
        fitted_mixed.save(ours)
    assert MGPImputer.load(ours).get_feature_names_out().tolist() == ["x", "y", "z"]
    fitted_mixed.save(ours, overwrite=True)
    assert MGPImputer.load(ours).impute(mixed(), m=1) == fitted_mixed.impute(m=1)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="was not written by pyro_mgp, so it is not overwritten"):
        fitted_mixed.save(theirs, overwrite=True)
    assert (theirs / "thesis.tex").read_text() == "years of work"
    assert sorted(os.listdir(tmp_path)) == ["ours", "theirs"]


def test_a_path_below_a_file_is_refused(fitted: MGPImputer, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises((ValueError, OSError), match=r"notes\.txt"):
        fitted.save(tmp_path / "notes.txt" / "imputer")
    with pytest.raises(ValueError, match="exists already"):
        fitted.save(tmp_path / "notes.txt")
    assert os.listdir(tmp_path) == ["notes.txt"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_failed_save_leaves_nothing(
    saved: Path,
    fitted: MGPImputer,
    fitted_mixed: MGPImputer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    overwrite: bool,
) -> None:
    def disk_full(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
        path.write_bytes(b"half")
        raise OSError("no space left on device")

    target = tmp_path / "imputer"
    if overwrite:
        shutil.copytree(saved, target)
    with monkeypatch.context() as patched:
        patched.setattr("pyro_mgp.saving.write_arrays", disk_full)
        with pytest.raises(OSError, match="no space left"):
            fitted_mixed.save(target, overwrite=overwrite)
    assert os.listdir(tmp_path) == (["imputer"] if overwrite else [])
    if overwrite:
        assert MGPImputer.load(target).impute(toy(), m=1) == fitted.impute(m=1)


def edit_header(folder: Path, **changes: object) -> None:
    header = json.loads((folder / "header.json").read_text("utf-8"))
    (folder / "header.json").write_text(json.dumps(header | changes), "utf-8")
    sign(folder)


def edit_links(folder: Path, **changes: object) -> None:
    header = json.loads((folder / "header.json").read_text("utf-8"))
    edit_header(folder, wirings=[link | changes for link in header["wirings"]])


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def drop_array(folder: Path) -> None:
    arrays = load_file(folder / "arrays.safetensors")
    del arrays["chain.links.0.u_loc_unconstrained"]
    save_file(arrays, folder / "arrays.safetensors")
    sign(folder)


BAD_FOLDERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "arrays cut short": (
        lambda f: cut(f / "arrays.safetensors"),
        "arrays.safetensors' is damaged or cut short",
    ),
    "arrays gone": (lambda f: (f / "arrays.safetensors").unlink(), "arrays.safetensors' is missing"),
    "arrays empty": (lambda f: (f / "arrays.safetensors").write_bytes(b""), "damaged or cut short"),
    "one array gone": (drop_array, "cannot be restored"),
    "header cut short": (lambda f: cut(f / "header.json"), "header.json' is damaged or cut short"),
    "header gone": (lambda f: (f / "header.json").unlink(), "was not written by MGPImputer.save"),
    "header of a list": (lambda f: (f / "header.json").write_text("[]"), "expected 'pyro_mgp.MGPImputer'"),
    "another version": (
        lambda f: edit_header(f, format_version=99, package_version="9.9"),
        rf"has format version 99, this program reads {FORMAT_VERSION}: load it with pyro_mgp 9\.9",
    ),
    "another class": (
        lambda f: edit_header(f, format="pyro_mgp.Imputations"),
        r"holds 'pyro_mgp\.Imputations', expected 'pyro_mgp\.MGPImputer'",
    ),
    "codec gone": (lambda f: edit_header(f, codec=None), "cannot be restored"),
    "a fraction as version": (
        lambda f: edit_header(f, format_version=float(FORMAT_VERSION)),
        f"has format version {FORMAT_VERSION}.0",
    ),
    "products of no inputs": (lambda f: edit_links(f, product_inputs=[0]), "products of columns that are no"),
    "a product twice": (lambda f: edit_links(f, product_inputs=[1, 1]), "product inputs of"),
    "a choice twice": (
        lambda f: edit_header(f, choices=[["seed", 1, "as given"]] * 2),
        r"choices: expected \['inputs', ",
    ),
    "settings unknown": (lambda f: edit_header(f, settings={"depth": 3, "kernel": "matern32"}), "restored"),
    "not a folder": (lambda f: (shutil.rmtree(f), f.write_text("hello")), "there is no folder"),
    "nothing": (shutil.rmtree, "there is no folder .* expected one written by MGPImputer.save"),
}


@pytest.mark.parametrize(("spoil", "sentence"), BAD_FOLDERS.values(), ids=BAD_FOLDERS)
def test_load_refuses_a_folder_it_cannot_use(
    saved: Path, tmp_path: Path, spoil: Callable[[Path], object], sentence: str
) -> None:
    folder = tmp_path / "imputer"
    shutil.copytree(saved, folder)
    spoil(folder)
    with pytest.raises(ValueError, match=sentence):
        MGPImputer.load(folder)


def test_load_refuses_saved_imputations(fitted: MGPImputer, tmp_path: Path) -> None:
    fitted.impute(m=2).save(tmp_path / "draws")
    with pytest.raises(ValueError, match=r"holds 'pyro_mgp\.Imputations', expected 'pyro_mgp\.MGPImputer'"):
        MGPImputer.load(tmp_path / "draws")


def test_a_kernel_of_ones_own_is_asked_for_at_load(tmp_path: Path) -> None:
    imputer = small(kernel=rbf).fit(toy())
    imputer.save(tmp_path / "imputer")
    with pytest.raises(
        ValueError, match=r"fitted with a kernel of your own, pass it: load\(path, kernel=\.\.\.\)"
    ):
        MGPImputer.load(tmp_path / "imputer")
    with pytest.raises(ValueError, match="cannot be restored"):
        MGPImputer.load(tmp_path / "imputer", kernel=lambda d: kernels.Polynomial(d, degree=1))
    with pytest.raises(ValueError, match="; is the kernel that is passed that of the fit"):
        MGPImputer.load(tmp_path / "imputer", kernel=kernels.Linear)
    loaded = MGPImputer.load(tmp_path / "imputer", kernel=rbf)
    assert loaded.kernel is rbf
    assert loaded.impute(toy(), m=2) == imputer.impute(m=2)


# --------------------------------------------------------------------------------------------------- settings


def test_the_papers_corner() -> None:
    imputer = MGPImputer.paper(max_steps=3, n_inducing=10, n_paths=4, random_state=0)
    assert (imputer.batch_size, imputer.learning_rate, imputer.engine.propagate) == (100, 0.01, "latent")
    draws = imputer.fit(toy(120)).impute(m=2)
    assert len(imputer.history_.loss) == 3
    for completed in draws:
        assert_completes(completed, toy(120))
        assert np.isfinite(completed).all(axis=None)
    chain = imputer.chain_
    assert (chain.n_paths, chain.n_sweeps, chain.propagate, chain.backpropagate) == (4, 1, "latent", True)
    assert all(isinstance(link.kernel, kernels.Matern32) for link in chain.links)


@pytest.mark.parametrize(
    "setting",
    [
        {"kernel": "matern32"},
        {"kernel": lambda d: kernels.RBF(d)},
        {"kernel": rbf},
        {"n_inducing": 5},
        {"initial_fill": "mean"},
        {"initial_fill": "median"},
        {"n_sweeps": 1},
        {"refresh_fill": False},
        {"propagate": "latent"},
        {"joint_draws": False},
        {"inference": "svi"},
        {"backpropagate": True},
        {"train_inducing": True},
        {"n_paths": 3},
        {"columns": "all"},
        {"order": ["y", "x"]},
        {"learning_rate": 0.01},
        {"batch_size": 10},
        {"max_steps": 2},
    ],
    ids=lambda setting: ", ".join(setting),
)
def test_every_switch_runs_and_matters(usual: Imputations, setting: dict[str, Any]) -> None:
    draws = small(**setting).fit(toy()).impute(m=2)
    for completed in draws:
        assert_completes(completed, toy())
        assert np.isfinite(completed).all(axis=None)
    assert not np.allclose(draws.values["y"], usual.values["y"], rtol=1e-6)


@pytest.mark.parametrize("fill", ["mean", "median"])
def test_without_a_link_the_hole_holds_the_starting_fill(fill: Any) -> None:
    frame = toy().assign(z=lambda f: np.exp(f["z"]))
    imputer = small(initial_fill=fill, warp=False).fit(frame)
    new = frame.head(4).assign(z=NAN)
    with pytest.warns(FitWarning, match=r"columns \['z'\] had no missing cells when.*columns='all'") as said:
        completed = imputer.transform(new)
    assert len(said) == 1
    np.testing.assert_allclose(completed["z"], frame["z"].agg(fill), rtol=1e-12)
    assert frame["z"].mean() > 1.2 * frame["z"].median()


def test_columns_complete_at_fit_may_have_holes_later() -> None:
    frame = mixed()[["float", "int", "str"]].dropna().iloc[:20]
    frame.iloc[0, 0] = NAN
    new = frame.iloc[5:10].astype({"int": "Int64"})
    new.iloc[[1, 3], 1] = pd.NA
    new.iloc[2, 2] = None
    imputer = small().fit(frame)
    with pytest.warns(FitWarning, match=r"columns \['int', 'str'\] had no missing cells") as said:
        draws = imputer.impute(new, m=4)
    assert said[0].filename == __file__
    for completed in draws:
        assert_completes(completed, new)
    every = small(columns="all").fit(frame)  # and no warning, which would be an error
    # The last of the levels is what is left.
    assert set(every.order_) == {"float", "int", "str=high", "str=low"}
    for completed in every.impute(new, m=2):
        assert_completes(completed, new)


def test_the_order_is_ascending_in_the_columns_own_units_or_the_users() -> None:
    frame = toy().assign(x=lambda f: 100 * f["x"])
    assert small().fit(toy()).order_ == ["x", "y"]
    assert small().fit(frame).order_ == ["y", "x"]
    assert small(order=["x", "y"]).fit(frame).order_ == ["x", "y"]
    every = small(columns="all").fit(frame).order_
    assert every == frame.std().sort_values().index.tolist()


def test_sweeps_and_the_refreshed_fill_do_not_matter_without_holes() -> None:
    full = toy().interpolate().bfill()
    new = toy().head()
    one, two = (
        small(columns="all", initial_fill="mean", refresh_fill=r).fit(full).impute(new, m=2)
        for r in (True, False)
    )
    assert one == two


def test_inducing_inputs_stay_unless_they_are_trained() -> None:
    def inputs(**changes: Any) -> torch.Tensor:
        return small(**changes).fit(toy()).chain_.links[0].Xu.detach()

    assert torch.equal(inputs(max_steps=1), inputs())
    assert not torch.allclose(inputs(train_inducing=True), inputs())
    assert inputs().requires_grad is False


def test_adam_moves_the_posterior_by_its_step_and_natural_gradients_at_once() -> None:
    def largest(inference: str) -> float:
        chain = small(max_steps=1, learning_rate=0.1, inference=inference).fit(toy()).chain_
        return max(float(link.u_loc.detach().abs().max()) for link in chain.links)

    assert largest("svi") == pytest.approx(0.1, rel=1e-3)
    assert largest("closed_form") > 0.3


def test_joint_draws_share_their_function_and_single_ones_do_not() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=80)
    frame = pd.DataFrame({"x": x, "y": x + rng.normal(size=80)})
    frame.loc[12:, "y"] = NAN  # twelve points leave much doubt about the function
    imputers = [small(joint_draws=joint, inputs="others") for joint in (True, False)]
    joint, single = (imputer.fit(frame).impute(m=300).values["y"] for imputer in imputers)
    assert joint.mean(1).std() > 1.5 * single.mean(1).std()
    assert joint.std(0).mean() == pytest.approx(single.std(0).mean(), rel=0.15)


@pytest.mark.parametrize("propagate", ["predictive", "latent"])
def test_draws_hold_the_noise_whatever_later_links_see(propagate: Any) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=100), "y": rng.normal(size=100)})
    frame.loc[::4, "y"] = NAN  # nothing explains y: a draw must be as wide as the column
    values = small(propagate=propagate, max_steps=20).fit(frame).impute(m=100).values["y"]
    assert values.std(0).mean() > 0.7 * frame["y"].std()


def test_mixed_precision_draws_nearly_the_same_and_survives_saving(tmp_path: Path) -> None:
    frame = toy()
    double, mixed = (small(precision=p, max_steps=5).fit(frame) for p in ("double", "mixed"))
    assert mixed.chain_.row_dtype == torch.float32
    draws = mixed.impute(frame, m=50)
    for label, values in double.impute(frame, m=50).values.items():
        scale = frame[label].std()
        # Rounding decides a few steps of slice sampling otherwise; the rest of such a chain differs.
        difference = np.abs(draws.values[label] - values) / scale
        assert np.median(difference) < 0.005 and (difference < 0.15).mean() > 0.85
        assert np.abs(draws.values[label].mean(0) - values.mean(0)).max() < 0.1 * scale
        assert not np.array_equal(draws.values[label], values)
    mixed.save(tmp_path / "imputer")
    loaded = MGPImputer.load(tmp_path / "imputer")
    assert loaded.precision == "mixed"
    assert loaded.impute(frame, m=50) == draws
    several = mixed.impute(frame, m=50, batch_size=7)
    for label, values in draws.values.items():
        np.testing.assert_allclose(several.values[label], values, atol=0.02 * frame[label].std())


def test_training_with_steps_to_spare_stops_by_itself() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(800, 3)), columns=list("abc"))
    frame[["a", "b"]] = frame[["a", "b"]].mask(rng.random((800, 2)) < 0.1)
    history = MGPImputer(random_state=0, max_steps=300, progress=False).fit(frame).history_
    assert history.converged  # there is nothing to learn
    assert len(history.loss) < 150


def test_training_is_recorded_and_learns() -> None:
    history = small(max_steps=25, inputs="others").fit(toy(100)).history_
    untrained = small(max_steps=1, inference="svi").fit(toy(100)).history_
    assert len(history.loss) == 25
    assert history.steps == [5, 10, 15, 20, 25]
    assert len(history.validation) == 5
    assert history.loss[-1] < untrained.loss[0]
    assert 0 < history.best_step <= 25
    assert history.seconds > 0
    assert not history.converged


def test_training_stops_when_held_out_cells_stop_improving() -> None:
    frame = toy(900)
    imputer = small(inputs="others", n_inducing=5, max_steps=200, patience=1).fit(frame)
    assert imputer.history_.converged
    assert len(imputer.history_.loss) < 200
    # Standard normal cells have a log density of -1.42: those of y are known better than that.
    assert max(imputer.history_.validation) > -1.42
    other = small(inputs="others", n_inducing=5, max_steps=10, validation_fraction=0.0).fit(frame)
    assert other.history_.validation != imputer.history_.validation[:1]


def test_scikit_learn_manners() -> None:
    imputer = small(kernel=rbf)
    assert clone(imputer).get_params() == imputer.get_params()
    assert imputer.set_params(n_sweeps=3).n_sweeps == 3
    with pytest.raises(ValueError, match="Invalid parameter 'depth'"):
        imputer.set_params(depth=3)
    assert repr(MGPImputer(n_inducing=7, random_state=0)) == "MGPImputer(n_inducing=7, random_state=0)"
    assert set(MGPImputer.paper().get_params()) == set(MGPImputer().get_params())
    with pytest.raises(NotFittedError):
        imputer.get_feature_names_out()
    fitted = imputer.fit(toy())
    assert fitted is imputer
    assert fitted.n_features_in_ == 3
    assert fitted.feature_names_in_.tolist() == ["x", "y", "z"]
    assert fitted.get_feature_names_out().tolist() == ["x", "y", "z"]
    assert not hasattr(clone(fitted), "chain_")
    pd.testing.assert_frame_equal(clone(fitted).fit_transform(toy()), fitted.transform(toy()))
    arrays = small().fit(toy().to_numpy())
    assert not hasattr(arrays, "feature_names_in_")
    assert arrays.get_feature_names_out().tolist() == ["x0", "x1", "x2"]


def test_fit_changes_no_parameter() -> None:
    imputer = small(random_state=None, order=["y", "x"])
    before = imputer.get_params()
    imputer.fit(toy())
    assert imputer.get_params() == before


def test_a_second_fit_forgets_the_first() -> None:
    imputer = small().fit(mixed(), np.arange(30.0)).fit(toy())
    assert imputer.impute(m=2) == small().fit(toy()).impute(m=2)
    imputer.fit(toy().to_numpy())
    assert imputer.get_feature_names_out().tolist() == ["x0", "x1", "x2"]


def test_set_output_gives_a_frame_for_an_array() -> None:
    array = toy().to_numpy()
    completed = small().set_output(transform="pandas").fit(array).transform(array)
    assert isinstance(completed, pd.DataFrame)
    assert completed.columns.tolist() == ["x0", "x1", "x2"]


# ------------------------------------------------------------------------------------------------- statistics


def test_imputations_are_as_uncertain_as_the_truth() -> None:
    rng = np.random.default_rng(7)
    n_rows, noise = 250, 0.6
    x = rng.normal(3.0, 1.0, size=n_rows)
    truth = 2 * x + noise * rng.normal(size=n_rows)
    holes = rng.random(n_rows) < 0.4
    frame = pd.DataFrame({"x": x, "y": np.where(holes, NAN, truth)})
    imputer = small(max_steps=30, n_inducing=20).fit(frame)
    draws = imputer.impute(m=200)
    values = draws.values["y"]
    error = values.mean(0) - truth[holes]
    assert np.sqrt(np.mean(error**2)) < 1.2 * noise
    assert np.sqrt(np.mean((frame["y"].mean() - truth[holes]) ** 2)) > 2.5 * noise
    assert abs(error.mean()) < 4 * noise / np.sqrt(holes.sum())

    def coverage(values: np.ndarray) -> float:
        low, high = np.quantile(values, [0.05, 0.95], axis=0)
        return float(np.mean((low < truth[holes]) & (truth[holes] < high)))

    # The posterior of a linear regression, whose 90 % intervals hold 87 % of these cells.
    design = np.column_stack([np.ones(n_rows), x])
    seen, target = design[~holes], truth[~holes]
    coefficients, squares, *_ = np.linalg.lstsq(seen, target, rcond=None)
    root = np.linalg.cholesky(np.linalg.inv(seen.T @ seen))
    scales = np.sqrt(squares / rng.chisquare(len(seen) - 2, size=2000))[:, None]
    slopes_drawn = coefficients + scales * rng.normal(size=(2000, 2)) @ root.T
    exact = slopes_drawn @ design[holes].T + scales * rng.normal(size=(2000, int(holes.sum())))
    assert values.std(0, ddof=1).mean() == pytest.approx(exact.std(0).mean(), rel=0.04)
    assert coverage(values) == pytest.approx(coverage(exact), abs=0.05)
    expected = np.corrcoef(x, truth)[0, 1]
    completed = [np.corrcoef(table["x"], table["y"])[0, 1] for table in draws]
    assert np.mean(completed) == pytest.approx(expected, abs=0.02)
    slopes = [np.polyfit(table["x"], table["y"], 1)[0] for table in draws]
    assert np.mean(slopes) == pytest.approx(2.0, abs=0.15)
    point = np.asarray(imputer.transform(frame)["y"])[holes]
    assert np.sqrt(np.mean((point - truth[holes]) ** 2)) < 1.2 * noise


def test_imputed_labels_follow_their_shares() -> None:
    rng = np.random.default_rng(0)
    words = pd.Series(rng.choice(["a", "b", "c"], p=[0.6, 0.3, 0.1], size=300), dtype="category")
    frame = pd.DataFrame({"x": rng.normal(size=300), "word": words})
    frame.loc[::3, "word"] = None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = small(max_steps=20).fit(frame).impute(m=20).values["word"]
    shares = pd.Series(drawn.ravel()).value_counts(normalize=True)
    assert shares.index.tolist() == ["a", "b", "c"]  # most frequent first
    assert shares["a"] < 0.85


# ------------------------------------------------------------------------------------ discrete support


def test_rare_values_are_imputed_as_often_as_they_occur() -> None:
    """Rounding a Gaussian draw would give a value of share .03 three times in a thousand."""
    rng = np.random.default_rng(0)
    n_rows = 1000
    frame = pd.DataFrame(
        {
            "x": rng.normal(size=n_rows),
            "flag": pd.array(rng.random(n_rows) < 0.03, dtype="boolean"),
            "coded": pd.array(np.where(rng.random(n_rows) < 0.05, 2, 1), dtype="Int64"),
            "level": rng.choice(["a", "b", "c"], size=n_rows, p=[0.8, 0.15, 0.05]),
        }
    )
    full = frame.copy()
    for label, hole in (("flag", pd.NA), ("coded", pd.NA), ("level", None)):
        frame.loc[rng.random(n_rows) < 0.3, label] = hole
    imputer = MGPImputer(n_inducing=30, max_steps=10, n_sweeps=2, random_state=0)
    draws = imputer.fit(frame).impute(m=20).values
    # 300 cells that differ a little in what their rows say: a third of a share is three standard errors.
    assert draws["flag"].mean() == pytest.approx(full["flag"].mean(), rel=0.4)
    assert set(np.unique(draws["coded"])) == {1, 2}
    assert (draws["coded"] == 2).mean() == pytest.approx((full["coded"] == 2).mean(), rel=0.4)
    for level in "abc":
        assert (draws["level"] == level).mean() == pytest.approx((full["level"] == level).mean(), rel=0.4)


def test_a_category_follows_what_predicts_it() -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.normal(-4, 0.5, 60), rng.normal(0, 0.5, 60), rng.normal(4, 0.5, 60)])
    level = np.repeat(["low", "mid", "high"], 60)
    holes = rng.random(180) < 0.3
    frame = pd.DataFrame({"x": x, "level": np.where(holes, None, level)})
    drawn = MGPImputer(max_steps=30, random_state=0).fit(frame).impute(m=10).values["level"]
    assert (drawn == level[holes]).mean() > 0.9


# --------------------------------------------------------------------------------------------- scikit-learn


@pytest.mark.parametrize("classes", [["no", "yes"], [False, True], [0, 1]])
def test_a_pipeline_with_classes_to_predict_ignores_them_in_the_imputer(classes: list[Any]) -> None:
    y = np.asarray(classes)[np.arange(40) % 2]
    pipeline = make_pipeline(small(), LogisticRegression()).fit(toy(), y)
    assert pipeline[0].order_ == ["x", "y"]
    assert set(pipeline.predict(toy())) <= set(classes)


def test_a_fit_that_fails_leaves_a_fitted_imputer_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    imputer = small().fit(toy())
    before = imputer.impute(m=2)

    def fail(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pyro_mgp.fitting.chain_fit.train", fail)
    with pytest.raises(KeyboardInterrupt):
        imputer.fit(toy().rename(columns={"x": "q"}))
    assert imputer.impute(m=2) == before
    assert imputer.order_ == ["x", "y"]


def test_a_factory_that_gives_no_kernel_is_refused() -> None:
    with pytest.raises(TypeError, match="gp kernel, but it gave 3"):
        small(kernel=lambda input_dim: 3).fit(toy())


# ------------------------------------------------------------------------------------ chains of earlier links


def squares(n_rows: int = 70, seed: int = 0) -> pd.DataFrame:
    """Columns "square" = root² + noise and "root", and "above", which follows the square; all with holes."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=n_rows)
    square = root**2 + 0.4 * rng.normal(size=n_rows)
    frame = pd.DataFrame({"square": square, "root": root, "above": square + 0.5 * rng.normal(size=n_rows)})
    return frame.mask(rng.random(frame.shape) < 0.2).dropna(how="all")


def earlier(**changes: Any) -> MGPImputer:
    """An imputer with links that see earlier ones, which is fitted fast."""
    fast = {"warp": False, "max_steps": 8, "n_inducing": 20, "random_state": 0, "progress": False}
    return MGPImputer(**with_engine({"inputs": "earlier", **fast, **changes}))


@pytest.fixture(scope="module")
def fitted_earlier() -> MGPImputer:
    """Fitted to `squares()`; no test may change it."""
    return earlier().fit(squares())


def test_tables_without_local_structure_take_links_in_an_order_that_they_show() -> None:
    auto = earlier(inputs="auto").fit(squares())
    assert auto.sequential_ and auto.order_.index("root") < auto.order_.index("square")
    assert auto.settings_.inputs.reason == "a joint density of the columns"
    assert earlier(inputs="auto").fit(toy(90)).sequential_
    assert not earlier(inputs="others").fit(squares()).sequential_


def test_tables_that_nearby_rows_predict_better_take_links_that_see_all_columns() -> None:
    generator = np.random.default_rng(0)
    x = generator.random(600)
    frame = pd.DataFrame({"x": x, "steps": np.floor(12 * x) % 3 + 0.1 * generator.normal(size=600)})
    frame.loc[::4, "steps"] = np.nan
    imputer = MGPImputer(random_state=0, progress=False).fit(frame)
    assert not imputer.sequential_
    assert "nearby rows" in imputer.settings_.inputs.reason


def test_large_tables_take_links_that_see_all_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work is that of the rows of 20 chains, three links and 1 + 3 + 6 features."""
    frame = squares()
    monkeypatch.setattr(table_fit, "_MOST_WORK", 20 * len(frame) * 3 * 10**2)
    assert earlier(inputs="auto").fit(frame).sequential_
    monkeypatch.setattr(table_fit, "_MOST_WORK", 20 * len(frame) * 3 * 10**2 - 1)
    imputer = earlier(inputs="auto").fit(frame)
    assert not imputer.sequential_
    assert imputer.settings_.inputs.reason == "the table is large"


def test_wide_tables_take_links_that_see_all_columns() -> None:
    """Unless few of their columns matter to the few rows."""
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(255, 51))).add_prefix("x")
    frame.iloc[::3, :2] = np.nan
    imputer = MGPImputer(random_state=0, progress=False, max_steps=2).fit(frame)
    assert not imputer.sequential_
    assert imputer.settings_.inputs.reason == "the table is wide"
    assert MGPImputer(random_state=0, progress=False, max_steps=2).fit(frame[:60]).sequential_


def test_a_loaded_imputer_has_the_products_of_links_with_many_inputs(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(120, 17))
    frame = pd.DataFrame(x).add_prefix("x").assign(y=x[:, 2] * x[:, 4])
    frame.loc[::3, "x0"], frame.loc[1::3, "y"] = np.nan, np.nan
    imputer = earlier(order=["x0", "y"]).fit(frame)
    imputer.save(tmp_path / "it")
    assert MGPImputer.load(tmp_path / "it").impute(frame, m=2) == imputer.impute(frame, m=2)
    header = json.loads((tmp_path / "it" / "header.json").read_text("utf-8"))
    assert [len(link["product_inputs"] or []) for link in header["wirings"]] == [15, 15]


def test_an_order_of_the_users_is_that_of_earlier_links() -> None:
    imputer = earlier(order=["square", "above", "root"]).fit(squares())
    assert imputer.sequential_
    assert imputer.order_ == ["square", "above", "root"]
    assert not earlier(inputs="auto", order=["square", "above", "root"]).fit(squares()).sequential_


def test_a_copy_with_the_choices_of_a_fit_does_not_search_again(monkeypatch: pytest.MonkeyPatch) -> None:
    table = squares().assign(kind=pd.Categorical(np.tile(["a", "b", None, "c", "b"], 20)[: len(squares())]))
    fitted = earlier(inputs="auto").fit(table)
    monkeypatch.setattr(table_fit, "PlanSearch", None)
    again = fitted.with_choices().fit(table.assign(root=table["root"].where(np.arange(len(table)) % 7 > 0)))
    assert fitted.sequential_ and again.sequential_
    assert again.order_ == fitted.order_
    others = earlier(inputs="others", max_steps=1).fit(squares()).with_choices()
    assert (others.inputs, others.max_steps, others.order) == ("others", 1, None)
    complete = earlier(inputs="auto", max_steps=1).fit(squares().dropna()).with_choices()
    assert complete.inputs == "auto"
    with pytest.raises(NotFittedError):
        others.with_choices()


@pytest.mark.parametrize("values", [(0, 1), (2, 7)])
def test_floats_of_two_values_have_the_model_of_integers_in_a_joint_density(values: tuple[int, int]) -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=120)
    event = np.where(x + generator.normal(size=120) > 0, *values)
    y = x + event / values[1] + generator.normal(size=120)
    frame = pd.DataFrame({"x": x, "event": event.astype(float), "y": y}).mask(
        generator.random((120, 3)) < [0, 0.3, 0.3]
    )
    floats, integers = (
        earlier(order=["event", "y"]).fit(frame.astype({"event": dtype})).impute(m=4)
        for dtype in ("float64", "Int64")
    )
    for one, other in zip(floats, integers, strict=True):
        assert one["event"].dtype == np.float64
        pd.testing.assert_frame_equal(one, other.astype(one.dtypes))
    point = earlier(order=["event", "y"]).fit(frame).transform(frame)["event"]
    assert point[frame["event"].isna()].between(*values, inclusive="neither").all()


def test_a_copy_with_the_choices_of_a_fit_has_transforms_if_it_had_some() -> None:
    """Logarithms of the columns are linear in each other."""
    x = np.random.default_rng(0).normal(size=120)
    noise = 0.3 * np.random.default_rng(1).normal(size=120)
    table = pd.DataFrame({"x": np.exp(2 * x), "y": np.exp(2 * (x + noise))})
    table.loc[::4, "y"] = np.nan
    fitted = earlier(inputs="auto", warp=True).fit(table)
    again = fitted.with_choices().fit(table)
    transforms = [[column.warp is not None for column in each.codec_.columns] for each in (fitted, again)]
    assert transforms == [[True, True]] * 2
    plain = pd.DataFrame({"x": x, "y": x + noise}).assign(
        y=lambda frame: frame["y"].where(frame.index % 4 > 0)
    )
    fitted = earlier(inputs="others", warp=True).fit(plain)
    assert all(column.warp is None for column in fitted.codec_.columns)
    assert not fitted.with_choices().warp


def test_columns_that_an_order_does_not_name_come_first() -> None:
    """A copy with the choices of a fit may meet missing cells in columns that were complete."""
    table = squares().fillna({"root": 0.0, "above": 0.0})
    fitted = earlier(inputs="auto").fit(table)
    assert fitted.order_ == ["square"]
    again = fitted.with_choices().fit(squares())
    assert again.order_ == ["root", "above", "square"]


@pytest.mark.parametrize(
    "change",
    [
        {"propagate": "latent"},
        {"joint_draws": False},
        {"n_paths": 2},
    ],
    ids=str,
)
def test_settings_that_earlier_links_cannot_have_are_said_or_avoided(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r'inputs="earlier" cannot be used: it needs joint predictive draws'):
        earlier(**change).fit(squares())
    assert not earlier(inputs="auto", max_steps=1, **change).fit(squares()).sequential_


@pytest.mark.parametrize("spec", [ColumnSpec(derived="root + 1"), ColumnSpec(only_if="above > 0")], ids=str)
def test_rules_that_earlier_links_cannot_follow_are_said_or_avoided(spec: ColumnSpec) -> None:
    frame = squares()
    frame["ruled"] = frame["root"] + 1 if spec.derived else frame["square"].where(frame["above"] > 0)
    with pytest.raises(ValueError, match="columns are derived"):
        earlier(specs={"ruled": spec}).fit(frame)
    imputer = earlier(inputs="auto", max_steps=1, specs={"ruled": spec}).fit(frame)
    assert "columns are derived" in imputer.settings_.inputs.reason


def test_a_target_is_not_for_earlier_links() -> None:
    frame = squares()
    with pytest.raises(ValueError, match="there is a target"):
        earlier().fit(frame, np.arange(len(frame), dtype=float))
    with pytest.raises(ValueError, match="inputs must be one of"):
        earlier(inputs="later").fit(frame)


def test_observed_cells_stay_and_imputations_are_numbered_in_earlier_links(
    fitted_earlier: MGPImputer,
) -> None:
    frame, draws = squares(), fitted_earlier.impute(m=6)
    for completed in draws:
        assert_completes(completed, frame)
    assert_completes(fitted_earlier.transform(frame[:40]), frame[:40])
    assert_close(fitted_earlier.impute(m=2), first(draws, 2))
    assert_close(fitted_earlier.impute(frame, m=6, batch_size=7), draws)
    few = frame.iloc[[3, 40, 41, 55]]
    alone = fitted_earlier.impute(few, m=6)
    for label, values in alone.values.items():
        holes = frame.index[frame[label].isna()]
        at = [holes.get_loc(i) for i in few.index[few[label].isna()]]
        np.testing.assert_allclose(values, draws.values[label][:, at], atol=1e-3)
    assert all((values.std(0) > 0).all() for values in draws.values.values())


@pytest.mark.slow
def test_permuted_rows_permute_what_earlier_links_say() -> None:
    """Also with more complete rows than are asked for an order."""
    frame = squares(300)
    permuted = frame.sample(frac=1, random_state=3)
    one, other = (earlier(max_steps=2).fit(table) for table in (frame, permuted))
    assert one.order_ == other.order_
    back = [table.loc[frame.index] for table in other.impute(m=2)]
    for left, right in zip(one.impute(m=2), back, strict=True):
        pd.testing.assert_frame_equal(left, right, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("change", [{}, {"kernel": "matern32"}, {"precision": "mixed"}], ids=str)
def test_a_loaded_imputer_of_earlier_links_draws_the_same(change: dict[str, Any], tmp_path: Path) -> None:
    imputer, frame = earlier(max_steps=2, **change).fit(squares()), squares()
    imputer.save(tmp_path / "it")
    loaded = MGPImputer.load(tmp_path / "it")
    assert loaded.sequential_ and loaded.order_ == imputer.order_
    assert loaded.impute(frame, m=3) == imputer.impute(frame, m=3)


def test_many_imputations_of_earlier_links_are_drawn_some_at_a_time(
    fitted_earlier: MGPImputer, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = fitted_earlier.impute(m=5)
    monkeypatch.setattr("pyro_mgp.sampling.sampler._ROWS_AT_ONCE", 200)
    assert_close(fitted_earlier.impute(m=5, random_state=0), together)


def test_new_rows_may_have_holes_anywhere_for_earlier_links() -> None:
    frame = squares(120).dropna(subset="root")
    imputer = earlier().fit(frame)
    assert "root" not in imputer.order_
    new = pd.DataFrame({"square": [1.0, NAN], "root": [NAN, NAN], "above": [NAN, 2.0]})
    with pytest.warns(FitWarning, match=r"columns \['root'\] had no missing cells"):
        assert_completes(next(iter(imputer.impute(new, m=1))), new)
    everywhere = earlier(columns="all").fit(frame)
    assert sorted(everywhere.order_) == ["above", "root", "square"]
    roots = everywhere.impute(pd.concat([new] * 300, ignore_index=True), m=1).values["root"][0, ::2]
    assert 0.2 < (roots > 0).mean() < 0.8 and np.abs(roots).mean() == pytest.approx(1.0, abs=0.25)


@pytest.mark.parametrize(
    "change",
    [
        lambda f: f.assign(same=3.0),
        lambda f: f.assign(above=f["above"].fillna(1.0), root=f["root"].fillna(0.0)),
        lambda f: f.fillna(0.5),
        lambda f: pd.concat([f, f.iloc[:20]], ignore_index=True),
        lambda f: f.assign(square=(1000 * f["square"]).round().astype("Int64")),
        lambda f: f.assign(above=f["above"].where(f.index % 5 > 0), whole=f["above"].fillna(0.0)),
        lambda f: f.assign(kind=pd.Categorical(np.where(f.index % 3 == 0, "a", "b"))),
        lambda f: f.set_axis([1, "root", 0], axis=1),
    ],
    ids=["constant", "one incomplete", "no holes", "twins", "integers", "half", "category", "labels"],
)
@pytest.mark.parametrize("columns", ["incomplete", "all"])
def test_earlier_links_complete_tables_of_many_kinds(
    change: Callable[[pd.DataFrame], pd.DataFrame], columns: Any
) -> None:
    frame = change(squares())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TableWarning)
        imputer = earlier(max_steps=2, n_sweeps=1, columns=columns).fit(frame)
    for completed in imputer.impute(m=2):
        assert_completes(completed, frame)


def test_bent_columns_of_earlier_links_stay_where_cells_were_observed() -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(size=100)
    frame = pd.DataFrame({"a": a, "b": np.exp(1.5 * a + 0.3 * rng.normal(size=100)), "c": a**2})
    frame["c"] += 0.3 * rng.normal(size=100)
    holey = frame.mask(rng.random(frame.shape) < 0.2).dropna(how="all")
    imputer = earlier(warp=True).fit(holey)
    draws = imputer.impute(m=5)
    assert draws.values["b"].max() <= holey["b"].max() * (1 + 1e-6)
    truth = np.log(frame.loc[holey.index, "b"][holey["b"].isna()])
    found = np.log(np.maximum(np.median(draws.values["b"], axis=0), 1e-3))
    assert np.corrcoef(found, truth)[0, 1] > 0.6


def test_shifts_in_earlier_links_are_of_draws_and_seen_by_other_missing_cells() -> None:
    rng = np.random.default_rng(8)
    frame = squares(150).drop(columns="above")
    frame["whole"] = rng.normal(size=len(frame))
    imputer = earlier().fit(frame)
    assert imputer.order_.index("root") < imputer.order_.index("square")
    plain, shifted = imputer.impute(m=30), imputer.impute(m=30, delta={"square": 3.0})
    holes = frame.isna()

    def change(label: str, rows: pd.Series, of: Callable[..., Any] = np.asarray) -> float:
        before, after = (of(d.values[label][:, rows[holes[label]]]).mean() for d in (plain, shifted))
        return float(after - before)

    assert change("square", ~holes["root"]) == pytest.approx(3.0, abs=1e-3)
    # Of a larger square the root is larger, though nothing was observed of either.
    assert change("square", holes["root"]) == pytest.approx(3.0, abs=1e-3)
    assert change("root", holes["square"], np.square) > 1.0
    assert change("root", ~holes["square"]) == 0


def test_slopes_of_products_survive_earlier_links_and_not_all_others() -> None:
    """y = a + b + a·b + noise; a, b and y with holes; the coefficient of a·b, pooled, against all cells'."""
    rng = np.random.default_rng(5)
    a = rng.normal(size=200)
    b = 0.4 * a + 0.9 * rng.normal(size=200)
    frame = pd.DataFrame({"a": a, "b": b, "y": a + b + a * b + rng.normal(size=200)})
    holey = frame.mask(rng.random(frame.shape) < 0.25).dropna(how="all")

    def slope(table: pd.DataFrame) -> float:
        design = np.column_stack([np.ones(len(table)), table["a"], table["b"], table["a"] * table["b"]])
        return float(np.linalg.lstsq(design, table["y"])[0][3])

    whole = slope(frame)
    off = {
        inputs: abs(np.mean([slope(t) for t in MGPImputer(inputs=inputs, random_state=0, progress=False)
            .fit(holey).impute(m=15)]) - whole)
        for inputs in ("auto", "others")
    }  # fmt: skip
    assert off["auto"] < 0.12
    assert off["others"] > 1.5 * off["auto"]


@pytest.mark.parametrize("seed", [0, 1])
def test_long_tails_that_a_product_explains_are_not_transformed(seed: int) -> None:
    """Draws of a model with the transform confirm it; on other draws it loses."""
    frame = curves.DESIGNS["product_30"].draw(np.random.default_rng(seed)).frame
    imputer = MGPImputer(random_state=seed, progress=False).fit(frame)
    assert imputer.sequential_
    assert [column.warp for column in imputer.codec_.columns] == [None] * 3


def test_long_tails_that_nothing_explains_are_transformed() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 2))
    frame = pd.DataFrame({"x": x[:, 0], "y": np.exp(1.5 * x[:, 0] + x[:, 1])})
    frame.loc[generator.random(200) < 0.3, "y"] = NAN
    imputer = MGPImputer(inputs="earlier", random_state=0, progress=False).fit(frame)
    assert [column.warp is not None for column in imputer.codec_.columns] == [False, True]
