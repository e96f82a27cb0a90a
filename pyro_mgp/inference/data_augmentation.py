"""Data augmentation for small tables (Tanner and Wong, JASA 82:528-540, 1987).

With many rows, q(u) represents the uncertainty of a link's function well. With few rows the posterior of the
function depends on the imputed cells, and q(u) underestimates it. Each imputation therefore repeats

    v ~ N(A⁻¹ Φᵀy / s², A⁻¹),  A = I + ΦᵀΦ / s²       given the completed rows from which a link learns
    s² ~ (Σ noise²) / χ²_n                            given these rows and v
    missing cells ~ a sweep through the chain         given v and s² of all links

starting from functions drawn from q(u). The last v and s² are those of the imputation. Φ is the whitened
basis of the rows (see `conditional`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_mgp.model.chain import Chain, Noise
from pyro_mgp.model.cholesky import factorise, invert_by_blocks
from pyro_mgp.model.conditional import Conditional, quadratic_conditionals
from pyro_mgp.model.kernel_stack import KernelStack
from pyro_mgp.model.likelihoods import MIN_NOISE
from pyro_mgp.model.linear_matern32_stack import stack_kernels
from pyro_mgp.model.local_parameters import local_parameters

# Number of iterations; the functions of the last one are kept.
_ITERATIONS = 8
# Sweeps of burn-in in the first iteration, given functions from q(u).
_SWEEPS = 3
# Streams of noise.
_FUNCTION, _VARIANCE = range(2)

Fresh = Callable[..., Tensor]
"""Standard normal numbers of a stream, `[S, n]`: `fresh(n, *stream)`."""


@dataclass(frozen=True)
class Drawn:
    """Functions and noise variances drawn for S imputations."""

    functions: list[Tensor]
    """Whitened inducing values of each link, `[S, M]`."""
    noises: list[Tensor]
    """Noise variances of each link, `[S, 1]`."""

    @classmethod
    def cat(cls, parts: Sequence[Drawn]) -> Drawn:
        """Concatenate the draws of consecutive imputations."""
        functions, noises = (
            [torch.cat(own) for own in zip(*(getattr(part, name) for part in parts), strict=True)]
            for name in ("functions", "noises")
        )
        return cls(functions, noises)


class Augmentation:
    """Data augmentation of a trained chain, given the observed cells of its table, Bool `[N, D]`."""

    def __init__(self, chain: Chain, observed: Tensor) -> None:
        self.chain, self.observed = chain, observed
        with local_parameters():
            self.kernels: KernelStack = stack_kernels(chain.links)
            among = self.kernels.among()
        self.inverse = invert_by_blocks(factorise(among, max(link.jitter for link in chain.links)))
        self.holes = chain.holes(observed)
        self.learning_rows = [
            chain.learns_from(i, observed, observed).nonzero()[:, 0] for i in range(len(chain.links))
        ]

    def run(self, filled: Tensor, fresh: Fresh, sweep_noise: Callable[[int], Noise]) -> Drawn:
        """Draw functions and noise variances by data augmentation, starting from an initial fill.

        Args:
            filled: Initial fill of the table for S imputations, `[S, N, D]`.
            fresh: Noise of functions and variances.
            sweep_noise: Noise of each sweep, by its number.
        """
        n_links, n_paths = len(self.chain.links), len(filled)
        noises = [link.likelihood.noise.expand(n_paths, 1) for link in self.chain.links]
        functions = self.chain.functions(lambda link, n: fresh(n, _FUNCTION, 0, link))
        for iteration in range(1, _ITERATIONS + 1):
            conditionals = self.conditionals(functions, noises)
            for sweep in range(_SWEEPS if iteration == 1 else 1):
                noise = sweep_noise(iteration + (_ITERATIONS + 1) * sweep)
                filled, _ = self.chain.sweep(conditionals, filled, self.observed, noise, self.holes)
            for i in range(n_links):
                functions[i], noises[i] = self.learn(i, filled, noises[i], fresh, iteration)
        return Drawn(functions, noises)

    def conditionals(self, functions: Sequence[Tensor], noises: Sequence[Tensor]) -> list[Conditional]:
        """Return the conditionals of the links at drawn functions and noise variances."""
        values = torch.stack(list(functions))
        return [*quadratic_conditionals(self.kernels, self.inverse, values, None, noises)]

    def learn(
        self, number: int, filled: Tensor, noise: Tensor, fresh: Fresh, iteration: int
    ) -> tuple[Tensor, Tensor]:
        """Draw a link's function `[S, M]` and noise variance `[S, 1]`, given table and previous variance."""
        rows = filled[:, self.learning_rows[number]]
        targets = rows[..., self.chain.links[number].column]
        cross, prior = self.kernels.at(number, rows.flatten(0, 1))
        basis = (self.inverse[number] @ cross).unflatten(1, targets.shape).movedim(0, -1)
        rest = (prior.view_as(targets) - basis.square().sum(-1)).clamp(min=0)
        precision = basis.mT @ basis / noise[..., None]
        precision.diagonal(dim1=-2, dim2=-1).add_(1)
        factor = torch.linalg.cholesky(precision)
        shift = (basis.mT @ targets[..., None]) / noise[..., None]
        eps = fresh(basis.shape[-1], _FUNCTION, iteration, number)[..., None]
        mean = torch.cholesky_solve(shift, factor)
        function = (mean + torch.linalg.solve_triangular(factor.mT, eps, upper=True))[..., 0]
        residual = targets - (basis @ function[..., None])[..., 0]
        # Residuals contain the part of the function that inducing values do not determine, which is no noise.
        share = noise / (noise + rest)
        total = ((share * residual).square() + share * rest).sum(-1, keepdim=True)
        drawn = total / _chi_squared(targets.shape[-1], fresh(1, _VARIANCE, iteration, number))
        return function, drawn.clamp(min=MIN_NOISE)


def _chi_squared(freedom: int, normal: Tensor) -> Tensor:
    """Draw approximate χ² variates from normal numbers (Wilson and Hilferty, 1931)."""
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + math.sqrt(spread) * normal).clamp(min=0.05) ** 3
