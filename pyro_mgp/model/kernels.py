"""Covariance functions: `pyro.contrib.gp`'s, and the one that training spends its time in, made fast."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyro.contrib.gp.kernels as kernels
import torch
from pyro.contrib.gp.kernels import Kernel
from torch import Tensor

from pyro_mgp.model.local_parameters import local_parameters

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
        return matern32_of_square(squared + right.square().sum(1), self.variance.log())


class _Matern32OfSquare(torch.autograd.Function):
    """The function s (1 + r) exp(-r) of r² and log s; its derivative by r² has no pole at 0."""

    @staticmethod
    def forward(context: Any, squared: Tensor, log_amplitude: Tensor) -> Tensor:
        distance = squared.clamp(min=0).sqrt_()
        decay = (log_amplitude - distance).exp_()
        context.save_for_backward(distance, decay)
        context.shape = log_amplitude.shape
        return torch.addcmul(decay, distance, decay)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        distance, decay = context.saved_tensors
        scaled = gradient * decay
        of_log_amplitude = torch.addcmul(scaled, scaled, distance).sum_to_size(context.shape)
        return scaled.mul_(-0.5), of_log_amplitude


def matern32_of_square(squared: Tensor, log_amplitude: Tensor) -> Tensor:
    """The Matérn 3/2 kernel of squared distances, these already scaled by 3/lengthscale².

    Args:
        squared: r², any shape; negative rounding errors count as 0.
        log_amplitude: Logarithm of the kernel's variance, of a shape that spreads over `squared`.
    """
    return _Matern32OfSquare.apply(squared, log_amplitude)


def matern32(input_dim: int) -> Kernel:
    """The paper's kernel: Matérn 3/2 with one lengthscale per input (ARD)."""
    return Matern32(input_dim, lengthscale=torch.full((input_dim,), float(input_dim) ** 0.5))


def linear_matern32(input_dim: int) -> Kernel:
    """The default kernel: a linear trend with an intercept, plus an ARD Matérn 3/2 for what bends.

    It starts smooth and mostly linear, where the kernels of most columns are found after some forty steps
    from unit variances and lengthscales of √P.
    """
    trend = kernels.Polynomial(
        input_dim, variance=torch.tensor(0.4 / max(input_dim, 1)), bias=torch.tensor(0.5), degree=1
    )
    lengthscale = torch.full((input_dim,), 4.0 * float(input_dim) ** 0.5)
    return kernels.Sum(trend, Matern32(input_dim, torch.tensor(0.3), lengthscale))


def small_linear_matern32(input_dim: int) -> Kernel:
    """`linear_matern32` with a trend whose variance is large and held, for small tables.

    What a small table would teach of it shrinks slopes by several per cent.
    """
    kernel = linear_matern32(input_dim)
    _hold(kernel.kern0, 2.0 / max(input_dim, 1))
    return kernel


def _hold(kernel: Kernel, variance: float) -> None:
    """Let the variance of a kernel be this, whatever a table teaches."""
    with local_parameters():
        kernel.variance = torch.tensor(variance)
        kernel.variance_unconstrained.requires_grad_(False)


class Quadratic(kernels.DotProduct):
    """The covariance variance · (x·z)²: squares and products of the inputs, their slopes independent."""

    def forward(self, X: Tensor, Z: Tensor | None = None, diag: bool = False) -> Tensor:
        """Covariance matrix of `X` `[n, P]` and `Z` `[M, P]`, or the variances `[n]` if `diag`."""
        return self.variance * self._dot_product(X, Z, diag).square()


def linear_quadratic_matern32(input_dim: int) -> Kernel:
    """The default kernel of small tables: `linear_matern32` and a quadratic trend.

    A product of two columns reaches beyond the data, where a Matérn kernel falls back to zero; to learn it
    from that kernel alone takes more rows than a small table has. The variance of that trend is held: what
    such a table would teach of it shrinks products, and so the slopes of analyses, by several per cent.
    """
    trend = Quadratic(input_dim)
    _hold(trend, 1.0 / max(input_dim, 1))
    return kernels.Sum(linear_matern32(input_dim), trend)


def lengthscales(kernel: Kernel, n_inputs: int) -> Tensor:
    """The lengthscale of each of P inputs in the first part of a kernel that has one, else 1, `[P]`."""
    scales, known = torch.ones(n_inputs), torch.zeros(n_inputs, dtype=torch.bool)
    for part in kernel.modules():
        own = getattr(part, "lengthscale", None)
        if isinstance(own, Tensor):
            active = torch.zeros_like(known)
            active[part.active_dims] = True
            spread = torch.ones(n_inputs).index_copy(
                0, torch.tensor(part.active_dims), own.detach().float().cpu().expand(len(part.active_dims))
            )
            scales = torch.where(active & ~known, spread, scales)
            known |= active
    return scales


KERNELS: dict[str, KernelFactory] = {
    "linear+matern32": linear_matern32,
    "linear+quadratic+matern32": linear_quadratic_matern32,
    "matern32": matern32,
}
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
            f"kernel must be 'auto', one of {sorted(KERNELS)} or a function "
            f"input_dim -> pyro.contrib.gp kernel, got {kernel!r}"
        )
    return KERNELS[kernel]
