"""Execute one run of the benchmark in a process of its own."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.runs import process
from benchmarks.runs.process import Row
from benchmarks.tables.results import Run


def in_own_process(run: Run, data_dir: str | None) -> Row:
    """Do a run in a new process, with one thread.

    Args:
        run: Run to do.
        data_dir: Folder with the public tables; None fetches them.

    Returns:
        Row for `Results.append`; if the run failed, its `error` holds the reason.
    """
    order = {"run": vars(run), "data_dir": data_dir}
    return _common() | process.in_own_process(__name__, order, threads=1)


def perform(run: Run, data_dir: str | None) -> Row:
    """Do a run in this process, with the arguments and result of `in_own_process`."""
    return _common() | process.or_error(lambda: _perform(run, data_dir))


def _common() -> Row:
    return {"version": process.package_version()}


def _perform(run: Run, data_dir: str | None) -> Row:
    from benchmarks.figures import peak_gigabytes
    from benchmarks.paper import data
    from benchmarks.tables.methods.registry import METHODS
    from benchmarks.tables.patterns import incomplete
    from benchmarks.tables.scores import score

    # The method is loaded before the clock starts: its imports are not part of its time.
    impute = METHODS[run.method].load()
    truth = data.load(run.dataset, data.folder(data_dir), run.rows or None).astype(float)
    table = incomplete(truth, run.pattern, run.seed)
    # A column whose observed cells are all equal is constant for every method.
    varying = table.columns[table.nunique() > 1]
    truth, table = truth[varying], table[varying]
    started = time.perf_counter()
    imputed = impute(table, run.seed)
    elapsed = time.perf_counter() - started
    peak = peak_gigabytes(children=True)
    scores = dataclasses.asdict(score(imputed, table, truth))
    return {
        "n_rows": len(table),
        "n_columns": table.shape[1],
        "n_missing": int(table.isna().to_numpy().sum()),
        **{name: None if math.isnan(number) else number for name, number in scores.items()},
        "draws": None if imputed.draws is None else len(next(iter(imputed.draws.values()))),
        "seconds": round(elapsed if imputed.seconds is None else imputed.seconds, 3),
        "peak_gigabytes": round(peak, 3),
    }


def _perform_order(order: Mapping[str, Any]) -> Row:
    return perform(Run(**order["run"]), order["data_dir"])


if __name__ == "__main__":
    process.serve(_perform_order, *sys.argv[1:])
