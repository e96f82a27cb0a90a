"""Measurements of speed by name: step, latency, import, sizes, costs of stages, training and forests.

Tasks that are compared run alternately in one process, and medians are reported: on a machine with other load
their ratio is more stable than single times.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.figures import Row, in_turn
from benchmarks.generated import numbers
from benchmarks.paper import data
from benchmarks.speed.costs import measure_costs
from benchmarks.speed.step import measure_step
from benchmarks.speed.time_to_accuracy import measure_forests, measure_training
from pyro_mgp.imputer import MGPImputer

# Runs in a process of its own, so that its memory is that of this job alone.
_SIZE = """
import tempfile, time
import pyarrow.parquet as pq
from pyro_mgp import MGPImputer
from benchmarks.figures import peak_gigabytes, resident_gigabytes
from benchmarks.generated import numbers
frame = numbers({n_rows})
before, start = resident_gigabytes(), time.perf_counter()
imputer = MGPImputer(random_state=0, progress=False, device="{device}").fit(frame)
fitted = time.perf_counter() - start
with tempfile.TemporaryDirectory() as folder:
    paths = imputer.impute_to_parquet(folder + "/out", m=5)
    total, peak = time.perf_counter() - start, peak_gigabytes()
    for path in paths:
        assert pq.ParquetFile(path).metadata.num_rows == len(frame)
        assert sum(column.null_count for column in pq.read_table(path).columns) == 0
print(fitted, total, peak - before)
"""


def measure_sizes(device: str = "cpu", sizes: Sequence[int] = (10_000, 100_000, 1_000_000)) -> list[Row]:
    """Measure the time of a fit and 5 imputations written to Parquet, for each number of rows."""
    rows: list[Row] = []
    for n_rows in sizes:
        command = [sys.executable, "-c", _SIZE.format(n_rows=n_rows, device=device)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        fit, total, gigabytes = map(float, done.stdout.split())
        detail = f"fit {fit:.0f} s, peak memory above the input {gigabytes:.2f} GB"
        if rows:
            detail += f"; {total / rows[-1].measured:.1f} × the time of a tenth of the rows"
        rows.append(Row(f"fit + 5 imputations, {n_rows:,} rows", total, "s", "linear, ≤ 1.5 GB", detail))
    return rows


def measure_latency(device: str = "cpu") -> list[Row]:
    """Measure the time to impute one new row 20 times with a loaded imputer of 24 columns."""
    frame = numbers(1000, 24)
    with tempfile.TemporaryDirectory() as folder:
        MGPImputer(random_state=0, max_steps=20, progress=False).fit(frame).save(Path(folder) / "imputer")
        imputer = MGPImputer.load(Path(folder) / "imputer", device=device)
    row = frame[frame.isna().any(axis=1)].iloc[:1]
    (seconds,) = in_turn(lambda: imputer.impute(row, m=20), repeats=15)
    n_missing = int(row.isna().to_numpy().sum())
    return [Row("one new row, m = 20", seconds * 1e3, "ms", "≤ 50", f"{n_missing} missing cells")]


def measure_import(_: str = "cpu") -> list[Row]:
    """Measure the import of the package relative to that of torch, Pyro and pandas."""

    def fresh(code: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, "-c", code], check=True)

    # The package imports scikit-learn, whose base classes alone take half as long as torch, Pyro and pandas
    # together, and its own modules only when one of its names is used.
    package, base, imputer = in_turn(
        fresh("import pyro_mgp, torch, pyro, pandas"),
        fresh("import torch, pyro, pandas"),
        fresh("from pyro_mgp import MGPImputer"),
    )
    what = "÷ that of torch, pyro and pandas"
    return [
        Row(f"import of the package {what}", package / base, "×", "≤ 1.3", f"{package:.1f} s, {base:.1f} s"),
        Row(f"import of MGPImputer {what}", imputer / base, "×", "", f"{imputer:.1f} s, with scikit-learn"),
    ]


MEASUREMENTS: dict[str, Callable[[str], list[Row]]] = {
    "step": measure_step,
    "latency": measure_latency,
    "import": measure_import,
    "sizes": measure_sizes,
    "costs": measure_costs,
}
"""Measurements on generated tables by name; functions of the torch device."""

ON_DATA: dict[str, Callable[[Path], list[Row]]] = {"training": measure_training, "forests": measure_forests}
"""Measurements on public tables by name; functions of the folder with the tables."""


def run(names: Sequence[str], data_dir: str | None = None, device: str = "cpu") -> Iterator[Row]:
    """Take some measurements, and yield each figure as soon as it is measured.

    Args:
        names: Keys of `MEASUREMENTS` and `ON_DATA`.
        data_dir: Folder with the public tables; None takes the one in the environment variable.
        device: Torch device of `MEASUREMENTS`.

    Raises:
        ValueError: If a measurement needs the public tables and their folder is not given.
    """
    folder = data.folder(data_dir)
    on_data = [name for name in names if name in ON_DATA]
    if on_data and folder is None:
        raise ValueError(
            f"the measurements {on_data} need parkinson.csv and protein.csv.gz: give their folder with "
            f"--data-dir or in the environment variable {data.DATA_DIR}"
        )
    for name in names:
        if name in MEASUREMENTS:
            yield from MEASUREMENTS[name](device)
        elif folder is not None:
            yield from ON_DATA[name](folder)
