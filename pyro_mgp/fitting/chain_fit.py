"""Fit of a chain to an encoded table.

links ──initial fill, kernel, likelihoods──▶ Chain ──training──▶ trained chain ──leave-one-out errors──▶
local GPs, discrete support ──▶ FittedModel
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyro_mgp._support import memory
from pyro_mgp._support.devices import home
from pyro_mgp._support.processes import ALONE, current
from pyro_mgp.data.encoded_table import EncodedTable
from pyro_mgp.data.table import TableCodec
from pyro_mgp.data.table_encoder import InputTable, TableEncoder
from pyro_mgp.inference.training import History, Options, train
from pyro_mgp.model import build
from pyro_mgp.model.chain import Chain
from pyro_mgp.model.kernels import WITH_TREND, KernelFactory, resolve_kernel
from pyro_mgp.model.likelihoods import Gaussian, Ordinal
from pyro_mgp.model.limited_cells import clamped
from pyro_mgp.model.link_specs import (
    LinkSpec,
    rows_in_kernels,
    rows_of_training,
    with_level_orders,
    with_product_inputs,
)
from pyro_mgp.sampling.fitted_model import FittedModel
from pyro_mgp.sampling.initial_fill import InitialFill
from pyro_mgp.sampling.local_gp import MAX_INPUTS
from pyro_mgp.sampling.refinement import MAX_ROWS, refine
from pyro_mgp.settings import Choice, Engine, Parameters, Settings, choose
from pyro_mgp.storage.checkpoint import Checkpoint
from pyro_mgp.storage.scratch import pieces

# Adam's step size where it moves q(u) as well, and such steps from check to check.
_RATE_OF_SVI, _STEPS_OF_SVI_TO_CHECK = 0.03, 25
# Most rows given which functions are drawn, times the number of links; 10,000 rows always are.
_MOST_AUGMENTED = 500_000
# Fewest observed cells of a column of which some are held out, and fewest such cells: fewer say too little
# about when to stop, and the bound is watched instead.
_FEWEST_OBSERVED, _FEWEST_HELD_OUT = 20, 100
# Rows from which the order of levels and the inputs of products are chosen.
_ROWS_OF_LINKS = 5000


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
    empty_like: Callable[[Tensor], Tensor]
    """Allocator of further tensors of the table's size: in memory, or in temporary files."""
    completed: Tensor | None = None
    """The table completed by a draw of another model, `[N, D]`, to train on as on data; None to redraw."""

    @property
    def is_sequential(self) -> bool:
        """True if the inputs of links are complete and earlier columns only."""
        return self.inputs.value == "earlier"

    def kinds(self) -> dict[str, bool]:
        """Return whether all links may have local GPs, and whether likelihoods have parameters of shape."""
        made = build.likelihoods(self.encoder.codec, self.link_specs, [1.0] * len(self.link_specs))
        has_errors = any(link.column in self.error_variances for link in self.link_specs)
        is_wide = any(len(link.inputs) > MAX_INPUTS for link in self.link_specs)
        gaussian = [isinstance(each, Gaussian) for each in made]
        # A threshold between two values is learnt with the intercept of the function.
        binary = [isinstance(each, Ordinal) and len(each.values) <= 2 for each in made]
        shapes = not all(a or b for a, b in zip(gaussian, binary, strict=True))
        return {"all_local": all(gaussian) and not has_errors and not is_wide, "shapes": shapes}

    def hold_out(self, observed: Tensor, fraction: float, seed: int) -> Tensor:
        """Choose observed cells to hold out of training for validation, Bool `[N, D]`."""
        groups = torch.as_tensor(self.encoder.codec.groups)
        if self.encoder.target is not None:
            groups = torch.cat([groups, groups.max()[None] + 1])
        # One indicator of a category has no link, but would give its level away.
        linked = torch.isin(groups, groups[[link.column for link in self.link_specs]])
        linked &= observed.sum(0).cpu() >= _FEWEST_OBSERVED
        # The indicators of a category are one cell.
        first = torch.cat([torch.ones_like(groups[:1], dtype=torch.bool), groups.diff() != 0])
        generator, n_cells = torch.Generator().manual_seed(seed), 0
        held_out = self.empty_like(observed)
        for here in pieces(len(observed)):
            known = observed[here].cpu()
            chance = torch.rand(len(known), int(groups.max()) + 1, generator=generator)[:, groups]
            known = known & (chance < fraction) & linked
            n_cells += int(known[:, first].sum())
            held_out[here] = known.to(observed.device)
        return held_out if n_cells >= _FEWEST_HELD_OUT else held_out.zero_()


def fit_chain(
    parameters: Parameters,
    engine: Engine,
    given: TrainingTable,
    own: InputTable | None,
    checkpoint: Checkpoint | None,
) -> tuple[FittedModel, Settings]:
    """Build and train the chain, and fit local GPs and discrete support where they apply."""
    current().check_same(given.encoded.keys)
    settings = choose(parameters, engine, given.inputs, len(given.encoded), **given.kinds())
    if own is not None:
        check_memory(given, settings)
    seed, on_device = settings.seed.value, torch.device(settings.device.value)
    rows = given.encoded.to(home(given.encoded.values, on_device))
    fraction = engine.validation_fraction if given.completed is None else 0.0
    held_out = given.hold_out(rows.observed, fraction, seed)
    start, filled = _initial_fill(engine, given, rows, held_out, seed)
    if given.completed is not None:
        filled = given.completed.to(rows.values)
    codec, some = given.encoder.codec, filled[:_ROWS_OF_LINKS].cpu()
    link_specs = with_level_orders(codec, given.link_specs, some, rows.observed[:_ROWS_OF_LINKS].cpu())
    if resolve_kernel(settings.kernel.value) in WITH_TREND:
        link_specs = with_product_inputs(codec, link_specs, some)
    given = replace(given, link_specs=link_specs)
    noise = build.starting_noise(start.covariance, given.link_specs, given.is_sequential)
    part = rows_of_training(given.encoder.codec, rows) if given.is_sequential else None
    trained = slice(None) if part is None else part
    inducing = filled[trained][: settings.n_inducing.value].to(on_device)
    parts = settings.kernel.value, given.encoder.codec, given.link_specs, noise, inducing, len(rows)
    chain = untrained_chain(parameters, engine, *parts, is_sequential=given.is_sequential)
    for link in chain.links:
        if (known := given.error_variances.get(link.column)) is not None:
            link.known_variance = known.to(on_device)
    history = History()
    if given.link_specs:
        of_training = rows[trained], held_out[trained], filled[trained]
        history = _train(parameters, engine, settings, given, chain, *of_training, checkpoint)
    chain.eval()
    initial = InitialFill.fit(rows.values, rows.observed, engine.initial_fill, start)
    initial = initial.without(given.encoder.codec.of_groups).to(on_device)
    is_small = len(rows) <= max(MAX_ROWS, _MOST_AUGMENTED // max(len(given.link_specs), 1))
    has_effects = any(link.effects for link in given.link_specs)
    augments = (is_small or has_effects) and engine.joint_draws and engine.propagate == "predictive"
    training = rows.to(on_device) if augments and given.link_specs else None
    model = FittedModel(
        given.encoder, given.link_specs, chain, initial, None, [None] * len(given.link_specs), training,
        history, seed, engine.joint_draws, own,
    )  # fmt: skip
    if given.link_specs and engine.propagate == "predictive":
        known = rows_in_kernels(given.encoder.codec, rows.values)
        model = refine(
            model,
            rows[known][:MAX_ROWS].to(on_device),
            # Residuals are known at observed cells only, which are other cells than those within limits.
            0 if given.is_sequential or rows.limits is not None else parameters.n_neighbors,
            build.values_of_links(given.encoder.codec, given.link_specs, on_device),
            None if given.completed is None else filled[known].to(on_device),
        )
    return model, settings


def check_memory(given: TrainingTable, settings: Settings) -> None:
    """Raise a ValueError if a fit to a table needs more memory than is available."""
    n_rows, n_columns = given.encoded.values.shape
    needed = memory.of_fit(n_rows, n_columns, len(given.link_specs), settings.n_inducing.value)
    advice = "fit to a sample of the rows, take a smaller n_inducing, or end other programs"
    memory.check(needed, f"fitting to {n_rows} rows of {n_columns} encoded columns", advice)


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

    They start at these noise variances of the links, with rows of the filled table `[M, D]` as inducing
    inputs. The links of a sequential chain see complete and earlier columns only.
    """
    return build.build_chain(
        link_specs,
        resolve_kernel(kernel),
        inducing,
        build.likelihoods(codec, link_specs, noise),
        products=build.products_of(codec, link_specs),
        sequential=is_sequential,
        train_inducing=engine.train_inducing,
        n_rows=n_rows,
        n_paths=engine.n_paths,
        n_sweeps=parameters.n_sweeps,
        propagate=engine.propagate,
        backpropagate=engine.backpropagate,
        precision=parameters.precision,
        compounds=build.compounds(codec, link_specs, inducing.device),
    )


def _initial_fill(
    engine: Engine, given: TrainingTable, rows: EncodedTable, held_out: Tensor, seed: int
) -> tuple[InitialFill, Tensor]:
    """Fit the initial fill without the held-out cells, and return it with the filled table, `[N, D]`."""
    seen = replace(rows, observed=given.empty_like(rows.observed))
    for here in pieces(len(rows)):
        seen.observed[here] = rows.observed[here] & ~held_out[here]
    start = InitialFill.fit(seen.values, seen.observed, engine.initial_fill)
    start = start.without(given.encoder.codec.of_groups)
    filled = given.empty_like(rows.values)
    for here in pieces(len(rows)):
        some = seen[here]
        filled[here] = clamped(start.draw(some, seed)[0], some.observed, some.limits)
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
    # The chain of a small table is trained by each process alone: its rows are too few to share.
    workers, by_svi = ALONE if given.is_sequential else current(), settings.inference.value == "svi"
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
    chain.n_rows, n_rows = len(rows), chain.n_rows  # which may be a part of the table
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
        checkpoint=None if workers.is_alone and not current().is_first else checkpoint,
    )
    chain.n_rows = n_rows
    return history
