"""Cholesky factors L of covariance matrices K + jitter, L Lᵀ = K, and their inverses W = L⁻¹."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from pyro_mgp._support.tiles import TILE, whole_registers

_MAX_JITTER = 1e-2
# Size of the largest triangular matrix that is inverted by solving; larger ones are inverted block by block.
_SOLVED_AT_ONCE = 64


class NotPositiveDefiniteError(ValueError):
    """Error for a covariance matrix without Cholesky factor; `which` is its number in a batch."""

    def __init__(self, message: str, which: int = 0) -> None:
        super().__init__(message)
        self.which = which


@contextmanager
def naming(names: Sequence[str]) -> Iterator[None]:
    """Add the name of the failing column to a `NotPositiveDefiniteError` raised inside the context."""
    try:
        yield
    except NotPositiveDefiniteError as error:
        raise NotPositiveDefiniteError(f"column {names[error.which]!r}: {error}", error.which) from error


def factorise(covariance: Tensor, jitter: float = 1e-10, *, check: bool = True) -> Tensor:
    """Return the Cholesky factors of covariance matrices, raising the jitter tenfold until all succeed.

    The jitter is relative to the mean of the diagonal of each matrix, `[..., M, M]`. On a GPU a `check` of
    the factors makes the host wait for it.

    Raises:
        NotPositiveDefiniteError: If it is not finite, or not positive definite with a jitter of one per cent.
    """
    info: Tensor | None = None
    if covariance.is_cuda:
        factor = factorise_unchecked(covariance, jitter)
        if not check or factor.isfinite().all():
            return factor
        jitter, info = math.inf, ~factor.isfinite().all(-1).all(-1)
    while jitter <= _MAX_JITTER:
        factor, info = torch.linalg.cholesky_ex(_with_jitter(covariance, jitter))
        info = info.where(factor.diagonal(dim1=-2, dim2=-1).isfinite().all(-1), 1)
        if not info.any():
            return factor
        jitter *= 10
    raise NotPositiveDefiniteError(
        f"the covariance matrix of {covariance.shape[-1]} inducing inputs is not positive definite even with "
        f"{_MAX_JITTER:.0%} of its diagonal added; the kernel's parameters may have diverged: "
        "use a smaller learning rate or fewer inducing inputs, or leave out columns that repeat others",
        int((info != 0).flatten().int().argmax()) if info is not None else 0,
    )


def factorise_unchecked(covariance: Tensor, jitter: float) -> Tensor:
    """Return Cholesky factors with one per cent of jitter where the given one fails, NaN where both fail.

    Success is not checked, which would delay a GPU.
    """
    factor, info = torch.linalg.cholesky_ex(_with_jitter(covariance, jitter))
    last, last_info = torch.linalg.cholesky_ex(_with_jitter(covariance, _MAX_JITTER))
    last = last.masked_fill((last_info > 0)[..., None, None], torch.nan)
    return torch.where((info > 0)[..., None, None], last, factor)


def _with_jitter(covariance: Tensor, jitter: float) -> Tensor:
    scale = covariance.detach().diagonal(dim1=-2, dim2=-1).mean(-1)[..., None]
    return covariance + torch.diag_embed(jitter * scale.expand(covariance.shape[:-1]))


def invert(factors: Tensor, n_columns: int = 0) -> Tensor:
    """Return W = L⁻¹ of lower triangular factors `[..., M, M]`, by a solve for `n_columns` or more."""
    size = factors.shape[-1]
    identity = torch.eye(size, max(size, n_columns), dtype=factors.dtype, device=factors.device)
    return torch.linalg.solve_triangular(factors, identity, upper=False)[..., :size]


def invert_by_blocks(factors: Tensor) -> Tensor:
    """Return W = L⁻¹ of lower triangular factors `[..., M, M]`, block by block if they are large.

    The result has the same bits with up to four, six or eight threads: the columns of a triangular system are
    divided among the threads, and blocks of whole registers keep the order of the sums.
    """
    size = factors.shape[-1]
    if factors.is_cuda:
        return invert(factors)
    if size <= _SOLVED_AT_ONCE:
        return invert(factors, size + -size % TILE)
    half = whole_registers(size // 2)
    top, bottom = slice(None, half), slice(half, None)
    first, last = invert_by_blocks(factors[..., top, top]), invert_by_blocks(factors[..., bottom, bottom])
    inverse = torch.zeros_like(factors)
    inverse[..., top, top], inverse[..., bottom, bottom] = first, last
    inverse[..., bottom, top] = -last @ (factors[..., bottom, top] @ first)
    return inverse
