"""What a training run depends on between two checks, so that another process takes the same steps on.

The parameters, those that served best and those to go back to; q(u) as steps keep it, to the last digit; the
moments of Adam; what is left of the pass over the minibatches; the state of the random generators; and the
current fill of the holes. Observed cells are not kept: who goes on has the table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_mgp.storage.checkpoint import Identity, State, fingerprint, versions
from pyro_mgp.storage.scratch import pieces

if TYPE_CHECKING:
    from pyro_mgp.inference.training import Run

# What is added to at each step or check.
_SERIES = ("losses", "validation", "steps")


def identity(run: Run, seed: int) -> Identity:
    """What a run is about, before its first step."""
    table = run.table
    return {
        **{f"training {name}": value for name, value in dataclasses.asdict(run.options).items()},
        **versions(),
        "seed": seed,
        "steps": type(run.step).__name__,
        "table": fingerprint([("observed", table.observed), ("values", table.values)]),
        "first fill or held-out cells": fingerprint([("filled", run.filled), ("held out", run.held_out)]),
        "chain": fingerprint(run.chain.state_dict().items()),
    }


def capture(run: Run) -> State:
    """The state after a check."""
    fill = [run.filled[here][~run.seen(here)] for here in pieces(len(run.filled))]
    tensors = {"random": torch.get_rng_state(), "fill": torch.cat(fill)}
    if run.device.type == "cuda":
        tensors["random.cuda"] = torch.cuda.get_rng_state(run.device)
    if run.ahead and run.ahead[0] is not None:
        tensors["ahead"] = torch.cat([rows for rows in run.ahead if rows is not None])
    tensors["ahead sizes"] = torch.tensor([0 if rows is None else len(rows) for rows in run.ahead]).long()
    # Thousands of numbers, perhaps: more than belongs into a header.
    tensors |= {name: torch.tensor(getattr(run, name), dtype=torch.float64) for name in _SERIES}
    states = {"chain": run.chain.state_dict(), "best": run.best, "safe": run.safe[-1], "q": run.step.state()}
    for k, adam in enumerate(run.adams):
        states[f"adam{k}"] = {"start": adam.start, "first": adam.first, "second": adam.second}
    for part, state in states.items():
        tensors |= {f"{part}.{name}": value for name, value in state.items()}
    fields = {
        "mark": run.mark,
        "best_step": run.best_step,
        "rate": run.rate,
        "batch_size": run.options.batch_size,
        "whole": run.whole,
        "adam_steps": [adam.n_steps for adam in run.adams],
    }
    return State({name: _array(value) for name, value in tensors.items()}, fields)


@torch.no_grad()
def restore(run: Run, state: State) -> None:
    """Bring a run that has taken no step where another one was."""
    fields, arrays = state.fields, state.arrays
    run.losses, run.validation = arrays["losses"].tolist(), arrays["validation"].tolist()
    run.steps = [int(step) for step in arrays["steps"]]
    run.mark, run.best_step, run.rate = fields["mark"], fields["best_step"], fields["rate"]
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
    """Put the fill of all holes back, piece by piece: the table may be larger than memory."""
    start = 0
    for here in pieces(len(run.filled)):
        holes, piece = ~run.seen(here), run.filled[here]
        end = start + int(holes.sum())
        piece[holes] = fill[start:end]
        start = end
    if start != len(fill):
        raise ValueError(f"expected the fill of {start} holes, got {len(fill)}")


def _ahead(rows: NDArray[Any] | None, sizes: Sequence[int], device: torch.device) -> list[Tensor | None]:
    """The minibatches that the pass has left."""
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
