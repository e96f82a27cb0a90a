"""Figures that benchmarks report, and how time and memory are measured."""

from __future__ import annotations

import dataclasses
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd


@dataclass(frozen=True)
class Row:
    """One measured figure."""

    what: str
    """Name of the measured quantity."""
    measured: float
    """Measured value, in `unit`."""
    unit: str
    """Unit of the value."""
    asked: str
    """Target for the value; empty if there is none."""
    detail: str
    """Further numbers, such as the times behind a ratio."""


def as_table(rows: Sequence[Row]) -> pd.DataFrame:
    """Return figures as a table with a column per field of `Row`."""
    columns = [field.name for field in dataclasses.fields(Row)]
    return pd.DataFrame([dataclasses.asdict(row) for row in rows], columns=columns)


def in_turn(*tasks: Callable[[], object], repeats: int = 5) -> list[float]:
    """Return the median seconds of each task, run alternately after one warm-up each."""
    import torch

    for task in tasks:
        task()
    times: list[list[float]] = [[] for _ in tasks]
    for _ in range(repeats):
        for task, seconds in zip(tasks, times, strict=True):
            start = time.perf_counter()
            task()
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
    return [statistics.median(seconds) for seconds in times]


def resident_gigabytes() -> float:
    """Return the memory that this process holds now, in GiB; its peak on systems other than Linux."""
    return _from_status("VmRSS")


def peak_gigabytes(children: bool = False) -> float:
    """Return the largest memory that this process has held, in GiB.

    Args:
        children: Whether to return that of the largest of its ended child processes if it is larger.
    """
    # The value of the module `resource` comes second: a child process inherits the peak of its parent there.
    own = _from_status("VmHWM")
    return max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20) if children else own


def _from_status(name: str) -> float:
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    lines = status.read_text("utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 2**20
