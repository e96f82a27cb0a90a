"""Refinement of a trained chain: local GPs, and discrete supports.

First the fill is learnt from which sweeps start (see `sequential_fill`). The missing cells of the training
rows are filled twice: with means of its draws, where the rows serve as neighbours, and with a draw, where
the rows are queried. Each link learns ℓ and η in two rounds, the second on cells that the local GPs of the
first have filled, and then selects the ν, a₀ and bound on innovations, that best predict a sample of its
observed cells. Each of these cells is excluded from its own neighbourhood and from the sparse GP: with
leverage h = φᵀSφ/s², its leave-one-out residual is e/(1 - h). Residuals of neighbours are still those of the
sparse GP that has seen the cell, which understates what the local GP adds, by 1 to 4 % of the CRPS in three
small tables. With exact ones imputations are no better: CRPS 1.00 ± .01 in 30 cells of six tables. Ordered
values and indicators of levels have residuals from their expectations, and a regression turns predictions
into probabilities (`discrete_support`). Links that the local GP does not clearly improve get none. Finally
some observed cells are held out and imputed by the complete sampler. The inflation τ is the one under which
their values are most probable.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pyro_mgp.data.encoded_table import EncodedTable
from pyro_mgp.inference.closed_form_rows import site_parameters
from pyro_mgp.inference.gibbs_chains import burn_in
from pyro_mgp.model.chain import Noise
from pyro_mgp.model.conditional import Moments
from pyro_mgp.model.kernels import lengthscales
from pyro_mgp.model.likelihoods import Contaminated, Observation, Ordinal, Truncated
from pyro_mgp.model.likelihoods.levels import nearest_value
from pyro_mgp.model.limited_cells import clamped
from pyro_mgp.model.link import Link
from pyro_mgp.model.local_parameters import local_parameters
from pyro_mgp.model.sequential_chain import SequentialChain
from pyro_mgp.sampling.discrete_support import DiscreteSupport
from pyro_mgp.sampling.fitted_model import FittedModel
from pyro_mgp.sampling.local_gp import (
    MAX_INPUTS,
    MEDIAN_OF_SQUARE,
    MIN_SCALE,
    LocalGPParams,
    LocalLink,
    Neighbourhood,
    ParamsPerLink,
)
from pyro_mgp.sampling.local_gp_metric import LeaveOneOut, crps, learn_metrics
from pyro_mgp.sampling.neighbours import (
    Conditionals,
    Neighbours,
    add_local_gp,
    fill_sparse_means,
    log_levels,
    may_be_local,
)
from pyro_mgp.sampling.sampler import Sampler
from pyro_mgp.sampling.sampler_cache import SamplerCache
from pyro_mgp.sampling.sequential_fill import SequentialFill, known_inputs

MAX_ROWS = 10_000
"""Largest number of reference rows; more slow down every draw and hardly improve it."""
# Most links of a category whose links get local GPs. Each takes as long as a column of numbers: with 59 links
# and 2,255 rows a fit took 240 s instead of 67 s.
_MOST_LINKS = 12
# Observed cells per neighbour below which a link gets no local GP.
_MIN_PER_NEIGHBOUR = 4
# Sweeps that converge to the means of the sparse GPs alone, and to draws from them.
_SWEEPS = 3
# Starting values: ℓ is the sparse GP's divided by the first and at most the second, η the third. Inputs that
# the sparse GP does not need may still tell which rows are near, and long lengthscales have no gradient.
_FIRST_SHARPNESS, _LONGEST_FIRST, _FIRST_NUGGET = 4.0, 3.0, 0.3
# Draws of the sequential fill whose means fill reference rows.
_DRAWS = 5
# Metrics of a link in tables of more than so many rows; smaller tables get one, to save time.
_METRICS, _SMALL = 4, 2000
# Candidates for the bound on innovations, ν, and a₀ as a share of the typical squared error.
_CUTS, _FREEDOMS, _AMPLITUDES = (None, 4.0), (1.0, 10.0), (0.1, 0.3, 1.0)
# Random cells by which candidates are scored, and those that the sparse GP predicts worst.
_N_SCORED, _N_WORST = 900, 100
# Values stored at a time for the neighbourhoods of these cells: 16 MB.
_KEPT_AT_ONCE = 2**21
# Most cells to which a discrete support is fitted, and chains that draw functions of a joint density for it.
_FITTED, _CHAINS = 2000, 4
# Standard errors by which the local GP must improve on the sparse GP alone.
_CLEARLY = 2.0
# Held-out cells: most rows, cells per row, fewest per column, and largest share of the observed cells.
_HELD_OUT_ROWS, _HELD_OUT_PER_ROW, _HELD_OUT_PER_COLUMN, _HELD_OUT_SHARE = 4000, 0.5, 30, 0.1
# Components of the predictive mixtures of held-out cells, with one metric and with several, and the most
# sweeps of a path that contribute. A mixture of fewer components is too narrow, which τ would compensate.
_COMPONENTS, _OF_SEVERAL, _COUNTED = 16, 24, 4
_INFLATIONS = tuple(1.1**step for step in range(-13, 18))
# Prior standard deviation of log τ.
_EXPECTED_INFLATION = 0.2
# Limits to the influence of a held-out cell: a negative log density in its standard deviations (that of a
# normal distribution at 4.7 of these, of a contaminated one at 15), and a probability of 0.001.
_FARTHEST = 12.0
_LEAST_LIKELY = math.log(1e-3)
# Largest leverage of a cell, and smallest standard deviation, where neighbours agree to the last digit.
_MAX_LEVERAGE, _TINY = 0.9, 1e-8


def refine(
    model: FittedModel,
    rows: EncodedTable,
    n_neighbours: int,
    values: Sequence[Tensor | None],
    completed: Tensor | None = None,
) -> FittedModel:
    """Estimate the local GPs and the discrete support of the links of a trained model that has none.

    Takes training rows on the chain's device, in random order, of which the first `MAX_ROWS` serve; the
    number of neighbours k, 0 for no local GPs; and the ascending values `[J]` of each link's column, None
    without a discrete support. The rows may have been `completed` by draws, `[n, D]`; otherwise they are
    drawn from the chain.
    """
    if n_neighbours == 0 and all(of_link is None for of_link in values):
        return model
    with torch.no_grad(), local_parameters():
        completed = None if completed is None else completed[:MAX_ROWS]
        fit = _Fit(model, rows[:MAX_ROWS], n_neighbours, values, completed)
        neighbours = fit.find_neighbours()
        supports = [fit.fit_support(i, neighbours) for i in range(len(values))]
        if neighbours is not None:
            counted = [support is not None and support.locality > 0 for support in supports]
            neighbours = fit.calibrate(neighbours.counting(counted), supports)
        return replace(model, neighbours=neighbours, discrete_support=supports)


class _Fit:
    """State of a refinement: rows with missing cells at means (`point`) and drawn (`drawn`), or completed."""

    def __init__(
        self,
        model: FittedModel,
        rows: EncodedTable,
        n_neighbours: int,
        values: Sequence[Tensor | None],
        completed: Tensor | None = None,
    ) -> None:
        self.model, self.rows, self.n_neighbours = model, rows, n_neighbours
        chain = self.chain = model.chain
        values = [
            link.likelihood.values if isinstance(link.likelihood, Ordinal) else own
            for link, own in zip(chain.links, values, strict=True)
        ]
        self.values = [None if of_link is None else of_link.to(rows.values) for of_link in values]
        self.generator = torch.Generator().manual_seed(model.seed)
        self.marginals: Conditionals = chain.conditionals()
        # The variance given the inducing values; that of the marginals includes the variance of q(u).
        self.given_u = chain.conditionals([link.u_loc[None] for link in chain.links])
        self.n_counted = min(_COUNTED, chain.n_sweeps - burn_in(chain.n_sweeps))
        self.n_metrics = _METRICS if len(rows) > _SMALL else 1
        n_components = _COMPONENTS if self.n_metrics == 1 else _OF_SEVERAL
        self.n_paths = math.ceil(n_components / self.n_counted)
        self.holes = chain.holes(rows.values, rows.observed)
        self.point = model.initial_fill.expected(rows) if completed is None else completed
        if completed is None:
            fill_sparse_means(chain, self.marginals, self.point, self.holes, _SWEEPS)
        self.point = clamped(self.point, rows.observed, rows.limits)
        self.is_completed, self.drawn = completed is not None, self.point.clone()
        self.fill = self.sequential_fill([None] * len(self.holes))

    def find_neighbours(self) -> Neighbours | None:
        """Estimate the local GPs; None if no link has one."""
        # Where inputs are missing together, first metrics rest on poor fills. A second round lowered the CRPS
        # of 13 cells of 8 public tables (three patterns, two masks) by 3 % on average, by 21 % in one
        # (airfoil, 30 % in blocks), and raised it by 3 % at most; a third one added nothing.
        initial = [self.initial_params(i) for i in range(len(self.holes))]
        if not any(initial):
            if not self.is_completed:
                self.draw(self.marginals, _SWEEPS, slice(None), self.noise(1))
            return None
        self.fill = self.learn_fill(initial)
        self.fill_rows()
        found = self.neighbours(initial)
        for n_metrics in (1, self.n_metrics):
            learnt = self.learn_metrics(found.links, initial, n_metrics)
            before = self.neighbours(learnt)
            self.point = self.point.clone()  # `before` must keep its reference rows while these change.
            before.update_means(self.chain, self.marginals, self.point, self.holes)
            found = self.neighbours(learnt)
            self.redraw(found)
        links = [
            self.choose(metrics, functools.partial(self.leave_one_out, i))
            for i, metrics in enumerate(found.links)
        ]
        fill = self.sequential_fill(self.fill.params)
        return replace(found, links=links, fill=fill) if any(links) else None

    def sequential_fill(self, params: Sequence[LocalGPParams | None]) -> SequentialFill:
        """Build the sequential fill with these hyperparameters from the current reference rows."""
        learns = [link.learns_from(self.rows.values, self.rows.observed) for link in self.chain.links]
        given = self.chain, self.model.initial_fill, self.point, torch.stack(learns)
        return SequentialFill.of(*given, params, self.n_neighbours, self.values)

    def learn_fill(self, initial: ParamsPerLink) -> SequentialFill:
        """Estimate the sequential fill; its metrics start from the `initial` ones of the local GPs."""
        fill = self.sequential_fill([of_link[0] if of_link else None for of_link in initial])
        some = {i: local for i, local in enumerate(fill.links) if local is not None}
        masks = list(known_inputs(self.chain, self.rows.observed, self.holes))
        cells = {i: functools.partial(self.leave_one_out_of_trend, fill, i, masks[i]) for i in some}
        priors = [local.params.lengthscales for local in some.values()]
        given = priors, [*cells.values()], self.point.shape[1], self.generator
        params: list[LocalGPParams | None] = [None] * len(masks)
        for (i, local), (lengths, nugget) in zip(
            some.items(), learn_metrics([*some.values()], *given), strict=True
        ):
            learnt = replace(local.params, lengthscales=tuple(lengths.tolist()), nugget=nugget)
            local = replace(local, params=learnt, lengthscales=lengths)
            params[i] = next((chosen.params for chosen in self.choose([local], cells[i])), None)
        return self.sequential_fill(params)

    def leave_one_out_of_trend(
        self, fill: SequentialFill, i: int, masks: Tensor, cells: Tensor
    ) -> LeaveOneOut:
        """Return residuals of the i-th link's observed cells in rows `[c]` from the trends of a fill.

        Inputs count as known where they are in random missing cells of the column, whose `masks` are Bool
        `[m, P]`, and observed here: those filled given the cell itself would tell its value.
        """
        link, points = self.chain.links[i], self.point[cells]
        if len(masks) == 0:  # complete columns of a model of all columns
            masks = self.rows.observed[:, link.inputs]
        picked = torch.randint(len(masks), (len(cells),), generator=self.generator)
        seen = self.rows.observed[cells][:, link.inputs]
        known = (masks[picked.to(masks.device)] & seen).to(self.point)
        trend, rows = fill.trend(self.chain, i, known), points - fill.gaussian.mean
        residuals = points[:, link.column] - fill.means[i] - (rows[:, link.inputs] * trend.slopes).sum(1)
        nothing = torch.zeros_like(residuals)
        return LeaveOneOut(cells, rows, residuals, nothing, trend.variance, known, trend.slopes)

    def fill_rows(self) -> None:
        """Fill reference rows with means of draws from the sequential fill, and query rows with one draw."""
        observed, links = self.rows.observed, (self.chain, self.marginals, [None] * len(self.holes))
        start = self.model.initial_fill.draw(self.rows, self.model.seed, range(_DRAWS))
        drawn = self.fill.draw(*links, start, observed, self.noise(_DRAWS), self.holes)
        # The mean of equal numbers may differ from them in the last bit.
        self.drawn, self.point = drawn[0].clone(), drawn.mean(0).where(~observed, self.rows.values)
        of_compounds = self.chain.links_of_compounds
        holes = [rows if i in of_compounds else rows[:0] for i, rows in enumerate(self.holes)]
        fill_sparse_means(self.chain, self.marginals, self.point, holes)  # the levels' probabilities

    def redraw(self, found: Neighbours) -> None:
        """Redraw the missing cells of the query rows with local GPs."""
        # Drawn for all rows at once: the result must not depend on how many fit into memory.
        normal = self.normal(len(self.holes), len(self.rows))
        for here in torch.arange(len(self.rows)).split(found.rows_at_once(1)):
            point, holes = self.point[here], self._holes(here)
            # Levels have a discrete support later; until then they are drawn from the sparse GPs.
            posteriors = [
                found.posterior(i, point[None], own, range(1)) if link.is_gaussian else None
                for i, (link, own) in enumerate(zip(self.chain.links, holes, strict=True))
            ]
            corrected = list(map(add_local_gp, self.marginals, self.marginals, posteriors))
            self.draw(corrected, 1, here, functools.partial(_noise_of_link, normal[:, here]))

    def _holes(self, here: Tensor | slice) -> list[Tensor]:
        """Return the rows of each link's missing cells among the query rows `here`."""
        return self.chain.holes(self.rows.values[here], self.rows.observed[here])

    def draw(self, conditionals: Conditionals, n_sweeps: int, here: Tensor | slice, noise: Noise) -> None:
        """Redraw the missing cells of the query rows `here`."""
        observed, limits, holes = self.rows.observed[here], self.rows[here].limits, self._holes(here)
        sweeps = self.chain.sweeps(
            [conditionals] * n_sweeps, self.drawn[None, here], observed, lambda _: noise, holes, limits
        )
        *_, (paths, _) = sweeps
        self.drawn[here] = paths[0]

    def noise(self, n_paths: int) -> Noise:
        """Return noise of the sweeps of several paths from the generator of this fit."""
        return lambda _, rows: self.normal(n_paths, len(rows))

    def normal(self, *shape: int) -> Tensor:
        """Return standard normal numbers from the generator of this fit, which is on the CPU."""
        normal = torch.randn(*shape, generator=self.generator, dtype=self.point.dtype)
        return normal.to(self.point.device)

    def neighbours(self, params: ParamsPerLink) -> Neighbours:
        """Build local GPs with these hyperparameters from the current reference rows."""
        residuals = torch.full((len(self.holes), len(self.rows)), math.nan).to(self.point)
        for i, link in enumerate(self.chain.links):
            if may_be_local(link):
                here = link.learns_from(self.rows.values, self.rows.observed)
                mean = self.marginals[i].mean(self.point[here][None])[0]
                residuals[i, here] = self.rows.values[here, link.column] - mean
        given = self.point, residuals, params, self.n_neighbours, self.fill, self.values
        return Neighbours.of(self.chain, *given)

    def initial_params(self, i: int) -> list[LocalGPParams]:
        """Return starting values for the i-th link; empty if it cannot have a local GP."""
        link = self.chain.links[i]
        n_observed = int(link.learns_from(self.rows.values, self.rows.observed).sum())
        enough = n_observed >= _MIN_PER_NEIGHBOUR * self.n_neighbours > 0
        n_links = max((len(each.links) for each in self.chain.compounds if i in each.links), default=1)
        if not may_be_local(link) or not enough or len(link.inputs) > MAX_INPUTS or n_links > _MOST_LINKS:
            return []
        own = lengthscales(link.kernel, len(link.inputs)) / _FIRST_SHARPNESS
        noise = float(self.marginals[i].noise)
        own = own.clamp(max=_LONGEST_FIRST)
        return [LocalGPParams(tuple(own.tolist()), _FIRST_NUGGET, freedom=1.0, scale=noise)]

    def learn_metrics(
        self, links: Sequence[Sequence[LocalLink]], initial: ParamsPerLink, n_metrics: int
    ) -> ParamsPerLink:
        """Estimate metrics of links, each of which has one local GP or none.

        The search starts from its parameters; the prior medians of lengthscales are the `initial` ones.
        """
        learnt: list[list[LocalGPParams]] = [[] for _ in links]
        some = {i: local for i, metrics in enumerate(links) for local in metrics}
        priors = [initial[i][0].lengthscales for i in some]
        leave_one_out = [functools.partial(self.leave_one_out, i) for i in some]
        for _ in range(n_metrics):
            given = priors, leave_one_out, self.point.shape[1], self.generator
            found = learn_metrics([*some.values()], *given)
            for (i, local), (lengths, nugget) in zip(some.items(), found, strict=True):
                learnt[i].append(replace(local.params, lengthscales=tuple(lengths.tolist()), nugget=nugget))
        return learnt

    def choose(
        self, metrics: Sequence[LocalLink], leave_one_out: Callable[[Tensor], LeaveOneOut]
    ) -> list[LocalLink]:
        """Return a link's local GPs with their best prior; none if they do not improve predictions.

        Takes a function that maps reference rows `[c]` to their leave-one-out residuals.
        """
        if not metrics:
            return []
        local = metrics[0]
        numbers, weights = self._scoring_cells(local)
        candidates: list[LocalGPParams] = []
        gains, alone = [], []
        per_cell = local.n_neighbours * (local.n_neighbours + len(local.columns))
        for references in local.references[numbers].split(max(1, _KEPT_AT_ONCE // per_cell)):
            cells = leave_one_out(references)
            neighbourhood = cells.neighbourhood(local)
            candidates = candidates or _candidates(local, cells, neighbourhood)
            alone.append(crps(cells.residuals, torch.zeros_like(cells.alone), cells.alone)[0])
            gains.append(alone[-1] - _scores(local, candidates, cells, neighbourhood))
        gain = torch.cat(gains, dim=1)
        # The standard error is that of ordinary cells: a rare one may outweigh all others.
        ordinary = gain[:, weights > 1] if (weights > 1).any() else gain
        clear = ordinary.mean(1) > _CLEARLY * ordinary.std(1) / math.sqrt(ordinary.shape[1])
        if not clear.any():
            return []
        total, best = (gain @ weights).where(clear, -math.inf).max(0)
        chosen = candidates[int(best)]
        chosen = replace(chosen, gain=max(float(total / (torch.cat(alone) @ weights)), 0.0))
        metric_of = [(own.params.lengthscales, own.params.nugget) for own in metrics]
        return [
            replace(own, params=replace(chosen, lengthscales=lengths, nugget=nugget))
            for own, (lengths, nugget) in zip(metrics, metric_of, strict=True)
        ]

    def _scoring_cells(self, local: LocalLink) -> tuple[Tensor, Tensor]:
        """Select references of a link by which to score candidates, with sampling weights."""
        # All worst predicted cells are included: few others show what suits rare values and outliers.
        order = local.residuals.abs().argsort(descending=True)
        worst, others = order[:_N_WORST], order[_N_WORST:]
        picked = torch.randperm(len(others), generator=self.generator)[:_N_SCORED].to(order.device)
        weights = [len(others) / max(len(picked), 1) * torch.ones(len(picked)), torch.ones(len(worst))]
        return torch.cat([others[picked], worst]), torch.cat(weights).to(local.residuals)

    def hold_out(self, n_rows: int) -> Tensor:
        """Draw the cells to hold out if observed, Bool `[n, D]`; columns of a compound together."""
        columns = [link.column for link in self.chain.links]
        share = max(_HELD_OUT_PER_ROW / len(columns), _HELD_OUT_PER_COLUMN / n_rows)
        chance = torch.rand(n_rows, self.point.shape[1], generator=self.generator)
        for compound in self.chain.compounds:
            chance[:, list(compound.columns)] = chance[:, [compound.columns[0]]]
            columns += compound.columns
        held_out = torch.zeros_like(chance, dtype=torch.bool)
        held_out[:, columns] = chance[:, columns] < min(share, _HELD_OUT_SHARE)
        return held_out.to(self.point.device)

    def leave_one_out(self, i: int, cells: Tensor) -> LeaveOneOut:
        """Return leave-one-out residuals of the i-th link's observed cells in rows `[c]`."""
        rows, noise = self.drawn[cells], self.marginals[i].noise
        at, given_u = self.marginals[i].moments(rows[None]), self.given_u[i].moments(rows[None])
        link = self.chain.links[i]
        values = self.rows.values[cells, link.column]
        if isinstance(link.likelihood, Ordinal):
            given = [Moments(each.mean[0], each.variance[0]) for each in (at, given_u)]
            left = _without_cells(link, values, *given)
            return LeaveOneOut.of_levels(cells, rows, values, link.likelihood, left)
        leverage = ((at.variance - given_u.variance)[0] / noise).clamp(0, _MAX_LEVERAGE)
        residual = values - at.mean[0]
        # Given the cell itself, observed with noise, the variance of its function is at most the noise's.
        variance = at.variance[0].clamp(max=noise)
        return LeaveOneOut(cells, rows, residual / (1 - leverage), variance, variance + noise)

    def fit_support(self, i: int, found: Neighbours | None) -> DiscreteSupport | None:
        """Fit the discrete support of the i-th link's column to its values, if there are any."""
        values = self.values[i]
        link, metrics = self.chain.links[i], [] if found is None else found.links[i][:1]
        # Without a local GP, values of a link that is not Gaussian have the probabilities of its likelihood.
        if values is None or not (link.is_gaussian or metrics):
            return None
        observed = link.learns_from(self.rows.values, self.rows.observed).nonzero()[:, 0]
        observed = observed[torch.randperm(len(observed), generator=self.generator).to(observed.device)]
        chosen, cells = nearest_value(values, self.rows.values[observed, link.column]), observed[:_FITTED]
        counts = torch.bincount(chosen, minlength=len(values)).to(values) + 1
        frequencies, targets = counts / counts.sum(), self.rows.values[cells, link.column]
        if isinstance(self.chain, SequentialChain):
            return self.fit_normal_support(i, cells, values, targets, frequencies)
        loo = self.leave_one_out(i, cells)
        mean, variance = targets - loo.residuals, loo.alone
        of_neighbours = None
        for local in metrics:
            at = local.posterior(loo.rows, cells).moments(loo.rows[None])
            mean, variance = mean + at.mean[0], at.variance[0]
            of_neighbours = None if at.counts is None else at.counts[0]
        return DiscreteSupport.fit(values, targets, mean, variance, frequencies, of_neighbours, loo.levels)

    def fit_normal_support(
        self, i: int, cells: Tensor, values: Tensor, observed: Tensor, frequencies: Tensor
    ) -> DiscreteSupport:
        """Fit the discrete support of a joint density's i-th link, given functions drawn with the table.

        Takes the rows of its `observed` cells, both `[c]`, and the values with their frequencies, `[J]`.
        """
        if self.model.training is None:  # functions come from q(u), given many rows
            loo = self.leave_one_out(i, cells)
            mean, variance = (observed - loo.residuals)[None], loo.alone[None]
        else:
            conditional = self.drawn_functions[i]
            at = conditional.moments(self.drawn[cells].expand(_CHAINS, -1, -1))
            mean, variance = at.mean, (at.variance + conditional.noise).expand_as(at.mean)
        of_paths = observed.expand_as(mean).flatten(), mean.flatten(), variance.flatten()
        return DiscreteSupport.fit_normal(values, *of_paths, frequencies)

    @functools.cached_property
    def drawn_functions(self) -> Conditionals:
        """Links at functions that a few chains draw given the completed table."""
        everything = torch.ones_like(self.rows.observed)
        table = replace(self.rows, values=self.drawn, observed=everything, limits=None)
        # The cache is one of their own, since the model has no discrete support yet.
        sampler = replace(self.model, cache=SamplerCache()).sampler(chains=_CHAINS, searching=True)
        chains = sampler.chains(table)
        return chains.conditionals(range(_CHAINS), chains.draws(range(_CHAINS)))

    def calibrate(self, found: Neighbours, supports: Sequence[DiscreteSupport | None]) -> Neighbours:
        """Calibrate the inflation τ of the local GPs on the spread of draws of held-out cells."""
        picked = torch.randperm(len(self.rows), generator=self.generator)[:_HELD_OUT_ROWS]
        picked = picked.to(self.drawn.device)
        held_out = self.rows.observed[picked] & self.hold_out(len(picked))
        # Rows are imputed independently: those without held-out cells are not needed.
        some = held_out.any(1)
        if not some.any():
            return found
        picked, held_out = picked[some], held_out[some]
        drawn_with = replace(self.model, neighbours=found, discrete_support=list(supports))
        # Local GPs have changed: nothing that was kept may serve.
        sampler = replace(drawn_with, cache=SamplerCache()).sampler(chains=self.n_paths)
        batches = torch.arange(len(picked)).split(found.rows_at_once(self.n_paths))
        parts = [self.impute_held_out(sampler, picked[here], held_out[here]) for here in batches]
        links: list[list[LocalLink]] = []
        for i, (metrics, *of_link) in enumerate(zip(found.links, *parts, strict=True)):
            changes = self.spread(i, of_link, sampler.observations[i]) if metrics else {}
            links.append([replace(own, params=replace(own.params, **changes)) for own in metrics])
        return replace(found, links=links)

    def spread(
        self, i: int, imputed: Sequence[tuple[Tensor, Moments]], observation: Observation | None
    ) -> dict[str, Any]:
        """Return the calibrated parameters of the i-th link, given batches of imputed held-out cells."""
        cells, at = torch.cat([rows for rows, _ in imputed]), Moments.joined([own for _, own in imputed], 1)
        values = self.rows.values[cells, self.chain.links[i].column]
        # The sparse GP was trained on the held-out cells: shift predictions to those without them.
        left_out, sparse, rows = self.leave_one_out(i, cells), self.marginals[i], self.drawn[cells][None]
        mean = at.mean - (left_out.residuals - (values - sparse.mean(rows)[0]))
        if isinstance(observation, DiscreteSupport):
            levels, of_fit = at.levels, log_levels(sparse, sparse.moments(rows))
            if levels is not None and left_out.levels is not None and of_fit is not None:
                levels = levels + left_out.levels - of_fit[0]
            observation = observation.given(at.counts, levels)
        return _spread(mean, at.variance, values, observation)

    def impute_held_out(
        self, sampler: Sampler, picked: Tensor, held_out: Tensor
    ) -> list[tuple[Tensor, Moments]]:
        """Impute the cells `held_out` `[n, D]` of the rows `picked` `[n]`, as imputations are drawn.

        Return for each link the rows `[c]` of its held-out cells, and their predictive moments on every path
        of the last sweeps, `[K, c]`.
        """
        rows, imputations = self.rows[picked], range(self.n_paths)
        given = replace(rows, observed=rows.observed & ~held_out)
        holes, noise = self.chain.holes(given.values, given.observed), self.noise(self.n_paths)
        start = sampler.starts(given, imputations, picked)
        predictive = sampler.predictive(given, imputations, start, holes, picked)
        # Functions of all sweeps that count are as those of the last sweep of imputations.
        whole = sampler.of_sweeps(predictive, sampler.sparse(imputations), imputations)
        of_sweeps = [*whole[: -self.n_counted], *([whole[-1]] * self.n_counted)]
        sweeps = self.chain.sweeps(of_sweeps, start, given.observed, lambda _: noise, holes)
        counted, cells = list(sweeps)[-self.n_counted :], []
        for i, (link, here) in enumerate(zip(self.chain.links, holes, strict=True)):
            which = link.learns_from(rows.values, held_out)[here]
            moments = Moments.joined([visited[i] for _, visited in counted], 0)
            cells.append((picked[here[which]], moments.select(which, 1)))
        return cells


def _without_cells(link: Link, values: Tensor, at: Moments, given_u: Moments) -> Moments:
    """Return moments of a link's latent function at cells `[c]`, as if their values had not been observed.

    Takes its moments under q(f), and their variances given the inducing values, which the cells leave as they
    are. A cell's Gaussian site is divided out (Rasmussen and Williams 2006, equation 3.56).
    """
    natural, precision, _ = site_parameters(link, values, at.mean, at.variance, None)
    own = (at.variance - given_u.variance).clamp(min=0)
    left = 1 - (precision * own).clamp(max=_MAX_LEVERAGE)
    mean = at.mean - own * (natural - precision * at.mean) / left
    return Moments(mean, given_u.variance + own / left)


def _noise_of_link(normal: Tensor, i: int, rows: Tensor) -> Tensor:
    """Return numbers `[L, n]` of the i-th link at rows, `[1, c]`."""
    return normal[None, i, rows]


def _candidates(local: LocalLink, cells: LeaveOneOut, neighbourhood: Neighbourhood) -> list[LocalGPParams]:
    """Return candidate hyperparameters with given ℓ and η, and scales typical of the prediction errors."""
    error = cells.residuals - local.condition(neighbourhood).moments(cells.rows[None]).mean[0]
    typical = float(error.square().median()) / MEDIAN_OF_SQUARE / (1 + local.params.nugget)
    return [
        replace(local.params, cut=cut, freedom=freedom, scale=max(amplitude * typical, MIN_SCALE))
        for cut, freedom, amplitude in itertools.product(_CUTS, _FREEDOMS, _AMPLITUDES)
    ]


def _scores(
    local: LocalLink,
    candidates: Sequence[LocalGPParams],
    cells: LeaveOneOut,
    neighbourhood: Neighbourhood,
) -> Tensor:
    """Return the CRPS of each of G candidates, `[G, c]`."""
    posteriors = local.condition_each(candidates, neighbourhood)
    cross, v = posteriors[0].cross_covariance(cells.rows[None])
    mean = torch.stack([(cross * each.weights)[:, 0].sum(1) for each in posteriors])
    variance = torch.stack([v[:, 0] * each.scale for each in posteriors]) + cells.variance
    return crps(cells.residuals, mean, variance)[0]


def _spread(
    mean: Tensor, variance: Tensor, values: Tensor, observation: Observation | None = None
) -> dict[str, Any]:
    """Return the most probable inflation τ, and whether errors are contaminated normal, by field.

    Takes values `[c]` of held-out cells, the components of their predictive mixtures, `[K, c]`, and their
    observation model, None for one without bounds and without a discrete support.
    """
    if len(values) == 0:
        return {}
    variance, lowest = variance.clamp(min=_TINY**2), _LEAST_LIKELY
    if observation is None or isinstance(observation, Truncated):
        bounds = () if observation is None else (observation.low, observation.high)
        distributions: dict[bool, Observation] = {False: Truncated(*bounds), True: Contaminated(*bounds)}
        lowest = float(-variance.log().median() / 2 - _FARTHEST)
    else:
        distributions = {False: observation}
    choices, scores = list[dict[str, Any]](), list[Tensor]()
    for (contaminated, of_errors), inflation in itertools.product(distributions.items(), _INFLATIONS):
        components = of_errors.log_prob(values, mean, inflation**2 * variance)
        density = components.logsumexp(0) - math.log(len(mean))
        # The prior of τ is log-normal around one.
        prior = (math.log(inflation) / _EXPECTED_INFLATION) ** 2 / 2
        choices.append({"inflation": inflation, "contaminated": contaminated})
        scores.append(density.clamp(min=lowest).sum() - prior)
    # The host waits for a GPU once.
    return choices[int(torch.stack(scores).argmax())]
