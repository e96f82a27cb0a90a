"""A conditional whose latent function is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_mgp.model.conditional import Conditional, Moments


@dataclass(frozen=True)
class Known(Conditional):
    """Conditional with a given latent function, without variance of its own."""

    function: Callable[[Tensor], Tensor]
    """Return the function at rows `[..., D]`."""

    def moments(self, rows: Tensor) -> Moments:
        mean = self.function(rows)
        return Moments(mean, torch.zeros_like(mean))

    def mean(self, rows: Tensor) -> Tensor:
        return self.function(rows)

    def functions(self, rows: Tensor) -> Tensor:
        return self.function(rows)[None]
