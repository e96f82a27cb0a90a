"""Fitting of a chain to a table, from encoding to training and local corrections.

DataFrame ──rules, codecs──▶ EncodedTable ──order, link──▶ links ──initial fill, kernel, likelihoods──▶
Chain ──training──▶ trained chain ──leave-one-out errors──▶ local GPs, discrete support ──▶ FittedModel
"""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from pyro_mgp._support import memory
from pyro_mgp._support.devices import home
from pyro_mgp._support.processes import ALONE, current
from pyro_mgp.analysis.model_comparison import standard_errors_worse
from pyro_mgp.data.cells import label_of
from pyro_mgp.data.codecs import ColumnCodec
from pyro_mgp.data.encoded_table import EncodedTable
from pyro_mgp.data.parquet_table import ParquetTable, encode_columns
from pyro_mgp.data.rules import Rules
from pyro_mgp.data.table import TableCodec, as_frame, missing
from pyro_mgp.data.table_encoder import InputTable, TableEncoder, fit_target
from pyro_mgp.inference.training import History, Options, train
from pyro_mgp.model.build import (
    build_chain,
    categories,
    likelihoods,
    products_of,
    starting_noise,
    values_of_links,
)
from pyro_mgp.model.chain import Chain
from pyro_mgp.model.column_order import CLEARLY
from pyro_mgp.model.kernels import KernelFactory, resolve_kernel
from pyro_mgp.model.link_specs import (
    LinkSpec,
    best_plan,
    plan_links,
    recoded,
    rival_sequence,
    symmetrised_gain,
)
from pyro_mgp.sampling.discrete_support import DiscreteSupport
from pyro_mgp.sampling.fitted_model import FittedModel
from pyro_mgp.sampling.initial_fill import InitialFill, JointGaussian
from pyro_mgp.sampling.neighbours import Neighbours
from pyro_mgp.sampling.refinement import MAX_ROWS, refine
from pyro_mgp.settings import (
    Choice,
    Engine,
    Parameters,
    Settings,
    choose,
    warn_of_inducing_inputs,
)
from pyro_mgp.storage.checkpoint import Checkpoint, CheckpointLike, discard_own
from pyro_mgp.storage.scratch import Memory, Scratch, pieces
from pyro_mgp.training_table import TrainingTable

# Adam's step size where it moves q(u) as well, and such steps from check to check.
_RATE_OF_SVI, _STEPS_OF_SVI_TO_CHECK = 0.03, 25

# Largest table in files that is fitted in memory, and rows that the order of columns is learnt from: those
# with the smallest keys, whose terms take some 60 MB with 20 columns.
_SMALL_ROWS, _ROWS_OF_ORDER = 10_000, 5000
# Rows from which the plan of a joint density is learnt, most times that it is planned on draws of the last
# plan's model, and the number of draws.
_ROWS_OF_PLAN, _MOST_PLANS, _COMPLETIONS = 2000, 3, 4
# Number of the draw by which rival orders are compared: chains move slowly away from the order that completed
# the table from which they start.
_RIVAL_DRAW = 3
# Most rows given which functions are drawn, times the number of links; 10,000 rows always are.
_MOST_AUGMENTED = 500_000
# Most missing cells, times the number of links, that are weighted by later links.
_MOST_WEIGHTED = 300_000
# Most rows, plus a thousand, times the squared number of links, for which a joint density is fitted besides
# local GPs; the time of a sweep is proportional to that, and such a fit takes some 30 s. Standard errors by
# which its score may be worse.
_MOST_CONTESTED, _WORSE = 300_000, 1.0

NOT_SEQUENTIAL = (
    'inputs="earlier" needs the table in memory: call fit(frame) instead, or take inputs="others"'
)


# -------------------------------------------------------------------------------------- training table


def fit_frame(
    parameters: Parameters,
    engine: Engine,
    X: pd.DataFrame | ArrayLike,
    y: pd.Series[Any] | ArrayLike | None,
    checkpoint: CheckpointLike,
) -> tuple[FittedModel, Settings]:
    """Fit a model to a table in memory; see `MGPImputer.fit`."""
    kept, frame = _checkpoint(parameters, checkpoint), as_frame(X)
    rules = Rules.parse(parameters.specs, frame.columns.tolist()).learn(frame)
    modelled, specs = rules.modelled(frame), rules.modelled_specs
    codec, table = TableCodec.fit_encode(modelled, parameters.warp, parameters.discrete_support, specs)
    target = fit_target(y, frame)
    own = frame.copy()
    warn_of_inducing_inputs(parameters, len(frame))
    given = _Given(parameters, engine, rules, own, own if modelled is frame else modelled, target)
    fitted = _fit_in_order(given, codec, table, kept)
    discard_own(kept, checkpoint)
    return fitted


@dataclass(frozen=True)
class _Given:
    """A table to fit, before it is encoded, with the parameters of the fit."""

    parameters: Parameters
    engine: Engine
    rules: Rules
    frame: pd.DataFrame
    modelled: pd.DataFrame
    """The table as it is modelled."""
    target: tuple[ColumnCodec | None, NDArray[np.float64] | None]
    """Codec and encoded values of the target."""

    def for_joint_density(
        self, codec: TableCodec, table: EncodedTable, *, warp: bool
    ) -> tuple[TableCodec, EncodedTable]:
        """Return a codec refitted for a joint density, and the table encoded with it."""
        support, specs = self.parameters.discrete_support, self.rules.modelled_specs
        return codec.for_joint_density(self.modelled, table, warp, support, specs)

    def training_table(
        self,
        codec: TableCodec,
        table: EncodedTable,
        inputs: Choice,
        sequence: Sequence[int] | None = None,
        completed: Tensor | None = None,
    ) -> tuple[TrainingTable, InputTable]:
        """Return the encoded table with its links, for training, and as it was given."""
        parameters, (target, target_values) = self.parameters, self.target
        complete = table.observed.all(0).numpy()
        with_link = np.ones_like(complete) if parameters.columns == "all" else ~complete
        specs = self.rules.modelled_specs
        link_specs = plan_links(
            codec, with_link, parameters.order, target, self.engine.target_is_input, specs, sequence
        )
        if target_values is not None:
            table = table.append_column(target_values)
        incomplete = np.flatnonzero(np.logical_or.reduce(missing(self.frame))).tolist()
        encoder = TableEncoder(self.rules, codec, target, [*map(label_of, self.frame.columns)], incomplete)
        variances = encoder.error_variances(self.frame)
        ordered, order = table.sorted_by_key()
        variances = {column: variance[order] for column, variance in variances.items()}
        completed = None if completed is None else completed[order]
        training = TrainingTable(encoder, link_specs, ordered, variances, inputs, Memory(), completed)
        return training, InputTable(self.frame, self.modelled, table)


def _fit_in_order(
    given: _Given, codec: TableCodec, table: EncodedTable, checkpoint: Checkpoint | None
) -> tuple[FittedModel, Settings]:
    """Fit links that see all other columns; then, if the table suits it, links in an order that it shows."""
    parameters, engine = given.parameters, given.engine
    why = _why_not_sequential(given)
    if parameters.inputs == "earlier":
        if why:
            raise ValueError(f'inputs="earlier" cannot be used: {why}. Take inputs="auto" or "others"')
        if parameters.order is not None:
            codec, table = given.for_joint_density(codec, table, warp=True)
            parts = [range(codec.n_encoded)[codec.slices[label]] for label in parameters.order]
            sequence, choice = [d for part in parts for d in part], Choice("earlier", "as given")
            tables = given.training_table(codec, table, choice, sequence)
            return _fit(parameters, engine, *tables, checkpoint)
    training, own = given.training_table(codec, table, Choice("others", "as given"))
    conditional = _fit(parameters, engine, training, own, checkpoint)
    if parameters.inputs == "others" or not conditional[0].link_specs:
        return conditional
    if parameters.inputs == "auto":
        why = why or _why_conditional(conditional[0], table)
        why = why or ("an order was given" if parameters.order is not None else "")
        if why:
            return conditional[0], replace(conditional[1], inputs=Choice("others", why))
    return _fit_joint_density(given, codec, table, conditional)


def _fit_joint_density(
    given: _Given, codec: TableCodec, table: EncodedTable, conditional: tuple[FittedModel, Settings]
) -> tuple[FittedModel, Settings]:
    """Fit links in the order that draws of a conditional model show, unless that model is the better one."""
    is_auto = given.parameters.inputs == "auto"
    reason = "a joint density of the columns" if is_auto else "as given"
    encodings = [given.for_joint_density(codec, table, warp=True)]
    if any(column.warp is not None and not column.warp.keeps_bounds for column in codec.columns):
        # No transform is needed if nonlinear dependence on other columns explains long tails.
        encodings.append(given.for_joint_density(codec, table, warp=False))
    incomplete = ~table.observed.all(0).numpy()
    whole = _PlanSearch(given, encodings, Choice("earlier", reason), incomplete)
    contested = is_auto and _has_neighbours(conditional[0])
    search = whole if contested else whole.on_few_rows()
    completed = recoded(codec, search.codecs[-1], _completions(conditional[0], search.encodings[-1][1]))
    first = search.fit(search.first_plan(completed), completed)
    if contested and standard_errors_worse(conditional[0], first.fitted[0]) > _WORSE:
        why = "nearby rows predict held-out cells better than a joint density"
        return conditional[0], replace(conditional[1], inputs=Choice("others", why))
    found = search.after_rival(search.improved(first))
    if search is whole:
        return found.fitted
    every_row = whole.encodings[found.plan[0]][1]
    return whole.fit(found.plan, _completions(found.fitted[0], every_row, 1)).fitted


@dataclass(frozen=True)
class _Planned:
    """A joint density fitted by a plan, with draws of its missing cells."""

    plan: tuple[int, list[int]]
    """Number of the encoding, and the encoded columns with a link in order."""
    fitted: tuple[FittedModel, Settings]
    """Model and settings."""
    completed: Callable[[int], Tensor]
    """Function that returns the table with its missing cells drawn S times, `[S, N, D]`, by the number of the
    draw of its chains."""


@dataclass(frozen=True)
class _PlanSearch:
    """Search for the transforms and the order of a joint density, on draws of its last plan.

    Draws confirm the transforms and the order with which they were made, and links that see all other columns
    smooth interactions away. The first plan is therefore one without transforms, further ones are made on
    draws of the last (structural EM; Friedman, ICML 1997), and rivals are judged by draws of both.
    """

    given: _Given
    """The table."""
    encodings: Sequence[tuple[TableCodec, EncodedTable]]
    """Codecs that differ in their transforms, the last one without any, each with the encoded table."""
    choice: Choice
    """Choice of the links' inputs."""
    incomplete: NDArray[np.bool_]
    """Bool `[D]`, the encoded columns with missing cells."""

    @property
    def codecs(self) -> list[TableCodec]:
        """The codecs."""
        return [codec for codec, _ in self.encodings]

    def on_few_rows(self) -> _PlanSearch:
        """Return the search on a random part of a large table, which shows an order clearly enough."""
        keys = self.encodings[0][1].keys
        if len(keys) <= _ROWS_OF_PLAN:
            return self
        few = keys.argsort()[:_ROWS_OF_PLAN].cpu()
        frame, modelled = (own.iloc[few.numpy()] for own in (self.given.frame, self.given.modelled))
        given = replace(self.given, frame=frame, modelled=modelled)
        return replace(self, given=given, encodings=[(codec, rows[few]) for codec, rows in self.encodings])

    def first_plan(self, completed: Tensor) -> tuple[int, list[int]]:
        """Return the best plan without transforms, given rows `[S, N, D]` drawn by another model."""
        last, rows = len(self.codecs) - 1, self._of_evidence(completed)
        _, sequence = best_plan(self.codecs[last:], rows, 0, [], self.incomplete, self._every)
        return last, sequence

    def fit(self, plan: tuple[int, list[int]], completed: Tensor) -> _Planned:
        """Fit a joint density by a plan, trained on rows completed by draws."""
        here, sequence = plan
        rows = self.encodings[here][1]
        tables = self.given.training_table(*self.encodings[here], self.choice, sequence, completed[0])
        fitted = _fit(self.given.parameters, self.given.engine, *tables, None)
        return _Planned(plan, fitted, functools.cache(lambda draw: _completions(fitted[0], rows, draw=draw)))

    def improved(self, planned: _Planned, draw: int = 0, most: int = _MOST_PLANS - 1) -> _Planned:
        """Plan again on draws of the last plan's model, until the plan stays the same."""
        for _ in range(most):
            completed, (here, sequence) = planned.completed(draw), planned.plan
            rows = self._of_evidence(completed)
            plan = best_plan(self.codecs, rows, here, sequence, self.incomplete, self._every)
            if plan == planned.plan:
                break
            planned = self.fit(plan, recoded(self.codecs[here], self.codecs[plan[0]], completed))
        return planned

    def after_rival(self, planned: _Planned) -> _Planned:
        """Move the outcome to the end of the order if the mean over draws of both orders favours that."""
        (here, sequence), completed = planned.plan, planned.completed(_RIVAL_DRAW)
        rival = rival_sequence(self.codecs[here], self._of_evidence(completed), sequence)
        if rival is None:
            return planned
        other = self.fit((here, rival), completed)
        drawn = [self._of_evidence(each) for each in (completed, other.completed(_RIVAL_DRAW))]
        if symmetrised_gain(self.codecs[here], drawn, [sequence, rival]) <= CLEARLY:
            return planned
        return self.improved(other, _RIVAL_DRAW, most=1)

    @property
    def _every(self) -> bool:
        return self.given.parameters.columns == "all"

    def _of_evidence(self, completed: Tensor) -> Tensor:
        """Return the rows `[S, n, D]` from which the evidence of orders is computed."""
        return completed[:, self.encodings[0][1].keys.argsort()[:_ROWS_OF_ORDER].cpu()]


def _completions(fitted: FittedModel, table: EncodedTable, n: int = _COMPLETIONS, draw: int = 0) -> Tensor:
    """Return a table with its missing cells drawn n times, `[n, N, D]`, by a draw of its chains."""
    # Chains of a sequential model go on in `impute`; those of the first model serve here only.
    sampler = fitted.sampler(chains=None if fitted.is_sequential else _COMPLETIONS)
    imputations = range(draw * sampler.n_chains, draw * sampler.n_chains + n)
    return torch.cat([drawn.cpu() for _, drawn in sampler.draws(table, imputations)], dim=1)


def _why_conditional(fitted: FittedModel, table: EncodedTable) -> str:
    """Return why links of a fitted model should see all other columns; an empty text if they need not."""
    missing_cells = (~table.observed).sum(0).tolist()
    links = len(fitted.chain.links)
    if _has_neighbours(fitted) and (len(table) + 1000) * links**2 > _MOST_CONTESTED:
        return "nearby rows improve predictions, and the table is large"
    if sum(missing_cells[link.column] for link in fitted.chain.links) * links > _MOST_WEIGHTED:
        return "the table is large"
    return ""


def _has_neighbours(fitted: FittedModel) -> bool:
    return fitted.neighbours is not None and any(fitted.neighbours.links)


def _why_not_sequential(given: _Given) -> str:
    """Return why a table cannot have links in an order; an empty text if it can."""
    if not given.engine.suits_sequential_chain:
        return "it needs joint predictive draws and a bound in closed form, which the engine switches off"
    if given.target[0] is not None:
        return "there is a target"
    if given.rules.derived or given.rules.only_if:
        return "columns are derived from others, or apply to some rows only"
    if any(spec.standard_error is not None for spec in given.rules.modelled_specs.values()):
        return "cells have standard errors"
    return ""


def fit_files(
    parameters: Parameters, engine: Engine, table: ParquetTable, scratch: Any, checkpoint: CheckpointLike
) -> tuple[FittedModel, Settings]:
    """Fit a model to Parquet files, with one column in memory at a time; see `MGPImputer.fit_parquet`."""
    if len(table) <= _SMALL_ROWS:
        return fit_frame(parameters, engine, table.read(), None, checkpoint)
    kept = _checkpoint(parameters, checkpoint)
    warn_of_inducing_inputs(parameters, len(table))
    if parameters.inputs == "earlier":
        raise ValueError(NOT_SEQUENTIAL)
    rules, files = Rules.parse(parameters.specs, table.columns.tolist()), Scratch(scratch)
    rules.check_column_by_column()
    specs = rules.modelled_specs
    support = parameters.discrete_support
    codec, rows, incomplete = encode_columns(table, parameters.warp, support, specs, files)
    with_link = np.isin(codec.groups, incomplete) | (parameters.columns == "all")
    link_specs = plan_links(codec, with_link, parameters.order, specs=specs)
    encoder = TableEncoder(rules, codec, None, [*map(label_of, table.columns)], incomplete)
    inputs = Choice("others", f"more than {_SMALL_ROWS:,} rows in files")
    given = TrainingTable(encoder, link_specs, rows, {}, inputs, files)
    fitted = _fit(parameters, engine, given, None, kept)
    discard_own(kept, checkpoint)
    return fitted


def _checkpoint(parameters: Parameters, place: CheckpointLike) -> Checkpoint | None:
    if place is not None and parameters.optimizer is not None:
        raise ValueError("a checkpoint does not keep the state of an optimizer: take optimizer=None")
    if place is not None and not isinstance(parameters.random_state, numbers.Integral):
        raise ValueError(
            f"a checkpoint needs random_state=<an integer>, got {parameters.random_state!r}: with other "
            "random numbers, a resumed fit would have another result"
        )
    return Checkpoint.at(place)


# -------------------------------------------------------------------------------------------- training


def _fit(
    parameters: Parameters,
    engine: Engine,
    given: TrainingTable,
    own: InputTable | None,
    checkpoint: Checkpoint | None,
) -> tuple[FittedModel, Settings]:
    """Build and train the chain, and fit local GPs and discrete support where they apply."""
    current().check_same(given.encoded.keys)
    kinds = {"all_gaussian": given.is_gaussian, "shapes": given.has_shapes}
    settings = choose(parameters, engine, given.inputs, len(given.encoded), **kinds)
    if own is not None:
        _check_memory(given, settings.n_inducing.value)
    seed, on_device = settings.seed.value, torch.device(settings.device.value)
    rows = given.encoded.to(home(given.encoded.values, on_device))
    fraction = engine.validation_fraction if given.completed is None else 0.0
    held_out = given.hold_out(rows.observed, fraction, seed)
    start, filled = _initial_fill(engine, given, rows, held_out, seed)
    if given.completed is not None:
        filled = given.completed.to(rows.values)
    noise = starting_noise(start.gaussian.covariance, given.link_specs, given.is_sequential)
    inducing = filled[: settings.n_inducing.value].to(on_device)
    parts = settings.kernel.value, given.encoder.codec, given.link_specs, noise, inducing, len(rows)
    chain = untrained_chain(parameters, engine, *parts, is_sequential=given.is_sequential)
    for link in chain.links:
        if (known := given.error_variances.get(link.column)) is not None:
            link.known_variance = known.to(on_device)
    history = _train(parameters, engine, settings, given, chain, rows, held_out, filled, checkpoint)
    gaussian = JointGaussian.fit(rows.values, rows.observed, engine.initial_fill, start.gaussian)
    initial = InitialFill(gaussian.to(on_device), start.drawn)
    is_small = len(rows) <= max(MAX_ROWS, _MOST_AUGMENTED // max(len(given.link_specs), 1))
    augments = is_small and engine.joint_draws and engine.propagate == "predictive"
    training = rows.to(on_device) if augments and given.link_specs else None
    neighbours: Neighbours | None = None
    support: list[DiscreteSupport | None] = [None] * len(given.link_specs)
    if given.link_specs and engine.propagate == "predictive":
        neighbours, support = refine(
            chain,
            initial,
            rows[:MAX_ROWS].to(on_device),
            0 if given.is_sequential else parameters.n_neighbors,
            values_of_links(given.encoder.codec, given.link_specs, on_device),
            joint=engine.joint_draws,
            seed=seed,
            completed=None if given.completed is None else filled.to(on_device),
            training=training,
        )
    model = FittedModel(
        given.encoder, given.link_specs, chain, initial, neighbours, support, training, history, seed,
        engine.joint_draws, own,
    )  # fmt: skip
    return model, settings


def untrained_chain(
    parameters: Parameters,
    engine: Engine,
    kernel: str | KernelFactory,
    codec: TableCodec,
    link_specs: Sequence[LinkSpec],
    noise: Sequence[float],
    inducing: Tensor,
    n_rows: int,
    *,
    is_sequential: bool,
) -> Chain:
    """Build a chain of sparse GPs whose parameters have their initial values.

    Args:
        parameters: The imputer's parameters.
        engine: Its engine.
        kernel: Name or factory of the links' kernel.
        codec: The table's codec.
        link_specs: The links.
        noise: Initial noise variance of each link.
        inducing: Rows of the filled table that serve as inducing inputs, `[M, D]`.
        n_rows: Rows of the training table.
        is_sequential: Whether links see complete and earlier columns only.
    """
    return build_chain(
        link_specs,
        resolve_kernel(kernel),
        inducing,
        likelihoods(codec, link_specs, noise, inducing.device),
        products=products_of(codec, link_specs),
        sequential=is_sequential,
        train_inducing=engine.train_inducing,
        n_rows=n_rows,
        n_paths=engine.n_paths,
        n_sweeps=parameters.n_sweeps,
        propagate=engine.propagate,
        backpropagate=engine.backpropagate,
        precision=parameters.precision,
        categories=categories(codec, link_specs, inducing.device),
    )


def _initial_fill(
    engine: Engine, given: TrainingTable, rows: EncodedTable, held_out: Tensor, seed: int
) -> tuple[InitialFill, Tensor]:
    """Fit the initial fill without the held-out cells, and return it with the filled table, `[N, D]`."""
    seen = EncodedTable(rows.values, given.memory.like(rows.observed), rows.keys)
    for here in pieces(len(rows)):
        seen.observed[here] = rows.observed[here] & ~held_out[here]
    gaussian = JointGaussian.fit(seen.values, seen.observed, engine.initial_fill)
    start, filled = InitialFill(gaussian, engine.initial_fill == "linear"), given.memory.like(rows.values)
    start.draw_into(filled, seen, seed)
    return start, filled


def _train(
    parameters: Parameters,
    engine: Engine,
    settings: Settings,
    given: TrainingTable,
    chain: Chain,
    rows: EncodedTable,
    held_out: Tensor,
    filled: Tensor,
    checkpoint: Checkpoint | None,
) -> History:
    """Train the chain in place, and return the training history."""
    history = History()
    # The chain of a small table is trained by each process alone: its rows are too few to share.
    workers = ALONE if given.is_sequential else current()
    if given.link_specs:
        by_svi = settings.inference.value == "svi"
        options = Options(
            max_steps=settings.max_steps.value,
            learning_rate=parameters.learning_rate or (_RATE_OF_SVI if by_svi else Options.learning_rate),
            weight_decay=engine.weight_decay,
            batch_size=parameters.batch_size,
            closed_form=not by_svi,
            redraw=given.completed is None,
            refresh_fill=engine.refresh_fill,
            patience=engine.patience,
            check_every=_STEPS_OF_SVI_TO_CHECK if by_svi else Options.check_every,
        )
        history = train(
            chain,
            rows,
            held_out,
            filled,
            options,
            seed=settings.seed.value,
            loss=parameters.loss,
            optimizer=parameters.optimizer,
            progress=parameters.progress,
            workers=workers,
            keep_fill=False,
            checkpoint=None if workers.is_alone and not current().is_first else checkpoint,
        )
    chain.eval()
    return history


def _check_memory(given: TrainingTable, n_inducing: int) -> None:
    """Raise a ValueError if a fit needs more memory than is available."""
    n_rows, n_columns = given.encoded.values.shape
    needed = memory.of_fit(n_rows, n_columns, len(given.link_specs), n_inducing)
    advice = "fit to a sample of the rows, take a smaller n_inducing, or end other programs"
    memory.check(needed, f"fitting to {n_rows} rows of {n_columns} encoded columns", advice)
