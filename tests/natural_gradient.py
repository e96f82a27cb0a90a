"""Natural-gradient steps for q(u) = N(r, T Tᵀ).

With natural parameters θ = (S⁻¹ r, -S⁻¹/2) and expectation parameters η = (r, S + r rᵀ), S = T Tᵀ, the
natural gradient of the bound with respect to θ is its ordinary gradient with respect to η (Hensman,
Fusi and Lawrence 2013; Salimbeni, Eleftheriadis and Hensman 2018). A step of size 1 on full data under a
Gaussian likelihood reaches the optimum. Gradients come from autograd, for any bound; tests compare the steps
in closed form of the package with these.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributions import constraints, transform_to

_TO_TRIL = transform_to(constraints.lower_cholesky)
# Times that the step of a link is halved when its new precision is not positive definite.
_HALVINGS = 5


class HasParameters(Protocol):
    """Module with named parameters, such as a `torch.nn.Module`."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Iterate over names and parameters."""


@dataclass(frozen=True)
class VariationalPair:
    """Mean and covariance factor of one q(u), as unconstrained parameters."""

    loc: nn.Parameter
    """r, `[M]`."""
    tril: nn.Parameter
    """T in its unconstrained form (logarithms on the diagonal), `[M, M]`."""


def variational_pairs(module: HasParameters) -> list[VariationalPair]:
    """Return the q(u) of every submodule with parameters `u_loc` and `u_scale_tril`."""
    named = dict(module.named_parameters())
    prefixes = [n.removesuffix("u_loc_unconstrained") for n in named if n.endswith("u_loc_unconstrained")]
    return [
        VariationalPair(named[f"{p}u_loc_unconstrained"], named[f"{p}u_scale_tril_unconstrained"])
        for p in prefixes
    ]


@torch.no_grad()
def natural_step(pairs: Iterable[VariationalPair], step_size: float) -> None:
    """Move every q(u) by a natural-gradient step, given the gradients in `.grad` of its parameters.

    Args:
        pairs: Leaves after `loss.backward()`, the loss being the negative bound.
        step_size: 1 on full data; decaying on minibatches.
    """
    by_size: dict[int, list[VariationalPair]] = defaultdict(list)
    for pair in pairs:
        by_size[len(pair.loc)].append(pair)
    for group in by_size.values():
        loc, tril = _updated(
            torch.stack([p.loc for p in group]),
            torch.stack([p.tril for p in group]),
            torch.stack([_gradient(p.loc) for p in group]),
            torch.stack([_gradient(p.tril) for p in group]),
            step_size,
        )
        for pair, new_loc, new_tril in zip(group, loc, tril, strict=True):
            pair.loc.copy_(new_loc)
            pair.tril.copy_(new_tril)


def _gradient(leaf: nn.Parameter) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


def _updated(
    loc: Tensor, leaf: Tensor, loc_gradient: Tensor, leaf_gradient: Tensor, step_size: float
) -> tuple[Tensor, Tensor]:
    """Return the updated parameters of L links; all arguments `[L, M]` or `[L, M, M]`."""
    tril = _TO_TRIL(leaf)
    d1, d2 = _expectation_gradient(loc, tril, loc_gradient, leaf_gradient)
    precision = torch.cholesky_inverse(tril)
    size = torch.full_like(loc[:, :1], step_size)
    for _ in range(_HALVINGS):
        # The loss is the negative bound: θ₁ -= size ∂loss/∂η₁, θ₂ -= size ∂loss/∂η₂ with θ₂ = -precision/2.
        moved = precision + 2 * size[:, :, None] * d2
        factor, info = torch.linalg.cholesky_ex(moved)
        failed = (info > 0)[:, None]
        size = torch.where(failed, size / 2, size)
    size, keep = torch.where(failed, 0.0, size), failed[:, :, None]
    factor = torch.where(keep, torch.eye(loc.shape[1]).to(loc), factor)
    theta1 = (precision @ loc[:, :, None])[:, :, 0] - size * d1
    covariance = torch.cholesky_inverse(factor)
    new_loc = (covariance @ theta1[:, :, None])[:, :, 0]
    new_leaf = _TO_TRIL.inv(torch.linalg.cholesky(covariance))
    return torch.where(failed, loc, new_loc), torch.where(keep, leaf, new_leaf)


def _expectation_gradient(
    loc: Tensor, tril: Tensor, loc_gradient: Tensor, leaf_gradient: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradient with respect to η = (r, S + r rᵀ): ∂/∂η₂ = ∂/∂S, ∂/∂η₁ = ∂/∂r - 2 ∂/∂S r."""
    covariance = (tril @ tril.mT).requires_grad_()
    with torch.enable_grad():
        leaf = _TO_TRIL.inv(torch.linalg.cholesky(covariance))
        (d2,) = torch.autograd.grad(leaf, covariance, leaf_gradient)
    d2 = (d2 + d2.mT) / 2
    return loc_gradient - 2 * (d2 @ loc[:, :, None])[:, :, 0], d2
