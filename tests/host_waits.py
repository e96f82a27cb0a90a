"""Count of the operations for which the host would wait for a GPU, on a machine without one.

Tensors say that they are on a GPU, so that code takes its way, while operations run on the CPU. What is
counted are numbers that the host reads (conditions, lists, copies), results whose size depends on values
(`nonzero`, masks as indices, `unique`), factorisations that check their success, and lists that become
tensors, which are copied from the host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_WAITS = {"_local_scalar_dense", "is_nonzero", "item", "equal", "_linalg_check_errors"}
_OF_UNKNOWN_SIZE = {"nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount"}
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}


class HostWaits(TorchDispatchMode):
    """Counter of waits inside of its context, by the name of the operation; see the module."""

    def __init__(self, active: list[HostWaits]) -> None:
        super().__init__()
        self.active, self.counts = active, Counter[str]()

    def __enter__(self) -> HostWaits:
        self.active.append(self)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.active.remove(self)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.split("::")[1]
        by_mask = name in _INDEXING and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        of_list = name == "lift_fresh" and args[0].dim() > 0
        if name in _WAITS | _OF_UNKNOWN_SIZE or by_mask or of_list:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def as_on_a_gpu() -> Iterator[Callable[[], HostWaits]]:
    """Let tensors say that they are on a GPU; yields what makes counters, to be entered as contexts."""
    active: list[HostWaits] = []

    def counting(name: str) -> Callable[..., Any]:
        original = getattr(Tensor, name)

        def method(self: Tensor, *args: Any, **kwargs: Any) -> Any:
            for each in active:  # reads that no operation of PyTorch shows
                each.counts[name] += 1
            return original(self, *args, **kwargs)

        return method

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "is_cuda", property(lambda _: True))
        for name in ("cpu", "numpy", "tolist"):
            patch.setattr(Tensor, name, counting(name))
        yield lambda: HostWaits(active)
