"""Covariance functions: `pyro.contrib.gp`'s, and the one that training spends its time in, made fast."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pyro.contrib.gp.kernels as kernels
import torch
from pyro.contrib.gp.kernels import Kernel
from torch import Tensor

KernelFactory = Callable[[int], Kernel]
"""`input_dim -> Kernel`: called once per link, whose inputs may differ in number."""


class Matern32(kernels.Matern32):
    """`pyro.contrib.gp.kernels.Matern32`, with a gradient that passes over the matrix once."""

    def forward(self, X: Tensor, Z: Tensor | None = None, diag: bool = False) -> Tensor:
        """Covariance matrix of `X` `[n, P]` and `Z` `[M, P]`, or the variances `[n]` if `diag`."""
        if diag:
            return self._diag(X)
        scale = math.sqrt(3) / self.lengthscale
        left = self._slice_input(X) * scale
        right = left if Z is None else self._slice_input(Z) * scale
        squared = torch.addmm(left.square().sum(1, keepdim=True), left, right.T, alpha=-2)
        return self.variance * _Matern32OfSquare.apply(squared + right.square().sum(1))


class _Matern32OfSquare(torch.autograd.Function):
    """k(s) = (1 + r) exp(-r) with r = √s, of squared distances s; k'(s) = -exp(-r) / 2 has no pole at 0."""

    @staticmethod
    def forward(context: Any, squared: Tensor) -> Tensor:
        distance = squared.clamp(min=0).sqrt_()
        decay = distance.neg().exp_()
        context.save_for_backward(decay)
        return torch.addcmul(decay, distance, decay)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(context: Any, gradient: Tensor) -> Tensor:
        (decay,) = context.saved_tensors
        return gradient * decay * -0.5


def matern32(input_dim: int) -> Kernel:
    """The paper's kernel: Matérn 3/2 with one lengthscale per input (ARD)."""
    return Matern32(input_dim, lengthscale=torch.full((input_dim,), float(input_dim) ** 0.5))


def linear_matern32(input_dim: int) -> Kernel:
    """The default kernel: a linear trend with an intercept, plus an ARD Matérn 3/2 for what bends."""
    trend = kernels.Polynomial(input_dim, variance=torch.tensor(1.0 / input_dim), degree=1)
    return kernels.Sum(trend, matern32(input_dim))


class KernelStack:
    """The kernels of L links, read once and then evaluated many times.

    Args:
        links: Kernel and inducing inputs `[M, P]` of each link.
    """

    def __init__(self, links: Sequence[tuple[Kernel, Tensor]]) -> None:
        self.links = links

    def among(self) -> Tensor:
        """K_ZZ of every link, `[L, M, M]`."""
        return torch.stack([kernel(Xu) for kernel, Xu in self.links])

    def cross(self, link: int, X: Tensor) -> Tensor:
        """K_ZX of one link, `[M, n]`, at inputs `[n, P]`."""
        kernel, Xu = self.links[link]
        return kernel(Xu, X)

    def variance(self, link: int, X: Tensor) -> Tensor:
        """k(x, x) of one link at inputs `[n, P]`, `[n]`."""
        return self.links[link][0](X, diag=True)


class _LinearMatern32Stack(KernelStack):
    """A stack of `linear_matern32` kernels, whose numbers of inputs may differ.

    Reading a parameter through Pyro costs as much as the arithmetic on it, so each is read once.
    """

    def __init__(self, links: Sequence[tuple[Kernel, Tensor]]) -> None:
        super().__init__(links)
        trends, bends = [k.kern0 for k, _ in links], [k.kern1 for k, _ in links]
        self.slope, self.bias = _stacked(trends, "variance"), _stacked(trends, "bias")
        self.amplitude = _stacked(bends, "variance")
        self.scales = [math.sqrt(3) / bend.lengthscale for bend in bends]
        self.scaled = [Xu * scale for (_, Xu), scale in zip(links, self.scales, strict=True)]
        self.norms = [scaled.square().sum(-1) for scaled in self.scaled]
        # Taken apart once: the gradient of one entry after the other would add up whole stacks.
        numbers = (self.slope, self.bias, self.amplitude)
        self.numbers = list(zip(*(stack.unbind() for stack in numbers), strict=True))

    def among(self) -> Tensor:
        """See `KernelStack`."""
        squared = torch.stack(
            [
                torch.addmm(norms[:, None], scaled, scaled.T, alpha=-2) + norms
                for scaled, norms in zip(self.scaled, self.norms, strict=True)
            ]
        )
        products = torch.stack([Xu @ Xu.T for _, Xu in self.links])
        slope, bias, amplitude = (x[:, None, None] for x in (self.slope, self.bias, self.amplitude))
        return slope * (bias + products) + amplitude * _Matern32OfSquare.apply(squared)

    def cross(self, link: int, X: Tensor) -> Tensor:
        """See `KernelStack`."""
        slope, bias, amplitude = self.numbers[link]
        Xu, scaled = self.links[link][1], X * self.scales[link]
        squared = torch.addmm(self.norms[link][:, None], self.scaled[link], scaled.T, alpha=-2)
        bend = amplitude * _Matern32OfSquare.apply(squared + scaled.square().sum(1))
        return torch.addmm(bend + slope * bias, slope * Xu, X.T)

    def variance(self, link: int, X: Tensor) -> Tensor:
        """See `KernelStack`."""
        slope, bias, amplitude = self.numbers[link]
        return amplitude + slope * (bias + X.square().sum(1))


def _stacked(kernels: Sequence[Kernel], name: str) -> Tensor:
    """A parameter of every kernel, stacked; read as Pyro wants it, so that it sees the parameter."""
    return torch.stack([getattr(kernel, name) for kernel in kernels])


# Any other set means that the user put priors or other constraints on some of them.
_PARAMETERS = {
    "kern0.variance_unconstrained",
    "kern0.bias_unconstrained",
    "kern1.variance_unconstrained",
    "kern1.lengthscale_unconstrained",
}


def stack_kernels(links: Sequence[tuple[Kernel, Tensor]]) -> KernelStack:
    """The fastest stack that fits kernels and their inducing inputs.

    Args:
        links: Kernel and inducing inputs `[M, P]` of each link; M is the same for all.
    """
    if links and all(_is_linear_matern32(kernel) for kernel, _ in links):
        return _LinearMatern32Stack(links)
    return KernelStack(links)


def _is_linear_matern32(kernel: Kernel) -> bool:
    """Whether a kernel has the structure, all inputs and free parameters of `linear_matern32`."""
    return (
        type(kernel) is kernels.Sum
        and type(kernel.kern0) is kernels.Polynomial
        and type(kernel.kern1) is Matern32
        and kernel.kern0.degree == 1
        and all(part.active_dims == list(range(kernel.input_dim)) for part in (kernel.kern0, kernel.kern1))
        and kernel.kern1.lengthscale_unconstrained.dim() == 1
        and {name for name, _ in kernel.named_parameters()} == _PARAMETERS
    )


KERNELS: dict[str, KernelFactory] = {"linear+matern32": linear_matern32, "matern32": matern32}
"""The kernels that have a name."""


def resolve_kernel(kernel: str | KernelFactory) -> KernelFactory:
    """The factory that a name stands for, or the factory itself.

    Raises:
        ValueError: If the name is not in `KERNELS`.
    """
    if callable(kernel):
        return kernel
    if kernel not in KERNELS:
        raise ValueError(
            f"kernel must be one of {sorted(KERNELS)} or a function input_dim -> pyro.contrib.gp kernel, "
            f"got {kernel!r}"
        )
    return KERNELS[kernel]
