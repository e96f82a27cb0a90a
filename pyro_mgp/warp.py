"""A bend that brings the tails of a column in.

    w(x) = arcsinh((x - c) / s)

is a straight line within s of the centre c and a logarithm far away, on both sides (Burbidge, Magee and Robb
1988). With c the median and s two robust standard deviations it leaves the bulk of a column nearly as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Spreads per robust standard deviation: where the bend begins.
_WIDTH = 2.0
# A robust standard deviation is taken for at least this part of the usual one: of a column that is mostly
# one value it may be zero.
_LEAST_SPREAD = 0.05
# Nats of log likelihood that a bend must gain.
_CLEAR_GAIN = 3.0
# sinh of more is no number.
_FARTHEST = 300.0
# Quantiles whose distance says how far a column spreads, and that distance in a standard normal one.
_RANGES = ((0.25, 0.75, 1.349), (0.1, 0.9, 2.563))


@dataclass(frozen=True)
class Warp:
    """The bend of one column.

    Example:
        >>> warp = Warp(centre=1.0, spread=2.0)
        >>> warp.forward(np.array([1.0, 3.0]))
        array([0.        , 0.88137359])
        >>> warp.backward(warp.forward(np.array([1.0, 3.0])))
        array([1., 3.])
    """

    centre: float
    """c, in the column's own units."""
    spread: float
    """s, likewise; positive."""

    @classmethod
    def choose(cls, observed: NDArray[np.float64]) -> Self | None:
        """The bend of a column if it makes a normal distribution clearly likelier, None if not.

        Args:
            observed: Its observed cells, `[n]`, of which at least two differ.
        """
        # In order, so that rounding errors of the sums do not depend on that of the rows.
        observed = np.sort(observed)
        standard_deviation = float(observed.std())
        robust = [np.subtract(*np.quantile(observed, [high, low])) / unit for low, high, unit in _RANGES]
        spread = _WIDTH * max(*map(float, robust), _LEAST_SPREAD * standard_deviation)
        warp = cls(float(np.median(observed)), spread)
        bent = float(warp.forward(observed).std())
        if len(np.unique(observed)) < 3 or bent == 0:
            return None
        slopes = math.fsum(warp.log_slope(observed)) / len(observed)
        gain = math.log(standard_deviation / bent) + slopes
        return warp if gain * len(observed) > _CLEAR_GAIN else None

    def forward(self, raw: NDArray[np.float64]) -> NDArray[np.float64]:
        """w(x) of cells in their own units."""
        return np.arcsinh((raw - self.centre) / self.spread)

    def backward(self, bent: NDArray[np.float64]) -> NDArray[np.float64]:
        """The cells that `forward` bent; finite for any finite number."""
        return np.sinh(np.clip(bent, -_FARTHEST, _FARTHEST)) * self.spread + self.centre

    def log_slope(self, raw: NDArray[np.float64]) -> NDArray[np.float64]:
        """Logarithm of dw/dx: what a log density of w has to be given to be one of x."""
        return -0.5 * np.log1p(((raw - self.centre) / self.spread) ** 2) - math.log(self.spread)


@dataclass(frozen=True)
class Unbent:
    """From standardised cells of a bent column to sinh w, which is linear in the cells' own units, and back.

    Example:
        >>> unbent = Unbent(mean=0.0, scale=1.0, low=-1.0, high=2.0)
        >>> unbent.back(unbent(torch.tensor([0.5, 3.0])))
        tensor([0.5000, 2.0000])
    """

    mean: float
    """Of the bent cells."""
    scale: float
    """Their standard deviation."""
    low: float
    """The smallest bent cell; what is below counts as this."""
    high: float
    """The largest, likewise."""

    def __call__(self, cells: Tensor) -> Tensor:
        """Sinh w of standardised cells, any shape."""
        return torch.sinh((cells * self.scale + self.mean).clamp(self.low, self.high))

    def back(self, unbent: Tensor) -> Tensor:
        """The standardised cells of such numbers."""
        return (torch.arcsinh(unbent) - self.mean) / self.scale
