"""What a benchmark reports, and how it takes its times."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One line of the report."""

    what: str
    """What was measured."""
    measured: float
    """The figure."""
    unit: str
    """What it counts."""
    asked: str
    """What it should be."""
    detail: str
    """The times behind it."""


def in_turn(*tasks: Callable[[], object], repeats: int = 5) -> list[float]:
    """Median seconds of each task, run in turn after one warm-up each."""
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
    """Memory that this process holds now, where Linux tells; else the most that it ever held."""
    return _of_status("VmRSS")


def peak_gigabytes() -> float:
    """Most memory that this process ever held."""
    # Not what `resource` says if it can be helped: there a child starts with the peak of its parent.
    return _of_status("VmHWM")


def _of_status(name: str) -> float:
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    lines = status.read_text("utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 2**20
