"""From a fitted chain to draws of missing cells, batch of rows by batch of rows.

For imputation j one function per link is drawn from q(u) and shared by all rows; each row then starts from
its own joint Gaussian draw and sweeps through the chain several times. All noise is keyed (`noise.py`), so a
row's draws do not depend on the rows around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pyro_mgp._support.devices import in_halves
from pyro_mgp._support.keyed_noise import KeyedNoise
from pyro_mgp._support.tiles import filled_up, mean_over_paths, whole_tiles
from pyro_mgp.data.encoded_table import EncodedTable
from pyro_mgp.data.transforms import InverseTransform
from pyro_mgp.inference.data_augmentation import Augmentation, Drawn
from pyro_mgp.model.chain import Chain, Noise, Precision
from pyro_mgp.model.conditional import Conditional, Moments, Shifted, observed_as
from pyro_mgp.model.likelihoods import Observation
from pyro_mgp.model.sequential_chain import SequentialChain
from pyro_mgp.sampling.discrete_support import DiscreteSupport
from pyro_mgp.sampling.initial_fill import JointGaussian
from pyro_mgp.sampling.local_gp import Neighbours, corrected
from pyro_mgp.storage.scratch import pieces

# What a stream of keyed noise is for.
_START, _FUNCTION, _SWEEP, _OBSERVATION, REPLICATE, _AUGMENTATION, _TURN = range(7)
# Decimals of a draw in standard deviations of its column: below the smallest noise, above rounding errors.
_DECIMALS: dict[Precision, int] = {"double": 5, "mixed": 3}
# Draws farther off than so many standard deviations diverged: a cell in 10¹⁰ would be an outlier there.
_FARTHEST = 1e5
SETTLING = 3
"""The first of so many parts of the sweeps does not count: the sweep still remembers where it started."""
# Rows times paths per batch: bounds the memory of the [M, rows · paths] matrices to some 10 MB each.
_ROWS_AT_ONCE = 20_000


@dataclass(frozen=True)
class Mixture:
    """Predictive distribution of cells: equally weighted Gaussians."""

    mean: Tensor
    """`[K, n]`."""
    variance: Tensor
    """`[K, n]`."""

    def expectation(self) -> Tensor:
        """Mean of each cell, `[n]`."""
        return self.mean.mean(0)

    def standard_deviation(self) -> Tensor:
        """Standard deviation of each cell, `[n]`."""
        return (self.variance.mean(0) + self.mean.var(0, correction=0)).sqrt()

    def quantile(self, level: float) -> Tensor:
        """The quantile of each cell `[n]`, by bisection to about 1e-9 of its range."""
        scale = self.variance.sqrt()
        low = (self.mean - 10 * scale).amin(0)
        high = (self.mean + 10 * scale).amax(0)
        for _ in range(60):
            middle = (low + high) / 2
            below = torch.special.ndtr((middle - self.mean) / scale).mean(0) < level
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return (low + high) / 2


@dataclass(frozen=True)
class InitialFill:
    """What stands in the holes before the first sweep."""

    gaussian: JointGaussian
    """Over all columns of the chain."""
    drawn: bool
    """Whether rows start from a draw, or from the conditional mean."""

    def draw(self, rows: EncodedTable, noise: KeyedNoise) -> Tensor:
        """The first fill of each path, `[S, n, D]`."""
        if not self.drawn:
            return self.expected(rows).expand(len(noise.imputations), -1, -1)
        eps = noise.normals(_START, len(self.gaussian.mean))
        return self.gaussian.draw(rows.values, rows.observed, eps)

    def draw_into(self, filled: Tensor, rows: EncodedTable, seed: int) -> None:
        """The first fill of the first path, written into a table `[n, D]` piece by piece."""
        for here in pieces(len(rows)):
            piece = rows[here]
            filled[here] = self.draw(piece, KeyedNoise(seed, piece.keys, range(1)))[0]

    def expected(self, rows: EncodedTable) -> Tensor:
        """The rows filled by their conditional means, `[n, D]`."""
        return self.gaussian.conditional_mean(rows.values, rows.observed)

    @property
    def device(self) -> torch.device:
        """Where rows have to be."""
        return self.gaussian.mean.device


class CholeskyCache:
    """The conditionals that were asked for, as long as the parameters of their chain do not change.

    Factorising all links takes longer than drawing a single row. The marginals are kept, and what else was
    asked for last. Copies start empty. Torch counts changes of a parameter, but not those made through its
    `.data`: after such, fit, load or copy again.
    """

    def __init__(self) -> None:
        self._state: object = None
        self._clear()

    def _clear(self) -> None:
        self._marginals: Sequence[Conditional] | None = None
        self._last: tuple[object, Sequence[Conditional]] = (None, ())

    def marginals(self, chain: Chain) -> Sequence[Conditional]:
        """The conditionals at the means of q(u)."""
        self._forget_others(chain)
        if self._marginals is None:
            self._marginals = chain.conditionals()
        return self._marginals

    def get(
        self, chain: Chain, request: object, make: Callable[[], Sequence[Conditional]]
    ) -> Sequence[Conditional]:
        """What `make` gives for this chain and request, now or the last time."""
        self._forget_others(chain)
        key, conditionals = self._last
        if key != request:
            conditionals = make()
            self._last = request, conditionals
        return conditionals

    def _forget_others(self, chain: Chain) -> None:
        state = (
            chain.precision,
            tuple(link.jitter for link in chain.links),
            tuple((parameter.data_ptr(), parameter._version) for parameter in chain.parameters()),
        )
        if state != self._state:
            self._clear()
            self._state = state

    def __reduce__(self) -> tuple[type[CholeskyCache], tuple[()]]:
        return CholeskyCache, ()


@dataclass(frozen=True)
class Sampler:
    """Draws missing cells from a fitted chain."""

    chain: Chain
    start: InitialFill
    """The fill before the first sweep."""
    joint: bool
    """One drawn function per imputation, shared by all rows; otherwise each cell alone, from q(f)."""
    n_sweeps: int
    """Walks before a draw counts."""
    seed: int
    neighbours: Neighbours | None = None
    """Local scales of the links."""
    observations: Sequence[Observation | None] = ()
    """For each link how its function and noise become draws, None if by their sum; () if so for all."""
    inverse_transforms: Sequence[InverseTransform | None] = ()
    """Inverse transform of each link's column, None for a column without one; empty if there are none."""
    shifts: Mapping[int, float] = field(default_factory=dict)
    """How far functions are shifted, by the column of their link; see `sensitivity`."""
    factorised: CholeskyCache = field(default_factory=CholeskyCache)
    """Kept from one sampler of a chain to the next."""
    training: EncodedTable | None = None
    """The training rows that functions of a sequential chain are drawn given; None to draw from q(u)."""

    @torch.no_grad()
    def draws(
        self, rows: EncodedTable, imputations: Sequence[int], batch_size: int | None = None
    ) -> Iterator[tuple[slice, Tensor]]:
        """Draws of the numbered imputations.

        Args:
            rows: The rows to complete, on any device.
            imputations: Numbers of the S imputations.
            batch_size: Rows at a time; chosen by memory when None. The draws do not depend on it.

        Yields:
            Which rows, and these rows with their holes drawn, `[S, n, D]`.
        """
        for here, batch, filled in self.swept(rows, imputations, batch_size):
            if self.chain.propagate == "latent":
                filled = self._observed(filled, batch, imputations)
            yield here, self._rounded(filled)

    @torch.no_grad()
    def swept(
        self, rows: EncodedTable, imputations: Sequence[int], batch_size: int | None = None
    ) -> Iterator[tuple[slice, EncodedTable, Tensor]]:
        """The rows as links see them at the end of the sweeps; takes the arguments of `draws`.

        Yields:
            Which rows, these rows, and the same filled, `[S, n, D]`.
        """

        def sweep(here: slice) -> tuple[EncodedTable, Tensor]:
            batch = self._batch(rows, here)
            conditionals = self._conditionals(batch, imputations)
            if self.shifts:
                return batch, self._shifted(conditionals, batch, imputations)
            *_, (filled, _) = self._sweeps(conditionals, batch, imputations)
            return batch, filled

        for whole in self._slices(rows, len(imputations), batch_size):
            for here, (batch, filled) in in_halves(whole, sweep):
                n_rows = here.stop - here.start
                self._check(filled, batch)
                yield here, batch[:n_rows], filled[:, :n_rows]

    def _check(self, filled: Tensor, rows: EncodedTable) -> None:
        """That draws `[S, n, D]` have stayed within reason.

        Raises:
            FloatingPointError: They have not; names the column.
        """
        columns = [link.column for link in self.chain.links]
        if filled.numel() == 0 or not columns:
            return
        farthest = filled.detach()[..., columns].abs().amax((0, 1)).tolist()
        # Far from an observed cell that is itself far away may be right.
        known = rows.values.where(rows.observed, 0.0).abs().max().clamp(min=1)
        for name, far in zip(self.chain.names, farthest, strict=True):
            if not far <= _FARTHEST * float(known):
                raise FloatingPointError(
                    f"column {name!r}: draws diverged, to {far:.3g} standard deviations after "
                    f"{self.n_sweeps} sweeps: columns that nearly follow from each other can drive each "
                    "other on. Leave one of them out, give the column bounds (ColumnSpec(lower=..., "
                    "upper=...)), "
                    "or use fewer n_sweeps"
                )

    @torch.no_grad()
    def means(self, rows: EncodedTable, imputations: Sequence[int]) -> Tensor:
        """The rows `[n, D]` with their holes at the predictive mean, in bent columns that of the value.

        It is averaged over paths and over the last two thirds of the sweeps: each sweep's conditional means,
        which vary less than its draws do.
        """
        inverses = self.inverse_transforms or [None] * len(self.chain.links)
        parts = [self.start.expected(rows[:0].to(self.start.device))]
        for here, batch in self._batches(rows, len(imputations)):
            point, holes = self.start.expected(batch), self._holes(batch.observed, imputations)
            total, conditionals = torch.zeros_like(point), self._conditionals(batch, imputations)
            counted = range(self.n_sweeps // SETTLING, self.n_sweeps)
            for sweep, (filled, visited) in enumerate(self._sweeps(conditionals, batch, imputations)):
                if sweep in counted:
                    expected = self._expected(conditionals, filled, visited, holes)
                    self._add_means(total, expected, holes)
            total /= len(counted)
            for link, cells, inverse in zip(self.chain.links, holes, inverses, strict=True):
                if inverse is not None:
                    total[cells, link.column] = inverse.standardise(total[cells, link.column])
            parts.append(self._with_means(point, total, batch.observed)[: here.stop - here.start])
        return torch.cat(parts)

    def _expected(
        self,
        conditionals: Sequence[Conditional],
        filled: Tensor,
        visited: Sequence[Moments],
        holes: Sequence[Tensor],
    ) -> list[Tensor]:
        """Expectations of missing cells after the inverse transform, `[S, cells]`; draws under weights."""
        inverses = self.inverse_transforms or [None] * len(self.chain.links)
        if isinstance(self.chain, SequentialChain):
            columns = [link.column for link in self.chain.links]
            drawn = [filled[:, cells, column] for cells, column in zip(holes, columns, strict=True)]
            return [x if inverse is None else inverse(x) for x, inverse in zip(drawn, inverses, strict=True)]
        return [
            conditional.expectation(at, inverse)
            for conditional, at, inverse in zip(conditionals, visited, inverses, strict=True)
        ]

    def _add_means(self, total: Tensor, expected: Sequence[Tensor], holes: Sequence[Tensor]) -> None:
        """Add to missing cells, in place, the mean over paths of what links expect there, `[S, cells]`."""
        of_categories = {i for category in self.chain.categories for i in category.links}
        for i, (link, cells) in enumerate(zip(self.chain.links, holes, strict=True)):
            if i not in of_categories:
                total[cells, link.column] += mean_over_paths(expected[i])
        for category in self.chain.categories:
            cells, answers = holes[category.links[0]], torch.stack([expected[i] for i in category.links], -1)
            levels = category.expectation(answers)
            mean = mean_over_paths(levels.flatten(1)).unflatten(0, levels.shape[1:])
            total[cells[:, None], list(category.columns)] += mean

    def _with_means(self, point: Tensor, means: Tensor, observed: Tensor) -> Tensor:
        """Rows `[n, D]` with the means in the missing cells of all columns that are drawn."""
        drawn = {link.column for link in self.chain.links}
        drawn |= {column for category in self.chain.categories for column in category.columns}
        columns = sorted(drawn)
        rounded = means[:, columns].round(decimals=_DECIMALS[self.chain.precision])
        point[:, columns] = torch.where(observed[:, columns], point[:, columns], rounded)
        return point

    @torch.no_grad()
    def target(self, rows: EncodedTable, imputations: Sequence[int]) -> Mixture:
        """Predictive distribution of the last link's column, missing in all rows, noise included.

        Its components are the paths in the last two thirds of the sweeps.
        """
        parts = []
        for here, batch in self._batches(rows, len(imputations)):
            conditionals = self._conditionals(batch, imputations)
            sweeps = [visited[-1] for _, visited in self._sweeps(conditionals, batch, imputations)]
            counted = sweeps[self.n_sweeps // SETTLING :]
            variance = torch.cat([m.variance for m in counted]) + conditionals[-1].noise
            moments = torch.cat([m.mean for m in counted]), variance
            parts.append([each[:, : here.stop - here.start] for each in moments])
        return Mixture(*(torch.cat(part, dim=1) for part in zip(*parts, strict=True)))

    def _observed(self, filled: Tensor, rows: EncodedTable, imputations: Sequence[int]) -> Tensor:
        """Function values in the holes made observations of them: what later links did not see."""
        noise, holes = KeyedNoise(self.seed, rows.keys, imputations), self._holes(rows.observed)
        for i, (link, cells) in enumerate(zip(self.chain.links, holes, strict=True)):
            if isinstance(link.likelihood, Observation):
                continue
            eps = noise.normal(_OBSERVATION, i, rows=cells)
            filled[:, cells, link.column] += eps * link.likelihood.noise.sqrt()
        return filled

    def _rounded(self, filled: Tensor) -> Tensor:
        """Draws without the rounding errors of the arithmetic, which depend on the batch.

        Those of few values are exact, and may lie closer together than what is rounded away.
        """
        rounded = torch.round(filled, decimals=_DECIMALS[self.chain.precision])
        if self.observations:
            pairs = zip(self.chain.links, self.observations, strict=True)
            exact = [link.column for link, observation in pairs if isinstance(observation, DiscreteSupport)]
            rounded[..., exact] = filled[..., exact]
        return rounded

    def _conditionals(self, rows: EncodedTable, imputations: Sequence[int]) -> Sequence[Conditional]:
        """What the links say of the holes of these rows."""
        conditionals = self.sparse(imputations)
        if self.neighbours is not None:
            marginals, point = self.factorised.marginals(self.chain), self.start.expected(rows)
            holes = self._holes(rows.observed)
            nearby = self.neighbours.around(self.chain, marginals, point, holes, imputations)
            if self.joint:
                nearby = self.neighbours.given(nearby, conditionals, marginals)
            cells = self._holes(rows.observed, imputations)
            nearby = [near and near.of_first(len(own)) for near, own in zip(nearby, cells, strict=True)]
            conditionals = corrected(conditionals, nearby)
        return observed_as(conditionals, self.observations) if self.observations else conditionals

    @torch.no_grad()
    def sparse(self, imputations: Sequence[int]) -> Sequence[Conditional]:
        """The links' sparse GPs, at the functions of these imputations or at the marginals of q(u)."""
        if not self.joint:
            return self.factorised.marginals(self.chain)
        request = (self.seed, tuple(imputations))
        return self.factorised.get(self.chain, request, lambda: self._drawn_conditionals(imputations))

    def _drawn_conditionals(self, imputations: Sequence[int]) -> Sequence[Conditional]:
        if self.training is None:
            return self.chain.conditionals(self.functions(imputations))
        augmentation, drawn = self._augmented(self.training, imputations)
        return augmentation.conditionals(drawn.functions, drawn.noises)

    @torch.no_grad()
    def functions(self, imputations: Sequence[int]) -> list[Tensor]:
        """One function per link and imputation: whitened inducing values `[S, M]`."""
        if self.training is not None:
            return self._augmented(self.training, imputations)[1].functions

        def noise(link: int, n_inducing: int) -> Tensor:
            keys = torch.arange(n_inducing, device=self.start.device)
            return KeyedNoise(self.seed, keys, imputations).normal(_FUNCTION, link)

        return self.chain.functions(noise)

    def _augmented(self, training: EncodedTable, imputations: Sequence[int]) -> tuple[Augmentation, Drawn]:
        """Functions and noises of a sequential chain, each imputation's given its own completed table."""
        augmentation = Augmentation(self.chain, training.observed)
        parts = [
            self._augment(augmentation, training, imputations[here])
            for here in _slices(len(imputations), max(1, _ROWS_AT_ONCE // len(training)))
        ]
        return augmentation, Drawn.cat(parts)

    def _augment(
        self, augmentation: Augmentation, training: EncodedTable, imputations: Sequence[int]
    ) -> Drawn:
        def fresh(n: int, *stream: int) -> Tensor:
            keys = torch.arange(n, device=self.start.device)
            return KeyedNoise(self.seed, keys, imputations).normal(_AUGMENTATION, *stream)

        def sweep_noise(turn: int) -> Noise:
            return lambda link, cells: noise.normal(_TURN, turn, link, rows=cells)

        noise = KeyedNoise(self.seed, training.keys, imputations)
        return augmentation.run(self.start.draw(training, noise), fresh, sweep_noise)

    def _sweeps(
        self, conditionals: Sequence[Conditional], rows: EncodedTable, imputations: Sequence[int]
    ) -> Iterator[tuple[Tensor, list[Moments]]]:
        start = self.start.draw(rows, KeyedNoise(self.seed, rows.keys, imputations))
        noise, holes = self._sweep_noise(rows, imputations), self._holes(rows.observed, imputations)
        return self.chain.sweeps(conditionals, start, rows.observed, noise, self.n_sweeps, holes)

    def _shifted(
        self, conditionals: Sequence[Conditional], rows: EncodedTable, imputations: Sequence[int]
    ) -> Tensor:
        """The rows filled, `[S, n, D]`, some functions shifted in the last sweep.

        In every sweep, columns that predict each other would shift each other again and again. Links after
        the shifted ones see their draws in that sweep, those before in another, which leaves these alone.
        """
        noise, holes = self._sweep_noise(rows, imputations), self._holes(rows.observed, imputations)
        filled = self.start.draw(rows, KeyedNoise(self.seed, rows.keys, imputations))
        observed, last = rows.observed, self.n_sweeps - 1
        for swept, _ in self.chain.sweeps(conditionals, filled, observed, noise, last, holes):
            filled = swept
        links = self.chain.links
        shifted = [
            Shifted(conditional, self.shifts[link.column]) if link.column in self.shifts else conditional
            for conditional, link in zip(conditionals, links, strict=True)
        ]
        filled, _ = self.chain.sweep(shifted, filled, observed, noise(last), holes)
        if isinstance(self.chain, SequentialChain):
            return self._settled(conditionals, filled, rows, imputations)
        moved = [i for i, link in enumerate(links) if link.column in self.shifts]
        before = [i < max(moved, default=0) and i not in moved for i in range(len(links))]
        again = [cells if early else cells[:0] for cells, early in zip(holes, before, strict=True)]
        return self.chain.sweep(conditionals, filled, observed, noise(last), again)[0]

    def _settled(
        self,
        conditionals: Sequence[Conditional],
        filled: Tensor,
        rows: EncodedTable,
        imputations: Sequence[int],
    ) -> Tensor:
        """The rows after all links of a sequential chain have heard of shifted cells as of known ones."""
        known = rows.observed.clone()
        known[:, list(self.shifts)] = True
        here = (known != rows.observed).any(1)
        holes = [filled_up(cells[here[cells]], len(imputations)) for cells in self.chain.holes(known)]
        noise = self._sweep_noise(rows, imputations)
        # Cells that are weighed move, and are not redrawn: far from where they belong they need several
        # sweeps, and noise that they have seen would move them back.
        *_, (filled, _) = self.chain.sweeps(
            conditionals, filled, known, lambda sweep: noise(self.n_sweeps + sweep), self.n_sweeps, holes
        )
        return filled

    def _sweep_noise(self, rows: EncodedTable, imputations: Sequence[int]) -> Callable[[int], Noise]:
        """The noise of each sweep."""
        noise = KeyedNoise(self.seed, rows.keys, imputations)
        return lambda sweep: lambda link, cells: noise.normal(_SWEEP, sweep, link, rows=cells)

    def _holes(self, observed: Tensor, imputations: Sequence[int] = range(1)) -> list[Tensor]:
        """For each link the rows of its missing cells, given Bool `[n, D]`; whole tiles along their paths."""
        near = self.neighbours
        n_paths = len(imputations) if near is None else near.together(imputations)
        return [filled_up(cells, n_paths) for cells in self.chain.holes(observed)]

    def _batches(self, rows: EncodedTable, n_paths: int) -> Iterator[tuple[slice, EncodedTable]]:
        """Slices of the rows, and the rows there, as `_batch` gives them."""
        return ((here, self._batch(rows, here)) for here in self._slices(rows, n_paths, None))

    def _slices(self, rows: EncodedTable, n_paths: int, batch_size: int | None) -> Iterator[slice]:
        """Slices of the rows that are worked on together."""
        size = batch_size or whole_tiles(_ROWS_AT_ONCE // n_paths)
        if batch_size is None and self.neighbours is not None:
            size = min(size, whole_tiles(self.neighbours.rows_at_once))
        return _slices(len(rows), size)

    def _batch(self, rows: EncodedTable, here: slice) -> EncodedTable:
        """Some of the rows, on the device and in whole tiles."""
        index = filled_up(torch.arange(here.start, here.stop, device=rows.keys.device))
        return rows[index].to(self.start.device)


def _slices(n: int, size: int) -> Iterator[slice]:
    """Slices of so many entries at most that make up n."""
    return (slice(i, min(i + size, n)) for i in range(0, n, size))
