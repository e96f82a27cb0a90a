"""Choice of the order of a category's levels in stick-breaking, by the evidence of its links.

The link of a level tells it from all later ones, so that the order of the levels is part of the model. A
level that lies between others (the second of three stages) is told from them by no linear function, unless it
comes last, and a rare level that comes late has few rows to learn from. The log evidence of an order is the
sum of those of its links, each that of Bayesian logistic regression on the rows without an earlier level, by
Laplace's method (Bishop, Pattern Recognition and Machine Learning, 2006, section 4.5). Its terms are linear,
because links shrink the others more.

The search starts with rare levels first: where all levels follow a multinomial logit, the log odds of a rare
level against all others are nearly linear. The order of the table may be better where its levels are ordered.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_mgp.model.column_order import OrderEvidence, improved_order

# Most levels and inputs of a category whose order is improved, and rows from which it is found. A category of
# sixteen levels with sixty inputs then takes two seconds.
_MOST_LEVELS, _MOST_INPUTS, _MOST_ROWS = 16, 60, 1000
# Prior precision of the coefficients of standardised inputs, and of the intercept.
_PRECISION, _PRECISION_OF_INTERCEPT = 1.0, 0.01
# Steps of Newton's method, of at most this length in any coefficient, and the length at which they end.
_STEPS, _LONGEST, _CONVERGED = 30, 3.0, 1e-4
# Standard deviation up to which an input counts as constant.
_CONSTANT = 1e-9


class LevelEvidence(OrderEvidence):
    """Log evidence of the links of levels, given the set of earlier levels, cached.

    Args:
        inputs: Inputs of the links, `[n, D]`.
        level: Number of each row's level, `[n]`.
        n_levels: Number of levels, some of which these rows may not have.
    """

    def __init__(self, inputs: Tensor, level: Tensor, n_levels: int) -> None:
        centred, scale = inputs - inputs.mean(0), inputs.std(0, correction=0)
        standard = (centred / scale).where(scale > _CONSTANT, 0.0)
        intercept = inputs.new_ones(len(inputs), 1)
        self.terms, self.level = torch.cat([intercept, standard], dim=1), level
        self.n_levels = n_levels
        self.precision = inputs.new_full((1 + inputs.shape[1],), _PRECISION)
        self.precision[0] = _PRECISION_OF_INTERCEPT
        super().__init__()

    def _of(self, item: int, before: frozenset[int]) -> float:
        if len(before) == self.n_levels - 1:
            return 0.0  # the last level has no link
        remaining = ~torch.isin(self.level, torch.tensor(sorted(before), dtype=self.level.dtype))
        return self._of_regression(self.terms[remaining], self.level[remaining] == item)

    def _of_regression(self, terms: Tensor, is_level: Tensor) -> float:
        """Return the log evidence of logistic regression of Bool `[n]` on terms `[n, 1 + D]`."""
        sign, coefficients = 2.0 * is_level.to(terms) - 1, torch.zeros_like(self.precision)
        for _ in range(_STEPS):
            share = torch.sigmoid(-sign * (terms @ coefficients))
            gradient = terms.T @ (sign * share) - self.precision * coefficients
            hessian = terms.T @ (terms * (share * (1 - share))[:, None]) + self.precision.diag()
            factor = torch.linalg.cholesky(hessian)
            step = torch.cholesky_solve(gradient[:, None], factor)[:, 0]
            longest = float(step.abs().max())
            coefficients = coefficients + step * min(1.0, _LONGEST / max(longest, _CONVERGED))
            if longest < _CONVERGED:
                break
        log_likelihood = torch.nn.functional.logsigmoid(sign * (terms @ coefficients)).sum()
        log_prior = 0.5 * (self.precision.log() - self.precision * coefficients.square()).sum()
        return float(log_likelihood + log_prior - factor.diagonal().log().sum())


def best_level_order(inputs: Tensor, level: Tensor, n_levels: int) -> list[int]:
    """Return the order of levels with the highest log evidence found; see the module.

    Takes the inputs of their links `[n, D]` and the number of each row's level, `[n]`.

    Example:
        Level 0, which lies between the others, is told from one of them after the other:

        >>> x = torch.linspace(-3, 3, 90, dtype=torch.float64)[:, None]
        >>> best_level_order(x, torch.tensor([1, 0, 2])[torch.arange(90) // 30], 3)
        [1, 0, 2]
    """
    rare_first = torch.bincount(level, minlength=n_levels).argsort(stable=True).tolist()
    if not 0 < inputs.shape[1] <= _MOST_INPUTS:
        return rare_first
    evidence = LevelEvidence(inputs[:_MOST_ROWS], level[:_MOST_ROWS], n_levels)
    start = max(rare_first, list(range(n_levels)), key=evidence.of_order)
    return improved_order(evidence, start) if n_levels <= _MOST_LEVELS else start
