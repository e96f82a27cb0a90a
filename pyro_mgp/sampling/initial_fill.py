"""Initial fill: values of the missing cells before the first sweep through the chain.

`mean` and `median` impute a constant per column. `linear` fits one joint Gaussian to the incomplete table by
expectation-maximisation (Little and Rubin, *Statistical Analysis with Missing Data*, section 11.2) and
fills each row with its conditional mean or with a draw.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pyro_mgp._support.keyed_noise import KeyedNoise
from pyro_mgp._support.tiles import TILE, evened, whole_tiles
from pyro_mgp.data.encoded_table import EncodedTable
from pyro_mgp.storage.scratch import pieces

FillName = Literal["mean", "median", "linear"]

# Rows used by expectation-maximisation, which determine covariances to about one per cent, and its limits.
_MAX_ROWS, _MAX_STEPS, _TOLERANCE = 10_000, 100, 1e-3
# Rows conditioned at once, and entries of their [rows, k, k] matrices, of which half a dozen exist at a time.
_MAX_AT_ONCE, _ENTRIES_AT_ONCE = 42 * TILE, 2**18
# Numbers of missing cells of a row are rounded up to multiples of this for its matrices.
_WIDTH = 4
# Stream of keyed noise; `sampler.py` has the others.
_STREAM = 0
# Values and observed cells of rows `[n, D]`, and the columns of their at most k missing cells, `[n, k]`.
_Block = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class InitialFill:
    """Gaussian over all encoded columns, which fills missing cells given the observed cells of their row."""

    mean: Tensor  # means or medians of the columns, `[D]`, standardised units
    covariance: Tensor  # covariance of the columns, `[D, D]`, positive definite
    drawn: bool = False  # whether chains start from a draw, or from the conditional mean

    @classmethod
    def fit(
        cls, values: Tensor, observed: Tensor, fill: FillName, start: InitialFill | None = None
    ) -> InitialFill:
        """Fit the Gaussian of an initial fill to the observed cells of a standardised table, `[N, D]`.

        For "linear", expectation-maximisation begins at `start`, by default at the Gaussian of "mean".
        """
        centre = _medians(values, observed) if fill == "median" else _means(values, observed)
        spread = _means(values, observed, around=centre)
        independent = cls(centre, torch.diag(spread.clamp(min=1e-6)), drawn=fill == "linear")
        if fill != "linear":
            return independent
        step = max(1, -(-len(values) // _MAX_ROWS))
        return _maximise(start or independent, values[::step], observed[::step])

    def without(self, columns: Sequence[int]) -> InitialFill:
        """Return the Gaussian with these columns independent of all others."""
        covariance = self.covariance.clone()
        covariance[columns], covariance[:, columns] = 0.0, 0.0
        covariance.diagonal()[columns] = self.covariance.diagonal()[columns]
        return replace(self, covariance=covariance)

    def to(self, device: torch.device) -> InitialFill:
        """Return the Gaussian on a device."""
        return replace(self, mean=self.mean.to(device), covariance=self.covariance.to(device))

    def draw(self, rows: EncodedTable, seed: int, paths: Sequence[int] = range(1)) -> Tensor:
        """Return rows with their missing cells at the initial fill of each of S paths, `[S, n, D]`."""
        if not self.drawn:
            return self.expected(rows).expand(len(paths), -1, -1)
        eps = KeyedNoise(seed, rows.keys, paths).normals(_STREAM, len(self.mean))
        return self.draw_given(rows.values, rows.observed, eps)

    def expected(self, rows: EncodedTable) -> Tensor:
        """Fill the missing cells of rows `[n, D]` with their conditional means, on the device of the fill."""
        rows = rows.to(self.device)
        return self.conditional_mean(rows.values, rows.observed)

    @property
    def device(self) -> torch.device:
        """Device of the Gaussian, on which rows to `draw` must lie."""
        return self.mean.device

    def conditional_mean(self, values: Tensor, observed: Tensor) -> Tensor:
        """Fill the missing cells of a table `[N, D]` with their means given the observed cells."""
        return self._filled(values, observed, None)[0]

    def leave_one_out(self, values: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and variances of observed cells given the other observed cells of their row.

        Both have the shape of the table, `[N, D]`, and are of no use at its missing cells.
        """
        mean, variance = torch.empty_like(values), torch.empty_like(values)
        for here in torch.arange(len(values)).split(_chunk(values.shape[1])):
            seen = observed[here].to(values)
            # Rows and columns of missing cells are those of the identity.
            among = seen[:, :, None] * self.covariance * seen[:, None, :] + torch.diag_embed(1 - seen)
            precision = torch.cholesky_inverse(torch.linalg.cholesky(among))
            variance[here] = 1 / precision.diagonal(dim1=1, dim2=2)
            deviation = torch.where(observed[here], values[here] - self.mean, 0.0)
            pull = (precision @ deviation[:, :, None])[:, :, 0]
            mean[here] = values[here] - pull * variance[here]
        return mean, variance

    def draw_given(self, values: Tensor, observed: Tensor, noise: Tensor) -> Tensor:
        """Draw the missing cells of each row of a table `[N, D]` jointly given its observed cells.

        Standard normal `noise` `[S, N, D]` gives S filled tables of the same shape.
        """
        return self._filled(values, observed, noise)

    def _filled(self, values: Tensor, observed: Tensor, noise: Tensor | None) -> Tensor:
        """Fill the missing cells of rows with means, `[1, N, D]`, or draws by means of noise `[S, N, D]`."""
        # Padded to an even width, since rounding errors must not depend on the number of rows.
        precision = evened(evened(self._precision()).mT)
        # Filled in place: results of separate chunks would fragment memory.
        tables = torch.where(observed, values, self.mean).repeat(1 if noise is None else len(noise), 1, 1)
        for rows, columns in _blocks(observed):
            if columns.shape[1] == 0:
                continue
            # Whole tiles, or chunks: some libraries round a product by its number of rows.
            whole = _whole(rows, columns.shape[1])
            rows, columns = rows[whole], columns[whole]
            deviation, places = evened(tables[0, rows] - self.mean), columns.expand(len(tables), -1, -1)
            missing, factor = _factor(precision, observed[rows], columns)
            pull = (deviation @ precision).gather(1, columns) * missing
            step = -torch.cholesky_solve(pull[:, :, None], factor)
            if noise is not None:
                # factor factorᵀ is the precision of the missing cells, so factor⁻ᵀ eps has their covariance.
                eps = evened((noise[:, rows].gather(2, places) * missing).permute(1, 2, 0))
                step = step + torch.linalg.solve_triangular(factor.mT, eps, upper=True)[..., : len(noise)]
            tables[:, rows] = tables[:, rows].scatter_add(2, places, step.permute(2, 0, 1))
        return tables

    def _precision(self) -> Tensor:
        return torch.cholesky_inverse(torch.linalg.cholesky(self.covariance))


def _factor(precision: Tensor, observed: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Return which of some columns `[n, k]` are missing (1, else 0), and the factor of their precision.

    The Cholesky factor `[n, k, k]` has the rows and columns of an identity matrix for observed cells.
    """
    missing = (~observed).gather(1, columns).to(precision)
    among = precision[columns[:, :, None], columns[:, None, :]]
    among = missing[:, :, None] * among * missing[:, None, :] + torch.diag_embed(1 - missing)
    return missing, torch.linalg.cholesky(among)


def _means(values: Tensor, observed: Tensor, around: Tensor | None = None) -> Tensor:
    """Return the means `[D]` of the observed cells, or of their squared distances from a centre."""
    total, count = torch.zeros_like(values[0]), torch.zeros_like(observed[0], dtype=torch.int64)
    for rows in pieces(len(values)):
        cells = values[rows] if around is None else (values[rows] - around).square()
        total += torch.where(observed[rows], cells, torch.nan).nansum(0)
        count += observed[rows].sum(0)
    return total / count


def _medians(values: Tensor, observed: Tensor) -> Tensor:
    """Return the medians `[D]` of the observed cells; torch.median takes the lower of two middle values."""
    columns = [column[here].cpu().numpy() for column, here in zip(values.T, observed.T, strict=True)]
    return values.new_tensor([np.median(cells) if len(cells) else np.nan for cells in columns])


def _chunk(width: int) -> int:
    """Return how many rows with matrices of a width are conditioned at once: whole tiles, or part of one."""
    most = max(1, _ENTRIES_AT_ONCE // width**2)
    if most < TILE:
        return max(part for part in range(1, most + 1) if TILE % part == 0)
    return min(_MAX_AT_ONCE, whole_tiles(most))


def _whole(rows: Tensor, width: int) -> Tensor:
    """Return positions of rows with matrices of a width, filled up to whole tiles, or to chunks of one."""
    positions = torch.arange(len(rows), device=rows.device)
    return torch.cat([positions, positions[-1:].expand(-len(rows) % min(TILE, _chunk(width)))])


def _maximise(gaussian: InitialFill, values: Tensor, observed: Tensor) -> InitialFill:
    """Run expectation-maximisation to convergence, on the CPU, where sums have a fixed order."""
    device = values.device
    values, observed, gaussian = values.cpu(), observed.cpu(), gaussian.to(torch.device("cpu"))
    blocks = [(values[rows], observed[rows], columns) for rows, columns in _blocks(observed)]
    identity = torch.eye(values.shape[1], dtype=values.dtype)
    for _ in range(_MAX_STEPS):
        total = torch.zeros_like(identity)
        precision = gaussian._precision()
        table = torch.cat([_expect(block, gaussian.mean, precision, total) for block in blocks])
        mean = table.mean(0)
        centred = table - mean
        # A pseudo-row of unit variance keeps the matrix positive definite with collinear columns or few rows.
        covariance = (centred.T @ centred + total + identity) / (len(table) + 1)
        change = (covariance - gaussian.covariance).abs().max()
        gaussian = replace(gaussian, mean=mean, covariance=covariance)
        if change < _TOLERANCE:
            break
    return gaussian.to(device)


def _expect(block: _Block, mean: Tensor, precision: Tensor, total: Tensor) -> Tensor:
    """Return rows with missing cells at conditional means; add the conditional covariances to `total`."""
    values, observed, columns = block
    filled = torch.where(observed, values, mean)
    if columns.shape[1] == 0:
        return filled
    missing, factor = _factor(precision, observed, columns)
    pull = ((filled - mean) @ precision).gather(1, columns) * missing
    shift = torch.cholesky_solve(pull[:, :, None], factor)[:, :, 0]
    spread = missing[:, :, None] * torch.cholesky_inverse(factor) * missing[:, None, :]
    places = columns[:, :, None] * len(mean) + columns[:, None, :]
    total.view(-1).index_add_(0, places.flatten(), spread.flatten())
    return filled.scatter_add(1, columns, -shift)


def _blocks(observed: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield groups of rows `[n]` that fit into memory, with the columns `[n, k]` of their missing cells.

    Rows have the same k if their numbers of missing cells, rounded up to a multiple of `_WIDTH`, are equal:
    the matrices of a row do not depend on other rows. Further columns are those of observed cells.
    """
    n_columns = observed.shape[1]
    widths = ((~observed).sum(1).add(_WIDTH - 1) // _WIDTH * _WIDTH).clamp(max=n_columns)
    for width in widths.unique().tolist():
        for rows in (widths == width).nonzero()[:, 0].split(_chunk(max(width, 1))):
            # A stable sort puts missing cells first, in the order of their columns.
            yield rows, observed[rows].to(torch.int8).argsort(dim=1, stable=True)[:, :width]
