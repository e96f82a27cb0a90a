"""Build an untrained chain for an encoded table, with its likelihoods and starting values."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from pyro.contrib.gp.kernels import Constant, Kernel
from torch import Tensor

from pyro_mgp.data.codecs import ColumnCodec
from pyro_mgp.data.codecs.kinds import CountCodec, HeavyTailedCodec
from pyro_mgp.data.codecs.semicontinuous import SemicontinuousCodec
from pyro_mgp.data.table import TableCodec
from pyro_mgp.model.chain import Chain
from pyro_mgp.model.kernels import WITH_TREND, KernelFactory, RandomEffects, linear, trend_of
from pyro_mgp.model.likelihoods import (
    Category,
    Compound,
    CountScale,
    Gaussian,
    HeavyTailed,
    Likelihood,
    NegativeBinomial,
    Ordinal,
    TwoPart,
)
from pyro_mgp.model.link import Link
from pyro_mgp.model.link_specs import LinkSpec, is_sparse
from pyro_mgp.model.local_parameters import estimate
from pyro_mgp.model.sequential_chain import SequentialChain

# Starting noise variance of a link, as a share of the joint Gaussian's residual variance: the kernel explains
# the rest.
_NOISE_SHARE = 0.8
# Starting share if curves are known to explain much of it: from a higher start, twenty steps do not suffice.
_CURVED_NOISE_SHARE = 0.2
# Inducing inputs are rows of the table and often close to each other; the jitter keeps K_ZZ well conditioned.
_JITTER = 1e-6
# Standard deviations in training of the coefficients of products in links of counts, relative to those of
# other links: the logarithm of the mean is no standardised number. With 1, draws in tables of 60 rows were up
# to 1,000 times the largest count, with .4 up to 19 times, without products 12 times (`benchmarks/coverage`).
_PRODUCTS_OF_COUNTS = 0.4


def starting_noise(covariance: Tensor, link_specs: Sequence[LinkSpec], curved: bool = False) -> list[float]:
    """Return the starting noise variance of each link, given the covariance `[D, D]` of the initial fill.

    It is lower for `curved` links, whose curves explain much of the residual variance of linear regression.
    """
    share = _CURVED_NOISE_SHARE if curved else _NOISE_SHARE
    noise = []
    for link in link_specs:
        inputs = list(link.inputs)
        cross = covariance[inputs, link.column]
        explained = cross @ torch.linalg.solve(covariance[inputs][:, inputs], cross)
        noise.append(share * float(covariance[link.column, link.column] - explained))
    return noise


def likelihoods(
    codec: TableCodec, link_specs: Sequence[LinkSpec], noise: Sequence[float]
) -> list[Likelihood]:
    """Return the untrained likelihood of each link, given the initial variances of their noises."""
    columns = codecs_of_links(codec, link_specs)
    return [_likelihood(codec, *own) for own in zip(link_specs, columns, noise, strict=True)]


def _likelihood(codec: TableCodec, link: LinkSpec, column: ColumnCodec | None, noise: float) -> Likelihood:
    """Return the untrained likelihood of a link's column; that of a target is Gaussian."""
    if isinstance(column, CountCodec):
        return NegativeBinomial(CountScale(column.mean[0], column.scale[0]), column.average)
    if isinstance(column, HeavyTailedCodec):
        return HeavyTailed(noise)
    if column is not None:
        first = codec.slices[column.name].start
        unless = [d - first for d in link.unless] if column.indicators is not None else []
        ordinal = column.ordinal(link.column - first, unless)
        if ordinal is not None:
            return Ordinal(*map(torch.as_tensor, ordinal))
    return Gaussian(noise)


def codecs_of_links(codec: TableCodec, link_specs: Sequence[LinkSpec]) -> list[ColumnCodec | None]:
    """Return the codec of each link's encoded column, None for a target."""
    columns = [part for column in codec.columns for part in column.parts]
    return [columns[link.column] if link.column < len(columns) else None for link in link_specs]


def compounds(codec: TableCodec, link_specs: Sequence[LinkSpec], device: torch.device) -> list[Compound]:
    """Return the variables that have several links: categories, and those of two parts."""
    numbers = {link.column: number for number, link in enumerate(link_specs)}
    found = list[Compound]()
    for column in codec.columns:
        columns = tuple(range(codec.n_encoded)[codec.slices[column.name]])
        linked = [d for d in numbers if d in columns]
        if column.indicators is not None and linked:
            of_levels = (*linked, *(d for d in columns if d not in linked))
            places = [d - columns[0] for d in of_levels]
            off, on = (torch.as_tensor(values[places], device=device) for values in column.indicators)
            found.append(Category(tuple(numbers[d] for d in linked), of_levels, off, on))
        if isinstance(column, SemicontinuousCodec) and linked:
            off, on = torch.tensor(column.indicator_values, dtype=torch.float64, device=device).unbind()
            found.append(TwoPart(tuple(numbers[d] for d in columns), columns, off, on, *column.of_means))
    return found


def values_of_links(
    codec: TableCodec, link_specs: Sequence[LinkSpec], device: torch.device
) -> list[Tensor | None]:
    """Return the standardised discrete support of each link's column, `[J]`; None without one."""
    found = [column.support_encoded if column else None for column in codecs_of_links(codec, link_specs)]
    return [None if values is None else torch.as_tensor(values, device=device) for values in found]


def products_of(codec: TableCodec, link_specs: Sequence[LinkSpec]) -> list[list[tuple[int, int]]]:
    """Return for each link the pairs of its product inputs whose products are more than linear.

    Squares of a binary column, and products of indicators of one variable, are linear. Counts have no
    squares, whose exponentials are far beyond the counts at the ends of a column.
    """
    groups = [*codec.groups.tolist(), len(codec.columns)]
    binary = [part.is_binary for column in codec.columns for part in column.parts] + [False]
    found = []
    for link, column in zip(link_specs, codecs_of_links(codec, link_specs), strict=True):
        multiplied = link.inputs if link.product_inputs is None else link.product_inputs
        inputs = [(i, d) for i, d in enumerate(link.smooth_inputs) if d in multiplied]
        numbered = itertools.combinations_with_replacement(inputs, 2)
        pairs = [
            (i, j) for (i, a), (j, b) in numbered if groups[a] != groups[b] or (a == b and not binary[a])
        ]
        if isinstance(column, CountCodec):
            pairs = [(i, j) for i, j in pairs if i != j]
        found.append(pairs)
    return found


def build_chain(
    link_specs: Sequence[LinkSpec],
    kernel: KernelFactory,
    inducing: Tensor,
    likelihoods: Sequence[Likelihood],
    *,
    products: Sequence[Sequence[tuple[int, int]]] | None = None,
    sequential: bool = False,
    train_inducing: bool,
    n_rows: int,
    **switches: Any,
) -> Chain:
    """Build an untrained `Chain`, or a `SequentialChain`, from the specifications of its links, in order.

    `kernel` gives the kernel of each link by its number of inputs. Inducing inputs are rows of the filled
    table, `[M, D]`, which has `n_rows`. For each link, `products` are the pairs of inputs whose products a
    trend contains; None stands for none. `switches` are further arguments of `Chain`.

    Raises:
        TypeError: If `kernel` does not give a kernel.
    """
    if products is None or kernel is linear:
        products = [()] * len(link_specs)
    links = []
    effects = [_among_inputs(link) for link in link_specs]
    # All links have equally many features, so that their matrices can be stacked.
    sizes = [
        1
        + len(link.smooth_inputs)
        + len(pairs)
        + sum(len(each.in_kernel) * (1 + len(each.slopes)) for each in own)
        for link, pairs, own in zip(link_specs, products, effects, strict=True)
    ]
    n_features = max(sizes, default=0)
    for spec, likelihood, pairs, own in zip(link_specs, likelihoods, products, effects, strict=True):
        inputs = list(spec.inputs)
        if kernel in WITH_TREND:
            few = spec.product_inputs if is_sparse(len(spec.smooth_inputs), n_rows) else None
            curved = None if few is None else [i for i, d in enumerate(inputs) if d in few]
            covariance = kernel(len(inputs), pairs, n_features, own, curved=curved)
            trend, _ = trend_of(covariance)
            if trend is not None and isinstance(likelihood, NegativeBinomial):
                trend.product_deviations *= _PRODUCTS_OF_COUNTS
        elif inputs:
            covariance = kernel(len(inputs))
        else:
            covariance = Constant(0)  # many kernels have no meaning without inputs
        if not isinstance(covariance, Kernel):
            raise TypeError(
                f"kernel must be a function input_dim -> pyro.contrib.gp kernel, but it gave {covariance!r}"
            )
        Xu = inducing[:, inputs].clone()
        link = Link(covariance, Xu, spec.column, inputs, likelihood, _JITTER, spec.unless, spec.once_per)
        link.Xu_unconstrained.requires_grad_(train_inducing)
        links.append(link)
    kind = SequentialChain if sequential else Chain
    priors = [prior for link in links for prior in estimate(link)]
    return kind(links, [spec.name for spec in link_specs], n_rows, priors=priors, **switches)


def _among_inputs(link: LinkSpec) -> list[RandomEffects]:
    """Return a link's random effects with positions among its inputs in place of encoded columns."""
    place = link.inputs.index
    return [
        replace(own, place=place(own.place), slopes=tuple(map(place, own.slopes))) for own in link.effects
    ]
