"""Training steps in closed form, for chains without gradients through the draws.

With Gaussian likelihoods and no gradient through the draws, the evidence bound of a link depends on its rows
through a few sums only. With W = L⁻¹, L Lᵀ = K_ZZ, q(v) = N(r, S) whitened, and sums over observed rows:

    H = K_Zf K_fZ,   b = K_Zf y,   c = yᵀy,   t = Σ k(x, x),   n rows
    Σ E_q[log N(y; f, s²)] = -n/2 log 2πs² - (c - 2 rᵀWb + t + tr(R G)) / 2s²,  G = W H Wᵀ, R = rrᵀ + S - I

The rows take one product of K_Zf with itself, and one for its gradient. The optimal q(v) is
S⁻¹ = I + G/s², S⁻¹ r = W b/s² (Titsias 2009). A natural-gradient step of size ρ moves these natural
parameters by ρ towards it (Hensman et al. 2013); on minibatches the sums are multiplied by N/B. The value is
that of `Trace_ELBO` on `Chain.marginal_model` and `Chain.marginal_guide`, with the KL term in closed form.

Observations that are not Gaussian are replaced by sites (see `closed_form_rows`). Their q(v) takes half
steps, since the sites change with it; their bound is exact at the q(v) before the step.

The gradient is written out; autograd takes only the last steps, from the kernels to their parameters:

    ∂/∂H = -WᵀRW / 2s²,   ∂/∂b = Wᵀr / s²,   ∂/∂t = -1 / 2s²,   ∂/∂K_ZZ = Wᵀ Φ(RG - r(Wb)ᵀ) W / s²

where Φ takes the lower triangle with half of its diagonal (Murray 2016, *Differentiation of the Cholesky
decomposition*), and the last matrix is symmetrised.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_mgp._support.devices import rows_if_known
from pyro_mgp._support.processes import ALONE, Workers
from pyro_mgp.inference.closed_form_rows import SITE_STEP, Share, Sites, Sweep, by_row, slices
from pyro_mgp.model.chain import Chain, by_column, fresh_noise
from pyro_mgp.model.cholesky import factorise, invert_by_blocks, naming
from pyro_mgp.model.conditional import quadratic_conditionals
from pyro_mgp.model.kernel_stack import KernelStack, RowSums, Seen, Workspace, fastest_stack, send_back
from pyro_mgp.model.link import can_be_inverted, observing, refuse_priors
from pyro_mgp.model.local_parameters import local_parameters, read


@dataclass(frozen=True)
class Posterior:
    """Natural parameters and moments of q(v) of L links; NaN where S⁻¹ is not positive definite."""

    precision: Tensor  # precision matrices S⁻¹, `[L, M, M]`
    shift: Tensor  # products S⁻¹ r of precision and mean, `[L, M]`
    mean: Tensor  # means r, `[L, M]`
    covariance: Tensor  # covariance matrices S, `[L, M, M]`
    log_det: Tensor  # log determinants of S, `[L]`

    @classmethod
    def natural(cls, precision: Tensor, shift: Tensor) -> Posterior:
        """Return q(v) with the natural parameters S⁻¹ and S⁻¹ r."""
        factor, info = torch.linalg.cholesky_ex(precision)
        # A check of `info` would make the host wait for a GPU; the loss becomes NaN instead.
        factor = factor.masked_fill_((info > 0)[:, None, None], math.nan)
        inverse = invert_by_blocks(factor)
        covariance = inverse.mT @ inverse
        log_det = -2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return cls(precision, shift, _times(covariance, shift), covariance, log_det)

    @classmethod
    @torch.no_grad()
    def of(cls, chain: Chain) -> Posterior:
        """Return q(v) of a chain's links."""
        tril = torch.stack([link.u_scale_tril for link in chain.links])
        inverse = invert_by_blocks(tril)
        precision = inverse.mT @ inverse
        mean = torch.stack([link.u_loc for link in chain.links])
        return cls.natural(precision, _times(precision, mean))

    @classmethod
    def cat(cls, parts: Sequence[Posterior]) -> Posterior:
        """Concatenate the q(v) of consecutive links."""
        return cls(**{name: torch.cat([getattr(part, name) for part in parts]) for name in vars(parts[0])})

    def __getitem__(self, links: slice) -> Posterior:
        return Posterior(**{name: value[links] for name, value in vars(self).items()})


def applies_to(chain: Chain) -> bool:
    """Return whether the bound of this chain has the closed form of this module."""
    return not chain.backpropagate and chain.n_paths == 1 and can_be_inverted(chain.links)


class ConjugateStep:
    """Training step: q(u) in closed form, all other parameters by gradients; see `applies_to`.

    `workers` train together. Without `redraw` the fill of missing cells counts as data. Missing cells of the
    training table may have limits, `[N, D, 2]`.
    """

    def __init__(
        self,
        chain: Chain,
        workers: Workers = ALONE,
        redraw: bool = True,
        limits: Tensor | None = None,
    ) -> None:
        refuse_priors(chain.links)
        self.chain, self.workers, self.redraw, self.limits = chain, workers, redraw, limits
        self.workspace = Workspace()
        self.stack = fastest_stack(chain.links)
        self.posterior = Posterior.of(chain)
        # Made once: a copy of a list of numbers to a GPU makes the host wait.
        kinds = [link.is_gaussian for link in chain.links]
        self.gaussian = torch.tensor(kinds, device=self.posterior.mean.device)

    def __call__(
        self, filled: Tensor, observed: Tensor, rows: Tensor | None, step_size: float, only_q: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Update q(u), then set the loss's gradients on the other parameters; see `SviStep`."""
        share = self._share(filled, observed, rows)
        with local_parameters():
            kernels = self.stack(self.chain.links, self.chain.row_dtype, self.workspace)
            own_noise = read([link.likelihood for link in self.chain.links], "noise", torch.stack)
            # Sites have precisions of their own; their noise variance is one.
            noise = own_noise.where(self.gaussian, 1.0)
            among, log_prior = kernels.among(), self.chain.log_prior()
            factor = 1.0 if rows is None else self.chain.n_rows / len(rows)
            with torch.no_grad():
                jitter = max(link.jitter for link in self.chain.links)
                with naming(self.chain.names):
                    inverse = invert_by_blocks(factorise(among, jitter, check=False))
                bounds, gradients, scores = [], [], list[Tensor]()
                for group in self._groups(kernels, inverse, own_noise, factor, share):
                    links = group.seen.links
                    bound = group.move(self.posterior[links], noise[links], step_size)
                    bounds.append(bound)
                    if not only_q:
                        gradients.append(group.pull(bound, noise[links]))
                        scores.append(group.score())
                self.posterior = Posterior.cat([bound.posterior for bound in bounds])
            if not only_q:
                for score in scores:
                    send_back([(score, -torch.ones_like(score))])
                # All processes have the following gradients in full; they are not added up.
                self.workers.add_gradients(self.chain.parameters())
                of_among, of_noise = (torch.cat(part) for part in zip(*gradients, strict=True))
                sent = [(among, of_among), (noise, of_noise), (log_prior, -torch.ones_like(log_prior))]
                send_back([*sent, *kernels.pending(self.workers.total)])
        loss = -torch.cat([bound.value for bound in bounds]).sum() - log_prior.detach()
        return loss, self.workers.gather(share.paths[0], len(filled))

    @torch.no_grad()
    def publish(self) -> None:
        """Write q(u) into the chain's links."""
        tril = torch.linalg.cholesky(self.posterior.covariance)
        for link, new_loc, new_tril in zip(self.chain.links, self.posterior.mean, tril, strict=True):
            link.u_loc, link.u_scale_tril = new_loc, new_tril

    def _share(self, filled: Tensor, observed: Tensor, rows: Tensor | None) -> Share:
        """Return this process's rows of a minibatch; takes the arguments of a step."""
        workers, n_rows, fresh = self.workers, len(filled), fresh_noise(filled[None])
        everyone = torch.arange(n_rows, device=filled.device)
        limits = None if self.limits is None else self.limits[slice(None) if rows is None else rows]
        rows = everyone if rows is None else rows
        if workers.is_alone:
            return Share(by_column(filled[None]), observed, rows, fresh, n_rows, limits)
        own, drawn = workers.share(n_rows), list[Tensor]()
        for number, link in enumerate(self.chain.links):
            # As one process alone would draw the noise of a minibatch.
            holes = rows_if_known(~observed[:, link.column])
            here = everyone if holes is None else holes
            drawn.append(by_row(fresh(number, here), here, n_rows)[:, own])
        paths = by_column(filled[None, own])
        limits = None if limits is None else limits[own]
        return Share(paths, observed[own], rows[own], lambda link, here: drawn[link][:, here], n_rows, limits)

    def _groups(
        self, kernels: KernelStack, inverse: Tensor, noise: Tensor, factor: float, share: Share
    ) -> Iterator[_Group]:
        """Sweep through the chain, redraw missing cells in place, and yield each group of links."""
        loc, covariance = self.posterior.mean[:, None], self.posterior.covariance
        latent = quadratic_conditionals(kernels, inverse, loc, covariance, noise)
        sweep = Sweep(self.chain, observing(latent, self.chain.links), share, self.redraw)
        # All processes must take the same links together.
        n_rows = math.ceil(share.n_rows / self.workers.size)
        for links in slices(len(inverse), n_rows * inverse.shape[-1], noise.device):
            visited = sweep.visit(links)
            yield _Group(kernels, inverse[links], *visited, self.gaussian[links], factor, self.workers)


@dataclass(frozen=True)
class Bound:
    """Evidence bound of G links for the whole table (see the module), with what its gradient needs."""

    posterior: Posterior
    value: Tensor  # bound of each link, `[G]`, nats
    gram: Tensor  # whitened Gram matrices G = W H Wᵀ, `[G, M, M]`
    projection: Tensor  # whitened products W b with the targets, `[G, M]`
    count: Tensor  # number of rows n, `[G]`; 0 for sites
    R: Tensor  # matrices rrᵀ + S - I, `[G, M, M]`
    residual: Tensor  # expected sum of squared residuals, `[G]`


@dataclass(frozen=True)
class _Group:
    """Group of consecutive links, with this process's rows from which they learn."""

    kernels: KernelStack  # kernels of all links, with the intermediate results for the gradient
    inverse: Tensor  # inverse factors W of the links, `[G, M, M]`
    seen: Seen
    sites: Sequence[Sites | None]  # sites of the rows, of links whose observations are not Gaussian
    gaussian: Tensor  # Bool `[G]`, links without sites
    factor: float  # weight N/B of a row of a minibatch
    workers: Workers  # all processes, each with rows of its own

    @property
    def whitens_rows(self) -> bool:
        """True if rows are whitened before the sums: in single precision H has too few digits."""
        return self.kernels.dtype != self.inverse.dtype

    def move(self, posterior: Posterior, noise: Tensor, step_size: float) -> Bound:
        """Update the links' q(v) by a natural-gradient step, and return the bound at the new q(v)."""
        gram, projection, rest, count, offset = self.workers.total(self._sums())
        if not self.whitens_rows:
            W = self.inverse
            gram, projection = W @ gram @ W.mT, _times(W, projection)
        step = noise.new_full((len(noise),), step_size).where(self.gaussian, step_size * SITE_STEP)[:, None]
        optimum = (gram + gram.mT).div_(2 * noise[:, None, None])
        optimum.diagonal(dim1=-2, dim2=-1).add_(1)
        precision = posterior.precision.lerp(optimum, step[:, :, None])
        posterior = Posterior.natural(precision, posterior.shift.lerp(projection / noise[:, None], step))
        r = posterior.mean
        R = torch.baddbmm(posterior.covariance, r[:, :, None], r[:, None, :])
        R.diagonal(dim1=-2, dim2=-1).sub_(1)
        residual = rest - (2 * (r * projection).sum(-1) - (R * gram).sum((-2, -1)))
        expected = count * (2 * math.pi * noise).log() + residual / noise
        divergence = R.diagonal(dim1=-2, dim2=-1).sum(-1) - posterior.log_det
        value = offset - 0.5 * (expected + divergence)
        return Bound(posterior, value, gram, projection, count, R, residual)

    def pull(self, bound: Bound, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Backpropagate the negative bound through the rows; return its gradients for K_ZZ and noise."""
        W, R, r = self.inverse, bound.R, bound.posterior.mean
        weight = self.factor / noise
        of_gram, of_projection = 0.5 * weight[:, None, None] * R, -weight[:, None] * r
        if not self.whitens_rows:
            of_gram, of_projection = W.mT @ of_gram @ W, _times(W.mT, of_projection)
        self.kernels.pull(RowSums(of_gram, of_projection, 0.5 * weight))
        inner = torch.baddbmm(R @ bound.gram, r[:, :, None], bound.projection[:, None, :], alpha=-1).tril_()
        inner.diagonal(dim1=-2, dim2=-1).mul_(0.5)
        of_among = -(W.mT @ inner @ W) / noise[:, None, None]
        of_noise = 0.5 * (bound.count - bound.residual / noise) / noise
        return (of_among + of_among.mT) / 2, of_noise

    @torch.enable_grad()
    def score(self) -> Tensor:
        """Return the contribution of the sites to the bound, differentiable in likelihood parameters."""
        return self.factor * torch.stack(self._totals("scores")).sum()

    def _sums(self) -> list[Tensor]:
        """Return the sums H and b over these rows (whitened in single precision), c + t, n, and an offset.

        The offset holds the additional terms of the bound under sites, for which c and n are zero.
        """
        targets, valid = self.seen.targets, self.seen.valid
        sums = self.kernels.sums(self.seen, self.inverse if self.whitens_rows else None)
        if valid is None:
            square, count = targets.square().sum(1), targets.new_full((len(targets),), targets.shape[1])
        else:
            square, count = (targets.square() * valid).sum(1), valid.sum(1).to(targets)
        pairs = zip(self._totals("scores"), self._totals("rest"), strict=True)
        offset = torch.stack([scores.detach() + rest for scores, rest in pairs])
        rest, count = self.gaussian * square + sums.trace, self.gaussian * count
        return [self.factor * part for part in (sums.gram, sums.projection, rest, count, offset)]

    def _totals(self, name: str) -> list[Tensor]:
        """Return the sum of a property of each link's sites over its rows; 0 without sites."""
        totals = []
        for k, site in enumerate(self.sites):
            each = self.seen.targets.new_zeros(()) if site is None else getattr(site, name)
            if site is not None and self.seen.valid is not None:
                each = each.where(self.seen.valid[k], 0.0)
            totals.append(each.sum())
        return totals


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    """Multiply matrices `[L, M, M]` by vectors `[L, M]`."""
    return (matrix @ vector[..., None])[..., 0]
