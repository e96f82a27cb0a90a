"""Tables larger than memory: rows per second by number of workers, and the memory of each process.

The table is written in parts, an imputer is fitted to some of its rows, and each number of workers imputes
all of them from Parquet to Parquet, every process under the same limit.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from benchmarks.figures import Row, peak_gigabytes

_ROWS_PER_FILE = 100_000
_N_COLUMNS = 10
_FITTED_ROWS = 20_000

# Run in a process of its own, so that its memory is that of this job alone.
_RUN = """
from benchmarks.partitions import impute
print(*impute({folder!r}, {out!r}, {m}, {workers}, {gigabytes}))
"""


def write_table(folder: Path, n_rows: int) -> None:
    """Correlated columns, two of them bent, 10 % of the cells missing, in Parquet files."""
    loadings = np.random.default_rng(0).normal(size=(3, _N_COLUMNS))
    for i, first in enumerate(range(0, n_rows, _ROWS_PER_FILE)):
        generator = np.random.default_rng([1, i])
        size = min(_ROWS_PER_FILE, n_rows - first)
        table = generator.normal(size=(size, 3)) @ loadings
        table[:, :2] = np.tanh(table[:, :2])
        table += 0.3 * generator.normal(size=table.shape)
        frame = pd.DataFrame(table, columns=[f"c{d}" for d in range(_N_COLUMNS)])
        frame.mask(generator.random(table.shape) < 0.1).to_parquet(folder / f"{i:04d}.parquet")


def impute(
    folder: str, out: str, m: int, n_workers: int, gigabytes: float
) -> tuple[float, float, float, float]:
    """Impute a folder by so many workers, no process beyond its memory.

    Returns:
        Seconds with the workers there, seconds until they were, and the most gigabytes that a worker and
        that this process ever held.
    """
    from pyro_mgp import MGPImputer
    from pyro_mgp.scaling.dask_engine import cluster, impute_folder

    first = pd.read_parquet(min(Path(folder).iterdir()))[:_FITTED_ROWS]
    imputer = MGPImputer(random_state=0, progress=False).fit(first)
    _limit(gigabytes)
    start = time.perf_counter()
    with cluster(n_workers=n_workers) as client:
        client.run(_limit, gigabytes)
        started = time.perf_counter()
        impute_folder(folder, out, imputer, m, client=client, progress=False)
        ended = time.perf_counter()
        peak = max(client.run(peak_gigabytes).values())
    return ended - started, started - start, peak, peak_gigabytes()


def _limit(gigabytes: float) -> None:
    """Let this process ask for so much memory of its own at most."""
    size = int(gigabytes * 1e9)
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def measure(
    n_rows: int, m: int = 2, workers: Sequence[int] = (1, 2), gigabytes: float = 3.0
) -> Iterator[Row]:
    """Rows per second by number of workers, and how they compare."""
    seconds: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "in"
        folder.mkdir()
        write_table(folder, n_rows)
        for n_workers in workers:
            out = str(Path(parent) / f"out_{n_workers}")
            code = _RUN.format(folder=str(folder), out=out, m=m, workers=n_workers, gigabytes=gigabytes)
            command = [sys.executable, "-c", code]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            seconds[n_workers], starting, worker, own = map(float, done.stdout.split())
            check_complete(Path(out), n_rows, m)
            what = f"{n_rows:,} rows × {_N_COLUMNS}, m = {m}, {n_workers} worker{'s' * (n_workers > 1)}"
            detail = (
                f"{seconds[n_workers]:.0f} s, and {starting:.0f} s to start; at most {worker:.2f} GB in a "
                f"worker and {own:.2f} GB in the process that asked, none allowed more than {gigabytes:g}"
            )
            yield Row(what, n_rows / seconds[n_workers], "rows/s", "", detail)
    first, *others = seconds
    for n_workers in others:
        gain = seconds[first] / seconds[n_workers]
        yield Row(f"{n_workers} workers against {first}", gain, "×", "≥ 1.6 for 2", "")


def check_complete(out: Path, n_rows: int, m: int) -> None:
    """That m tables of all rows are there, without a hole.

    Raises:
        ValueError: If not.
    """
    for j in range(m):
        found = 0
        for path in (out / f"imputation_{j + 1:02d}").iterdir():
            table = pq.read_table(path)
            found += table.num_rows
            if any(column.null_count for column in table.columns):
                raise ValueError(f"there are holes left in {str(path)!r}")
        if found != n_rows:
            raise ValueError(f"expected {n_rows} rows in imputation {j + 1}, got {found}")
