"""Dask DataFrames and folders of Parquet files, imputed partition by partition, on one machine or many.

Completed tables are the same to the last bit as those of `MGPImputer.impute`, whatever the partitions, the
number of workers and the order in which these work; a worker that dies is replaced by others that do its
partitions again. (Between processors of different kinds the last bit may differ.)
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from pyro_mgp._support.messages import warn_user
from pyro_mgp.data.column_spec import Label
from pyro_mgp.data.row_ids import without_ids
from pyro_mgp.data.table import TableWarning, check_same_columns
from pyro_mgp.results.imputations import Imputations
from pyro_mgp.scaling.parquet_parts import Job, Part, parts_of
from pyro_mgp.scaling.partitions import FittedState, identify, impute_partition, merged, rank
from pyro_mgp.storage.atomic import atomic_folder
from pyro_mgp.storage.header import HEADER, write_header

if TYPE_CHECKING:
    import dask.dataframe as dd
    import pandas as pd
    from dask.delayed import Delayed
    from distributed import Client, Future

    from pyro_mgp.imputer import MGPImputer

FORMAT = "ParquetFolders"
"""What the header of such a folder says that it is."""
_FORMAT_VERSION = 1
# Partitions whose incomplete rows are ranked by one task, if rows are spread evenly: 24 bytes a row.
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

    The tables are those of `imputer.impute(ddf.compute(), m)`. They share their work: `dask.compute(*tables)`
    imputes each partition once, where one table after the other would do so m times.

    Without ids, rows equal in every cell are told apart by the labels of the index, as in pandas, and so have
    to be looked for first: the table is read twice. With ids that are unique it is read once.

    Args:
        ddf: The table, with the columns of the fitted one.
        imputer: The fitted imputer. Without the fitted table it goes to each worker, once.
        m: Number of imputations.
        row_ids: The label of a column of ids that are unique in the whole table; it passes through.
        random_state: Seed of other draws than those of the imputer's own seed.
        delta: See `MGPImputer.impute`.

    Returns:
        The m completed tables, partitioned as `ddf` is.

    Raises:
        ImportError: If Dask is not installed.
        ValueError: If `m` is below 1, or the columns are not those of the fitted table.

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
    if m < 1:
        raise ValueError(f"m, the number of imputations, must be at least 1, got {m}")
    own, _ = without_ids(ddf._meta, row_ids, imputer._columns)
    check_same_columns(own, imputer._columns)
    state = dask.delayed(FittedState(imputer), traverse=False)
    parts = ddf.to_delayed()
    identities = [row_ids] * len(parts)
    if row_ids is None:
        identities = ranks_of([dask.delayed(identify)(state, part, buckets(parts)) for part in parts])
    complete = dask.delayed(_completed, traverse=False)
    completed = [
        complete(state, part, m, identity, random_state, delta)
        for part, identity in zip(parts, identities, strict=True)
    ]
    return [
        dask.dataframe.from_delayed(
            [tables[j] for tables in completed], meta=ddf._meta, divisions=ddf.divisions, verify_meta=False
        )
        for j in range(m)
    ]


def impute_folder(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    imputer: MGPImputer,
    m: int = 20,
    *,
    client: Client,
    dropped: Sequence[Label] = (),
    row_ids: Label | None = None,
    random_state: int | None = None,
    overwrite: bool = False,
    progress: bool = True,
) -> list[Path]:
    """Draw m imputations of a folder of Parquet files into another, part by part on the workers of a cluster.

    Gives the tables of `imputer.impute(pandas.read_parquet(folder), m)`. No process holds more than some
    parts; a part is written by whoever imputes it, so all workers must see both folders by these paths.

    Args:
        folder: Folder of Parquet files, and of folders of such; parts follow each other by name.
        out: Folder to make, whole or not at all: `imputation_01/part-0000.parquet`, ...
        imputer: The fitted imputer.
        m: Number of imputations.
        client: Of the cluster; see `cluster`.
        dropped: Columns that the imputer does not know, and that pass through.
        row_ids: One of these, whose cells are unique ids; see `MGPImputer.impute`.
        random_state: Seed of other draws than those of the imputer's own seed.
        overwrite: Replace a folder that this package wrote earlier.
        progress: Show a progress bar, on terminals only.

    Returns:
        The m folders.

    Raises:
        ImportError: If Dask is not installed.
        ValueError, TypeError: If the tables cannot be read, imputed or written; the message names the file.
        OSError: If workers die, whoever tries.

    Warns:
        TableWarning: What `MGPImputer.impute` warns of, once.
    """
    with atomic_folder(out, overwrite=overwrite) as partial:
        job = impute_into(
            partial,
            folder,
            imputer,
            m,
            client=client,
            dropped=dropped,
            row_ids=row_ids,
            random_state=random_state,
            progress=progress,
        )
    return [Path(out) / each.name for each in job.folders]


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
    """What `impute_folder` does, in a folder that may hold parts which an earlier call has done.

    Args:
        partial: That folder, which becomes whole.
        folder: See `impute_folder`, as for all that follows.
        imputer: The fitted imputer.
        m: Number of imputations.
        client: Of the cluster.
        dropped: Columns that pass through.
        row_ids: One whose cells are unique ids.
        random_state: Seed of other draws.
        progress: Show a progress bar, on terminals only.

    Returns:
        What was done.

    Raises:
        ImportError: If Dask is not installed.
        ValueError, TypeError, OSError: See `impute_folder`.
    """
    dask = imported()
    parts = parts_of(folder)
    ids = () if row_ids is None or row_ids in dropped else (row_ids,)
    job = Job(partial, m, (*dropped, *ids), row_ids, random_state)
    for each in job.folders:
        each.mkdir(exist_ok=True)
    state = dask.delayed(FittedState(imputer), traverse=False)
    ranks: Sequence[Any] = [None] * len(parts)
    if row_ids is None:
        ranks = ranks_of([dask.delayed(job.identify)(state, part, buckets(parts)) for part in parts])
    todo = [(part, known) for part, known in zip(parts, ranks, strict=True) if not job.is_done(part)]
    impute = dask.delayed(job.impute)
    futures = client.compute([impute(state, part, known) for part, known in todo])
    try:
        for message in _done(futures, [part for part, _ in todo], progress):
            warn_user(message, TableWarning)
    finally:
        client.cancel(futures)  # nobody shall go on writing into a folder that was given up
    _tidied(job.folders, parts)
    names = [HEADER, *(each.name for each in job.folders)]
    write_header(partial, FORMAT, _FORMAT_VERSION, {"m": m, "files": names})
    return job


def _done(futures: Sequence[Future], parts: Sequence[Part], progress: bool) -> Iterator[str]:
    """Wait for parts to be done; gives each warning once, and raises the first error."""
    from distributed import KilledWorker, as_completed

    told: set[str] = set()
    sizes = {future.key: part.n_rows for future, part in zip(futures, parts, strict=True)}
    with tqdm(
        total=sum(sizes.values()),
        desc="imputing",
        unit="rows",
        disable=None if progress else True,
        leave=False,
    ) as bar:
        for future in as_completed(futures):
            try:
                messages = future.result()
            except KilledWorker as error:
                raise OSError(
                    f"workers have died again and again ({error}): give them more memory, or the table "
                    "smaller row groups"
                ) from error
            for message in messages:
                if message not in told:
                    told.add(message)
                    yield message
            bar.update(sizes[future.key])


def _tidied(folders: Sequence[Path], parts: Sequence[Part]) -> None:
    """Remove what workers left behind when they died; every part has to be there."""
    names = {part.name for part in parts}
    for folder in folders:
        found = {entry.name for entry in folder.iterdir()}
        for name in found - names:
            (folder / name).unlink()
        if names - found:
            raise ValueError(
                f"{min(names - found)!r} was imputed, but is not in {str(folder)!r}: workers must see the "
                "folder to write into under the same path as this process"
            )


@contextlib.contextmanager
def cluster(scheduler: str | None = None, n_workers: int | None = None) -> Iterator[Client]:
    """A client of a cluster: of the one that is named, or of a new one here that ends with the context.

    Args:
        scheduler: Its address, `tcp://10.0.0.1:8786` say, or the file that it wrote.
        n_workers: Processes on this machine, of one thread each; None takes one per core.

    Raises:
        ImportError: If Dask is not installed.
        ValueError: If there is no scheduler at that address.
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
    n_workers = n_workers or CPU_COUNT
    # One thread each: rows are shared out among processes, and more would fight over the cores.
    processes: dict[str, Any] = {"n_workers": n_workers, "threads_per_worker": 1, "processes": True}
    # Another cluster on this machine may have the usual port of the dashboard.
    with LocalCluster(**processes, dashboard_address=":0") as local, Client(local) as client:
        yield client


def imported() -> Any:
    """Dask with its DataFrames.

    Raises:
        ImportError: If it is not installed.
    """
    try:
        import dask
        import dask.dataframe
    except ImportError as error:
        raise ImportError(
            f"tables in partitions need Dask ({error}): pip install 'pyro_mgp[dask]'"
        ) from error
    return dask


def buckets(parts: Sequence[object]) -> int:
    """How many buckets rows are ranked in, for so many partitions."""
    return max(1, math.ceil(len(parts) / _PARTITIONS_PER_BUCKET))


def ranks_of(hashes: Sequence[Delayed]) -> list[Delayed]:
    """The ranks of each partition's rows, from what `identify` gives for each."""
    dask = imported()
    n_parts = len(hashes)
    n_buckets = buckets(hashes)
    ranked = [dask.delayed(rank, nout=n_parts)([part[b] for part in hashes]) for b in range(n_buckets)]
    return [dask.delayed(merged)([of_bucket[p] for of_bucket in ranked]) for p in range(n_parts)]


def _completed(
    state: FittedState,
    frame: pd.DataFrame,
    m: int,
    identity: Any,
    random_state: int | None,
    delta: Mapping[Label, float] | None,
) -> list[pd.DataFrame]:
    """The m completed copies of a partition."""
    draws: Imputations = impute_partition(
        state, frame, m, row_ids=identity, random_state=random_state, delta=delta
    )
    return list(draws)
