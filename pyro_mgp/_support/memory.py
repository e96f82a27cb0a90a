"""Memory: how much a fit or an imputation will take, and how much there is.

A process that takes more than there is gets killed without a word. So the peak is estimated before anything
large is allocated, and what will not fit is refused with the figures. The estimates are sums over what is
allocated, with factors that were measured (see `python -m benchmarks.memory`): fits to 11 tables with
2,000 to 1,000,000 rows and 5 to 120 columns were estimated at 1.9 to 6.3 times what they took, imputations at
1.2 to 23 times: these are upper bounds.
"""

from __future__ import annotations

import os
from pathlib import Path

_FLOAT = 8
# What everything takes: kernels' workspaces, and the starting fill of some rows at once.
_BASE = 80e6
# Copies of the encoded table that a fit makes and holds at its peak.
_FIT_COPIES = 8
# Stacks of matrices over inducing inputs: q(u), kernels, their gradients, and states to go back to.
_FIT_STACKS, _IMPUTE_STACKS = 24, 8
# Intermediate results that gradients through draws hold, per path, row, inducing input and link.
_GRADIENT_COPIES = 9
# Metrics by which a cell has neighbours, and copies of what these are kept by; of this so many numbers at
# most are kept at once.
_METRICS, _NEIGHBOUR_COPIES, _KEPT_AT_ONCE = 4, 2, 2**26
# Rows whose cells a fit looks at to see whether neighbours help, and their share among these.
_REFINED, _HIDDEN = 10_000, 0.1
# Cells of one link that a fit looks at together if they have many neighbours, and copies of what those are
# known by.
_AT_A_TIME, _AT_A_TIME_COPIES = 300, 6
# Matrices of all columns by all columns that the starting fill makes.
_SQUARES = 50
# Rows times imputations that are drawn at once.
_DRAWN_AT_ONCE = 20_000
# Copies of the rows that are drawn at once, most of them of integers that their noise is made of.
_SWEEP_COPIES = 20
# Copies of a table that is completed, and of its draws.
_IMPUTE_COPIES = 6
_DRAW_COPIES = 4


def of_fit(
    n_rows: int, n_columns: int, n_links: int, n_inducing: int, *, batch_size: int = 2000, n_paths: int = 1,
    by_gradient: bool = False, n_neighbors: int = 16,
) -> int:  # fmt: skip
    """Bytes that a fit takes at its peak, besides the table as it came.

    Args:
        n_rows: Rows, N.
        n_columns: Encoded columns, D.
        n_links: Links of the chain, L.
        n_inducing: Inducing inputs per link, M.
        batch_size: Rows in a minibatch, B.
        n_paths: Monte Carlo paths in training, S.
        by_gradient: Whether gradients pass through the draws.
        n_neighbors: Neighbours of a cell, k.

    Example:
        >>> round(of_fit(1_000_000, 10, 10, 100) / 1e9, 1)
        1.0
    """
    table = n_rows * n_columns * _FLOAT
    inducing = n_links * n_inducing**2 * _FLOAT
    rows = n_paths * min(batch_size, n_rows) * n_inducing * n_links * _FLOAT if by_gradient else 0
    near = _of_neighbours(_HIDDEN * min(n_rows, _REFINED) * n_links, n_columns, n_neighbors)
    near += _AT_A_TIME_COPIES * _of_cells(min(n_rows, _AT_A_TIME), n_columns, n_neighbors)
    fill = _SQUARES * n_columns**2 * _FLOAT
    return int(_BASE + _FIT_COPIES * table + _FIT_STACKS * inducing + _GRADIENT_COPIES * rows + near + fill)


def of_impute(
    n_rows: int, n_columns: int, n_missing: int, m: int, n_links: int = 0, n_inducing: int = 0,
    n_neighbors: int = 0,
) -> int:  # fmt: skip
    """Bytes that m imputations take at their peak, besides the table as it came.

    Args:
        n_rows: Rows.
        n_columns: Encoded columns, D.
        n_missing: Missing cells.
        m: Imputations.
        n_links: Links of the chain.
        n_inducing: Inducing inputs per link.
        n_neighbors: Neighbours of a cell.

    Example:
        >>> round(of_impute(1_000_000, 10, 1_000_000, 20) / 1e9, 1)
        1.2
    """
    table = n_rows * n_columns * _FLOAT
    inducing = n_links * n_inducing**2 * _FLOAT
    at_once = n_missing * min(1.0, _DRAWN_AT_ONCE / (m * max(n_rows, 1)))
    drawn = _DRAW_COPIES * m * n_missing * _FLOAT
    near = _of_neighbours(at_once, n_columns, n_neighbors)
    sweep = _SWEEP_COPIES * min(m * n_rows, _DRAWN_AT_ONCE) * n_columns * _FLOAT
    return int(_BASE + _IMPUTE_COPIES * table + _IMPUTE_STACKS * inducing + drawn + near + sweep)


def _of_neighbours(n_cells: float, n_columns: int, n_neighbors: int) -> float:
    """Bytes that neighbours of so many cells take, of which only so many are kept at once."""
    kept = min(_METRICS * _of_cells(n_cells, n_columns, n_neighbors), _KEPT_AT_ONCE * _FLOAT)
    return _NEIGHBOUR_COPIES * kept


def _of_cells(n_cells: float, n_columns: int, n_neighbors: int) -> float:
    """Bytes of what so many cells' neighbours are known by."""
    return n_cells * n_neighbors * (n_neighbors + n_columns) * _FLOAT


def available() -> int | None:
    """Bytes that this process may still take: the least of machine, container and limits; None if unknown."""
    found = [_free_memory(), _left_in_container(), _left_of_address_space()]
    known = [number for number in found if number is not None]
    return min(known) if known else None


def check(needed: int, what: str, advice: str) -> None:
    """Refuse work that would be killed.

    Args:
        needed: Bytes that it takes.
        what: It, as the subject of a sentence.
        advice: What to do about it.

    Raises:
        ValueError: If it does not fit.

    Example:
        >>> check(10**15, "this fit", "take fewer rows")
        Traceback (most recent call last):
        ...
        ValueError: this fit needs about 1000000.0 GB of memory, but only ... are available: take fewer rows
    """
    there = available()
    if there is not None and needed > there:
        raise ValueError(
            f"{what} needs about {_shown(needed)} of memory, but only {_shown(there)} are available: {advice}"
        )


def _shown(number: int) -> str:
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{number / 1e6:.0f} MB"


def _free_memory() -> int | None:
    """What the kernel says can be taken without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:  # not Linux
        return None
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return 1024 * kilobytes[0] if kilobytes else None


def _left_in_container(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """What the control group of a container leaves; cached files count as free."""
    for limit, used, cached in (
        (root / "memory.max", root / "memory.current", "inactive_file"),
        (
            root / "memory/memory.limit_in_bytes",
            root / "memory/memory.usage_in_bytes",
            "total_inactive_file",
        ),
    ):
        try:
            most, now = limit.read_text("ascii").strip(), int(used.read_text("ascii"))
            stat = dict(
                line.split() for line in limit.with_name("memory.stat").read_text("ascii").splitlines()
            )
        except OSError:  # no control groups, or of the other version
            continue
        if most != "max":
            return max(0, int(most) - now + int(stat.get(cached, 0)))
    return None


def _left_of_address_space() -> int | None:
    """What `ulimit -v` leaves."""
    try:
        import resource
    except ImportError:  # not on this system
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    except OSError:
        return limit
    return max(0, limit - pages * os.sysconf("SC_PAGE_SIZE"))
