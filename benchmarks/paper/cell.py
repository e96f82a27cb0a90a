"""Execute one run of the experiments in a process of its own, which isolates its memory and its failures."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.paper.results import Run
from benchmarks.runs import process
from benchmarks.runs.process import Row


@dataclass(frozen=True)
class Place:
    """Data folder and compute resources of a run."""

    data_dir: str | None = None
    """Folder with the public tables; None fetches them."""
    device: str = "cpu"
    """Torch device of the methods that use one."""
    threads: int = 1
    """Number of threads of a run."""


def in_own_process(run: Run, place: Place) -> Row:
    """Do a run in a new process.

    Args:
        run: Run to do.
        place: Data folder, device and threads.

    Returns:
        Row for `Results.append`; if the run failed, its `error` holds the reason.
    """
    order = {"run": vars(run), "place": vars(place)}
    return _common(place) | process.in_own_process(__name__, order, place.threads)


def perform(run: Run, place: Place) -> Row:
    """Do a run in this process, with the arguments and result of `in_own_process`."""
    return _common(place) | process.or_error(lambda: _perform(run, place))


def _common(place: Place) -> Row:
    return {"device": place.device, "threads": place.threads, "version": process.package_version()}


def _perform(run: Run, place: Place) -> Row:
    from benchmarks.figures import peak_gigabytes
    from benchmarks.paper import data, protocol
    from benchmarks.paper.methods.registry import METHODS
    from benchmarks.paper.profiles import PROFILES
    from benchmarks.paper.scores import score

    # The method is loaded before the clock starts: its imports are not part of its time.
    impute, profile = METHODS[run.method].load(), PROFILES[run.profile]
    budget = dataclasses.replace(profile.budget_for(run.dataset), device=place.device, threads=place.threads)
    table = data.load(run.dataset, data.folder(place.data_dir), profile.rows)
    train, test, truth = protocol.split(table, run.rate / 100, run.split)
    started = time.perf_counter()
    imputed = impute(train, test, run.split, budget)
    seconds = time.perf_counter() - started
    peak = peak_gigabytes()
    scores = dataclasses.asdict(score(imputed, train, test, truth))
    return {
        "n_train": len(train),
        "n_test": len(test),
        "n_missing": int(test.isna().to_numpy().sum()),
        **{name: None if math.isnan(number) else number for name, number in scores.items()},
        "draws": None if imputed.draws is None else len(next(iter(imputed.draws.values()))),
        "seconds": round(seconds, 3),
        "peak_gigabytes": round(peak, 3),
        "gpu_gigabytes": _gpu_gigabytes(),
    }


def _gpu_gigabytes() -> float | None:
    """Return the peak memory of tensors on a GPU, or None if no GPU was used."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return round(torch.cuda.max_memory_allocated() / 2**30, 3)


def _perform_order(order: Mapping[str, Any]) -> Row:
    return perform(Run(**order["run"]), Place(**order["place"]))


if __name__ == "__main__":
    process.serve(_perform_order, *sys.argv[1:])
