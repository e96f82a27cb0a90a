"""Data-parallel training: every process works on its share of each minibatch.

All processes hold the same table, parameters and random numbers. Of each minibatch, process r of n takes
every n-th row from row r on. Sums over rows, gradients and redrawn rows are collected from all processes:
after every step each process holds what a single process would hold.

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
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Workers:
    """Group of processes that train together, seen from the one with a rank; by default a group of one."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """True for the process that shows progress and writes files for the whole group."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        """True if the group has a single process."""
        return self.size == 1

    def share(self, n_rows: int) -> slice:
        """Return this process's slice of a minibatch; raise a ValueError for fewer rows than processes."""
        if n_rows < self.size:
            advice = "take a larger batch_size, or fewer processes"
            raise ValueError(
                f"{n_rows} rows cannot be shared by {self.size} processes, which need one each: {advice}"
            )
        return slice(self.rank, None, self.size)

    def total(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Sum tensors of one dtype elementwise over processes; all processes get the same sums."""
        if self.is_alone:
            return list(parts)
        together = torch.cat([part.detach().flatten() for part in parts])
        dist.all_reduce(together)
        sizes = [part.numel() for part in parts]
        return [whole.view(part.shape) for whole, part in zip(together.split(sizes), parts, strict=True)]

    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace the gradients of parameters by their sums over processes."""
        held = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if not self.is_alone and held:
            for own, whole in zip(held, self.total(held), strict=True):
                own.copy_(whole)

    def gather(self, own: Tensor, n_rows: int) -> Tensor:
        """Collect the rows of a minibatch, `[n, D]`, from the shares of all processes."""
        if self.is_alone:
            return own
        whole = own.new_zeros(n_rows, own.shape[1])
        whole[self.share(n_rows)] = own
        return self.total([whole])[0]

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors in place with those of rank 0, because other machines may round differently."""
        for tensor in () if self.is_alone else tensors:
            dist.broadcast(tensor.detach(), src=0)

    def broadcast_number(self, number: Number) -> Number:
        """Return the number that rank 0 holds; integers have at most 64 bits."""
        shared = torch.tensor(number, dtype=torch.float64 if isinstance(number, float) else torch.int64)
        self.broadcast([shared])
        return type(number)(shared.item())

    def largest(self, number: int) -> int:
        """Return the largest of the integers that the processes hold."""
        if self.is_alone:
            return number
        shared = torch.tensor(int(number), dtype=torch.int64)
        dist.all_reduce(shared, dist.ReduceOp.MAX)
        return int(shared)

    def all_equal(self, number: int) -> bool:
        """Return True if all processes hold the same integer."""
        return self.largest(number) == -self.largest(-number)

    def wait(self) -> None:
        """Wait until all processes have called this method."""
        self.largest(0)

    def check_same(self, keys: Tensor) -> None:
        """Raise a ValueError in every process unless all hold the same rows, by their keys `[N]`."""
        if self.is_alone:
            return
        # The sum may overflow: it serves as a fingerprint all the same.
        own = torch.stack([torch.tensor(len(keys)), keys.cpu().sum()])
        first = own.clone()
        self.broadcast([first])
        (n_others,) = self.total([(own != first).any().long()[None]])
        if n_others:
            fact = f"{int(n_others)} of {self.size} processes hold another table than rank 0"
            advice = "give every process the same whole table, since each takes its share of a minibatch"
            raise ValueError(f"{fact}: {advice}")


ALONE = Workers()

# Variables that torchrun sets.
_ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_current: ContextVar[Workers] = ContextVar("workers", default=ALONE)


def _backend() -> str:
    """Return the default backend of a new process group; NCCL refuses two processes on one GPU."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
    return "cpu:gloo,cuda:nccl" if here <= torch.cuda.device_count() else "gloo"


def current() -> Workers:
    """Return the processes that train together: all of them inside `data_parallel`, else this one."""
    return _current.get()


@contextmanager
def data_parallel(backend: str | None = None) -> Iterator[Workers]:
    """Let all processes share the work of every `fit` in this context.

    All processes call `fit` with the same table and settings, and obtain the same imputer. Only the process
    of rank 0 shows progress and warnings. An existing process group is used; otherwise one is created from
    the environment variables that `torchrun` sets, and destroyed at the end. Its `backend` is gloo by
    default, and NCCL for tensors on GPUs, to which the processes of a machine are assigned in turn, if
    every process sees a GPU for each of them. Where each sees its own only, pass "cpu:gloo,cuda:nccl".

    Raises:
        ValueError: If there is no process group and the script was not started by `torchrun`.

    Example:
        In a script that `torchrun --nproc-per-node 2 script.py` starts. Here one process is the group:

        >>> import tempfile
        >>> meeting = f"file://{tempfile.mkdtemp()}/group"
        >>> dist.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
        >>> with data_parallel() as workers:
        ...     print(workers.rank, workers.is_first)  # fit here, and save if workers.is_first
        0 True
        >>> dist.destroy_process_group()
    """
    cuda = torch.cuda.is_available()
    started = not dist.is_initialized()
    if started:
        absent = [name for name in _ENVIRONMENT if name not in os.environ]
        if absent:
            raise ValueError(
                f"expected processes that torchrun has started, but {', '.join(absent)} are not in the "
                "environment: run torchrun --nproc-per-node 2 script.py, or torchrun "
                "--nproc-per-node 2 -m pyro_mgp fit ... --distributed"
            )
        dist.init_process_group(backend or _backend())
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
