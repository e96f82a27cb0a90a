"""Discrete support: numeric columns with few different values, such as ratings, counts or rounded readings.

    P(x = aⱼ) ∝ wⱼ exp(-λ (aⱼ - m)² / 2s²)          m, s²: predictive mean and variance of the cell

The weights wⱼ correct the frequencies of the values, the sharpness λ the precision of the prediction. They
are the parameters of a multinomial logistic regression of observed cells on their leave-one-out predictions,
whose concave log likelihood is maximised by Newton's method (Böhning 1992). The regression uses about equally
many cells of each value, and corrects the weights for this selection (Prentice and Pyke 1979).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_mgp.model.likelihoods import Quantity
from pyro_mgp.model.likelihoods.levels import nearest_value
from pyro_mgp.storage.untrusted import build, check

# Largest difference of half squared standardised distances from that of the nearest value, which bounds the
# influence of outliers.
_FARTHEST = 30.0
# Strength of the ridge, in cells: weights shrink to the column's frequencies, λ to one. The third fixes λ.
_WEIGHT_RIDGE, _SHARPNESS_RIDGE, _FIXED = 0.1, 5.0, 1e12
_MIN_SHARPNESS = 0.05
_NEWTON_STEPS, _HALVINGS, _CONVERGED = 20, 8, 1e-8
_TINY = 1e-16
_SAVED = {"values": list[float], "log_weights": list[float], "sharpness": float}


@dataclass(frozen=True)
class DiscreteSupport:
    """Distribution over the few different values of a numeric column, given a link's prediction."""

    values: Tensor  # values aⱼ, `[J]`, ascending, standardised units
    log_weights: Tensor  # log weights log wⱼ, `[J]`
    sharpness: float  # sharpness λ

    @classmethod
    def fit(
        cls, values: Tensor, observed: Tensor, mean: Tensor, variance: Tensor, shares: Tensor
    ) -> DiscreteSupport:
        """Estimate weights and λ from leave-one-out predictions, mean and variance, of n observed cells.

        The column's ascending values have positive frequencies `shares` in the whole column, both `[J]`.
        """
        misfit = _misfit(values, mean, variance)
        chosen = nearest_value(values, observed)
        counts = torch.bincount(chosen, minlength=len(values)).to(values).clamp(min=1)
        of_sample = (counts / counts.sum()).log()
        start = torch.cat([of_sample, of_sample.new_ones(1)])
        ridge = torch.cat([torch.full_like(of_sample, _WEIGHT_RIDGE), start.new_tensor([_SHARPNESS_RIDGE])])
        found = _Regression(misfit, chosen, start, ridge).maximum()
        if found[-1] < _MIN_SHARPNESS:
            start[-1], ridge[-1] = _MIN_SHARPNESS, _FIXED
            found = _Regression(misfit, chosen, start, ridge).maximum()
        log_weights = found[:-1] + shares.log() - of_sample
        return cls(values, log_weights, max(float(found[-1]), _MIN_SHARPNESS))

    def log_probabilities(self, mean: Tensor, variance: Tensor) -> Tensor:
        """Return log probabilities `[..., J]` of the values given predictions N(mean, variance), `[...]`."""
        return (self.log_weights - self.sharpness * _misfit(self.values, mean, variance)).log_softmax(-1)

    def log_prob(self, cells: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Return log probabilities of cells `[n]` given predictions N(mean, variance), all `[..., n]`."""
        chosen = nearest_value(self.values, cells).expand(mean.shape)
        return self.log_probabilities(mean, variance).gather(-1, chosen[..., None])[..., 0]

    def draw(self, mean: Tensor, variance: Tensor, uniform: Tensor) -> Tensor:
        """Draw values by inverting the distribution function at uniform numbers, all `[...]`."""
        reached = self.log_probabilities(mean, variance).exp_().cumsum(-1) < uniform[..., None]
        return self.values[reached.sum(-1).clamp(max=len(self.values) - 1)]

    def expectation(self, mean: Tensor, variance: Tensor, of: Quantity | None = None) -> Tensor:
        """Return the expectation of the values, or of a function `of` them, `[...]`."""
        quantities = self.values if of is None else of(self.values)
        return self.log_probabilities(mean, variance).exp_() @ quantities

    def to_dict(self) -> dict[str, Any]:
        """Return the distribution as a dict that JSON can hold and `from_dict` reads."""
        values, log_weights = self.values.tolist(), self.log_weights.tolist()
        return {"values": values, "log_weights": log_weights, "sharpness": self.sharpness}

    @classmethod
    def from_dict(cls, state: dict[str, Any], like: Tensor) -> DiscreteSupport:
        """Restore the output of `to_dict` on the device of `like`; raise a ValueError if a field is wrong."""
        values, weights, sharpness = (build(kind, state.get(name), name) for name, kind in _SAVED.items())
        right = values == sorted(set(values)) and len(values) == len(weights) and sharpness > 0
        expected = "ascending values, weights and a positive sharpness"
        check(right and state.keys() == _SAVED.keys(), f"discrete_support: expected {expected}")
        values, weights = torch.tensor([values, weights], dtype=torch.float64).to(like)
        return cls(values, weights, sharpness)


def first_of_each(chosen: Tensor, most: int) -> Tensor:
    """Select the first `most` cells of each value, given the index of each cell's value."""
    order = chosen.argsort(stable=True)
    counts = torch.bincount(chosen)
    first = (counts.cumsum(0) - counts)[chosen[order]]
    rank = torch.arange(len(order), device=order.device) - first
    return order[rank < most]


def _misfit(values: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Return half squared standardised distances (aⱼ - m)²/2s² minus the smallest one, `[..., J]`."""
    halves = (values - mean[..., None]).square_().div_(2 * variance.clamp(min=_TINY)[..., None])
    return halves.sub_(halves.amin(-1, keepdim=True)).clamp_(max=_FARTHEST)


@dataclass(frozen=True)
class _Regression:
    """Multinomial ridge regression with log P = parameters[:J] - parameters[J] · misfit + constant.

    Shapes: `misfit` `[n, J]`, `chosen` `[n]`, centre `start` and strength `ridge` of the ridge `[J + 1]`.
    """

    misfit: Tensor
    chosen: Tensor
    start: Tensor
    ridge: Tensor

    def maximum(self) -> Tensor:
        """Return the parameters of largest objective, by Newton's method with step halving."""
        parameters, objective = self.start, self.objective(self.start)
        for _ in range(_NEWTON_STEPS):
            step = self.newton_step(parameters)
            for _ in range(_HALVINGS):
                tried = self.objective(parameters + step)
                if tried >= objective:
                    break
                step = step / 2
            else:
                return parameters
            parameters, gain, objective = parameters + step, tried - objective, tried
            if gain < _CONVERGED * len(self.chosen):
                return parameters
        return parameters

    def log_probabilities(self, parameters: Tensor) -> Tensor:
        """Return the log probabilities of all values for each cell, `[n, J]`."""
        return (parameters[:-1] - parameters[-1] * self.misfit).log_softmax(-1)

    def objective(self, parameters: Tensor) -> float:
        """Return the log likelihood minus the ridge penalty."""
        chosen = self.log_probabilities(parameters).gather(1, self.chosen[:, None]).sum()
        return float(chosen - (self.ridge * (parameters - self.start).square()).sum() / 2)

    def newton_step(self, parameters: Tensor) -> Tensor:
        """Return the Newton step at the parameters."""
        P = self.log_probabilities(parameters).exp_()
        expected = (P * self.misfit).sum(1, keepdim=True)
        own = self.misfit.gather(1, self.chosen[:, None])
        counts = torch.bincount(self.chosen, minlength=P.shape[1]).to(P)
        gradient = torch.cat([counts - P.sum(0), (expected - own).sum()[None]])
        # Covariances of the indicators of the values, and of the misfit, under P, summed over cells.
        across = -(P * (self.misfit - expected)).sum(0)
        spread = (P * (self.misfit - expected).square()).sum()
        among = P.sum(0).diag() - P.T @ P
        last = torch.cat([across, spread[None]])[None]
        curvature = torch.cat([torch.cat([among, across[:, None]], 1), last])
        gradient = gradient - self.ridge * (parameters - self.start)
        return torch.linalg.solve(curvature + self.ridge.diag(), gradient)
