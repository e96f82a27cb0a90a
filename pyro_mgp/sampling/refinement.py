"""What a trained chain learns from its own errors: local scales, and how columns of few values are drawn.

What these are stands in `neighbours.py` and `discrete_support.py`; here is how they are found.

The holes of the training rows are filled twice: at conditional means, for the rows to be neighbours, and by
draws, for the rows to be asked about. Each link then takes the ℓ and η, and after them the ν, a₀ and cut,
that predict some of its observed cells best, each cell left out of its own neighbourhood and of the sparse
GP: with the leverage h = φᵀSφ/s², the residual of a cell that was left out is e/(1 - h). In tables that are
not small a link learns several metrics ℓ and η, each from other cells, and hears all of them as suits the
first. Links whose neighbours do not clearly help go without; so do those of ordered values and of categories.

Columns of few values then learn, from cells that were left out, how likely each value is where the link says
N(m, s²).

At last some observed cells are hidden and imputed by the whole machinery. The inflation τ is the one under
which their values are most probable: it makes up for holes in the inputs, for references that stand at means,
and for whatever else a sweep does to the spread of its draws.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import Normal

from pyro_mgp._support.keyed_noise import KeyedNoise
from pyro_mgp.data.encoded_table import EncodedTable
from pyro_mgp.model.chain import Chain, Noise
from pyro_mgp.model.conditional import Conditional, observed_as
from pyro_mgp.model.kernels import lengthscales
from pyro_mgp.model.local_parameters import local_parameters
from pyro_mgp.sampling.discrete_support import DiscreteSupport, nearest_value, some_of_each
from pyro_mgp.sampling.local_gp import (
    LEAST_SCALE,
    MEDIAN_OF_SQUARE,
    Gathered,
    LocalGPParams,
    LocalLink,
    Neighbours,
    ParamsPerLink,
    corrected,
    settle,
)
from pyro_mgp.sampling.local_gp_metric import LeftOut, crps, learn_metrics
from pyro_mgp.sampling.sampler import SETTLING, InitialFill

MOST_ROWS = 10_000
"""Reference rows at most; more cost time in every draw and say little more."""
# A link with fewer observed cells than this many per neighbour has none that are near.
_LEAST_PER_NEIGHBOUR = 4
# Walks by which the means of the sparse GPs alone, and draws from them, are settled.
_SWEEPS = 3
# What is learnt starts at the sparse GP's lengthscales divided by this, and at this η.
_FIRST_SHARPNESS, _FIRST_NUGGET = 4.0, 0.3
# Metrics of a link in tables of more than so many rows; in smaller ones a fit shall take less time.
_METRICS, _SMALL = 4, 2000
# To choose from: the cut, ν, and a₀ in parts of the typical squared error.
_CUTS = (None, 4.0)
_FREEDOMS = (1.0, 10.0)
_AMPLITUDES = (0.1, 0.3, 1.0)
# Cells left out to choose by, and those besides that the sparse GP predicts worst.
_LEFT_OUT, _WORST = 900, 100
# Numbers that are kept at a time of the neighbours of cells that are left out: 16 MB.
_KEPT_AT_ONCE = 2**21
# The same for weights of few values: in all, and at least so many of each value.
_JUDGED, _JUDGED_OF_EACH = 600, 10
# Standard errors by which neighbours must predict better than the sparse GP alone.
_CLEARLY = 2.0
# Hidden cells: in so many rows at most; half a cell per row, since the rest must look as it will when nothing
# is hidden, but at least so many per column, and no more than this share of the observed ones.
_HIDDEN_ROWS, _HIDDEN_PER_ROW, _HIDDEN_PER_COLUMN, _HIDDEN_SHARE = 4000, 0.5, 30, 0.1
# Components of the mixtures that are to hold them, by one metric and by several: sweeps that count, at most
# so many of each path. A mixture of few is narrower than what it stands for, which τ would make up for.
_COMPONENTS, _OF_SEVERAL, _COUNTED = 16, 24, 4
_INFLATIONS = tuple(1.1**step for step in range(-13, 18))
# Standard deviation of log τ that is expected.
_EXPECTED_INFLATION = 0.2
# A hidden cell counts as no farther off than four standard deviations of a typical one; one of few values as
# no less likely than one in a thousand.
_FARTHEST = 0.5 * 4.0**2 + 0.5 * math.log(2 * math.pi)
_LEAST_LIKELY = math.log(1e-3)
# Most of its own residual that a cell explains.
_MOST_LEVERAGE = 0.9
# Smallest standard deviation, where neighbours agree to the last digit.
_TINY = 1e-8


def refine(
    chain: Chain,
    start: InitialFill,
    rows: EncodedTable,
    n_neighbours: int,
    values: Sequence[Tensor | None],
    *,
    joint: bool,
    seed: int,
) -> tuple[Neighbours | None, list[DiscreteSupport | None]]:
    """Find the local scales of a trained chain, and how its columns of few values are drawn.

    Args:
        chain: The chain.
        start: Fill that a sweep starts from.
        rows: Training rows in an order that means nothing, on the chain's device.
        n_neighbours: k; 0 for no local scales.
        values: For each link the values of its column if they are few, ascending, `[J]`, or None.
        joint: Whether imputations have drawn functions, see `sampling.Sampler`.
        seed: Of the draws and choices made here.

    Returns:
        The local scales, or None if no link has any, and each link's few values.
    """
    if n_neighbours == 0 and all(of_link is None for of_link in values):
        return None, [None] * len(values)
    with torch.no_grad(), local_parameters():
        fit = _Fit(chain, start, rows[:MOST_ROWS], n_neighbours, joint, seed)
        neighbours = fit.find_neighbours() if n_neighbours else None
        few = [fit.fit_values(i, of_link, neighbours) for i, of_link in enumerate(values)]
        return None if neighbours is None else fit.inflate(neighbours, few), few


class _Fit:
    """The training rows with their holes filled in two ways, and the local scales as far as known."""

    def __init__(
        self, chain: Chain, start: InitialFill, rows: EncodedTable, n_neighbours: int, joint: bool, seed: int
    ) -> None:
        self.chain, self.start, self.rows = chain, start, rows
        self.n_neighbours, self.joint, self.seed = n_neighbours, joint, seed
        self.generator = torch.Generator().manual_seed(seed)
        self.marginals: Sequence[Conditional] = chain.conditionals()
        # Their variance is what inducing values cannot say; the marginals' has that of q(u) besides.
        self.given_u = chain.conditionals([link.u_loc[None] for link in chain.links])
        # As in imputations, the first sweeps do not count.
        self.n_counted = min(_COUNTED, chain.n_sweeps - chain.n_sweeps // SETTLING)
        self.n_metrics = _METRICS if len(rows) > _SMALL else 1
        n_components = _COMPONENTS if self.n_metrics == 1 else _OF_SEVERAL
        self.n_hidden_paths = math.ceil(n_components / self.n_counted)
        self.holes = chain.holes(rows.observed)
        self.point = start.expected(rows)
        self.drawn = self.point.clone()
        settle(chain, self.marginals, self.point, self.holes, _SWEEPS)
        self.draw(self.marginals, _SWEEPS)

    def find_neighbours(self) -> Neighbours | None:
        """The local scales."""
        guesses = self.neighbours([self.first_guess(i) for i in range(len(self.holes))])
        learnt = self.learn(guesses.links)
        first = self.neighbours(learnt)
        self.point = self.point.clone()  # The references shall not move while others are looked at.
        for i, here in enumerate(self.holes):
            first.improve(i, self.chain, self.marginals, self.point, here)
        found = self.neighbours(learnt)
        for here in torch.arange(len(self.rows)).split(found.rows_at_once):
            holes = self.chain.holes(self.rows.observed[here])
            nearby = found.near(self.point[here], holes, range(1))
            self.draw(corrected(self.marginals, nearby), 1, here)
        links = [self.choose(i, metrics) for i, metrics in enumerate(found.links)]
        return dataclasses.replace(found, links=links) if any(links) else None

    def draw(
        self, conditionals: Sequence[Conditional], n_sweeps: int, here: Tensor | slice = slice(None)
    ) -> None:
        """Redraw the holes of the rows to be asked about, or of some of these."""
        observed = self.rows.observed[here]
        start, holes = self.drawn[None, here], self.chain.holes(observed)
        sweeps = self.chain.sweeps(conditionals, start, observed, lambda _: self.noise(1), n_sweeps, holes)
        *_, (paths, _) = sweeps
        self.drawn[here] = paths[0]

    def noise(self, n_paths: int) -> Noise:
        """Noise of sweeps by so many paths, from this fit's generator."""
        return lambda _, rows: self.normal(n_paths, len(rows))

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers from this fit's generator."""
        return torch.randn(shape, generator=self.generator, dtype=self.point.dtype).to(self.point.device)

    def neighbours(self, characters: ParamsPerLink) -> Neighbours:
        """The reference rows as they are filled now, with local scales of the given characters."""
        residuals = torch.full((len(self.holes), len(self.rows)), math.nan).to(self.point)
        for i, link in enumerate(self.chain.links):
            if not characters[i]:
                continue
            known = self.rows.observed[:, link.column]
            mean = self.marginals[i].mean(self.point[known][None])[0]
            residuals[i, known] = self.rows.values[known, link.column] - mean
        return Neighbours.of(self.chain, self.point, residuals, characters, self.n_neighbours)

    def first_guess(self, i: int) -> list[LocalGPParams]:
        """Something to begin with; nothing for a link that goes without."""
        if not self.chain.links[i].is_gaussian:
            return []
        n_known = int(self.rows.observed[:, self.chain.links[i].column].sum())
        if n_known < _LEAST_PER_NEIGHBOUR * self.n_neighbours:
            return []
        link = self.chain.links[i]
        own = lengthscales(link.kernel, len(link.inputs)) / _FIRST_SHARPNESS
        noise = float(self.marginals[i].noise)
        return [LocalGPParams(tuple(own.tolist()), _FIRST_NUGGET, freedom=1.0, scale=noise)]

    def learn(self, links: Sequence[Sequence[LocalLink]]) -> ParamsPerLink:
        """The characters of links, one of each or none, with lengthscales and nuggets that suit them."""
        learnt: list[list[LocalGPParams]] = [[] for _ in links]
        some = {i: local for i, metrics in enumerate(links) for local in metrics}
        leave_out = [functools.partial(self.left_out, i) for i in some]
        for _ in range(self.n_metrics):
            found = learn_metrics(list(some.values()), leave_out, self.point.shape[1], self.generator)
            for (i, local), (lengths, nugget) in zip(some.items(), found, strict=True):
                learnt[i].append(
                    dataclasses.replace(local.character, lengthscales=tuple(lengths.tolist()), nugget=nugget)
                )
        return learnt

    def choose(self, i: int, metrics: Sequence[LocalLink]) -> list[LocalLink]:
        """The local scales of the i-th link, with the character that suits them; none if none clearly helps.

        Metrics differ by the cells they are learnt from only. What suits the first one suits the others: to
        judge each one by itself takes more time, and scores the same.
        """
        if not metrics:
            return []
        best = self.choose_character(i, metrics[0])
        if best is None:
            return []
        return [local.with_params(best) for local in metrics]

    def choose_character(self, i: int, local: LocalLink) -> LocalGPParams | None:
        """The one that predicts left-out cells of the i-th link best; None if none clearly helps."""
        numbers, weights = self._to_judge_by(local)
        candidates: list[LocalGPParams] = []
        gains = []
        for cells in local.references[numbers].split(_at_once(local)):
            left = self.left_out(i, cells)
            gathered = local.gather(local.nearest(left.rows, left.own))
            candidates = candidates or _candidates(local, left, gathered)
            gains.append(_gain(local, candidates, left, gathered, self.marginals[i].noise))
        gain = torch.cat(gains, dim=1)
        # A rare cell is worth more than all others, and tells nothing of how sure that is.
        ordinary = gain[:, weights > 1] if (weights > 1).any() else gain
        clear = ordinary.mean(1) > _CLEARLY * ordinary.std(1) / math.sqrt(ordinary.shape[1])
        best = (gain @ weights).where(clear, -math.inf).argmax()
        return candidates[int(best)] if clear[best] else None

    def _to_judge_by(self, local: LocalLink) -> tuple[Tensor, Tensor]:
        """Some of a link's references, by their numbers, and for how many cells each of them stands.

        What is best for a rare value, or after an outlier, only few cells can tell: these are all among them.
        """
        order = local.residuals.abs().argsort(descending=True)
        worst, others = order[:_WORST], order[_WORST:]
        picked = torch.randperm(len(others), generator=self.generator)[:_LEFT_OUT].to(order.device)
        weight = len(others) / max(len(picked), 1)
        numbers = torch.cat([others[picked], worst])
        return numbers, torch.cat([weight * torch.ones(len(picked)), torch.ones(len(worst))]).to(
            local.residuals
        )

    def hide(self, n_rows: int) -> Tensor:
        """Cells of linked columns to hide if observed, `[n, D]`; a category's indicators together."""
        columns = [link.column for link in self.chain.links]
        share = max(_HIDDEN_PER_ROW / len(columns), _HIDDEN_PER_COLUMN / n_rows)
        chance = torch.rand(n_rows, self.point.shape[1], generator=self.generator)
        for category in self.chain.categories:
            chance[:, list(category.columns)] = chance[:, [category.columns[0]]]
            columns += category.columns
        hidden = torch.zeros_like(chance, dtype=torch.bool)
        hidden[:, columns] = chance[:, columns] < min(share, _HIDDEN_SHARE)
        return hidden.to(self.point.device)

    def left_out(self, i: int, cells: Tensor) -> LeftOut:
        """Observed cells of the i-th link, by their rows `[c]`, had its sparse GP not seen them."""
        rows, noise = self.drawn[cells], self.marginals[i].noise
        at, given_u = self.marginals[i].moments(rows[None]), self.given_u[i].moments(rows[None])
        leverage = ((at.variance - given_u.variance)[0] / noise).clamp(0, _MOST_LEVERAGE)
        residual = self.rows.values[cells, self.chain.links[i].column] - at.mean[0]
        return LeftOut(cells, rows, residual / (1 - leverage), at.variance[0].clamp(max=noise))

    def fit_values(self, i: int, values: Tensor | None, found: Neighbours | None) -> DiscreteSupport | None:
        """How the i-th link's draws choose among its values, if they are few."""
        if values is None or not self.chain.links[i].is_gaussian:
            return None
        column = self.chain.links[i].column
        known = self.rows.observed[:, column].nonzero()[:, 0]
        known = known[torch.randperm(len(known), generator=self.generator).to(known.device)]
        values = values.to(self.point)
        chosen = nearest_value(values, self.rows.values[known, column])
        cells = known[some_of_each(chosen, max(_JUDGED // len(values), _JUDGED_OF_EACH))]
        left, observed = self.left_out(i, cells), self.rows.values[cells, column]
        mean, variance = observed - left.values, left.variance + self.marginals[i].noise
        for local in [] if found is None else found.links[i][:1]:
            at = local.around(left.rows, cells).moments(left.rows[None])
            mean, variance = mean + at.mean[0], at.variance[0]
        counts = torch.bincount(chosen, minlength=len(values)).to(values) + 1
        return DiscreteSupport.fit(values, observed, mean, variance, counts / counts.sum())

    def inflate(self, found: Neighbours, few: Sequence[DiscreteSupport | None]) -> Neighbours:
        """Let the draws of hidden cells spread as far as their values do."""
        picked = torch.randperm(len(self.rows), generator=self.generator)[:_HIDDEN_ROWS].to(self.point.device)
        hidden = self.rows.observed[picked] & self.hide(len(picked))
        # Rows sweep alone: those in which nothing is hidden would sweep for nothing.
        some = hidden.any(1)
        if not some.any():
            return found
        picked, hidden = picked[some], hidden[some]
        sparse = self.marginals
        if self.joint:
            functions = self.chain.functions(lambda _, size: self.normal(self.n_hidden_paths, size))
            sparse = self.chain.conditionals(functions)
        parts = [
            self.impute_hidden(found, sparse, few, picked[here], hidden[here])
            for here in torch.arange(len(picked)).split(found.rows_at_once)
        ]
        links: list[list[LocalLink]] = []
        for i, (metrics, *of_link) in enumerate(zip(found.links, *parts, strict=True)):
            if metrics:
                cells, mean, variance = (torch.cat(part, dim=-1) for part in zip(*of_link, strict=True))
                inflation = self.inflation(i, cells, mean, variance, few[i])
            links.append([local.inflated(inflation) for local in metrics])
        return dataclasses.replace(found, links=links)

    def impute_hidden(
        self,
        found: Neighbours,
        sparse: Sequence[Conditional],
        few: Sequence[DiscreteSupport | None],
        picked: Tensor,
        hidden: Tensor,
    ) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Walk through rows of which some observed cells are hidden.

        Args:
            found: The local scales.
            sparse: The links' sparse GPs, at drawn functions if imputations have such.
            few: How draws choose among few values.
            picked: The rows, `[n]`.
            hidden: Bool `[n, D]`.

        Returns:
            For each link the hidden cells, by their rows, `[c]`, and what it said of them on each path of
            some sweeps: means and variances, `[K, c]`.
        """
        rows = self.rows[picked]
        seen = EncodedTable(rows.values, rows.observed & ~hidden, rows.keys)
        holes, point = self.chain.holes(seen.observed), self.start.expected(seen)
        imputations = range(self.n_hidden_paths)
        nearby = found.around(self.chain, self.marginals, point, holes, imputations, picked)
        if self.joint:
            nearby = found.given(nearby, sparse, self.marginals)
        conditionals = observed_as(corrected(sparse, nearby), few)
        paths = self.start.draw(seen, KeyedNoise(self.seed, seen.keys, imputations))
        noise, n_sweeps = self.noise(self.n_hidden_paths), self.chain.n_sweeps
        sweeps = list(self.chain.sweeps(conditionals, paths, seen.observed, lambda _: noise, n_sweeps, holes))
        cells = []
        for i, (link, here) in enumerate(zip(self.chain.links, holes, strict=True)):
            which, counted = hidden[here, link.column], sweeps[-self.n_counted :]
            moments = [visited[i] for _, visited in counted]
            mean = torch.cat([at.mean for at in moments])[:, which]
            variance = torch.cat([at.variance for at in moments])[:, which]
            cells.append((picked[here[which]], mean, variance))
        return cells

    def inflation(
        self, i: int, cells: Tensor, mean: Tensor, variance: Tensor, few: DiscreteSupport | None
    ) -> float:
        """The τ of the i-th link that suits cells which were hidden from a sweep.

        Args:
            i: Number of the link.
            cells: Their rows, `[c]`.
            mean: Mean of each cell, on each path of some sweeps, `[K, c]`.
            variance: Its variance, likewise.
            few: How its draws choose among few values.
        """
        values = self.rows.values[cells, self.chain.links[i].column]
        # The sparse GP has seen the cells when it was trained: its mean without them lies farther off.
        left = self.left_out(i, cells).values
        residual = values - self.marginals[i].mean(self.drawn[cells][None])[0]
        mean = mean - (left - residual)
        return (
            _inflation(mean, variance, values) if few is None else _few_inflation(mean, variance, values, few)
        )


def _at_once(local: LocalLink) -> int:
    """Cells whose neighbours are looked at together."""
    k = local.n_neighbours
    return max(1, _KEPT_AT_ONCE // (k * (k + len(local.columns))))


def _candidates(local: LocalLink, left: LeftOut, gathered: Gathered) -> list[LocalGPParams]:
    """ParamsPerLink to choose from, of the link's ℓ and η and of scales that suit some cells."""
    error = left.values - local.hear(gathered).moments(left.rows[None]).mean[0]
    typical = float(error.square().median()) / MEDIAN_OF_SQUARE / (1 + local.character.nugget)
    return [
        dataclasses.replace(
            local.character, cut=cut, freedom=freedom, scale=max(amplitude * typical, LEAST_SCALE)
        )
        for cut, freedom, amplitude in itertools.product(_CUTS, _FREEDOMS, _AMPLITUDES)
    ]


def _gain(
    local: LocalLink, candidates: Sequence[LocalGPParams], left: LeftOut, gathered: Gathered, noise: Tensor
) -> Tensor:
    """How much better than the sparse GP alone each of G characters predicts cells, `[G, c]`."""
    heard = local.hear_as(candidates, gathered)
    cross, v = heard[0].relation(left.rows[None])
    mean = torch.stack([(cross * each.weights)[:, 0].sum(1) for each in heard])
    variance = torch.stack([v[:, 0] * each.scale for each in heard]) + left.variance
    alone = crps(left.values, torch.zeros_like(left.values), noise + left.variance)
    return alone - crps(left.values, mean, variance)


def _inflation(mean: Tensor, variance: Tensor, values: Tensor) -> float:
    """The τ that makes values `[c]` likeliest in mixtures of Gaussians `[K, c]`, near one if in doubt."""
    if len(values) == 0:
        return 1.0
    inflations = torch.tensor(_INFLATIONS).to(values)
    components = Normal(mean, inflations[:, None, None] * variance.sqrt().clamp(min=_TINY))
    density = components.log_prob(values).logsumexp(1) - math.log(len(mean))
    lowest = -variance.clamp(min=_TINY**2).log().median() / 2 - _FARTHEST
    return _likeliest(density.clamp(min=lowest).sum(1))


def _few_inflation(mean: Tensor, variance: Tensor, values: Tensor, few: DiscreteSupport) -> float:
    """The same in a column of few values."""
    chosen = nearest_value(few.values, values).expand(mean.shape)
    likelihoods = []
    for inflation in _INFLATIONS:
        components = few.log_probabilities(mean, inflation**2 * variance)
        of_chosen = components.gather(-1, chosen[..., None])[..., 0]
        mixture = of_chosen.logsumexp(0) - math.log(len(mean))
        likelihoods.append(mixture.clamp(min=_LEAST_LIKELY).sum())
    return _likeliest(torch.stack(likelihoods))


def _likeliest(likelihoods: Tensor) -> float:
    """The τ of the largest of its log likelihoods, each less what is against a τ far from one."""
    inflations = torch.tensor(_INFLATIONS)
    prior = (inflations.log() / _EXPECTED_INFLATION).square() / 2
    return _INFLATIONS[int((likelihoods.cpu() - prior).argmax())]
