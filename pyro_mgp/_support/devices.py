"""Choice of the torch device, and ways to fit tables and computations into its memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

# Rows from which "auto" takes a GPU. An NVIDIA H200 took 9 s for 10,000 rows of 20 columns (one CPU core: 33)
# and 18 s for 100,000 (58), but over 50 s for a joint density of 2,500 rows of 6 columns (14): starting its
# many small operations takes longer than the CPU takes for their arithmetic. See `benchmarks/speed`.
ROWS_FOR_GPU = 10_000
# A table stays on a GPU whose free memory holds this many copies of it.
_COPIES = 8


def resolve_device(name: str, n_rows: int) -> torch.device:
    """Return the torch device with a name; "auto" is a CUDA GPU if there is one and the rows are many."""
    if name == "auto":
        name = "cuda" if n_rows >= ROWS_FOR_GPU and torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        expected = "'auto', 'cpu' or another one of this machine"
        raise ValueError(f"device must be {expected}, got {name!r}") from error


def home(values: Tensor, device: torch.device) -> torch.device:
    """Return the device to keep a training table on: the GPU if it has ample memory, else the CPU."""
    if device.type != "cuda":
        return device
    free, _ = torch.cuda.mem_get_info(device)
    return device if _COPIES * values.nbytes < free else torch.device("cpu")


def is_known_empty(mask: Tensor) -> bool:
    """Return whether no entry of a mask is set; False on a GPU, for which the host would have to wait."""
    return not mask.is_cuda and not bool(mask.any())


def rows_if_known(mask: Tensor) -> Tensor | None:
    """Return the rows `[k]` in which a mask `[n]` is set; None on a GPU, for which the host would wait."""
    return None if mask.is_cuda else mask.nonzero()[:, 0]


def in_halves(rows: slice, work: Callable[[slice], T]) -> Iterator[tuple[slice, T]]:
    """Apply a function to rows, and to each half of them in turn when a GPU runs out of memory.

    Yields successive parts of the rows, each with its result, which must not depend on the other rows. Raises
    a torch.OutOfMemoryError if memory does not suffice for a single row.
    """
    try:
        done = work(rows)
    except torch.OutOfMemoryError:
        if rows.stop - rows.start <= 1:
            raise
    else:
        yield rows, done
        return
    # Outside of the handler, because the traceback holds references to the tensors that did not fit.
    torch.cuda.empty_cache()
    middle = (rows.start + rows.stop) // 2
    yield from in_halves(slice(rows.start, middle), work)
    yield from in_halves(slice(middle, rows.stop), work)
