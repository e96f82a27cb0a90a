"""Closed-form training of a chain whose links each learn from the observed cells of their own column.

With Gaussian likelihoods and no gradient through the draws, the bound of a link depends on its rows through
a few sums only. With W = L⁻¹, L Lᵀ = K_ZZ, q(v) = N(r, S) whitened, and sums over observed rows:

    H = K_Zf K_fZ,   b = K_Zf y,   c = yᵀy,   t = Σ k(x, x),   n rows
    Σ E_q[log N(y; f, s²)] = -n/2 log 2πs² - (c - 2 rᵀWb + t + tr(R G)) / 2s²,  G = W H Wᵀ, R = rrᵀ + S - I

so the rows cost one product of K_Zf with itself, and one for its gradient. The optimal q(v) is
S⁻¹ = I + G/s², S⁻¹ r = W b/s² (Titsias 2009); a natural-gradient step of size ρ moves these natural
parameters by ρ towards it (Hensman et al. 2013), N/B times the sums standing in for all rows. The value is
that of `Trace_ELBO` on `Chain.model` and `Chain.guide`, with the KL term in closed form.

Observations that are not Gaussian stand there as sites, each with a precision of its own (`sites.py`). Their
q(v) takes half steps, since the sites change with it; their bound is exact where q(v) was before the step.

The gradient is written out, because only the last steps, from kernels to parameters, are worth automating:

    ∂/∂H = -WᵀRW / 2s²,   ∂/∂b = Wᵀr / s²,   ∂/∂t = -1 / 2s²,   ∂/∂K_ZZ = Wᵀ Φ(RG - r(Wb)ᵀ) W / s²

where Φ takes the lower triangle with half of its diagonal (Murray 2016, *Differentiation of the Cholesky
decomposition*), and the last matrix is to be made symmetric.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_mgp.chain import Chain, Noise, by_column, fresh_noise
from pyro_mgp.distributed import ALONE, Workers
from pyro_mgp.kernel_stack import KernelStack, RowSums, Seen, Workspace, fastest_stack, send_back
from pyro_mgp.likelihoods import Scored
from pyro_mgp.link import (
    Conditional,
    Link,
    Moments,
    can_be_inverted,
    factorise,
    invert,
    naming,
    observing,
    quadratic_conditionals,
)
from pyro_mgp.local_parameters import local_parameters, read
from pyro_mgp.sites import Sites

# Entries of K_Zf that are worked on at a time: what the processor's cache holds.
_ENTRIES_AT_ONCE = 2**20
# Part of a natural step that links of sites take: whole ones swing to and fro where values can be separated.
_SITE_STEP = 0.5
# A GPU wants all links in one call; this bounds its memory to a few times 0.5 GB.
_ENTRIES_AT_ONCE_CUDA = 2**26


@dataclass(frozen=True)
class Posterior:
    """q(v) of L links, in natural form and by its moments; NaN where S⁻¹ is not positive definite."""

    precision: Tensor
    """S⁻¹, `[L, M, M]`."""
    shift: Tensor
    """S⁻¹ r, `[L, M]`."""
    mean: Tensor
    """r, `[L, M]`."""
    covariance: Tensor
    """S, `[L, M, M]`."""
    log_det: Tensor
    """log |S|, `[L]`."""

    @classmethod
    def natural(cls, precision: Tensor, shift: Tensor) -> Posterior:
        """From S⁻¹ and S⁻¹ r."""
        factor, info = torch.linalg.cholesky_ex(precision)
        # Asking whether any failed would make the host wait for a GPU; the loss will tell.
        factor = factor.masked_fill_((info > 0)[:, None, None], math.nan)
        inverse = invert(factor)
        covariance = inverse.mT @ inverse
        log_det = -2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return cls(precision, shift, _times(covariance, shift), covariance, log_det)

    @classmethod
    def of(cls, chain: Chain) -> Posterior:
        """The q(v) of a chain's links."""
        tril = torch.stack([link.u_scale_tril for link in chain.links])
        precision = torch.cholesky_inverse(tril)
        mean = torch.stack([link.u_loc for link in chain.links])
        return cls.natural(precision, _times(precision, mean))

    @classmethod
    def cat(cls, parts: Sequence[Posterior]) -> Posterior:
        """Of links in succession."""
        return cls(**{name: torch.cat([getattr(part, name) for part in parts]) for name in vars(parts[0])})

    def __getitem__(self, links: slice) -> Posterior:
        return Posterior(**{name: value[links] for name, value in vars(self).items()})


@dataclass(frozen=True)
class Whitened:
    """What the bound of G links needs of their rows, in whitened coordinates; scaled to the whole table."""

    gram: Tensor
    """G = W H Wᵀ, `[G, M, M]`."""
    projection: Tensor
    """W b, `[G, M]`."""
    rest: Tensor
    """c + t, `[G]`; t alone of sites."""
    count: Tensor
    """n, `[G]`; 0 of sites."""
    offset: Tensor
    """What the bound has besides, `[G]`, of sites."""

    def natural_step(self, posterior: Posterior, noise: Tensor, step_size: Tensor) -> Posterior:
        """Part of the way, `[G]`, to the q(v) that maximises the bound at the current kernels and noises."""
        optimum = (self.gram + self.gram.mT).div_(2 * noise[:, None, None])
        optimum.diagonal(dim1=-2, dim2=-1).add_(1)
        return Posterior.natural(
            posterior.precision.lerp(optimum, step_size[:, None, None]),
            posterior.shift.lerp(self.projection / noise[:, None], step_size[:, None]),
        )


def applies_to(chain: Chain) -> bool:
    """Whether the bound of this chain has the closed form of this module."""
    return (
        not chain.backpropagate
        and chain.n_paths == 1
        and can_be_inverted(chain.links)
        and len({link.n_inducing for link in chain.links}) == 1
    )


class ConjugateStep:
    """Training steps in closed form for q(u), by gradient for everything else.

    Args:
        chain: A chain that `applies_to` admits.
        workers: The processes that share the rows of each step.
    """

    def __init__(self, chain: Chain, workers: Workers = ALONE) -> None:
        self.chain, self.workers = chain, workers
        self.workspace = Workspace()
        self.stack = fastest_stack(chain.links)
        with torch.no_grad():
            self.posterior = Posterior.of(chain)

    def __call__(
        self,
        filled: Tensor,
        observed: Tensor,
        rows: Tensor | None,
        step_size: float,
        only_q: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Move q(u) towards its optimum, then leave the loss's gradients there; see `training.Step`."""
        share = self._share(filled, observed, rows)
        with local_parameters():
            kernels = self.stack(self.chain.links, self.chain.row_dtype, self.workspace)
            own_noise = read([link.likelihood for link in self.chain.links], "noise", torch.stack)
            # Sites have precisions of their own, in units of one.
            gaussian = own_noise.new_tensor([link.is_gaussian for link in self.chain.links]) > 0
            noise = own_noise.where(gaussian, 1.0)
            among = kernels.among()
            factor = 1.0 if rows is None else self.chain.n_rows / len(rows)
            with torch.no_grad():
                jitter = max(link.jitter for link in self.chain.links)
                with naming(self.chain.names):
                    inverse = invert(factorise(among, jitter, ask=False))
                bounds, gradients, scores = [], [], list[Tensor]()
                for seen, sites in self._walk(kernels, inverse, own_noise, share):
                    group = _Group(kernels, inverse[seen.links], seen, sites, factor, self.workers)
                    bound = group.move(self.posterior[seen.links], noise[seen.links], step_size)
                    bounds.append(bound)
                    if not only_q:
                        gradients.append(group.pull(bound))
                        scores += [group.score(k) for k in range(len(sites))]
                self.posterior = Posterior.cat([bound.posterior for bound in bounds])
            if not only_q:
                # Every process knows these in full, and the rest for its own rows.
                of_among, of_noise = (
                    torch.cat(part) / self.workers.size for part in zip(*gradients, strict=True)
                )
                pending = [(among, of_among), (noise, of_noise), *kernels.pending()]
                send_back([*pending, *((score, -torch.ones_like(score)) for score in scores)])
                self.workers.add_gradients(self.chain.parameters())
        loss = -torch.cat([bound.value for bound in bounds]).sum()
        return loss, self.workers.put_together(share.paths[0], len(filled))

    @torch.no_grad()
    def publish(self) -> None:
        """Write q(u) into the chain's links."""
        tril = torch.linalg.cholesky(self.posterior.covariance)
        for link, new_loc, new_tril in zip(self.chain.links, self.posterior.mean, tril, strict=True):
            link.u_loc, link.u_scale_tril = new_loc, new_tril

    def restore(self) -> None:
        """Read q(u) from the chain's links, after they were set back to an earlier state."""
        with torch.no_grad():
            self.posterior = Posterior.of(self.chain)

    def state(self) -> dict[str, Tensor]:
        """q(u), to the last digit; see `training.Step`."""
        return dict(vars(self.posterior))

    def resume(self, state: Mapping[str, Tensor]) -> None:
        """Take up what another `state` gave."""
        self.posterior = Posterior(**state)

    def _share(self, filled: Tensor, observed: Tensor, rows: Tensor | None) -> _Share:
        """This process's rows of a minibatch; takes the arguments of a step."""
        workers, n_rows = self.workers, len(filled)
        if workers.is_alone:
            paths = by_column(filled[None])
            return _Share(paths, observed, rows, fresh_noise(paths), n_rows)
        mine = workers.share(n_rows)
        paths = by_column(filled[None, mine])
        numbers = torch.arange(n_rows, device=paths.device) if rows is None else rows
        drawn = [draws[:, mine] for draws in self._draws(fresh_noise(paths), observed)]
        return _Share(
            paths,
            observed[mine],
            numbers[mine],
            lambda number, here: drawn[number][:, here],
            workers.largest_share(n_rows),
        )

    def _draws(self, fresh: Noise, observed: Tensor) -> Iterator[Tensor]:
        """For each link the noise `[1, n]` that one process alone would take for a minibatch's holes."""
        everyone = torch.arange(len(observed), device=observed.device)
        for number, link in enumerate(self.chain.links):
            holes = _holes(observed[:, link.column])
            here = everyone if holes is None else holes
            drawn = fresh(number, here)
            yield drawn.new_zeros(1, len(everyone)).index_copy_(1, here, drawn)

    def _walk(
        self, kernels: KernelStack, inverse: Tensor, noise: Tensor, share: _Share
    ) -> Iterator[tuple[Seen, list[Sites | None]]]:
        """Walk through the chain and redraw the holes in place; gives what group after group of links saw.

        Links whose observations are not Gaussian see sites instead of these.

        Args:
            kernels: The links' kernels.
            inverse: W of each link, `[L, M, M]`.
            noise: Variance of each link's observation noise, `[L]`.
            share: The rows.
        """
        paths, observed = share.paths, share.observed
        latent = quadratic_conditionals(
            kernels, inverse, self.posterior.mean[:, None], self.posterior.covariance, noise
        )
        conditionals = observing(latent, self.chain.links)
        learnt_from = [self.chain.learns_from(i, paths[0], observed) for i in range(len(self.chain.links))]
        visited = list[Moments]()
        # All processes take the same links together, though some may have one row less.
        entries = inverse.shape[-1] * share.largest
        for group in _groups(len(conditionals), entries, paths.device):
            links = self.chain.links[group]
            numbers = [link.column for link in links]
            kept, valid, n_sure = _observed_rows(learnt_from[group])
            columns, sites = [], list[Sites | None]()
            for here, link, conditional in zip(kept, links, conditionals[group], strict=True):
                table = paths[0].T
                # A copy: the next links write into the table. To gather is faster than to select.
                seen = table.clone() if here is None else table.gather(1, here.expand(len(table), -1))
                columns.append(seen)
                sites.append(_sites(link, conditional, seen, _numbers(share.rows, here, seen)))
                holes = _holes(observed[:, link.column])
                self.chain.visit(conditionals, paths, observed, share.noise, visited, holes)
            own = [seen[number] for seen, number in zip(columns, numbers, strict=True)]
            yield Seen(group.start, columns, *_targets(own, sites), valid, n_sure), sites


@dataclass(frozen=True)
class Bound:
    """The evidence bound of G links, as in the module's docstring, and what its gradient needs."""

    statistics: Whitened
    posterior: Posterior
    noise: Tensor
    """s², `[G]`."""
    R: Tensor
    """rrᵀ + S - I, `[G, M, M]`."""
    residual: Tensor
    """Expected sum of squared residuals, `[G]`."""

    @classmethod
    def of(cls, statistics: Whitened, posterior: Posterior, noise: Tensor) -> Bound:
        """The bound at some q(v)."""
        r = posterior.mean
        R = torch.baddbmm(posterior.covariance, r[:, :, None], r[:, None, :])
        R.diagonal(dim1=-2, dim2=-1).sub_(1)
        fitted = 2 * (r * statistics.projection).sum(-1) - (R * statistics.gram).sum((-2, -1))
        return cls(statistics, posterior, noise, R, statistics.rest - fitted)

    @property
    def value(self) -> Tensor:
        """The bound of each link, `[G]`."""
        expected = self.statistics.count * (2 * math.pi * self.noise).log() + self.residual / self.noise
        divergence = self.R.diagonal(dim1=-2, dim2=-1).sum(-1) - self.posterior.log_det
        return self.statistics.offset - 0.5 * (expected + divergence)


@dataclass(frozen=True)
class _Share:
    """The rows of a minibatch that this process works on; all of them if it is alone."""

    paths: Tensor
    """With their current fill, by columns, `[1, n, D]`; redrawn in place."""
    observed: Tensor
    """Bool `[n, D]`."""
    rows: Tensor | None
    """Their numbers in the training table, `[n]`; None if they are all of it."""
    noise: Noise
    """Standard normal numbers of the walk."""
    largest: int
    """Rows that the process with most of them has."""


@dataclass(frozen=True)
class _Group:
    """Some links in succession, and the rows that they saw."""

    kernels: KernelStack
    inverse: Tensor
    """W of each of the links, `[G, M, M]`."""
    seen: Seen
    sites: Sequence[Sites | None]
    """The sites that they stand for, of links whose observations are not Gaussian."""
    factor: float
    """N/B, by which the rows stand for the whole table."""
    workers: Workers
    """Other processes that have seen other rows."""

    def move(self, posterior: Posterior, noise: Tensor, step_size: float) -> Bound:
        """Move the links' q(v) by a natural step; gives the bound there."""
        statistics = self._statistics()
        steps = noise.new_tensor([step_size * (1.0 if site is None else _SITE_STEP) for site in self.sites])
        return Bound.of(statistics, statistics.natural_step(posterior, noise, steps), noise)

    def pull(self, bound: Bound) -> tuple[Tensor, Tensor]:
        """Hand the kernels the gradients of the negative bound that go through the rows.

        Returns:
            The other gradients: with respect to K_ZZ, `[G, M, M]`, and to the noise variance, `[G]`.
        """
        W, R, r, noise = self.inverse, bound.R, bound.posterior.mean, bound.noise
        weight = self.factor / noise
        of_gram, of_projection = 0.5 * weight[:, None, None] * R, -weight[:, None] * r
        if not self.whitens_rows:
            of_gram, of_projection = W.mT @ of_gram @ W, _times(W.mT, of_projection)
        self.kernels.pull(RowSums(of_gram, of_projection, 0.5 * weight))
        gram, projection = bound.statistics.gram, bound.statistics.projection[:, None, :]
        inner = torch.baddbmm(R @ gram, r[:, :, None], projection, alpha=-1).tril_()
        inner.diagonal(dim1=-2, dim2=-1).mul_(0.5)
        of_among = -(W.mT @ inner @ W) / noise[:, None, None]
        of_noise = 0.5 * (bound.statistics.count - bound.residual / noise) / noise
        return (of_among + of_among.mT) / 2, of_noise

    @property
    def whitens_rows(self) -> bool:
        """In single precision H has too few digits to be whitened afterwards."""
        return self.kernels.dtype != self.inverse.dtype

    def _statistics(self) -> Whitened:
        W, targets, valid = self.inverse, self.seen.targets, self.seen.valid
        sums = self.kernels.sums(self.seen, W if self.whitens_rows else None)
        gram, projection = sums.gram, sums.projection
        if not self.whitens_rows:
            gram, projection = W @ gram @ W.mT, _times(W, projection)
        if valid is None:
            square, count = targets.square().sum(1), torch.full_like(targets[:, 0], targets.shape[1])
        else:
            square, count = (targets.square() * valid).sum(1), valid.sum(1).to(targets)
        gaussian = square.new_tensor([site is None for site in self.sites])
        offsets = [self.score(k) + self.factor * self._total(k, "rest") for k in range(len(self.sites))]
        parts = [
            self.factor * gram,
            self.factor * projection,
            self.factor * (gaussian * square + sums.trace),
            self.factor * gaussian * count,
            torch.stack(offsets),
        ]
        return Whitened(*self.workers.total(parts))

    @torch.enable_grad()
    def score(self, k: int) -> Tensor:
        """What the k-th link's sites add to the bound, a function of their likelihood's parameters."""
        return self.factor * self._total(k, "scores")

    def _total(self, k: int, name: str) -> Tensor:
        """The sum of a property of the k-th link's sites over the rows that count; 0 without sites."""
        site = self.sites[k]
        if site is None:
            return self.seen.targets.new_zeros(())
        each: Tensor = getattr(site, name)
        return (each if self.seen.valid is None else each.where(self.seen.valid[k], 0.0)).sum()


def _groups(n_links: int, entries: int, device: torch.device) -> Iterator[slice]:
    """Links whose matrices are worked on together, given the entries of a matrix: equally many each time."""
    if device.type == "cuda":
        threads, most = 1, _ENTRIES_AT_ONCE_CUDA // max(entries, 1)
    else:
        threads, most = torch.get_num_threads(), _ENTRIES_AT_ONCE // max(entries, 1)
    size = math.ceil(n_links / max(1, math.ceil(n_links / max(most, 1))))
    if threads <= most:
        # Products of several matrices go to the threads one by one: each shall get as many.
        size = math.ceil(size / threads) * threads
    return (slice(i, min(i + size, n_links)) for i in range(0, n_links, max(size, 1)))


def _observed_rows(observed: Sequence[Tensor]) -> tuple[Sequence[Tensor | None], Tensor | None, int]:
    """Equally many rows for each of G columns.

    Returns:
        The rows, None for all; which of them count, `[G, n]`, None for all; how many count for sure.
    """
    if observed[0].is_cuda:
        # To count the observed cells the host would have to wait; to look at all rows costs less.
        return [None] * len(observed), torch.stack(tuple(observed)), 0
    kept = [column.nonzero()[:, 0] for column in observed]
    counts = [len(here) for here in kept]
    fewest, most = min(counts), max(counts)
    if fewest == most:
        return kept, None, most
    padded = [torch.nn.functional.pad(here, (0, most - len(here))) for here in kept]
    return padded, torch.arange(most) < torch.tensor(counts)[:, None], fewest


def _sites(link: Link, conditional: Conditional, columns: Tensor, rows: Tensor) -> Sites | None:
    """What stands for a link's observations in rows `[D, n]`, given by columns; None for Gaussian ones.

    Args:
        link: The link.
        conditional: Its factorisation.
        columns: The rows that it learns from.
        rows: Their numbers in the training table, `[n]`.
    """
    if link.is_gaussian:
        return None

    def scored(mean: Tensor, variance: Tensor) -> Scored:
        return link.scored(mean, variance, rows)

    return Sites.of(scored, columns[link.column], conditional.moments(columns.T[None]))


def _numbers(rows: Tensor | None, kept: Tensor | None, columns: Tensor) -> Tensor:
    """Numbers in the training table of the rows that were kept, of a minibatch or of all."""
    here = torch.arange(columns.shape[1], device=columns.device) if kept is None else kept
    return here if rows is None else rows[here]


def _targets(own: Sequence[Tensor], sites: Sequence[Sites | None]) -> tuple[Tensor, Tensor | None]:
    """Targets and roots of their weights, both `[G, n]`, of links that see their own columns, or sites."""
    pairs = list(zip(own, sites, strict=True))
    targets = torch.stack([y if site is None else site.targets for y, site in pairs])
    if not any(sites):
        return targets, None
    return targets, torch.stack([torch.ones_like(y) if site is None else site.roots for y, site in pairs])


def _holes(observed: Tensor) -> Tensor | None:
    """The rows `[n]` of a column that are missing; None for all rows where the host would have to wait."""
    return None if observed.is_cuda else (~observed).nonzero()[:, 0]


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    """Matrices `[L, M, M]` applied to vectors `[L, M]`."""
    return (matrix @ vector[..., None])[..., 0]
