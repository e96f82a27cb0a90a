"""Stochastic variational inference for anything with a Pyro `model` and `guide` that sweeps a table.

Each step scores a minibatch under a bound of the `Trace_ELBO` family, moves every q(u) by a natural-gradient
step and everything else by Adam, and writes the model's draws back as the next fill of its rows. Some
observed cells are held out; training stops when their predictive log density stops improving.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from pyro.infer import ELBO, TraceMeanField_ELBO
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn
from torch.linalg import LinAlgError  # type: ignore[attr-defined]
from tqdm import tqdm

from pyro_mgp._support.messages import FitWarning, warn_user
from pyro_mgp._support.processes import ALONE, Workers
from pyro_mgp._support.signals import Stopped
from pyro_mgp.data.encoded_table import EncodedTable
from pyro_mgp.inference import closed_form, training_state
from pyro_mgp.inference.adam import Adam
from pyro_mgp.inference.natural_gradient import VariationalPair, natural_step, variational_pairs
from pyro_mgp.model.chain import Chain, Noise, fresh_noise
from pyro_mgp.model.cholesky import NotPositiveDefiniteError
from pyro_mgp.model.local_parameters import local_parameters
from pyro_mgp.storage.checkpoint import Checkpoint, Identity, damaged
from pyro_mgp.storage.scratch import pieces
from pyro_mgp.storage.untrusted import MALFORMED

# Held-out cells that a Gaussian cannot explain (outliers, rare values) must not decide alone when training
# stops: their log density falls without bound while everything else still improves.
_LOWEST_LOG_DENSITY = -3.0
# Checks whose mean score is compared: each check sees another draw of the holes.
_SMOOTHED = 3
# Smallest gain in that mean, per cell, that counts as progress.
_MIN_GAIN = 2e-3
# Rows whose held-out cells are scored at each check.
_VALIDATION_ROWS = 2000
# What is raised where numbers are no longer finite.
_LOST = (NotPositiveDefiniteError, LinAlgError, FloatingPointError)
# Times that steps with numbers that are not finite are taken again, each with a quarter of the learning rate.
_RESCUES = 3
# A minibatch of so few rows is not halved where memory does not suffice.
_FEWEST_ROWS = 16
# Passes over a table seen whole in which q(u) learns from the held-out cells as well.
_LAST_PASSES = 3


class Trainable(Protocol):
    """What training needs of a chain."""

    def model(self, filled: Tensor, observed: Tensor, rows: Tensor | None = None) -> Any:
        """Score the observed cells; give the redrawn rows `[B, D]` in a deterministic site "filled"."""

    def guide(self, filled: Tensor, observed: Tensor, rows: Tensor | None = None) -> Any:
        """Draw the latent sites of `model`."""

    def log_density(self, filled: Tensor, observed: Tensor, values: Tensor, scored: Tensor) -> Tensor:
        """Predictive log density of the scored cells, `[cells]`."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """The leaves to train."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The leaves and their names; those of q(u) end in `u_loc` and `u_scale_tril`."""

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that `load_state_dict` needs."""

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> Any:
        """Go back to an earlier state."""


@dataclass(frozen=True)
class Options:
    """How to train."""

    max_steps: int = 40
    """Most steps to take."""
    learning_rate: float = 0.25
    """Adam's step size."""
    weight_decay: float = 0.1
    """Pull of kernels and noises back to where they started; see `Adam`."""
    batch_size: int = 2000
    """Rows in a minibatch; tables up to this size are seen whole."""
    natural_gradient: bool = True
    """Natural-gradient steps for q(u), if the bound has an exact KL; False leaves it to Adam (the paper)."""
    refresh_fill: bool = True
    """Write the draws of each step back as the next fill; False keeps the starting fill, as in the paper."""
    patience: int = 4
    """Checks without progress before training stops."""
    check_every: int = 5
    """Steps between checks."""


@dataclass(frozen=True)
class History:
    """What happened during training."""

    loss: list[float] = field(default_factory=list)
    """Negative evidence bound (nats, whole table) at each step."""
    validation: list[float] = field(default_factory=list)
    """Mean predictive log density per held-out cell (standardised units) at each check."""
    steps: list[int] = field(default_factory=list)
    """Number of steps taken at each check."""
    best_step: int = 0
    """Steps after which the kept parameters were reached."""
    converged: bool = False
    """Whether training stopped before `max_steps` because the held-out cells stopped improving."""
    seconds: float = 0.0
    """Wall time."""


def train(
    chain: Trainable,
    table: EncodedTable,
    held_out: Tensor,
    filled: Tensor,
    options: Options,
    *,
    seed: int,
    elbo: ELBO | None = None,
    progress: bool = True,
    workers: Workers = ALONE,
    keep_fill: bool = True,
    checkpoint: Checkpoint | None = None,
) -> History:
    """Train `chain` in place.

    Args:
        chain: Module with `model` and `guide`, see `Trainable`.
        table: The table; on another device than the chain, a GPU's host say, it is moved by the minibatch.
        held_out: Bool `[N, D]`, the observed cells that are held out.
        filled: The table with its missing and held-out cells filled, `[N, D]`.
        options: How to train.
        seed: Seeds the draws; the generators of the process are left as they were.
        elbo: Bound to maximise. By default `TraceMeanField_ELBO()`, in closed form where `conjugate` applies.
        progress: Show a progress bar, on terminals only.
        workers: The processes that train together; all of them call this with the same arguments.
        keep_fill: Whether `filled` is to stay as it is; else it is written into, and needs no copy.
        checkpoint: Where to keep what is reached, at checks; training goes on from what is found there, to
            the same end as without a break.

    Returns:
        The history; the parameters in `chain` are those of the best check. With natural gradients, q(u) has
        then been refitted to all cells, the held-out ones included.

    Raises:
        FloatingPointError: If the bound stops being finite.
        ValueError: If the checkpoint keeps other work.
        OSError: If it cannot be written.
    """
    started = time.perf_counter()
    device = next(chain.parameters()).device
    devices = [device] if device.type == "cuda" else []
    with (
        torch.enable_grad(),
        torch.random.fork_rng(devices),
        tqdm(
            total=options.max_steps,
            desc="training",
            disable=None if progress and workers.is_first else True,
            leave=False,
        ) as bar,
    ):
        torch.manual_seed(seed)
        run = Run(chain, table, held_out, filled.clone() if keep_fill else filled, options, elbo, workers)
        keeper = None if checkpoint is None else Keeper(checkpoint, training_state.identity(run, seed))
        history = run.search(bar, keeper)
        run.finish()
        workers.agree(chain.state_dict().values())
    if run.rate < options.learning_rate:
        warn_user(
            "training left the finite numbers: these steps were undone and taken again, in the end with "
            f"learning_rate={run.rate:g} instead of {options.learning_rate:g}. Pass that to begin with it",
            FitWarning,
        )
    if run.options.batch_size < options.batch_size:
        warn_user(
            f"minibatches of {options.batch_size} rows do not fit into the GPU's memory: these had at most "
            f"{run.options.batch_size}. Pass batch_size={run.options.batch_size} to begin with it",
            FitWarning,
        )
    return dataclasses.replace(history, seconds=time.perf_counter() - started)


class Step(Protocol):
    """One step's gradients and its move of q(u)."""

    def __call__(
        self,
        filled: Tensor,
        observed: Tensor,
        rows: Tensor | None,
        step_size: float,
        only_q: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Leave the negative bound's gradients on the parameters, and move q(u) by a natural step.

        Args:
            filled: Rows with their current fill, `[B, D]`.
            observed: Bool `[B, D]`.
            rows: Their numbers if they are a minibatch, else None.
            step_size: Of the natural step: 1 on full data, decaying on minibatches.
            only_q: Whether the gradients of the other parameters are not wanted.

        Returns:
            The negative bound, and the rows with their missing cells redrawn, `[B, D]`.
        """

    def publish(self) -> None:
        """Write q(u) into the chain, if it is kept elsewhere."""

    def restore(self) -> None:
        """Read q(u) from the chain again."""

    def state(self) -> dict[str, Tensor]:
        """What is kept elsewhere than in the chain, for `resume`."""

    def resume(self, state: Mapping[str, Tensor]) -> None:
        """Take up what another `state` gave."""


class SviStep:
    """Steps under any bound of the `Trace_ELBO` family, for any chain.

    Args:
        chain: Module with `model` and `guide`, see `Trainable`.
        elbo: The bound.
        pairs: The q(u) that move by natural gradient; those of Adam are not among them.
        workers: The processes that share the rows of each step.
    """

    def __init__(
        self, chain: Trainable, elbo: ELBO, pairs: Sequence[VariationalPair], workers: Workers = ALONE
    ) -> None:
        self.chain, self.elbo, self.pairs, self.workers = chain, elbo, pairs, workers

    def __call__(
        self,
        filled: Tensor,
        observed: Tensor,
        rows: Tensor | None,
        step_size: float,
        only_q: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """See `Step`; the gradients of q(u) bring the others with them."""
        if not all(parameter.isfinite().all() for parameter in self.chain.parameters()):
            raise FloatingPointError("a parameter is no longer finite")
        if self.workers.is_alone:
            loss, redrawn = self._loss(filled, observed, rows)
            loss.backward()
        else:
            loss, redrawn = self._shared(filled, observed, rows)
        natural_step(self.pairs, step_size)
        return loss.detach(), redrawn

    def _loss(
        self, filled: Tensor, observed: Tensor, rows: Tensor | None, **noise: Noise
    ) -> tuple[Tensor, Tensor]:
        """The negative bound of some rows, and these redrawn."""
        model, guide = self.chain.model, self.chain.guide
        with local_parameters(), _Redrawn(filled) as redrawn:
            loss = self.elbo.differentiable_loss(model, guide, filled, observed, rows, **noise)
        return loss, redrawn.filled

    def _shared(self, filled: Tensor, observed: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        """The same of rows that several processes share, gradients included.

        A share of b rows out of B gives KL - N/b Σ_share. Weighted by b/B these add up to KL - N/B Σ_all.

        Raises:
            TypeError: If the chain is no `Chain`, which takes the noise of its sweep from outside.
        """
        if not isinstance(self.chain, Chain):
            raise TypeError(f"several processes can train a Chain only, got {type(self.chain).__name__}")
        workers, n_rows = self.workers, len(filled)
        mine, everyone = workers.share(n_rows), torch.arange(n_rows, device=filled.device)
        own, numbers = filled[mine], (everyone if rows is None else rows)[mine]

        def noise(link: int, here: Tensor) -> Tensor:
            return draw(link, everyone)[:, mine][:, here]

        draw = fresh_noise(filled.expand(self.chain.n_paths, *filled.shape))
        loss, redrawn = self._loss(own, observed[mine], numbers, noise=noise)
        loss = loss * (len(own) / n_rows)
        loss.backward()
        workers.add_gradients(self.chain.parameters())
        return workers.total([loss])[0], workers.put_together(redrawn, n_rows)

    def publish(self) -> None:
        """Nothing to do: q(u) is kept in the chain."""

    def restore(self) -> None:
        """Nothing to do: q(u) is kept in the chain."""

    def state(self) -> dict[str, Tensor]:
        """Nothing: q(u) is kept in the chain."""
        return {}

    def resume(self, state: Mapping[str, Tensor]) -> None:
        """Nothing to do: q(u) is kept in the chain."""


class _Redrawn(Messenger):
    """Catches the rows that the model redrew, of the first path if there are several."""

    def __init__(self, filled: Tensor) -> None:
        super().__init__()
        self.filled = filled

    def _pyro_post_sample(self, message: Any) -> None:
        if message["name"] == "filled":
            paths = message["value"].detach()
            self.filled = paths if paths.dim() == 2 else paths[0]


@dataclass(frozen=True)
class Keeper:
    """Keeps what one training run has reached; of several processes the first one writes, and all read."""

    checkpoint: Checkpoint
    identity: Identity

    def restore(self, run: Run) -> bool:
        """Bring a run that has taken no step where an earlier one got, if it got anywhere.

        Raises:
            ValueError: If what is there is damaged, or of other work.
            OSError: If processes find different checkpoints, or only some find one.
        """
        path, workers = self.checkpoint.path, run.workers
        elsewhere = OSError(
            f"not all of {workers.size} processes find the same checkpoint {str(path)!r}: put it where all "
            "do, or remove it to start over"
        )
        if not workers.agree_on(path.exists()):
            raise elsewhere
        state = self.checkpoint.load(self.identity)
        if state is None:
            return False
        try:
            training_state.restore(run, state)
        except (RuntimeError, *MALFORMED) as error:
            raise damaged(path) from error
        if not workers.agree_on(len(run.losses)):
            raise elsewhere
        return True

    def keep(self, run: Run) -> None:
        """Keep what a run has reached if it is time to; to be called after a check.

        Raises:
            OSError: If it cannot be written.
            Stopped: In all processes, if one was asked to stop.
        """
        # A signal that comes from here on waits for the next time: all have to stop at the same check.
        signal = run.workers.largest(self.checkpoint.interruption.asked or 0)
        if run.workers.is_first:
            self.checkpoint.keep(lambda: training_state.capture(run), self.identity, now=signal > 0)
        if signal:
            raise Stopped(signal)


class Run:
    """One training run: its optimiser, its fill, and the parameters that served best so far."""

    def __init__(
        self,
        chain: Trainable,
        table: EncodedTable,
        held_out: Tensor,
        filled: Tensor,
        options: Options,
        elbo: ELBO | None,
        workers: Workers,
    ) -> None:
        self.chain, self.table, self.held_out = chain, table, held_out
        self.filled, self.options = filled, options
        self.workers = workers
        self.device = next(chain.parameters()).device
        self.holds_out = True
        # Where the KL is sampled its gradient is too noisy for steps of size 1.
        exact = elbo is None or isinstance(elbo, TraceMeanField_ELBO)
        self.pairs = variational_pairs(chain) if options.natural_gradient and exact else []
        self.step: Step
        if elbo is None and self.pairs and isinstance(chain, Chain) and closed_form.applies_to(chain):
            self.step = closed_form.ConjugateStep(chain, workers)
        else:
            self.step = SviStep(chain, elbo or TraceMeanField_ELBO(), self.pairs, workers)
        of_q = [leaf for pair in variational_pairs(chain) for leaf in (pair.loc, pair.tril)]
        known = {id(leaf) for leaf in of_q}
        others = [p for p in chain.parameters() if p.requires_grad and id(p) not in known]
        self.adams = [Adam(others, options.weight_decay), Adam([] if self.pairs else of_q)]
        self.rate = options.learning_rate
        self.ahead: list[Tensor | None] = []
        self.overwritten: list[tuple[Tensor | slice, Tensor]] = []
        self.safe: list[dict[str, Tensor]] = []
        self.whole = len(filled) <= options.batch_size
        self.losses: list[float] = []
        self.validation: list[float] = []
        self.steps: list[int] = []
        self.mark, self.best_step = -math.inf, 0
        self.best = _snapshot(chain)
        candidates = held_out.any(1).nonzero()[:, 0]
        self.validation_rows = candidates[torch.randperm(len(candidates))[:_VALIDATION_ROWS]]

    def search(self, bar: Any, keeper: Keeper | None = None) -> History:
        """Step until the held-out cells stop improving; leaves the best parameters in the chain."""
        with contextlib.nullcontext() if keeper is None else keeper.checkpoint.working():
            if keeper is None or not keeper.restore(self):
                self.settle()
                self.step.publish()
            bar.update(len(self.losses))
            while self.should_continue:
                self.check(bar)
                if keeper is not None:
                    keeper.keep(self)
        self.chain.load_state_dict(self.best)
        self.step.restore()
        return History(self.losses, self.validation, self.steps, self.best_step, self.out_of_patience)

    @property
    def out_of_patience(self) -> bool:
        """Whether nothing has improved for as long as one is to wait."""
        return len(self.losses) - self.best_step >= self.options.patience * self.options.check_every

    @property
    def should_continue(self) -> bool:
        """Whether there are steps to take."""
        return len(self.losses) < self.options.max_steps and not self.out_of_patience

    def check(self, bar: Any) -> None:
        """Some steps, and whether they have made the predictions of held-out cells better."""
        n_steps = min(self.options.check_every, self.options.max_steps - len(self.losses))
        window, score = self.attempt(len(self.losses), n_steps)
        self.losses += window
        self.steps.append(len(self.losses))
        # Decisions hang on it.
        self.validation.append(self.workers.agreed(score))
        bar.update(n_steps)
        bar.set_postfix(held_out=f"{self.validation[-1]:.3f}")
        recent = sum(self.validation[-_SMOOTHED:]) / len(self.validation[-_SMOOTHED:])
        # Until there are as many checks as a mean is made of, a lucky one must not set the mark.
        early = len(self.validation) < _SMOOTHED
        if early or recent > self.mark + _MIN_GAIN:
            self.mark, self.best_step = -math.inf if early else recent, len(self.losses)
            self.best = _snapshot(self.chain)

    def settle(self) -> None:
        """Let q(u) learn from the starting fill before its draws replace it."""
        if self.pairs:
            self.follow(next(self.minibatches()), 1.0, only_q=True, refresh=False)

    def attempt(self, first: int, n_steps: int) -> tuple[list[float], float]:
        """Some steps, their losses and the score after them; at a lower rate where these are not finite.

        Args:
            first: Number of the first step.
            n_steps: How many.
        """
        self.safe = [*self.safe[-1:], _snapshot(self.chain)]
        why = ""
        # What was lost may have been so since the last step before this window.
        for state in (self.safe[-1], *[self.safe[0]] * (_RESCUES - 1), None):
            self.overwritten = []
            try:
                losses = torch.stack([self.advance(first + k) for k in range(n_steps)]).tolist()
                self.step.publish()
                score = self.score(losses)
            except _LOST as error:
                score, why = math.nan, f" ({error})"
            if math.isfinite(score) and math.isfinite(sum(losses)):
                return losses, score
            if state is not None:
                self.go_back(state)
        raise FloatingPointError(
            f"the evidence bound is no longer finite after {first + n_steps} steps{why}; "
            f"use a learning rate below {self.rate:g}"
        )

    def go_back(self, state: dict[str, Tensor]) -> None:
        """To an earlier state, and on from there with a quarter of the learning rate."""
        self.chain.load_state_dict(state)
        self.step.restore()
        for rows, fill in reversed(self.overwritten):
            self.filled[rows] = fill
        for adam in self.adams:
            adam.forget()
        self.rate /= 4

    def advance(self, number: int) -> Tensor:
        """One step of everything; gives the loss."""
        if not self.ahead:
            self.ahead = list(self.minibatches())
        loss = self.follow(self.ahead.pop(), 1.0 if self.whole else (1 + number) ** -0.5)
        for adam in self.adams:
            adam.step(self.rate)
        return loss

    def minibatches(self) -> Iterator[Tensor | None]:
        """Row numbers of one pass over the table, shuffled; None for a table that is seen whole."""
        if self.whole:
            yield None
            return
        # Of nearly equal size: a few rows left over must not speak for the whole table.
        n_batches = math.ceil(len(self.filled) / self.options.batch_size)
        yield from torch.randperm(len(self.filled), device=self.filled.device).tensor_split(n_batches)

    def follow(
        self, rows: Tensor | None, step_size: float, only_q: bool = False, refresh: bool = True
    ) -> Tensor:
        """Move q(u) and refresh the fill on some rows; leaves the other parameters' gradients if wanted.

        Where a GPU's memory does not suffice for them, they go by halves, and so do all minibatches to come.
        """
        try:
            loss, redrawn = self.take_step(rows, step_size, only_q)
        except torch.OutOfMemoryError:
            n_rows = len(self.filled) if rows is None else len(rows)
            if n_rows <= _FEWEST_ROWS:
                raise
            halves: list[Tensor] | None = list(self._halves(rows))
        else:
            halves = None
        if halves is not None:
            torch.cuda.empty_cache()
            self.whole = False
            self.options = dataclasses.replace(self.options, batch_size=len(halves[0]))
            self.ahead = []
            steps = [(half, step_size / (k + 1), only_q, refresh) for k, half in enumerate(halves)]
            return torch.stack([self.follow(*step) for step in steps]).mean()
        if self.options.refresh_fill and refresh:
            here = slice(None) if rows is None else rows
            if rows is not None or not self.overwritten:
                self.overwritten.append((here, self.filled[here].clone()))
            self.filled[here] = redrawn.to(self.filled.device)
        return loss

    def _halves(self, rows: Tensor | None) -> Sequence[Tensor]:
        """A minibatch that does not fit into a GPU's memory, in two, as all later ones will be."""
        numbers = torch.randperm(len(self.filled), device=self.filled.device) if rows is None else rows
        return numbers.tensor_split(2)

    def take_step(self, rows: Tensor | None, step_size: float, only_q: bool) -> tuple[Tensor, Tensor]:
        """A step on some rows, wherever the table lies; see `Step`."""
        for parameter in self.chain.parameters():
            parameter.grad = None
        here = slice(None) if rows is None else rows
        filled, observed = self.filled[here].to(self.device), self.seen(here).to(self.device)
        return self.step(filled, observed, None if rows is None else rows.to(self.device), step_size, only_q)

    def seen(self, here: Tensor | slice) -> Tensor:
        """Bool `[n, D]`, the cells of some rows that are learnt from."""
        observed = self.table.observed[here]
        return observed & ~self.held_out[here] if self.holds_out else observed

    def finish(self) -> None:
        """Let q(u) learn from the held-out cells too.

        The steps 1, 1/2, 1/3, ... make its natural parameters the mean of what each minibatch of one pass, or
        each redrawn fill of a table seen whole, asks for. Every row is heard once.
        """
        for adam in self.adams:
            adam.release()
        self.overwritten = []
        if not self.pairs:
            return
        for here in pieces(len(self.filled)):
            held_out, values = self.held_out[here], self.table.values[here]
            self.filled[here] = torch.where(held_out, values, self.filled[here])
        self.holds_out = False
        passes = _LAST_PASSES if self.whole else 1
        batches = [rows for _ in range(passes) for rows in self.minibatches()]
        for k, rows in enumerate(batches):
            self.follow(rows, 1 / (k + 1), only_q=True)
            self.overwritten = []
        self.step.publish()

    def score(self, window: list[float]) -> float:
        """Mean log density of the held-out cells; without any, the bound per cell over the last steps."""
        here = self.validation_rows
        if len(here) == 0:
            return -sum(window) / len(window) / max(int(self.table.observed.sum()), 1)
        tables = self.filled[here], self.seen(here), self.table.values[here], self.held_out[here]
        density = self.chain.log_density(*(table.to(self.device) for table in tables))
        return float(density.clamp(min=_LOWEST_LOG_DENSITY).mean())


def _snapshot(chain: Trainable) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in chain.state_dict().items()}
