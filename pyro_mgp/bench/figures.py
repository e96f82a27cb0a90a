"""What a benchmark reports, and how it takes its times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


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
    for task in tasks:
        task()
    times: list[list[float]] = [[] for _ in tasks]
    for _ in range(repeats):
        for task, seconds in zip(tasks, times, strict=True):
            start = time.perf_counter()
            task()
            seconds.append(time.perf_counter() - start)
    return [statistics.median(seconds) for seconds in times]
