"""Missing cells that are known to lie between limits; see `data.limits`.

Limits of a table are a tensor `[n, D, 2]`, lower and upper ones in standardised units, infinite for none, or
None if no cell has one. A limited cell has the density p(x | f) within its limits and zero outside, from
which its link learns.
"""

from __future__ import annotations

import torch
from torch import Tensor


def informative_cells(observed: Tensor, limits: Tensor | None) -> Tensor:
    """Return the cells that are observed or have a limit, Bool `[n, D]`."""
    return observed if limits is None else observed | is_limited(limits)


def is_limited(limits: Tensor) -> Tensor:
    """Return the cells with a limit, given limits `[..., 2]`, Bool `[...]`."""
    return limits.isfinite().any(-1)


def clamped(values: Tensor, observed: Tensor, limits: Tensor | None) -> Tensor:
    """Return tables `[..., n, D]` with missing cells moved to the nearest number within their limits."""
    if limits is None:
        return values
    lower, upper = limits.unbind(-1)
    return values.where(observed, values.clamp(lower, upper))


def log_within(values: Tensor, limits: Tensor) -> Tensor:
    """Return zero for values `[...]` within limits `[..., 2]`, minus infinity for others."""
    lower, upper = limits.unbind(-1)
    inside = (values >= lower) & (values <= upper)
    return torch.zeros_like(values).masked_fill(~inside, -torch.inf)
