"""The kernels of all links, read once and evaluated many times; in closed form where the kernel is ours.

Rows are rows of the whole table, `[n, D]`: the inducing inputs of a link stand in its own columns and are
zero elsewhere, so that no columns have to be gathered. With x̃ = (x, 1, Σ cₚxₚ²) and cₚ = 3/lengthscaleₚ²,

    r² = (-2cz, Σ cₚzₚ², 1)ᵀ x̃,    k(z, x) = s (1 + r) exp(-r) + (a z, a b, 0)ᵀ x̃

is the default kernel in two products and a few passes over the matrix, and its gradient two products more.
The passes work with ρ = r/unit, so that exp(-r) may be taken as a power of two where these come faster.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import platform
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

import pyro.contrib.gp.kernels as kernels
import torch
from pyro.contrib.gp.kernels import Kernel
from torch import Tensor

from pyro_mgp._support.tiles import whole_registers
from pyro_mgp.model.kernels import Matern32, Quadratic, matern32_of_square
from pyro_mgp.model.local_parameters import local_parameters, read

# Squared distance beyond which the Matérn kernel is zero to the last bit, by powers of e as of two.
_BEYOND = 1e8
# Squared distance that stands for zero, which has no reciprocal square root.
_NEAREST = 1e-30
# Entries of the largest matrix that is kept, 64 MB.
_LARGEST = 2**23
# Bytes. The C library of Linux gives freed memory back to the system at once, page by page, and asks for it
# again a moment later, unless it has seen a piece of this size come and go; 32 MiB is the most it takes.
_COME_AND_GO = 31 * 2**20


Total = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""What makes sums over all rows of sums over some."""


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
    columns: Sequence[Tensor]
    """The table as each of them sees it, by columns: `[D, n]` per link."""
    targets: Tensor
    """Values y of its column, `[G, n]`."""
    roots: Tensor | None = None
    """√w of the weight that each row has, `[G, n]`; None for one. Its target is √w times its own."""
    valid: Tensor | None = None
    """Bool `[G, n]`, which of the rows count where the numbers of rows differ; None for all."""
    n_sure: int = 0
    """So many rows from the first on count for all links; only the others need be looked at."""

    @property
    def links(self) -> slice:
        """Numbers of the links."""
        return slice(self.first, self.first + len(self.columns))


@dataclass(frozen=True)
class RowSums:
    """What a Gaussian bound needs of rows, or the gradients of a loss with respect to these.

    With φ = K_Zf, or φ = W K_Zf where the sums were asked for in whitened coordinates. A row with a weight
    counts that often.
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

    def twin(self, workspace: Workspace) -> Self:
        """The same kernels, at work on other rows at the same time; their gradients are added up."""
        twin = copy.copy(self)
        twin.workspace = workspace
        return twin

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
        for k, (columns, targets) in enumerate(zip(seen.columns, seen.targets, strict=True)):
            here = slice(None) if seen.valid is None else seen.valid[k]
            cross, variance = self.at(seen.first + k, columns.T[here])
            basis = cross.to(self.dtype)
            if seen.roots is not None:
                root = seen.roots[k][here]
                basis, variance = basis * root.to(self.dtype), variance * root.square()
            if inverse is not None:
                basis = inverse[k].to(self.dtype) @ basis
            products = basis @ basis.T, basis @ targets[here].to(self.dtype)
            parts.append((*(product.to(cross) for product in products), variance.sum()))
        self._sums = [torch.stack(part) for part in zip(*parts, strict=True)]
        return RowSums(*(part.detach() for part in self._sums))

    def pull(self, gradients: RowSums) -> None:
        """Take in the gradients of a loss with respect to the last sums."""
        send_back(zip(self._sums, [gradients.gram, gradients.projection, gradients.trace], strict=True))

    def pending(self, total: Total = list) -> list[tuple[Tensor, Tensor]]:
        """Tensors that depend on the parameters, and gradients of theirs still to be sent back from them.

        Args:
            total: Adds to gradients of the rows those of others' rows.
        """
        return []


def send_back(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Send gradients, of the tensors' shapes, to the parameters they depend on, if any learns."""
    # A sum that has these gradients: to take gradients as they are, torch first imports, for a third of a
    # second, a library that compares their shapes.
    with torch.enable_grad():
        sums = [(tensor * gradient).sum() for tensor, gradient in pairs if tensor.requires_grad]
        if sums:
            torch.stack(sums).sum().backward()


@dataclass(frozen=True)
class _Last:
    """What the gradient of the last sums needs."""

    here: slice
    inverse: Tensor | None
    decay: Tensor
    basis: Tensor
    augmented: Tensor
    squares: Tensor
    count: Tensor
    reach: Tensor
    fourth: Tensor
    roots: Tensor | None
    sums: RowSums


class LinearMatern32Stack(KernelStack):
    """A stack of `linear_matern32` kernels, whose numbers of inputs may differ; see `KernelStack`.

    Or of `linear_quadratic_matern32` kernels, which have c(z·x)² besides; their inducing inputs stay.

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
        # Of each link's inputs, in a row of all links' columns.
        self.places = torch.cat([inputs + i * self.width for i, (*_, inputs) in enumerate(self.links)])
        curved = _is_curved(self.links[0][0])
        both = [kernel.kern0 if curved else kernel for kernel, *_ in self.links]
        trends, bends = [kernel.kern0 for kernel in both], [kernel.kern1 for kernel in both]
        slope, bias = read(trends, "variance", torch.stack), read(trends, "bias", torch.stack)
        amplitude = read(bends, "variance", torch.stack)
        Z = self._placed([Xu for _, Xu, _ in self.links])
        self.is_input = self._placed([torch.ones_like(Xu[0]) for _, Xu, _ in self.links]).detach()
        self.unit = 1.0 if Z.device.type == "cpu" and roots_are_fast() else math.log(2)
        precision = 3 / self.unit**2 * self.is_input / read(bends, "lengthscale", self._placed).square()
        norm = (Z.square() * precision[:, None]).sum(-1, keepdim=True)
        one = torch.ones_like(norm)
        far = torch.cat([-2 * precision[:, None] * Z, norm, one], dim=-1)
        trend = torch.cat([Z, bias[:, None, None] * one, torch.zeros_like(one)], dim=-1)
        near = slope[:, None, None] * trend
        self.Z = torch.cat([Z, one, norm], dim=-1).mT
        log_amplitude = amplitude.log()
        curves = (
            [read([kernel.kern1 for kernel, *_ in self.links], "variance", torch.stack)] if curved else []
        )
        self.curve = curves[0] if curved else None
        self.along = Z.detach()
        self.roots = (far, near, precision, log_amplitude, slope, bias, *curves)
        self.gradients = [torch.zeros_like(root) for root in self.roots]
        # Of a row's squares: its distance from the origin, and its part of k(x, x).
        of_squares = torch.stack([precision, slope[:, None] * self.is_input], dim=1)
        # Taken apart once: the gradient of one entry after the other would add up whole stacks.
        each = (far, near, log_amplitude, of_squares, amplitude + slope * bias)
        self.each = list(zip(*(stack.unbind() for stack in each), strict=True))

    def among(self) -> Tensor:
        """See `KernelStack`."""
        far, near, _, log_amplitude, *_ = self.roots
        squared = self.unit**2 * (far @ self.Z)
        among = matern32_of_square(squared, log_amplitude[:, None, None]).baddbmm(near, self.Z)
        if self.curve is None:
            return among
        return among + self.curve[:, None, None] * (self.along @ self.along.mT).square()

    def at(self, number: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """See `KernelStack`."""
        far, near, log_amplitude, of_squares, at_origin = self.each[number]
        if torch.is_grad_enabled():
            columns = rows.T[: self.width]
            distance, variance = (of_squares @ columns.square()).split(1)
            augmented = torch.cat([columns, torch.ones_like(distance), distance])
            squared = self.unit**2 * (far @ augmented)
            cross = matern32_of_square(squared, log_amplitude).addmm(near, augmented)
            if self.curve is not None:
                cross = cross + self.curve[number] * (self.along[number] @ columns).square()
                norm = self.is_input[number] @ columns.square()
                variance = variance + self.curve[number] * norm.square()
            return cross, variance[0] + at_origin
        far, near, log_amplitude, of_squares = (
            part.to(self.dtype) for part in (far, near, log_amplitude, of_squares)
        )
        augmented = self.workspace.take("augmented", (1, self.width + 2, len(rows)), far)
        augmented[0, :-2] = rows.T[: self.width]
        augmented[0, -2] = 1.0
        columns = augmented[0, :-2]
        squares = self.workspace.take("squares", (self.width, len(rows)), far)
        distance, variance = of_squares @ torch.mul(columns, columns, out=squares)
        augmented[0, -1] = distance
        # Two matrices fit where three would fall out of a processor's cache.
        cross = self.workspace.take("distance", (1, len(far), len(rows)), far)
        self._fill(far[None], near[None], log_amplitude, augmented, cross)
        if self.curve is not None:
            self._add_curve(slice(number, number + 1), columns[None], cross)
            norm = self.is_input[number].to(squares) @ squares
            variance = variance + self.curve[number].to(columns) * norm.square()
        return cross[0], variance.to(at_origin) + at_origin

    @torch.no_grad()
    def sums(self, seen: Seen, inverse: Tensor | None = None) -> RowSums:
        """See `KernelStack`."""
        here = seen.links
        far, near, precision, log_amplitude, slope, bias = (root[here] for root in self.roots[:6])
        (n_links, n_rows), n_inducing = seen.targets.shape, far.shape[1]
        augmented = self.workspace.take("rows", (n_links, self.width + 2, n_rows), far)
        columns, one, distance = augmented.split([self.width, 1, 1], dim=1)
        torch.stack([own[: self.width] for own in seen.columns], out=columns)
        one.fill_(1.0)
        targets, count = seen.targets, torch.full_like(slope, n_rows)
        # Rows that do not count are put out of the kernels' reach: their covariances are exactly zero.
        doubtful, out = slice(seen.n_sure, None), None if seen.valid is None else ~seen.valid[:, None]
        if out is not None and seen.valid is not None:
            augmented[..., doubtful].masked_fill_(out[..., doubtful], 0.0)
            targets = targets.masked_fill(out[:, 0], 0.0)
            count = seen.valid.sum(1).to(columns)
        squares = columns.square()
        torch.bmm(precision[:, None], squares, out=distance)
        if out is not None:
            distance[..., doubtful].masked_fill_(out[..., doubtful], _BEYOND)
        within, roots = squares.sum(-1), seen.roots
        if roots is not None:
            roots = roots if out is None else roots.masked_fill(out[:, 0], 0.0)
            count, within = roots.square().sum(1), (squares @ roots.square()[:, :, None])[..., 0]
            roots = roots[:, None].to(self.dtype)
        reach = (within * self.is_input[here]).sum(-1)
        fourth = torch.zeros_like(slope)
        if self.curve is not None:
            weight = torch.ones_like(targets) if roots is None else roots[:, 0].to(targets).square()
            if out is not None:
                weight = weight.masked_fill(out[:, 0], 0.0)
            norm = (self.is_input[here][:, None].to(squares) @ squares)[:, 0]
            fourth = (weight * norm.square()).sum(-1)
        far, near, augmented, squares = (x.to(self.dtype) for x in (far, near, augmented, squares))
        # The targets stand below the matrix: one product gives both sums.
        basis = self.workspace.take("basis", (n_links, n_inducing + 1, n_rows), far)
        basis[:, -1] = targets
        decay = self._fill(far, near, log_amplitude[:, None, None].to(self.dtype), augmented, basis[:, :-1])
        self._add_curve(here, augmented[:, :-2], basis[:, :-1])
        if roots is not None:
            basis[:, :-1] *= roots
        if inverse is not None:
            inverse = inverse.to(self.dtype)
            basis[:, :-1] = inverse @ basis[:, :-1]
        products = gram(basis).to(slope)
        sums = RowSums(
            products[:, :-1, :-1],
            products[:, :-1, -1],
            log_amplitude.exp() * count + slope * (bias * count + reach),
        )
        if self.curve is not None:
            sums = dataclasses.replace(sums, trace=sums.trace + self.curve[here] * fourth)
        self._last = _Last(here, inverse, decay, basis, augmented, squares, count, reach, fourth, roots, sums)
        return sums

    @torch.no_grad()
    def pull(self, gradients: RowSums) -> None:
        """See `KernelStack`."""
        last, sums = self._last, self._last.sums
        _, near, _, log_amplitude, slope, bias = (root[last.here] for root in self.roots[:6])
        G = torch.cat([2 * gradients.gram, gradients.projection[:, :, None]], dim=-1)
        of_cross = self.workspace.take("distance", last.decay.shape, last.decay)
        torch.bmm(G.to(self.dtype), last.basis, out=of_cross)
        if last.inverse is not None:
            of_cross = last.inverse.mT @ of_cross
        if last.roots is not None:
            of_cross *= last.roots
        of_near = (last.augmented @ of_cross.mT).mT.to(near)
        # <∂/∂K, K> is the sum of the parts of K's two summands, and known without another pass.
        total = 2 * (gradients.gram * sums.gram).sum((-2, -1))
        total += (gradients.projection * sums.projection).sum(-1)
        of_curve: list[Tensor] = []
        if self.curve is not None:
            products = self.along[last.here].to(self.dtype) @ last.augmented[:, :-2]
            within_cross = (of_cross * products.square_()).sum((-2, -1)).to(total)
            total = total - within_cross * self.curve[last.here]
            of_curve = [within_cross + gradients.trace * last.fourth]
        of_square = of_cross.mul_(last.decay)
        of_far = (last.augmented @ of_square.mT).mT
        of_distance = of_square.sum(1)
        trace = gradients.trace
        parts = (
            -0.5 * self.unit**2 * of_far,
            of_near,
            -0.5 * self.unit**2 * (last.squares @ of_distance[:, :, None])[..., 0],
            total - (of_near * near).sum((-2, -1)) + trace * log_amplitude.exp() * last.count,
            trace * (bias * last.count + last.reach),
            trace * slope * last.count,
            *of_curve,
        )
        for whole, part in zip(self.gradients, parts, strict=True):
            whole[last.here] += part

    def pending(self, total: Total = list) -> list[tuple[Tensor, Tensor]]:
        """See `KernelStack`."""
        return list(zip(self.roots, total(self.gradients), strict=True))

    def _fill(self, far: Tensor, near: Tensor, log_amplitude: Tensor, rows: Tensor, cross: Tensor) -> Tensor:
        """Put K_Zf `[G, M, n]` at rows x̃ `[G, D + 2, n]` into `cross`; gives s exp(-r), in the workspace."""
        shape = (*far.shape[:2], rows.shape[-1])
        distance, decay = (self.workspace.take(name, shape, rows) for name in ("distance", "decay"))
        torch.bmm(far, rows, out=distance)
        if self.unit == 1:
            distance.clamp_(min=0).sqrt_()
            torch.sub(log_amplitude, distance, out=decay).exp_()
        else:
            # d/√d, because the reciprocal comes faster.
            torch.rsqrt(distance.clamp_(min=_NEAREST), out=decay)
            distance.mul_(decay)
            torch.sub(log_amplitude / self.unit, distance, out=decay).exp2_()
        torch.addcmul(decay, distance, decay, value=self.unit, out=cross).baddbmm_(near, rows)
        return decay

    def _add_curve(self, links: slice, columns: Tensor, cross: Tensor) -> None:
        """Add c(z·x)² to K_Zf `[G, M, n]` of some links, at rows given by columns `[G, D, n]`, in place."""
        if self.curve is None:
            return
        curve, along = (part[links].to(cross) for part in (self.curve, self.along))
        products = along @ columns
        torch.addcmul(cross, curve[:, None, None] * products, products, out=cross)

    def _placed(self, values: Sequence[Tensor]) -> Tensor:
        """Values per input, `[..., P]` of each link, in the columns of the table: `[L, ..., D]`."""
        together = torch.cat(tuple(values), dim=-1)
        places = together.new_zeros(*together.shape[:-1], len(values) * self.width)
        return places.index_copy(-1, self.places, together).unflatten(-1, (-1, self.width)).movedim(-2, 0)


def gram(rows: Tensor) -> Tensor:
    """AAᵀ `[..., M, M]` of A `[..., M, n]`: three quarters of the product, of which one is mirrored.

    Example:
        >>> gram(torch.ones(2, 3))
        tensor([[3., 3.],
                [3., 3.]])
    """
    half = whole_registers(rows.shape[-2] // 2)
    products = rows.new_empty(*rows.shape[:-1], rows.shape[-2])
    below = products[..., half:, :] = rows[..., half:, :] @ rows.mT
    if half:
        above = rows[..., :half, :]
        products[..., :half, :half] = above @ above.mT
        products[..., :half, half:] = below[..., :half].mT
    return products


# Any other set means that the user put priors on some of them.
_PARAMETERS = {
    "kern0.variance_unconstrained",
    "kern0.bias_unconstrained",
    "kern1.variance_unconstrained",
    "kern1.lengthscale_unconstrained",
}


@functools.cache
def roots_are_fast() -> bool:
    """Whether roots and powers of e come at the processor's best.

    PyTorch leaves them to Intel's vector library where it was built with that, which takes a slow way on
    processors of others: there reciprocal roots and powers of two, which PyTorch does itself, are faster.
    """
    if not torch.backends.mkl.is_available():
        return False
    listing = Path("/proc/cpuinfo")
    return "GenuineIntel" in (listing.read_text("utf-8") if listing.exists() else platform.processor())


def stack_kernels(links: Sequence[Inducing], dtype: torch.dtype = torch.float64) -> KernelStack:
    """The links' kernels in the fastest stack that fits; takes the arguments of `KernelStack`."""
    return fastest_stack(links)(links, dtype)


def fastest_stack(links: Sequence[Inducing]) -> type[KernelStack]:
    """The fastest stack that fits the links; to ask takes a tenth of the time of building it."""
    if links and all(_is_linear_matern32(link.kernel) for link in links):
        return LinearMatern32Stack
    if links and all(_is_curved(link.kernel) and not link.Xu.requires_grad for link in links):
        return LinearMatern32Stack
    return KernelStack


def _is_curved(kernel: Kernel) -> bool:
    """Whether a kernel has the structure, all inputs and free parameters of `linear_quadratic_matern32`."""
    return (
        type(kernel) is kernels.Sum
        and type(kernel.kern1) is Quadratic
        and kernel.kern1.active_dims == list(range(kernel.input_dim))
        and {name for name, _ in kernel.kern1.named_parameters()} == {"variance_unconstrained"}
        and kernel.kern1.variance_unconstrained.dim() == 0
        and _is_linear_matern32(kernel.kern0)
    )


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
