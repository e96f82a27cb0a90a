"""Folders of Parquet files, read part by part and written part by part.

A part is a run of row groups of one file. Whoever imputes it writes m files of its own, beside and then
renamed, so that nothing half-written is ever seen under a part's name, and to do a part again does no harm.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from pyro_mgp.data.column_spec import Label
from pyro_mgp.data.parquet_table import without
from pyro_mgp.data.row_ids import RowIds
from pyro_mgp.results.table_files import table_names
from pyro_mgp.scaling.partitions import FittedState, Hashes, identify, impute_partition
from pyro_mgp.storage.atomic import atomic_file

ROWS_AT_ONCE = 100_000
"""Rows of a part, unless a single row group has more."""
# As `pandas.read_parquet(..., dtype_backend="numpy_nullable")` has it: integers with holes stay integers.
_NULLABLE: dict[Any, Any] = {
    pa.bool_(): pd.BooleanDtype(),
    pa.string(): pd.StringDtype(),
    pa.large_string(): pd.StringDtype(),
    pa.float32(): pd.Float32Dtype(),
    pa.float64(): pd.Float64Dtype(),
    **{getattr(pa, f"int{n}")(): getattr(pd, f"Int{n}Dtype")() for n in (8, 16, 32, 64)},
    **{getattr(pa, f"uint{n}")(): getattr(pd, f"UInt{n}Dtype")() for n in (8, 16, 32, 64)},
}


@dataclass(frozen=True)
class Part:
    """Some rows of a table in Parquet files."""

    path: Path
    """The file."""
    row_groups: tuple[int, ...]
    """Numbers of its row groups."""
    n_rows: int
    """How many rows they have."""
    number: int = 0
    """Of the part in the table, from 0."""
    first: int = 0
    """Position of its first row in the table."""

    @property
    def name(self) -> str:
        """Name of the files it becomes."""
        return f"part-{self.number:04d}.parquet"

    def read(self) -> pd.DataFrame:
        """Its rows.

        Raises:
            ValueError: If the file is damaged.
        """
        with _told(self.path), pq.ParquetFile(self.path) as file:
            table = file.read_row_groups(self.row_groups)
        ours = b"pandas" in (table.schema.metadata or {})
        frame = table.to_pandas(types_mapper=None if ours else _NULLABLE.get)
        if isinstance(frame.index, pd.RangeIndex):
            # Rows without labels are known by their place, as when all files are read together.
            frame.index = pd.RangeIndex(self.first, self.first + len(frame), name=frame.index.name)
        return frame

    def write(self, folder: Path, frame: pd.DataFrame) -> None:
        """Write a completed copy into a folder, with the schema that its file has.

        Raises:
            ValueError: If a column cannot be stored in the type it came in.
        """
        with atomic_file(folder / self.name) as partial, _told(self.path):
            as_text = all(isinstance(label, str) for label in frame.columns)
            schema = pq.read_schema(self.path).remove_metadata() if as_text else None
            pq.write_table(pa.Table.from_pandas(frame, schema), partial)


def parts_of(folder: str | os.PathLike[str], rows_at_once: int = ROWS_AT_ONCE) -> list[Part]:
    """The parts of all Parquet files of a folder and of the folders in it, by name.

    Args:
        folder: The folder. Files and folders whose names start with a dot or an underscore are left out.
        rows_at_once: Rows of a part; a single row group may have more.

    Raises:
        ValueError: If there is no such folder, it holds no Parquet file, or a file is damaged.
    """
    root = Path(folder).resolve()
    if not root.is_dir():
        raise ValueError(f"expected a folder of Parquet files, got {str(root)!r}")
    hidden = (".", "_")
    files = [
        path
        for path in sorted(root.rglob("*.parquet"))
        if not any(name.startswith(hidden) for name in path.relative_to(root).parts)
    ]
    if not files:
        raise ValueError(f"there is no file that ends in .parquet in {str(root)!r}")
    parts: list[Part] = []
    for path in files:
        for part in _parts_of_file(path, rows_at_once):
            first = parts[-1].first + parts[-1].n_rows if parts else 0
            parts.append(replace(part, number=len(parts), first=first))
    return parts


def _parts_of_file(path: Path, rows_at_once: int) -> Iterator[Part]:
    with _told(path):
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
    """What is to be done with parts."""

    folder: Path
    """Where the completed tables go, each a folder of parts; workers must see it under this name."""
    m: int
    dropped: tuple[Label, ...] = ()
    """Columns that are not modelled, and pass through."""
    row_ids: Label | None = None
    """The one of them whose cells are unique ids; see `MGPImputer.impute`."""
    random_state: int | None = None

    @property
    def folders(self) -> list[Path]:
        """One for each completed table."""
        return [self.folder / name.removesuffix(".parquet") for name in table_names(self.m, "parquet")]

    def is_done(self, part: Part) -> bool:
        """Whether all completed copies of a part are there, with all of its rows."""
        return all(_has_rows(folder / part.name, part.n_rows) for folder in self.folders)

    def identify(self, state: FittedState, part: Part, n_buckets: int) -> list[Hashes]:
        """See `partitions.identify`."""
        with _named(part):
            return identify(state, self._modelled(part.read()), n_buckets)

    def impute(self, state: FittedState, part: Part, identity: RowIds = None) -> list[str]:
        """Write the m completed copies of a part.

        Args:
            state: The fitted imputer.
            part: The part.
            identity: What tells its rows apart, if not the job's `row_ids`.

        Returns:
            What was warned of: workers warn where nobody reads it.
        """
        with _named(part), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            frame = part.read()
            modelled = self._modelled(frame)
            ids = identity if self.row_ids is None else frame[self.row_ids].array
            draws = impute_partition(state, modelled, self.m, row_ids=ids, random_state=self.random_state)
            for folder, completed in zip(self.folders, draws, strict=True):
                part.write(folder, completed.join(frame[[*self.dropped]])[frame.columns])
        return sorted({str(warning.message) for warning in caught if _is_ours(warning.category)})

    def _modelled(self, frame: pd.DataFrame) -> pd.DataFrame:
        """A part without the columns that pass through.

        Raises:
            ValueError: If there is no such column.
        """
        return frame[without(frame.columns, self.dropped)]


def _has_rows(path: Path, n_rows: int) -> bool:
    try:
        return bool(pq.read_metadata(path).num_rows == n_rows)
    except (OSError, pa.ArrowException):  # not there, or cut short when the power failed
        return False


def _is_ours(category: type[Warning]) -> bool:
    return category.__module__.split(".")[0] == "pyro_mgp"


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except pa.ArrowException as error:
        raise ValueError(f"{str(path)!r} cannot be read, or not be written again: {error}") from error


@contextlib.contextmanager
def _named(part: Part) -> Iterator[None]:
    """Errors that say in which file of many they happened."""
    try:
        yield
    except (ValueError, TypeError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{part.path.name}, rows from {part.first}: {error}") from error
