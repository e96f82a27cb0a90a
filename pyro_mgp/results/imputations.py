"""Multiple imputations of a table: the original one, and m draws of each missing cell."""

from __future__ import annotations

import contextlib
import copy
import functools
import operator
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, SupportsIndex, get_args

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from pyro_mgp._support.checks import at_least
from pyro_mgp._support.messages import listing
from pyro_mgp.analysis.pooled_regression import PooledRegression
from pyro_mgp.analysis.pooling import Fit, Pooled, pool
from pyro_mgp.analysis.posterior_mixture import Posterior, PosteriorMixture, mix
from pyro_mgp.analysis.quantities import PooledQuantities, Quantity
from pyro_mgp.analysis.regression import Family, Model, Regression
from pyro_mgp.data.cells import complete, holes_of, numbers_of
from pyro_mgp.data.column_spec import Label
from pyro_mgp.data.native_tables import TableKind
from pyro_mgp.data.table import as_frame, missing
from pyro_mgp.results.mixing import Mixing
from pyro_mgp.results.table_files import table_names, write_table
from pyro_mgp.sampling.observed_cells import ObservedCells
from pyro_mgp.storage.atomic import atomic_file, atomic_folder
from pyro_mgp.storage.frames import from_json, read_frame, to_json, write_frame
from pyro_mgp.storage.header import Shapes, read_arrays, read_header, write_arrays, write_header
from pyro_mgp.storage.untrusted import MALFORMED

Suffix = Literal["csv", "parquet"]

FORMAT_VERSION = 3
"""Number of the format of folders that `Imputations.save` writes."""
_FRAME, _DRAWS = "frame.parquet", "draws.safetensors"
_TIMES = ("datetime64[us]", "timedelta64[us]")
_QUANTILES = {"q05": 0.05, "q50": 0.50, "q95": 0.95}
# Dtype in which draws are stored, by numpy's letter for the kind of the dtype given.
_DTYPES: dict[str, Any] = {"f": np.float64, "i": np.int64, "b": np.bool_, "O": object, "U": object}
_DTYPES |= {"M": _TIMES[0], "m": _TIMES[1]}


@dataclass(frozen=True, eq=False, repr=False)
class Imputations:
    """Sequence of m completed tables, which differ in the draws of the missing cells.

    Each has the index, columns, dtypes and observed cells of the original table, and is of the same library.

    Raises:
        TypeError: If `m` is not an integer.
        ValueError: If `m` is below 1, column labels are not unique, a column is unknown, lacks draws or has
            draws of another shape or dtype, a draw is itself missing, or is not a category of its column.

    Example:
        >>> frame = pd.DataFrame({"mass": [3.1, np.nan], "sex": ["male", None]})
        >>> values = {"mass": [[4.0], [4.4]], "sex": [["male"], ["female"]]}
        >>> draws = Imputations(frame, values, m=2)
        >>> draws
        Imputations(m=2, 2 rows x 2 columns, 2 missing cells in 2 columns)
        >>> draws[1]
           mass     sex
        0   3.1    male
        1   4.4  female
    """

    frame: pd.DataFrame
    """The original table with its missing cells (a copy); N rows, column labels unique."""
    values: Mapping[Label, NDArray[Any]]
    """Draws of each incomplete column, `[m, n_missing]`, read-only, in the column's own units, missing cells
    in row order: float64, int64, bool, datetime64 or timedelta64 in microseconds (points in time in UTC), or
    object for labels. Narrower numbers are widened to these."""
    m: int
    """Number of imputations, at least 1."""
    may_stay_missing: Collection[Label] = ()
    """Columns that may lack some or all draws, since they do not apply to some rows, or are not imputed."""
    observed_cells: ObservedCells | None = None
    """Predictive distributions of the observed cells, for `to_arviz`; neither compared, saved nor copied."""
    mixing: Mixing | None = None
    """How well the chains mixed from which the draws come; None without chains. It is not compared."""
    kind: TableKind | None = None
    """Kind of the tables that indexing returns, None for DataFrames; neither compared nor saved."""

    def __post_init__(self) -> None:
        m, frame = at_least("m, the number of imputations,", self.m, 1), as_frame(self.frame).copy()
        values = _checked(frame, self.values, m, self.may_stay_missing)
        fields = {"frame": frame, "values": values, "m": m, "may_stay_missing": tuple(self.may_stay_missing)}
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return self.m

    def __getitem__(self, j: SupportsIndex) -> Any:
        """Return completed table j, counted from 0, or from the end if negative.

        It is a DataFrame, or of the library of the table that was imputed: Polars, or PyArrow.
        """
        table = self._completed(operator.index(j))
        return table if self.kind is None else self.kind.of(table)

    def _completed(self, position: int) -> pd.DataFrame:
        """Return a completed table as a DataFrame, with the dtypes of `frame`."""
        if not -self.m <= position < self.m:
            raise IndexError(f"there is no imputation {position}: they are numbered from 0 to {self.m - 1}")
        return complete(self.frame, {label: draws[position] for label, draws in self.values.items()})

    def __iter__(self) -> Iterator[Any]:
        return (self[j] for j in range(self.m))

    def in_pandas(self) -> Imputations:
        """Return the same imputations, whose completed tables are DataFrames of pandas.

        Example:
            >>> import pyarrow
            >>> from pyro_mgp import MGPImputer
            >>> numbers = [float(i) for i in range(20)]
            >>> table = pyarrow.table({"x": numbers, "y": [None, *numbers[1:]]})
            >>> draws = MGPImputer(random_state=0, max_steps=5).fit(table).impute(m=2)
            >>> type(draws[0]).__name__, type(draws.in_pandas()[0]).__name__
            ('Table', 'DataFrame')
        """
        if self.kind is None:
            return self
        other = copy.copy(self)
        object.__setattr__(other, "kind", replace(self.kind, backend="pandas"))
        return other

    def __eq__(self, other: object) -> bool:
        """Return whether two objects hold equal tables (by `DataFrame.equals`) and equal draws."""
        if not isinstance(other, Imputations):
            return NotImplemented
        if (self.m, self.values.keys()) != (other.m, other.values.keys()):
            return False
        pairs = [(drawn, other.values[label]) for label, drawn in self.values.items()]
        return is_same_table(self.frame, other.frame) and all(
            a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind in "fmM") for a, b in pairs
        )

    def __repr__(self) -> str:
        n_rows, n_columns = self.frame.shape
        n_missing = sum(draws.shape[1] for draws in self.values.values())
        missing_cells = f"{n_missing} missing cells in {len(self.values)} columns"
        return f"Imputations(m={self.m}, {n_rows} rows x {n_columns} columns, {missing_cells})"

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copies and pickles, without `observed_cells`, which refer to the imputer."""
        return {**self.__dict__, "observed_cells": None}

    def cells(self) -> pd.DataFrame:
        """Summarise the draws of each missing cell.

        Returns:
            One row per missing cell, column by column, rows in the table's order within a column:

            - `row`: index label (a tuple if the index has several levels); `column`: column label.
            - `mean`, `sd` (divisor n - 1), `q05`, `q50`, `q95`: over those of the m draws that are not
              missing, in the column's own units. Booleans count as 0 and 1, which makes their mean a share;
              times count in seconds, since 1970 (UTC) if they are points in time. NaN for labels.
            - `mode`: the most frequent value, of several the first in order; `mode_share`: the share of the m
              draws that equal it. For integers, booleans and labels; None and NaN for continuous columns.

        Example:
            >>> frame = pd.DataFrame({"sex": ["male", None]}, index=["a", "b"])
            >>> draws = Imputations(frame, {"sex": [["male"], ["female"], ["male"]]}, m=3)
            >>> draws.cells()[["row", "column", "mode", "mode_share"]]
              row column  mode  mode_share
            0   b    sex  male    0.666667
        """
        parts = [_summary(self.frame[label], draws) for label, draws in self.values.items()]
        none = pd.Series(np.nan, self.frame.index[:0], name="")
        return pd.concat(parts or [_summary(none, np.empty((self.m, 0)))], ignore_index=True)

    def pool(
        self,
        analysis: Callable[[pd.DataFrame], Fit],
        *,
        level: float = 0.95,
        df_complete: float | None = None,
        names: Sequence[Any] | None = None,
    ) -> Pooled:
        """Run an analysis on every completed table and pool the results by Rubin's rules.

        `analysis` takes a completed table and returns a results object of statsmodels, or a pair of estimates
        and their variances or covariance matrix. Other arguments, and errors, are those of `pooling.pool`.

        Example:
            >>> from types import SimpleNamespace
            >>> draws = Imputations(pd.DataFrame({"x": [1.0, 2.0, np.nan]}), {"x": [[0.5], [1.5]]}, m=2)
            >>> draws.pool(lambda t: SimpleNamespace(params=[t.x.mean()], bse=[t.x.sem()])).table["estimate"]
            0    1.333333
            Name: estimate, dtype: float64
        """
        if not callable(analysis):
            raise TypeError(
                f"expected a function of a completed table, got {analysis!r}: for a formula, call fit"
            )
        return pool([analysis(table) for table in self], level=level, df_complete=df_complete, names=names)

    def fit(
        self,
        formula: str,
        model: Model | None = None,
        *,
        family: Family | None = None,
        weights: Label | None = None,
        cluster: Label | None = None,
        event: Label | None = None,
        random: str | None = None,
        quantile: float = 0.5,
        level: float = 0.95,
    ) -> PooledRegression:
        """Fit a regression to every completed table, and pool its coefficients by Rubin's rules.

        It needs the extra `models`, for formulaic and statsmodels.

        Args:
            formula: Formula such as "y ~ x * g + I(z**2)".
            model: "ols", "glm", "gee" (exchangeable within clusters), "mixed" (random intercepts of
                clusters), "ordered" (proportional odds), "quantile", or "phreg" (Cox regression of a time);
                None for "glm" with a family, else "ols".
            family: Family of a generalised linear model: "binomial", "poisson", "gamma" (with a log link) or
                "gaussian"; None for the last one. A binomial outcome may have two levels, of which the second
                one counts.
            weights: Label of a column of sampling weights, for "ols" and "glm"; standard errors are then
                robust (HC1).
            cluster: Label of a column of clusters. Standard errors of "ols" and "glm" are robust to these.
            event: Label of a column that says whether the event happened at the time, for "phreg".
            random: Formula of random effects of clusters, such as "~ 1 + t", for "mixed".
            quantile: Quantile of the outcome, for "quantile".
            level: Confidence level of the intervals.

        Raises:
            ImportError: If formulaic or statsmodels are not installed.
            ValueError: If model and arguments do not fit, a cell is missing, or the fits cannot be pooled.

        Example:
            >>> g = np.random.default_rng(0)
            >>> frame = pd.DataFrame({"x": g.normal(size=30)}).assign(y=lambda f: 2 * f.x + g.normal(size=30))
            >>> lost = frame.y.iloc[:3].to_numpy()
            >>> draws = Imputations(frame.assign(y=frame.y.iloc[3:]), {"y": [lost - 0.1, lost + 0.1]}, m=2)
            >>> draws.fit("y ~ x").summary()[["term", "estimate", "se"]].round(2)
                    term  estimate    se
            0  Intercept      0.23  0.17
            1          x      1.62  0.21
        """
        chosen = model or ("ols" if family is None else "glm")
        options = family or "gaussian", weights, cluster, event, random, quantile
        return PooledRegression.of(Regression(formula, chosen, *options), self.in_pandas(), level)

    def estimate(self, quantity: Quantity, *, level: float = 0.95) -> PooledQuantities:
        """Estimate a quantity of `analysis.quantities` from every completed table, and pool it.

        Example:
            >>> from pyro_mgp.analysis.quantities import correlation
            >>> x = np.arange(20.0)
            >>> frame = pd.DataFrame({"x": x, "y": np.where(x > 1, x + np.sin(5 * x), np.nan)})
            >>> draws = Imputations(frame, {"y": [[0.5, 1.5], [1.0, 0.5]]}, m=2)
            >>> draws.estimate(correlation("x", "y"))
            Pooled over 2 imputations, 95% intervals
                 estimate     low    high      df    riv lambda    fmi
            x, y   0.9929  0.9815  0.9973  2917.8  0.019  0.019  0.019
        """
        return PooledQuantities.of(quantity, self.in_pandas(), level)

    def mix(
        self,
        posterior: Callable[[pd.DataFrame], Posterior],
        *,
        group_by_chain: bool = False,
        level: float = 0.95,
    ) -> PosteriorMixture:
        """Draw from the posterior given every completed table, and combine the draws as a posterior mixture.

        `posterior` takes a completed table and returns draws of each parameter, as `MCMC.get_samples()` of
        Pyro does. Other arguments, errors and warnings are those of `posterior_mixture.mix`.

        Example:
            >>> draws = Imputations(pd.DataFrame({"x": [1.0, 2.0, np.nan]}), {"x": [[1.6], [1.4]]}, m=2)
            >>> noise = np.random.default_rng(0).normal(size=1000)
            >>> draws.mix(lambda t: {"mean": t.x.mean() + noise}).table[["mean", "sd"]].round(1)
                  mean   sd
            mean   1.5  1.0
        """
        return mix([posterior(table) for table in self], group_by_chain=group_by_chain, level=level)

    def to_arviz(self, *, rows: ArrayLike | None = None, max_rows: int = 10_000) -> Any:
        """Export to ArviZ: draws of missing cells, and predictions of observed cells for model checks.

        `arviz_export.to_arviz` describes arguments and result, and also exports several fits, as chains.
        """
        from pyro_mgp.results.arviz_export import to_arviz

        return to_arviz(self, rows=rows, max_rows=max_rows)

    def to_mice(self) -> pd.DataFrame:
        """Return the table and all completed tables in long format, which R's mice reads.

        The number of the imputation, 0 for the incomplete table, is in the column .imp, that of the row in
        .id. Written by `to_csv("draws.csv", index=False)`, R reads it by
        `mice::as.mids(read.csv("draws.csv", na.strings = "", stringsAsFactors = TRUE))`.

        Raises:
            ValueError: If the table has a column of one of these names.

        Example:
            >>> draws = Imputations(pd.DataFrame({"x": [1.0, np.nan]}), {"x": [[0.5], [1.5]]}, m=2)
            >>> draws.to_mice()
               .imp  .id    x
            0     0    1  1.0
            1     0    2  NaN
            2     1    1  1.0
            3     1    2  0.5
            4     2    1  1.0
            5     2    2  1.5
        """
        if taken := [label for label in (".imp", ".id") if label in self.frame]:
            raise ValueError(f"the table has a column {taken[0]!r}, which mice reserves: rename it")
        parts = []
        for number, table in enumerate([self.frame, *self.in_pandas()]):
            numbers = {".imp": number, ".id": np.arange(1, len(table) + 1)}
            parts.append(pd.concat([pd.DataFrame(numbers, table.index), table], axis=1))
        return pd.concat(parts, ignore_index=True)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Save the imputations to a folder atomically; `load` reads it back.

        The folder holds `header.json`, `frame.parquet` (the original table) and `draws.safetensors`.
        `overwrite` replaces a folder that this package wrote earlier.

        Raises:
            ValueError: If `path` exists and may not be replaced, or the table cannot be stored.

        Example:
            >>> import tempfile
            >>> draws = Imputations(pd.DataFrame({"x": [1.0, np.nan]}), {"x": [[0.5], [1.5]]}, m=2)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     draws.save(f"{folder}/draws")
            ...     Imputations.load(f"{folder}/draws") == draws
            True
        """
        arrays, columns = {}, []
        for label, draws in self.values.items():
            name, column = str(self.frame.columns.get_loc(label)), {"label": to_json(label)}
            if draws.dtype == object:
                codes, levels = _codes(draws, self.frame[label].dtype)
                column["levels"] = [to_json(level) for level in levels]
                draws = codes.astype(np.int32)
            elif draws.dtype.kind in "Mm":
                column["times"], draws = str(draws.dtype), draws.view(np.int64)
            arrays[name] = draws
            columns.append({"array": name, **column})
        with atomic_folder(path, overwrite=overwrite) as folder:
            partial = [to_json(label) for label in self.may_stay_missing]
            fields = {"m": self.m, "columns": columns, "may_stay_missing": partial}
            fields["mixing"] = None if self.mixing is None else self.mixing.to_json()
            write_frame(folder / _FRAME, self.frame)
            write_arrays(folder / _DRAWS, arrays)
            write_header(folder, "Imputations", FORMAT_VERSION, fields, (_FRAME, _DRAWS))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Imputations:
        """Load imputations that `save` wrote; no code from the folder is run.

        Raises:
            ValueError: If there is no such folder, it was not written by `save`, or a file in it is damaged.
        """
        files = (_FRAME, _DRAWS)
        header = read_header(path, "Imputations", FORMAT_VERSION, files)
        frame = read_frame(Path(path) / _FRAME)
        try:
            holes = {str(i): n for i, n in enumerate(missing(frame).sum(0).tolist())}
            expected = {c["array"]: (header["m"], holes[c["array"]]) for c in header["columns"]}
            arrays = read_arrays(Path(path) / _DRAWS, functools.partial(_check_shapes, expected))
            values = {from_json(c["label"]): _stored(c, arrays) for c in header["columns"]}
            partial = [from_json(each) for each in header["may_stay_missing"]]
            mixed = header["mixing"]
            return cls(frame, values, header["m"], partial, None, mixed and Mixing.from_json(mixed))
        except MALFORMED as error:
            raise ValueError(f"the files in {str(path)!r} do not fit together: {error}") from error

    def write_tables(self, folder: str | os.PathLike[str], suffix: Suffix = "csv") -> list[Path]:
        """Write the m completed tables as `imputation_01.csv`, `imputation_02.csv`, ...

        CSV leaves out an index that only counts the rows from 0; "parquet" keeps dtypes. Either all tables
        are written or none. The folder is made if it does not exist.

        Raises:
            ValueError: If `suffix` is another one, `folder` is a file or holds imputations already, or a
                column cannot be stored as Parquet.

        Example:
            >>> import tempfile
            >>> draws = Imputations(pd.DataFrame({"x": [1.0, np.nan]}), {"x": [[0.5], [1.5]]}, m=2)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     [path.name for path in draws.write_tables(folder)]
            ['imputation_01.csv', 'imputation_02.csv']
        """
        if suffix not in get_args(Suffix):
            raise ValueError(f"suffix must be one of {get_args(Suffix)}, got {suffix!r}")
        target = Path(folder)
        if target.exists() and not target.is_dir():
            raise ValueError(f"{str(target)!r} is a file, expected a folder to write the tables into")
        if old := sorted(target.glob("imputation_*")):
            held = f"{str(target)!r} holds imputations already, {old[0].name!r}"
            raise ValueError(f"{held}: choose another folder")
        target.mkdir(parents=True, exist_ok=True)
        paths = [target / name for name in table_names(self.m, suffix)]
        with contextlib.ExitStack() as files:
            for path, table in zip(paths, self.in_pandas(), strict=True):
                write_table(files.enter_context(atomic_file(path)), table, suffix)
        return paths

    def write_dataset(self, path: str | os.PathLike[str]) -> None:
        """Write the m completed tables as one Parquet dataset, in the folders `imputation=1`, ...

        Readers of such datasets, as `pandas.read_parquet`, DuckDB or
        `polars.scan_parquet(path, hive_partitioning=True)`, add a column with the number of the imputation.
        The folder is made whole or not at all.

        Raises:
            ValueError: If `path` exists, the table has a column or an index "imputation", labels that are no
                text, or cannot be stored.

        Example:
            >>> import tempfile
            >>> draws = Imputations(pd.DataFrame({"x": [1.0, np.nan]}), {"x": [[0.5], [1.5]]}, m=2)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     draws.write_dataset(f"{folder}/draws")
            ...     pd.read_parquet(f"{folder}/draws").groupby("imputation", observed=True)[
            ...         "x"
            ...     ].sum().tolist()
            [1.5, 2.5]
        """
        if "imputation" in (*self.frame.columns, *self.frame.index.names):
            raise ValueError("the table has a column 'imputation', which is that of the dataset: rename it")
        if odd := [label for label in self.frame if not isinstance(label, str)]:
            raise ValueError(f"columns of a dataset must have text as labels, got {odd[0]!r}: rename them")
        if Path(path).exists():
            raise ValueError(f"{str(path)!r} exists already: choose another path")
        kind = None if self.kind is None else replace(self.kind, backend="pyarrow")
        with atomic_folder(path) as folder:
            for j in range(self.m):
                part = folder / f"imputation={j + 1}"
                part.mkdir()
                if kind is None:
                    write_table(part / "table.parquet", self.in_pandas()[j], "parquet")
                else:
                    pq.write_table(kind.of(self._completed(j)), part / "table.parquet")


def _checked(
    frame: pd.DataFrame, values: Mapping[Label, Any], m: int, may_stay_missing: Collection[Label]
) -> dict[Label, NDArray[Any]]:
    """Return the draws of the incomplete columns, read-only and in the table's order, after checking them."""
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise ValueError(f"column labels must be unique, {twice!r} occurs more than once")
    unknown = [label for label in (*values, *may_stay_missing) if label not in frame.columns]
    if unknown:
        raise ValueError(f"draws for column {unknown[0]!r}, but the table has {list(frame.columns)}")
    checked: dict[Label, NDArray[Any]] = {}
    for label, n_missing in zip(frame.columns, missing(frame).sum(0).tolist(), strict=True):
        if label in values:
            draws = _checked_draws(label, frame[label].dtype, values[label], (m, n_missing))
            if label not in may_stay_missing and pd.isna(draws).any():
                j, i = np.argwhere(pd.isna(draws))[0].tolist()
                raise ValueError(f"column {label!r}: imputation {j} of missing cell {i} is itself missing")
            if n_missing:
                checked[label] = draws
        elif n_missing and label not in may_stay_missing:
            missed = f"column {label!r} has {n_missing} missing cells"
            raise ValueError(f"{missed}, but values has no draws for it")
    return checked


def _checked_draws(label: Label, dtype: Any, values: Any, shape: tuple[int, int]) -> NDArray[Any]:
    given, where = np.asarray(values), f"column {label!r}: draws must"
    if given.shape != shape:
        raise ValueError(f"{where} have shape [m, n_missing] = {list(shape)}, got {list(given.shape)}")
    if given.dtype.kind not in _DTYPES:
        raise ValueError(f"{where} be float, int, bool, time or object, got {given.dtype}")
    # Means depend on the memory order in their last digits, and must be the same after saving and loading.
    draws: NDArray[Any] = np.array(given, dtype=_DTYPES[given.dtype.kind], order="C")
    if isinstance(dtype, pd.CategoricalDtype):
        strange = pd.Index(pd.unique(draws.ravel())).dropna().difference(dtype.categories, sort=False)
        if len(strange):
            raise ValueError(f"{where} be among the categories {list(dtype.categories)}, got {strange[0]!r}")
    draws.flags.writeable = False
    return draws


def is_same_table(left: pd.DataFrame, right: pd.DataFrame) -> bool:
    """Return whether two tables have the same cells, dtypes, row labels and column labels."""
    same_axes = left.index.identical(right.index) and left.columns.identical(right.columns)
    return same_axes and left.equals(right)


def _summary(column: pd.Series[Any], draws: NDArray[Any]) -> pd.DataFrame:
    rows = column.index[holes_of(column)]
    where = {"row": rows.to_flat_index(), "column": pd.Index([column.name] * len(rows))}
    return pd.DataFrame(where | _numbers(draws) | _modes(draws, column.dtype))


def _numbers(draws: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
    """Compute mean, sd and quantiles of each cell over its draws `[m, n]`; NaN for labels."""
    if draws.dtype == object:
        return dict.fromkeys(("mean", "sd", *_QUANTILES), np.full(draws.shape[1], np.nan))
    # pandas ignores missing draws, without a warning where all are missing.
    x = pd.DataFrame(numbers_of(pd.Series(draws.ravel())).reshape(draws.shape))
    quantiles = x.quantile(list(_QUANTILES.values())).to_numpy()
    moments = {"mean": x.mean().to_numpy(), "sd": x.std().to_numpy()}
    return moments | dict(zip(_QUANTILES, quantiles, strict=True))


def _modes(draws: NDArray[Any], dtype: Any) -> dict[str, Any]:
    """Find the most frequent draw of each cell and its share of the m draws; None and NaN if continuous."""
    m, n = draws.shape
    if draws.dtype.kind in "fMm":
        return {"mode": pd.Series([None] * n, dtype=object), "mode_share": np.full(n, np.nan)}
    codes, levels = _codes(draws, dtype)
    modes, counts = stats.mode(codes, axis=0)  # of several, the first level
    return {"mode": pd.Series([levels[k] for k in modes], dtype=object), "mode_share": counts / m}


def _codes(draws: NDArray[Any], dtype: Any) -> tuple[NDArray[np.intp], list[Any]]:
    """Encode draws as positions in a list of levels: categories in their own order, others sorted."""
    if isinstance(dtype, pd.CategoricalDtype):
        levels = pd.Index(dtype.categories)
        codes = levels.get_indexer(pd.Index(draws.ravel()))
    else:
        codes, levels = pd.factorize(draws.ravel(), sort=True)
    # A missing draw has the code -1, the last position of the list.
    listed = [*levels.tolist(), None] if (codes < 0).any() else levels.tolist()
    return codes.reshape(draws.shape), listed


def _check_shapes(expected: Shapes, found: Shapes) -> None:
    if dict(found) != dict(expected):
        shapes = f"[m, n_missing] = {listing(expected.items())}"
        raise ValueError(f"expected draws of the shapes {shapes}, got {listing(found.items())}")


def _stored(column: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """Decode the saved draws of one column from its header entry and the stored arrays."""
    draws = arrays[column["array"]]
    if "times" in column:
        if draws.dtype != np.int64 or column["times"] not in _TIMES:
            raise ValueError(f"expected times as {_TIMES}, got {draws.dtype} as {column['times']!r}")
        return draws.view(column["times"])
    if "levels" not in column:
        return draws
    n_levels = len(column["levels"])
    if draws.dtype.kind != "i" or (draws.size and not -n_levels <= draws.min() <= draws.max() < n_levels):
        raise ValueError(f"expected draws that are positions of {n_levels} levels")
    levels = np.empty(n_levels, dtype=object)
    levels[:] = [from_json(level) for level in column["levels"]]
    return levels[draws]
