"""Training steps and iterations of chains for which the host does not wait for a GPU."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_mgp import MGPImputer
from pyro_mgp.inference.closed_form import ConjugateStep
from pyro_mgp.inference.function_posterior import FunctionPosterior
from pyro_mgp.inference.gibbs_chains import GibbsChains
from tests.host_waits import as_on_a_gpu


def table(kinds: list[str], n_rows: int = 100) -> pd.DataFrame:
    """Return three numeric columns, and one of each kind that depends on them, all with missing cells."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(n_rows, 3))
    x[:, 2] += np.sin(2 * x[:, 1])
    own: dict[str, Any] = {
        "number": x[:, 0] + generator.normal(size=n_rows),
        "values": np.rint(1.5 * x[:, 0]),
        "boolean": pd.array(x[:, 0] > 0, dtype="boolean"),
        "category": pd.Categorical(np.where(x[:, 0] > 0.5, "a", np.where(x[:, 1] > 0, "b", "c"))),
        "ordered": pd.Categorical(np.digitize(x[:, 0], [-0.5, 0.5]).astype(str), ordered=True),
        "count": pd.array(generator.poisson(np.exp(0.5 * x[:, 0] + 3)), dtype="Int64"),
        "heavy": x[:, 0] + 0.1 * generator.standard_t(1.5, size=n_rows),
    }
    frame = pd.DataFrame(x, columns=list("xyz")).assign(**{kind: own[kind] for kind in kinds})
    for label in frame:
        frame[label] = frame[label].mask(generator.random(n_rows) < 0.2)
    return frame.dropna(how="all")


def waits(kinds: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[list[Counter[str]], list[Counter[str]]]:
    """Return the waits of each training step, and of each iteration of the chains that impute twice."""
    few: dict[str, Any] = {"max_steps": 2, "n_sweeps": 2, "n_inducing": 10, "n_neighbors": 2}
    with as_on_a_gpu() as counter:

        def counted(owner: type, name: str) -> list[Counter[str]]:
            found, call = list[Counter[str]](), getattr(owner, name)

            def method(*args: Any, **kwargs: Any) -> Any:
                with counter() as counts:
                    result = call(*args, **kwargs)
                found.append(counts.counts)
                return result

            monkeypatch.setattr(owner, name, method)
            return found

        steps, iterations = counted(ConjugateStep, "__call__"), counted(GibbsChains, "_iterate")
        imputer = MGPImputer(inputs="others", random_state=0, progress=False, **few).fit(table(kinds))
        iterations.clear()
        imputer.impute(m=2 * imputer.model_.sampler().n_chains)
    return steps, iterations


@pytest.mark.parametrize(
    ("kinds", "by_scipy"),
    [(["number", "values", "boolean", "category", "ordered"], 0), (["count", "heavy"], 2)],
    ids=["none", "scipy"],
)
def test_the_host_waits_for_a_gpu_in_no_step_and_in_no_iteration(
    kinds: list[str], by_scipy: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links that see all others; counts and heavy tails are drawn by SciPy, and copied there and back."""
    steps, iterations = waits(kinds, monkeypatch)
    assert len(steps) > 2 and steps[0].keys() <= {"lift_fresh"}  # nodes of quadrature are copied once
    assert not any(steps[1:])
    assert len(iterations) == 4
    # Numbers of paths are copied once for each size of normal numbers, and once per draw for those of sweeps.
    first, second = iterations[:2], iterations[2:]
    for of_draw, most in ((first, 8), (second, 1)):
        copies = [each.pop("lift_fresh", 0) for each in of_draw]
        assert sum(copies) <= most
        assert all(each <= Counter(cpu=2 * by_scipy, numpy=2 * by_scipy) for each in of_draw)


def test_a_function_that_is_not_finite_is_found_although_levels_are(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = table(["boolean"])
    frame[list("xyz")] = frame[list("xyz")].fillna(0.0)
    few: dict[str, Any] = {"max_steps": 1, "n_sweeps": 2, "n_inducing": 10, "n_neighbors": 0}
    imputer = MGPImputer(inputs="others", random_state=0, progress=False, **few).fit(frame)
    natural = FunctionPosterior.natural

    def diverged(prior: torch.Tensor, gram: torch.Tensor, shift: torch.Tensor) -> FunctionPosterior:
        return natural(prior, -1e6 * gram, shift)

    monkeypatch.setattr(FunctionPosterior, "natural", diverged)
    with pytest.raises(torch.linalg.LinAlgError):
        imputer.impute(m=1)
    with as_on_a_gpu(), pytest.raises(FloatingPointError, match="column 'boolean': the function drawn"):
        imputer.impute(m=1)


def test_waits_are_counted() -> None:
    mask = torch.tensor([True, False])
    with as_on_a_gpu() as counter, counter() as waits:
        assert mask.is_cuda
        _ = mask.any().item(), mask[mask], mask.nonzero(), mask.tolist(), mask.cpu(), mask[[1, 0]]
        torch.linalg.cholesky(torch.eye(2))
    assert waits.counts == {
        "_local_scalar_dense": 1, "index": 1, "nonzero": 1, "tolist": 1, "cpu": 1, "lift_fresh": 1,
        "_linalg_check_errors": 1,
    }  # fmt: skip
