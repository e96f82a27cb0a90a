"""Search for the plan of a joint density: the transforms and the order of its columns.

Draws confirm the transforms and the order with which they were made, and links that see all other columns
smooth interactions away. The first plan is therefore one without transforms, further ones are made on draws
of the last (structural EM; Friedman, ICML 1997), and a rival order is judged by draws of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_mgp.data.cells import label_of
from pyro_mgp.data.codecs import ColumnCodec
from pyro_mgp.data.column_spec import Label
from pyro_mgp.data.encoded_table import EncodedTable
from pyro_mgp.data.limits import Limits
from pyro_mgp.data.rules import Rules
from pyro_mgp.data.table import TableCodec, missing
from pyro_mgp.data.table_encoder import InputTable, TableEncoder
from pyro_mgp.fitting.chain_fit import TrainingTable, fit_chain
from pyro_mgp.model.column_order import CLEARLY
from pyro_mgp.model.link_specs import (
    LinkSpec,
    best_plan,
    plan_links,
    recoded,
    rival_sequence,
    symmetrised_gain,
)
from pyro_mgp.sampling.fitted_model import FittedModel
from pyro_mgp.sampling.sampler import Sampler
from pyro_mgp.sampling.sampler_cache import SamplerCache
from pyro_mgp.settings import Choice, Engine, Parameters, Settings
from pyro_mgp.storage.checkpoint import Checkpoint

# Rows from which the evidence of orders is computed (60 MB with 20 columns).
_ROWS_OF_ORDER = 5000
# Most times that plans are made on draws of the last plan's model, and the number of these draws.
_MOST_PLANS, _COMPLETIONS = 3, 4
# Number of the draw by which rival orders are compared: chains move away from the order that completed the
# table from which they start. Later draws decided alike in tables with a rival (`benchmarks/speed`).
_RIVAL_DRAW = 1

Plan = tuple[int, list[int]]
"""Number of the encoding, and the encoded columns with a link in order."""


@dataclass(frozen=True)
class GivenTable:
    """A table to fit, before it is encoded, with the parameters of the fit."""

    parameters: Parameters
    engine: Engine
    rules: Rules
    frame: pd.DataFrame
    modelled: pd.DataFrame  # the table as it is modelled
    target: tuple[ColumnCodec | None, NDArray[np.float64] | None]  # codec and encoded values of the target
    limits: Mapping[Label, Limits] = field(default_factory=dict)  # of missing cells, in their own units

    def on(self, rows: Tensor) -> GivenTable:
        """Return the rows with these numbers of a table that has no target."""
        frame, modelled = (own.iloc[rows.numpy()] for own in (self.frame, self.modelled))
        limits = {label: own[rows.numpy()] for label, own in self.limits.items()}
        return replace(self, frame=frame, modelled=modelled, limits=limits)

    def for_joint_density(
        self, codec: TableCodec, table: EncodedTable, *, warp: bool
    ) -> tuple[TableCodec, EncodedTable]:
        """Return a codec refitted for a joint density, and the table encoded with it."""
        support, specs = self.parameters.discrete_support, self.rules.modelled_specs
        given, transforms = (self.limits, self.rules.within), self.parameters.warp
        one_part = self.rules.on_other_scales | {label for each in specs.values() for label in each.slopes}
        if self.parameters.inference == "mcmc":  # which takes Gaussian links only
            one_part = {column.name for column in codec.columns}
        return codec.for_joint_density(
            self.modelled, table, warp, support, specs, *given, transforms=transforms, one_part=one_part
        )

    def may_be_missing(self, codec: TableCodec, table: EncodedTable) -> NDArray[np.bool_]:
        """Return the encoded columns with missing cells, or with limits in other tables, Bool `[D]`."""
        incomplete: NDArray[np.bool_] = ~table.observed.all(0).numpy()
        for label in self.limits:
            incomplete[codec.slices[label]] = True
        return incomplete

    def link_specs(
        self, codec: TableCodec, table: EncodedTable, sequence: Sequence[int] | None = None
    ) -> list[LinkSpec]:
        """Return the links of the encoded table, which see all other columns or follow a sequence."""
        with_link, specs = self.may_be_missing(codec, table), self.rules.modelled_specs
        with_link |= self.parameters.columns == "all"
        target, is_input = self.target[0], self.engine.target_is_input
        order, within = self.parameters.order, self.rules.within
        return plan_links(codec, with_link, order, target, is_input, specs, sequence, within)

    def training_table(
        self,
        codec: TableCodec,
        table: EncodedTable,
        links: list[LinkSpec],
        inputs: Choice,
        completed: Tensor | None = None,
    ) -> tuple[TrainingTable, InputTable]:
        """Return the encoded table with its links, for training, and as it was given."""
        target, target_values = self.target
        if target_values is not None:
            table = table.append_column(target_values)
        incomplete = np.flatnonzero(np.logical_or.reduce(missing(self.frame))).tolist()
        encoder = TableEncoder(self.rules, codec, target, [*map(label_of, self.frame.columns)], incomplete)
        variances = encoder.error_variances(self.frame)
        ordered, order = table.sorted_by_key()
        variances = {column: variance[order] for column, variance in variances.items()}
        completed = None if completed is None else completed[order]
        training = TrainingTable(encoder, links, ordered, variances, inputs, torch.empty_like, completed)
        return training, InputTable(self.frame, self.modelled, table, self.limits)


@dataclass(frozen=True)
class Planned:
    """A joint density fitted by a plan, with draws of its missing cells."""

    plan: Plan
    fitted: tuple[FittedModel, Settings]
    """Model and settings."""
    rows: EncodedTable
    """Rows of the search, encoded as planned."""
    sampler: Sampler
    """Sampler of missing cells by a few chains."""

    def completed(self, draw: int) -> Tensor:
        """Return the rows with their missing cells drawn S times, `[S, N, D]`, by a draw of the chains."""
        return completions(self.sampler, self.rows, draw)


@dataclass(frozen=True)
class PlanSearch:
    """Search for the transforms and the order of a table's joint density; see the module."""

    given: GivenTable
    """The table."""
    encodings: Sequence[tuple[TableCodec, EncodedTable]]
    """Codecs that differ in their transforms, the last one without any, each with the encoded table."""
    choice: Choice
    """Choice of the links' inputs."""
    incomplete: NDArray[np.bool_]
    """Bool `[D]`, the encoded columns with missing cells, or with limits in other tables."""

    @property
    def codecs(self) -> list[TableCodec]:
        """The codecs."""
        return [codec for codec, _ in self.encodings]

    def on(self, rows: Tensor) -> PlanSearch:
        """Return the search on the rows with these numbers."""
        encodings = [(codec, table[rows]) for codec, table in self.encodings]
        return replace(self, given=self.given.on(rows), encodings=encodings)

    def first_plan(self, completed: Tensor) -> Plan:
        """Return the best plan without transforms, given rows `[S, N, D]` drawn by another model."""
        last = len(self.codecs) - 1
        return last, self._best(self.codecs[last:], completed, (0, []))[1]

    def fit(self, plan: Plan, completed: Tensor, checkpoint: Checkpoint | None = None) -> Planned:
        """Fit a joint density by a plan, trained on rows completed by draws."""
        here, sequence = plan
        codec, rows = self.encodings[here]
        links = self.given.link_specs(codec, rows, sequence)
        tables = self.given.training_table(codec, rows, links, self.choice, completed[0])
        fitted = fit_chain(self.given.parameters, self.given.engine, *tables, checkpoint)
        return Planned(plan, fitted, rows, few_chains(fitted[0]))

    def improved(self, planned: Planned, draw: int = 0, most: int = _MOST_PLANS - 1) -> Planned:
        """Plan again on draws of the last plan's model, until the plan stays the same."""
        for _ in range(most):
            completed = planned.completed(draw)
            plan = self._best(self.codecs, completed, planned.plan)
            if plan == planned.plan:
                break
            here, there = (self.codecs[number] for number in (planned.plan[0], plan[0]))
            planned = self.fit(plan, recoded(here, there, completed))
        return planned

    def after_rival(self, planned: Planned) -> Planned:
        """Move the outcome to the end of the order if the mean over draws of both orders favours that."""
        here, sequence = planned.plan
        completed = self._of_evidence(planned.completed(0))
        rival = rival_sequence(self.codecs[here], completed, sequence, self.given.rules.within)
        if rival is None:
            return planned
        completed = planned.completed(_RIVAL_DRAW)
        other = self.fit((here, rival), completed)
        drawn = [self._of_evidence(each) for each in (completed, other.completed(_RIVAL_DRAW))]
        if symmetrised_gain(self.codecs[here], drawn, [sequence, rival]) <= CLEARLY:
            return planned
        return self.improved(other, _RIVAL_DRAW, most=1)

    def _best(self, codecs: list[TableCodec], completed: Tensor, start: Plan) -> Plan:
        """Return the best plan, given draws and the plan from which the search starts."""
        every = self.given.parameters.columns == "all"
        given = *start, self.incomplete, every, self.given.rules.within
        return best_plan(codecs, self._of_evidence(completed), *given)

    def _of_evidence(self, completed: Tensor) -> Tensor:
        """Return the rows `[S, n, D]` from which the evidence of orders is computed."""
        return completed[:, self.encodings[0][1].random_rows(_ROWS_OF_ORDER)]


def few_chains(fitted: FittedModel) -> Sampler:
    """Return the sampler of a model's missing cells by which plans are made."""
    # Chains of their own, so that what is said of mixing does not depend on the search. Bagging links that
    # see all others, which serve here only, would add noise.
    model = replace(fitted, cache=SamplerCache())
    return model.sampler(chains=_COMPLETIONS, searching=True)


def completions(sampler: Sampler, table: EncodedTable, draw: int = 0, n: int = _COMPLETIONS) -> Tensor:
    """Return a table with its missing cells drawn n times, `[n, N, D]`, by a draw of a few chains."""
    imputations = range(draw * _COMPLETIONS, draw * _COMPLETIONS + n)
    return torch.cat([drawn.cpu() for _, drawn in sampler.draws(table, imputations)], dim=1)
