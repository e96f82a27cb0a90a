"""Bends that make a column's cells more nearly normal, and keep them where they may be.

    w(x) = g((x - c) / s),   g = arcsinh, log, inverse softplus or logit

Arcsinh is a straight line within s of the centre c and a logarithm far away, on both sides (Burbidge, Magee
and Robb 1988). With c the median and s two robust standard deviations it leaves the bulk of a column nearly
as it is. The others are for columns with bounds: no cell that comes back lies beyond these. Far from its
bound softplus is a straight line, where log makes a normal tail a heavy one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Bend = Literal["arcsinh", "log", "softplus", "logit"]
Numbers = NDArray[np.float64]

# Spreads per robust standard deviation: where the bend begins.
_WIDTH = 2.0
# A robust standard deviation is taken for at least this part of the usual one: of a column that is mostly
# one value it may be zero.
_LEAST_SPREAD = 0.05
# Nats of log likelihood that a bend must gain.
_CLEAR_GAIN = 3.0
# sinh and exp of more are no numbers.
_FARTHEST = 300.0
# Spreads of softplus to choose from, in standard deviations.
_SOFT = (0.3, 1.0)
# How near to its bound a cell may be, in spreads, before it counts as being there.
_NEAREST = 1e-12
# Quantiles whose distance says how far a column spreads, and that distance in a standard normal one.
_RANGES = ((0.25, 0.75, 1.349), (0.1, 0.9, 2.563))


def _logistic(w: Numbers) -> Numbers:
    return np.asarray(0.5 * (1 + np.tanh(w / 2)))


# For each bend g, its inverse, log g', and the same inverse and g itself of tensors.
_FORWARD: dict[Bend, Callable[[Numbers], Numbers]] = {
    "arcsinh": np.arcsinh,
    "log": lambda t: np.log(np.maximum(t, _NEAREST)),
    "softplus": lambda t: t + np.log(-np.expm1(-np.maximum(t, _NEAREST))),
    "logit": lambda t: np.log(np.maximum(t, _NEAREST)) - np.log(np.maximum(1 - t, _NEAREST)),
}
_BACKWARD: dict[Bend, Callable[[Numbers], Numbers]] = {
    "arcsinh": np.sinh,
    "log": np.exp,
    "softplus": lambda w: np.logaddexp(0.0, w),
    "logit": _logistic,
}
_LOG_SLOPE: dict[Bend, Callable[[Numbers], Numbers]] = {
    "arcsinh": lambda t: -0.5 * np.log1p(t**2),
    "log": lambda t: -np.log(np.maximum(t, _NEAREST)),
    "softplus": lambda t: -np.log(-np.expm1(-np.maximum(t, _NEAREST))),
    "logit": lambda t: -np.log(np.maximum(t, _NEAREST)) - np.log(np.maximum(1 - t, _NEAREST)),
}
_STRAIGHT: dict[Bend, Callable[[Tensor], Tensor]] = {
    "arcsinh": torch.sinh,
    "log": torch.exp,
    "softplus": lambda w: torch.logaddexp(torch.zeros_like(w), w),
    "logit": torch.sigmoid,
}
_BENT: dict[Bend, Callable[[Tensor], Tensor]] = {
    "arcsinh": torch.arcsinh,
    "log": torch.log,
    "softplus": lambda t: t + torch.log(-torch.expm1(-t)),
    "logit": torch.logit,
}


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
    """c, in the column's own units; the bound where the argument of log, softplus or logit is zero."""
    spread: float
    """s, likewise; positive, but for log and softplus of a column with an upper bound only."""
    bend: Bend = "arcsinh"
    """g."""

    @classmethod
    def choose(cls, observed: Numbers, lower: float | None = None, upper: float | None = None) -> Warp | None:
        """The bend of a column under which a normal distribution is clearly likeliest, None if under none.

        Args:
            observed: Its observed cells, `[n]`, of which at least two differ.
            lower: What no cell lies below, if anything.
            upper: What no cell lies above, likewise.
        """
        # In order, so that rounding errors of the sums do not depend on that of the rows.
        observed = np.sort(observed)
        if len(np.unique(observed)) < 3:
            return None
        gains = {warp: warp._gain(observed) for warp in _candidates(observed, lower, upper)}
        best = max(gains, key=lambda warp: gains[warp])
        return best if gains[best] > _CLEAR_GAIN else None

    def _gain(self, observed: Numbers) -> float:
        """Log likelihood of a normal distribution of the bent cells, less that of the cells as they are."""
        bent = float(self.forward(observed).std())
        if bent == 0:
            return -math.inf
        slopes = math.fsum(self.log_slope(observed))
        return len(observed) * math.log(float(observed.std()) / bent) + slopes

    @property
    def keeps_bounds(self) -> bool:
        """Whether what comes back lies within the bounds of the column, whatever it was."""
        return self.bend != "arcsinh"

    def forward(self, raw: Numbers) -> Numbers:
        """w(x) of cells in their own units."""
        return _FORWARD[self.bend]((raw - self.centre) / self.spread)

    def backward(self, bent: Numbers) -> Numbers:
        """The cells that `forward` bent; finite for any finite number."""
        straight = _BACKWARD[self.bend](np.clip(bent, -_FARTHEST, _FARTHEST))
        return straight * self.spread + self.centre

    def log_slope(self, raw: Numbers) -> Numbers:
        """Logarithm of |dw/dx|: what a log density of w has to be given to be one of x."""
        return _LOG_SLOPE[self.bend]((raw - self.centre) / self.spread) - math.log(abs(self.spread))


def _candidates(observed: Numbers, lower: float | None, upper: float | None) -> list[Warp]:
    """The bends that a column `[n]`, in ascending order, may have."""
    standard_deviation = float(observed.std())
    robust = [np.subtract(*np.quantile(observed, [high, low])) / unit for low, high, unit in _RANGES]
    spread = _WIDTH * max(*map(float, robust), _LEAST_SPREAD * standard_deviation)
    warps = [Warp(float(np.median(observed)), spread)]
    above, below = lower is not None and observed[0] > lower, upper is not None and observed[-1] < upper
    if above and below:
        warps.append(Warp(lower, upper - lower, "logit"))  # type: ignore[arg-type, operator]
    elif above and upper is None:
        warps += _one_sided(lower, standard_deviation)  # type: ignore[arg-type]
    elif below and lower is None:
        warps += _one_sided(upper, -standard_deviation)  # type: ignore[arg-type]
    return warps


def _one_sided(bound: float, spread: float) -> list[Warp]:
    return [Warp(bound, spread, "log"), *(Warp(bound, part * spread, "softplus") for part in _SOFT)]


@dataclass(frozen=True)
class InverseTransform:
    """From standardised cells of a bent column to g⁻¹(w), which is linear in the cells' own units, and back.

    Example:
        >>> inverse = InverseTransform(mean=0.0, scale=1.0, low=-1.0, high=2.0)
        >>> inverse.standardise(inverse(torch.tensor([0.5, 3.0])))
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
    bend: Bend = "arcsinh"
    """g."""

    def __call__(self, cells: Tensor) -> Tensor:
        """g⁻¹(w) of standardised cells, any shape."""
        return _STRAIGHT[self.bend]((cells * self.scale + self.mean).clamp(self.low, self.high))

    def standardise(self, numbers: Tensor) -> Tensor:
        """The standardised cells of such numbers."""
        return (_BENT[self.bend](numbers) - self.mean) / self.scale
