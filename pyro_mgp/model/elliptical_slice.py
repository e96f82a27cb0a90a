"""Elliptical slice sampling of many states at once (Murray, Adams and MacKay, AISTATS 2010)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pyro_mgp._support.keyed_noise import further_uniforms

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
) -> Tensor:
    """Move n states `[n]`, which have a normal prior of mean zero, by an elliptical slice.

    Takes draws from the prior as `direction`, `[n]`, a function that returns the log likelihoods `[j]` of
    values `[j]` of the states with numbers `[j]`, those of the current states as `start`, `[n]`, uniform
    numbers of threshold and first angle, `[n, 2]`, of which the latter gives those of further angles, and a
    function that pads the numbers of states that are evaluated together.
    """
    threshold, share = start + shares[:, 0].log(), shares[:, 1]
    if current.is_cuda:
        return _all_states(current, direction, log_likelihood, threshold, _angles(share))
    moved, tried = current.clone(), 0
    # Most states take the first angle: further ones are made for those that do not.
    waiting, angles = torch.arange(len(current), device=current.device), 2 * math.pi * share[:, None]
    while len(waiting) and tried < N_ANGLES:
        at, angles = angles.tensor_split([max(TOGETHER // len(waiting), 1)], dim=1)
        across, along = (part[waiting, None] for part in (current, direction))
        proposals = across * at.cos() + along * at.sin()
        states = waiting.repeat_interleave(at.shape[1])
        likelihood = log_likelihood(proposals.flatten(), states).view_as(at)
        is_above = likelihood > threshold[waiting, None]
        taken, first = is_above.any(1), is_above.byte().argmax(1)
        moved[waiting[taken]] = proposals[taken, first[taken]]
        left = whole((~taken).nonzero()[:, 0])
        waiting, tried = waiting[left], tried + at.shape[1]
        angles = angles[left] if tried > 1 else _angles(share[waiting])[:, 1:]
    return moved


def _angles(share: Tensor) -> Tensor:
    """Return the angles `[n, N_ANGLES]` that are tried one after the other, given uniform numbers `[n]`.

    The first interval is one whole turn, which begins and ends at the first angle. An angle that is not taken
    is an end of the next interval, whatever its likelihood.
    """
    high = 2 * math.pi * share
    low, angles = high - 2 * math.pi, [high]
    for further in further_uniforms(share, N_ANGLES - 1).unbind(1):
        last = angles[-1]
        low, high = last.where(last < 0, low), high.where(last < 0, last)
        angles.append(low + (high - low) * further)
    return torch.stack(angles, dim=1)


def _all_states(
    current: Tensor,
    direction: Tensor,
    log_likelihood: Callable[[Tensor, Tensor], Tensor],
    threshold: Tensor,
    angles: Tensor,
) -> Tensor:
    """Evaluate all states at every angle: the host would have to wait for the numbers of those left."""
    moved, states = current, torch.arange(len(current), device=current.device)
    waiting = torch.ones_like(threshold, dtype=torch.bool)
    for angle in angles.unbind(1):
        proposal = current * angle.cos() + direction * angle.sin()
        taken = waiting & (log_likelihood(proposal, states) > threshold)
        moved = proposal.where(taken, moved)
        waiting = waiting & ~taken
    return moved
