"""Standard normal numbers that depend on what they are for, and on nothing else.

A draw belongs to (seed, imputation, row, column, sweep). Hashing these into the number makes an imputation
independent of batch size, row order, device and worker, makes `impute(m=5)` the first five of
`impute(m=20)`, and touches no generator's state. The hash is the finaliser of SplitMix64 (Steele, Lea and
Flood, *Fast splittable pseudorandom number generators*, OOPSLA 2014).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


@dataclass(frozen=True)
class KeyedNoise:
    """Noise of some imputations at some rows.

    Example:
        >>> noise = KeyedNoise(0, torch.arange(3), range(2))
        >>> bool((noise.normal(4, 1) == KeyedNoise(0, torch.arange(3), range(2)).normal(4, 1)).all())
        True
    """

    seed: int
    """Any integer below 2⁶³."""
    keys: Tensor
    """One int64 per row, `[N]`."""
    imputations: Sequence[int]
    """Numbers of the imputations, S of them."""

    def normal(self, *stream: int, rows: Tensor | None = None) -> Tensor:
        """Standard normal numbers `[S, n]` of one stream, e.g. (sweep, column), at `rows` (default: all)."""
        return torch.special.ndtri(self.uniform(*stream, rows=rows))

    def uniform(self, *stream: int, rows: Tensor | None = None) -> Tensor:
        """Numbers uniform on (0, 1), `[S, n]`; the arguments of `normal`, whose ranks they are."""
        keys = self.keys if rows is None else self.keys[rows]
        state = torch.tensor(_signed(self.seed), device=keys.device)
        for number in stream:
            state = _mix(state + _signed((number + 1) * _GOLDEN))
        paths = torch.as_tensor(list(self.imputations), device=keys.device)
        per_path = _mix(state ^ _mix(paths + _signed(_GOLDEN)))
        bits = _mix(per_path[:, None] + _mix(keys ^ state)[None, :])
        # 52 bits, centred in their interval so that 0 and 1 cannot occur.
        return (_shift(bits, 12).double() + 0.5) * 2.0**-52


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _signed(_FIRST)
    x = (x ^ _shift(x, 27)) * _signed(_SECOND)
    return x ^ _shift(x, 31)


def _shift(x: Tensor, places: int) -> Tensor:
    """Logical shift right: torch has signed 64-bit integers only."""
    return (x >> places) & ((1 << (64 - places)) - 1)


def _signed(number: int) -> int:
    """The signed 64-bit integer with the same bits."""
    return (number + 2**63) % 2**64 - 2**63
