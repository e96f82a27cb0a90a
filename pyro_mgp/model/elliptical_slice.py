"""Elliptical slice sampling of many states at once (Murray, Adams and MacKay, AISTATS 2010)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

N_ANGLES = 16
"""Angles tried before a state keeps its value."""


def elliptical_slice(
    current: Tensor,
    direction: Tensor,
    log_likelihood: Callable[[Tensor, Tensor], Tensor],
    start: Tensor,
    shares: Tensor,
    whole: Callable[[Tensor], Tensor] = lambda states: states,
) -> tuple[Tensor, Tensor]:
    """Move n states `[n, k]`, which have a normal prior of mean zero, by an elliptical slice.

    Takes draws from the prior as `direction`, `[n, k]`, a function that returns the log likelihoods `[j]` of
    values `[j, k]` of the states with numbers `[j]`, those of the current states as `start`, `[n]`, uniform
    numbers of threshold and angles, `[n, 1 + N_ANGLES]`, and a function that pads the numbers of states that
    are evaluated together. Returns new states and their log likelihoods.
    """
    if current.is_cuda:
        return _all_together(current, direction, log_likelihood, start, shares)
    threshold, moved, found = start + shares[:, 0].log(), current.clone(), start.clone()
    # The first interval is one whole turn, which begins and ends at the first angle.
    high = 2 * math.pi * shares[:, 1]
    low, angle = high - 2 * math.pi, high.clone()
    waiting = torch.arange(len(current), device=current.device)
    for k, share in enumerate(shares[:, 1:].unbind(1)):
        if k:
            angle[waiting] = low[waiting] + (high - low)[waiting] * share[waiting]
        at = angle[waiting, None]
        proposal = current[waiting] * at.cos() + direction[waiting] * at.sin()
        likelihood = log_likelihood(proposal, waiting)
        taken = likelihood > threshold[waiting]
        moved[waiting[taken]], found[waiting[taken]] = proposal[taken], likelihood[taken]
        left = whole((~taken).nonzero()[:, 0])
        waiting, at = waiting[left], at[left, 0]
        if len(waiting) == 0:
            break
        low[waiting] = torch.where(at < 0, at, low[waiting])
        high[waiting] = torch.where(at < 0, high[waiting], at)
    return moved, found


def _all_together(
    current: Tensor,
    direction: Tensor,
    log_likelihood: Callable[[Tensor, Tensor], Tensor],
    start: Tensor,
    shares: Tensor,
) -> tuple[Tensor, Tensor]:
    """Evaluate all states at every angle: the host would have to wait for the numbers of those left."""
    threshold, moved, found = start + shares[:, 0].log(), current, start
    states = torch.arange(len(current), device=current.device)
    waiting = torch.ones_like(start, dtype=torch.bool)
    high = 2 * math.pi * shares[:, 1]
    low, angle = high - 2 * math.pi, high
    for k, share in enumerate(shares[:, 1:].unbind(1)):
        if k:
            angle = low + (high - low) * share
        proposal = current * angle.cos()[:, None] + direction * angle.sin()[:, None]
        likelihood = log_likelihood(proposal, states)
        taken = waiting & (likelihood > threshold)
        moved, found = proposal.where(taken[:, None], moved), likelihood.where(taken, found)
        waiting = waiting & ~taken
        low, high = angle.where(angle < 0, low), high.where(angle < 0, angle)
    return moved, found
