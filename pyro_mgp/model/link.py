"""A link of the chain: the sparse variational Gaussian process of one column.

    prior        f ~ GP(0, k),   u = f(Z) = L v,   L Lᵀ = K_ZZ,   v ~ N(0, I)       (whitened)
    posterior    q(v) = N(r, T Tᵀ)
    basis        φ(x) = L⁻¹ k_Z(x)                 so that α(x)ᵀ u = φ(x)ᵀ v
    marginal     μ(x) = φᵀ r,      σ²(x) = k(x, x) - φᵀφ + ‖Tᵀ φ‖²
    one function μ(x) = φᵀ v,      σ²(x) = k(x, x) - φᵀφ                            (v drawn once)

The algebra is that of `pyro.contrib.gp.util.conditional`; it stands here because a sweep through the chain
visits each link many times and factorises it once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from pyro.contrib.gp.kernels import Kernel
from pyro.nn import PyroParam
from torch import Tensor
from torch.distributions import constraints

from pyro_mgp._support.tiles import TILE, whole_registers
from pyro_mgp.model.kernel_stack import KernelStack, stack_kernels
from pyro_mgp.model.likelihoods.base import (
    ExpectedNormal,
    Likelihood,
    Observation,
    Quantity,
    Scored,
    mean_under_normal,
)
from pyro_mgp.model.local_parameters import LocalModule, read

_MAX_JITTER = 1e-2
# Keeps the square root of a vanishing variance differentiable.
_LEAST_VARIANCE = 1e-12
# A quadratic form in K_ZZ⁻¹ loses as many digits as K_ZZ has, twice; below this jitter too few would be left.
_LEAST_JITTER = 1e-7
# Size of the largest triangular matrix that is inverted by solving; larger ones are inverted block by block.
_SOLVED_AT_ONCE = 64


class NotPositiveDefiniteError(ValueError):
    """A covariance matrix that cannot be factorised; the message says what to try.

    Args:
        message: The sentence.
        which: Number of the first such matrix among those that were to be factorised.
    """

    def __init__(self, message: str, which: int = 0) -> None:
        super().__init__(message)
        self.which = which


@contextmanager
def naming(names: Sequence[str]) -> Iterator[None]:
    """Let a `NotPositiveDefiniteError` say which of these columns it is about."""
    try:
        yield
    except NotPositiveDefiniteError as error:
        raise NotPositiveDefiniteError(f"column {names[error.which]!r}: {error}", error.which) from error


@dataclass(frozen=True)
class Moments:
    """Mean and variance of a latent function at some rows, for each path."""

    mean: Tensor
    """`[S, n]`, standardised units."""
    variance: Tensor
    """`[S, n]`, non-negative."""


class Conditional(Protocol):
    """A link factorised once: moments of its function at any rows."""

    @property
    def noise(self) -> Tensor:
        """Variance of the observation noise, a scalar."""

    def moments(self, rows: Tensor) -> Moments:
        """Moments at rows of the table as S paths have filled them, `[S, n, D]`."""

    def mean(self, rows: Tensor) -> Tensor:
        """The means of observations alone, `[S, n]`."""

    def functions(self, rows: Tensor) -> Tensor:
        """The latent function's mean at rows `[n, D]`, `[1, n]`, or each of S drawn functions, `[S, n]`."""

    def draw(self, moments: Moments, eps: Tensor) -> Tensor:
        """Observations of cells with these moments, by standard normal numbers, `[S, n]`."""

    def expectation(self, moments: Moments, of: Quantity | None = None) -> Tensor:
        """The mean of the observations, or of something that depends on them, `[S, n]`."""


class ByPath(Protocol):
    """A `Conditional` that can be asked about rows of some paths only."""

    @property
    def noise(self) -> Tensor:
        """See `Conditional`; a scalar, or one per path, `[S, 1]`."""

    def moments_on(self, paths: Tensor, rows: Tensor) -> Moments:
        """Moments `[k]` at rows of the table, `[k, D]`, each of which belongs to a path, `[k]`."""


class GaussianConditional:
    """Observations around a latent function: the part of a `Conditional` that most of them have in common."""

    def draw(self: Conditional, moments: Moments, eps: Tensor) -> Tensor:
        """See `Conditional`."""
        return gaussian_draw(moments.mean, moments.variance + self.noise, eps)

    def expectation(self: Conditional, moments: Moments, of: Quantity | None = None) -> Tensor:
        """See `Conditional`; by quadrature, if it is of something else than the observation."""
        if of is None:
            return moments.mean
        return mean_under_normal(of, moments.mean, moments.variance + self.noise)


@dataclass(frozen=True)
class Observing:
    """A link whose observations are not the latent function and its noise, but come from these."""

    latent: Conditional
    """What the link says of the latter."""
    observation: Observation
    noisy: bool
    """Whether observations are made of the latent function and its noise, or of the function alone."""

    @property
    def noise(self) -> Tensor:
        """See `Conditional`."""
        return self.latent.noise

    def moments(self, rows: Tensor) -> Moments:
        """See `Conditional`; of the latent function."""
        return self.latent.moments(rows)

    def mean(self, rows: Tensor) -> Tensor:
        """See `Conditional`; of the observations."""
        return self.expectation(self.moments(rows))

    def functions(self, rows: Tensor) -> Tensor:
        """See `Conditional`."""
        return self.latent.functions(rows)

    def draw(self, moments: Moments, eps: Tensor) -> Tensor:
        """See `Conditional`."""
        return self.observation.draw(moments.mean, self._variance(moments), torch.special.ndtr(eps))

    def expectation(self, moments: Moments, of: Quantity | None = None) -> Tensor:
        """See `Conditional`."""
        return self.observation.expectation(moments.mean, self._variance(moments), of)

    def _variance(self, moments: Moments) -> Tensor:
        """Of what observations are made of, for each path."""
        variance = moments.variance + self.noise if self.noisy else moments.variance
        return variance.expand_as(moments.mean)


@dataclass(frozen=True)
class Shifted:
    """A link whose function is shifted; see `sensitivity`."""

    conditional: Conditional
    shift: float
    """Standardised units, or those of the latent function."""

    @property
    def noise(self) -> Tensor:
        """See `Conditional`."""
        return self.conditional.noise

    def moments(self, rows: Tensor) -> Moments:
        """See `Conditional`."""
        at = self.conditional.moments(rows)
        return Moments(at.mean + self.shift, at.variance)

    def mean(self, rows: Tensor) -> Tensor:
        """See `Conditional`."""
        return self.expectation(self.moments(rows))

    def functions(self, rows: Tensor) -> Tensor:
        """See `Conditional`."""
        return self.conditional.functions(rows) + self.shift

    def draw(self, moments: Moments, eps: Tensor) -> Tensor:
        """See `Conditional`."""
        return self.conditional.draw(moments, eps)

    def expectation(self, moments: Moments, of: Quantity | None = None) -> Tensor:
        """See `Conditional`."""
        return self.conditional.expectation(moments, of)


def gaussian_draw(mean: Tensor, variance: Tensor, eps: Tensor) -> Tensor:
    """Draws by standard normal numbers; all `[S, n]`."""
    return torch.addcmul(mean, eps, (variance + _LEAST_VARIANCE).sqrt())


@dataclass(frozen=True)
class BasisConditional(GaussianConditional):
    """Moments by the whitened basis φ, as accurate as the numbers allow and differentiable."""

    kernels: KernelStack
    """The chain's kernels."""
    number: int
    """Which of them is the link's."""
    factor: Tensor
    """Cholesky factor L of K_ZZ, `[M, M]`."""
    weights: Tensor
    """Whitened values v: `[1, M]` for the posterior mean r, `[S, M]` for one drawn function per path."""
    scale_tril: Tensor | None
    """Factor T of q(v), `[M, M]`; None when `weights` are drawn functions."""
    noise: Tensor
    """See `Conditional`."""

    def moments(self, rows: Tensor) -> Moments:
        """See `Conditional`."""
        cross, variance = self.kernels.at(self.number, rows.flatten(0, 1))
        basis = torch.linalg.solve_triangular(self.factor, cross, upper=False)
        variance = variance - basis.square().sum(0)
        if self.scale_tril is not None:
            variance = variance + (self.scale_tril.T @ basis).square().sum(0)
        return _moments(_per_path(self.weights, basis, len(rows)), variance)

    def mean(self, rows: Tensor) -> Tensor:
        """See `Conditional`."""
        return self.moments(rows).mean

    def moments_on(self, paths: Tensor, rows: Tensor) -> Moments:
        """See `ByPath`."""
        cross, variance = self.kernels.at(self.number, rows)
        basis = torch.linalg.solve_triangular(self.factor, cross, upper=False)
        variance = variance - basis.square().sum(0)
        if self.scale_tril is not None:
            variance = variance + (self.scale_tril.T @ basis).square().sum(0)
        return _moments(_on_path(self.weights, basis, paths), variance)

    def functions(self, rows: Tensor) -> Tensor:
        """See `Conditional`."""
        cross, _ = self.kernels.at(self.number, rows)
        return self.weights @ torch.linalg.solve_triangular(self.factor, cross, upper=False)


@dataclass(frozen=True)
class QuadraticConditional(GaussianConditional):
    """Moments by a quadratic form, one product per row; for K_ZZ that can be inverted, without gradient.

    With W = L⁻¹ and q(v) = N(r, S), mean and variance of a row with covariances k to Z are kᵀWᵀr and
    k(x, x) + kᵀAk, A = Wᵀ(S - I)W; of a drawn function v, kᵀWᵀv and A = -WᵀW. In single precision A has too
    many digits: there the row is whitened first, φ = Wk, and the form is that of φ.
    """

    kernels: KernelStack
    """The chain's kernels."""
    number: int
    """Which of them is the link's."""
    weights: Tensor
    """Wᵀr, `[1, M]`, or Wᵀv for one drawn function per path, `[S, M]`; of φ, r or v."""
    form: Tensor | None
    """A as `one_sided`, `[M, M]`; of the marginals the weights stand below it, `[M + 1, M]`. Of φ, S - I, or
    None for -I."""
    noise: Tensor
    """See `Conditional`."""
    inverse: Tensor | None
    """W, `[M, M]`, where rows are whitened."""

    def moments(self, rows: Tensor) -> Moments:
        """See `Conditional`."""
        with torch.no_grad():
            basis, variance = self._basis(rows)
            # Where the kernel's second matrix was: what is used already is near.
            shape = len(basis if self.form is None else self.form), basis.shape[1]
            product = self.kernels.workspace.take("decay", shape, basis)
            if self.form is None:
                torch.mul(basis, basis, out=product).neg_()
            else:
                half = whole_registers(len(basis) // 2)
                torch.mm(self.form[half:], basis, out=product[half:])
                torch.mm(self.form[:half, :half], basis[:half], out=product[:half])
                product[: len(basis)] *= basis
            if len(product) > len(basis):
                mean = product[-1].view(len(rows), -1).clone()
            else:
                mean = _per_path(self.weights, basis, len(rows))
            variance = variance + product[: len(basis)].sum(0)
            return _moments(mean.to(rows), variance.to(rows))

    def moments_on(self, paths: Tensor, rows: Tensor) -> Moments:
        """See `ByPath`."""
        with torch.no_grad():
            basis, variance = self._basis(rows[None])
            form = -basis if self.form is None else self.form[: len(basis)] @ basis
            variance = variance + (form * basis).sum(0)
            return _moments(_on_path(self.weights, basis, paths).to(rows), variance.to(rows))

    def mean(self, rows: Tensor) -> Tensor:
        """See `Conditional`."""
        with torch.no_grad():
            basis, _ = self._basis(rows)
            return _per_path(self.weights, basis, len(rows)).to(rows)

    def functions(self, rows: Tensor) -> Tensor:
        """See `Conditional`."""
        with torch.no_grad():
            basis, _ = self._basis(rows[None])
            return (self.weights @ basis).to(rows)

    def _basis(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Covariances to Z, or φ, `[M, S · n]`, and the variances k(x, x)."""
        basis, variance = self.kernels.at(self.number, rows.flatten(0, 1))
        return (basis if self.inverse is None else self.inverse @ basis), variance


def one_sided(forms: Tensor) -> Tensor:
    """Symmetric matrices `[..., M, M]` as others with the same quadratic form, one of whose blocks is zero.

    That block need not be multiplied: it saves a quarter of the product.

    Example:
        >>> one_sided(torch.ones(16, 16))[[0, 0, 8, 8], [0, 8, 0, 8]]
        tensor([1., 0., 2., 1.])
    """
    half = whole_registers(forms.shape[-1] // 2)
    forms = forms.clone()
    forms[..., half:, :half] *= 2
    forms[..., :half, half:] = 0
    return forms


def _per_path(weights: Tensor, basis: Tensor, n_paths: int) -> Tensor:
    """Each path's own weights, `[1, M]` or `[S, M]`, applied to its own columns of `[M, S · n]`: `[S, n]`."""
    if len(weights) == 1:
        return (weights @ basis).view(n_paths, -1)
    # Not product by path: the columns of one path alone are no whole tiles.
    product = weights.T.contiguous()[:, :, None] * basis.unflatten(1, (n_paths, -1))
    return product.flatten(1).sum(0).view(n_paths, -1)


def _on_path(weights: Tensor, basis: Tensor, paths: Tensor) -> Tensor:
    """The weights of a path each, `[1, M]` or `[S, M]`, applied to columns of `[M, k]`: `[k]`."""
    own = weights if len(weights) == 1 else weights[paths]
    return (own * basis.T).sum(-1)


def _moments(mean: Tensor, variance: Tensor) -> Moments:
    # k(x, x) - φᵀφ is non-negative up to rounding.
    return Moments(mean, variance.clamp(min=0).view_as(mean))


class Link(LocalModule):
    """Sparse variational GP of one column given the others, with its likelihood.

    Args:
        kernel: Covariance function over the P inputs.
        Xu: Starting inducing inputs Z, `[M, P]`, standardised units.
        column: Encoded column that this link predicts.
        inputs: The P encoded columns it predicts from.
        likelihood: Observation model of the column.
        jitter: Added to the diagonal of K_ZZ, relative to its mean. Small is exact, large well conditioned.
        unless: Encoded columns of the earlier levels of its variable: the link learns only from rows in which
            none of these indicators is on. See `likelihoods.Category`.

    Raises:
        ValueError: If the shapes of `kernel`, `Xu` and `inputs` disagree, or `column` is among `inputs`.
    """

    inputs: Tensor
    known_variance: Tensor | None
    """Variance of the error with which each cell of a Gaussian column was measured in the training table,
    `[N]`, beside the noise that all have; None if there is none."""

    def __init__(
        self,
        kernel: Kernel,
        Xu: Tensor,
        column: int,
        inputs: Sequence[int],
        likelihood: Likelihood,
        jitter: float = 1e-10,
        unless: Sequence[int] = (),
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
        self.unless = list(unless)
        self.register_buffer("inputs", torch.as_tensor(inputs, dtype=torch.long, device=Xu.device))
        self.kernel = kernel.to(Xu)
        self.likelihood: Likelihood = likelihood.to(Xu)
        self.register_buffer("known_variance", None, persistent=False)
        self.Xu = PyroParam(Xu)
        self.u_loc = PyroParam(Xu.new_zeros(len(Xu)))
        self.u_scale_tril = PyroParam(torch.eye(len(Xu)).to(Xu), constraints.lower_cholesky)

    @property
    def n_inducing(self) -> int:
        """Number M of inducing inputs."""
        return len(self.Xu)

    def learns_from(self, values: Tensor, observed: Tensor) -> Tensor:
        """Bool `[n]`, the rows of a table `[n, D]` from which it learns.

        A standardised indicator that is off is negative.
        """
        known = observed[:, self.column]
        return known & (values[:, self.unless] < 0).all(1) if self.unless else known

    @property
    def is_gaussian(self) -> bool:
        """Whether its observations are the function and Gaussian noise of one variance."""
        return self.known_variance is None and not isinstance(self.likelihood, Observation)

    def scored(self, mean: Tensor, variance: Tensor, rows: Tensor | None = None) -> Scored:
        """The observation distribution of cells that are seen in training.

        Args:
            mean: Means of the latent function, `[..., n]`.
            variance: Its variances, likewise.
            rows: Numbers of the rows in the training table, `[n]`; None for all of it.
        """
        if self.known_variance is None:
            return self.likelihood(mean, variance)
        known = self.known_variance if rows is None else self.known_variance[rows]
        return ExpectedNormal(mean, variance, self.likelihood.noise + known)

    def forward(self, functions: Tensor | None = None) -> Conditional:
        """The link factorised at its current parameters; see `condition`."""
        return condition([self], None if functions is None else [functions])[0]


def condition(
    links: Sequence[Link],
    functions: Sequence[Tensor] | None = None,
    dtype: torch.dtype = torch.float64,
) -> Sequence[Conditional]:
    """Links factorised at their current parameters, in one batched call where they are equally large.

    Args:
        links: The links.
        functions: Whitened values of drawn functions, `[S, M]` per link; None for the marginals of q.
        dtype: Of the products over rows, where no gradient is wanted; the factors are float64.

    Raises:
        NotPositiveDefiniteError: If a K_ZZ cannot be factorised with jitter up to one per cent.
    """
    if len({link.n_inducing for link in links}) > 1:
        given = [None] * len(links) if functions is None else [[function] for function in functions]
        pairs = enumerate(zip(links, given, strict=True))
        return [_condition_alone(number, link, own, dtype) for number, (link, own) in pairs]
    if not links:
        return []
    kernels = stack_kernels(links, dtype if can_be_inverted(links) else torch.float64)
    factors = factorise(kernels.among(), max(link.jitter for link in links))
    noise = read([link.likelihood for link in links], "noise", torch.stack)
    latent: Sequence[Conditional]
    if not torch.is_grad_enabled() and can_be_inverted(links):
        inverse = invert_by_blocks(factors)
        if functions is not None:
            latent = quadratic_conditionals(kernels, inverse, torch.stack(tuple(functions)), None, noise)
            return observing(latent, links)
        tril = torch.stack([link.u_scale_tril for link in links])
        loc = torch.stack([link.u_loc for link in links])
        latent = quadratic_conditionals(kernels, inverse, loc[:, None], tril @ tril.mT, noise)
        return observing(latent, links)
    # Taken apart once: the gradient of one entry after the other would add up whole stacks.
    own = list(zip(factors.unbind(), noise.unbind(), strict=True))
    if functions is None:
        values = [(link.u_loc[None], link.u_scale_tril) for link in links]
    else:
        values = [(function, None) for function in functions]
    latent = [
        BasisConditional(kernels, i, factor, *of_link, variance)
        for i, (of_link, (factor, variance)) in enumerate(zip(values, own, strict=True))
    ]
    return observing(latent, links)


def _condition_alone(
    number: int, link: Link, functions: list[Tensor] | None, dtype: torch.dtype
) -> Conditional:
    """One of several links factorised."""
    try:
        return condition([link], functions, dtype)[0]
    except NotPositiveDefiniteError as error:
        raise NotPositiveDefiniteError(str(error), number) from error


def observing(latent: Sequence[Conditional], links: Sequence[Link]) -> Sequence[Conditional]:
    """What links say of observations, given what they say of the latent function and its noise."""
    return [
        Observing(conditional, link.likelihood, noisy=False)
        if isinstance(link.likelihood, Observation)
        else conditional
        for conditional, link in zip(latent, links, strict=True)
    ]


def observed_as(
    conditionals: Sequence[Conditional], observations: Sequence[Observation | None]
) -> Sequence[Conditional]:
    """Links, of which some turn the function and its noise into observations in a way of their own."""
    return [
        conditional if observation is None else Observing(conditional, observation, noisy=True)
        for conditional, observation in zip(conditionals, observations, strict=True)
    ]


def can_be_inverted(links: Sequence[Link]) -> bool:
    """Whether the inverse of K_ZZ keeps enough digits to stand in a sum."""
    return all(link.jitter >= _LEAST_JITTER for link in links)


def invert(factors: Tensor) -> Tensor:
    """W = L⁻¹ of lower triangular factors, `[..., M, M]`."""
    return _solved(factors, factors.shape[-1])


def invert_by_blocks(factors: Tensor) -> Tensor:
    """The same for large ones, to the same last bit with up to four threads, or six, or eight.

    The columns of a triangular system go to the threads in equal parts, which must then be whole registers.
    """
    size = factors.shape[-1]
    if factors.is_cuda:
        return invert(factors)
    if size <= _SOLVED_AT_ONCE:
        return _solved(factors, size + -size % TILE)
    half = whole_registers(size // 2)
    top, bottom = slice(None, half), slice(half, None)
    first, last = invert_by_blocks(factors[..., top, top]), invert_by_blocks(factors[..., bottom, bottom])
    inverse = torch.zeros_like(factors)
    inverse[..., top, top], inverse[..., bottom, bottom] = first, last
    inverse[..., bottom, top] = -last @ (factors[..., bottom, top] @ first)
    return inverse


def _solved(factors: Tensor, n_columns: int) -> Tensor:
    """W, found with so many columns on the right-hand side, at least its own."""
    size = factors.shape[-1]
    identity = torch.eye(size, n_columns, dtype=factors.dtype, device=factors.device)
    return torch.linalg.solve_triangular(factors, identity, upper=False)[..., :size]


def quadratic_conditionals(
    kernels: KernelStack,
    inverse: Tensor,
    values: Tensor,
    covariance: Tensor | None,
    noise: Sequence[Tensor] | Tensor,
) -> list[QuadraticConditional]:
    """The links' conditionals from W.

    Args:
        kernels: Their kernels.
        inverse: W = L⁻¹ of each K_ZZ, `[L, M, M]`.
        values: Whitened values: r as `[L, 1, M]`, or drawn functions `[L, S, M]`.
        covariance: S of q(v), `[L, M, M]`; None for drawn functions.
        noise: Variance of each link's observation noise, `[L]`, or that of each drawn function, `[S, 1]`.
    """
    whitening: Sequence[Tensor | None] = [None] * len(noise)
    forms: Sequence[Tensor | None] = [None] * len(noise)
    whitens = kernels.dtype != inverse.dtype
    if whitens:
        whitening = inverse.to(kernels.dtype).unbind()
    else:
        values = values @ inverse
    if covariance is not None:
        middle = covariance - torch.eye(covariance.shape[-1]).to(covariance)
        form = one_sided(middle if whitens else inverse.mT @ (middle @ inverse))
        forms = torch.cat([form, values], dim=1).to(kernels.dtype).unbind()
    elif not whitens:
        forms = one_sided(-inverse.mT @ inverse).unbind()
    weights = values.to(kernels.dtype).unbind()
    return [
        QuadraticConditional(kernels, i, *parts)
        for i, parts in enumerate(zip(weights, forms, noise, whitening, strict=True))
    ]


def factorise(covariance: Tensor, jitter: float = 1e-10, *, ask: bool = True) -> Tensor:
    """Cholesky factors of covariance matrices, with jitter raised tenfold until they succeed.

    Args:
        covariance: `[..., M, M]`, positive semi-definite.
        jitter: Added to the diagonals first, relative to their means.
        ask: Whether to make sure that they did; False spares the host from waiting for a GPU.

    Raises:
        NotPositiveDefiniteError: If it is not finite, or not positive definite with a jitter of one per cent.
    """
    info: Tensor | None = None
    if covariance.is_cuda:
        factor = factorise_without_asking(covariance, jitter)
        if not ask or factor.isfinite().all():
            return factor
        jitter, info = math.inf, ~factor.isfinite().all(-1).all(-1)
    while jitter <= _MAX_JITTER:
        factor, info = torch.linalg.cholesky_ex(_lifted(covariance, jitter))
        info = info.where(factor.diagonal(dim1=-2, dim2=-1).isfinite().all(-1), 1)
        if not info.any():
            return factor
        jitter *= 10
    raise NotPositiveDefiniteError(
        f"the covariance matrix of {covariance.shape[-1]} inducing inputs is not positive definite even with "
        f"{_MAX_JITTER:.0%} of its diagonal added; the kernel's parameters may have diverged: "
        "use a smaller learning rate or fewer inducing inputs, or leave out columns that repeat others",
        int((info != 0).flatten().int().argmax()) if info is not None else 0,
    )


def factorise_without_asking(covariance: Tensor, jitter: float = 1e-10) -> Tensor:
    """The factors of `factorise`, by two rungs of its ladder, NaN where both fail: the host need not wait.

    Args:
        covariance: `[..., M, M]`, positive semi-definite.
        jitter: Added to the diagonals, relative to their means; one per cent where that fails.
    """
    factor, info = torch.linalg.cholesky_ex(_lifted(covariance, jitter))
    last, still = torch.linalg.cholesky_ex(_lifted(covariance, _MAX_JITTER))
    last = last.masked_fill((still > 0)[..., None, None], torch.nan)
    return torch.where((info > 0)[..., None, None], last, factor)


def _lifted(covariance: Tensor, jitter: float) -> Tensor:
    """Covariances with jitter on their diagonals, relative to their means."""
    scale = covariance.detach().diagonal(dim1=-2, dim2=-1).mean(-1)[..., None]
    return covariance + torch.diag_embed(jitter * scale.expand(covariance.shape[:-1]))
