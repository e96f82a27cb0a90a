"""Moves of a link's function and noise that take the missing cells of its column along.

Given its completed column a function moves by as little as the missing cells allow, and given the function
these move by as little as it allows: means and spreads of columns with many missing cells change slowly. In
between, function and noise therefore move with the standardised residuals z of the missing cells held fixed,

    x = f(inputs) + √(s² + rest) z
    p(f, s | z) ∝ p(f, s | observed cells of the column) p(later links' cells | x).

Alternating both kinds of steps is interweaving (Yu and Meng, Journal of Computational and Graphical
Statistics 20:531-570, 2011). In a Gaussian table of 200 rows, 40 % of a column missing, the autocorrelation
time of its standard deviation fell from 11 to 3 sweeps, that of its mean from 6 to 2.6.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_mgp.inference.data_augmentation import Regression, Rows, draw_noise
from pyro_mgp.inference.function_posterior import FunctionPosterior, times
from pyro_mgp.inference.slice_sampling import N_NUMBERS
from pyro_mgp.model.elliptical_slice import N_ANGLES, elliptical_slice
from pyro_mgp.model.later_links import LaterLinks


def n_numbers(n_values: int) -> int:
    """Return how many standard normal numbers the moves take of a function with M values, and its noise."""
    return n_values + 1 + N_ANGLES + 1 + N_NUMBERS


@dataclass(frozen=True)
class Moving:
    """Function and noise of a link in S chains, with the missing cells of its column that move along."""

    function: Tensor
    """Whitened inducing values, `[S, M]`."""
    noise: Tensor
    """Noise variances, `[S, 1]`."""
    cells: Rows
    """Basis and values of the k cells, `[S, ...]`."""
    later: LaterLinks
    """Likelihood of the cells under the later links."""

    def moved(
        self, observed: Regression, posterior: FunctionPosterior, normal: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return functions, noise variances and cells `[S, k]` after a move of each.

        Args:
            observed: The rows with an observed cell of the link's column.
            posterior: Distribution of the functions given these.
            normal: Standard normal numbers, `[S, n_numbers(M)]`.
        """
        sizes = [self.function.shape[1], 1 + N_ANGLES, 1, N_NUMBERS]
        direction, angles, threshold, of_noise = normal.split(sizes, dim=1)
        chains = torch.arange(len(normal), device=normal.device)
        current = self.function - posterior.mean

        def along(deviations: Tensor, chains: Tensor) -> Tensor:
            change = times(deviations - current[chains], self.cells.basis[chains])
            return self.cells.targets[chains] + change

        moved, likelihood = elliptical_slice(
            current,
            posterior.draw(direction) - posterior.mean,
            lambda deviations, chains: self._log_likelihood(along(deviations, chains), chains),
            self._log_likelihood(self.cells.targets, chains),
            torch.special.ndtr(angles),
        )
        function, values = posterior.mean + moved, along(moved, chains)
        # This step leaves p(s | f, observed cells) invariant, so that later links alone decide on it.
        noise = draw_noise(observed, function, self.noise, of_noise)
        mean = times(function, self.cells.basis)
        spread = ((noise + self.cells.rest) / (self.noise + self.cells.rest)).sqrt()
        proposal = mean + (values - mean) * spread
        gain = self._log_likelihood(proposal, chains) - likelihood
        taken = gain[:, None] > torch.special.log_ndtr(threshold)
        return function, noise.where(taken, self.noise), proposal.where(taken, values)

    def _log_likelihood(self, values: Tensor, chains: Tensor) -> Tensor:
        """Return the log likelihoods `[s]` of some chains' cells `[s, k]` under the later links."""
        n_cells = values.shape[1]
        cells = torch.arange(n_cells, device=values.device).repeat(len(chains))
        found = self.later.log_likelihood(chains.repeat_interleave(n_cells), cells, values.flatten())
        return found.view(values.shape).sum(1)
