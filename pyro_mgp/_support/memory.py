"""Lower bounds on the memory of a fit or an imputation, and how much memory is available.

The operating system kills a process that takes too much memory without a message. Work is therefore
refused, with the figures, if the tensors that dominate large tables do not fit. The real peak is higher
(`benchmarks/memory.py` measures both): accepted work can still run out of memory, refused work would have.
"""

from __future__ import annotations

import os
from pathlib import Path

_FLOAT, _BOOL = 8, 1


def of_fit(n_rows: int, n_columns: int, n_links: int, n_inducing: int) -> int:
    """Return a lower bound on the bytes that a fit allocates after the table has been encoded.

    It counts the completed table, masks of its training and held-out cells, and covariance factors of q(u).
    """
    return (_FLOAT + 2 * _BOOL) * n_rows * n_columns + _FLOAT * n_links * n_inducing**2


def of_impute(n_missing: int, m: int) -> int:
    """Return the bytes that m draws of each missing cell take, at 8 bytes per draw."""
    return _FLOAT * m * n_missing


def available() -> int | None:
    """Return the bytes that machine, container and address space leave to allocate, or None if unknown."""
    found = (_free_memory(), _left_in_container(), _left_of_address_space())
    return min((number for number in found if number is not None), default=None)


def check(needed: int, what: str, advice: str) -> None:
    """Raise a ValueError if work needs more bytes of memory than are available."""
    free = available()
    if free is not None and needed > free:
        wanted = f"{what} needs at least {_shown(needed)} of memory"
        raise ValueError(f"{wanted}, but only {_shown(free)} are available: {advice}")


def _shown(number: int) -> str:
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{number / 1e6:.1f} MB"


def _free_memory() -> int | None:
    """Return the bytes that the machine can give without swapping, according to the Linux kernel."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:  # not Linux
        return None
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return 1024 * kilobytes[0] if kilobytes else None


def _left_in_container(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the bytes that the limit of a container leaves; cached files count as free."""
    old = root / "memory"
    for limit, used, cached in (
        (root / "memory.max", root / "memory.current", "inactive_file"),
        (old / "memory.limit_in_bytes", old / "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            most, now = limit.read_text("ascii").strip(), int(used.read_text("ascii"))
            stat = dict(map(str.split, limit.with_name("memory.stat").read_text("ascii").splitlines()))
        except OSError:  # no control groups, or those of the other version
            continue
        if most != "max":
            return max(0, int(most) - now + int(stat.get(cached, 0)))
    return None


def _left_of_address_space() -> int | None:
    """Return the bytes of address space that `ulimit -v` leaves."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    except OSError:
        return limit
    return max(0, limit - pages * os.sysconf("SC_PAGE_SIZE"))
