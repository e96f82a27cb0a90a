"""Adam for many small parameters at once.

They are views of one vector, which takes a few calls per step and no synchronisation with a GPU.
`torch.optim` would import a compiler with its first optimiser, which takes 1.5 seconds.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class Adam:
    """Adam (Kingma and Ba 2015, algorithm 1), with decoupled decay towards the starting values.

    Args:
        parameters: Leaves of one dtype and device; until `release` they are views of one vector.
        weight_decay: Share of the distance to their starting values by which parameters move back in a step,
            per unit of learning rate (as in AdamW, Loshchilov and Hutter 2019).
    """

    def __init__(self, parameters: Iterable[nn.Parameter], weight_decay: float = 0.0) -> None:
        self.parameters = list(parameters)
        self.weight_decay = weight_decay
        self.n_steps = 0
        self.vector = parameters_to_vector(self.parameters).detach() if self.parameters else torch.empty(0)
        vector_to_parameters(self.vector, self.parameters)
        self.start = self.vector.clone()
        self.first, self.second = torch.zeros_like(self.vector), torch.zeros_like(self.vector)

    @torch.no_grad()
    def step(self, learning_rate: float, decay: tuple[float, float] = (0.9, 0.999)) -> None:
        """Take a step against the gradients of the parameters; a missing gradient counts as zero."""
        if not self.parameters:
            return
        self.n_steps += 1
        self.vector.lerp_(self.start, min(1.0, learning_rate * self.weight_decay))
        gradients = [torch.zeros_like(own) if own.grad is None else own.grad for own in self.parameters]
        gradient = torch.cat([own.flatten() for own in gradients])
        self.first.lerp_(gradient, 1 - decay[0])
        self.second.lerp_(gradient.square(), 1 - decay[1])
        scale = (self.second / (1 - decay[1] ** self.n_steps)).sqrt_().add_(1e-8)
        self.vector.addcdiv_(self.first, scale, value=-learning_rate / (1 - decay[0] ** self.n_steps))

    def forget(self) -> None:
        """Reset the moments, after the parameters were set back to earlier values."""
        self.n_steps = 0
        self.first.zero_()
        self.second.zero_()

    @torch.no_grad()
    def release(self) -> None:
        """Copy every parameter into memory of its own."""
        for parameter in self.parameters:
            parameter.data = parameter.data.clone()
