"""A queue of runs that continues where a file of results stops, and the options of its commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TypeVar

from tqdm import tqdm

from benchmarks import command
from benchmarks.runs import provenance
from benchmarks.runs.process import Row
from benchmarks.runs.results import Layout, Results
from pyro_mgp.cli.messages import count

RunT = TypeVar("RunT")


def do_all(
    args: argparse.Namespace,
    runs: Sequence[RunT],
    layout: Layout[RunT],
    do: Callable[[RunT], Row],
    prepare: Callable[[Sequence[RunT]], None] = lambda _: None,
) -> None:
    """Do the runs that the file of results lacks, sort it, and say how many it has and how many failed.

    Progress is shown on terminals only.

    Args:
        args: Values of the options of `add_options`.
        runs: Runs to do.
        layout: Columns of the file, among them `method`, the part of the results that a run belongs to.
        do: Function that does a run and returns its row, from any thread.
        prepare: Function that is called with the remaining runs before the first, to report errors at once.

    Raises:
        ValueError: If the file holds other results.
    """
    out, wanted = Path(args.out), dict.fromkeys(runs)
    try:
        results = Results(out, layout)
        if args.retry_failed:
            results.sort(keep_failed=False)
        done = results.done()
        remaining = [each for each in wanted if each not in done]
        prepare(remaining)
        with tqdm(total=len(wanted), initial=len(wanted) - len(remaining), unit="run", disable=None) as bar:
            for each, row in _in_any_order(remaining, do, args.jobs):
                results.append(each, row)
                provenance.add(out, [str(vars(each)["method"])])
                bar.set_postfix_str(str(each), refresh=False)
                bar.update()
                if row.get("error"):
                    command.say(f"{each} failed: {row['error']}", sys.stderr)
        results.sort()
    except KeyboardInterrupt as stop:
        stop.add_note(f"the same command continues from the results in {args.out}")
        raise
    failed = len(wanted.keys() - results.done(count_failed=False))
    ended = f"{count(len(wanted) - failed, 'run')} in {args.out}"
    command.say(ended if not failed else f"{ended}, and {failed} that failed: --retry-failed repeats them")


def _in_any_order(runs: Sequence[RunT], do: Callable[[RunT], Row], jobs: int) -> Iterable[tuple[RunT, Row]]:
    """Do some runs at a time; yield each run and its row when it is done."""
    with ThreadPoolExecutor(jobs) as pool:
        waiting: dict[Future[Row], RunT] = {}
        try:
            for each in runs:
                waiting[pool.submit(do, each)] = each
                if len(waiting) >= jobs:
                    yield from _finished(waiting)
            while waiting:
                yield from _finished(waiting)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _finished(waiting: dict[Future[Row], RunT]) -> Iterable[tuple[RunT, Row]]:
    """Wait for the next run to end; yield and remove all that have ended."""
    done, _ = wait(waiting, return_when=FIRST_COMPLETED)
    for future in done:
        yield waiting.pop(future), future.result()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command that does runs: `--data-dir`, `-o`, `--jobs` and `--retry-failed`."""
    option = parser.add_argument
    command.add_data_dir(parser, "$PYRO_MGP_DATA; without either they are fetched")
    option("-o", "--out", metavar="FILE", default="results.csv", help="CSV file (default: results.csv)")
    option("--jobs", metavar="N", type=command.at_least(1), default=1, help="simultaneous runs (default: 1)")
    option("--retry-failed", action="store_true", help="repeat runs that failed before")
