"""Impute a table larger than memory with Dask: rows per second by number of workers, and memory per process.

The table is written to Parquet files, an imputer is fitted to some of its rows, and each number of workers
imputes all of them from Parquet to Parquet under a memory limit per process.
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

from benchmarks import command
from benchmarks.figures import Row, peak_gigabytes

_ROWS_PER_FILE = 100_000
_N_COLUMNS = 10
_FITTED_ROWS = 20_000

# Runs in a process of its own, so that its memory is that of this job alone.
_RUN = """
from benchmarks.partitions import impute
print(*impute({folder!r}, {out!r}, {m}, {workers}, {gigabytes}))
"""


def write_table(folder: Path, n_rows: int) -> None:
    """Write correlated columns, two of them transformed by tanh, 10 % of the cells missing, as Parquet."""
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
    """Impute a folder of Parquet files under a memory limit.

    Args:
        folder: Folder with the table.
        out: Folder to write the completed tables into.
        m: Number of imputations.
        n_workers: Number of Dask workers.
        gigabytes: Memory limit of each process.

    Returns:
        Seconds of the imputation, seconds to start the workers, and peak memory in GiB of the largest worker
        and of this process.
    """
    from pyro_mgp import MGPImputer
    from pyro_mgp.scaling.dask_engine import cluster, impute_into
    from pyro_mgp.storage.atomic import atomic_folder

    first = pd.read_parquet(min(Path(folder).iterdir()))[:_FITTED_ROWS]
    imputer = MGPImputer(random_state=0, progress=False).fit(first)
    _limit(gigabytes)
    start = time.perf_counter()
    with cluster(n_workers=n_workers) as client:
        client.run(_limit, gigabytes)
        started = time.perf_counter()
        with atomic_folder(out) as partial:
            impute_into(partial, folder, imputer, m, client=client, progress=False)
        ended = time.perf_counter()
        peak = max(client.run(peak_gigabytes).values())
    return ended - started, started - start, peak, peak_gigabytes()


def _limit(gigabytes: float) -> None:
    """Limit the private memory of this process."""
    size = int(gigabytes * 1e9)
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def measure(
    n_rows: int, m: int = 2, workers: Sequence[int] = (1, 2), gigabytes: float = 3.0
) -> Iterator[Row]:
    """Measure rows per second for each number of workers, and the speed-up over the first one.

    Args:
        n_rows: Rows of the table.
        m: Number of imputations.
        workers: Numbers of workers to compare.
        gigabytes: Memory limit of each process.

    Raises:
        ValueError: If a completed table lacks rows or has missing cells.
    """
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
                f"{seconds[n_workers]:.0f} s, and {starting:.0f} s to start; peak memory {worker:.2f} GB in "
                f"a worker and {own:.2f} GB in the main process, limit {gigabytes:g} GB"
            )
            yield Row(what, n_rows / seconds[n_workers], "rows/s", "", detail)
    first, *more = seconds
    for n_workers in more:
        gain = seconds[first] / seconds[n_workers]
        yield Row(f"{n_workers} workers against {first}", gain, "×", "≥ 1.6 for 2", "")


def check_complete(out: Path, n_rows: int, m: int) -> None:
    """Check that a folder holds m completed tables with all rows.

    Raises:
        ValueError: If rows or cells are missing.
    """
    for j in range(m):
        found = 0
        for path in (out / f"imputation_{j + 1:02d}").iterdir():
            table = pq.read_table(path)
            found += table.num_rows
            if any(column.null_count for column in table.columns):
                raise ValueError(f"expected no missing cells in {str(path)!r}")
        if found != n_rows:
            raise ValueError(f"expected {n_rows} rows in imputation {j + 1}, got {found}")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the figures and optionally write them; return the exit status."""
    parser = command.new_parser("partitions", __doc__)
    option, positive = parser.add_argument, command.at_least(1)
    option("--rows", metavar="N", type=positive, default=500_000, help="rows (default: 500000)")
    option("-m", metavar="M", type=positive, default=2, help="number of imputations (default: 2)")
    option(
        "--workers", metavar="N", type=positive, nargs="+", default=[1, 2],
        help="numbers of workers to compare (default: 1 2)",
    )  # fmt: skip
    option(
        "--gigabytes", metavar="GB", type=float, default=3.0, help="memory limit of each process (default: 3)"
    )
    command.add_out(parser)
    return command.execute(
        parser,
        argv,
        lambda args: command.report(measure(args.rows, args.m, args.workers, args.gigabytes), args.out),
    )


if __name__ == "__main__":
    sys.exit(main())
