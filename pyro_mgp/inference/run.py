"""One training run: its optimisers, fill, held-out scores, recovery from numerical failure, and state."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from pyro.infer import ELBO
from pyro.optim import PyroOptim
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from pyro_mgp._support.processes import Workers
from pyro_mgp.data.encoded_table import EncodedTable
from pyro_mgp.inference import closed_form
from pyro_mgp.inference.adam import Adam
from pyro_mgp.inference.svi import SviStep
from pyro_mgp.model.chain import Chain
from pyro_mgp.model.cholesky import NotPositiveDefiniteError
from pyro_mgp.storage.checkpoint import State
from pyro_mgp.storage.scratch import pieces

# Ends of the names of the parameters of q(u).
_OF_Q = ("u_loc_unconstrained", "u_scale_tril_unconstrained")
# Lower bound of a held-out cell's log density. Cells that a Gaussian cannot explain (outliers, rare values)
# would otherwise decide alone when training stops: theirs falls while all others still improve.
_LOWEST_LOG_DENSITY = -3.0
# Number of checks whose mean score is compared: each check scores other draws of the missing cells.
_SMOOTHED = 3
# Smallest gain in that mean, per cell, that counts as progress.
_MIN_GAIN = 2e-3
# Rows whose held-out cells are scored at each check.
_VALIDATION_ROWS = 2000
# Errors raised where numbers are no longer finite.
_NOT_FINITE = (NotPositiveDefiniteError, LinAlgError, FloatingPointError)
# Times that steps with numbers that are not finite are taken again, each with a quarter of the learning rate.
_RESCUES = 3
# Attributes that grow with each step or check.
_SERIES = ("losses", "validation", "steps")
# Number of rows below which a minibatch is not halved when memory does not suffice.
_FEWEST_ROWS = 16
# Final passes over a table used whole in which q(u) is fitted to the held-out cells as well.
_LAST_PASSES = 3


@dataclass(frozen=True)
class Options:
    """Settings of a training run."""

    max_steps: int = 40
    """Largest number of steps."""
    learning_rate: float = 0.25
    """Step size of Adam."""
    weight_decay: float = 0.1
    """Decay of kernels and noises towards their starting values; see `Adam`."""
    batch_size: int = 2000
    """Rows in a minibatch; smaller tables are used whole."""
    closed_form: bool = True
    """Steps in closed form where `closed_form.applies_to` the chain, otherwise by `pyro.infer.SVI`."""
    redraw: bool = True
    """Redraw missing cells in each step; False trains on the fill as if it were data."""
    refresh_fill: bool = True
    """Write the draws of each step back as the next fill; False keeps the initial fill, as in the paper."""
    patience: int = 4
    """Checks without progress before training stops."""
    check_every: int = 5
    """Steps between checks."""


class Run:
    """State of a training run, and the steps that advance it.

    Takes the arguments of `training.train`; `filled` is overwritten.
    """

    def __init__(
        self,
        chain: Chain,
        table: EncodedTable,
        held_out: Tensor,
        filled: Tensor,
        options: Options,
        workers: Workers,
        loss: ELBO | None = None,
        optimizer: PyroOptim | None = None,
    ) -> None:
        self.chain, self.table, self.held_out = chain, table, held_out
        self.filled, self.options, self.workers = filled, options, workers
        self.device = next(chain.parameters()).device
        self.holds_out, self.loss, self.own_rate = True, loss, optimizer is None
        limits = None if table.limits is None else table.limits.to(self.device)
        self.closed: closed_form.ConjugateStep | None = None
        """Step in closed form, which keeps q(u) outside the chain; None if all is learnt by SVI."""
        if options.closed_form and loss is None and self.own_rate and closed_form.applies_to(chain):
            self.closed = closed_form.ConjugateStep(chain, workers, options.redraw, limits)
        update = self._update if optimizer is None else copy.deepcopy(optimizer)
        self.step = self.closed or SviStep(chain, loss, update, workers, options.redraw, limits)
        leaves = [(name.endswith(_OF_Q), p) for name, p in chain.named_parameters() if self.own_rate]
        others = [p for of_q, p in leaves if p.requires_grad and not of_q]
        q = [p for of_q, p in leaves if of_q and self.closed is None]
        self.adams = [Adam(others, options.weight_decay), Adam(q)]
        self.rate = options.learning_rate
        self.ahead: list[Tensor | None] = []
        """Minibatches that are left of the current pass."""
        self.overwritten: list[tuple[Tensor | slice, Tensor]] = []
        """Fill of the rows that were redrawn since the last check, to undo these steps."""
        self.safe: list[dict[str, Tensor]] = []
        """Parameters at the last two checks."""
        self.whole = len(filled) <= options.batch_size
        self.losses, self.validation, self.steps = list[float](), list[float](), list[int]()
        self.best_score, self.best_step = -math.inf, 0
        self.best = _snapshot(chain)
        candidates = held_out.any(1).nonzero()[:, 0]
        self.validation_rows = candidates[torch.randperm(len(candidates))[:_VALIDATION_ROWS]]

    @property
    def out_of_patience(self) -> bool:
        """True if the held-out score has not improved for `patience` checks."""
        return len(self.losses) - self.best_step >= self.options.patience * self.options.check_every

    def warm_start(self) -> None:
        """Fit q(u) to the initial fill, before draws replace it."""
        if self.closed is not None:
            self._step_on(self.minibatches()[0], 1.0, only_q=True, refresh=False)
            self.closed.publish()

    def check(self, bar: Any) -> None:
        """Take the steps up to the next check, score the held-out cells, and update the progress bar."""
        n_steps = min(self.options.check_every, self.options.max_steps - len(self.losses))
        window, score = self._attempt(len(self.losses), n_steps)
        self.losses += window
        self.steps.append(len(self.losses))
        # All processes must take the same decisions.
        self.validation.append(self.workers.broadcast_number(score))
        bar.update(n_steps)
        bar.set_postfix(held_out=f"{self.validation[-1]:.3f}")
        recent = sum(self.validation[-_SMOOTHED:]) / len(self.validation[-_SMOOTHED:])
        # A mean over fewer checks may be high by chance, and is not kept as the best score.
        early = len(self.validation) < _SMOOTHED
        if early or recent > self.best_score + _MIN_GAIN:
            self.best_score, self.best_step = -math.inf if early else recent, len(self.losses)
            self.best = _snapshot(self.chain)

    def _attempt(self, first: int, n_steps: int) -> tuple[list[float], float]:
        """Take steps and return their losses and the held-out score, at a lower rate if one is not finite."""
        self.safe = [*self.safe[-1:], _snapshot(self.chain)]
        why = ""
        # The cause may lie in the last step before this window: later rescues start one check earlier.
        rescues = (self.safe[-1], *[self.safe[0]] * (_RESCUES - 1)) if self.own_rate else ()
        for state in (*rescues, None):
            self.overwritten = []
            try:
                losses = torch.stack([self._advance(first + k) for k in range(n_steps)]).tolist()
                if self.closed is not None:
                    self.closed.publish()
                score = self.score(losses)
            except _NOT_FINITE as error:
                score, why = math.nan, f" ({error})"
            if math.isfinite(score) and math.isfinite(sum(losses)):
                return losses, score
            if state is not None:
                self.set_parameters(state)
                for rows, fill in reversed(self.overwritten):
                    self.filled[rows] = fill
                for adam in self.adams:
                    adam.forget()
                self.rate /= 4
        raise FloatingPointError(
            f"the evidence bound is no longer finite after {first + n_steps} steps{why}; "
            f"use a learning rate below {f'{self.rate:g}' if self.own_rate else 'that of the optimizer'}"
        )

    def set_parameters(self, state: dict[str, Tensor]) -> None:
        """Set the parameters to those of a state of the chain."""
        self.chain.load_state_dict(state)
        if self.closed is not None:
            self.closed.posterior = closed_form.Posterior.of(self.chain)

    def _advance(self, number: int) -> Tensor:
        """Take one step on the next minibatch, and return the loss."""
        if not self.ahead:
            self.ahead = list(self.minibatches())
        loss = self._step_on(self.ahead.pop(), 1.0 if self.whole else (1 + number) ** -0.5)
        if self.closed is not None:
            self._update()
        return loss

    def _update(self, parameters: Any = None) -> None:
        """Move the parameters of the chain, but those of q(u) in closed form, by Adam."""
        for adam in self.adams:
            adam.step(self.rate)

    def minibatches(self) -> Sequence[Tensor | None]:
        """Return the row indices of the minibatches of one shuffled pass; None if the whole table is used."""
        if self.whole:
            return [None]
        # Of nearly equal size: a small last minibatch would get the weight of the whole table.
        n_batches = math.ceil(len(self.filled) / self.options.batch_size)
        return torch.randperm(len(self.filled), device=self.filled.device).tensor_split(n_batches)

    def _step_on(
        self, rows: Tensor | None, step_size: float, only_q: bool = False, refresh: bool = True
    ) -> Tensor:
        """Take a step on some rows and refresh their fill; halve minibatches if a GPU's memory is short."""
        here, halves = slice(None) if rows is None else rows, None
        for parameter in self.chain.parameters():
            parameter.grad = None
        try:
            loss, redrawn = self.step(  # copies without names: these would hold memory while halves run
                self.filled[here].to(self.device),
                self.visible(here).to(self.device),
                None if rows is None else rows.to(self.device),
                step_size,
                only_q,
            )
        except torch.OutOfMemoryError:
            n_rows = len(self.filled) if rows is None else len(rows)
            if n_rows <= _FEWEST_ROWS:
                raise
            every = torch.randperm(n_rows, device=self.filled.device) if rows is None else rows
            halves = every.tensor_split(2)
        if halves is not None:  # outside the handler, whose error holds memory
            torch.cuda.empty_cache()
            self.whole, self.ahead = False, []
            self.options = dataclasses.replace(self.options, batch_size=len(halves[0]))
            steps = [(half, step_size / (k + 1), only_q, refresh) for k, half in enumerate(halves)]
            return torch.stack([self._step_on(*step) for step in steps]).mean()
        if self.options.refresh_fill and refresh:
            if rows is not None or not self.overwritten:
                self.overwritten.append((here, self.filled[here].clone()))
            self.filled[here] = redrawn.to(self.filled.device)
        return loss

    def visible(self, here: Tensor | slice) -> Tensor:
        """Return the cells of some rows that the chain is trained on, Bool `[n, D]`."""
        observed = self.table.observed[here]
        return observed & ~self.held_out[here] if self.holds_out else observed

    def finish(self) -> None:
        """Fit q(u) to the held-out cells too, in a final pass over the table.

        Steps of size 1, 1/2, 1/3, ... make its natural parameters the mean of the optima of the minibatches
        of one pass, or of the redrawn fills of a table used whole. Every row has the same weight.
        """
        for adam in self.adams:
            adam.release()
        self.overwritten = []
        if self.closed is None:
            return
        for here in pieces(len(self.filled)):
            held_out, values = self.held_out[here], self.table.values[here]
            self.filled[here] = torch.where(held_out, values, self.filled[here])
        self.holds_out = False
        passes = _LAST_PASSES if self.whole else 1
        batches = [rows for _ in range(passes) for rows in self.minibatches()]
        for k, rows in enumerate(batches):
            self._step_on(rows, 1 / (k + 1), only_q=True)
            self.overwritten = []
        self.closed.publish()

    def score(self, window: list[float]) -> float:
        """Return the mean log density of the held-out cells; without any, the mean bound per cell."""
        here = self.validation_rows
        if len(here) == 0:
            return -sum(window) / len(window) / max(int(self.table.observed.sum()), 1)
        limits = None if self.table.limits is None else self.table.limits[here].to(self.device)
        tables = self.filled[here], self.visible(here), self.table.values[here], self.held_out[here]
        filled, visible, values, held_out = (table.to(self.device) for table in tables)
        density = self.chain.log_density(filled, visible, values, held_out, limits)
        return float(density.clamp(min=_LOWEST_LOG_DENSITY).mean())

    def capture(self) -> State:
        """Return the state of the run after a check, to continue from by `restore`."""
        fill = [self.filled[here][~self.visible(here)] for here in pieces(len(self.filled))]
        tensors = {"random": torch.get_rng_state(), "fill": torch.cat(fill)}
        if self.device.type == "cuda":
            tensors["random.cuda"] = torch.cuda.get_rng_state(self.device)
        if ahead := [rows for rows in self.ahead if rows is not None]:
            tensors["ahead"] = torch.cat(ahead)
        tensors["ahead sizes"] = torch.tensor([len(rows) for rows in ahead]).long()
        # These may be thousands of numbers, too many for a header.
        tensors |= {name: torch.tensor(getattr(self, name), dtype=torch.float64) for name in _SERIES}
        safe, q = self.safe[-1], {} if self.closed is None else vars(self.closed.posterior)
        states = {"chain": self.chain.state_dict(), "best": self.best, "safe": safe, "q": q}
        for k, adam in enumerate(self.adams):
            states[f"adam{k}"] = {"start": adam.start, "first": adam.first, "second": adam.second}
        for part, state in states.items():
            tensors |= {f"{part}.{name}": value for name, value in state.items()}
        fields = {name: getattr(self, name) for name in ("best_score", "best_step", "rate", "whole")}
        fields["batch_size"] = self.options.batch_size
        fields["adam_steps"] = [adam.n_steps for adam in self.adams]
        return State({name: value.detach().cpu().numpy() for name, value in tensors.items()}, fields)

    @torch.no_grad()
    def restore(self, state: State) -> None:
        """Continue from a captured state; called before the first step."""
        fields, arrays = state.fields, state.arrays
        self.losses, self.validation = arrays["losses"].tolist(), arrays["validation"].tolist()
        self.steps = [int(step) for step in arrays["steps"]]
        self.rate, self.whole = fields["rate"], fields["whole"]
        self.best_score, self.best_step = fields["best_score"], fields["best_step"]
        self.options = dataclasses.replace(self.options, batch_size=fields["batch_size"])
        parts = (_part(arrays, name, self.device) for name in ("chain", "best", "safe", "q"))
        chain, self.best, safe, q = parts
        self.chain.load_state_dict(chain)
        self.safe = [safe]
        if self.closed is not None:
            self.closed.posterior = closed_form.Posterior(**q)
        for k, (adam, n_steps) in enumerate(zip(self.adams, fields["adam_steps"], strict=True)):
            moments = _part(arrays, f"adam{k}", self.device)
            adam.start, adam.first, adam.second = moments["start"], moments["first"], moments["second"]
            adam.n_steps = n_steps
        device, start, fill = self.filled.device, 0, arrays["fill"]
        # Piece by piece: the table may be larger than memory.
        for here in pieces(len(self.filled)):
            missing = ~self.visible(here)
            end = start + int(missing.sum())
            self.filled[here][missing] = torch.as_tensor(fill[start:end], device=device)
            start = end
        if start != len(fill):
            raise ValueError(f"expected the fill of {start} cells, got {len(fill)}")
        if "ahead" in arrays:
            sizes = arrays["ahead sizes"].tolist()
            self.ahead = list(torch.as_tensor(arrays["ahead"], device=device).split(sizes))
        torch.set_rng_state(torch.as_tensor(arrays["random"]))
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(torch.as_tensor(arrays["random.cuda"]), self.device)


def _part(arrays: Mapping[str, NDArray[Any]], part: str, device: torch.device) -> dict[str, Tensor]:
    """Return the arrays of one part of a state as tensors, by their names within the part."""
    own = {name: array for name, array in arrays.items() if name.startswith(f"{part}.")}
    return {name.removeprefix(f"{part}."): torch.as_tensor(own[name], device=device) for name in own}


def _snapshot(chain: Chain) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in chain.state_dict().items()}
