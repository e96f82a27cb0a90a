"""Which rows are near: the lengthscales under which neighbours predict best.

A sparse GP's lengthscales say how a smooth function bends, not which rows are alike. The local GP of
`neighbours.py` has lengthscales ℓ of its own, and a nugget η. They minimise the continuous ranked probability
score of observed cells that are left out, y₋, each predicted from its k nearest rows with known residuals e
(Gneiting and Raftery 2007, equation 21):

    CRPS = s [z (2Φ(z) - 1) + 2φ(z) - 1/√π],   z = (y₋ - m)/s,   s² = a v + σ²
    w = C⁻¹c,   α = C⁻¹e,   m = wᵀe,   v = 1 + η - wᵀc,   a = (ν a₀ + eᵀα) / (ν + k)

Unlike a log density the score cannot be bought by being very sure of rows that are repeated, at the expense
of all others. It goes down by Adam on fresh batches of cells, along the gradient written out below:

    dm = αᵀdc - wᵀdC α,   dv = dη - 2wᵀdc + wᵀdC w,   d(eᵀα) = -αᵀdC α
    d(1 + r)e⁻ʳ = 3 e⁻ʳ Δ_p²/ℓ_p² d log ℓ_p       of a pair of rows whose p-th inputs are Δ_p apart
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pyro_mgp.adam import Adam
from pyro_mgp.link import invert
from pyro_mgp.neighbours import LEAST_SCALE, MEDIAN_OF_SQUARE, LocalLink

# Cells to learn from; batches of these, Adam's steps on each, and cells and most neighbours in one. From two
# to four times as many of any of these made no difference on hidden cells that was not noise.
_POOL, _ROUNDS, _STEPS, _CELLS, _NEIGHBOURS = 2048, 6, 3, 96, 10
# Adam's learning rate falls linearly to a tenth of this; its averages are short, as the run is.
_LEARNING_RATE, _LAST_RATE, _MEMORY = 0.15, 0.1, (0.8, 0.95)
# The prior of the local scale, by which alone cells are judged here: ν, and a₀ in parts of the typical error.
_FREEDOM, _AMPLITUDE = 1.0, 0.3
_LEAST_NUGGET = 1e-3
_TINY = 1e-16


@dataclass(frozen=True)
class LeftOut:
    """Observed cells, asked about as if they were missing."""

    own: Tensor
    """Which reference rows they are in, `[c]`."""
    rows: Tensor
    """Their rows, holes filled, `[c, D]`."""
    values: Tensor
    """What the sparse GP leaves of them, had it not seen them, y₋, `[c]`."""
    variance: Tensor
    """Its own variance there, σ², `[c]`."""

    def __getitem__(self, which: Tensor) -> LeftOut:
        return LeftOut(self.own[which], self.rows[which], self.values[which], self.variance[which])


def learn_metric(
    local: LocalLink, leave_out: Callable[[Tensor], LeftOut], generator: torch.Generator
) -> tuple[Tensor, float]:
    """Lengthscales and nugget of a link's neighbours.

    Args:
        local: The neighbours, with the lengthscales and the nugget to start from.
        leave_out: The cells of reference rows `[c]`, left out.
        generator: Of the batches, on the CPU.

    Returns:
        Lengthscales `[P]`, and the nugget η.
    """
    pool = torch.randperm(len(local.references), generator=generator)[:_POOL]
    cells = leave_out(local.references[pool.to(local.references.device)])
    nugget = local.lengthscales.new_tensor([local.character.nugget])
    parameters = nn.Parameter(torch.cat([local.lengthscales, nugget]).log())
    adam, n_neighbours = Adam([parameters]), min(_NEIGHBOURS, local.n_neighbours)
    for step in range(_ROUNDS * _STEPS):
        if step % _STEPS == 0:
            picked = torch.randperm(len(pool), generator=generator)[:_CELLS].to(cells.values.device)
            lengthscales = parameters.data[:-1].exp()
            batch = Batch.of(local.at(lengthscales, n_neighbours), cells[picked])
        _, parameters.grad = batch.score(parameters.data)
        done = step / (_ROUNDS * _STEPS)
        adam.step(_LEARNING_RATE * (1 - (1 - _LAST_RATE) * done), _MEMORY)
        parameters.data[-1].clamp_(min=math.log(_LEAST_NUGGET))
    found = parameters.data.exp()
    return found[:-1], float(found[-1])


@dataclass(frozen=True)
class Batch:
    """Cells that are left out, c of them, and their neighbours.

    In double precision: of a cell that lies far off, the neighbours may be a thousand times as far from it as
    from each other, and in single precision all in one place.
    """

    inputs: Tensor
    """The neighbours' inputs less the cell's own, `[c, k, P]`."""
    residuals: Tensor
    """e, `[c, k]`."""
    values: Tensor
    """y₋, `[c]`."""
    variance: Tensor
    """σ², `[c]`."""
    prior: float
    """ν a₀."""

    @classmethod
    def of(cls, local: LocalLink, cells: LeftOut) -> Batch:
        """Some cells and their neighbours."""
        nearest = local.nearest(cells.rows, cells.own)
        inputs = (local.inputs[nearest] - local.scaled(cells.rows)[:, None]) * local.lengthscales
        typical = float(cells.values.square().median()) / MEDIAN_OF_SQUARE
        prior = _FREEDOM * _AMPLITUDE * typical
        return cls(inputs, local.residuals[nearest], cells.values, cells.variance, prior)

    def score(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Mean CRPS, and its gradient by log ℓ and log η, `[P + 1]`, as `parameters` are."""
        precision, nugget = (-2 * parameters[:-1]).exp(), parameters[-1].exp()
        squares = self.inputs.square()
        among, decay_among, cross, decay_cross = self._covariances(precision, squares)
        among.diagonal(dim1=-2, dim2=-1).copy_(1 + nugget)
        root = invert(torch.linalg.cholesky(among))
        whitened = root @ torch.stack([cross, self.residuals], dim=-1)
        w, alpha = (root.mT @ whitened).unbind(-1)
        mean, v = (w * self.residuals).sum(1), 1 + nugget - whitened[..., 0].square().sum(1)
        freedom = _FREEDOM + self.residuals.shape[1]
        a = ((self.prior + whitened[..., 1].square().sum(1)) / freedom).clamp(min=LEAST_SCALE)
        score, of_mean, of_variance = _crps(self.values, mean, a * v + self.variance)
        of_v, of_quadratic = of_variance * a, of_variance * v / freedom
        # Of c, and of C, whose every entry stands there twice.
        of_cross = of_mean[:, None] * alpha - 2 * of_v[:, None] * w
        left = of_mean[:, None] * w + of_quadratic[:, None] * alpha
        of_among = torch.stack([-left, of_v[:, None] * w], dim=2) @ torch.stack([alpha, w], dim=1)
        of_nugget = (of_v.sum() + of_among.diagonal(dim1=-2, dim2=-1).sum()) * nugget
        pairs = of_among.mul_(decay_among)
        pairs = pairs + pairs.mT
        weights = (of_cross * decay_cross).add_(pairs.sum(2)).view(1, -1)
        of_lengths = (weights @ squares.flatten(0, 1))[0] - (self.inputs * (pairs @ self.inputs)).sum((0, 1))
        return score.mean(), torch.cat([3 * of_lengths * precision, of_nugget[None]]) / len(score)

    def _covariances(self, precision: Tensor, squares: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """C without its nugget and c, each with its e⁻ʳ."""
        norms = squares @ (3 * precision)
        scaled = self.inputs * (3 * precision)
        squared = torch.baddbmm(norms[:, :, None] + norms[:, None, :], scaled, self.inputs.mT, alpha=-2)
        r_among, r_cross = squared.clamp_(min=0).sqrt_(), norms.sqrt()
        among, cross = (-r_among).exp_(), (-r_cross).exp_()
        return among.addcmul(among, r_among), among, cross.addcmul(cross, r_cross), cross


def crps(values: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Continuous ranked probability score of Gaussians; all arguments of one shape, or spread to it."""
    return _crps(values, mean, variance)[0]


def _crps(values: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The score, and its derivatives by mean and variance."""
    s = variance.clamp(min=_TINY).sqrt()
    z = (values - mean) / s
    sign = torch.special.erf(z * math.sqrt(0.5))
    rest = math.sqrt(2 / math.pi) * (-0.5 * z.square()).exp() - 1 / math.sqrt(math.pi)
    return s * (z * sign + rest), -sign, rest / (2 * s)
