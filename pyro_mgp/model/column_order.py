"""In which order the columns of a small table explain each other best.

A joint density can be written as p(x₁) p(x₂ | x₁) ..., in any order of the columns; a Gaussian process with
one noise fits some of the factors better than others: y given x where y = x² + noise, but not x given y.
Which order is best is asked of the complete rows: the log evidence of a factor is that of a GP whose
covariance is one of a few (linear, quadratic, bent), at the noise and the scale that suit it best,

    log p(y) = -n/2 log(yᵀ(K + ρI)⁻¹y / n) - ½ log |K + ρI| + constant,

and orders are improved by moving one column at a time (Teyssier and Koller, UAI 2005, exchange neighbours;
but these may have nothing to do with each other, and stand between two that have).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

# Fewest complete rows to ask, and the most that are asked.
_FEWEST_ROWS, _MOST_ROWS = 20, 300
CLEARLY = 3.0
"""Nats by which another order, or a bend of the columns, must be better to be taken."""
# The same for an order in which complete columns follow incomplete ones: they then need links of their own,
# and what is to be learnt of the incomplete ones is also learnt from how the complete ones are distributed.
_VERY_CLEARLY = 5.0
# Nats by which curves must be likelier than straight lines.
_LIKELIER = 1.0
# Variances of the linear, the quadratic and the bent part of a covariance; and of the noise, relative to
# these.
_LINEAR = ((1.0, 0.0, 0.0),)
_CURVED = (*_LINEAR, (1.0, 0.3, 0.0), (1.0, 0.0, 0.5), (1.0, 0.3, 0.5))
_NOISES = tuple(10.0 ** (step / 2) for step in range(-8, 5))
# Standard deviation up to which a column is constant but for rounding errors.
_CONSTANT = 1e-9
# Lengthscale of the bent part, in standard deviations per input, times √P; and of one that is rough.
_LENGTHSCALE, _ROUGH_LENGTHSCALE = 1.0, 0.1


class Evidence:
    """How well columns of a table are predicted by others, by their log evidence.

    Args:
        values: Complete rows, `[n, D]`.
        covariances: The covariances to choose from, see `_CURVED`.
        lengthscale: Of their bent part.
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
        self.known: dict[tuple[int, frozenset[int]], float] = {}

    def of(self, column: int, inputs: frozenset[int]) -> float:
        """Log evidence of a column given some others, up to a constant."""
        if (column, inputs) not in self.known:
            self.known[column, inputs] = self._of(column, sorted(inputs))
        return self.known[column, inputs]

    def of_order(self, order: Sequence[int], before: Sequence[int]) -> float:
        """Log evidence of columns, each given those in front of it and `before`."""
        return sum(self.of(column, frozenset([*before, *order[:i]])) for i, column in enumerate(order))

    def _of(self, column: int, inputs: list[int]) -> float:
        X, y = self.values[:, inputs], self.values[:, column]
        n = len(y)
        if not y.any():
            # It is constant in these rows, and no noise is small enough for it.
            return 0.0
        product = X @ X.T / max(len(inputs), 1)
        distance = torch.cdist(X, X) / (self.lengthscale * math.sqrt(max(len(inputs), 1)))
        bent = (1 + math.sqrt(3) * distance) * (-math.sqrt(3) * distance).exp()
        covariances = [1.0 + a * product + b * product.square() + c * bent for a, b, c in self.covariances]
        if not inputs:
            covariances = [torch.ones(n, n).to(y)]
        spectrum, vectors = torch.linalg.eigh(torch.stack(covariances))
        noisy = spectrum.clamp(min=0)[:, None] + torch.tensor(_NOISES).to(y)[:, None]
        squares = (vectors.mT @ y).square()
        fit = (squares[:, None] / noisy).mean(-1).log()
        return float((-0.5 * (n * fit + noisy.log().sum(-1))).max())


def best_order(values: Tensor, first: Sequence[int], then: Sequence[int], fixed: Sequence[int]) -> list[int]:
    """The order in which columns explain each other best.

    Args:
        values: Complete rows, `[n, D]`, standardised.
        first: Columns that stand first unless that is very clearly worse: the complete ones.
        then: Columns that stand behind these, in an order of their own.
        fixed: Columns that stand before all of them.

    Returns:
        The columns of `first` and `then`, in order.
    """
    evidence = Evidence(values, _CURVED)
    then = _improved(evidence, then, [*fixed, *first], CLEARLY)
    return _improved(evidence, [*first, *then], fixed, _VERY_CLEARLY)


def _improved(evidence: Evidence, order: Sequence[int], fixed: Sequence[int], enough: float) -> list[int]:
    """An order whose evidence no move of one column raises by more than `enough` nats."""
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
    """That of columns in this order, in the units of `values`, up to a constant.

    Args:
        values: Complete rows, `[n, D]`.
        order: The columns, in order.
        fixed: Columns that stand before all of them.
    """
    scale = values[:, list(order)].std(0)
    return Evidence(values, _CURVED).of_order(order, fixed) - len(values) * float(
        scale[scale > _CONSTANT].log().sum()
    )


def is_curved(values: Tensor, order: Sequence[int], fixed: Sequence[int]) -> bool:
    """Whether some of the columns depend clearly on earlier ones in ways that are smooth, but not linear.

    What jumps from row to row (repeated rows, steps) neighbours tell better than any curve.

    Args:
        values: Complete rows, `[n, D]`.
        order: The columns, in order.
        fixed: Columns that stand before all of them.
    """
    curved, linear = (Evidence(values, kind).of_order(order, fixed) for kind in (_CURVED, _LINEAR))
    rough = Evidence(values, _CURVED[2:3], _ROUGH_LENGTHSCALE).of_order(order, fixed)
    return curved - linear > _LIKELIER and rough - curved < CLEARLY


def complete_rows(observed: Tensor) -> Tensor | None:
    """Numbers of the rows without holes, the first of them if there are many; None if too few to ask."""
    rows = observed.all(1).nonzero()[:_MOST_ROWS, 0]
    return rows if len(rows) >= _FEWEST_ROWS else None
