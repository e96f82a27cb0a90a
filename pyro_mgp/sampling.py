"""From a fitted chain to draws of missing cells, batch of rows by batch of rows.

For imputation j one function per link is drawn from q(u) and shared by all rows; each row then starts from
its own joint Gaussian draw and walks through the chain several times. All noise is keyed (`noise.py`), so a
row's draws do not depend on the rows around it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_mgp.chain import Chain, Noise
from pyro_mgp.fill import JointGaussian
from pyro_mgp.link import Conditional, Moments
from pyro_mgp.noise import KeyedNoise

# What a stream of keyed noise is for.
_START, _FUNCTION, _WALK = range(3)
# Rows times paths that walk together: bounds the memory of the [M, rows · paths] matrices to some 10 MB each.
_ROWS_AT_ONCE = 20_000


@dataclass(frozen=True)
class Rows:
    """Some rows of an encoded table, all columns of the chain."""

    values: Tensor
    """Standardised values `[n, D]`; anything finite in missing cells."""
    observed: Tensor
    """Bool `[n, D]`."""
    keys: Tensor
    """int64 `[n]`, see `table.row_keys`."""

    def __getitem__(self, index: slice | Tensor) -> Rows:
        return Rows(self.values[index], self.observed[index], self.keys[index])

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True)
class Mixture:
    """Predictive distribution of cells: equally weighted Gaussians."""

    mean: Tensor
    """`[K, n]`."""
    variance: Tensor
    """`[K, n]`."""

    def expectation(self) -> Tensor:
        """Mean of each cell, `[n]`."""
        return self.mean.mean(0)

    def standard_deviation(self) -> Tensor:
        """Standard deviation of each cell, `[n]`."""
        return (self.variance.mean(0) + self.mean.var(0, correction=0)).sqrt()

    def quantile(self, level: float) -> Tensor:
        """The quantile of each cell `[n]`, by bisection to about 1e-9 of its range."""
        scale = self.variance.sqrt()
        low = (self.mean - 10 * scale).amin(0)
        high = (self.mean + 10 * scale).amax(0)
        for _ in range(60):
            middle = (low + high) / 2
            below = torch.special.ndtr((middle - self.mean) / scale).mean(0) < level
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return (low + high) / 2


@dataclass(frozen=True)
class Start:
    """What stands in the holes before the first walk."""

    gaussian: JointGaussian
    """Covers the first columns of the chain, a target excepted."""
    drawn: bool
    """Whether rows start from a draw, or from the conditional mean."""

    def draw(self, rows: Rows, noise: KeyedNoise) -> Tensor:
        """The first fill of each path, `[S, n, D]`."""
        expected = self.expected(rows).expand(len(noise.imputations), -1, -1)
        if not self.drawn:
            return expected
        n_columns = len(self.gaussian.mean)
        eps = torch.stack([noise.normal(_START, d) for d in range(n_columns)], dim=-1)
        filled = self.gaussian.draw(rows.values[:, :n_columns], rows.observed[:, :n_columns], eps)
        return torch.cat([filled, expected[:, :, n_columns:]], dim=-1)

    def expected(self, rows: Rows) -> Tensor:
        """The rows filled by their conditional means, `[n, D]`; a target is left as it is."""
        n_columns = len(self.gaussian.mean)
        filled = self.gaussian.conditional_mean(rows.values[:, :n_columns], rows.observed[:, :n_columns])
        return torch.cat([filled, rows.values[:, n_columns:]], dim=-1)


@dataclass(frozen=True)
class Sampler:
    """Draws missing cells from a fitted chain."""

    chain: Chain
    start: Start
    """The fill before the first walk."""
    joint: bool
    """One drawn function per imputation, shared by all rows; otherwise each cell alone, from q(f)."""
    n_sweeps: int
    """Walks before a draw counts."""
    seed: int

    @torch.no_grad()
    def draws(
        self, rows: Rows, imputations: Sequence[int], batch_size: int | None = None
    ) -> Iterator[tuple[slice, Tensor]]:
        """Draws of the numbered imputations.

        Args:
            rows: The rows to complete.
            imputations: Numbers of the S imputations.
            batch_size: Rows at a time; chosen by memory when None. The draws do not depend on it.

        Yields:
            Which rows, and these rows with their holes drawn, `[S, n, D]`.
        """
        conditionals = self._conditionals(imputations)
        for here in _batches(len(rows), len(imputations), batch_size):
            *_, (filled, _) = self._walks(conditionals, rows[here], imputations)
            yield here, filled

    @torch.no_grad()
    def means(self, rows: Rows, imputations: Sequence[int]) -> Tensor:
        """The rows `[n, D]` with their holes at the predictive mean.

        It is averaged over paths and over the second half of the sweeps: each walk's conditional means,
        which vary less than its draws do.
        """
        conditionals = self._conditionals(imputations)
        parts = [self.start.expected(rows[:0])]
        for here in _batches(len(rows), len(imputations), None):
            batch = rows[here]
            point, holes = self.start.expected(batch), self._holes(batch)
            total = torch.zeros_like(point)
            counted = range(self.n_sweeps // 2, self.n_sweeps)
            for sweep, (_, visited) in enumerate(self._walks(conditionals, batch, imputations)):
                for link, cells, moments in zip(self.chain.links, holes, visited, strict=True):
                    if sweep in counted:
                        total[cells, link.column] += moments.mean.mean(0) / len(counted)
            for link, cells in zip(self.chain.links, holes, strict=True):
                point[cells, link.column] = total[cells, link.column]
            parts.append(point)
        return torch.cat(parts)

    @torch.no_grad()
    def target(self, rows: Rows, imputations: Sequence[int]) -> Mixture:
        """Predictive distribution of the last link's column at all rows, noise included."""
        conditionals = self._conditionals(imputations)
        link = self.chain.links[-1]
        parts = []
        for here in _batches(len(rows), len(imputations), None):
            *_, (filled, _) = self._walks(conditionals, rows[here], imputations)
            moments = conditionals[-1].moments(filled[:, :, link.inputs])
            parts.append((moments.mean, moments.variance + link.likelihood.noise))
        return Mixture(*(torch.cat(part, dim=1) for part in zip(*parts, strict=True)))

    def _conditionals(self, imputations: Sequence[int]) -> list[Conditional]:
        if not self.joint:
            return self.chain.conditionals()

        def noise(link: int, n_inducing: int) -> Tensor:
            keys = torch.arange(n_inducing, device=self.start.gaussian.mean.device)
            return KeyedNoise(self.seed, keys, imputations).normal(_FUNCTION, link)

        return self.chain.conditionals(self.chain.functions(noise))

    def _walks(
        self, conditionals: Sequence[Conditional], rows: Rows, imputations: Sequence[int]
    ) -> Iterator[tuple[Tensor, list[Moments]]]:
        noise = KeyedNoise(self.seed, rows.keys, imputations)

        def walk_noise(sweep: int) -> Noise:
            return lambda link, cells: noise.normal(_WALK, sweep, link, rows=cells)

        start = self.start.draw(rows, noise)
        return self.chain.sweeps(
            conditionals, start, rows.observed, walk_noise, self.n_sweeps, self._holes(rows)
        )

    def _holes(self, rows: Rows) -> list[Tensor]:
        """For each link, the rows whose cell it has to draw: none for a target, which feeds no other link."""
        n_columns = len(self.start.gaussian.mean)
        return [
            ((~rows.observed[:, link.column]) & (link.column < n_columns)).nonzero()[:, 0]
            for link in self.chain.links
        ]


def _batches(n_rows: int, n_paths: int, batch_size: int | None) -> Iterator[slice]:
    size = batch_size or max(1, _ROWS_AT_ONCE // n_paths)
    return (slice(i, min(i + size, n_rows)) for i in range(0, n_rows, size))
