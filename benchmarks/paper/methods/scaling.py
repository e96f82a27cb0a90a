"""Standardised tables for systems that want them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.paper.imputed import GaussianMixture, Imputed, holes_of, imputed_by_mixtures


@dataclass(frozen=True)
class Scaling:
    """Mean and standard deviation of the observed training cells of each column."""

    mean: pd.Series[float]
    scale: pd.Series[float]

    @classmethod
    def fit(cls, train: pd.DataFrame) -> Scaling:
        """Learn from training rows; a column that does not vary keeps its unit."""
        scale = train.std(ddof=0)
        return cls(train.mean(), scale.where(scale > 0, 1.0))

    def standardise(self, table: pd.DataFrame) -> pd.DataFrame:
        """The table in standard deviations from the mean, its holes kept."""
        return (table - self.mean) / self.scale

    def restore(self, table: pd.DataFrame) -> pd.DataFrame:
        """Back to the columns' own units."""
        return table * self.scale + self.mean

    def mean_filled(self, table: pd.DataFrame) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """The standardised table `[n, D]` with zeros, the means, in its holes, and which cells it has."""
        values = self.standardise(table).to_numpy(np.float64)
        return np.nan_to_num(values), ~np.isnan(values)

    def imputed(
        self,
        moments: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]],
        test: pd.DataFrame,
        m: int,
        generator: np.random.Generator,
    ) -> Imputed:
        """What predictive moments of all test rows say of the missing cells.

        Args:
            moments: Per column, means and variances `[K, n]` of K mixture components, standardised units.
            test: The test rows, n of them.
            m: Draws to take.
            generator: What they are drawn with.
        """
        mixtures = {}
        for column, holes in holes_of(test).items():
            mean, variance = (part[:, holes] for part in moments[column])
            scale = float(self.scale[column])
            mixtures[column] = GaussianMixture(mean * scale + float(self.mean[column]), variance * scale**2)
        return imputed_by_mixtures(mixtures, m, generator)
