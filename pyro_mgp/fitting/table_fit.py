"""Fit of a model to a table, from encoding to the choice between links of either kind.

DataFrame ──rules, codecs──▶ EncodedTable ──order, link──▶ links ──`chain_fit`──▶ FittedModel
"""

from __future__ import annotations

import functools
import numbers
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from torch import Tensor

from pyro_mgp._support.messages import listing
from pyro_mgp.data.cells import label_of
from pyro_mgp.data.codecs.kinds import GroupCodec, NumberCodec
from pyro_mgp.data.column_spec import Kind, Label
from pyro_mgp.data.encoded_table import EncodedTable
from pyro_mgp.data.parquet_table import ParquetTable
from pyro_mgp.data.table import TableCodec, read_table
from pyro_mgp.data.table_encoder import TableEncoder, encode_columns, fit_target
from pyro_mgp.fitting.chain_fit import TrainingTable, check_memory, fit_chain
from pyro_mgp.fitting.plan_search import GivenTable, PlanSearch, completions, few_chains
from pyro_mgp.fitting.transform_choice import predicts_better_untransformed
from pyro_mgp.inference.gibbs_chains import n_chains
from pyro_mgp.model.column_order import MOST_INPUTS
from pyro_mgp.model.link_specs import (
    LinkSpec,
    groups_first,
    is_sparse,
    main_groups,
    n_effects,
    plan_links,
    recoded,
    rows_of_training,
)
from pyro_mgp.sampling.fitted_model import FittedModel
from pyro_mgp.settings import (
    Choice,
    Engine,
    Inputs,
    Parameters,
    Settings,
    choose,
    wanted_inputs,
    warn_of_inducing_inputs,
)
from pyro_mgp.storage.checkpoint import Checkpoint, CheckpointLike, discard_own
from pyro_mgp.storage.scratch import Scratch

# Largest table in files that is fitted in memory.
_SMALL_ROWS = 10_000
# Most missing cells, times the number of links, that are weighted by later links.
_MOST_WEIGHTED = 300_000
# Most encoded columns of a table with a joint density, and most links: for each of some columns, iterations
# draw again the functions of all links that see it. In two generated tables of 500 rows links that see all
# others had a CRPS lower by 2 and 4 % (60 columns), in two thirds and a third of the time, and pooled
# intervals were valid (40 tables of 40 columns: .944). With few rows such links fit noise: then columns are
# not limited. Most rows of the chains of a joint density, times the number of links, times the squared number
# of features of a trend (an iteration then takes some five seconds).
_MOST_COLUMNS, _MOST_LINKS, _MOST_WORK = 50, 20, 1e10
# Share of the CRPS of observed cells that local GPs have to remove, on average over links, to be kept instead
# of a joint density. They removed 5 % or more in 17 of 21 public tables (up to 1,000 rows, 30 % missing), and
# less than 3 % in tables of waves, products and other smooth relations (300 to 3,000 rows, two of each), and
# 2 to 5 % where a number is often zero (16 tables of 200 rows).
_LOCAL = 0.05
# Most random effects of a link but for those of the column of groups with the most: the time of an iteration
# grows with the cube of their number.
_MOST_EFFECTS = 2000
# Rows of a large table, those with the smallest keys, that show whether it has a joint density and in which
# order. In nine tables of 10,000 rows (seven of them public) local GPs removed at most .02 of the CRPS of
# 2,000 rows where they removed less than .03 of that of all rows, and .25 or more in the other six tables.
_FEW_ROWS = 2000
# Most rows of a table whose lengthscales are drawn: a gradient takes the cube of their number.
_MOST_ROWS_OF_MCMC = 300


def fit_frame(
    parameters: Parameters,
    engine: Engine,
    X: pd.DataFrame | ArrayLike,
    y: pd.Series[Any] | ArrayLike | None,
    checkpoint: CheckpointLike,
) -> tuple[FittedModel, Settings]:
    """Fit a model to a table in memory; see `MGPImputer.fit`."""
    kept, (frame, kind) = _checkpoint(parameters, checkpoint), read_table(X)
    rules = parameters.rules(frame.columns.tolist()).learn(frame)
    modelled, specs = rules.modelled(frame), rules.modelled_specs
    limits = rules.limits(frame)
    if shared := [label for label in limits if rules.within.group_of(label) is not None]:
        raise ValueError(
            f"Column {shared[0]!r} is constant within groups, and its spec names limits, which are those of "
            "single rows: leave out the limits or the groups"
        )
    if limits and engine.propagate == "latent":
        raise ValueError(
            f'propagate="latent", as in paper(), cannot be used: cells of {listing(limits)} may have limits, '
            "and functions have none. Leave out paper() or the limits"
        )
    known = parameters.warp, parameters.discrete_support, specs, limits, rules.within
    codec = TableCodec.fit(modelled, *known)
    table = codec.encode_cells(modelled, limits=limits)
    if predicts_better_untransformed(codec, table):
        codec = codec.untransformed(modelled, rules.within)
        table = codec.encode_cells(modelled, limits=limits)
    target = fit_target(y, frame)
    own = frame.copy()
    warn_of_inducing_inputs(parameters, len(frame))
    given = GivenTable(parameters, engine, rules, own, own if modelled is frame else modelled, target, limits)
    model, settings = _fit_in_order(given, codec, table, kept)
    model.encoder.codec.warn_of_atoms(modelled, specs)
    if parameters.inference == "mcmc" and model.link_specs:
        pairs = zip(model.chain.names, model.chain.links, strict=True)
        if table.limits is not None:
            raise ValueError(
                'inference="mcmc" cannot be used: missing cells have limits. Take inference="auto"'
            )
        if names := [name for name, link in pairs if not link.is_gaussian]:
            raise ValueError(
                'inference="mcmc" cannot be used: it needs numeric columns with Gaussian noise, and '
                f'{listing(names)} have other observations. Take inference="auto"'
            )
        model = model.with_drawn_lengthscales(progress=parameters.progress)
    discard_own(kept, checkpoint)
    if kind is not None:
        model = replace(model, own=replace(model.own_table(), kind=kind))
    return model, settings


def _fit_in_order(
    given: GivenTable, codec: TableCodec, table: EncodedTable, checkpoint: Checkpoint | None
) -> tuple[FittedModel, Settings]:
    """Fit links that see all other columns, or, if the table suits it, links in an order that it shows."""
    parameters, engine = given.parameters, given.engine
    inputs: Inputs = "earlier" if _needs_joint_density(given, codec, table) else parameters.inputs
    if inputs == "earlier" and parameters.order is not None:
        return _fit_in_given_order(given, codec, table, parameters.order, checkpoint)
    links = given.link_specs(codec, table)
    if reason := _why_others(given, table, links, inputs):
        return _fit_conditional(given, codec, table, links, Choice("others", reason), checkpoint)
    choice, few = Choice("others", "nearby rows improve predictions"), _few_rows(codec, table)
    fit_whole = functools.partial(_fit_conditional, given, codec, table, links, choice, checkpoint)
    deciding = few if len(table) > 2 * _FEW_ROWS else None
    if deciding is not None:
        training, _ = given.training_table(codec, table, links, choice)
        check_memory(training, choose(parameters, engine, choice, len(table), **training.kinds()))
        conditional = _fit_conditional(given.on(deciding), codec, table[deciding], links, choice, None)
    else:
        conditional = fit_whole()
    if inputs == "auto" and conditional[0].local_gain > _LOCAL:
        return conditional if deciding is None else fit_whole()
    # A checkpoint belongs to one fit.
    unused = None if deciding is None else checkpoint
    return _fit_joint_density(given, codec, table, few, conditional[0], unused)


def _needs_joint_density(given: GivenTable, codec: TableCodec, table: EncodedTable) -> bool:
    """Return whether a parameter or a column asks for a joint density; a ValueError if there can be none."""
    parameters, why = given.parameters, _why_not_sequential(given)
    if codec.of_groups:
        _check_groups(given, codec, why)
    specs = given.rules.modelled_specs
    if two_parts := [label for label, spec in specs.items() if spec.kind is Kind.SEMICONTINUOUS]:
        why = 'inputs="others" has none: take inputs="auto"' if parameters.inputs == "others" else why
        if why:
            raise ValueError(f"Column {two_parts[0]!r}: its two parts cannot be had, since {why}")
    if not (codec.of_groups or two_parts or wanted_inputs(parameters) == "earlier"):
        return False
    asked, instead = 'inputs="earlier"', 'inputs="auto" or "others"'
    if parameters.inference == "mcmc":
        asked, instead = 'inference="mcmc"', 'inference="auto"'
        if len(table) > _MOST_ROWS_OF_MCMC:
            why = f"the table has {len(table)} rows, and lengthscales are drawn up to {_MOST_ROWS_OF_MCMC}"
    if why:
        raise ValueError(f"{asked} cannot be used: {why}. Take {instead}")
    return True


def _why_others(given: GivenTable, table: EncodedTable, links: Sequence[LinkSpec], inputs: Inputs) -> str:
    """Return why links see all other columns; an empty text if there may be a joint density."""
    if inputs == "others":
        return "as given"
    if not links:
        return "no column has missing cells"
    if inputs == "earlier":
        return ""
    why = "an order was given" if given.parameters.order is not None else ""
    return _why_not_sequential(given) or why or _why_too_large(table, links)


def _check_groups(given: GivenTable, codec: TableCodec, why: str) -> None:
    """Raise a ValueError if a table with groups has settings that leave its links without random effects."""
    columns = {own.name: own for own in codec.columns}
    for own in codec.columns:
        if isinstance(own, GroupCodec) and own.time is not None and not columns[own.time].width:
            raise ValueError(
                f"Column {own.time!r} holds the times of {own.name!r}, but is constant: expected times that "
                "differ. Leave out the time"
            )
    parameters, names = given.parameters, ", ".join(repr(codec.names[d]) for d in codec.of_groups)
    main = main_groups(codec)
    others = [own for own in codec.columns if isinstance(own, GroupCodec) and own.width and own is not main]
    n_of_others = sum(map(n_effects, others))
    if parameters.inputs == "others":
        why = 'inputs="others" has none: take inputs="auto"'
    elif parameters.kernel not in ("auto", "linear", "linear+quadratic+matern32"):
        why = 'a kernel of your own has none: take kernel="auto"'
    elif parameters.inference == "mcmc":
        why = 'inference="mcmc" draws none: take inference="auto"'
    elif n_of_others > _MOST_EFFECTS:
        why = f"{n_of_others} effects are of smaller columns of groups: expected at most {_MOST_EFFECTS}"
    if why:
        raise ValueError(f"Column {names}: random effects of groups cannot be had, since {why}")


def _fit_in_given_order(
    given: GivenTable,
    codec: TableCodec,
    table: EncodedTable,
    order: Sequence[Label],
    checkpoint: Checkpoint | None,
) -> tuple[FittedModel, Settings]:
    """Fit a joint density whose columns with a link have the order of these labels."""
    codec, table = given.for_joint_density(codec, table, warp=True)
    if len(set(order)) < len(order) or not set(order) <= set(codec.slices):
        some = listing(codec.slices)
        raise ValueError(f"order must name columns, each once: expected some of {some}, got {[*order]}")
    named = [d for label in order for d in range(codec.n_encoded)[codec.slices[label]]]
    # Columns without a place in the order come first, like complete ones.
    if (expected := groups_first(codec, given.rules.within, order)) != list(order):
        raise ValueError(
            "columns that are constant within groups come before others, then times of visits and columns "
            f"with slopes in groups: expected an order such as {expected}, got {list(order)}"
        )
    is_told = given.rules.within.group_of
    if any(
        is_told(label) is not None and not table.observed[:, codec.slices[label]].all() for label in order
    ):
        others = [own.name for own in codec.columns if own.width and own.kind is not Kind.GROUP]
        if without := [label for label in others if label not in order and is_told(label) is None]:
            raise ValueError(
                f"order must also name {listing(without)}: columns that are constant within groups come "
                "before these, which tell of their missing cells"
            )
    linked = np.flatnonzero(given.may_be_missing(codec, table)).tolist()
    sequence = [d for d in linked if d not in named] + named
    links = given.link_specs(codec, table, sequence)
    tables = given.training_table(codec, table, links, Choice("earlier", "as given"))
    return fit_chain(given.parameters, given.engine, *tables, checkpoint)


def _few_rows(codec: TableCodec, table: EncodedTable) -> Tensor | None:
    """Return the numbers of the few rows of a table that show its plan; None if it takes all rows."""
    few, trained = table.random_rows(_FEW_ROWS), rows_of_training(codec, table)
    if trained is not None:  # by whole groups
        few = trained[table[trained].random_rows(_FEW_ROWS)]
    # A column needs observed cells to be learnt.
    is_enough = len(few) < len(table) and table.observed[few].any(0).all()
    return few if is_enough else None


def _fit_conditional(
    given: GivenTable,
    codec: TableCodec,
    table: EncodedTable,
    links: list[LinkSpec],
    choice: Choice,
    checkpoint: Checkpoint | None,
) -> tuple[FittedModel, Settings]:
    """Fit links that see all other columns."""
    tables = given.training_table(codec, table, links, choice)
    return fit_chain(given.parameters, given.engine, *tables, checkpoint)


def _fit_joint_density(
    given: GivenTable,
    codec: TableCodec,
    table: EncodedTable,
    few: Tensor | None,
    conditional: FittedModel,
    checkpoint: Checkpoint | None,
) -> tuple[FittedModel, Settings]:
    """Fit links in the order that draws of a conditional model show, in the few rows of a large table.

    The last fit keeps the checkpoint.
    """
    is_auto = wanted_inputs(given.parameters) == "auto"
    reason = "a joint density of the columns" if is_auto else "as given"
    encodings = [given.for_joint_density(codec, table, warp=True)]
    if any(isinstance(column, NumberCodec) and column.has_optional_warp for column in codec.columns):
        # No transform is needed if nonlinear dependence on other columns explains long tails.
        encodings.append(given.for_joint_density(codec, table, warp=False))
    incomplete = given.may_be_missing(*encodings[0])
    whole = PlanSearch(given, encodings, Choice("earlier", reason), incomplete)
    search = whole
    if few is not None:
        search, table = whole.on(few), table[few]
    completed = recoded(codec, search.codecs[-1], completions(few_chains(conditional), table))
    first = search.fit(search.first_plan(completed), completed)
    found = search.after_rival(search.improved(first))
    if search is whole:
        return found.fitted
    every_row = whole.encodings[found.plan[0]][1]
    return whole.fit(found.plan, completions(found.sampler, every_row, n=1), checkpoint).fitted


def _why_too_large(table: EncodedTable, links: Sequence[LinkSpec]) -> str:
    """Return why a table is too large for a joint density; an empty text if it is not."""
    missing_cells, (n_rows, n_columns) = (~table.observed).sum(0).tolist(), table.values.shape
    n_links, multiplied = len(links), min(n_columns, MOST_INPUTS)
    n_features = 1 + n_columns + multiplied * (multiplied + 1) // 2
    if (n_columns > _MOST_COLUMNS and not is_sparse(n_columns, n_rows)) or n_links > _MOST_LINKS:
        return "the table is wide"
    work = n_chains(n_rows, n_values=n_features) * n_rows * n_links * n_features**2
    n_weighted = sum(missing_cells[link.column] for link in links) * n_links
    return "the table is large" if work > _MOST_WORK or n_weighted > _MOST_WEIGHTED else ""


def _why_not_sequential(given: GivenTable) -> str:
    """Return why a table cannot have links in an order; an empty text if it can."""
    engine = given.engine
    if engine.propagate == "latent" or not engine.joint_draws or engine.needs_svi:
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
    if wanted_inputs(parameters) == "earlier":
        asked = 'inference="mcmc"' if parameters.inference == "mcmc" else 'inputs="earlier"'
        raise ValueError(f"{asked} needs the table in memory: call fit(frame) instead, or leave it out")
    rules = parameters.rules(table.columns.tolist())
    files = Scratch(scratch)
    joint = any(spec.kind in (Kind.GROUP, Kind.SEMICONTINUOUS) for spec in rules.specs.values())
    if rules.only_if or rules.not_modelled or rules.on_other_scales or joint:
        raise ValueError(
            "derived columns, only_if, standard_error, limits, survival, weights, groups and semicontinuous "
            "columns need whole rows, but one column at a time is in memory: fit a sample of the rows with "
            "fit(frame), or leave these out"
        )
    specs = rules.modelled_specs
    codec = TableCodec.fit(table, parameters.warp, parameters.discrete_support, specs)
    rows, incomplete = encode_columns(table, codec, files)
    if predicts_better_untransformed(codec, rows):
        del rows  # their files, before others are written
        codec = codec.untransformed(table)
        rows, incomplete = encode_columns(table, codec, files)
    with_link = np.isin(codec.groups, incomplete) | (parameters.columns == "all")
    link_specs = plan_links(codec, with_link, parameters.order, specs=specs)
    encoder = TableEncoder(rules, codec, None, [*map(label_of, table.columns)], incomplete)
    inputs = Choice("others", f"more than {_SMALL_ROWS:,} rows in files")
    given = TrainingTable(encoder, link_specs, rows, {}, inputs, files.like)
    fitted = fit_chain(parameters, engine, given, None, kept)
    codec.warn_of_atoms(table, specs)
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
