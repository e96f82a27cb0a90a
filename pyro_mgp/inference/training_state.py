"""Checkpoints of a training run: its state between two checks, from which another process continues.

The state is: the current parameters, the best ones and those to go back to; q(u) as steps keep it; the
moments of Adam; the rest of the pass over the minibatches; the state of the random generators; and the
current fill of the missing cells. Observed cells are not stored: they come from the table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_mgp._support.signals import Stopped
from pyro_mgp.inference.run import Run
from pyro_mgp.storage.checkpoint import Checkpoint, Identity, State, damaged, fingerprint, versions
from pyro_mgp.storage.scratch import pieces
from pyro_mgp.storage.untrusted import MALFORMED

# Attributes of a run that grow with each step or check.
_SERIES = ("losses", "validation", "steps")


@dataclass(frozen=True)
class Keeper:
    """Checkpoint of one training run; of several processes the first one writes, and all read."""

    checkpoint: Checkpoint
    identity: Identity

    def restore(self, run: Run) -> bool:
        """Set a run that has taken no step to the state in the checkpoint; return whether there was one.

        Raises:
            ValueError: If the checkpoint is damaged, or belongs to another training run.
            OSError: If processes find different checkpoints, or only some find one.
        """
        path, workers = self.checkpoint.path, run.workers
        elsewhere = OSError(
            f"not all of {workers.size} processes find the same checkpoint {str(path)!r}: put it where all "
            "do, or remove it to start over"
        )
        if not workers.all_equal(path.exists()):
            raise elsewhere
        state = self.checkpoint.load(self.identity)
        if state is None:
            return False
        try:
            restore(run, state)
        except MALFORMED as error:
            raise damaged(path) from error
        if not workers.all_equal(len(run.losses)):
            raise elsewhere
        return True

    def keep(self, run: Run) -> None:
        """Write the state of a run if it is due; called after each check.

        Raises:
            OSError: If it cannot be written.
            Stopped: In all processes, if one received a signal to stop.
        """
        # All processes have to stop at the same check: a signal after this line counts at the next one.
        signal = run.workers.largest(self.checkpoint.interruption.asked or 0)
        if run.workers.is_first:
            self.checkpoint.keep(lambda: capture(run), self.identity, now=signal > 0)
        if signal:
            raise Stopped(signal)


def identity(run: Run, seed: int) -> Identity:
    """Return the settings and fingerprints of a run before its first step; a checkpoint must match them."""
    table = run.table
    return {
        **{f"training {name}": value for name, value in dataclasses.asdict(run.options).items()},
        **versions(),
        "seed": seed,
        "steps": type(run.step).__name__,
        "table": fingerprint([("observed", table.observed), ("values", table.values)]),
        "initial fill or held-out cells": fingerprint([("filled", run.filled), ("held out", run.held_out)]),
        "chain": fingerprint(run.chain.state_dict().items()),
    }


def capture(run: Run) -> State:
    """Return the state of a run after a check."""
    fill = [run.filled[here][~run.visible(here)] for here in pieces(len(run.filled))]
    tensors = {"random": torch.get_rng_state(), "fill": torch.cat(fill)}
    if run.device.type == "cuda":
        tensors["random.cuda"] = torch.cuda.get_rng_state(run.device)
    if run.ahead and run.ahead[0] is not None:
        tensors["ahead"] = torch.cat([rows for rows in run.ahead if rows is not None])
    tensors["ahead sizes"] = torch.tensor([0 if rows is None else len(rows) for rows in run.ahead]).long()
    # These may be thousands of numbers, too many for a header.
    tensors |= {name: torch.tensor(getattr(run, name), dtype=torch.float64) for name in _SERIES}
    states = {"chain": run.chain.state_dict(), "best": run.best, "safe": run.safe[-1], "q": run.step.state()}
    for k, adam in enumerate(run.adams):
        states[f"adam{k}"] = {"start": adam.start, "first": adam.first, "second": adam.second}
    for part, state in states.items():
        tensors |= {f"{part}.{name}": value for name, value in state.items()}
    fields = {
        "best_score": run.best_score,
        "best_step": run.best_step,
        "rate": run.rate,
        "batch_size": run.options.batch_size,
        "whole": run.whole,
        "adam_steps": [adam.n_steps for adam in run.adams],
    }
    return State({name: _array(value) for name, value in tensors.items()}, fields)


@torch.no_grad()
def restore(run: Run, state: State) -> None:
    """Set a run that has taken no step to a captured state."""
    fields, arrays = state.fields, state.arrays
    run.losses, run.validation = arrays["losses"].tolist(), arrays["validation"].tolist()
    run.steps = [int(step) for step in arrays["steps"]]
    run.rate, run.best_score, run.best_step = (fields[name] for name in ("rate", "best_score", "best_step"))
    run.options = dataclasses.replace(run.options, batch_size=fields["batch_size"])
    run.whole = fields["whole"]
    run.chain.load_state_dict(_part(arrays, "chain", run.device))
    run.best, run.safe = _part(arrays, "best", run.device), [_part(arrays, "safe", run.device)]
    run.step.resume(_part(arrays, "q", run.device))
    for k, (adam, n_steps) in enumerate(zip(run.adams, fields["adam_steps"], strict=True)):
        moments = _part(arrays, f"adam{k}", run.device)
        adam.start, adam.first, adam.second = moments["start"], moments["first"], moments["second"]
        adam.n_steps = n_steps
    _refill(run, torch.as_tensor(arrays["fill"], device=run.filled.device))
    run.ahead = _ahead(arrays.get("ahead"), arrays["ahead sizes"].tolist(), run.filled.device)
    torch.set_rng_state(torch.as_tensor(arrays["random"]))
    if run.device.type == "cuda":
        torch.cuda.set_rng_state(torch.as_tensor(arrays["random.cuda"]), run.device)


def _refill(run: Run, fill: Tensor) -> None:
    """Restore the fill of all missing cells, piece by piece: the table may be larger than memory."""
    start = 0
    for here in pieces(len(run.filled)):
        missing, piece = ~run.visible(here), run.filled[here]
        end = start + int(missing.sum())
        piece[missing] = fill[start:end]
        start = end
    if start != len(fill):
        raise ValueError(f"expected the fill of {start} cells, got {len(fill)}")


def _ahead(rows: NDArray[Any] | None, sizes: Sequence[int], device: torch.device) -> list[Tensor | None]:
    """Return the minibatches that are left of the pass."""
    if rows is None:
        return [None for _ in sizes]
    return list(torch.as_tensor(rows, device=device).split(list(sizes)))


def _part(arrays: Mapping[str, NDArray[Any]], part: str, device: torch.device) -> dict[str, Tensor]:
    prefix = f"{part}."
    return {
        name.removeprefix(prefix): torch.as_tensor(array, device=device)
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


def _array(tensor: Tensor) -> NDArray[Any]:
    array: NDArray[Any] = tensor.detach().cpu().numpy()
    return array
