"""Elliptical slice sampling of many states at once (Murray, Adams and MacKay, AISTATS 2010)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

N_ANGLES = 16
"""Angles tried before a state keeps its value."""
TOGETHER = 512
"""Values whose likelihoods are evaluated together, several of one state if there are few states.

With fewer values, most of the time of a call is that of starting its operations.
"""


def elliptical_slice(
    current: Tensor,
    direction: Tensor,
    log_likelihood: Callable[[Tensor, Tensor], Tensor],
    start: Tensor,
    shares: Tensor,
    whole: Callable[[Tensor], Tensor] = lambda states: states,
    n_values: int = 1,
) -> tuple[Tensor, Tensor]:
    """Move n states `[n, k]`, which have a normal prior of mean zero, by an elliptical slice.

    Takes draws from the prior as `direction`, `[n, k]`, a function that returns the log likelihoods `[j]` of
    values `[j, k]` of the states with numbers `[j]`, those of the current states as `start`, `[n]`, uniform
    numbers of threshold and angles, `[n, 1 + N_ANGLES]`, a function that pads the numbers of states that are
    evaluated together, and the number of values on whose likelihoods that of a state depends. Returns new
    states and their log likelihoods.
    """
    threshold, angles = start + shares[:, 0].log(), _angles(shares[:, 1:])
    if current.is_cuda:
        return _all_states(current, direction, log_likelihood, start, threshold, angles)
    moved, found, tried = current.clone(), start.clone(), 0
    waiting = torch.arange(len(current), device=current.device)
    while len(waiting) and tried < N_ANGLES:
        at = angles[waiting, tried : tried + max(TOGETHER // (len(waiting) * n_values), 1)]
        across, along = (part[waiting, None] for part in (current, direction))
        proposals = across * at.cos()[..., None] + along * at.sin()[..., None]
        states = waiting.repeat_interleave(at.shape[1])
        likelihood = log_likelihood(proposals.flatten(0, 1), states).view_as(at)
        is_above = likelihood > threshold[waiting, None]
        taken, first = is_above.any(1), is_above.byte().argmax(1)
        chosen = taken, first[taken]
        moved[waiting[taken]], found[waiting[taken]] = proposals[chosen], likelihood[chosen]
        waiting, tried = whole(waiting[~taken]), tried + at.shape[1]
    return moved, found


def _angles(shares: Tensor) -> Tensor:
    """Return the angles `[n, A]` that are tried one after the other, given uniform numbers `[n, A]`.

    The first interval is one whole turn, which begins and ends at the first angle. An angle that is not taken
    is an end of the next interval, whatever its likelihood.
    """
    high = 2 * math.pi * shares[:, 0]
    low, angles = high - 2 * math.pi, [high]
    for share in shares[:, 1:].unbind(1):
        last = angles[-1]
        low, high = last.where(last < 0, low), high.where(last < 0, last)
        angles.append(low + (high - low) * share)
    return torch.stack(angles, dim=1)


def _all_states(
    current: Tensor,
    direction: Tensor,
    log_likelihood: Callable[[Tensor, Tensor], Tensor],
    start: Tensor,
    threshold: Tensor,
    angles: Tensor,
) -> tuple[Tensor, Tensor]:
    """Evaluate all states at every angle: the host would have to wait for the numbers of those left."""
    moved, found = current, start
    states = torch.arange(len(current), device=current.device)
    waiting = torch.ones_like(start, dtype=torch.bool)
    for angle in angles.unbind(1):
        proposal = current * angle.cos()[:, None] + direction * angle.sin()[:, None]
        likelihood = log_likelihood(proposal, states)
        taken = waiting & (likelihood > threshold)
        moved, found = proposal.where(taken[:, None], moved), likelihood.where(taken, found)
        waiting = waiting & ~taken
    return moved, found
