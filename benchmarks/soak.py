"""Fits and imputations, one after the other in one process: does memory grow?

Each round fits a small table of mixed kinds, imputes it and throws all away. What a process holds at its
start (imports, caches, pools of memory) settles within the first rounds; after these it should stay.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from pyro_mgp.imputer import MGPImputer

SETTLED = 50
"""Rounds after which memory shall not grow."""


def table(n: int, seed: int) -> pd.DataFrame:
    """A table with a fifth of its cells missing: numbers, counts, booleans, levels and times."""
    g = np.random.default_rng(seed)
    z = g.normal(size=n)
    frame = pd.DataFrame(
        {
            "number": z + 0.3 * g.normal(size=n),
            "skewed": np.exp(z + 0.3 * g.normal(size=n)),
            "count": pd.array(g.poisson(np.exp(0.5 * z)), dtype="Int64"),
            "yes": pd.array(z + 0.5 * g.normal(size=n) > 0, dtype="boolean"),
            "level": pd.Categorical(np.array(["a", "b", "c"])[np.digitize(z, [-0.5, 0.5])]),
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(np.rint(30 * z), unit="D"),
        }
    )
    return frame.mask(g.random(frame.shape) < 0.2)


def memory() -> float:
    """Resident memory of this process in MB that no other process shares, as Linux counts it.

    Raises:
        OSError: On other systems.
    """
    lines = Path("/proc/self/smaps_rollup").read_text("ascii").splitlines()
    private = [line.split()[1] for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:"))]
    return sum(map(int, private)) / 1024


def soak(rounds: int, n_rows: int = 60, max_steps: int = 5) -> Iterator[dict[str, float]]:
    """Round by round its number, the memory after it in MB, and its seconds.

    Args:
        rounds: How many.
        n_rows: Of each table.
        max_steps: Of each fit.
    """
    for number in range(1, rounds + 1):
        started = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of random tables, not of interest here
            imputer = MGPImputer(random_state=number, max_steps=max_steps, n_sweeps=2, progress=False)
            draws = imputer.fit(table(n_rows, number)).impute(m=2)
        for completed in draws:
            completed.isna().sum()
        del imputer, draws
        gc.collect()
        yield {"round": number, "memory_MB": memory(), "seconds": time.perf_counter() - started}


def growth(figures: pd.DataFrame) -> float:
    """By which share memory grew after the first `SETTLED` rounds: means of ten rounds."""
    settled = figures["memory_MB"][(figures["round"] > SETTLED - 10) & (figures["round"] <= SETTLED)].mean()
    return float(figures["memory_MB"].tail(10).mean() / settled - 1)
