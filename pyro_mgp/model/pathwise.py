"""Conditional of a link whose hyperparameters differ from path to path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_mgp.model.conditional import Along, Conditional, GaussianConditional, Moments


@dataclass(frozen=True)
class PathwiseConditional(GaussianConditional):
    """Conditional of a Gaussian link that combines one conditional for each of S paths."""

    parts: Sequence[Conditional]
    """Conditional of each path, with one drawn function."""

    @property
    def noise(self) -> Tensor:
        """Variance of the observation noise on each path, `[S, 1]`."""
        return torch.cat([part.noise for part in self.parts])

    @torch.no_grad()
    def moments(self, rows: Tensor) -> Moments:
        """Return the moments of the latent function at rows `[S, n, D]`."""
        found = [part.moments(own) for part, own in zip(self.parts, rows.split(1), strict=True)]
        return Moments(torch.cat([at.mean for at in found]), torch.cat([at.variance for at in found]))

    @torch.no_grad()
    def functions(self, rows: Tensor) -> Tensor:
        """Return each drawn function `[S, n]` at rows `[n, D]`."""
        return torch.cat([part.functions(rows) for part in self.parts])

    @torch.no_grad()
    def along(self, table: Tensor, columns: Sequence[int]) -> Along:
        """Return the moments at rows of a table `[S, n, D]` as a function of the values of some columns."""
        own = [part.along(rows, columns) for part, rows in zip(self.parts, table.split(1), strict=True)]

        def moments(paths: Tensor, numbers: Tensor, values: Tensor) -> Moments:
            mean, variance = (values.new_empty(len(paths)) for _ in range(2))
            for path in paths.unique().tolist():
                here = (paths == path).nonzero()[:, 0]
                at = own[path](torch.zeros_like(here), numbers[here], values[here])
                mean[here], variance[here] = at.mean, at.variance
            return Moments(mean, variance)

        return moments
