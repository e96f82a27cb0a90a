"""Drawn standard deviations of the coefficients of a `Trend`, and of the rest of a kernel.

    value ~ N(0, σ²),   σ · (trained standard deviation) ~ half-Cauchy(scale of the value's group)

The priors are those of `model.priors`, by which slopes of Gaussian links have fixed ones. The inducing values
of the rest of the kernel share one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from pyro_mgp.inference.slice_sampling import N_NUMBERS, slice_step
from pyro_mgp.model.kernels import trend_of
from pyro_mgp.model.link import Link
from pyro_mgp.model.local_parameters import local_parameters
from pyro_mgp.model.priors import REST, drawn_groups, group_scales

# Range of the logarithms of standard deviations.
_LOG_RANGE = (-8.0, 5.0)


@dataclass(frozen=True)
class CoefficientScales:
    """Prior of the standard deviations of a link's values, relative to the trained ones."""

    coefficients: Tensor
    """Bool `[M]`, the coefficients whose standard deviations are drawn; see `model.priors`."""
    rest: Tensor
    """Bool `[M]`, the inducing values of the rest of the kernel."""
    wide: Tensor
    """Scale of each value's half-Cauchy prior, `[M]`."""

    @classmethod
    def of(cls, link: Link) -> Self | None:
        """Return the prior of a link's values; None if its kernel has no trend, and nothing is drawn."""
        trend, rest = trend_of(link.kernel)
        if trend is None:
            return None
        groups = torch.nn.functional.pad(trend.groups, (0, link.n_inducing), value=REST).to(link.Xu.device)
        with local_parameters():
            amplitude = rest(link.Xu[:1], diag=True).sqrt().expand(link.n_inducing)
        typical = torch.cat([trend.spread.to(link.Xu), amplitude])
        coefficients = torch.isin(groups, groups.new_tensor([*drawn_groups(link)])) & (typical > 0)
        return cls(coefficients, groups == REST, group_scales(link)[groups] / typical)

    def draw(self, values: Tensor, scales: Tensor, fresh: Callable[[int, int], Tensor]) -> Tensor:
        """Draw standard deviations `[S, M]` given values and the last standard deviations, `[S, M]` each.

        `fresh(n, stream)` returns standard normal numbers `[S, n]`.
        """
        scales, own = scales.clone(), self.coefficients
        n_chains, n_own = len(values), int(own.sum())
        if n_own:
            normal = fresh(n_own * N_NUMBERS, 0).view(n_chains * n_own, N_NUMBERS)
            wide = self.wide[own].expand(n_chains, -1).reshape(-1)
            drawn = draw_scale(values[:, own].reshape(-1, 1), wide, scales[:, own].reshape(-1), normal)
            scales[:, own] = drawn.view(n_chains, n_own)
        rest = self.rest
        drawn = draw_scale(values[:, rest], self.wide[rest][0], scales[:, rest][:, 0], fresh(N_NUMBERS, 1))
        scales[:, rest] = drawn[:, None]
        return scales

    def rescale(
        self, values: Tensor, scales: Tensor, gram: Tensor, products: Tensor, normal: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Draw the common scale of the inducing values while their ratios to it stay as they are.

        Given its many values a scale hardly moves; given their ratios it moves freely where the data say
        little (interweaving; Yu and Meng, Journal of Computational and Graphical Statistics 20, 2011).

        Args:
            values: Whitened values, `[S, M]`.
            scales: Their standard deviations, `[S, M]`.
            gram: Precision that the data add to the prior's, `[S, M, M]`.
            products: That precision times the values that fit the data best, `[S, M]`.
            normal: Standard normal numbers, `[S, N_NUMBERS]`.

        Returns:
            New values and standard deviations.
        """
        rest, scale = self.rest, scales[:, self.rest][:, 0]
        others = values.masked_fill(rest, 0.0)
        ratios = (values - others) / scale[:, None]
        explained = (gram @ torch.stack([ratios, others], dim=-1)).unbind(-1)
        curvature = (ratios * explained[0]).sum(1)
        slope = (ratios * (products - explained[1])).sum(1)
        wide = self.wide[rest][0]

        def log_density(log_scale: Tensor) -> Tensor:
            size = log_scale.exp()
            prior = log_scale - (size / wide).square().log1p()
            return prior + size * slope - 0.5 * size.square() * curvature

        drawn = slice_step(log_density, scale.log(), normal).clamp(*_LOG_RANGE).exp()[:, None]
        return others + drawn * ratios, torch.where(rest, drawn, scales)


def draw_scale(values: Tensor, wide: Tensor, scale: Tensor, normal: Tensor) -> Tensor:
    """Draw the standard deviation σ `[S]` of values `[S, k]` ~ N(0, σ²) by a step of slice sampling.

    Args:
        values: The values.
        wide: Scale of the half-Cauchy prior of σ, `[]` or `[S]`.
        scale: The last σ, `[S]`.
        normal: Standard normal numbers, `[S, N_NUMBERS]`.
    """
    squares, count = values.square().sum(1), values.shape[1]

    def log_density(log_scale: Tensor) -> Tensor:
        variance = (2 * log_scale).exp()
        prior = log_scale - (variance / wide**2).log1p()
        return prior - count * log_scale - 0.5 * squares / variance

    return slice_step(log_density, scale.log(), normal).clamp(*_LOG_RANGE).exp()
