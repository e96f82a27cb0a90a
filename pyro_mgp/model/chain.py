"""The chain of sparse GPs of the paper (Jafrasteh et al. 2023), as a Pyro model and guide.

    L = N/B · Σ_{i in batch} Σ_{d observed} E_q[log p(x_id | f_id)]  -  Σ_links KL[q(u) ‖ p(u)]

Each link predicts its column from all others at the current fill. Its draws are written into the missing
cells of that column before the next link is evaluated. The loop is `Chain.sweep`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.nn import PyroModule
from torch import Tensor

from pyro_mgp.model.cholesky import naming
from pyro_mgp.model.conditional import Conditional, Moments, gaussian_draw
from pyro_mgp.model.joint_density import JointDensity
from pyro_mgp.model.likelihoods import Compound, TwoPart
from pyro_mgp.model.limited_cells import clamped, informative_cells
from pyro_mgp.model.link import Link, condition
from pyro_mgp.model.local_parameters import LocalModule, local_method

Propagate = Literal["predictive", "latent"]
Precision = Literal["double", "mixed"]
Noise = Callable[[int, Tensor], Tensor]
"""Standard normal numbers `[S, n]` for the link of that number at rows `[n]`."""


class Visit(NamedTuple):
    """Visit of a link in a sweep, which redraws its missing cells in k rows."""

    conditionals: Sequence[Conditional]
    number: int
    """Number of the link."""
    filled: Tensor
    """The table with its current fill, `[S, n, D]`."""
    observed: Tensor
    """Observed cells of the table, Bool `[n, D]`."""
    noise: Noise
    rows: Tensor
    """Numbers of the rows in the table, `[k]`."""
    visited: Sequence[Moments]
    """Moments of the links up to this one."""
    limits: Tensor | None
    """Limits of missing cells, `[n, D, 2]`; see `limited_cells`."""

    @property
    def informative(self) -> Tensor:
        """Cells of the table that are observed or have a limit, Bool `[n, D]`."""
        return informative_cells(self.observed, self.limits)


class Chain(LocalModule):
    """Chain of sparse GPs over the incomplete columns of a table (MGP, Jafrasteh et al. 2023).

    `model` is the joint density of functions, missing and observed cells, for any inference of Pyro's.
    `guide` is its variational posterior in training mode (`chain.train()`). In evaluation mode
    (`chain.eval()`) it draws missing cells given all observed ones, so that
    `pyro.infer.Predictive(chain.model, guide=chain.guide)` gives proper imputations in its site `"filled"`:
    one function per link and imputation, shared by all rows.

    Args:
        links: The links, in the order they are swept.
        names: One name per link; its sites are `"u_" + name` (whitened values), `"e_" + name` (residuals of
            the function), `"x_" + name` (observed cells) and `"z_" + name` (missing cells).
        n_rows: Rows N of the training table, for the factor N/B of a minibatch.
        n_paths: Monte Carlo paths S per row in `marginal_model`.
        n_sweeps: Number of sweeps through the chain per draw, by the guide in evaluation mode.
        propagate: Input of later links in a missing cell: the "predictive" draw f + noise, or the "latent"
            function value f as in the paper. Of columns that are not Gaussian it is always a drawn value.
        backpropagate: Whether gradients of sweeps pass through draws that are not discrete into earlier
            links, as in the paper, or each link learns from the observed cells of its own column.
        compounds: Variables of several links, such as categories; see `likelihoods.Compound`.
        precision: "double", or "mixed" for float32 in the products over rows, where no gradient passes
            through the draws.
        priors: Functions that return log densities of parameters under their priors, terms of the bound.

    Raises:
        ValueError: If names and links do not pair up, two links predict the same column, or the links of a
            compound do not follow each other.

    Example:
        >>> from pyro_mgp.model.kernels import matern32
        >>> from pyro_mgp.model.link import Link
        >>> from pyro_mgp.model.likelihoods import Gaussian
        >>> Xu = torch.zeros(1, 1).double()
        >>> links = [Link(matern32(1), Xu, d, [1 - d], Gaussian(0.5)) for d in (0, 1)]
        >>> chain = Chain(links, ["a", "b"], n_rows=3)
        >>> observed = torch.tensor([[True, True], [True, False], [False, True]])
        >>> chain.model(torch.zeros(3, 2).double(), observed).shape
        torch.Size([3, 2])
    """

    def __init__(
        self,
        links: Sequence[Link],
        names: Sequence[str],
        n_rows: int,
        *,
        n_paths: int = 1,
        n_sweeps: int = 1,
        propagate: Propagate = "predictive",
        backpropagate: bool = True,
        compounds: Sequence[Compound] = (),
        precision: Precision = "double",
        priors: Sequence[Callable[[], Tensor]] = (),
    ) -> None:
        columns = [link.column for link in links]
        if len(names) != len(links) or len(set(columns)) != len(columns):
            raise ValueError(
                f"expected one name and one column per link, got {len(links)} links of columns {columns} "
                f"and names {list(names)}"
            )
        super().__init__()
        self.links: Sequence[Link] = PyroModule[torch.nn.ModuleList](links)
        self.names = tuple(names)
        self.n_rows = n_rows
        self.n_paths = n_paths
        self.n_sweeps = n_sweeps
        self.propagate = propagate
        self.backpropagate = backpropagate
        for compound in compounds:
            if list(compound.links) != list(range(compound.links[0], compound.links[-1] + 1)):
                raise ValueError(
                    f"the links of a variable must follow each other, got links number {compound.links}: "
                    "a link in between would see parts of it that are not drawn together"
                )
        self.compounds = tuple(compounds)
        self.precision = precision
        self.priors = tuple(priors)

    @local_method
    def model(
        self,
        filled: Tensor,
        observed: Tensor,
        rows: Tensor | None = None,
        limits: Tensor | None = None,
    ) -> Tensor:
        """Sample functions and missing cells and score the observed cells; see `joint_density` for the sites.

        Args:
            filled: Rows of the table with a fill in their missing cells, `[B, D]`, standardised units. A link
                reads the fill of the columns of later links, if it has any as inputs.
            observed: Bool `[B, D]`.
            rows: Their row numbers in the training table, `[B]`, if they are a minibatch of it.
            limits: Lower and upper limits of missing cells of Gaussian links, `[B, D, 2]`, infinite for none.
                Their sites have the density of the cell within the limits, which integrates to the
                probability of the interval.

        Returns:
            The rows with their missing cells drawn, `[B, D]`, the site "filled".

        Raises:
            NotImplementedError: If many samples are drawn at once and a kernel's parameter has a prior.
        """
        joint = self._joint_density
        if self.priors:
            pyro.factor("log_prior", self.log_prior())
        return joint.cells(joint.prior(), filled, observed, rows, limits, scored=True)

    @local_method
    def guide(
        self,
        filled: Tensor,
        observed: Tensor,
        rows: Tensor | None = None,
        limits: Tensor | None = None,
    ) -> None:
        """Sample functions from q(u), and then missing cells; takes the arguments of `model`.

        In training mode cells come from the links' own densities, which makes `Trace_ELBO` the bound of the
        paper; in evaluation mode from `n_sweeps` steps of a Gibbs sampler at the drawn functions, so that
        observed cells of later columns inform them.
        """
        joint = self._joint_density
        functions = joint.posterior()
        if self.training:
            joint.cells(functions, filled, observed, rows, limits, scored=False)
            return
        paths = [u.flatten(0, -2) if u.dim() > 1 else u[None] for u in functions]
        start = clamped(filled, observed, limits)
        start = start.expand(len(paths[0]) if paths else 1, *filled.shape)
        noise = fresh_noise(start)
        with torch.no_grad():
            conditionals = [self.conditionals(paths)] * self.n_sweeps
            missing = self.holes(filled, observed)
            *_, (drawn, _) = self.sweeps(conditionals, start, observed, lambda _: noise, missing, limits)
        of_links = zip(self.names, self.links, functions, missing, strict=True)
        for name, link, u, holes in of_links:
            cells = drawn[..., holes, link.column].reshape(*u.shape[:-2], -1)
            if len(holes) and not joint.writes_function(link):
                with pyro.plate(f"missing_{name}", len(holes), dim=-1):
                    pyro.sample(f"z_{name}", dist.Delta(cells))

    @property
    def _joint_density(self) -> JointDensity:
        return JointDensity(
            self.links, self.names, self.compounds, self.n_rows, latent=self.propagate == "latent"
        )

    @local_method
    def marginal_model(
        self,
        filled: Tensor,
        observed: Tensor,
        rows: Tensor | None = None,
        limits: Tensor | None = None,
        noise: Noise | None = None,
        redraw: bool = True,
    ) -> Tensor:
        """Score the observed cells under the marginals q(f), and draw the missing ones, on several paths.

        A program for training only: it reads q(u) to integrate functions out of the expected log density, as
        the paper does. Under `Trace_ELBO` with `marginal_guide` it gives the bound of `model` and `guide`
        with less noise; in a `SequentialChain`, drawn cells that inform later links count as data, and in any
        chain drawn cells with limits. Takes the arguments of `model`, the noise of the sweep, drawn by
        default, and whether to redraw missing cells. Returns the rows, `[S, B, D]`, or `[B, D]` for a single
        path.
        """
        self._joint_density.prior()
        if self.priors:
            pyro.factor("log_prior", self.log_prior())
        start = filled.expand(self.n_paths, *filled.shape)
        kept = observed if redraw else torch.ones_like(observed)
        noise = noise or fresh_noise(start)
        end, visited = self.sweep(self.conditionals(), start, kept, noise, None, limits)
        told = informative_cells(observed, limits)

        def one_path(paths: Tensor) -> Tensor:
            return paths if self.n_paths > 1 else paths[0]

        with contextlib.ExitStack() as plates:
            # A single path needs one plate only.
            if self.n_paths > 1:
                plates.enter_context(poutine.scale(scale=1 / self.n_paths))
                plates.enter_context(pyro.plate("paths", self.n_paths, dim=-2))
            n_rows = len(filled) if rows is None else self.n_rows
            plates.enter_context(pyro.plate("rows", n_rows, subsample=rows, dim=-1))
            for i, (name, link, moments) in enumerate(zip(self.names, self.links, visited, strict=True)):
                mean, variance = (one_path(part) for part in (moments.mean, moments.variance))
                site = link.scored(mean, variance, rows).mask(self.learns_from(i, filled, told))
                pyro.sample(f"x_{name}", site, obs=filled[:, link.column].expand_as(mean))
            return pyro.deterministic("filled", one_path(end), event_dim=1)

    @local_method
    def marginal_guide(
        self,
        filled: Tensor,
        observed: Tensor,
        rows: Tensor | None = None,
        limits: Tensor | None = None,
        noise: Noise | None = None,
    ) -> None:
        """Draw the whitened inducing values of every link from q(u); takes the arguments of its model."""
        self._joint_density.posterior()

    @local_method
    def log_prior(self) -> Tensor:
        """Return the log density of estimated parameters under their priors, zero without any."""
        return sum((log_density() for log_density in self.priors), torch.zeros(()))

    @property
    def row_dtype(self) -> torch.dtype:
        """Floating-point type of matrix products over rows, where no gradient is needed."""
        return torch.float32 if self.precision == "mixed" else torch.float64

    @local_method
    def conditionals(self, functions: Sequence[Tensor] | None = None) -> Sequence[Conditional]:
        """Return the predictive distribution of each link, under q(u) or at drawn functions `[S, M]`."""
        with naming(self.names):
            return condition(self.links, functions, self.row_dtype)

    @local_method
    def functions(self, noise: Callable[[int, int], Tensor]) -> list[Tensor]:
        """Draw whitened inducing values `[S, M]` of every link from q(u), by means of given noise."""
        pairs = enumerate(self.links)
        return [link.u_loc + noise(i, link.n_values) @ link.u_scale_tril.T for i, link in pairs]

    def holes(self, values: Tensor, observed: Tensor) -> list[Tensor]:
        """Return for each link the rows of a table `[n, D]` whose cell is missing, given Bool `[n, D]`.

        For columns that are constant within groups they are the first ones of each group.
        """
        return [link.holes(values, observed) for link in self.links]

    def sweeps(
        self,
        conditionals: Sequence[Sequence[Conditional]],
        filled: Tensor,
        observed: Tensor,
        noise: Callable[[int], Noise],
        holes: Sequence[Tensor] | None = None,
        limits: Tensor | None = None,
    ) -> Iterator[tuple[Tensor, list[Moments]]]:
        """Yield the result of each of several sweeps, with conditionals and noise of each; see `sweep`."""
        for sweep, of_sweep in enumerate(conditionals):
            filled, visited = self.sweep(of_sweep, filled, observed, noise(sweep), holes, limits)
            yield filled, visited

    @local_method
    def sweep(
        self,
        conditionals: Sequence[Conditional],
        filled: Tensor,
        observed: Tensor,
        noise: Noise,
        holes: Sequence[Tensor] | None = None,
        limits: Tensor | None = None,
    ) -> tuple[Tensor, list[Moments]]:
        """Redraw the missing cells in one sweep through the chain.

        Takes the links' conditionals, the table with its current fill `[S, n, D]`, which is not changed, Bool
        `[n, D]`, standard normal numbers, rows of each link's missing cells, to evaluate it only there, and
        limits of missing cells, `[n, D, 2]`, within which the current fill must lie. Returns the table with
        its missing cells redrawn, and each link's moments at its rows.
        """
        filled = by_column(filled)
        visited: list[Moments] = []
        for i in range(len(conditionals)):
            own = None if holes is None else holes[i]
            self.visit(conditionals, filled, observed, noise, visited, own, limits)
        return filled, visited

    def visit(
        self,
        conditionals: Sequence[Conditional],
        filled: Tensor,
        observed: Tensor,
        noise: Noise,
        visited: list[Moments],
        holes: Tensor | None,
        limits: Tensor | None = None,
    ) -> None:
        """Redraw the missing cells of the next link's column, in place; call it inside `local_parameters`.

        Takes the arguments of `sweep`, but `holes` of this column only, and the moments of the links before
        this one, to which those of this link are appended.
        """
        number = len(visited)
        link = self.links[number]
        if holes is not None and len(holes) == 0:
            nothing = filled.new_zeros(len(filled), 0)
            visited.append(Moments(nothing, nothing))
            return
        if holes is None:
            rows = torch.arange(filled.shape[1], device=filled.device)
            # Gradients need the table as it was before the draws are written.
            seen = filled.clone() if torch.is_grad_enabled() else filled
        else:
            # Select by columns, which are contiguous in memory.
            rows, seen = holes, filled.permute(2, 0, 1).index_select(2, holes).permute(1, 2, 0)
        moments = conditionals[number].moments(seen if self.backpropagate else seen.detach())
        visited.append(moments)
        visit = Visit(conditionals, number, filled, observed, noise, rows, visited, limits)
        eps = noise(number, rows)
        own = None if limits is None else limits[rows, link.column]
        drawn = self.weight_by_later(visit, self._draw(conditionals[number], moments, eps, own))
        column, (written, whose) = filled[:, :, link.column], link.written(filled[0], observed, rows)
        if holes is None and link.once_per is None:
            column.copy_(torch.where(observed[:, link.column], column, drawn))
        else:
            column.index_copy_(1, written, drawn[:, whose])
        for compound in self.compounds:
            if number == compound.links[-1]:
                cells = self.draw_compound(compound, visit, eps)[:, whose]
                for d, values in zip(compound.columns, cells.unbind(-1), strict=True):
                    filled[:, written, d] = torch.where(observed[written, d], filled[:, written, d], values)

    @property
    def linked_columns(self) -> list[int]:
        """Encoded columns that links predict, and those of levels without a link."""
        columns = [link.column for link in self.links]
        return columns + [d for each in self.compounds for d in each.columns if d not in columns]

    @property
    def has_cells_of_groups(self) -> bool:
        """True if a column with a link is constant within groups, whose rows have its cells in common."""
        return any(link.once_per is not None for link in self.links)

    @property
    def links_of_compounds(self) -> set[int]:
        """Numbers of the links of variables that have several."""
        return {i for compound in self.compounds for i in compound.links}

    def columns_from(self, number: int) -> Sequence[int]:
        """Return the column of a link, or all columns of the compound that it begins."""
        own = [self.links[number].column]
        return next((each.columns for each in self.compounds if each.links[0] == number), own)

    def learns_from(self, number: int, values: Tensor, observed: Tensor) -> Tensor:
        """Return Bool `[n]`, the rows of a table `[n, D]` that enter the likelihood of a link.

        Cells that have limits count as observed.
        """
        return self.links[number].learns_from(values, observed)

    def weight_by_later(self, visit: Visit, drawn: Tensor) -> Tensor:
        """Return a link's draws `[S, k]` unchanged; a `SequentialChain` weights them by its later links."""
        return drawn

    @torch.no_grad()
    @local_method
    def log_density(
        self,
        filled: Tensor,
        observed: Tensor,
        values: Tensor,
        scored: Tensor,
        limits: Tensor | None = None,
        *,
        n_paths: int = 2,
    ) -> Tensor:
        """Return the log density of held-out cells, standardised units, link after link, `[cells]`.

        `filled`, `[n, D]`, has a fill in missing and scored cells, and `values`, `[n, D]`, the true ones.
        `observed`, which is False in scored cells, and `scored` are Bool `[n, D]`; other missing cells may
        have `limits`, `[n, D, 2]`. A mixture of `n_paths` components predicts a cell.
        """
        start = filled.expand(n_paths, *filled.shape)
        holes = self.holes(filled, observed)
        _, visited = self.sweep(self.conditionals(), start, observed, fresh_noise(start), holes, limits)
        parts = [values.new_zeros(0)]
        for link, here, moments in zip(self.links, holes, visited, strict=True):
            predictive = link.likelihood(moments.mean, moments.variance)
            components = predictive.predictive_log_prob(values[here, link.column])
            mixture = components.logsumexp(0) - math.log(n_paths)
            parts.append(mixture[link.learns_from(values, scored)[here]])
        return torch.cat(parts)

    def draw_compound(self, compound: Compound, visit: Visit, eps: Tensor) -> Tensor:
        """Draw the columns of a compound `[S, k, columns]`, after the last of its links was visited."""
        if isinstance(compound, TwoPart):
            drawn = compound.written([visit.filled[:, visit.rows, d] for d in compound.columns])
            return torch.stack([drawn[d] for d in compound.columns], dim=-1)
        mean = [visit.conditionals[link].expectation(visit.visited[link]) for link in compound.links]
        return compound.draw(torch.stack(mean, dim=-1), torch.special.ndtr(eps))

    def _draw(self, conditional: Conditional, moments: Moments, eps: Tensor, limits: Tensor | None) -> Tensor:
        if self.propagate == "predictive" or conditional.observation is not None:
            drawn = conditional.draw(moments, eps, limits)
        else:
            drawn = gaussian_draw(moments.mean, moments.variance, eps)
        return drawn if self.backpropagate else drawn.detach()


def by_column(paths: Tensor) -> Tensor:
    """Copy tables `[S, n, D]` so that each column is contiguous in memory: links read and write by column."""
    return paths.permute(2, 0, 1).clone(memory_format=torch.contiguous_format).permute(1, 2, 0)


def fresh_noise(filled: Tensor) -> Noise:
    """Return noise from torch's global generator, for paths `[S, n, D]`."""
    n_paths = len(filled)
    return lambda _, rows: torch.randn(n_paths, len(rows), dtype=filled.dtype, device=filled.device)
