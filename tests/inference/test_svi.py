"""Training by `pyro.infer.SVI`: optimisers and losses of the user, and agreement with the closed form."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.nn import PyroSample
from pyro.optim import ExponentialLR
from sklearn.base import clone

from pyro_mgp import MGPImputer
from pyro_mgp.inference.closed_form import ConjugateStep
from pyro_mgp.inference.svi import SviStep
from pyro_mgp.inference.training import Options, train
from pyro_mgp.model.chain import Chain
from pyro_mgp.model.kernels import matern32
from tests.encoded_rows import encoded

LIKE = torch.ones((), dtype=torch.float64)


def frame() -> pd.DataFrame:
    """Return 60 rows of three columns that depend on each other, a quarter of the cells missing."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 3))
    x[:, 1] = x[:, 0] + 0.5 * x[:, 1]
    x[:, 2] = x[:, 0] * x[:, 1] + 0.3 * x[:, 2]
    x[::4, 0], x[1::4, 1], x[2::4, 2] = np.nan, np.nan, np.nan
    return pd.DataFrame(x, columns=list("abc"))


def imputer(**settings: Any) -> MGPImputer:
    return MGPImputer(**{"n_inducing": 15, "max_steps": 5, "random_state": 0, "progress": False} | settings)


def with_prior(input_dim: int) -> Any:
    """Return a kernel whose lengthscales are four, by its prior."""
    kernel = matern32(input_dim)
    prior = dist.LogNormal(np.log(4.0) * LIKE, 0.01).expand([input_dim]).to_event(1)
    kernel.lengthscale = PyroSample(prior)
    return kernel


@pytest.mark.parametrize("inputs", ["others", "earlier"])
@pytest.mark.parametrize("kernel", ["auto", with_prior])
def test_the_loss_of_a_step_is_the_bound_in_closed_form(inputs: str, kernel: Any) -> None:
    fitted = imputer(inputs=inputs, kernel=kernel).fit(frame())
    chain, observed = fitted.chain_.train(), encoded(fitted, frame()).observed
    filled = encoded(fitted, fitted.transform(frame())).values
    step = ConjugateStep(chain, redraw=False)
    closed, _ = step(filled, observed, None, 1.0)
    step.publish()
    gradients = {name: p.grad.clone() for name, p in chain.named_parameters() if p.grad is not None}
    chain.zero_grad()
    seen = {}

    def record(parameters: Any) -> None:
        seen.update((name, p.grad.clone()) for name, p in chain.named_parameters() if p.grad is not None)

    by_svi, _ = SviStep(chain, None, record, redraw=False)(filled, observed, None)
    assert float(by_svi) == pytest.approx(float(closed.detach()), rel=1e-10)
    for name, gradient in gradients.items():
        torch.testing.assert_close(seen[name], gradient, rtol=1e-6, atol=1e-6)


def test_both_ways_of_training_end_at_the_same_bound() -> None:
    fitted = imputer(inputs="others").fit(frame())
    cells = encoded(fitted, frame())
    filled = encoded(fitted, fitted.transform(frame())).values
    settings: dict[str, Any] = {"weight_decay": 0.0, "redraw": False, "patience": 1000}
    losses = []
    for options in (
        Options(max_steps=40, **settings),
        Options(max_steps=300, closed_form=False, learning_rate=0.05, **settings),
    ):
        chain = copy.deepcopy(fitted.chain_.train())
        history = train(
            chain, cells, ~cells.observed & False, filled.clone(), options, seed=0, progress=False
        )
        losses.append(min(history.loss))
    assert losses[1] == pytest.approx(losses[0], abs=1.0)


@pytest.mark.parametrize("inputs", ["others", "earlier"])
def test_optimizer_and_loss_of_the_user_train_model_and_guide(
    inputs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def counted(owner: type, name: str) -> None:
        method = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, **kw: (calls.append(name), method(*args, **kw))[1])

    for owner, name in ((SVI, "step"), (Chain, "model"), (Chain, "guide")):
        counted(owner, name)
    schedule = {"optimizer": torch.optim.SGD, "optim_args": {"lr": 1e-5}, "gamma": 0.1}
    optimizer = ExponentialLR(schedule)
    one = imputer(inputs=inputs, inference="svi", optimizer=optimizer, loss=Trace_ELBO())
    pyro.clear_param_store()
    chain = one.fit(frame()).chain_
    assert min(calls.count(name) for name in ("step", "model", "guide")) >= 5
    assert len(pyro.get_param_store()) == 0
    assert len(optimizer.optim_objs) == 0  # a copy was trained with
    assert one.settings_.inference.value == "svi"
    largest = max(float(link.u_loc.detach().abs().max()) for link in chain.links)
    assert 0 < largest < 1
    assert clone(one).inference == "svi"


def test_a_scheduler_advances_at_each_step() -> None:
    fitted = imputer(inputs="others", max_steps=1).fit(frame())
    chain, cells = fitted.chain_.train(), encoded(fitted, frame())
    scheduler = ExponentialLR({"optimizer": torch.optim.SGD, "optim_args": {"lr": 1e-3}, "gamma": 0.5})
    step = SviStep(chain, None, scheduler)
    for _ in range(3):
        step(cells.values, cells.observed, None)
    rates = {each.optimizer.param_groups[0]["lr"] for each in scheduler.optim_objs.values()}
    assert rates == {1e-3 / 8}


@pytest.mark.parametrize("inference", ["closed_form", "svi"])
def test_priors_of_kernels_pull_their_parameters(inference: Any, tmp_path: Any) -> None:
    free, held = (
        imputer(inference=inference, inputs="others", kernel=kernel, max_steps=20, learning_rate=0.05)
        for kernel in (matern32, with_prior)
    )
    for one, expected in ((free.fit(frame()), False), (held.fit(frame()), True)):
        scales = torch.stack([link.kernel.lengthscale.detach() for link in one.chain_.links])
        assert bool(((scales - 4).abs() < 0.1).all()) == expected
    held.save(tmp_path / "it")
    again = MGPImputer.load(tmp_path / "it", kernel=with_prior)
    assert again.impute(frame(), m=2) == held.impute(frame(), m=2)


def test_a_checkpoint_of_a_users_optimizer_is_refused(tmp_path: Any) -> None:
    one = imputer(inference="svi", optimizer=pyro.optim.Adam({"lr": 0.01}))
    with pytest.raises(ValueError, match="a checkpoint does not keep the state of an optimizer"):
        one.fit(frame(), checkpoint=tmp_path / "it")
