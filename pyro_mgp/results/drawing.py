"""Imputations, completed tables and predictions from a fitted model."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from pyro_mgp._support import memory
from pyro_mgp._support.tiles import TILE
from pyro_mgp.data.column_spec import Label
from pyro_mgp.data.completion import complete
from pyro_mgp.data.table_encoder import InputTable
from pyro_mgp.results.imputations import Imputations
from pyro_mgp.results.table_files import write_chunks
from pyro_mgp.sampling.fitted_model import FittedModel
from pyro_mgp.sampling.kept_draws import Batches, keep
from pyro_mgp.sampling.sampler import Sampler
from pyro_mgp.storage.checkpoint import Checkpoint, fingerprint, versions

# Paths whose mean is a point prediction; more of them, in whole tiles, where functions are uncertain.
_POINT_PATHS, _MANY_POINT_PATHS = 20, TILE
# Functions learnt from at most so many rows are uncertain.
_FEW_ROWS = 300


def draw(
    model: FittedModel,
    given: InputTable,
    sampler: Sampler,
    wanted: Sequence[int],
    batch_size: int | None,
    checkpoint: Checkpoint | None,
    *,
    progress: bool,
) -> Imputations:
    """Draw the numbered imputations of a table; see `MGPImputer.impute`.

    Raises:
        ValueError: Memory does not suffice, or the checkpoint belongs to other draws.
        OSError: The checkpoint cannot be written.
    """
    m = len(wanted)
    advice = "take a smaller m, or call impute_to_parquet, which needs memory for the table only"
    memory.check(memory.of_impute(int(given.holes.sum()), m), f"drawing {m} imputations", advice)
    batches = _batches(model, given, sampler, wanted, batch_size, checkpoint)
    draws = _decode(model, given, _watched(batches, len(given.incomplete), progress), m)
    cells = model.observed_cells(given, sampler) if isinstance(wanted, range) else None
    return Imputations(given.frame, draws, m, model.encoder.rules.may_stay_missing, cells)


def draw_to_parquet(
    model: FittedModel,
    given: InputTable,
    sampler: Sampler,
    path: str | os.PathLike[str],
    m: int,
    batch_size: int,
    *,
    overwrite: bool,
    progress: bool,
) -> list[Path]:
    """Draw m imputations and write each table as it is drawn; see `MGPImputer.impute_to_parquet`."""

    def impute_chunk(start: int) -> Imputations:
        part = given[start : start + batch_size]
        draws = _decode(model, part, sampler.draws(part.incomplete_rows, range(m)), m)
        return Imputations(part.frame, draws, m, model.encoder.rules.may_stay_missing)

    starts = _bar(range(0, len(given.frame), batch_size), progress, unit="batches")
    return write_chunks(path, map(impute_chunk, starts), given.frame, m, overwrite=overwrite)


def completed(model: FittedModel, given: InputTable) -> pd.DataFrame:
    """Return a table with its missing cells at their posterior mean, discrete ones at their mode."""
    uncertain = model.is_sequential or model.chain.n_rows <= _FEW_ROWS
    n_paths = _MANY_POINT_PATHS if uncertain else _POINT_PATHS
    point = model.sampler().means(given.incomplete_rows, range(n_paths))
    cells = model.encoder.decode(given, [(slice(0, len(point)), point[None])], 1, {})
    return complete(given.frame, {label: values[0] for label, values in cells.items()})


def predict_target(model: FittedModel, given: InputTable, level: float) -> pd.DataFrame:
    """Return mean, sd and central interval of the target in its own units, one row per row of the table.

    Raises:
        ValueError: The model has no target.
    """
    target = model.encoder.target
    if target is None:
        raise ValueError("predict needs a target: call fit(X, y) first, or impute the column with impute(X)")
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
    """Return the incomplete rows filled, batch by batch, those in the checkpoint first."""
    rows = given.incomplete_rows
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
        "table": fingerprint(vars(rows).items()),
        "imputer": fingerprint(sorted(model.tensors().items())),
    }
    return keep(rows, draw_from, checkpoint, identity)


def _decode(
    model: FittedModel, given: InputTable, batches: Iterable[tuple[slice, Tensor]], m: int
) -> dict[Label, NDArray[Any]]:
    return model.encoder.decode(given, batches, m, model.supported_columns())


def _bar(items: Iterable[int] | None, progress: bool, **options: Any) -> Any:
    """Return a progress bar that is shown on terminals only."""
    return tqdm(items, desc="imputing", disable=None if progress else True, leave=False, **options)


def _watched(batches: Batches, n_rows: int, progress: bool) -> Iterator[tuple[slice, Tensor]]:
    """Yield the batches and advance a progress bar."""
    with _bar(None, progress, total=n_rows, unit="rows") as bar:
        for here, filled in batches:
            yield here, filled
            bar.update(here.stop - here.start)
