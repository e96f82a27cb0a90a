"""Discrete distribution whose values are written as other numbers, such as standardised cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints


class _Discrete(constraints.Constraint):
    """Constraint of discrete values that are not whole numbers; any number passes."""

    is_discrete = True

    def check(self, value: Tensor) -> Tensor:
        return value == value


class Recoded(TorchDistribution):
    """Distribution of `encode(k)`, where k follows a discrete distribution.

    Args:
        base: Distribution of k, any batch shape, no event dimensions.
        encode: Cell of a value k, any shape.
        decode: Value k of a cell, any shape.

    Example:
        >>> import pyro.distributions as dist
        >>> coin = Recoded(dist.Bernoulli(torch.tensor(0.25)), lambda k: 2 * k - 1, lambda z: (z + 1) / 2)
        >>> coin.log_prob(torch.tensor([-1.0, 1.0])).exp()
        tensor([0.7500, 0.2500])
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    support = _Discrete()

    def __init__(
        self, base: Any, encode: Callable[[Tensor], Tensor], decode: Callable[[Tensor], Tensor]
    ) -> None:
        self.base, self.encode, self.decode = base, encode, decode
        super().__init__(base.batch_shape, validate_args=False)

    def expand(self, batch_shape: torch.Size, _instance: Any = None) -> Self:
        """Return the distribution with a larger batch shape."""
        new = type(self)(self.base.expand(batch_shape), self.encode, self.decode)
        new.has_rsample = self.has_rsample
        return new

    @torch.no_grad()
    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw cells, `[*sample_shape, *batch_shape]`."""
        return self.encode(self.base.sample(torch.Size(sample_shape)))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draw cells, through which no gradient passes; Pyro calls this after `has_rsample_(True)`."""
        return self.sample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log probability of cells, of batch shape."""
        log_prob: Tensor = self.base.log_prob(self.decode(value))
        return log_prob
