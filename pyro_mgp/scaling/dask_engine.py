"""Imputation of Dask DataFrames and folders of Parquet files, partition by partition, on one machine or many.

Completed tables equal those of `MGPImputer.impute`, for any partitions and any number and order of workers;
the partitions of a worker that dies are imputed again by others. Results of processors of different kinds may
differ in the last bit.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sklearn.utils.validation import check_is_fitted

from pyro_mgp._support.checks import at_least
from pyro_mgp._support.messages import progress_bar, warn_user
from pyro_mgp.data.column_spec import Label
from pyro_mgp.data.encoded_table import without_ids
from pyro_mgp.data.table import TableWarning, check_same_columns
from pyro_mgp.scaling import partitions
from pyro_mgp.scaling.partitions import FittedState, Job, Part, impute_partition, parts_of
from pyro_mgp.storage.header import HEADER, write_header

if TYPE_CHECKING:
    import dask.dataframe as dd
    from dask.delayed import Delayed
    from distributed import Client, Future

    from pyro_mgp.imputer import MGPImputer

FORMAT = "ParquetFolders"
"""Name of the format in the header of an imputed folder."""
_FORMAT_VERSION = 1
# Number of partitions whose incomplete rows are ranked by one task, in 24 bytes per row.
_PARTITIONS_PER_BUCKET = 32


def impute_dask(
    ddf: dd.DataFrame,
    imputer: MGPImputer,
    m: int = 20,
    *,
    row_ids: Label | None = None,
    random_state: int | None = None,
    delta: Mapping[Label, float] | None = None,
) -> list[dd.DataFrame]:
    """Draw m imputations of a Dask DataFrame, lazily.

    The tables equal those of `imputer.impute(ddf.compute(), m)`, and have the partitions of `ddf`. Compute
    them together: `dask.compute(*tables)` imputes each partition once, one table after the other imputes it
    m times. The fitted imputer is sent to each worker once, without the fitted table.

    Without ids, equal rows are distinguished by the labels of the index, and the table is read twice: once to
    find equal rows, once to impute. With `row_ids`, the label of a column of ids that are unique in the whole
    table, it is read once. `random_state` and `delta` are those of `MGPImputer.impute`.

    Raises:
        ImportError: Dask is not installed.
        ValueError: `m` is below 1, or the columns are not those of the fitted table.

    Example:
        >>> import dask.dataframe as dd, numpy as np, pandas as pd
        >>> from pyro_mgp import MGPImputer
        >>> frame = pd.DataFrame({"x": np.arange(20.0), "y": np.arange(20.0) ** 2})
        >>> frame.loc[3, "y"] = np.nan
        >>> imputer = MGPImputer(random_state=0, max_steps=2).fit(frame)
        >>> tables = impute_dask(dd.from_pandas(frame, npartitions=3), imputer, m=2)
        >>> tables[1].compute().equals(imputer.impute(m=2)[1])
        True
    """
    dask = imported()
    if not isinstance(ddf, dask.dataframe.DataFrame):
        came = f"{type(ddf).__module__.partition('.')[0]}.{type(ddf).__name__}"
        raise TypeError(f"expected a DataFrame of Dask, got {came}: for others, call imputer.impute")
    check_is_fitted(imputer, "model_")
    at_least("m, the number of imputations,", m, 1)
    columns, _ = without_ids(ddf._meta, row_ids, imputer.model_.encoder.columns)
    check_same_columns(columns, imputer.model_.encoder.columns)
    state = dask.delayed(FittedState(imputer), traverse=False)
    parts = ddf.to_delayed()
    ids = _ids_of(partitions.identify, state, parts, row_ids)
    complete = dask.delayed(impute_partition, traverse=False)
    options = {"random_state": random_state, "delta": delta}
    completed = [
        complete(state, part, m, row_ids=own, **options) for part, own in zip(parts, ids, strict=True)
    ]
    return [
        dask.dataframe.from_delayed(
            [tables[j] for tables in completed], meta=ddf._meta, divisions=ddf.divisions, verify_meta=False
        )
        for j in range(m)
    ]


def impute_into(
    partial: Path,
    folder: str | os.PathLike[str],
    imputer: MGPImputer,
    m: int,
    *,
    client: Client,
    dropped: Sequence[Label] = (),
    row_ids: Label | None = None,
    random_state: int | None = None,
    progress: bool = True,
) -> Job:
    """Impute a folder of Parquet files m times on a Dask cluster, and write the completed tables.

    The tables equal those of `imputer.impute(pandas.read_parquet(folder), m)`. Each process holds a few parts
    in memory. Workers write the parts that they impute, so both folders must have these paths on all workers.

    The existing folder `partial` gets `imputation_01/part-0000.parquet`, ...; parts that an earlier call has
    written are kept. The columns `dropped` were not fitted; they are kept in the completed tables, as is the
    column `row_ids`. Each warning of `MGPImputer.impute` is given once. Raises an ImportError without Dask.
    """
    dask = imported()
    parts = parts_of(folder)
    job = Job(partial, m, tuple(label for label in dropped if label != row_ids), random_state)
    for into in job.folders:
        into.mkdir(exist_ok=True)
    state = dask.delayed(FittedState(imputer), traverse=False)
    ids = _ids_of(job.identify, state, parts, row_ids)
    todo = [(part, own) for part, own in zip(parts, ids, strict=True) if not job.is_done(part)]
    impute = dask.delayed(job.impute)
    futures = client.compute([impute(state, part, own) for part, own in todo])
    try:
        for message in _done(futures, [part for part, _ in todo], progress):
            warn_user(message, TableWarning)
    finally:
        client.cancel(futures)  # after an error, workers must not write any further
    _remove_partial_files(job.folders, parts)
    names = [HEADER, *(each.name for each in job.folders)]
    write_header(partial, FORMAT, _FORMAT_VERSION, {"m": m, "files": names})
    return job


def _done(futures: Sequence[Future], parts: Sequence[Part], progress: bool) -> Iterator[str]:
    """Wait until parts are imputed; yield each distinct warning once, and raise the first error."""
    from distributed import KilledWorker, as_completed

    seen: set[str] = set()
    sizes = {future.key: part.n_rows for future, part in zip(futures, parts, strict=True)}
    n_rows = sum(sizes.values())
    with progress_bar(None, progress, desc="imputing", unit="rows", total=n_rows) as bar:
        for future in as_completed(futures):
            try:
                messages = future.result()
            except KilledWorker as error:
                advice = "give workers more memory, or write the table with smaller row groups"
                raise OSError(f"several workers died on the same part ({error}): {advice}") from error
            yield from sorted(set(messages) - seen)
            seen.update(messages)
            bar.update(sizes[future.key])


def _remove_partial_files(folders: Sequence[Path], parts: Sequence[Part]) -> None:
    """Remove files that failed workers left unfinished, and check that every part exists."""
    names = {part.name for part in parts}
    for folder in folders:
        found = {entry.name for entry in folder.iterdir()}
        for name in found - names:
            (folder / name).unlink()
        if names - found:
            advice = "the output folder must have the same path on the workers as in this process"
            raise ValueError(f"{min(names - found)!r} was imputed, but is not in {str(folder)!r}: {advice}")


@contextlib.contextmanager
def cluster(scheduler: str | None = None, n_workers: int | None = None) -> Iterator[Client]:
    """Yield a Dask client of an existing cluster, or of a new local one that is closed at the end.

    The existing one has a scheduler at an address such as `tcp://10.0.0.1:8786`, or a scheduler file; the new
    one has `n_workers` processes of one thread each, by default one per core. Raises a ValueError if there is
    no scheduler at that address.
    """
    imported()
    from dask.system import CPU_COUNT
    from distributed import Client, LocalCluster

    if scheduler is not None:
        where = {"scheduler_file": scheduler} if Path(scheduler).is_file() else {"address": scheduler}
        try:
            client = Client(**where)
        except (OSError, ValueError) as error:
            raise ValueError(f"there is no Dask scheduler at {scheduler!r}: {error}") from error
        with client:
            yield client
        return
    # One thread each, because processes share the cores; the dashboard's default port may be taken.
    processes: dict[str, Any] = {"n_workers": n_workers or CPU_COUNT, "threads_per_worker": 1}
    with LocalCluster(**processes, processes=True, dashboard_address=":0") as local, Client(local) as client:
        yield client


def imported() -> Any:
    """Return the module `dask`, with `dask.dataframe`; raise an ImportError if it is not installed."""
    try:
        import dask
        import dask.dataframe
    except ImportError as error:
        message = f"tables in partitions need Dask ({error}): pip install 'pyro_mgp[dask]'"
        raise ImportError(message) from error
    return dask


def _ids_of(
    identify: Callable[..., Any], state: Delayed, parts: Sequence[Any], row_ids: Label | None
) -> list[Any]:
    """Return `row_ids` for each partition; if None, the delayed ranks of its rows among equal ones of all."""
    if row_ids is not None:
        return [row_ids] * len(parts)
    dask = imported()
    n_parts, n_buckets = len(parts), max(1, math.ceil(len(parts) / _PARTITIONS_PER_BUCKET))
    hashes = [dask.delayed(identify)(state, part, n_buckets) for part in parts]
    ranked = [
        dask.delayed(partitions.rank, nout=n_parts)([part[b] for part in hashes]) for b in range(n_buckets)
    ]
    return [dask.delayed(partitions.merged)([of_bucket[p] for of_bucket in ranked]) for p in range(n_parts)]
