"""Process over time at visits that were not in the table of the fit.

Before each sweep the process of each link is drawn at new visits, given those of other links, the cells of
these visits, and the process at the subject's visits in the table of the fit, which an imputation has drawn.
As for effects of new groups, Gaussian and ordered columns tell of it; see `new_groups`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pyro_mgp.inference.time_process import ProcessDraw, ProcessOffset, TimeProcess, draw_values
from pyro_mgp.model.conditional import Conditional
from pyro_mgp.model.likelihoods.levels import none_is_on
from pyro_mgp.model.offsets import WithOffsets, offsets_of
from pyro_mgp.model.ornstein_uhlenbeck import VisitIndex, Visits
from pyro_mgp.sampling.new_groups import CellsOfGroups, regressed

# Variance of the error with which the process is known at visits of the fit, and the least precision of
# what cells tell of it, standardised units.
_KNOWN, _LEAST = 1e-8, 1e-12


def given_visits(
    conditionals: Sequence[Conditional], cells: CellsOfGroups, normal: Callable[[int], Tensor]
) -> list[Conditional]:
    """Return the conditionals of links with the process drawn at new visits, before a sweep.

    Takes standard normal numbers for the process of a link in the rows, `[S, n]`, by its number.
    """
    offsets = {i: each for i, own in enumerate(conditionals) for each in offsets_of(own, ProcessOffset)}
    first = next(iter(offsets.values()), None)
    if first is None or not are_new_visits(first.process, cells.table[0]).any():
        return list(conditionals)
    process, rows = first.process, first.process.visits_of(cells.table[0])
    known, drawn, visits = _with_visits(first, *rows)
    is_fixed = VisitIndex.of(*process.known).find(*known) >= 0
    place = VisitIndex.of(*known).find(*rows)
    for i, own in offsets.items():
        left, observed = _residuals(i, own, conditionals[i], cells)
        current = drawn.values[:, own.k]
        left, observed = (each.masked_fill(is_fixed[place], 0.0) for each in (left * observed, observed))
        precisions = torch.zeros_like(current).index_add(1, place, observed)
        sums = torch.zeros_like(current).index_add(1, place, left)
        values = torch.where(is_fixed, current, sums / precisions.clamp(min=_LEAST))
        precisions = precisions.masked_fill(is_fixed, 1 / _KNOWN)
        numbers = torch.zeros_like(current).index_copy(1, place, normal(i)).masked_fill(is_fixed, 0.0)
        moved = draw_values(visits, drawn, own.k, values, precisions, numbers)
        drawn = drawn._replace(values=torch.where(is_fixed, drawn.values, moved.values))
    found = list(conditionals)
    for i, each in offsets.items():
        conditional = found[i]
        assert isinstance(conditional, WithOffsets)
        others = [own for own in conditional.offsets if own is not each]
        found[i] = replace(conditional, offsets=[*others, replace(each, known=known, drawn=drawn)])
    return found


def are_new_visits(process: TimeProcess, rows: Tensor) -> Tensor:
    """Return the rows `[n, D]` that are visits which were not in the table of the fit, Bool `[n]`."""
    return VisitIndex.of(*process.known).find(*process.visits_of(rows)) < 0


def _with_visits(
    offset: ProcessOffset, subjects: Tensor, times: Tensor
) -> tuple[tuple[Tensor, Tensor], ProcessDraw, Visits]:
    """Return all visits, the process at these, which is zero at unknown ones, and the same as `Visits`.

    Takes numbers of subjects and times of rows, `[n]` each.
    """
    unknown = offset.index.find(subjects, times) < 0
    new = Visits.of(subjects[unknown], times[unknown]).rows
    subjects, times = (
        torch.cat([known, rows[unknown][new]])
        for known, rows in zip(offset.known, (subjects, times), strict=True)
    )
    values = torch.nn.functional.pad(offset.drawn.values, (0, len(new)))
    order = Visits.of(subjects, times).rows
    known = subjects[order], times[order]
    return known, offset.drawn._replace(values=values[..., order]), Visits.of(*known)


def _residuals(
    number: int, offset: ProcessOffset, conditional: Conditional, cells: CellsOfGroups
) -> tuple[Tensor, Tensor]:
    """Return process plus noise in the rows of a link, and the precisions of the noise, `[S, n]` each.

    Precisions are 0 in rows that tell nothing of it.
    """
    link, at = cells.links[number], conditional.moments(cells.table)
    found = regressed(link, conditional, at, cells.table, cells.normal(number, -1))
    assert found is not None  # links of other kinds have no process
    values, variance = found
    current, _ = offset.at(cells.table, ())
    told = cells.told[number] & none_is_on(cells.table, link.unless)
    return values - at.mean + current, told / variance
