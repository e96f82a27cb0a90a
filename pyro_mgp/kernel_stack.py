"""The kernels of all links, read once and evaluated many times; in closed form where the kernel is ours.

Rows are rows of the whole table, `[n, D]`: the inducing inputs of a link stand in its own columns and are
zero elsewhere, so that no columns have to be gathered. With x̃ = (x, 1, Σ cₚxₚ²) and cₚ = 3/lengthscaleₚ²,

    r² = (-2cz, Σ cₚzₚ², 1)ᵀ x̃,    k(z, x) = s (1 + r) exp(-r) + (a z, a b, 0)ᵀ x̃

is the default kernel in two products and a few passes over the matrix, and its gradient two products more.
The passes work with ρ = r/ln 2, for powers of two come twice as fast as those of e.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyro.contrib.gp.kernels as kernels
import torch
from pyro.contrib.gp.kernels import Kernel
from torch import Tensor

from pyro_mgp.kernels import Matern32, matern32_of_square
from pyro_mgp.local_parameters import local_parameters, read

# Squared distance beyond which the Matérn kernel is zero to the last bit: 2 to the power of -10⁴.
_BEYOND = 1e8
# Squared distance that stands for zero, which has no reciprocal square root.
_NEAREST = 1e-30
# ρ² = r² · _SQUARE
_SQUARE = math.log2(math.e) ** 2
# Entries of the largest matrix that is kept, 64 MB.
_LARGEST = 2**23
# Bytes. The C library of Linux gives freed memory back to the system at once, page by page, and asks for it
# again a moment later, unless it has seen a piece of this size come and go; 32 MiB is the most it takes.
_COME_AND_GO = 31 * 2**20


class Inducing(Protocol):
    """What a stack needs of a link."""

    @property
    def kernel(self) -> Kernel:
        """Covariance function over P inputs."""

    @property
    def Xu(self) -> Tensor:
        """Inducing inputs, `[M, P]`."""

    @property
    def inputs(self) -> Tensor:
        """Which columns of the table they stand for, `[P]`."""

    @property
    def width(self) -> int:
        """Number of columns that a table needs for them, at least."""


@dataclass(frozen=True)
class Seen:
    """Rows that G links see, one after the other in the chain; no gradient goes back to them."""

    first: int
    """Number of the first link."""
    rows: Tensor
    """Rows of the table as each link sees them, `[G, n, D]`."""
    targets: Tensor
    """Values y of its column, `[G, n]`."""
    valid: Tensor | None = None
    """Bool `[G, n]`, which of the rows count where the numbers of rows differ; None for all."""

    @property
    def links(self) -> slice:
        """Numbers of the links."""
        return slice(self.first, self.first + len(self.rows))


@dataclass(frozen=True)
class RowSums:
    """What a Gaussian bound needs of rows, or the gradients of a loss with respect to these.

    With φ = K_Zf, or φ = W K_Zf where the sums were asked for in whitened coordinates.
    """

    gram: Tensor
    """φφᵀ, `[G, M, M]`; its gradient is symmetric."""
    projection: Tensor
    """φy, `[G, M]`."""
    trace: Tensor
    """t = Σ k(x, x), `[G]`."""


class Workspace(threading.local):
    """Scratch matrices that are used again and again, one set per thread."""

    def __init__(self) -> None:
        self._flat: dict[str, Tensor] = {}
        torch.empty(_COME_AND_GO, dtype=torch.uint8)

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A matrix of that shape, with anything in it; what was taken under the name before is gone."""
        size = math.prod(shape)
        if size > _LARGEST:
            return like.new_empty(shape)
        flat = self._flat.get(name)
        if flat is None or len(flat) < size or flat.dtype != like.dtype or flat.device != like.device:
            flat = self._flat[name] = like.new_empty(size)
        return flat[:size].view(shape)


class KernelStack:
    """The kernels of L links.

    Args:
        links: The links; all have the same number M of inducing inputs.
        dtype: Of the matrices of rows, where no gradient goes back to these. float32 halves their cost, or
            more on GPUs made for it, but has too few digits for `sums` that are not whitened.
        workspace: Scratch memory of an earlier stack, to be used again.
    """

    def __init__(
        self,
        links: Sequence[Inducing],
        dtype: torch.dtype = torch.float64,
        workspace: Workspace | None = None,
    ) -> None:
        self.links = [(link.kernel, link.Xu, link.inputs) for link in links]
        self.dtype = dtype
        self.workspace = workspace or Workspace()

    def among(self) -> Tensor:
        """K_ZZ of every link, `[L, M, M]`."""
        return torch.stack([kernel(Xu) for kernel, Xu, _ in self.links])

    def at(self, number: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """K_Zf `[M, n]` and the variances k(x, x) `[n]` of one link, at rows of the table `[n, D]`."""
        kernel, Xu, inputs = self.links[number]
        X = rows[:, inputs]
        with local_parameters():
            cross, variance = kernel(Xu, X), kernel(X, diag=True)
        return (cross, variance) if torch.is_grad_enabled() else (cross.to(self.dtype), variance)

    @torch.enable_grad()
    def sums(self, seen: Seen, inverse: Tensor | None = None) -> RowSums:
        """The sums over rows. One group of links at a time: `pull` belongs to the last.

        Args:
            seen: The rows.
            inverse: W = L⁻¹ of each link, `[G, M, M]`, for whitened sums.
        """
        parts = []
        for k, (rows, targets) in enumerate(zip(seen.rows, seen.targets, strict=True)):
            here = slice(None) if seen.valid is None else seen.valid[k]
            cross, variance = self.at(seen.first + k, rows[here])
            basis = cross.to(self.dtype)
            if inverse is not None:
                basis = inverse[k].to(self.dtype) @ basis
            products = basis @ basis.T, basis @ targets[here].to(self.dtype)
            parts.append((*(product.to(cross) for product in products), variance.sum()))
        self._sums = [torch.stack(part) for part in zip(*parts, strict=True)]
        return RowSums(*(part.detach() for part in self._sums))

    def pull(self, gradients: RowSums) -> None:
        """Take in the gradients of a loss with respect to the last sums."""
        send_back(zip(self._sums, [gradients.gram, gradients.projection, gradients.trace], strict=True))

    def pending(self) -> list[tuple[Tensor, Tensor]]:
        """Tensors that depend on the parameters, and gradients of theirs still to be sent back from them."""
        return []


def send_back(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Send gradients back from tensors to the parameters that these depend on, if on any that learns."""
    learning = [(tensor, gradient) for tensor, gradient in pairs if tensor.requires_grad]
    if learning:
        tensors, gradients = zip(*learning, strict=True)
        torch.autograd.backward(tensors, gradients)


@dataclass(frozen=True)
class _Last:
    """What the gradient of the last sums needs."""

    here: slice
    inverse: Tensor | None
    decay: Tensor
    basis: Tensor
    augmented: Tensor
    squares: Tensor
    targets: Tensor
    count: Tensor
    reach: Tensor
    sums: RowSums


class LinearMatern32Stack(KernelStack):
    """A stack of `linear_matern32` kernels, whose numbers of inputs may differ; see `KernelStack`.

    Where no gradient is wanted the matrices `[M, n]` lie in a workspace: asking the system for fresh memory
    costs more than the arithmetic on it. What `at` gives then holds until `at` or `sums` is called again;
    between `sums` and its `pull` neither may be.
    """

    def __init__(
        self,
        links: Sequence[Inducing],
        dtype: torch.dtype = torch.float64,
        workspace: Workspace | None = None,
    ) -> None:
        super().__init__(links, dtype, workspace)
        self.width = max(link.width for link in links)
        trends = [kernel.kern0 for kernel, *_ in self.links]
        bends = [kernel.kern1 for kernel, *_ in self.links]
        slope, bias = read(trends, "variance", torch.stack), read(trends, "bias", torch.stack)
        amplitude = read(bends, "variance", torch.stack)
        Z = self._placed([Xu for _, Xu, _ in self.links])
        self.is_input = self._placed([torch.ones_like(Xu[0]) for _, Xu, _ in self.links]).detach()
        precision = 3 * _SQUARE * self.is_input / read(bends, "lengthscale", self._placed).square()
        norm = (Z.square() * precision[:, None]).sum(-1, keepdim=True)
        one = torch.ones_like(norm)
        far = torch.cat([-2 * precision[:, None] * Z, norm, one], dim=-1)
        trend = torch.cat([Z, bias[:, None, None] * one, torch.zeros_like(one)], dim=-1)
        near = slope[:, None, None] * trend
        self.Z = torch.cat([Z, one, norm], dim=-1).mT
        log_amplitude = amplitude.log()
        self.roots = (far, near, precision, log_amplitude, slope, bias)
        self.gradients = [torch.zeros_like(root) for root in self.roots]
        # Of a row's squares: its distance from the origin, and its part of k(x, x).
        of_squares = torch.stack([precision, slope[:, None] * self.is_input], dim=1)
        # Taken apart once: the gradient of one entry after the other would add up whole stacks.
        each = (far, near, log_amplitude, of_squares, amplitude + slope * bias)
        self.each = list(zip(*(stack.unbind() for stack in each), strict=True))

    def among(self) -> Tensor:
        """See `KernelStack`."""
        far, near, _, log_amplitude, *_ = self.roots
        squared = far @ self.Z / _SQUARE
        return matern32_of_square(squared, log_amplitude[:, None, None]).baddbmm(near, self.Z)

    def at(self, number: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """See `KernelStack`."""
        with_gradient = torch.is_grad_enabled()
        rows = rows if with_gradient else rows.to(self.dtype)
        far, near, log_amplitude, of_squares, at_origin = (part.to(rows) for part in self.each[number])
        columns = rows[:, : self.width].T.contiguous()
        distance, variance = (of_squares @ columns.square()).split(1)
        augmented = torch.cat([columns, torch.ones_like(distance), distance])
        if with_gradient:
            squared = far @ augmented / _SQUARE
            cross = matern32_of_square(squared, log_amplitude).addmm(near, augmented)
        else:
            _, cross = self._fill(far[None], near[None], log_amplitude, augmented[None])
            cross = cross[0]
        return cross, variance[0] + at_origin

    @torch.no_grad()
    def sums(self, seen: Seen, inverse: Tensor | None = None) -> RowSums:
        """See `KernelStack`."""
        here = seen.links
        far, near, precision, log_amplitude, slope, bias = (root[here] for root in self.roots)
        columns = seen.rows[..., : self.width].mT.contiguous()
        squares = columns.square()
        one, distance = torch.ones_like(columns[:, :1]), precision[:, None] @ squares
        count = torch.full_like(slope, columns.shape[-1])
        if seen.valid is not None:
            # Rows that do not count are put out of the kernels' reach: their covariances are exactly zero.
            out = ~seen.valid[:, None]
            columns, squares, one = (x.masked_fill(out, 0.0) for x in (columns, squares, one))
            distance, count = distance.masked_fill(out, _BEYOND), seen.valid.sum(1).to(columns)
        reach = (squares.sum(-1) * self.is_input[here]).sum(-1)
        augmented = torch.cat([columns, one, distance], dim=1)
        far, near, augmented, squares, targets = (
            x.to(self.dtype) for x in (far, near, augmented, squares, seen.targets)
        )
        decay, basis = self._fill(far, near, log_amplitude[:, None, None].to(self.dtype), augmented)
        if inverse is not None:
            inverse = inverse.to(self.dtype)
            basis = torch.bmm(inverse, basis, out=self.workspace.take("basis", basis.shape, basis))
        gram, projection = basis @ basis.mT, (basis @ targets[:, :, None])[..., 0]
        sums = RowSums(
            gram.to(slope),
            projection.to(slope),
            log_amplitude.exp() * count + slope * (bias * count + reach),
        )
        self._last = _Last(here, inverse, decay, basis, augmented, squares, targets, count, reach, sums)
        return sums

    @torch.no_grad()
    def pull(self, gradients: RowSums) -> None:
        """See `KernelStack`."""
        last, sums = self._last, self._last.sums
        _, near, _, log_amplitude, slope, bias = (root[last.here] for root in self.roots)
        G = 2 * gradients.gram
        of_cross = torch.bmm(
            G.to(self.dtype),
            last.basis,
            out=self.workspace.take("distance", last.basis.shape, last.basis),
        )
        of_cross.baddbmm_(gradients.projection[:, :, None].to(self.dtype), last.targets[:, None, :])
        if last.inverse is not None:
            of_cross = torch.bmm(last.inverse.mT, of_cross, out=last.basis)
        of_near = (last.augmented @ of_cross.mT).mT.to(near)
        # <∂/∂K, K> is the sum of the parts of K's two summands, and known without another pass.
        total = (G * sums.gram).sum((-2, -1)) + (gradients.projection * sums.projection).sum(-1)
        of_square = of_cross.mul_(last.decay)
        of_far = (last.augmented @ of_square.mT).mT
        of_distance = of_square.sum(1)
        trace = gradients.trace
        parts = (
            -0.5 / _SQUARE * of_far,
            of_near,
            -0.5 / _SQUARE * (last.squares @ of_distance[:, :, None])[..., 0],
            total - (of_near * near).sum((-2, -1)) + trace * log_amplitude.exp() * last.count,
            trace * (bias * last.count + last.reach),
            trace * slope * last.count,
        )
        for whole, part in zip(self.gradients, parts, strict=True):
            whole[last.here] += part

    def pending(self) -> list[tuple[Tensor, Tensor]]:
        """See `KernelStack`."""
        return list(zip(self.roots, self.gradients, strict=True))

    def _fill(self, far: Tensor, near: Tensor, log_amplitude: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The matrices s exp(-r) and K_Zf, `[G, M, n]` in the workspace, at rows x̃ `[G, D + 2, n]`."""
        shape = (*far.shape[:2], rows.shape[-1])
        distance, decay, cross = (
            self.workspace.take(name, shape, rows) for name in ("distance", "decay", "cross")
        )
        torch.bmm(far, rows, out=distance)
        # d/√d is faster than √d by a third.
        torch.rsqrt(distance.clamp_(min=_NEAREST), out=decay)
        distance.mul_(decay)
        torch.sub(log_amplitude * math.log2(math.e), distance, out=decay)
        decay.exp2_()
        torch.addcmul(decay, distance, decay, value=math.log(2), out=cross)
        return decay, cross.baddbmm_(near, rows)

    def _placed(self, values: Sequence[Tensor]) -> Tensor:
        """Values per input, `[..., P]` of each link, in the columns of the table: `[L, ..., D]`."""
        return torch.stack(
            [
                value.new_zeros(*value.shape[:-1], self.width).index_copy(-1, inputs, value)
                for value, (_, _, inputs) in zip(values, self.links, strict=True)
            ]
        )


# Any other set means that the user put priors on some of them.
_PARAMETERS = {
    "kern0.variance_unconstrained",
    "kern0.bias_unconstrained",
    "kern1.variance_unconstrained",
    "kern1.lengthscale_unconstrained",
}


def stack_kernels(
    links: Sequence[Inducing],
    dtype: torch.dtype = torch.float64,
    workspace: Workspace | None = None,
) -> KernelStack:
    """The fastest stack that fits the links; takes the arguments of `KernelStack`."""
    if links and all(_is_linear_matern32(link.kernel) for link in links):
        return LinearMatern32Stack(links, dtype, workspace)
    return KernelStack(links, dtype, workspace)


def _is_linear_matern32(kernel: Kernel) -> bool:
    """Whether a kernel has the structure, all inputs and free parameters of `linear_matern32`."""
    return (
        type(kernel) is kernels.Sum
        and type(kernel.kern0) is kernels.Polynomial
        and type(kernel.kern1) is Matern32
        and kernel.kern0.degree == 1
        and all(part.active_dims == list(range(kernel.input_dim)) for part in (kernel.kern0, kernel.kern1))
        and {name for name, _ in kernel.named_parameters()} == _PARAMETERS
        and kernel.kern1.lengthscale_unconstrained.dim() == 1
        and all(
            number.dim() == 0
            for number in (
                kernel.kern0.variance_unconstrained,
                kernel.kern0.bias_unconstrained,
                kernel.kern1.variance_unconstrained,
            )
        )
    )
