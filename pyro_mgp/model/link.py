"""A link of the chain: the sparse variational Gaussian process of one column, whitened; see `conditional`."""

from __future__ import annotations

from collections.abc import Sequence

import pyro.distributions as dist
import torch
from pyro.contrib.gp.kernels import Kernel
from pyro.distributions import TorchDistribution
from pyro.nn import PyroParam
from torch import Tensor
from torch.distributions import constraints

from pyro_mgp.model.cholesky import factorise, invert_by_blocks
from pyro_mgp.model.conditional import BasisConditional, Conditional, quadratic_conditionals
from pyro_mgp.model.kernel_stack import stack_kernels
from pyro_mgp.model.kernels import trend_of
from pyro_mgp.model.likelihoods import ExpectedNormal, Gaussian, Likelihood, Observation, Scored
from pyro_mgp.model.likelihoods.levels import none_is_on
from pyro_mgp.model.local_parameters import LocalModule, priors_of, read
from pyro_mgp.model.once_per_group import first_rows, members

# A quadratic form in K_ZZ⁻¹ loses twice as many digits as K_ZZ; below this jitter too few would be left.
_LEAST_JITTER = 1e-7


class Link(LocalModule):
    """Sparse variational GP of one column given the others, with its likelihood.

    Args:
        kernel: Covariance function over the P inputs.
        Xu: Starting inducing inputs Z, `[M, P]`, standardised units.
        column: Encoded column that this link predicts.
        inputs: The P encoded columns it predicts from.
        likelihood: Observation model of the column.
        jitter: Added to the diagonal of K_ZZ, relative to its mean.
        unless: Encoded columns of the earlier levels of its variable: the link learns only from rows in which
            none of these indicators is on. See `likelihoods.Category`.
        once_per: Encoded column with the numbers of groups within which the column is constant; the link
            learns from one row of each. None for a column with a cell in each row.

    Raises:
        ValueError: If the shapes of `kernel`, `Xu` and `inputs` disagree, or `column` is among `inputs`.
    """

    inputs: Tensor
    known_variance: Tensor | None
    """Measurement error variances of a Gaussian column in the training table, `[N]`, besides its noise."""

    def __init__(
        self,
        kernel: Kernel,
        Xu: Tensor,
        column: int,
        inputs: Sequence[int],
        likelihood: Likelihood,
        jitter: float = 1e-10,
        unless: Sequence[int] = (),
        once_per: int | None = None,
    ) -> None:
        super().__init__()
        if Xu.dim() != 2 or Xu.shape[1] != len(inputs) or kernel.input_dim != len(inputs):
            raise ValueError(
                f"link of column {column} has {len(inputs)} inputs, but its inducing inputs have shape "
                f"{tuple(Xu.shape)} and its kernel takes {kernel.input_dim} inputs"
            )
        if column in inputs:
            raise ValueError(f"column {column} cannot be an input of its own link")
        self.column = column
        self.width = 1 + max(inputs, default=0)
        self.jitter = jitter
        self.unless, self.once_per = list(unless), once_per
        self.register_buffer("inputs", torch.as_tensor(inputs, dtype=torch.long, device=Xu.device))
        self.kernel = kernel.to(Xu)
        self.likelihood: Likelihood = likelihood.to(Xu)
        self.register_buffer("known_variance", None, persistent=False)
        self.Xu = PyroParam(Xu)
        self.u_loc = PyroParam(Xu.new_zeros(self.n_values))
        self.u_scale_tril = PyroParam(torch.eye(self.n_values).to(Xu), constraints.lower_cholesky)

    @property
    def n_inducing(self) -> int:
        """Number of inducing inputs."""
        return len(self.Xu)

    @property
    def n_values(self) -> int:
        """Number M of whitened values: inducing values, after coefficients of the kernel's trend if any."""
        trend, _ = trend_of(self.kernel)
        return self.n_inducing + (0 if trend is None else trend.n_features)

    def learns_from(self, values: Tensor, observed: Tensor) -> Tensor:
        """Return Bool `[n]`, the rows of a table `[n, D]` that enter the likelihood of the link."""
        return self.once(values, observed[:, self.column]) & none_is_on(values, self.unless)

    def once(self, values: Tensor, rows: Tensor) -> Tensor:
        """Return rows of a table `[n, D]`, Bool `[n]`, or the first of each group in them; see `once_per`."""
        return rows if self.once_per is None else first_rows(values[:, self.once_per], rows)

    def holes(self, values: Tensor, observed: Tensor) -> Tensor:
        """Return the rows of a table `[n, D]` in which the link has a missing cell, given Bool `[n, D]`."""
        return self.once(values, ~observed[:, self.column]).nonzero()[:, 0]

    def written(self, values: Tensor, observed: Tensor, rows: Tensor) -> tuple[Tensor, Tensor | slice]:
        """Return the rows of a table `[n, D]` into which cells of some rows `[k]` are written, and whose.

        They are these rows, but for columns that are constant within groups.
        """
        if self.once_per is None:
            return rows, slice(None)
        return members(values[:, self.once_per], rows, ~observed[:, self.column])

    @property
    def is_gaussian(self) -> bool:
        """True if observations are the latent function plus Gaussian noise of one variance."""
        return self.known_variance is None and isinstance(self.likelihood, Gaussian)

    def scored(self, mean: Tensor, variance: Tensor, rows: Tensor | None = None) -> Scored:
        """Return the distribution of cells of the training table, given latent moments `[..., n]`.

        `rows` are their numbers in the training table, `[n]`; None stands for all of it.
        """
        if self.known_variance is None:
            return self.likelihood(mean, variance)
        return ExpectedNormal(mean, variance, self._cell_noise(self.known_variance, rows))

    def observed_given(self, function: Tensor, rows: Tensor | None = None) -> TorchDistribution:
        """Return the distribution of cells given the latent function, `[..., n]`; see `scored`."""
        if self.known_variance is None:
            return self.likelihood.distribution(function)
        return dist.Normal(function, self._cell_noise(self.known_variance, rows).sqrt())

    def _cell_noise(self, known: Tensor, rows: Tensor | None) -> Tensor:
        return self.likelihood.noise + (known if rows is None else known[rows])

    def forward(self, functions: Tensor | None = None) -> Conditional:
        """Return the conditional of the link; see `condition`."""
        return condition([self], None if functions is None else [functions])[0]


def condition(
    links: Sequence[Link], functions: Sequence[Tensor] | None = None, dtype: torch.dtype = torch.float64
) -> Sequence[Conditional]:
    """Return the conditionals of links with equally many inducing inputs, at their current parameters.

    They are marginals of q, or at drawn functions, whose whitened values are `[S, M]` per link. Products over
    rows have the `dtype` where no gradient is needed; the factors are float64.

    Raises:
        NotPositiveDefiniteError: If a K_ZZ cannot be factorised with jitter up to one per cent.
        ValueError: If a parameter has a prior (`PyroSample`), which only Pyro's inference honours.
    """
    if not links:
        return []
    refuse_priors(links)
    inverts = can_be_inverted(links)
    kernels = stack_kernels(links, dtype if inverts else torch.float64)
    factors = factorise(kernels.among(), max(link.jitter for link in links))
    noise = read([link.likelihood for link in links], "noise", torch.stack)
    values = [link.u_loc[None] for link in links] if functions is None else functions
    trils = [link.u_scale_tril for link in links] if functions is None else None
    if inverts and not torch.is_grad_enabled():
        covariance = None
        if trils is not None:
            tril = torch.stack(trils)
            covariance = tril @ tril.mT
        inverse = invert_by_blocks(factors)
        weights = torch.stack(tuple(values))
        return observing(quadratic_conditionals(kernels, inverse, weights, covariance, noise), links)
    # Unbound once: the gradient of indexing entry by entry would add up whole stacks.
    of_links = zip(noise.unbind(), values, factors.unbind(), trils or [None] * len(links), strict=True)
    latent = [BasisConditional(own, kernels, i, *parts) for i, (own, *parts) in enumerate(of_links)]
    return observing(latent, links)


def refuse_priors(links: Sequence[Link]) -> None:
    """Raise if a parameter of a link has a prior: read outside Pyro's inference it is a draw from it."""
    for link in links:
        for parameter in priors_of(link):
            raise ValueError(
                f"{parameter!r} of the link of column {link.column} has a prior (PyroSample), and a built "
                "chain is trained and imputed from at estimates of its parameters: let the kernel that is "
                "passed to `MGPImputer(kernel=...)` have the prior, under which `fit` estimates it, or infer "
                "it by `pyro.infer` with `chain.model` (see docs/pyro.md)"
            )


def observing(latent: Sequence[Conditional], links: Sequence[Link]) -> Sequence[Conditional]:
    """Combine conditionals of latent functions with the links' likelihoods, to predict observations."""
    own = [link.likelihood if isinstance(link.likelihood, Observation) else None for link in links]
    return [each.observed_as(model, noisy=False) for each, model in zip(latent, own, strict=True)]


def can_be_inverted(links: Sequence[Link]) -> bool:
    """Return whether all links have enough jitter for an accurate inverse of K_ZZ."""
    return all(link.jitter >= _LEAST_JITTER for link in links)
