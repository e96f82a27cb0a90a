"""The public tables of the paper's experiments: from a local folder, or fetched with a checksum."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

DATA_DIR = "PYRO_MGP_DATA"
"""Environment variable that names the folder."""

QUICK_ROWS = 10_000
"""Rows of the larger tables in quick runs, as in the published protocol of this package's benchmarks."""

_UCI = (
    "https://raw.githubusercontent.com/treforevans/uci_datasets/"
    "f0737523712fe66a1640e4b980b927e8490b58eb/uci_datasets/{}/data.csv.gz"
)
_PARKINSON = (
    "https://raw.githubusercontent.com/BahramJafrasteh/MissingGPs/"
    "0ae6a971a743a69cd2b3667c950bde37f8cf6125/datasets/parkinson/s0/parkinson_{}.csv"
)


@dataclass(frozen=True)
class Dataset:
    """A public table."""

    title: str
    """What figures call it."""
    file: str
    """Its file in a local folder; the same without `.gz`, or with it, will do as well."""
    url: str
    """Where it is fetched from."""
    sha256: str
    """Of the file."""
    header: bool
    """Whether its first line names the columns."""


DATASETS: dict[str, Dataset] = {
    "protein": Dataset(
        "Protein",
        "protein.csv.gz",
        _UCI.format("protein"),
        "f709d0107c3ee90ab019b9e5d77fc2ae182158958cb70b1903236a51334fd01b",
        header=False,
    ),
    "keggdirected": Dataset(
        "KeggD",
        "keggdirected.csv.gz",
        _UCI.format("keggdirected"),
        "51b7bb56e3f3eae36273cdd5a549c042bdf0ec10948a6f8e6b01a1d6912212cd",
        header=False,
    ),
    "keggundirected": Dataset(
        "KeggUD",
        "keggundirected.csv.gz",
        _UCI.format("keggundirected"),
        "117419270e50f581df18bf996ffc8b6bf1bb76c9f3640331ac9d6e64cff63d4e",
        header=False,
    ),
    "parkinson": Dataset(
        "Parkinson",
        "parkinson.csv",
        _PARKINSON,
        "0cf84a9d035292e76fba8b1585e9d3ec258f4a42df292c3f727147e134122a23",
        header=True,
    ),
}
"""The four public tables, in the order of the paper's columns."""

_PRIVATE = {"total_brain_volume", "totalbrainvolume", "tbv"}


def folder(given: str | None = None) -> Path | None:
    """The folder with the tables: the one given, or the environment's; None if neither is."""
    name = given or os.environ.get(DATA_DIR)
    return None if name is None else Path(name)


def load(name: str, path: Path | None = None, rows: int | None = None) -> pd.DataFrame:
    """A public table without its constant columns.

    Args:
        name: Key of `DATASETS`.
        path: Folder that holds its file; None fetches it once and keeps it in the user's cache.
        rows: Most rows to take, always the same ones; None takes all.

    Raises:
        ValueError: If there is no such table, or what was fetched is not what it was.
        OSError: If the folder does not hold it, or it cannot be fetched.
    """
    check_name(name)
    dataset = DATASETS[name]
    file = fetch(name) if path is None else _in_folder(dataset, path)
    table = pd.read_csv(file, header=0 if dataset.header else None)
    if not dataset.header:
        table.columns = [f"c{d}" for d in range(table.shape[1])]
    if rows is not None and len(table) > rows:
        kept = np.random.default_rng(123).permutation(len(table))[:rows]
        table = table.iloc[kept].reset_index(drop=True)
    return table.loc[:, table.nunique() > 1]


def check_name(name: str) -> None:
    """Raise a ValueError for a table that is not public or not known."""
    if name in DATASETS:
        return
    if name.lower() in _PRIVATE:
        raise ValueError(
            "the paper's fifth table, total brain volume, is clinical data that its authors could not "
            f"publish: it is not available; take one of {list(DATASETS)}"
        )
    raise ValueError(f"there is no table {name!r}: take one of {list(DATASETS)}")


def parkinson(path: Path) -> pd.DataFrame:
    """`parkinson.csv`: 1,040 rows and 24 columns."""
    return load("parkinson", path)


def protein(path: Path) -> pd.DataFrame:
    """`protein.csv.gz`: 10,000 of its 45,730 rows, 10 columns."""
    return load("protein", path, QUICK_ROWS)


def fetch(name: str) -> Path:
    """Fetch a table into the user's cache, unless it is there already.

    Args:
        name: Key of `DATASETS`.

    Raises:
        OSError: If it cannot be fetched, or pooch is not installed.
        ValueError: If what was fetched is not what it was.
    """
    dataset = DATASETS[name]
    try:
        import pooch
    except ImportError as error:
        raise OSError(f"{_instead(dataset)}; to fetch it: pip install 'pyro_mgp[bench]'") from error
    try:
        kept = pooch.retrieve(
            dataset.url,
            known_hash=f"sha256:{dataset.sha256}",
            fname=dataset.file,
            path=pooch.os_cache("pyro_mgp"),
            downloader=_download_parts if name == "parkinson" else None,
        )
    except OSError as error:
        raise OSError(f"{dataset.url} cannot be fetched ({error}); {_instead(dataset)}") from error
    return Path(kept)


def _download_parts(url: str, output_file: Any, pooch: Any) -> None:
    """What pooch calls to fetch the Parkinson table, which its authors keep in four files.

    The rows of their first split stand in two files of 23 columns, and the last column in two more. Put
    together again, training rows first, they are the file whose checksum pooch then looks at.
    """
    parts = [
        pd.concat([pd.read_csv(url.format(f"{rows}_{columns}")) for columns in ("data", "labels")], axis=1)
        for rows in ("train", "test")
    ]
    table = pd.concat(parts, ignore_index=True)
    table.columns = [f"x{d:02d}" for d in range(table.shape[1])]
    text = table.to_csv(index=False, lineterminator="\n")
    Path(output_file).write_bytes(text.encode())


def _in_folder(dataset: Dataset, path: Path) -> Path:
    plain = dataset.file.removesuffix(".gz")
    for candidate in (path / dataset.file, path / plain, path / f"{plain}.gz"):
        if candidate.exists():
            return candidate
    raise FileNotFoundError(f"there is no {dataset.file} in {str(path)!r}")


def _instead(dataset: Dataset) -> str:
    return f"name a folder that holds {dataset.file} with --data-dir or in ${DATA_DIR}"
