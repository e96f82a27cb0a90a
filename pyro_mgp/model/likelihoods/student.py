"""Student's t likelihood of numeric columns with outliers (Vanhatalo, Jylänki and Vehtari, NIPS 2009).

    p(x | f) = t_ν((x - f) / s) / s

The density is not log-concave: the pull of a cell on the function vanishes with its distance from it.
"""

from __future__ import annotations

import pyro.distributions as dist
import torch
from pyro.nn import PyroParam
from scipy import special
from torch import Tensor
from torch.distributions import StudentT, constraints

from pyro_mgp.model.likelihoods.base import MIN_NOISE, Drawn, Quantity, Scored

# Starting degrees of freedom; with two or fewer the variance is infinite.
_FIRST_FREEDOM, _LEAST_FREEDOM = 4.0, 2.0


class ExpectedStudentT(Scored):
    """Student's t distribution of an observation, given a Gaussian latent function."""

    freedom: Tensor
    """Degrees of freedom ν, a scalar."""
    scale: Tensor
    """Scale s, a scalar."""

    def _given(self, value: Tensor) -> Quantity:
        noise = StudentT(self.freedom, 0.0, self.scale, validate_args=False)
        return lambda f: noise.log_prob(value[..., None] - f)

    def least_precision(self, value: Tensor) -> Tensor:
        """Return the curvature `[...]` of a parabola that bounds the log density from below near q(f)."""
        squared = (value - self.f_mean).square() + self.f_variance
        return (self.freedom + 1) / (self.freedom * self.scale.square() + squared)


class HeavyTailed(Drawn):
    """Student's t likelihood of a column with outliers; degrees of freedom and scale are parameters."""

    noise: Tensor

    def __init__(self, noise: float, like: Tensor) -> None:
        super().__init__()
        self.register_buffer("noise", like.new_ones(()))
        least = MIN_NOISE**0.5
        self.scale = PyroParam(
            like.new_tensor(max(noise, 2 * MIN_NOISE)).sqrt(), constraints.greater_than(least)
        )
        self.freedom = PyroParam(like.new_tensor(_FIRST_FREEDOM), constraints.greater_than(_LEAST_FREEDOM))

    def forward(self, mean: Tensor, variance: Tensor) -> ExpectedStudentT:
        """Return the distribution of observations, given the moments of the latent function."""
        return ExpectedStudentT(mean, variance, self.freedom, self.scale)

    def distribution(self, function: Tensor) -> dist.StudentT:
        """Return the distribution of observations given values `[..., n]` of the latent function."""
        return dist.StudentT(self.freedom, function, self.scale)

    def expectation(self, mean: Tensor, variance: Tensor, of: Quantity | None = None) -> Tensor:
        """Return the expectation of the observations, or of a function of them, `[...]`."""
        return mean if of is None else super().expectation(mean, variance, of)

    def observe(self, function: Tensor, uniform: Tensor) -> Tensor:
        """Draw observations given the latent function and uniform numbers, all `[...]`."""
        # By SciPy, on the host: torch has no quantile function of Student's t.
        quantiles = special.stdtrit(float(self.freedom.detach()), uniform.cpu().numpy())
        return function + self.scale * torch.as_tensor(quantiles).to(function)
