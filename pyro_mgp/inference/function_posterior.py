"""Normal distribution of a link's function given the completed table, by its whitened inducing values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class FunctionPosterior:
    """Normal distribution of a link's whitened inducing values v in S chains."""

    gram: Tensor
    """Precisions that the rows add to the prior's, `[S, M, M]`."""
    shift: Tensor
    """Precisions A times means, `[S, M]`."""
    mean: Tensor
    """Means, `[S, M]`."""
    factor: Tensor
    """Cholesky factors of A, the sum of both precisions, `[S, M, M]`."""
    evidence: Tensor
    """Log density of the rows with v integrated out, up to a constant, `[S]`."""

    @classmethod
    def natural(cls, prior: Tensor, gram: Tensor, shift: Tensor) -> FunctionPosterior:
        """Return the distribution with a prior of variances `[S, M]`, what rows add to it, and a shift."""
        factor = torch.linalg.cholesky(gram + torch.diag_embed(prior.reciprocal()))
        mean = torch.cholesky_solve(shift[..., None], factor)[..., 0]
        log_size = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1) + 0.5 * prior.log().sum(-1)
        return cls(gram, shift, mean, factor, 0.5 * (shift * mean).sum(-1) - log_size)

    def where(self, taken: Tensor, other: FunctionPosterior) -> FunctionPosterior:
        """Return this distribution in chains with True in Bool `[S]`, and another one in the others."""
        mean = torch.where(taken[:, None], self.mean, other.mean)
        factor = torch.where(taken[:, None, None], self.factor, other.factor)
        evidence = torch.where(taken, self.evidence, other.evidence)
        return FunctionPosterior(self.gram, self.shift, mean, factor, evidence)

    def draw(self, eps: Tensor) -> Tensor:
        """Draw v `[S, M]`, given standard normal numbers `[S, M]`."""
        return self.mean + torch.linalg.solve_triangular(self.factor.mT, eps[..., None], upper=True)[..., 0]

    def moments(self, basis: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of functions with basis `[S, M, n]`, `[S, n]` each."""
        whitened = torch.linalg.solve_triangular(self.factor, basis, upper=False)
        return times(self.mean, basis), whitened.square().sum(-2)


def times(vector: Tensor, matrix: Tensor) -> Tensor:
    """Multiply vectors `[..., M]` by matrices `[..., M, n]`."""
    return (vector[..., None, :] @ matrix)[..., 0, :]
