"""The benchmark measures what it says: the plain step is the same arithmetic, figures have the right form."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

from pyro_mgp import cli
from pyro_mgp.bench import speed
from pyro_mgp.bench.speed import Problem, Row
from pyro_mgp.local_parameters import local_parameters


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem.make(n_rows=50, n_links=4, n_inducing=10)


def test_the_plain_sparse_gp_has_the_moments_of_our_link(problem: Problem) -> None:
    models = speed.plain_links(problem)
    for model, link in zip(models, problem.chain.links, strict=True):
        inputs = problem.filled[:, link.inputs]
        with torch.no_grad(), local_parameters():
            model.set_mode("guide")
            mean, variance = model(inputs)
            ours = link().moments(inputs[None])
        torch.testing.assert_close(ours.mean[0], mean, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(ours.variance[0], variance, rtol=1e-4, atol=1e-4)


def test_every_task_of_a_step_runs(problem: Problem) -> None:
    tasks = (speed.our_step(problem), speed.plain_step(problem), speed.our_walk(problem))
    assert all(seconds > 0 for seconds in speed.in_turn(*tasks, repeats=1))
    assert speed.multiply_rate(repeats=1) > 1e8
    assert speed.step_operations(problem) > 0
    assert speed.walk_operations(problem) > 0


def test_tasks_run_in_turn_after_a_warm_up() -> None:
    order: list[str] = []
    speed.in_turn(lambda: order.append("a"), lambda: order.append("b"), repeats=2)
    assert "".join(order) == "ababab"


def test_the_command_shows_and_writes_the_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Row("import, ours", 1.25, "×", "≤ 1.3", "2.5 s, 2.0 s")
    monkeypatch.setitem(speed.MEASUREMENTS, "import", lambda: [row])
    assert cli.main(["bench", "speed", "--only", "import", "-o", str(tmp_path / "speed.csv")]) == 0
    assert "import, ours" in capsys.readouterr().out
    written = pd.read_csv(tmp_path / "speed.csv")
    assert written.loc[0, ["what", "measured", "unit"]].tolist() == ["import, ours", 1.25, "×"]


def test_the_command_offers_every_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["bench", "speed", "--help"])
    said = capsys.readouterr().out
    assert all(name in said for name in speed.MEASUREMENTS)


def test_without_a_choice_everything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []
    for name in speed.MEASUREMENTS:
        monkeypatch.setitem(speed.MEASUREMENTS, name, lambda name=name: measured.append(name) or [])
    assert cli.main(["bench", "speed"]) == 0
    assert measured == ["step", "latency", "import", "sizes"]
