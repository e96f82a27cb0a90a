"""Work that does not fit into a GPU's memory, done in halves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

T = TypeVar("T")


def in_halves(rows: slice, work: Callable[[slice], T]) -> Iterator[tuple[slice, T]]:
    """Do some work on rows; where memory does not suffice, on half of them after the other, again and again.

    Args:
        rows: Which, from `start` to `stop`.
        work: What to do with rows; gives the same for each of them, whatever rows stand beside it.

    Yields:
        Rows, in order, and what the work gave for these.

    Raises:
        torch.OutOfMemoryError: If memory does not suffice for one row.

    Example:
        >>> def work(rows: slice) -> int:
        ...     if rows.stop - rows.start > 2:
        ...         raise torch.OutOfMemoryError
        ...     return rows.start
        >>> [start for _, start in in_halves(slice(0, 5), work)]
        [0, 2, 3]
    """
    try:
        done = work(rows)
    except torch.OutOfMemoryError:
        if rows.stop - rows.start <= 1:
            raise
        done = None
    if done is not None:
        yield rows, done
        return
    # Outside of the handler: the traceback holds on to what did not fit.
    torch.cuda.empty_cache()
    middle = (rows.start + rows.stop) // 2
    yield from in_halves(slice(rows.start, middle), work)
    yield from in_halves(slice(middle, rows.stop), work)
