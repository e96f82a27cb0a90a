"""What every system gives back: values for the missing test cells, and draws where it has a distribution."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import logsumexp

Cells = Mapping[str, NDArray[np.float64]]
"""Per column with missing cells, their values in row order, `[cells]`; draws of them, `[m, cells]`."""

Density = Callable[[Cells], Cells]
"""Log density of each given value of a missing cell, per unit of its column."""


@dataclass(frozen=True)
class Imputed:
    """The missing cells of a table, in the columns' own units."""

    point: Cells
    """One value per cell: what the RMSE is taken of."""
    draws: Cells | None = None
    """Draws `[m, cells]`, or None where the system knows no distribution."""
    log_density: Density | None = None
    """Its own predictive density, where it can state one."""

    @classmethod
    def from_tables(cls, completed: Sequence[pd.DataFrame], test: pd.DataFrame) -> Imputed:
        """From m completed copies of a table, whose mean is the point."""
        drawn = {
            column: np.stack([table.loc[holes, column].to_numpy(np.float64) for table in completed])
            for column, holes in holes_of(test).items()
        }
        return cls.from_draws(drawn)

    @classmethod
    def from_table(cls, completed: pd.DataFrame, test: pd.DataFrame) -> Imputed:
        """From one completed copy of a table, which has no distribution."""
        return cls(cells_of(completed, test))

    @classmethod
    def from_draws(cls, draws: Cells, log_density: Density | None = None) -> Imputed:
        """From draws `[m, cells]` per column, whose mean is the point."""
        return cls({column: values.mean(0) for column, values in draws.items()}, draws, log_density)


def holes_of(table: pd.DataFrame) -> dict[str, NDArray[np.bool_]]:
    """Which cells `[rows]` are missing, per column that misses any."""
    holes = {str(column): table[column].isna().to_numpy() for column in table}
    return {column: where for column, where in holes.items() if where.any()}


def cells_of(table: pd.DataFrame, test: pd.DataFrame) -> dict[str, NDArray[np.float64]]:
    """What stands in `table` where `test` has holes."""
    return {column: table[column].to_numpy(np.float64)[holes] for column, holes in holes_of(test).items()}


@dataclass(frozen=True)
class GaussianMixture:
    """Predictive distribution of the missing cells of one column: K equally weighted Gaussians each."""

    mean: NDArray[np.float64]
    """`[K, cells]`, own units."""
    variance: NDArray[np.float64]
    """`[K, cells]`, own units squared, observation noise included."""

    def log_density(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Log density of one value per cell, `[cells]`."""
        squared = (values - self.mean) ** 2 / self.variance
        components = -0.5 * (squared + np.log(2 * np.pi * self.variance))
        return np.asarray(logsumexp(components, axis=0) - np.log(len(self.mean)))

    def draw(self, m: int, generator: np.random.Generator) -> NDArray[np.float64]:
        """M draws `[m, cells]`, from the components in turn."""
        component = np.arange(m) % len(self.mean)
        noise = generator.normal(size=(m, self.mean.shape[1]))
        return self.mean[component] + noise * np.sqrt(self.variance[component])


def imputed_by_mixtures(
    mixtures: Mapping[str, GaussianMixture], m: int, generator: np.random.Generator
) -> Imputed:
    """From the predictive distribution of every missing cell, whose mean is the point.

    Args:
        mixtures: Per column with missing cells.
        m: Draws to take.
        generator: What they are drawn with.
    """

    def log_density(values: Cells) -> Cells:
        return {column: mixture.log_density(values[column]) for column, mixture in mixtures.items()}

    return Imputed(
        {column: mixture.mean.mean(0) for column, mixture in mixtures.items()},
        {column: mixture.draw(m, generator) for column, mixture in mixtures.items()},
        log_density,
    )
