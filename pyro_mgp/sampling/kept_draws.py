"""Draws kept batch by batch, so that after a crash only the rest is drawn.

Only the draws of missing cells are kept, in one file per few batches. A draw is keyed by seed, imputation and
row, so the rest is the same as it would have been.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from pyro_mgp.data.encoded_table import EncodedTable
from pyro_mgp.storage.checkpoint import Checkpoint, Identity, State, damaged

Batches = Iterator[tuple[slice, Tensor]]
"""Which rows, and these filled, `[S, n, D]`."""


def keep(
    rows: EncodedTable, draw_from: Callable[[int], Batches], checkpoint: Checkpoint, identity: Identity
) -> Batches:
    """Batches of draws, from the checkpoint's folder as far as they are there, else drawn and kept.

    Args:
        rows: The rows to complete.
        draw_from: Draws them from the row of that number on, in batches of the same size each time.
        checkpoint: A folder.
        identity: What the draws are about.

    Yields:
        Which rows, and these with their holes drawn, `[S, n, D]`.

    Raises:
        ValueError: If the folder holds other draws than these.
        OSError: If it cannot be written.
    """
    first = 0
    while (state := checkpoint.load(identity, _name(first))) is not None:
        here, draws = _taken_up(rows, first, state, checkpoint.path / _name(first))
        yield here, _filled(rows[here], draws)
        first = here.stop
    waiting: list[tuple[slice, Tensor]] = []
    with checkpoint.working():
        for here, filled in draw_from(first):
            waiting.append((here, filled[:, ~rows[here].observed.to(filled.device)]))
            if checkpoint.offer(partial(_state, waiting), identity, _name(waiting[0][0].start)):
                waiting = []
            yield here, filled


def _name(first: int) -> str:
    return f"from_row_{first:012d}"


def _state(drawn: Sequence[tuple[slice, Tensor]]) -> State:
    draws = torch.cat([holes for _, holes in drawn], dim=1)
    return State({"draws": draws.cpu().numpy()}, {"stop": drawn[-1][0].stop})


def _taken_up(rows: EncodedTable, first: int, state: State, path: Path) -> tuple[slice, Tensor]:
    """Rows from `first` on whose draws were kept, and these draws `[S, holes]`.

    Raises:
        ValueError: If the file says something else of itself.
    """
    stop, draws = state.fields.get("stop"), state.arrays.get("draws")
    if type(stop) is not int or not first < stop <= len(rows) or draws is None:
        raise damaged(path)
    here = slice(first, stop)
    if draws.ndim != 2 or draws.shape[1] != int((~rows[here].observed).sum()):
        raise damaged(path)
    return here, torch.as_tensor(draws)


def _filled(rows: EncodedTable, draws: Tensor) -> Tensor:
    filled = rows.values.cpu().to(draws).repeat(len(draws), 1, 1)
    filled[:, ~rows.observed.cpu()] = draws
    return filled
