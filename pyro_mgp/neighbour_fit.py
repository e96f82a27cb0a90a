"""How the local scales of a trained chain are found; what they are stands in `neighbours.py`.

The holes of the training rows are filled twice: at conditional means, for the rows to be neighbours, and by
draws, for the rows to be asked about. Each link then takes the f, η, ν and a₀ that predict some of its
observed cells best, each cell left out of its own neighbourhood and of the sparse GP: with the leverage
h = φᵀSφ/s², the residual of a cell that was left out is e/(1 - h). Links whose neighbours do not clearly help
go without; so do those of discrete variables, whose values are drawn with probabilities that their means say.

At last some observed cells are hidden and imputed by the whole machinery. The inflation τ is the one under
which their values are most probable: it makes up for holes in the inputs, for references that stand at means,
and for whatever else a walk does to the spread of its draws.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import Normal

from pyro_mgp.chain import Chain, Noise
from pyro_mgp.link import Conditional, Moments
from pyro_mgp.local_parameters import local_parameters
from pyro_mgp.neighbours import LEAST_SCALE, Character, LocalLink, Neighbours, corrected, settle
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
# Hidden cells: in so many rows at most; half a cell per row, since the rest must look as it will when nothing
# is hidden, but at least so many per column, and no more than this share of the observed ones.
_HIDDEN_ROWS, _HIDDEN_PER_ROW, _HIDDEN_PER_COLUMN, _HIDDEN_SHARE = 4000, 0.5, 30, 0.1
# Paths through them, and walks that count, from the last one back.
_HIDDEN_PATHS, _COUNTED = 8, 2
_INFLATIONS = tuple(1.1**step for step in range(-13, 18))
# Standard deviation of log τ that is expected.
_EXPECTED_INFLATION = 0.5
# A hidden cell counts as no farther off than four standard deviations of a typical one.
_FARTHEST = 0.5 * 4.0**2 + 0.5 * math.log(2 * math.pi)
# Most of its own residual that a cell explains; of a squared standard normal number, half are below this.
_MOST_LEVERAGE, _MEDIAN_OF_SQUARE = 0.9, 0.455
# Smallest standard deviation, where neighbours agree to the last digit.
_TINY = 1e-8


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
        # Their variance is what inducing values cannot say; the marginals' has that of q(u) besides.
        self.given_u = chain.conditionals([link.u_loc[None] for link in chain.links])
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
            mean = self.marginals[i].mean(self.point[known][None])[0]
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
        rows, noise = self.drawn[picked], self.marginals[i].noise
        left, variance = self.left_out(i, picked)
        nearest = local.nearest(rows, picked)
        alone_score = _bounded_log_prob(left, torch.zeros_like(left), noise + variance)
        best, best_score = None, alone_score.mean()
        for shape in _SHAPES:
            candidates, at = _candidates(local, shape, nearest, rows, left)
            scores = _bounded_log_prob(left, at.mean, at.variance + variance)
            surplus = scores - alone_score
            clear = surplus.mean(1) > _CLEARLY * surplus.std(1) / math.sqrt(len(left))
            likeliest = scores.mean(1).where(clear, -math.inf).max(0)
            if likeliest.values > best_score:
                best, best_score = candidates[int(likeliest.indices)], likeliest.values
        return best

    def hide(self, n_rows: int) -> Tensor:
        """Cells of linked columns to hide if observed, `[n, D]`; a category's indicators together."""
        columns = [link.column for link in self.chain.links]
        share = max(_HIDDEN_PER_ROW / len(columns), _HIDDEN_PER_COLUMN / n_rows)
        chance = torch.rand(n_rows, self.point.shape[1], generator=self.generator)
        for variable in self.chain.discrete:
            chance[:, list(variable.columns)] = chance[:, [variable.columns[0]]]
        hidden = torch.zeros_like(chance, dtype=torch.bool)
        hidden[:, columns] = chance[:, columns] < min(share, _HIDDEN_SHARE)
        return hidden.to(self.point.device)

    def left_out(self, i: int, cells: Tensor) -> tuple[Tensor, Tensor]:
        """What the i-th sparse GP leaves of observed cells, had it not seen them, and its own variance.

        Args:
            i: Number of the link.
            cells: Rows in which its cell is observed, `[c]`.
        """
        rows, noise = self.drawn[cells][None], self.marginals[i].noise
        at, given_u = self.marginals[i].moments(rows), self.given_u[i].moments(rows)
        leverage = ((at.variance - given_u.variance)[0] / noise).clamp(0, _MOST_LEVERAGE)
        residual = self.rows.values[cells, self.chain.links[i].column] - at.mean[0]
        return residual / (1 - leverage), at.variance[0].clamp(max=noise)

    def inflate(self, found: Neighbours) -> Neighbours:
        """Let the draws of hidden cells spread as far as their values do."""
        picked = torch.randperm(len(self.rows), generator=self.generator)[:_HIDDEN_ROWS].to(self.point.device)
        rows = self.rows[picked]
        hidden = rows.observed & self.hide(len(rows))
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
                moments = [visited[i] for _, visited in walks[-_COUNTED:]]
                mean = torch.cat([at.mean for at in moments])[:, which]
                variance = torch.cat([at.variance for at in moments])[:, which]
                inflation = self.inflation(i, picked[holes[i][which]], mean, variance)
                character = dataclasses.replace(character, inflation=inflation)
            characters.append(character)
        return found.with_characters(characters)

    def inflation(self, i: int, cells: Tensor, mean: Tensor, variance: Tensor) -> float:
        """The τ of the i-th link that suits cells which were hidden from a walk.

        Args:
            i: Number of the link.
            cells: Their rows, `[c]`.
            mean: Mean of each cell, on each path of some walks, `[K, c]`.
            variance: Its variance, likewise.
        """
        values = self.rows.values[cells, self.chain.links[i].column]
        # The sparse GP has seen the cells when it was trained: its mean without them lies farther off.
        left, _ = self.left_out(i, cells)
        residual = values - self.marginals[i].mean(self.drawn[cells][None])[0]
        return _inflation(mean - (left - residual), variance, values)


def _candidates(
    local: LocalLink, shape: tuple[float, float], nearest: Tensor, rows: Tensor, left: Tensor
) -> tuple[list[Character], Moments]:
    """G characters of some f and η, and the moments of the local scale under each, at rows `[c, D]`.

    Returns:
        The characters, and their moments `[1, c]` and `[G, c]`.
    """
    first, k = Character(*shape, freedom=1.0, scale=1.0), local.n_neighbours
    nearby = dataclasses.replace(local, character=first).ask(nearest)
    at = nearby.moments(rows[None])
    # With ν = 1 and a₀ = 1: the rest is what the neighbours say of the scale, and what v is.
    spread, v = (1 + k) * nearby.scale - 1, at.variance / nearby.scale
    typical = float((left - at.mean[0]).square().median()) / _MEDIAN_OF_SQUARE / (1 + first.nugget)
    candidates = [
        Character(*shape, freedom, max(amplitude * typical, LEAST_SCALE))
        for freedom, amplitude in itertools.product(_FREEDOMS, _AMPLITUDES)
    ]
    freedom, scale = (
        torch.tensor([[getattr(candidate, name)] for candidate in candidates]).to(v)
        for name in ("freedom", "scale")
    )
    return candidates, Moments(at.mean, v * (freedom * scale + spread) / (freedom + k))


def _bounded_log_prob(values: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Of Gaussians; no value counts as less likely than a bound, so that outliers do not decide alone."""
    return Normal(mean, variance.clamp(min=_TINY**2).sqrt()).log_prob(values).clamp(min=_LOWEST)


def _inflation(mean: Tensor, variance: Tensor, values: Tensor) -> float:
    """The τ that makes values `[c]` likeliest in mixtures of Gaussians `[K, c]`, near one if in doubt."""
    if len(values) == 0:
        return 1.0
    inflations = torch.tensor(_INFLATIONS).to(values)
    components = Normal(mean, inflations[:, None, None] * variance.sqrt().clamp(min=_TINY))
    density = components.log_prob(values).logsumexp(1) - math.log(len(mean))
    prior = (inflations.log() / _EXPECTED_INFLATION).square() / 2
    lowest = -variance.clamp(min=_TINY**2).log().median() / 2 - _FARTHEST
    return float(inflations[(density.clamp(min=lowest).sum(1) - prior).argmax()])


def _holes(chain: Chain, observed: Tensor) -> list[Tensor]:
    """For each link, the rows whose cell is missing."""
    return [(~observed[:, link.column]).nonzero()[:, 0] for link in chain.links]
