"""Two processes, each with its share of the rows, against one process that does all the work."""

from __future__ import annotations

import os
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks.speed.step import Problem
from pyro_mgp import Engine, MGPImputer
from pyro_mgp._support import processes as processes_module
from pyro_mgp._support.processes import ALONE, Workers, current, data_parallel
from pyro_mgp._support.signals import Stopped
from pyro_mgp.inference.closed_form import ConjugateStep
from pyro_mgp.inference.svi import SviStep
from pyro_mgp.model.kernels import linear_matern32, matern32
from pyro_mgp.storage.checkpoint import Checkpoint
from tests.inference.test_closed_form import BUILDS, ROWS
from tests.model.test_chain import make_chain

SIZE = 2
SETTINGS: dict[str, Any] = {"random_state": 3, "max_steps": 7, "n_inducing": 20, "progress": False}
SETTINGS["device"] = os.environ.get("PYRO_MGP_TEST_DEVICE", "cpu")


def conjugate_step(build: Callable[..., Any], kernel: Any, rows: Any, workers: Workers) -> dict[str, Any]:
    """What a step in closed form gives and leaves."""
    torch.manual_seed(0)
    chain, table, observed, _ = build(kernel)
    here = slice(None) if rows is None else rows
    step = ConjugateStep(chain, workers)
    loss, redrawn = step(table[here], observed[here], rows, 0.7)
    gradients = {name: p.grad for name, p in chain.named_parameters() if p.grad is not None}
    return {"loss": loss, "redrawn": redrawn, **vars(step.posterior), **gradients}


def real_step(n_inducing: int, precision: str, workers: Workers) -> dict[str, Any]:
    """The same of a step as large as in a fit, at whose jitter rounding errors grow a million times."""
    torch.manual_seed(0)
    problem = Problem.make(n_rows=500, n_links=6, n_inducing=n_inducing)
    problem.chain.precision = precision
    for link in problem.chain.links:
        link.jitter = 1e-6
    step = ConjugateStep(problem.chain, workers)
    for _ in range(3):
        problem.chain.zero_grad()
        loss, redrawn = step(problem.filled, problem.observed, None, 1.0)
    gradients = {name: p.grad for name, p in problem.chain.named_parameters() if p.grad is not None}
    return {"loss": loss, "redrawn": redrawn, **vars(step.posterior), **gradients}


def svi_step(rows: Any, workers: Workers) -> dict[str, Any]:
    """The same of a step by SVI, with three paths and gradients through the draws."""
    torch.manual_seed(0)
    chain, table, observed = make_chain(matern32, n_paths=3)
    here = slice(None) if rows is None else rows
    gradients = {}

    def record(parameters: Any) -> None:
        gradients.update((name, p.grad.clone()) for name, p in chain.named_parameters() if p.grad is not None)

    loss, redrawn = SviStep(chain, None, record, workers)(table[here], observed[here], rows)
    moved = {f"moved {name}": p.detach() for name, p in chain.named_parameters()}
    return {"loss": loss, "redrawn": redrawn, **moved, **gradients}


STEPS: dict[str, Callable[[Workers], dict[str, Any]]] = {
    f"{build.__name__}-{kernel.__name__}-{'all' if rows is None else 'batch'}": (
        lambda workers, build=build, kernel=kernel, rows=rows: conjugate_step(build, kernel, rows, workers)
    )
    for build, kernel in [(BUILDS[0], matern32), *((build, linear_matern32) for build in BUILDS)]
    for rows in (None, ROWS)
} | {
    f"real-{size}-{precision}": (
        lambda workers, size=size, precision=precision: real_step(size, precision, workers)
    )
    for size, precision in ((20, "double"), (100, "double"), (57, "mixed"))
}
STEPS |= {
    f"SVI-{'all' if rows is None else 'batch'}": (lambda workers, rows=rows: svi_step(rows, workers))
    for rows in (None, ROWS)
}


def table(seed: int = 0) -> pd.DataFrame:
    """Numbers, counts, booleans and a category, a tenth of the cells missing."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(150, 3)) @ generator.normal(size=(3, 5))
    x += 0.3 * generator.normal(size=x.shape)
    frame = pd.DataFrame(x, columns=list("abcde"))
    frame["b"] = generator.poisson(np.exp(frame["b"].clip(upper=2)))
    frame["c"] = frame["c"] > 0
    frame["d"] = np.array(["low", "mid", "high"])[np.digitize(frame["d"], [-1, 1])]
    frame["f"] = 1.0  # warned of
    holes = generator.random(frame.shape) < 0.1
    return frame.astype({"b": "Int64", "c": "boolean"}).mask(holes)


FITS: dict[str, dict[str, Any]] = {
    "seen whole": {"batch_size": 1000, "n_neighbors": 4, "inputs": "others"},
    "minibatches": {"batch_size": 50, "n_neighbors": 0, "inputs": "others"},
    "bound sampled": {
        "batch_size": 50,
        "n_neighbors": 0,
        "inputs": "others",
        "engine": Engine(backpropagate=True, n_paths=2),
    },
    "few rows, earlier links": {"inputs": "earlier"},
}


def fitted(name: str) -> dict[str, Any]:
    """What a fit learns, and draws of it."""
    frame = table()[["a", "e"]] if name.startswith("few") else table()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        imputer = MGPImputer(**SETTINGS, **FITS[name]).fit(frame)
        draws = imputer.impute(m=2)
    state = {f"chain {key}": value.cpu() for key, value in imputer.chain_.state_dict().items()}
    # Sums in another order differ in their last digits; what is drawn shall not show it.
    drawn = {
        f"draw {label}": pd.factorize(values.ravel())[0] if values.dtype == object else values
        for label, values in draws.values.items()
    }
    return {"loss": imputer.history_.loss, "held out": imputer.history_.validation, **state, **drawn}


def interrupted(workers: Workers, folder: Path) -> dict[str, Any]:
    """A fit of which one process is asked to stop, and what goes on from there."""
    settings, path = SETTINGS | FITS["minibatches"], folder / "checkpoint"
    kept = Checkpoint(path)
    kept.interruption.asked = None if workers.is_first else signal.SIGTERM
    frame = table().drop(columns="f")
    try:
        MGPImputer(**settings).fit(frame, checkpoint=kept)
    except Stopped as stop:
        status = stop.status
    own = path if workers.is_first else folder / "elsewhere"
    elsewhere = complaint(lambda: MGPImputer(**settings).fit(frame, checkpoint=own))
    resumed = MGPImputer(**settings).fit(frame, checkpoint=path)
    whole = MGPImputer(**settings).fit(frame)
    losses = [imputer.history_.loss for imputer in (resumed, whole)]
    workers.wait()
    return {"status": status, "elsewhere": elsewhere, "losses": losses, "left": path.exists()}


def complaint(of: Callable[[], Any]) -> str:
    """The sentence of an error."""
    try:
        of()
    except (ValueError, TypeError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def work(rank: int, port: int, folder: Path) -> None:
    """What each of the processes does."""
    torch.set_num_threads(1)
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": rank, "WORLD_SIZE": SIZE}
    os.environ |= {name: str(value) for name, value in where.items()}
    sys.stderr.isatty = lambda: True  # type: ignore[method-assign]
    with data_parallel() as workers, warnings.catch_warnings(record=True) as caught:
        seen = {
            "workers": (workers.rank, workers.size, current() is workers),
            "steps": {name: step(workers) for name, step in STEPS.items()},
            "fits": {name: fitted(name) for name in FITS},
            "interrupted": interrupted(workers, folder),
            "other table": complaint(lambda: MGPImputer(**SETTINGS).fit(table(rank))),
            "too few": complaint(lambda: workers.share(1)),
            "seed": MGPImputer(max_steps=1, n_inducing=5, n_neighbors=0, progress=False)
            .fit(table()[["a", "e"]])
            .seed_,
        }
        seen["warned"] = len(caught)
    seen["after"] = (current() is ALONE, torch.distributed.is_initialized())
    torch.save(seen, folder / f"{rank}.pt")


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, Any]]]:
    """What two processes have seen."""
    folder = tmp_path_factory.mktemp("processes")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(work, (port, folder), nprocs=SIZE)
    yield [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(SIZE)]


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.slow
def test_loss_gradients_draws_and_q_of_a_step_are_those_of_one_process(
    name: str, processes: list[dict[str, Any]]
) -> None:
    expected = STEPS[name](ALONE)
    assert {key for key, value in expected.items() if "kern" in key and value.abs().max() > 1e-3}
    for seen in processes:
        # Sums over rows are added up in another order; a large step multiplies rounding errors.
        tolerance = 1e-3 if "mixed" in name else 1e-6 if "real" in name else 1e-8
        tolerance = 1e-10 if "SVI" in name else tolerance
        torch.testing.assert_close(seen["steps"][name], expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", FITS)
def test_a_whole_fit_is_that_of_one_process(name: str, processes: list[dict[str, Any]]) -> None:
    expected = fitted(name)
    assert len(expected["loss"]) == 7
    for seen in processes:
        assert seen["fits"][name].keys() == expected.keys()
        for key, value in expected.items():
            # Sums over rows are added up in another order, and seven steps make much of that.
            np.testing.assert_allclose(seen["fits"][name][key], value, rtol=1e-6, atol=1e-6, err_msg=key)


def test_all_processes_end_with_the_same_bits(processes: list[dict[str, Any]]) -> None:
    first, second = processes
    assert first["seed"] == second["seed"]
    for name, fit in first["fits"].items():
        for key, value in fit.items():
            np.testing.assert_array_equal(second["fits"][name][key], value, err_msg=f"{name}, {key}")


def test_all_stop_when_one_is_asked_to_and_go_on_from_what_the_first_has_kept(
    processes: list[dict[str, Any]],
) -> None:
    for seen in processes:
        assert seen["interrupted"]["status"] == 143
        resumed, whole = seen["interrupted"]["losses"]
        assert resumed == whole and len(whole) == 7
        assert not seen["interrupted"]["left"]
        assert seen["interrupted"]["elsewhere"].startswith("OSError: not all of 2 processes find")


def test_a_process_that_was_given_another_table_is_told(processes: list[dict[str, Any]]) -> None:
    for seen in processes:
        assert seen["other table"].startswith("ValueError: 1 of 2 processes hold another table than rank 0")


def test_what_cannot_be_shared_is_refused_with_a_reason(processes: list[dict[str, Any]]) -> None:
    for seen in processes:
        assert seen["too few"].startswith("ValueError: 1 rows cannot be shared by 2 processes")


def test_the_context_ends_where_it_began(processes: list[dict[str, Any]]) -> None:
    assert [seen["workers"] for seen in processes] == [(0, 2, True), (1, 2, True)]
    assert [seen["after"] for seen in processes] == [(True, False)] * 2


def test_only_the_first_process_warns(processes: list[dict[str, Any]]) -> None:
    assert processes[0]["warned"] > 0
    assert processes[1]["warned"] == 0


@pytest.mark.parametrize(
    ("environment", "n_gpus", "expected"),
    [
        ({"WORLD_SIZE": "2"}, 0, "gloo"),
        ({"WORLD_SIZE": "2"}, 1, "gloo"),
        ({"WORLD_SIZE": "2"}, 2, "cpu:gloo,cuda:nccl"),
        ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, 4, "cpu:gloo,cuda:nccl"),
        ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, 2, "gloo"),
    ],
)
def test_processes_that_share_a_gpu_talk_by_gloo(
    environment: dict[str, str], n_gpus: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_gpus)
    assert processes_module._backend() == expected


def test_outside_of_torchrun_the_way_in_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ValueError, match=r"torchrun --nproc-per-node 2 script\.py"), data_parallel():
        pass
    assert current() is ALONE


def test_shares_are_all_rows_once_and_nearly_equal() -> None:
    for n_rows in (3, 7, 30):
        shares = [torch.arange(n_rows)[Workers(rank, 3).share(n_rows)] for rank in range(3)]
        assert sorted(torch.cat(shares).tolist()) == list(range(n_rows))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
