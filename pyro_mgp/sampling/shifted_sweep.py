"""Sweep of missing cells with some functions shifted, for sensitivity to data missing not at random."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from pyro_mgp._support.tiles import filled_up
from pyro_mgp.model.chain import Chain, Noise
from pyro_mgp.model.conditional import Shifted
from pyro_mgp.model.sequential_chain import SequentialChain
from pyro_mgp.sampling.neighbours import Cells, Conditionals


def shifted_sweep(
    chain: Chain,
    conditionals: Conditionals,
    shifts: Mapping[int, float],
    filled: Tensor,
    observed: Tensor,
    noise: Callable[[int], Noise],
    holes: Cells,
) -> Tensor:
    """Return rows `[S, n, D]` after the last sweep, in which some functions are shifted.

    Shifted in every sweep, columns that predict each other would shift each other repeatedly. Afterwards the
    links before the shifted ones, or all other links of a sequential chain, are visited once more, while the
    shifted cells are kept. Takes the arguments of `Chain.sweep`, the shifts of functions by the column of
    their link, and noise as a function of the sweep's number.
    """
    n_sweeps = chain.n_sweeps
    shifted = [
        Shifted(conditional, shifts[link.column]) if link.column in shifts else conditional
        for conditional, link in zip(conditionals, chain.links, strict=True)
    ]
    filled, _ = chain.sweep(shifted, filled, observed, noise(n_sweeps - 1), holes)
    if not isinstance(chain, SequentialChain):
        moved = [i for i, link in enumerate(chain.links) if link.column in shifts]
        before = [i < max(moved, default=0) and i not in moved for i in range(len(chain.links))]
        again = [cells if early else cells[:0] for cells, early in zip(holes, before, strict=True)]
        return chain.sweep(conditionals, filled, observed, noise(n_sweeps - 1), again)[0]
    kept = observed.clone()
    kept[:, list(shifts)] = True
    here = (kept != observed).any(1)
    again = [filled_up(cells[here[cells]], len(filled)) for cells in chain.holes(kept)]
    # Reweighting moves cells instead of redrawing them: it takes several sweeps until they have their
    # conditional distribution, and noise that was used before would move them back.
    for sweep in range(n_sweeps, 2 * n_sweeps):
        filled, _ = chain.sweep(conditionals, filled, kept, noise(sweep), again)
    return filled
