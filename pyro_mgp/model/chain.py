"""The chain of sparse GPs of the paper (Jafrasteh et al. 2023), as a Pyro model and guide.

    L = N/B · Σ_{i in batch} Σ_{d observed} E_q[log p(x_id | f_id)]  -  Σ_links KL[q(u) ‖ p(u)]

Each link predicts its column from all others at the current fill. Its draws are written into the missing
cells of that column before the next link is evaluated. The loop is `Chain.sweep`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.nn import PyroModule
from torch import Tensor

from pyro_mgp.model.cholesky import naming
from pyro_mgp.model.conditional import Conditional, Moments, Observing, gaussian_draw
from pyro_mgp.model.likelihoods import Category, Observation
from pyro_mgp.model.link import Link, condition
from pyro_mgp.model.local_parameters import LocalModule, local_method

Propagate = Literal["predictive", "latent"]
Precision = Literal["double", "mixed"]
Noise = Callable[[int, Tensor], Tensor]
"""Standard normal numbers `[S, n]` for the link of that number at rows `[n]`."""


class Chain(LocalModule):
    """Chain of sparse GPs over the incomplete columns of a table (MGP, Jafrasteh et al. 2023).

    In training mode (`chain.train()`) the model scores observed cells under the marginals q(f), as the
    paper's bound does. In evaluation mode (`chain.eval()`) it uses the drawn `u`: one posterior function
    per link shared by all rows, so that `pyro.infer.Predictive(chain.model, guide=chain.guide)` gives
    proper imputations in its site `"filled"`.

    Args:
        links: The links, in the order they are swept.
        names: One name per link; its sites are `"x_" + name` (observed cells) and `"u_" + name`.
        n_rows: Rows N of the training table, for the factor N/B of a minibatch.
        n_paths: Monte Carlo paths S per row in training.
        n_sweeps: Number of sweeps through the chain per draw, in evaluation mode.
        propagate: Input of later links in a missing cell: the "predictive" draw f + noise, or the "latent"
            function value f as in the paper. Of columns that are not Gaussian it is always a drawn value.
        backpropagate: Whether gradients pass through the draws into earlier links, as in the paper, or
            each link learns from the observed cells of its own column. None pass through ordered values,
            which are discrete.
        categories: Variables of several indicators, exactly one of which is on.
        precision: "double", or "mixed" for float32 in the products over rows, where no gradient passes
            through the draws.

    Raises:
        ValueError: If names and links do not pair up, two links predict the same column, or the links of a
            category do not follow each other.

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
        categories: Sequence[Category] = (),
        precision: Precision = "double",
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
        for category in categories:
            if list(category.links) != list(range(category.links[0], category.links[-1] + 1)):
                raise ValueError(
                    f"the links of a category must follow each other, got links number {category.links}: "
                    "a link in between would be conditioned on indicators of several levels, or of none"
                )
        self.categories = tuple(categories)
        self.precision = precision

    @local_method
    def model(
        self, filled: Tensor, observed: Tensor, rows: Tensor | None = None, noise: Noise | None = None
    ) -> Tensor:
        """Score the observed cells, and draw the missing ones; the Pyro model of the chain.

        Args:
            filled: Rows of the table with their current fill, `[B, D]`, standardised units.
            observed: Bool `[B, D]`.
            rows: Their row numbers in the training table, `[B]`, if they are a minibatch of it.
            noise: Standard normal numbers of the sweep; drawn when not given.

        Returns:
            The rows with their missing cells drawn, `[S, B, D]`, or `[B, D]` for a single path.
        """
        drawn = [_sample_prior(name, link) for name, link in zip(self.names, self.links, strict=True)]
        n_paths = self.n_paths if self.training else 1
        conditionals = self.conditionals(None if self.training else [u[None] for u in drawn])
        start = filled.expand(n_paths, *filled.shape)
        noise = noise or fresh_noise(start)
        n_sweeps = 1 if self.training else self.n_sweeps
        *_, (end, visited) = self.sweeps(conditionals, start, observed, lambda _: noise, n_sweeps)
        with contextlib.ExitStack() as plates:
            if n_paths > 1:
                plates.enter_context(poutine.scale(scale=1 / n_paths))
                plates.enter_context(pyro.plate("paths", n_paths, dim=-2))
            n_rows = len(filled) if rows is None else self.n_rows
            plates.enter_context(pyro.plate("rows", n_rows, subsample=rows, dim=-1))
            for i, (name, link, moments) in enumerate(zip(self.names, self.links, visited, strict=True)):
                mean, variance = _one_path(moments.mean), _one_path(moments.variance)
                site = link.scored(mean, variance, rows).mask(self.learns_from(i, filled, observed))
                pyro.sample(f"x_{name}", site, obs=filled[:, link.column].expand_as(mean))
            return pyro.deterministic("filled", _one_path(end), event_dim=1)

    @local_method
    def guide(
        self, filled: Tensor, observed: Tensor, rows: Tensor | None = None, noise: Noise | None = None
    ) -> None:
        """Draw the whitened inducing values of every link from q(u); takes the arguments of `model`."""
        for name, link in zip(self.names, self.links, strict=True):
            # Not validated: training undoes steps whose bound is not finite.
            q = dist.MultivariateNormal(link.u_loc, scale_tril=link.u_scale_tril, validate_args=False)
            pyro.sample(f"u_{name}", q)

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
        return [
            link.u_loc + noise(i, link.n_inducing) @ link.u_scale_tril.T for i, link in enumerate(self.links)
        ]

    def holes(self, observed: Tensor) -> list[Tensor]:
        """Return for each link the rows whose cell is missing, given Bool `[n, D]`."""
        return [(~observed[:, link.column]).nonzero()[:, 0] for link in self.links]

    def sweeps(
        self,
        conditionals: Sequence[Conditional],
        filled: Tensor,
        observed: Tensor,
        noise: Callable[[int], Noise],
        n_sweeps: int,
        holes: Sequence[Tensor] | None = None,
    ) -> Iterator[tuple[Tensor, list[Moments]]]:
        """Yield the result of each of several sweeps; every sweep starts from the previous fill.

        Takes the arguments of `sweep`; `noise(sweep)` is the noise of one sweep.
        """
        for sweep in range(n_sweeps):
            filled, visited = self.sweep(conditionals, filled, observed, noise(sweep), holes)
            yield filled, visited

    @local_method
    def sweep(
        self,
        conditionals: Sequence[Conditional],
        filled: Tensor,
        observed: Tensor,
        noise: Noise,
        holes: Sequence[Tensor] | None = None,
    ) -> tuple[Tensor, list[Moments]]:
        """Redraw the missing cells in one sweep through the chain.

        Args:
            conditionals: The links' conditionals, in the order of the chain.
            filled: Table with its current fill, `[S, n, D]`; not changed.
            observed: Bool `[n, D]`.
            noise: Standard normal numbers.
            holes: Rows of each link's missing cells, to evaluate it only there. Default: all rows.

        Returns:
            The table with its missing cells redrawn, `[S, n, D]`, and each link's moments at its rows.
        """
        filled = by_column(filled)
        visited: list[Moments] = []
        for i in range(len(conditionals)):
            self.visit(conditionals, filled, observed, noise, visited, None if holes is None else holes[i])
        return filled, visited

    def visit(
        self,
        conditionals: Sequence[Conditional],
        filled: Tensor,
        observed: Tensor,
        noise: Noise,
        visited: list[Moments],
        holes: Tensor | None,
    ) -> None:
        """Redraw the missing cells of the next link's column, in place; call it inside `local_parameters`.

        Takes the arguments of `sweep`, the rows of this column's missing cells only, and the moments of the
        links before this one, to which those of this link are appended.
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
        eps = noise(number, rows)
        drawn = self._draw(conditionals[number], moments, eps)
        drawn = self.weight_by_later(conditionals, moments, drawn, seen, observed, noise, rows, number)
        column = filled[:, :, link.column]
        if holes is None:
            column.copy_(torch.where(observed[:, link.column], column, drawn))
        else:
            column.index_copy_(1, holes, drawn)
        visited.append(moments)
        self._draw_levels(number, filled, observed, visited, eps, rows)

    def learns_from(self, number: int, values: Tensor, observed: Tensor) -> Tensor:
        """Return Bool `[n]`, the rows of a table `[n, D]` that enter the likelihood of a link."""
        return self.links[number].learns_from(values, observed)

    def weight_by_later(
        self,
        conditionals: Sequence[Conditional],
        moments: Moments,
        drawn: Tensor,
        filled: Tensor,
        observed: Tensor,
        noise: Noise,
        rows: Tensor,
        number: int,
    ) -> Tensor:
        """Return a link's draws `[S, k]` unchanged; a `SequentialChain` weights them by its later links.

        Takes the arguments of `sweep`, the rows with their fill before the draw, `[S, k, D]`, and their
        numbers in the table, `[k]`.
        """
        return drawn

    @torch.no_grad()
    @local_method
    def log_density(
        self,
        filled: Tensor,
        observed: Tensor,
        values: Tensor,
        scored: Tensor,
        *,
        n_paths: int = 2,
    ) -> Tensor:
        """Return the predictive log density of cells held out from the chain.

        Args:
            filled: Rows with a fill in their missing and scored cells, `[n, D]`.
            observed: Bool `[n, D]`, False at the scored cells.
            values: True values of the scored cells, `[n, D]`.
            scored: Bool `[n, D]`, which cells to score.
            n_paths: Components of the mixture that predicts a cell.

        Returns:
            Log density of each scored cell, standardised units, link after link, `[cells]`.
        """
        start = filled.expand(n_paths, *filled.shape)
        holes = self.holes(observed)
        _, visited = self.sweep(self.conditionals(), start, observed, fresh_noise(start), holes)
        parts = [values.new_zeros(0)]
        for link, here, moments in zip(self.links, holes, visited, strict=True):
            predictive = link.likelihood(moments.mean, moments.variance)
            components = predictive.predictive_log_prob(values[here, link.column])
            mixture = components.logsumexp(0) - math.log(n_paths)
            parts.append(mixture[link.learns_from(values, scored)[here]])
        return torch.cat(parts)

    def _draw_levels(
        self,
        number: int,
        filled: Tensor,
        observed: Tensor,
        visited: Sequence[Moments],
        eps: Tensor,
        rows: Tensor,
    ) -> None:
        """Draw the levels of a category's missing cells after its last link, in place; see `visit`."""
        for category in self.categories:
            if number == max(category.links):
                mean = torch.stack([self._expected(link, visited[link]) for link in category.links], dim=-1)
                drawn = category.draw(mean, torch.special.ndtr(eps))
                for k, column in enumerate(category.columns):
                    kept = filled[:, rows, column]
                    filled[:, rows, column] = torch.where(observed[rows, column], kept, drawn[..., k])

    def _expected(self, number: int, moments: Moments) -> Tensor:
        """Return the mean of a link's observations, `[S, n]`, given the moments of its latent function."""
        likelihood = self.links[number].likelihood
        if not isinstance(likelihood, Observation):
            return moments.mean
        return likelihood.expectation(moments.mean, moments.variance.expand_as(moments.mean))

    def _draw(self, conditional: Conditional, moments: Moments, eps: Tensor) -> Tensor:
        if self.propagate == "predictive" or isinstance(conditional, Observing):
            drawn = conditional.draw(moments, eps)
        else:
            drawn = gaussian_draw(moments.mean, moments.variance, eps)
        return drawn if self.backpropagate else drawn.detach()


def by_column(paths: Tensor) -> Tensor:
    """Copy tables `[S, n, D]` so that each column is contiguous in memory: links read and write by column."""
    return paths.permute(2, 0, 1).clone(memory_format=torch.contiguous_format).permute(1, 2, 0)


def _sample_prior(name: str, link: Link) -> Tensor:
    """Sample the whitened inducing values of a link, `[M]`, from their prior."""
    loc = link.u_loc.new_zeros(link.n_inducing)
    return pyro.sample(f"u_{name}", dist.MultivariateNormal(loc, scale_tril=torch.eye(len(loc)).to(loc)))


def _one_path(paths: Tensor) -> Tensor:
    """Drop the leading dimension `[S, ...]` of a single path: Pyro then needs one plate only."""
    return paths[0] if len(paths) == 1 else paths


def fresh_noise(filled: Tensor) -> Noise:
    """Return noise from torch's global generator, for paths `[S, n, D]`."""
    n_paths = len(filled)
    return lambda _, rows: torch.randn(n_paths, len(rows), dtype=filled.dtype, device=filled.device)
