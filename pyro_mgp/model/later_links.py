"""Moves of missing cells given later links of a sequential chain, and the likelihood of these links.

A missing cell of column d has the density

    p(x_d | rest) ∝ p(x_d | earlier) Π_{later e that sees d} p(x_e | .., x_d, ..)

Finite sets of values are enumerated. Numbers with Gaussian noise move by elliptical slice sampling (Murray,
Adams and MacKay, AISTATS 2010), which needs no tuning. All others choose among their current value and draws
from p(x_d | earlier), weighted by the later links (iterated sampling importance resampling; Andrieu, Doucet
and Holenstein, JRSS B 72:269-342, 2010). All three leave the density invariant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pyro_mgp._support.tiles import filled_up
from pyro_mgp.model.conditional import Along, Conditional, Moments
from pyro_mgp.model.elliptical_slice import N_ANGLES, elliptical_slice

# Draws among which a cell chooses besides its current value.
_CANDIDATES = 5

Numbers = Callable[[int], Tensor]
"""Standard normal numbers `[S, k]` of the cells that move, by their stream."""


@dataclass(frozen=True)
class Later:
    """A link that has the column of some cells as input."""

    conditional: Conditional
    """Conditional of the link."""
    column: int
    """Column that the link predicts."""
    unless: Sequence[int]
    """Indicators of earlier levels of its variable; the link predicts rows in which none is on."""
    informative: Tensor
    """Bool `[k]`, the rows of the cells in which its own cell is informative."""


@dataclass(frozen=True)
class LaterLinks:
    """Likelihood of k cells under the later links that have their columns as inputs."""

    links: Sequence[Later]
    """The later links."""
    table: Tensor
    """Rows of the cells, `[S, k, D]`."""
    columns: Sequence[int]
    """Columns of the cells: one, or all indicators of a category."""

    @property
    def current(self) -> Tensor:
        """Current values of the cells, `[S, k]`, or of the first indicator."""
        return self.table[..., self.columns[0]]

    @cached_property
    def _parts(self) -> list[tuple[Later, Along, Tensor]]:
        """The links, their moments along the columns, and Bool `[S, k]`, the cells of which they tell."""
        informative = [link.informative.expand(self.table.shape[:2]) for link in self.links]
        off = [(self.table[..., list(link.unless)] < 0).all(-1) for link in self.links]
        along = [link.conditional.along(self.table, self.columns) for link in self.links]
        tells = [rows & free for rows, free in zip(informative, off, strict=True)]
        return list(zip(self.links, along, tells, strict=True))

    def log_likelihood(self, paths: Tensor, cells: Tensor, values: Tensor) -> Tensor:
        """Return the log likelihood `[j]` of candidate values of some cells, `[j]` or `[j, indicators]`."""
        values = values.view(len(paths), -1)
        total = values.new_zeros(len(paths))
        for link, along, tells in self._parts:
            chosen = tells[paths, cells].nonzero()[:, 0]
            if len(chosen) == 0:
                continue
            whole = filled_up(chosen)
            on, at = paths[whole], cells[whole]
            moments = along(on, at, values[whole])
            density = link.conditional.log_prob(self.table[on, at, link.column], moments, on)
            total[chosen] += density[: len(chosen)]
        return total

    def everywhere(self, values: Tensor) -> Tensor:
        """Return the log likelihood `[S, k]` of values that all cells have, or of `[S, k]` values."""
        shape = self.table.shape[:2]
        paths, cells = torch.ones(shape, device=self.table.device).nonzero().unbind(1)
        values = values.expand(*shape, -1) if values.shape != shape else values
        return self.log_likelihood(paths, cells, values.flatten(0, 1)).view(shape)


def choose_level(log_prob: Tensor, levels: Tensor, later: LaterLinks, normal: Tensor) -> Tensor:
    """Draw the level of each cell exactly, by enumeration.

    Args:
        log_prob: Log probabilities given the earlier columns, `[S, k, K]`.
        levels: Values of the cells' columns at each level, `[K, columns]`.
        later: The later links.
        normal: Standard normal numbers, `[S, k]`.

    Returns:
        Index of each cell's level, `[S, k]`.
    """
    likelihood = torch.stack([later.everywhere(level) for level in levels], dim=-1)
    return _choose(log_prob + likelihood, normal)


def resample(
    draw: Callable[[Tensor], Tensor],
    later: LaterLinks,
    numbers: Numbers,
    shifted: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Return each cell's choice `[S, k]` among its current value and draws from p(x | earlier).

    Args:
        draw: Function that draws cells `[S, k]` given standard normal numbers.
        later: The later links.
        numbers: Standard normal numbers of the cells.
        shifted: Such a function for shifted cells. Cells then choose among the draws only, as if they were
            not shifted, and the choice is drawn again from the shifted distribution, by the same number.
    """
    normal = torch.stack([numbers(1 + i) for i in range(_CANDIDATES)], dim=-1)
    fresh = [draw(each) for each in normal.unbind(-1)]
    candidates = torch.stack([later.current, *fresh], dim=-1)
    weights = torch.stack([later.everywhere(values) for values in candidates.unbind(-1)], dim=-1)
    if shifted is None:
        return candidates.gather(-1, _choose(weights, numbers(0))[..., None])[..., 0]
    chosen = _choose(weights[..., 1:], numbers(0))
    return shifted(normal.gather(-1, chosen[..., None])[..., 0])


def slice_sample(moments: Moments, noise: Tensor, later: LaterLinks, numbers: Numbers) -> Tensor:
    """Return cells `[S, k]` after a move of an elliptical slice sampler.

    Args:
        moments: Moments of the latent function at the cells, `[S, k]`.
        noise: Variance of the observations given the function, `[]` or `[S, 1]`.
        later: The later links.
        numbers: Numbers of the ellipse (1), of the threshold (2) and of the angles (3 and more).
    """
    values, scale = later.current, (moments.variance + noise).sqrt()
    paths, cells = torch.ones_like(values).nonzero().unbind(1)
    mean = moments.mean.flatten()

    def log_likelihood(deviations: Tensor, at: Tensor) -> Tensor:
        return later.log_likelihood(paths[at], cells[at], mean[at] + deviations[:, 0])

    start = later.log_likelihood(paths, cells, values.flatten())
    uniform = [torch.special.ndtr(numbers(2 + i)).flatten() for i in range(1 + N_ANGLES)]
    current, direction = values.flatten() - mean, (scale * numbers(1)).flatten()
    states = current[:, None], direction[:, None], log_likelihood, start
    moved, _ = elliptical_slice(*states, torch.stack(uniform, dim=1), filled_up)
    return (mean + moved[:, 0]).view_as(values)


def _choose(log_weights: Tensor, normal: Tensor) -> Tensor:
    """Draw an index in proportion to weights `[S, k, K]`, by inversion: `[S, k]`."""
    share = log_weights.softmax(-1).cumsum(-1)
    reached = (share < torch.special.ndtr(normal)[..., None]).sum(-1)
    return reached.clamp(max=log_weights.shape[-1] - 1)
