"""Imputation by Dask's workers equals imputation by pandas exactly, also if a worker dies."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from every_kind import table_of_every_kind
from sklearn.exceptions import NotFittedError

from pyro_mgp import Imputations, MGPImputer, impute_dask
from pyro_mgp.data.table import TableWarning
from pyro_mgp.scaling.dask_engine import cluster, impute_into
from pyro_mgp.storage.atomic import atomic_folder

dask = pytest.importorskip("dask")
dd = pytest.importorskip("dask.dataframe")
pytest.importorskip("distributed")

COLUMNS = ["plain", "long_tailed", "whole", "count", "kind"]


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with dask.config.set({"dataframe.convert-string": False}), cluster(n_workers=2) as client:
        yield client


@pytest.fixture(scope="module")
def imputer() -> MGPImputer:
    frame = table_of_every_kind(310)[COLUMNS]
    settings: dict[str, Any] = {
        "inputs": "others",
        "n_inducing": 20,
        "max_steps": 2,
        "random_state": 0,
        "progress": False,
    }
    return MGPImputer(**settings).fit(frame)


@pytest.fixture(scope="module")
def new() -> pd.DataFrame:
    """Return rows of which some are equal, with labels in random order."""
    frame = table_of_every_kind(200, seed=1)[COLUMNS]
    frame = pd.concat([frame, frame[:50]])
    return frame.set_axis(np.random.default_rng(0).permutation(len(frame)))


@pytest.fixture(scope="module")
def whole(imputer: MGPImputer, new: pd.DataFrame) -> Imputations:
    return imputer.impute(new, m=5)


def in_files(frame: pd.DataFrame, folder: Path, n_files: int) -> Path:
    """Return a folder of Parquet files with a table's rows in order."""
    folder.mkdir()
    for i, rows in enumerate(np.array_split(np.arange(len(frame)), n_files)):
        frame.iloc[rows].to_parquet(folder / f"{i:03d}.parquet")
    return folder


def impute_folder(folder: Path, out: Path, imputer: MGPImputer, m: int, **options: Any) -> list[Path]:
    """Impute a folder of Parquet files into another, which is written whole or not at all."""
    with atomic_folder(out) as partial:
        job = impute_into(partial, folder, imputer, m, **options)
    return [out / each.name for each in job.folders]


def assert_same(folder: Path, expected: pd.DataFrame) -> None:
    found = pd.concat([pd.read_parquet(path) for path in sorted(folder.iterdir())])
    pd.testing.assert_frame_equal(found, expected.loc[found.index], check_exact=True)


@pytest.mark.parametrize("n_partitions", [1, 7, 20])
@pytest.mark.slow
def test_shuffled_partitions_have_the_bits_of_pandas(
    client: Any, imputer: MGPImputer, new: pd.DataFrame, whole: Imputations, n_partitions: int
) -> None:
    shuffled = new.sample(frac=1, random_state=n_partitions)
    table = dd.from_pandas(shuffled, npartitions=n_partitions, sort=False)
    assert table.npartitions == n_partitions
    tables = impute_dask(table, imputer, m=5)
    assert [each.npartitions for each in tables] == [n_partitions] * 5
    for found, expected in zip(dask.compute(*tables), whole, strict=True):
        pd.testing.assert_frame_equal(found, expected.loc[shuffled.index], check_exact=True)


def test_ids_replace_labels(client: Any, imputer: MGPImputer, new: pd.DataFrame, whole: Imputations) -> None:
    known = new.assign(id=new.index).reset_index(drop=True)
    expected = imputer.impute(known, m=2, row_ids="id")
    shuffled = known.sample(frac=1, random_state=0).reset_index(drop=True)
    tables = impute_dask(dd.from_pandas(shuffled, npartitions=3), imputer, m=2, row_ids="id")
    for found, whole_table in zip(dask.compute(*tables), expected, strict=True):
        by_id = found.set_index("id"), whole_table.set_index("id").loc[shuffled["id"]]
        pd.testing.assert_frame_equal(*by_id, check_exact=True)


@pytest.mark.filterwarnings("ignore:Running on a single-machine scheduler")
def test_threads_give_equal_tables(imputer: MGPImputer, new: pd.DataFrame, whole: Imputations) -> None:
    with dask.config.set({"dataframe.convert-string": False, "scheduler": "threads"}):
        tables = impute_dask(dd.from_pandas(new, npartitions=4, sort=False), imputer, m=5)
        pd.testing.assert_frame_equal(tables[4].compute(), whole[4], check_exact=True)


@pytest.mark.slow
def test_parts_of_a_killed_worker_are_imputed_again(
    client: Any, imputer: MGPImputer, new: pd.DataFrame, whole: Imputations, tmp_path: Path
) -> None:
    folder, out = in_files(new, tmp_path / "in", 25), tmp_path / "out"
    victim, *_ = (worker["pid"] for worker in client.run(_myself).values())
    failures: list[BaseException] = []

    def work() -> None:
        try:
            impute_folder(folder, out, imputer, m=5, client=client, progress=False)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive() and not list(tmp_path.glob(".out.*/imputation_05/part-*")):
        time.sleep(0.01)
    assert thread.is_alive(), failures or "it finished before a worker could be killed"
    os.kill(victim, signal.SIGKILL)
    thread.join(timeout=300)
    assert not failures
    assert [entry.name for entry in tmp_path.iterdir() if entry.name != "in"] == ["out"]
    for j, expected in enumerate(whole):
        assert_same(out / f"imputation_0{j + 1}", expected)


def _myself() -> dict[str, int]:
    return {"pid": os.getpid()}


def test_a_folder_of_parquet_is_imputed_into_folders(
    client: Any, imputer: MGPImputer, new: pd.DataFrame, whole: Imputations, tmp_path: Path
) -> None:
    folder = in_files(new, tmp_path / "in", 3)
    made = impute_folder(folder, tmp_path / "out", imputer, m=2, client=client, progress=False)
    assert [path.name for path in made] == ["imputation_01", "imputation_02"]
    for path, expected in zip(made, whole, strict=False):
        assert [part.name for part in sorted(path.iterdir())] == [f"part-000{i}.parquet" for i in range(3)]
        assert_same(path, expected)
    with pytest.raises(ValueError, match="exists already"):
        impute_folder(folder, tmp_path / "out", imputer, m=2, client=client)


def test_only_missing_parts_are_imputed(
    client: Any, imputer: MGPImputer, new: pd.DataFrame, whole: Imputations, tmp_path: Path
) -> None:
    folder, out = in_files(new, tmp_path / "in", 3), tmp_path / "out"
    out.mkdir()
    job = impute_into(out, folder, imputer, 2, client=client, progress=False)
    kept = [each / "part-0000.parquet" for each in job.folders]
    before = [path.stat().st_mtime_ns for path in kept]
    # The state after a process was killed.
    (job.folders[1] / "part-0001.parquet").unlink()
    (job.folders[0] / ".part-0001.parquet.123.partial").touch()
    impute_into(out, folder, imputer, 2, client=client, progress=False)
    assert [path.stat().st_mtime_ns for path in kept] == before
    for each, expected in zip(job.folders, list(whole)[:2], strict=True):
        assert_same(each, expected)


def test_warnings_are_given_once_and_errors_name_the_file(
    client: Any, imputer: MGPImputer, new: pd.DataFrame, tmp_path: Path
) -> None:
    strange = new.assign(kind=new["kind"].where(new["kind"] != "a", "unknown kind"))
    folder = in_files(strange, tmp_path / "in", 1)
    with pytest.warns(TableWarning, match="unknown kind") as caught:
        impute_folder(folder, tmp_path / "out", imputer, m=1, client=client, row_ids=None, progress=False)
    assert len(caught) == 1
    new.assign(whole="text").to_parquet(folder / "wrong.parquet")
    with pytest.raises(TypeError, match=r"wrong\.parquet, rows from 250: Column 'whole'"):
        impute_folder(folder, tmp_path / "never", imputer, m=1, client=client, progress=False)
    assert not (tmp_path / "never").exists()


def test_settings_are_checked_before_the_work(imputer: MGPImputer, new: pd.DataFrame) -> None:
    table = dd.from_pandas(new, npartitions=1)
    with pytest.raises(ValueError, match="m, the number of imputations, must be at least 1, got 0"):
        impute_dask(table, imputer, m=0)
    with pytest.raises(ValueError, match=r"columns differ from those at fit: unexpected \['id'\]"):
        impute_dask(table.assign(id=1), imputer, m=1)
    with pytest.raises(TypeError, match=r"DataFrame of Dask, got pandas.DataFrame: for others, call imputer"):
        impute_dask(new, imputer, m=1)
    with pytest.raises(NotFittedError, match="not fitted yet"):
        impute_dask(table, MGPImputer(), m=1)
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "100ms"}),
        pytest.raises(ValueError, match="there is no Dask scheduler at 'tcp://127"),
        cluster("tcp://127.0.0.1:1"),
    ):
        pass
