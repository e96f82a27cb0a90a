"""Imputation of partitioned tables, such as folders of Parquet files, independent of the partitioning.

Draws depend only on a row's cells and on its rank among equal rows, and rounding does not depend on the
partition (see `tiles`). Equal rows of different partitions are therefore ranked first, by hashes::

    partition ── identify ──▶ hashes of incomplete rows, by bucket ─┐
    partition ── identify ──▶ ...                                  ─┴─ rank ──▶ ranks of each partition's rows
    partition and ranks ── impute_partition ──▶ m completed partitions

A part of a table in Parquet files is a run of row groups of one file. The process that imputes a part writes
m files of its own, each whole or not at all; after a failure the part may be imputed again.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pyro_mgp._support.messages import listing
from pyro_mgp.data.column_spec import Label
from pyro_mgp.data.encoded_table import Ranks, RowIds, ranks_among_equals
from pyro_mgp.data.parquet_table import without
from pyro_mgp.imputer import MGPImputer
from pyro_mgp.results.imputations import Imputations
from pyro_mgp.results.table_files import table_names
from pyro_mgp.storage.atomic import atomic_file
from pyro_mgp.storage.header import HEADER

ROWS_AT_ONCE = 100_000
"""Largest number of rows of a part, unless a single row group has more."""
# As `pandas.read_parquet(..., dtype_backend="numpy_nullable")`: integers with missing cells stay integers.
_NULLABLE: dict[Any, Any] = {
    pa.bool_(): pd.BooleanDtype(),
    pa.string(): pd.StringDtype(),
    pa.large_string(): pd.StringDtype(),
    pa.float32(): pd.Float32Dtype(),
    pa.float64(): pd.Float64Dtype(),
    **{getattr(pa, f"int{n}")(): getattr(pd, f"Int{n}Dtype")() for n in (8, 16, 32, 64)},
    **{getattr(pa, f"uint{n}")(): getattr(pd, f"UInt{n}Dtype")() for n in (8, 16, 32, 64)},
}
# Pyro's settings belong to the process, so only one of its threads may impute at a time.
_LOCK = threading.RLock()
# The last imputer that this process has loaded, by its header.
_LOADED: dict[bytes, MGPImputer] = {}
Hashes = tuple[NDArray[np.intp], NDArray[np.uint64], NDArray[np.uint64]]
"""Positions of some rows of a partition, hashes of their cells, and hashes of their labels in the index."""


class FittedState:
    """Picklable fitted imputer, without the fitted table; each process loads it once."""

    def __init__(self, imputer: MGPImputer) -> None:
        with _LOCK, tempfile.TemporaryDirectory() as folder:
            imputer.save(Path(folder) / "imputer")
            self.files = {path.name: path.read_bytes() for path in (Path(folder) / "imputer").iterdir()}
        self.kernel = None if isinstance(imputer.kernel, str) else imputer.kernel
        self.device = imputer.device

    def imputer(self) -> MGPImputer:
        """Return the imputer."""
        header = self.files[HEADER]  # it has checksums of the other files
        with _LOCK:
            if header not in _LOADED:
                _LOADED.clear()
                with tempfile.TemporaryDirectory() as folder:
                    for name, content in self.files.items():
                        (Path(folder) / name).write_bytes(content)
                    imputer = MGPImputer.load(folder, kernel=self.kernel, device=self.device)
                imputer.progress = False
                _LOADED[header] = imputer
            return _LOADED[header]


def impute_partition(
    state: MGPImputer | FittedState,
    frame: pd.DataFrame,
    imputations: int | Sequence[int],
    *,
    row_ids: RowIds = None,
    random_state: int | None = None,
    delta: Mapping[Label, float] | None = None,
) -> Imputations:
    """Impute one partition of a table, consistently with the whole table; safe to call from threads.

    `state` is the fitted imputer, `imputations` their number or their indices. Other arguments, and errors,
    are those of `MGPImputer.impute`, but the partition may have no rows, and `row_ids` is the label of a
    column of ids that are unique in the whole table, ids, or the `Ranks` that `rank` returned. If None, equal
    rows are distinguished only within the partition, and equal rows of different partitions get equal draws.

    Example:
        >>> from pyro_mgp import MGPImputer
        >>> frame = pd.DataFrame({"x": np.arange(20.0), "y": np.arange(20.0) ** 2})
        >>> frame.loc[3, "y"] = np.nan
        >>> imputer = MGPImputer(random_state=0, max_steps=2).fit(frame)
        >>> one, two = impute_partition(imputer, frame[:10], 2), impute_partition(imputer, frame[10:], 2)
        >>> pd.concat([one[1], two[1]]).equals(imputer.impute(m=2)[1])
        True
    """
    if len(frame) == 0:
        return Imputations(frame, {}, imputations if isinstance(imputations, int) else len(imputations))
    with _LOCK:
        imputer = state.imputer() if isinstance(state, FittedState) else state
        if shared := [link.name for link in imputer.model_.link_specs if link.once_per is not None]:
            raise ValueError(
                f"columns {listing(shared)} are constant within groups, of which other partitions may have "
                "rows as well: impute the whole table at once, by impute(frame)"
            )
        return imputer.impute(frame, imputations, row_ids=row_ids, random_state=random_state, delta=delta)


def identify(state: FittedState, frame: pd.DataFrame, n_buckets: int) -> list[Hashes]:
    """Hash the incomplete rows of a partition into buckets; equal rows are in the same bucket."""
    positions, content, labels = np.empty(0, np.intp), np.empty(0, np.uint64), np.empty(0, np.uint64)
    if len(frame):
        with _LOCK:
            positions, content, labels = state.imputer().model_.encoder.identify(frame)
    bucket = content % np.uint64(n_buckets)
    each = bucket == np.arange(n_buckets)[:, None]
    return [(positions[here], content[here], labels[here]) for here in each]


def rank(bucket: Sequence[Hashes]) -> list[Ranks]:
    """Rank equal rows in a bucket of each partition's hashes; return the ranks for each partition.

    Equal rows are ranked by the hashes of their labels, then by their order, as in a whole table.
    """
    positions, content, labels = zip(*bucket, strict=True)
    ranks = ranks_among_equals(np.concatenate(content), np.concatenate(labels))
    split = np.split(ranks, np.cumsum([len(own) for own in positions])[:-1])
    return [Ranks(at[own > 0], own[own > 0]) for at, own in zip(positions, split, strict=True)]


def merged(ranks: Sequence[Ranks]) -> Ranks:
    """Combine the ranks of a partition's rows over all buckets of hashes."""
    positions, numbers = zip(*((part.positions, part.ranks) for part in ranks), strict=True)
    return Ranks(np.concatenate(positions), np.concatenate(numbers))


@dataclass(frozen=True)
class Part:
    """Consecutive rows of a table in Parquet files."""

    path: Path
    row_groups: tuple[int, ...]  # numbers of the part's row groups in the file
    n_rows: int
    number: int = 0  # number of the part in the table, from 0
    first: int = 0  # position of the first row in the table

    @property
    def name(self) -> str:
        """File name of the part in each completed table."""
        return f"part-{self.number:04d}.parquet"

    def read(self) -> pd.DataFrame:
        """Return the rows of the part; raise a ValueError if the file is damaged."""
        with _file_errors(self.path), pq.ParquetFile(self.path) as file:
            table = file.read_row_groups(self.row_groups)
        by_pandas = b"pandas" in (table.schema.metadata or {})
        frame = table.to_pandas(types_mapper=None if by_pandas else _NULLABLE.get)
        if isinstance(frame.index, pd.RangeIndex):
            # Rows without labels are numbered through the whole table.
            frame.index = pd.RangeIndex(self.first, self.first + len(frame), name=frame.index.name)
        return frame

    def write(self, folder: Path, frame: pd.DataFrame) -> None:
        """Write a completed copy of the part into a folder, with the column types of its source file."""
        with atomic_file(folder / self.name) as partial, _file_errors(self.path):
            as_text = all(isinstance(label, str) for label in frame.columns)
            schema = pq.read_schema(self.path).remove_metadata() if as_text else None
            pq.write_table(pa.Table.from_pandas(frame, schema), partial)


def parts_of(folder: str | os.PathLike[str], rows_at_once: int = ROWS_AT_ONCE) -> list[Part]:
    """Return the parts of all Parquet files in a folder and its subfolders, ordered by name.

    Files and folders whose names start with a dot or an underscore are ignored. A part has more than
    `rows_at_once` rows only if a single row group has more. Raises a ValueError if there is no such folder,
    it contains no Parquet file, or a file is damaged.
    """
    root = Path(folder).resolve()
    if not root.is_dir():
        raise ValueError(f"expected a folder of Parquet files, got {str(root)!r}")
    found = sorted(root.rglob("*.parquet"))
    files = [path for path in found if not re.search(r"(^|[/\\])[._]", str(path.relative_to(root)))]
    if not files:
        raise ValueError(f"there is no file that ends in .parquet in {str(root)!r}")
    parts: list[Part] = []
    for path in files:
        for part in _parts_of_file(path, rows_at_once):
            first = parts[-1].first + parts[-1].n_rows if parts else 0
            parts.append(replace(part, number=len(parts), first=first))
    return parts


def _parts_of_file(path: Path, rows_at_once: int) -> Iterator[Part]:
    with _file_errors(path):
        metadata = pq.read_metadata(path)
    groups: list[int] = []
    n_rows = 0
    for i in range(metadata.num_row_groups):
        own = metadata.row_group(i).num_rows
        if groups and n_rows + own > rows_at_once:
            yield Part(path, tuple(groups), n_rows)
            groups, n_rows = [], 0
        groups, n_rows = [*groups, i], n_rows + own
    yield Part(path, tuple(groups), n_rows)


@dataclass(frozen=True)
class Job:
    """Imputation of Parquet files, part by part."""

    folder: Path  # completed tables, each a folder of parts; it must have this path on all workers
    m: int
    dropped: tuple[Label, ...] = ()  # columns that were not fitted; they are kept in the completed tables
    random_state: int | None = None  # seed of the draws; None for the imputer's own

    @property
    def folders(self) -> list[Path]:
        """Output folders of the m completed tables."""
        return [self.folder / name.removesuffix(".parquet") for name in table_names(self.m, "parquet")]

    def is_done(self, part: Part) -> bool:
        """Return whether all completed copies of a part exist with all of their rows."""
        try:
            sizes = [pq.read_metadata(folder / part.name).num_rows for folder in self.folders]
        except (OSError, pa.ArrowException):  # a file does not exist, or was cut short by a power failure
            return False
        return all(size == part.n_rows for size in sizes)

    def identify(self, state: FittedState, part: Part, n_buckets: int) -> list[Hashes]:
        """Hash the incomplete rows of a part into buckets; see `partitions.identify`."""
        with _errors_named(part):
            frame = part.read()
            return identify(state, frame[without(frame.columns, self.dropped)], n_buckets)

    def impute(self, state: FittedState, part: Part, row_ids: RowIds = None) -> list[str]:
        """Write the m completed copies of a part; return warnings, which workers would not show."""
        with _errors_named(part), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            frame = part.read()
            given = frame[without(frame.columns, self.dropped)]
            draws = impute_partition(state, given, self.m, row_ids=row_ids, random_state=self.random_state)
            for folder, completed in zip(self.folders, draws, strict=True):
                # Not by `join`, which would repeat rows with equal labels.
                whole = pd.concat([completed, frame[[*self.dropped]]], axis="columns")
                part.write(folder, whole[frame.columns])
        ours = [w for w in caught if w.category.__module__.split(".")[0] == "pyro_mgp"]
        return sorted({str(warning.message) for warning in ours})


@contextlib.contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    """Convert errors of Arrow to ValueErrors that name the file."""
    try:
        yield
    except pa.ArrowException as error:
        raise ValueError(f"{str(path)!r} cannot be read, or its copy cannot be written: {error}") from error


@contextlib.contextmanager
def _errors_named(part: Part) -> Iterator[None]:
    """Add a part's file name and first row to the messages of errors."""
    try:
        yield
    except (ValueError, TypeError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{part.path.name}, rows from {part.first}: {error}") from error
