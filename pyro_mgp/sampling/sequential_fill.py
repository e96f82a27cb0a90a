"""Sequential fill: missing cells of a row, drawn one after the other, from which sweeps start.

    x_j ~ p(x_j | x_K),      K: the observed columns of the row, and those drawn before column j

Each distribution is the linear trend of the joint Gaussian of the initial fill, plus a local GP of the
residuals at the nearest training rows N (see `local_gp`), both in the known columns alone:

    β = Σ_KK⁻¹ Σ_Kj,      m(x) = βᵀx_K + c_Kᵀ C_K⁻¹ (y_N - X_NK β)

The local GPs have lengthscales of their own, learnt with the patterns of known inputs of the rows that lack
the column, as far as these inputs are observed. Columns that they do not improve are drawn from the Gaussian,
columns with other observations from their sparse GPs, with inputs that are not yet known at a draw of the
Gaussian. Of levels and ordered values the mean gives the probabilities (linear probability model); of a level
given no earlier one the trend is constant.

A product of such distributions is a joint distribution. Full conditionals alone are not enough: where columns
nearly determine each other, such as dimensions that occur in few combinations, sweeps that redraw one cell at
a time do not leave a wrong combination from which they start, and neighbours are sought in the wrong place.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_mgp._support.keyed_noise import KeyedNoise
from pyro_mgp._support.tiles import evened, filled_up, whole_tiles
from pyro_mgp.data.encoded_table import EncodedTable
from pyro_mgp.model.chain import Chain, Noise
from pyro_mgp.model.conditional import Conditional, Moments
from pyro_mgp.model.likelihoods import Observation, Ordinal, Quantity
from pyro_mgp.model.link import Link
from pyro_mgp.sampling.discrete_support import is_nearest
from pyro_mgp.sampling.initial_fill import InitialFill
from pyro_mgp.sampling.local_gp import DECIMALS, LocalGPParams, LocalLink

# Entries of the [cells, P, P] matrices of a batch, and of the neighbourhoods of one: bounds of memory.
_ENTRIES_AT_ONCE, _KEPT_AT_ONCE = 2**22, 2**23
_LEAST_VARIANCE = 1e-6
# Rows times starts that are filled together.
_ROWS_AT_ONCE = 20_000
# Stream of keyed noise; `sampler.py` has the others.
_STREAM = 8


@dataclass(frozen=True)
class LinearTrend:
    """Linear function of a column's known inputs at each of c cells, from a joint Gaussian."""

    slopes: Tensor  # coefficients of the inputs, 0 if unknown, `[c, P]`
    variance: Tensor  # variance of the column given the known inputs, `[c]`

    @classmethod
    def of(
        cls,
        gaussian: InitialFill,
        columns: Tensor,
        column: int,
        known: Tensor,
        certain: Tensor | None = None,
    ) -> LinearTrend:
        """Regress a column on the known inputs (1, else 0) of each cell, `[c, P]`.

        Inputs that are `certain` to be known, Bool `[P]`, none by default, are eliminated once for all cells,
        whose time is then proportional to the third power of the number of the others.
        """
        patterns, place = known.unique(dim=0, return_inverse=True)
        among = gaussian.covariance[columns][:, columns]
        with_column = gaussian.covariance[columns, column]
        if certain is None or not certain.any():
            found = _slopes(among, with_column, patterns)
        else:
            first, rest = certain.nonzero()[:, 0], (~certain).nonzero()[:, 0]
            both = torch.cat([among[first][:, rest], with_column[first, None]], dim=1)
            solved = torch.cholesky_solve(both, torch.linalg.cholesky(among[first][:, first]))
            of_rest, alone = solved.tensor_split([len(rest)], dim=1)
            # What is left of covariances given the certain inputs.
            cross = among[rest][:, first]
            left = among[rest][:, rest] - cross @ of_rest, with_column[rest] - (cross @ alone)[:, 0]
            slopes = _slopes(*left, patterns[:, rest])
            whole = filled_up(torch.arange(len(slopes), device=slopes.device))
            found = torch.zeros_like(patterns)
            found[:, rest] = slopes
            found[:, first] = alone.T - (slopes[whole] @ of_rest.T)[: len(slopes)]
        variance = gaussian.covariance[column, column] - evened(found * with_column).sum(1)
        return cls(found[place], variance.clamp(min=_LEAST_VARIANCE)[place])


def _slopes(among: Tensor, with_column: Tensor, patterns: Tensor) -> Tensor:
    """Return coefficients of the known inputs (1, else 0) of each of n patterns, `[n, P]`.

    Takes covariances among all inputs, `[P, P]`, and with the column, `[P]`.
    """
    if not len(with_column):
        return torch.zeros_like(patterns)
    # Padded to an even width, since rounding errors must not depend on the number of cells.
    among, width = evened(evened(among).mT), len(with_column)
    with_column, slopes = evened(with_column), []
    for some in evened(patterns).split(max(1, _ENTRIES_AT_ONCE // len(with_column) ** 2)):
        # Unknown inputs have the rows and columns of an identity matrix.
        covariance = some[:, :, None] * among * some[:, None, :] + torch.diag_embed(1 - some)
        factor = torch.linalg.cholesky(covariance)
        slopes.append(torch.cholesky_solve((some * with_column)[..., None], factor)[:, :width, 0])
    return torch.cat(slopes)


@dataclass(frozen=True)
class KnownInputsConditional(Conditional):
    """Predictive distribution of a column at c cells, given those of its inputs that are known."""

    column: int  # encoded column
    columns: Tensor  # encoded columns that are the inputs, `[P]`
    centre: Tensor  # means of all encoded columns, `[D]`
    known: Tensor  # 1 for known inputs, else 0, `[c, P]`
    is_drawn: Tensor  # whether some known inputs were drawn, and may differ between paths, Bool `[c]`
    trend: LinearTrend  # linear trend of the cells
    local: LocalLink | None  # local GP of the residuals, in columns minus their means; None for none
    own: Tensor | None  # reference rows that the cells' rows are, `[c]`, -1 for none; see `LocalLink.nearest`

    def moments(self, rows: Tensor) -> Moments:
        """Return the moments of the cells' observations on S paths, given the cells' rows `[S, c, D]`."""
        centred = rows - self.centre
        mean = (centred[..., self.columns] * self.trend.slopes).sum(-1) + self.centre[self.column]
        variance = self.trend.variance.expand_as(mean)
        if self.local is None:
            return Moments(mean, variance)
        variance, counts = variance.clone(), None
        if self.local.is_value is not None:
            counts = variance.new_zeros(*variance.shape, self.local.is_value.shape[1])
        for is_drawn in (False, True):
            # Neighbours of cells none of whose inputs was drawn are the same on all paths. Cells without
            # any known input have no neighbours.
            cells = filled_up(((self.is_drawn == is_drawn) & self.known.any(1)).nonzero()[:, 0])
            for here in cells.split(self._cells_at_once(len(rows) if is_drawn else 1)):
                some = centred[:, here] if is_drawn else centred[:1, here]
                at = self._local_moments(self.local, some, here)
                mean[:, here] = mean[:, here] + at.mean
                variance[:, here] = at.variance.expand(len(rows), -1)
                if counts is not None and at.counts is not None:
                    counts[:, here] = at.counts
        return Moments(mean, variance, counts=counts)

    def _local_moments(self, local: LocalLink, rows: Tensor, here: Tensor) -> Moments:
        """Return the moments of the local GP at cells `here` `[n]` with rows `[S, n, D]`."""
        n_paths = len(rows)
        known, slopes = (each[here].repeat(n_paths, 1) for each in (self.known, self.trend.slopes))
        own, flat = None if self.own is None else self.own[here].repeat(n_paths), rows.flatten(0, 1)
        nearest = local.nearest(flat.round(decimals=DECIMALS), own, known)
        neighbourhood = local.gather(nearest, known, slopes)
        at = local.condition(neighbourhood).moments(flat[None])
        counts = None if at.counts is None else at.counts.unflatten(1, (n_paths, -1))[0]
        return Moments(at.mean.view(n_paths, -1), at.variance.view(n_paths, -1), counts=counts)

    def _cells_at_once(self, n_paths: int) -> int:
        k = 1 if self.local is None else self.local.n_neighbours
        return whole_tiles(_KEPT_AT_ONCE // (n_paths * k * (k + len(self.columns))))


@dataclass(frozen=True)
class KnownInputsOfLevels(KnownInputsConditional):
    """Predictive distribution of ordered values, or of a level: on the two values next to its mean."""

    values: Tensor  # values that a cell can have, ascending, `[J]`

    def draw(self, moments: Moments, eps: Tensor, limits: Tensor | None = None) -> Tensor:
        """Draw values of cells with these moments, from standard normal numbers, `[S, n]`."""
        low, high, share = self._next_to(moments.mean)
        return torch.where(torch.special.ndtr(-eps) < share, high, low)

    def expectation(self, moments: Moments, of: Quantity | None = None) -> Tensor:
        """Return the mean of the values, or of a function of them, `[S, n]`."""
        low, high, share = self._next_to(moments.mean)
        if of is not None:
            low, high = of(low), of(high)
        return low + share * (high - low)

    def _next_to(self, mean: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the values below and above means, and the probability of the latter."""
        above = torch.searchsorted(self.values, mean.contiguous()).clamp(1, len(self.values) - 1)
        low, high = self.values[above - 1], self.values[above]
        return low, high, ((mean - low) / (high - low)).clamp(0, 1)


@dataclass(frozen=True)
class SequentialFill:
    """Joint distribution of the missing cells of a row, as a product of conditional distributions."""

    gaussian: InitialFill  # joint Gaussian of all encoded columns
    links: Sequence[LocalLink | None]  # local GP of each link, in columns minus their means; None for none
    means: Tensor  # mean of each link's column in the rows from which it learns, `[L]`

    @classmethod
    def of(
        cls,
        chain: Chain,
        gaussian: InitialFill,
        rows: Tensor,
        learnt_from: Tensor,
        params: Sequence[LocalGPParams | None],
        n_neighbours: int,
        values: Sequence[Tensor | None],
    ) -> SequentialFill:
        """Build the fill from reference rows `[R, D]` and parameters of links, None without a local GP.

        `learnt_from`, Bool `[L, R]`, says from which rows each link learns. `values` of each link are those
        of its discrete support, `[J]`; None without one.
        """
        centred, links, means = rows - gaussian.mean, list[LocalLink | None](), list[Tensor]()
        for link, here, own, support in zip(chain.links, learnt_from, params, values, strict=True):
            cells, mean = rows[:, link.column], gaussian.mean[link.column]
            if link.unless:  # rows without earlier levels have another mean
                mean = (cells * here).sum() / here.sum().clamp(min=1)
            means.append(mean)
            if own is None:
                links.append(None)
                continue
            is_value = is_nearest(support if link.is_gaussian else None, cells)
            residuals = (cells - mean).where(here, torch.nan)
            links.append(LocalLink.of(link.inputs, centred, residuals, n_neighbours, own, is_value))
        return cls(gaussian, links, torch.stack(means))

    @property
    def params(self) -> list[LocalGPParams | None]:
        """Hyperparameters of the local GP of each link, None for none."""
        return [None if local is None else local.params for local in self.links]

    def trend(self, chain: Chain, i: int, known: Tensor) -> LinearTrend:
        """Return the trend of the i-th link at cells whose known inputs are 1, others 0, `[c, P]`.

        The joint Gaussian has the relations of levels to other columns, but not those of a level given that
        no earlier one applies: the trend of such a link is constant.
        """
        link, likelihood = chain.links[i], chain.links[i].likelihood
        if not (link.unless and isinstance(likelihood, Ordinal)):
            certain = certain_inputs(chain, link)
            return LinearTrend.of(self.gaussian, link.inputs, link.column, known, certain)
        off, on = likelihood.values[0], likelihood.values[-1]
        variance = (on - self.means[i]) * (self.means[i] - off)
        return LinearTrend(torch.zeros_like(known), variance.clamp(min=_LEAST_VARIANCE).expand(len(known)))

    def starts(
        self,
        chain: Chain,
        marginals: Sequence[Conditional],
        observations: Sequence[Observation | None],
        rows: EncodedTable,
        seed: int,
        numbers: Sequence[int],
        own: Tensor | None = None,
    ) -> Tensor:
        """Return the starts with S numbers of rows, `[S, n, D]`, drawn by keyed noise; see `draw`."""
        filled = self.gaussian.draw(rows, seed, numbers)
        # In batches, whose trends of all links fit into memory.
        for here in torch.arange(len(rows)).split(whole_tiles(_ROWS_AT_ONCE // len(numbers))):
            observed, noise = rows.observed[here], KeyedNoise(seed, rows.keys[here], numbers)
            normal = functools.partial(_normal, noise)
            holes = [filled_up(cells) for cells in chain.holes(rows.values[here], observed)]
            known = None if own is None else own[here]
            given = chain, marginals, observations, filled[:, here], observed, normal, holes
            filled[:, here] = self.draw(*given, known)
        return filled

    def draw(
        self,
        chain: Chain,
        marginals: Sequence[Conditional],
        observations: Sequence[Observation | None],
        start: Tensor,
        observed: Tensor,
        noise: Noise,
        holes: Sequence[Tensor],
        own: Tensor | None = None,
    ) -> Tensor:
        """Return tables `[S, n, D]` with their missing cells drawn, given draws of the joint Gaussian.

        `marginals` are the links at the means of q(u), `observations` their observation models, None for
        none, `observed` is Bool `[n, D]`, `holes` has the rows of each link's missing cells, and `own` `[n]`
        the reference rows that rows are, -1 for none.
        """
        # A sweep visits link after link, as the chain rule does.
        found = self._conditionals(chain, marginals, observed, holes, own)
        pairs = zip(chain.links, found, observations, strict=True)
        conditionals = [
            own.observed_as(observation) if link.is_gaussian else own for link, own, observation in pairs
        ]
        return chain.sweep(conditionals, start, observed, noise, holes)[0]

    def _conditionals(
        self,
        chain: Chain,
        marginals: Sequence[Conditional],
        observed: Tensor,
        holes: Sequence[Tensor],
        own: Tensor | None,
    ) -> list[Conditional]:
        """Return the predictive distribution of each link given the inputs known when it is visited."""
        found = list[Conditional]()
        inputs = known_inputs(chain, observed, holes)
        links = zip(chain.links, marginals, self.links, holes, inputs, strict=True)
        for i, (link, marginal, local, here, known) in enumerate(links):
            if not link.is_gaussian and local is None:
                found.append(marginal)
                continue
            is_drawn, known = (known & ~observed[here][:, link.inputs]).any(1), known.to(self.gaussian.mean)
            centre = self.gaussian.mean.clone()
            centre[link.column] = self.means[i]
            given = (
                torch.zeros_like(marginal.noise), link.column, link.inputs, centre, known, is_drawn,
                self.trend(chain, i, known), local, None if own is None else own[here],
            )  # fmt: skip
            if isinstance(link.likelihood, Ordinal):
                found.append(KnownInputsOfLevels(*given, link.likelihood.values))
            else:
                found.append(KnownInputsConditional(*given))
        return found


def known_inputs(chain: Chain, observed: Tensor, holes: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield for each link which inputs of its cells are known when it is visited, Bool `[c, P]`."""
    known = observed.clone()
    for i, (link, here) in enumerate(zip(chain.links, holes, strict=True)):
        yield known[here][:, link.inputs]
        known[:, list(chain.columns_from(i))] = True


def certain_inputs(chain: Chain, link: Link) -> Tensor:
    """Return which inputs of a link have no link, and are therefore known at all cells, Bool `[P]`."""
    return ~torch.isin(link.inputs, link.inputs.new_tensor(chain.linked_columns))


def _normal(noise: KeyedNoise, link: int, cells: Tensor) -> Tensor:
    """Return standard normal numbers of a link's cells in some rows, `[S, n]`."""
    return noise.normal(_STREAM, link, rows=cells)
