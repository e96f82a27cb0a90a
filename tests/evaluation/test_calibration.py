"""Calibration error of the calibration example; `tests/examples` runs its designs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def calibration() -> ModuleType:
    spec = importlib.util.spec_from_file_location("calibration", ROOT / "examples" / "calibration.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_calibration_error_is_the_distance_of_probabilities_from_frequencies(calibration: ModuleType) -> None:
    probabilities = np.repeat([0.25, 0.75], 8)
    exact = np.arange(16) % 8 < np.repeat([2, 6], 8)
    assert calibration.calibration_error(probabilities, exact) == pytest.approx(0)
    assert calibration.calibration_error(probabilities, ~exact) == pytest.approx(0.5)
