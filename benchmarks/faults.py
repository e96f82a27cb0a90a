"""Kill `pyro-mgp fit` and `pyro-mgp impute` at random moments, resume them, and compare all files.

A table is fitted and imputed without interruption. Then the same commands are started repeatedly, killed
with SIGKILL after a random time, and run again with --resume: the files must be equal byte by byte. The
output folder is watched meanwhile: it must not become visible before it is complete.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pandas as pd

import pyro_mgp.imputer  # noqa: F401 (forked processes inherit it)
from benchmarks import command
from pyro_mgp import cli

# Seconds between two looks at the output folder.
_LOOK_EVERY = 0.002


@dataclass(frozen=True)
class Kill:
    """Outcome of a run that was killed and resumed."""

    command: str
    """Name of the command, "fit" or "impute"."""
    seconds: float
    """Time of the kill, in seconds after the table had been read."""
    left: str
    """Names in the hidden folder that the killed run left, "all" if it had finished, or "nothing"."""
    visible: str
    """Name of the output folder if it was visible while incomplete; empty if all is well."""
    status: int | None
    """Exit status of the resumed run."""
    different: str
    """Names of files that differ from those of the uninterrupted run; empty if all is well."""

    @property
    def good(self) -> bool:
        """True if the resumed run succeeded with equal files and no incomplete output was visible."""
        return not self.visible and self.status == 0 and not self.different


def run(folder: Path, kills: int, *, rows: int = 3000, steps: int = 60, seed: int = 0) -> Iterator[Kill]:
    """Fit and impute in turn, each killed at a random moment and resumed.

    Args:
        folder: Empty folder to work in.
        kills: Number of runs to kill.
        rows: Rows of the table.
        steps: Most training steps of a fit.
        seed: Seed of the table and of the moments.

    Raises:
        RuntimeError: If an uninterrupted command fails.
    """
    generator = np.random.default_rng(seed)
    table = folder / "table.csv"
    _table(rows, generator).to_csv(table, index=False)
    commands = {
        "fit": ["fit", str(table), "--steps", str(steps), "--checkpoint-every", "0", "--quiet"],
        "impute": ["impute", str(table), "-m", "10", "--checkpoint-every", "0", "--quiet"],
    }
    times = {name: _timed(argv, folder / f"{name}_complete") for name, argv in commands.items()}
    for k in range(kills):
        name = list(commands)[k % len(commands)]
        out, expected = folder / f"{name}_{k}", folder / f"{name}_complete"
        yield kill(commands[name], out, expected, generator.uniform(0, times[name]))


def kill(argv: Sequence[str], out: Path, expected: Path, after: float) -> Kill:
    """Start a command, kill it, resume it, and compare its files with those of an uninterrupted run.

    Args:
        argv: The command, without its output option.
        out: Output folder of the command.
        expected: Output folder of the uninterrupted run.
        after: Seconds until the kill, counted from when the table has been read.
    """
    visible = _killed(argv, out, expected, after)
    partial = _partial(out)
    left = (
        ", ".join(sorted(os.listdir(partial))) if partial.exists() else "all" if out.exists() else "nothing"
    )
    again = _start([*argv, "--resume"], out)
    visible |= _watched(again, out, expected)
    again.join()
    different = ", ".join(differences(out, expected)) if out.exists() else "everything"
    return Kill(argv[0], after, left, ", ".join(sorted(visible)), again.exitcode, different)


def _table(rows: int, generator: np.random.Generator) -> pd.DataFrame:
    """Return a table of dependent numbers, counts and categories with 15 % missing cells."""
    latent = generator.standard_normal((rows, 2))
    columns = np.sin(latent @ generator.standard_normal((2, 6))) + 0.2 * generator.standard_normal((rows, 6))
    frame = pd.DataFrame(columns.round(4), columns=list("abcdef"))
    frame["n"] = generator.poisson(np.exp(latent[:, 0] / 2))
    frame["kind"] = np.where(latent[:, 1] > 0.5, "high", np.where(latent[:, 0] > 0, "mid", "low"))
    holes = generator.random(frame.shape) < 0.15
    holes[:, 0] = False
    return frame.mask(holes)


def _partial(out: Path) -> Path:
    """Return the hidden folder in which a command works until its output is complete."""
    return out.with_name(f".{out.name}.partial")


def _start(argv: Sequence[str], out: Path) -> BaseProcess:
    """Start a command in a forked process, which needs no imports."""
    process = multiprocessing.get_context("fork").Process(target=_run_cli, args=([*argv, "-o", str(out)],))
    process.start()
    return process


def _run_cli(argv: Sequence[str]) -> None:
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)
    sys.exit(cli.main(argv))


def _started(argv: Sequence[str], out: Path) -> BaseProcess:
    """Start a command and wait until it has read the table; a kill before that would lose nothing."""
    process = _start(argv, out)
    while process.is_alive() and not _partial(out).exists():
        time.sleep(_LOOK_EVERY)
    return process


def _timed(argv: Sequence[str], out: Path) -> float:
    """Return the seconds that a command takes after it has read the table."""
    process, started = _started(argv, out), time.perf_counter()
    process.join()
    if process.exitcode != 0:
        raise RuntimeError(f"{' '.join(argv)} ended with status {process.exitcode}")
    return time.perf_counter() - started


def _killed(argv: Sequence[str], out: Path, expected: Path, after: float) -> set[str]:
    """Run a command until it is killed; return the name of its output if it was visible while incomplete."""
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
    """Return the name of the output folder if it exists but is incomplete."""
    complete = not out.exists() or _names(out) == _names(expected)
    return set() if complete else {out.name}


def _names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def differences(out: Path, expected: Path) -> list[str]:
    """Return the names of files that differ between two folders, apart from the seconds of a fit."""
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


def main(argv: Sequence[str] | None = None) -> int:
    """Kill and resume runs, and print the outcome of each; return the exit status."""
    parser = command.new_parser("faults", __doc__)
    option, at_least = parser.add_argument, command.at_least
    option("--kills", metavar="N", type=at_least(1), default=30, help="number of kills (default: 30)")
    option("--rows", metavar="N", type=at_least(50), default=3000, help="rows of the table (default: 3000)")
    option("--seed", metavar="N", type=at_least(0), default=0, help="seed of table and moments (default: 0)")
    return command.execute(parser, argv, _run)


def _run(args: argparse.Namespace) -> None:
    good = 0
    with tempfile.TemporaryDirectory() as folder:
        for k, each in enumerate(run(Path(folder), args.kills, rows=args.rows, seed=args.seed), 1):
            good += each.good
            seen = f"visible while incomplete: {each.visible}; " if each.visible else ""
            end = "equal files" if each.good else f"status {each.status}; different files: {each.different}"
            command.say(
                f"{k:3} {each.command:<7} killed after {each.seconds:5.1f} s, left {each.left}; {seen}{end}"
            )
    command.say(f"{good} of {args.kills} resumed to equal files, with no incomplete output visible")
    if good < args.kills:
        raise ValueError(f"{args.kills - good} of {args.kills} runs did not resume to equal files")


if __name__ == "__main__":
    sys.exit(main())
