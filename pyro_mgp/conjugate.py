"""Closed-form training of a chain whose links each learn from the observed cells of their own column.

With a Gaussian likelihood and no gradient through the draws, the bound of a link depends on its rows through
four statistics only. With W = L⁻¹, L Lᵀ = K_ZZ, q(v) = N(r, S) whitened, and sums over observed rows:

    H = K_Zf K_fZ,   b = K_Zf y,   c = yᵀy,   t = Σ k(x, x),   n rows
    Σ E_q[log N(y; f, s²)] = -n/2 log 2πs² - (c - 2 rᵀ(Wb) + rᵀ G r + t - tr G + tr(S G)) / 2s²,   G = W H Wᵀ

so the rows cost two products of K_Zf with itself, and all algebra of all links is batched `[L, M, M]`. The
optimal q(v) is S⁻¹ = I + G/s², S⁻¹ r = W b/s² (Titsias 2009); a natural-gradient step of size ρ moves these
natural parameters by ρ towards it (Hensman et al. 2013), N/B times the statistics standing in for all rows.
The value is that of `Trace_ELBO` on `Chain.model` and `Chain.guide`, with the KL term in closed form.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_mgp.chain import Chain, fresh_noise
from pyro_mgp.kernels import KernelStack, stack_kernels
from pyro_mgp.likelihoods import Gaussian
from pyro_mgp.link import Moments, factorise
from pyro_mgp.local_parameters import local_parameters

# H loses as many digits as K_ZZ has, twice; below this jitter too few would be left.
_LEAST_JITTER = 1e-7


@dataclass(frozen=True)
class Statistics:
    """What the bound needs of some rows, for L links; scaled to the whole table."""

    gram: Tensor
    """H, `[L, M, M]`."""
    projection: Tensor
    """b, `[L, M]`."""
    square: Tensor
    """c, `[L]`."""
    trace: Tensor
    """t, `[L]`."""
    count: Tensor
    """n, `[L]`."""


@dataclass(frozen=True)
class Posterior:
    """q(v) of L links in natural form."""

    precision: Tensor
    """S⁻¹, `[L, M, M]`."""
    shift: Tensor
    """S⁻¹ r, `[L, M]`."""

    @classmethod
    def of(cls, chain: Chain) -> Posterior:
        """The q(v) of a chain's links."""
        tril = torch.stack([link.u_scale_tril for link in chain.links])
        precision = torch.cholesky_inverse(tril)
        loc = torch.stack([link.u_loc for link in chain.links])
        return cls(precision, (precision @ loc[..., None])[..., 0])

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean r `[L, M]` and covariance S `[L, M, M]`."""
        factor, info = torch.linalg.cholesky_ex(self.precision)
        if info.any():
            raise FloatingPointError(
                "the posterior of the inducing values is no longer positive definite: use a smaller learning "
                "rate, or a larger batch_size"
            )
        covariance = torch.cholesky_inverse(factor)
        return (covariance @ self.shift[..., None])[..., 0], covariance

    def towards(self, other: Posterior, step_size: float) -> Posterior:
        """Part of the way to another posterior, in natural parameters."""
        return Posterior(
            self.precision.lerp(other.precision, step_size), self.shift.lerp(other.shift, step_size)
        )


def applies_to(chain: Chain) -> bool:
    """Whether the bound of this chain has the closed form of this module."""
    return (
        not chain.backpropagate
        and chain.n_paths == 1
        and all(isinstance(link.likelihood, Gaussian) for link in chain.links)
        and all(link.jitter >= _LEAST_JITTER for link in chain.links)
        and len({link.n_inducing for link in chain.links}) == 1
    )


class ConjugateStep:
    """Training steps in closed form for q(u), by gradient for everything else.

    Args:
        chain: A chain that `applies_to` admits.
    """

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        with torch.no_grad():
            self.posterior = Posterior.of(chain)

    def __call__(
        self, filled: Tensor, observed: Tensor, rows: Tensor | None, step_size: float
    ) -> tuple[Tensor, Tensor]:
        """Move q(u) towards its optimum, then leave the loss's gradients on the other parameters.

        Args:
            filled: Rows with their current fill, `[B, D]`.
            observed: Bool `[B, D]`.
            rows: Their numbers if they are a minibatch, else None.
            step_size: 1 on full data, decaying on minibatches.

        Returns:
            The negative bound, and the rows with their missing cells redrawn, `[B, D]`.
        """
        with local_parameters():
            kernels = stack_kernels([(link.kernel, link.Xu) for link in self.chain.links])
            noise = torch.stack([link.likelihood.noise for link in self.chain.links])
            inverse = self._inverse_factors(kernels)
            statistics, redrawn = self._walk(kernels, noise, inverse, filled, observed, rows)
            whitened = _whitened(inverse, statistics)
            with torch.no_grad():
                self.posterior = self.posterior.towards(_optimum(whitened, noise), step_size)
            loss = -_bound(whitened, noise, *self.posterior.moments())
            loss.backward()
        return loss.detach(), redrawn

    @torch.no_grad()
    def publish(self) -> None:
        """Write q(u) into the chain's links."""
        loc, covariance = self.posterior.moments()
        tril = torch.linalg.cholesky(covariance)
        for link, new_loc, new_tril in zip(self.chain.links, loc, tril, strict=True):
            link.u_loc, link.u_scale_tril = new_loc, new_tril

    def restore(self) -> None:
        """Read q(u) from the chain's links, after they were set back to an earlier state."""
        with torch.no_grad():
            self.posterior = Posterior.of(self.chain)

    def _inverse_factors(self, kernels: KernelStack) -> Tensor:
        """W = L⁻¹ of every link, `[L, M, M]`."""
        factors = factorise(kernels.among(), max(link.jitter for link in self.chain.links))
        identity = torch.eye(factors.shape[-1], dtype=factors.dtype, device=factors.device)
        return torch.linalg.solve_triangular(factors, identity, upper=False)

    def _walk(
        self,
        kernels: KernelStack,
        noise: Tensor,
        inverse: Tensor,
        filled: Tensor,
        observed: Tensor,
        rows: Tensor | None,
    ) -> tuple[Statistics, Tensor]:
        """`Chain.walk`, collecting each link's statistics where its column is observed."""
        filled, fresh = filled.clone(), fresh_noise(filled[None])
        weights, spread = self._drawing_weights(inverse)
        added = noise.detach() if self.chain.propagate == "predictive" else torch.zeros_like(noise)
        parts, visited = [], []
        for i, link in enumerate(self.chain.links):
            inputs, seen = filled[:, link.inputs], observed[:, link.column]
            kept, holes = seen.nonzero()[:, 0], (~seen).nonzero()[:, 0]
            with torch.no_grad():
                cross, variance = kernels.cross(i, inputs[holes]), kernels.variance(i, inputs[holes])
                variance = (variance + (spread[i] @ cross).mul_(cross).sum(0)).clamp(min=0) + added[i]
                mean, eps = (weights[i] @ cross)[None], fresh(i, holes)
                filled[holes, link.column] = (mean + eps * variance.sqrt())[0]
                visited.append(Moments(mean, variance[None]))
                if self.chain.propagate == "predictive":
                    self.chain.draw_levels(i, filled[None], observed, visited, eps, holes)
            y = filled[kept, link.column]
            cross, prior = kernels.cross(i, inputs[kept]), kernels.variance(i, inputs[kept])
            parts.append((cross @ cross.T, cross @ y, y @ y, prior.sum(), y.new_tensor(len(y))))
        factor = 1.0 if rows is None else self.chain.n_rows / len(rows)
        return Statistics(*(factor * torch.stack(part) for part in zip(*parts, strict=True))), filled

    @torch.no_grad()
    def _drawing_weights(self, inverse: Tensor) -> tuple[Tensor, Tensor]:
        """Wᵀ r and A = Wᵀ(S - I)W: a row with covariances k to Z has mean kᵀWᵀr, variance k(x, x) + kᵀA k."""
        loc, covariance = self.posterior.moments()
        identity = torch.eye(loc.shape[-1], dtype=loc.dtype, device=loc.device)
        weights = (inverse.mT @ loc[..., None])[..., 0]
        return weights, inverse.mT @ (covariance - identity) @ inverse


def _whitened(inverse: Tensor, statistics: Statistics) -> Statistics:
    """The statistics with G = W H Wᵀ for H and W b for b."""
    gram = inverse @ statistics.gram @ inverse.mT
    projection = (inverse @ statistics.projection[..., None])[..., 0]
    return dataclasses.replace(statistics, gram=gram, projection=projection)


def _optimum(statistics: Statistics, noise: Tensor) -> Posterior:
    """The q(v) that maximises the bound of whitened statistics at the current kernels and noises."""
    gram = statistics.gram
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    precision = identity + (gram + gram.mT) / (2 * noise[:, None, None])
    return Posterior(precision, statistics.projection / noise[:, None])


def _bound(statistics: Statistics, noise: Tensor, loc: Tensor, covariance: Tensor) -> Tensor:
    """The evidence bound of the module's docstring, of whitened statistics, summed over links."""
    gram = statistics.gram
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    # rᵀ G r - tr G + tr(S G) = tr((r rᵀ + S - I) G)
    inner = loc[:, :, None] * loc[:, None, :] + covariance - identity
    fitted = 2 * (loc * statistics.projection).sum(-1) - (inner * gram).sum((-2, -1))
    residual = statistics.square - fitted + statistics.trace
    expected = -0.5 * (statistics.count * (2 * math.pi * noise).log() + residual / noise)
    divergence = 0.5 * (
        covariance.diagonal(dim1=-2, dim2=-1).sum(-1)
        + loc.square().sum(-1)
        - loc.shape[-1]
        - torch.logdet(covariance)
    )
    return (expected - divergence).sum()
