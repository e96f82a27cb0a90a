"""Execute one run of the experiments in a process of its own, which isolates its memory and its failures.

    python -m benchmarks.paper.cell ORDER OUT

ORDER is JSON; the row of results is written to the file OUT as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.paper.results import Run

# Environment variables by which libraries for linear algebra and trees limit their threads.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True)
class Place:
    """Data folder and compute resources of a run."""

    data_dir: str | None = None
    """Folder with the public tables; None fetches them."""
    device: str = "cpu"
    """Torch device of the methods that use one."""
    threads: int = 1
    """Number of threads of a run."""


def in_own_process(run: Run, place: Place) -> dict[str, Any]:
    """Do a run in a new process.

    Args:
        run: Run to do.
        place: Data folder, device and threads.

    Returns:
        Row for `Results.append`; if the run failed, its `error` holds the reason.
    """
    order = json.dumps({"run": vars(run), "place": vars(place)})
    environment = os.environ | dict.fromkeys(_THREADS, str(place.threads))
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "row.json"
        command = [sys.executable, "-m", __name__, order, str(out)]
        # Its standard input stays empty; when this process ends the pipe closes, and the child ends too.
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
        ) as process:
            try:
                messages = process.stderr.read() if process.stderr else b""
                process.wait()
            except BaseException:
                process.kill()
                raise
        if out.exists():
            row: dict[str, Any] = json.loads(out.read_text("utf-8"))
            return row
    last = messages.decode(errors="replace").strip().splitlines()[-1:] or ["it printed no message"]
    end = f"signal {-process.returncode}" if process.returncode < 0 else f"status {process.returncode}"
    return _common(place) | {"error": f"the process ended with {end}: {last[0]}"}


def perform(run: Run, place: Place) -> dict[str, Any]:
    """Do a run in this process, with the arguments and result of `in_own_process`."""
    try:
        return _common(place) | _perform(run, place)
    except Exception as error:
        traceback.print_exc()
        return _common(place) | {"error": f"{type(error).__name__}: {error}"}


def _common(place: Place) -> dict[str, Any]:
    return {"device": place.device, "threads": place.threads, "version": version("pyro_mgp")}


def _perform(run: Run, place: Place) -> dict[str, Any]:
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


def _end_with_parent() -> None:
    """End this process when its parent has ended, even if the parent was killed."""

    def watch() -> None:
        sys.stdin.buffer.read()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _main(order: str, out: str) -> None:
    _end_with_parent()
    parsed = json.loads(order)
    row = perform(Run(**parsed["run"]), Place(**parsed["place"]))
    partial = Path(f"{out}.part")
    partial.write_text(json.dumps(row), "utf-8")
    partial.replace(out)


if __name__ == "__main__":
    _main(*sys.argv[1:])
