"""Where the tensors of a training table lie: in memory, or in files without a name.

A file on the disk that is mapped into memory is a tensor like any other; what has been looked at may be kept
by the system, and has to give way when memory is wanted. Such a file has no name: when nothing refers to it
any more, or the process ends in whatever way, it is gone.
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

# Rows that are worked on at a time where a table may lie on the disk; a multiple of what `fill` takes of
# tables that are not wide.
_PIECE = 64_512


def pieces(n_rows: int) -> Iterator[slice]:
    """The rows of a table, piece by piece.

    Example:
        >>> [piece.stop for piece in pieces(100_000)]
        [64512, 100000]
    """
    return (slice(start, min(start + _PIECE, n_rows)) for start in range(0, n_rows, _PIECE))


class Memory:
    """Tensors in memory, on the device of those that they go with."""

    def like(self, table: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor of the table's shape and device, with anything in it; its dtype unless told otherwise."""
        return torch.empty_like(table, dtype=dtype)


class Scratch(Memory):
    """Tensors in files without a name, where a table is that lies in such a file.

    Args:
        folder: Where to put them; None takes the system's folder for temporary files.

    Raises:
        ValueError: If there is no such folder.

    Example:
        >>> table = Scratch().empty(3, 2)
        >>> table.zero_().shape
        torch.Size([3, 2])
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = Path(tempfile.gettempdir() if folder is None else folder)
        if not self.folder.is_dir():
            raise ValueError(f"scratch: there is no folder {str(self.folder)!r} to put temporary files into")

    def check_room(self, n_bytes: int) -> None:
        """That so many bytes are free, before hours of work end for want of them.

        Raises:
            OSError: If they are not.
        """
        free = shutil.disk_usage(self.folder).free
        if free < n_bytes:
            raise self._no_room(n_bytes, f"{free / 1e9:.1f} GB are free")

    def empty(self, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
        """A tensor of zeros.

        Raises:
            OSError: If the disk has no room for it.
        """
        kind = torch.empty(0, dtype=dtype).numpy().dtype
        n_bytes = int(np.prod(shape)) * kind.itemsize
        if n_bytes == 0:
            return torch.zeros(shape, dtype=dtype)
        with tempfile.TemporaryFile(dir=self.folder) as file:
            self._reserve(file, n_bytes)
            return torch.from_numpy(np.memmap(file, kind, "r+", shape=shape))

    def like(self, table: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """See `Memory`; on other devices than the host, tables lie in memory."""
        if table.device.type != "cpu":
            return super().like(table, dtype)
        return self.empty(*table.shape, dtype=dtype or table.dtype)

    def _reserve(self, file: IO[bytes], n_bytes: int) -> None:
        """Make sure of the room now: a mapped file that grows onto a full disk ends the process."""
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
        return OSError(
            errno.ENOSPC,
            f"no room for {n_bytes / 1e9:.1f} GB of temporary files ({why}): free some, or name a folder on "
            "a larger disk, scratch=...",
            str(self.folder),
        )
