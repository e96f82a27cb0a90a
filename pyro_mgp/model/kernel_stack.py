"""Kernels of all links of a chain in one stack, for sums over rows and their gradients.

The coefficients of a `Trend` are counted among the inducing values: their covariances with the function are
the features. M is the number of both.

Rows are rows of the whole table, `[n, D]`: a stack reads the inputs of each link from them.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from pyro.contrib.gp.kernels import Kernel
from torch import Tensor

from pyro_mgp.model.kernels import Matern32, matern32_of_square, trend_of
from pyro_mgp.model.local_parameters import local_parameters

# Entries of the largest matrix that is kept for reuse, 64 MB.
_LARGEST = 2**23
# Bytes. glibc returns large freed blocks to the system at once, and requests them again page by page, until a
# block of this size has been freed; its threshold grows to 32 MiB at most. Without it a training step takes
# 11 % longer on 300 rows, and 4 % on 2,000.
_COME_AND_GO = 31 * 2**20


Total = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""Function that adds up sums over the rows of several processes."""


class Inducing(Protocol):
    """Kernel and inducing inputs of a link, as a stack needs them."""

    kernel: Kernel
    """Covariance function over P inputs."""
    Xu: Tensor
    """Inducing inputs, `[M, P]`."""
    inputs: Tensor
    """Columns of the table that are the inputs, `[P]`."""
    width: int
    """Number of columns that a table must at least have to contain these inputs."""


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
    """Bool `[G, n]`, the rows that are not padding, if links differ in the number of rows; None for all."""
    n_sure: int = 0
    """Number of leading rows that are no padding for any link."""

    @property
    def links(self) -> slice:
        """Positions of the links in the chain."""
        return slice(self.first, self.first + len(self.columns))


@dataclass(frozen=True)
class RowSums:
    """Sums over rows in a Gaussian bound, or the gradients of a loss with respect to them.

    With φ = K_Zf, or φ = W K_Zf in whitened coordinates. Rows are weighted.
    """

    gram: Tensor
    """Gram matrices φφᵀ, `[G, M, M]`; their gradient is symmetric."""
    projection: Tensor
    """Products φy with the targets, `[G, M]`."""
    trace: Tensor
    """Sums t = Σ k(x, x) of the variances, `[G]`."""


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

    Args:
        links: The links; all have the same number M of inducing inputs.
        dtype: Floating type of the matrices of rows, where no gradient is needed. float32 halves their cost
            or better, but has too few digits for `sums` that are not whitened.
        workspace: Scratch memory of an earlier stack, for reuse.
    """

    def __init__(
        self,
        links: Sequence[Inducing],
        dtype: torch.dtype = torch.float64,
        workspace: Workspace | None = None,
    ) -> None:
        self.links = [(link.kernel, link.Xu, link.inputs) for link in links]
        self.parts = [trend_of(link.kernel) for link in links]
        self._read = dict[int, tuple[Tensor, Tensor, Tensor, Tensor]]()
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
        X = rows[:, inputs]
        if type(rest) is Matern32 and not torch.is_grad_enabled():
            scale, Z, norm, of_rest = self.matern32(number)
            cross = matern32_of_square(squares(norm, Z, X * scale), of_rest.log())
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
                scale, variance = (math.sqrt(3) / rest.lengthscale).expand(Xu.shape[1]), rest.variance
            Z = Xu * scale
            self._read[number] = scale, Z, Z.square().sum(1, keepdim=True), variance
        return self._read[number]

    @torch.enable_grad()
    def sums(self, seen: Seen, inverse: Tensor | None = None) -> RowSums:
        """Return the sums over rows in the bound for G links, whitened if W = L⁻¹ `[G, M, M]` is given."""
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
        """Propagate the gradients of a loss with respect to the last sums back to the kernels."""
        send_back(zip(self._sums, [gradients.gram, gradients.projection, gradients.trace], strict=True))

    def pending(self, total: Total = list) -> list[tuple[Tensor, Tensor]]:
        """Return tensors computed from the parameters, and their gradients, as arguments of `send_back`."""
        return []


def squares(norm: Tensor, Z: Tensor, X: Tensor) -> Tensor:
    """Return squared distances `[M, n]` of points `[n, P]` to points Z `[M, P]` with norms `[M, 1]`."""
    return torch.addmm(norm, Z, X.T, alpha=-2).add_(X.square().sum(1))


def send_back(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Propagate gradients of tensors back to the parameters that they depend on."""
    # The backward pass of a weighted sum: passing gradients to `backward` imports a library for their shapes,
    # which takes a third of a second.
    with torch.enable_grad():
        sums = [(tensor * gradient).sum() for tensor, gradient in pairs if tensor.requires_grad]
        if sums:
            torch.stack(sums).sum().backward()
