"""Functions of a local GP's prior, by which the residuals of nearby cells vary together.

If each cell were drawn from its own predictive distribution, the errors of nearby cells would be independent
given the functions of the sparse GP, and the mean of a group of cells would look too certain. Instead an
imputation draws a function g of the local GP's prior and conditions it on the neighbours N of each cell
(Matheron's rule; Wilson et al., ICML 2020), in the notation of `local_gp`:

    y(x) = μ(x) + cᵀ C⁻¹ (e_N - s (g_N + √η ε_N)) + s (g(x) + √η ε),   s² = τ² a(x)

At a single cell this is the predictive distribution of the local GP. Cells with bounds or a discrete support
take the standardised deviation from its mean as their normal number (a Gaussian copula). All cells share g
and the noise of the neighbours. g is a sum of random Fourier features (Rahimi and Recht, NeurIPS 2007). Their
frequencies differ between imputations, over which covariances are therefore those of the local GP on average.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_mgp.sampling.local_gp import LocalLink

# Random Fourier features of a function. Few suffice, since covariances are averages over imputations.
_FEATURES = 64
# Streams of noise: phases, weights, the noise of references, three for a χ² variate, and the frequencies.
_PHASE, _WEIGHT, _NOISE, _CHI, _FREQUENCY = 0, 1, 2, 3, 6


@dataclass(frozen=True)
class ResidualProcess:
    """Functions of a local GP's prior on S paths, in units of its scale."""

    columns: Tensor  # columns of the table that are the inputs, `[P]`
    frequencies: Tensor  # frequencies of the features, `[S, P, F]`
    phases: Tensor  # phases of the features, `[S, 1, F]`
    weights: Tensor  # coefficients of the features, `[S, F, 1]`
    references: Tensor  # function plus noise at the n reference rows, `[S, n]`

    @classmethod
    def of(
        cls, metrics: Sequence[LocalLink], imputations: Sequence[int], normal: Callable[[int, int], Tensor]
    ) -> ResidualProcess:
        """Draw functions for S imputations; number j uses the metric j modulo G.

        The metrics are local GPs of one link, equal but for ℓ and η. The function `normal` returns standard
        normal numbers `[S, n]`, given n and a stream.
        """
        local, metric = metrics[0], torch.tensor(imputations) % len(metrics)
        lengthscales = torch.stack([each.lengthscales for each in metrics])[metric]
        nugget = lengthscales.new_tensor([each.params.nugget for each in metrics])[metric, None]
        # The spectral density of a Matérn 3/2 kernel is a multivariate t of three degrees of freedom.
        chi = torch.stack([normal(_FEATURES, _CHI + i) for i in range(3)]).square().mean(0)
        dimensions = range(lengthscales.shape[1])
        normals = torch.stack([normal(_FEATURES, _FREQUENCY + p) for p in dimensions], dim=1)
        frequencies = normals / chi.sqrt()[:, None] / lengthscales[..., None]
        phases = 2 * math.pi * torch.special.ndtr(normal(_FEATURES, _PHASE))[:, None]
        weights = normal(_FEATURES, _WEIGHT)[..., None] * math.sqrt(2 / _FEATURES)
        noise = normal(len(local.references), _NOISE) * nugget.sqrt()
        inputs = local.rows[local.references][None, :, local.columns]
        # One path at a time: its features of 10,000 rows take 20 MB.
        paths = zip(frequencies.split(1), phases.split(1), weights.split(1), strict=True)
        references = torch.cat([_functions(inputs, *path) for path in paths]) + noise
        return cls(local.columns, frequencies, phases, weights, references)

    def functions(self, rows: Tensor) -> Tensor:
        """Return the functions at rows `[S, c, D]`, `[S, c]`."""
        return _functions(rows[..., self.columns], self.frequencies, self.phases, self.weights)


def _functions(inputs: Tensor, frequencies: Tensor, phases: Tensor, weights: Tensor) -> Tensor:
    """Return functions `[S, n]` at inputs `[S, n, P]`."""
    return (torch.baddbmm(phases, inputs, frequencies).cos_() @ weights)[..., 0]
