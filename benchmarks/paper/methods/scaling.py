"""Standardisation of tables by the observed training cells."""

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
    """Means by column."""
    scale: pd.Series[float]
    """Standard deviations by column; 1 for a constant column."""

    @classmethod
    def fit(cls, train: pd.DataFrame) -> Scaling:
        """Compute means and standard deviations of the training rows."""
        scale = train.std(ddof=0)
        return cls(train.mean(), scale.where(scale > 0, 1.0))

    def standardise(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the table in standard deviations from the mean; missing cells stay missing."""
        return (table - self.mean) / self.scale

    def restore(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return a standardised table in the columns' own units."""
        return table * self.scale + self.mean

    def mean_filled(self, table: pd.DataFrame) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return the standardised table `[n, D]`, zero in missing cells, and the mask of observed cells."""
        values = self.standardise(table).to_numpy(np.float64)
        return np.nan_to_num(values), ~np.isnan(values)

    def imputed(
        self,
        moments: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]],
        test: pd.DataFrame,
        m: int,
        generator: np.random.Generator,
    ) -> Imputed:
        """Return the imputation of the missing test cells for given predictive moments of all test rows.

        Args:
            moments: Means and variances `[K, n]` of K mixture components for each column, standardised.
            test: Incomplete test rows, n of them.
            m: Number of draws.
            generator: Source of randomness.
        """
        mixtures = {}
        for column, holes in holes_of(test).items():
            mean, variance = (part[:, holes] for part in moments[column])
            scale = float(self.scale[column])
            mixtures[column] = GaussianMixture(mean * scale + float(self.mean[column]), variance * scale**2)
        return imputed_by_mixtures(mixtures, m, generator)
