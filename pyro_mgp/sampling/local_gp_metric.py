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
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pyro_mgp.inference.adam import Adam
from pyro_mgp.model.cholesky import invert
from pyro_mgp.sampling.local_gp import LEAST_SCALE, MEDIAN_OF_SQUARE, LocalLink

# Batches to learn from, Adam's steps on each, and cells and most neighbours in one. From two to four times as
# many of any of these made no difference on hidden cells that was not noise.
_BATCHES, _STEPS, _CELLS, _NEIGHBOURS = 6, 3, 96, 10
# Entries of the batches' inputs `[G, c, k, P]`, or of the rows they come from: bounds memory to some 50 MB.
_ENTRIES_AT_ONCE = 2**20
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

    def __getitem__(self, which: slice) -> LeftOut:
        return LeftOut(self.own[which], self.rows[which], self.values[which], self.variance[which])


def learn_metrics(
    links: Sequence[LocalLink],
    leave_out: Sequence[Callable[[Tensor], LeftOut]],
    n_columns: int,
    generator: torch.Generator,
) -> list[tuple[Tensor, float]]:
    """Lengthscales and nuggets of some links' neighbours.

    Args:
        links: The neighbours of G links, with the lengthscales and the nuggets to start from.
        leave_out: For each of them what gives the cells of reference rows `[c]`, left out.
        n_columns: Columns of the table, D.
        generator: Of the batches, on the CPU.

    Returns:
        Lengthscales `[P]`, and the nugget η, of each.
    """
    found: dict[int, tuple[Tensor, float]] = {}
    for together in _alike(links, n_columns):
        cells = [_batches(links[i], leave_out[i], generator) for i in together]
        parameters = _learn([links[i] for i in together], cells)
        found |= {i: (each[:-1], float(each[-1])) for i, each in zip(together, parameters, strict=True)}
    return [found[i] for i in range(len(links))]


def _alike(links: Sequence[LocalLink], n_columns: int) -> list[list[int]]:
    """Which links have batches of one shape, in pieces that fit into memory."""
    shapes = defaultdict[tuple[int, int, int], list[int]](list)
    for i, local in enumerate(links):
        n_cells, n_neighbours = min(_CELLS, len(local.references)), min(_NEIGHBOURS, local.n_neighbours)
        shapes[n_cells, n_neighbours, len(local.columns)].append(i)
    pieces = []
    for shape, alike in shapes.items():
        most = max(1, _ENTRIES_AT_ONCE // max(math.prod(shape), _BATCHES * shape[0] * n_columns))
        pieces += [alike[i : i + most] for i in range(0, len(alike), most)]
    return pieces


def _batches(
    local: LocalLink, leave_out: Callable[[Tensor], LeftOut], generator: torch.Generator
) -> list[LeftOut]:
    """Its batches of cells."""
    n, size = len(local.references), min(_CELLS, len(local.references))
    picked = [torch.randperm(n, generator=generator)[:size] for _ in range(_BATCHES)]
    cells = leave_out(local.references[torch.cat(picked).to(local.references.device)])
    return [cells[k * size : (k + 1) * size] for k in range(_BATCHES)]


def _learn(links: Sequence[LocalLink], cells: Sequence[Sequence[LeftOut]]) -> Tensor:
    """Lengthscales and nuggets `[G, P + 1]` of links that are alike, from their batches of cells."""
    starts = [
        torch.cat([local.lengthscales, local.lengthscales.new_tensor([local.character.nugget])])
        for local in links
    ]
    parameters = nn.Parameter(torch.stack(starts).log())
    adam, n_neighbours = Adam([parameters]), min(_NEIGHBOURS, links[0].n_neighbours)
    for step in range(_BATCHES * _STEPS):
        if step % _STEPS == 0:
            lengthscales = parameters.data[:, :-1].exp()
            moved = [local.at(each, n_neighbours) for local, each in zip(links, lengthscales, strict=True)]
            batch = Batch.of(moved, [of_link[step // _STEPS] for of_link in cells])
        _, parameters.grad = batch.score(parameters.data)
        done = step / (_BATCHES * _STEPS)
        adam.step(_LEARNING_RATE * (1 - (1 - _LAST_RATE) * done), _MEMORY)
        parameters.data[:, -1].clamp_(min=math.log(_LEAST_NUGGET))
    return parameters.data.exp()


@dataclass(frozen=True)
class Batch:
    """Cells of G links that are left out, c of each, and their neighbours.

    In double precision: of a cell that lies far off, the neighbours may be a thousand times as far from it as
    from each other, and in single precision all in one place.
    """

    inputs: Tensor
    """The neighbours' inputs less the cell's own, `[G, c, k, P]`."""
    residuals: Tensor
    """e, `[G, c, k]`."""
    values: Tensor
    """y₋, `[G, c]`."""
    variance: Tensor
    """σ², `[G, c]`."""
    prior: Tensor
    """ν a₀, `[G]`."""

    @classmethod
    def of(cls, links: Sequence[LocalLink], cells: Sequence[LeftOut]) -> Batch:
        """Some cells of each link and their neighbours."""
        inputs, residuals = [], []
        for local, left in zip(links, cells, strict=True):
            nearest = local.nearest(left.rows, left.own)
            apart = local.rows[local.references[nearest]] - left.rows[:, None]
            inputs.append(apart[..., local.columns])
            residuals.append(local.residuals[nearest])
        values = torch.stack([left.values for left in cells])
        typical = values.square().median(1).values / MEDIAN_OF_SQUARE
        variance = torch.stack([left.variance for left in cells])
        prior = _FREEDOM * _AMPLITUDE * typical
        return cls(torch.stack(inputs), torch.stack(residuals), values, variance, prior)

    def score(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Mean CRPS of each link `[G]`, and its gradient by log ℓ and log η, `[G, P + 1]` as these."""
        n_links, n_cells, n_neighbours, n_inputs = self.inputs.shape
        precision, nugget = (-2 * parameters[:, :-1]).exp(), parameters[:, -1:].exp()
        squares = self.inputs.square()
        among, decay_among, cross, decay_cross = self._covariances(precision, squares)
        among.diagonal(dim1=-2, dim2=-1).copy_((1 + nugget)[..., None].expand_as(self.residuals))
        root = invert(torch.linalg.cholesky(among))
        whitened = root @ torch.stack([cross, self.residuals], dim=-1)
        w, alpha = (root.mT @ whitened).unbind(-1)
        mean, v = (w * self.residuals).sum(-1), 1 + nugget - whitened[..., 0].square().sum(-1)
        freedom = _FREEDOM + n_neighbours
        a = (self.prior[:, None] + whitened[..., 1].square().sum(-1)) / freedom
        a = a.clamp_(min=LEAST_SCALE)
        score, of_mean, of_variance = _crps(self.values, mean, a * v + self.variance)
        of_v, of_quadratic = of_variance * a, of_variance * v / freedom
        # Of c, and of C, whose every entry stands there twice.
        of_cross = of_mean[..., None] * alpha - 2 * of_v[..., None] * w
        left = of_mean[..., None] * w + of_quadratic[..., None] * alpha
        # Outer products, which as products of matrices cost three times as much.
        of_among = (of_v[..., None] * w)[..., None] * w[..., None, :]
        of_among.addcmul_(left[..., None], alpha[..., None, :], value=-1)
        of_nugget = (of_v + of_among.diagonal(dim1=-2, dim2=-1).sum(-1)).sum(1, keepdim=True) * nugget
        pairs = of_among.mul_(decay_among)
        pairs = pairs + pairs.mT
        weights = (of_cross * decay_cross).add_(pairs.sum(-1)).view(n_links, 1, -1)
        of_lengths = (weights @ squares.view(n_links, -1, n_inputs))[:, 0]
        of_lengths -= (self.inputs * (pairs @ self.inputs)).sum((1, 2))
        gradient = torch.cat([3 * of_lengths * precision, of_nugget], dim=1) / n_cells
        return score.mean(1), gradient

    def _covariances(self, precision: Tensor, squares: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """C without its nugget and c, each with its e⁻ʳ."""
        scaled = self.inputs * (3 * precision)[:, None, None]
        norms = (scaled * self.inputs).sum(-1)
        squared = (norms[..., :, None] + norms[..., None, :]).flatten(0, 1)
        squared.baddbmm_(scaled.flatten(0, 1), self.inputs.flatten(0, 1).mT, alpha=-2)
        r_among, r_cross = squared.clamp_(min=0).sqrt_().unflatten(0, norms.shape[:2]), norms.sqrt()
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
