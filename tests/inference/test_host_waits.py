"""Training steps and iterations of chains for which the host does not wait for a GPU."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_mgp import ColumnSpec, MGPImputer
from pyro_mgp.inference import data_augmentation
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


SPECS = {
    "number": ColumnSpec(lower=-20.0),
    "count": ColumnSpec(kind="count"),
    "heavy": ColumnSpec(kind="heavy-tailed"),
}


def waits(
    kinds: list[str], inputs: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[Counter[str]], list[Counter[str]], list[Counter[str]]]:
    """Return waits of training steps, and of iterations in the fit and in chains that impute twice."""
    specs = {kind: spec for kind, spec in SPECS.items() if kind in kinds}
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
        imputer = MGPImputer(inputs=inputs, specs=specs, random_state=0, progress=False, **few)
        imputer.fit(table(kinds))
        of_fit = [*iterations]
        iterations.clear()
        imputer.impute(m=2 * imputer.model_.sampler().n_chains)
    return steps, of_fit, iterations


@pytest.mark.parametrize("inputs", ["others", "earlier"])
@pytest.mark.slow
def test_the_host_waits_for_a_gpu_in_no_step_and_in_no_iteration(
    inputs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = ["number", "values", "boolean", "category", "ordered", "count", "heavy"]
    steps, of_fit, iterations = waits(kinds, inputs, monkeypatch)
    assert len(steps) > 2 and steps[0].keys() <= {"lift_fresh"}  # nodes of quadrature are copied once
    assert not any(steps[1:])
    # Those of a joint density have some before the first draw, too.
    assert len(iterations) == (4 if inputs == "others" else 8)
    first, second = iterations[:-2], iterations[-2:]
    if inputs == "others":  # calibration on held-out cells makes one draw
        assert sum(sum(each.values()) for each in of_fit) <= 8
    else:
        assert of_fit and not any(of_fit[-1:])
    # Numbers of paths are copied once for each size of normal numbers, and once per draw for those of sweeps.
    assert not any(each.keys() - {"lift_fresh"} for each in second)
    assert sum((each["lift_fresh"] for each in second), 0) <= 1
    of_links = 9 * 8  # what links have in common with columns of others is listed once: six waits each
    assert sum(sum(each.values()) for each in first) <= (8 if inputs == "others" else 6 * of_links)


def test_a_joint_density_draws_the_same_without_the_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cells that need no move are evaluated, and left as they are."""
    # In single precision rounding depends on which cells are evaluated together.
    monkeypatch.setattr(data_augmentation, "_ROUNDING", 0.0)
    few: dict[str, Any] = {"max_steps": 2, "n_sweeps": 2, "n_inducing": 10}
    imputer = MGPImputer(inputs="earlier", random_state=0, progress=False, **few)
    frame = table(["boolean", "category", "ordered"])
    imputer.fit(frame).save(tmp_path / "imputer")
    expected = list(imputer.impute(frame, m=2))
    with as_on_a_gpu():
        drawn = list(MGPImputer.load(tmp_path / "imputer").impute(frame, m=2))
    for one, other in zip(drawn, expected, strict=True):
        pd.testing.assert_frame_equal(one, other, rtol=1e-9)


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
