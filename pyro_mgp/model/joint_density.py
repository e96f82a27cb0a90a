"""The joint density of functions, residuals and cells, written as one Pyro program.

For each link in the order of the chain, with φ and k(x, x) at the table as far as it has been drawn:

    θ       hyperparameters and noise, where they have priors (`PyroSample`)
    u       ~ N(0, I)                                   whitened values
    f       = φ(x)ᵀu + √(k(x, x) - φᵀφ) e,  e ~ N(0, 1)
    x       ~ p(x | f, θ)                               observed cells
    z       ~ p(x | f, θ)                               missing cells, written into the table

Given u, the functions at different rows are independent, which is the model of which the bound of the paper
is a lower bound: with q(u) for u, and the densities above for e and z, `Trace_ELBO` estimates that bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyro_mgp.model.cholesky import factorise, naming
from pyro_mgp.model.conditional import gaussian_draw
from pyro_mgp.model.kernel_stack import KernelStack, stack_kernels
from pyro_mgp.model.likelihoods import Compound, Observation, Recoded, WithinLimits
from pyro_mgp.model.link import Link
from pyro_mgp.model.local_parameters import priors_of


@dataclass(frozen=True)
class JointDensity:
    """Joint density of a chain, whose attributes it has, as a Pyro program.

    Leading dimensions `[...]` are those of Pyro's plates of samples or particles, left of the plate "rows".
    """

    links: Sequence[Link]
    names: Sequence[str]
    compounds: Sequence[Compound]
    n_rows: int
    latent: bool
    """Whether f instead of a draw z is written into missing cells of Gaussian columns, as in the paper."""

    def prior(self) -> list[Tensor]:
        """Sample the whitened values of every link from N(0, I), `[..., M]`."""
        drawn = []
        for name, link in zip(self.names, self.links, strict=True):
            loc = link.Xu.new_zeros(link.n_values)
            prior = dist.MultivariateNormal(loc, scale_tril=torch.eye(len(loc)).to(loc))
            drawn.append(pyro.sample(f"u_{name}", prior))
        return drawn

    def posterior(self) -> list[Tensor]:
        """Sample the whitened values of every link from q(u), `[..., M]`."""
        drawn = []
        for name, link in zip(self.names, self.links, strict=True):
            # Not validated: training undoes steps whose bound is not finite.
            q = dist.MultivariateNormal(link.u_loc, scale_tril=link.u_scale_tril, validate_args=False)
            drawn.append(pyro.sample(f"u_{name}", q))
        return drawn

    def cells(
        self,
        functions: Sequence[Tensor],
        filled: Tensor,
        observed: Tensor,
        rows: Tensor | None,
        limits: Tensor | None,
        *,
        scored: bool,
    ) -> Tensor:
        """Sample residuals and missing cells, link after link; return the filled rows, `[..., B, D]`.

        Takes whitened values of each link, `[..., M]`, and the arguments of `Chain.model`. If `scored`, the
        observed cells are sites, conditioned on their values, and the result is the site "filled".
        """
        if any(values.dim() > 1 for values in functions):
            self._refuse_batches()
        kernels = stack_kernels(self.links)
        with naming(self.names):
            jitter = max((link.jitter for link in self.links), default=0.0)
            factors = factorise(kernels.among(), jitter) if self.links else ()
        n_rows = len(filled) if rows is None else self.n_rows
        plate = pyro.plate("rows", n_rows, subsample=rows, dim=-1)
        columns, drawn = list(filled.unbind(-1)), list[Tensor]()
        for i, (name, link) in enumerate(zip(self.names, self.links, strict=True)):
            table = torch.stack(torch.broadcast_tensors(*columns), dim=-1)
            mean, variance = _moments(kernels, i, factors[i], functions[i], table)
            with plate:
                e = pyro.sample(f"e_{name}", dist.Normal(filled.new_zeros(()), 1.0))
            f = gaussian_draw(mean, variance, e)
            # Outside the plate: a parameter with a prior is sampled when it is first read.
            observation = link.observed_given(f, rows)
            if scored:
                learns = link.learns_from(filled, observed)
                # Other cells may be NaN, whose gradient would be NaN as well.
                cells = filled[:, link.column].where(learns, 0.0)
                with plate:
                    pyro.sample(f"x_{name}", observation.mask(learns), obs=cells)
            holes = link.holes(filled, observed)
            ends = None if limits is None else limits[holes, link.column]
            drawn.append(self._missing(i, f[..., holes], ends, n_rows / max(len(filled), 1), scored))
            self._write(i, columns, drawn, *link.written(filled, observed, holes))
        table = torch.stack(torch.broadcast_tensors(*columns), dim=-1)
        if scored:
            with plate:
                pyro.deterministic("filled", table, event_dim=1)
        return table

    def collapsed(self, filled: Tensor, observed: Tensor, informative: Sequence[Tensor]) -> None:
        """Sample missing cells of Gaussian links, with functions integrated out; no inducing values.

        Takes the table `[N, D]`, Bool `[N, D]`, and for each link Bool `[N]`, the rows that are not mere
        draws from it.
        """
        columns = list(filled.unbind(-1))
        for name, link, rows in zip(self.names, self.links, informative, strict=True):
            holes = (rows & ~observed[:, link.column]).nonzero()[:, 0]
            if len(holes):
                # Their density is that of all cells of a column together, below.
                flat = dist.Normal(filled.new_zeros(len(holes)), 1.0).to_event(1).mask(False)
                cells = pyro.sample(f"z_{name}", flat)
                columns[link.column] = columns[link.column].index_copy(0, holes, cells)
        table = torch.stack(columns, dim=-1)
        for name, link, rows in zip(self.names, self.links, informative, strict=True):
            covariance = link.kernel(table[rows][:, link.inputs])
            noise = link.likelihood.noise * torch.eye(len(covariance)).to(covariance)
            cells = dist.MultivariateNormal(covariance.new_zeros(len(covariance)), covariance + noise)
            pyro.sample(f"x_{name}", cells, obs=table[rows, link.column])

    def writes_function(self, link: Link) -> bool:
        """Return whether a link's function is written into missing cells, which are then no sites."""
        return self.latent and not isinstance(link.likelihood, Observation)

    def _missing(self, number: int, f: Tensor, limits: Tensor | None, scale: float, scored: bool) -> Tensor:
        """Return a link's missing cells `[..., k]`, given its function there and limits; `scale` is N/B."""
        link, name = self.links[number], self.names[number]
        if f.shape[-1] == 0 or self.writes_function(link):
            return f
        cells: TorchDistribution = link.likelihood.distribution(f)
        if limits is not None and isinstance(cells, dist.Normal):
            cells = WithinLimits(cells, limits, normalised=not scored)
        if isinstance(cells, Recoded) and not scored:
            # The guide passes no gradient through discrete cells. An estimate by their score would be
            # swamped by its noise: it multiplies the score by the loss of the whole table.
            cells.has_rsample_(True)
        with poutine.scale(scale=scale), pyro.plate(f"missing_{name}", f.shape[-1], dim=-1):
            drawn: Tensor = pyro.sample(f"z_{name}", cells)
        return drawn

    def _write(
        self,
        number: int,
        columns: list[Tensor],
        drawn: Sequence[Tensor],
        rows: Tensor,
        whose: Tensor | slice,
    ) -> None:
        """Write the drawn cells of a link into rows of the columns, given whose cell each row has.

        Those of a compound are written after its last link.
        """
        compound = next((each for each in self.compounds if number in each.links), None)
        if compound is None:
            written = {self.links[number].column: drawn[number]}
        elif number == compound.links[-1]:
            written = compound.written([drawn[i] for i in compound.links])
        else:
            return
        for d, values in written.items():
            column = columns[d].expand(*values.shape[:-1], -1)
            columns[d] = column.index_copy(-1, rows, values[..., whose])

    def _refuse_batches(self) -> None:
        """Raise if kernels would have to be evaluated at several hyperparameters at once."""
        for name, link in zip(self.names, self.links, strict=True):
            for parameter in priors_of(link.kernel):
                raise NotImplementedError(
                    f"the kernel of link {name!r} has a prior on {parameter!r}, and a kernel has one value "
                    "of its parameters at a time: pass parallel=False or vectorize_particles=False"
                )


def _moments(
    kernels: KernelStack, number: int, factor: Tensor, values: Tensor, table: Tensor
) -> tuple[Tensor, Tensor]:
    """Return mean and variance of a link's function `[..., B]` at rows `[..., B, D]`."""
    cross, variance = kernels.at(number, table.reshape(-1, table.shape[-1]))
    basis = torch.linalg.solve_triangular(factor, cross, upper=False)
    variance = (variance - basis.square().sum(0)).clamp(min=0)
    basis = basis.T.unflatten(0, table.shape[:-1])
    # `Predictive` passes samples of MCMC as `[S, M]`, without a dimension for the plate.
    values = values[:, None] if values.dim() == 2 else values
    mean = basis @ values if values.dim() == 1 else (basis @ values.mT)[..., 0]
    return mean, variance.view(table.shape[:-1])
