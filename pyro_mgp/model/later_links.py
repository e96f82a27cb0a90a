"""Moves of missing cells given later links of a sequential chain, and the likelihood of these links.

A missing cell of column d has the density

    p(x_d | rest) ∝ p(x_d | earlier) Π_{later e that sees d} p(x_e | .., x_d, ..)

Finite sets of values are enumerated. Numbers with Gaussian noise move by elliptical slice sampling (Murray,
Adams and MacKay, AISTATS 2010) on ellipses of a normal approximation of this density (Nishihara, Murray and
Adams, JMLR 15:2087-2112, 2014). All others choose among their current value and draws from
p(x_d | earlier), weighted by the later links (iterated sampling importance resampling; Andrieu, Doucet and
Holenstein, JRSS B 72:269-342, 2010). All three leave the density invariant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from pyro_mgp._support.devices import rows_if_known
from pyro_mgp._support.tiles import filled_up
from pyro_mgp.model.conditional import Along, Conditional, Moments
from pyro_mgp.model.elliptical_slice import TOGETHER, elliptical_slice
from pyro_mgp.model.likelihoods.levels import none_is_on
from pyro_mgp.model.limited_cells import log_within

N_CANDIDATES = 5
"""Draws among which a cell chooses besides its current value."""

# Standard deviations, given the earlier columns, between the values at which a normal approximation is equal
# to the density of a cell; least precision relative to that given these columns for which it is used; and the
# factor of its standard deviation: density ratios must not grow in its tails.
_APART, _NARROWER, _WIDER = 1.5, 1.01, 1.2

Numbers = Callable[[int], Tensor]
"""Standard normal numbers `[S, k]` of the cells that move, by their stream."""


@dataclass(frozen=True)
class Later:
    """A link that has the column of some cells as input."""

    conditional: Conditional
    column: int
    """Column that the link predicts."""
    unless: Sequence[int]
    """Indicators of earlier levels of its variable; the link predicts rows in which none is on."""
    informative: Tensor
    """Bool `[k]`, the rows of the cells in which its own cell is informative."""


@dataclass(frozen=True)
class Candidates:
    """K candidates for each of k missing cells, or for all columns of a compound."""

    values: Tensor
    """The candidates, `[S, k, K, columns]`."""
    log_weights: Tensor
    """Logarithms of their weights given the earlier columns, `[S, k, K]`."""

    @classmethod
    def of_levels(cls, levels: Tensor, log_prob: Tensor) -> Candidates:
        """Return all levels `[K, columns]` of a finite set with their probabilities, `[S, k, K]`."""
        return cls(levels.expand(*log_prob.shape[:2], *levels.shape), log_prob)

    @classmethod
    def of_draws(cls, current: Tensor, draw: Callable[[Tensor], Tensor], numbers: Numbers) -> Candidates:
        """Return the current values `[S, k]` and draws from p(x | earlier); see `resample`."""
        fresh = [draw(numbers(1 + i)) for i in range(N_CANDIDATES)]
        values = torch.stack([current, *fresh], dim=-1)
        return cls(values[..., None], torch.zeros_like(values))

    def chosen(self, log_likelihood: Tensor, normal: Tensor) -> Tensor:
        """Draw cells `[S, k, columns]` in proportion to weights times likelihoods, by numbers `[S, k]`."""
        index = _choose(self.log_weights + log_likelihood, normal)[..., None, None]
        return self.values.gather(2, index.expand(-1, -1, -1, self.values.shape[-1]))[:, :, 0]


@dataclass(frozen=True)
class LaterLinks:
    """Likelihood of k cells under the later links that have their columns as inputs."""

    links: Sequence[Later]
    table: Tensor
    """Rows of the cells, `[S, k, D]`."""
    columns: Sequence[int]
    """Columns of the cells: one, or all columns of a compound."""
    owners: Tensor | None = None
    """Number of the cell that each row of the table has in common with others, `[R]`; then the table is
    `[S, R, D]`. None if each row has its own cell."""
    n_cells: int = 0
    """Number k of cells, if they have `owners`."""

    @property
    def current(self) -> Tensor:
        """Current values of the cells, `[S, k]`, or of the first indicator."""
        values = self.table[..., self.columns[0]]
        if self.owners is None:
            return values
        return values.new_zeros(len(values), self.n_cells).index_copy(1, self.owners, values)

    @cached_property
    def _rows_of_cells(self) -> tuple[Tensor, Tensor, Tensor]:
        """Rows sorted by their cells `[R]`, and the first of these and their number for each cell, `[k]`."""
        assert self.owners is not None
        sizes = torch.bincount(self.owners, minlength=self.n_cells)
        return self.owners.argsort(stable=True), sizes.cumsum(0) - sizes, sizes

    @cached_property
    def _by_row(self) -> LaterLinks:
        """The likelihood of cells of which each row has its own."""
        return replace(self, owners=None)

    @cached_property
    def _parts(self) -> list[tuple[Later, Along, Tensor]]:
        """The links, their moments along the columns, and the cells of which they tell something."""
        along = [link.conditional.along(self.table, self.columns) for link in self.links]
        tells = [link.informative & none_is_on(self.table, link.unless) for link in self.links]
        return list(zip(self.links, along, tells, strict=True))

    def log_likelihood(self, paths: Tensor, cells: Tensor, values: Tensor) -> Tensor:
        """Return the log likelihood `[j]` of candidate values of some cells, `[j]` or `[j, indicators]`."""
        values = values.view(len(paths), -1)
        if self.owners is not None:
            rows, first, sizes = self._rows_of_cells
            own = torch.arange(len(cells), device=cells.device).repeat_interleave(sizes[cells])
            before = sizes[cells].cumsum(0) - sizes[cells]
            here = rows[first[cells][own] + torch.arange(len(own), device=own.device) - before[own]]
            each = self._by_row.log_likelihood(paths[own], here, values[own])
            return each.new_zeros(len(paths)).index_add(0, own, each)
        total = values.new_zeros(len(paths))
        for link, along, tells in self._parts:
            is_told = tells[paths, cells]
            if (chosen := rows_if_known(is_told)) is None:
                density = self._density(link, along, paths, cells, values)
                total = total + density.where(is_told, 0.0)
            elif len(chosen):
                whole = filled_up(chosen)
                told = (each.index_select(0, whole) for each in (paths, cells, values))
                total.index_add_(0, chosen, self._density(link, along, *told)[: len(chosen)])
        return total

    def _density(self, link: Later, along: Along, paths: Tensor, cells: Tensor, values: Tensor) -> Tensor:
        """Return the log density `[j]` of a link's own cells, given values of some cells."""
        moments = along(paths, cells, values)
        return link.conditional.log_prob(self.table[paths, cells, link.column], moments, paths)

    def of_candidates(self, candidates: Candidates) -> Tensor:
        """Return the log likelihoods of each cell's candidates, `[S, k, K]`."""
        values = candidates.values
        paths, cells = every_cell(values)
        found = []
        for some in values.split(max(TOGETHER // max(len(cells), 1), 1), dim=2):
            of_path, of_cell = (each.repeat_interleave(some.shape[2]) for each in (paths, cells))
            found.append(self.log_likelihood(of_path, of_cell, some.flatten(0, 2)).view(some.shape[:3]))
        return torch.cat(found, dim=-1)


def every_cell(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the paths and the numbers of all cells `[S, k, ...]`, one after the other, `[S · k]` each."""
    n_paths, n_cells = values.shape[:2]
    number = torch.arange(n_paths * n_cells, device=values.device)
    return number // n_cells, number % n_cells


def resample(
    draw: Callable[[Tensor], Tensor],
    later: LaterLinks,
    numbers: Numbers,
    shifted: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Return each cell's choice `[S, k]` among its current value and draws from p(x | earlier).

    The function `draw` draws cells `[S, k]` given standard normal numbers, and `shifted` draws shifted cells:
    these choose among the draws only, as if they were not shifted, and the choice is drawn again from the
    shifted distribution, by the same number.
    """
    candidates = Candidates.of_draws(later.current, draw, numbers)
    likelihood = later.of_candidates(candidates)
    if shifted is None:
        return candidates.chosen(likelihood, numbers(0))[..., 0]
    chosen = _choose(likelihood[..., 1:], numbers(0))
    normal = torch.stack([numbers(1 + i) for i in range(N_CANDIDATES)], dim=-1)
    return shifted(normal.gather(-1, chosen[..., None])[..., 0])


def slice_sample(
    moments: Moments, noise: Tensor, later: LaterLinks, numbers: Numbers, limits: Tensor | None = None
) -> Tensor:
    """Return cells `[S, k]` after a move of a generalised elliptical slice sampler, within limits `[k, 2]`.

    Takes the moments of the latent function at the cells, the variance of observations given this, `[]` or
    `[S, 1]`, and numbers of the ellipse (1), of the threshold (2) and of the first angle (3).
    """
    values, mean = later.current, moments.mean
    variance = moments.variance + noise
    apart = _APART * variance.sqrt()
    at = torch.stack([mean - apart, mean, mean + apart, values], dim=-1)
    densities = _given_earlier(at, mean[..., None], variance[..., None])
    densities = densities + later.of_candidates(Candidates(at[..., None], torch.zeros_like(at)))
    low, middle, high, start = densities.flatten(0, 1).unbind(-1)
    paths, cells = every_cell(values)
    mean, variance, current = mean.flatten(), variance.flatten(), values.flatten()
    centre, spread = _normal_approximation(mean, variance, (low, middle, high))

    def log_ratio(deviations: Tensor, number: Tensor) -> Tensor:
        proposed = centre[number] + deviations
        ratio = _given_earlier(proposed, mean[number], variance[number])
        ratio = ratio + later.log_likelihood(paths[number], cells[number], proposed)
        ratio = ratio + 0.5 * (deviations / spread[number]).square()
        return ratio if limits is None else ratio + log_within(proposed, limits[cells[number]])

    deviations, direction = current - centre, spread * numbers(1).flatten()
    uniform = torch.stack([torch.special.ndtr(numbers(2 + i)).flatten() for i in range(2)], dim=1)
    states = deviations, direction, log_ratio, start + 0.5 * (deviations / spread).square()
    moved = elliptical_slice(*states, uniform, filled_up)
    return (centre + moved).view_as(values)


def _given_earlier(values: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Return the log density, up to a constant, of values given the earlier columns."""
    return -0.5 * (values - mean).square() / variance


def _normal_approximation(
    mean: Tensor, variance: Tensor, log_densities: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of a normal approximation of each cell's distribution, `[n]`.

    Takes mean and variance given the earlier columns, and log densities `_APART` standard deviations below
    the mean, at the mean, and as far above it. A parabola through these is exact if the later links are
    linear with normal noise. The standard deviation is `_WIDER` times that of the parabola. Moves leave the
    density of the cells invariant, since the approximation does not depend on their current values.
    """
    (low, middle, high), apart = log_densities, _APART * variance.sqrt()
    slope, curvature = (high - low) / (2 * apart), (high - 2 * middle + low) / apart.square()
    # Elsewhere later links tell little, or the distribution may have several modes.
    narrows = curvature.isfinite() & slope.isfinite() & (curvature * variance < -_NARROWER)
    precision = torch.where(narrows, -curvature, variance.reciprocal())
    # The parabola is not trusted far beyond the values through which it goes.
    step = (slope / precision).clamp(-2 * apart, 2 * apart)
    spread = torch.where(narrows, _WIDER, 1.0) * precision.rsqrt()
    return torch.where(narrows, mean + step, mean), spread


def _choose(log_weights: Tensor, normal: Tensor) -> Tensor:
    """Draw an index in proportion to weights `[S, k, K]`, by inversion: `[S, k]`."""
    share = log_weights.softmax(-1).cumsum(-1)
    reached = (share < torch.special.ndtr(normal)[..., None]).sum(-1)
    return reached.clamp(max=log_weights.shape[-1] - 1)
