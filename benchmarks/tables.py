"""The paper's experiments: tables × rates × splits × systems, each run once, whenever it is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks import data
from benchmarks.cell import Place, in_own_process
from benchmarks.profiles import PROFILES
from benchmarks.results import Results, Run
from benchmarks.systems import SYSTEMS

RATES = (10, 20, 30, 40)
"""Per cent of the cells that the paper removes."""

SPLITS = (0, 1, 2, 3, 4)
"""Numbers of the splits."""


def plan(
    profile: str = "quick",
    datasets: Sequence[str] = tuple(data.DATASETS),
    rates: Sequence[int] = RATES,
    splits: Sequence[int] = SPLITS,
    methods: Sequence[str] = tuple(SYSTEMS),
) -> list[Run]:
    """All runs in the order in which they are done: the first split of everything before the second.

    Args:
        profile: Key of `PROFILES`.
        datasets: Keys of `DATASETS`.
        rates: Per cent of the cells to remove, 1 to 99.
        splits: Numbers of splits.
        methods: Keys of `SYSTEMS`.

    Raises:
        ValueError: If one of them is not known; the message names those that are.
    """
    if profile not in PROFILES:
        raise ValueError(f"there is no profile {profile!r}: take one of {list(PROFILES)}")
    for dataset in datasets:
        data.check_name(dataset)
    for method in methods:
        if method not in SYSTEMS:
            raise ValueError(f"there is no method {method!r}: take some of {list(SYSTEMS)}")
    for rate in rates:
        if not 0 < rate < 100:
            raise ValueError(f"a rate is a share of the cells in per cent, between 1 and 99; got {rate}")
    runs = itertools.product(splits, methods, datasets, rates)
    return [Run(profile, dataset, rate, split, method) for split, method, dataset, rate in runs]


def run(
    runs: Iterable[Run],
    out: Path,
    place: Place,
    *,
    jobs: int = 1,
    retry_failed: bool = False,
    progress: bool = True,
    tell: Callable[[str], None] = lambda _: None,
) -> int:
    """Do the runs that are not done yet, and leave the results in their order.

    Args:
        runs: What to run.
        out: CSV file of the results; see `Results`.
        place: Where to run.
        jobs: Runs at a time.
        retry_failed: Do runs again that failed before.
        progress: Show a progress bar with the remaining time, on terminals only.
        tell: Takes a line about each run that failed.

    Returns:
        How many of the runs failed, now or before.

    Raises:
        ValueError: If `out` holds something else.
        OSError: If a table is not there and cannot be fetched.
    """
    runs = list(dict.fromkeys(runs))
    results = Results(out)
    if retry_failed:
        results.sort(keep_failed=False)
    done = results.done()
    left = [one for one in runs if one not in done]
    _make_sure_of_tables(left, place)
    with tqdm(
        total=len(runs), initial=len(runs) - len(left), unit="run", disable=None if progress else True
    ) as bar:
        for one, row in _in_any_order(left, place, jobs):
            results.append(one, row)
            bar.set_postfix_str(str(one), refresh=False)
            bar.update()
            if row.get("error"):
                tell(f"{one} failed: {row['error']}")
    results.sort()
    return len(set(runs) - results.done(count_failed=False))


def _make_sure_of_tables(runs: Sequence[Run], place: Place) -> None:
    """Fetch what is not there before the first run, not in the middle of the night."""
    for dataset in {one.dataset for one in runs}:
        data.load(dataset, data.folder(place.data_dir), rows=1)


def _in_any_order(runs: Sequence[Run], place: Place, jobs: int) -> Iterable[tuple[Run, dict[str, Any]]]:
    """The runs and their rows as they get ready, some at a time."""
    with ThreadPoolExecutor(jobs) as pool:
        waiting: dict[Future[dict[str, Any]], Run] = {}
        try:
            for one in runs:
                waiting[pool.submit(in_own_process, one, place)] = one
                if len(waiting) >= jobs:
                    yield from _ready(waiting)
            while waiting:
                yield from _ready(waiting)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _ready(waiting: dict[Future[dict[str, Any]], Run]) -> Iterable[tuple[Run, dict[str, Any]]]:
    finished, _ = wait(waiting, return_when=FIRST_COMPLETED)
    for future in finished:
        yield waiting.pop(future), future.result()
