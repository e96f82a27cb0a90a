"""Posterior predictive distribution of observed cells: replicates and log densities.

For imputation j each observed cell y is predicted as if it alone were missing in its completed row x_j:

    y_rep ~ p(y | f_j, x_j),      log p(y | f_j, x_j)

where f_j is the function that imputation j has drawn for the cell's link. What is new in the rows, such as
effects of a new group, is drawn given these. Missing cells are drawn from the same distribution, so that
posterior predictive checks of replicates apply to the imputations. Log densities may be added over the cells
of a column, but over columns only in a sequential chain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Normal

from pyro_mgp._support.keyed_noise import KeyedNoise
from pyro_mgp.data.cells import numbers_of
from pyro_mgp.data.codecs import ColumnCodec
from pyro_mgp.data.codecs.kinds import as_continuous
from pyro_mgp.data.column_spec import Kind, Label
from pyro_mgp.data.encoded_table import EncodedTable
from pyro_mgp.data.table import TableCodec
from pyro_mgp.model.chain import Chain
from pyro_mgp.model.conditional import Conditional
from pyro_mgp.model.likelihoods import Compound, Observation, Truncated, TwoPart
from pyro_mgp.model.local_parameters import local_parameters
from pyro_mgp.sampling.discrete_support import DiscreteSupport
from pyro_mgp.sampling.neighbours import Neighbours
from pyro_mgp.sampling.sampler import REPLICATE, Sampler

Numbers = NDArray[np.float64]

# Added to variances, which may be zero and divide.
_MIN_VARIANCE = 1e-12
# Rows compared with all reference rows at once: 100 MB for 10,000 of these and 20 columns.
_COMPARED_AT_ONCE = 500


@dataclass(frozen=True)
class Replicates:
    """Replicates and log densities of the n observed cells of a column under m imputations."""

    rows: NDArray[np.intp]  # positions of the cells' rows in the table, `[n]`
    observed: NDArray[Any]  # observed cells, decoded from the encoded table, `[n]`
    values: NDArray[Any]  # replicates, `[m, n]`, in the format of draws of missing cells; see `Imputations`
    log_density: Numbers  # log densities or probabilities, `[m, n]`, per unit of the column or second
    is_probability: bool  # true of a discrete support, levels, counts and rounded values


@dataclass(frozen=True)
class Variable:
    """Variable of the chain: a column with one link, or with several, such as a category."""

    codec: ColumnCodec  # codec of the column
    links: tuple[int, ...]  # numbers of its links in the chain
    columns: tuple[int, ...]  # indices of its encoded columns, in the order of their links
    compound: Compound | None  # levels of a category, or two parts, modelled one after the other
    of_no_column: bool  # whether its numbers are no cells of the table: of a target, or on another scale


def variables(
    chain: Chain, codec: TableCodec, target: ColumnCodec | None, on_other_scales: Collection[Label]
) -> list[Variable]:
    """Return the columns that the links of a chain predict, in its order."""
    found, groups = [], codec.groups
    of_compound = {i: compound for compound in chain.compounds for i in compound.links}
    for i, link in enumerate(chain.links):
        compound = of_compound.get(i)
        if compound is not None and i != compound.links[0]:
            continue
        links, columns = (compound.links, compound.columns) if compound else ((i,), (link.column,))
        if link.column < len(groups):
            own = codec.columns[groups[link.column]]
            found.append(Variable(own, links, columns, compound, own.name in on_other_scales))
        elif target is not None:  # its link is Gaussian whatever its dtype
            found.append(Variable(as_continuous(target), links, columns, None, True))
    return found


@dataclass(frozen=True)
class ObservedCells:
    """Observed cells of a table, with the sampler that predicts them."""

    sampler: Sampler  # sampler of the missing cells
    rows: EncodedTable  # encoded table
    variables: Sequence[Variable]  # columns with a link
    error_variances: Callable[[pd.DataFrame], dict[int, Tensor]]  # of a table's encoded columns, `[N]`
    names: Sequence[str]  # names of the D encoded columns
    reference_keys: Tensor | None  # keys of the training rows, in their original order, if available

    @torch.no_grad()
    def replicate(self, frame: pd.DataFrame, m: int, positions: NDArray[np.intp]) -> list[Replicates]:
        """Draw replicates of the observed cells in the n rows at `positions` under m imputations.

        Raises:
            ValueError: If the standard error of an observed cell is missing from the original table `frame`.
        """
        index, batches = torch.as_tensor(positions), list[list[Replicates]]()
        errors = {column: variances[index] for column, variances in self.error_variances(frame).items()}
        with local_parameters():
            for here, batch, filled in self.sampler.swept(self.rows[index], range(m)):
                own = {column: variances[here].to(filled) for column, variances in errors.items()}
                batches.append(list(self._of_batch(frame, batch, filled, positions[here], own)))
        return [_concatenate(of_variable) for of_variable in zip(*batches, strict=True)]

    def _of_batch(
        self,
        frame: pd.DataFrame,
        rows: EncodedTable,
        filled: Tensor,
        positions: NDArray[np.intp],
        errors: dict[int, Tensor],
    ) -> Iterator[Replicates]:
        """Replicate the observed cells of a batch of rows, filled on m paths, `[m, n, D]`."""
        sampler, links, imputations = self.sampler, self.sampler.chain.links, range(len(filled))
        cells = [rows.observed[:, link.column].nonzero()[:, 0] for link in links]
        near, keys = sampler.neighbours, self.reference_keys
        place = None if near is None else own_references(rows, sampler.chain, near, keys)
        start = sampler.starts(rows, imputations)
        predictive = sampler.predictive(rows, imputations, start, cells, place)
        sparse = [predictive(i, own, None) for i, own in enumerate(sampler.sparse(imputations))]
        conditionals = sampler.given_rows(sparse, [], filled, rows, imputations, sampler.chain.n_sweeps)
        noise = KeyedNoise(sampler.seed, rows.keys, imputations)
        for variable in self.variables:
            here = cells[variable.links[0]]
            paths = filled[:, here]
            predicted = [
                _Predicted.of(conditionals[i], paths, errors.get(links[i].column), here)
                for i in variable.links
            ]
            eps = noise.normal(REPLICATE, variable.links[-1], rows=here)
            observed = rows.values[here][:, list(variable.columns)]
            at = positions[here.cpu().numpy()]
            numbers = _in_own_units(variable, frame, at, observed)
            drawn, log_density = _replicate(variable, predicted, observed, eps, numbers)
            has_support = isinstance(predicted[0].observation, DiscreteSupport)
            in_table = np.argsort(variable.columns)
            cells_of, replicates = (
                variable.codec.decode(each.cpu().numpy()[..., in_table], has_support)
                for each in (observed, drawn)
            )
            is_probability = _is_discrete(variable.codec, predicted[0].observation) or variable.codec.step > 0
            yield Replicates(at, cells_of, replicates, log_density.cpu().numpy(), is_probability)


def own_references(rows: EncodedTable, chain: Chain, neighbours: Neighbours, keys: Tensor | None) -> Tensor:
    """Return the index of the reference row that is identical to each row, `[n]`; -1 for none.

    Without the keys of the training rows, a row is identified with a reference row that equals it in all
    observed cells, and misses the same cells of columns with a local GP.
    """
    if keys is not None:
        # Training rows are fitted in the order of their keys.
        ordered = np.sort(keys.cpu().numpy().view(np.uint64))[: len(neighbours.rows)]
        own = rows.keys.cpu().numpy().view(np.uint64)
        place = np.searchsorted(ordered, own).clip(max=len(ordered) - 1)
        return torch.as_tensor(np.where(ordered[place] == own, place, -1)).to(rows.keys.device)
    # The target is missing in all rows of a table to impute.
    pairs = enumerate(zip(chain.links, neighbours.links, strict=True))
    local = [i for i, (link, metrics) in pairs if metrics and rows.observed[:, link.column].any()]
    columns, observed = [chain.links[i].column for i in local], ~neighbours.residuals[local].isnan()
    parts = [rows.keys[:0]]
    for batch in torch.arange(len(rows)).split(_COMPARED_AT_ONCE):
        some = rows[batch]
        differs = (some.values[:, None] != neighbours.rows) & some.observed[:, None]
        same = ~differs.any(-1) & (some.observed[:, columns, None] == observed).all(1)
        parts.append(torch.where(same.any(1), same.int().argmax(1), -1))
    return torch.cat(parts)


@dataclass(frozen=True)
class _Predicted:
    """Predictive distribution of a link for c observed cells on m paths."""

    mean: Tensor  # mean of the function, `[m, c]`
    variance: Tensor  # variance `[m, c]`, with noise unless the observation model is one of the function
    observation: Observation | None  # observation model, or None for a Gaussian with these moments

    @classmethod
    def of(cls, conditional: Conditional, rows: Tensor, errors: Tensor | None, here: Tensor) -> _Predicted:
        """Compute the predictive distribution of cells `here` `[c]`, whose rows are `[m, c, D]`."""
        moments = conditional.moments(rows)
        mean, variance = moments.mean, moments.variance.expand_as(moments.mean)
        if conditional.observation is None or conditional.noisy:
            variance = variance + conditional.noise
        if errors is not None:
            variance = variance + errors[here]
        return cls(mean, variance + _MIN_VARIANCE, conditional.observation_at(moments))

    def draw(self, eps: Tensor) -> Tensor:
        """Draw observations from standard normal numbers, `[m, c]`."""
        if self.observation is None:
            return self.mean + self.variance.sqrt() * eps
        return self.observation.draw(self.mean, self.variance, torch.special.ndtr(eps))

    def expectation(self) -> Tensor:
        """Return the mean of the observations, `[m, c]`."""
        if self.observation is None:
            return self.mean
        return self.observation.expectation(self.mean, self.variance)

    def log_prob(self, cells: Tensor) -> Tensor:
        """Return the log density, or log probability if discrete, of standardised cells `[c]`, `[m, c]`."""
        if self.observation is None:
            return Normal(self.mean, self.variance.sqrt()).log_prob(cells)
        return self.observation.log_prob(cells.expand_as(self.mean), self.mean, self.variance)

    def log_between(self, low: Tensor, high: Tensor) -> Tensor:
        """Return the log probability `[m, c]` of the intervals between standardised numbers `[c]`."""
        observation = self.observation if isinstance(self.observation, Truncated) else Truncated()
        return observation.log_mass(low, high, self.mean, self.variance)


def _replicate(
    variable: Variable, predicted: Sequence[_Predicted], observed: Tensor, eps: Tensor, own: Numbers
) -> tuple[Tensor, Tensor]:
    """Return standardised replicates `[m, c, width]`, and log densities `[m, c]`, of cells in `own` units."""
    if variable.compound is None:
        (link,) = predicted
        return link.draw(eps)[..., None], _log_density(variable.codec, link, observed[:, 0], own)
    if isinstance(variable.compound, TwoPart):
        return _replicate_two_parts(variable, variable.compound, predicted, observed, eps, own)
    # The probability of a level is the product of those of all questions up to the first "yes".
    shares, total, asked = [], torch.zeros_like(eps), torch.ones_like(observed[:, 0], dtype=torch.bool)
    for link, answer in zip(predicted, observed.unbind(1), strict=False):  # the last level has no question
        shares.append(link.expectation())
        total = total + torch.where(asked, link.log_prob(answer), 0.0)
        asked = asked & (answer < 0)
    return variable.compound.draw(torch.stack(shares, dim=-1), torch.special.ndtr(eps)), total


def _replicate_two_parts(
    variable: Variable,
    compound: TwoPart,
    predicted: Sequence[_Predicted],
    observed: Tensor,
    eps: Tensor,
    own: Numbers,
) -> tuple[Tensor, Tensor]:
    """Return replicates of indicator and amount, and the probability of the bound or density of amounts."""
    indicator, amount = predicted
    shares = [indicator.log_prob(each.expand_as(observed[:, 0])) for each in (compound.off, compound.on)]
    # One number decides on both parts: its rest, given the part, is uniform again.
    uniform, of_off = torch.special.ndtr(eps), shares[0].exp()
    rest = (uniform / of_off).clamp(1e-12, 1 - 1e-12)
    drawn = torch.where(uniform < of_off, compound.off, compound.on)
    parts = compound.written([drawn, amount.draw(torch.special.ndtri(rest))])
    is_amount, codec = observed[:, 0] < 0, variable.codec.parts[1]
    amounts = np.where(is_amount.cpu().numpy(), own, codec.low)
    density = _log_density(codec, amount, observed[:, 1], amounts)
    total = torch.where(is_amount, shares[0] + density, shares[1])
    return torch.stack([parts[d] for d in compound.columns], dim=-1), total


def _log_density(codec: ColumnCodec, link: _Predicted, cells: Tensor, own: Numbers) -> Tensor:
    """Return the log density `[m, c]` of cells in the column's units, or the log probability if discrete."""
    step = codec.step
    if _is_discrete(codec, link.observation):
        return link.log_prob(cells)
    if step == 0:
        slope = np.zeros_like(own) if codec.warp is None else codec.warp.log_slope(own)
        log_density = link.log_prob(torch.as_tensor(_standardised(codec, own)).to(cells))
        return log_density + torch.as_tensor(slope - math.log(codec.scale[0])).to(cells)
    # The interval that is rounded to the cell, extended to infinity at the ends of the drawn range.
    own = np.rint(own / step) * step
    low, high = own - step / 2, own + step / 2
    if codec.kind is Kind.INTEGER or codec.warp is not None:
        first, last = codec.drawn_range
        low, high = np.where(own <= first, -np.inf, low), np.where(own >= last, np.inf, high)
    ends = np.sort(np.stack([_standardised(codec, low), _standardised(codec, high)]), axis=0)
    return link.log_between(*torch.as_tensor(ends).to(cells))


def _in_own_units(
    variable: Variable, frame: pd.DataFrame, rows: NDArray[np.intp], observed: Tensor
) -> Numbers:
    """Return observed cells `[c]` of a column of numbers or times in the units of the column."""
    # They come from the table if possible: encoding clamps transformed cells far beyond the training range.
    codec = variable.codec
    decoded = codec.in_own_units(observed.cpu().numpy())
    if variable.of_no_column or codec.levels is not None:
        return decoded
    given = numbers_of(frame[codec.name].iloc[rows])
    return np.where(np.isnan(given), decoded, given)


def _is_discrete(codec: ColumnCodec, observation: Observation | None) -> bool:
    """Return whether a link's observations are discrete, with a probability for each value."""
    if observation is None or isinstance(observation, Truncated):
        return False
    return isinstance(observation, DiscreteSupport) or codec.kind is not Kind.HEAVY_TAILED


def _standardised(codec: ColumnCodec, own: Numbers) -> Numbers:
    """Standardise numbers given in the column's units; infinite numbers stay infinite."""
    direction = own if codec.warp is None else own * codec.warp.spread
    return np.where(np.isinf(own), direction, codec.standardise(np.where(np.isinf(own), 0.0, own)))


def _concatenate(parts: Sequence[Replicates]) -> Replicates:
    """Concatenate the replicates of batches of rows."""
    names = ("rows", "observed", "values", "log_density")
    arrays = {name: np.concatenate([getattr(part, name) for part in parts], axis=-1) for name in names}
    return Replicates(**arrays, is_probability=parts[0].is_probability)
