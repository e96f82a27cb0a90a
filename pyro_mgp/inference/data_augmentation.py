"""Small tables: functions and noises drawn given the completed table, and the table given these, in turn.

With many rows q(u), learnt while the holes were redrawn, says well enough how uncertain a function is. With
few rows each completed table would teach another function. For imputation j, therefore, as in data
augmentation (Tanner and Wong, JASA 82:528-540, 1987),

    v ~ N(A⁻¹ Φᵀy / s², A⁻¹),  A = I + ΦᵀΦ / s²       of the rows that a link learns from, as they are filled
    s² ~ (Σ noise²) / χ²_n                            of these rows, given v
    the holes ~ a sweep through the chain, given v and s² of all links

is repeated, from functions drawn from q(u) on; the last v and s² are the imputation's. Φ holds the rows'
whitened basis (see `link`).
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
from pyro_mgp.model.kernel_stack import KernelStack, stack_kernels
from pyro_mgp.model.likelihoods import MIN_NOISE
from pyro_mgp.model.local_parameters import local_parameters

# Turns before a function counts.
_TURNS = 8
# Walks that settle the first fill, given functions from q(u).
_SWEEPS = 3
# What a stream of noise is for.
_FUNCTION, _VARIANCE = range(2)

Fresh = Callable[..., Tensor]
"""Standard normal numbers of a stream, `[S, n]`: `fresh(n, *stream)`."""


@dataclass(frozen=True)
class Drawn:
    """Functions and noises of S imputations."""

    functions: list[Tensor]
    """Whitened inducing values of each link, `[S, M]`."""
    noises: list[Tensor]
    """Noise variances of each link, `[S, 1]`."""

    @classmethod
    def cat(cls, parts: Sequence[Drawn]) -> Drawn:
        """Of imputations in succession."""
        functions, noises = (
            [torch.cat(own) for own in zip(*(getattr(part, name) for part in parts), strict=True)]
            for name in ("functions", "noises")
        )
        return cls(functions, noises)


class Augmentation:
    """Data augmentation of a trained chain.

    Args:
        chain: The chain, on one device with all that follows.
        observed: Bool `[N, D]`, of the training table.
    """

    def __init__(self, chain: Chain, observed: Tensor) -> None:
        self.chain, self.observed = chain, observed
        with local_parameters():
            self.kernels: KernelStack = stack_kernels(chain.links)
            among = self.kernels.among()
        self.inverse = invert_by_blocks(factorise(among, max(link.jitter for link in chain.links)))
        self.holes = chain.holes(observed)
        self.known = [
            chain.learns_from(i, observed, observed).nonzero()[:, 0] for i in range(len(chain.links))
        ]

    def run(self, filled: Tensor, fresh: Fresh, sweep_noise: Callable[[int], Noise]) -> Drawn:
        """Take turns from a first fill.

        Args:
            filled: The table as S imputations start from it, `[S, N, D]`.
            fresh: Noise of functions and variances.
            sweep_noise: Noise of the sweep of each turn.
        """
        n_links, n_paths = len(self.chain.links), len(filled)
        noises = [link.likelihood.noise.expand(n_paths, 1) for link in self.chain.links]
        functions = self.chain.functions(lambda link, n: fresh(n, _FUNCTION, 0, link))
        for turn in range(1, _TURNS + 1):
            conditionals = self.conditionals(functions, noises)
            for sweep in range(_SWEEPS if turn == 1 else 1):
                noise = sweep_noise(turn + (_TURNS + 1) * sweep)
                filled, _ = self.chain.sweep(conditionals, filled, self.observed, noise, self.holes)
            for i in range(n_links):
                functions[i], noises[i] = self.learn(i, filled, noises[i], fresh, turn)
        return Drawn(functions, noises)

    def conditionals(self, functions: Sequence[Tensor], noises: Sequence[Tensor]) -> list[Conditional]:
        """The links at drawn functions and noises."""
        values = torch.stack(list(functions))
        return [*quadratic_conditionals(self.kernels, self.inverse, values, None, noises)]

    def learn(
        self, number: int, filled: Tensor, noise: Tensor, fresh: Fresh, turn: int
    ) -> tuple[Tensor, Tensor]:
        """A link's function `[S, M]` and noise `[S, 1]`, given the table and the last noise."""
        rows = filled[:, self.known[number]]
        targets = rows[..., self.chain.links[number].column]
        cross, prior = self.kernels.at(number, rows.flatten(0, 1))
        basis = (self.inverse[number] @ cross).unflatten(1, targets.shape).movedim(0, -1)
        rest = (prior.view_as(targets) - basis.square().sum(-1)).clamp(min=0)
        precision = basis.mT @ basis / noise[..., None]
        precision.diagonal(dim1=-2, dim2=-1).add_(1)
        factor = torch.linalg.cholesky(precision)
        shift = (basis.mT @ targets[..., None]) / noise[..., None]
        eps = fresh(basis.shape[-1], _FUNCTION, turn, number)[..., None]
        mean = torch.cholesky_solve(shift, factor)
        function = (mean + torch.linalg.solve_triangular(factor.mT, eps, upper=True))[..., 0]
        residual = targets - (basis @ function[..., None])[..., 0]
        # What inducing values cannot say of a function is a part of the residual, but no noise.
        share = noise / (noise + rest)
        total = ((share * residual).square() + share * rest).sum(-1, keepdim=True)
        drawn = total / _chi_squared(targets.shape[-1], fresh(1, _VARIANCE, turn, number))
        return function, drawn.clamp(min=MIN_NOISE)


def _chi_squared(freedom: int, normal: Tensor) -> Tensor:
    """χ² of at least a few degrees of freedom, by standard normal numbers (Wilson and Hilferty, 1931)."""
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + math.sqrt(spread) * normal).clamp(min=0.05) ** 3
