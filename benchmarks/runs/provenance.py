"""Which commit and which processor a file of results comes from.

Beside `results.csv` lies `results.provenance.csv`, to which a command adds a line for each part of the
results that it measures: a design and a method, or a method.
"""

from __future__ import annotations

import csv
import os
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from benchmarks.runs.process import package_version
from pyro_mgp.storage.atomic import atomic_file


@dataclass(frozen=True)
class Origin:
    """Where and when a part of a file of results was measured."""

    part: str
    """Design and method, or method."""
    commit: str
    """Abbreviated hash, with "+" if files were changed since; the version of the package outside a clone."""
    date: str
    """Day of the measurement, or of the commit that recorded it."""
    processor: str
    """Name of the processor, and how many of its cores could be used."""


@cache
def commit() -> str:
    """Return the abbreviated hash of the checked-out commit, or the package's version outside a clone."""
    folder = str(Path(__file__).parents[2])
    try:
        head, changed = (
            subprocess.run(["git", "-C", folder, *order], capture_output=True, text=True, check=True).stdout
            for order in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--", "pyro_mgp"])
        )
    except (OSError, subprocess.CalledProcessError):
        return package_version()
    return head.strip() + ("+" if changed.strip() else "")


@cache
def processor() -> str:
    """Return the name of the processor and the number of cores that this process may use."""
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return f"{names[0] if names else platform.processor() or platform.machine()}, {cores} cores"


def beside(results: Path) -> Path:
    """Return the path of the file that says where `results` comes from."""
    return results.with_suffix(".provenance.csv")


def add(results: Path, parts: Iterable[str]) -> None:
    """Say that parts of a file of results were measured here and now.

    Args:
        results: CSV file of results.
        parts: Parts to which rows were added, such as names of methods.
    """
    today = datetime.now(UTC).date().isoformat()
    here = [Origin(part, commit(), today, processor()) for part in dict.fromkeys(parts)]
    known = read(results)
    write(results, [*known, *(each for each in here if each not in known)])


def read(results: Path) -> list[Origin]:
    """Return where the parts of a file of results come from; an empty list if nothing says so."""
    path = beside(results)
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [Origin(**row) for row in csv.DictReader(file)]


def write(results: Path, origins: Iterable[Origin]) -> None:
    """Replace the file that says where a file of results comes from."""
    with atomic_file(beside(results)) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(field.name for field in fields(Origin))
        lines.writerows(astuple(each) for each in origins)


def describe(origins: Iterable[Origin]) -> str:
    """Return commits, days and processors of some parts as one sentence in Markdown."""
    origins = list(origins)
    commits = ", ".join(dict.fromkeys(f"`{each.commit}` ({each.date})" for each in origins))
    processors = "; ".join(dict.fromkeys(each.processor for each in origins))
    return f"commit {commits}; {processors}"
