"""Observation models: what a codec tells the model about the distribution of its cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class GaussianObservation:
    """Gaussian noise around the latent function."""


@dataclass(frozen=True)
class StudentObservation:
    """Student's t noise around the latent function, for cells with outliers."""


@dataclass(frozen=True)
class CountObservation:
    """Negative binomial counts with a log link."""

    mean: float
    """Mean of log(1 + count) over the observed cells."""
    scale: float
    """Standard deviation of log(1 + count)."""
    average: float
    """Mean count."""


@dataclass(frozen=True)
class OrdinalObservation:
    """Ordered values observed through a cumulative probit."""

    values: Numbers
    """Standardised values in ascending order, `[K]`."""
    shares: Numbers
    """Relative frequency of each value, `[K]`."""


ObservationModel: TypeAlias = GaussianObservation | StudentObservation | CountObservation | OrdinalObservation
