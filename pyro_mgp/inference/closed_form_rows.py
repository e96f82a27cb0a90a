"""Sums over the rows of a training step in closed form, along a sweep through the chain.

Rounding errors are multiplied by the condition number of K_ZZ, once for q(u) and again for its gradient. Rows
are therefore padded: with the default kernel in double precision and up to 128 inducing inputs, one, two and
three threads give the same bits where PyTorch's own products do, as on processors of AMD. On an Intel Xeon
the bits of products of 997 rows depend on the threads, and steps differ by up to 5e-10.

Observations that are not Gaussian are replaced by Gaussian sites with a target and a precision of their own.
Near q(f) = N(m, v) of a row, the expected log density E of its observation changes as

    E + ½ (w (m² + v) - 2tm) - ½ (w (μ² + σ²) - 2tμ),   w = -2 ∂E/∂v,   t = wm + ∂E/∂m

for other moments μ, σ²: as if t/w had been observed with noise of variance 1/w. A natural-gradient step
under these sites is one under the observations themselves (Khan and Lin, AISTATS 2017), and the gradients of
the kernels at m, v are the same. Where E is not concave, w is the curvature of a parabola that bounds the log
density from below (Jaakkola and Jordan 2000): steps towards its optimum increase the bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from pyro_mgp._support.devices import rows_if_known
from pyro_mgp._support.tiles import TILE, filled_up
from pyro_mgp.model.chain import Chain, Noise
from pyro_mgp.model.conditional import Conditional, Moments
from pyro_mgp.model.kernel_stack import Seen
from pyro_mgp.model.likelihoods import ExpectedStudentT
from pyro_mgp.model.limited_cells import informative_cells
from pyro_mgp.model.link import Link

# Entries of K_Zf per group of links: what fits into the processor's cache. On a GPU all links are best in one
# group; its memory is bounded to a few times 0.5 GB.
_ENTRIES_AT_ONCE, _ENTRIES_AT_ONCE_CUDA = 2**20, 2**26
# Rows are padded to a multiple of this: half a tile is whole registers for each of 3 threads, and whole tiles
# would add a third to the rows of small tables.
_FILLED_UP_TO = TILE // 2
# Groups are a multiple of this many links: threads get whole matrices, and two threads equally many.
_TOGETHER = 2
# Smallest precision of a site.
_LEAST_PRECISION = 1e-9
SITE_STEP = 0.5
"""Share of the way to its optimum that q(v) moves under sites; whole steps oscillate on separable values."""


@dataclass(frozen=True)
class Sites:
    """Gaussian approximations (sites) of the likelihoods of n non-Gaussian observations."""

    roots: Tensor
    """Square roots √w of the precisions, `[n]`."""
    targets: Tensor
    """Weighted targets t/√w, `[n]`."""
    scores: Tensor
    """Expected log densities E, `[n]`; differentiable with respect to the likelihood's parameters."""
    rest: Tensor
    """Terms ½ (w (m² + v) - 2tm) of the bound, `[n]`."""

    @classmethod
    def of(cls, link: Link, conditional: Conditional, columns: Tensor, rows: Tensor) -> Sites:
        """Return the sites of a link's observations in rows given by columns `[D, n]`, numbered `[n]`."""
        moments = conditional.moments(columns.T[None])
        mean, variance = moments.mean[0], moments.variance[0]
        pull, precision, scores = site_parameters(link, columns[link.column], mean, variance, rows)
        roots = precision.sqrt()
        return cls(roots, pull / roots, scores, precision * (mean.square() + variance) / 2 - pull * mean)


def site_parameters(
    link: Link, values: Tensor, mean: Tensor, variance: Tensor, rows: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the Gaussian sites of observations whose latent function is N(mean, variance), all `[..., n]`.

    These are precision times target, the precision, and the expected log density, which is differentiable
    with respect to the likelihood's parameters.
    """
    with torch.enable_grad():
        mean, variance = (part.detach().requires_grad_() for part in (mean, variance))
        observation = link.scored(mean, variance, rows)
        scores = observation.log_prob(values)
        of_mean, of_variance = torch.autograd.grad(scores.sum(), [mean, variance], retain_graph=True)
    mean, precision = mean.detach(), -2 * of_variance
    if isinstance(observation, ExpectedStudentT):
        precision = observation.least_precision(values).detach()
    precision = precision.clamp(min=_LEAST_PRECISION)
    return precision * mean + of_mean, precision, scores


@dataclass(frozen=True)
class Share:
    """Rows of a minibatch that one process works on; all of them if it is alone."""

    paths: Tensor  # the rows with their current fill, by columns, `[1, n, D]`; redrawn in place
    observed: Tensor  # mask of the observed cells, Bool `[n, D]`
    rows: Tensor  # numbers of the rows in the training table, `[n]`
    noise: Noise  # standard normal numbers of the sweep
    n_rows: int  # number of rows of the whole minibatch
    limits: Tensor | None = None  # limits of missing cells, `[n, D, 2]`; see `limited_cells`


class Sweep:
    """Sweep of a share of the rows through the chain, which redraws missing cells in place if asked to."""

    def __init__(
        self, chain: Chain, conditionals: Sequence[Conditional], share: Share, redraw: bool = True
    ) -> None:
        self.chain, self.conditionals, self.share, self.redraw = chain, conditionals, share, redraw
        values, observed = share.paths[0], share.observed
        told = informative_cells(observed, share.limits)
        self.learnt_from = [chain.learns_from(i, values, told) for i in range(len(conditionals))]
        self.visited = list[Moments]()

    def visit(self, group: slice) -> tuple[Seen, list[Sites | None]]:
        """Sweep through the next links; return the rows from which they learn, and the sites."""
        share, table = self.share, self.share.paths[0].T
        kept, valid, n_sure = _observed_rows(self.learnt_from[group])
        columns, own, sites = list[Tensor](), list[Tensor](), list[Sites | None]()
        members = zip(self.chain.links[group], self.conditionals[group], kept, strict=True)
        for link, conditional, here in members:
            # Later links write into the table. Gathering is faster than `index_select`.
            seen = table.clone() if here is None else table.gather(1, here.expand(len(table), -1))
            rows = share.rows if here is None else share.rows[here]
            site = None if link.is_gaussian else Sites.of(link, conditional, seen, rows)
            columns.append(seen)
            own.append(seen[link.column] if site is None else site.targets)
            sites.append(site)
            if self.redraw:
                self._redraw(link)
        roots = None
        if any(sites):
            pairs = zip(own, sites, strict=True)
            roots = torch.stack([torch.ones_like(y) if site is None else site.roots for y, site in pairs])
        return Seen(group.start, columns, torch.stack(own), roots, valid, n_sure), sites

    def _redraw(self, link: Link) -> None:
        """Redraw the missing cells of the next link's column."""
        share = self.share
        given = self.conditionals, share.paths, share.observed
        holes = rows_if_known(~share.observed[:, link.column])
        if holes is None:
            self.chain.visit(*given, share.noise, self.visited, None, share.limits)
            return

        def noise(number: int, rows: Tensor) -> Tensor:
            # Indexed by row: the copies of a cell that pad a tile get the cell's number.
            return by_row(share.noise(number, holes), holes, len(share.rows))[:, rows]

        rows = filled_up(holes)
        self.chain.visit(*given, noise, self.visited, rows, share.limits)


def slices(n_links: int, entries: int, device: torch.device) -> Iterator[slice]:
    """Divide links into groups of equal size, given the number of entries of each link's matrix."""
    most = (_ENTRIES_AT_ONCE_CUDA if device.type == "cuda" else _ENTRIES_AT_ONCE) // max(entries, 1)
    size = math.ceil(n_links / max(1, math.ceil(n_links / max(most, 1))))
    if most >= _TOGETHER:
        size = math.ceil(size / _TOGETHER) * _TOGETHER
    return (slice(i, min(i + size, n_links)) for i in range(0, n_links, max(size, 1)))


def by_row(drawn: Tensor, here: Tensor, n_rows: int) -> Tensor:
    """Place numbers `[1, k]` of the rows `here` among those of all n rows, `[1, n]`, with zeros elsewhere."""
    return drawn.new_zeros(1, n_rows).index_copy_(1, here, drawn)


def _observed_rows(observed: Sequence[Tensor]) -> tuple[Sequence[Tensor | None], Tensor | None, int]:
    """Return the rows from which each of G links learns, given Bool `[n]` each, padded to equal number.

    None stands for all rows. Returns also Bool `[G, n]`, the rows that are not padding (None for all), and
    the number of leading rows that are no padding for any link.
    """
    if observed[0].is_cuda:
        # The host would have to wait for the number of observed cells; using all rows takes less time.
        return [None] * len(observed), torch.stack(tuple(observed)), 0
    kept = [column.nonzero()[:, 0] for column in observed]
    counts = [len(here) for here in kept]
    fewest, most = min(counts), max(counts) + -max(counts) % _FILLED_UP_TO
    if fewest == most:
        return kept, None, most
    padded = [pad(here, (0, most - len(here))) for here in kept]
    return padded, torch.arange(most) < torch.tensor(counts)[:, None], fewest
