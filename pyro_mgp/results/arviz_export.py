"""Imputations for ArviZ: an `InferenceData` with ArviZ 0.x, an `xarray.DataTree` from 1.0 onwards.

One imputation is one draw. Beside chain and draw there are::

    group                 variable                  dimension, and what it is
    posterior             imputed_mean_<column>     mean of the imputed cells of a draw, in own units
                          imputed_share_<column>    <column>_level: of labels the share of each level
                          u_<link>                  inducing: whitened inducing values as drawn
                          <part>_lengthscale_<link> <link>_input; other parameters of kernels alike
                          noise_<link>              and other parameters of likelihoods
    posterior_predictive  <column>                  <column>_row: a replicate of each observed cell
    log_likelihood        <column>                  <column>_row: log density of each observed cell
    observed_data         <column>                  <column>_row: the observed cells (without chain and draw)
    predictions           <column>                  <column>_row: the imputed cells
    constant_data         observed, mean, scale     row, column: which cells are observed, and their moments

Each column is a variable of its own with a dimension of its own, since each has other missing cells.
Coordinates are the table's index labels, and `<column>_position`, where the row stands in the table. All is
numbers, to be plotted and stored: labels are positions of their levels (attribute `levels`, JSON), -1 where a
draw stays missing; booleans 0 and 1; times seconds, since 1970 (UTC) if they are points in time.
"""

from __future__ import annotations

import json
import operator
import re
import unicodedata
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from torch import nn

from pyro_mgp.data.cells import cells_of
from pyro_mgp.data.column_spec import Label
from pyro_mgp.data.dtypes import holes_of
from pyro_mgp.data.table import missing
from pyro_mgp.model.link import Link
from pyro_mgp.model.local_parameters import local_parameters
from pyro_mgp.results.imputations import Imputations
from pyro_mgp.sampling.observed_cells import ObservedCells

if TYPE_CHECKING:
    import xarray

Numbers = NDArray[np.float64]
Array = NDArray[Any]

_DRAWN = ("posterior", "posterior_predictive", "log_likelihood", "predictions")

# Names that groups have for other things.
_RESERVED = ("chain", "draw", "sample", "row", "column", "observed", "mean", "scale", "inducing", "")
# What file formats cannot take in a name; of those with blanks they do not store that they are coordinates.
_FORBIDDEN = re.compile(r"[^\w.,()\[\]=+%&-]")
_DIMENSIONS = ("row", "position", "input", "level")
_POINT = "point estimate, repeated over draws"
_GROUPS = {
    "posterior": "summaries of imputed cells, parameters of links and functions drawn for them",
    "posterior_predictive": "replicates of observed cells, drawn as missing cells are",
    "log_likelihood": "log densities of observed cells in the columns' own units, given the drawn functions",
    "observed_data": "observed cells of the columns with a link",
    "predictions": "imputed cells",
    "constant_data": "which cells are observed, and their moments",
}


def to_arviz(
    draws: Imputations | Sequence[Imputations], *, rows: ArrayLike | None = None, max_rows: int = 10_000
) -> Any:
    """Imputations of a table as ArviZ takes them; see the module for what is in it.

    Imputations of one table by fits with different seeds become chains. Whether the fits agree, R-hat of
    `imputed_mean_...` and `imputed_share_...` says. That of parameters says nothing (each fit has one point
    estimate), nor does that of `u` (each fit has inducing inputs of its own).

    `posterior_predictive`, `log_likelihood` and what was learnt are computed here, from the imputer that drew
    as it is now; `observed_cells` says how. Imputations that were loaded, copied or made by hand do without.
    The target of `fit(X, y)` has variables like a column, but no predictions. What `delta` shifts are imputed
    cells alone.

    A log density is that of the cell in the column's own units: that of the standardised, perhaps bent, cell
    plus the logarithm of the derivative. Where draws are values, levels, whole numbers or rounded times it is
    a log probability. Draws of a bent column end at its observed range; densities go on.

    Args:
        draws: Imputations, or one per chain: of the same table, equally many.
        rows: Positions of the rows whose observed cells are predicted, or a Bool `[N]`; None for all.
        max_rows: If they are more, so many of these, chosen at random (the same ones each time): an observed
            cell takes 16 bytes per imputation. All imputed cells are there in any case.

    Returns:
        An `InferenceData` with ArviZ 0.x, an `xarray.DataTree` from 1.0 onwards; both can be written to
        netCDF and Zarr.

    Raises:
        ValueError: If chains are of different tables, lengths or settings, or `rows` are not there.

    Example:
        >>> from pyro_mgp import MGPImputer
        >>> frame = pd.DataFrame({"x": np.arange(30.0), "y": np.arange(30.0) % 7})
        >>> frame.loc[::3, "y"] = np.nan
        >>> fits = [MGPImputer(random_state=seed, max_steps=5).fit(frame) for seed in (0, 1)]
        >>> tree = to_arviz([fit.impute(m=4) for fit in fits])
        >>> tree.predictions["y"].dims, tree.predictions["y"].shape
        (('chain', 'draw', 'y_row'), (2, 4, 10))
    """
    chains = [draws] if isinstance(draws, Imputations) else list(draws)
    _check_chains(chains)
    table = _Described.of(chains, _positions(rows, max_rows, len(chains[0].frame)))
    entries = [_entries(chain, table) for chain in chains]
    groups = {group: _dataset([chain[group] for chain in entries], group) for group in _GROUPS}
    attrs = {
        "creation_library": "pyro_mgp",
        "creation_library_version": version("pyro_mgp"),
        "observed_rows": f"observed cells of {len(table.positions)} of {len(table.frame)} rows",
    }
    return _container({name: group for name, group in groups.items() if group.data_vars}, attrs)


def _container(groups: Mapping[str, xarray.Dataset], attrs: dict[str, str]) -> Any:
    """What this version of ArviZ works with: the one place where versions differ."""
    if int(version("arviz").split(".")[0]) < 1:
        from arviz import InferenceData

        return InferenceData(attrs=attrs, **groups)
    from xarray import Dataset, DataTree

    return DataTree.from_dict({"/": Dataset(attrs=attrs), **groups})


# ------------------------------------------------------------------------------------------------ the table


@dataclass(frozen=True)
class _Coder:
    """The cells of a column as numbers."""

    levels: tuple[Hashable, ...] | None
    """What the cells are positions in; None for numbers and times."""
    kind: str
    """"number", "boolean", "label", "datetime" or "duration"."""

    @classmethod
    def of(cls, dtype: Any, cells: Sequence[Array], levels: Iterable[Hashable]) -> _Coder:
        """From all arrays of cells, as draws are held, and levels that may be drawn besides."""
        if isinstance(dtype, pd.CategoricalDtype):
            return cls(tuple(dtype.categories), "label")
        letters = {array.dtype.kind for array in cells if array.size}
        if letters & {"m", "M"}:
            return cls(None, "datetime" if "M" in letters else "duration")
        if letters <= {"f", "i"}:
            return cls(None, "number")
        objects = [pd.unique(array.ravel()) for array in cells if array.dtype.kind in "Ob"]
        found = {cell for array in objects for cell in array.tolist() if not pd.isna(cell)}
        if all(isinstance(cell, bool) for cell in found):
            return cls((False, True), "boolean")
        if all(isinstance(cell, int | float) for cell in found):
            return cls(None, "number")
        return cls(tuple(sorted({*found, *levels}, key=str)), "label")

    def __call__(self, cells: Array) -> Array:
        """Cells as float64 or int64, missing ones NaN or -1, any shape."""
        if cells.dtype.kind in "mM":
            return np.where(np.isnat(cells), np.nan, cells.astype(np.int64) / 1e6)
        if self.levels is not None:
            codes = pd.Index(self.levels, dtype=object).get_indexer(pd.Index(cells.ravel(), dtype=object))
            return np.asarray(codes, dtype=np.int64).reshape(cells.shape)
        return cells.astype(np.float64) if cells.dtype == object else cells

    @property
    def attrs(self) -> dict[str, str]:
        """What the numbers mean."""
        units = {"datetime": "seconds since 1970 (UTC)", "duration": "seconds"}
        said = {"kind": self.kind} | ({"unit": units[self.kind]} if self.kind in units else {})
        if self.levels is None:
            return said
        return said | {"levels": json.dumps(self.levels, default=str), "missing": "-1"}


@dataclass(frozen=True)
class _Described:
    """What is the same in all chains."""

    frame: pd.DataFrame
    holes: NDArray[np.bool_]
    """Bool `[N, C]`."""
    positions: NDArray[np.intp]
    """Rows whose observed cells are predicted."""
    labels: Array
    """Of all rows, as files can hold them, `[N]`."""
    names: Mapping[Label, str]
    """Of the columns' variables."""
    link_names: Mapping[str, str]
    """Of the links' variables, by the name of the link."""
    coders: Mapping[Label, _Coder]
    has_observed_cells: bool
    """Whether all chains know them."""

    @classmethod
    def of(cls, chains: Sequence[Imputations], positions: NDArray[np.intp]) -> _Described:
        """The table of some chains."""
        frame = chains[0].frame
        levels: dict[Label, tuple[Hashable, ...]] = {}
        for chain in chains:
            for variable in chain.observed_cells.variables if chain.observed_cells else ():
                levels[variable.codec.name] = variable.codec.levels or ()
        coders: dict[Label, _Coder] = {}
        for label in frame.columns:
            drawn = [chain.values[label] for chain in chains if label in chain.values]
            cells = [_observed(frame[label]), *drawn]
            coders[label] = _Coder.of(frame[label].dtype, cells, levels.get(label, ()))
        new = _Names()
        names: dict[Label, str] = {label: new.new(str(label)) for label in frame.columns}
        link_names: dict[str, str] = {}
        for chain in chains:
            for name, own in _links(chain.observed_cells, names):
                link_names.setdefault(name, own or new.new(name))
        return cls(
            frame,
            missing(frame),
            positions,
            _index_labels(frame.index),
            names,
            link_names,
            coders,
            all(chain.observed_cells is not None for chain in chains),
        )

    def column(self, label: Label) -> int:
        """Where a column stands."""
        labels: list[Label] = list(self.frame.columns)
        return labels.index(label)

    def cells(self, name: str, rows: NDArray[np.intp], values: Array, attrs: dict[str, str]) -> _Entry:
        """A variable of a column's cells in some rows, `[..., n]`."""
        row = f"{name}_row"
        coords = {row: (row, self.labels[rows]), f"{name}_position": (row, rows.astype(np.int64))}
        return _Entry(values, (row,), attrs, coords)


@dataclass(frozen=True)
class _Entry:
    """A variable of one chain."""

    values: Array
    """`[m, ...]` in groups of draws, else `[...]`."""
    dims: tuple[str, ...]
    """Of the latter."""
    attrs: dict[str, str]
    coords: Mapping[str, tuple[str, Array]]
    """Name to dimension and values."""


class _Names:
    """Names that files can take, no two alike, nor alike the names of each other's dimensions."""

    def __init__(self) -> None:
        self.taken = set(_RESERVED)

    def new(self, text: str) -> str:
        """A name for this text."""
        name = _FORBIDDEN.sub("_", unicodedata.normalize("NFC", text.strip()))
        if not re.match(r"\w", name):
            name = f"column_{name}"
        while not self.taken.isdisjoint(own := {name, *(f"{name}_{part}" for part in _DIMENSIONS)}):
            name += "_"
        self.taken |= own
        return name


def _links(source: ObservedCells | None, names: Mapping[Label, str]) -> Iterator[tuple[str, str | None]]:
    """Names of links, and of the column that each stands for alone, if it does."""
    if source is None:
        return
    for variable in source.variables:
        for i in variable.links:
            alone = variable.category is None and not variable.is_target
            yield source.sampler.chain.names[i], names[variable.codec.name] if alone else None


def _observed(column: pd.Series[Any]) -> Array:
    """The observed cells of a column, as draws are held."""
    return cells_of(column[~holes_of(column)])


def _index_labels(index: pd.Index[Any]) -> Array:
    """Index labels as files can hold them: numbers, points in time, or text."""
    values = index.to_numpy()
    plain = not isinstance(index, pd.MultiIndex) and isinstance(index.dtype, np.dtype)
    if plain and values.dtype.kind in "iufM" and not pd.isna(values).any():
        return values
    parts = [", ".join(map(str, label)) if isinstance(label, tuple) else str(label) for label in index]
    return np.array(parts, dtype=object)


def _positions(rows: ArrayLike | None, max_rows: int, n_rows: int) -> NDArray[np.intp]:
    """The rows whose observed cells are predicted, in order, by position."""
    if operator.index(max_rows) < 1:
        raise ValueError(f"max_rows must be at least 1, got {max_rows}")
    chosen = np.arange(n_rows) if rows is None else np.asarray(rows)
    if chosen.dtype == np.bool_ and chosen.shape == (n_rows,):
        chosen = np.flatnonzero(chosen)
    inside = chosen.dtype.kind in "iu" and chosen.ndim == 1 and ((chosen >= 0) & (chosen < n_rows)).all()
    if not inside and chosen.size:
        raise ValueError(
            f"rows must be positions from 0 to {n_rows - 1}, or a Bool for each of {n_rows} rows; got "
            f"{rows!r}. For index labels: frame.index.get_indexer(labels)."
        )
    chosen = np.unique(chosen).astype(np.intp)
    if len(chosen) > max_rows:
        chosen = np.sort(np.random.default_rng(0).choice(chosen, max_rows, replace=False))
    return chosen


def _check_chains(chains: Sequence[Imputations]) -> None:
    if not chains:
        raise ValueError("expected imputations, or one per chain, got none")
    for i, chain in enumerate(chains):
        if not isinstance(chain, Imputations):
            raise TypeError(f"expected Imputations for each chain, got {type(chain).__name__} for chain {i}")
        first = chains[0]
        if not (
            chain.frame.equals(first.frame)
            and chain.frame.index.identical(first.frame.index)
            and chain.frame.columns.identical(first.frame.columns)
        ):
            raise ValueError(f"chains must be imputations of the same table, chain {i} is of another one")
        if chain.m != first.m:
            raise ValueError(
                f"chains must be equally many imputations, got {first.m} in chain 0 and {chain.m} in chain "
                f"{i}: give impute the same m"
            )


# ------------------------------------------------------------------------------------------------ the groups


def _entries(draws: Imputations, table: _Described) -> dict[str, dict[str, _Entry]]:
    """The variables of one chain, by group and name."""
    groups: dict[str, dict[str, _Entry]] = {group: {} for group in _GROUPS}
    for label, values in draws.values.items():
        name, coder = table.names[label], table.coders[label]
        rows = np.flatnonzero(table.holes[:, table.column(label)])
        attrs = {"column": str(label), **coder.attrs}
        groups["predictions"][name] = table.cells(name, rows, coder(values), attrs)
        groups["posterior"] |= _summary(name, coder, coder(values))
    if draws.observed_cells is not None and table.has_observed_cells:
        groups["posterior"] |= _parameters(draws.observed_cells, draws.m, table)
        _add_observed_cells(groups, draws, draws.observed_cells, table)
    else:
        for label in draws.values:
            rows = table.positions[~table.holes[table.positions, table.column(label)]]
            coder, name = table.coders[label], table.names[label]
            cells = coder(cells_of(table.frame[label])[rows])
            attrs = {"column": str(label), **coder.attrs}
            groups["observed_data"][name] = table.cells(name, rows, cells, attrs)
    groups["constant_data"] = _constant(table)
    return groups


def _summary(name: str, coder: _Coder, values: Array) -> dict[str, _Entry]:
    """Mean of the imputed cells `[m, n]` of a column, of labels the share of each level."""
    attrs = {"estimate": "over the imputed cells of a draw", **coder.attrs}
    if coder.kind == "label" and coder.levels is not None:
        level = f"{name}_level"
        shares = np.stack([(values == k).mean(axis=1) for k in range(len(coder.levels))], axis=1)
        names = np.array([str(each) for each in coder.levels], dtype=object)
        return {f"imputed_share_{name}": _Entry(shares, (level,), attrs, {level: (level, names)})}
    known = (values >= 0) if coder.levels is not None else ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        mean = np.where(known, values, 0).sum(axis=1) / known.sum(axis=1)
    return {f"imputed_mean_{name}": _Entry(mean, (), attrs, {})}


def _add_observed_cells(
    groups: dict[str, dict[str, _Entry]], draws: Imputations, source: ObservedCells, table: _Described
) -> None:
    """Put replicates, log densities and observed cells into their groups."""
    found = source.replicate(draws.frame, draws.m, table.positions)
    link_names = source.sampler.chain.names
    for variable, cells in zip(source.variables, found, strict=False):
        label = variable.codec.name
        name = table.link_names[link_names[variable.links[0]]] if variable.is_target else table.names[label]
        coder, observed, kept = _Coder(None, "number"), cells.observed, np.ones(len(cells.rows), bool)
        if not variable.is_target:
            # What follows from other cells is no observation.
            kept = ~table.holes[cells.rows, table.column(label)]
            coder, observed = table.coders[label], cells_of(table.frame[label])[cells.rows]
        if not kept.any():
            continue
        rows, values = cells.rows[kept], coder(cells.values[:, kept])
        attrs = {"column": str(label), **coder.attrs}
        density = {
            "column": str(label),
            "unit": "log probability" if cells.is_probability else "log density, per unit of the column",
        }
        known = coder(observed[kept]).astype(values.dtype)
        groups["posterior_predictive"][name] = table.cells(name, rows, values, attrs)
        groups["log_likelihood"][name] = table.cells(name, rows, cells.log_density[:, kept], density)
        groups["observed_data"][name] = table.cells(name, rows, known, attrs)


def _parameters(source: ObservedCells, m: int, table: _Described) -> dict[str, _Entry]:
    """The drawn functions and the point estimates of all links."""
    sampler, found = source.sampler, dict[str, _Entry]()
    functions = sampler.functions(range(m)) if sampler.joint else []
    noises = [conditional.noise.cpu().numpy() for conditional in sampler.sparse(range(m))]
    for i, (name, link) in enumerate(zip(sampler.chain.names, sampler.chain.links, strict=True)):
        own, attrs = table.link_names[name], {"link": name}
        for parameter, value, inputs in _estimates(link):
            dims = tuple(f"{own}_{parameter}_{k}" for k in range(value.ndim))
            coords: dict[str, tuple[str, Array]] = {}
            if inputs is not None:
                dims = (f"{own}_input",)
                labels = np.array([source.names[d] for d in inputs], dtype=object)
                coords[dims[0]] = dims[0], labels
            repeated = np.broadcast_to(value, (m, *value.shape))
            found[f"{parameter}_{own}"] = _Entry(repeated, dims, {**attrs, "estimate": _POINT}, coords)
        if noises[i].ndim == 2:  # one per imputation
            found[f"noise_{own}"] = _Entry(noises[i][:, 0], (), {**attrs, "estimate": "drawn"}, {})
        if functions:
            drawn = {**attrs, "estimate": "drawn", "unit": "whitened"}
            found[f"u_{own}"] = _Entry(functions[i].cpu().numpy(), ("inducing",), drawn, {})
    return found


def _estimates(link: Link) -> Iterator[tuple[str, Numbers, list[int] | None]]:
    """Names and values of a link's parameters, and of which encoded columns they are, if of such."""
    inputs = link.inputs.tolist()
    parts = {path: part for path, part in link.kernel.named_modules() if getattr(part, "_pyro_params", None)}
    kinds = [type(part).__name__.lower() for part in parts.values()]
    with local_parameters():
        for kind, (path, part) in zip(kinds, parts.items(), strict=True):
            prefix = kind if kinds.count(kind) == 1 else f"{path.replace('.', '_')}_{kind}"
            for parameter in part._pyro_params:
                value = _number(part, parameter)
                own = [inputs[d] for d in part.active_dims]
                yield f"{prefix}_{parameter}", value, own if value.shape == (len(own),) else None
        likelihood: Any = link.likelihood
        for parameter in likelihood._pyro_params:
            yield parameter, _number(likelihood, parameter), None


def _number(module: nn.Module, parameter: str) -> Numbers:
    return np.asarray(getattr(module, parameter).detach().cpu().numpy(), dtype=np.float64)


def _constant(table: _Described) -> dict[str, _Entry]:
    """Which cells are observed, `[N, C]`, and mean and standard deviation of those of numbers, `[C]`."""
    moments = np.full((2, table.frame.shape[1]), np.nan)
    for i, (label, coder) in enumerate(table.coders.items()):
        cells = coder(_observed(table.frame[label]))
        if coder.kind != "label" and cells.size:
            moments[:, i] = cells.mean(), cells.std()
    names = np.array(list(table.names.values()), dtype=object)
    labels = np.array([str(label) for label in table.frame.columns], dtype=object)
    rows, columns = ("row", table.labels), {"column": ("column", names), "label": ("column", labels)}
    said = {"estimate": "over the observed cells, in the column's own units"}
    return {
        "observed": _Entry(~table.holes, ("row", "column"), {}, {"row": rows, **columns}),
        "mean": _Entry(moments[0], ("column",), said, columns),
        "scale": _Entry(moments[1], ("column",), said, columns),
    }


def _dataset(chains: Sequence[Mapping[str, _Entry]], group: str) -> xarray.Dataset:
    """The variables of all chains as a group."""
    from xarray import Dataset

    variables, coords = {}, {}
    if group in _DRAWN:
        coords = {"chain": ("chain", np.arange(len(chains)))}
    for name, first in chains[0].items():
        shapes = [chain[name].values.shape if name in chain else None for chain in chains]
        if shapes.count(shapes[0]) != len(shapes):
            raise ValueError(
                f"chains must come from fits of the same settings: {name!r} in {group} has shapes {shapes}"
            )
        dims, values = first.dims, first.values
        if group in _DRAWN:
            dims, values = ("chain", "draw", *dims), np.stack([chain[name].values for chain in chains])
            coords["draw"] = ("draw", np.arange(values.shape[1]))
        variables[name] = (dims, values, first.attrs)
        coords |= first.coords
    return Dataset(variables, coords, {"description": _GROUPS[group]})
