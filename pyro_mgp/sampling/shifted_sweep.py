"""Sweep of missing cells with some functions shifted, for sensitivity to data missing not at random."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from pyro_mgp._support.tiles import filled_up
from pyro_mgp.model.chain import Chain, Noise
from pyro_mgp.model.conditional import Conditional, Shifted
from pyro_mgp.model.sequential_chain import SequentialChain


def shifted_sweep(
    chain: Chain,
    conditionals: Sequence[Conditional],
    shifts: Mapping[int, float],
    filled: Tensor,
    observed: Tensor,
    noise: Callable[[int], Noise],
    holes: Sequence[Tensor],
) -> Tensor:
    """Return rows `[S, n, D]` after the last sweep, in which some functions are shifted.

    Shifted in every sweep, columns that predict each other would shift each other repeatedly. Links before
    the shifted ones are visited once more, while the shifted cells are kept.

    Args:
        chain: The fitted chain.
        conditionals: The predictive distribution of each link.
        shifts: Shifts of functions, by the column of their link.
        filled: Rows where the sweep starts, `[S, n, D]`.
        observed: Bool `[n, D]`.
        noise: Noise of a sweep by its number.
        holes: Rows of each link's missing cells.
    """
    last = chain.n_sweeps - 1
    shifted = [
        Shifted(conditional, shifts[link.column]) if link.column in shifts else conditional
        for conditional, link in zip(conditionals, chain.links, strict=True)
    ]
    filled, _ = chain.sweep(shifted, filled, observed, noise(last), holes)
    if isinstance(chain, SequentialChain):
        return _redrawn(chain, conditionals, shifts, filled, observed, noise)
    moved = [i for i, link in enumerate(chain.links) if link.column in shifts]
    before = [i < max(moved, default=0) and i not in moved for i in range(len(chain.links))]
    again = [cells if early else cells[:0] for cells, early in zip(holes, before, strict=True)]
    return chain.sweep(conditionals, filled, observed, noise(last), again)[0]


def _redrawn(
    chain: SequentialChain,
    conditionals: Sequence[Conditional],
    shifts: Mapping[int, float],
    filled: Tensor,
    observed: Tensor,
    noise: Callable[[int], Noise],
) -> Tensor:
    """Redraw the other missing cells of a sequential chain with shifted cells treated as observed."""
    kept = observed.clone()
    kept[:, list(shifts)] = True
    here = (kept != observed).any(1)
    holes = [filled_up(cells[here[cells]], len(filled)) for cells in chain.holes(kept)]
    # Reweighting moves cells instead of redrawing them: it takes several sweeps until they have their
    # conditional distribution, and noise that was used before would move them back.
    n = chain.n_sweeps
    sweeps = chain.sweeps([conditionals] * n, filled, kept, lambda sweep: noise(n + sweep), holes)
    *_, (filled, _) = sweeps
    return filled
