"""Local Gaussian process of a link: a short-range model of the residuals at the nearest training rows.

The residuals e = y - μ(x) of the sparse GP at the training rows are modelled by a second GP with short
lengthscales, conditioned on the k nearest of these rows (Vecchia 1988; Datta et al. 2016). Its scale is
estimated from the same neighbours, as in a Student-t process (Shah, Wilson and Ghahramani 2014):

    C = K_NN + η I = L Lᵀ,   c = K_Nx,   K with lengthscales ℓ and unit variance
    m(x) = cᵀ C⁻¹ e_N,   v(x) = 1 + η - cᵀ C⁻¹ c,   a(x) = (ν a₀ + e_Nᵀ C⁻¹ e_N) / (ν + k)
    y | x ~ N(μ(x) + m(x), τ² a(x) v(x))

Neighbours that agree may be wrong together. Where held-out cells are more probable so, the distribution is a
contaminated normal: a tenth of the cells has four times this standard deviation. If an imputation has drawn
its own function f, then f replaces μ, and e_N + μ_N - f_N replaces e_N in m. In columns with outliers the
innovations L⁻¹e_N are clipped at a multiple of their typical size, as in robust filters (Masreliez and
Martin 1977). The neighbours of a cell are selected at the fill from which sweeps start (see
`sequential_fill`), so that C is factorised once for all sweeps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_mgp._support.indexing import rows_at
from pyro_mgp._support.tiles import evened, filled_up, whole_tiles
from pyro_mgp.model.cholesky import invert
from pyro_mgp.model.conditional import Moments
from pyro_mgp.model.kernels import matern32_of_square
from pyro_mgp.storage.untrusted import build

MAX_NEIGHBOURS = 100
"""Largest k: memory per cell grows with k², and distant neighbours add little information."""
MAX_INPUTS = 100
"""Largest number of inputs of a link with a local GP: in more, no rows are near (see `benchmarks/speed`)."""
MIN_SCALE = 1e-10
"""Smallest local variance, in squared standardised units, where neighbours agree to the last digit."""
MEDIAN_OF_SQUARE = 0.455
"""Median of a squared standard normal variable, which turns a median of squares into a variance."""
DECIMALS = 3
"""Decimals of filled rows at which neighbours are selected, so that rounding errors do not decide."""
# Distances computed together, or values of neighbours: what fits the processor's cache.
_ENTRIES_AT_ONCE = 2**20
# Adding this number rounds squared distances to 2⁻²⁵. Otherwise rounding errors, which depend on the number
# of query rows, would decide between equally distant neighbours.
_COARSE = 2.0**27


@dataclass(frozen=True)
class LocalGPParams:
    """Hyperparameters of the local GP of one link."""

    lengthscales: tuple[float, ...]  # lengthscales ℓ of the link's P inputs, standardised units
    nugget: float  # nugget η: variance of the independent part, relative to the variance of the local GP
    freedom: float  # prior degrees of freedom ν of the local scale a(x), counted in neighbours
    scale: float  # prior guess a₀ of the local scale, squared standardised units
    cut: float | None = None  # bound on innovations, in multiples of their typical size; None for none
    inflation: float = 1.0  # inflation τ of the standard deviation, calibrated on held-out cells
    contaminated: bool = False  # whether errors are contaminated normal, as those of held-out cells
    gain: float = 0.0  # share of the sparse GP's CRPS that it removes

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> LocalGPParams:
        """Restore hyperparameters from the JSON form of `asdict`; raise a ValueError if a field is wrong."""
        found: LocalGPParams = build(cls, fields, "characters")
        positive = (*found.lengthscales, found.nugget, found.scale, found.inflation, found.cut or 1.0)
        if min(positive) <= 0 or found.freedom < 0:
            raise ValueError("characters: expected positive lengthscales, variances and cuts")
        return found


ParamsPerLink = Sequence[Sequence[LocalGPParams]]
"""Hyperparameters of the metrics of each link of a chain; empty for a link without a local GP."""


@dataclass(frozen=True)
class Neighbourhood:
    """Nearest k neighbours of c cells, and the inverse Cholesky factor of their covariance."""

    nearest: Tensor  # indices of the neighbours among the references, `[c, k]`
    inputs: Tensor  # inputs of the neighbours in lengthscales, `[c, k, P]`, or P + 1 with zeros if P is odd
    root: Tensor  # L⁻¹ of C = L Lᵀ, `[c, k, k]`
    innovations: Tensor  # innovations L⁻¹ e_N, `[c, k]`
    known: Tensor | None = None  # 1 for inputs of the cell that are known, else 0, `[c, P]`; None if all are


@dataclass(frozen=True)
class LocalPosterior:
    """Local GP of one link, conditioned on the k neighbours of c cells."""

    local: LocalLink  # the local GP
    neighbourhood: Neighbourhood  # the neighbours
    weights: Tensor  # C⁻¹ e_N, or L⁻ᵀ times the clipped innovations, `[c, 1, k]`; for S functions `[c, S, k]`
    scale: Tensor  # local variance τ² a(x), `[c]`
    of_process: Tensor | None = None  # C⁻¹ (g_N + √η ε_N), see `residual_process`, `[c, S, k]`

    def joined(self, other: LocalPosterior, order: Tensor) -> LocalPosterior:
        """Return the local GP at its cells and those of another one, put in an order."""
        both = self.neighbourhood, other.neighbourhood
        names = ("nearest", "inputs", "root", "innovations")
        parts = (torch.cat([getattr(each, name) for each in both]).index_select(0, order) for name in names)
        weights, scale = torch.cat([self.weights, other.weights]), torch.cat([self.scale, other.scale])
        return LocalPosterior(self.local, Neighbourhood(*parts), weights[order], scale[order])

    def solved(self, values: Tensor) -> Tensor:
        """Return C⁻¹ times values at the neighbours `[S, c, k]`, as `[c, S, k]`."""
        root = self.neighbourhood.root
        return (root.mT @ (root @ values.permute(1, 2, 0))).mT

    def moments(self, rows: Tensor, process: Tensor | None = None) -> Moments:
        """Return mean m and variance τ² a v of the cells on S paths, given the cells' rows `[S, c, D]`.

        Cells vary together by values g(x) of a process, `[S, c]`, or are independent.
        """
        cross, v = self.cross_covariance(rows)
        mean, variance = (cross * self.weights).sum(-1).T, (v * self.scale[:, None]).T
        counts = self.local.counts(self.neighbourhood.nearest, cross)
        if process is None or self.of_process is None:
            return Moments(mean, variance, counts=counts)
        shared = self.scale.sqrt() * (process - (cross * self.of_process).sum(-1).T)
        own = (self.scale * self.local.params.nugget).expand_as(mean)
        return Moments(mean, variance, shared, own, counts)

    def cross_covariance(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return covariances `[c, S, k]` of cells with their neighbours, and their variances v `[c, S]`."""
        inputs, known = self.neighbourhood.inputs, self.neighbourhood.known
        scaled = self.local.scaled(rows) if known is None else self.local.scaled(rows) * known
        own = evened(scaled).transpose(0, 1)
        squared = own.square().sum(-1, keepdim=True) - 2 * own @ inputs.mT
        cross = _covariance(squared + inputs.square().sum(-1)[:, None, :])
        explained = (cross @ self.neighbourhood.root.mT).square_().sum(-1)
        return cross, (1 + self.local.params.nugget - explained).clamp(min=0)


@dataclass(frozen=True)
class LocalLink:
    """Local GP of one link with one metric, and the reference rows that it conditions on."""

    columns: Tensor  # columns of the table that are the link's inputs, `[P]`
    lengthscales: Tensor  # lengthscales ℓ, `[P]`
    rows: Tensor  # reference rows shared by all links, `[R, D]`
    references: Tensor  # indices of the reference rows whose cell is observed, `[n]`
    residuals: Tensor  # residuals e of the sparse GP at these rows, `[n]`
    n_neighbours: int  # number of neighbours k
    params: LocalGPParams  # hyperparameters
    is_value: Tensor | None = None  # which value of a discrete support the cells hold, Bool `[n, J]`, or None

    @classmethod
    def of(
        cls,
        columns: Tensor,
        rows: Tensor,
        residuals: Tensor,
        n_neighbours: int,
        params: LocalGPParams,
        is_value: Tensor | None = None,
    ) -> LocalLink:
        """Build a local GP from reference rows `[R, D]` and residuals `[R]`, NaN for missing cells.

        `is_value`, Bool `[R, J]`, says which value of a discrete support the rows' cells hold.
        """
        lengthscales = torch.tensor(params.lengthscales, dtype=torch.float64).to(rows)
        observed = (~residuals.isnan()).nonzero()[:, 0]
        is_value = None if is_value is None else is_value[observed]
        return cls(columns, lengthscales, rows, observed, residuals[observed], n_neighbours, params, is_value)

    def scaled(self, rows: Tensor) -> Tensor:
        """Return the inputs of rows `[..., D]` divided by the lengthscales, `[..., P]`."""
        return rows.index_select(-1, self.columns) / self.lengthscales

    @property
    def inputs(self) -> Tensor:
        """Inputs of the reference rows divided by the lengthscales, `[n, P]`; computed at each access."""
        return self.scaled(self.rows.index_select(0, self.references))

    def nearest(self, rows: Tensor, own: Tensor | None = None, known: Tensor | None = None) -> Tensor:
        """Find the neighbours of cells in rows `[c, D]`, as indices `[c, k]` into `references`.

        A cell is not its own neighbour: `own` is the index of the reference row that it is, `[c]`, or -1.
        Distances are those in the inputs of the cell that are `known` (1, else 0), `[c, P]`; None for all.
        """
        n_groups = math.ceil(math.sqrt(len(self.references) * self.n_neighbours))
        # Infinitely distant rows fill the groups up to equal size.
        lacking = -len(self.references) % n_groups
        whole = filled_up(torch.arange(len(rows), device=rows.device))
        inputs, queries = self.inputs, self.scaled(rows.index_select(0, whole))
        if known is None:
            norms = inputs.square().sum(1) + _COARSE
        else:  # |w∘(x - z)|² = |w∘x|² + [w∘x, -w/2] [-2z, -2z²]ᵀ for w of zeros and ones
            norms = torch.full_like(inputs[:, 0], _COARSE)
            inputs = torch.cat([inputs, inputs.square()], dim=1)
            queries = torch.cat([queries * known[whole], -0.5 * known[whole]], dim=1)
        inputs = torch.nn.functional.pad(evened(inputs), (0, 0, 0, lacking)).T.contiguous()
        norms = torch.nn.functional.pad(norms, (0, lacking), value=math.inf)
        size, parts = whole_tiles(_ENTRIES_AT_ONCE // len(norms)), []
        own = None if own is None else own[whole]
        for i, points in enumerate(evened(queries).split(size)):
            # The square of the cell's own inputs is left out: it is the same for all references.
            squared = torch.addmm(norms, points, inputs, alpha=-2)
            if own is not None:
                these = own[i * size :][: len(points)]
                place = torch.searchsorted(self.references, these).clamp(max=len(self.references) - 1)
                itself = self.references[place] == these
                squared[itself.nonzero()[:, 0], place[itself]] = math.inf
            parts.append(_smallest(squared.unflatten(1, (-1, n_groups)), self.n_neighbours))
        return torch.cat(parts)[: len(rows)]

    def counts(self, nearest: Tensor, cross: Tensor) -> Tensor | None:
        """Count neighbours `[c, k]` with each value, weighted by correlations `[c, S, k]`: `[S, c, J]`."""
        if self.is_value is None:
            return None
        n_values = self.is_value.shape[1]
        size = max(1, _ENTRIES_AT_ONCE // (self.n_neighbours * n_values))
        parts = zip(nearest.split(size), cross.split(size), strict=True)
        counts = torch.cat([own @ evened(rows_at(self.is_value, cells).to(own)) for cells, own in parts])
        return counts[..., :n_values].transpose(0, 1)

    def gather(
        self, nearest: Tensor, known: Tensor | None = None, trend: Tensor | None = None
    ) -> Neighbourhood:
        """Collect the neighbours of cells, given their indices `[c, k]`; for `known` see `nearest`.

        The linear functions of each cell with slopes `trend`, `[c, P]`, are subtracted from the residuals.
        """
        rows = rows_at(self.rows, rows_at(self.references, nearest))
        inputs, residuals = self.scaled(rows), rows_at(self.residuals, nearest)
        if known is not None:
            inputs = inputs * known[:, None]
        if trend is not None:
            residuals = residuals - (inputs * (trend * self.lengthscales)[:, None]).sum(-1)
        inputs = evened(inputs)
        norms = inputs.square().sum(-1)
        among = _covariance(norms[:, :, None] + norms[:, None, :] - 2 * inputs @ inputs.mT)
        among.diagonal(dim1=-2, dim2=-1).add_(self.params.nugget)
        root = invert(torch.linalg.cholesky(among))
        return Neighbourhood(nearest, inputs, root, (root @ residuals[..., None])[..., 0], known)

    def condition(self, neighbourhood: Neighbourhood) -> LocalPosterior:
        """Condition the local GP on neighbours."""
        return self.condition_each([self.params], neighbourhood)[0]

    def condition_each(
        self, candidates: Sequence[LocalGPParams], neighbourhood: Neighbourhood
    ) -> list[LocalPosterior]:
        """Condition on the same neighbours with each of G sets of a₀, ν, τ and bounds on innovations."""
        freedom, scale, cut = neighbourhood.root.new_tensor(
            [[each.freedom, each.scale, each.cut or math.inf] for each in candidates]
        ).T[..., None]
        innovations = neighbourhood.innovations.expand(len(candidates), -1, -1)
        if any(each.cut is not None for each in candidates):
            innovations = _clip(innovations, neighbourhood.root, freedom, scale, cut)
        weights = (innovations.transpose(0, 1) @ neighbourhood.root).split(1, dim=1)
        total = freedom * scale + innovations.square().sum(-1)
        scales = (total / (freedom + self.n_neighbours)).clamp(min=MIN_SCALE)
        return [
            LocalPosterior(self, neighbourhood, own, each.inflation**2 * a)
            for each, own, a in zip(candidates, weights, scales, strict=True)
        ]

    def posterior(self, rows: Tensor, own: Tensor | None = None) -> LocalPosterior:
        """Condition the local GP on the nearest neighbours of cells; takes the arguments of `nearest`."""
        return self.condition(self.gather(self.nearest(rows, own)))


def _clip(innovations: Tensor, root: Tensor, freedom: Tensor, scale: Tensor, cut: Tensor) -> Tensor:
    """Clip innovations `[G, c, k]`, nearest first, at `cut` times the scale estimated from those before."""
    # The clipped part is also subtracted from the neighbour's residual, and does not affect later ones.
    total = (freedom * scale).expand(innovations.shape[:2])
    for j in range(innovations.shape[-1]):
        most = cut * (total / (freedom + j)).clamp(min=MIN_SCALE).sqrt()
        own, of_own = innovations[..., j], root[:, :, j]
        kept = own.clamp(-most, most)
        innovations = innovations.addcmul(of_own, ((kept - own) / of_own[:, j])[..., None])
        total = total.addcmul(kept, kept)
    return innovations


def _smallest(values: Tensor, k: int) -> Tensor:
    """Return the indices of the k ≤ G smallest numbers of each row in order, given G groups `[c, n/G, G]`."""
    # These numbers lie in the k groups with the smallest minima; the other groups need no search.
    n_groups = values.shape[-1]
    groups = values.amin(1).topk(k, largest=False, sorted=False).indices
    among = values.gather(2, groups[:, None, :].expand(-1, values.shape[1], -1)).flatten(1)
    place = among.topk(k, largest=False).indices
    return place.div(k, rounding_mode="floor") * n_groups + groups.gather(1, place % k)


def _covariance(squared: Tensor) -> Tensor:
    """Return the Matérn 3/2 covariance at squared distances in lengthscales."""
    return matern32_of_square(3 * squared, squared.new_zeros(()))
