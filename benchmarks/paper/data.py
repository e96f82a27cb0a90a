"""Public tables of the paper's experiments, read from a local folder or fetched and checked."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

DATA_DIR = "PYRO_MGP_DATA"
"""Name of the environment variable for the folder with the tables."""

QUICK_ROWS = 10_000
"""Number of rows of the larger tables in quick runs."""

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
    """Source of a public table."""

    title: str
    """Name in tables and figures."""
    file: str
    """File name in a local folder, where it may also be stored with or without `.gz`."""
    url: str
    """Address that the table is fetched from."""
    sha256: str
    """SHA-256 checksum of the fetched file."""
    header: bool
    """True if the first line of the file holds the names of the columns."""


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
"""Public tables by name, in the order of the paper."""

_SUITE = {
    "airfoil": "1cce82516ac9e564fba52f55d817eb147fc39085f5d7b958ad15b92f4207f23e",
    "autompg": "31989fbdd7083b901b9f02958581bce9f697e8c27bb3b0d1d0a1cd6d04d6b6c2",
    "autos": "375efebd3287d10d3f278a424e173648ef7d2b7808f8e4ea68a4b326fac221d9",
    "bike": "411f76ae426c0e348a2629dcf6b3b29102c7db465eae780a3454c39db1dfac4f",
    "breastcancer": "2513d5f1037967b10e34972e0bf2ae3a57cf6b2d3a250b2001da10115db4f8e1",
    "concreteslump": "6e5cf235fccd8ca8ba2631bd935a8c8f3ee9cc702bfa242b59995a8d2133dd77",
    "elevators": "e39bc18a80ec3611e4fd76d0f86ee377e96ba21b568b9997576d538dafe56b7b",
    "forest": "36f3177c8e2e3d8773c0e34116d93ce37f9d58189d861d661bdde2f022999ee7",
    "kin40k": "9bee7f2a9f39aa61a015f239378368601fb3978c5bb9a96433e88a55d40883ba",
    "machine": "aae8f76a052a874dc45b363124515a5192d6ff7dafad04752e87683199babca4",
    "pendulum": "f342636da3047aeb5393a3163974f50e94098c1df9392423e61161eedac2de9e",
    "pol": "1c16126352954571e78f52d5a9d1b947a38655885d7cadd9407a4c9615fe4e04",
    "servo": "1c18994b739e50bf8dde9d5863680d8aa8ac8f71944adcde1368acac094be6b9",
    "solar": "71f4aa956db1a443c4f8c2c70e213c82cd8fbfc52b2da955d22283d7b9f68fc8",
    "stock": "d196f315d7c19634f0f549edba569c6c0413e1602837344879dd4b5340470982",
    "tamielectric": "63507ad1493bd7f36436a900bd2bebaf957d326c6cc20120ab5aefe680f3083a",
    "yacht": "88ec8ea1a979ab0628a54392822c60b3699ea22541e912e83246f7d49f5adad1",
}

SUITE: dict[str, Dataset] = {
    name: Dataset(name, f"suite/{name}.csv.gz", _UCI.format(name), sha256, header=False)
    for name, sha256 in _SUITE.items()
}
"""Seventeen other public tables by name, which are not among the paper's."""

_PRIVATE = {"total_brain_volume", "totalbrainvolume", "tbv"}


def folder(given: str | None = None) -> Path | None:
    """Return the folder with the tables: `given`, or that of the environment variable, or None."""
    name = given or os.environ.get(DATA_DIR)
    return None if name is None else Path(name)


def load(name: str, path: Path | None = None, rows: int | None = None) -> pd.DataFrame:
    """Return a public table without its constant columns.

    Args:
        name: Key of `DATASETS` or `SUITE`.
        path: Folder that holds its file; None fetches it once and keeps it in the user's cache.
        rows: Maximum number of rows, a fixed random subset; None takes all.

    Raises:
        ValueError: If there is no such table, or the checksum of the fetched file is wrong.
        OSError: If the folder does not hold the file, or it cannot be fetched.
    """
    dataset = find(name)
    file = fetch(name) if path is None else _in_folder(dataset, path)
    table = pd.read_csv(file, header=0 if dataset.header else None)
    if not dataset.header:
        table.columns = [f"c{d}" for d in range(table.shape[1])]
    if rows is not None and len(table) > rows:
        kept = np.random.default_rng(123).permutation(len(table))[:rows]
        table = table.iloc[kept].reset_index(drop=True)
    return table.loc[:, table.nunique() > 1]


def find(name: str) -> Dataset:
    """Return the source of a public table, raising a ValueError if there is no such table."""
    if name in SUITE:
        return SUITE[name]
    check_name(name)
    return DATASETS[name]


def check_name(name: str) -> None:
    """Raise a ValueError if `name` is not a public table of the paper."""
    if name in DATASETS:
        return
    if name.lower() in _PRIVATE:
        raise ValueError(
            "the paper's fifth table, total brain volume, is clinical data that its authors could not "
            f"publish: it is not available; choose one of {list(DATASETS)}"
        )
    raise ValueError(f"there is no table {name!r}: choose one of {list(DATASETS)}")


def fetch_all(names: Iterable[str], given: str | None) -> None:
    """Look up some tables in the folder `folder(given)`, or fetch them, to report errors at once.

    Raises:
        OSError: If a table is missing and cannot be fetched.
    """
    for name in sorted(set(names)):
        load(name, folder(given), rows=1)


def parkinson(path: Path) -> pd.DataFrame:
    """Return the Parkinson table: 1,040 rows and 24 columns."""
    return load("parkinson", path)


def protein(path: Path) -> pd.DataFrame:
    """Return the Protein table: 10,000 of its 45,730 rows, 10 columns."""
    return load("protein", path, QUICK_ROWS)


def fetch(name: str) -> Path:
    """Fetch a table into the user's cache, unless it is there already, and return the path of its file.

    Args:
        name: Key of `DATASETS` or `SUITE`.

    Raises:
        OSError: If it cannot be fetched, or pooch is not installed.
        ValueError: If the checksum of the fetched file is wrong.
    """
    dataset = find(name)
    try:
        import pooch
    except ImportError as error:
        raise OSError(f"{_hint(dataset)}; to fetch it: pip install 'pyro_mgp[bench]'") from error
    try:
        kept = pooch.retrieve(
            dataset.url,
            known_hash=f"sha256:{dataset.sha256}",
            fname=dataset.file.replace("/", "_"),
            path=pooch.os_cache("pyro_mgp"),
            downloader=_download_parts if name == "parkinson" else None,
        )
    except OSError as error:
        raise OSError(f"{dataset.url} cannot be fetched ({error}); {_hint(dataset)}") from error
    return Path(kept)


def _download_parts(url: str, output_file: Any, pooch: Any) -> None:
    """Fetch the Parkinson table, which its authors keep in four files, and write it as one file.

    The rows of their first split are in two files of 23 columns, and the last column in two more. They are
    put together with the training rows first. pooch calls this function and then compares the checksum of the
    file.
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


def _hint(dataset: Dataset) -> str:
    return f"name a folder that holds {dataset.file} with --data-dir or in ${DATA_DIR}"
