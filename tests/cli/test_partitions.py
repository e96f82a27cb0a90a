"""`pyro-mgp impute FOLDER --engine dask`: folders of Parquet in and out."""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pyro_mgp import MGPImputer, cli
from pyro_mgp.scaling import dask_engine
from pyro_mgp.scaling.partitions import Job


def run(*argv: object) -> int:
    return cli.main(["impute", *map(str, argv)])


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    x = np.random.default_rng(0).normal(size=40)
    table = pd.DataFrame({"x": x, "y": x**2}).mask(np.arange(80).reshape(40, 2) % 7 == 0)
    return table.assign(id=range(40))


@pytest.fixture(scope="module")
def model(frame: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "imputer"
    imputer = MGPImputer(max_steps=2, n_inducing=10, random_state=0, progress=False)
    imputer.fit(frame.drop(columns="id")).save(path)
    return path


@pytest.fixture
def folder(frame: pd.DataFrame, tmp_path: Path) -> Path:
    path = tmp_path / "in"
    path.mkdir()
    frame[:25].to_parquet(path / "a.parquet")
    frame[25:].to_parquet(path / "b.parquet")
    return path


def test_a_folder_is_imputed_by_workers(
    frame: pd.DataFrame, model: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("distributed")
    out = tmp_path / "out"
    options = ("-o", out, "-m", 2, "--engine", "dask", "--workers", 1, "--row-ids", "id")
    assert run(folder, "--model", model, *options) == 0
    expected = MGPImputer.load(model).impute(frame, m=2, row_ids="id", random_state=0)
    for j, table in enumerate(expected):
        folder_of = out / f"imputation_0{j + 1}"
        assert sorted(path.name for path in folder_of.iterdir()) == ["part-0000.parquet", "part-0001.parquet"]
        pd.testing.assert_frame_equal(pd.read_parquet(folder_of), table, check_exact=True)
    told = capsys.readouterr()
    assert "2 tables" in told.out
    assert "imputation_01/ ..., 2 parts each" in told.out
    assert run(folder, "--model", model, *options) == 2
    assert "exists already: choose another" in capsys.readouterr().err


def test_a_run_that_was_interrupted_goes_on_in_its_folder(
    model: Path,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("distributed")
    found: list[list[str]] = []

    def work(partial: Path, *_: object, **__: object) -> Job:
        job = Job(partial, 1)
        found.append(sorted(path.name for path in partial.rglob("*.parquet")))
        job.folders[0].mkdir(exist_ok=True)
        (job.folders[0] / f"{len(found)}.parquet").touch()
        if len(found) == 1:
            raise KeyboardInterrupt
        return job

    monkeypatch.setattr(dask_engine, "impute_into", work)
    monkeypatch.setattr(dask_engine, "cluster", lambda *_: contextlib.nullcontext())
    options = (folder, "--model", model, "-o", tmp_path / "out", "-m", 1, "--engine", "dask", "--resume")
    assert run(*options) == 130
    assert "finished work is kept" in capsys.readouterr().err
    assert run(*options) == 0
    assert found == [[], ["1.parquet"]]
    assert "2 parts each" in capsys.readouterr().out
    assert not list(tmp_path.glob(".out*"))
    assert run(*options) == 0
    assert "is complete" in capsys.readouterr().out


def test_a_folder_without_an_engine_names_one(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, "-o", tmp_path / "out") == 2
    assert "is a folder: one of Parquet files is imputed with --engine dask" in capsys.readouterr().err


def test_what_is_missing_is_said(
    model: Path,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = (folder, "-o", tmp_path / "out", "--engine", "dask")
    assert run(*options) == 2
    assert "--engine dask needs --model IMPUTER" in capsys.readouterr().err
    assert run(*options, "--model", model, "--steps", 3) == 2
    assert "--steps has no effect on --model" in capsys.readouterr().err
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "distributed" else find(name)
    )
    assert run(*options, "--model", model) == 2
    assert "pip install 'pyro_mgp[dask]'" in capsys.readouterr().err
