"""Local GPs of all links of a chain.

A link may have several metrics, learnt from different training cells. Imputations alternate between them,
which carries the uncertainty about the metric into the draws.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from pyro_mgp._support.tiles import filled_up
from pyro_mgp.model.chain import Chain
from pyro_mgp.model.conditional import Conditional, Moments
from pyro_mgp.model.likelihoods import Category, Contaminated, Observation, Ordinal, Truncated
from pyro_mgp.model.link import Link
from pyro_mgp.sampling.discrete_support import is_nearest
from pyro_mgp.sampling.local_gp import DECIMALS, LocalLink, LocalPosterior, ParamsPerLink
from pyro_mgp.sampling.residual_process import ResidualProcess
from pyro_mgp.sampling.sequential_fill import SequentialFill

# Values stored for the neighbourhoods of the rows of one batch: 500 MB; and of a table, for many sweeps.
_KEPT_AT_ONCE, _KEPT_FOR_LONG = 2**26, 2**28

Conditionals = Sequence[Conditional]
"""Predictive distribution of each link of a chain."""
Cells = Sequence[Tensor]
"""Rows of each link's cells."""


@dataclass(frozen=True)
class PathPosteriors:
    """Local GP of a link at c cells on S paths, by the start of each path."""

    posteriors: list[LocalPosterior]  # local GP at the cells for each start
    paths: list[Tensor]  # indices of the paths of each start
    process: ResidualProcess | None = None  # functions by which cells vary together; None for none

    @classmethod
    def of(
        cls, metrics: Sequence[LocalLink], starts: Sequence[int], rows: Tensor, own: Tensor | None = None
    ) -> PathPosteriors:
        """Condition on the neighbours of cells on S paths, given their rows `[S, c, D]`.

        Paths with the same number of their start have the same neighbours, those of the first of them, and
        use the metric of this number modulo G. The metrics are local GPs of one link, equal but for ℓ and η.
        For `own` see `LocalLink.nearest`.
        """
        of_path = torch.tensor(starts, device=rows.device)
        used = of_path.unique().tolist()
        paths = [(of_path == number).nonzero()[:, 0] for number in used]
        # Neighbours of cells with the same inputs on all paths are sought once for each metric.
        inputs = rows[..., metrics[0].columns]
        differ = (inputs != inputs[:1]).any(-1).any(0)
        same, varied = (~differ).nonzero()[:, 0], differ.nonzero()[:, 0]
        order = torch.cat([same, varied]).argsort()
        of_same, of_varied = (None if own is None else own[cells] for cells in (same, varied))
        once = {j: metrics[j].posterior(rows[0, same], of_same) for j in {j % len(metrics) for j in used}}
        posteriors = []
        for number, first in zip(used, [own_paths[0] for own_paths in paths], strict=True):
            metric = number % len(metrics)
            alone = metrics[metric].posterior(rows[first, varied], of_varied)
            posteriors.append(once[metric].joined(alone, order))
        return cls(posteriors, paths)

    def given_functions(
        self, drawn: Conditional, mean: Conditional, process: ResidualProcess | None = None
    ) -> PathPosteriors:
        """Return the posteriors around S drawn functions of the sparse GP, and of the local one if given."""
        local = self.posteriors[0].local
        nearest = torch.stack([each.neighbourhood.nearest for each in self.posteriors])
        used, place = _distinct(nearest, len(local.references))
        there = local.rows[local.references[filled_up(used)]]
        difference, posteriors = responses(drawn, there) - responses(mean, there), []
        for posterior, paths, here in zip(self.posteriors, self.paths, place, strict=True):
            weights = posterior.weights - posterior.solved(difference[paths][:, here])
            of_process = None
            if process is not None:
                of_process = posterior.solved(process.references[paths][:, posterior.neighbourhood.nearest])
            posteriors.append(replace(posterior, weights=weights, of_process=of_process))
        return PathPosteriors(posteriors, self.paths, process)

    def moments(self, rows: Tensor) -> Moments:
        """Return the moments of the cells on each path, given the cells' rows `[S, c, D]`."""
        process = None if self.process is None else self.process.functions(rows)
        if len(self.paths) == 1:
            return self.posteriors[0].moments(rows, process)
        parts = [
            posterior.moments(rows[paths], None if process is None else process[paths])
            for posterior, paths in zip(self.posteriors, self.paths, strict=True)
        ]
        return Moments.joined(parts, 0).select(torch.cat(self.paths).argsort(), 0)


@dataclass(frozen=True)
class LocalConditional(Conditional):
    """Predictive distribution of a link at certain cells: the sum of its sparse GP and its local GP."""

    sparse: Conditional  # sparse GP, at its mean or at drawn functions
    local: PathPosteriors  # local GP at the cells

    @classmethod
    def of(cls, sparse: Conditional, local: PathPosteriors) -> LocalConditional:
        """Add a local GP without noise, since its variance is that of an observation."""
        return cls(torch.zeros_like(sparse.noise), sparse, local)

    def moments(self, rows: Tensor) -> Moments:
        """Return the moments of the cells' observations on S paths, given the cells' rows `[S, c, D]`."""
        local = self.local.moments(rows)
        if not isinstance(self.sparse.observation, Ordinal):
            return replace(local, mean=self.sparse.mean(rows) + local.mean)
        at = self.sparse.moments(rows)
        mean = self.sparse.expectation(at) + local.mean
        return replace(local, mean=mean, levels=log_levels(self.sparse, at))

    def observed_as(self, observation: Observation | None, *, noisy: bool = True) -> Self:
        """Return the conditional with an observation model, contaminated if the local GP says so."""
        if self.local.posteriors[0].local.params.contaminated:
            if observation is None:
                observation = Contaminated()
            elif isinstance(observation, Truncated):
                observation = Contaminated(observation.low, observation.high)
        return super().observed_as(observation, noisy=noisy)

    def shifted(self, shift: float) -> Conditional:
        """Return the conditional with its latent function shifted, for levels that of the sparse GP."""
        if isinstance(self.sparse.observation, Ordinal):
            return replace(self, sparse=self.sparse.shifted(shift))
        return super().shifted(shift)

    def functions(self, rows: Tensor) -> Tensor:
        """Return the functions of the sparse GP at any rows."""
        return self.sparse.functions(rows)


@dataclass(frozen=True)
class Neighbours:
    """Local GPs of the links of a chain, with their shared reference rows."""

    rows: Tensor  # reference rows with missing cells at means, `[R, D]`
    residuals: Tensor  # residuals of each link's sparse GP at these rows, `[L, R]`, NaN at missing cells
    n_neighbours: int  # number of neighbours k
    links: Sequence[Sequence[LocalLink]]  # local GPs of each link, one per metric, or none
    fill: SequentialFill  # distribution of the fill from which sweeps start

    @classmethod
    def of(
        cls,
        chain: Chain,
        rows: Tensor,
        residuals: Tensor,
        params: ParamsPerLink,
        n_neighbours: int,
        fill: SequentialFill,
        values: Sequence[Tensor | None],
    ) -> Neighbours:
        """Build the local GPs of a chain from reference rows, residuals and hyperparameters.

        `values` of each link are those of its discrete support, `[J]`; None without one.
        """
        links = []
        for link, own, of_link, support in zip(chain.links, residuals, params, values, strict=True):
            is_value = is_nearest(support, rows[:, link.column])
            links.append(
                [LocalLink.of(link.inputs, rows, own, n_neighbours, each, is_value) for each in of_link]
            )
        return cls(rows, residuals, n_neighbours, links, fill)

    def counting(self, counted: Sequence[bool]) -> Neighbours:
        """Return the local GPs, which count the values of neighbours for these links only."""

        def own(local: LocalLink, counts: bool) -> LocalLink:
            return local if counts else replace(local, is_value=None)

        links = [
            [own(local, counts) for local in metrics]
            for metrics, counts in zip(self.links, counted, strict=True)
        ]
        fill = [
            None if local is None else own(local, counts)
            for local, counts in zip(self.fill.links, counted, strict=True)
        ]
        return replace(self, links=links, fill=replace(self.fill, links=fill))

    def numbers_of_starts(self, imputations: Sequence[int]) -> list[int]:
        """Return the number of the start from which sweeps of each imputation begin.

        With several metrics, in large tables, imputations share as many starts; else each has its own.
        """
        n_metrics = max(map(len, self.links))
        return [j % n_metrics if n_metrics > 1 else j for j in imputations]

    def rows_at_once(self, n_starts: int) -> int:
        """Return the largest batch of rows whose neighbourhoods fit into memory if all cells are missing."""
        return max(1, _KEPT_AT_ONCE // max(n_starts * sum(self._entries), 1))

    @property
    def _entries(self) -> list[int]:
        """Values stored for a cell of each link and start."""
        k = self.n_neighbours
        return [
            sum(
                k * (k + len(own.columns)) + (0 if own.is_value is None else own.is_value.shape[1])
                for own in metrics[:1]
            )
            for metrics in self.links
        ]

    @property
    def params(self) -> ParamsPerLink:
        """Hyperparameters of each link's local GPs."""
        return [[local.params for local in metrics] for metrics in self.links]

    @torch.no_grad()
    def posterior(
        self, i: int, filled: Tensor, here: Tensor, starts: Sequence[int], own: Tensor | None = None
    ) -> PathPosteriors | None:
        """Condition the local GP of the i-th link on the neighbours of its cells; None without a local GP.

        `filled` are the rows of S paths at their `starts`, `[S, n, D]`, `here` those of the cells, and `own`
        `[n]` the indices of the reference rows that rows are, -1 for none; None if no row is one.
        """
        if not self.links[i]:
            return None
        own = None if own is None else own[here]
        return PathPosteriors.of(self.links[i], starts, filled[:, here].round(decimals=DECIMALS), own)

    def fits(self, cells: Cells, n_starts: int) -> bool:
        """Return whether the neighbourhoods of each link's cells may be kept, up to 2 GB."""
        return n_starts * sum(map(operator.mul, self._entries, map(len, cells))) <= _KEPT_FOR_LONG

    def update_means(self, chain: Chain, marginals: Conditionals, point: Tensor, holes: Cells) -> None:
        """Fill missing cells in place with conditional means in the first metric of each link."""
        of_compounds = chain.links_of_compounds
        for i, (link, here) in enumerate(zip(chain.links, holes, strict=True)):
            # In reference rows categories keep their probabilities under the sparse GPs.
            if i in of_compounds:
                continue
            rows = point[here]
            mean = marginals[i].mean(rows[None])[0]
            for local in self.links[i][:1]:
                mean = mean + local.posterior(rows).moments(rows[None]).mean[0]
            point[here, link.column] = mean


def may_be_local(link: Link) -> bool:
    """Return whether a link can have a local GP: with Gaussian noise, ordered values, or levels."""
    return link.is_gaussian or isinstance(link.likelihood, Ordinal)


def log_levels(sparse: Conditional, at: Moments) -> Tensor | None:
    """Return log probabilities of a link's levels `[S, n, K]`, given moments; None for a link of numbers."""
    likelihood = sparse.observation
    return likelihood.log_levels(at.mean, at.variance) if isinstance(likelihood, Ordinal) else None


def responses(conditional: Conditional, rows: Tensor) -> Tensor:
    """Return the functions at rows `[n, D]` on the scale of residuals: for levels, expected values."""
    functions, likelihood = conditional.functions(rows), conditional.observation
    if isinstance(likelihood, Ordinal):
        return likelihood.expectation(functions, torch.zeros_like(functions))
    return functions


def _distinct(numbers: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Return the different numbers among some below n, and the place of each entry among them.

    On a GPU, for which the host would have to wait to count them, there are others or repetitions, at most n.
    """
    if not numbers.is_cuda:
        return numbers.unique(return_inverse=True)
    if numbers.numel() >= n:
        return torch.arange(n, device=numbers.device), numbers
    return numbers.flatten(), torch.arange(numbers.numel(), device=numbers.device).view_as(numbers)


@torch.no_grad()
def add_local_gp(
    sparse: Conditional,
    marginal: Conditional,
    local: PathPosteriors | None,
    process: ResidualProcess | None = None,
) -> Conditional:
    """Add the local GP at its cells to the sparse GP of a link; return the latter without a local GP.

    The sparse GP is at drawn functions, or the marginal itself, to which residuals of neighbours refer. Cells
    vary together by the functions of the process, or are independent.
    """
    if local is None:
        return sparse
    if sparse is not marginal:
        local = local.given_functions(sparse, marginal, process)
    return LocalConditional.of(sparse, local)


def fill_sparse_means(
    chain: Chain, marginals: Conditionals, point: Tensor, holes: Cells, n_sweeps: int = 1
) -> None:
    """Fill missing cells of rows `[n, D]` with the conditional means of the sparse GPs alone, in place."""
    for _ in range(n_sweeps):
        means: list[Tensor] = []
        for link, conditional, here in zip(chain.links, marginals, holes, strict=True):
            means.append(conditional.mean(point[here][None]))
            point[here, link.column] = means[-1][0]
            for category in chain.compounds:
                # Columns in two parts are modelled in joint densities only, which have no local GPs.
                if isinstance(category, Category) and category.links[-1] == len(means) - 1:
                    answers = torch.stack([means[i] for i in category.links], dim=-1)
                    point[here[:, None], list(category.columns)] = category.expectation(answers)[0]
