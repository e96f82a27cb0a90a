"""Checkpoints of draws, from which an interrupted imputation continues, with one file per few batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from pyro_mgp.data.encoded_table import EncodedTable
from pyro_mgp.storage.checkpoint import Checkpoint, Identity, State, damaged

Batches = Iterator[tuple[slice, Tensor]]
"""Slices of the rows, and these rows with missing cells drawn, `[S, n, D]`."""


def keep(
    rows: EncodedTable, draw_from: Callable[[int], Batches], checkpoint: Checkpoint, identity: Identity
) -> Batches:
    """Yield slices of rows and their draws `[S, n, D]`, read from the checkpoint or drawn and written to it.

    `draw_from` draws the rows from a given position on, in batches of constant size. Raises a ValueError if
    the checkpoint folder holds draws of another identity.
    """
    first = 0
    while (state := checkpoint.load(identity, _name(first))) is not None:
        here, filled = _restore(rows, first, state, checkpoint.path / _name(first))
        yield here, filled
        first = here.stop
    waiting: list[tuple[slice, Tensor]] = []
    with checkpoint.working():
        for here, filled in draw_from(first):
            waiting.append((here, filled[:, ~rows[here].observed.to(filled.device)]))
            if checkpoint.keep(partial(_state, waiting), identity, _name(waiting[0][0].start)):
                waiting = []
            checkpoint.interruption.give_way()
            yield here, filled


def _name(first: int) -> str:
    """Return the name of the file with the draws from row `first` on."""
    return f"from_row_{first:012d}"


def _state(drawn: Sequence[tuple[slice, Tensor]]) -> State:
    """Pack the draws of batches for a file."""
    draws = torch.cat([cells for _, cells in drawn], dim=1)
    return State({"draws": draws.cpu().numpy()}, {"stop": drawn[-1][0].stop})


def _restore(rows: EncodedTable, first: int, state: State, path: Path) -> tuple[slice, Tensor]:
    """Return the rows saved in a file as a slice from `first`, and their draws `[S, n, D]`."""
    stop, draws = state.fields.get("stop"), state.arrays.get("draws")
    if type(stop) is not int or not first < stop <= len(rows) or draws is None:
        raise damaged(path)
    holes = ~rows.observed[first:stop].cpu()
    if draws.ndim != 2 or draws.shape[1] != int(holes.sum()):
        raise damaged(path)
    filled = rows.values[first:stop].cpu().to(torch.as_tensor(draws)).repeat(len(draws), 1, 1)
    filled[:, holes] = torch.as_tensor(draws)
    return slice(first, stop), filled
