"""Training step under any evidence bound of the `Trace_ELBO` family, and the protocol of trainable chains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from pyro.infer import ELBO
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn

from pyro_mgp._support.processes import ALONE, Workers
from pyro_mgp.model.chain import Chain, Noise, fresh_noise
from pyro_mgp.model.local_parameters import local_parameters


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
    """Training step under any bound of the `Trace_ELBO` family, for any chain; Adam trains q(u).

    Of a `Chain` it takes the marginal model and guide, whose bound is less noisy than that of the others.

    The methods besides `__call__` do nothing: all parameters are in the chain.
    """

    def __init__(self, chain: Trainable, elbo: ELBO, workers: Workers = ALONE) -> None:
        self.chain, self.elbo, self.workers = chain, elbo, workers

    def __call__(
        self,
        filled: Tensor,
        observed: Tensor,
        rows: Tensor | None,
        step_size: float,
        only_q: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Set the gradients of the negative bound on the parameters, and redraw the rows.

        Args:
            filled: Rows with their current fill, `[B, D]`.
            observed: Bool `[B, D]`.
            rows: Their numbers if they are a minibatch, else None.
            step_size: Size of a natural step of q(u): 1 on full data, decaying on minibatches.
            only_q: Whether the gradients of the other parameters may be left out.

        Returns:
            The negative bound, and the rows with their missing cells redrawn, `[B, D]`.
        """
        if not all(parameter.isfinite().all() for parameter in self.chain.parameters()):
            raise FloatingPointError("a parameter is no longer finite")
        if self.workers.is_alone:
            loss, redrawn = self._loss(filled, observed, rows)
            loss.backward()
        else:
            loss, redrawn = self._shared(filled, observed, rows)
        return loss.detach(), redrawn

    def publish(self) -> None:
        """Write q(u) into the chain; this step keeps q(u) in the chain and does nothing."""

    def restore(self) -> None:
        """Reload q(u) after the chain was reset; this step keeps q(u) in the chain and does nothing."""

    def state(self) -> dict[str, Tensor]:
        """Return the state outside the chain, for `resume`; this step has none."""
        return {}

    def resume(self, state: Mapping[str, Tensor]) -> None:
        """Restore the output of `state`; this step has nothing to restore."""

    def _loss(
        self, filled: Tensor, observed: Tensor, rows: Tensor | None, **noise: Noise
    ) -> tuple[Tensor, Tensor]:
        """Return the negative bound on some rows, and the rows with missing cells redrawn."""
        chain = self.chain
        model, guide = chain.model, chain.guide
        if isinstance(chain, Chain):
            model, guide = chain.marginal_model, chain.marginal_guide
        with local_parameters(), _Redrawn(filled) as redrawn:
            loss = self.elbo.differentiable_loss(model, guide, filled, observed, rows, **noise)
        return loss, redrawn.filled

    def _shared(self, filled: Tensor, observed: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        """Compute the loss, redrawn rows and gradients of a minibatch that several processes share."""
        # A share of b rows out of B gives KL - N/b Σ_share. Weighted by b/B these add up to KL - N/B Σ_all.
        if not isinstance(self.chain, Chain):
            raise TypeError(f"several processes can train a Chain only, got {type(self.chain).__name__}")
        workers, n_rows = self.workers, len(filled)
        share, numbers = workers.share(n_rows), torch.arange(n_rows, device=filled.device)
        own, own_rows = filled[share], (numbers if rows is None else rows)[share]

        def noise(link: int, here: Tensor) -> Tensor:
            return draw(link, numbers)[:, share][:, here]

        draw = fresh_noise(filled.expand(self.chain.n_paths, *filled.shape))
        loss, redrawn = self._loss(own, observed[share], own_rows, noise=noise)
        loss = loss * (len(own) / n_rows)
        loss.backward()
        workers.add_gradients(self.chain.parameters())
        return workers.total([loss])[0], workers.gather(redrawn, n_rows)


class _Redrawn(Messenger):
    """Pyro messenger that records the rows that the model redrew, on the first path if there are several."""

    def __init__(self, filled: Tensor) -> None:
        super().__init__()
        self.filled = filled

    def _pyro_post_sample(self, message: Any) -> None:
        if message["name"] == "filled":
            paths = message["value"].detach()
            self.filled = paths if paths.dim() == 2 else paths[0]
