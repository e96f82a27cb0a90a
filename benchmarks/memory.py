"""Compare the peak memory of fits and imputations with the lower bound by which work is refused.

Tables of several sizes are fitted and imputed, each in a process of its own that has fitted a small table
before: memory that libraries take on first use is not counted. Linux only.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import command
from benchmarks.figures import Row, peak_gigabytes, resident_gigabytes
from benchmarks.generated import numbers
from pyro_mgp._support import memory
from pyro_mgp.imputer import MGPImputer
from pyro_mgp.settings import with_engine

_BY_GRADIENT: dict[str, Any] = {"backpropagate": True}
Case = tuple[int, int, int, dict[str, Any]]
"""Rows, columns, imputations, and settings that differ from the defaults."""

CASES: list[Case] = [
    (2_000, 5, 20, {}),
    (20_000, 5, 20, {}),
    (200_000, 5, 20, {}),
    (200_000, 5, 5, {"batch_size": 20_000}),
    (20_000, 20, 20, {}),
    (100_000, 20, 5, {}),
    (1_000_000, 10, 2, {}),
    (2_000, 50, 20, {}),
    (3_000, 120, 5, {}),
    (2_000, 10, 5, {"n_neighbors": 100}),
    (20_000, 10, 5, {"n_inducing": 400}),
    (20_000, 10, 2, {"n_inducing": 1000}),
    (5_000, 10, 5, {**_BY_GRADIENT, "n_paths": 5}),
    (5_000, 10, 2, {**_BY_GRADIENT, "n_paths": 20, "batch_size": 1000}),
]

"""Sizes of tables and settings that are measured."""

# Runs in processes of their own.
_RUN = "from benchmarks import memory; memory.{what}({folder!r}, {n_rows}, {n_columns}, {m}, {settings!r})"


def peak_of(work: Callable[[], object]) -> float:
    """Return the peak memory of a function call in MB, above the memory held before it. Linux only."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = resident_gigabytes()
    work()
    return 1000 * (peak_gigabytes() - before)


def fit(folder: str, n_rows: int, n_columns: int, m: int, settings: dict[str, Any]) -> None:
    """Fit a table, save the imputer, and print peak memory and its lower bound in MB as JSON."""
    warnings.simplefilter("ignore")
    imputer = MGPImputer(**with_engine({"random_state": 0, "progress": False, "max_steps": 5, **settings}))
    MGPImputer(random_state=0, progress=False, max_steps=2, inputs="others").fit(numbers(400, 3)).impute(m=2)
    frame = numbers(n_rows, n_columns)
    megabytes = peak_of(lambda: imputer.fit(frame))
    imputer.save(folder)
    bound = memory.of_fit(n_rows, n_columns, n_columns, min(imputer.n_inducing or 100, n_rows))
    print(json.dumps({"peak": megabytes, "bound": bound / 1e6}))


def impute(folder: str, n_rows: int, n_columns: int, m: int, settings: dict[str, Any]) -> None:
    """Load an imputer, impute a table, and print peak memory and its lower bound in MB as JSON."""
    warnings.simplefilter("ignore")
    imputer, frame = MGPImputer.load(folder), numbers(n_rows, n_columns)
    imputer.impute(frame[:200], m=1)
    megabytes = peak_of(lambda: imputer.impute(frame, m=m))
    bound = memory.of_impute(int(frame.isna().to_numpy().sum()), m)
    print(json.dumps({"peak": megabytes, "bound": bound / 1e6}))


def measure(cases: Sequence[Case] = CASES) -> Iterator[Row]:
    """Measure the ratio of the lower bound to the actual peak memory of each case."""
    for n_rows, n_columns, m, settings in cases:
        with tempfile.TemporaryDirectory() as parent:
            for what in ("fit", "impute"):
                code = _RUN.format(
                    what=what, folder=f"{parent}/imputer", n_rows=n_rows, n_columns=n_columns, m=m,
                    settings=settings,
                )  # fmt: skip
                done = subprocess.run(
                    [sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True
                )
                found = json.loads(done.stdout)
                shown = f"at least {found['bound']:.1f} MB, {found['peak']:.0f} MB peak"
                name = f"{what}: {n_rows:,} × {n_columns}" + (f", m = {m}" if what == "impute" else "")
                also = ", ".join(f"{key}={value}" for key, value in settings.items())
                ratio = found["bound"] / max(found["peak"], 1.0)
                yield Row(name, ratio, "×", "≤ 1", f"{shown} {also}".strip())


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the figures and optionally write them; return the exit status."""
    parser = command.new_parser("memory", __doc__)
    command.add_out(parser)
    return command.execute(parser, argv, lambda args: command.report(measure(), args.out))


if __name__ == "__main__":
    sys.exit(main())
