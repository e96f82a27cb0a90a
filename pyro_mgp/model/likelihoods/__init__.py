"""Observation models of columns, one module for each, with expected log densities under q(f)."""

from pyro_mgp.model.likelihoods.base import (
    MIN_NOISE,
    Bounded,
    Likelihood,
    Observation,
    Quantity,
    Scored,
    mean_under_normal,
)
from pyro_mgp.model.likelihoods.category import Category
from pyro_mgp.model.likelihoods.count import CountScale, ExpectedNegativeBinomial, NegativeBinomial
from pyro_mgp.model.likelihoods.gaussian import ExpectedNormal, Gaussian, Truncated
from pyro_mgp.model.likelihoods.ordinal import ExpectedOrdinal, Ordinal, log_between
from pyro_mgp.model.likelihoods.student import ExpectedStudentT, HeavyTailed

__all__ = [
    "MIN_NOISE",
    "Bounded",
    "Category",
    "CountScale",
    "ExpectedNegativeBinomial",
    "ExpectedNormal",
    "ExpectedOrdinal",
    "ExpectedStudentT",
    "Gaussian",
    "HeavyTailed",
    "Likelihood",
    "NegativeBinomial",
    "Observation",
    "Ordinal",
    "Quantity",
    "Scored",
    "Truncated",
    "log_between",
    "mean_under_normal",
]
