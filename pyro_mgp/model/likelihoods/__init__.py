"""Observation models of columns, with expected log densities under q(f)."""

from typing import TypeAlias

from pyro_mgp.model.likelihoods.base import (
    LEAST_VARIANCE,
    MIN_NOISE,
    Drawn,
    Likelihood,
    LocalObservation,
    Observation,
    Quantity,
    Recoded,
    Scored,
    draw_truncated,
    mean_under_normal,
)
from pyro_mgp.model.likelihoods.count import CountScale, NegativeBinomial
from pyro_mgp.model.likelihoods.levels import Category, Ordinal
from pyro_mgp.model.likelihoods.numeric import (
    Contaminated,
    ExpectedNormal,
    ExpectedStudentT,
    Gaussian,
    HeavyTailed,
    Truncated,
    WithinLimits,
)
from pyro_mgp.model.likelihoods.two_part import TwoPart

Compound: TypeAlias = Category | TwoPart
"""A variable of several links, whose columns are drawn together."""

__all__ = [
    "LEAST_VARIANCE",
    "MIN_NOISE",
    "Category",
    "Compound",
    "Contaminated",
    "CountScale",
    "Drawn",
    "ExpectedNormal",
    "ExpectedStudentT",
    "Gaussian",
    "HeavyTailed",
    "Likelihood",
    "LocalObservation",
    "NegativeBinomial",
    "Observation",
    "Ordinal",
    "Quantity",
    "Recoded",
    "Scored",
    "Truncated",
    "TwoPart",
    "WithinLimits",
    "draw_truncated",
    "mean_under_normal",
]
