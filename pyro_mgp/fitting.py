"""Fitting of a chain to a table, from encoding to training and local corrections.

DataFrame ──rules, codecs──▶ EncodedTable ──order, link──▶ links ──initial fill, kernel, likelihoods──▶
Chain ──training──▶ trained chain ──leave-one-out errors──▶ local GPs, discrete support ──▶ FittedModel
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from pyro_mgp._support import memory
from pyro_mgp._support.devices import home
from pyro_mgp._support.processes import ALONE, current
from pyro_mgp.data.cells import label_of
from pyro_mgp.data.codecs.base import GaussianObservation
from pyro_mgp.data.column_spec import Specs
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
    starting_noise,
    values_of_links,
)
from pyro_mgp.model.chain import Chain
from pyro_mgp.model.column_order import CLEARLY
from pyro_mgp.model.kernels import KernelFactory, resolve_kernel
from pyro_mgp.model.link_specs import SMALL_ROWS, LinkSpec, Plan, plan_links, sequence_of
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
)
from pyro_mgp.storage.checkpoint import Checkpoint, CheckpointLike, discard_own
from pyro_mgp.storage.scratch import Memory, Scratch, pieces

# No cells are held out of columns with fewer observed cells.
_FEWEST_OBSERVED = 20
# A holdout of fewer cells says too little about when to stop; the bound is watched instead.
_FEWEST_HELD_OUT = 100

NOT_SEQUENTIAL = (
    'inputs="earlier" is for tables of at most 1000 rows and 8 numeric columns, 20 rows of them '
    "complete, whose incomplete columns are neither of discrete support nor bounded nor other than "
    "Gaussian; for joint predictive draws by natural gradients; without a target, an order or "
    'specs of predictors. Take inputs="auto" or "others"'
)


@dataclass(frozen=True)
class TrainingTable:
    """Encoded training table, with the specifications of the links and the choice of their inputs."""

    encoder: TableEncoder
    link_specs: list[LinkSpec]
    encoded: EncodedTable
    """Rows sorted by their keys: in the same order however the table was sorted, and well shuffled."""
    error_variances: Mapping[int, Tensor]
    """Variances of measurement errors by encoded column, each `[N]`."""
    inputs: Choice
    """Inputs of the links: "others" or "earlier"."""
    memory: Memory
    """Where further tensors of the table's size are allocated."""

    @property
    def is_sequential(self) -> bool:
        """True if the inputs of links are complete and earlier columns only."""
        return self.inputs.value == "earlier"

    @property
    def is_gaussian(self) -> bool:
        """True if all links have Gaussian observations, with one noise variance per link."""
        columns = self.encoder.codec.columns
        of_link = [column for column in columns for _ in column.names]
        linked = [link.column for link in self.link_specs]
        return not any(column in self.error_variances for column in linked) and all(
            isinstance(of_link[column].observation(), GaussianObservation)
            for column in linked
            if column < len(of_link)
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
    codec, table, plan, inputs = _encode(parameters, engine, modelled, specs, y is not None)
    target, target_values = fit_target(y, frame)
    complete = table.observed.all(0).numpy()
    with_link = np.ones_like(complete) if parameters.columns == "all" else ~complete
    sequence = None if plan is None else plan.columns
    link_specs = plan_links(
        codec, with_link, parameters.order, target, engine.target_is_input, specs, sequence
    )
    if target_values is not None:
        table = table.append_column(target_values)
    incomplete = np.flatnonzero(np.logical_or.reduce(missing(frame))).tolist()
    encoder = TableEncoder(rules, codec, target, [*map(label_of, frame.columns)], incomplete)
    variances = encoder.error_variances(frame)
    ordered, order = table.sorted_by_key()
    variances = {column: variance[order] for column, variance in variances.items()}
    given = TrainingTable(encoder, link_specs, ordered, variances, inputs, Memory())
    own = frame.copy()
    own_table = InputTable(own, own if modelled is frame else modelled, table)
    fitted = _fit(parameters, engine, given, own_table, kept)
    discard_own(kept, checkpoint)
    return fitted


def fit_files(
    parameters: Parameters, engine: Engine, table: ParquetTable, scratch: Any, checkpoint: CheckpointLike
) -> tuple[FittedModel, Settings]:
    """Fit a model to Parquet files, with one column in memory at a time; see `MGPImputer.fit_parquet`."""
    if len(table) <= SMALL_ROWS:
        return fit_frame(parameters, engine, table.read(), None, checkpoint)
    kept = _checkpoint(parameters, checkpoint)
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
    inputs = Choice("others", f"more than {SMALL_ROWS} rows")
    given = TrainingTable(encoder, link_specs, rows, {}, inputs, files)
    fitted = _fit(parameters, engine, given, None, kept)
    discard_own(kept, checkpoint)
    return fitted


def _checkpoint(parameters: Parameters, place: CheckpointLike) -> Checkpoint | None:
    if place is not None and not isinstance(parameters.random_state, numbers.Integral):
        raise ValueError(
            f"a checkpoint needs random_state=<an integer>, got {parameters.random_state!r}: with other "
            "random numbers, a resumed fit would have another result"
        )
    return Checkpoint.at(place)


def _encode(
    parameters: Parameters, engine: Engine, modelled: pd.DataFrame, specs: Specs, has_target: bool
) -> tuple[TableCodec, EncodedTable, Plan | None, Choice]:
    """Encode a table, with its codec, the plan of a sequential chain (or None), and the choice of inputs."""
    support = parameters.discrete_support
    codec, table = TableCodec.fit_encode(modelled, parameters.warp, support, specs)
    plan, inputs = _plan(parameters, engine, codec, table, modelled, specs, has_target)
    if plan is None or all(column.warp is None for column in codec.columns):
        return codec, table, plan, inputs
    # No transform is needed if nonlinear dependence on other columns explains long tails.
    straight, other_table = codec.untransformed(modelled, table, support, specs)
    other, _ = _plan(parameters, engine, straight, other_table, modelled, specs, has_target, table)
    if other is not None and plan.evidence < other.evidence + CLEARLY:
        return straight, other_table, other, inputs
    return codec, table, plan, inputs


def _plan(
    parameters: Parameters,
    engine: Engine,
    codec: TableCodec,
    table: EncodedTable,
    modelled: pd.DataFrame,
    specs: Specs,
    has_target: bool,
    order_of: EncodedTable | None = None,
) -> tuple[Plan | None, Choice]:
    """Plan a sequential chain if it suits the table; return the plan or None, and the choice of inputs.

    Args:
        parameters: The imputer's parameters.
        engine: Its engine.
        codec: The table's codec.
        table: The table, encoded.
        modelled: The table as it is modelled.
        specs: Column specs.
        has_target: Whether there is a target.
        order_of: The table by whose keys rows are sorted; None for `table`.
    """
    able = not has_target and parameters.order is None and engine.suits_sequential_chain
    if parameters.inputs == "others":
        return None, Choice("others", "as given")
    if not able and parameters.inputs == "auto":
        return None, Choice("others", "a target, an order or a switch of the engine asks for it")
    every, curved_only = parameters.columns == "all", parameters.inputs == "auto"
    found = None
    if able:
        # The plan uses the first complete rows by key, whatever the order of the table and its transforms.
        _, order = (table if order_of is None else order_of).sorted_by_key()
        frame = modelled.iloc[order.numpy()]
        found = sequence_of(codec, table[order], frame, specs, every=every, curved_only=curved_only)
    if parameters.inputs == "earlier":
        if found is None:
            raise ValueError(NOT_SEQUENTIAL)
        return found, Choice("earlier", "as given")
    if found is None:
        return None, Choice("others", "the table is large, not Gaussian throughout, or has no clear curves")
    return found, Choice("earlier", "a small table whose columns depend on each other in curved ways")


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
    settings = choose(parameters, engine, given.inputs, len(given.encoded), all_gaussian=given.is_gaussian)
    if own is not None:
        _check_memory(given, settings.n_inducing.value)
    seed, on_device = settings.seed.value, torch.device(settings.device.value)
    rows = given.encoded.to(home(given.encoded.values, on_device))
    held_out = _hold_out(given, rows.observed, engine.validation_fraction, seed)
    start, filled = _initial_fill(engine, given, rows, held_out, seed)
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
    neighbours: Neighbours | None = None
    support: list[DiscreteSupport | None] = [None] * len(given.link_specs)
    if given.link_specs and engine.propagate == "predictive" and not given.is_sequential:
        neighbours, support = refine(
            chain,
            initial,
            rows[:MAX_ROWS].to(on_device),
            parameters.n_neighbors,
            values_of_links(given.encoder.codec, given.link_specs, on_device),
            joint=engine.joint_draws,
            seed=seed,
        )
    augments = engine.joint_draws and engine.propagate == "predictive" and len(rows) <= MAX_ROWS
    training = rows.to(on_device) if augments and given.link_specs else None
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
        options = Options(
            max_steps=settings.max_steps.value,
            learning_rate=parameters.learning_rate,
            weight_decay=engine.weight_decay,
            batch_size=parameters.batch_size,
            natural_gradient=engine.natural_gradient,
            refresh_fill=engine.refresh_fill,
            patience=engine.patience,
        )
        history = train(
            chain,
            rows,
            held_out,
            filled,
            options,
            seed=settings.seed.value,
            progress=parameters.progress,
            workers=workers,
            keep_fill=False,
            checkpoint=None if workers.is_alone and not current().is_first else checkpoint,
        )
    chain.eval()
    return history


def _hold_out(given: TrainingTable, observed: Tensor, fraction: float, seed: int) -> Tensor:
    """Choose observed cells to hold out of training for validation, Bool `[N, D]`."""
    groups = torch.as_tensor(given.encoder.codec.groups)
    if given.encoder.target is not None:
        groups = torch.cat([groups, groups.max()[None] + 1])
    linked = torch.zeros(len(groups), dtype=torch.bool)
    linked[[link.column for link in given.link_specs]] = True
    # The last indicator of a category has no link, but would give its level away.
    linked = linked.new_tensor([bool(linked[groups == group].any()) for group in groups])
    linked &= observed.sum(0).cpu() >= _FEWEST_OBSERVED
    # The indicators of a category are one cell.
    first = torch.cat([torch.ones_like(groups[:1], dtype=torch.bool), groups.diff() != 0])
    generator, n_cells = torch.Generator().manual_seed(seed), 0
    held_out = given.memory.like(observed)
    for here in pieces(len(observed)):
        known = observed[here].cpu()
        chance = torch.rand(len(known), int(groups.max()) + 1, generator=generator)[:, groups]
        known = known & (chance < fraction) & linked
        n_cells += int(known[:, first].sum())
        held_out[here] = known.to(observed.device)
    return held_out if n_cells >= _FEWEST_HELD_OUT else held_out.zero_()


def _check_memory(given: TrainingTable, n_inducing: int) -> None:
    """Raise a ValueError if a fit needs more memory than is available."""
    n_rows, n_columns = given.encoded.values.shape
    needed = memory.of_fit(n_rows, n_columns, len(given.link_specs), n_inducing)
    advice = "fit to a sample of the rows, take a smaller n_inducing, or end other programs"
    memory.check(needed, f"fitting to {n_rows} rows of {n_columns} encoded columns", advice)
