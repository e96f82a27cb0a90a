"""Starting fills: what stands in the holes before the first sweep through the chain.

`mean` and `median` are the classical ones. `linear` fits one joint Gaussian to the incomplete table by
expectation-maximisation (Little and Rubin, *Statistical Analysis with Missing Data*, section 11.2) and
fills each row with its conditional mean or with a draw. It is the fixed point of chained ridge
regressions, and unlike them it moves nearly collinear columns that are missing together at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from pyro_mgp._support.tiles import TILE, evened, whole_tiles
from pyro_mgp.storage.scratch import pieces

FillName = Literal["mean", "median", "linear"]

# Rows that the expectation-maximisation looks at, and its limits. Beyond 10,000 rows a covariance matrix
# of a few dozen columns is known to about one per cent, and only a starting point is wanted.
_MAX_ROWS = 10_000
_MAX_STEPS = 100
_TOLERANCE = 1e-3
# Rows conditioned at once, and entries of their [rows, D, D] matrices: bound the memory of these, of which
# there are half a dozen.
_MOST_AT_ONCE, _ENTRIES_AT_ONCE = 42 * TILE, 2**18


@dataclass(frozen=True)
class JointGaussian:
    """A Gaussian over all encoded columns, from which the holes of a row are filled given what is observed.

    With `covariance = 0` off the diagonal and `mean` the column means this is mean imputation.

    Example:
        >>> values = torch.tensor([[0.0, 0.0], [1.0, float("nan")], [2.0, 2.0]]).double()
        >>> gaussian = JointGaussian.fit(values, ~values.isnan(), "linear")
        >>> gaussian.conditional_mean(values, ~values.isnan()).shape
        torch.Size([3, 2])
    """

    mean: Tensor
    """Means (or medians) of the columns, `[D]`, standardised units."""
    covariance: Tensor
    """Covariance of the columns, `[D, D]`, positive definite."""

    @classmethod
    def fit(
        cls, values: Tensor, observed: Tensor, fill: FillName, near: JointGaussian | None = None
    ) -> JointGaussian:
        """Fit the fill named by `fill` to an incomplete table.

        Args:
            values: Standardised table, `[N, D]`; what stands in missing cells is ignored.
            observed: Bool `[N, D]`, True where the cell is known.
            fill: "mean", "median" or "linear".
            near: Where to start looking for the "linear" one, if something close is known.

        Raises:
            ValueError: If `fill` is not one of the three names.
        """
        if fill not in get_args(FillName):
            raise ValueError(f"initial_fill must be one of {get_args(FillName)}, got {fill!r}")
        centre = _medians(values, observed) if fill == "median" else _means(values, observed)
        spread = _means(values, observed, around=centre)
        start = cls(centre, torch.diag(spread.clamp(min=1e-6)))
        if fill != "linear":
            return start
        step = max(1, -(-len(values) // _MAX_ROWS))
        return _maximise(near or start, values[::step], observed[::step])

    def to(self, device: torch.device) -> JointGaussian:
        """The same Gaussian on a device."""
        return JointGaussian(self.mean.to(device), self.covariance.to(device))

    def conditional_mean(self, values: Tensor, observed: Tensor) -> Tensor:
        """The table `[N, D]` with its holes at their conditional mean given the row's observed cells."""
        table, precision = torch.empty_like(values), self._precision()
        for here in _chunks(values):
            table[here], _ = self._fill(values[here], observed[here], precision)
        return table

    def draw(self, values: Tensor, observed: Tensor, noise: Tensor) -> Tensor:
        """The table with its holes drawn jointly given the row's observed cells.

        Args:
            values: Standardised table, `[N, D]`.
            observed: Bool `[N, D]`.
            noise: Standard normal numbers `[S, N, D]`: S tables are drawn.

        Returns:
            The S filled tables, `[S, N, D]`.
        """
        # Written in place: what each chunk kept would lie amid the memory that the next one needs.
        tables, precision = values.new_empty(len(noise), *values.shape), self._precision()
        for here in _chunks(values):
            filled, factor = self._fill(values[here], observed[here], precision)
            # factor factorᵀ is the precision of the missing cells, so factor⁻ᵀ eps has their covariance.
            eps = evened(noise[:, here]).permute(1, 2, 0)
            step = torch.linalg.solve_triangular(factor.mT, eps, upper=True)
            drawn = filled + step.permute(2, 0, 1)[..., : len(self.mean)]
            tables[:, here] = torch.where(observed[here], filled, drawn)
        return tables

    def _precision(self) -> Tensor:
        """The inverse of the covariance, with a row and a column of zeros if D is odd."""
        precision = torch.cholesky_inverse(torch.linalg.cholesky(self.covariance))
        return evened(evened(precision).mT)

    def _fill(self, values: Tensor, observed: Tensor, precision: Tensor) -> tuple[Tensor, Tensor]:
        """Filled rows `[n, D]` and the Cholesky factor `[n, D, D]` of the missing cells' precision.

        Rows have different holes. One batched factorisation serves them all, because the precision matrix
        with the observed rows and columns replaced by those of the identity has the missing block's factor
        in place and nothing else. If D is odd the factor has one column more, as if of an observed cell.
        """
        missing = evened((~observed).to(values.dtype))
        block = missing[:, :, None] * precision * missing[:, None, :] + torch.diag_embed(1 - missing)
        factor = torch.linalg.cholesky(block)
        deviation = evened(torch.where(observed, values - self.mean, 0.0))
        pull = missing * (deviation @ precision)
        shift = torch.cholesky_solve(pull[:, :, None], factor)[:, : len(self.mean), 0]
        return torch.where(observed, values, self.mean - shift), factor


def _means(values: Tensor, observed: Tensor, around: Tensor | None = None) -> Tensor:
    """Means of the observed cells `[D]`, or of their squared distances from a centre `[D]`."""
    total, count = torch.zeros_like(values[0]), torch.zeros_like(observed[0], dtype=torch.int64)
    for rows in pieces(len(values)):
        cells = values[rows] if around is None else (values[rows] - around).square()
        total += torch.where(observed[rows], cells, torch.nan).nansum(0)
        count += observed[rows].sum(0)
    return total / count


def _medians(values: Tensor, observed: Tensor) -> Tensor:
    """Medians of the observed cells `[D]`; torch's own takes the lower of two middle values."""
    known = [column[here].cpu().numpy() for column, here in zip(values.T, observed.T, strict=True)]
    return values.new_tensor([np.median(cells) if len(cells) else np.nan for cells in known])


def _chunks(values: Tensor) -> Iterator[slice]:
    """The rows of a table `[N, D]` that are conditioned at once."""
    size = _chunk(values.shape[1])
    return (slice(i, i + size) for i in range(0, len(values), size))


def _chunk(n_columns: int) -> int:
    """How many rows are conditioned at once: whole tiles, or of wide tables equal parts of one."""
    most = max(1, _ENTRIES_AT_ONCE // n_columns**2)
    if most < TILE:
        return max(part for part in range(1, most + 1) if TILE % part == 0)
    return min(_MOST_AT_ONCE, whole_tiles(most))


def _maximise(gaussian: JointGaussian, values: Tensor, observed: Tensor) -> JointGaussian:
    """Expectation-maximisation until the correlations stop moving; on the CPU, where sums have one order."""
    device = values.device
    # Rows with as many holes stand together: a matrix has to have room for the most holes beside it.
    order = observed.sum(1).argsort(stable=True)
    values, observed, gaussian = values[order].cpu(), observed[order].cpu(), gaussian.to(torch.device("cpu"))
    parts = list(_alike(values, observed))
    identity = torch.eye(values.shape[1], dtype=values.dtype)
    for _ in range(_MAX_STEPS):
        total = torch.zeros_like(identity)
        precision = torch.cholesky_inverse(torch.linalg.cholesky(gaussian.covariance))
        table = torch.cat([part.expect(gaussian.mean, precision, total) for part in parts])
        mean = table.mean(0)
        centred = table - mean
        # One pseudo-row of unit variance keeps collinear columns and few rows positive definite.
        covariance = (centred.T @ centred + total + identity) / (len(table) + 1)
        change = (covariance - gaussian.covariance).abs().max()
        gaussian = JointGaussian(mean, covariance)
        if change < _TOLERANCE:
            break
    return gaussian.to(device)


@dataclass(frozen=True)
class _Holed:
    """Rows with at most k holes."""

    values: Tensor
    """`[n, D]`."""
    observed: Tensor
    """Bool `[n, D]`."""
    columns: Tensor
    """Of their holes, and of some observed cells of rows with fewer, `[n, k]`."""

    def expect(self, mean: Tensor, precision: Tensor, total: Tensor) -> Tensor:
        """The rows with their holes at conditional means; adds the covariances of these to `total`."""
        filled = torch.where(self.observed, self.values, mean)
        columns, n_columns = self.columns, len(mean)
        if columns.shape[1] == 0:
            return filled
        missing = (~self.observed).gather(1, columns).to(mean)
        both = missing[:, :, None] * missing[:, None, :]
        among = precision[columns[:, :, None], columns[:, None, :]]
        factor = torch.linalg.cholesky(both * among + torch.diag_embed(1 - missing))
        pull = ((filled - mean) @ precision).gather(1, columns) * missing
        shift = torch.cholesky_solve(pull[:, :, None], factor)[:, :, 0]
        spread = both * torch.cholesky_inverse(factor)
        places = columns[:, :, None] * n_columns + columns[:, None, :]
        total.view(-1).index_add_(0, places.flatten(), spread.flatten())
        return filled.scatter_add(1, columns, -shift)


def _alike(values: Tensor, observed: Tensor) -> Iterator[_Holed]:
    """Rows in an order of falling numbers of holes, as many at once as have room."""
    n_holes = (~observed).sum(1).tolist()
    start = 0
    while start < len(values):
        here = slice(start, start + _chunk(max(n_holes[start], 1)))
        # Stable: holes by the order of their columns, then observed cells.
        columns = observed[here].to(torch.int8).argsort(dim=1, stable=True)[:, : n_holes[start]]
        yield _Holed(values[here], observed[here], columns)
        start = here.stop
