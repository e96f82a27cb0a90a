"""What nearby rows know: a second, local scale of each link.

A sparse GP with few inducing inputs sees a column from afar. What it leaves at the training rows,
e = y - μ(x), is taken for a GP of short lengthscales that is conditioned on the k nearest of these rows only
(Vecchia 1988; Datta et al. 2016), with a scale of its own at every place (a Student-t process, Shah, Wilson
and Ghahramani 2014, whose k + ν degrees of freedom are enough to draw as from a Gaussian):

    C = K_NN + η I = L Lᵀ,   c = K_Nx,   K with lengthscales ℓ and unit variance
    m(x) = cᵀ C⁻¹ e_N,   v(x) = 1 + η - cᵀ C⁻¹ c,   a(x) = (ν a₀ + e_Nᵀ C⁻¹ e_N) / (ν + k)
    y | x ~ N(μ(x) + m(x), τ² a(x) v(x))

Where an imputation has drawn a function f of its own, f takes the place of μ, and e_N + μ_N - f_N that of e_N
in m: near rows that are known, all imputations say the same.

Where a column has outliers, one of them among the neighbours would carry m(x) away and blow a(x) up. There
the innovations L⁻¹e_N, what each neighbour adds to those before it, are cut off at so many of their typical
size (as in robust filters: Masreliez and Martin 1977).

Which rows are near is decided once per cell, at the conditional means of its row's holes; how near, at each
draw of these. So C is factorised once for all imputations.

Lengthscales that are learnt from other cells are others, and predict about as well: what is near is not known
for sure. Where a link has several such metrics, imputations take turns between them.

How ℓ and η are found stands in `neighbour_metric.py`, the rest in `refinement.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from pyro_mgp._support.tiles import evened, filled_up, whole_tiles
from pyro_mgp.model.chain import Chain
from pyro_mgp.model.cholesky import invert
from pyro_mgp.model.conditional import Conditional, GaussianConditional, Moments
from pyro_mgp.model.kernels import matern32_of_square
from pyro_mgp.model.local_parameters import local_parameters
from pyro_mgp.storage.untrusted import build

MOST_NEIGHBOURS = 100
"""Each cell costs memory by the square of its neighbours, and those far away say little."""
LEAST_SCALE = 1e-10
"""Smallest local variance, squared standardised units, where neighbours agree to the last digit."""
MEDIAN_OF_SQUARE = 0.455
"""Median of a squared standard normal number: what the median of squares says of their mean."""
# Distances looked at together: what the processor's cache holds.
_ENTRIES_AT_ONCE = 2**20
# Numbers that are kept of the neighbours of some rows: 500 MB.
_KEPT_AT_ONCE = 2**26
# Squared distances are rounded to 2⁻²⁵, the last digit of a number of this size, or rounding errors would
# decide between neighbours: these depend on how many rows are asked about.
_COARSE = 2.0**27
# Of new rows, means are settled by so many sweeps, the first without neighbours; neighbours are looked for at
# these decimals: rounding errors, which depend on how many rows there are, must not choose between them.
_PILOT_WALKS, _POINT_DECIMALS = 2, 3


@dataclass(frozen=True)
class LocalGPParams:
    """What the local scale of a link is like."""

    lengthscales: tuple[float, ...]
    """ℓ: of each of the link's P inputs."""
    nugget: float
    """η: variance of what no neighbour knows, in units of the local GP's."""
    freedom: float
    """ν: how many neighbours the common scale counts as."""
    scale: float
    """a₀: the common scale, squared standardised units."""
    cut: float | None = None
    """Typical sizes beyond which innovations are cut off, if they are."""
    inflation: float = 1.0
    """τ: standard deviations that cells drawn by the whole sweep need."""

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> LocalGPParams:
        """What `dataclasses.asdict` and JSON made of one.

        Raises:
            ValueError: It is none.
        """
        found: LocalGPParams = build(cls, fields, "characters")
        positive = (*found.lengthscales, found.nugget, found.scale, found.inflation, found.cut or 1.0)
        if min(positive) <= 0 or found.freedom < 0:
            raise ValueError("characters: expected positive lengthscales, variances and cuts")
        return found


ParamsPerLink = Sequence[Sequence[LocalGPParams]]
"""Of each link of a chain; see `Neighbours.links`."""


@dataclass(frozen=True)
class Nearby:
    """The k neighbours of c cells, and what they say."""

    local: LocalLink
    """Whose neighbours; of several metrics the first."""
    gathered: Gathered
    """Who they are."""
    weights: Tensor
    """C⁻¹ e_N, or L⁻ᵀ of the innovations that were cut off, `[c, 1, k]`; of S functions `[c, S, k]`."""
    scale: Tensor
    """τ² a(x), `[c]`."""

    def given(self, moved: Tensor) -> Nearby:
        """The neighbours of a sparse GP not at its mean μ, but at drawn functions f: there e + μ - f is left.

        Args:
            moved: f - μ at the neighbours, `[S, c, k]`.
        """
        root = self.gathered.root
        return replace(self, weights=self.weights - (root.mT @ (root @ moved.permute(1, 2, 0))).mT)

    def __getitem__(self, cells: Tensor) -> Nearby:
        of_cells = {field.name: getattr(self.gathered, field.name)[cells] for field in fields(Gathered)}
        gathered = Gathered(**of_cells)
        return replace(self, gathered=gathered, weights=self.weights[cells], scale=self.scale[cells])

    def moments(self, rows: Tensor) -> Moments:
        """Mean m and variance τ² a v of the cells, whose rows S paths have filled, `[S, c, D]`."""
        cross, v = self.relation(rows)
        return Moments((cross * self.weights).sum(-1).T, (v * self.scale[:, None]).T)

    def relation(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """How far the cells have to do with their neighbours: c and v, `[c, S, k]` and `[c, S]`."""
        inputs, lengthscales = self.gathered.inputs, self.gathered.lengthscales
        own = evened(rows[..., self.local.columns] / lengthscales).transpose(0, 1)
        squared = own.square().sum(-1, keepdim=True) - 2 * own @ inputs.mT
        cross = _covariance(squared + inputs.square().sum(-1)[:, None, :])
        explained = (cross @ self.gathered.root.mT).square_().sum(-1)
        return cross, (1 + self.gathered.nugget[:, None] - explained).clamp(min=0)


@dataclass(frozen=True)
class Gathered:
    """The k neighbours of c cells, whatever their scale."""

    lengthscales: Tensor
    """ℓ by which they are near, `[c, P]`."""
    nugget: Tensor
    """η, `[c]`."""
    nearest: Tensor
    """Their numbers among the references, `[c, k]`."""
    inputs: Tensor
    """Scaled inputs, `[c, k, P]`, or P + 1 with zeros if P is odd."""
    root: Tensor
    """L⁻¹ of C = L Lᵀ, `[c, k, k]`."""
    innovations: Tensor
    """L⁻¹ e_N, `[c, k]`."""


@dataclass(frozen=True)
class LocalLink:
    """The local scale of one link."""

    columns: Tensor
    """Columns of the table that are its inputs, `[P]`."""
    lengthscales: Tensor
    """ℓ, `[P]`."""
    rows: Tensor
    """The reference rows of all links, `[R, D]`."""
    references: Tensor
    """Numbers of those whose cell is known, `[n]`."""
    residuals: Tensor
    """What the sparse GP leaves there, e, `[n]`."""
    n_neighbours: int
    """k."""
    character: LocalGPParams

    @classmethod
    def of(
        cls, columns: Tensor, rows: Tensor, residuals: Tensor, n_neighbours: int, character: LocalGPParams
    ) -> LocalLink:
        """From reference rows `[R, D]` and residuals `[R]`, NaN where the cell is missing."""
        lengthscales = torch.tensor(character.lengthscales, dtype=torch.float64).to(rows)
        known = (~residuals.isnan()).nonzero()[:, 0]
        return cls(columns, lengthscales, rows, known, residuals[known], n_neighbours, character)

    @property
    def inputs(self) -> Tensor:
        """The scaled inputs of the references, `[n, P]`; made anew, which takes less time than a search."""
        return self.scaled(self.rows[self.references])

    def scaled(self, rows: Tensor) -> Tensor:
        """The inputs of rows `[..., D]` in lengthscales, `[..., P]`."""
        return rows[..., self.columns] / self.lengthscales

    def at(self, lengthscales: Tensor, n_neighbours: int) -> LocalLink:
        """The same references, near by other lengthscales `[P]`."""
        return replace(self, lengthscales=lengthscales, n_neighbours=n_neighbours)

    def with_params(self, character: LocalGPParams) -> LocalLink:
        """The same with the prior scale, ν and cut of another character."""
        scale, freedom, cut = character.scale, character.freedom, character.cut
        return replace(self, character=replace(self.character, scale=scale, freedom=freedom, cut=cut))

    def inflated(self, inflation: float) -> LocalLink:
        """The same with another τ."""
        return replace(self, character=replace(self.character, inflation=inflation))

    def nearest(self, rows: Tensor, own: Tensor | None = None) -> Tensor:
        """The neighbours of c cells, by numbers `[c, k]` into `references`.

        Args:
            rows: The cells' rows, `[c, D]`.
            own: Which reference row each of them is, `[c]`, and must not be its own neighbour.
        """
        n_groups = math.ceil(math.sqrt(len(self.references) * self.n_neighbours))
        # Behind the references stand some that lie infinitely far, for groups of equal size.
        lacking = -len(self.references) % n_groups
        inputs = self.inputs
        norms = inputs.square().sum(1) + _COARSE
        inputs = torch.nn.functional.pad(evened(inputs), (0, 0, 0, lacking)).T.contiguous()
        norms = torch.nn.functional.pad(norms, (0, lacking), value=math.inf)
        size = whole_tiles(_ENTRIES_AT_ONCE // len(norms))
        parts = []
        for i, points in enumerate(evened(self.scaled(rows)).split(size)):
            # Less the square of the cell's own inputs, which is the same for all of its neighbours.
            squared = torch.addmm(norms, points, inputs, alpha=-2)
            if own is not None:
                self._put_away(squared, own[i * size :][: len(points)])
            parts.append(_smallest(squared.unflatten(1, (-1, n_groups)), self.n_neighbours))
        return torch.cat(parts)

    def _put_away(self, squared: Tensor, own: Tensor) -> None:
        """Put the reference rows `[c]` themselves out of reach, in their squared distances `[c, n]`."""
        place = torch.searchsorted(self.references, own).clamp(max=len(self.references) - 1)
        itself = self.references[place] == own
        squared[itself.nonzero()[:, 0], place[itself]] = math.inf

    def gather(self, nearest: Tensor) -> Gathered:
        """The neighbours `[c, k]`, and how they hang together."""
        return gather_by([self], [nearest])

    def hear(self, gathered: Gathered) -> Nearby:
        """What neighbours say."""
        return self.hear_as([self.character], gathered)[0]

    def hear_as(self, characters: Sequence[LocalGPParams], gathered: Gathered) -> list[Nearby]:
        """What they say to each of G characters, which costs little more than to one.

        Args:
            characters: Their prior scales, ν, cuts and τ; by which ℓ and η neighbours are near, they know.
            gathered: The neighbours of c cells, by any metrics of this link.
        """
        freedom, scale, cut = gathered.root.new_tensor(
            [[each.freedom, each.scale, each.cut or math.inf] for each in characters]
        ).T[..., None]
        innovations = gathered.innovations.expand(len(characters), -1, -1)
        if any(each.cut is not None for each in characters):
            innovations = _cut_off(innovations, gathered.root, freedom, scale, cut)
        weights = (innovations.transpose(0, 1) @ gathered.root).split(1, dim=1)
        total = freedom * scale + innovations.square().sum(-1)
        scales = (total / (freedom + self.n_neighbours)).clamp(min=LEAST_SCALE)
        return [
            Nearby(replace(self, character=each), gathered, own, each.inflation**2 * a)
            for each, own, a in zip(characters, weights, scales, strict=True)
        ]

    def around(self, rows: Tensor, own: Tensor | None = None) -> Nearby:
        """What the neighbours of cells say; takes the arguments of `nearest`."""
        return self.hear(self.gather(self.nearest(rows, own)))


def gather_by(metrics: Sequence[LocalLink], nearest: Sequence[Tensor]) -> Gathered:
    """The neighbours of c cells by each of G metrics of a link, those by one behind those by the other.

    Args:
        metrics: The metrics.
        nearest: For each of them the neighbours, `[c, k]`, by numbers into the link's `references`.

    Returns:
        The neighbours of G · c cells.
    """
    local, n_cells, numbers = metrics[0], len(nearest[0]), torch.cat(list(nearest))
    nuggets = local.lengthscales.new_tensor([each.character.nugget for each in metrics])
    nugget = nuggets.repeat_interleave(n_cells)
    lengthscales = torch.stack([each.lengthscales for each in metrics]).repeat_interleave(n_cells, dim=0)
    inputs = evened(local.rows[local.references[numbers]][..., local.columns] / lengthscales[:, None])
    norms = inputs.square().sum(-1)
    among = _covariance(norms[:, :, None] + norms[:, None, :] - 2 * inputs @ inputs.mT)
    among.diagonal(dim1=-2, dim2=-1).add_(nugget[:, None])
    root = invert(torch.linalg.cholesky(among))
    innovations = (root @ local.residuals[numbers][..., None])[..., 0]
    return Gathered(lengthscales, nugget, numbers, inputs, root, innovations)


@dataclass(frozen=True)
class Turns:
    """What neighbours of c cells say to S paths, each of which hears those by one of G metrics."""

    nearby: Nearby
    """The neighbours of G · c cells, by one metric behind those by the other."""
    paths: Tensor
    """The numbers of each metric's paths, `[S', G]`; where it has fewer than others, its last one again."""

    @classmethod
    def of(
        cls,
        metrics: Sequence[LocalLink],
        imputations: Sequence[int],
        rows: Tensor,
        own: Tensor | None = None,
    ) -> Turns:
        """Neighbours of cells, by the metric of each imputation.

        Args:
            metrics: The local scales of one link, which are heard alike.
            imputations: Numbers of the S imputations.
            rows: The cells' rows, `[c, D]`.
            own: See `LocalLink.nearest`.
        """
        turn = torch.tensor(imputations, device=rows.device) % len(metrics)
        taken = turn.unique().tolist()
        paths = [(turn == number).nonzero()[:, 0] for number in taken]
        most = max(map(len, paths))
        even = [torch.cat([each, each[-1:].expand(most - len(each))]) for each in paths]
        nearest = [metrics[number].nearest(rows, own) for number in taken]
        gathered = gather_by([metrics[number] for number in taken], nearest)
        return cls(metrics[0].hear(gathered), torch.stack(even, dim=1))

    def given(self, drawn: Conditional, mean: Conditional) -> Turns:
        """The same where the link's sparse GP is not at its mean, but at S functions; see `Nearby.given`."""
        local, nearest = self.nearby.local, self.nearby.gathered.nearest
        used, place = nearest.unique(return_inverse=True)
        there = local.rows[local.references[filled_up(used)]]
        moved = (drawn.functions(there) - mean.functions(there))[self.paths]
        n_paths, n_metrics = self.paths.shape
        of_metrics = place.view(1, n_metrics, -1).expand(n_paths, -1, -1)
        of_cells = moved.gather(2, of_metrics).view(n_paths, *nearest.shape)
        return replace(self, nearby=self.nearby.given(of_cells))

    def of_first(self, n: int) -> Turns:
        """The same of the first n cells only."""
        n_metrics, cells = self.paths.shape[1], torch.arange(len(self.nearby.scale), device=self.paths.device)
        if n * n_metrics == len(cells):
            return self
        return replace(self, nearby=self.nearby[cells.view(n_metrics, -1)[:, :n].flatten()])

    def moments(self, rows: Tensor) -> Moments:
        """Mean and variance of the cells, whose rows the paths have filled, `[S, c, D]`."""
        n_metrics = self.paths.shape[1]
        if n_metrics == 1:
            return self.nearby.moments(rows)
        at = self.nearby.moments(rows[self.paths].flatten(1, 2))
        place = torch.empty(len(rows), dtype=torch.long, device=rows.device)
        place[self.paths.flatten()] = torch.arange(self.paths.numel(), device=rows.device)

        def in_order(values: Tensor) -> Tensor:
            return values.unflatten(1, (n_metrics, -1)).flatten(0, 1)[place]

        return Moments(in_order(at.mean), in_order(at.variance))


@dataclass(frozen=True)
class LocalConditional(GaussianConditional):
    """A link's sparse GP together with its local scale, at certain cells; see `link.Conditional`."""

    sparse: Conditional
    """The sparse GP, at its mean or at drawn functions."""
    nearby: Turns
    """The cells' neighbours."""

    @property
    def noise(self) -> Tensor:
        """None is left: the local variance is that of an observation."""
        return torch.zeros_like(self.sparse.noise)

    def moments(self, rows: Tensor) -> Moments:
        """Moments of observations of the cells, whose rows S paths have filled, `[S, c, D]`."""
        local = self.nearby.moments(rows)
        return Moments(self.sparse.mean(rows) + local.mean, local.variance)

    def mean(self, rows: Tensor) -> Tensor:
        """See `link.Conditional`."""
        return self.moments(rows).mean

    def functions(self, rows: Tensor) -> Tensor:
        """See `link.Conditional`; of the sparse GP alone."""
        return self.sparse.functions(rows)


@dataclass(frozen=True)
class Neighbours:
    """The local scales of a chain's links."""

    rows: Tensor
    """Reference rows with their holes at conditional means, `[R, D]`."""
    residuals: Tensor
    """What each link's sparse GP leaves at them, NaN where the cell is missing, `[L, R]`."""
    n_neighbours: int
    """k."""
    links: Sequence[Sequence[LocalLink]]
    """Of each link, by its metrics, between which imputations take turns; none where they do not help."""

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        chain: Chain,
        rows: Tensor,
        residuals: Tensor,
        characters: ParamsPerLink,
        n_neighbours: int,
    ) -> Neighbours:
        """From what is kept of them; see the attributes."""
        with local_parameters():
            links = [
                [LocalLink.of(link.inputs, rows, left, n_neighbours, each) for each in of_link]
                for link, left, of_link in zip(chain.links, residuals, characters, strict=True)
            ]
        return cls(rows, residuals, n_neighbours, links)

    @property
    def rows_at_once(self) -> int:
        """Rows for which `around` should be asked at most, all of whose cells may be missing."""
        k = self.n_neighbours
        each = sum(k * (k + len(local.columns)) for metrics in self.links for local in metrics)
        return max(1, _KEPT_AT_ONCE // max(each, 1))

    @property
    def characters(self) -> ParamsPerLink:
        """What the local scales of each link are like."""
        return [[local.character for local in metrics] for metrics in self.links]

    def together(self, imputations: Sequence[int]) -> int:
        """What the numbers of a cell that are worked on together divide by, for `tiles.filled_up`.

        There is one for each path of these imputations, and k for each entry of `Turns.paths`.
        """
        numbers, found = torch.tensor(imputations), len(imputations)
        for n_metrics in {len(metrics) for metrics in self.links if metrics}:
            _, n_paths = (numbers % n_metrics).unique(return_counts=True)
            found = math.gcd(found, self.n_neighbours * len(n_paths) * int(n_paths.max()))
        return found

    @torch.no_grad()
    def around(
        self,
        chain: Chain,
        marginals: Sequence[Conditional],
        point: Tensor,
        holes: Sequence[Tensor],
        imputations: Sequence[int],
        own: Tensor | None = None,
    ) -> list[Turns | None]:
        """The neighbours of missing cells, found at the conditional means of their rows' holes.

        Takes the arguments of `settle`, and `imputations`, the numbers of those that are to hear of them.
        """
        self.settle(chain, marginals, point, holes, own)
        return self.near(point, holes, imputations, own)

    @torch.no_grad()
    def settle(
        self,
        chain: Chain,
        marginals: Sequence[Conditional],
        point: Tensor,
        holes: Sequence[Tensor],
        own: Tensor | None = None,
    ) -> None:
        """Put the holes of rows at the conditional means at which neighbours are looked for, in place.

        Args:
            chain: The chain.
            marginals: Its links' conditionals, at the means of q(u).
            point: The rows with a first guess in their holes, `[n, D]`.
            holes: For each link the rows of its missing cells.
            own: Which reference row each row is, `[n]`, if they are reference rows.
        """
        settle(chain, marginals, point, holes)
        for _ in range(_PILOT_WALKS - 1):
            point.round_(decimals=_POINT_DECIMALS)
            for i, here in enumerate(holes):
                self.improve(i, chain, marginals, point, here, own)
        point.round_(decimals=_POINT_DECIMALS)

    def near(
        self,
        point: Tensor,
        cells: Sequence[Tensor],
        imputations: Sequence[int],
        own: Tensor | None = None,
    ) -> list[Turns | None]:
        """The neighbours of cells of rows at their means.

        Args:
            point: The rows as `settle` leaves them, `[n, D]`.
            cells: For each link the rows of the cells.
            imputations: Numbers of the imputations that are to hear of them.
            own: Which reference row each row is, `[n]`: no cell is a neighbour of itself. -1 for none.
        """
        return [
            Turns.of(metrics, imputations, point[here], None if own is None else own[here])
            if metrics
            else None
            for metrics, here in zip(self.links, cells, strict=True)
        ]

    def given(
        self,
        nearby: Sequence[Turns | None],
        drawn: Sequence[Conditional],
        marginals: Sequence[Conditional],
    ) -> list[Turns | None]:
        """The neighbours of cells where each link is at drawn functions; see `Turns.given`."""
        return [
            None if near is None else near.given(functions, mean)
            for near, functions, mean in zip(nearby, drawn, marginals, strict=True)
        ]

    def improve(
        self,
        i: int,
        chain: Chain,
        marginals: Sequence[Conditional],
        point: Tensor,
        here: Tensor,
        own: Tensor | None = None,
    ) -> None:
        """Put the cells `here` of the i-th link at their conditional means by its first metric, in place."""
        if any(i in category.links for category in chain.categories):
            # Its levels are settled, and have no neighbours.
            return
        rows = point[here]
        mean = marginals[i].mean(rows[None])[0]
        for local in self.links[i][:1]:
            nearby = local.around(rows, None if own is None else own[here])
            mean = mean + nearby.moments(rows[None]).mean[0]
        point[here, chain.links[i].column] = mean


def settle(
    chain: Chain, marginals: Sequence[Conditional], point: Tensor, holes: Sequence[Tensor], n_sweeps: int = 1
) -> None:
    """Put the holes of rows `[n, D]` at the conditional means of the sparse GPs alone, in place."""
    for _ in range(n_sweeps):
        means: list[Tensor] = []
        for link, conditional, here in zip(chain.links, marginals, holes, strict=True):
            means.append(conditional.mean(point[here][None]))
            point[here, link.column] = means[-1][0]
            for category in chain.categories:
                if category.links[-1] == len(means) - 1:
                    answers = torch.stack([means[i] for i in category.links], dim=-1)
                    point[here[:, None], list(category.columns)] = category.expectation(answers)[0]


def _cut_off(innovations: Tensor, root: Tensor, freedom: Tensor, scale: Tensor, cut: Tensor) -> Tensor:
    """Innovations, each cut off where those before it and the prior say; the nearest come first.

    What is cut off a neighbour is cut off its residual too, so that those after it are not misled.

    Args:
        innovations: L⁻¹e_N of c cells, for G priors, `[G, c, k]`.
        root: L⁻¹, `[c, k, k]`.
        freedom: ν, `[G, 1]`.
        scale: a₀, likewise.
        cut: In typical sizes, likewise; infinite for none.
    """
    total = (freedom * scale).expand(innovations.shape[:2])
    for j in range(innovations.shape[-1]):
        most = cut * (total / (freedom + j)).clamp(min=LEAST_SCALE).sqrt()
        own, of_own = innovations[..., j], root[:, :, j]
        kept = own.clamp(-most, most)
        innovations = innovations.addcmul(of_own, ((kept - own) / of_own[:, j])[..., None])
        total = total.addcmul(kept, kept)
    return innovations


def _smallest(values: Tensor, k: int) -> Tensor:
    """Where the k smallest numbers of each row stand, in order, `[c, k]`.

    They stand in those of G groups whose smallest numbers are smallest: the others need not be looked at.

    Args:
        values: `[c, n/G, G]`; the last dimension numbers the groups.
        k: How many, at most G.
    """
    n_groups = values.shape[-1]
    groups = values.amin(1).topk(k, largest=False, sorted=False).indices
    among = values.gather(2, groups[:, None, :].expand(-1, values.shape[1], -1)).flatten(1)
    place = among.topk(k, largest=False).indices
    return place.div(k, rounding_mode="floor") * n_groups + groups.gather(1, place % k)


def _covariance(squared: Tensor) -> Tensor:
    """Of the local GP, given squared distances in its lengthscales."""
    return matern32_of_square(3 * squared, squared.new_zeros(()))


def corrected(conditionals: Sequence[Conditional], nearby: Sequence[Turns | None]) -> list[Conditional]:
    """The links' conditionals, with their local scales where they have them."""
    return [
        sparse if near is None else LocalConditional(sparse, near)
        for sparse, near in zip(conditionals, nearby, strict=True)
    ]
