"""Kernels of all links of a chain in one stack, for sums over rows and their gradients.

The coefficients of a `Trend` are counted among the inducing values: their covariances with the function are
the features. M is the number of both.

Rows are rows of the whole table, `[n, D]`: a stack reads the inputs of each link from them.

The default kernel `linear_matern32` has a stack with gradients in closed form. There inducing inputs are
padded with zeros in the columns that are not inputs; no columns of the table have to be gathered. With
x̃ = (x, 1, Σ cₚxₚ²) and cₚ = 3/lengthscaleₚ²,

    r² = (-2cz, Σ cₚzₚ², 1)ᵀ x̃,    k(z, x) = s (1 + r) exp(-r) + (a z, a b, 0)ᵀ x̃

is that kernel in two products and a few passes over the matrix, and its gradient takes two more products.
The passes work with ρ = r / log 2, of which exp(-r) is a power of two.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from pyro.contrib.gp.kernels import Kernel, Polynomial, Sum
from torch import Tensor

from pyro_mgp._support.devices import rows_if_known
from pyro_mgp._support.tiles import whole_registers
from pyro_mgp.model.kernels import NEAREST, Matern32, matern32_of_square, squared_distances, trend_of
from pyro_mgp.model.local_parameters import local_parameters, read

# Entries of the largest matrix that is kept for reuse, 64 MB.
_LARGEST = 2**23
# Bytes. glibc returns large freed blocks to the system at once, and requests them again page by page, until a
# block of this size has been freed; its threshold grows to 32 MiB at most. Without it a training step takes
# 11 % longer on 300 rows, and 4 % on 2,000.
_COME_AND_GO = 31 * 2**20
# Squared distance at which the Matérn kernel underflows to zero.
_BEYOND = 1e8
# Unit of scaled distances r, for which exp(-r) is a power of two. PyTorch computes powers of two itself, and
# reciprocal roots; exponentials and square roots by MKL make a training step 7 % slower on AMD processors,
# and no faster on the code path of Intel's.
_UNIT = math.log(2)
# Dimensions of the free parameters of `linear_matern32`; a kernel with priors on some of them has others.
_PARAMETERS = {
    "kern0.variance_unconstrained": 0,
    "kern0.bias_unconstrained": 0,
    "kern1.variance_unconstrained": 0,
    "kern1.lengthscale_unconstrained": 1,
}

Total = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""Function that adds up sums over the rows of several processes."""


class Inducing(Protocol):
    """Kernel, inducing inputs `[M, P]` and input columns `[P]` of a link."""

    kernel: Kernel
    Xu: Tensor
    inputs: Tensor
    width: int
    """Number of columns that a table must at least have to contain the inputs."""


@dataclass(frozen=True)
class Seen:
    """Rows and targets of G consecutive links of the chain, without gradients."""

    first: int
    """Number of the first link."""
    columns: Sequence[Tensor]
    """Rows of the table when each link is evaluated, by columns: `[D, n]` per link."""
    targets: Tensor
    """Values y of each link's column, `[G, n]`."""
    roots: Tensor | None = None
    """Square roots √w of the rows' weights, `[G, n]`; None for ones. Targets are multiplied by √w."""
    valid: Tensor | None = None
    """Bool `[G, n]`, the rows that are not padding; None for all."""
    n_sure: int = 0
    """Number of leading rows that are no padding for any link."""

    @property
    def links(self) -> slice:
        """Positions of the links in the chain."""
        return slice(self.first, self.first + len(self.columns))

    def of(self, k: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return columns `[D, n]`, targets and roots `[n]` of a link; padding is left out, or has root 0."""
        columns, targets = self.columns[k], self.targets[k]
        root = None if self.roots is None else self.roots[k]
        if self.valid is None:
            return columns, targets, root
        if (here := rows_if_known(self.valid[k])) is None:
            valid = self.valid[k].to(targets)
            return columns, targets, valid if root is None else root * valid
        return columns[:, here], targets[here], None if root is None else root[here]


@dataclass(frozen=True)
class RowSums:
    """Sums over weighted rows, or a loss's gradients for them; φ is K_Zf, or W K_Zf if whitened."""

    gram: Tensor
    """Gram matrices φφᵀ, `[G, M, M]`; their gradient is symmetric."""
    projection: Tensor
    """Products φy with the targets, `[G, M]`."""
    trace: Tensor
    """Sums t = Σ k(x, x) of the variances, `[G]`."""


@dataclass(frozen=True)
class ColumnTerms:
    """How a link with a `Trend` and a Matérn kernel depends on the values of some columns of the table."""

    seen: Tensor
    """Positions, among these columns, of those that are inputs of the link, `[C]`."""
    own: Tensor
    """Their positions among the inputs, `[C]`."""
    slopes: Tensor
    """Change of the squared distances to Z with their scaled values and the sum of their squares,
    `[C + 1, M]`."""
    has_factor: Tensor
    factors: Tensor
    """See `Trend.factors`."""


class Workspace(threading.local):
    """Scratch matrices for reuse, one set per thread."""

    def __init__(self) -> None:
        self._flat: dict[str, Tensor] = {}
        torch.empty(_COME_AND_GO, dtype=torch.uint8)

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return an uninitialised matrix; it overwrites the one taken under this name before."""
        size = math.prod(shape)
        if size > _LARGEST:
            return like.new_empty(shape)
        flat = self._flat.get(name)
        if flat is None or len(flat) < size or flat.dtype != like.dtype or flat.device != like.device:
            flat = self._flat[name] = like.new_empty(size)
        return flat[:size].view(shape)


class KernelStack:
    """Stack of the kernels of L links, for any kernel of `pyro.contrib.gp`.

    All links have the same number M of inducing inputs. Matrices of rows have the `dtype` where no gradient
    is needed; float32 has too few digits for `sums` that are not whitened. A workspace may be used again.
    """

    def __init__(
        self,
        links: Sequence[Inducing],
        dtype: torch.dtype = torch.float64,
        workspace: Workspace | None = None,
    ) -> None:
        self.links = [(link.kernel, link.Xu, link.inputs) for link in links]
        self.parts = [trend_of(link.kernel) for link in links]
        self.n_features = [0 if trend is None else trend.n_features for trend, _ in self.parts]
        """Numbers of features of the links' trends."""
        self._read = dict[int, tuple[Tensor, Tensor, Tensor, Tensor]]()
        self._terms = dict[tuple[int, tuple[int, ...]], ColumnTerms]()
        self.dtype = dtype
        self.workspace = workspace or Workspace()

    def among(self) -> Tensor:
        """Return the covariances K_ZZ of every link's inducing inputs, `[L, M, M]`."""
        found = []
        for (trend, rest), (_, Xu, _) in zip(self.parts, self.links, strict=True):
            among = rest(Xu)
            if trend is not None:
                among = torch.block_diag(torch.eye(trend.n_features).to(among), among)
            found.append(among)
        return torch.stack(found)

    def at(self, number: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return K_Zf `[M, n]` and the variances k(x, x) `[n]` of one link, at rows of the table `[n, D]`."""
        features, cross, variance = self.apart(number, rows)
        if len(features):
            cross, variance = torch.cat([features, cross]), variance + features.square().sum(0)
        return (cross, variance) if torch.is_grad_enabled() else (cross.to(self.dtype), variance)

    def apart(self, number: int, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return features of the trend `[F, n]`, and K_Zf `[M, n]` and k(x, x) `[n]` of the rest."""
        (trend, rest), (_, Xu, inputs) = self.parts[number], self.links[number]
        X = rows.index_select(1, inputs)
        if type(rest) is Matern32 and not torch.is_grad_enabled():
            scale, Z, norm, of_rest = self.matern32(number)
            cross = matern32_of_square(squared_distances(norm, Z, X * scale), of_rest.log())
            variance = of_rest.expand(len(X))
        else:
            with local_parameters():
                cross, variance = rest(Xu, X), rest(X, diag=True)
        return X.new_zeros(0, len(X)) if trend is None else trend.features(X).T, cross, variance

    def matern32(self, number: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return √3/lengthscales `[P]`, scaled Z `[M, P]`, its squared norms `[M, 1]`, and the variance.

        The Matérn kernel is all of the link's kernel besides the trend.
        """
        if number not in self._read:
            (_, rest), (_, Xu, _) = self.parts[number], self.links[number]
            with local_parameters():
                own, variance = math.sqrt(3) / rest.lengthscale, rest.variance
            if len(rest.active_dims) == Xu.shape[1]:
                scale = own.expand(Xu.shape[1])
            else:  # others are the numbers of groups, see `Trend`
                scale = own.new_zeros(Xu.shape[1])
                scale[rest.active_dims] = own
            Z = Xu * scale
            self._read[number] = scale, Z, Z.square().sum(1, keepdim=True), variance
        return self._read[number]

    def of_columns(self, number: int, columns: tuple[int, ...]) -> ColumnTerms:
        """Return how a link with a `Trend` and a Matérn kernel depends on the values of some columns."""
        if (number, columns) not in self._terms:
            (trend, _), inputs = self.parts[number], self.links[number][2].tolist()
            assert trend is not None
            seen = [k for k, column in enumerate(columns) if column in inputs]
            own = [inputs.index(columns[k]) for k in seen]
            Z = self.matern32(number)[1]
            slopes = torch.cat([-2 * Z[:, own].T, torch.ones_like(Z[:, :1].T)])
            places = [torch.tensor(each, dtype=torch.long, device=Z.device) for each in (seen, own)]
            self._terms[number, columns] = ColumnTerms(places[0], places[1], slopes, *trend.factors(own))
        return self._terms[number, columns]

    @torch.enable_grad()
    def sums(self, seen: Seen, inverse: Tensor | None = None) -> RowSums:
        """Return the sums over rows in the bound for G links, whitened if W = L⁻¹ `[G, M, M]` is given."""
        parts = []
        for k in range(len(seen.columns)):
            columns, targets, root = seen.of(k)
            cross, variance = self.at(seen.first + k, columns.T)
            basis = cross.to(self.dtype)
            if root is not None:
                basis, variance = basis * root.to(self.dtype), variance * root.square()
            if inverse is not None:
                basis = inverse[k].to(self.dtype) @ basis
            products = basis @ basis.T, basis @ targets.to(self.dtype)
            parts.append((*(product.to(cross) for product in products), variance.sum()))
        self._sums = [torch.stack(part) for part in zip(*parts, strict=True)]
        return RowSums(*(part.detach() for part in self._sums))

    def pull(self, gradients: RowSums) -> None:
        """Propagate the gradients of a loss with respect to the last sums back to the kernels."""
        send_back(zip(self._sums, [gradients.gram, gradients.projection, gradients.trace], strict=True))

    def pending(self, total: Total = list) -> list[tuple[Tensor, Tensor]]:
        """Return tensors computed from the parameters, and their gradients, as arguments of `send_back`."""
        return []


def send_back(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Propagate gradients of tensors back to the parameters that they depend on."""
    # Of a weighted sum: passing gradients to `backward` imports a library, which takes a third of a second.
    with torch.enable_grad():
        sums = [(tensor * gradient).sum() for tensor, gradient in pairs if tensor.requires_grad]
        if sums:
            torch.stack(sums).sum().backward()


@dataclass(frozen=True)
class _Last:
    """Intermediate results of the last call of `sums`, kept for its gradient."""

    here: slice
    inverse: Tensor | None
    decay: Tensor
    basis: Tensor
    augmented: Tensor
    squares: Tensor
    count: Tensor
    reach: Tensor
    roots: Tensor | None
    sums: RowSums


class LinearMatern32Stack(KernelStack):
    """Stack of `linear_matern32` kernels, with any number of inputs per link; see `KernelStack`.

    Where no gradient is needed the matrices `[M, n]` are in a workspace: allocating memory costs more than
    the arithmetic. The result of `at` is then valid until the next call of `at` or `sums`, neither of which
    may be called between `sums` and its `pull`.
    """

    def __init__(self, links: Sequence[Inducing], *options: Any) -> None:
        super().__init__(links, *options)
        self.width = max(link.width for link in links)
        # Positions of each link's inputs in a vector of all columns for every link.
        self.places = torch.cat([inputs + i * self.width for i, (*_, inputs) in enumerate(self.links)])
        trends, materns = zip(*((kernel.kern0, kernel.kern1) for kernel, *_ in self.links), strict=True)
        slope, bias = read(trends, "variance", torch.stack), read(trends, "bias", torch.stack)
        amplitude = read(materns, "variance", torch.stack)
        Z = self._placed([Xu for _, Xu, _ in self.links])
        self.is_input = self._placed([torch.ones_like(Xu[0]) for _, Xu, _ in self.links]).detach()
        lengthscale = read(materns, "lengthscale", self._placed).where(self.is_input > 0, 1.0)
        precision = 3 / _UNIT**2 * self.is_input / lengthscale.square()
        norm = (Z.square() * precision[:, None]).sum(-1, keepdim=True)
        one = torch.ones_like(norm)
        far = torch.cat([-2 * precision[:, None] * Z, norm, one], dim=-1)
        trend = torch.cat([Z, bias[:, None, None] * one, torch.zeros_like(one)], dim=-1)
        near = slope[:, None, None] * trend
        self.Z = torch.cat([Z, one, norm], dim=-1).mT
        log_amplitude = amplitude.log()
        self.roots = (far, near, precision, log_amplitude, slope, bias)
        self.gradients = [torch.zeros_like(root) for root in self.roots]
        # Weights of a row's squares in its distance from the origin and in k(x, x).
        of_squares = torch.stack([precision, slope[:, None] * self.is_input], dim=1)
        # Unbound once: the gradient of indexing entry by entry would add up whole stacks.
        each = (far, near, log_amplitude, of_squares, amplitude + slope * bias)
        self.each = list(zip(*(stack.unbind() for stack in each), strict=True))

    def among(self) -> Tensor:
        """Return the covariances K_ZZ of every link's inducing inputs, `[L, M, M]`."""
        far, near, _, log_amplitude, *_ = self.roots
        squared = _UNIT**2 * (far @ self.Z)
        return matern32_of_square(squared, log_amplitude[:, None, None]).baddbmm(near, self.Z)

    def at(self, number: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return K_Zf `[M, n]` and the variances k(x, x) `[n]` of one link, at rows of the table `[n, D]`."""
        far, near, log_amplitude, of_squares, at_origin = self.each[number]
        if torch.is_grad_enabled():
            columns = rows.T[: self.width]
            distance, variance = (of_squares @ columns.square()).split(1)
            augmented = torch.cat([columns, torch.ones_like(distance), distance])
            squared = _UNIT**2 * (far @ augmented)
            cross = matern32_of_square(squared, log_amplitude).addmm(near, augmented)
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
        # Two matrices of this size fit into a processor's cache, three do not.
        cross = self.workspace.take("distance", (1, len(far), len(rows)), far)
        self._fill(far[None], near[None], log_amplitude, augmented, cross)
        return cross[0], variance.to(at_origin) + at_origin

    def apart(self, number: int, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return no features, and the result of `at`."""
        return rows.new_zeros(0, len(rows)), *self.at(number, rows)

    @torch.no_grad()
    def sums(self, seen: Seen, inverse: Tensor | None = None) -> RowSums:
        """Return the sums over rows in the bound for G links; see `KernelStack`."""
        here = seen.links
        far, near, precision, log_amplitude, slope, bias = (root[here] for root in self.roots)
        (n_links, n_rows), n_inducing = seen.targets.shape, far.shape[1]
        augmented = self.workspace.take("rows", (n_links, self.width + 2, n_rows), far)
        columns, one, distance = augmented.split([self.width, 1, 1], dim=1)
        torch.stack([own[: self.width] for own in seen.columns], out=columns)
        one.fill_(1.0)
        targets, count = seen.targets, torch.full_like(slope, n_rows)
        # Padding rows are moved beyond the reach of the kernels: their covariances are exactly zero.
        doubtful, out = slice(seen.n_sure, None), None if seen.valid is None else ~seen.valid[:, None]
        if out is not None:
            augmented[..., doubtful].masked_fill_(out[..., doubtful], 0.0)
            targets = targets.masked_fill(out[:, 0], 0.0)
            count = (~out).sum((1, 2)).to(columns)
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
        far, near, augmented, squares = (x.to(self.dtype) for x in (far, near, augmented, squares))
        # The targets are the last row of the matrix: one product gives both sums.
        basis = self.workspace.take("basis", (n_links, n_inducing + 1, n_rows), far)
        basis[:, -1] = targets
        decay = self._fill(far, near, log_amplitude[:, None, None].to(self.dtype), augmented, basis[:, :-1])
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
        self._last = _Last(here, inverse, decay, basis, augmented, squares, count, reach, roots, sums)
        return sums

    @torch.no_grad()
    def pull(self, gradients: RowSums) -> None:
        """Propagate the gradients of a loss with respect to the last sums back to the kernels."""
        last, sums = self._last, self._last.sums
        _, near, _, log_amplitude, slope, bias = (root[last.here] for root in self.roots)
        G = torch.cat([2 * gradients.gram, gradients.projection[:, :, None]], dim=-1)
        of_cross = self.workspace.take("distance", last.decay.shape, last.decay)
        torch.bmm(G.to(self.dtype), last.basis, out=of_cross)
        if last.inverse is not None:
            of_cross = last.inverse.mT @ of_cross
        if last.roots is not None:
            of_cross *= last.roots
        of_near = (last.augmented @ of_cross.mT).mT.to(near)
        # <∂/∂K, K> is the sum over the two summands of K, and follows from the sums without another pass.
        total = 2 * (gradients.gram * sums.gram).sum((-2, -1))
        total += (gradients.projection * sums.projection).sum(-1)
        of_square = of_cross.mul_(last.decay)
        of_far = (last.augmented @ of_square.mT).mT
        of_distance = of_square.sum(1)
        trace = gradients.trace
        parts = (
            -0.5 * _UNIT**2 * of_far,
            of_near,
            -0.5 * _UNIT**2 * (last.squares @ of_distance[:, :, None])[..., 0],
            total - (of_near * near).sum((-2, -1)) + trace * log_amplitude.exp() * last.count,
            trace * (bias * last.count + last.reach),
            trace * slope * last.count,
        )
        for whole, part in zip(self.gradients, parts, strict=True):
            whole[last.here] += part

    def pending(self, total: Total = list) -> list[tuple[Tensor, Tensor]]:
        """Return tensors computed from the parameters, and their gradients, as arguments of `send_back`."""
        return list(zip(self.roots, total(self.gradients), strict=True))

    def _fill(self, far: Tensor, near: Tensor, log_amplitude: Tensor, rows: Tensor, cross: Tensor) -> Tensor:
        """Write K_Zf `[G, M, n]` at rows x̃ `[G, D + 2, n]` into `cross`, and return s exp(-r)."""
        shape = (*far.shape[:2], rows.shape[-1])
        distance, decay = (self.workspace.take(name, shape, rows) for name in ("distance", "decay"))
        torch.bmm(far, rows, out=distance)
        # d/√d: the reciprocal square root is faster.
        torch.rsqrt(distance.clamp_(min=NEAREST), out=decay)
        distance.mul_(decay)
        torch.sub(log_amplitude / _UNIT, distance, out=decay).exp2_()
        torch.addcmul(decay, distance, decay, value=_UNIT, out=cross).baddbmm_(near, rows)
        return decay

    def _placed(self, values: Sequence[Tensor]) -> Tensor:
        """Spread values of each link's inputs, `[..., P]`, over the columns of the table: `[L, ..., D]`."""
        together = torch.cat(tuple(values), dim=-1)
        places = together.new_zeros(*together.shape[:-1], len(values) * self.width)
        return places.index_copy(-1, self.places, together).unflatten(-1, (-1, self.width)).movedim(-2, 0)


def gram(rows: Tensor) -> Tensor:
    """Return AAᵀ `[..., M, M]` of A `[..., M, n]`: three blocks are computed, the fourth is mirrored."""
    half = whole_registers(rows.shape[-2] // 2)
    products = rows.new_empty(*rows.shape[:-1], rows.shape[-2])
    below = products[..., half:, :] = rows[..., half:, :] @ rows.mT
    if half:
        above = rows[..., :half, :]
        products[..., :half, :half] = above @ above.mT
        products[..., :half, half:] = below[..., :half].mT
    return products


def stack_kernels(links: Sequence[Inducing], dtype: torch.dtype = torch.float64) -> KernelStack:
    """Return the links' kernels in the fastest stack that fits; takes the arguments of `KernelStack`."""
    return fastest_stack(links)(links, dtype)


def fastest_stack(links: Sequence[Inducing]) -> type[KernelStack]:
    """Return the fastest class of stacks that fits the links."""
    fits = all(_is_linear_matern32(link.kernel) for link in links)
    return LinearMatern32Stack if links and fits else KernelStack


def _is_linear_matern32(kernel: Kernel) -> bool:
    return (
        type(kernel) is Sum
        and type(kernel.kern0) is Polynomial
        and type(kernel.kern1) is Matern32
        and kernel.kern0.degree == 1
        and all(part.active_dims == list(range(kernel.input_dim)) for part in (kernel.kern0, kernel.kern1))
        and {name: parameter.dim() for name, parameter in kernel.named_parameters()} == _PARAMETERS
    )
