"""Runs of the command line that are killed at random moments, and what is left of them.

A table is fitted and imputed without a break. Then the same commands are started again and again, killed
(SIGKILL, which no program can handle) after a random time, and run once more with --resume: the files must
be the same, byte by byte. Meanwhile the folder is watched: a name that is not hidden must not appear before
everything in it is there.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pandas as pd

import pyro_mgp.imputer  # noqa: F401 (so that the processes started here have it)
from pyro_mgp.cli import main

# How often the folder is looked at, in seconds.
_LOOK_EVERY = 0.002


@dataclass(frozen=True)
class Kill:
    """One run that was killed and gone on with."""

    command: str
    """"fit" or "impute"."""
    seconds: float
    """When it was killed, after it had read the table."""
    left: str
    """What it left: names in its hidden folder, or "all"."""
    visible: str
    """Names that appeared before they were whole; none should."""
    status: int | None
    """Exit status of the run that went on."""
    different: str
    """Names of files that differ from those of the run without a break; none should."""

    @property
    def good(self) -> bool:
        """Whether nothing was lost and nothing was seen."""
        return not self.visible and self.status == 0 and not self.different


def run(folder: Path, kills: int, *, rows: int = 3000, seed: int = 0) -> Iterator[Kill]:
    """Fit and impute in turn, killed at random moments of the time that they take.

    Args:
        folder: Where to work; empty.
        kills: How many.
        rows: Of the table.
        seed: Of the table and of the moments.
    """
    generator = np.random.default_rng(seed)
    table = folder / "table.csv"
    _table(rows, generator).to_csv(table, index=False)
    commands = {
        "fit": ["fit", str(table), "--steps", "60", "--checkpoint-every", "0", "--quiet"],
        "impute": ["impute", str(table), "-m", "10", "--checkpoint-every", "0", "--quiet"],
    }
    times = {name: _timed(argv, folder / f"{name}_whole") for name, argv in commands.items()}
    for k in range(kills):
        name = list(commands)[k % len(commands)]
        out, expected = folder / f"{name}_{k}", folder / f"{name}_whole"
        yield kill(commands[name], out, expected, generator.uniform(0, times[name]))


def kill(argv: Sequence[str], out: Path, expected: Path, after: float) -> Kill:
    """Start a command, kill it, go on, and compare.

    Args:
        argv: The command, without its output.
        out: Folder for it to write.
        expected: What a run without a break wrote.
        after: Seconds until it is killed, once it has read the table.
    """
    visible = _killed(argv, out, expected, after)
    hidden = _hidden(out)
    left = ", ".join(sorted(os.listdir(hidden))) if hidden.exists() else "all" if out.exists() else "nothing"
    again = _start([*argv, "--resume"], out)
    visible |= _watched(again, out, expected)
    again.join()
    different = ", ".join(differences(out, expected)) if out.exists() else "everything"
    return Kill(argv[0], after, left, ", ".join(sorted(visible)), again.exitcode, different)


def _table(rows: int, generator: np.random.Generator) -> pd.DataFrame:
    """Numbers, counts and categories that depend on each other, with holes."""
    latent = generator.standard_normal((rows, 2))
    columns = np.sin(latent @ generator.standard_normal((2, 6))) + 0.2 * generator.standard_normal((rows, 6))
    frame = pd.DataFrame(columns.round(4), columns=list("abcdef"))
    frame["n"] = generator.poisson(np.exp(latent[:, 0] / 2))
    frame["kind"] = np.where(latent[:, 1] > 0.5, "high", np.where(latent[:, 0] > 0, "mid", "low"))
    holes = generator.random(frame.shape) < 0.15
    holes[:, 0] = False
    return frame.mask(holes)


def _hidden(out: Path) -> Path:
    return out.with_name(f".{out.name}.partial")


def _start(argv: Sequence[str], out: Path) -> BaseProcess:
    """The command in a process of its own, which need not import anything again."""
    process = multiprocessing.get_context("fork").Process(target=_run, args=([*argv, "-o", str(out)],))
    process.start()
    return process


def _run(argv: Sequence[str]) -> None:
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)
    sys.exit(main(argv))


def _started(argv: Sequence[str], out: Path) -> BaseProcess:
    """The command, once it has read the table: before that there is nothing to lose."""
    process = _start(argv, out)
    while process.is_alive() and not _hidden(out).exists():
        time.sleep(_LOOK_EVERY)
    return process


def _timed(argv: Sequence[str], out: Path) -> float:
    """Seconds that a command works."""
    process, started = _started(argv, out), time.perf_counter()
    process.join()
    if process.exitcode != 0:
        raise RuntimeError(f"{' '.join(argv)} ended with status {process.exitcode}")
    return time.perf_counter() - started


def _killed(argv: Sequence[str], out: Path, expected: Path, after: float) -> set[str]:
    """What became visible too early until the command was killed."""
    process = _started(argv, out)
    visible = _watched(process, out, expected, time.perf_counter() + after)
    process.kill()
    process.join()
    return visible | _unfinished(out, expected)


def _watched(process: BaseProcess, out: Path, expected: Path, until: float = np.inf) -> set[str]:
    visible: set[str] = set()
    while process.is_alive() and time.perf_counter() < until:
        visible |= _unfinished(out, expected)
        time.sleep(_LOOK_EVERY)
    return visible


def _unfinished(out: Path, expected: Path) -> set[str]:
    """The name of the output, if it is there but not whole."""
    whole = not out.exists() or _names(out) == _names(expected)
    return set() if whole else {out.name}


def _names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def differences(out: Path, expected: Path) -> list[str]:
    """Names of files that are not the same in both folders; how many seconds a fit took does not count."""
    names = _names(out) | _names(expected)
    return sorted(name for name in names if _content(out / name) != _content(expected / name))


def _content(path: Path) -> object:
    if not path.is_file():
        return path.is_dir()
    if path.name != "header.json":
        return path.read_bytes()
    header = json.loads(path.read_text("utf-8"))
    header.get("history", {}).pop("seconds", None)
    header.pop("checksum", None)
    return header
