"""Numerical faults: singular matrices, bounds that are not finite, diverged draws, full memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_mgp import MGPImputer
from pyro_mgp._support.tiles import TILE
from pyro_mgp.imputer import FitWarning
from pyro_mgp.inference.closed_form import ConjugateStep
from pyro_mgp.inference.function_posterior import FunctionPosterior
from pyro_mgp.model.chain import Chain
from pyro_mgp.model.cholesky import NotPositiveDefiniteError, factorise
from pyro_mgp.sampling.sampler import Sampler


def table(n: int = 60, seed: int = 0) -> pd.DataFrame:
    g = np.random.default_rng(seed)
    x = g.normal(size=n)
    frame = pd.DataFrame({"x": x, "y": np.sin(2 * x) + 0.1 * g.normal(size=n), "z": g.normal(size=n)})
    return frame.mask(g.random(frame.shape) < 0.2)


def small(**changes: Any) -> MGPImputer:
    settings = {"n_inducing": 10, "n_neighbors": 0, "max_steps": 6, "inputs": "others", "progress": False}
    return MGPImputer(random_state=0, **(settings | changes))


@pytest.fixture(scope="module")
def fitted() -> MGPImputer:
    return small().fit(table())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("n", [50, 300])
def test_equal_rows_and_endless_lengthscales_are_lifted(n: int, dtype: torch.dtype) -> None:
    for covariance in (torch.ones(n, n, dtype=dtype), torch.eye(3, dtype=dtype).repeat(n // 3, n // 3)):
        factor = factorise(covariance[None])[0]
        lifted = factor @ factor.T
        assert (lifted - covariance).abs().max() <= 0.011


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_the_matrix_without_a_factor_is_named(bad: float) -> None:
    covariance = torch.eye(4).double().repeat(3, 1, 1)
    covariance[1, 2, 2] = bad
    with pytest.raises(NotPositiveDefiniteError, match="fewer inducing inputs") as caught:
        factorise(covariance)
    assert caught.value.which == 1


def test_the_column_of_a_link_without_a_factor_is_named(fitted: MGPImputer) -> None:
    imputer = small().fit(table())
    number = imputer.order_.index("y")
    with torch.no_grad():
        imputer.chain_.links[number].Xu_unconstrained.fill_(torch.nan)
    with pytest.raises(NotPositiveDefiniteError, match=r"^column 'y': the covariance matrix of 10 inducing"):
        imputer.impute(m=1)


def test_a_step_to_a_bound_not_finite_is_undone_with_one_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls, step = [], ConjugateStep.__call__

    def lost_once(self: ConjugateStep, *args: Any, **more: Any) -> Any:
        calls.append(1)
        loss, redrawn = step(self, *args, **more)
        return (loss * torch.nan if len(calls) == 4 else loss), redrawn

    monkeypatch.setattr(ConjugateStep, "__call__", lost_once)
    with pytest.warns(FitWarning, match=r"repeated, in the end with learning_rate=0\.0625 instead") as caught:
        imputer = small().fit(table())
    assert len(caught) == 1
    assert np.isfinite(imputer.history_.loss).all()
    assert len(imputer.history_.loss) == 6


@pytest.mark.parametrize("far", [1e9, -torch.inf, torch.nan])
def test_diverged_draws_are_an_error_that_names_the_column(
    far: float, fitted: MGPImputer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep, column = Chain.sweep, fitted.chain_.links[fitted.order_.index("z")].column

    calls = list[int]()

    def exploding(self: Chain, *args: Any) -> Any:
        filled, visited = sweep(self, *args)
        calls.append(1)
        if len(calls) == self.n_sweeps:
            filled[0, 0, column] = far
        return filled, visited

    monkeypatch.setattr(Chain, "sweep", exploding)
    with pytest.raises(FloatingPointError, match=r"column 'z': draws diverged, to .* standard deviations\."):
        fitted.impute(table(600), m=1)


def test_chains_of_functions_that_diverge_are_an_error_and_repeat_what_was_interrupted(
    fitted: MGPImputer, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, draw, calls = fitted.impute(m=30), FunctionPosterior.draw, []

    def exploding(self: FunctionPosterior, eps: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return draw(self, eps) * (1e12 if 10 <= len(calls) <= 12 else 1)

    imputer = small().fit(table())
    monkeypatch.setattr(FunctionPosterior, "draw", exploding)
    with pytest.raises(FloatingPointError, match=r"column '.': draws diverged, to .* standard deviations\."):
        imputer.impute(m=30)
    assert imputer.impute(m=30) == expected


def test_where_memory_is_full_draws_are_made_in_halves_and_stay_the_same(
    fitted: MGPImputer, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame, predictive, most = table(600), Sampler.predictive, []
    expected = fitted.impute(frame, m=3)

    def full(self: Sampler, rows: Any, *args: Any) -> Any:
        most.append(len(rows))
        if len(rows) > 2 * TILE:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return predictive(self, rows, *args)

    monkeypatch.setattr(Sampler, "predictive", full)
    assert fitted.impute(frame, m=3) == expected
    assert max(most) > 2 * TILE >= min(most)


@pytest.mark.parametrize("batch_size", [2000, 40])
def test_where_memory_is_full_minibatches_are_halved_and_training_goes_on(
    batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = ConjugateStep.__call__

    def full(self: ConjugateStep, filled: Any, *args: Any, **more: Any) -> Any:
        if len(filled) > 20:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return step(self, filled, *args, **more)

    monkeypatch.setattr(ConjugateStep, "__call__", full)
    with pytest.warns(FitWarning, match="do not fit into the GPU's memory: these had at most 15") as caught:
        imputer = small(batch_size=batch_size).fit(table())
    assert len(caught) == 1
    assert len(imputer.history_.loss) == 6
    assert not imputer.impute(m=1)[0].isna().any(axis=None)
