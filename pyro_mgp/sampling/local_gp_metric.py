"""Metrics of local GPs: the lengthscales and nuggets under which neighbours predict best.

They minimise the continuous ranked probability score (Gneiting and Raftery 2007, equation 21) of leave-one-
out residuals y₋ of observed cells, each predicted from the residuals e of its k nearest rows:

    CRPS = s [z (2Φ(z) - 1) + 2φ(z) - 1/√π],   z = (y₋ - m)/s,   s² = a v + σ²
    w = C⁻¹c,   α = C⁻¹e,   m = wᵀe,   v = 1 + η - wᵀc,   a = (ν a₀ + eᵀα) / (ν + k)

Unlike a log density, this score cannot be improved by overconfidence about repeated rows. Added to it is the
negative log density of a log-normal prior of the lengthscales with given medians, in units in which the score
of n cells is a log density: many inputs and few rows would overfit. Adam minimises the sum on fresh batches
of cells, with the gradient

    dm = αᵀdc - wᵀdC α,   dv = dη - 2wᵀdc + wᵀdC w,   d(eᵀα) = -αᵀdC α
    d(1 + r)e⁻ʳ = 3 e⁻ʳ Δ_p²/ℓ_p² d log ℓ_p       for a pair of rows whose p-th inputs differ by Δ_p
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from pyro_mgp._support.indexing import rows_at
from pyro_mgp.inference.adam import Adam
from pyro_mgp.model.cholesky import invert
from pyro_mgp.model.conditional import Moments
from pyro_mgp.model.likelihoods import Ordinal
from pyro_mgp.sampling.local_gp import MEDIAN_OF_SQUARE, MIN_SCALE, LocalLink, Neighbourhood

# Batches, steps of Adam on each, cells per batch and largest k. With 6 batches of 96 cells, the CRPS of 14
# public tables (up to 1,000 rows, 30 % missing) was larger by 3 % on average, in one table by a third. With
# 24 batches of 200 and half the learning rate, fits took 1.2 times as long, and CRPS was as large (1.00 ± .01
# of it, 30 cells of eleven tables, 1,000 rows).
_BATCHES, _STEPS, _CELLS, _NEIGHBOURS = 12, 3, 200, 10
# Batches of fewer cells have a multiple of so many, so that links with nearly as many cells learn together.
_MULTIPLE = 20
# Prior standard deviation of log lengthscales.
_EXPECTED_CHANGE = 1.0
# Entries of the batches' inputs `[G, c, k, P]`, or of the rows they come from: bounds memory to some 50 MB.
_ENTRIES_AT_ONCE = 2**20
# Adam's learning rate falls linearly to a tenth of its first value; its averages are short, as the run is.
# With half the rate lengthscales do not move far enough: CRPS was larger by 1.0 ± .5 % in 72 cells of 24
# public tables, and by 5 % in one of them (airfoil, nine cells).
_LEARNING_RATE, _LAST_RATE, _MEMORY = 0.3, 0.1, (0.8, 0.95)
# Prior of the local scale used here: ν, and a₀ as a share of the typical squared error.
_FREEDOM, _AMPLITUDE = 1.0, 0.3
_MIN_NUGGET, _TINY = 1e-3, 1e-16
# Least variance of a level, about that of one of which one cell in ten thousand has another.
_LEAST_VARIANCE = 1e-4


@dataclass(frozen=True)
class LeaveOneOut:
    """Leave-one-out residuals of observed cells of a link, from its sparse GP or from a linear trend."""

    own: Tensor  # indices of their reference rows, `[c]`
    rows: Tensor  # their rows with missing cells filled, `[c, D]`
    residuals: Tensor  # leave-one-out residuals y₋, `[c]`
    variance: Tensor  # variance σ² of the sparse GP's function, `[c]`
    alone: Tensor  # variance of predictions without the local GP, `[c]`
    known: Tensor | None = None  # 1 for inputs that may be used, else 0, `[c, P]`; None for all
    trend: Tensor | None = None  # slopes of each cell's linear trend, `[c, P]`; None for none
    levels: Tensor | None = None  # log probabilities of levels, `[c, J]`; None for numbers

    @classmethod
    def of_levels(
        cls, own: Tensor, rows: Tensor, values: Tensor, likelihood: Ordinal, at: Moments
    ) -> LeaveOneOut:
        """Return residuals of values `[c]` from their expectations, given moments without their cells."""
        expected = likelihood.expectation(at.mean, at.variance)
        alone = likelihood.expectation(at.mean, at.variance, torch.square) - expected.square()
        alone = alone.clamp(min=_LEAST_VARIANCE)
        # Of the variance, the part that is due to the function, to first order in its variance.
        variance = alone * at.variance / (1 + at.variance) / 2
        return cls(
            own, rows, values - expected, variance, alone, levels=likelihood.log_levels(at.mean, at.variance)
        )

    def __getitem__(self, which: slice) -> LeaveOneOut:
        fields: dict[str, Any] = {
            name: None if own is None else own[which] for name, own in vars(self).items()
        }
        return LeaveOneOut(**fields)

    def neighbourhood(self, local: LocalLink) -> Neighbourhood:
        """Return the neighbours of the cells."""
        return local.gather(local.nearest(self.rows, self.own, self.known), self.known, self.trend)


def learn_metrics(
    links: Sequence[LocalLink],
    priors: Sequence[Sequence[float]],
    leave_one_out: Sequence[Callable[[Tensor], LeaveOneOut]],
    n_columns: int,
    generator: torch.Generator,
) -> list[tuple[Tensor, float]]:
    """Estimate the lengthscales `[P]` and nuggets η under which neighbours predict cells best.

    The search starts from the parameters of the links. For each of them, `priors` has the prior medians of
    its lengthscales, and `leave_one_out` maps reference rows `[c]` to their leave-one-out residuals. The
    generator of random batches is on the CPU; `n_columns` is the number of encoded columns D.
    """
    found: dict[int, tuple[Tensor, float]] = {}
    for together in _alike(links, n_columns):
        cells = [_batches(links[i], leave_one_out[i], generator) for i in together]
        parameters = _learn([links[i] for i in together], [priors[i] for i in together], cells)
        found |= {i: (each[:-1], float(each[-1])) for i, each in zip(together, parameters, strict=True)}
    return [found[i] for i in range(len(links))]


def _alike(links: Sequence[LocalLink], n_columns: int) -> list[list[int]]:
    """Group links whose batches have the same shape, in pieces that fit into memory."""
    shapes = defaultdict[tuple[int, int, int], list[int]](list)
    for i, local in enumerate(links):
        n_neighbours = min(_NEIGHBOURS, local.n_neighbours)
        shapes[_cells_per_batch(local), n_neighbours, len(local.columns)].append(i)
    pieces = []
    for shape, alike in shapes.items():
        most = max(1, _ENTRIES_AT_ONCE // max(math.prod(shape), _BATCHES * shape[0] * n_columns))
        pieces += [alike[i : i + most] for i in range(0, len(alike), most)]
    return pieces


def _cells_per_batch(local: LocalLink) -> int:
    """Return the number of cells in each batch of a link."""
    n = len(local.references)
    return min(_CELLS, n // _MULTIPLE * _MULTIPLE or n)


def _batches(
    local: LocalLink, leave_one_out: Callable[[Tensor], LeaveOneOut], generator: torch.Generator
) -> list[LeaveOneOut]:
    """Draw random batches of leave-one-out residuals of a link."""
    n, size = len(local.references), _cells_per_batch(local)
    picked = [torch.randperm(n, generator=generator)[:size] for _ in range(_BATCHES)]
    cells = leave_one_out(local.references[torch.cat(picked).to(local.references.device)])
    return [cells[k * size : (k + 1) * size] for k in range(_BATCHES)]


def _learn(
    links: Sequence[LocalLink], priors: Sequence[Sequence[float]], cells: Sequence[Sequence[LeaveOneOut]]
) -> Tensor:
    """Estimate lengthscales and nuggets `[G, P + 1]` of links whose batches have the same shape."""
    starts = [[*local.params.lengthscales, local.params.nugget] for local in links]
    parameters = nn.Parameter(links[0].lengthscales.new_tensor(starts).log())
    medians = links[0].lengthscales.new_tensor(priors).log()
    n_references = [len(local.references) for local in links]
    adam, n_neighbours = Adam([parameters]), min(_NEIGHBOURS, links[0].n_neighbours)
    for step in range(_BATCHES * _STEPS):
        if step % _STEPS == 0:
            lengthscales = parameters.data[:, :-1].exp()
            pairs = zip(links, lengthscales, strict=True)
            current = [replace(local, lengthscales=each, n_neighbours=n_neighbours) for local, each in pairs]
            batch = Batch.of(current, [of_link[step // _STEPS] for of_link in cells])
        score, parameters.grad = batch.score(parameters.data)
        per_cell = score / score.new_tensor(n_references) / _EXPECTED_CHANGE**2
        parameters.grad[:, :-1] += per_cell[:, None] * (parameters.data[:, :-1] - medians)
        done = step / (_BATCHES * _STEPS)
        adam.step(_LEARNING_RATE * (1 - (1 - _LAST_RATE) * done), _MEMORY)
        parameters.data[:, -1].clamp_(min=math.log(_MIN_NUGGET))
    return parameters.data.exp()


@dataclass(frozen=True)
class Batch:
    """Leave-one-out residuals and neighbours of c cells of each of G links, in double precision."""

    inputs: Tensor  # inputs of the neighbours minus those of the cell, `[G, c, k, P]`
    residuals: Tensor  # residuals e of the neighbours, `[G, c, k]`
    targets: Tensor  # leave-one-out residuals y₋ of the cells, `[G, c]`
    variance: Tensor  # variance σ² of the sparse GP at the cells, `[G, c]`
    prior: Tensor  # ν a₀, `[G]`

    @classmethod
    def of(cls, links: Sequence[LocalLink], cells: Sequence[LeaveOneOut]) -> Batch:
        """Make a batch of some cells of each link and their neighbours."""
        inputs, residuals = [], []
        for local, own in zip(links, cells, strict=True):
            nearest = local.nearest(own.rows, own.own, own.known)
            rows = rows_at(local.rows, rows_at(local.references, nearest))
            neighbours, here = (each.index_select(-1, local.columns) for each in (rows, own.rows))
            difference, residual = neighbours - here[:, None], rows_at(local.residuals, nearest)
            if own.trend is not None:
                residual = residual - (neighbours * own.trend[:, None]).sum(-1)
            inputs.append(difference if own.known is None else difference * own.known[:, None])
            residuals.append(residual)
        targets = torch.stack([own.residuals for own in cells])
        typical = targets.square().median(1).values / MEDIAN_OF_SQUARE
        variance = torch.stack([own.variance for own in cells])
        prior = _FREEDOM * _AMPLITUDE * typical
        return cls(torch.stack(inputs), torch.stack(residuals), targets, variance, prior)

    def score(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean CRPS of each link `[G]`, and its gradient by log ℓ and log η `[G, P + 1]`."""
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
        a = a.clamp_(min=MIN_SCALE)
        score, d_mean, d_variance = crps(self.targets, mean, a * v + self.variance)
        d_v, d_quadratic = d_variance * a, d_variance * v / freedom
        # Derivatives by c, and by C, in which every pair of neighbours occurs twice.
        d_cross = d_mean[..., None] * alpha - 2 * d_v[..., None] * w
        factor = d_mean[..., None] * w + d_quadratic[..., None] * alpha
        # Elementwise outer products; as matrix products they cost three times as much.
        d_among = (d_v[..., None] * w)[..., None] * w[..., None, :]
        d_among.addcmul_(factor[..., None], alpha[..., None, :], value=-1)
        d_nugget = (d_v + d_among.diagonal(dim1=-2, dim2=-1).sum(-1)).sum(1, keepdim=True) * nugget
        pairs = d_among.mul_(decay_among)
        pairs = pairs + pairs.mT
        weights = (d_cross * decay_cross).add_(pairs.sum(-1)).view(n_links, 1, -1)
        d_lengths = (weights @ squares.view(n_links, -1, n_inputs))[:, 0]
        d_lengths -= (self.inputs * (pairs @ self.inputs)).sum((1, 2))
        gradient = torch.cat([3 * d_lengths * precision, d_nugget], dim=1) / n_cells
        return score.mean(1), gradient

    def _covariances(self, precision: Tensor, squares: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the covariances C (without nugget) and c of a batch, each followed by its factor e⁻ʳ."""
        scaled = self.inputs * (3 * precision)[:, None, None]
        norms = (scaled * self.inputs).sum(-1)
        squared = (norms[..., :, None] + norms[..., None, :]).flatten(0, 1)
        squared.baddbmm_(scaled.flatten(0, 1), self.inputs.flatten(0, 1).mT, alpha=-2)
        r_among, r_cross = squared.clamp_(min=0).sqrt_().unflatten(0, norms.shape[:2]), norms.sqrt()
        among, cross = (-r_among).exp_(), (-r_cross).exp_()
        return among.addcmul(among, r_among), among, cross.addcmul(cross, r_cross), cross


def crps(values: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the CRPS of Gaussian predictions, and its derivatives with respect to mean and variance."""
    s = variance.clamp(min=_TINY).sqrt()
    z = (values - mean) / s
    sign = torch.special.erf(z * math.sqrt(0.5))
    rest = math.sqrt(2 / math.pi) * (-0.5 * z.square()).exp() - 1 / math.sqrt(math.pi)
    return s * (z * sign + rest), -sign, rest / (2 * s)
