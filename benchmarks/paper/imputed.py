"""Result of an imputation method: point predictions, draws and density of the missing test cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import logsumexp

Cells = Mapping[str, NDArray[np.float64]]
"""Values `[cells]` of the missing cells of each incomplete column, in row order; or m draws `[m, cells]`."""

Density = Callable[[Cells], Cells]
"""Function that returns the log density of given values of the missing cells, per unit of their columns."""


@dataclass(frozen=True)
class Imputed:
    """Imputation of the missing cells of a table, in the columns' own units."""

    point: Cells
    """Point predictions, which the RMSE is computed from."""
    draws: Cells | None = None
    """Draws `[m, cells]`, or None for a method without a predictive distribution."""
    log_density: Density | None = None
    """Predictive log density, or None for a method that does not state one."""
    further_draws: Callable[[], Cells] | None = None
    """Function that takes further draws for the bounds of intervals, or None if `draws` are all there are."""
    seconds: float | None = None
    """Seconds that a method measured itself, or None to measure them outside."""

    @classmethod
    def from_tables(cls, completed: Sequence[pd.DataFrame], test: pd.DataFrame) -> Imputed:
        """Take draws from m completed copies of a table; their mean is the point prediction."""
        draws = {
            column: np.stack([table.loc[holes, column].to_numpy(np.float64) for table in completed])
            for column, holes in holes_of(test).items()
        }
        return cls.from_draws(draws)

    @classmethod
    def from_table(cls, completed: pd.DataFrame, test: pd.DataFrame) -> Imputed:
        """Take point predictions from one completed copy of a table, without draws."""
        return cls(cells_of(completed, test))

    @classmethod
    def from_draws(cls, draws: Cells, log_density: Density | None = None) -> Imputed:
        """Take draws `[m, cells]` of each column; their mean is the point prediction."""
        return cls({column: values.mean(0) for column, values in draws.items()}, draws, log_density)


def holes_of(table: pd.DataFrame) -> dict[str, NDArray[np.bool_]]:
    """Return masks `[rows]` of the missing cells of each incomplete column."""
    holes = {str(column): table[column].isna().to_numpy() for column in table}
    return {column: missing for column, missing in holes.items() if missing.any()}


def cells_of(table: pd.DataFrame, test: pd.DataFrame) -> dict[str, NDArray[np.float64]]:
    """Return the values in `table` of the cells that are missing in `test`."""
    return {column: table[column].to_numpy(np.float64)[holes] for column, holes in holes_of(test).items()}


@dataclass(frozen=True)
class GaussianMixture:
    """Predictive distribution of the missing cells of one column: K equally weighted Gaussians per cell."""

    mean: NDArray[np.float64]
    """Means `[K, cells]`, in the column's own units."""
    variance: NDArray[np.float64]
    """Variances `[K, cells]`, in squared units, observation noise included."""

    def log_density(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the log density of one value per cell, `[cells]`."""
        squared = (values - self.mean) ** 2 / self.variance
        components = -0.5 * (squared + np.log(2 * np.pi * self.variance))
        return np.asarray(logsumexp(components, axis=0) - np.log(len(self.mean)))

    def draw(self, m: int, generator: np.random.Generator) -> NDArray[np.float64]:
        """Draw m values per cell, `[m, cells]`, from the components in turn."""
        component = np.arange(m) % len(self.mean)
        noise = generator.normal(size=(m, self.mean.shape[1]))
        return self.mean[component] + noise * np.sqrt(self.variance[component])


def imputed_by_mixtures(
    mixtures: Mapping[str, GaussianMixture], m: int, generator: np.random.Generator
) -> Imputed:
    """Return the imputation for given predictive distributions, whose means are the point predictions.

    Args:
        mixtures: Predictive distribution of each incomplete column.
        m: Number of draws.
        generator: Source of randomness.
    """

    def log_density(values: Cells) -> Cells:
        return {column: mixture.log_density(values[column]) for column, mixture in mixtures.items()}

    return Imputed(
        {column: mixture.mean.mean(0) for column, mixture in mixtures.items()},
        {column: mixture.draw(m, generator) for column, mixture in mixtures.items()},
        log_density,
    )
