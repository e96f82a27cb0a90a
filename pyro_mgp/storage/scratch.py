"""Storage of training tables: in memory, or in temporary files that are mapped into memory.

The operating system caches pages of a mapped file and drops them when memory is short. The files have no
name: they vanish when nothing refers to them any more, or when the process ends for any reason.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

# Rows that are processed at a time where a table may lie on the disk; a multiple of the rows that the initial
# fill processes at a time, unless the table is wide.
_PIECE = 64_512


def pieces(n_rows: int) -> Iterator[slice]:
    """Yield slices of rows that together cover a table, to process one piece at a time."""
    return (slice(start, min(start + _PIECE, n_rows)) for start in range(0, n_rows, _PIECE))


class Scratch:
    """Allocator of tensors in unnamed temporary files, in a given folder or that of the system."""

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = Path(tempfile.gettempdir() if folder is None else folder)
        if not self.folder.is_dir():
            raise ValueError(f"scratch: there is no folder {str(self.folder)!r} to put temporary files into")

    def check_room(self, n_bytes: int) -> None:
        """Raise an OSError if fewer than `n_bytes` are free on the disk."""
        free = shutil.disk_usage(self.folder).free
        if free < n_bytes:
            raise self._no_room(n_bytes, f"{free / 1e9:.1f} GB are free")

    def empty(self, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
        """Return a tensor of zeros in a temporary file; raise an OSError if the disk has no room for it."""
        kind = torch.empty(0, dtype=dtype).numpy().dtype
        n_bytes = int(np.prod(shape)) * kind.itemsize
        if n_bytes == 0:
            return torch.zeros(shape, dtype=dtype)
        with tempfile.TemporaryFile(dir=self.folder) as file:
            self._reserve(file, n_bytes)
            return torch.from_numpy(np.memmap(file, kind, "r+", shape=shape))

    def like(self, table: Tensor) -> Tensor:
        """Return a tensor of the table's shape and dtype in a temporary file, or on the table's GPU."""
        if table.device.type != "cpu":
            return torch.empty_like(table)
        return self.empty(*table.shape, dtype=table.dtype)

    def _reserve(self, file: IO[bytes], n_bytes: int) -> None:
        """Allocate the disk space now: writing to a mapped file on a full disk would kill the process."""
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, n_bytes)
            else:
                file.truncate(n_bytes)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
                raise
            raise self._no_room(n_bytes, str(error.strerror)) from error

    def _no_room(self, n_bytes: int, why: str) -> OSError:
        advice = "free some space, or pass scratch=... with a folder on a larger disk"
        message = f"no room for {n_bytes / 1e9:.1f} GB of temporary files ({why}): {advice}"
        return OSError(errno.ENOSPC, message, str(self.folder))
