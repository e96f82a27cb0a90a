"""Gaussian sites: approximations of observations that are not Gaussian, with a target and precision per row.

Near q(f) = N(m, v) of a row, the expected log density E of its observation changes as

    E + ½ (w (m² + v) - 2tm) - ½ (w (μ² + σ²) - 2tμ),   w = -2 ∂E/∂v,   t = wm + ∂E/∂m

for other moments μ, σ²: as if t/w had been observed with noise of variance 1/w. A natural-gradient step
under these sites is one under the observations themselves (Khan and Lin, AISTATS 2017), and the gradients of
the kernels at m, v are the same. Where E is not concave, w is the curvature of a parabola that bounds the log
density from below (Jaakkola and Jordan 2000): steps towards its optimum increase the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_mgp.model.conditional import Moments
from pyro_mgp.model.likelihoods import Bounded, Scored

# Smallest precision of a site.
_LEAST_PRECISION = 1e-9


@dataclass(frozen=True)
class Sites:
    """Gaussian sites of n rows."""

    roots: Tensor
    """√w, `[n]`."""
    targets: Tensor
    """t/√w, `[n]`."""
    scores: Tensor
    """E, `[n]`; differentiable with respect to the likelihood's parameters."""
    rest: Tensor
    """½ (w (m² + v) - 2tm), `[n]`."""

    @classmethod
    def of(cls, likelihood: Callable[[Tensor, Tensor], Scored], values: Tensor, moments: Moments) -> Sites:
        """Return the sites of observations.

        Args:
            likelihood: Observation distribution at rows of some mean and variance. Its log density is concave
                in f, or it is `Bounded` from below by a parabola.
            values: The observations, `[n]`.
            moments: m and v of their rows, `[1, n]`.
        """
        with torch.enable_grad():
            mean, variance = (part[0].detach().requires_grad_() for part in (moments.mean, moments.variance))
            observation = likelihood(mean, variance)
            scores = observation.log_prob(values)
            of_mean, of_variance = torch.autograd.grad(scores.sum(), [mean, variance], retain_graph=True)
        mean, variance = mean.detach(), variance.detach()
        precision = -2 * of_variance
        if isinstance(observation, Bounded):
            precision = observation.least_precision(values).detach()
        precision = precision.clamp(min=_LEAST_PRECISION)
        pull = precision * mean + of_mean
        roots = precision.sqrt()
        return cls(roots, pull / roots, scores, precision * (mean.square() + variance) / 2 - pull * mean)
