"""Probabilities of intervals are accurate in both tails."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from pyro_mgp._support.normal import log_between


@pytest.mark.parametrize("ends", [(-1.0, 0.5), (-math.inf, -30.0), (8.0, 8.5), (0.2, math.inf), (-9.0, -8.9)])
def test_intervals_have_the_probabilities_of_scipy(ends: tuple[float, float]) -> None:
    low, high = (-ends[1], -ends[0]) if ends[0] > 0 else ends
    lower, upper = stats.norm.logcdf([low, high])
    expected = upper + math.log1p(-math.exp(lower - upper))
    found = log_between(*(torch.tensor(end, dtype=torch.float64) for end in ends))
    assert float(found) == pytest.approx(expected, rel=1e-12)
