"""Numeric columns of few values, whose draws shall be among these: ratings, counts, doses, rounded readings.

    P(x = aⱼ) ∝ wⱼ exp(-λ (aⱼ - m)² / 2s²)          m, s²: what the link says of the cell

With wⱼ and λ equal to one this is a Gaussian looked at in the few places where the column has values. The
weights make rare values rare and frequent ones frequent, λ how sure the link may be. Both are those of a
multinomial logistic regression of observed cells on what the link, had it not seen them, says of each value.
Its log likelihood is concave; Newton's method finds the maximum in a few steps (Böhning 1992). Cells of each
value are taken alike, so that rare ones are there, and the weights corrected for it (Prentice and Pyke 1979).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_mgp.model.likelihoods import Quantity
from pyro_mgp.storage.untrusted import build

# Half squared distances in standard deviations, beyond the nearest value's, that count: an outlier shall
# neither be impossible nor decide the fit alone.
_FARTHEST = 30.0
# What the regression is shrunk by, in cells: weights to the column's shares, λ to one.
_WEIGHT_RIDGE, _SHARPNESS_RIDGE = 0.1, 5.0
_LEAST_SHARPNESS = 0.05
# So many cells hold λ where it is.
_FIXED = 1e12
_NEWTON_STEPS, _HALVINGS, _CONVERGED = 20, 8, 1e-8
_TINY = 1e-16


@dataclass(frozen=True)
class DiscreteSupport:
    """The values of a column, and how a link's predictions choose among them."""

    values: Tensor
    """aⱼ, `[J]`, ascending, standardised units."""
    log_weights: Tensor
    """log wⱼ, `[J]`."""
    sharpness: float
    """λ."""

    @classmethod
    def fit(
        cls, values: Tensor, observed: Tensor, mean: Tensor, variance: Tensor, shares: Tensor
    ) -> DiscreteSupport:
        """The weights and λ that suit cells which the link has not seen.

        Args:
            values: The column's values, `[J]`, ascending.
            observed: Cells, `[n]`, each one of them; the link's column has others, too.
            mean: What the link says of them, `[n]`.
            variance: How sure it is, `[n]`.
            shares: Of each value in the whole column, `[J]`, positive.
        """
        misfit = _misfit(values, mean, variance)
        chosen = nearest_value(values, observed)
        counts = torch.bincount(chosen, minlength=len(values)).to(values).clamp(min=1)
        here = (counts / counts.sum()).log()
        start = torch.cat([here, here.new_ones(1)])
        ridge = torch.cat([torch.full_like(here, _WEIGHT_RIDGE), start.new_tensor([_SHARPNESS_RIDGE])])
        found = _Regression(misfit, chosen, start, ridge).maximum()
        if found[-1] < _LEAST_SHARPNESS:
            start[-1], ridge[-1] = _LEAST_SHARPNESS, _FIXED
            found = _Regression(misfit, chosen, start, ridge).maximum()
        log_weights = found[:-1] + shares.log() - here
        return cls(values, log_weights, max(float(found[-1]), _LEAST_SHARPNESS))

    def log_probabilities(self, mean: Tensor, variance: Tensor) -> Tensor:
        """Of each value, `[..., J]`, where the link says N(mean, variance), both `[...]`."""
        return (self.log_weights - self.sharpness * _misfit(self.values, mean, variance)).log_softmax(-1)

    def draw(self, mean: Tensor, variance: Tensor, uniform: Tensor) -> Tensor:
        """Values drawn with these probabilities by uniform numbers, all `[...]`."""
        reached = self.log_probabilities(mean, variance).exp_().cumsum(-1) < uniform[..., None]
        return self.values[reached.sum(-1).clamp(max=len(self.values) - 1)]

    def expectation(self, mean: Tensor, variance: Tensor, of: Quantity | None = None) -> Tensor:
        """Their mean under these probabilities, or that of something that depends on them, `[...]`."""
        quantities = self.values if of is None else of(self.values)
        return self.log_probabilities(mean, variance).exp_() @ quantities

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict from which `from_dict` makes an equal one."""
        return {
            "values": self.values.tolist(),
            "log_weights": self.log_weights.tolist(),
            "sharpness": self.sharpness,
        }

    @classmethod
    def from_dict(cls, state: dict[str, Any], like: Tensor) -> DiscreteSupport:
        """What `to_dict` wrote, of the dtype and on the device of `like`.

        Raises:
            ValueError: It is none.
        """
        found: _Saved = build(_Saved, state, "discrete_support")
        ascending = list(found.values) == sorted(set(found.values))
        if not ascending or len(found.values) != len(found.log_weights) or found.sharpness <= 0:
            raise ValueError(
                "discrete_support: expected ascending values, a weight for each, and how sharp they are"
            )
        values, weights = (
            torch.tensor(each, dtype=torch.float64) for each in (found.values, found.log_weights)
        )
        return cls(values.to(like), weights.to(like), found.sharpness)


@dataclass(frozen=True)
class _Saved:
    """What `DiscreteSupport.to_dict` gives."""

    values: tuple[float, ...]
    log_weights: tuple[float, ...]
    sharpness: float


def nearest_value(values: Tensor, cells: Tensor) -> Tensor:
    """Which of J ascending values each cell `[n]` is closest to, `[n]`."""
    return torch.searchsorted((values[1:] + values[:-1]) / 2, cells.contiguous())


def some_of_each(chosen: Tensor, most: int) -> Tensor:
    """The first cells of each value in a column: numbers of at most so many of each.

    Args:
        chosen: Which value each cell has, `[n]`.
        most: Cells of a value at most.
    """
    order = chosen.argsort(stable=True)
    counts = torch.bincount(chosen)
    first = (counts.cumsum(0) - counts)[chosen[order]]
    rank = torch.arange(len(order), device=order.device) - first
    return order[rank < most]


def _misfit(values: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """(aⱼ - m)²/2s², less that of the nearest value, `[..., J]`."""
    halves = (values - mean[..., None]).square_().div_(2 * variance.clamp(min=_TINY)[..., None])
    return halves.sub_(halves.amin(-1, keepdim=True)).clamp_(max=_FARTHEST)


@dataclass(frozen=True)
class _Regression:
    """log P = parameters[:J] - parameters[J] · misfit, normalised; with a ridge."""

    misfit: Tensor
    """`[n, J]`."""
    chosen: Tensor
    """Which value each cell has, `[n]`."""
    start: Tensor
    """Where the ridge pulls to, `[J + 1]`."""
    ridge: Tensor
    """How strongly, `[J + 1]`."""

    def maximum(self) -> Tensor:
        """Newton's method, each step halved until it climbs."""
        parameters, height = self.start, self.height(self.start)
        for _ in range(_NEWTON_STEPS):
            step = self.newton_step(parameters)
            for _ in range(_HALVINGS):
                tried = self.height(parameters + step)
                if tried >= height:
                    break
                step = step / 2
            else:
                return parameters
            parameters, gain, height = parameters + step, tried - height, tried
            if gain < _CONVERGED * len(self.chosen):
                return parameters
        return parameters

    def log_probabilities(self, parameters: Tensor) -> Tensor:
        return (parameters[:-1] - parameters[-1] * self.misfit).log_softmax(-1)

    def height(self, parameters: Tensor) -> float:
        """Log likelihood less the ridge."""
        chosen = self.log_probabilities(parameters).gather(1, self.chosen[:, None]).sum()
        return float(chosen - (self.ridge * (parameters - self.start).square()).sum() / 2)

    def newton_step(self, parameters: Tensor) -> Tensor:
        """The step to the top of the parabola that touches at the parameters."""
        P = self.log_probabilities(parameters).exp_()
        expected = (P * self.misfit).sum(1, keepdim=True)
        own = self.misfit.gather(1, self.chosen[:, None])
        counts = torch.bincount(self.chosen, minlength=P.shape[1]).to(P)
        slope = torch.cat([counts - P.sum(0), (expected - own).sum()[None]])
        # Covariances of the indicators of the values, and of the misfit, under P, summed over cells.
        across = -(P * (self.misfit - expected)).sum(0)
        spread = (P * (self.misfit - expected).square()).sum()
        among = P.sum(0).diag() - P.T @ P
        curvature = torch.cat(
            [
                torch.cat([among, across[:, None]], dim=1),
                torch.cat([across, spread[None]])[None],
            ]
        )
        slope = slope - self.ridge * (parameters - self.start)
        return torch.linalg.solve(curvature + self.ridge.diag(), slope)
