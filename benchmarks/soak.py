"""Look for memory leaks: fit and impute many small tables in one process and report the growth of memory.

Memory of imports, caches and pools stabilises within the first 50 rounds; afterwards it should stay constant.
Linux only.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from benchmarks import command
from benchmarks.generated import mixed
from pyro_mgp.cli.messages import count
from pyro_mgp.imputer import MGPImputer

SETTLED = 50
"""Number of rounds after which memory should be constant."""


def memory() -> float:
    """Return the private resident memory of this process in MB.

    Raises:
        OSError: On other systems.
    """
    lines = Path("/proc/self/smaps_rollup").read_text("ascii").splitlines()
    private = [line.split()[1] for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:"))]
    return sum(map(int, private)) / 1024


def soak(rounds: int, n_rows: int = 60, max_steps: int = 5) -> Iterator[dict[str, float]]:
    """Fit and impute a new table in every round.

    Args:
        rounds: Number of rounds.
        n_rows: Rows of each table.
        max_steps: Training steps of each fit.

    Yields:
        Per round its number `round`, the memory after it `memory_MB`, and its `seconds`.
    """
    for number in range(1, rounds + 1):
        started = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about random tables
            imputer = MGPImputer(random_state=number, max_steps=max_steps, n_sweeps=2, progress=False)
            draws = imputer.fit(mixed(n_rows, number)).impute(m=2)
        for completed in draws:
            completed.isna().sum()
        del imputer, draws
        gc.collect()
        yield {"round": number, "memory_MB": memory(), "seconds": time.perf_counter() - started}


def growth(figures: pd.DataFrame) -> float:
    """Return the relative growth of memory after the first `SETTLED` rounds, from means over ten rounds."""
    stable = figures["memory_MB"][(figures["round"] > SETTLED - 10) & (figures["round"] <= SETTLED)].mean()
    return float(figures["memory_MB"].tail(10).mean() / stable - 1)


def main(argv: Sequence[str] | None = None) -> int:
    """Fit and impute in many rounds, and print memory and its growth; return the exit status."""
    parser = command.new_parser("soak", __doc__)
    parser.add_argument(
        "--rounds", metavar="N", type=command.at_least(61), default=500, help="number of fits (default: 500)"
    )
    command.add_out(parser, "memory and seconds of each round")
    return command.execute(parser, argv, _run)


def _run(args: argparse.Namespace) -> None:
    figures = pd.DataFrame(soak(args.rounds))
    shown = figures.iloc[SETTLED - 1 :: SETTLED]
    for fits, megabytes in zip(shown["round"].tolist(), shown["memory_MB"].tolist(), strict=True):
        command.say(f"after {count(fits, 'fit'):<10} {megabytes:8.1f} MB")
    command.say(f"memory grew by {growth(figures):.1%} after the first {SETTLED}")
    if args.out is not None:
        figures.to_csv(args.out, index=False)


if __name__ == "__main__":
    sys.exit(main())
