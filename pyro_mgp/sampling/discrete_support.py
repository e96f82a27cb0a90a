"""Discrete support: columns with few different values, such as ratings, rounded readings or levels.

    P(x = aⱼ) ∝ wⱼ qⱼ^α (pⱼ / fⱼ)^β (1 + (aⱼ - m)² / s²)^-λ exp(γ aⱼ m / (s² + v)),
    pⱼ = (nⱼ + fⱼ) / (Σ nⱼ + 1)

m and s² are the predictive mean and variance of the cell, v the mean of such variances, fⱼ the frequency of a
value in the column, and pⱼ its frequency among the neighbours of the cell, where it occurs nⱼ times, weighted
by the correlations of the local GP: a mean between two values may be that of neighbours which have either.
The weights wⱼ correct the frequencies of the values, the sharpness λ the precision of the prediction, and the
locality β the frequencies among neighbours. Ordered values and levels also have the probabilities qⱼ of their
likelihood, under the sparse GP, with exponent α, which is zero for numbers. All these are the parameters of a
multinomial logistic regression of observed cells on their leave-one-out predictions, whose concave log
likelihood is maximised by Newton's method (Böhning 1992).

Tails are those of a Student distribution: under a normal one a few cells with a far too small s² decide λ,
which becomes so small that frequencies replace predictions. The slope γ of numbers makes expected values as
steep in m as the observed ones are. If they were less steep, sweeps would repeat it, and correlations of the
completed table would be attenuated.

In a joint density functions are drawn given the completed table, and a number x has mean m and variance s²
given the drawn function. Its distribution is then the normal one of its link on the values of the column,

    P(x = aⱼ) ∝ wⱼ N(aⱼ; m, v),

with weights estimated from observed cells given drawn functions. The variance v is the mean of such s²: with
that of each draw, values far from the mean would be the more frequent the larger s², and s² the larger the
more frequent they are. (Expected values of the regression above are as steep as leave-one-out predictions ask
for, which are too steep themselves where functions have large errors; drawn functions have these already. Of
eight items with five values, a fifth of the cells missing, correlations were attenuated by a twentieth; see
`benchmarks/coverage`.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pyro_mgp.model.likelihoods import LocalObservation, Quantity
from pyro_mgp.model.likelihoods.levels import nearest_value
from pyro_mgp.storage.untrusted import build, check

# Largest difference of log(1 + (a - m)²/s²), or of (a - m)²/2s², from that of the nearest value, which bounds
# the influence of outliers.
_FARTHEST = 8.0
# Strength of the ridge, in cells: of numbers weights shrink to the column's frequencies, λ to one, β and γ to
# zero; of levels to one, α to one, λ and β to zero, which leaves qⱼ. The third fixes a coefficient.
_WEIGHT_RIDGE, _SLOPE_RIDGE, _FIXED = 0.1, 5.0, 1e12
# Strength of the ridge of a normal support, whose weights shrink to one, in cells of four draws: with .1 the
# rare value of a table of 44 rows got a weight of 8 and became frequent.
_NORMAL_RIDGE = 8.0
# Prior means and lower bounds of λ, β, α and γ of numbers, and those of levels.
_EXPECTED, _LEAST = (1.0, 0.0, 0.0, 0.0), (0.05, 0.0, 0.0, 0.0)
_EXPECTED_OF_LEVELS, _LEAST_OF_LEVELS = (0.0, 0.0, 1.0, 0.0), (0.0, 0.0, 0.0, 0.0)
_NEWTON_STEPS, _HALVINGS, _CONVERGED = 20, 8, 1e-8
_TINY = 1e-16
# Smallest frequency in a file.
_LEAST_FREQUENCY = 1e-12
_SAVED = {
    "values": list[float],
    "log_weights": list[float],
    "frequencies": list[float],
    "sharpness": float,
    "locality": float,
    "trust": float,
    "slope": float,
    "typical_variance": float,
    "is_normal": bool,
}


@dataclass(frozen=True)
class DiscreteSupport(LocalObservation):
    """Distribution over the few different values of a column, given a link's prediction."""

    values: Tensor  # values aⱼ, `[J]`, ascending, standardised units
    log_weights: Tensor  # log weights log wⱼ, `[J]`; with local frequencies those of each cell, `[..., J]`
    frequencies: Tensor  # frequencies fⱼ of the values in the column, `[J]`
    sharpness: float  # sharpness λ
    locality: float = 0.0  # locality β
    trust: float = 0.0  # exponent α of the probabilities under the sparse GP; 0 for numbers
    slope: float = 0.0  # slope γ, which makes expected values steeper in the mean; 0 for levels
    typical_variance: float = 1.0  # mean variance v of predictions
    is_normal: bool = False  # whether the tails are normal, instead of those of a Student distribution

    @classmethod
    def fit_normal(
        cls, values: Tensor, observed: Tensor, mean: Tensor, variance: Tensor, frequencies: Tensor
    ) -> DiscreteSupport:
        """Estimate the weights of normal distributions of n cells, given their means and variances."""
        typical = variance.mean().clamp(min=_TINY)
        features = -_normal_misfit(values, mean, typical)[..., None]
        start = torch.cat([torch.zeros_like(values), values.new_ones(1)])
        ridge = torch.full_like(start, _NORMAL_RIDGE)
        ridge[-1] = _FIXED
        found = _Regression(features, nearest_value(values, observed), start, ridge).maximum()
        typical_variance = float(typical)
        return cls(values, found[:-1], frequencies, 1.0, typical_variance=typical_variance, is_normal=True)

    @classmethod
    def fit(
        cls,
        values: Tensor,
        observed: Tensor,
        mean: Tensor,
        variance: Tensor,
        frequencies: Tensor,
        counts: Tensor | None = None,
        levels: Tensor | None = None,
    ) -> DiscreteSupport:
        """Estimate weights and exponents from leave-one-out predictions, mean and variance, of n cells.

        The column's ascending values have positive `frequencies` in the whole column, both `[J]`. Without
        `counts` of the values among neighbours, `[n, J]`, β is zero. `levels` are log probabilities of the
        values under the sparse GP, `[n, J]`; None for numbers.
        """
        nothing = mean.new_zeros(len(mean), len(values))
        local = nothing if counts is None else _log_ratio(counts, frequencies)
        typical = variance.mean().clamp(min=_TINY)
        linear = (mean / (variance + typical))[:, None] * values
        known, linear = (nothing, linear) if levels is None else (levels, nothing)
        features = torch.stack([-_misfit(values, mean, variance), local, known, linear], dim=-1)
        chosen = nearest_value(values, observed)
        least = mean.new_tensor(_LEAST if levels is None else _LEAST_OF_LEVELS)
        expected = mean.new_tensor(_EXPECTED if levels is None else _EXPECTED_OF_LEVELS)
        start = torch.cat([frequencies.log() if levels is None else torch.zeros_like(values), expected])
        ridge = torch.full_like(start, _WEIGHT_RIDGE)
        ridge[len(values) :] = _SLOPE_RIDGE
        slopes = slice(len(values), None)
        fixed = torch.zeros_like(least, dtype=torch.bool)
        for _ in range(1 + len(least)):
            start[slopes] = start[slopes].where(~fixed, least)
            ridge[slopes] = ridge[slopes].where(~fixed, _FIXED)
            found = _Regression(features, chosen, start, ridge).maximum()
            fixed |= found[slopes] < least
        found[slopes] = found[slopes].where(~fixed, least)
        exponents = torch.cat([found[slopes], typical[None]]).tolist()
        return cls(values, found[: len(values)], frequencies, *exponents)

    def given(self, counts: Tensor | None, levels: Tensor | None = None) -> DiscreteSupport:
        """Return the distribution at cells with these counts of values among neighbours, `[..., J]`.

        `levels` are log probabilities of the values under the sparse GP, `[..., J]`; None for numbers.
        """
        if counts is None and levels is None:
            return self
        log_weights = self.log_weights
        if counts is not None and self.locality != 0:
            log_weights = log_weights + self.locality * _log_ratio(counts, self.frequencies)
        if levels is not None and self.trust != 0:
            log_weights = log_weights + self.trust * levels
        return replace(self, log_weights=log_weights, locality=0.0, trust=0.0)

    def log_probabilities(self, mean: Tensor, variance: Tensor) -> Tensor:
        """Return log probabilities `[..., J]` of the values given predictions N(mean, variance), `[...]`."""
        if self.is_normal:
            misfit = _normal_misfit(self.values, mean, mean.new_tensor(self.typical_variance))
        else:
            misfit = _misfit(self.values, mean, variance)
        logits = self.log_weights - self.sharpness * misfit
        if self.slope != 0:
            scaled = mean / (variance + self.typical_variance)
            logits = logits.addcmul_(scaled[..., None], self.values, value=self.slope)
        return logits.log_softmax(-1)

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
        fields = {name: getattr(self, name) for name in _SAVED}
        return {name: own.tolist() if isinstance(own, Tensor) else own for name, own in fields.items()}

    @classmethod
    def from_dict(cls, state: dict[str, Any], like: Tensor) -> DiscreteSupport:
        """Restore the output of `to_dict` on the device of `like`; raise a ValueError if a field is wrong."""
        fields: dict[str, Any] = {name: build(kind, state.get(name), name) for name, kind in _SAVED.items()}
        values, weights, frequencies, *exponents, _ = fields.values()
        right = values == sorted(set(values)) and len(values) == len(weights) == len(frequencies)
        right &= (
            min([*frequencies, _LEAST_FREQUENCY]) >= _LEAST_FREQUENCY and min(exponents) >= 0 < exponents[-1]
        )
        expected = "ascending values, weights, positive frequencies and variance, exponents not below zero"
        check(right and state.keys() == _SAVED.keys(), f"discrete_support: expected {expected}")
        arrays = torch.tensor([values, weights, frequencies], dtype=torch.float64).to(like)
        return cls(**fields | dict(zip(("values", "log_weights", "frequencies"), arrays, strict=True)))


def is_nearest(values: Tensor | None, cells: Tensor) -> Tensor | None:
    """Return which of ascending values `[J]` each cell `[n]` is, Bool `[n, J]`; None without values."""
    if values is None:
        return None
    return nearest_value(values, cells)[:, None] == torch.arange(len(values), device=values.device)


def _misfit(values: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Return log(1 + (aⱼ - m)²/s²) minus the smallest one, `[..., J]`."""
    misfits = (values - mean[..., None]).square_().div_(variance.clamp(min=_TINY)[..., None]).log1p_()
    return misfits.sub_(misfits.amin(-1, keepdim=True)).clamp_(max=_FARTHEST)


def _normal_misfit(values: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Return (aⱼ - m)²/2s² minus the smallest one, `[..., J]`, given a single variance."""
    misfits = (values - mean[..., None]).square_().div_(2 * variance)
    return misfits.sub_(misfits.amin(-1, keepdim=True)).clamp_(max=_FARTHEST)


def _log_ratio(counts: Tensor, frequencies: Tensor) -> Tensor:
    """Return log pⱼ/fⱼ `[..., J]`, given counts nⱼ among neighbours, `[..., J]`, and frequencies fⱼ `[J]`."""
    return ((counts / frequencies + 1) / (counts.sum(-1, keepdim=True) + 1)).log()


@dataclass(frozen=True)
class _Regression:
    """Multinomial ridge regression with log P = parameters[:J] + features · parameters[J:] + constant.

    Shapes: `features` `[n, J, F]`, `chosen` `[n]`; centre `start` and strength `ridge` of a ridge, `[J + F]`.
    """

    features: Tensor
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
        n_values = self.features.shape[1]
        return (parameters[:n_values] + self.features @ parameters[n_values:]).log_softmax(-1)

    def objective(self, parameters: Tensor) -> float:
        """Return the log likelihood minus the ridge penalty."""
        chosen = self.log_probabilities(parameters).gather(1, self.chosen[:, None]).sum()
        return float(chosen - (self.ridge * (parameters - self.start).square()).sum() / 2)

    def newton_step(self, parameters: Tensor) -> Tensor:
        """Return the Newton step at the parameters."""
        P = self.log_probabilities(parameters).exp_()
        centred = self.features - (P[..., None] * self.features).sum(1, keepdim=True)
        own = centred[torch.arange(len(P), device=P.device), self.chosen]
        counts = torch.bincount(self.chosen, minlength=P.shape[1]).to(P)
        gradient = torch.cat([counts - P.sum(0), own.sum(0)])
        # Covariances of the indicators of the values, and of the features, under P, summed over cells.
        weighted = P[..., None] * centred
        across, spread = weighted.sum(0), torch.tensordot(weighted, centred, dims=([0, 1], [0, 1]))
        among = P.sum(0).diag() - P.T @ P
        curvature = torch.cat([torch.cat([among, across], 1), torch.cat([across.T, spread], 1)])
        gradient = gradient - self.ridge * (parameters - self.start)
        return torch.linalg.solve(curvature + self.ridge.diag(), gradient)
