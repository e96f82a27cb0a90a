"""Stochastic variational inference for a chain.

Each step scores a minibatch under an evidence bound, moves q(u) by natural gradients and all else by Adam, or
everything by `pyro.infer.SVI`, and writes the model's draws back as the next fill of its rows. Training stops
when the predictive log density of held-out cells stops improving.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from pyro.infer import ELBO
from pyro.optim import PyroOptim
from torch import Tensor

from pyro_mgp._support.messages import FitWarning, progress_bar, warn_user
from pyro_mgp._support.processes import ALONE, Workers
from pyro_mgp._support.signals import Stopped
from pyro_mgp.data.encoded_table import EncodedTable
from pyro_mgp.inference.run import Options, Run
from pyro_mgp.model.chain import Chain
from pyro_mgp.storage.checkpoint import Checkpoint, Identity, damaged, fingerprint, versions
from pyro_mgp.storage.untrusted import MALFORMED

__all__ = ["History", "Options", "train"]


@dataclass(frozen=True)
class History:
    """Losses and held-out scores of a training run."""

    loss: list[float] = field(default_factory=list)
    """Negative evidence bound (nats, whole table) at each step."""
    validation: list[float] = field(default_factory=list)
    """Mean predictive log density per held-out cell (standardised units) at each check; without any, the mean
    bound per observed cell."""
    steps: list[int] = field(default_factory=list)
    """Number of steps taken at each check."""
    best_step: int = 0
    """Number of steps after which the kept parameters were reached."""
    converged: bool = False
    """True if training stopped before `max_steps` because the held-out cells stopped improving."""
    seconds: float = 0.0
    """Wall time of training in seconds."""


def train(
    chain: Chain,
    table: EncodedTable,
    held_out: Tensor,
    filled: Tensor,
    options: Options,
    *,
    seed: int,
    loss: ELBO | None = None,
    optimizer: PyroOptim | None = None,
    progress: bool = True,
    workers: Workers = ALONE,
    checkpoint: Checkpoint | None = None,
) -> History:
    """Train a chain in place until its held-out score stops improving, and return the history.

    The chain then has the parameters of the best check, and with steps in closed form q(u) is refitted to all
    cells, the held-out ones included.

    Args:
        chain: The chain.
        table: The training table. One on another device than the chain is moved minibatch by minibatch.
        held_out: Bool `[N, D]`, the observed cells that are held out.
        filled: The table with its missing and held-out cells filled, `[N, D]`, which is overwritten.
        options: Settings of training.
        seed: Seed of the draws; the global random generators are left as they were.
        loss: Bound of `chain.model` and `chain.guide` to maximise by `pyro.infer.SVI`; None for the bound
            with functions integrated out, in closed form where that applies and `optimizer` is None.
        optimizer: Optimiser of `pyro.infer.SVI`, of which a copy is used; None for `Adam`.
        progress: Whether to show a progress bar, on terminals only.
        workers: The processes that train together; all of them call this with the same arguments.
        checkpoint: Where to keep the state at checks, and to resume from with the same result.

    Raises:
        FloatingPointError: If the bound stops being finite.
        ValueError: If the checkpoint is damaged or belongs to another training run.
        OSError: If it cannot be written, or several processes find different checkpoints.
        Stopped: If a process received a signal to stop, after the state was written.
    """
    started = time.perf_counter()
    device = next(chain.parameters()).device
    devices = [device] if device.type == "cuda" else []
    with (
        torch.enable_grad(),
        torch.random.fork_rng(devices),
        progress_bar(None, progress and workers.is_first, desc="training", total=options.max_steps) as bar,
    ):
        torch.manual_seed(seed)
        run = Run(chain, table, held_out, filled, options, workers, loss, optimizer)
        _search(run, bar, checkpoint, seed)
        run.finish()
        workers.broadcast(chain.state_dict().values())
    _warn_of_changes(run, options)
    seconds = time.perf_counter() - started
    return History(run.losses, run.validation, run.steps, run.best_step, run.out_of_patience, seconds)


def _warn_of_changes(run: Run, options: Options) -> None:
    """Warn of a learning rate or a size of minibatches that training had to lower."""
    if run.rate < options.learning_rate:
        warn_user(
            "training reached numbers that are not finite: these steps were undone and repeated, in the "
            f"end with learning_rate={run.rate:g} instead of {options.learning_rate:g}. Pass that to begin "
            "with it",
            FitWarning,
        )
    if run.options.batch_size < options.batch_size:
        warn_user(
            f"minibatches of {options.batch_size} rows do not fit into the GPU's memory: these had at most "
            f"{run.options.batch_size}. Pass batch_size={run.options.batch_size} to begin with it",
            FitWarning,
        )


def _search(run: Run, bar: Any, checkpoint: Checkpoint | None, seed: int) -> None:
    """Step until the held-out cells stop improving; leave the best parameters in the chain."""
    with contextlib.nullcontext() if checkpoint is None else checkpoint.working():
        identity = {} if checkpoint is None else _identity(run, seed)
        if checkpoint is None or not _resume(run, checkpoint, identity):
            run.warm_start()
        bar.update(len(run.losses))
        while len(run.losses) < run.options.max_steps and not run.out_of_patience:
            run.check(bar)
            if checkpoint is not None:
                _keep(run, checkpoint, identity)
    run.set_parameters(run.best)


def _identity(run: Run, seed: int) -> Identity:
    """Return the settings and fingerprints of a run before its first step; a checkpoint must match them."""
    return {
        "seed": seed,
        **{f"training {name}": value for name, value in dataclasses.asdict(run.options).items()},
        **versions(),
        "steps": type(run.step).__name__,
        "loss": type(run.loss).__name__,
        "table": fingerprint(run.table.tensors().items()),
        "initial fill or held-out cells": fingerprint([("filled", run.filled), ("held out", run.held_out)]),
        "chain": fingerprint(run.chain.state_dict().items()),
    }


def _resume(run: Run, checkpoint: Checkpoint, identity: Identity) -> bool:
    """Set a run to the state in the checkpoint, which all processes read; return whether there was one."""
    path, workers = checkpoint.path, run.workers
    elsewhere = OSError(
        f"not all of {workers.size} processes find the same checkpoint {str(path)!r}: put it where all "
        "do, or remove it to start over"
    )
    if not workers.all_equal(path.exists()):
        raise elsewhere
    state = checkpoint.load(identity)
    if state is None:
        return False
    try:
        run.restore(state)
    except MALFORMED as error:
        raise damaged(path) from error
    if not workers.all_equal(len(run.losses)):
        raise elsewhere
    return True


def _keep(run: Run, checkpoint: Checkpoint, identity: Identity) -> None:
    """Write the state of a run if it is due, by the first process; stop if any of them received a signal."""
    # All processes have to stop at the same check: a signal after this line counts at the next one.
    signal = run.workers.largest(checkpoint.interruption.asked or 0)
    if run.workers.is_first:
        checkpoint.keep(run.capture, identity, now=signal > 0)
    if signal:
        raise Stopped(signal)
