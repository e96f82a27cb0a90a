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

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_mgp.inference.data_augmentation import Regression, Rows, draw_noise
from pyro_mgp.inference.function_posterior import FunctionPosterior, times
from pyro_mgp.inference.slice_sampling import N_NUMBERS
from pyro_mgp.model.later_links import LaterLinks

# Angles tried before a function keeps its place.
_ANGLES = 16


def n_numbers(n_values: int) -> int:
    """Return how many standard normal numbers the moves take of a function with M values, and its noise."""
    return n_values + 1 + _ANGLES + 1 + N_NUMBERS


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
        sizes = [self.function.shape[1], 1 + _ANGLES, 1, N_NUMBERS]
        direction, angles, threshold, of_noise = normal.split(sizes, dim=1)
        everywhere = torch.arange(len(normal), device=normal.device)
        likelihood = self._log_likelihood(self.cells.targets, everywhere)
        change, likelihood = self._on_ellipse(
            self.function - posterior.mean,
            posterior.draw(direction) - posterior.mean,
            likelihood,
            torch.special.ndtr(angles),
        )
        function, values = self.function + change, self._along(change, everywhere)
        # This step leaves p(s | f, observed cells) invariant, so that later links alone decide on it.
        noise = draw_noise(observed, function, self.noise, of_noise)
        mean = times(function, self.cells.basis)
        spread = ((noise + self.cells.rest) / (self.noise + self.cells.rest)).sqrt()
        proposal = mean + (values - mean) * spread
        gain = self._log_likelihood(proposal, everywhere) - likelihood
        taken = gain[:, None] > torch.special.log_ndtr(threshold)
        return function, noise.where(taken, self.noise), proposal.where(taken, values)

    def _on_ellipse(
        self, current: Tensor, direction: Tensor, likelihood: Tensor, shares: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Move functions by elliptical slices (Murray, Adams and MacKay, AISTATS 2010).

        Args:
            current: Functions less their means given the observed cells, `[S, M]`.
            direction: Draws of such differences, `[S, M]`.
            likelihood: Log likelihoods of the cells, `[S]`.
            shares: Uniform numbers of thresholds and angles, `[S, 1 + angles]`.

        Returns:
            Changes of the functions, `[S, M]`, and the log likelihoods after them.
        """
        threshold, likelihood = likelihood + shares[:, 0].log(), likelihood.clone()
        change, waiting = torch.zeros_like(current), torch.arange(len(current), device=current.device)
        low, high = (torch.full_like(likelihood, bound) for bound in (0.0, 2 * math.pi))
        for k, share in enumerate(shares[:, 1:].unbind(1)):
            angle = (low + (high - low) * share)[waiting]
            proposal = current[waiting] * (angle.cos() - 1)[:, None]
            proposal = proposal + direction[waiting] * angle.sin()[:, None]
            found = self._log_likelihood(self._along(proposal, waiting), waiting)
            taken = found > threshold[waiting]
            change[waiting[taken]], likelihood[waiting[taken]] = proposal[taken], found[taken]
            waiting, angle = waiting[~taken], angle[~taken]
            if len(waiting) == 0:
                break
            # The first interval is one whole turn, which begins and ends at the first angle.
            low[waiting] = angle - 2 * math.pi if k == 0 else angle.where(angle < 0, low[waiting])
            high[waiting] = angle if k == 0 else high[waiting].where(angle < 0, angle)
        return change, likelihood

    def _along(self, change: Tensor, chains: Tensor) -> Tensor:
        """Return the cells `[s, k]` of some chains after changes of their functions, `[s, M]`."""
        return self.cells.targets[chains] + times(change, self.cells.basis[chains])

    def _log_likelihood(self, values: Tensor, chains: Tensor) -> Tensor:
        """Return the log likelihoods `[s]` of some chains' cells `[s, k]` under the later links."""
        n_cells = values.shape[1]
        cells = torch.arange(n_cells, device=values.device).repeat(len(chains))
        found = self.later.log_likelihood(chains.repeat_interleave(n_cells), cells, values.flatten())
        return found.view(values.shape).sum(1)
