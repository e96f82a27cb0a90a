"""Training step by `pyro.infer.SVI`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pyro import poutine
from pyro.infer import ELBO, SVI, TraceMeanField_ELBO
from pyro.optim import PyroLRScheduler, PyroOptim
from torch import Tensor

from pyro_mgp._support.processes import ALONE, Workers
from pyro_mgp.model.chain import Chain, fresh_noise
from pyro_mgp.model.local_parameters import local_parameters

Update = Callable[[Any], None]


class SviStep:
    """Training step by `pyro.infer.SVI`, for any chain; see `ConjugateStep`.

    The loss is the bound of its `model` and `guide`; None stands for the bound with functions integrated out,
    of `Chain.marginal_model`, which is less noisy. `update` moves the parameters against their gradients.
    Missing cells of the training table may have limits, `[N, D, 2]`.
    """

    def __init__(
        self,
        chain: Chain,
        loss: ELBO | None,
        update: Update,
        workers: Workers = ALONE,
        redraw: bool = True,
        limits: Tensor | None = None,
    ) -> None:
        self.chain, self.update, self.workers, self.limits = chain, update, workers, limits
        self.switches = {"redraw": redraw} if loss is None else {}
        self.model: Callable[..., Tensor] = chain.marginal_model if loss is None else chain.model
        guide = chain.marginal_guide if loss is None else chain.guide
        self.svi = SVI(self._model, guide, _Optimizer(self._update), loss or TraceMeanField_ELBO())

    def __call__(
        self,
        filled: Tensor,
        observed: Tensor,
        rows: Tensor | None,
        step_size: float = 1.0,
        only_q: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Move the parameters; return the negative bound, and the rows with missing cells redrawn, `[B, D]`.

        Takes rows with their current fill `[B, D]`, their observed cells, Bool `[B, D]`, and their numbers in
        a minibatch (None for the whole table). `step_size` and `only_q` are for steps in closed form.
        """
        if not all(parameter.isfinite().all() for parameter in self.chain.parameters()):
            raise FloatingPointError("a parameter is no longer finite")
        workers, n_rows, noise = self.workers, len(filled), dict[str, Any]()
        share = workers.share(n_rows)
        own = self.redrawn = filled[share]
        if not workers.is_alone:
            numbers = torch.arange(n_rows, device=filled.device)
            rows = (numbers if rows is None else rows)[share]
            draw = fresh_noise(filled.expand(self.chain.n_paths, *filled.shape))
            if self.switches:
                noise["noise"] = lambda link, here: draw(link, numbers)[:, share][:, here]
        limits = list[Tensor]()  # guides of one's own need no argument for limits if there are none
        if self.limits is not None:
            limits = [self.limits[share if rows is None else rows]]
        # A share of b rows out of B gives KL - N/b Σ_share. Weighted by b/B these add up to KL - N/B Σ_all.
        with local_parameters(), poutine.scale(scale=len(own) / n_rows):
            loss = filled.new_tensor(self.svi.step(own, observed[share], rows, *limits, **noise))
        return workers.total([loss])[0], workers.gather(self.redrawn, n_rows)

    def _model(self, *table: Any, **noise: Any) -> None:
        """Run the model, and keep the rows that it redrew, on the first path if there are several."""
        paths = self.model(*table, **noise, **self.switches).detach()
        self.redrawn = paths if paths.dim() == 2 else paths[0]

    def _update(self, parameters: Any) -> None:
        self.workers.add_gradients(self.chain.parameters())
        self.update(parameters)
        if isinstance(self.update, PyroLRScheduler):
            self.update.step()


class _Optimizer(PyroOptim):
    """Optimiser of Pyro's that calls a function with the parameters of a step."""

    def __init__(self, update: Update) -> None:
        super().__init__(update, {})
        self.update = update

    def __call__(self, params: Any, *args: Any, **kwargs: Any) -> None:
        self.update(params)
