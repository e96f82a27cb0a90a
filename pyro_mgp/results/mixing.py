"""How well the chains mixed from which imputations come: R-hat and effective sample sizes by column."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pyro_mgp._support.messages import Hinted, MixingWarning, listing, warn_user
from pyro_mgp.data.column_spec import Label
from pyro_mgp.data.table import missing
from pyro_mgp.data.table_encoder import InputTable
from pyro_mgp.inference.mixing import bulk_ess, largest_rhat, split_rhat
from pyro_mgp.sampling.observed_cells import ObservedCells
from pyro_mgp.storage.frames import from_json, to_json

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class ColumnMixing:
    """R-hat and effective sample sizes of the missing cells of a column; NaN where they are constant."""

    rhat_mean: float
    """R-hat of the mean of the column's missing cells, the largest one over levels of a category."""
    rhat_sd: float
    """R-hat of their standard deviation."""
    ess_mean: float
    """Effective sample size of their mean, in iterations; the smallest one over levels."""
    ess_sd: float
    """Effective sample size of their standard deviation."""
    rhat_cell: float
    """Largest R-hat of a cell; infinite if every chain has kept a value of its own."""
    cells_above: float
    """Share of the cells whose R-hat is above the largest one to expect."""


@dataclass(frozen=True, eq=False)
class Mixing:
    """How well the chains mixed that completed the training table.

    R-hat is computed from all iterations after burn-in, `n_sweeps` for each draw of a chain. It is near 1
    only after many of them, even if draws are independent: compare it with `largest`. More imputations
    continue the chains, which makes R-hat more precise.
    """

    columns: Mapping[Label, ColumnMixing]
    """R-hat and effective sample sizes by column."""
    n_chains: int
    """Number of chains."""
    n_iterations: int
    """Iterations of each chain after burn-in."""
    n_draws: int
    """Draws of each chain that became imputations."""
    cells: Mapping[Label, Numbers] = field(default_factory=dict)
    """R-hat of each missing cell, aligned with the draws; NaN for rows that are not in the training table.
    It is not saved."""

    @property
    def largest(self) -> float:
        """The largest R-hat of a mean or standard deviation to expect of independent draws, by chance."""
        return largest_rhat(self.n_chains, self.n_iterations, self.n_draws, 2 * len(self.columns))

    @property
    def slow(self) -> list[Label]:
        """Columns whose mean or standard deviation has an R-hat above the largest one to expect."""
        pairs = self.columns.items()
        return [label for label, own in pairs if max(_rhats(own), default=0.0) > self.largest]

    @property
    def n_sweeps(self) -> int:
        """Iterations between draws that would make the draws of every column about independent."""
        worst = max((rhat for own in self.columns.values() for rhat in _rhats(own)), default=1.0)
        return math.ceil((min(worst, 10.0) ** 2 - 1) * self.n_iterations / 2)

    @property
    def table(self) -> pd.DataFrame:
        """A row per column, with the fields of `ColumnMixing`."""
        rows = [{"column": label, **asdict(own)} for label, own in self.columns.items()]
        return pd.DataFrame(rows, columns=["column", *ColumnMixing.__dataclass_fields__])

    @property
    def words(self) -> str:
        """What R-hat says, as a sentence."""
        iterations = f"{self.n_iterations} iterations of {self.n_chains} chains"
        rhats = [rhat for own in self.columns.values() for rhat in _rhats(own)]
        if not rhats:
            return f"{iterations} are too few to judge whether the chains mix"
        limit = f"at most {self.largest:.2f} if draws were independent"
        found = f"imputed cells is up to {max(rhats):.2f} after {iterations}, {limit}"
        if not self.slow:
            return f"the chains mix well: R-hat of the mean and the spread of a column's {found}"
        return (
            f"the chains mix slowly in columns {listing(self.slow)}: R-hat of the mean or the spread of "
            f"their {found}. Draws may still depend on the initial fill and on each other"
        )

    def warn(self) -> None:
        """Warn of columns in which the chains mix slowly."""
        if self.slow:
            advice = f"fit with n_sweeps={self.n_sweeps} or more"
            warn_user(Hinted(f"{self.words}: ", advice, shell=f"{advice}, in Python"), MixingWarning)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON, without `cells`."""
        columns = [
            {"label": to_json(label)} | {name: str(value) for name, value in asdict(own).items()}
            for label, own in self.columns.items()
        ]
        counts = {name: getattr(self, name) for name in ("n_chains", "n_iterations", "n_draws")}
        return {"columns": columns, **counts}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Return what `to_json` wrote."""
        names = tuple(ColumnMixing.__dataclass_fields__)
        columns = {
            from_json(own["label"]): ColumnMixing(*(float(own[name]) for name in names))
            for own in found["columns"]
        }
        return cls(columns, found["n_chains"], found["n_iterations"], found["n_draws"])


def mixing(given: InputTable, source: ObservedCells) -> Mixing | None:
    """Return how well the chains mixed from which a table was imputed; None if there were no chains."""
    sampler, training = source.sampler, source.sampler.training
    if training is None or not sampler.joint or len(given.incomplete) == 0:
        return None
    chains = sampler.chains(training)
    record, n_draws = chains.record, len(chains.kept)
    if not record.trace:
        return None
    traces, cells = record.traces(), [own.cpu().numpy() for own in record.rhat_of_cells()]
    rhat, ess = split_rhat(traces).cpu().numpy(), bulk_ess(traces).cpu().numpy()
    largest = largest_rhat(chains.n_chains, len(record.trace), n_draws)
    place = sampler.place(given.encoded.to(sampler.start.device)).cpu().numpy()
    holes = dict(zip(given.frame.columns, missing(given.frame).T, strict=True))
    number = {link: k for k, link in enumerate(record.places)}
    columns, of_cells = dict[Label, ColumnMixing](), dict[Label, Numbers]()
    for variable in source.variables:
        label, own = variable.codec.name, [number[i] for i in variable.links if i in number]
        if own:
            found = np.fmax.reduce([cells[k] for k in own])
            columns[label] = _of_column(rhat[:, own], ess[:, own], found, largest)
        if own and label in holes:
            of_rows = np.full(len(training) + 1, np.nan)  # the last one is that of place -1
            of_rows[record.places[variable.links[0]][0].cpu().numpy()] = found
            of_cells[label] = of_rows[place[holes[label]]]
    return Mixing(columns, chains.n_chains, len(record.trace), n_draws, of_cells)


def _of_column(rhat: Numbers, ess: Numbers, cells: Numbers, largest: float) -> ColumnMixing:
    """Combine those of a column's links, `[2, links]`, and R-hat of its cells, `[n]`."""
    (rhat_mean, rhat_sd), (ess_mean, ess_sd) = np.fmax.reduce(rhat, axis=1), np.fmin.reduce(ess, axis=1)
    figures = rhat_mean, rhat_sd, ess_mean, ess_sd, np.fmax.reduce(cells), (cells > largest).mean()
    return ColumnMixing(*map(float, figures))


def _rhats(own: ColumnMixing) -> list[float]:
    """Return the R-hats by which a column is judged, except NaN."""
    return [rhat for rhat in (own.rhat_mean, own.rhat_sd) if not math.isnan(rhat)]
