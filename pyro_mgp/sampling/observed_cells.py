"""Observed cells under the posterior that imputations are drawn from: replicates, and log densities.

For imputation j each observed cell y is predicted as if it alone were missing in its completed row x_j:

    y_rep ~ p(y | f_j, x_j),      log p(y | f_j, x_j)

with f_j the function that imputation j has drawn for the cell's link. That is the distribution from which
missing cells get their draws: the sparse GP's residual variance and the observation noise, or what residuals
of neighbours say in their place (the cell's own row is none of them), among few values, between bounds, of
counts or levels, as the column asks for. So checks of replicates speak about the imputations.

The function has seen the cell in training. What it says of a cell that it had not seen, importance sampling
finds (PSIS-LOO: Vehtari, Gelman and Gabry, Statistics and Computing 27:1413-1432, 2017).

Links that see all other columns have conditional log densities, to be added up over cells, but not over
columns. Those that see earlier columns only predict from these, without what later ones know: the log
densities of a row's cells add up to that of the row.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Normal

from pyro_mgp._support.keyed_noise import KeyedNoise
from pyro_mgp.data.cells import numbers_of
from pyro_mgp.data.column import ColumnCodec
from pyro_mgp.data.column_spec import Kind
from pyro_mgp.data.encoded_table import EncodedTable
from pyro_mgp.data.table import TableCodec
from pyro_mgp.model.chain import Chain
from pyro_mgp.model.conditional import Conditional, Observing, observed_as
from pyro_mgp.model.likelihoods import Category, Likelihood, Observation, Truncated, log_between
from pyro_mgp.model.local_parameters import local_parameters
from pyro_mgp.sampling.discrete_support import DiscreteSupport, nearest_value
from pyro_mgp.sampling.local_gp import Neighbours, corrected
from pyro_mgp.sampling.sampler import REPLICATE, Sampler

Numbers = NDArray[np.float64]

# Keeps a vanishing variance a divisor, as in draws.
_LEAST_VARIANCE = 1e-12
# Rows that are compared with all reference rows together: 100 MB for 10,000 of these and 20 columns.
_COMPARED_AT_ONCE = 500


@dataclass(frozen=True)
class Replicates:
    """What m imputations say of the n observed cells of a column."""

    rows: NDArray[np.intp]
    """Positions of the cells' rows in the table, `[n]`."""
    observed: NDArray[Any]
    """The cells, `[n]`, as they come back from the encoded table."""
    values: NDArray[Any]
    """A replicate of each, `[m, n]`, as draws of missing cells are held; see `Imputations`."""
    log_density: NDArray[np.float64]
    """`[m, n]`, per unit of the column (of times, per second); see `is_probability`."""
    is_probability: bool
    """Whether the latter are log probabilities: of values, levels, counts, and of what is rounded (integers,
    and times that were whole days, hours, minutes or seconds)."""


@dataclass(frozen=True)
class Variable:
    """A column with a link, or links of its levels."""

    codec: ColumnCodec
    links: tuple[int, ...]
    """Numbers of its links in the chain."""
    columns: tuple[int, ...]
    """Its encoded columns."""
    category: Category | None
    """Its levels, if they are asked for one after the other."""
    is_target: bool
    """Whether it is the target of `fit(X, y)`, which is no column of the table."""


def variables(chain: Chain, codec: TableCodec, target: ColumnCodec | None) -> list[Variable]:
    """The columns with a link, in the order of the chain."""
    found, groups = [], codec.groups
    of_category = {i: category for category in chain.categories for i in category.links}
    for i, link in enumerate(chain.links):
        category = of_category.get(i)
        if link.column == len(groups) and target is not None:
            # The link of a target is Gaussian whatever its dtype.
            number = dataclasses.replace(target, kind=Kind.CONTINUOUS, two_valued=False)
            found.append(Variable(number, (i,), (link.column,), None, True))
        elif category is None:
            found.append(Variable(codec.columns[groups[link.column]], (i,), (link.column,), None, False))
        elif i == category.links[0]:
            own = codec.columns[groups[link.column]]
            found.append(Variable(own, category.links, category.columns, category, False))
    return found


@dataclass(frozen=True)
class ObservedCells:
    """The observed cells of a table, and the chain that imputes it."""

    sampler: Sampler
    """Who draws the missing ones."""
    rows: EncodedTable
    """The table, encoded."""
    variables: Sequence[Variable]
    """Its columns with a link."""
    known_variances: Callable[[pd.DataFrame], Sequence[Tensor | None]]
    """From the table to variances of its cells' errors of measurement for each link, `[N]`, standardised;
    None if there are none."""
    names: Sequence[str]
    """Of the D encoded columns."""
    reference_keys: Tensor | None
    """Keys of the training table, as it came, in which neighbours are looked for; None if it is not known."""

    @torch.no_grad()
    def replicate(self, frame: pd.DataFrame, m: int, positions: NDArray[np.intp]) -> list[Replicates]:
        """What the first m imputations say of observed cells, one entry per variable.

        Args:
            frame: The table as it came.
            m: Number of imputations.
            positions: Rows to look at, `[n]`.

        Raises:
            ValueError: If a cell should have a known error of measurement, and has none.
        """
        rows, parts = self.rows[torch.as_tensor(positions)], list[list[Replicates]]()
        known = self.known_variances(frame)
        known = [None if each is None else each[torch.as_tensor(positions)] for each in known]
        with local_parameters():
            for here, batch, filled in self.sampler.swept(rows, range(m)):
                errors = [None if each is None else each[here].to(filled) for each in known]
                parts.append(list(self._of_batch(frame, batch, filled, positions[here], errors)))
        if not parts:
            return []
        return [_joined(of_variable) for of_variable in zip(*parts, strict=True)]

    def _of_batch(
        self,
        frame: pd.DataFrame,
        rows: EncodedTable,
        filled: Tensor,
        positions: NDArray[np.intp],
        errors: Sequence[Tensor | None],
    ) -> Iterator[Replicates]:
        """The same of some rows, given as m paths have filled them, `[m, n, D]`."""
        chain, imputations = self.sampler.chain, range(len(filled))
        cells = [rows.observed[:, link.column].nonzero()[:, 0] for link in chain.links]
        conditionals = self._conditionals(rows, cells, imputations)
        noise = KeyedNoise(self.sampler.seed, rows.keys, imputations)
        for variable in self.variables:
            here = cells[variable.links[0]]
            seen = filled[:, here]
            predicted = [_Predicted.of(conditionals[i], seen, errors[i], here) for i in variable.links]
            eps = noise.normal(REPLICATE, variable.links[-1], rows=here)
            known = rows.values[here][:, list(variable.columns)]
            at = positions[here.cpu().numpy()]
            drawn, log_density = _replicated(
                variable, predicted, known, eps, _own(variable, frame, at, known)
            )
            few = isinstance(predicted[0].observation, DiscreteSupport)
            yield Replicates(
                at,
                variable.codec.decode(known.cpu().numpy(), few),
                variable.codec.decode(drawn.cpu().numpy(), few),
                log_density.cpu().numpy(),
                _is_probability(variable.codec, predicted[0].observation),
            )

    def _conditionals(
        self, rows: EncodedTable, cells: Sequence[Tensor], imputations: Sequence[int]
    ) -> Sequence[Conditional]:
        """What the links say of their cells in these rows, as `Sampler.draws` has it of missing ones."""
        sampler = self.sampler
        conditionals = sampler.sparse(imputations)
        if sampler.neighbours is not None:
            marginals, point = sampler.factorised.marginals(sampler.chain), sampler.start.expected(rows)
            own = own_references(rows, sampler.chain, sampler.neighbours, self.reference_keys)
            holes = sampler.chain.holes(rows.observed)
            sampler.neighbours.settle(sampler.chain, marginals, point, holes, own)
            nearby = sampler.neighbours.near(point, cells, imputations, own)
            if sampler.joint:
                nearby = sampler.neighbours.given(nearby, conditionals, marginals)
            conditionals = corrected(conditionals, nearby)
        return observed_as(conditionals, sampler.observations) if sampler.observations else conditionals


def own_references(rows: EncodedTable, chain: Chain, neighbours: Neighbours, keys: Tensor | None) -> Tensor:
    """Which reference row each row is, `[n]`, -1 if none.

    Args:
        rows: The rows.
        chain: The chain.
        neighbours: The reference rows.
        keys: Those of the training table as it came. If they are not known, rows count as the same that are
            equal where the given one is observed, if the same cells of columns with neighbours are.
    """
    if keys is not None:
        # In the order of fit.
        ordered = np.sort(keys.cpu().numpy().view(np.uint64))[: len(neighbours.rows)]
        own = rows.keys.cpu().numpy().view(np.uint64)
        place = np.searchsorted(ordered, own).clip(max=len(ordered) - 1)
        return torch.as_tensor(np.where(ordered[place] == own, place, -1)).to(rows.keys.device)
    pairs = zip(chain.links, neighbours.residuals, neighbours.characters, strict=True)
    # Of new rows the target is never known.
    asked = [(link.column, ~left.isnan()) for link, left, characters in pairs if characters]
    asked = [(column, known) for column, known in asked if rows.observed[:, column].any()]
    parts = [rows.keys[:0]]
    for batch in torch.arange(len(rows)).split(_COMPARED_AT_ONCE):
        some = rows[batch]
        differs = (some.values[:, None] != neighbours.rows) & some.observed[:, None]
        same = ~differs.any(-1)
        for column, known in asked:
            same &= some.observed[:, column, None] == known
        parts.append(torch.where(same.any(1), same.int().argmax(1), -1))
    return torch.cat(parts)


# ---------------------------------------------------------------------------------------------- densities


@dataclass(frozen=True)
class _Predicted:
    """What a link says of c observed cells on m paths."""

    mean: Tensor
    """`[m, c]`."""
    variance: Tensor
    """`[m, c]`, noise included where the observation is not made of the function alone."""
    observation: Observation | None
    """How they become an observation; None if they are its moments."""

    @classmethod
    def of(cls, conditional: Conditional, rows: Tensor, errors: Tensor | None, here: Tensor) -> _Predicted:
        """What a link says of cells.

        Args:
            conditional: The link.
            rows: Their rows as m paths have filled them, `[m, c, D]`.
            errors: Variances of errors of measurement in all rows, if there are any.
            here: Numbers of the cells' rows among these, `[c]`.
        """
        moments = conditional.moments(rows)
        mean, variance = moments.mean, moments.variance.expand_as(moments.mean)
        observation = conditional.observation if isinstance(conditional, Observing) else None
        if not isinstance(conditional, Observing) or conditional.noisy:
            variance = variance + conditional.noise
        if errors is not None:
            variance = variance + errors[here]
        return cls(mean, variance + _LEAST_VARIANCE, observation)

    def draw(self, eps: Tensor) -> Tensor:
        """Observations by standard normal numbers, `[m, c]`."""
        if self.observation is None:
            return self.mean + self.variance.sqrt() * eps
        return self.observation.draw(self.mean, self.variance, torch.special.ndtr(eps))

    def expectation(self) -> Tensor:
        """Means of observations, `[m, c]`."""
        if self.observation is None:
            return self.mean
        return self.observation.expectation(self.mean, self.variance)

    def log_prob(self, cells: Tensor) -> Tensor:
        """Log density of standardised cells `[c]`, or log probability if they are values, `[m, c]`."""
        if isinstance(self.observation, DiscreteSupport):
            chosen = nearest_value(self.observation.values, cells).expand_as(self.mean)
            of_values = self.observation.log_probabilities(self.mean, self.variance)
            return of_values.gather(-1, chosen[..., None])[..., 0]
        if _is_likelihood(self.observation):
            return self.observation(self.mean, self.variance).predictive_log_prob(cells.expand_as(self.mean))
        return Normal(self.mean, self.variance.sqrt()).log_prob(cells) - self._log_mass(*self._ends)

    def log_between(self, low: Tensor, high: Tensor) -> Tensor:
        """Log probability, `[m, c]`, of what lies between standardised numbers `[c]`."""
        ends = self._ends
        return self._log_mass(low.clamp(*ends), high.clamp(*ends)) - self._log_mass(*ends)

    @property
    def _ends(self) -> tuple[float, float]:
        """What observations lie between."""
        bounds = self.observation
        return (bounds.low, bounds.high) if isinstance(bounds, Truncated) else (-math.inf, math.inf)

    def _log_mass(self, low: Tensor | float, high: Tensor | float) -> Tensor:
        """The log probability that the normal distribution gives to an interval, `[m, c]`."""
        spread = self.variance.sqrt()
        return log_between((low - self.mean) / spread, (high - self.mean) / spread)


def _replicated(
    variable: Variable, predicted: Sequence[_Predicted], known: Tensor, eps: Tensor, own: Numbers
) -> tuple[Tensor, Tensor]:
    """Replicates of cells, `[m, c, width]`, standardised, and the cells' log densities, `[m, c]`.

    Args:
        variable: The column.
        predicted: What its links say.
        known: The cells, `[c, width]`, standardised.
        eps: Standard normal numbers, `[m, c]`.
        own: The cells in the column's own units, `[c]`.
    """
    if variable.category is not None:
        return _replicated_levels(variable.category, predicted, known, eps)
    (link,) = predicted
    return link.draw(eps)[..., None], _log_density(variable.codec, link, known[:, 0], own)


def _replicated_levels(
    category: Category, predicted: Sequence[_Predicted], known: Tensor, eps: Tensor
) -> tuple[Tensor, Tensor]:
    """The same of levels: the answers to all questions up to the first "yes" multiply."""
    shares, total, asked = [], torch.zeros_like(eps), torch.ones_like(known[:, 0], dtype=torch.bool)
    for link, answer in zip(predicted, known.unbind(1), strict=False):  # the last level has no question
        shares.append(link.expectation())
        total = total + torch.where(asked, link.log_prob(answer), 0.0)
        asked = asked & (answer < 0)
    return category.draw(torch.stack(shares, dim=-1), torch.special.ndtr(eps)), total


def _log_density(codec: ColumnCodec, link: _Predicted, cells: Tensor, own: Numbers) -> Tensor:
    """Log density of cells `[c]` in the column's own units, `[m, c]`, or log probability where it has one."""
    step = _step(codec)
    if _is_of_values(codec, link.observation):
        return link.log_prob(cells)
    if step == 0:
        slope = np.zeros_like(own) if codec.warp is None else codec.warp.log_slope(own)
        log_density = link.log_prob(torch.as_tensor(_standardised(codec, own)).to(cells))
        return log_density + torch.as_tensor(slope - math.log(codec.scale[0])).to(cells)
    # All that is rounded to the cell, and at the ends of what is drawn all beyond.
    own = np.rint(own / step) * step
    low, high = own - step / 2, own + step / 2
    if codec.kind is Kind.INTEGER or codec.warp is not None:
        first, last = codec.drawn_range
        low, high = np.where(own <= first, -np.inf, low), np.where(own >= last, np.inf, high)
    ends = np.sort(np.stack([_standardised(codec, low), _standardised(codec, high)]), axis=0)
    return link.log_between(*torch.as_tensor(ends).to(cells))


def _own(variable: Variable, frame: pd.DataFrame, rows: NDArray[np.intp], known: Tensor) -> Numbers:
    """Cells of a column of numbers or times in its own units, `[c]`.

    Those of the table, since bent cells far beyond those of the fit are encoded nearer to these; else, and of
    what is no observation, what the encoded ones say.
    """
    codec, bent = variable.codec, known[:, 0].cpu().numpy() * variable.codec.scale[0] + variable.codec.mean[0]
    decoded = np.asarray(bent if codec.warp is None else codec.warp.backward(bent))
    if variable.is_target or codec.levels is not None:
        return decoded
    given = numbers_of(frame[codec.name].iloc[rows])
    return np.where(np.isnan(given), decoded, given)


def _step(codec: ColumnCodec) -> float:
    """What draws of a column are rounded to multiples of, in its own units; 0 if to nothing."""
    return 1.0 if codec.kind is Kind.INTEGER else codec.step


def _is_of_values(codec: ColumnCodec, observation: Observation | None) -> bool:
    """Whether a link's observations are values, that each have a probability."""
    return isinstance(observation, DiscreteSupport) or (
        _is_likelihood(observation) and codec.kind is not Kind.HEAVY_TAILED
    )


def _is_probability(codec: ColumnCodec, observation: Observation | None) -> bool:
    return _is_of_values(codec, observation) or _step(codec) > 0


def _is_likelihood(observation: Observation | None) -> TypeGuard[Likelihood]:
    """Whether an observation is a link's own likelihood, of which there is a log density."""
    return observation is not None and not isinstance(observation, DiscreteSupport | Truncated)


def _standardised(codec: ColumnCodec, own: Numbers) -> Numbers:
    """Numbers in own units as cells; infinite ends stay infinite."""
    finite, direction = np.where(np.isinf(own), 0.0, own), own
    if codec.warp is not None:
        finite, direction = codec.warp.forward(finite), own * codec.warp.spread
    return np.where(np.isinf(own), direction, (finite - codec.mean[0]) / codec.scale[0])


def _joined(parts: Sequence[Replicates]) -> Replicates:
    """Replicates of batches of rows as one."""

    def of_all(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(part, name) for part in parts], axis=-1)

    return Replicates(
        of_all("rows"), of_all("observed"), of_all("values"), of_all("log_density"), parts[0].is_probability
    )
