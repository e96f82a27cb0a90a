"""Imputations, completed tables and predictions from a fitted model."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from numpy.typing import ArrayLike
from torch import Tensor

from pyro_mgp._support import memory
from pyro_mgp._support.checks import RandomState, at_least, numbers_of, seed_of
from pyro_mgp._support.messages import listing, progress_bar
from pyro_mgp._support.tiles import TILE
from pyro_mgp.analysis.dropout import AfterDropout
from pyro_mgp.analysis.pooling import check_level
from pyro_mgp.analysis.sensitivity import shifts
from pyro_mgp.data.cells import complete
from pyro_mgp.data.column_spec import Label
from pyro_mgp.data.encoded_table import RowIds
from pyro_mgp.data.table import TableWarning, missing
from pyro_mgp.data.table_encoder import InputTable
from pyro_mgp.results.imputations import Imputations
from pyro_mgp.results.mixing import mixing
from pyro_mgp.results.table_files import write_chunks
from pyro_mgp.sampling.fitted_model import FEW_ROWS, FittedModel
from pyro_mgp.sampling.kept_draws import Batches, keep
from pyro_mgp.sampling.sampler import Sampler
from pyro_mgp.storage.checkpoint import Checkpoint, CheckpointLike, discard_own, fingerprint, versions

# Paths whose mean is a point prediction; more of them, in whole tiles, where functions are uncertain.
_POINT_PATHS, _MANY_POINT_PATHS = 20, TILE
INDICATOR = "missingindicator_"
"""Prefix of scikit-learn's own missing indicators."""


def prepare(
    model: FittedModel,
    X: pd.DataFrame | ArrayLike | None,
    row_ids: RowIds,
    random_state: RandomState,
    batch_size: int | None,
    delta: Mapping[Label, float] | None,
) -> tuple[InputTable, Sampler]:
    """Return the encoded table to impute (the training table if `X` is None), and its sampler."""
    if batch_size is not None:
        at_least("batch_size", batch_size, 1)
    if isinstance(X, int):
        raise TypeError(f"expected a table, got {X}: the number of imputations has a name, impute(m={X})")
    if X is None and row_ids is not None:
        raise ValueError("row_ids tell apart the rows of a table that is given: impute(X, row_ids=...)")
    given = model.own_table() if X is None else model.encode(X, row_ids)
    seed = None if random_state is None else seed_of(random_state)
    return given, model.sampler(seed, shifts(model.encoder.codec, delta or {}))


def draw(
    model: FittedModel,
    given: InputTable,
    sampler: Sampler,
    m: int | Sequence[int],
    batch_size: int | None,
    checkpoint: CheckpointLike,
    *,
    after_dropout: AfterDropout | None = None,
    progress: bool,
) -> Imputations:
    """Draw m imputations of a table, or those with given numbers; see `MGPImputer.impute`."""
    wanted, kept = numbers_of(m), Checkpoint.at(checkpoint, is_folder=True)
    n = len(wanted)
    advice = "take a smaller m, or call impute_to_parquet, which needs memory for the table only"
    memory.check(memory.of_impute(int(given.holes.sum()), n), f"drawing {n} imputations", advice)
    batches = _batches(model, given, sampler, wanted, batch_size, kept)
    if after_dropout is not None:
        if not isinstance(after_dropout, AfterDropout):
            raise TypeError(f"after_dropout must be an AfterDropout, got {after_dropout!r}")
        batches = after_dropout.applied(model, given, sampler, wanted, batches)
    watched = _watched(batches, len(given.incomplete), progress)
    draws = model.encoder.decode(given, watched, n, model.supported_columns())
    cells, partial = model.observed_cells(given, sampler), model.encoder.rules.may_stay_missing
    discard_own(kept, checkpoint)
    observed_cells = cells if isinstance(wanted, range) else None
    return Imputations(given.frame, draws, n, partial, observed_cells, mixing(given, cells), given.kind)


def draw_to_parquet(
    model: FittedModel,
    given: InputTable,
    sampler: Sampler,
    path: str | os.PathLike[str],
    m: int,
    batch_size: int,
    *,
    after_dropout: AfterDropout | None = None,
    overwrite: bool,
    progress: bool,
) -> list[Path]:
    """Draw m imputations and write each table as it is drawn; see `MGPImputer.impute_to_parquet`."""
    at_least("m, the number of imputations,", m, 1)

    def impute_chunk(start: int) -> Imputations:
        part = given[start : start + batch_size]
        batches = sampler.draws(part.encoded[part.incomplete], range(m))
        if after_dropout is not None:
            batches = after_dropout.applied(model, part, sampler, range(m), batches)
        draws = model.encoder.decode(part, batches, m, model.supported_columns())
        return Imputations(part.frame, draws, m, model.encoder.rules.may_stay_missing)

    if given.has_new_effects is not None or model.chain.has_cells_of_groups:
        batch_size = len(given.frame)  # rows have cells, or what tells of their group, in common
    starts = range(0, len(given.frame), batch_size)
    watched = progress_bar(starts, progress, desc="imputing", unit="batches")
    return write_chunks(path, map(impute_chunk, watched), given.frame, m, overwrite=overwrite)


def synthetic(model: FittedModel, n: int, m: int, random_state: RandomState) -> list[Any]:
    """Return m tables of n rows that are drawn from the joint density of all columns."""
    at_least("n, the number of rows,", n, 1)
    at_least("m, the number of tables,", m, 1)
    own = _fitted_table(model)
    modelled = own.frame.drop(columns=list(model.encoder.rules.not_modelled))
    empty = modelled.iloc[:0].reindex(pd.RangeIndex(n)).reindex(columns=own.frame.columns)
    seed = None if random_state is None else seed_of(random_state)
    with warnings.catch_warnings():  # of rows that are entirely missing
        warnings.simplefilter("ignore", TableWarning)
        given = model.encode(empty)
    batches = model.sampler(seed).draws(given.encoded[given.incomplete], range(m))
    cells = model.encoder.decode(given, batches, m, model.supported_columns())
    tables = [
        complete(empty[modelled.columns], {label: each[j] for label, each in cells.items()}) for j in range(m)
    ]
    tables = [table.astype(modelled.dtypes.to_dict()) for table in tables]
    return tables if own.kind is None else [own.kind.of(table) for table in tables]


def _fitted_table(model: FittedModel) -> InputTable:
    """Return the fitted table; a ValueError says why there is no joint density of all its columns."""
    own, codec, rules = model.own, model.encoder.codec, model.encoder.rules
    if own is None:
        raise ValueError("synthetic rows need the fitted table: this imputer was loaded or fitted to files")
    unfilled = [label for label, spec in rules.specs.items() if not spec.impute]
    if rules.weights is not None or rules.survival is not None or unfilled:
        raise ValueError("synthetic rows cannot have weights, survival times or columns of impute=False")
    linked = {codec.groups[spec.column] for spec in model.link_specs if spec.column < codec.n_encoded}
    without = [column.name for i, column in enumerate(codec.columns) if column.width and i not in linked]
    if without or not model.is_sequential or not model.link_specs:
        why = f"columns {listing(without)} have no link" if without else "links see all other columns"
        advice = "fit with columns='all', inputs='earlier', and without groups or survival"
        raise ValueError(f"synthetic rows need a joint density of all columns, but {why}: {advice}")
    return own


def completed(model: FittedModel, X: pd.DataFrame | ArrayLike, *, add_indicator: bool) -> Any:
    """Return a table with its missing cells at their posterior mean, discrete ones at their mode.

    It is of the kind of `X`, but a DataFrame for an array.
    """
    given = model.encode(X)
    uncertain = model.is_sequential or model.chain.n_rows <= FEW_ROWS
    n_paths = _MANY_POINT_PATHS if uncertain else _POINT_PATHS
    point = model.sampler().means(given.encoded[given.incomplete], range(n_paths))
    cells = model.encoder.decode(given, [(slice(0, len(point)), point[None])], 1, are_means=True)
    table = complete(given.frame, {label: values[0] for label, values in cells.items()})
    if add_indicator:
        table = pd.concat([table, _indicators(model, given.frame)], axis=1)
    return table if given.kind is None else given.kind.of(table)


def _indicators(model: FittedModel, frame: pd.DataFrame) -> pd.DataFrame:
    """Return whether cells are missing in a table, for the columns that were incomplete at fit."""
    positions, columns = model.encoder.incomplete, model.encoder.columns
    names = [f"{INDICATOR}{columns[i]}" for i in positions]
    return pd.DataFrame(missing(frame)[:, positions], frame.index, names)


def predict_target(model: FittedModel, X: pd.DataFrame | ArrayLike, level: float) -> pd.DataFrame:
    """Predict mean, sd and central interval of the target, in the target's units, for each row."""
    target = model.encoder.target
    if target is None:
        raise ValueError("predict needs a target: call fit(X, y) first, or impute the column with impute(X)")
    check_level(level)
    given = model.encode(X)
    mixture = model.sampler().target(given.encoded, range(_POINT_PATHS))
    mean, scale = target.mean[0], target.scale[0]
    columns = {
        "mean": mixture.expectation() * scale + mean,
        "sd": mixture.standard_deviation() * scale,
        "lower": mixture.quantile((1 - level) / 2) * scale + mean,
        "upper": mixture.quantile((1 + level) / 2) * scale + mean,
    }
    return pd.DataFrame({k: v.cpu().numpy() for k, v in columns.items()}, index=given.frame.index)


def _batches(
    model: FittedModel,
    given: InputTable,
    sampler: Sampler,
    wanted: Sequence[int],
    batch_size: int | None,
    checkpoint: Checkpoint | None,
) -> Batches:
    """Return the incomplete rows, imputed, batch by batch; those in the checkpoint come first."""
    rows = given.encoded[given.incomplete]
    if checkpoint is None:
        return sampler.draws(rows, wanted, batch_size)

    def draw_from(first: int) -> Batches:
        for here, filled in sampler.draws(rows[slice(first, None)], wanted, batch_size):
            yield slice(here.start + first, here.stop + first), filled

    identity = {
        **versions(),
        "m": len(wanted),
        "imputations": str(list(wanted)),
        "batch size": batch_size,
        "seed": sampler.seed,
        "delta": str(dict(sampler.shifts)),
        "table": fingerprint(rows.tensors().items()),
        "imputer": fingerprint(sorted(model.tensors().items())),
    }
    return keep(rows, draw_from, checkpoint, identity)


def _watched(batches: Batches, n_rows: int, progress: bool) -> Iterator[tuple[slice, Tensor]]:
    """Yield batches of imputed rows while advancing a progress bar."""
    with progress_bar(None, progress, desc="imputing", unit="rows", total=n_rows) as bar:
        for here, filled in batches:
            yield here, filled
            bar.update(here.stop - here.start)
