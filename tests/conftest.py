"""A clean state for every test, and `--device` to run the suite on an accelerator."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import settings

if TYPE_CHECKING:
    import torch

# A busy machine is no failure: timings belong in benchmarks.
settings.register_profile("without deadline", deadline=None)
settings.load_profile("without deadline")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="torch device that tests run on, for example cuda")


def pytest_configure(config: pytest.Config) -> None:
    """Let "auto" be the device that was asked for, for tables of any size, and tell processes of tests."""
    os.environ["PYRO_MGP_TEST_DEVICE"] = config.getoption("--device")
    if config.getoption("--device") == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # read when CUDA starts, by processes of tests as well
    else:
        from pyro_mgp._support import devices

        devices.ROWS_FOR_GPU = 0


@pytest.fixture
def device(request: pytest.FixtureRequest) -> torch.device:
    """The device asked for by `--device`; one that is not there fails, it does not skip."""
    import torch

    return torch.device(request.config.getoption("--device"))


@pytest.fixture
def warning_options(request: pytest.FixtureRequest) -> list[str]:
    """Options of Python that make warnings errors, but for those that pytest was told to ignore by `-W`."""
    filters = ["error", *(request.config.getoption("pythonwarnings") or [])]
    return [part for each in filters for part in ("-W", each)]


@pytest.fixture(autouse=True)
def clean_state() -> Iterator[None]:
    """Same seeds before every test; after it, nothing global may have changed.

    Torch and Pyro take seconds to import, so they are looked at only where a test module has loaded them.
    """
    torch, pyro = sys.modules.get("torch"), sys.modules.get("pyro")
    np.random.seed(0)  # noqa: NPY002 (the legacy generator is the global state that is meant)
    if torch is not None:
        torch.manual_seed(0)
        before = torch.get_default_dtype(), torch.get_num_threads()
    yield
    if torch is not None:
        after = torch.get_default_dtype(), torch.get_num_threads()
        assert after == before, f"torch's default dtype or thread count changed: {before} -> {after}"
    if pyro is not None:
        leaked = list(pyro.get_param_store())
        pyro.clear_param_store()  # so that one leak does not fail every test after it
        assert not leaked, f"left in Pyro's global parameter store: {leaked}"
