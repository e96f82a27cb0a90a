"""Export of imputations to ArviZ: an `InferenceData` for ArviZ 0.x, an `xarray.DataTree` from 1.0 onwards.

One imputation is one draw. Variables have the dimensions chain and draw, and those named here::

    group                 variable                  further dimension; content
    posterior             imputed_mean_<column>     mean of the imputed cells of a draw, in own units
                          imputed_share_<column>    <column>_level; share of each level, if they are labels
                          u_<link>                  inducing; whitened inducing values of the drawn function
                          <part>_lengthscale_<link> <link>_input; and other parameters of kernels
                          noise_<link>              and other parameters of likelihoods
    in_sample_predictive  <column>                  <column>_row; a replicate of each observed cell
    log_likelihood        <column>                  <column>_row; log density of each observed cell
    observed_data         <column>                  <column>_row; the observed cells (without chain and draw)
    predictions           <column>                  <column>_row; the imputed cells
    constant_data         observed, mean, scale     row, column; which cells are observed, and their moments
    sample_stats          rhat_mean_<column>, ...   R-hat in the chains of data augmentation, without draw:
                                                    the columns of `Mixing.table`
                          rhat_<column>             <column>_row; R-hat of each missing cell, without draw

Each column is a variable with a row dimension of its own, since columns differ in their missing cells.
Coordinates are the index labels, and `<column>_position`, the position of the row in the table. All values
are numbers. Labels are positions of their levels (attribute `levels`, JSON), -1 where a draw is missing;
booleans are 0 and 1; times are seconds, since 1970 (UTC) if they are points in time.

Replicates of observed cells flatter the model, since functions have learnt from these cells. Where a function
of ArviZ asks for `posterior_predictive`, write `tree["posterior_predictive"] = tree["in_sample_predictive"]`.
`leave_one_out` corrects log densities where that is possible.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
import warnings
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from xarray import DataArray, Dataset

from pyro_mgp._support.checks import at_least
from pyro_mgp._support.messages import FitWarning, listing, warn_user
from pyro_mgp.data.cells import cells_of, holes_of, seconds_of
from pyro_mgp.data.column_spec import Label
from pyro_mgp.data.table import missing
from pyro_mgp.model.link import Link
from pyro_mgp.model.local_parameters import local_parameters
from pyro_mgp.results.imputations import Imputations, is_same_table
from pyro_mgp.results.mixing import Mixing
from pyro_mgp.sampling.observed_cells import ObservedCells

Numbers = NDArray[np.float64]
Array = NDArray[Any]
Coords = dict[str, tuple[str, Array]]

# Names that groups use for other variables or dimensions.
_RESERVED = ("chain", "draw", "sample", "row", "column", "observed", "mean", "scale", "inducing", "")
# Letters that file formats do not take in names; names with blanks are no coordinates after reading.
_FORBIDDEN = re.compile(r"[^\w.,()\[\]=+%&-]")
_DIMENSIONS = ("row", "position", "input", "level")
_POINT = "point estimate, repeated over draws"
_UNITS = {"datetime": "seconds since 1970 (UTC)", "duration": "seconds"}
_GROUPS = {
    "posterior": "summaries of imputed cells, parameters of links and their drawn functions",
    "in_sample_predictive": "replicates of observed cells, by functions that have learnt from these cells",
    "log_likelihood": "log densities of observed cells in the columns' own units, given the drawn functions",
    "observed_data": "observed cells of the columns with a link",
    "predictions": "imputed cells",
    "constant_data": "which cells are observed, and their moments",
    "sample_stats": "R-hat and effective sample sizes of missing cells in the chains of data augmentation",
}


def to_arviz(
    draws: Imputations | Sequence[Imputations], *, rows: ArrayLike | None = None, max_rows: int = 10_000
) -> Any:
    """Export imputations to an `InferenceData` (ArviZ 0.x) or `xarray.DataTree` (ArviZ 1.0 onwards).

    Imputations of one table by fits with different seeds become chains. R-hat of `imputed_mean_...` and
    `imputed_share_...` measures whether the fits agree, `sample_stats` whether the chains of data
    augmentation within a fit do. R-hat of parameters and of `u` is not informative, since each fit has point
    estimates and inducing inputs of its own. Parameters whose shapes differ between fits are left out.

    `in_sample_predictive`, `log_likelihood` and the parameters are computed from the current state of the
    imputer that drew. They are absent for imputations that were loaded, copied or made by hand. The target of
    `fit(X, y)` has no predictions. Shifts by `delta` apply to imputed cells only.

    Log densities are those of the cell in the column's own units; log probabilities where draws are discrete:
    levels, integers, values of a discrete support or rounded times. Draws of a transformed column are limited
    to its observed range; densities are not.

    Args:
        draws: Imputations, or a sequence with one per chain: of the same table, with the same m.
        rows: Positions of the rows whose observed cells are predicted, or a Bool `[N]`; None for all.
        max_rows: Largest number of these rows; if there are more, as many are chosen at random, the same
            ones each time. An observed cell takes 16 bytes per imputation. All imputed cells are included.

    Raises:
        TypeError: If a chain is not `Imputations`.
        ValueError: If chains differ in table or m, or `rows` are outside the table.

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
    table = _Table(chains, _positions(rows, max_rows, len(chains[0].frame)))
    entries = [_entries(chain, table) for chain in chains]
    datasets = {group: _dataset([chain[group] for chain in entries], group) for group in _GROUPS}
    groups = {name: dataset for name, dataset in datasets.items() if dataset.data_vars}
    attrs = {
        "creation_library": "pyro_mgp",
        "creation_library_version": version("pyro_mgp"),
        "observed_rows": f"observed cells of {len(table.positions)} of {len(table.frame)} rows",
    }
    if int(version("arviz").split(".")[0]) < 1:
        from arviz import InferenceData

        return InferenceData(attrs=attrs, **groups)
    from xarray import DataTree

    return DataTree.from_dict({"/": Dataset(attrs=attrs), **groups})


def leave_one_out(
    draws: Imputations | Sequence[Imputations], *, rows: ArrayLike | None = None, max_rows: int = 10_000
) -> pd.DataFrame:
    """Estimate the log density of every observed cell, given all cells but this one (PSIS-LOO).

    Draws are weighted by the inverse density of the cell (Vehtari, Gelman and Gabry, Statistics and Computing
    27:1413-1432, 2017). Where weights vary too much, Pareto k is above min(1 - 1 / log10(draws), 0.7), and
    the estimate is refused: hold out cells instead, by `calibrate(imputer, frame, folds=5)`.

    Args:
        draws: Imputations by a fitted imputer, or several of the same table: hundreds of draws in all.
        rows: As in `to_arviz`.
        max_rows: As in `to_arviz`.

    Returns:
        One row per column with a link: `column`, its name in the export; `elpd`, the sum of the log densities
        (of log probabilities, if discrete) of its cells, per unit of the column, NaN if refused; `se`, its
        standard error; `cells`, their number; `pareto_k`, the largest one; `unreliable`, the number of cells
        in which it is too large. Columns may not be added up, since each is predicted from the others.

    Raises:
        ValueError: If the imputations were loaded, copied or made by hand.

    Warns:
        FitWarning: If the estimates of some columns are refused.
    """
    import arviz as az  # The calls below work with versions 0 and 1.

    chains, found = [draws] if isinstance(draws, Imputations) else draws, list[dict[str, Any]]()
    if any(chain.observed_cells is None for chain in chains):
        raise ValueError("log densities need the imputer: pass what impute returned, not loaded or copied")
    tree = to_arviz(chains, rows=rows, max_rows=max_rows)
    for name, log_density in tree["log_likelihood"].data_vars.items():
        densities = np.asarray(log_density).reshape(-1, log_density[0, 0].size)
        # Vehtari et al., JMLR 25:72, 2024, equation 13
        good_k = np.clip(1 - 1 / np.log10(max(len(densities), 2)), 0, 0.7)
        row = {"column": name, "elpd": np.nan, "se": np.nan, "cells": densities.shape[1], "pareto_k": np.inf}
        k = np.full(densities.shape[1], np.inf)
        if _has_tails(densities):
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Estimated shape parameter of Pareto", UserWarning)
                loo = az.loo(tree, var_name=str(name), pointwise=True)
            # ArviZ 1 has NaN where 0 had infinity.
            k = np.nan_to_num(np.asarray(loo.pareto_k), nan=np.inf)
            elpd = loo.elpd_loo if hasattr(loo, "elpd_loo") else loo.elpd
            row |= {"elpd": float(elpd), "se": float(loo.se), "pareto_k": k.max()}
        found.append(row | {"unreliable": int((~(k <= good_k)).sum())})
    table = pd.DataFrame(found)
    refused = table["unreliable"] > 0
    table.loc[refused, ["elpd", "se"]] = np.nan
    if refused.any():
        warn_user(
            f"Pareto k is up to {table['pareto_k'].max():.2f}, above {good_k:.2f}, in columns "
            f"{listing(table['column'][refused])}: their leave-one-out densities are refused. Draw more "
            "imputations, or hold out cells: calibrate(imputer, frame, folds=5)",
            FitWarning,
        )
    return table


def _has_tails(log_densities: Array) -> bool:
    """Return whether the tails of importance weights, of shape (draws, cells), are more than one value.

    Pareto's distribution is fitted to five of the weights or more, a fifth of n or 3√n; ArviZ 1 raises for
    others.
    """
    n_draws = len(log_densities)
    size = math.ceil(min(n_draws / 5, 3 * n_draws**0.5))
    tails = np.partition(log_densities, size - 1, axis=0)[:size]
    return size >= 5 and bool((np.ptp(tails, axis=0) > 0).all())


@dataclass(frozen=True)
class _Coder:
    """Converter of the cells of a column to numbers."""

    kind: str  # "number", "boolean", "label", "datetime" or "duration"
    levels: tuple[Hashable, ...] | None = None  # whose positions represent the cells; None for numbers, times

    def __call__(self, cells: Array) -> Array:
        """Return cells of any shape as float64 or int64, missing cells as NaN or -1."""
        if cells.dtype.kind in "mM":
            return seconds_of(pd.Series(cells.ravel())).reshape(cells.shape)
        if self.levels is not None:
            codes = pd.Index(self.levels, dtype=object).get_indexer(pd.Index(cells.ravel(), dtype=object))
            return np.asarray(codes, dtype=np.int64).reshape(cells.shape)
        return cells.astype(np.float64) if cells.dtype == object else cells

    @property
    def attrs(self) -> dict[str, str]:
        """Attributes of a variable that describe its coding: kind, unit, levels and missing code."""
        attrs = {"kind": self.kind}
        if self.kind in _UNITS:
            attrs["unit"] = _UNITS[self.kind]
        if self.levels is not None:
            attrs |= {"levels": json.dumps(self.levels, default=str), "missing": "-1"}
        return attrs


def _coder(dtype: Any, cells: Sequence[Array], levels: Iterable[Hashable]) -> _Coder:
    """Choose the coder of a column by its dtype, its observed and imputed cells, and further levels."""
    if isinstance(dtype, pd.CategoricalDtype):
        return _Coder("label", tuple(dtype.categories))
    letters = {array.dtype.kind for array in cells if array.size}
    if letters & {"m", "M"}:
        return _Coder("datetime" if "M" in letters else "duration")
    if letters <= {"f", "i"}:
        return _Coder("number")
    objects = [pd.unique(array.ravel()) for array in cells if array.dtype.kind in "Ob"]
    found = {cell for array in objects for cell in array.tolist() if not pd.isna(cell)}
    if all(isinstance(cell, bool) for cell in found):
        return _Coder("boolean", (False, True))
    if all(isinstance(cell, int | float) for cell in found):
        return _Coder("number")
    return _Coder("label", tuple(sorted({*found, *levels}, key=str)))


class _Table:
    """Table that all chains share, with the names and coders of its ArviZ variables."""

    def __init__(self, chains: Sequence[Imputations], positions: NDArray[np.intp]) -> None:
        self.frame = frame = chains[0].frame
        self.positions = positions  # of the rows whose observed cells are predicted
        self.labels = _index_labels(frame.index)
        self.has_observed_cells = all(chain.observed_cells is not None for chain in chains)
        self.has_mixing = all(chain.mixing is not None for chain in chains)
        taken = set(_RESERVED)
        self.names: dict[Label, str] = {label: _new_name(str(label), taken) for label in frame.columns}
        self.link_names: dict[str, str] = {}
        levels: dict[Label, tuple[Hashable, ...]] = {}
        for source in filter(None, (chain.observed_cells for chain in chains)):
            for variable in source.variables:
                label, links = variable.codec.name, source.sampler.chain.names
                levels[label] = variable.codec.levels or ()
                # The only link of a column is named after the column.
                alone = variable.compound is None and not variable.of_no_column
                for link in (links[i] for i in variable.links):
                    if link not in self.link_names:
                        self.link_names[link] = self.names[label] if alone else _new_name(link, taken)
        self.coders: dict[Label, _Coder] = {}
        for label in frame.columns:
            cells = [chain.values[label] for chain in chains if label in chain.values]
            cells.append(cells_of(frame[label][~holes_of(frame[label])]))
            self.coders[label] = _coder(frame[label].dtype, cells, levels.get(label, ()))

    def cells(self, name: str, rows: NDArray[np.intp], values: Array, attrs: Mapping[str, Any]) -> DataArray:
        """Return the cells of a column in the given rows, `[..., n]`, as a `DataArray`."""
        row = f"{name}_row"
        coords = {row: (row, self.labels[rows]), f"{name}_position": (row, rows.astype(np.int64))}
        return _variable(values, (row,), attrs, coords)

    def attrs(self, label: Label) -> dict[str, str]:
        """Return the attributes of a column's ArviZ variables: its label and its coding."""
        return {"column": str(label), **self.coders[label].attrs}


def _variable(
    values: Array, dims: tuple[str, ...], attrs: Mapping[str, Any], coords: Coords | None = None
) -> DataArray:
    """Return the values of one chain as a `DataArray`; an additional first dimension is the draw."""
    draw = ("draw",) * (values.ndim - len(dims))
    return DataArray(values, coords, (*draw, *dims), attrs=attrs)


def _new_name(text: str, taken: set[str]) -> str:
    """Convert text to a variable name that files can store, and that is not yet in use."""
    name = _FORBIDDEN.sub("_", unicodedata.normalize("NFC", text.strip()))
    if not re.match(r"\w", name):
        name = f"column_{name}"
    while not taken.isdisjoint(own := {name, *(f"{name}_{part}" for part in _DIMENSIONS)}):
        name += "_"
    taken |= own
    return name


def _index_labels(index: pd.Index[Any]) -> Array:
    """Return index labels in a form that files can store: numbers, points in time, or text."""
    values = index.to_numpy()
    plain = not isinstance(index, pd.MultiIndex) and isinstance(index.dtype, np.dtype)
    if plain and values.dtype.kind in "iufM" and not pd.isna(values).any():
        return values
    parts = [", ".join(map(str, label)) if isinstance(label, tuple) else str(label) for label in index]
    return np.array(parts, dtype=object)


def _positions(rows: ArrayLike | None, max_rows: int, n_rows: int) -> NDArray[np.intp]:
    """Return the sorted positions of the rows whose observed cells are predicted, at most `max_rows`."""
    at_least("max_rows", max_rows, 1)
    chosen = np.arange(n_rows) if rows is None else np.asarray(rows)
    if chosen.dtype == np.bool_ and chosen.shape == (n_rows,):
        chosen = np.flatnonzero(chosen)
    inside = chosen.dtype.kind in "iu" and chosen.ndim == 1 and ((chosen >= 0) & (chosen < n_rows)).all()
    if not inside and chosen.size:
        expected = f"positions from 0 to {n_rows - 1}, or a Bool for each of {n_rows} rows"
        advice = "For index labels: frame.index.get_indexer(labels)."
        raise ValueError(f"rows must be {expected}; got {rows!r}. {advice}")
    chosen = np.unique(chosen).astype(np.intp)
    if len(chosen) > max_rows:
        chosen = np.sort(np.random.default_rng(0).choice(chosen, max_rows, replace=False))
    return chosen


def _check_chains(chains: Sequence[Imputations]) -> None:
    if not chains:
        raise ValueError("expected imputations, or a sequence with one per chain, got none")
    for i, chain in enumerate(chains):
        if not isinstance(chain, Imputations):
            raise TypeError(f"expected Imputations for each chain, got {type(chain).__name__} for chain {i}")
        if not is_same_table(chain.frame, chains[0].frame):
            raise ValueError(f"chains must be imputations of the same table, but chain {i} has another one")
        if chain.m != chains[0].m:
            numbers = f"{chains[0].m} in chain 0 and {chain.m} in chain {i}: pass the same m to impute"
            raise ValueError(f"chains must have the same number of imputations, got {numbers}")


def _entries(draws: Imputations, table: _Table) -> dict[str, dict[str, DataArray]]:
    """Return the ArviZ variables of one chain, by group and variable name."""
    groups: dict[str, dict[str, DataArray]] = {group: {} for group in _GROUPS}
    for label, values in draws.values.items():
        name, coder, attrs = table.names[label], table.coders[label], table.attrs(label)
        column, holes = table.frame[label], holes_of(table.frame[label])
        groups["predictions"][name] = table.cells(name, np.flatnonzero(holes), coder(values), attrs)
        groups["posterior"] |= _summary(name, coder, coder(values))
        if not table.has_observed_cells:
            rows = table.positions[~holes[table.positions]]
            groups["observed_data"][name] = table.cells(name, rows, coder(cells_of(column)[rows]), attrs)
    if draws.observed_cells is not None and table.has_observed_cells:
        groups["posterior"] |= _parameters(draws.observed_cells, draws.m, table)
        _add_observed_cells(groups, draws, draws.observed_cells, table)
    groups["constant_data"] = _constant(table)
    if draws.mixing is not None and table.has_mixing:
        groups["sample_stats"] = dict(_mixing(draws.mixing, table))
    return groups


def _mixing(mixing: Mixing, table: _Table) -> Iterator[tuple[str, DataArray]]:
    """Yield R-hat and effective sample sizes of each column, and R-hat of its missing cells."""
    about = {"chains": mixing.n_chains, "iterations": mixing.n_iterations, "largest_rhat": mixing.largest}
    for label, *figures in mixing.table.to_numpy().tolist():
        if label in table.names:  # the target is not in the table
            name, attrs = table.names[label], {"column": str(label), **about}
            for figure, value in zip(mixing.table.columns[1:], figures, strict=True):
                yield f"{figure}_{name}", DataArray(value, attrs=attrs)
            rows = np.flatnonzero(holes_of(table.frame[label]))
            cells = mixing.cells.get(label, np.full(len(rows), np.nan))  # loaded imputations have none
            yield f"rhat_{name}", table.cells(name, rows, cells, attrs)


def _summary(name: str, coder: _Coder, values: Array) -> dict[str, DataArray]:
    """Compute the mean of a column's imputed cells `[m, n]` in each draw, or the share of each level."""
    attrs = {"estimate": "over the imputed cells of a draw", **coder.attrs}
    present = (values >= 0) if coder.levels is not None else ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        if coder.kind == "label" and coder.levels is not None:
            level, n = f"{name}_level", present.sum(axis=1)
            shares = np.stack([(values == k).sum(axis=1) / n for k in range(len(coder.levels))], axis=1)
            names = np.array([str(each) for each in coder.levels], dtype=object)
            return {f"imputed_share_{name}": _variable(shares, (level,), attrs, {level: (level, names)})}
        mean = np.where(present, values, 0).sum(axis=1) / present.sum(axis=1)
    return {f"imputed_mean_{name}": _variable(mean, (), attrs)}


def _add_observed_cells(
    groups: dict[str, dict[str, DataArray]], draws: Imputations, source: ObservedCells, table: _Table
) -> None:
    """Add observed cells, their replicates and their log densities to the ArviZ groups."""
    found = source.replicate(draws.frame, draws.m, table.positions)
    link_names = source.sampler.chain.names
    for variable, cells in zip(source.variables, found, strict=False):
        label, rows = variable.codec.name, cells.rows
        if variable.of_no_column:
            name, coder = table.link_names[link_names[variable.links[0]]], _Coder("number")
            observed, kept = cells.observed, np.ones(len(rows), bool)
        else:
            name, coder, column = table.names[label], table.coders[label], table.frame[label]
            # A cell that was derived from other cells is not an observation.
            observed, kept = cells_of(column)[rows], ~holes_of(column)[rows]
        if not kept.any():
            continue
        values, about = coder(cells.values[:, kept]), {"column": str(label)}
        unit = "log probability" if cells.is_probability else "log density, per unit of the column"
        for group, own, attrs in (
            ("in_sample_predictive", values, coder.attrs),
            ("log_likelihood", cells.log_density[:, kept], {"unit": unit}),
            ("observed_data", coder(observed[kept]).astype(values.dtype), coder.attrs),
        ):
            groups[group][name] = table.cells(name, rows[kept], own, about | attrs)


def _parameters(source: ObservedCells, m: int, table: _Table) -> dict[str, DataArray]:
    """Return drawn inducing values and point estimates of parameters, for all links, as variables."""
    sampler, found = source.sampler, dict[str, DataArray]()
    functions = sampler.functions(range(m)) if sampler.joint else []
    noises = [conditional.noise.cpu().numpy() for conditional in sampler.sparse(range(m))]
    for i, (name, link) in enumerate(zip(sampler.chain.names, sampler.chain.links, strict=True)):
        own, attrs = table.link_names[name], {"link": name}
        for parameter, value, inputs in _estimates(link):
            dims, coords = tuple(f"{own}_{parameter}_{k}" for k in range(value.ndim)), Coords()
            if inputs is not None:
                dims = (f"{own}_input",)
                coords[dims[0]] = dims[0], np.array([source.names[d] for d in inputs], dtype=object)
            repeated, estimate = np.broadcast_to(value, (m, *value.shape)), _POINT
            if sampler.posterior and parameter.endswith("lengthscale"):
                of_chains = [dict(pair[:2] for pair in _estimates(c.links[i])) for c in sampler.posterior]
                repeated = np.stack([of_chains[j % sampler.n_chains][parameter] for j in range(m)])
                estimate = "drawn"
            found[f"{parameter}_{own}"] = _variable(repeated, dims, {**attrs, "estimate": estimate}, coords)
        if noises[i].ndim == 2:  # one per imputation
            found[f"noise_{own}"] = _variable(noises[i][:, 0], (), {**attrs, "estimate": "drawn"})
        if functions:
            drawn = {**attrs, "estimate": "drawn", "unit": "whitened"}
            found[f"u_{own}"] = _variable(functions[i].cpu().numpy(), ("inducing",), drawn)
    return found


def _estimates(link: Link) -> Iterator[tuple[str, Numbers, list[int] | None]]:
    """Yield name and value of each parameter of a link, and its encoded columns if it has one per input."""
    inputs = link.inputs.tolist()
    parts = {path: part for path, part in link.kernel.named_modules() if getattr(part, "_pyro_params", None)}
    kinds = [type(part).__name__.lower() for part in parts.values()]
    modules = dict[str, Any]()
    for kind, (path, part) in zip(kinds, parts.items(), strict=True):
        modules[f"{kind}_" if kinds.count(kind) == 1 else f"{path.replace('.', '_')}_{kind}_"] = part
    modules[""] = link.likelihood
    with local_parameters():
        for prefix, part in modules.items():
            own = [inputs[d] for d in getattr(part, "active_dims", [])]
            for parameter in part._pyro_params:
                value = getattr(part, parameter).detach().cpu().numpy().astype(np.float64)
                yield f"{prefix}{parameter}", value, own if value.shape == (len(own),) else None


def _constant(table: _Table) -> dict[str, DataArray]:
    """Return the mask of observed cells, `[N, C]`, and the mean and sd of each column, `[C]`."""
    moments = np.full((2, table.frame.shape[1]), np.nan)
    for i, (label, coder) in enumerate(table.coders.items()):
        column = table.frame[label]
        cells = coder(cells_of(column[~holes_of(column)]))
        if coder.kind != "label" and cells.size:
            moments[:, i] = cells.mean(), cells.std()
    names = np.array(list(table.names.values()), dtype=object)
    labels = np.array([str(label) for label in table.frame.columns], dtype=object)
    rows, columns = ("row", table.labels), {"column": ("column", names), "label": ("column", labels)}
    attrs = {"estimate": "over the observed cells, in the column's own units"}
    return {
        "observed": _variable(~missing(table.frame), ("row", "column"), {}, {"row": rows, **columns}),
        "mean": _variable(moments[0], ("column",), attrs, columns),
        "scale": _variable(moments[1], ("column",), attrs, columns),
    }


def _dataset(chains: Sequence[Mapping[str, DataArray]], group: str) -> Dataset:
    """Combine the variables of all chains in one group."""
    variables = {}
    for name, first in chains[0].items():
        shapes = [chain[name].shape if name in chain else None for chain in chains]
        if shapes.count(shapes[0]) != len(shapes):
            if group == "posterior":  # a link need not have the same inputs in all fits
                continue
            found = f"{name!r} in {group} has shapes {shapes}"
            raise ValueError(f"chains must come from fits of the same settings: {found}")
        variables[name] = first
        if "draw" in first.dims or group == "sample_stats":
            values = np.stack([chain[name].to_numpy() for chain in chains])
            variables[name] = DataArray(values, first.coords, ("chain", *first.dims), attrs=first.attrs)
    dataset = Dataset(variables, attrs={"description": _GROUPS[group]})
    numbered = [dimension for dimension in ("chain", "draw") if dimension in dataset.sizes]
    return dataset.assign_coords({dimension: np.arange(dataset.sizes[dimension]) for dimension in numbered})
