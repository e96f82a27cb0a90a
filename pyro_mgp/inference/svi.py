"""Training step by `pyro.infer.SVI`, and the protocol of trainable chains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

import torch
from pyro import poutine
from pyro.infer import ELBO, SVI, TraceMeanField_ELBO
from pyro.optim import PyroLRScheduler, PyroOptim
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn

from pyro_mgp._support.processes import ALONE, Workers
from pyro_mgp.model.chain import Chain, Noise, fresh_noise
from pyro_mgp.model.local_parameters import local_parameters

Update = Callable[[Any], None]


class Trainable(Protocol):
    """A chain, or any other module with a Pyro model and guide that redraws the missing cells of a table."""

    def model(self, filled: Tensor, observed: Tensor, rows: Tensor | None = None) -> Any:
        """Score the observed cells; record the redrawn rows `[B, D]` in a deterministic site "filled"."""

    def guide(self, filled: Tensor, observed: Tensor, rows: Tensor | None = None) -> Any:
        """Draw the latent variables of `model` from the variational distribution."""

    def log_density(self, filled: Tensor, observed: Tensor, values: Tensor, scored: Tensor) -> Tensor:
        """Return the predictive log density of the scored cells, `[cells]`."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Iterate over the parameters to train."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Iterate over names and parameters; those of q(u) end in `u_loc` and `u_scale_tril`."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return the parameters and buffers by name."""

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> Any:
        """Set the parameters and buffers to those of a `state_dict`."""


class SviStep:
    """Training step by `pyro.infer.SVI`, under any bound of the `Trace_ELBO` family, for any chain.

    Args:
        chain: The chain.
        loss: Bound of its `model` and `guide`; None for the bound with functions integrated out, of
            `Chain.marginal_model`, which is less noisy.
        update: Function that moves the parameters of a step against their gradients.
        workers: The processes that train together.
        redraw: Whether a step redraws missing cells; otherwise their fill counts as data.
    """

    def __init__(
        self,
        chain: Trainable,
        loss: ELBO | None,
        update: Update,
        workers: Workers = ALONE,
        redraw: bool = True,
    ) -> None:
        self.chain, self.update, self.workers = chain, update, workers
        self.is_marginal = loss is None and isinstance(chain, Chain)
        model, guide = chain.model, chain.guide
        if loss is None and isinstance(chain, Chain):
            model, guide = partial(chain.marginal_model, redraw=redraw), chain.marginal_guide
        self.svi = SVI(model, guide, _Optimizer(self._update), loss or TraceMeanField_ELBO())

    def __call__(
        self,
        filled: Tensor,
        observed: Tensor,
        rows: Tensor | None,
        step_size: float = 1.0,
        only_q: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Move the parameters against the gradients of the negative bound, and redraw the rows.

        Args:
            filled: Rows with their current fill, `[B, D]`.
            observed: Bool `[B, D]`.
            rows: Their numbers if they are a minibatch, else None.
            step_size: Size of a natural step of q(u), of which there is none here.
            only_q: Whether other parameters may be left out, which they are not here.

        Returns:
            The negative bound, and the rows with their missing cells redrawn, `[B, D]`.
        """
        if not all(parameter.isfinite().all() for parameter in self.chain.parameters()):
            raise FloatingPointError("a parameter is no longer finite")
        take = self._step if self.workers.is_alone else self._shared
        return take(filled, observed, rows)

    def publish(self) -> None:
        """Write q(u) into the chain; this step keeps q(u) in the chain and does nothing."""

    def restore(self) -> None:
        """Reload q(u) after the chain was reset; this step keeps q(u) in the chain and does nothing."""

    def state(self) -> dict[str, Tensor]:
        """Return the state outside the chain, for `resume`; this step has none."""
        return {}

    def resume(self, state: Mapping[str, Tensor]) -> None:
        """Restore the output of `state`; this step has nothing to restore."""

    def _step(
        self, filled: Tensor, observed: Tensor, rows: Tensor | None, **noise: Noise
    ) -> tuple[Tensor, Tensor]:
        """Return the negative bound on some rows, and the rows with missing cells redrawn."""
        with local_parameters(), _Redrawn(filled) as redrawn:
            loss = self.svi.step(filled, observed, rows, **noise)
        return filled.new_tensor(loss), redrawn.filled

    def _update(self, parameters: Any) -> None:
        self.workers.add_gradients(self.chain.parameters())
        self.update(parameters)
        if isinstance(self.update, PyroLRScheduler):
            self.update.step()

    def _shared(self, filled: Tensor, observed: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        """Take a step on a minibatch that several processes share."""
        # A share of b rows out of B gives KL - N/b Σ_share. Weighted by b/B these add up to KL - N/B Σ_all.
        if not isinstance(self.chain, Chain):
            raise TypeError(f"several processes can train a Chain only, got {type(self.chain).__name__}")
        workers, n_rows = self.workers, len(filled)
        share, numbers = workers.share(n_rows), torch.arange(n_rows, device=filled.device)
        own, own_rows = filled[share], (numbers if rows is None else rows)[share]

        def noise(link: int, here: Tensor) -> Tensor:
            return draw(link, numbers)[:, share][:, here]

        draw = fresh_noise(filled.expand(self.chain.n_paths, *filled.shape))
        shared: dict[str, Noise] = {"noise": noise} if self.is_marginal else {}
        with poutine.scale(scale=len(own) / n_rows):
            loss, redrawn = self._step(own, observed[share], own_rows, **shared)
        return workers.total([loss])[0], workers.gather(redrawn, n_rows)


class _Optimizer(PyroOptim):
    """Optimiser of Pyro's that calls a function with the parameters of a step."""

    def __init__(self, update: Update) -> None:
        super().__init__(update, {})
        self.update = update

    def __call__(self, params: Any, *args: Any, **kwargs: Any) -> None:
        self.update(params)


class _Redrawn(Messenger):
    """Pyro messenger that records the rows that the model redrew, on the first path if there are several."""

    def __init__(self, filled: Tensor) -> None:
        super().__init__()
        self.filled = filled

    def _pyro_post_sample(self, message: Any) -> None:
        if message["name"] == "filled":
            paths = message["value"].detach()
            self.filled = paths if paths.dim() == 2 else paths[0]
