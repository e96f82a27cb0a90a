"""Choice of the column order of a sequential chain, by the evidence of completed rows.

A joint density can be written as p(x₁) p(x₂ | x₁) ..., in any order of the columns. A Gaussian process with
one noise variance fits some of the factors better than others: y given x if y = x² + noise, but not x given
y. The log evidence of a factor is that of Bayesian regression on the terms Φ of the earlier columns, with
prior variances V, at the noise ρ (relative to these) and the scale that maximise it,

    log p(y) = -n/2 log(yᵀ(ΦVΦᵀ + ρI)⁻¹y / n) - ½ log |ΦVΦᵀ + ρI| + constant.

The terms are linear, products of two columns, and smooth curves of one column. All factors follow from one
matrix of their products, so that an order costs eigenvalues of small matrices only. Where few terms matter, a
prior of all terms costs evidence: a link with many inputs then seems to be worse than one without those that
it needs. The log evidence is therefore also approximated for models of few terms, found by forward selection,
by the extended Bayesian information criterion (Chen and Chen, Biometrika 95:759-771, 2008),

    -n/2 log(residual sum of squares / n) - k/2 log n - log(number of models of k terms),

and the larger of both counts. Links with many inputs have linear or few terms only.

Indicators of levels are regressed like numbers, and the log evidence of a category is the sum of theirs, each
weighted by 1 - p, where p is the share of its level. For small effects this is multinomial regression: in the
likelihood ratio ½ Σᵢₖ (pᵢₖ - pₖ)² / pₖ, the part of an indicator is 1 - pₖ times the gain of its regression,
½ n R². (Regressions of each indicator given the earlier ones would count what they gain in the rows of the
later levels for all rows: 1.2 times the gain in a category of three levels and 1.8 times in one of six, which
is then put last.) Other columns add at most the entropy, which they reach where they determine the level.

Orders are improved by moving one variable at a time. (Teyssier and Koller, UAI 2005, swap adjacent columns;
that gets stuck if unrelated columns lie between related ones.)
"""

from __future__ import annotations

import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

CLEARLY = 3.0
"""Nats by which another order, or a transform of the columns, must be better to be chosen."""
# Nats by which an order must be better if complete columns follow incomplete ones: they then need links. A
# few nats are gained by moving unrelated columns to the end, where they are no inputs of others.
_VERY_CLEARLY = 15.0
MOST_INPUTS = 15
"""Most inputs of a link whose products are terms.

With more inputs, the evidence is that of all linear terms, or of few terms of any kind.
"""
# Most encoded columns of a table whose evidence has products: the matrix of those of 60 columns takes 40 MB,
# of those of 300 columns 18 GB. Most rows times squared terms, as far as there are several completions.
_MOST_COLUMNS, _MOST_WORK = 60, 2e10
# Prior variances of linear terms, products and curves, before division by the number of columns.
_VARIANCES = ((1.0, 0.0, 0.0), (1.0, 0.3, 0.0), (1.0, 0.3, 0.5))
_NOISES = tuple(10.0 ** (step / 2) for step in range(-8, 5))
# Number of curves per column, bumps as wide as their distance times this.
_CURVES, _WIDTH = 6, 1.2
# Fewest rows per term of a model of few terms, and steps of forward selection without a better model after
# which it ends.
_ROWS_PER_TERM, _PATIENCE = 10, 5
# Standard deviation up to which a column counts as constant.
_CONSTANT = 1e-9


class OrderEvidence(ABC):
    """Log evidence of orders: of the factors of a density, each given the set of earlier ones."""

    def __init__(self) -> None:
        self.of = functools.cache(self._of)
        """Function that returns the log evidence of a factor given some earlier ones, up to a constant."""

    @abstractmethod
    def _of(self, item: int, before: frozenset[int]) -> float:
        """Return the log evidence of a factor given some earlier ones."""

    def of_order(self, order: Sequence[int], before: Sequence[int] = ()) -> float:
        """Return the log evidence of factors, each given the earlier ones and those `before`."""
        return sum(self.of(each, frozenset([*before, *order[:i]])) for i, each in enumerate(order))


class Evidence(OrderEvidence):
    """Log evidence of variables of a table given others, cached.

    Args:
        values: Completed rows, `[n, D]`, or several completions of them, one after the other.
        groups: Number of the variable of each encoded column, `[D]`.
        binary: Whether each encoded column is an indicator of a level, or has two values, `[D]`.
        n_rows: Number of different rows; sums over rows are averages over completions. Default: all.
        amounts: For each encoded column of amounts, the indicator of rows without one.
    """

    def __init__(
        self,
        values: Tensor,
        groups: Sequence[int],
        binary: Sequence[bool],
        n_rows: int | None = None,
        amounts: Mapping[int, int] | None = None,
    ) -> None:
        self.n_rows, self.groups, self.binary = n_rows or len(values), groups, binary
        self.amounts = {
            d: self._of_rows(values, values[:, indicator] < 0) for d, indicator in (amounts or {}).items()
        }
        """Evidence of columns of amounts, of the rows that have one."""
        values = values[: self.n_rows * self._completions(values.shape[1])]
        scale = values.std(0)
        self.shares = (values > (values.amin(0) + values.amax(0)) / 2).double().mean(0).tolist()
        """Share of rows in which a binary column has its larger value, `[D]`."""
        standard = ((values - values.mean(0)) / scale).where(scale > _CONSTANT, 0.0)
        terms, pairs, kinds = [standard], [(d, d) for d in range(values.shape[1])], [0] * values.shape[1]
        multiplied = range(values.shape[1] if values.shape[1] <= _MOST_COLUMNS else 0)
        for a, b in itertools.combinations_with_replacement(multiplied, 2):
            same = groups[a] == groups[b]
            if not same or (a == b and not binary[a]):
                product = standard[:, a] * standard[:, b]
                terms.append((product - product.mean())[:, None])
                pairs.append((a, b))
                kinds.append(1)
        for d, is_binary in enumerate(binary):
            if not is_binary:
                terms.append(_curves(standard[:, d]))
                pairs += [(d, d)] * terms[-1].shape[1]
                kinds += [2] * terms[-1].shape[1]
        together = torch.cat(terms, dim=1)
        self.products = together.T @ together * (self.n_rows / len(values))
        self.kinds = torch.tensor(kinds)
        self.first, self.second = torch.tensor(pairs).unbind(1)
        super().__init__()

    def _of_rows(self, values: Tensor, rows: Tensor) -> Evidence:
        """Return the evidence of some rows, given Bool `[n]`."""
        n_rows = max(int(rows.sum()) * self.n_rows // len(values), 1)
        return Evidence(values[rows], self.groups, self.binary, n_rows)

    def _columns(self, variable: int) -> list[int]:
        """Return the encoded columns of a variable."""
        return [d for d, group in enumerate(self.groups) if group == variable]

    def _completions(self, n_columns: int) -> int:
        """Return from how many completions the terms' products are computed: fewer in wide tables."""
        n_products = n_columns * (n_columns + 1) // 2 if n_columns <= _MOST_COLUMNS else 0
        n_terms = (1 + _CURVES) * n_columns + n_products
        return max(int(_MOST_WORK / (self.n_rows * n_terms**2)), 1)

    def of_curvature(self, variable: int) -> float:
        """Return by how much products and curves raise the log evidence of a variable given all others."""
        others = frozenset(self.groups) - {variable}
        return self.of(variable, others) - self._of(variable, others, only_linear=True)

    def _of(self, item: int, before: frozenset[int], only_linear: bool = False) -> float:
        inputs = [d for d, group in enumerate(self.groups) if group in before]
        columns = self._columns(item)
        numbers = [d for d in columns if not self.binary[d]]
        found = sum(self.amounts.get(d, self)._of_column(d, inputs, only_linear) for d in numbers)
        return found + self._of_levels([d for d in columns if self.binary[d]], inputs, only_linear)

    def _of_levels(self, indicators: Sequence[int], inputs: Sequence[int], only_linear: bool) -> float:
        """Return the log evidence of a category above that without inputs; see the module."""
        regressed = indicators if len(indicators) > 2 else indicators[:1]
        shares = [self.shares[d] for d in regressed]
        gains = [self._of_column(d, inputs, only_linear) - self._of_column(d, ()) for d in regressed]
        if len(regressed) == 1:  # indicators of two levels have the same regression
            shares, gains = [shares[0], 1 - shares[0]], [*gains, *gains]
        entropies = [_entropy(share) for share in shares]
        weighted = (
            (1 - share) * min(gain, self.n_rows * (entropy + _entropy(1 - share)))
            for share, gain, entropy in zip(shares, gains, entropies, strict=True)
        )
        return min(sum(weighted), self.n_rows * sum(entropies))

    def _of_column(self, column: int, inputs: Sequence[int], only_linear: bool = False) -> float:
        if self.products[column, column] <= 0:
            # A column that is constant in these rows has infinite evidence as the noise vanishes.
            return 0.0
        terms = self._terms_of(inputs)
        linear = terms[self.kinds[terms] == 0]
        terms = linear if only_linear else terms
        few = self._of_few(column, terms)
        if len(inputs) > _MOST_COLUMNS:
            return few
        return max(few, self._of_all(column, linear if len(inputs) > MOST_INPUTS else terms, len(inputs)))

    def _of_all(self, column: int, terms: Tensor, n_inputs: int) -> float:
        """Return the log evidence of regression on all of these terms."""
        noises, total = torch.tensor(_NOISES).to(self.products), self.products[column, column]
        found, present = [], set(self.kinds[terms].tolist())
        variants = [tuple(v if kind in present else 0.0 for kind, v in enumerate(own)) for own in _VARIANCES]
        for variances in dict.fromkeys(variants):
            prior = (torch.tensor(variances).to(total) / max(n_inputs, 1))[self.kinds[terms]].sqrt()
            kept, prior = terms[prior > 0], prior[prior > 0]
            spectrum, vectors = torch.linalg.eigh(prior[:, None] * self.products[kept][:, kept] * prior)
            spectrum = spectrum.clamp(min=_CONSTANT)
            explained = (vectors.T @ (prior * self.products[kept, column])).square() / spectrum
            rest = (total - explained.sum()).clamp(min=0)
            squares = (explained / (spectrum + noises[:, None])).sum(-1) + rest / noises
            determinant = (spectrum / noises[:, None]).log1p().sum(-1) + self.n_rows * noises.log()
            found.append(-0.5 * (self.n_rows * (squares / self.n_rows).log() + determinant).min())
        return float(max(found))

    def _of_few(self, column: int, terms: Tensor) -> float:
        """Return the log evidence of regression on the terms that predict best; see the module."""
        terms = terms[self.products.diagonal()[terms] > 0]
        n, n_terms, penalty = self.n_rows, len(terms), 0.0
        rest = float(self.products[column, column])
        least, best, since = _CONSTANT * rest, -0.5 * n * math.log(rest / n), 0
        steps = itertools.islice(self._forward(column, terms), n // _ROWS_PER_TERM)
        for k, (_, explained) in enumerate(steps, 1):
            rest = max(rest - explained, least)
            penalty += 0.5 * math.log(n) + math.log((n_terms - k + 1) / k)
            found = -0.5 * n * math.log(rest / n) - penalty
            best, since = (found, 0) if found > best else (best, since + 1)
            if since == _PATIENCE:
                break
        return best

    def _terms_of(self, inputs: Sequence[int]) -> Tensor:
        """Return the numbers of the terms that consist of some columns."""
        seen = torch.zeros(len(self.groups), dtype=torch.bool)
        seen[list(inputs)] = True
        return (seen[self.first] & seen[self.second]).nonzero()[:, 0]

    def _forward(self, column: int, terms: Tensor) -> Iterator[tuple[int, float]]:
        """Yield terms by forward selection, each with the sum of squares of a column that it explains."""
        left, variances = self.products[terms, column], self.products.diagonal()[terms]
        enough, factors = _CONSTANT * variances, left.new_zeros(0, len(terms))
        for _ in range(len(terms)):
            explained = (left.square() / variances).where(variances > enough, 0.0)
            best = int(explained.argmax())
            if explained[best] <= 0:
                return
            yield int(terms[best]), float(explained[best])
            # A step of the Cholesky factorisation of the terms' products, with this term as pivot.
            own = self.products[terms[best]][terms]
            factor = (own - factors[:, best] @ factors) / variances[best].sqrt()
            left -= factor * (left[best] / factor[best])
            variances -= factor.square()
            factors = torch.cat([factors, factor[None]])

    def best_inputs(self, column: int, inputs: Sequence[int]) -> list[int]:
        """Return the inputs, at most `MOST_INPUTS`, whose terms predict a column best."""
        chosen = set[int]()
        for term, _ in self._forward(column, self._terms_of(inputs)):
            further = chosen | {int(self.first[term]), int(self.second[term])}
            chosen = further if len(further) <= MOST_INPUTS else chosen
            if len(chosen) == MOST_INPUTS:
                break
        return sorted(chosen)


def _entropy(share: float) -> float:
    """Return what a share of rows adds to the entropy of a category, -p log p."""
    return -share * math.log(share) if share > 0 else 0.0


def _curves(column: Tensor) -> Tensor:
    """Return smooth bumps of a column `[n]` at its quantiles, without their linear parts, `[n, curves]`."""
    centres = torch.quantile(column, torch.linspace(0.05, 0.95, _CURVES).to(column)).unique()
    if len(centres) < _CURVES // 2:
        return column.new_zeros(len(column), 0)
    width = _WIDTH * (centres[-1] - centres[0]) / (len(centres) - 1)
    bumps = (-0.5 * ((column[:, None] - centres) / width).square()).exp()
    line = torch.stack([torch.ones_like(column), column], dim=1)
    return bumps - line @ torch.linalg.lstsq(line, bumps).solution


def best_order(evidence: Evidence, first: Sequence[int], then: Sequence[int]) -> list[int]:
    """Return the order of variables with the highest log evidence found.

    The complete variables come `first`, before the others, unless that is clearly worse: a variable among or
    after the incomplete ones needs a link. Each whose own link is curved is tried at later places, one after
    the other. Where all is linear, order does not matter.
    """
    is_wide = len(evidence.groups) > _MOST_COLUMNS
    curved = [each for each in first if not is_wide and evidence.of_curvature(each) > _VERY_CLEARLY]
    plain = [each for each in first if each not in curved]
    order = improved_order(evidence, then, first)
    # No link predicts variables in front, but the evidence of their order counts if one of them leaves.
    curved = improved_order(evidence, curved, plain)
    for each in list(curved) if order else ():
        rest = [variable for variable in curved if variable != each]
        now = evidence.of_order([*curved, *order], plain)
        later = [[*order[:place], each, *order[place:]] for place in range(1, len(order) + 1)]
        found = [evidence.of_order([*rest, *places], plain) for places in later]
        best = max(range(len(found)), key=found.__getitem__)
        if found[best] > now + _VERY_CLEARLY:
            curved, order = rest, later[best]
    front = [*plain, *curved]
    return front + improved_order(evidence, order, front)


def improved_order(evidence: OrderEvidence, order: Sequence[int], fixed: Sequence[int] = ()) -> list[int]:
    """Return an order, after `fixed` factors, whose evidence no move of one clearly raises; see `CLEARLY`."""
    order = list(order)
    moves = [(i, j) for i in range(len(order)) for j in range(len(order)) if j not in (i, i - 1)]
    improved = True
    while improved:
        improved = False
        for i, j in moves:
            here = slice(min(i, j), max(i, j) + 1)
            before, moved = [*fixed, *order[: here.start]], order[here]
            moved.insert(j - here.start, moved.pop(i - here.start))
            if evidence.of_order(moved, before) > evidence.of_order(order[here], before) + CLEARLY:
                order[here] = moved
                improved = True
    return order
