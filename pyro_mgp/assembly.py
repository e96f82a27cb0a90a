"""From an encoded table to an untrained chain: which columns get a link, in which order, starting where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pyro.contrib.gp.kernels import Kernel
from torch import Tensor

from pyro_mgp.chain import Chain
from pyro_mgp.column import ColumnCodec, Label
from pyro_mgp.kernels import KernelFactory
from pyro_mgp.likelihoods import Category, Gaussian, Likelihood
from pyro_mgp.link import Link
from pyro_mgp.ordinal import Ordinal
from pyro_mgp.table import TableCodec

# Share of the joint Gaussian's residual variance at which a link's noise starts: the kernel explains some.
_NOISE_SHARE = 0.8


# Inducing inputs are rows of the table and often close to each other; training wants K_ZZ well conditioned.
_JITTER = 1e-6


@dataclass(frozen=True)
class Wiring:
    """One link to be: which encoded column it predicts, and from which."""

    name: str
    column: int
    inputs: tuple[int, ...]
    unless: tuple[int, ...] = ()
    """Indicators of earlier levels of its variable; see `Link`."""


def wire(
    codec: TableCodec,
    incomplete: NDArray[np.bool_],
    order: Sequence[Label] | None,
    target: ColumnCodec | None = None,
    target_is_input: bool = True,
) -> list[Wiring]:
    """The links of a table, in the order of the chain, a target last.

    A link sees all columns but those of its own variable: the other indicators of a category are missing
    whenever it is, and would otherwise explain it away. The last of these has no link; see `Category`.

    Args:
        codec: The table's codec.
        incomplete: Bool `[D]`, the encoded columns that get a link.
        order: Labels of the linked columns, or None for ascending standard deviation before scaling. The
            links of a category follow each other.
        target: Codec of a target, which is column D.
        target_is_input: Whether the other links see the target.

    Raises:
        ValueError: If `order` does not name each column with a link exactly once.
    """
    groups = codec.groups
    linked = np.flatnonzero(incomplete & ~_is_last_indicator(codec))
    if order is None:
        linked = _ascending(codec, linked)
    else:
        linked = np.concatenate([np.arange(0), *_ordered(codec, linked, order)])
    extra = (codec.n_encoded,) if target is not None and target_is_input else ()
    wirings = [
        Wiring(
            codec.names[d],
            d,
            (*np.flatnonzero(groups != groups[d]).tolist(), *extra),
            tuple(np.flatnonzero(groups[:d] == groups[d]).tolist()),
        )
        for d in linked.tolist()
    ]
    if target is None:
        return wirings
    name = str(target.name)
    while name in codec.names:
        name = f"target {name}"
    return [*wirings, Wiring(name, codec.n_encoded, tuple(range(codec.n_encoded)))]


def _ascending(codec: TableCodec, linked: NDArray[np.intp]) -> NDArray[np.intp]:
    """Columns by their standard deviation, a category's indicators together by the smallest of theirs."""
    groups, scale = codec.groups, codec.raw_scale
    least = {group: scale[linked[groups[linked] == group]].min() for group in set(groups[linked].tolist())}
    return np.asarray(sorted(linked.tolist(), key=lambda d: (least[groups[d]], groups[d], d)), dtype=np.intp)


def _ordered(codec: TableCodec, linked: NDArray[np.intp], order: Sequence[Label]) -> list[NDArray[np.intp]]:
    labels = [codec.columns[group].name for group in dict.fromkeys(codec.groups[linked].tolist())]
    if len(set(order)) != len(order) or set(order) != set(labels):
        raise ValueError(
            f"order must name each column with a link once: expected {labels} in any order, got {list(order)}"
        )
    columns = [np.arange(codec.n_encoded)[codec.slices[label]] for label in order]
    return [own[np.isin(own, linked)] for own in columns]


def _is_last_indicator(codec: TableCodec) -> NDArray[np.bool_]:
    """Which encoded columns say nothing that the other indicators of their variable do not, `[D]`."""
    last = np.zeros(codec.n_encoded, dtype=bool)
    for column in codec.columns:
        last[codec.slices[column.name].stop - 1] = column.levels is not None
    return last


def starting_noise(covariance: Tensor, wirings: Sequence[Wiring]) -> list[float]:
    """Noise variance at which each link starts, from the joint Gaussian `[D, D]` of the starting fill."""
    noise = []
    for wiring in wirings:
        inputs = list(wiring.inputs)
        cross = covariance[inputs, wiring.column]
        explained = cross @ torch.linalg.solve(covariance[inputs][:, inputs], cross)
        noise.append(_NOISE_SHARE * float(covariance[wiring.column, wiring.column] - explained))
    return noise


def likelihoods(
    codec: TableCodec, wirings: Sequence[Wiring], noise: Sequence[float], device: torch.device
) -> list[Likelihood]:
    """The observation model of each link.

    Args:
        codec: The table's codec.
        wirings: The links.
        noise: Variance at which the noise of numbers starts, per link.
        device: Where tensors shall be.
    """
    pairs = [pair for column in codec.columns for pair in _off_and_on(column)]
    found: list[Likelihood] = []
    for wiring, variance in zip(wirings, noise, strict=True):
        pair = pairs[wiring.column] if wiring.column < len(pairs) else None
        if pair is None:
            found.append(Gaussian(variance))
            continue
        # Standardised, "no" and "yes" average to zero; "no" to all earlier levels leaves so many rows.
        left = 1.0 - sum(_share(pairs[d]) for d in wiring.unless)
        share = _share(pair) / left
        values = torch.tensor(pair, dtype=torch.float64, device=device)
        found.append(Ordinal(values, values.new_tensor([1 - share, share])))
    return found


def _off_and_on(column: ColumnCodec) -> list[tuple[float, float] | None]:
    """The two values of each encoded column, None where there are more."""
    if column.discrete is None:
        return [None] * column.width
    return list(zip(*(values.tolist() for values in column.discrete), strict=True))


def _share(pair: tuple[float, float] | None) -> float:
    """How often the second of two standardised values occurs."""
    if pair is None:
        raise TypeError("a level is an indicator, with two values")
    return -pair[0] / (pair[1] - pair[0])


def categories(codec: TableCodec, wirings: Sequence[Wiring], device: torch.device) -> list[Category]:
    """The variables of several indicators that have links."""
    numbers = {wiring.column: number for number, wiring in enumerate(wirings)}
    found = []
    for column in codec.columns:
        columns = tuple(range(codec.n_encoded)[codec.slices[column.name]])
        if column.levels is not None and column.discrete is not None and columns[0] in numbers:
            off, on = (torch.as_tensor(values, device=device) for values in column.discrete)
            found.append(Category(tuple(numbers[d] for d in columns[:-1]), columns, off, on))
    return found


def values_of_links(
    codec: TableCodec, wirings: Sequence[Wiring], device: torch.device
) -> list[Tensor | None]:
    """For each link the standardised values of its column if they are few, `[J]`; None for a target."""
    encoded = [column.few_encoded for column in codec.columns for _ in range(column.width)]
    found = [None if w.column >= len(encoded) else encoded[w.column] for w in wirings]
    return [None if values is None else torch.as_tensor(values, device=device) for values in found]


def build_chain(
    wirings: Sequence[Wiring],
    kernel: KernelFactory,
    inducing: Tensor,
    likelihoods: Sequence[Likelihood],
    *,
    train_inducing: bool,
    n_rows: int,
    **switches: Any,
) -> Chain:
    """An untrained chain.

    Args:
        wirings: Its links, in order.
        kernel: Factory `input_dim -> Kernel`.
        inducing: Rows of the filled table that serve as inducing inputs, `[M, D]`.
        likelihoods: Observation model of each link.
        train_inducing: Whether the inducing inputs are parameters to be trained.
        n_rows: Rows of the training table.
        switches: Further arguments of `Chain`.

    Raises:
        TypeError: If `kernel` does not give a kernel.
    """
    links = []
    for wiring, likelihood in zip(wirings, likelihoods, strict=True):
        inputs = list(wiring.inputs)
        Xu = inducing[:, inputs].clone()
        covariance = kernel(len(inputs))
        if not isinstance(covariance, Kernel):
            raise TypeError(
                f"kernel must be a function input_dim -> pyro.contrib.gp kernel, but it gave {covariance!r}"
            )
        link = Link(covariance, Xu, wiring.column, inputs, likelihood, _JITTER, wiring.unless)
        link.Xu_unconstrained.requires_grad_(train_inducing)
        links.append(link)
    return Chain(links, [wiring.name for wiring in wirings], n_rows, **switches)
