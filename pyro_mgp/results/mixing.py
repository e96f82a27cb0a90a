"""How well the chains mixed from which imputations come: R-hat and effective sample sizes by column."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pyro_mgp._support.messages import listing
from pyro_mgp.data.cells import holes_of
from pyro_mgp.data.column_spec import Label
from pyro_mgp.data.table_encoder import InputTable
from pyro_mgp.inference.mixing import bulk_ess, largest_rhat, split_rhat
from pyro_mgp.sampling.observed_cells import ObservedCells
from pyro_mgp.storage.frames import from_json, to_json

Numbers = NDArray[np.float64]
_COLUMNS = ["column", "rhat_mean", "rhat_sd", "ess_mean", "ess_sd", "rhat_cell", "cells_above"]


@dataclass(frozen=True, eq=False)
class Mixing:
    """How well the chains mixed that completed the training table.

    R-hat is computed from all iterations after burn-in. Chains of a joint density have `n_sweeps` of them for
    each of their draws; of links that see all other columns, every draw has a short chain of its own. R-hat
    is near 1 only after many iterations, even if draws are independent: compare it with `largest`.
    """

    table: pd.DataFrame
    """One row per incomplete column: `column`; `rhat_mean` and `rhat_sd`, R-hat of the mean and the standard
    deviation of its missing cells, the largest one over levels; `ess_mean` and `ess_sd`, effective sample
    sizes, the smallest one; `rhat_cell`, the largest R-hat of a cell, infinite if every chain has kept a
    value of its own; `cells_above`, the share of cells above `largest`. NaN where cells are constant."""
    n_chains: int
    """Number of chains."""
    n_iterations: int
    """Iterations of each chain after burn-in."""
    n_draws: int
    """Draws of each chain that became imputations."""
    is_joint: bool = True
    """Whether the chains are those of a joint density, or of links that see all other columns."""
    cells: Mapping[Label, Numbers] = field(default_factory=dict)
    """R-hat of each missing cell, aligned with the draws, NaN outside the training table; not saved."""

    @property
    def largest(self) -> float:
        """The largest R-hat of a mean or standard deviation to expect of independent draws, by chance."""
        return largest_rhat(self.n_chains, self.n_iterations, self.n_draws, 2 * len(self.table))

    @property
    def slow(self) -> list[Label]:
        """Columns whose mean or standard deviation has an R-hat above the largest one to expect."""
        above = self.table[["rhat_mean", "rhat_sd"]] > self.largest
        return self.table.loc[above.any(axis=1), "column"].tolist()

    @property
    def worst(self) -> float:
        """The largest R-hat of a mean or standard deviation; NaN if there is none."""
        return float(self.table[["rhat_mean", "rhat_sd"]].max().max())

    @property
    def n_sweeps(self) -> int:
        """Iterations between draws that would make the draws of every column about independent."""
        return math.ceil((min(self.worst, 10.0) ** 2 - 1) * self.n_iterations / 2)

    @property
    def words(self) -> str:
        """What R-hat says, as a sentence."""
        iterations = f"{self.n_iterations} iterations of {self.n_chains} chains"
        if math.isnan(self.worst):
            return f"{iterations} are too few to judge whether the chains mix"
        limit = f"at most {self.largest:.2f} if draws were independent"
        found = f"imputed cells is up to {self.worst:.2f} after {iterations}, {limit}"
        if not self.slow:
            return f"the chains mix well: R-hat of the mean and the spread of a column's {found}"
        advice = f"and on each other: fit with n_sweeps={self.n_sweeps} or more"
        if not self.is_joint:
            no_density = "Links that see all other columns are no joint density"
            advice = f'still. {no_density}, and more sweeps need not help: inputs="earlier" fits one'
        return (
            f"the chains mix slowly in columns {listing(self.slow)}: R-hat of the mean or the spread of "
            f"their {found}. Draws may depend on the initial fill {advice}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON, without `cells`."""
        rows = [[to_json(label), *map(str, figures)] for label, *figures in self.table.to_numpy().tolist()]
        counts = [self.n_chains, self.n_iterations, self.n_draws]
        return {"rows": rows, "counts": counts, "joint": self.is_joint}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Return what `to_json` wrote."""
        rows = [[from_json(row[0]), *map(float, row[1:])] for row in found["rows"]]
        n_chains, n_iterations, n_draws = found["counts"]
        table = pd.DataFrame(rows, columns=_COLUMNS)
        return cls(table, n_chains, n_iterations, n_draws, bool(found["joint"]))


def mixing(given: InputTable, source: ObservedCells) -> Mixing | None:
    """Return how well the chains mixed from which a table was imputed; None if there were no chains."""
    sampler, training = source.sampler, source.sampler.training
    if training is None or not sampler.joint or len(given.incomplete) == 0:
        return None
    chains = sampler.chains(training)
    record = chains.record
    if not record.trace:
        return None
    number = {link: k for k, link in enumerate(record.places)}
    columns = [variable for variable in source.variables if variable.links[0] in number]
    counts = chains.n_recorded
    largest = largest_rhat(*counts, 2 * len(columns))
    traces, cells = record.traces(), [own.cpu().numpy() for own in record.rhat_of_cells()]
    rhat, ess = split_rhat(traces).cpu().numpy(), bulk_ess(traces).cpu().numpy()
    place = sampler.place(given.encoded.to(sampler.start.device)).cpu().numpy()
    rows, of_cells = list[list[Any]](), dict[Label, Numbers]()
    for variable in columns:
        label, own = variable.codec.name, [number[i] for i in variable.links]
        found = np.fmax.reduce([cells[k] for k in own])
        figures = [*np.fmax.reduce(rhat[:, own], axis=1), *np.fmin.reduce(ess[:, own], axis=1)]
        rows.append([label, *map(float, [*figures, np.fmax.reduce(found), (found > largest).mean()])])
        if not variable.of_no_column:
            of_rows = np.full(len(training) + 1, np.nan)  # the last one is that of place -1
            of_rows[record.places[variable.links[0]][0].cpu().numpy()] = found
            of_cells[label] = of_rows[place[holes_of(given.frame[label])]]
    return Mixing(pd.DataFrame(rows, columns=_COLUMNS), *counts, chains.continues, of_cells)
