"""The rows of a training step in closed form: swept through, and summed up part by part.

A step needs sums over rows. Even where one process does all the work they are added up in two parts, of every
second row each: a process that works with another has one of these parts, so that two processes come to the
same sums as one to the last bit. No other order would do: what follows multiplies rounding errors by the
condition of K_ZZ, once for q(u) and again for its gradient. For the same reason neither the order of sums nor
the shape of a product depends on the number of threads, and products are of as many rows as divide well: with
the default kernel in double precision and up to 128 inducing inputs (libraries factorise larger matrices by
threads) one, two and three threads give the same bits, tested on processors of one kind.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import pad

from pyro_mgp._support.tiles import TILE, filled_up
from pyro_mgp.inference.sites import Sites
from pyro_mgp.model.chain import Chain, Noise
from pyro_mgp.model.conditional import Conditional, Moments
from pyro_mgp.model.kernel_stack import KernelStack, Seen
from pyro_mgp.model.likelihoods import Scored
from pyro_mgp.model.link import Link

# Entries of K_Zf that are worked on at a time: what the processor's cache holds.
_ENTRIES_AT_ONCE = 2**20
# A GPU wants all links in one call; this bounds its memory to a few times 0.5 GB.
_ENTRIES_AT_ONCE_CUDA = 2**26
# Rows of a part are filled up to a multiple of this: half a tile is whole registers for each of 3 threads.
# Whole tiles would make a third more rows of small tables.
_FILLED_UP_TO = TILE // 2
# Products of several matrices go to the threads one by one: two shall get as many each.
_TOGETHER = 2


@dataclass(frozen=True)
class Share:
    """The rows of a minibatch that a process works on; all of them if it is alone."""

    paths: Tensor
    """With their current fill, by columns, `[1, n, D]`; redrawn in place."""
    observed: Tensor
    """Bool `[n, D]`."""
    rows: Tensor
    """Their numbers in the training table, `[n]`."""
    noise: Noise
    """Standard normal numbers of the sweep."""
    parts: Sequence[slice]
    """Which of them are added up together."""
    n_rows: int
    """Rows of the whole minibatch."""


@dataclass(frozen=True)
class Part:
    """What some links saw of a part of a share."""

    kernels: KernelStack
    """Their kernels; they keep what the gradient needs."""
    inverse: Tensor
    """W of each of the links, `[G, M, M]`."""
    seen: Seen
    sites: Sequence[Sites | None]
    """The sites that they stand for, of links whose observations are not Gaussian."""
    factor: float
    """N/B, by which the rows stand for the whole table."""

    @property
    def by_sites(self) -> list[bool]:
        """Which of the links have sites."""
        return [site is not None for site in self.sites]

    @property
    def whitens_rows(self) -> bool:
        """In single precision H has too few digits to be whitened afterwards."""
        return self.kernels.dtype != self.inverse.dtype

    def sums(self) -> list[Tensor]:
        """What `Whitened` is made of; in single precision of whitened rows, else to be whitened."""
        targets, valid = self.seen.targets, self.seen.valid
        sums = self.kernels.sums(self.seen, self.inverse if self.whitens_rows else None)
        if valid is None:
            square, count = targets.square().sum(1), targets.new_full((len(targets),), targets.shape[1])
        else:
            square, count = (targets.square() * valid).sum(1), valid.sum(1).to(targets)
        gaussian = square.new_tensor([not by_site for by_site in self.by_sites])
        offsets = [self._total(k, "scores").detach() + self._total(k, "rest") for k in range(len(self.sites))]
        rest = gaussian * square + sums.trace
        parts = sums.gram, sums.projection, rest, gaussian * count, torch.stack(offsets)
        return [self.factor * part for part in parts]

    @torch.enable_grad()
    def score(self) -> Tensor:
        """What the links' sites add to the bound, a function of their likelihoods' parameters."""
        return self.factor * torch.stack([self._total(k, "scores") for k in range(len(self.sites))]).sum()

    def _total(self, k: int, name: str) -> Tensor:
        """The sum of a property of the k-th link's sites over the rows that count; 0 without sites."""
        site = self.sites[k]
        if site is None:
            return self.seen.targets.new_zeros(())
        each: Tensor = getattr(site, name)
        return (each if self.seen.valid is None else each.where(self.seen.valid[k], 0.0)).sum()


class Walk:
    """A sweep of a share through the chain: holes are redrawn in place.

    Args:
        chain: The chain.
        conditionals: Its links' factorisations.
        share: The rows.
    """

    def __init__(self, chain: Chain, conditionals: Sequence[Conditional], share: Share) -> None:
        self.chain, self.conditionals, self.share = chain, conditionals, share
        values, observed = share.paths[0], share.observed
        # Asked once a sweep: a module of Pyro is slow to tell.
        self.gaussian = [link.is_gaussian for link in chain.links]
        self.learnt_from = [chain.learns_from(i, values, observed) for i in range(len(conditionals))]
        self.visited = list[Moments]()

    def visit(self, group: slice) -> list[tuple[Seen, list[Sites | None]]]:
        """Walk through the next links; gives what they saw of each part, and their sites."""
        views = [
            _View(self.share, *_observed_rows(self.learnt_from[group], part)) for part in self.share.parts
        ]
        members = zip(self.chain.links[group], self.conditionals[group], self.gaussian[group], strict=True)
        for link, conditional, gaussian in members:
            for view in views:
                view.take(link, None if gaussian else conditional)
            self._redraw(link)
        return [(view.seen(group.start), view.sites) for view in views]

    def _redraw(self, link: Link) -> None:
        """Redraw the holes of the next link's column."""
        share = self.share
        holes = holes_of(share.observed[:, link.column])
        if holes is None:
            self.chain.visit(self.conditionals, share.paths, share.observed, share.noise, self.visited, None)
            return

        def noise(number: int, rows: Tensor) -> Tensor:
            # By row: copies of a hole that fill up a tile get its own number.
            drawn = share.noise(number, holes)
            return drawn.new_zeros(1, len(share.rows)).index_copy_(1, holes, drawn)[:, rows]

        whole = filled_up(holes)
        self.chain.visit(self.conditionals, share.paths, share.observed, noise, self.visited, whole)


@dataclass(frozen=True)
class _View:
    """What links see of a part of a share, one after the other."""

    share: Share
    kept: Sequence[Tensor | None]
    """The rows from which each of them learns, equally many; None for all."""
    valid: Tensor | None
    """Which of these count, `[G, n]`; None for all."""
    n_sure: int
    """The first so many of them count for all links."""
    columns: list[Tensor] = field(default_factory=list)
    """Copies of them by columns, `[D, n]`."""
    own: list[Tensor] = field(default_factory=list)
    """The column of each link there, `[n]`."""
    sites: list[Sites | None] = field(default_factory=list)

    def take(self, link: Link, conditional: Conditional | None) -> None:
        """Keep what the next link sees: the links after it write into the table.

        Args:
            link: The link.
            conditional: Its factorisation, for its sites; None if it is Gaussian.
        """
        table, here = self.share.paths[0].T, self.kept[len(self.columns)]
        # To gather is faster than to select.
        seen = table.clone() if here is None else table.gather(1, here.expand(len(table), -1))
        rows = self.share.rows if here is None else self.share.rows[here]
        self.columns.append(seen)
        self.own.append(seen[link.column])
        self.sites.append(None if conditional is None else _sites(link, conditional, seen, rows))

    def seen(self, first: int) -> Seen:
        """All of it, given the number of the first link."""
        return Seen(first, self.columns, *_targets(self.own, self.sites), self.valid, self.n_sure)


def slices(n_links: int, entries: int, device: torch.device) -> Iterator[slice]:
    """Links whose matrices are worked on together, given the entries of a matrix: equally many each time."""
    most = (_ENTRIES_AT_ONCE_CUDA if device.type == "cuda" else _ENTRIES_AT_ONCE) // max(entries, 1)
    size = math.ceil(n_links / max(1, math.ceil(n_links / max(most, 1))))
    if most >= _TOGETHER:
        size = math.ceil(size / _TOGETHER) * _TOGETHER
    return (slice(i, min(i + size, n_links)) for i in range(0, n_links, max(size, 1)))


def holes_of(observed: Tensor) -> Tensor | None:
    """The rows `[n]` of a column that are missing; None for all rows where the host would have to wait."""
    return None if observed.is_cuda else (~observed).nonzero()[:, 0]


def _observed_rows(
    observed: Sequence[Tensor], part: slice
) -> tuple[Sequence[Tensor | None], Tensor | None, int]:
    """Equally many rows of a part for each of G columns, as many as divide well; see `_View`."""
    if observed[0].is_cuda:
        # To count the observed cells the host would have to wait; to look at all rows costs less.
        return [None] * len(observed), torch.stack(tuple(observed)), 0
    first, step = part.start or 0, part.step or 1
    kept = [column[part].nonzero()[:, 0] * step + first for column in observed]
    counts = [len(here) for here in kept]
    fewest, most = min(counts), max(counts) + -max(counts) % _FILLED_UP_TO
    if fewest == most:
        return kept, None, most
    padded = [pad(here, (0, most - len(here))) for here in kept]
    return padded, torch.arange(most) < torch.tensor(counts)[:, None], fewest


def _sites(link: Link, conditional: Conditional, columns: Tensor, rows: Tensor) -> Sites:
    """What stands for a link's observations, which are not Gaussian, in rows `[D, n]`, given by columns.

    Args:
        link: The link.
        conditional: Its factorisation.
        columns: The rows that it learns from.
        rows: Their numbers in the training table, `[n]`.
    """

    def scored(mean: Tensor, variance: Tensor) -> Scored:
        return link.scored(mean, variance, rows)

    return Sites.of(scored, columns[link.column], conditional.moments(columns.T[None]))


def _targets(own: Sequence[Tensor], sites: Sequence[Sites | None]) -> tuple[Tensor, Tensor | None]:
    """Targets and roots of their weights, both `[G, n]`, of links that see their own columns, or sites."""
    pairs = list(zip(own, sites, strict=True))
    targets = torch.stack([y if site is None else site.targets for y, site in pairs])
    if not any(sites):
        return targets, None
    return targets, torch.stack([torch.ones_like(y) if site is None else site.roots for y, site in pairs])
