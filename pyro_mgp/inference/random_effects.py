"""Joint prior of the random effects that a group has in all links, and its covariance given these.

If x and y depend on each other within groups and between them in different ways, the random intercepts of the
link of y given x, and of x, are independent in one order of the columns and correlated in the other. The K
effects of a group in all links, intercepts and slopes, therefore have one normal prior, as in joint models of
multilevel data (Schafer and Yucel, J. Comput. Graph. Stat. 11:437-457, 2002),

    u_g ~ N(0, Ω⁻¹),   Ω | a ~ Wishart(K + 1, diag(a) / 4),   1 / a_k ~ Gamma(1/2, rate 1 / A_k²)

under which correlations are uniform and standard deviations half-t with two degrees of freedom and scale A_k
(Huang and Wand, Bayesian Analysis 8:439-452, 2013). Given the effects of J groups both have closed forms,

    1 / a_k ~ Gamma(K/2 + 1, rate 2 Ω_kk + 1 / A_k²),   Ω ~ Wishart(J + K + 1, (Σ_g u_g u_gᵀ + 4 diag(1/a))⁻¹)

and so has the prior of a link's effects given those of the others: precision Ω_dd and shift -Ω_do u_o.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from pyro_mgp.inference.function_posterior import FunctionPosterior
from pyro_mgp.model.chain import Chain
from pyro_mgp.model.kernels import RandomEffects, trend_of
from pyro_mgp.model.priors import EFFECT, group_scales


@dataclass(frozen=True)
class Grouping:
    """Random effects of J groups in all links of a chain, K for each group.

    They are in units of the standard deviations with which the links were trained.
    """

    column: int
    """Encoded column with the numbers of the groups."""
    effects: RandomEffects
    """Random effects of one of the links."""
    links: Sequence[int]
    """Number of the link of each effect, ascending, `[K]`."""
    coefficients: Tensor
    """Numbers of the coefficients of each effect among its link's values, `[K, J]`."""
    slopes: Sequence[int | None]
    """Encoded column to which each effect is the slope, `[K]`; None for intercepts."""
    units: Tensor
    """Standard deviations with which the effects were trained, `[K]`."""
    wide: Tensor
    """Scales A of the priors of their standard deviations, in these units, `[K]`."""

    @classmethod
    def of(cls, chain: Chain) -> list[Self]:
        """Return the random effects of a chain, for each column of groups."""
        found = dict[int, list[tuple[int, int | None, Tensor, Tensor, Tensor]]]()
        effects = dict[int, RandomEffects]()
        for i, link in enumerate(chain.links):
            trend, _ = trend_of(link.kernel)
            if trend is None:
                continue
            inputs, numbers = link.inputs.tolist(), iter(range(len(trend.sizes)))
            for effect in trend.effects:
                column = inputs[effect.place]
                effects.setdefault(column, effect)
                for slope in (None, *(inputs[place] for place in effect.slopes)):
                    k = next(numbers)
                    coefficients = (trend.groups == EFFECT + k).nonzero()[:, 0].to(link.Xu.device)
                    unit = trend.effect_deviations[k].to(link.Xu)
                    wide = group_scales(link)[EFFECT] / unit
                    found.setdefault(column, []).append((i, slope, coefficients, unit, wide))
        groupings = []
        for column, own in found.items():
            links, slopes, *parts = zip(*own, strict=True)
            coefficients, units, wides = map(torch.stack, parts)
            groupings.append(cls(column, effects[column], links, coefficients, slopes, units, wides))
        return groupings

    def numbers(self, rows: Tensor) -> Tensor:
        """Return the number of the group of each row of a table `[n, D]`, `[n]`; J and more for new ones."""
        return self.effects.numbers(rows[:, self.column])

    @property
    def n_numbers(self) -> int:
        """Number of standard normal numbers that `draw` takes for a chain."""
        return n_numbers_of_precision(*self.coefficients.shape)

    def start(self, n_chains: int) -> Tensor:
        """Return the precisions Ω of S chains before the first draw, `[S, K, K]`."""
        return torch.eye(len(self.links)).to(self.units).expand(n_chains, -1, -1)

    def draw(self, functions: Sequence[Tensor], precision: Tensor, normal: Tensor) -> Tensor:
        """Draw the precisions Ω `[S, K, K]` of S chains given the links' functions `[S, M]`.

        Takes the last precisions, and as many normal numbers as `n_numbers`, `[S, ...]`.
        """
        return draw_precision(self._effects(functions), precision, self.wide, normal)

    def _effects(self, functions: Sequence[Tensor]) -> Tensor:
        """Return the effects in S chains, `[S, K, J]`."""
        pairs = zip(self.links, self.coefficients, strict=True)
        return torch.stack([functions[i][:, numbers] for i, numbers in pairs], dim=1)

    def prior_of(
        self, number: int, functions: Sequence[Tensor], precision: Tensor, posterior: FunctionPosterior
    ) -> tuple[Tensor, Tensor]:
        """Return what the prior of a link's effects, given those of others, adds to precision and shift.

        The posterior is one with independent standard normal effects. Returns its `gram` and `shift` with
        the prior's in place of these, `[S, M, M]` and `[S, M]`.
        """
        gram, shift = posterior.gram.clone(), posterior.shift.clone()
        own = [k for k, i in enumerate(self.links) if i == number]
        others = [k for k, i in enumerate(self.links) if i != number]
        told = precision[:, own][:, :, others] @ self._effects(functions)[:, others]
        for a, k in enumerate(own):
            rows = self.coefficients[k]
            shift[:, rows] -= told[:, a]
            for other in own:
                gram[:, rows, self.coefficients[other]] += precision[:, k, other, None] - float(k == other)
        return gram, shift


def n_numbers_of_precision(n_effects: int, n_groups: int) -> int:
    """Return the number of standard normal numbers that `draw_precision` takes for a chain."""
    return n_effects * (n_effects + 2 + _freedom(n_effects, n_groups))


def draw_precision(effects: Tensor, precision: Tensor, wide: Tensor, normal: Tensor) -> Tensor:
    """Draw the precisions Ω `[S, K, K]` of the effects of J groups, `[S, K, J]`, given these.

    Takes the last precisions, the scales A of the priors of standard deviations `[K]`, and standard normal
    numbers, `[S, ...]`.
    """
    n_effects, n_groups = effects.shape[1:]
    of_rates, of_wishart = normal.tensor_split([n_effects * (n_effects + 2)], dim=1)
    chi_square = of_rates.unflatten(1, (n_effects, n_effects + 2)).square().sum(2)
    rates = chi_square / (4 * precision.diagonal(dim1=1, dim2=2) + 2 / wide.square())
    squares = effects @ effects.mT + torch.diag_embed(4 * rates)
    # With L Lᵀ the inverse of the squares and Z normal, L Zᵀ Z Lᵀ has the Wishart distribution.
    factor = torch.linalg.cholesky(squares)
    Z = of_wishart.unflatten(1, (_freedom(n_effects, n_groups), n_effects))
    root = torch.linalg.solve_triangular(factor.mT, Z.mT, upper=True)
    return root @ root.mT


def _freedom(n_effects: int, n_groups: int) -> int:
    """Return the degrees of freedom of the Wishart distribution of a precision given the effects."""
    return n_groups + n_effects + 1
