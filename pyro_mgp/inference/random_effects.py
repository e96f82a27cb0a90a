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

A kernel has effects among its features, and training takes the cube of their number. Chains keep them apart
from the function (`without_effects`), and draw them group by group; see `grouped_rows`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from pyro.contrib.gp.kernels import Sum
from pyro.nn import PyroParam
from torch import Tensor
from torch.distributions import constraints

from pyro_mgp.model.chain import Chain
from pyro_mgp.model.kernels import EFFECTS, RandomEffects, Trend, trend_of
from pyro_mgp.model.local_parameters import local_parameters
from pyro_mgp.model.priors import EFFECT, group_scales


class EffectsDraw(NamedTuple):
    """Random effects of a column of groups, drawn in S chains."""

    values: Tensor
    """Effects of J groups, K for each, `[S, K, J]`."""
    precision: Tensor
    """Precisions Ω of a group's effects, `[S, K, K]`."""


@dataclass(frozen=True)
class Grouping:
    """Random effects of J groups in all links of a chain, K for each group."""

    column: int
    """Encoded column with the numbers of the groups."""
    effects: RandomEffects
    """Random effects of one of the links."""
    links: Sequence[int]
    """Number of the link of each effect, ascending, `[K]`."""
    slopes: Sequence[int | None]
    """Encoded column to which each effect is the slope, `[K]`; None for intercepts."""
    wide: Tensor
    """Scales A of the priors of their standard deviations, `[K]`."""

    @classmethod
    def of(cls, chain: Chain) -> list[Self]:
        """Return the random effects of a chain, for each column of groups."""
        found = dict[int, list[tuple[int, int | None]]]()
        effects = dict[int, RandomEffects]()
        for i, link in enumerate(chain.links):
            trend, _ = trend_of(link.kernel)
            inputs = link.inputs.tolist()
            for effect in () if trend is None else trend.effects:
                column = inputs[effect.place]
                effects.setdefault(column, effect)
                for slope in (None, *(inputs[place] for place in effect.slopes)):
                    found.setdefault(column, []).append((i, slope))
        groupings = []
        for column, own in found.items():
            links, slopes = zip(*own, strict=True)
            wide = group_scales(chain.links[0])[EFFECT].expand(len(links))
            groupings.append(cls(column, effects[column], links, slopes, wide))
        return groupings

    def of_link(self, number: int) -> list[int]:
        """Return the positions of a link's effects among those of a group."""
        return [k for k, i in enumerate(self.links) if i == number]

    def numbers(self, rows: Tensor) -> Tensor:
        """Return the number of the group of each row of a table `[n, D]`, `[n]`; J and more for new ones."""
        return self.effects.numbers(rows[:, self.column])

    def design(self, own: Sequence[int], table: Tensor) -> Tensor:
        """Return what multiplies some effects in rows of a table `[S, n, D]`, `[S, E, n]`."""
        ones, slopes = torch.ones_like(table[..., 0]), [self.slopes[k] for k in own]
        return torch.stack([ones if slope is None else table[..., slope] for slope in slopes], dim=1)

    @property
    def n_numbers(self) -> int:
        """Number of standard normal numbers that `draw_precision` takes for a chain."""
        return n_numbers_of_precision(len(self.links), self.effects.n_groups)

    def start(self, n_chains: int) -> EffectsDraw:
        """Return the effects of S chains before the first draw, which are zero."""
        n_effects = len(self.links)
        values = self.wide.new_zeros(n_chains, n_effects, self.effects.n_groups)
        return EffectsDraw(values, torch.eye(n_effects).to(values).expand(n_chains, -1, -1) / EFFECTS)

    def draw_precision(self, drawn: EffectsDraw, normal: Tensor) -> EffectsDraw:
        """Draw the precisions Ω given the effects, with numbers `[S, n_numbers]`."""
        return drawn._replace(precision=draw_precision(drawn.values, drawn.precision, self.wide, normal))

    def prior_of(self, own: Sequence[int], drawn: EffectsDraw) -> tuple[Tensor, Tensor]:
        """Return the prior of some effects given the others: precisions `[S, E, E]`, shifts `[S, E, J]`."""
        others = [k for k in range(len(self.links)) if k not in own]
        rows = drawn.precision[:, list(own)]
        return rows[:, :, list(own)], -rows[:, :, others] @ drawn.values[:, others]


@dataclass(frozen=True)
class EffectsOffset:
    """What the random effects of known groups add to the function of a link; see `model.offsets`."""

    grouping: Grouping
    own: Sequence[int]
    """Positions of the link's effects among those of a group."""
    values: Tensor
    """Effects of all links on S paths, `[S, K, J]`."""

    def at(self, table: Tensor, columns: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return what is added at rows `[S, n, D]`; nothing in rows of other groups. See `Offset`."""
        numbers, n_groups = self.grouping.numbers(table[0]), self.values.shape[2]
        is_known = (numbers >= 0) & (numbers < n_groups)
        drawn = self.values[:, list(self.own)][..., numbers.clamp(0, n_groups - 1)] * is_known
        return added(self.grouping, self.own, drawn, table, columns)


def added(
    grouping: Grouping, own: Sequence[int], drawn: Tensor, table: Tensor, columns: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return what some effects, drawn for the groups of rows `[S, E, n]`, add there; see `Offset`."""
    offset, slopes = torch.zeros_like(table[..., 0]), table.new_zeros(*table.shape[:2], len(columns))
    for k, effect in zip(own, drawn.unbind(1), strict=True):
        column = grouping.slopes[k]
        if column is None:
            offset += effect
        elif column in columns:
            slopes[..., list(columns).index(column)] += effect
        else:
            offset += effect * table[..., column]
    return offset, slopes


def without_effects(chain: Chain) -> Chain:
    """Return a copy of a chain whose kernels have no random effects; the chain itself if there are none."""
    trends = [trend for trend, _ in (trend_of(link.kernel) for link in chain.links) if trend is not None]
    if not any(trend.effects for trend in trends):
        return chain
    chain, n_features = copy.deepcopy(chain), max(trend.n_others for trend in trends)
    with torch.no_grad(), local_parameters():
        for link in chain.links:
            trend, rest = trend_of(link.kernel)
            assert trend is not None  # as in all links of such a chain
            kept, place = _kept(trend, link.n_inducing, n_features)
            loc = link.u_loc.new_zeros(n_features + link.n_inducing)
            tril = torch.eye(len(loc)).to(loc)
            loc[place] = link.u_loc[kept]
            tril[place[:, None], place] = torch.linalg.cholesky(
                (link.u_scale_tril @ link.u_scale_tril.T)[kept][:, kept]
            )
            link.kernel = Sum(trend.without_effects(n_features), rest)
            link.u_loc, link.u_scale_tril = PyroParam(loc), PyroParam(tril, constraints.lower_cholesky)
    return chain


def with_effects(
    chain: Chain, functions: Sequence[Tensor], groupings: Sequence[Grouping], drawn: Sequence[EffectsDraw]
) -> list[Tensor]:
    """Return values of links whose kernels have random effects, `[S, M]`, given those `without_effects`."""
    if not groupings:
        return list(functions)
    found = []
    for i, (link, function) in enumerate(zip(chain.links, functions, strict=True)):
        trend, _ = trend_of(link.kernel)
        assert trend is not None
        kept, place = _kept(trend, link.n_inducing, function.shape[1] - link.n_inducing)
        values = function.new_zeros(len(function), link.n_values)
        values[:, kept] = function[:, place]
        number = iter(range(EFFECT, EFFECT + len(trend.sizes)))
        for effect in trend.effects:
            of = [grouping.column for grouping in groupings].index(int(link.inputs[effect.place]))
            own = drawn[of].values[:, groupings[of].of_link(i)]
            for each in own[:, :, list(effect.in_kernel)].unbind(1):
                here = (trend.groups == next(number)).to(values.device)
                values[:, : trend.n_features][:, here] = each / trend.spread.to(values)[here]
        found.append(values)
    return found


def _kept(trend: Trend, n_inducing: int, n_features: int) -> tuple[Tensor, Tensor]:
    """Return the positions of values that are no random effects, in a link and in one without these.

    The latter has `n_features`.
    """
    of_rest = torch.arange(n_inducing, device=trend.places.device)
    others = torch.arange(trend.n_others, device=trend.places.device)
    return torch.cat([others, trend.n_features + of_rest]), torch.cat([others, n_features + of_rest])


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
