"""Pseudorandom numbers that are a function of seed, imputation, row, column and sweep alone.

Hashing these into the number makes an imputation independent of batch size, row order, device and worker,
makes `impute(m=5)` the first five of `impute(m=20)`, and touches no generator's state. The hash is the
finaliser of SplitMix64 (Steele, Lea and Flood, Fast splittable pseudorandom number generators, OOPSLA 2014).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


@dataclass(frozen=True)
class KeyedNoise:
    """Pseudorandom numbers of S imputations, from a seed below 2⁶³ and an int64 key per row, `[N]`."""

    seed: int
    keys: Tensor
    imputations: Sequence[int]

    def normal(self, *stream: int, rows: Tensor | None = None) -> Tensor:
        """Return standard normal numbers `[S, n]` of a stream, such as (sweep, column), at some rows."""
        return torch.special.ndtri(self.uniform(*stream, rows=rows))

    def uniform(self, *stream: int, rows: Tensor | None = None) -> Tensor:
        """Return uniform numbers on (0, 1), `[S, n]`: the normal CDF of those that `normal` returns."""
        keys = self.keys if rows is None else self.keys[rows]
        state = self._state(stream)
        return _between(_mix(self._of_paths ^ state)[:, None] + _mix(keys ^ state))

    def normals(self, stream: int, n: int) -> Tensor:
        """Return standard normal numbers `[S, N, n]` of the streams (stream, 0) to (stream, n - 1)."""
        states = [self._state((stream, number)) for number in range(n)]
        state = torch.tensor(states, dtype=torch.int64, device=self.keys.device)
        of_paths, of_rows = _mix(self._of_paths[:, None] ^ state), _mix(self.keys[:, None] ^ state)
        return torch.special.ndtri(_between(of_paths[:, None] + of_rows))

    def _state(self, stream: Sequence[int]) -> int:
        """Return the hash of seed and stream, a signed integer of 64 bits."""
        state = self.seed
        for number in stream:
            state = _mix_integer(state + (number + 1) * _GOLDEN)
        return _signed(state)

    @functools.cached_property
    def _of_paths(self) -> Tensor:
        """Hashes of the numbers of imputations, `[S]`."""
        paths = torch.as_tensor(list(self.imputations), dtype=torch.int64, device=self.keys.device)
        return _mix(paths + _signed(_GOLDEN))


def further_uniforms(uniform: Tensor, n: int) -> Tensor:
    """Return n uniform numbers on (0, 1) hashed from each of some uniform numbers `[...]`, `[..., n]`.

    They depend on the first 26 binary digits only: rounding of the last ones must not change them.
    """
    streams = torch.arange(1, n + 1, device=uniform.device) * _signed(_GOLDEN)
    digits = (uniform.double() * 2.0**26).long()
    return _between(digits[..., None] ^ _mix(streams)).to(uniform.dtype)


def _between(bits: Tensor) -> Tensor:
    """Return hashed bits as numbers on (0, 1): 52 bits, centred so that 0 and 1 cannot occur."""
    return _shift(_mix(bits), 12).double().add_(0.5).mul_(2.0**-52)


def _mix(x: Tensor) -> Tensor:
    """Return the SplitMix64 finaliser of 64-bit integers."""
    x = (x ^ _shift(x, 30)).mul_(_signed(_FIRST))
    x = x.bitwise_xor_(_shift(x, 27)).mul_(_signed(_SECOND))
    return x.bitwise_xor_(_shift(x, 31))


def _shift(x: Tensor, places: int) -> Tensor:
    """Shift signed 64-bit integers right as if they were unsigned."""
    return (x >> places).bitwise_and_((1 << (64 - places)) - 1)


def _mix_integer(x: int) -> int:
    """Return the SplitMix64 finaliser of a Python integer, modulo 2⁶⁴."""
    x %= 2**64
    x = (x ^ (x >> 30)) * _FIRST % 2**64
    x = (x ^ (x >> 27)) * _SECOND % 2**64
    return x ^ (x >> 31)


def _signed(number: int) -> int:
    """Return the signed 64-bit integer with the same bits."""
    return (number + 2**63) % 2**64 - 2**63
