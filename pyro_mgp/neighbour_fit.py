"""How the local scales of a trained chain are found; what they are stands in `neighbours.py`.

The holes of the training rows are filled twice: at conditional means, for the rows to be neighbours, and by
draws, for the rows to be asked about. Each link then takes the f, η, ν and a₀ that predict some of its
observed cells best, each cell left out of its own neighbourhood and of the sparse GP: with the leverage
h = φᵀSφ/s², the residual of a cell that was left out is e/(1 - h). Links whose neighbours do not clearly help
go without; so do those of discrete variables, whose values are drawn with probabilities that their means say.

At last some observed cells are hidden and imputed by the whole machinery. The inflation τ is the one under
which their values are most probable: it makes up for holes in the inputs, for references that stand at
means, and for whatever else a walk does to the spread of its draws.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.distributions import Normal

from pyro_mgp.chain import Chain, Noise
from pyro_mgp.link import Conditional, Moments
from pyro_mgp.local_parameters import local_parameters
from pyro_mgp.neighbours import Character, LocalLink, Neighbours, corrected, settle
from pyro_mgp.noise import KeyedNoise
from pyro_mgp.sampling import Rows, Start

MOST_ROWS = 10_000
"""Reference rows at most; more cost time in every draw and say little more."""
# A link with fewer observed cells than this many per neighbour has none that are near.
_LEAST_PER_NEIGHBOUR = 4
# Walks by which the means of the sparse GPs alone, and draws from them, are settled.
_WALKS = 3
# Pairs of f and η to choose from, and ν; a₀ in parts of the typical squared error.
_SHAPES = ((2.0, 1.0), (4.0, 0.3), (8.0, 0.3), (8.0, 0.03))
_FREEDOMS = (1.0, 10.0)
_AMPLITUDES = (0.1, 0.3, 1.0)
# Before anything is known.
_FIRST_SHAPE = (4.0, 0.3)
# Cells left out to choose by. A cell's log density counts no less than this: outliers shall not choose alone.
_LEFT_OUT, _LOWEST = 200, -6.0
# Standard errors by which neighbours must predict better than the sparse GP alone.
_CLEARLY = 2.0
# Hidden cells: rows at most, share of the observed cells (few: the rest must look as it will), paths, walks
# that count; standard deviation of log τ that is expected.
_HIDDEN_ROWS, _HIDDEN_SHARE = 3000, 0.05
_HIDDEN_PATHS, _COUNTED = 12, 2
_INFLATIONS = tuple(0.3 * 1.05**step for step in range(58))
_EXPECTED_INFLATION = 0.5
# Most of its own residual that a cell explains; of a squared standard normal number, half are below this.
_MOST_LEVERAGE, _MEDIAN_OF_SQUARE = 0.9, 0.455
# Smallest a₀ and standard deviation, where neighbours agree to the last digit.
_LEAST_SCALE, _TINY = 1e-10, 1e-8


def fit_neighbours(chain: Chain, start: Start, rows: Rows, n_neighbours: int, seed: int) -> Neighbours | None:
    """Find the local scales of a trained chain.

    Args:
        chain: The chain.
        start: Fill that a walk starts from.
        rows: Training rows in an order that means nothing, on the chain's device.
        n_neighbours: k.
        seed: Of the draws and choices made here.

    Returns:
        The local scales, or None if no link has any.
    """
    with torch.no_grad(), local_parameters():
        return _Fit(chain, start, rows[:MOST_ROWS], n_neighbours, seed).run()


class _Fit:
    """The training rows with their holes filled in two ways, and the local scales as far as known."""

    def __init__(self, chain: Chain, start: Start, rows: Rows, n_neighbours: int, seed: int) -> None:
        self.chain, self.start, self.rows = chain, start, rows
        self.n_neighbours, self.seed = n_neighbours, seed
        self.generator = torch.Generator().manual_seed(seed)
        self.marginals: Sequence[Conditional] = chain.conditionals()
        self.holes = _holes(chain, rows.observed)
        self.point = start.expected(rows)
        self.drawn = self.point.clone()

    def run(self) -> Neighbours | None:
        """Find them."""
        settle(self.chain, self.marginals, self.point, self.holes, _WALKS)
        self.draw(self.marginals, _WALKS)
        guesses = [self.first_guess(i) for i in range(len(self.holes))]
        first = self.neighbours(guesses)
        for i, here in enumerate(self.holes):
            first.improve(i, self.chain, self.marginals, self.point, here)
        found = self.neighbours(guesses)
        nearby = [
            None if local is None else local.around(self.point[here])
            for local, here in zip(found.links, self.holes, strict=True)
        ]
        self.draw(corrected(self.marginals, nearby), 1)
        found = found.with_characters([self.choose(i, local) for i, local in enumerate(found.links)])
        if all(local is None for local in found.links):
            return None
        return self.inflate(found)

    def draw(self, conditionals: Sequence[Conditional], n_walks: int) -> None:
        """Redraw the holes of the rows to be asked about."""
        *_, (paths, _) = self.chain.sweeps(
            conditionals, self.drawn[None], self.rows.observed, lambda _: self.noise(1), n_walks, self.holes
        )
        self.drawn = paths[0]

    def noise(self, n_paths: int) -> Noise:
        """Noise of walks by so many paths, from this fit's generator."""

        def normal(_: int, rows: Tensor) -> Tensor:
            eps = torch.randn(n_paths, len(rows), generator=self.generator, dtype=self.point.dtype)
            return eps.to(self.point.device)

        return normal

    def neighbours(self, characters: Sequence[Character | None]) -> Neighbours:
        """The reference rows as they are filled now, with local scales of the given characters."""
        residuals = torch.full((len(self.holes), len(self.rows)), math.nan).to(self.point)
        for i, link in enumerate(self.chain.links):
            known = self.rows.observed[:, link.column]
            mean = self.marginals[i].moments(self.point[known][None]).mean[0]
            residuals[i, known] = self.rows.values[known, link.column] - mean
        return Neighbours.of(self.chain, self.point, residuals, characters, self.n_neighbours)

    def first_guess(self, i: int) -> Character | None:
        """Something to begin with; None for a link that goes without."""
        if any(i in variable.links for variable in self.chain.discrete):
            return None
        n_known = int(self.rows.observed[:, self.chain.links[i].column].sum())
        if n_known < _LEAST_PER_NEIGHBOUR * self.n_neighbours:
            return None
        return Character(*_FIRST_SHAPE, freedom=1.0, scale=float(self.marginals[i].noise))

    def choose(self, i: int, local: LocalLink | None) -> Character | None:
        """The character that predicts left-out cells of the i-th link best; None if none clearly helps."""
        if local is None:
            return None
        picked = torch.randperm(len(local.references), generator=self.generator)[:_LEFT_OUT]
        picked = local.references[picked.to(local.references.device)]
        rows = self.drawn[picked]
        alone = self.marginals[i].moments(rows[None])
        noise = self.marginals[i].noise
        variance = alone.variance[0].clamp(max=noise)
        leverage = (variance / noise).clamp(max=_MOST_LEVERAGE)
        left = (self.rows.values[picked, self.chain.links[i].column] - alone.mean[0]) / (1 - leverage)
        nearest = local.nearest(rows, picked)
        best, gain = None, Normal(0.0, (noise + variance).sqrt()).log_prob(left).clamp(min=_LOWEST)
        alone_score, best_score = gain, gain.mean()
        for character, at in _candidates(local, nearest, rows, left):
            score = Normal(at.mean[0], (at.variance[0] + variance).sqrt()).log_prob(left).clamp(min=_LOWEST)
            surplus = score - alone_score
            clear = surplus.mean() > _CLEARLY * surplus.std() / math.sqrt(len(surplus))
            if clear and score.mean() > best_score:
                best, best_score = character, score.mean()
        return best

    def inflate(self, found: Neighbours) -> Neighbours:
        """Let the draws of hidden cells spread as far as their values do."""
        picked = torch.randperm(len(self.rows), generator=self.generator)[:_HIDDEN_ROWS].to(self.point.device)
        rows = self.rows[picked]
        chance = torch.rand(rows.observed.shape, generator=self.generator).to(self.point.device)
        for variable in self.chain.discrete:
            # The indicators of a category are missing together.
            chance[:, list(variable.columns)] = chance[:, [variable.columns[0]]]
        hidden = rows.observed & (chance < _HIDDEN_SHARE)
        seen = Rows(rows.values, rows.observed & ~hidden, rows.keys)
        holes = _holes(self.chain, seen.observed)
        point = self.start.expected(seen)
        nearby = found.around(self.chain, self.marginals, point, holes, picked)
        conditionals = corrected(self.marginals, nearby)
        paths = self.start.draw(seen, KeyedNoise(self.seed, seen.keys, range(_HIDDEN_PATHS)))
        noise, n_walks = self.noise(_HIDDEN_PATHS), self.chain.n_sweeps
        walks = list(self.chain.sweeps(conditionals, paths, seen.observed, lambda _: noise, n_walks, holes))
        characters: list[Character | None] = []
        for i, (link, character) in enumerate(zip(self.chain.links, found.characters, strict=True)):
            if character is not None:
                which = hidden[holes[i], link.column]
                values = rows.values[holes[i], link.column][which]
                parts = [visited[i] for _, visited in walks[-_COUNTED:]]
                mean = torch.cat([part.mean for part in parts])[:, which]
                variance = torch.cat([part.variance for part in parts])[:, which]
                inflation = _likeliest_inflation(mean, variance, values)
                character = dataclasses.replace(character, inflation=inflation)
            characters.append(character)
        return found.with_characters(characters)


def _candidates(
    local: LocalLink, nearest: Tensor, rows: Tensor, left: Tensor
) -> Iterator[tuple[Character, Moments]]:
    """Characters to choose from, and the moments of the local scale under each at rows `[c, D]`."""
    for sharpness, nugget in _SHAPES:
        first = Character(sharpness, nugget, freedom=1.0, scale=1.0)
        nearby = dataclasses.replace(local, character=first).ask(nearest)
        at = nearby.moments(rows[None])
        k = local.n_neighbours
        # With ν = 1 and a₀ = 1: the rest is what the neighbours say of the scale, and what v is.
        spread = (1 + k) * nearby.scale - 1
        v = at.variance / nearby.scale
        typical = ((left - at.mean[0]).square().median() / _MEDIAN_OF_SQUARE).item() / (1 + nugget)
        for freedom, amplitude in itertools.product(_FREEDOMS, _AMPLITUDES):
            scale = (freedom * amplitude * typical + spread) / (freedom + k)
            character = Character(sharpness, nugget, freedom, max(amplitude * typical, _LEAST_SCALE))
            yield character, Moments(at.mean, v * scale)


def _likeliest_inflation(mean: Tensor, variance: Tensor, values: Tensor) -> float:
    """The τ that makes values `[c]` likeliest in mixtures of Gaussians `[K, c]`, near one if in doubt."""
    best, best_score = 1.0, -math.inf
    for inflation in _INFLATIONS:
        components = Normal(mean, inflation * variance.sqrt().clamp(min=_TINY)).log_prob(values)
        density = (components.logsumexp(0) - math.log(len(mean))).clamp(min=_LOWEST).sum()
        score = float(density) - 0.5 * (math.log(inflation) / _EXPECTED_INFLATION) ** 2
        if score > best_score:
            best, best_score = inflation, score
    return best


def _holes(chain: Chain, observed: Tensor) -> list[Tensor]:
    """For each link, the rows whose cell is missing."""
    return [(~observed[:, link.column]).nonzero()[:, 0] for link in chain.links]
