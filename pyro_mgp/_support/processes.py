"""Training by several processes, each of which works on its share of every minibatch.

All processes hold the same table, the same parameters and the same random numbers. Of each minibatch a
process takes every n-th row: what the bound needs of rows are sums, so these are added up over processes
before q(u) moves, and gradients before Adam does. Rows that were redrawn are put together again, so that
after every step all processes are as one that did all the work alone. Where training has a closed form, two
are so to the last bit: one process adds up in the order of two (`conjugate_rows`).

Start a script of your own with `torchrun`, and fit inside `data_parallel`:

    # torchrun --nproc-per-node 2 script.py
    with data_parallel() as workers:
        imputer = MGPImputer(batch_size=20_000, random_state=0).fit(frame)
    if workers.is_first:
        imputer.save("imputer")

On the command line: `torchrun --nproc-per-node 2 -m pyro_mgp fit TABLE -o OUT --distributed`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Workers:
    """The processes that train together, as one of them sees them; by default it is alone.

    Example:
        >>> Workers(rank=1, size=3).share(7)
        slice(1, None, 3)
    """

    rank: int = 0
    """Number of this process, from 0."""
    size: int = 1
    """How many there are."""

    @property
    def is_first(self) -> bool:
        """Whether this process speaks for all: shows progress, writes files."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        """Whether there are no others."""
        return self.size == 1

    def share(self, n_rows: int) -> slice:
        """Which rows of a minibatch this process works on.

        Raises:
            ValueError: If there are fewer rows than processes.
        """
        if n_rows < self.size:
            raise ValueError(
                f"{n_rows} rows cannot be shared by {self.size} processes: expected at least one row for "
                "each. Take a larger batch_size, or fewer processes"
            )
        return slice(self.rank, None, self.size)

    def parts(self, n_rows: int, device: torch.device) -> list[slice]:
        """The parts of this process's share that are summed up one by one, given the rows of a minibatch.

        One process has two, so that it adds up in the order of two processes. On a GPU it has one: there two
        would take twice the time, and the order of a sum depends on its size anyhow.

        Example:
            >>> Workers().parts(5, torch.device("cpu"))
            [slice(0, None, 2), slice(1, None, 2)]
        """
        n_parts = min(2, n_rows) if self.is_alone and device.type != "cuda" else 1
        return [slice(first, None, n_parts) for first in range(n_parts)]

    def largest_part(self, n_rows: int) -> int:
        """Rows of the largest of all parts of a minibatch, on CPUs; the same number in all processes."""
        return -(-n_rows // max(self.size, 2))

    def total(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Sums over processes, entry by entry, of tensors of one dtype; the same bits for all processes."""
        if self.is_alone:
            return list(parts)
        import torch.distributed as dist

        together = torch.cat([part.detach().flatten() for part in parts])
        dist.all_reduce(together)
        sizes = [part.numel() for part in parts]
        return [whole.view(part.shape) for whole, part in zip(together.split(sizes), parts, strict=True)]

    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace the gradients that parameters hold by their sums over processes."""
        held = [parameter for parameter in parameters if parameter.grad is not None]
        if self.is_alone or not held:
            return
        for parameter, whole in zip(
            held, self.total([p.grad for p in held if p.grad is not None]), strict=True
        ):
            parameter.grad = whole

    def put_together(self, own: Tensor, n_rows: int) -> Tensor:
        """All rows `[n, D]` of a minibatch, given those of this process's share."""
        if self.is_alone:
            return own
        whole = own.new_zeros(n_rows, own.shape[1])
        whole[self.share(n_rows)] = own
        return self.total([whole])[0]

    def agree(self, tensors: Iterable[Tensor]) -> None:
        """Let tensors be those of the first process, in place: other machines may round otherwise."""
        if self.is_alone:
            return
        import torch.distributed as dist

        for tensor in tensors:
            dist.broadcast(tensor.detach(), src=0)

    def agreed(self, number: float) -> float:
        """A number as the first process has it."""
        shared = torch.tensor(number, dtype=torch.float64)
        self.agree([shared])
        return shared.item()

    def agreed_integer(self, number: int) -> int:
        """The same for an integer of 64 bits."""
        shared = torch.tensor(int(number), dtype=torch.int64)
        self.agree([shared])
        return int(shared)

    def largest(self, number: int) -> int:
        """The largest of the numbers that processes have."""
        if self.is_alone:
            return number
        import torch.distributed as dist

        shared = torch.tensor(int(number), dtype=torch.int64)
        dist.all_reduce(shared, dist.ReduceOp.MAX)
        return int(shared)

    def agree_on(self, number: int) -> bool:
        """Whether all processes have the same number."""
        return self.largest(number) == -self.largest(-number)

    def wait(self) -> None:
        """Go on when all processes are here."""
        self.largest(0)

    def check_same(self, keys: Tensor) -> None:
        """That all processes hold the same rows, by their keys `[N]`.

        Raises:
            ValueError: If they do not, in every process.
        """
        if self.is_alone:
            return
        # A sum that wraps around is as good a fingerprint as one that does not.
        own = torch.stack([torch.tensor(len(keys)), keys.cpu().sum()])
        first = own.clone()
        self.agree([first])
        (n_others,) = self.total([(own != first).any().long()[None]])
        if n_others:
            raise ValueError(
                f"{int(n_others)} of {self.size} processes hold another table than the first: give every "
                "process the same whole table, it takes its share of each minibatch by itself"
            )


ALONE = Workers()
"""A process that trains by itself."""

_current: ContextVar[Workers] = ContextVar("workers", default=ALONE)


def current() -> Workers:
    """The processes that train together where this is called: inside `data_parallel` all, else one."""
    return _current.get()


@contextmanager
def data_parallel(backend: str | None = None) -> Iterator[Workers]:
    """Let every `fit` in this context be one that all processes work on together.

    All of them call it with the same table and the same settings, and get the same imputer. Processes other
    than the first show neither progress nor warnings. A process group that is there already is used; else one
    is made of what `torchrun` says in the environment, and taken down again at the end.

    Args:
        backend: Of `torch.distributed`; None takes gloo, and NCCL for what lies on GPUs. Processes of one
            machine take its GPUs in turn.

    Yields:
        The processes.

    Raises:
        ValueError: If no process group is there and the script was not started by `torchrun`.
    """
    import torch.distributed as dist

    cuda = torch.cuda.is_available()
    started = not dist.is_initialized()
    if started:
        absent = [
            name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ
        ]
        if absent:
            raise ValueError(
                f"expected processes that torchrun has started, but {', '.join(absent)} are not in the "
                "environment: run torchrun --nproc-per-node 2 script.py, or of the command line torchrun "
                "--nproc-per-node 2 -m pyro_mgp fit ... --distributed"
            )
        dist.init_process_group(backend or ("cpu:gloo,cuda:nccl" if cuda else "gloo"))
    workers = Workers(dist.get_rank(), dist.get_world_size())
    token = _current.set(workers)
    try:
        with ExitStack() as changes:
            if cuda:
                local = int(os.environ.get("LOCAL_RANK", workers.rank))
                changes.enter_context(torch.cuda.device(local % torch.cuda.device_count()))
            if not workers.is_first:
                changes.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore", UserWarning)
            yield workers
    finally:
        _current.reset(token)
        if started:
            dist.destroy_process_group()
