"""Choice of the column order of a sequential chain, by the log evidence of complete rows.

A joint density can be written as p(x₁) p(x₂ | x₁) ..., in any order of the columns. A Gaussian process with
one noise variance fits some of the factors better than others: y given x if y = x² + noise, but not x given
y. The log evidence of a factor is that of a GP with one of a few covariances (linear, quadratic, Matérn), at
the noise and the scale that maximise it,

    log p(y) = -n/2 log(yᵀ(K + ρI)⁻¹y / n) - ½ log |K + ρI| + constant.

Orders are improved by moving one column at a time. (Teyssier and Koller, UAI 2005, swap adjacent columns;
that gets stuck if unrelated columns lie between related ones.)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

# Smallest number of complete rows that suffices, and the largest number that is used.
_FEWEST_ROWS, _MOST_ROWS = 20, 300
CLEARLY = 3.0
"""Nats by which another order, or a transform of the columns, must be better to be chosen."""
# Nats by which an order must be better if complete columns follow incomplete ones: they then need links, and
# the distribution of the complete columns influences the imputations.
_VERY_CLEARLY = 5.0
# Nats by which curved relations must be better than linear ones.
_LIKELIER = 1.0
# Variances of the linear, the quadratic and the Matérn part of a covariance; and of the noise, relative to
# these.
_LINEAR = ((1.0, 0.0, 0.0),)
_CURVED = (*_LINEAR, (1.0, 0.3, 0.0), (1.0, 0.0, 0.5), (1.0, 0.3, 0.5))
_NOISES = tuple(10.0 ** (step / 2) for step in range(-8, 5))
# Standard deviation up to which a column counts as constant.
_CONSTANT = 1e-9
# Lengthscale of the Matérn part, in standard deviations per input, times √P; and that of a rough function.
_LENGTHSCALE, _ROUGH_LENGTHSCALE = 1.0, 0.1


class Evidence:
    """Log evidence of columns of a table given other columns, cached.

    Args:
        values: Complete rows, `[n, D]`.
        covariances: The covariances to choose from, see `_CURVED`.
        lengthscale: Lengthscale of their Matérn part.
    """

    def __init__(
        self,
        values: Tensor,
        covariances: Sequence[tuple[float, float, float]],
        lengthscale: float = _LENGTHSCALE,
    ) -> None:
        self.covariances, self.lengthscale = covariances, lengthscale
        scale = values.std(0)
        self.values = ((values - values.mean(0)) / scale).where(scale > _CONSTANT, 0.0)
        self.of = functools.cache(self._of)
        """Function that returns the log evidence of a column given some others, up to a constant."""

    def of_order(self, order: Sequence[int], before: Sequence[int]) -> float:
        """Return the log evidence of columns, each given the earlier ones and `before`."""
        return sum(self.of(column, frozenset([*before, *order[:i]])) for i, column in enumerate(order))

    def _of(self, column: int, inputs: frozenset[int]) -> float:
        X, y = self.values[:, sorted(inputs)], self.values[:, column]
        n = len(y)
        if not y.any():
            # A column that is constant in these rows has infinite evidence as the noise vanishes.
            return 0.0
        product = X @ X.T / max(len(inputs), 1)
        distance = torch.cdist(X, X) / (self.lengthscale * math.sqrt(max(len(inputs), 1)))
        matern = (1 + math.sqrt(3) * distance) * (-math.sqrt(3) * distance).exp()
        covariances = [1.0 + a * product + b * product.square() + c * matern for a, b, c in self.covariances]
        if not inputs:
            covariances = [torch.ones(n, n).to(y)]
        spectrum, vectors = torch.linalg.eigh(torch.stack(covariances))
        noisy = spectrum.clamp(min=0)[:, None] + torch.tensor(_NOISES).to(y)[:, None]
        squares = (vectors.mT @ y).square()
        fit = (squares[:, None] / noisy).mean(-1).log()
        return float((-0.5 * (n * fit + noisy.log().sum(-1))).max())


def best_order(values: Tensor, first: Sequence[int], then: Sequence[int], fixed: Sequence[int]) -> list[int]:
    """Return the column order with the highest log evidence found.

    Args:
        values: Complete rows, `[n, D]`, standardised.
        first: Columns placed first unless that is clearly worse: the complete ones.
        then: Columns placed after these.
        fixed: Columns that precede all of them.

    Returns:
        The columns of `first` and `then`, in order.
    """
    evidence = Evidence(values, _CURVED)
    then = _improved(evidence, then, [*fixed, *first], CLEARLY)
    return _improved(evidence, [*first, *then], fixed, _VERY_CLEARLY)


def _improved(evidence: Evidence, order: Sequence[int], fixed: Sequence[int], enough: float) -> list[int]:
    """Return an order whose evidence no move of one column raises by more than `enough` nats."""
    order = list(order)
    moves = [(i, j) for i in range(len(order)) for j in range(len(order)) if j not in (i, i - 1)]
    improved = True
    while improved:
        improved = False
        for i, j in moves:
            here = slice(min(i, j), max(i, j) + 1)
            before, moved = [*fixed, *order[: here.start]], order[here]
            moved.insert(j - here.start, moved.pop(i - here.start))
            if evidence.of_order(moved, before) > evidence.of_order(order[here], before) + enough:
                order[here] = moved
                improved = True
    return order


def log_evidence(values: Tensor, order: Sequence[int], fixed: Sequence[int]) -> float:
    """Return the log evidence of columns in a given order after `fixed` ones, in units of rows `[n, D]`."""
    scale = values[:, list(order)].std(0)
    return Evidence(values, _CURVED).of_order(order, fixed) - len(values) * float(
        scale[scale > _CONSTANT].log().sum()
    )


def is_curved(values: Tensor, order: Sequence[int], fixed: Sequence[int]) -> bool:
    """Return whether some columns clearly depend on earlier ones by smooth, non-linear functions.

    Functions that jump from row to row (repeated rows, steps) are better predicted by nearby rows. Takes the
    arguments of `log_evidence`.
    """
    curved, linear = (Evidence(values, kind).of_order(order, fixed) for kind in (_CURVED, _LINEAR))
    rough = Evidence(values, _CURVED[2:3], _ROUGH_LENGTHSCALE).of_order(order, fixed)
    return curved - linear > _LIKELIER and rough - curved < CLEARLY


def complete_rows(observed: Tensor) -> Tensor | None:
    """Return the numbers of the first complete rows, at most 300; None if there are fewer than 20."""
    rows = observed.all(1).nonzero()[:_MOST_ROWS, 0]
    return rows if len(rows) >= _FEWEST_ROWS else None
