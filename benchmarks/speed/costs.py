"""Shares of stages in the time of a fit and of twenty imputations from a joint density, on five tables."""

from __future__ import annotations

import cProfile
import functools
import time
from collections.abc import Callable, Mapping
from pathlib import PurePath

import numpy as np
import pandas as pd

from benchmarks.coverage.designs import DESIGNS
from benchmarks.figures import Row
from benchmarks.generated import mixed, numbers
from pyro_mgp.imputer import MGPImputer

TABLES: dict[str, Callable[[], pd.DataFrame]] = {
    "slade": lambda: DESIGNS["slade"].draw(np.random.default_rng(0)).frame,
    "mixed_2000": lambda: DESIGNS["mixed_2000"].draw(np.random.default_rng(0)).frame,
    "mixed_10000": lambda: DESIGNS["mixed_10000"].draw(np.random.default_rng(0)).frame,
    "six kinds of columns, 1,000 rows": lambda: mixed(1000, 0),
    "ten numbers, 10,000 rows": lambda: numbers(10_000),
}
"""Tables by name; all of them get a joint density."""

_FIT = {
    "links that see all others": ("table_fit.py", "_fit_conditional"),
    "training": ("plan_search.py", "PlanSearch.fit"),
    "chains of the search": ("plan_search.py", "completions"),
    "choice of plans": ("plan_search.py", "PlanSearch._best"),
}
_IMPUTE = {
    "functions given cells": ("gibbs_chains.py", "GibbsChains._all_learnt"),
    "cells given functions": ("chain.py", "Chain.visit"),
    "likelihood of later links": ("later_links.py", "LaterLinks.log_likelihood"),
}
"""Functions of the stages, by file and qualified name; the last one is part of that before."""


def measure_costs(device: str = "cpu") -> list[Row]:
    """Measure the seconds of a fit and of 20 imputations of each table, and the shares of their stages."""
    rows = []
    for name, table in TABLES.items():
        imputer = MGPImputer(random_state=0, progress=False, device=device)
        rows.append(profiled(f"{name}, fit", functools.partial(imputer.fit, table()), _FIT))
        rows.append(profiled(f"{name}, 20 imputations", functools.partial(imputer.impute, m=20), _IMPUTE))
    return rows


def profiled(what: str, task: Callable[[], object], stages: Mapping[str, tuple[str, str]]) -> Row:
    """Measure the seconds of a task, and the shares of functions in it, by file and qualified name.

    Raises:
        LookupError: If the task does not call one of the functions.
    """
    profile, start = cProfile.Profile(), time.perf_counter()
    profile.runcall(task)
    seconds = time.perf_counter() - start
    shares = [f"{stage} {_seconds_in(profile, *place) / seconds:.3f}" for stage, place in stages.items()]
    return Row(what, seconds, "s", "", "; ".join(shares))


def _seconds_in(profile: cProfile.Profile, file: str, function: str) -> float:
    """Return the seconds spent in a function and in what it calls."""
    for entry in profile.getstats():
        code = entry.code
        if isinstance(code, str):  # of a built-in function
            continue
        if (PurePath(code.co_filename).name, code.co_qualname) == (file, function):
            return entry.totaltime
    raise LookupError(f"{function} of {file} did not run: has it another name, or is there no joint density?")
