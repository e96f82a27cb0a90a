"""Process over time within subjects: serial correlation of the residuals of links, drawn in Gibbs chains.

In a table of visits, what a subject's cells deviate from the functions of the K links by is alike at times
that are close to each other (Diggle et al., Analysis of Longitudinal Data, 2002, section 5.2):

    x = f(..) + z(subject, t) + noise,   cov(z_i(t), z_j(t')) = (Ω⁻¹)_ij exp(-|t - t'| / ℓ)

for links i and j, an Ornstein-Uhlenbeck process with one range ℓ. The covariance matrix Ω⁻¹ of the links has
the prior of that of random effects (`random_effects`): with independent processes, what the correlation of
two columns within subjects looks like would depend on their order.

A link's process, given those of others, is one with mean m = -Σ_o Ω_io z_o / Ω_ii and variance 1 / Ω_ii. The
link's function is drawn with it integrated out, by generalised least squares, then in turn noise variance,
standard deviation of the process and ℓ, and the process last: otherwise each would keep the others in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import torch
from torch import Tensor

from pyro_mgp.inference.function_posterior import times
from pyro_mgp.inference.grouped_rows import GroupedRows, Sums
from pyro_mgp.inference.random_effects import draw_precision, n_numbers_of_precision
from pyro_mgp.inference.slice_sampling import N_NUMBERS, slice_step
from pyro_mgp.model.chain import Chain
from pyro_mgp.model.kernels import RandomEffects, trend_of
from pyro_mgp.model.likelihoods import MIN_NOISE, Ordinal
from pyro_mgp.model.ornstein_uhlenbeck import OrnsteinUhlenbeck, TridiagonalFactor, VisitIndex, Visits
from pyro_mgp.model.priors import EFFECT, group_scales

# The prior of log ℓ is centred between the logarithms of the median gap and of the longest series, and its
# standard deviation is this share of their difference, and so much more: with shorter ranges the process can
# hardly be told from noise, with longer ones from a random intercept.
_SHARE, _FURTHER = 0.25, 0.5


class ProcessDraw(NamedTuple):
    """Process over time and its parameters, drawn in S chains."""

    values: Tensor
    """Values z of K links at V visits, `[S, K, V]`."""
    scale: Tensor
    """Ranges ℓ, `[S, 1]`."""
    precision: Tensor
    """Precisions Ω of the links, `[S, K, K]`."""

    def prior_mean(self, k: int) -> Tensor:
        """Return the mean of the process of a link given those of others, `[S, V]`."""
        weights = self.precision[:, k] / self.precision[:, k, k, None]
        weights = weights.index_fill(1, torch.tensor([k], device=weights.device), 0.0)
        return -times(weights, self.values)

    def stretched(self, k: int, factor: Tensor) -> ProcessDraw:
        """Return the draw with the standard deviation of a link's process multiplied by a factor `[S]`."""
        precision = self.precision.clone()
        precision[:, k] /= factor[:, None]
        precision[:, :, k] /= factor[:, None]
        return self._replace(precision=precision)


@dataclass(frozen=True)
class TimeProcess:
    """Process over time within the subjects of a table, in the links that have random effects of these."""

    subject: int
    """Encoded column with the numbers of the subjects."""
    time: int
    """Encoded column with the times of visits."""
    effects: RandomEffects
    """Random effects of the subjects in one of the links."""
    links: Sequence[int]
    """Numbers of the K links that have the process."""
    visits: Visits
    """Visits in the training table."""
    known: tuple[Tensor, Tensor]
    """Numbers of their subjects, and their times, `[V]` each."""
    wide: Tensor
    """Scales A of the priors of the standard deviations of the process, `[K]`; see `random_effects`."""
    log_scale: tuple[float, float]
    """Mean and standard deviation of the normal prior of log ℓ."""

    @classmethod
    def of(cls, chain: Chain, table: Tensor) -> Self | None:
        """Return the process of a chain with the training table `[N, D]`; None if it has none."""
        found = list[tuple[int, int, RandomEffects]]()
        for i, link in enumerate(chain.links):
            trend, _ = trend_of(link.kernel)
            for effects in () if trend is None else trend.effects:
                modelled = link.is_gaussian or isinstance(link.likelihood, Ordinal)
                if effects.time not in (None, link.column) and modelled:
                    found.append((i, int(link.inputs[effects.place]), effects))
        if not found:
            return None
        links, (subject, *_), (effects, *_) = zip(*found, strict=True)
        assert effects.time is not None
        rows = effects.numbers(table[:, subject]), table[:, effects.time]
        visits = Visits.of(*rows)
        gaps = visits.gaps[visits.gaps.isfinite()]
        if not len(gaps):
            return None  # one visit each
        longest = torch.zeros(visits.ends[0]).to(gaps)
        for here, _ in visits.steps():
            longest[: here.stop - here.start] += visits.gaps[here]
        ends = math.log(gaps.median()), math.log(longest.max())
        prior = (ends[0] + ends[1]) / 2, _SHARE * (ends[1] - ends[0]) + _FURTHER
        wide = group_scales(chain.links[0])[EFFECT].expand(len(links))
        known = rows[0][visits.rows], rows[1][visits.rows]
        return cls(subject, effects.time, effects, links, visits, known, wide, prior)

    def visits_of(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the numbers of subjects and the times of rows `[n, D]`, `[n]` each."""
        return self.effects.numbers(rows[:, self.subject]), rows[:, self.time]

    def offset(self, number: int, drawn: ProcessDraw) -> ProcessOffset:
        """Return what the process adds to the function of a link that has it."""
        return ProcessOffset(self, self.links.index(number), self.known, drawn)

    def start(self, n_chains: int) -> ProcessDraw:
        """Return the process in S chains before the first draw, which is zero."""
        n_links, gaps = len(self.links), self.visits.gaps
        values = gaps.new_zeros(n_chains, n_links, len(gaps))
        scale = torch.full_like(values[:, 0, :1], math.exp(self.log_scale[0]))
        return ProcessDraw(values, scale, torch.eye(n_links).to(gaps).expand(n_chains, -1, -1))

    def in_rows(self, number: int, drawn: ProcessDraw, rows: Tensor) -> Tensor:
        """Return the process of a link in some rows of the training table `[n]`, `[S, n]`."""
        return drawn.values[:, self.links.index(number), self.visits.place[rows]]

    @property
    def n_numbers(self) -> int:
        """Number of standard normal numbers that `draw_covariance` takes for a chain."""
        return n_numbers_of_precision(len(self.links), len(self.visits.gaps))

    def draw_covariance(self, drawn: ProcessDraw, normal: Tensor) -> ProcessDraw:
        """Draw the precisions Ω given the process, with numbers `[S, n_numbers]`."""
        process = OrnsteinUhlenbeck.of(self.visits, drawn.scale)
        new = process.innovations(drawn.values)
        return drawn._replace(precision=draw_precision(new, drawn.precision, self.wide, normal))


@dataclass(frozen=True)
class ProcessOffset:
    """What the process over time adds to the function of a link at known visits; see `model.offsets`."""

    process: TimeProcess
    k: int
    """Number of the link among those of the process."""
    known: tuple[Tensor, Tensor]
    """Numbers of subjects, and times, of visits at which the process is known, `[V]` each."""
    drawn: ProcessDraw
    """The process at these visits, and its parameters, on S paths."""

    @cached_property
    def index(self) -> VisitIndex:
        """The index of these visits."""
        return VisitIndex.of(*self.known)

    def at(self, table: Tensor, columns: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return what is added at rows `[S, n, D]`, `[S, n]`, and slopes of some columns, which are zero.

        Nothing is added where the process is not known.
        """
        place = self.index.find(*self.process.visits_of(table[0]))
        offset = self.drawn.values[:, self.k, place.clamp(min=0)].where(place >= 0, 0.0)
        return offset, table.new_zeros(*table.shape[:2], len(columns))


@dataclass(frozen=True)
class CorrelatedRows:
    """Rows from which a link learns, whose errors are a process over time plus independent noise."""

    process: TimeProcess
    k: int
    """Number of the link among those of the process."""
    drawn: ProcessDraw
    """Last draw of the process."""
    rows: GroupedRows
    """The rows by visit, whose groups are subjects."""

    @classmethod
    def of(
        cls, process: TimeProcess, number: int, drawn: ProcessDraw, rows: GroupedRows, numbers: Tensor
    ) -> Self:
        """Return the rows of a link, given their numbers in the training table `[n]`."""
        by_visit = rows.at(process.visits.place[numbers], process.known[0])
        return cls(process, process.links.index(number), drawn, by_visit)

    def sums(self, noise: Tensor) -> Sums:
        """Return what the rows tell, given noise variances `[S, 1]`."""
        observed = self.rows.precisions(noise)
        factor = _factor(self.process.visits, self.drawn, self.k, observed)
        stacked = self.rows.stacked
        stacked[:, -1] -= self.drawn.prior_mean(self.k)
        weighted = stacked * observed[:, None]
        half = factor.forward(weighted)
        return Sums.of([(weighted, stacked), (-half / factor.pivots[:, None], half)], self.rows)

    def draw(
        self, left: Tensor, noise: Tensor, fresh: Callable[[int], Tensor], *, has_noise: bool
    ) -> tuple[Tensor, ProcessDraw]:
        """Draw the link's noise variance, if it `has_noise`, and its process, given its function and effects.

        Takes what these leave `[S, V]`, the last variances `[S, 1]`, and a function that returns standard
        normal numbers `[S, n]`. Returns the variances and the draw of the process of all links.
        """
        k, n_visits, drawn = self.k, left.shape[1], self.drawn
        numbers = fresh(3 * N_NUMBERS + n_visits).split([N_NUMBERS] * 3 + [n_visits], dim=1)
        if has_noise:

            def of_noise(log_noise: Tensor) -> Tensor:
                prior = 0.5 * log_noise - log_noise.exp().log1p()
                return prior + self._log_evidence(left, drawn, log_noise.exp()[:, None])

            log_noise = slice_step(of_noise, noise[:, 0].log(), numbers[0])
            noise = log_noise.exp().clamp(min=MIN_NOISE)[:, None]

        def of_factor(log_factor: Tensor) -> Tensor:
            # Half-t prior of the standard deviation, with rates a integrated out, times the Jacobian.
            moved, n_links = drawn.stretched(k, log_factor.exp()), len(self.process.links)
            rate = 2 * moved.precision[:, k, k] + self.process.wide[k] ** -2
            prior = -(n_links / 2 + 1) * rate.log() - (n_links + 1) * log_factor
            return prior + self._log_evidence(left, moved, noise)

        factor = slice_step(of_factor, torch.zeros_like(noise[:, 0]), numbers[1]).exp()
        drawn = drawn.stretched(k, factor)

        def of_scale(log_scale: Tensor) -> Tensor:
            moved, (mean, deviation) = drawn._replace(scale=log_scale.exp()[:, None]), self.process.log_scale
            prior = -0.5 * ((log_scale - mean) / deviation).square()
            return prior + self._log_evidence(left, moved, noise) + self._log_prior_of_others(moved)

        log_scale = slice_step(of_scale, drawn.scale[:, 0].log(), numbers[2])
        drawn = drawn._replace(scale=log_scale.exp()[:, None])
        given = left, self.rows.precisions(noise), numbers[3]
        return noise, draw_values(self.process.visits, drawn, k, *given)

    def _log_evidence(self, left: Tensor, drawn: ProcessDraw, noise: Tensor) -> Tensor:
        """Return the log density `[S]` of what the function leaves, with the link's process integrated out.

        It is conditional on the processes of other links, and up to a constant.
        """
        observed, own = self.rows.precisions(noise), drawn.precision[:, self.k, self.k, None]
        process = OrnsteinUhlenbeck.of(self.process.visits, drawn.scale)
        factor = process.given(own, observed)
        errors = left - drawn.prior_mean(self.k)
        weighted = observed * errors
        fitted = factor.forward(weighted).square() / factor.pivots
        is_row = self.rows.weights > 0
        size = torch.where(is_row, observed, 1.0).log() - factor.pivots.log()
        size = size + own.log() - process.fresh.log()
        return 0.5 * (size - weighted * errors + fitted).sum(1)

    def _log_prior_of_others(self, drawn: ProcessDraw) -> Tensor:
        """Return the log density `[S]` of the processes of other links, up to a constant."""
        others = [k for k in range(len(self.process.links)) if k != self.k]
        if not others:
            return torch.zeros_like(drawn.scale[:, 0])
        process = OrnsteinUhlenbeck.of(self.process.visits, drawn.scale)
        new = process.innovations(drawn.values[:, others])
        across = drawn.precision[:, others, self.k]
        precision = drawn.precision[:, others][:, :, others]
        own = drawn.precision[:, self.k, self.k, None, None]
        precision = precision - across[:, :, None] * across[:, None] / own
        squares = (precision * (new @ new.mT)).sum((1, 2))
        return -0.5 * (squares + len(others) * process.fresh.log().sum(1))


def draw_values(
    visits: Visits, drawn: ProcessDraw, k: int, left: Tensor, observed: Tensor, normal: Tensor
) -> ProcessDraw:
    """Draw the process of a link at visits, given those of others, and process plus noise at some visits.

    Takes what the link's function leaves, the precisions of the noise, which are 0 where nothing is observed,
    and standard normal numbers, `[S, V]` each.
    """
    factor, prior_mean = _factor(visits, drawn, k, observed), drawn.prior_mean(k)
    mean = factor.forward(observed * (left - prior_mean)) / factor.pivots
    values = drawn.values.clone()
    values[:, k] = prior_mean + factor.backward(mean + normal / factor.pivots.sqrt())
    return drawn._replace(values=values)


def _factor(visits: Visits, drawn: ProcessDraw, k: int, observed: Tensor) -> TridiagonalFactor:
    process = OrnsteinUhlenbeck.of(visits, drawn.scale)
    return process.given(drawn.precision[:, k, k, None], observed)
