"""Covariance functions: a fast Matérn 3/2 kernel, the default kernels of a chain, and kernels by name."""

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
"""Function `input_dim -> Kernel`, called once per link."""


class Matern32(kernels.Matern32):
    """Matérn 3/2 kernel of `pyro.contrib.gp`, with a gradient in closed form, in one pass over the matrix."""

    def forward(self, X: Tensor, Z: Tensor | None = None, diag: bool = False) -> Tensor:
        """Return the covariance matrix of `X` `[n, P]` and `Z` `[M, P]`, or the variances `[n]` if `diag`."""
        if diag:
            return self._diag(X)
        scale = math.sqrt(3) / self.lengthscale
        left = self._slice_input(X) * scale
        right = left if Z is None else self._slice_input(Z) * scale
        squared = torch.addmm(left.square().sum(1, keepdim=True), left, right.T, alpha=-2)
        return matern32_of_square(squared + right.square().sum(1), self.variance.log())


class _Matern32OfSquare(torch.autograd.Function):
    """Function s (1 + r) exp(-r) of r² and log s; its derivative with respect to r² has no pole at 0."""

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
    """Return the Matérn 3/2 kernel at squared distances r² in units of lengthscale²/3, any shape.

    Negative rounding errors of r² count as 0; the logarithm of the kernel's variance is broadcast.
    """
    return _Matern32OfSquare.apply(squared, log_amplitude)


def matern32(input_dim: int) -> Kernel:
    """Return the paper's kernel: Matérn 3/2 with one lengthscale per input (ARD)."""
    return Matern32(input_dim, lengthscale=torch.full((input_dim,), float(input_dim) ** 0.5))


def linear_matern32(input_dim: int) -> Kernel:
    """Return the default kernel: a linear trend with an intercept, plus an ARD Matérn 3/2 kernel.

    Its starting values are smooth and mostly linear: most columns reach such values after some forty steps
    from unit variances and lengthscales of √P.
    """
    trend = kernels.Polynomial(
        input_dim, variance=torch.tensor(0.4 / max(input_dim, 1)), bias=torch.tensor(0.5), degree=1
    )
    lengthscale = torch.full((input_dim,), 4.0 * float(input_dim) ** 0.5)
    return kernels.Sum(trend, Matern32(input_dim, torch.tensor(0.3), lengthscale))


def small_linear_matern32(input_dim: int) -> Kernel:
    """Return `linear_matern32` with a large, fixed variance of the trend, for small tables.

    The variance estimated from a small table shrinks slopes by several per cent.
    """
    kernel = linear_matern32(input_dim)
    _fix(kernel.kern0, 2.0 / max(input_dim, 1))
    return kernel


def _fix(kernel: Kernel, variance: float) -> None:
    """Set the variance of a kernel, and exclude it from training."""
    with local_parameters():
        kernel.variance = torch.tensor(variance)
        kernel.variance_unconstrained.requires_grad_(False)


class Quadratic(kernels.DotProduct):
    """Kernel variance · (x·z)²: squares and products of the inputs with independent slopes."""

    def forward(self, X: Tensor, Z: Tensor | None = None, diag: bool = False) -> Tensor:
        """Return the covariance matrix of `X` `[n, P]` and `Z` `[M, P]`, or the variances `[n]` if `diag`."""
        return self.variance * self._dot_product(X, Z, diag).square()


def linear_quadratic_matern32(input_dim: int) -> Kernel:
    """Return the default kernel of small tables: `linear_matern32` plus a quadratic trend.

    A product of two columns extrapolates, where a Matérn kernel returns to zero; with that kernel alone it
    takes more rows to learn than a small table has. The variance of the trend is fixed: the one estimated
    from a small table shrinks products, and with them the slopes of analyses, by several per cent.
    """
    trend = Quadratic(input_dim)
    _fix(trend, 1.0 / max(input_dim, 1))
    return kernels.Sum(linear_matern32(input_dim), trend)


def lengthscales(kernel: Kernel, n_inputs: int) -> Tensor:
    """Return one lengthscale per input, `[P]`, from the first part of a kernel that has one, else 1."""
    scales, found = torch.ones(n_inputs, dtype=torch.float32), torch.zeros(n_inputs, dtype=torch.bool)
    for part in kernel.modules():
        own = getattr(part, "lengthscale", None)
        if isinstance(own, Tensor):
            active = torch.zeros_like(found)
            active[part.active_dims] = True
            spread = torch.ones(n_inputs, dtype=torch.float32).index_copy(
                0, torch.tensor(part.active_dims), own.detach().float().cpu().expand(len(part.active_dims))
            )
            scales = torch.where(active & ~found, spread, scales)
            found |= active
    return scales


KERNELS: dict[str, KernelFactory] = {
    "linear+matern32": linear_matern32,
    "linear+quadratic+matern32": linear_quadratic_matern32,
    "matern32": matern32,
}
"""Kernel factories by name."""


def resolve_kernel(kernel: str | KernelFactory) -> KernelFactory:
    """Return the kernel factory of a name, or the factory itself.

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
