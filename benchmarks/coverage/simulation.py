"""Coverage study: draw tables, impute, analyse, pool, and compare intervals with the truth."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.coverage import methods, r_mice
from benchmarks.coverage.design import Analysis, Design, Numbers
from benchmarks.coverage.designs import DESIGNS
from pyro_mgp import pool

Task = tuple[str, str, int]
"""Design, method and number of the repetition."""

Rows = list[dict[str, Any]]
"""A line of the results per estimand."""

CELLS = "cells"
"""Kind of the rows about the intervals of single missing cells."""

_NORMAL = 1.96
_DIGITS = 7


def tasks(
    designs: Sequence[str], methods_: Sequence[str], repetitions: int, done: pd.DataFrame | None = None
) -> list[Task]:
    """Return the tasks that remain to be run.

    Args:
        designs: Keys of `DESIGNS`.
        methods_: Names that `methods.find` knows, or "exact".
        repetitions: Tables per design.
        done: Results so far, whose tasks are left out.

    Raises:
        ValueError: If a design or method is unknown, a method does not suit a design, or R's mice is
            requested but not installed.
    """
    for design, method in itertools.product(designs, methods_):
        check(design, method)
    if any(name.startswith("mice_") for name in methods_):
        r_mice.check()
    finished: set[Task] = set()
    if done is not None:
        finished = set(zip(done["design"], done["method"], done["repetition"].tolist(), strict=True))
    return [task for task in itertools.product(designs, methods_, range(repetitions)) if task not in finished]


def check(design: str, method: str) -> None:
    """Raise a ValueError if a design or a method is unknown, or if the method does not suit the design."""
    if design not in DESIGNS:
        raise ValueError(f"designs are {list(DESIGNS)}, got {design!r}")
    if method == methods.EXACT:
        if DESIGNS[design].exact is None:
            raise ValueError(f"the design {design!r} has no exact sampler")
        return
    methods.find(method)
    if method == methods.COMPLETE_CASES and DESIGNS[design].truth is None:
        raise ValueError(f"intervals of {design!r} need imputations, which {method!r} does not make")


def run(tasks: Sequence[Task], jobs: int = 1) -> Iterator[tuple[Task, Rows | Exception]]:
    """Draw, impute, analyse and pool. All methods get the same table for a design and a repetition.

    Args:
        tasks: Tasks as `tasks` returns them.
        jobs: Number of processes; 1 runs the tasks in this one, in their order.

    Yields:
        Each task with its rows when it is done, or with the exception that ended it. A row has the columns
        `design`, `method`, `repetition`, `kind`, `estimand`, `truth`, `estimate`, its standard error `se`,
        the variance `between` imputations, `covered` (whether the 95 % interval holds the truth; for cells,
        the share of cells), the interval's `width`, and the `seconds` of imputation.
    """
    if jobs == 1:
        yield from ((task, _attempt(task)) for task in tasks)
        return
    # Torch's threads do not survive a fork.
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(_attempt, task): task for task in tasks}
        try:
            for future in as_completed(waiting):
                yield waiting[future], future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _attempt(task: Task) -> Rows | Exception:
    """Return the rows of a task, or the exception that ended it, so that the other tasks go on."""
    try:
        return run_task(task)
    except Exception as error:  # a method may fail in any way
        return error


def run_task(task: Task) -> Rows:
    """Return the rows of a design, a method and a repetition."""
    name, method, repetition = task
    design = DESIGNS[name]
    table = design.draw(np.random.default_rng([repetition // design.seeds, 2018]))
    impute = design.exact if method == methods.EXACT else methods.find(method, design.options)
    if impute is None:
        raise ValueError(f"the design {name!r} has no exact sampler")
    started = time.perf_counter()
    completed = impute(table.frame, design.m, repetition)
    seconds = time.perf_counter() - started
    rows = compare(design, completed, table.complete)
    if design.truth is None:
        rows += cells(table.frame, completed, table.complete)
    head = {"design": name, "method": method, "repetition": repetition}
    return [head | row | {"seconds": round(seconds, 3)} for row in rows]


def compare(design: Design, completed: Sequence[pd.DataFrame], complete: pd.DataFrame) -> Rows:
    """Pool the analyses of completed tables and compare their intervals with the truth."""
    analyses = [design.analyse(table) for table in completed]
    first = analyses[0]
    estimates = np.array([each.estimates for each in analyses])
    truth = design.analyse(complete).estimates
    if design.truth is not None:
        truth = np.array([design.truth[name] for name in first.names])
    estimate, between = estimates.mean(0), estimates.var(0, ddof=1)
    se, reach = _pool(analyses) if design.truth is not None else _pool_finite(between, len(analyses))
    columns = {
        "truth": truth,
        "estimate": estimate,
        "se": se,
        "between": between,
        "covered": (np.abs(estimate - truth) <= reach).astype(np.float64),
        "width": 2 * reach,
    }
    kinds = first.kinds or ["coefficient"] * len(truth)
    return [
        {"kind": kind, "estimand": name} | {key: _rounded(values[k]) for key, values in columns.items()}
        for k, (kind, name) in enumerate(zip(kinds, first.names, strict=True))
    ]


def _pool(analyses: Sequence[Analysis]) -> tuple[Numbers, Numbers]:
    """Return standard errors by Rubin's rules and half-widths of Barnard and Rubin's intervals, `[K]`."""
    table = pool([each[1:3] for each in analyses], df_complete=analyses[0].df).table
    return table["se"].to_numpy(), ((table["high"] - table["low"]) / 2).to_numpy()


def _pool_finite(between: Numbers, m: int) -> tuple[Numbers, Numbers]:
    """Return standard errors √((1 + 1/m) B) of estimates of a finite table and half-widths, `[K]`."""
    se = np.sqrt((1 + 1 / m) * between)
    return se, _NORMAL * se


def cells(frame: pd.DataFrame, completed: Sequence[pd.DataFrame], complete: pd.DataFrame) -> Rows:
    """Return the share of each column's missing cells that are in the central 95 % intervals of their draws.

    The limits are the draws' order statistics at p (m + 1), between which a further draw lies with
    probability .95 if m is 39 or more. They belong to the interval.
    """
    rows: Rows = []
    for name in frame.columns[frame.isna().any()]:
        missing = frame[name].isna().to_numpy()
        draws = np.array([table[name].to_numpy()[missing] for table in completed], dtype=np.float64)
        low, high = np.quantile(draws, [0.025, 0.975], axis=0, method="weibull")
        truth = complete[name].to_numpy()[missing]
        covered = float(((low <= truth) & (truth <= high)).mean())
        none = dict.fromkeys(("truth", "estimate", "se", "between"), math.nan)
        row = {"kind": CELLS, "estimand": str(name)} | none
        rows.append(row | {"covered": _rounded(covered), "width": _rounded(float((high - low).mean()))})
    return rows


def _rounded(number: float) -> float:
    return float(f"{number:.{_DIGITS}g}")


def record(results: Iterable[tuple[Task, Rows | Exception]], out: str) -> Iterator[tuple[Task, str | None]]:
    """Append the rows of each task to a CSV file as soon as it is done.

    Args:
        results: Results of `run`.
        out: CSV file, begun if it does not exist.

    Yields:
        Each task, with None if its rows were written, or with the message of its error.
    """
    for task, rows in results:
        if isinstance(rows, Exception):
            yield task, f"{type(rows).__name__}: {rows}"
            continue
        with open(out, "a", encoding="utf-8", newline="") as file:
            pd.DataFrame(rows).to_csv(file, header=file.tell() == 0, index=False)
        yield task, None
