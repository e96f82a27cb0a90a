"""Benchmark of speed: the plain step does the same arithmetic, and figures have the right form."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pandas as pd
import pytest
import torch

from benchmarks.figures import Row, in_turn
from benchmarks.generated import numbers
from benchmarks.speed import costs, measurements, step, time_to_accuracy
from benchmarks.speed.__main__ import main
from benchmarks.speed.step import Problem
from pyro_mgp.model.local_parameters import local_parameters


@pytest.fixture
def problem(device: torch.device) -> Problem:
    return Problem.make(n_rows=50, n_links=4, n_inducing=10, device=str(device))


def test_the_plain_sparse_gp_has_the_moments_of_our_link(problem: Problem) -> None:
    models = step.plain_links(problem)
    for model, link in zip(models, problem.chain.links, strict=True):
        inputs = problem.filled[:, link.inputs]
        with torch.no_grad(), local_parameters():
            model.set_mode("guide")
            mean, variance = model(inputs)
            ours = link().moments(problem.filled[None])
        torch.testing.assert_close(ours.mean[0], mean, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(ours.variance[0], variance, rtol=1e-4, atol=1e-4)


def test_every_task_of_a_step_runs(problem: Problem) -> None:
    tasks = step.our_step(problem), step.plain_step(problem), step.our_sweep(problem), step.multiply(1)
    assert all(seconds > 0 for seconds in in_turn(*tasks, repeats=1))
    assert step.step_operations(problem) > step.sweep_operations(problem) > 0
    assert step.plain_step_operations(problem) > step.plain_sweep_operations(problem) > 0


def test_operations_are_counted_by_hand() -> None:
    """Two inputs, three inducing inputs, five rows: 2 · 3 · 2 · 5 for a kernel product, and so on."""
    problem = Problem.make(n_rows=5, n_links=3, n_inducing=3)
    per_link = 2 * (2 * 3 * 2 * 5) + 2 * 3 * 5 + 2 * 3 * 3 * 5
    assert step.sweep_operations(problem) == 3 * per_link
    textbook = 2 * (2 * 3 * 2 * 5) + 3 * 3 * 5 + 2 * 3 * 3 * 5
    assert step.plain_sweep_operations(problem) == 3 * textbook
    assert step.plain_step_operations(problem) == 9 * textbook
    # Of a symmetric matrix of 16 x 16 a block of 8 x 8 is the mirror of another.
    problem = Problem.make(n_rows=20, n_links=3, n_inducing=16)
    assert step.sweep_operations(problem) == 3 * (2 * (2 * 16 * 2 * 20) + 2 * 16 * 20 + 2 * (256 - 64) * 20)


def test_tasks_run_in_turn_after_a_warm_up() -> None:
    order: list[str] = []
    in_turn(lambda: order.append("a"), lambda: order.append("b"), repeats=2)
    assert "".join(order) == "ababab"


def test_memory_held_and_its_peak() -> None:
    """In a process of its own: in this one, threads of other tests may release memory meanwhile."""
    code = """
        import torch
        from benchmarks.figures import peak_gigabytes, resident_gigabytes
        before = resident_gigabytes()
        block = torch.ones(2**24, dtype=torch.float64)  # an eighth of a GB
        held = resident_gigabytes()
        del block
        print(held - before, peak_gigabytes() - held, held - resident_gigabytes())
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    grown, beyond, released = map(float, done.stdout.split())
    assert 0.1 < grown < 0.2 and beyond >= -0.01 and released > 0.1


def test_the_command_shows_and_writes_the_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Row("import, ours", 1.25, "×", "≤ 1.3", "2.5 s, 2.0 s")
    monkeypatch.setitem(measurements.MEASUREMENTS, "import", lambda _: [row])
    assert main(["--only", "import", "-o", str(tmp_path / "speed.csv")]) == 0
    assert "import, ours" in capsys.readouterr().out
    written = pd.read_csv(tmp_path / "speed.csv")
    assert written.loc[0, ["what", "measured", "unit"]].tolist() == ["import, ours", 1.25, "×"]


def test_the_command_offers_every_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    output = capsys.readouterr().out
    assert all(name in output for name in measurements.MEASUREMENTS)


def test_without_a_choice_everything_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measured: list[str] = []
    for name in measurements.MEASUREMENTS:
        monkeypatch.setitem(measurements.MEASUREMENTS, name, lambda _, name=name: measured.append(name) or [])
    for name in measurements.ON_DATA:
        monkeypatch.setitem(measurements.ON_DATA, name, lambda _, name=name: measured.append(name) or [])
    assert main(["--data-dir", str(tmp_path)]) == 0
    assert measured == ["step", "latency", "import", "sizes", "costs", "training", "forests"]


@pytest.mark.slow
def test_costs_of_stages_are_shares_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "TABLES", {"slade": costs.TABLES["slade"]})
    fit, imputations = costs.measure_costs()
    assert (fit.what, imputations.what) == ("slade, fit", "slade, 20 imputations")
    # The likelihood of later links, the third stage of imputations, is part of the second.
    for row, n_stages, n_apart in ((fit, 4, 4), (imputations, 3, 2)):
        shares = [float(stage.rsplit(" ", 1)[1]) for stage in row.detail.split("; ")]
        assert len(shares) == n_stages
        assert 0.5 < sum(shares[:n_apart]) <= 1.01
        assert min(shares) > 0


def test_a_stage_that_does_not_run_is_an_error() -> None:
    with pytest.raises(LookupError, match="no_stage of nowhere"):
        costs.profiled("nothing", lambda: None, {"a stage": ("nowhere.py", "no_stage")})


def test_a_measurement_without_its_tables_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PYRO_MGP_DATA", raising=False)
    assert main(["--only", "forests"]) == 2
    assert "need parkinson.csv and protein.csv.gz" in capsys.readouterr().err


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A folder with small tables under the names of the public ones."""
    numbers(120, 4).interpolate(limit_direction="both").to_csv(tmp_path / "parkinson.csv", index=False)
    protein = numbers(150, 4, seed=1).interpolate(limit_direction="both")
    protein.assign(constant=1.0).to_csv(tmp_path / "protein.csv.gz", header=False, index=False)
    return tmp_path


@pytest.mark.slow
def test_imputers_are_compared_on_the_tables_of_a_folder(tables: Path) -> None:
    rows = time_to_accuracy.against_trees("Parkinson 10 %", "parkinson", tables, 0.1, (0,), "≤ 0.25")
    assert [row.what for row in rows] == [
        "Parkinson 10 %, time ÷ extra trees",
        "Parkinson 10 %, RMSE ÷ extra trees",
    ]
    assert all(0 < row.measured < 100 for row in rows)


def test_training_is_compared_by_the_score_that_adam_ends_with(tables: Path) -> None:
    rows = time_to_accuracy.measure_training(tables, steps=30)
    assert [row.unit for row in rows] == ["×", "×"]
    assert rows[0].measured >= 1  # thirty steps of natural gradients are at least as good as thirty of Adam
