"""One run of the benchmark, in a process of its own with one thread."""

from __future__ import annotations

import resource
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.runs import process
from benchmarks.runs.process import Row
from benchmarks.validity.results import NUMBERS, Run

M = 20
"""Number of imputations."""
# Most incomplete columns of a table of numbers.
_MOST_INCOMPLETE = 30


def in_own_process(run: Run, limit: int) -> Row:
    """Do a run in a new process, which ends after `limit` seconds."""
    order = {"run": vars(run), "limit": limit}
    return {"version": process.package_version(), "m": M, "limit": limit} | process.in_own_process(
        __name__, order, threads=1
    )


def table(run: Run) -> pd.DataFrame:
    """Return the incomplete table of a run."""
    from benchmarks.coverage import mixed
    from benchmarks.generated import numbers

    if run.kind != NUMBERS:
        return mixed.draw(np.random.default_rng(0), run.n_rows).frame
    return numbers(run.n_rows, run.n_columns, most_incomplete=_MOST_INCOMPLETE)


def perform(order: Mapping[str, Any]) -> Row:
    """Do a run in this process, and return its row."""
    from benchmarks.coverage.methods import METHODS
    from benchmarks.figures import peak_gigabytes, resident_gigabytes

    run, limit = Run(**order["run"]), order["limit"]

    def too_late(*_: object) -> None:
        raise TimeoutError(f"not done after {limit} s")

    def timed() -> Row:
        given, impute = table(run), METHODS[run.method]
        # Libraries are loaded before the clock starts.
        impute(given.head(100), 2, 0)
        before = resident_gigabytes(), _of_children()
        started = time.perf_counter()
        signal.alarm(limit)
        impute(given, M, 0)
        seconds = time.perf_counter() - started
        gigabytes = max(peak_gigabytes() - before[0], _of_children() - before[1])
        return {"seconds": round(seconds, 2), "gigabytes": round(gigabytes, 2)}

    signal.signal(signal.SIGALRM, too_late)
    try:
        return process.or_error(timed)
    finally:
        signal.alarm(0)


def _of_children() -> float:
    """Return the largest memory that an ended child process, such as R, has held, in GiB."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20


if __name__ == "__main__":
    process.serve(perform, *sys.argv[1:])
