"""Settings: what "auto" and None become, and why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pyro.contrib.gp import kernels

from pyro_mgp import Engine, MGPImputer
from pyro_mgp._support import devices
from pyro_mgp.settings import (
    PAPER,
    choose_device,
    choose_kernel,
    choose_max_steps,
    choose_n_inducing,
    choose_seed,
    with_engine,
)


@pytest.mark.parametrize(
    ("n_rows", "is_sequential", "name"),
    [(300, False, "small_linear_matern32"), (301, False, "linear+matern32"), (50, True, "quadratic")],
)
def test_the_kernel_follows_the_table(n_rows: int, is_sequential: bool, name: str) -> None:
    choice = choose_kernel(MGPImputer(), n_rows, is_sequential)
    assert name in getattr(choice.value, "__name__", str(choice.value))
    assert choose_kernel(MGPImputer(kernel="matern32"), n_rows, is_sequential).value == "matern32"


@pytest.mark.parametrize(
    ("asked", "n_rows", "value"), [(None, 500, 100), (None, 40, 40), (7, 40, 7), (90, 40, 40)]
)
def test_there_are_no_more_inducing_inputs_than_rows(asked: int | None, n_rows: int, value: int) -> None:
    assert choose_n_inducing(MGPImputer(n_inducing=asked), n_rows).value == value


@pytest.mark.parametrize(
    ("settings", "n_rows", "all_local", "value"),
    [
        ({}, 400, True, 15),
        ({}, 300, True, 20),
        ({}, 400, False, 20),
        ({"n_neighbors": 0}, 400, True, 20),
        ({"max_steps": 3}, 400, True, 3),
    ],
)
def test_local_gps_save_training_steps(
    settings: dict[str, Any], n_rows: int, all_local: bool, value: int
) -> None:
    imputer = MGPImputer(**settings)
    kinds = {"is_sequential": False, "shapes": False}
    assert choose_max_steps(imputer, Engine(), n_rows, all_local=all_local, **kinds).value == value
    latent = Engine(propagate="latent")
    assert choose_max_steps(imputer, latent, n_rows, all_local=True, **kinds).value in (3, 20)


def test_seeds_say_where_they_come_from() -> None:
    assert choose_seed(MGPImputer(random_state=5)).value == 5
    assert "generator" in choose_seed(MGPImputer(random_state=np.random.default_rng(0))).reason
    assert "operating system" in choose_seed(MGPImputer()).reason


@pytest.mark.parametrize(
    ("device", "n_rows", "has_gpu", "expected"),
    [
        ("cpu", 10_000, True, ("cpu", "as given")),
        ("auto", 4999, True, ("cpu", "fewer than 5,000 rows")),
        ("auto", 5000, False, ("cpu", "no GPU was found")),
    ],
)
def test_a_gpu_is_for_tables_of_many_rows(
    device: str, n_rows: int, has_gpu: bool, expected: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "ROWS_FOR_GPU", 5000)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    choice = choose_device(MGPImputer(device=device), n_rows)
    assert (choice.value, choice.reason) == expected
    # Without a GPU, torch refuses the one that is chosen.
    if has_gpu and not torch.cuda.device_count():
        with pytest.raises(ValueError, match="got 'cuda'"):
            choose_device(MGPImputer(), 5000)


def test_the_papers_settings_are_parameters_or_switches() -> None:
    parameters = MGPImputer().get_params()
    assert set(PAPER) <= set(parameters) | set(vars(Engine()))
    paper = MGPImputer.paper(n_paths=3, max_steps=7)
    assert (paper.engine.n_paths, paper.max_steps, paper.engine.propagate) == (3, 7, "latent")
    assert with_engine({"max_steps": 2}) == {"max_steps": 2}


def test_a_fit_shows_its_settings_with_reasons() -> None:
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 3)), columns=list("abc"))
    frame.loc[::4, "a"] = np.nan
    imputer = MGPImputer(kernel=kernels.RBF, random_state=0, max_steps=2, progress=False).fit(frame)
    table = imputer.settings_.to_frame()
    assert table.loc["kernel"].tolist() == ["RBF", "as given"]
    assert table.loc["n_inducing"].tolist() == [50, "the default"]
    assert table.loc["inputs"].tolist() == ["earlier", "a joint density of the columns"]
    assert str(imputer.settings_).count("\n") == len(table) - 1
    complete = MGPImputer(random_state=0, progress=False).fit(frame.dropna())
    assert complete.settings_.to_frame().loc["inputs"].tolist() == ["others", "no column has missing cells"]


def test_an_engine_of_another_type_is_refused() -> None:
    frame = pd.DataFrame({"a": [1.0, None, 3.0], "b": [1.0, 2.0, 4.0]})
    with pytest.raises(TypeError, match=r"engine must be a pyro_mgp\.Engine or None, got 'fast'"):
        MGPImputer(engine="fast").fit(frame)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"warp": "no"}, "warp must be True or False, got 'no'"),
        ({"engine": Engine(refresh_fill="no")}, "refresh_fill must be True or False, got 'no'"),  # type: ignore[arg-type]
        ({"order": "ab"}, "order must be a list of column labels, got 'ab'"),
        ({"order": 3}, "order must be a list of column labels, got 3"),
        ({"specs": "a"}, r"specs must be by label, such as {'age': ColumnSpec\(lower=0\)}, got str"),
        (
            {"survival": (["a"], "b")},
            r"survival must be the labels of times and events, .*got \(\['a'\], 'b'\)",
        ),
    ],
)
def test_parameters_of_another_type_are_refused(settings: dict[str, Any], message: str) -> None:
    frame = pd.DataFrame({"a": [1.0, None, 3.0], "b": [1.0, 2.0, 4.0]})
    with pytest.raises(TypeError, match=message):
        MGPImputer(**settings).fit(frame)


@pytest.mark.parametrize(
    ("column", "steps"),
    [
        ([1.5, 0.2, -0.7, 0.1], 20),
        (pd.array([True, False, False, True], dtype="boolean"), 20),
        (["u", "v", "w", "u"], 20),
        (pd.Categorical(["u", "v", "w", "u"], ordered=True), 40),
    ],
)
def test_links_in_an_order_take_more_steps_if_likelihoods_have_more_than_one_threshold(column, steps) -> None:
    frame = pd.DataFrame({"x": [0.1, 2.0, 1.0, -0.4] * 8, "y": pd.Series(column).repeat(8).array})
    frame["y"] = frame["y"].mask(frame.index < 4)
    imputer = MGPImputer(inputs="earlier", random_state=0, progress=False, n_sweeps=1).fit(frame)
    assert imputer.settings_.max_steps.value == steps
