"""Gamma and Poisson variates as functions of uniform numbers in double precision, on any device.

PyTorch draws both from the state of a generator, so that a draw would depend on the size of its batch.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Steps of Newton's method, after which gamma quantiles are within 1e-6 of their size.
_STEPS = 2
# Largest shape: with larger ones the method loses digits, and variates hardly differ from the shape.
_LARGEST_SHAPE = 1e8
# The quantile less the expansion, rounded down, is in (-_BELOW, 2^_HALVINGS - _BELOW] for means up to 1e6 and
# uniform numbers in (1e-9, 1 - 1e-9).
_BELOW, _HALVINGS = 7, 4


@torch.no_grad()
def gamma_variates(shape: Tensor, uniform: Tensor, second: Tensor | None = None) -> Tensor:
    """Draw from the gamma distribution of a scalar shape, with the rate one, given uniform numbers `[...]`.

    With a shape of at least one they are quantiles at the first number, and no second one is needed.
    Otherwise, they are quantiles of the shape + 1 times a power of the second number (Marsaglia and Tsang,
    ACM Transactions on Mathematical Software 2000, section 6).

    Example:
        >>> uniform = torch.tensor([0.5, 0.9]).double()
        >>> gamma_variates(torch.tensor(2.0), uniform).round(decimals=3)
        tensor([1.6780, 3.8900], dtype=torch.float64)
    """
    small = shape < 1
    large = torch.where(small, shape + 1, shape).clamp(max=_LARGEST_SHAPE)
    # By Newton's method from the approximation of Wilson and Hilferty, in which the cube root is normal, or
    # from a lower bound, which is close where quantiles are small: P(a, x) <= x^a / Γ(a + 1).
    normal = torch.special.ndtri(uniform)
    least = ((uniform.log() + (large + 1).lgamma()) / large - large.log()) / 3
    root = torch.maximum(1 - 1 / (9 * large) + normal / (3 * large.sqrt()), least.exp())
    constant = large * large.log() - large.lgamma() + math.log(3 * math.sqrt(2 * math.pi))
    for _ in range(_STEPS):
        found = torch.special.ndtri(torch.special.gammainc(large, large * root**3))
        log_slope = constant + (3 * large - 1) * root.log() - large * root**3 + found.square() / 2
        root = torch.maximum(root - (found - normal) / log_slope.exp(), least.exp())
    drawn = large * root**3
    return drawn if second is None else drawn * torch.where(small, (second.log() / shape).exp(), 1)


@torch.no_grad()
def poisson_quantiles(mean: Tensor, uniform: Tensor) -> Tensor:
    """Return quantiles of Poisson distributions at uniform numbers, both `[...]`.

    They are found by bisection near three terms of the expansion of Cornish and Fisher (Johnson, Kemp and
    Kotz, Univariate Discrete Distributions, section 4.5).

    Example:
        >>> poisson_quantiles(torch.tensor([0.5, 20.0]).double(), torch.tensor([0.6, 0.99]).double())
        tensor([ 0., 31.], dtype=torch.float64)
    """
    normal = torch.special.ndtri(uniform)
    low = (mean + normal * mean.sqrt() + (normal.square() - 1) / 6).floor() - _BELOW
    for halving in reversed(range(_HALVINGS)):
        middle = low + 2**halving
        below = torch.special.gammaincc(middle.clamp(min=0) + 1, mean) < uniform
        low = torch.where((middle < 0) | below, middle, low)
    return low + 1
